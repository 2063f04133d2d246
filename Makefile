# make train ARGS="model=solu-3l-mini"    set-up on first use, then the main job
# make test | make lint                   the same for the tests and the checks
PYTHON ?= python3
BIN := .venv/bin

.PHONY: train test slow lint

train: .venv/ready
	$(BIN)/python train.py $(ARGS)

test: .venv/ready
	$(BIN)/python -m pytest $(ARGS)

slow: .venv/ready
	$(BIN)/python -m pytest -m slow $(ARGS)

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
