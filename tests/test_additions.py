"""What an addition to the package touches: a measure at most three files, an instrument with table and figure six.

Each is made in a copy of the repository, and then passes the tests that go through all entries of the registry.
"""

from __future__ import annotations

import filecmp
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pages
from conftest import ROOT

pytestmark = pytest.mark.slow

COPIED = ("src", "tests", "docs", "conf", "benchmarks")
OF_MEASURES = (
    "tests/test_registry.py",
    "tests/test_fake_device.py",
    "tests/test_functions.py",
    "tests/test_columns.py",
    "tests/measures/test_declared_measures.py",
    "tests/measures/test_work.py",
    "tests/screen/test_answers.py",
)
BEST_UNIT = re.search(
    r"```python\n(import torch\n.*?)\n\n\nBestUnit\(\)", (ROOT / "docs/how-to/new-model.md").read_text(), re.DOTALL
)
NORMS = '''"""measure=norms: the mean norm of the states of each layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from thinkalike.config import AnalyzeConfig, MeasureConfig, setting
from thinkalike.data.corpus import read_corpus
from thinkalike.job import Instrument, Outcome, Work
from thinkalike.models.load import load_model
from thinkalike.screen import Table, number_column, show_table
from thinkalike.store import Result


@dataclass
class NormsConfig(MeasureConfig):
    """The settings of norms."""

    kind: str = "norms"
    rows: int = setting(8, least=1, most=10**6)  # of held-out text


class Norms(Instrument, kind="norms", reads=("model", "data", "measure")):
    """Measures the mean norm of the states of each layer of `model`."""

    of_models: ClassVar[str] = "each"
    smallest: ClassVar[Mapping[str, Any]] = {"measure.rows": 2}

    def run(self, config: AnalyzeConfig, work: Work) -> Outcome:
        model = load_model(config.model)
        corpus = read_corpus(config.data, model.tokenizer, model.context, bos=model.bos_each_row, fit_tokens=1)
        tokens = corpus.report.tokens[: config.measure.rows]  # type: ignore[attr-defined]
        norms = [float(model.head(tokens, layer).norm(dim=-1).mean()) for layer in range(model.n_layers)]
        table = pd.DataFrame({"model": model.name, "layer": range(model.n_layers), "norm": norms})
        return Outcome(table, {"mean_norm": float(table["norm"].mean())}, models=[model.describe()])

    def draw(self, result: Result, folder: Path) -> None:
        from thinkalike.figures.style import canvas, save

        with canvas(4.0, 3.0) as (figure, axes):
            axes.plot(result.table["layer"], result.table["norm"])
            axes.set(xlabel="layer", ylabel="mean norm")
            save(figure, folder, "norms")

    def show(self, result: Result) -> None:
        columns = [number_column("layer", result.table["layer"]), number_column("norm", result.table["norm"], ".2f")]
        show_table(Table("mean norm of the states", columns))
'''
TEST_OF_NORMS = '''"""measure=norms: a table with a norm of each layer, and its figure."""

import pytest


@pytest.mark.drawn
def test_norms_are_those_of_the_states(cli, tmp_path):
    done = cli("analyze.py", "measure=norms", "model=gelu-3l-mini", "measure.rows=2", f"store={tmp_path}/results")
    table = done.result.table
    assert list(table["layer"]) == [0, 1, 2]
    assert (table["norm"] > 0).all()
    assert [path.suffix for path in done.result.figures] == [".png", ".svg"]
    assert "mean norm of the states" in done.stdout
'''


MEAN_ANGLE = '''"""The angle of the mean rows of two layers."""

import torch
from torch import Tensor

from thinkalike.measures import LayerMeasure
from thinkalike.measures.contract import BAD_INPUT


class MeanAngle(LayerMeasure[Tensor]):
    """The angle of the mean rows of two layers of equal width, in degrees.

    >>> float(MeanAngle().of([[2.0, 1.0], [2.0, -1.0]], [[0.0, 3.0], [0.0, 5.0]]))
    90.0
    """

    formula = "angle of the mean rows, degrees"
    source = "this package"
    best = 0.0
    higher_is_closer = False
    value_range = (0.0, 180.0)
    scale = (0.0, 180.0)
    invariances = frozenset({"isotropic_scaling", "row_permutation", "row_permutation_of_one"})
    refuses = BAD_INPUT - {"constant"} | {"unequal_widths"}
    differentiable = 2
    fewest = 1

    def prepare(self, layer, name):
        rows = layer.double() / layer.detach().abs().max()
        if not rows.isfinite().all():
            raise ValueError(f"{name}: a value is not finite, or all are 0")
        return rows

    def compare(self, first, second):
        x, y = (torch.nn.functional.normalize(rows.mean(0), dim=0) for rows in (first, second))
        return torch.rad2deg(2 * torch.atan2((x - y).norm(), (x + y).norm()))
'''


@pytest.fixture
def copy(tmp_path) -> Path:
    """A copy of the repository, to which something is added."""
    folder = tmp_path / "thinkalike"
    folder.mkdir()
    left_out = shutil.ignore_patterns(".*", "*.egg-info", "__pycache__", "results", "site")
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=left_out)
    for file in ROOT.iterdir():
        if file.is_file() and not file.name.startswith("."):
            shutil.copy(file, folder)
    return folder


def run(folder: Path, *words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def add_row(folder: Path, row: str) -> None:
    """Add a row to the registry, behind the last measure."""
    registry = folder / "src" / "thinkalike" / "registry.py"
    text = registry.read_text()
    (last,) = re.findall(r'^ +_instrument\(.*"TrajectoryInstrument".*\),\n', text, re.MULTILINE)
    registry.write_text(text.replace(last, f"{last}        {row},\n"))


def touched(folder: Path) -> list[str]:
    """The files of a copy that are new or differ from those of the repository."""
    files = [file for name in COPIED for file in (folder / name).rglob("*") if file.is_file()]
    files = [file for file in files if not {"__pycache__", "results"} & {*file.parts} and file.suffix != ".pyc"]
    originals = {file: ROOT / file.relative_to(folder) for file in files}
    changed = [f for f, o in originals.items() if not o.is_file() or not filecmp.cmp(f, o, shallow=False)]
    return sorted(str(file.relative_to(folder)) for file in changed)


def run_tests(folder: Path, *words: str) -> str:
    return run(folder, "-m", "pytest", "-n0", "-p", "no:cacheprovider", "-m", "not gpu", *words)


@pytest.mark.timeout(1800)
def test_a_new_measure_touches_three_files(copy):
    assert BEST_UNIT, "the guide shows a measure"
    (copy / "src/thinkalike/measures/best_unit.py").write_text(
        f'"""The best match of each unit."""\n\n{BEST_UNIT[1]}\n'
    )
    add_row(copy, '_by_states("best_unit", "BestUnit", "best_unit", "best unit")')
    run(copy, "docs/make_reference.py")
    assert touched(copy) == [
        "docs/guide/measures.md",
        "src/thinkalike/measures/best_unit.py",
        "src/thinkalike/registry.py",
    ]
    assert "`best_unit`" in (copy / "docs/guide/measures.md").read_text()
    passed = run_tests(copy, *OF_MEASURES, "-k", "best_unit")
    assert int(re.findall(r"(\d+) passed", passed)[0]) > 12
    run_tests(copy, "tests/job/test_job.py", "-k", "kind_of_its_own or default_has_changed or registry")
    run_tests(copy, "tests/test_docs.py", "-k", "reference or setting or measure")
    run_tests(copy, "tests/test_house.py", "-k", "import or level")


@pytest.mark.timeout(1800)
def test_a_new_measure_without_null_of_equal_widths_touches_three_files(copy):
    (copy / "src/thinkalike/measures/mean_angle.py").write_text(MEAN_ANGLE)
    add_row(copy, '_by_states("mean_angle", "MeanAngle", "mean_angle", "angle of means")')
    run(copy, "docs/make_reference.py")
    assert touched(copy) == [
        "docs/guide/measures.md",
        "src/thinkalike/measures/mean_angle.py",
        "src/thinkalike/registry.py",
    ]
    # Its `prepare` waits for a GPU, as REASONS of tests/test_fake_device.py would say.
    passed = run_tests(copy, *OF_MEASURES, "-k", "mean_angle and not waits_in_a_loop")
    assert int(re.findall(r"(\d+) passed", passed)[0]) > 12


@pytest.mark.timeout(1800)
def test_a_measure_that_says_what_is_not_so_is_found(copy):
    """The control: the same measure, said to be invariant to rotations."""
    wrong = BEST_UNIT[1].replace('frozenset({"isotropic', 'frozenset({"orthogonal", "isotropic')
    assert wrong != BEST_UNIT[1]
    (copy / "src/thinkalike/measures/best_unit.py").write_text(wrong)
    add_row(copy, '_by_states("best_unit", "BestUnit", "best_unit", "best unit")')
    with pytest.raises(AssertionError, match="orthogonal moves the value"):
        run_tests(copy, "tests/measures/test_declared_measures.py", "-k", "best_unit and orthogonal")


@pytest.mark.timeout(1800)
def test_a_new_instrument_touches_six_files(copy):
    (copy / "src/thinkalike/instruments/norms.py").write_text(NORMS)
    (copy / "tests/test_norms.py").write_text(TEST_OF_NORMS)
    add_row(copy, '_instrument("norms", "Norms", "norms", "mean norms")')
    run(copy, "docs/make_reference.py")
    files = touched(copy)
    assert len(files) <= 6, files
    assert "docs/reference/settings.md" in files
    run_tests(copy, "tests/test_norms.py", "tests/test_registry.py")
    run_tests(copy, "tests/job/test_job.py", "-k", "kind_of_its_own or default_has_changed")
    run_tests(copy, "tests/test_docs.py", "-k", "reference or setting")
    assert not pages.needs_contrib(["measure=norms"])
