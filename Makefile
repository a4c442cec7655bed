# make demo    what a bank gains by a shop, what each learns and what it costs; the other modes
# make test    the test suite, on two cores: four processes, as tests wait a part of their time
# make quick   one short test of every file, for an inner loop
# make soak    what make test leaves out: long tests, attacks over twenty seeds, all mutants; new examples of properties;
#              and the tests of make test in a new random order
# make docs    the documentation as pages, in build/site; any warning is an error
# make pages   the pages of docs/ that are generated from the code
# make results every table of docs/results.md by its experiments, in hours; PART=ftl or PART=ftl/small for a part
# make release wheel and source archive in dist/; fails while SECURITY.md has no contact
# make ci      what CI runs: style, types, layers, documentation, tests, and short tests against the built wheel
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

# packages are installed without bytecode, so that Python has to store it, also where it is told to write none
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test quick soak selfcheck docs pages results release ci check wheel-test lock clean fuzz

# what the package itself needs, of the versions of the lock
$(VENV)/.core: requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint requirements.lock setuptools
	$(BIN)/python -m pip install --quiet --constraint requirements.lock --no-build-isolation --editable .
	touch $@

# and all that its developers use: uv takes a quarter of pip's time. It ignores pip's settings, so pip installs the packages
# if these name another index, or if uv fails
$(VENV)/.installed: $(VENV)/.core
	$(BIN)/python -m pip install --quiet --constraint requirements.lock uv
	{ ! $(BIN)/python -m pip config list | grep -q '[.]index-url' \
	    && $(BIN)/uv pip install --quiet --python $(BIN)/python --requirement requirements.lock; } \
	    || $(BIN)/python -m pip install --quiet --no-compile --requirement requirements.lock
	touch $@

demo: $(VENV)/.core
	@$(BIN)/securevfl demo

# processes of tests import the package anew, and pytest rewrites asserts: both are done once, before the workers start
# mutants of modules that differ from this commit are all applied, of others one a check
test: export BASE ?=
test: $(VENV)/.installed
	$(BIN)/python -m tests.compiled
	$(BIN)/pytest -n 4 --dist worksteal -m "not slow"

quick: $(VENV)/.installed
	$(BIN)/python -m tests.compiled
	$(BIN)/pytest -n 4 --dist worksteal -m "not slow" --quick

soak: $(VENV)/.installed
	$(BIN)/python -m tests.compiled
	$(BIN)/pytest -n 2 --dist worksteal -m slow
	$(BIN)/pytest -n 2 --dist worksteal -m "hypothesis and not slow" --hypothesis-profile=search
	$(BIN)/pytest -n 4 --dist worksteal -m "not slow" --random-order

# a search of ten minutes for input that ends in anything but an error with a code
fuzz: $(VENV)/.installed
	$(BIN)/python -m tests.security.fuzz --seconds 600 --seed 1

# checks and mutants of the library itself
selfcheck: $(VENV)/.installed
	$(BIN)/pytest tests/selfcheck

check: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pydoclint --quiet securevfl crypto protocols
	$(BIN)/mypy
	PYTHONPATH=tests $(BIN)/lint-imports

docs: $(VENV)/.installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

pages: $(VENV)/.installed
	$(BIN)/python -m docs.made_pages

# experiments that this code has computed are skipped, so an interrupted `make results` resumes
DATA ?= ../shared/data
PART ?= all
results: $(VENV)/.installed
	$(BIN)/python -m benchmarks.papers $(PART) --data $(DATA) --resume

release: $(VENV)/.installed
	bash .ci/release $(BIN)

# checks and pages are made beside the tests, which leave a part of two cores idle
ci: $(VENV)/.installed
	$(MAKE) -j 2 test check docs wheel-test

# the installed thing, away from the checkout: every module of the wheel, and short tests
wheel-test: $(VENV)/.installed
	bash .ci/wheel-test $(PYTHON) $(BIN)

lock:
	bash .ci/lock $(PYTHON)

clean:
	rm -rf $(VENV) build dist *.egg-info
