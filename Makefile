# One command each; `make help` lists them. Only Python 3.11 or newer and make have to be there.
.DEFAULT_GOAL := help
.PHONY: help setup inspector run test test-pooled test-citus torture clients check size fmt openapi docs bench release lock hooks clean

BIN := .venv/bin
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$python && break; done)
# Of the hub that LiteLLM counts tokens by, nothing is installed: the service has its own tokenizers.
NO_HUB := $(foreach name,fsspec hf-xet huggingface-hub tokenizers,--no-emit-package $(name))
LOCK := uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--no-annotate --no-header --quiet

# One process more than processors: tests often wait for PostgreSQL and for processes that they start.
WORKERS := $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)

# These tests stop nodes of the cluster that the others use meanwhile.
OUTAGES := tests/adapters/postgres/test_citus_outages.py

# Without the bytecode of its imports each of the many processes compiles the libraries again.
export PYTHONDONTWRITEBYTECODE :=

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The locks name everything, and Python compiles by itself what is imported.
ifneq ($(shell command -v uv),)
VENV := uv venv --quiet --clear --python $(PYTHON) .venv
INSTALL := uv pip install --quiet --python $(BIN)/python
IS_USABLE := $(BIN)/python --version
else
VENV := $(PYTHON) -m venv --clear .venv
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
IS_USABLE := $(BIN)/python -m pip --version
endif

.venv/.service: pyproject.toml requirements.lock
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/it" >&2; exit 1; }
	@$(IS_USABLE) >/dev/null 2>&1 || $(VENV)
	@echo "Installing what the service needs; this takes about a minute, with uv a few seconds."
	$(INSTALL) --no-deps --require-hashes -r requirements.lock
	$(INSTALL) --no-deps -e .
	@touch $@

setup: .venv/.tools ## Make .venv with `context-service`, and what tests and checks need

.venv/.tools: .venv/.service requirements-dev.lock
	@echo "Installing what tests and checks need; this takes about a minute."
	$(INSTALL) --no-deps --require-hashes -r requirements-dev.lock
	@touch $@

inspector: setup ## Build the pages at /inspector and /docs, which git holds
	$(BIN)/python inspector/build.py

run: .venv/.service ## Start the service on http://127.0.0.1:8080, its database in ./data (ARGS="--port 9000")
	$(BIN)/context-service serve $(ARGS)

test: setup ## Run the tests (ARGS="-k budget")
	$(BIN)/pytest -n $(WORKERS) $(ARGS)

test-pooled: setup ## Run the tests through PgBouncer in transaction mode (ARGS="-k log")
	CONTEXT_TEST_POOLER=transaction $(BIN)/pytest -n auto -m "not direct" $(ARGS)

test-citus: setup ## Run the tests on the Citus cluster of CONTEXT_TEST_CITUS_URL (ARGS="-k log")
	@test -n "$$CONTEXT_TEST_CITUS_URL" || { echo "CONTEXT_TEST_CITUS_URL is not set" >&2; exit 1; }
	$(BIN)/pytest -n $(WORKERS) -m "not one_server" --ignore $(OUTAGES) $(ARGS)
	$(BIN)/pytest $(OUTAGES)

torture: setup ## Live agent lives over processes that are killed (ARGS="--minutes 10 --seed 7")
	$(BIN)/python -m tests.torture $(ARGS)

clients: setup ## Lint openapi.json, and try the clients made from it
	$(BIN)/pytest tests/test_clients.py $(ARGS)

check: setup ## Lint, format, types, direction of imports, generated files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -q tests/api/http/test_openapi.py tests/test_settings.py -k "equals or current"
	$(BIN)/python -m release.compatibility openapi/released.json openapi/openapi.json
	$(BIN)/python -m release.size >/dev/null

size: setup ## Lines of code by folder, beside their budgets in pyproject.toml
	$(BIN)/python -m release.size

fmt: setup ## Format, and mend what the linter can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

openapi: setup ## Write openapi/openapi.json from the app
	$(BIN)/context-service openapi --output openapi/openapi.json

docs: setup ## Write docs/configuration.md from the settings
	$(BIN)/context-service settings --output docs/configuration.md

bench: setup ## Measure against the floors (ARGS="--quick")
	$(BIN)/python -m benchmarks $(ARGS)

release: setup ## Build and try wheel, archive, bill of materials and image (ARGS="--trial")
	$(BIN)/python -m release $(ARGS)

lock: ## Pin the newest allowed versions again (needs uv)
	$(LOCK) $(NO_HUB) --upgrade --output-file requirements.lock pyproject.toml
	$(LOCK) $(NO_HUB) --upgrade --constraint requirements.lock --extra all --output-file requirements-all.lock pyproject.toml
	$(LOCK) --upgrade --constraint requirements-all.lock --extra dev --output-file requirements-dev.lock pyproject.toml
	printf 'cyclonedx-bom\nhatchling\n' | $(LOCK) --constraint requirements-dev.lock --output-file requirements-build.lock -

hooks: setup ## Let git run the quick checks before each commit
	$(BIN)/pre-commit install

clean: ## Remove what the commands above made, except ./data
	rm -rf inspector/node_modules inspector/src/schema.ts inspector/.install.lock
	rm -rf clients/node_modules clients/schema.ts clients/.install.lock
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
