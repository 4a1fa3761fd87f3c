# make demo   the main job on real rows against an embedded engine, killed midway and resumed
# make test   the whole suite: style and types, all tests, and the unit tests on the oldest and newest Python found
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BUILD := pyproject.toml setup.cfg setup.py $(wildcard _native/*.* _native/python/*)
PIP := -m pip install --quiet --disable-pip-version-check

# Pythons on which the unit tests run too, where they are installed. Interop tests need peers of their own and run once.
OTHERS := 3.9 3.13
UNIT := tests --ignore=tests/interop --ignore=tests/test_cli.py

.PHONY: demo test check suite others system

$(VENV)/.installed: $(BUILD)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP) --upgrade pip
	$(BIN)/python $(PIP) -e '.[test,fast]'
	touch $@

demo: $(VENV)/.installed
	$(BIN)/saturate demo

test: system check suite others

# What the suite needs of the system and cannot get from a package index. Only root on Debian can be helped here.
system:
	@missing=""; for tool in cc:gcc openssl:openssl zstd:zstd chromium:chromium; do \
	  command -v $${tool%%:*} >/dev/null || missing="$$missing $${tool##*:}"; done; \
	if [ -n "$$missing" ]; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then apt-get update -q && apt-get install -qy $$missing; \
	  else echo "make test needs:$$missing"; exit 1; fi; fi

check: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/mypy

suite: $(VENV)/.installed
	$(BIN)/python -m pytest -n 2 --dist loadgroup

others: $(foreach version,$(OTHERS),unit-$(version))

# A pyenv shim answers for a version that is not selected with an error, so its versions are looked up by folder.
python_of = $(shell command -v python$(1) >/dev/null && python$(1) -c 'import sys; print(sys.executable)' 2>/dev/null \
  || ls -d $${PYENV_ROOT:-$$HOME/.pyenv}/versions/$(1).*/bin/python 2>/dev/null | tail -n 1)

unit-%:
	@if [ -n "$(call python_of,$*)" ]; then $(MAKE) --no-print-directory .venvs/unit-$*/.installed && \
	  echo "unit tests on Python $*" && .venvs/unit-$*/bin/python -m pytest -n 2 --dist loadgroup -q $(UNIT); \
	else echo "Python $* is not installed: its unit tests are left out"; fi

.venvs/unit-%/.installed: $(BUILD)
	$(call python_of,$*) -m venv .venvs/unit-$*
	.venvs/unit-$*/bin/python $(PIP) --upgrade pip
	.venvs/unit-$*/bin/python $(PIP) -e '.[test]'
	touch $@

.PRECIOUS: .venvs/unit-%/.installed
