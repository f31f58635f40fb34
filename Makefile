# Every target sets up what it needs. State lives in .venv/ and build/ only: "make clean" removes both.

PYTHON      ?= python3
SECONDS     ?= 60
PYTEST_ARGS ?=

VENV := .venv
BIN  := $(VENV)/bin
ASAN := build/asan

# The browser tests run wherever a Chromium is found.
CHROMIUM    := $(shell command -v chromium || command -v chromium-browser || command -v google-chrome)
EXTRAS      := test lint spark lake avro protobuf msgpack docs $(if $(CHROMIUM),browser)
KERNEL      := $(wildcard $(addprefix src/duramen/kernel/*.,pyx pxd c h))
JAVA        := $(shell find java -type f)
BUILD_FILES := pyproject.toml CMakeLists.txt $(KERNEL) $(JAVA)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help build check lint test demo bench bench-spark bench-brokers fuzz torture kill kill-spark flips files agree interop prometheus browser sanitize docs docs-serve dist clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# $(call venv,DIR)
define venv
@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Duramen needs Python 3.11 or newer")'
$(PYTHON) -m venv $(1)
endef

# $(call requirements,DIR,EXTRAS): what pyproject.toml asks for, without the package itself.
define requirements
@$(1)/bin/python -c 'import sys, tomllib; \
	toml = tomllib.load(open("pyproject.toml", "rb")); \
	extras = toml["project"]["optional-dependencies"]; \
	wanted = toml["build-system"]["requires"] + ["ninja"] + toml["project"]["dependencies"]; \
	print(*wanted, *(line for name in sys.argv[1:] for line in extras[name]), sep="\n")' \
	$(2) > $(1)/requirements.txt
$(1)/bin/pip install -q --disable-pip-version-check -r $(1)/requirements.txt
endef

# $(call install,DIR,BUILD_DIR,SETTINGS): an editable install. Python changes need no rebuild; a change of the
# kernel runs this again, and only what it touched is compiled.
define install
$(1)/bin/pip install -q --disable-pip-version-check --no-deps --no-build-isolation \
	--config-settings=build-dir=$(2) $(3) -e .
endef

$(VENV)/.made:
	$(call venv,$(VENV))
	@touch $@

$(VENV)/.required: pyproject.toml | $(VENV)/.made
	$(call requirements,$(VENV),$(EXTRAS))
	@touch $@

$(VENV)/.built: $(BUILD_FILES) $(VENV)/.required
	$(call install,$(VENV),build/release,)
	@touch $@

$(VENV)/.bench: pyproject.toml | $(VENV)/.made
	$(call requirements,$(VENV),bench)
	@touch $@

$(VENV)/.fuzz: pyproject.toml | $(VENV)/.made
	$(call requirements,$(VENV),fuzz)
	@touch $@

$(VENV)/.browser: pyproject.toml | $(VENV)/.made
	$(call requirements,$(VENV),browser)
	@touch $@

build: $(VENV)/.built ## compile the kernel and install everything into .venv

lint: build ## ruff, mypy, the layer contracts and the compiler's warnings
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(CC) -std=c11 -fsyntax-only -Wall -Wextra -Werror $(filter %.c,$(KERNEL))

SINCE ?= main
check: build ## in a minute: ruff, layers, types and the fast tests of what changed since main (SINCE=main)
	$(BIN)/ruff check -q
	$(BIN)/ruff format --check -q
	$(BIN)/lint-imports --no-logo
	$(BIN)/dmypy run --timeout 3600
	$(BIN)/python -m tests.changed --since $(SINCE) -n 2 --dist loadgroup

test: lint ## lint, then all tests (PYTEST_ARGS="-k crc" narrows them)
	$(BIN)/pytest -n 2 --dist loadgroup $(PYTEST_ARGS)

demo: build ## the whole story, in two minutes; its files are in build/demo
	@rm -rf build/demo
	$(BIN)/duramen demo --keep build/demo

bench: build $(VENV)/.bench ## measure speed, as ratios inside one run
	$(BIN)/python -m bench

bench-spark: build ## the same for Spark, on two cores (python -m bench.spark --scale 0.1 1 8: how work grows)
	$(BIN)/python -m bench.spark

bench-brokers: build $(VENV)/.bench ## the same beside RabbitMQ Streams and Kafka (fetches them where they are missing)
	$(BIN)/python -m bench.brokers

fuzz: build $(VENV)/.fuzz ## throw random bytes at the readers (SECONDS=60)
	$(BIN)/python -m fuzz --seconds $(SECONDS)

torture: build ## crash writers, producers and consumers everywhere on a simulated disk (SECONDS=60)
	$(BIN)/python -m tests.torture --seconds $(SECONDS)

KILLS ?= 200
kill: build ## kill real writers, producers and consumers at random moments (KILLS=200 each)
	$(BIN)/python -m tests.torture.kill --kills $(KILLS)
	$(BIN)/python -m tests.torture.kill_producers --kills $(KILLS)
	$(BIN)/python -m tests.torture.kill_consumers --kills $(KILLS)

flips: build ## flip single bits of logs and hold every verb to its promises (SECONDS=60; ALL=1: every case, about an hour)
	$(BIN)/python -m tests.damage.flips $(if $(ALL),--all,--budget $(SECONDS))

files: build ## exchange, double and empty the files of logs, repair and undo (CASES=200; ALL=1: every case, about four minutes)
	$(BIN)/python -m tests.damage.files $(if $(ALL),,--budget $(or $(CASES),200))

browser: build $(VENV)/.browser ## the page of `duramen serve` in a real chromium (root installs one from the distribution)
	@test -n "$(CHROMIUM)" || test "$$(id -u)" != 0 || apt-get install -y -q chromium
	$(BIN)/pytest tests/browser $(PYTEST_ARGS)

kill-spark: KILLS := $(if $(filter command line environment,$(origin KILLS)),$(KILLS),50)
kill-spark: build ## kill drivers of a streaming query at every step of its commit (KILLS=50), then race attempts
	$(BIN)/python -m tests.spark.kill --kills $(KILLS)
	$(BIN)/python -m tests.spark.kill --speculation

agree: build ## both engines of Spark read the same logs, sound and damaged, and must agree (CASES=1000)
	$(BIN)/python -m tests.spark.agree --cases $(or $(CASES),1000)

interop: build ## both directions with a real RabbitMQ (installed from the distribution's packages), and a real Kafka
	$(BIN)/python -m tests.interop.rabbitmq
	$(BIN)/python -m tests.interop.values
	$(BIN)/python -m tests.interop.confluent
	$(BIN)/python -m tests.interop.kafka.partitions
	$(BIN)/python -m tests.interop.kafka.cleaning
	$(BIN)/python -m tests.interop.kafka.live
	$(BIN)/python -m tests.interop.kafka.ingest

prometheus: build ## a real Prometheus scrapes `duramen serve`, and alerts fire (root installs it from the distribution)
	@command -v prometheus > /dev/null || test "$$(id -u)" != 0 || { apt-get install -y -q --no-install-recommends prometheus && { service prometheus stop || true; }; }
	$(BIN)/pytest tests/watch/test_prometheus.py $(PYTEST_ARGS)

docs: build ## the documentation as a site in build/site; a warning is an error
	$(BIN)/python -m docs.generate
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

docs-serve: build ## the same on a local port, built again with every change
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

dist: build ## wheel and sdist into dist/ (without a network: what is needed to build is in .venv)
	rm -rf dist
	$(BIN)/pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation -w dist .
	$(BIN)/python -c 'from scikit_build_core import build; build.build_sdist("dist")'

# The sanitized kernel has a venv of its own. libstdc++ is preloaded because libasan looks for its throw function
# before any C++ library of Arrow is there; PYTHONMALLOC=malloc gives each bytes object red zones of its own;
# capture=sys lets a report of the sanitizer reach the terminal.
ASAN_SETTINGS := $(addprefix --config-settings=,cmake.define.DURAMEN_SANITIZE=ON install.strip=false)

$(ASAN)/venv/.made:
	@mkdir -p $(ASAN)
	$(call venv,$(ASAN)/venv)
	@touch $@

$(ASAN)/venv/.required: pyproject.toml | $(ASAN)/venv/.made
	$(call requirements,$(ASAN)/venv,test)
	@touch $@

$(ASAN)/venv/.built: $(BUILD_FILES) $(ASAN)/venv/.required
	CC=gcc $(call install,$(ASAN)/venv,$(ASAN)/cmake,$(ASAN_SETTINGS))
	@touch $@

sanitize: $(ASAN)/venv/.built ## run the kernel tests under the address and undefined-behaviour sanitizers
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so) $$(gcc -print-file-name=libstdc++.so)" \
	ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 PYTHONMALLOC=malloc \
	$(ASAN)/venv/bin/python -m pytest --capture=sys tests/kernel tests/test_fuzz.py tests/spark/source/test_piece_reader.py $(PYTEST_ARGS)

clean: ## remove the venv, builds and caches
	rm -rf $(VENV) build dist .dmypy.json .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
