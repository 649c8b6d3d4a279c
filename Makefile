# One command a job. Each sets up its virtual environment by itself, from Python 3.11 or newer.

PYTHON ?= python3
# The newest Python that runs, on the path or of pyenv (whose commands on the path may not run).
NEWEST ?= $(shell for version in 3.14 3.13; do \
  for python in python$$version "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/$$version.*/bin/python; do \
  $$python -c "" 2>/dev/null && echo $$python && exit; done; done)
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
OLDEST := .venv-oldest
NEW := .venv-newest
PEERS := .venv-peers
ENGINES := .venv-engines
# The demo needs little; it uses the environment of the tests if that is there.
DEMO := $(if $(wildcard $(VENV)/.ready),$(VENV),.venv-demo)
WHEEL := .venv-wheel

# A minute or two of the tests that depend most on the version of jax or flax.
QUICK := tests/test_explicit_axes.py tests/distributed/test_metrics_global.py \
  tests/training/test_stateful.py \
  $(foreach name,matthews_binary auroc_class_logits nrmse iou,'tests/test_laws.py::test_laws_of_programs[$(name)]')

# The tests start many processes, which need not compile all sources again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test test-everywhere test-long test-quick test-optimized test-oldest test-newest test-newest-quick \
  test-wheel engines test-engines check \
  format docs reports browser \
  bench bench-host bench-peers bench-trainers bench-gpu bench-tpu operations mutants known-faults clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-18s %s\n", $$1, $$2 }' Makefile

demo: $(DEMO)/.ready ## Train on real data over 8 simulated devices, and check every number
	$(DEMO)/bin/datarax demo

test: $(VENV)/.ready ## Run the tests
	$(BIN)/python -m pytest -n $(JOBS) --dist loadscope

# Also every metric in every environment, on the oldest and the newest versions: two hours on two cores.
test-everywhere: export DATARAX_TEST_EVERYWHERE := 1
test-everywhere: test-long test-oldest test-newest ## The tests with every metric in every environment, on all versions

test-long: $(VENV)/.ready ## The tests, with long runs of what make test does shortly
	DATARAX_TEST_LONG=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadscope

test-quick: $(VENV)/.ready ## All laws for one metric of each statistic, in two minutes
	DATARAX_TEST_QUICK=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadscope tests/test_laws.py -k test_laws

# The other targets compile with fewer optimizations, see tests/conftest.py. The tests of Explicit axes
# compile nothing.
test-optimized: $(VENV)/.ready ## A part of the tests, compiled with the default options of XLA
	DATARAX_TEST_OPTIMIZED=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadscope tests/numerics \
	  $(filter-out tests/test_explicit_axes.py,$(QUICK))

test-oldest: $(OLDEST)/.ready ## Run the tests on the oldest supported versions
	$(OLDEST)/bin/python -m pytest -n $(JOBS) --dist loadscope

test-newest: $(NEW)/.ready ## Run the tests on the newest Python and jax; NEWEST=python3.13 says which
	$(NEW)/bin/python -m pytest -n $(JOBS) --dist loadscope

# The tests of the source distribution, beside which there is no datarax but the installed one.
test-wheel: $(VENV)/.ready ## Run the tests on the installed wheel; TESTS="tests/io" says which
	rm -rf dist $(WHEEL)
	$(BIN)/python -m build --no-isolation
	$(PYTHON) -m venv $(WHEEL)
	$(WHEEL)/bin/python -m pip install --quiet --disable-pip-version-check "$$(echo dist/*.whl)[test]" \
	  -c constraints.txt
	tar xzf dist/*.tar.gz -C $(WHEEL) --strip-components 1 --one-top-level=outside
	rm -r $(WHEEL)/outside/datarax
	cd $(WHEEL)/outside && ../bin/python -m pytest -n $(JOBS) --dist loadscope \
	  --ignore tests/test_distribution.py $(TESTS)

# Spark needs Java. `make test` collects these tests only where all of their packages are.
engines: $(ENGINES)/.ready ## Install Spark, Beam, Ray, Dask and what files come from; Java with apt
	@command -v java >/dev/null || { apt-get -qq update && \
	  DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends openjdk-17-jre-headless; }

test-engines: engines ## Run the tests of the engines
	$(ENGINES)/bin/python -m pytest -n $(JOBS) --dist loadscope tests/engines

.SECONDEXPANSION:
test-newest-quick: $$(if $$(NEWEST),$(NEW)/.ready) ## A quick part of it; left out where there is none
	$(if $(NEWEST),DATARAX_TEST_OPTIMIZED=1 $(NEW)/bin/python -m pytest -n $(JOBS) --dist loadscope $(QUICK),\
	  @echo "test-newest-quick is left out: no Python 3.13 or newer was found")

check: $(VENV)/.ready ## Lint, format and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/basedpyright

format: $(VENV)/.ready ## Mend what lint and format can mend by themselves
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: $(VENV)/.ready ## Build the documentation into site/; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

reports: $(VENV)/.ready ## Draw the example reports of the documentation, and the picture of the README
	$(BIN)/python examples/reports/draw.py docs/reports --picture docs/images/report.png

# The tests of the report drive a browser, and are left out where there is none.
browser: ## Install Chromium with apt, for the tests of the report
	@command -v chromedriver >/dev/null || { apt-get -qq update && \
	  DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium chromium-driver; }

bench: $(VENV)/.ready ## Run the benchmarks
	for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

bench-peers: $(PEERS)/.ready ## Measure datarax beside other libraries, for the pages on performance
	$(PEERS)/bin/python -m benchmarks.peers --write docs

bench-host: $(PEERS)/.ready ## Measure calls outside jit beside torchmetrics, for docs/performance/outside-jit.md
	$(PEERS)/bin/python benchmarks/host.py --write docs/performance/outside-jit.md

bench-trainers: $(VENV)/.ready ## Measure the steps of the examples of trainers, for docs/trainers.md
	$(BIN)/python benchmarks/trainers.py --write docs/trainers.md

bench-gpu: $(VENV)/.ready ## On a GPU: the share of its memory bandwidth that updates reach; each beside one by hand
	$(BIN)/python benchmarks/bandwidth.py
	$(BIN)/python benchmarks/by_hand.py --device

# It compiles for a TPU, and needs none. Where there is one, updates are timed, too.
bench-tpu: $(VENV)/.ready ## The bytes that updates read and write on a TPU, by its compiler; each beside one by hand
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target .libtpu libtpu==0.0.52
	$(BIN)/python benchmarks/tpu.py .libtpu/libtpu/libtpu.so
	$(BIN)/python benchmarks/by_hand.py --device

operations: $(VENV)/.ready ## Count the operations of the programs that update and read each metric
	$(BIN)/python -m tests.operations --optimized

mutants: $(VENV)/.ready ## Change one token at a time, and see whether a test notices
	$(BIN)/python -m tests.mutants

known-faults: $(VENV)/.ready ## Put known faults in, and name the test that finds each; after tests were removed
	$(BIN)/python -m tests.known_faults

clean: ## Remove what was built, the virtual environments included
	rm -rf $(VENV) .venv-demo $(OLDEST) $(NEW) $(PEERS) $(ENGINES) $(WHEEL) .libtpu site build dist datarax-demo .pytest_cache .ruff_cache .hypothesis
	find datarax tests benchmarks examples -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/.ready: pyproject.toml constraints.txt
	$(call install,$(VENV),dev,constraints.txt)

.venv-demo/.ready: pyproject.toml constraints.txt
	$(call install,.venv-demo,demo,constraints.txt)

$(OLDEST)/.ready: pyproject.toml constraints-oldest.txt
	$(call install,$(OLDEST),test,constraints-oldest.txt)

$(NEW)/.ready: override PYTHON = $(NEWEST)
$(NEW)/.ready: pyproject.toml constraints-newest.txt
	@test -n "$(NEWEST)" || { echo "no Python 3.13 or newer was found: say where it is, as in" \
	  "make test-newest NEWEST=/usr/bin/python3.13" >&2; exit 1; }
	$(call install,$(NEW),test,constraints-newest.txt)

$(PEERS)/.ready: pyproject.toml constraints.txt benchmarks/peers/requirements.txt
	$(call install,$(PEERS),demo,constraints.txt -r benchmarks/peers/requirements.txt)

$(ENGINES)/.ready: pyproject.toml constraints-engines.txt
	$(call install,$(ENGINES),engines,constraints-engines.txt)

# $(call install,FOLDER,EXTRA,CONSTRAINTS): a virtual environment with datarax as an editable package
define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo \
	  "datarax needs Python 3.11 or newer, which '$(PYTHON)' is not: make PYTHON=python3.12" >&2; exit 1; }
	test -x $(1)/bin/pip || $(PYTHON) -m venv $(1)
	@echo "Installing the packages of '$(2)' into $(1), once; this takes some minutes"
	$(1)/bin/python -m pip install --disable-pip-version-check -e '.[$(2)]' -c $(3)
	@touch $@
endef
