# Everything a newcomer types. `make sokoban` and `make test` set up what they need.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
CONFIG ?= sokoban
ARGS ?=

.PHONY: help setup sokoban train test check lint types imports format docs benchmarks clean

help:  ## Show this help
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(VENV)/.installed: pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "roll needs Python 3.11 or newer: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

setup: $(VENV)/.installed  ## Create .venv and install everything

sokoban: setup  ## Train the toy policy on Sokoban (two cores, about 6 minutes; ARGS="max_steps=5" to change keys)
	$(BIN)/python examples/start_agentic_pipeline.py --config-name sokoban $(ARGS)

train: setup  ## Run another configuration: make train CONFIG=frozen_lake ARGS="seed=1"
	$(BIN)/python examples/start_agentic_pipeline.py --config-name $(CONFIG) $(ARGS)

test: setup  ## Run all tests
	$(BIN)/python -m pytest

check: lint types imports test  ## Everything that CI checks

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python scripts/generate_config_reference.py --check

types: setup
	$(BIN)/mypy

imports: setup
	$(BIN)/lint-imports

format: setup  ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: setup  ## Regenerate the configuration reference
	$(BIN)/python scripts/generate_config_reference.py

benchmarks: setup  ## Run the benchmarks (each prints ours, the peer and the ratio)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	for file in env_speed generation algorithms; do $(BIN)/python benchmarks/$$file.py; done

clean:  ## Remove the environment and caches (runs in output/ stay)
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache
