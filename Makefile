# attnlab. `make` lists the targets; each sets up what it needs.

# An interpreter that is there (conda's, say); without one, .venv is made from requirements.lock.
PYTHON ?=
# A run in data/ to render, or the name of one to measure.
RUN ?=
# A study in notebooks/params/, or a path to a YAML file.
STUDY ?=
# auto, cuda or cpu.
DEVICE ?=
# For `make notebook`: which, and NAME=VALUE pairs.
NAME ?=
PARAMS ?=

.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

KNOWN := PYTHON RUN STUDY DEVICE NAME PARAMS MAKEFLAGS
UNKNOWN := $(filter-out $(KNOWN),$(foreach word,$(MAKEOVERRIDES),$(firstword $(subst =, ,$(word)))))
ifneq ($(filter-out \\%,$(filter %,$(foreach v,$(.VARIABLES),$(if $(filter command line,$(origin $(v))),$(v))))),)
UNKNOWN := $(filter-out $(KNOWN),$(foreach v,$(.VARIABLES),$(if $(filter command,$(firstword $(origin $(v)))),$(v))))
endif
ifneq ($(strip $(UNKNOWN)),)
$(error there is no variable $(UNKNOWN): use RUN, STUDY, DEVICE, NAME, PARAMS or PYTHON)
endif

# CUDA's libraries only where there is a driver to use them.
HARDWARE := $(if $(wildcard /proc/driver/nvidia/version /dev/nvidiactl),cuda,cpu)

export PYTHONPATH := lib$(if $(PYTHONPATH),:$(PYTHONPATH))
export JUPYTER_PLATFORM_DIRS := 1
OPTIONS = $(if $(RUN),--run '$(RUN)') $(if $(STUDY),--study '$(STUDY)') $(if $(DEVICE),--device '$(DEVICE)')

ifeq ($(PYTHON),)
python := .venv/bin/python
# $(call ready,EXTRAS): the stamp of an environment that has them.
ready = .venv/.ready$(if $(1),-$(subst $(comma),-,$(1)))
else
python := $(PYTHON)
ready =
endif
comma := ,

.PHONY: help report measure notebook test test-gpu bench lab kernels check format lock readme clean

help:  ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo '  variables: RUN=<a run in data/> STUDY=<a file in notebooks/params/> DEVICE=<cuda|cpu> PYTHON=<an interpreter>'

report: $(call ready,$(if $(RUN),,$(HARDWARE)))  ## measure on the best device here and render; RUN=<name>: render a recorded run
	@$(python) -m attnlab report $(OPTIONS)

measure: $(call ready,$(HARDWARE))  ## measure a study into a run, or go on with one that was cut off
	@$(python) -m attnlab measure $(OPTIONS)

notebook: $(call ready,$(HARDWARE))  ## execute and render one notebook: NAME=02_baseline PARAMS="run=... device=none"
	@$(python) -m attnlab notebook '$(NAME)' $(foreach pair,$(PARAMS),-p '$(pair)')

test: $(call ready,cpu,test)  ## run the tests that need no GPU
	@$(python) -m pytest

test-gpu: $(call ready,$(HARDWARE),test)  ## run the tests that need an NVIDIA GPU
	@$(python) -m pytest -m gpu

bench: $(call ready,$(HARDWARE))  ## how long measuring, inferring and rendering take here
	@$(python) benchmarks/bench.py

lab: $(call ready,$(HARDWARE),lab)  ## open the notebooks in JupyterLab
	@cd notebooks && PYTHONPATH="$(CURDIR)/lib" $(if $(PYTHON),$(PYTHON),../$(python)) -m jupyterlab

kernels:  ## compile every kernel of the ladder for every architecture
	@if compgen -G 'kernels/*.cu' >/dev/null; then echo 'no compiler step is defined yet' >&2; exit 1; \
	else echo 'kernels/ holds no kernel yet: see kernels/README.md'; fi

check: $(call ready,cpu,check)  ## format, lint and types
	@$(python) -m ruff format --check lib tests benchmarks
	@$(python) -m ruff check lib tests benchmarks
	@$(python) -m mypy

format: $(call ready,cpu,check)  ## format the code and bring the notebook pairs in step
	@$(python) -m ruff format lib tests benchmarks
	@$(python) -m ruff check --fix --quiet lib tests benchmarks
	@$(python) -m jupytext --sync --quiet notebooks/*.py

lock: $(call ready,cpu,check)  ## resolve pyproject.toml into requirements.lock, and environment.yml from it
	@$(python) -m uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 --fork-strategy fewest \
	  --no-annotate --no-header --quiet -o requirements.lock
	@$(python) tests/environment_yml.py > environment.yml

readme: $(call ready)  ## write the README's picture and table from the published run
	@$(python) -m attnlab readme --run '$(or $(RUN),h200-2026-11)'

clean:  ## delete what was generated, but no run and no environment
	@rm -rf figures/*.svg .pytest_cache .mypy_cache .ruff_cache .hypothesis lib/*.egg-info
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
	@git clean -fdqX reports

# The first python3 that is new enough makes the environment; pip installs nothing that the lock doesn't pin.
.venv/bin/python:
	@for candidate in python3 python3.12 python3.11 python3.13; do \
	  if $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then chosen=$$candidate; break; fi; \
	done; \
	[ -n "$${chosen:-}" ] || { echo 'attnlab needs Python 3.11 or newer: install one, or name one with PYTHON=...' >&2; exit 1; }; \
	echo "setting up .venv with $$($$chosen --version)" >&2; $$chosen -m venv .venv

.venv/.ready%: pyproject.toml requirements.lock | .venv/bin/python
	@echo 'installing $(if $(patsubst -%,%,$*),$(patsubst -%,%,$*) )from requirements.lock' >&2
	@.venv/bin/python -m pip install --quiet --disable-pip-version-check -c requirements.lock \
	  -e '.$(if $*,[$(subst -,$(comma),$(patsubst -%,%,$*))])' $(if $(findstring cpu,$*)$(findstring cuda,$*),) 2> .venv/pip.log \
	  || { tail -5 .venv/pip.log >&2; exit 1; }
	@touch $@
