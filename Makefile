# SPDX-License-Identifier: Apache-2.0
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(VENV)/.tools: pyproject.toml
	@echo "== local virtual environment in $(VENV) (once)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check --upgrade pip 'setuptools>=77' wheel 'cffi>=1.17'
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-build-isolation -e '.[dev]'
	@touch $@

# the rooms that end up in obmm._native
ROOMS := abi core emulator copy hash ffi
NATIVE_SOURCES := $(wildcard $(ROOMS:%=native/%/*.[ch]) native/ffi/cdefs/*.h native/ffi/build.py native/ffi/includes.txt)

$(VENV)/.built: $(VENV)/.tools $(NATIVE_SOURCES)
	@echo "== building obmm._native"
	@$(BIN)/python setup.py -q build_ext --inplace --force
	@touch $@

.PHONY: setup
setup: $(VENV)/.built ## the virtual environment and the native module

.PHONY: test
test: setup ## every test against the emulator
	@echo "== tests"
	@$(BIN)/python -m pytest

.PHONY: lint
lint: setup ## ruff and mypy
	@echo "== lint"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

.PHONY: clean
clean: ## remove everything that was built
	rm -rf $(VENV) build dist *.egg-info obmm/*.so .coverage* htmlcov .pytest_cache .mypy_cache .ruff_cache
