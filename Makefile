# SPDX-License-Identifier: Apache-2.0
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# setuptools warns of any editable installation: nothing that a reader of the output could mend
# the native module is built in place, by the rule for .built: pip only registers the package
PIP_INSTALL := OBMM_BUILD_NATIVE=0 PYTHONWARNINGS='ignore:Editable installation' $(BIN)/python -m pip install -q --disable-pip-version-check

# modules are compiled once, and not by each process that runs them (images of containers set it)
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# before any download: what is missing is said with the distribution's names; an environment of another Python goes.  A
# script of Python, because it must run where nothing else does yet
$(VENV)/.tools: pyproject.toml native/tools/preflight.py native/tools/name_the_clone.py
	@command -v $(PYTHON) >/dev/null || { echo "make: no $(PYTHON): install Python 3.11 or newer, or make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) native/tools/preflight.py $(VENV)
	@echo "== local virtual environment in $(VENV) (once)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP_INSTALL) --upgrade pip 'setuptools>=77' wheel 'cffi>=1.17'
	@$(PIP_INSTALL) --no-build-isolation -e '.[cli]'
	@$(BIN)/python native/tools/name_the_clone.py
	@touch $@

$(VENV)/.dev: $(VENV)/.built
	@echo "== what tests, lint and plots need (once)"
	@$(PIP_INSTALL) --no-build-isolation -e '.[dev]'
	@touch $@

# the rooms that end up in obmm._native, libobmm_preload and the stand-ins
ROOMS := abi core emulator access hash gather engine device blocks urma broker preload standin sdk_standin urma_standin ffi
NATIVE_SOURCES := $(wildcard $(ROOMS:%=native/%/*.[ch]) native/ffi/cdefs/*.h native/ffi/build.py native/ffi/includes.txt native/obmm.h native/tools/c_library.py)

$(VENV)/.built: $(VENV)/.tools $(NATIVE_SOURCES)
	@echo "== building obmm._native"
	@$(BIN)/python setup.py -q build_ext --inplace --force
	@touch $@

.PHONY: setup
setup: $(VENV)/.built ## the virtual environment and the native module

.PHONY: dev
dev: $(VENV)/.dev ## setup, and what tests, lint and plots need

.PHONY: demo
demo: setup ## the main job on two emulated nodes, every byte verified
	@$(BIN)/obmm demo

.PHONY: smoke
smoke: setup ## the loopback smoke test (OBMM_DEVICE chooses the device; default: an emulated fabric of its own)
	@$(BIN)/python native/tools/with_fabric.py $(BIN)/obmm smoke $(SMOKE_ARGS)

# tests run in two processes more than there are cores, because many wait for processes, clocks and disks; those that
# measure or need the machine run alone, afterwards
PYTEST := $(BIN)/python -m pytest
WORKERS ?= $(shell echo $$(($$(nproc) + 2)))
ALONE := $(shell grep -rl --include='test_*.py' 'mark\.alone' tests)

.PHONY: test
test: dev ## every test against the emulator
	@echo "== tests"
	@$(PYTEST) -n $(WORKERS) -m "not alone"
	@$(PYTEST) -m alone $(ALONE)

# the seed that is printed repeats an order: make shuffle SEED=...
.PHONY: shuffle
shuffle: dev ## every test in random order (SEED repeats one; TESTS narrows it)
	@echo "== tests in random order"
	@$(PYTEST) -p randomly $(if $(SEED),--randomly-seed=$(SEED)) -n $(WORKERS) -m "not alone" $(TESTS) || test $$? = 5 # 5: TESTS has none of them
	@$(PYTEST) -p randomly $(if $(SEED),--randomly-seed=$(SEED)) -m alone $(TESTS) || test $$? = 5

.PHONY: quick
quick: dev ## the tests of the core rooms: below two minutes
	@echo "== quick tests"
	@$(PYTEST) -q -n $(WORKERS) -m "not alone and not slow" tests/test_house.py tests/test_docs.py tests/words tests/driver tests/windows \
		tests/region tests/mapping tests/rows tests/host tests/cli

.PHONY: engines
engines: setup ## the doors into SGLang, vLLM and LMCache, with the engines' real classes (an environment of their own, 3.5 GB)
	@$(PYTHON) tests/engines/stage.py $(ENGINE)

.PHONY: docs
docs: dev ## the reference, built from docstrings into build/site; fails on a broken link
	@echo "== reference"
	@$(BIN)/python docs/build_site.py build/site

# into a folder that is empty: dist/ may hold other wheels, and build/lib* what an earlier tree had
BUILD_WHEEL = rm -rf build/wheel build/lib build/lib.* build/bdist.*; mkdir -p build/wheel dist; OBMM_BUILD_NATIVE=1 \
	$(BIN)/python -m pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation -w build/wheel . && \
	$(BIN)/python native/tools/check_wheel.py build/wheel/*.whl dist

.PHONY: wheels wheel wheel-aarch64
wheels: wheel ## a wheel for this machine and, with a cross compiler, one for aarch64; tags and contents checked (dist/)
	@if test "$$(uname -m)" = aarch64; then :; \
	elif command -v aarch64-linux-gnu-gcc >/dev/null; then $(MAKE) --no-print-directory wheel-aarch64; \
	else echo "no wheel for aarch64: apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross, or build it there"; fi

wheel: dev ## the wheel for this machine's architecture
	@echo "== wheel"
	@$(BUILD_WHEEL)

# the stub describes the interface, which is one for all machines: that of the module here is what the wheel has
wheel-aarch64: dev ## the wheel for aarch64, by a cross compiler
	@$(needs-aarch64)
	@echo "== wheel for aarch64"
	@export _PYTHON_HOST_PLATFORM=linux-aarch64 CC=aarch64-linux-gnu-gcc AR=aarch64-linux-gnu-ar \
		LDSHARED='aarch64-linux-gnu-gcc -shared' OBMM_NO_STUB=1; $(BUILD_WHEEL)

.PHONY: coverage
coverage: dev ## every test, and which lines of obmm/ and the driver model they run (at least 90 %)
	@echo "== tests with coverage"
	@rm -f .coverage*
	@$(BIN)/python -m coverage run -m pytest -q
	@$(BIN)/python -m coverage combine -q
	@$(BIN)/python -m coverage report --omit 'obmm/bench/*,bench/*' --fail-under 90

.PHONY: bench
bench: dev ## what the Python surface and the emulator's control path cost, as ratios
	@$(BIN)/python -m bench.access

# the C side: see native/Makefile
NATIVE := $(MAKE) --no-print-directory -s -C native
# $(call needs,file or command,Debian package)
needs = command -v $(1) >/dev/null || test -e $(1) || { echo "make $@: $(1) is missing: apt-get install $(2)" >&2; exit 1; }
needs-aarch64 = $(call needs,aarch64-linux-gnu-gcc,gcc-aarch64-linux-gnu); \
	$(call needs,/usr/aarch64-linux-gnu/include/stdlib.h,libc6-dev-arm64-cross)

.PHONY: ctest
ctest: ## the C unit tests
	@echo "== C tests"
	@$(NATIVE) FLAVOUR=plain check

.PHONY: asan
asan: ## the C unit tests under the address and undefined-behaviour sanitizers
	@echo "== C tests, address and undefined-behaviour sanitizers"
	@$(NATIVE) FLAVOUR=asan check

.PHONY: tsan
tsan: ## the C unit tests under the thread sanitizer
	@echo "== C tests, thread sanitizer"
	@$(NATIVE) FLAVOUR=tsan check

.PHONY: aarch64
aarch64: ## everything in C compiled for aarch64, its unit tests under qemu-user
	@$(needs-aarch64); $(call needs,qemu-aarch64,qemu-user)
	@echo "== C tests, aarch64"
	@$(NATIVE) FLAVOUR=aarch64 objects check

SMOKE := build/c/plain/smoke
.PHONY: smoke-c
smoke-c: setup ## the loopback smoke test in plain C (SMOKE_ARGS='64MiB --json'; OBMM_DEVICE chooses the device)
	@echo "== C smoke test" >&2
	@$(NATIVE) FLAVOUR=plain smoke
	@if ldd $(SMOKE) | grep -vE '^\s*(linux-vdso|libc|libpthread)\.so|^\s*/lib'; then \
		echo "make $@: $(SMOKE) needs more than libc" >&2; exit 1; fi
	@$(BIN)/python native/tools/with_fabric.py $(SMOKE) $(SMOKE_ARGS)

# guests under QEMU with the simulator kernel module: tests/kernel
.PHONY: kernel-x86 kernel-arm64 kernel-pair kernel-storm kernel-cases kernel-ci
kernel-x86: setup ## an x86-64 guest with the simulator module (minutes; downloads what it boots)
	@$(BIN)/python -m tests.kernel x86

kernel-arm64: setup ## the same in an aarch64 guest
	@$(BIN)/python -m tests.kernel arm64

kernel-pair: setup ## two guests on one fabric, for each architecture
	@$(BIN)/python -m tests.kernel pair-x86 pair-arm64

kernel-storm: setup ## hostile processes against the module, minutes on each architecture (KERNEL_STORM_SECONDS, default 180)
	@$(BIN)/python -m tests.kernel storm-x86 storm-arm64

kernel-cases: setup ## the cases that emulator and module share, with both answers (after kernel-x86 or kernel-arm64)
	@$(BIN)/python -m tests.kernel.shared

kernel-ci: setup ## what CI runs: both single guests at once, then one aarch64 pair and a short storm
	@KERNEL_STORM_SECONDS=15 KERNEL_STORM_SEED=1 $(BIN)/python -m tests.kernel x86 arm64 pair-arm64 storm-x86
	@$(BIN)/python -m tests.kernel.shared

.PHONY: lint
lint: dev ## ruff, mypy, and all C without a warning on x86-64 and aarch64
	@$(needs-aarch64)
	@echo "== lint"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(NATIVE) FLAVOUR=plain objects
	@$(NATIVE) FLAVOUR=aarch64 objects

.PHONY: conformance
conformance: setup ## the driver's rules and recorded answers on the emulator; writes docs/conformance
	@echo "== conformance"
	@OBMM_CONFORMANCE_RESULTS=build/conformance.json $(BIN)/python -m pytest -q tests/conformance \
		--deselect tests/conformance/test_rules_have_tests.py::test_rule_page_lists_the_tests_of_today
	@$(BIN)/python -m tests.conformance.pages

FUZZ_RUNS ?= 1000000

.PHONY: fuzz
fuzz: setup ## the emulator's socket and the parsers of the exchange, FUZZ_RUNS (1,000,000) executions of each of these
	@echo "== fuzz, $(FUZZ_RUNS) executions"
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/python -m pip install -q --disable-pip-version-check 'atheris>=2.3' \
		|| echo "atheris does not install here: the coverage-blind fuzzer runs"
	@$(BIN)/python -m tests.fuzz.run --runs $(FUZZ_RUNS)
	@OBMM_SEED=random OBMM_FUZZ_ROUNDS=$$(($(FUZZ_RUNS) / 100)) $(BIN)/python -m pytest -q --timeout=0 tests/hardship/test_socket_fuzz.py

.PHONY: threads
threads: dev ## eight threads on one of each object that threads may share, 20 seconds each, freed memory poisoned
	@echo "== eight threads on one object"
	@OBMM_THREAD_SECONDS=20 $(BIN)/python -m pytest -q tests/safety/test_threads.py

.PHONY: threads-asan
threads-asan: dev asan-module ## the same with the native module under the address sanitizer
	@echo "== eight threads on one object, under the address sanitizer"
	@OBMM_THREAD_SECONDS=20 OBMM_THREAD_ASAN=1 $(BIN)/python -m pytest -q tests/safety/test_threads.py

.PHONY: every-call
every-call: dev ## every system call and callback of servers, brokers, clients and commands fails once (an hour; `make test` takes a share)
	@echo "== each call fails once"
	@OBMM_EVERY_CALL=1 $(BIN)/python -m pytest -q --timeout=0 tests/broker/test_every_call_fails.py tests/exchange/test_every_call_fails.py \
		tests/exchange/test_client_faults.py tests/exchange/test_every_command_fails.py tests/exchange/test_every_other_command_fails.py

CHAOS_SECONDS ?= 600

.PHONY: chaos
chaos: setup ## random lives with interrupts, forks, kills and revocations, CHAOS_SECONDS (600) long; a failure prints its seed
	@echo "== chaos, $(CHAOS_SECONDS) s"
	@$(BIN)/python -m tests.chaos --seconds $(CHAOS_SECONDS)

.PHONY: interrupts
interrupts: dev ## an interrupt at every line of what makes and closes owners (OPCODES=1: at every instruction, hours)
	@echo "== interrupts at every $(if $(OPCODES),instruction,line)"
	@OBMM_INJECT_EVERY_PLACE=1 OBMM_INJECT_OPCODES=$(OPCODES) $(BIN)/python -m pytest -q -s -p no:cacheprovider tests/safety/test_injected.py

SOAK_SECONDS ?= 3600
BLOCK_OPERATIONS ?= 1000000

LIFETIME_STEPS ?= 1000000

.PHONY: fuzz-lifetime
fuzz-lifetime: setup ## random lifetimes of regions, mappings and views against a model, LIFETIME_STEPS (1,000,000) steps
	@echo "== lifetimes, $(LIFETIME_STEPS) steps"
	@$(BIN)/python -m tests.safety.lifetimes --steps $(LIFETIME_STEPS)

# the native module built once more, instrumented, beside a copy of the package that only this target imports
ASAN_PYTHON = env PYTHONPATH=build/asan:. PYTHONMALLOC=malloc LD_PRELOAD=$$(gcc -print-file-name=libasan.so) \
	ASAN_OPTIONS=detect_leaks=0:allow_user_segv_handler=1:use_sigaltstack=0:handle_segv=0:handle_sigbus=0 $(BIN)/python -P

LIFETIME_SEED ?= 1

.PHONY: asan-module
asan-module: setup
	@OBMM_NO_STUB=1 CFLAGS='-fsanitize=address -fno-omit-frame-pointer -O1' LDFLAGS=-fsanitize=address \
		$(BIN)/python setup.py -q build --build-lib build/asan --build-temp build/asan-objects
	@$(ASAN_PYTHON) -c 'import obmm._native as n; assert "build/asan" in n.__file__, n.__file__'

.PHONY: lifetime-asan
lifetime-asan: asan-module ## random lifetimes with the native module under the address sanitizer, 100,000 steps (LIFETIME_SEED)
	@echo "== lifetimes under the address sanitizer"
	@$(ASAN_PYTHON) -m tests.safety.lifetimes --steps 100000 --seed $(LIFETIME_SEED)

.PHONY: soak
soak: setup ## random faults and deaths for SOAK_SECONDS (3600) each: no wrong byte, no growth, no broken invariant
	@echo "== soak, $(SOAK_SECONDS) s"
	@$(BIN)/python tests/prefetch/soak.py --seconds $(SOAK_SECONDS)
	@$(BIN)/python -m tests.urma.soak --seconds $(SOAK_SECONDS)
	@$(BIN)/python -m tests.blocks.model --operations $(BLOCK_OPERATIONS) --cache cc
	@$(BIN)/python -m tests.blocks.model --operations $(BLOCK_OPERATIONS) --cache nc
	@OBMM_SEED=random OBMM_STORM_SECONDS=$$(($(SOAK_SECONDS) / 2)) $(BIN)/python -m pytest -q tests/hardship/test_storm.py

.PHONY: clean
clean: ## remove everything that was built
	rm -rf $(VENV) .venv-engines build dist *.egg-info obmm/*.so .coverage* htmlcov .pytest_cache .mypy_cache .ruff_cache
