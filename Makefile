# attnlab. `make` lists the targets; each sets up what it needs.

# An interpreter that is there (conda's, say), into which nothing is installed; without one, .venv is made.
PYTHON ?=
# A run in data/ to render, or the name of one to measure.
RUN ?=
# A study in studies/, or a path to a YAML file.
STUDY ?=
# auto, cuda or cpu.
DEVICE ?=
# On how many of this host's GPUs to measure, or `all`; without it on one.
GPUS ?=
# The address of a Dask scheduler, tcp://HOST:PORT: measure on the cluster behind it.
SCHEDULER ?=
# 1: measure a study even if that takes longer than a day. As of every such switch, 0 is as if it were not stated.
LONG ?=
# For `make kernels`: the name of a rung to compile alone.
RUNG ?=
# For `make dispatch`, 1: write over another table of the device.
REPLACE ?=
# For `make notebook`: which, and NAME=VALUE pairs.
NAME =
PARAMS =
# For `make compare`: the run before, the run that is judged; 1: for a pull request; slower: fail.
A =
B =
MARKDOWN ?=
FAIL_IF ?=

PUBLISHED := h200-2026-11-28-main
CODE := lib tests tools benchmarks
# The oldest driver that runs CUDA 13, which the extra `cuda` brings.
DRIVER := 580

TARGETS := help report measure close notebook explore export readme lab kernels tune test test-browser test-gpu sanitize faults bench dispatch compare calibrate wheel check format lock clean
# What a target takes besides PYTHON, as it is typed; those that are not here take nothing else.
report_TAKES := RUN=<name>
measure_TAKES := RUN=<name> STUDY=<name|file> DEVICE=<cuda|cpu> GPUS=<number|all> SCHEDULER=<tcp://HOST:PORT> LONG=1
close_TAKES := RUN=<name>
notebook_TAKES := NAME=02_baseline PARAMS="run=<name> batch=2"
explore_TAKES := RUN=<name>
export_TAKES := RUN=<name>
readme_TAKES := RUN=<name>
kernels_TAKES := RUNG=<name>
compare_TAKES := A=<run> B=<run> MARKDOWN=1 FAIL_IF=slower
lab_TAKES := DEVICE=<cuda|cpu>
dispatch_TAKES := RUN=<name>[,<name>] REPLACE=1

GOALS := $(or $(MAKECMDGOALS),help)
TAKEN := $(foreach goal,$(GOALS),$($(goal)_TAKES)) PYTHON=<interpreter>
TYPED := $(foreach name,$(.VARIABLES),$(if $(filter command,$(origin $(name))),$(name)))
REFUSED := $(filter-out $(foreach word,$(TAKEN),$(firstword $(subst =, ,$(word)))),$(TYPED))
# A target that isn't there is left to make.
ifneq ($(if $(filter-out $(TARGETS),$(GOALS)),,$(REFUSED)),)
$(error make $(GOALS) takes no $(REFUSED): it takes $(strip $(TAKEN)))
endif

# CUDA's libraries only where there is a driver that can use them.
FIND_DRIVER := driver=$$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null)
# The build of PyTorch, whatever DEVICE says now: one that has only seen DEVICE=cpu serves DEVICE=cuda later.
BUILD := $(shell $(FIND_DRIVER); [ "$${driver%%.*}" -ge $(DRIVER) ] 2>/dev/null && echo cuda || echo cpu)
HARDWARE := $(if $(filter cpu,$(DEVICE)),cpu,$(BUILD))

export PYTHONPATH := $(CURDIR)/lib$(if $(PYTHONPATH),:$(PYTHONPATH))
export JUPYTER_PLATFORM_DIRS := 1
# What Arrow's own allocator has freed, nothing else in a process can use.
export ARROW_DEFAULT_MEMORY_POOL := system
# $(call switch,NAME,--option): the option if the variable NAME is on.
switch = $(if $(filter-out 0,$($(1))),$(2))
OPTIONS = $${RUN:+--run="$$RUN"} $${STUDY:+--study="$$STUDY"} $${DEVICE:+--device="$$DEVICE"} $${GPUS:+--gpus="$$GPUS"} \
  $${SCHEDULER:+--scheduler="$$SCHEDULER"} $(call switch,LONG,--long)
# What measuring needs here: Dask only where it was asked for, and before it is installed for GPUs, a GPU.
MEASURING = $(if $(GPUS),$(if $(PYTHON),,.gpu)) $(call ready,$(HARDWARE)$(if $(GPUS)$(SCHEDULER),-dask))

# $(call ready,EXTRA-EXTRA): the stamp of a .venv that has these extras of pyproject.toml. `render` stands for no extras:
# any stamp that exists will do.
ifeq ($(PYTHON),)
python := .venv/bin/python
# Whatever its stamps say, a .venv is none that tools/environment.py is changing, or was when it was killed.
whole := $(shell [ ! -s .venv.lock ] && $(python) -Ic 'import pip' 2>/dev/null && echo whole)
ready = .venv/.ready-$(1)
rendering := $(firstword $(if $(whole),$(wildcard .venv/.ready-*)) $(call ready,render))
else
python := $(PYTHON)
ready = .usable
rendering := .usable
endif

.DEFAULT_GOAL := help
.NOTPARALLEL:
.SILENT:
.PHONY: $(TARGETS)

help:  ## list the targets
	awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))
	echo '  variables: RUN=<a run in data/> STUDY=<a file in studies/> DEVICE=<cuda|cpu> LONG=1 PYTHON=<an interpreter>'
	echo '  many GPUs: GPUS=<a number of them here|all>, or SCHEDULER=<the address of a Dask scheduler>'

report: $(rendering)  ## render the published run, or RUN=<name>: pages in reports/, and the report as PDF; measures nothing
	$(python) -m attnlab report $${RUN:+--run="$$RUN"}

measure: $(MEASURING)  ## measure a study into a new run, or continue a run that was cut off
	$(python) -m attnlab measure $(OPTIONS)

close: $(rendering)  ## close a run that was cut off with the replicates that it holds: RUN=<name>
	$(python) -m attnlab close --run="$$RUN"

notebook: $(rendering)  ## execute and render one notebook: NAME=02_baseline PARAMS="run=<name> batch=2"
	$(python) -m attnlab notebook $${PARAMS:+-p "$$PARAMS"} -- "$$NAME"

explore: $(rendering)  ## write the interactive page of the published run, or of RUN=<name>
	$(python) -m attnlab explore --run="$${RUN:-$(PUBLISHED)}"

export: $(rendering)  ## write a recorded run as two JSON files and NumPy arrays: RUN=<name>
	$(python) -m attnlab export --run="$$RUN"

readme: $(rendering)  ## write the pictures and tables of README.md and kernels/README.md from the published run, and the columns of data/README.md
	$(python) -m attnlab readme --run="$${RUN:-$(PUBLISHED)}"
	$(python) tools/data_readme.py

lab: $(call ready,$(HARDWARE)-lab)  ## open the notebooks in JupyterLab
	echo 'the notebooks here are saved without outputs, as git tracks them: File > Save Notebook As keeps outputs in a copy'
	[ "$$(id -u)" != 0 ] || { echo 'as root: who has the address below has this machine'; root=--allow-root; }; \
	JUPYTER_CONFIG_PATH="$(CURDIR)/tools/lab$${JUPYTER_CONFIG_PATH:+:$$JUPYTER_CONFIG_PATH}" \
	$(python) -m jupyterlab --notebook-dir=notebooks $$root

kernels: $(call ready,kernels)  ## compile every kernel, or RUNG=<name>, for every architecture; prints registers, spills and occupancy, needs no GPU
	$(python) -m attnlab kernels $${RUNG:+--rung="$$RUNG"}

tune: $(call ready,$(HARDWARE))  ## choose the kernel that kernel.best runs at each shape, on the NVIDIA GPU that is here
	$(python) -m attnlab tune

# Playwright leaves an event loop running in its process, in which Dask's client can't start one: tests/browser is apart.
test: $(call ready,cpu-dask-kernels-model-test)  ## run the tests that need no GPU
	$(python) -m pytest --ignore=tests/browser --numprocesses 2 --dist loadfile

test-browser: $(call ready,cpu-test-browser)  ## open the published pages in Chromium, which has to be installed
	for browser in chromium chromium-browser google-chrome; do command -v $$browser >/dev/null && found=1; done; \
	[ "$$found" ] || { echo 'Chromium is not here: apt-get install chromium' >&2; exit 1; }; \
	$(python) -m pytest tests/browser

test-gpu: .gpu $(call ready,$(HARDWARE)-test)  ## run the tests that need an NVIDIA GPU
	$(python) -m pytest -m 'gpu and not alone' --numprocesses 8 --dist loadfile
	$(python) -m pytest -m 'gpu and alone'

# CUDA's toolkit often lies beside the path.
sanitize: .gpu $(call ready,$(HARDWARE)-test)  ## run every kernel under compute-sanitizer's memcheck and racecheck, on an NVIDIA GPU
	PATH="$$PATH:/usr/local/cuda/bin"; \
	command -v compute-sanitizer >/dev/null || { echo 'compute-sanitizer is not here: it comes with the CUDA toolkit' >&2; exit 1; }; \
	$(python) tests/sanitize.py

faults: $(call ready,cpu-dask-test)  ## kill a run at 200 random moments and at every step on the disk, fill that at every step, kill a cluster's workers 100 times
	$(python) -m pytest -m faults

bench: $(call ready,$(HARDWARE))  ## print how long measuring, inferring and rendering take here, with CPU time and memory
	$(python) benchmarks/bench.py
ifeq ($(HARDWARE),cuda)
	$(python) benchmarks/launch.py
endif

dispatch: $(rendering)  ## write the table of what attnlab.attend calls at each shape, from runs: RUN=<name>[,<name>]
	$(python) -m attnlab dispatch --run="$$RUN" $(call switch,REPLACE,--replace)

compare: $(rendering)  ## judge each case of a run against the run before it: A=<run> B=<run>
	$(python) -m attnlab compare $(call switch,MARKDOWN,--markdown) $${FAIL_IF:+--fail-if="$$FAIL_IF"} -- "$$A" "$$B"

calibrate: $(rendering)  ## simulate how often the inference is wrong, into data/reference/calibration.csv; takes minutes
	$(python) -m attnlab calibrate

wheel: $(rendering)  ## build dist/attnlab-*.whl: the package with its kernels, studies, notebooks and tables
	$(python) -m pip wheel --quiet --no-deps --wheel-dir dist .
	echo "built $$(ls -t dist/attnlab-*.whl | head -n 1)"

check: $(call ready,cpu-check)  ## check format, lint, types and notebook pairs
	$(python) -m ruff format --check --quiet $(CODE)
	$(python) -m ruff check --quiet $(CODE)
	$(python) -m mypy
	for notebook in notebooks/*.ipynb; do \
	  $(python) -m jupytext --quiet --to py:percent --opt notebook_metadata_filter=-all --opt cell_metadata_filter=tags,-all --output - $$notebook | diff -u $${notebook%.ipynb}.py - \
	  || { echo "$$notebook and its .py differ: make format" >&2; exit 1; }; \
	done

format: $(call ready,cpu-check)  ## format the code and synchronize each notebook with its .py
	$(python) -m ruff format --quiet $(CODE)
	$(python) -m ruff check --fix --quiet $(CODE)
	$(python) -m jupytext --sync --quiet notebooks/*.py

lock: $(call ready,cpu-check)  ## pin the versions for pyproject.toml in requirements.lock, and derive environment.yml
	$(python) -m uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 --fork-strategy fewest \
	  --no-annotate --no-header --quiet -o requirements.lock
	resolved=$$(cat requirements.lock) && printf '%s\n' \
	  "# Every version that attnlab is run with, on Python 3.11 and 3.12. pyproject.toml says what is needed;" \
	  "# \`make lock\` resolves it into this file, and environment.yml follows from both." "$$resolved" > requirements.lock
	$(python) tools/environment_yml.py > environment.yml

clean:  ## delete everything generated except runs and the environment
	find figures -type f ! -name README.md ! -name '$(PUBLISHED)*.svg' -delete
	find reports -mindepth 1 -maxdepth 1 -type d ! -name $(PUBLISHED) -exec rm -rf {} +
	rm -rf dist exports reports/$(PUBLISHED)/notebooks kernels/.compiled_cache .pytest_cache .mypy_cache .ruff_cache .hypothesis lib/*.egg-info
	find $(CODE) -name __pycache__ -prune -exec rm -rf {} +

.PHONY: .gpu
.gpu:
	[ '$(HARDWARE)' = cuda ] || { echo 'this needs an NVIDIA GPU with a driver from $(DRIVER) on, and $(if $(filter cpu,$(DEVICE)),DEVICE says cpu,none is here)$(if $(GPUS),: leave GPUS out)' >&2; exit 1; }

# An interpreter that was named, into which nothing is installed, has to have what a report needs.
NEEDED := pandas papermill pydantic yaml
.PHONY: .usable
.usable:
	refuse() { echo "PYTHON=$$PYTHON $$1, or leave PYTHON out" >&2; exit 1; }; \
	set -- $$PYTHON; command -v "$$1" >/dev/null || refuse 'is not there: name an interpreter that is'; \
	new=$$($(python) -c 'import sys; print(sys.version_info >= (3, 11) or "Python " + sys.version.split()[0])' 2>/dev/null); \
	[ "$$new" = True ] || refuse "is $${new:-no Python}, and attnlab needs 3.11 or newer: name one that is"; \
	lacks=$$($(python) -c 'import sys; from importlib.util import find_spec; print(*[name for name in sys.argv[1:] if not find_spec(name)])' $(NEEDED)); \
	[ -z "$$lacks" ] || refuse "lacks $$lacks: install attnlab into it"

# The first python3 that is new enough makes the environment. One stamp for each set of extras; installing one leaves the
# others, and all are made again when the lock changes.
.PHONY: .again
.venv/.ready-%: pyproject.toml requirements.lock $(if $(whole),,.again)
	for candidate in python3 python3.14 python3.13 python3.12 python3.11; do \
	  if $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then chosen=$$candidate; break; fi; \
	done; \
	[ "$$chosen" ] || { echo 'attnlab needs Python 3.11 or newer: install it, or name an interpreter with PYTHON=...' >&2; exit 1; }; \
	exec $$chosen tools/environment.py $* $(BUILD)
