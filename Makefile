# make train ARGS="model=solu-3l-mini"    set-up on first use, then the main job
# make test | make lint                   the same for the fast tests, on all cores, and the checks
# make test ARGS="-n0 tests/measures/test_cka.py"  one file, in one process
# make ci-slow | make slow                the slow tests that continuous integration runs | all slow tests
# make docs                               the documentation into site/, strictly; offline once its packages are there
# make bench | make bench ARGS="cka rsa"   the instruments' speed, one thread, into benchmarks/RESULTS.md
PYTHON ?= python3
BIN := .venv/bin
# processes share the tests, one thread each; they need about 1.5 GB each. Bytecode is written even where the
# environment says otherwise: tests start many interpreters
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 8 --dist worksteal

.PHONY: train test ci-slow slow lint docs bench

train: .venv/ready
	$(BIN)/python train.py $(ARGS)

test: .venv/ready
	$(PYTEST) $(ARGS)

ci-slow: .venv/ready
	$(PYTEST) -m "ci_slow and not gpu" $(ARGS)

slow: .venv/ready
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -m slow $(ARGS)

bench: .venv/ready
	$(BIN)/python benchmarks/bench.py $(ARGS)

# without an index of packages to install from, what is there has to do. With --quiet, warnings
# would not count as errors in spite of --strict
docs: .venv/ready
	$(BIN)/python -c "import jupytext, mkdocs, material, mkdocstrings" 2>/dev/null || \
		$(BIN)/python -m pip install -q -c constraints.txt -e ".[docs]"
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=src $(BIN)/python -m mkdocs build --strict $(ARGS)

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# torch goes first and alone, so that a local build of that version is taken where there is one
.venv/ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[dev]"
	touch $@
	@echo "set up; for thinkalike and python of this environment: . $(BIN)/activate"
