# `make demo` and `make test` are all that a newcomer needs; `make help` lists the rest.
# Another Python: make PYTHON=/path/to/python3.11 ...

PYTHON ?=
BIN := .venv/bin
READY := .venv/ready
READY_DEV := .venv/ready-dev
SETUP := pyproject.toml megalith/__init__.py tools/setup_environment.py tools/find_python.sh

.PHONY: help setup demo test lint types imports clean

help:
	@echo "make demo     train a small GPT on the bundled text and let it write"
	@echo "make test     run all tests"
	@echo "make setup    make .venv with Megalith and all tools of development"
	@echo "make lint     check format and style (ruff)"
	@echo "make types    check types (mypy)"
	@echo "make imports  check that imports between rooms go one way"
	@echo "make clean    remove what make made: .venv, runs and caches"

demo: $(READY)
	@PATH="$(CURDIR)/$(BIN):$$PATH" examples/demo.sh runs/demo

setup: $(READY_DEV)

test: $(READY_DEV)
	$(BIN)/python -m pytest -q

lint: $(READY_DEV)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(READY_DEV)
	$(BIN)/mypy

imports: $(READY_DEV)
	$(BIN)/python -m pytest -q tests/test_imports.py

# A stamp stands for a finished installation, so that a second run installs nothing.
$(READY): $(SETUP)
	@python=$$(sh tools/find_python.sh $(PYTHON)) && "$$python" tools/setup_environment.py .venv
	@touch $@

$(READY_DEV): $(SETUP)
	@python=$$(sh tools/find_python.sh $(PYTHON)) && "$$python" tools/setup_environment.py .venv dev
	@touch $(READY) $@

clean:
	rm -rf .venv runs build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
