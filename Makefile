# `make demo` and `make test` work on a fresh machine with Python 3.11, 3.12 or 3.13.

# The first interpreter that runs and whose frames are known.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
    $$p -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12), (3, 13)))' 2>/dev/null && echo $$p && break; \
    done)
VENV := .venv
RUN := $(VENV)/bin/python
READY := $(VENV)/.ready
ECOSYSTEM := $(VENV)/.ecosystem
TYPED := $(wildcard magpy_like paritybench_runner benchmarks zoo)

.DEFAULT_GOAL := help
.PHONY: help demo test test-full sweep fuzz lint types docs outputs

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(READY)  ## compile a ResNet-18; print the captured graph and its speed
	$(RUN) -m benchmarks.demo

test: lint  ## linters, type checker, tests (minutes)
	$(RUN) -m pytest -n 2 --dist worksteal -q

test-full: lint $(ECOSYSTEM)  ## the same with the long sweeps and the users' libraries (an hour)
	$(RUN) -m pytest -n 2 --dist worksteal -q -m "full or not full"

sweep: $(READY)  ## force each guard condition to hold; resumes; SWEEP=tests/... for some tests
	$(RUN) -m tests.soundness $(SWEEP)

fuzz: $(READY)  ## compare generated programs with eager; FUZZ="--backend magpy --seeds 0:1000"
	$(RUN) -m tests.fuzz $(FUZZ)

lint: $(READY) types  ## ruff and mypy
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

types: $(READY)  ## mypy
	$(RUN) -m mypy $(TYPED)

docs: $(READY)  ## build the documentation site in build/site; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --quiet

outputs: $(READY)  ## regenerate the outputs that docs/architecture.md shows
	$(RUN) -m docs.outputs

# The environment is rebuilt when what it is made from has changed.
$(READY): pyproject.toml setup.py constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11, 3.12 or 3.13 is needed: make PYTHON=/path/to/it"; exit 1; }
	test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(READY)

# Libraries whose users' programs `make test-full` runs.
$(ECOSYSTEM): $(READY)
	$(RUN) -m pip install --quiet --constraint constraints.txt --editable ".[ecosystem]"
	touch $(ECOSYSTEM)
