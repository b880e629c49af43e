# Needs GNU make and a Python 3.11, 3.12 or 3.13 with venv and pip; everything else goes into .venv.
# pip's own settings (PIP_INDEX_URL, pip.conf, ...) are respected.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules
.SUFFIXES:

# The engine has wheels for Python up to 3.13. A candidate must really start: a shim may have nothing behind it.
CANDIDATES := python3.13 python3.12 python3.11 python3
FITS := import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 14))
PYTHON ?= $(shell for c in $(CANDIDATES); do "$$c" -c '$(FITS)' >/dev/null 2>&1 && echo "$$c" && break; done)

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet install

# A new release of a linter brings new rules: pinned, so that the same commit is judged alike every day.
# Pyright brings its own Node.js this way.
LINTERS := codespell==2.4.* import-linter==2.16 'pyright[nodejs]==1.1.414' ruff==0.17.*

# Two files at a time; the tests of one file, which may share a cluster, one after the other. (Grouping by mark is
# silently ignored by pytest-xdist 3.8 under pytest 9.2.)
PYTEST := $(BIN)/python -m pytest
PYTEST_ARGS ?= -n 2 --dist loadfile
# How quick commands are is measured before the machine has anything else to do.
SPEED := tests/gates/test_speed_budget.py
# Tests on a real Slurm run on its login node, one after the other: they break it. Those on a real Kubernetes run as
# programs in it, one after the other likewise.
SLURM := tests/labs/slurm/with.sh 6 --
KUBERNETES := tests/labs/kubernetes/with.sh 2 --
# Half of them have a cluster of their own: most of their time they wait for it.
SLURM_A := $(sort $(wildcard tests/slurm/test_[a-l]*.py))
SLURM_B := $(filter-out $(SLURM_A),$(sort $(wildcard tests/slurm/test_*.py)))
KUBERNETES_A := $(sort $(wildcard tests/kubernetes/test_[a-l]*.py))
KUBERNETES_B := $(filter-out $(KUBERNETES_A),$(sort $(wildcard tests/kubernetes/test_*.py)))
# A second Slurm, 24.11 of Debian 13; 0: without it.
TRIXIE ?= 1

.PHONY: help
help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-6s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: $(VENV)/.milkweed ## run the demonstration on this machine
	$(BIN)/python examples/demo.py

.PHONY: test
test: lint ## lint, then every test; what this machine lacks is skipped, with the reason
	@$(BIN)/python tests/stages.py \
	  'speed: $(PYTEST) -n 0 -q $(SPEED)' + \
	  'here: $(PYTEST) $(PYTEST_ARGS) -rs -m "not slurm and not kubernetes" --ignore $(SPEED)' + \
	  'kubernetes-a: $(KUBERNETES) $(PYTEST) -n 0 -rs -m "not slow" $(KUBERNETES_A)' \
	  'kubernetes-b: $(KUBERNETES) $(PYTEST) -n 0 -rs -m "not slow" $(KUBERNETES_B)' \
	  'slurm-22-a: env VER=22 MILKWEED_CHAOS_S=$(or $(MILKWEED_CHAOS_S),30) $(SLURM) $(PYTEST) -n 0 -rs $(SLURM_A)' \
	  'slurm-22-b: env VER=22 $(SLURM) $(PYTEST) -n 0 -rs $(SLURM_B)' \
	  'slurm-24-b: env VER=24 $(SLURM) $(PYTEST) -n 0 -rs -m "not slow and not once" $(SLURM_B)' \
	  'slurm-24-a: env VER=24 $(SLURM) $(PYTEST) -n 0 -rs -m "not slow and not once" $(SLURM_A)'

.PHONY: slow
slow: $(VENV)/.dev ## tests on a real Kubernetes that take minutes each
	$(KUBERNETES) $(PYTEST) -n 0 -rs -m slow tests/kubernetes

.PHONY: chaos
chaos: $(VENV)/.dev ## ten minutes of random faults on a real Slurm; MILKWEED_CHAOS_SEED repeats one
	MILKWEED_CHAOS_S=$${MILKWEED_CHAOS_S:-600} $(SLURM) $(PYTEST) -n 0 -s tests/slurm/test_chaos.py

.PHONY: lint
lint: $(VENV)/.dev ## format, rules, types, import rings, spelling
	@failed=; run() { echo "$$*"; "$(BIN)/$$@" || failed+=" $$1"; }; \
	run ruff check --quiet --output-format concise .; \
	run ruff format --check --quiet --output-format concise .; \
	run lint-imports --no-logo; \
	run codespell; \
	run pyright --project pyproject.toml --pythonpath $(BIN)/python; \
	[ -z "$$failed" ] || { echo "lint failed:$$failed" >&2; exit 1; }

.PHONY: docs
docs: $(VENV)/.dev ## check every link, and run every example
	$(PYTEST) -rs tests/gates/test_docs.py $(wildcard tests/docs tests/*/test_*_docs.py)

.PHONY: labs
labs: ## get what a real Slurm and a real Kubernetes on this machine need, once
	TRIXIE=$(TRIXIE) tests/labs/prepare.sh

PEER := $(or $(MILKWEED_LAB),$(HOME)/.cache/milkweed-lab)/kubernetes-client
.PHONY: bench
bench: $(VENV)/.milkweed ## run every measurement of bench/
	@[ -d "$(PEER)" ] || $(PIP) --target "$(PEER)" kubernetes # what the engine's own job layer needs
	@for file in bench/startup.py bench/slurm.py bench/spmd.py bench/kubernetes.py bench/jobspec.py; do echo "== $$file"; $(BIN)/python "$$file"; done

.PHONY: clean
clean: ## remove the virtual environment, caches and builds; the labs stay
	rm -rf $(VENV) dist .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests bench examples docs -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

$(VENV)/bin/python:
	@[ -n "$(PYTHON)" ] || { echo "no Python >= 3.11 and < 3.14 with venv and pip among: $(CANDIDATES)." \
	  "Install one (Debian: apt-get install python3-venv), or say make PYTHON=..." >&2; exit 1; }
	@echo "making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(PIP) --upgrade 'pip>=25.1'

# In place when pyproject.toml changed; `make clean` for a fresh one.
$(VENV)/.milkweed: pyproject.toml | $(VENV)/bin/python
	@echo "installing milkweed into $(VENV)"
	@$(PIP) --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml Makefile $(VENV)/.milkweed
	@echo "installing the development tools into $(VENV)"
	@$(PIP) --group dev $(LINTERS)
	@touch $@
