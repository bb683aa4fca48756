# Two commands on a fresh machine: `make demo` and `make test`. Everything lives in .venv; nothing else is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DATA ?=
# Tests that need nothing but their process run side by side; of those that start ranks, two files at a time: they wait
# for processes to start more than they compute, and none of them decides by a time.
TESTS_ALONE := tests/arch tests/unit tests/property tests/golden
TESTS_ON_RANKS := tests/dist tests/e2e

.PHONY: demo test venv lint bench format clean

demo: $(VENV)/.installed
	$(BIN)/stepscope demo $(if $(DATA),--data-dir $(DATA))

test: $(VENV)/.installed-test lint
ifdef PYTEST_ARGS
	$(BIN)/python -m pytest $(PYTEST_ARGS)
else
	$(BIN)/python -m pytest -n auto --durations=15 $(TESTS_ALONE)
	$(BIN)/python -m pytest -n 2 --dist loadfile --durations=15 $(TESTS_ON_RANKS)
endif

venv: $(VENV)/.installed-test

lint: $(VENV)/.installed-test
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed-test
	$(BIN)/ruff check --fix src tests benchmarks
	$(BIN)/ruff format src tests benchmarks

bench: $(VENV)/.installed-test
	$(BIN)/python -m benchmarks

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: stepscope needs Python 3.11 or newer, $(PYTHON) is older; run make PYTHON=python3.12 ..." >&2; exit 3; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[torch]'
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[torch,test,dev]'
	@touch $@

clean:
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
