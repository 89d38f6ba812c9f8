# Every target sets up what it needs: a virtual environment in .venv with the pinned packages of requirements.txt.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# The first Python that is new enough; `make PYTHON=/path/to/python setup` chooses another.
PYTHON ?= $(firstword $(foreach python,python3.11 python3.12 python3.13 python3.14 python3,\
	$(shell $(python) -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $(python))))

# Tests start many processes; more than one thread in each only makes them wait for one another.
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
# Whole files, because the tests of one share servers and finished searches that take long to make.
PYTEST := $(TEST_ENV) $(BIN)/python -m pytest -n 2 --dist loadfile

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all lint format bench openapi docs lock clean

help: ## List the targets.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  \1\t\2/' | expand -t 14

setup: $(STAMP) ## Make the virtual environment; does nothing when it is up to date.

$(STAMP): requirements.txt pyproject.toml
	@test -n "$(PYTHON)" || { echo "ViTailor needs Python 3.11 or newer: install it, or name one with 'make PYTHON=/path/to/python $(MAKECMDGOALS)'" >&2; exit 1; }
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

demo: $(STAMP) ## A real search on handwritten digits, from an empty folder to a network that loads elsewhere.
	@$(BIN)/vitailor demo --out demo-output

test: $(STAMP) ## All tests but the slow ones.
	@$(PYTEST) -m "not slow"

test-all: $(STAMP) ## All tests.
	@$(PYTEST)

lint: $(STAMP) ## Style, types, import rules, Dockerfile and shell.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/hadolint Dockerfile
	$(BIN)/shellcheck .ci/run

format: $(STAMP) ## Rewrite the sources in the house style.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) ## Run every benchmark; each prints a table.
	@set -e; for script in benchmarks/*.py; do $(BIN)/python $$script; done

openapi: $(STAMP) ## Write docs/openapi.json from the routes.
	$(BIN)/python -m service.contract docs/openapi.json

docs: $(STAMP) ## Write the generated parts of docs/.
	$(BIN)/vitailor settings --markdown > docs/configuration.md

# Torch's own CUDA packages exist for Linux only and are chosen by torch, so they are left out of the pins.
lock: $(STAMP) ## Pin what the virtual environment holds now.
	$(BIN)/python -m pip freeze --exclude-editable | grep -vE '^(nvidia-|cuda-|triton)' > requirements.txt

clean: ## Remove caches, builds, the demo's output and the virtual environment; data folders stay.
	rm -rf $(VENV) build dist demo-output *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -path ./.git -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
