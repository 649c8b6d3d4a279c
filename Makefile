# One command a job. Each sets up its virtual environment by itself, from Python 3.11 or newer.

PYTHON ?= python3
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
OLDEST := .venv-oldest

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test test-oldest check format docs bench mutants clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.ready ## Train on real data over 8 simulated devices, and check every number
	$(BIN)/datarax demo

test: $(VENV)/.ready ## Run the tests
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup

test-oldest: $(OLDEST)/.ready ## Run the tests on the oldest supported versions
	$(OLDEST)/bin/python -m pytest -n $(JOBS) --dist loadgroup

check: $(VENV)/.ready ## Lint, format and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/basedpyright

format: $(VENV)/.ready ## Mend what lint and format can mend by themselves
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: $(VENV)/.ready ## Build the documentation into site/; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(VENV)/.ready ## Run the benchmarks
	for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

mutants: $(VENV)/.ready ## Change one token at a time, and see whether a test notices
	$(BIN)/python -m tests.mutants

clean: ## Remove what was built, the virtual environments included
	rm -rf $(VENV) $(OLDEST) site build dist datarax-demo .pytest_cache .ruff_cache .hypothesis
	find datarax tests benchmarks -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/.ready: pyproject.toml constraints.txt
	$(call install,$(VENV),dev,constraints.txt)

$(OLDEST)/.ready: pyproject.toml constraints-oldest.txt
	$(call install,$(OLDEST),test,constraints-oldest.txt)

# $(call install,FOLDER,EXTRA,CONSTRAINTS): a virtual environment with datarax as an editable package
define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo \
	  "datarax needs Python 3.11 or newer, which '$(PYTHON)' is not: make PYTHON=python3.12" >&2; exit 1; }
	test -x $(1)/bin/pip || $(PYTHON) -m venv $(1)
	$(1)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[$(2)]' -c $(3)
	@touch $@
endef
