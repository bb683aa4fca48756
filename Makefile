# Three commands on a fresh machine: `make example`, `make demo` and `make test`; `make wheel` is what other machines install. Everything lives in .venv; nothing else is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DATA ?=
BUILT_FROM := pyproject.toml constraints.txt src/stepscope/traces/event_scan.c
# One more than there are cores: tests that start ranks wait for them now and then.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
PARALLEL := -n $(WORKERS) --dist loadfile --no-loadscope-reorder
PYTEST_ARGS ?= $(PARALLEL) --durations=15
# What Python compiles is kept, whatever the shell says: tests start hundreds of processes.
export PYTHONDONTWRITEBYTECODE =

.PHONY: example demo test tests test-long test-gpu venv lint bench wheel notebooks format clean

example: $(VENV)/.installed-base
	$(BIN)/stepscope example jobs
	$(BIN)/stepscope report jobs/straggler -o jobs/page

demo: $(VENV)/.installed
	$(BIN)/stepscope demo $(if $(DATA),--data-dir $(DATA))

# Lint runs beside the tests; both are run to their end, whatever fails.
test: $(VENV)/.installed-test
	@$(MAKE) --no-print-directory --keep-going --output-sync=line --jobs 2 lint tests

tests: $(VENV)/.installed-test
	$(BIN)/python -m pytest $(PYTEST_ARGS)

# Everything, with 40 times as many examples of each property, at random, and what is marked long.
test-long: $(VENV)/.installed-test
	$(BIN)/python -m pytest $(PARALLEL) --durations=30 --hypothesis-profile=long --timeout=3600 -m ''

test-gpu: $(VENV)/.installed-test
	$(BIN)/python -m pytest --durations=15 --timeout=900 -m gpu tests/gpu

venv: $(VENV)/.installed-test

lint: $(VENV)/.installed-test
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports

# Built from nothing, then installed and used in a clean environment without torch and in one with it.
wheel: $(VENV)/bin/python
	rm -rf build dist
	$(BIN)/python -m pip wheel --quiet --constraint constraints.txt --no-deps --wheel-dir dist .
	$(BIN)/python -m tests.wheel dist/stepscope-*.whl

# What the notebooks of examples/ show, as it is now.
notebooks: $(VENV)/.installed-test
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[notebooks]'
	$(BIN)/python -m tests.notebooks

format: $(VENV)/.installed-test
	$(BIN)/ruff check --fix src tests benchmarks
	$(BIN)/ruff format src tests benchmarks

bench: $(VENV)/.installed-test
	$(BIN)/python -m benchmarks

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: stepscope needs Python 3.11 or newer, $(PYTHON) is older; run make PYTHON=python3.12 ..." >&2; exit 3; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-base: $(BUILT_FROM) | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	@touch $@

$(VENV)/.installed: $(BUILT_FROM) | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[torch]'
	@touch $@

$(VENV)/.installed-test: $(BUILT_FROM) | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[torch,cluster,remote,mcp,test,dev]'
	@touch $(VENV)/.installed $@

clean:
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
