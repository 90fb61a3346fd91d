# Needs Python 3.11, pip and make; every target makes its environment in .venv the first time.
PYTHON ?= python3
PYTEST_WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
OLDEST := .venv-oldest
OLDEST_EXTRAS := benchmarks cli cluster dev mujoco plots sb3 tensorboard

# pip reads the pins from here, also for the throw-away environments it builds packages in
# (before pip 25.3 through the first variable, since then through the second).
export PIP_CONSTRAINT := constraints.txt
export PIP_BUILD_CONSTRAINT := constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# One thread each: the networks are small, and the same thread count gives the same bits.
export OMP_NUM_THREADS := 1
# Without stored bytecode every process that a test starts compiles all modules first.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test slow gpu lint format docs figures notebooks wheel bench mutation oldest faults clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Debian's Python comes without ensurepip: there pip is put in from the outside.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
		|| { echo "owlrl needs Python >= 3.10; say which one: make PYTHON=python3.11 ..."; exit 1; }
	$(PYTHON) -c 'import ensurepip' 2>/dev/null && $(PYTHON) -m venv $(VENV) \
		|| { $(PYTHON) -m venv --without-pip $(VENV) \
		&& $(PYTHON) -m pip --python $(BIN)/python install --quiet pip; }
	$(BIN)/python -m pip install --quiet --editable ".[benchmarks,cli,cluster,dev,docs,mujoco,notebooks,plots,recipes,sb3,tensorboard]"
	@touch $@

demo: $(STAMP) ## train four tasks that contradict each other, one head against OWL
	$(BIN)/owlrl demo

test: $(STAMP) ## run the tests, the doctests and the README's code; with COVERAGE=1 coverage must reach its bar
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist worksteal $(if $(COVERAGE),--cov --cov-report=term)

slow: $(STAMP) ## run the tests that take minutes; TESTS=... only those of some files
	$(BIN)/python -m pytest -m slow $(TESTS)

gpu: $(STAMP) ## run the tests that need a CUDA device
	$(BIN)/python -m pytest -m gpu tests/test_devices.py

lint: $(STAMP) ## check style, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	for version in 3.10 3.12 3.13; do $(BIN)/mypy --strict --python-version $$version src || exit 1; done

format: $(STAMP) ## put the formatting right
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMP) ## build the documentation into docs/_build/html, warnings are errors
	$(BIN)/sphinx-build -W --keep-going --nitpicky -q -b html docs docs/_build/html

figures: $(STAMP) ## draw the figures of the docs from the committed runs, and renew the tables of the results
	$(BIN)/python -m scripts.results_page
	$(BIN)/python -m scripts.figures

notebooks: $(STAMP) ## execute the example notebooks at full size and store their outputs, some ten minutes
	$(BIN)/python -m scripts.notebooks

wheel: $(STAMP) ## build sdist and wheel, check them, try the wheel in an empty environment
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*
	$(BIN)/python scripts/check_wheel.py

bench: $(STAMP) ## measure against the plain way and print the table
	$(BIN)/python benchmarks/run.py

mutation: $(STAMP) ## run the tests against mutants of the code (tests/mutants), about an hour
	$(BIN)/python -m scripts.mutation run
	$(BIN)/python -m scripts.mutation table

# Old releases of others warn of what newer ones changed: such warnings are no errors here. The snapshot of public
# names shows signatures of torch, which differ.
oldest: ## run the tests with the lowest versions that pyproject.toml allows, in .venv-oldest
	$(PYTHON) -m venv --without-pip $(OLDEST)
	$(PYTHON) scripts/oldest.py $(OLDEST_EXTRAS) > $(OLDEST)/requirements.txt
	env -u PIP_CONSTRAINT -u PIP_BUILD_CONSTRAINT $(PYTHON) -m pip --python $(OLDEST)/bin/python install --quiet \
		--requirement $(OLDEST)/requirements.txt --editable .
	$(OLDEST)/bin/python -m pytest -n $(PYTEST_WORKERS) --ignore tests/test_notebooks.py --ignore tests/test_readme.py \
		--ignore tests/test_api_snapshot.py \
		-W ignore::DeprecationWarning -W ignore::FutureWarning

faults: $(STAMP) ## kill, damage and interrupt; FULL=1 makes the table of docs/reliability.md, RECORD=file goes on where it was
	$(BIN)/python -m scripts.faults $(if $(FULL),--full --page docs/reliability.md,--quick) $(if $(RECORD),--record $(RECORD))

clean: ## remove what the targets made, the environment included
	rm -rf $(VENV) $(OLDEST) dist docs/_build .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis
