# `make` lists the targets. Each one sets up .venv first if it has to.
PYTHON ?= python3
WORKERS ?= 2
TABLE ?= uci
SEED ?= 0
OPTIONS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow lint format docs notebooks dist attack bench bench-cuda reproduce clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## Create .venv with the pinned versions (PYTHON=python3.12 picks another Python)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit("setwise needs Python 3.11 or newer; this is %d.%d. Name another: make PYTHON=python3.12 ..." % v[:2])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: setup ## Run the demonstration
	$(BIN)/setwise demo

test: lint ## Run every check: lint, types, imports, tests, doctests, documentation
	$(BIN)/mkdocs build --strict
	$(BIN)/pytest -n $(WORKERS) -m "not slow"

test-slow: setup ## Run the tests that `make test` leaves out: the fits that take long
	$(BIN)/pytest -n $(WORKERS) -m slow

lint: setup ## Check style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup ## Format the code and repair what can be repaired
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: setup ## Build the documentation into site/
	$(BIN)/mkdocs build --strict
	$(BIN)/python -m docs.notebooks site/notebooks

notebooks: setup ## Write the tutorials as notebooks into notebooks/
	$(BIN)/python -m docs.notebooks

dist: setup ## Build the packages into dist/, check them, install them in a new environment
	$(BIN)/pip install --disable-pip-version-check --quiet -c constraints.txt -e '.[release]'
	$(BIN)/python tools/dist.py

attack: setup ## Damaged folders, kills, races, full disks, bad input; SEED=0 (under 30 minutes)
	$(BIN)/python -m tests.attack --seed $(SEED)

bench: setup ## Measure speed against others, fail past a bound (under 20 minutes)
	$(BIN)/python -m benchmarks.speed

bench-cuda: setup ## Measure rules and a network on a CUDA device
	$(BIN)/python -m benchmarks.cuda --out docs/speed-cuda.md

reproduce: setup ## Run a table of the paper: make reproduce TABLE=uci OPTIONS='--trials 2 --jobs 2'
	$(BIN)/python -m reproduction $(TABLE) $(OPTIONS)

clean: ## Remove caches and build outputs; .venv stays
	rm -rf build dist site .import_linter_cache .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -path ./$(VENV) -prune -o -type d -name __pycache__ -exec rm -rf {} +
