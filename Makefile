# Every target sets up what it needs: python3, make and pip are enough.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready

.DEFAULT_GOAL := help
.PHONY: help demo test lint format test-slow bench clean

help:  ## show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "segue needs Python 3.11 or newer; try: make PYTHON=python3.12"; exit 1; }
	@test -x $(BIN)/python || { echo "making .venv"; $(PYTHON) -m venv .venv; }
	@echo "installing (the first time takes a minute or two)"
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[test,viz]"
	@touch $(READY)

demo: $(READY)  ## prepare, train, evaluate, generate and draw, on Python's own library (about 7 minutes)
	@$(BIN)/python examples/demo.py runs

test: lint  ## lint, types and tests, as continuous integration runs them
	$(BIN)/pytest -n 2 --cov --cov-report=term:skip-covered

lint: $(READY)  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)  ## put the code in house style
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test-slow: $(READY)  ## the long suites
	SEGUE_EXAMPLES=2000 $(BIN)/pytest -n 2 tests/laws
	$(BIN)/pytest -n 2 -m slow

bench: $(READY)  ## measurements
	$(BIN)/python bench/core.py

clean:  ## remove the virtual environment and caches
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage build dist
