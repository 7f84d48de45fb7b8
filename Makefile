# `make demo` and `make test` work on a fresh machine with Python 3.11 or 3.12.

# The first interpreter that runs and whose frames are known.
PYTHON ?= $(shell for p in python3 python3.12 python3.11; do \
    $$p -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' 2>/dev/null && echo $$p && break; \
    done)
VENV := .venv
RUN := $(VENV)/bin/python
READY := $(VENV)/.ready
TYPED := $(wildcard magpy_like paritybench_runner benchmarks zoo)

.PHONY: demo test test-full sweep lint

demo: $(READY)
	$(RUN) -m benchmarks.demo

test: lint
	$(RUN) -m pytest -n 2 --dist worksteal -q

test-full: lint
	$(RUN) -m pytest -n 2 --dist worksteal -q -m "full or not full"

# Which checks of guards matter: goes on where it was interrupted; SWEEP=tests/... for some tests.
sweep: $(READY)
	$(RUN) -m tests.soundness $(SWEEP)

lint: $(READY)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy $(TYPED)

# The environment is rebuilt when what it is made from has changed.
$(READY): pyproject.toml setup.py constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or 3.12 is needed: make PYTHON=/path/to/it"; exit 1; }
	test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(READY)
