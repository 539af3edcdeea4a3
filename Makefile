# Everything a developer types. `make` alone lists the targets; each one sets up what it needs.
#
#   PYTHON=python3.12 make test        another interpreter (3.11 or newer)
#   make test PYTEST_ARGS="-k lease"   more arguments for pytest

PYTHON ?= python3
PYTEST_ARGS ?=
BENCH_ARGS ?=
DEMO_ARGS ?=
FAULT_ARGS ?=
HOSTILE_ARGS ?=
MUTANT_ARGS ?=
RANGE_ARGS ?=
VERSION_ARGS ?=
# At most four processes: each brings its own share of databases. Tests wait for servers and processes, so one more than
# there are cores keeps the cores busy.
PYTEST_PARALLEL ?= --numprocesses=$(shell expr $$(getconf _NPROCESSORS_ONLN) + 1) --maxprocesses=4 --dist=loadgroup

# Where a PostgreSQL 15 server may live: `make test-pg15 PG15_BIN=...` settles it.
PG15_BIN ?= $(firstword $(wildcard \
	/usr/lib/postgresql/15/bin \
	/usr/pgsql-15/bin \
	/opt/homebrew/opt/postgresql@15/bin \
	/usr/local/opt/postgresql@15/bin) \
	$(shell pg_config --version 2>/dev/null | grep -q ' 15\.' && pg_config --bindir))

# What depends most on the server: these run on PostgreSQL 15 in each CI run.
PG15_CORE := $(addprefix tests/,sql/test_commands.py sql/test_outcomes.py sql/test_batches.py sql/test_locks.py \
	sql/test_governance.py migrations integration/test_smoke.py integration/test_worker_transactions.py)

# Images often set this. Without bytecode each program that a test starts compiles all that it imports, and each process
# of pytest rewrites every test file anew: minutes of a run.
unexport PYTHONDONTWRITEBYTECODE

PY := .venv/bin/python
READY := .venv/.installed
# The peers of the benchmarks: never in .venv, because they bring libraries of their own.
PEERS := benchmarks/.venv-peers
PEERS_READY := $(PEERS)/.installed
# The generator of the documentation site, with libraries of its own.
DOCS_ENV := build/venv-docs
DOCS_READY := $(DOCS_ENV)/.installed
# Patroni, for the fault runs on a cluster. As root its processes are those of another account, which can rarely run a
# Python from somebody's home: so it is the system's.
PATRONI := build/venv-patroni
PATRONI_READY := $(PATRONI)/.installed
PATRONI_PYTHON ?= $(firstword $(wildcard /usr/bin/python3) $(PYTHON))
# The tools of a release, in an environment of their own too.
TOOLS := release/.venv-tools
TOOLS_READY := $(TOOLS)/.installed
# The newest Python that is here, for the frameworks that need it: an environment of its own.
NEWEST := .venv-integrations
NEWEST_READY := $(NEWEST)/.installed
PIP := $(PY) -m pip --disable-pip-version-check --no-input -qq

# An environment made by another interpreter, or moved with its folder, is made anew.
FINGERPRINT := $(shell $(PYTHON) -c 'import os, platform; print(platform.python_version(), os.getcwd())' 2>/dev/null)
ifneq ($(shell cat $(READY) 2>/dev/null),$(FINGERPRINT))
.PHONY: $(READY)
endif

.DEFAULT_GOAL := help
.PHONY: test-fastapi-floor help demo test test-long test-long-tier test-long-pg15 test-unit test-integration test-integrations run-integrations test-e2e test-pg15 test-pg15-core has-pg15
.PHONY: faults faults-ha faults-brokers faults-shards faults-http attacks console-reads hostile mutants mutants-python typecheck check fix bench bench-quick bench-compare bench-flow bench-peers docs blocking schema lock clean
.PHONY: release-check test-ranges test-versions typecheck-examples axe test-browser console-pictures console-bars console-load

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' Makefile

demo: $(READY) ## Run the demo application on a PostgreSQL of its own
	.venv/bin/commandbus demo $(DEMO_ARGS)

test: check ## Run all checks and all tests but the long ones, with the coverage gate (about 10 minutes)
	$(PY) -m pytest $(PYTEST_PARALLEL) -m "not long" --cov --cov-report=term $(PYTEST_ARGS)

test-long: ## Run the long tests: short fault runs, models, wide acceptance tests; PostgreSQL 15 if it is there
	@$(MAKE) --no-print-directory test-long-tier
	@$(MAKE) --no-print-directory test-long-pg15

test-long-tier: $(READY) axe
	$(PY) -m pytest $(PYTEST_PARALLEL) -m long $(PYTEST_ARGS)

test-long-pg15: $(READY)
	@if $(MAKE) --no-print-directory has-pg15 >/dev/null; then $(MAKE) --no-print-directory test-pg15-core; \
	else echo "No PostgreSQL 15 server found: its tests are left out (make test-pg15 says how to get one)"; fi

test-unit: $(READY) ## Run the tests that need no PostgreSQL
	$(PY) -m pytest $(wildcard tests/unit tests/conformance) -m "not postgres" $(PYTEST_ARGS)

test-integration: $(READY) ## Run the tests against the embedded PostgreSQL
	$(PY) -m pytest $(PYTEST_PARALLEL) -m "postgres and not e2e" $(PYTEST_ARGS)

#: The oldest FastAPI that we support, with the Starlette that it brings; tests of the service run with it.
FASTAPI_FLOOR = 0.128.0
test-fastapi-floor: $(READY) ## Run the tests of the HTTP service with the oldest FastAPI
	rm -rf build/fastapi-floor
	$(PY) -m pip install -q --target build/fastapi-floor "fastapi==$(FASTAPI_FLOOR)"
	PYTHONPATH=build/fastapi-floor $(PY) -m pytest tests/integration/test_fastapi_kit.py tests/integration/test_http_routes.py tests/integration/test_http_governed_waiting.py -q --no-cov

test-e2e: $(READY) ## Run the tests that drive the program from outside
	SCHEMATHESIS_REQUESTS=$${SCHEMATHESIS_REQUESTS:-5000} $(PY) -m pytest $(PYTEST_PARALLEL) -m e2e $(PYTEST_ARGS)

test-pg15-core: has-pg15 $(READY)
	COMMANDBUS_PG_BIN="$(PG15_BIN)" $(PY) -m pytest $(PYTEST_PARALLEL) $(PYTEST_ARGS) $(PG15_CORE)

test-pg15: has-pg15 $(READY) ## Run the integration tests against an installed PostgreSQL 15
	COMMANDBUS_PG_BIN="$(PG15_BIN)" $(PY) -m pytest $(PYTEST_PARALLEL) -m "postgres and not e2e" $(PYTEST_ARGS)

test-integrations: ## Run the tests of the applications in examples/, on the newest Python that is here (3.12 or newer)
	@found="$$(sh requirements/newest-python.sh)"; \
	if [ -z "$$found" ]; then \
		echo "Skipped: Django 6 needs Python 3.12 or newer, and none was found that runs"; \
	else \
		$(MAKE) --no-print-directory NEWEST_PYTHON="$$found" $(NEWEST_READY) run-integrations; \
	fi

# Each application is a program of its own, so each has a run of its own.
run-integrations:
	@set -e; for tests in examples/*/tests; do \
		echo "== $$tests"; \
		(cd "$$(dirname "$$tests")" && $(CURDIR)/$(NEWEST)/bin/python -m pytest -c /dev/null --rootdir . -p no:cacheprovider \
			-o asyncio_default_fixture_loop_scope=function -q tests); \
	done

mutants: $(READY) ## Take the guards out of the SQL functions one by one: some test must notice (hours)
	$(PY) -m tests.mutants --resume $(MUTANT_ARGS)

mutants-python: $(READY) ## Change the Python core at one place after another: some test must notice (half an hour)
	$(PY) -m tests.mutants --python --resume $(MUTANT_ARGS)

faults: $(READY) ## Break workers, server and network on purpose (at most 60 minutes); report in build/faults
	$(PY) -m faults --scale long --report build/faults $(FAULT_ARGS)

faults-ha: $(READY) $(PATRONI_READY) ## A cluster under Patroni: 20 kills, 20 switchovers, 10 freezes of its leader (half an hour)
	$(PY) -m faults --scale ha --report build/faults-ha $(FAULT_ARGS)

faults-brokers: $(READY) ## Brokers that are killed, purged, copied, mixed up and cut, 20 times each (half an hour)
	BROKER_ROUNDS=$${BROKER_ROUNDS:-20} $(PY) -m pytest --timeout=0 --no-cov -m long $(PYTEST_ARGS) tests/acceptance/test_broker_faults.py

faults-shards: $(READY) ## Three shards on three servers: one is killed for half a minute, a domain of 100,000 commands is moved (five minutes)
	SHARD_OUTAGE=$${SHARD_OUTAGE:-30} MOVED_COMMANDS=$${MOVED_COMMANDS:-100000} $(PY) -m pytest --timeout=0 --no-cov -m long -s -n 0 $(PYTEST_ARGS) tests/acceptance/test_shard_faults.py

faults-http: $(READY) ## The HTTP service: 100,000 generated requests and 100 cut answers (two hours or more)
	SCHEMATHESIS_REQUESTS=$${SCHEMATHESIS_REQUESTS:-100000} SCHEMATHESIS_PARTS=8 CUT_ANSWERS=100 \
		$(PY) -m pytest $(PYTEST_PARALLEL) --timeout=0 -rP --no-cov $(PYTEST_ARGS) \
		tests/acceptance/test_http_schemathesis.py tests/acceptance/test_http_cut_answers.py

attacks: $(READY) ## 10,000 random calls against governance, listings of 1,000,000 rows, then make hostile (6 minutes)
	GOVERNED_CALLS=10000 LISTED_ROWS=1000000 $(PY) -m pytest --timeout=0 -s -m long \
		tests/security/test_governed_delete.py tests/sql/test_plans_listings.py
	$(PY) -m tests.hostile $(HOSTILE_ARGS)

console-reads: $(READY) ## What people look at, with 1,000,000 commands, messages and events (CONSOLE_ROWS=10000000 for more)
	CONSOLE_ROWS=$${CONSOLE_ROWS:-1000000} $(PY) -m pytest --timeout=0 -s --no-cov -m long tests/sql/test_plans_console.py

# axe-core looks for what people with other senses or hands stumble over. A tool of development: never in the package.
AXE := build/axe/node_modules/axe-core/axe.min.js
axe: ## Fetch axe-core with npm into build/, for the tests in a browser
	@test -f $(AXE) || npm install --prefix build/axe --no-audit --no-fund --loglevel=error --ignore-scripts axe-core@4 >/dev/null \
		|| echo "axe-core could not be fetched with npm: the tests of the console in a browser are left out"

test-browser: $(READY) axe ## Run the tests of the console in Chromium (two minutes; COMMANDBUS_CHROMIUM names the program)
	$(PY) -m pytest --no-cov -m browser $(PYTEST_ARGS) tests/console/browser

console-pictures: $(READY) ## Pictures of each screen of the console, three widths, both themes, into build/pictures
	$(PY) -m tests.console.browser.pictures build/pictures

console-bars: $(READY) ## Time, queries and plans of the console's pages with 1,000,000 commands (CONSOLE_ROWS=10000000 for more; CONSOLE_DATA keeps the data)
	CONSOLE_ROWS=$${CONSOLE_ROWS:-1000000} $(PY) -m tests.console.browser.bars

console-load: $(READY) ## What fifty open pages cost the service, for a minute
	$(PY) -m tests.console.browser.load

hostile: $(READY) ## 1,000 hostile sockets against the HTTP service, beside another user (4 minutes)
	$(PY) -m tests.hostile $(HOSTILE_ARGS)

typecheck: $(READY) ## Check the types
	$(PY) -m mypy

check: $(READY) ## Check format, lint, types, import rules and dependencies
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy
	.venv/bin/lint-imports --no-logo
	$(PY) -m deptry src

fix: $(READY) ## Format the code and fix what the linter can
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

bench: $(READY) $(PEERS_READY) ## Measure beside the peers, and keep the results (at most 30 minutes)
	$(PY) -m benchmarks --keep --limit-minutes 29 $(BENCH_ARGS)

bench-quick: $(READY) $(PEERS_READY) ## A short look at the same (at most 5 minutes)
	$(PY) -m benchmarks --quick --limit-minutes 4.5 $(BENCH_ARGS)

bench-compare: $(READY) ## Compare the hot paths with another checkout, in pairs: BEFORE=folder (about 10 minutes)
	$(PY) -m benchmarks.compare --before "$(BEFORE)" $(BENCH_ARGS)

bench-flow: $(READY) ## Measure the bars of delays, levels, keys, limits, pauses and schedules (about 12 minutes)
	$(PY) -m benchmarks.flow $(BENCH_ARGS)

docs: $(READY) $(DOCS_READY) ## Build the documentation site into build/docs/site; a warning is an error
	$(PY) -m docsite build/docs
	cd build/docs && ../../$(DOCS_ENV)/bin/zensical build --strict -f mkdocs.yml

release-check: $(TOOLS_READY) ## Build twice, look inside, install, measure, type the README's first screen (a few minutes)
	$(TOOLS)/bin/python -m release

test-ranges: $(TOOLS_READY) ## Run a core of the tests with the oldest and with the newest dependencies (about 10 minutes)
	$(TOOLS)/bin/python -m release.ranges $(RANGE_ARGS)

test-versions: $(TOOLS_READY) ## Run the tests of the integrations with the versions of frameworks that users have (half an hour)
	$(TOOLS)/bin/python -m release.versions $(VERSION_ARGS)

typecheck-examples: $(TOOLS_READY) ## Check the types of the applications in examples/ with mypy and pyright
	$(TOOLS)/bin/python -m release.examples

bench-peers: $(PEERS_READY) ## Install the peers of the benchmarks, in an environment of their own

blocking: $(READY) ## Write the verbs of BlockingBus anew, after a change of those of CommandBus
	$(PY) -m tests.blocking.generate

schema: $(READY) ## Write the snapshot of the schema anew, after a change of the SQL
	$(PY) -m tests.migrations.snapshot

lock: ## Resolve the dependencies anew into requirements/*.lock (LOCK_ARGS=--upgrade for newer ones)
	test -x $(PY) || $(PYTHON) -m venv .venv
	$(PIP) install "uv>=0.13"
	.venv/bin/uv pip compile pyproject.toml --all-extras --group dev \
		--universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" \
		--quiet --output-file requirements/dev.lock $(LOCK_ARGS)
	.venv/bin/uv pip compile requirements/bench.in \
		--universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" \
		--quiet --output-file requirements/bench.lock $(LOCK_ARGS)
	.venv/bin/uv pip compile requirements/docs.in \
		--universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" \
		--quiet --output-file requirements/docs.lock $(LOCK_ARGS)
	.venv/bin/uv pip compile requirements/patroni.in \
		--universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" \
		--quiet --output-file requirements/patroni.lock $(LOCK_ARGS)
	.venv/bin/uv pip compile requirements/release.in \
		--universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" \
		--quiet --output-file requirements/release.lock $(LOCK_ARGS)
	.venv/bin/uv pip compile pyproject.toml requirements/integrations.in --all-extras \
		--universal --python-version 3.12 --generate-hashes \
		--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" \
		--quiet --output-file requirements/integrations.lock $(LOCK_ARGS)

clean: ## Remove the environment and everything that was generated
	rm -rf .venv $(PEERS) $(NEWEST) $(TOOLS) .coverage .coverage.* htmlcov dist build
	rm -rf .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

has-pg15:
	@test -n "$(PG15_BIN)" && test -x "$(PG15_BIN)/initdb" || { \
		echo "No PostgreSQL 15 server found. Install one (Debian: apt-get install postgresql-15)"; \
		echo "or say where its programs are: make test-pg15 PG15_BIN=/path/to/bin"; \
		exit 1; }

# --- set-up -------------------------------------------------------------------------------
# The stamp is written last, so an install that was cut short is done again.
# --no-deps: the locks are complete, and older versions of pip otherwise look at newer releases of a
# package that another one asks for with an extra, and refuse them because the lock has no hash of them.

$(READY): pyproject.toml requirements/dev.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "commandbus needs Python 3.11 or newer as '$(PYTHON)'; say which: PYTHON=python3.12 make ..."; \
		exit 1; }
	@echo "Setting up .venv with $$($(PYTHON) --version) and the locked dependencies (once, about a minute) ..."
	@rm -f $(READY)
	@test "$(FINGERPRINT)" = "$$(cat .venv/.made-by 2>/dev/null)" || { \
		$(PYTHON) -m venv --clear .venv && echo "$(FINGERPRINT)" > .venv/.made-by; }
	@$(PIP) install --no-deps --require-hashes -r requirements/dev.lock
	@$(PIP) install --no-deps --no-build-isolation -e .
	@echo "$(FINGERPRINT)" > $(READY)

$(NEWEST_READY): pyproject.toml requirements/integrations.lock
	@echo "Setting up $(NEWEST) with $$($(NEWEST_PYTHON) --version) (once) ..."
	@rm -f $(NEWEST_READY)
	@$(NEWEST_PYTHON) -m venv --clear $(NEWEST)
	@$(NEWEST)/bin/python -m pip --disable-pip-version-check --no-input -qq \
		install --no-deps --require-hashes -r requirements/integrations.lock
	@$(NEWEST)/bin/python -m pip --disable-pip-version-check --no-input -qq \
		install --no-deps --no-build-isolation -e .
	@touch $(NEWEST_READY)

$(PEERS_READY): requirements/bench.lock
	@echo "Setting up $(PEERS) with the peers of the benchmarks (once) ..."
	@rm -f $(PEERS_READY)
	@$(PYTHON) -m venv --clear $(PEERS)
	@$(PEERS)/bin/python -m pip --disable-pip-version-check --no-input -qq \
		install --no-deps --require-hashes -r requirements/bench.lock
	@touch $(PEERS_READY)

$(PATRONI_READY): requirements/patroni.lock
	@echo "Setting up $(PATRONI) with Patroni (once) ..."
	@rm -f $(PATRONI_READY)
	@$(PATRONI_PYTHON) -m venv --clear $(PATRONI)
	@$(PATRONI)/bin/python -m pip --disable-pip-version-check --no-input -qq \
		install --require-hashes -r requirements/patroni.lock
	@touch $(PATRONI_READY)

$(DOCS_READY): requirements/docs.lock
	@echo "Setting up $(DOCS_ENV) with the generator of the documentation site (once) ..."
	@rm -f $(DOCS_READY)
	@$(PYTHON) -m venv --clear $(DOCS_ENV)
	@$(DOCS_ENV)/bin/python -m pip --disable-pip-version-check --no-input -qq \
		install --no-deps --require-hashes -r requirements/docs.lock
	@touch $(DOCS_READY)

$(TOOLS_READY): requirements/release.lock
	@echo "Setting up $(TOOLS) with the tools of a release (once) ..."
	@rm -f $(TOOLS_READY)
	@$(PYTHON) -m venv --clear $(TOOLS)
	@$(TOOLS)/bin/python -m pip --disable-pip-version-check --no-input -qq \
		install --no-deps --require-hashes -r requirements/release.lock
	@touch $(TOOLS_READY)
