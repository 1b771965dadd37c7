VENV := .venv
PYTHON ?= python3
BIN := $(VENV)/bin
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help run up deploy install check test test-slow faults bench lock clean

help: ## say what there is to type
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(VENV)/.installed ## data, model, predictions and report below ./data (ARGS="--help" for the options)
	@$(BIN)/python flows/pipeline.py $(ARGS)

up: $(VENV)/.installed ## a Prefect server, the deployments and a worker, here, until Ctrl-C
	@$(BIN)/python flows/up.py $(ARGS)

deploy: $(VENV)/.installed ## bring the Prefect server at PREFECT_API_URL into line with prefect.yaml
	@$(BIN)/python flows/deployments.py $(ARGS)

install: $(VENV)/.installed ## set up the virtual environment, pinned, the project in it editable

check: $(VENV)/.installed ## format, lint, strict types, import direction
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/pytest -q tests/test_imports.py

test: $(VENV)/.installed ## the tests, minutes (ARGS="-k name" for some)
	$(BIN)/pytest -m "not slow" $(ARGS)

test-slow: $(VENV)/.installed ## the tests that kill whole runs and train twice
	$(BIN)/pytest -m slow $(ARGS)

faults: $(VENV)/.installed ## strike real runs with every kind of fault (ARGS=--quick: 10 minutes; ARGS=--help for more)
	@$(BIN)/python -m tests.faults $(ARGS)

bench: $(VENV)/.installed ## measure beside a plain script (ARGS=--quick: on the sample; ARGS=--help for more)
	@$(BIN)/python -m tests.benchmarks $(ARGS)

lock: $(VENV)/.installed ## pin the newest versions that pyproject.toml allows
	$(BIN)/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --upgrade \
	    --no-emit-index-url --no-header --no-annotate -q -o requirements.lock

clean: ## remove the virtual environment and caches; ./data stays
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache *.egg-info
	find . -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/.installed: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "CPython 3.11 or newer is needed: make PYTHON=python3.11 ...")'
	@echo "setting up $(VENV): some minutes, once"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check -r requirements.lock
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@
