PYTHON ?= python3
BIN := .venv/bin

.PHONY: run test check bench clean

run: .venv/ready
	$(BIN)/coterie run

test: .venv/ready
	$(BIN)/pytest

check: .venv/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: .venv/ready
	$(BIN)/coterie bench --out benchmarks/results

clean:
	rm -rf .venv

.venv/ready: pyproject.toml constraints.txt
	test -d .venv || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	touch $@
