# attnlab. `make` lists the targets; each sets up what it needs. docs/development.md has the commands without a target.
CODE := lib tests tools benchmarks
NEEDED := pandas papermill pydantic yaml
# The oldest driver that runs CUDA 13, which the extra `cuda` brings.
DRIVER := 580

TARGETS := help report measure export lab kernels tune dispatch test check
# The variables of a target besides PYTHON, an interpreter into which nothing is installed. Of a switch, 0 is off.
report_TAKES := RUN=<name>
measure_TAKES := RUN=<name> STUDY=<name|file> DEVICE=<cuda|cpu> GPUS=<number|all> SCHEDULER=<tcp://HOST:PORT> LONG=1
export_TAKES := RUN=<name>
lab_TAKES := DEVICE=<cuda|cpu>
kernels_TAKES := RUNG=<name>
dispatch_TAKES := RUN=<name>[,<name>] REPLACE=1
test_TAKES := OF=<browser|faults|gpu>
check_TAKES := FIX=1
GOALS := $(or $(MAKECMDGOALS),help)
TAKEN := $(foreach goal,$(GOALS),$($(goal)_TAKES)) PYTHON=<interpreter>
TYPED := $(foreach name,$(.VARIABLES),$(if $(filter command,$(origin $(name))),$(name)))
REFUSED := $(filter-out $(foreach word,$(TAKEN),$(firstword $(subst =, ,$(word)))),$(TYPED))
ifneq ($(if $(filter-out $(TARGETS),$(GOALS)),,$(REFUSED)),)  # make itself refuses other targets
$(error make $(GOALS) takes no $(REFUSED): it takes $(strip $(TAKEN)))
endif
# The build of PyTorch, whatever DEVICE says: what DEVICE=cpu installs serves DEVICE=cuda later.
BUILD := $(shell driver=$$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null); \
  [ "$${driver%%.*}" -ge $(DRIVER) ] 2>/dev/null && echo cuda || echo cpu)
HARDWARE := $(if $(filter cpu,$(DEVICE)),cpu,$(BUILD))
export PYTHONPATH := $(CURDIR)/lib$(if $(PYTHONPATH),:$(PYTHONPATH))
# What Arrow's own allocator has freed, nothing else in a process can use.
export ARROW_DEFAULT_MEMORY_POOL := system
export JUPYTER_PLATFORM_DIRS := 1
switch = $(if $(filter-out 0,$($(1))),$(2))

# $(call ready,EXTRA-EXTRA): the stamp of a .venv that has these extras of pyproject.toml. `render` stands for none:
# any stamp that exists will do. A .venv that tools/environment.py is changing, or was when it was killed, has none.
ifeq ($(PYTHON),)
python := .venv/bin/python
whole := $(shell [ ! -s .venv.lock ] && $(python) -Ic 'import pip' 2>/dev/null && echo whole)
ready = .venv/.ready-$(1)
rendering := $(firstword $(if $(whole),$(wildcard .venv/.ready-*)) $(call ready,render))
else
python := $(PYTHON)
ready = .usable
rendering := .usable
endif

.NOTPARALLEL:
.SILENT:
.PHONY: $(TARGETS) .gpu .usable .again

help:  ## list the targets
	awk -F':.*## ' '/^[a-z]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))
	$(foreach of,$(TARGETS),$(if $($(of)_TAKES),echo '  $(of) takes $($(of)_TAKES)';)) echo '  all take$(TAKEN)'

report: $(rendering)  ## render the published run, or RUN=<name>: pages in reports/, and the report as PDF
	$(python) -m attnlab report $${RUN:+--run="$$RUN"}

measure: $(if $(GPUS),$(if $(PYTHON),,.gpu)) $(call ready,$(HARDWARE)$(if $(GPUS)$(SCHEDULER),-dask))
measure:  ## measure a study into a new run, or continue a run that was cut off
	$(python) -m attnlab measure $${RUN:+--run="$$RUN"} $${STUDY:+--study="$$STUDY"} $${DEVICE:+--device="$$DEVICE"} \
	  $${GPUS:+--gpus="$$GPUS"} $${SCHEDULER:+--scheduler="$$SCHEDULER"} $(call switch,LONG,--long)

export: $(rendering)  ## write a recorded run as two JSON files and NumPy arrays
	$(python) -m attnlab export --run="$$RUN"

lab: $(call ready,$(HARDWARE)-lab)  ## open the notebooks in JupyterLab, which saves them without outputs
	[ "$$(id -u)" != 0 ] || { echo 'as root: who has the address below has this machine'; root=--allow-root; }; \
	JUPYTER_CONFIG_PATH="$(CURDIR)/tools/lab$${JUPYTER_CONFIG_PATH:+:$$JUPYTER_CONFIG_PATH}" \
	$(python) -m jupyterlab --notebook-dir=notebooks $$root

kernels: $(call ready,kernels)  ## compile kernels for every architecture: registers, spills, occupancy; needs no GPU
	$(python) -m attnlab kernels $${RUNG:+--rung="$$RUNG"}

tune: $(call ready,$(HARDWARE))  ## choose the kernel that kernel.best runs at each shape on this NVIDIA GPU
	$(python) -m attnlab tune

dispatch: $(rendering)  ## write the table of what attnlab.attend calls at each shape, from runs
	$(python) -m attnlab dispatch --run="$$RUN" $(call switch,REPLACE,--replace)

# Playwright leaves an event loop running, in whose process Dask's client can't start one: tests/browser is apart.
TESTS := --ignore=tests/browser --numprocesses 2 --dist loadfile
TESTS_browser := tests/browser
TESTS_faults := -m faults
TESTS_gpu := -m 'gpu and not alone' --numprocesses 8 --dist loadfile
EXTRAS := $(if $(filter gpu,$(OF)),$(HARDWARE),cpu-dask-kernels-model)-test$(if $(filter browser,$(OF)),-browser)
test: $(if $(filter gpu,$(OF)),.gpu) $(call ready,$(EXTRAS))
test:  ## run the tests that need no GPU, or OF=<...>: in Chromium, with runs killed at random, on an NVIDIA GPU
	$(python) -m pytest $(or $(TESTS$(OF:%=_%)),$(error OF=$(OF) names no tests: it is browser, faults or gpu))
	$(if $(filter gpu,$(OF)),$(python) -m pytest -m 'gpu and alone')

check: $(call ready,cpu-check)  ## check format, lint, types and notebook pairs; FIX=1 repairs all but types first
	$(call switch,FIX,$(python) -m ruff format --quiet $(CODE); $(python) -m ruff check --fix --quiet $(CODE))
	$(call switch,FIX,$(python) -m jupytext --sync --quiet notebooks/*.py)
	$(python) -m ruff format --check --quiet $(CODE)
	$(python) -m ruff check --quiet $(CODE)
	$(python) -m mypy
	$(python) tools/prose.py
	for notebook in notebooks/*.ipynb; do $(python) -m jupytext --quiet --to py:percent --output - $$notebook \
	    --opt notebook_metadata_filter=-all --opt cell_metadata_filter=tags,-all | diff -u $${notebook%.ipynb}.py - \
	  || { echo "$$notebook and its .py differ: make check FIX=1" >&2; exit 1; }; \
	done

.gpu:
	[ '$(HARDWARE)' = cuda ] || { echo 'this needs an NVIDIA GPU with a driver from $(DRIVER) on, and' \
	  '$(if $(filter cpu,$(DEVICE)),DEVICE says cpu,none is here)$(if $(GPUS),: leave GPUS out)' >&2; exit 1; }

.usable:
	refuse() { echo "PYTHON=$$PYTHON $$1, or leave PYTHON out" >&2; exit 1; }; \
	command -v "$${PYTHON%% *}" >/dev/null || refuse 'is not there: name an interpreter that is'; \
	said=$$($(python) -c 'import sys, importlib.util as u; print(*["Python", sys.version.split()[0]] if sys.version_info \
	  < (3, 11) else ["lacks", *(n for n in sys.argv[1:] if not u.find_spec(n))])' $(NEEDED) 2>/dev/null); \
	case "$$said" in lacks) ;; lacks*) refuse "$$said: install attnlab into it";; \
	*) refuse "is $${said:-no Python}, and attnlab needs 3.11 or newer: name one that is";; esac

# The first python3 that is new enough makes .venv: a stamp for each set of extras, made again when the lock changes.
.venv/.ready-%: pyproject.toml requirements.lock $(if $(whole),,.again)
	for candidate in python3 python3.14 python3.13 python3.12 python3.11 ''; do \
	  [ "$$candidate" ] || { echo 'attnlab needs Python 3.11 or newer: install it, or state PYTHON=...' >&2; exit 1; }; \
	  $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break; \
	done; \
	exec $$candidate tools/environment.py $* $(BUILD)
