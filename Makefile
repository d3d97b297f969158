# Everything runs in a local virtual environment that `make setup` makes by itself.
PYTHON ?= $(or $(shell command -v python3.11),python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export PYTHONHASHSEED := 0
export OMP_NUM_THREADS ?= 1

.PHONY: setup demo test test-all lint docs bench clean help

help:
	@echo "make demo      fit several methods on embedded data, compare them, write an HTML report"
	@echo "make test      the test suite (make test-all: the slow checks too)"
	@echo "make lint      ruff, pyright, import order"
	@echo "make docs      build the documentation into site/"
	@echo "make bench     speed and memory side by side with the plain network"

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "credo needs $(PYTHON); set PYTHON=... to another Python 3.11 or newer"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip uninstall --quiet --yes credo 2>/dev/null || true  # the name before credo-bayes
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[flows,gp,compress,onnx,images,report,dev,docs]"
	@touch $(STAMP)

demo: setup
	$(BIN)/credo demo --out credo-demo

test: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

test-all: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal

lint: setup
	$(BIN)/ruff check src tests benchmarks docs
	$(BIN)/ruff format --check src tests benchmarks docs
	$(BIN)/lint-imports
	$(BIN)/pyright

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: setup
	$(BIN)/python benchmarks/bench.py

clean:
	rm -rf $(VENV) site credo-demo
