# OpenJev. `make help` lists the targets; each does all of its own set-up.
PYTHON ?= python3
PORT ?= 8000
BACKEND_PORT ?= 30000
PROFILE ?= $(or $(OPENJEV_PROFILE),embedded)
VENV := .venv
BIN := $(VENV)/bin
SGLANG_VENV := .venv-sglang
BENCH_VENV := .venv-bench
BENCH_OUTPUT ?= bench-results
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev weights run smoke test lint types unit test-fidelity test-sglang bench \
	format clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  Variables: PORT=$(PORT) BACKEND_PORT=$(BACKEND_PORT) PROFILE=$(PROFILE) PYTHON=$(PYTHON)"
	@echo "  Profiles:  embedded (the default), embedded-0.5b (light but rough)"

$(VENV)/.run: requirements.txt requirements-pages.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("OpenJev needs Python 3.11 or newer, but $(PYTHON) is %d.%d. Name another, for example: make run PYTHON=python3.12" % sys.version_info[:2])'
	@echo "Installing into $(VENV); this takes about a minute."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -r requirements.txt
	$(BIN)/pip install --quiet --no-deps -r requirements-pages.txt
	@touch $@

$(VENV)/.dev: $(VENV)/.run requirements-dev.txt requirements-modal.txt
	$(BIN)/pip install --quiet -r requirements-dev.txt
	@touch $@

setup: $(VENV)/.run weights ## Create .venv, install, fetch and verify the weights

setup-dev: $(VENV)/.dev ## The same for development, without weights

weights: $(VENV)/.run ## Fetch and verify the weights of PROFILE
	$(BIN)/python -m backend.embedded.weights $(PROFILE)

run: $(VENV)/.run ## Start engine and API on PORT, with the model of PROFILE
	$(BIN)/python manage.py runbackend --profile $(PROFILE) --port $(PORT) --backend-port $(BACKEND_PORT)

smoke: $(VENV)/.run ## Put the server on PORT through the smoke test
	$(BIN)/python manage.py smoke http://127.0.0.1:$(PORT)

lint: $(VENV)/.dev ## Lint and check the formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev ## Type-check, strictly
	$(BIN)/mypy

unit: $(VENV)/.dev ## Only the fast tests
	$(BIN)/pytest -m "not process and not model and not fidelity and not sglang"

test: lint types ## Lint, type-check and run every test that needs no extra installation
	$(BIN)/pytest -m "not fidelity and not sglang" --cov --cov-report=term --cov-fail-under=95

test-fidelity: ## Compare with transformers and torch on the same weights (installs them; slow)
	$(PYTHON) -m venv .venv-fidelity
	.venv-fidelity/bin/pip install --quiet -r requirements-fidelity.txt
	.venv-fidelity/bin/pytest -m fidelity

$(SGLANG_VENV)/.cpu: requirements-sglang-cpu.txt
	@echo "Installing SGLang into $(SGLANG_VENV): 2.5 GB, which takes some minutes."
	$(PYTHON) -m venv $(SGLANG_VENV)
	$(SGLANG_VENV)/bin/pip install --quiet $$(grep ^torch== requirements-sglang-cpu.txt)
	$(SGLANG_VENV)/bin/pip install --quiet --no-deps -r requirements-sglang-cpu.txt
	@touch $@

test-sglang: $(VENV)/.dev $(SGLANG_VENV)/.cpu ## Ask the real SGLang, on the CPU (installs it; slow)
	$(BIN)/pytest -m sglang

$(BENCH_VENV)/.bench: requirements.txt requirements-fast.txt requirements-bench.txt
	$(PYTHON) -m venv $(BENCH_VENV)
	$(BENCH_VENV)/bin/pip install --quiet -r requirements-bench.txt
	@touch $@

bench: $(BENCH_VENV)/.bench ## Measure everything into BENCH_OUTPUT (installs rivals; an hour)
	$(BENCH_VENV)/bin/python -m benchmarks --output $(BENCH_OUTPUT)

format: $(VENV)/.dev ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove what the targets made here (weights stay in OPENJEV_WEIGHTS_DIR)
	rm -rf $(VENV) .venv-fidelity $(SGLANG_VENV) $(BENCH_VENV) bench-results
	rm -rf .pytest_cache .mypy_cache .ruff_cache .coverage
