PYTHON ?= python3
BIN := .venv/bin

.PHONY: run test test-all test-sites check bench attack clean

run: .venv/ready
	$(BIN)/coterie run

# Each file goes to one of two processes, because tests of a file share what is slow to set up.
PYTEST := $(BIN)/pytest --numprocesses 2 --dist loadscope

test: .venv/ready
	$(PYTEST) -m "not slow"

test-all: .venv/ready
	$(PYTEST)

# Half an hour: all tests of real sites, and then a long run in which something is killed every 20 seconds. The last
# part continues where it was stopped; remove soak-results to begin again.
test-sites: .venv/ready
	$(BIN)/pytest tests/sites tests/contract/test_one_client.py
	$(BIN)/python tests/sites/soak.py --out soak-results

check: .venv/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: .venv/ready
	$(BIN)/coterie bench --out benchmarks/results

# An hour or two. It continues where it was stopped; remove attack-results to begin again.
attack: .venv/ready
	$(BIN)/python tests/attack/run.py --out attack-results

clean:
	rm -rf .venv

.venv/ready: pyproject.toml constraints.txt
	test -d .venv || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	touch $@
