VENV := .venv
PYTHON ?= python3
BIN := $(VENV)/bin
ARGS ?=
TORCH ?= cuda

.DEFAULT_GOAL := help
.PHONY: help run up deploy install check test test-slow test-gpu faults bench docs lock clean

help: ## list the available commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(VENV)/.installed ## run the pipeline; results go to ./data (ARGS="--help" lists the options)
	@$(BIN)/python flows/pipeline.py $(ARGS)

up: $(VENV)/.installed ## start a Prefect server, the deployments and a worker; runs until Ctrl-C
	@$(BIN)/python -m flows up $(ARGS)

deploy: $(VENV)/.installed ## check prefect.yaml and register its deployments on the Prefect server at PREFECT_API_URL
	@$(BIN)/python -m flows deploy $(ARGS)

install: $(VENV)/.installed ## create the virtual environment with pinned versions (TORCH=cpu: torch without CUDA, 1 GB instead of 7)

check: $(VENV)/.installed ## check formatting, lint, types and import direction
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo

test: $(VENV)/.installed ## run the unit and integration tests, takes minutes (ARGS="-k name" or ARGS="-m unit" selects some)
	$(BIN)/pytest -m "unit or integration" $(if $(ARGS),$(ARGS),-n 2 --dist loadfile --no-loadscope-reorder)

test-slow: $(VENV)/.installed ## run the other tests, which kill whole runs, train twice or take longer than 5 s
	$(BIN)/pytest -m slow $(if $(ARGS),$(ARGS),-n 2 --dist loadfile --no-loadscope-reorder)

test-gpu: $(VENV)/.installed ## run the tests of a GPU; without one most are skipped (next: python -m benchmarks.gpu)
	$(BIN)/python -m pytest tests/gpu $(ARGS)

faults: $(VENV)/.installed ## inject all kinds of faults into real runs (ARGS=--quick: 8 minutes; ARGS=--help for more)
	@$(BIN)/python -m tests.faults $(ARGS)

bench: $(VENV)/.installed ## run the benchmarks against a plain script (ARGS=--quick: the sample; ARGS=--help for more)
	@$(BIN)/python -m benchmarks $(ARGS)

docs: $(VENV)/.installed ## build the site of the documentation in ./site; a link to nothing and hard prose are errors
	$(BIN)/zensical build --strict
	$(BIN)/python -m tests.prose

lock: $(VENV)/.installed ## pin the newest versions that pyproject.toml allows, with the hashes of their files
	$(BIN)/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --upgrade --generate-hashes \
	    --no-emit-index-url --no-header --no-annotate -q -o requirements.lock

clean: ## delete the virtual environment and caches; ./data is kept
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache *.egg-info
	find . -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/.installed: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	    "CPython 3.11 or newer is required; try: make PYTHON=python3.11 ...")'
	@echo "creating $(VENV): about 7 GB (TORCH=cpu: 1 GB), only the first time"
	@$(PYTHON) -m venv $(VENV)
	@sed -n '/^uv==/,/[^\]$$/p' requirements.lock > $(VENV)/uv.txt
	@$(BIN)/python -m pip install -q --disable-pip-version-check -r $(VENV)/uv.txt
	@$(INSTALL_$(TORCH))
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@
	@echo "$(VENV) is ready; next: make run, or . $(VENV)/bin/activate && data-to-model --help"

UV_INSTALL := $(BIN)/uv pip install --compile-bytecode --python $(BIN)/python
# pip, which is slower, where uv finds no index: it does not read pip.conf.
INSTALL_cuda = $(UV_INSTALL) --require-hashes --no-deps -r requirements.lock || \
    $(BIN)/python -m pip install --disable-pip-version-check --no-deps -r requirements.lock
# The locked hashes of torch are those of its build for CUDA, as in deploy/Dockerfile.
INSTALL_cpu = sed -E '/^torch(vision)?==/,/[^\]$$/ { /--hash/d; s/ *\\$$// }' requirements.lock > $(VENV)/cpu.txt \
    && $(UV_INSTALL) --torch-backend=cpu --constraint $(VENV)/cpu.txt -r pyproject.toml --extra dev
