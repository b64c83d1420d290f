# The front door. `make` or `make help` lists the targets.
PYTHON := .venv/bin/python
# More arguments for the command behind a target: make test ARGS="-k drain", make serve ARGS="--port 9000"
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup model demo serve serve-echo test lint types imports check format bench parity chaos chaos-engine openapi lock clean
.PHONY: conformance

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## create .venv from the lock (nothing to do when it is up to date)
	@scripts/setup

model: setup ## unpack the embedded model into the user's cache, once
	@$(PYTHON) -m app.engine.embedded

demo: model ## start a server, send examples/chat.jsonl through the openai SDK, print the answers, stop
	@$(PYTHON) examples/demo.py $(ARGS)

serve: model ## serve the embedded model on http://127.0.0.1:8000/v1 until Ctrl-C
	@.venv/bin/batchyard serve $(ARGS)

serve-echo: setup ## the same with the echo engine: no model, ready at once
	@.venv/bin/batchyard serve --engine echo $(ARGS)

# The tests with a real engine run in one process, one engine a run; the others on both cores, a file at a time so that
# a file's server starts once. Both run, whatever the first says.
test: model ## run all tests
	@status=0; \
	$(PYTHON) -m pytest -n 2 --dist loadfile -m "not vllm and not clients" $(ARGS) || status=1; \
	$(PYTHON) -m pytest -m vllm $(ARGS) || status=1; \
	exit $$status

lint: setup ## ruff: rules and format
	$(PYTHON) -m ruff check
	$(PYTHON) -m ruff format --check

types: setup ## mypy --strict
	$(PYTHON) -m mypy

imports: setup ## which room may import which (import-linter)
	.venv/bin/lint-imports

check: lint types imports ## lint, types and imports

format: setup ## let ruff format and fix what it can
	$(PYTHON) -m ruff check --fix
	$(PYTHON) -m ruff format

# N mishaps; SEED and ROUND repeat a failure: make chaos SEED=3f9a01 ROUND=4 DATABASE=postgres
N ?= 100
SEED ?=
ROUND ?=
DATABASE ?= sqlite
WORKERS ?= 2
chaos: setup ## kill, freeze and cut off a service N times (100), then check every line; DATABASE=postgres, SEED=…
	@$(PYTHON) -m tests.chaos --n $(N) --database $(DATABASE) --workers $(WORKERS) \
	  $(if $(SEED),--seed $(SEED)) $(if $(ROUND),--round $(ROUND)) $(ARGS)

chaos-engine: model ## kill the real engine five times inside one batch, then freeze it (about five minutes)
	@BATCHYARD_CHAOS_KILLS=5 $(PYTHON) -m pytest -m vllm -s tests/vllm/test_deaths.py $(ARGS)

bench: model ## measure and print the table; ARGS="all --markdown docs/benchmarks.md" for every row (half an hour)
	@$(PYTHON) -m bench $(ARGS)

parity: model ## run-batch beside vLLM's own on the same files: the comparison, line by line
	@$(PYTHON) -m bench.parity $(ARGS)

# Installs the programs it runs into the user's cache: minutes and 2 GB the first time.
conformance: setup ## the contract's 96 assertions and other people's clients, each with what came of it
	@$(PYTHON) -m tests.conformance $(ARGS)

openapi: setup ## write openapi.yaml from the app
	@$(PYTHON) -m app.http.openapi

lock: ## recompute the lock files (needs uv: UV=/path/to/uv); ARGS=--upgrade for newer versions
	@python3 scripts/lock $(ARGS)

clean: ## remove .venv, caches and build outputs; the model cache and data folders stay
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage htmlcov dist build
	find app tests bench examples migrations -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
