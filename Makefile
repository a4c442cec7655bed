# make demo    train in the open, under Paillier and under CKKS, and see what each costs and tells
# make test    the test suite, on two cores
# make quick   one short test of every file, for an inner loop
# make soak    its slow part: attacks over twenty seeds
# make docs    the documentation as pages, in build/site; any warning is an error
# make ci      what CI runs: style, types, layers, documentation, tests, and the tests again against the built wheel
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.PHONY: demo test quick soak docs ci check wheel-test lock clean

$(VENV)/.installed: requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

demo: $(VENV)/.installed
	$(BIN)/securevfl demo

test: $(VENV)/.installed
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow"

quick: $(VENV)/.installed
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow" --quick

soak: $(VENV)/.installed
	$(BIN)/pytest -m slow

check: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

ci: check docs test wheel-test

# the installed thing, away from the checkout: a clean environment, the wheel, the tests of one machine
wheel-test: $(VENV)/.installed
	bash .ci/wheel-test $(PYTHON) $(BIN)

lock:
	bash .ci/lock $(PYTHON)

clean:
	rm -rf $(VENV) build dist *.egg-info
