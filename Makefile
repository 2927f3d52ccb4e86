# Forerun in two commands: `make demo` and `make test`. Both set .venv up first (tools/setup_env.py).
PYTHON ?= python3
BIN := .venv/bin
PROMPT ?= Why is the sky blue?

.DEFAULT_GOAL := help
.PHONY: help demo test check bench setup lock clean

help: ## Show this list
	@grep -E '^[a-z]+:.*## ' Makefile | sed 's/:.*## /\t/' | expand -t 10

demo: setup ## Answer one prompt with the default model, SmolLM2-135M
	@$(BIN)/forerun run smollm2 "$$PROMPT" --max-tokens 96

# Tests start Python hundreds of times: compiled code is kept even where a container says otherwise.
test: export PYTHONDONTWRITEBYTECODE :=
test: setup ## All tests, with models
	$(BIN)/python -m pytest -n auto --dist worksteal

check: setup ## Format, lint, types and import contracts: everything that runs no test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup ## All benchmarks, about 20 minutes; prints the tables of docs/benchmarks.md
	$(BIN)/python -m benchmarks

setup: ## Create .venv and install what requirements.lock pins, if that is not done yet
	@$(PYTHON) tools/setup_env.py

lock: setup ## Resolve the dependencies again and write requirements.lock
	$(BIN)/python tools/lock.py

clean: ## Remove .venv, generated models and all caches (pip keeps the compiled llama-cpp-python)
	rm -rf .venv .setup.lock tests/.models .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests tools benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

export PROMPT
