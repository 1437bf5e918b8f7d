# Every target sets up `.venv` by itself first. `make setup` again after changing pyproject.toml or constraints.txt.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup demo test test-data test-slow check format bench bench-models bench-gpflow bench-practice clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'nearexact needs Python 3.11 or newer, found ' + sys.version)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[bench,dask,dev,onnx]"
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/python examples/demo.py

# One file of tests to a core, and one thread to each: what waits for threads on a busy core waits long.
test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile

# What needs the files of data sets; skipped where they are not. Part of `make test` too.
test-data: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "data and not slow"

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m slow

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The table in README.md. Needs the data sets: NEAREXACT_DATA=<folder>.
bench: $(STAMP)
	$(BIN)/python benchmarks/core.py --output benchmarks/results/core.json

# Whole fits next to scikit-learn and GPyTorch; about half an hour. Needs the data sets too.
bench-models: $(STAMP)
	$(BIN)/python benchmarks/time_to_model.py

# GPflow brings TensorFlow, so it lives in an environment of its own.
bench-gpflow: $(STAMP)
	test -x .venv-gpflow/bin/python || $(PYTHON) -m venv .venv-gpflow
	.venv-gpflow/bin/python -m pip install --quiet --disable-pip-version-check "gpflow==2.11.*" tf-keras
	$(BIN)/python benchmarks/gpflow_comparison.py --gpflow-python .venv-gpflow/bin/python --output benchmarks/results/gpflow.json

# `nearexact fit` next to what one would otherwise pick, 30 s of one core for each fit; GPBoost and LightGBM live in an
# environment of their own. Needs the data sets too; about half an hour.
bench-practice: $(STAMP)
	test -x .venv-peers/bin/python || $(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check "gpboost==1.8.0" "lightgbm==4.7.0"
	$(BIN)/python benchmarks/practice.py --peers-python .venv-peers/bin/python

clean:
	rm -rf $(VENV) .venv-gpflow .venv-peers build dist .mypy_cache .pytest_cache .ruff_cache
