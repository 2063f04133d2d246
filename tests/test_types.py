"""Type checkers see through the lazy imports: every public name has its type, and wrong arguments are errors."""

from __future__ import annotations

import ast
import builtins
import importlib.metadata
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import thinkalike

ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "src"


def imports_of(file: Path) -> dict[str, str]:
    """The modules from which a file imports the names that it hands on."""
    found = {}
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom):
            found |= {alias.name: str(node.module) for alias in node.names if alias.asname == alias.name}
    return found


def test_checkers_see_the_names_that_are_loaded():
    assert imports_of(SRC / "thinkalike" / "__init__.py") == thinkalike._HOME


def test_the_stub_of_the_measures_says_what_their_functions_take():
    spec = importlib.util.spec_from_file_location("make_stub", ROOT / "docs" / "make_stub.py")
    make_stub = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make_stub)
    written = {ast.dump(node) for node in ast.parse(make_stub.STUB.read_text()).body}
    due = {ast.dump(node) for node in ast.parse(make_stub.text()).body}
    assert written == due, "python docs/make_stub.py"


def test_every_name_of_the_stub_is_there():
    """The type checker of the project lets undefined names pass, because shapes look like them."""
    tree = ast.parse((SRC / "thinkalike" / "measures" / "__init__.pyi").read_text())
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    bound = {alias.asname or alias.name for node in ast.walk(tree) if hasattr(node, "names") for alias in node.names}
    bound |= {node.id for node in names if isinstance(node.ctx, ast.Store)}
    assert {node.id for node in names} - bound - set(dir(builtins)) == set()


def test_the_version_is_that_of_the_project():
    (line,) = (line for line in (ROOT / "pyproject.toml").read_text().splitlines() if line.startswith("version = "))
    assert thinkalike.__version__ == line.split('"')[1]
    assert "__version__" in dir(thinkalike)


def test_a_checkout_that_is_not_installed_has_a_version_too(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert thinkalike.__version__ == "0+unknown"


GOOD = """
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from thinkalike import CKA, MLEM, FrozenModel, Result, cka, load_model, mutual_knn, open_result, results, rsa
from thinkalike.measures import Estimate, rsa_estimate

X, Y = torch.randn(20, 4), np.ones((20, 5))
value: torch.Tensor = cka(X, Y, estimator="biased")
cka(pd.DataFrame(Y), [[1.0, 2.0]] * 20)
matrix: torch.Tensor = rsa([X, Y], others=torch.ones(2, 20, 4))
estimate: Estimate = rsa_estimate([X], groups=["a", "b"] * 10, folds=5)
mutual_knn(X, Y, k=3, groups=np.arange(20))
metric = CKA(1, 1, null=True)
metric.update([X], [Y])
metric.compute().distance().value.item()
figure, axes = metric.plot()
MLEM(alpha=1.0).fit(Y, X)
result: Result = open_result(Path("results"))
scalars: dict[str, float] = result.scalars
frame: pd.DataFrame = results("results")


def width(model: FrozenModel) -> int:
    return model.d_model
"""
BAD = {
    'cka("a", Y)': "arg-type",
    "cka(X, 3)": "arg-type",
    "cka(X, Y, nonsense=True)": "call-arg",
    "cka(X, Y, estimator=1)": "arg-type",
    "cka(X)": "call-arg",
    "cka(X, Y).valu": "attr-defined",
    'rsa("layers")': "arg-type",
    "metric.update([X], 3)": "arg-type",
    "metric.compute().valu": "attr-defined",
    "result.scalar": "attr-defined",
    "open_result(3)": "arg-type",
    "thinkalike.stich": "attr-defined",
    "thinkalike.__version__ + 1": "operator",
    "MLEM(alhpa=1.0)": "call-arg",
}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_users_file_is_checked(tmp_path):
    """Each line of BAD is an error of its kind, and no line of GOOD is one."""
    file = tmp_path / "user.py"
    file.write_text(GOOD + "\n\nimport thinkalike\n\n" + "\n".join(BAD) + "\n")
    first = file.read_text().splitlines().index(next(iter(BAD))) + 1
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--config-file=",
        "--follow-imports=silent",
        "--show-error-codes",
        str(file),
    ]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env={"MYPYPATH": str(SRC), "PATH": ""})
    errors = [line for line in run.stdout.splitlines() if ": error: " in line]
    found = {int(line.split(":")[1]): line.rpartition("[")[2].rstrip("]") for line in errors}
    assert found == {first + number: kind for number, kind in enumerate(BAD.values())}, run.stdout
