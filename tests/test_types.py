"""Type checkers see through the lazy imports: every public name has its type, and wrong arguments are errors."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import thinkalike

ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "src"


def test_checkers_see_the_names_that_are_loaded():
    nodes = ast.walk(ast.parse((SRC / "thinkalike" / "__init__.py").read_text()))
    seen = {alias.asname: node.module for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert {name: module for name, module in seen.items() if name} == thinkalike._HOME


def test_the_version_is_that_of_the_project():
    (line,) = (line for line in (ROOT / "pyproject.toml").read_text().splitlines() if line.startswith("version = "))
    assert thinkalike.__version__ == line.split('"')[1]
    assert "__version__" in dir(thinkalike)


GOOD = """
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from thinkalike import CKA, MLEM, FrozenModel, Result, cka, load_model, mutual_knn, open_result, plot, results, rsa
from thinkalike.measures import Estimate, rsa_estimate

X, Y = torch.randn(20, 4), np.ones((20, 5))
value: torch.Tensor = cka(X, Y, estimator="biased")
cka(pd.DataFrame(Y), [[1.0, 2.0]] * 20)
matrix: torch.Tensor = rsa([X, Y], others=torch.ones(2, 20, 4))
estimate: Estimate = rsa_estimate([X], groups=["a", "b"] * 10, folds=5)
mutual_knn(X, Y, k=3, groups=np.arange(20))
metric = CKA(1, 1)
metric.update([X], [Y])
metric.compute().distance().value.item()
figure, axes = plot(metric.compute())
MLEM(alpha=1.0).fit(Y, X)
result: Result = open_result(Path("results"))
scalars: dict[str, float] = result.scalars
frame: pd.DataFrame = results("results")


def width(model: FrozenModel) -> int:
    return model.d_model
"""
BAD = {
    "result.scalar": "attr-defined",
    "open_result(3)": "arg-type",
    "thinkalike.stich": "attr-defined",
    "thinkalike.__version__ + 1": "operator",
}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_users_file_is_checked(tmp_path):
    """Each line of BAD is an error of its kind, and no line of GOOD is one."""
    file = tmp_path / "user.py"
    file.write_text(GOOD + "\n\nimport thinkalike\n\n" + "\n".join(BAD) + "\n")
    first = file.read_text().splitlines().index(next(iter(BAD))) + 1
    command = [sys.executable, "-m", "mypy", "--config-file=", "--follow-imports=silent", str(file)]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env={"MYPYPATH": str(SRC), "PATH": ""})
    errors = [line for line in run.stdout.splitlines() if ": error: " in line]
    found = {int(line.split(":")[1]): line.rpartition("[")[2].rstrip("]") for line in errors}
    assert found == {first + number: kind for number, kind in enumerate(BAD.values())}, run.stdout
