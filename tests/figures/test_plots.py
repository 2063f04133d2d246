"""Metrics and results draw themselves, and say in one line what they are."""

import shutil
import subprocess
import sys

import matplotlib.figure
import numpy as np
import pytest
import torch

from conftest import ROOT, untrained
from thinkalike import CKA, open_result, plot
from thinkalike.errors import ResultError

pytestmark = pytest.mark.drawn


@pytest.fixture
def metric():
    found = CKA(2, 3, permutations=3)
    for _ in range(3):
        states = torch.randn(30, 4)
        found.update([states, states**2], [states, states.tanh(), torch.randn(30, 4)])
    return found


@pytest.fixture(autouse=True)
def _closed():
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


def test_a_metric_draws_its_matrix(metric):
    figure, axes = plot(metric.compute())
    assert isinstance(figure, matplotlib.figure.Figure)
    (image,) = axes.get_images()
    assert np.array_equal(image.get_array(), metric.compute().value)
    assert figure.axes[1].get_ylabel() == "CKA"
    place = matplotlib.figure.Figure().subplots()
    assert plot(metric.compute(), ax=place) == (place.figure, place)
    assert np.array_equal(place.get_images()[0].get_array(), image.get_array())


@pytest.mark.slow
def test_drawing_leaves_the_backend_of_a_notebook_as_it_is():
    """In a process of its own, whose backend another one has chosen."""
    code = """
import matplotlib
matplotlib.use("svg")
import torch, thinkalike
from thinkalike.figures import canvas, save
from pathlib import Path
import tempfile
with canvas(1, 1) as (figure, axes):
    save(figure, Path(tempfile.mkdtemp()), "a")
metric = thinkalike.CKA(1, 1)
metric.update([torch.randn(9, 4)], [torch.randn(9, 4)])
thinkalike.plot(metric.compute())
assert matplotlib.get_backend().lower() == "svg", matplotlib.get_backend()
import matplotlib.pyplot as plt
assert len(plt.get_fignums()) == 1, "the one that is shown, and not the one that is saved"
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == 0, run.stderr


@pytest.mark.ci_slow
def test_a_result_draws_the_figures_of_its_kind(cli, small_stitching):
    result = cli(
        "train.py", "layers=all", "stitch=least_squares", "stitch.both=true", *untrained(small_stitching)
    ).result
    before = {path: path.read_bytes() for path in result.folder.rglob("*") if path.is_file()}
    figure, axes = plot(result)
    assert np.array_equal(axes.get_images()[0].get_array().shape, (4, 4))
    assert "into" in figure.get_suptitle()
    assert plot(result, "penalty_back")[0] is not figure
    assert {path: path.read_bytes() for path in result.folder.rglob("*") if path.is_file()} == before
    with pytest.raises(ResultError, match="stitching has no figure penalti; did you mean 'penalty'"):
        plot(result, "penalti")

    assert repr(result).startswith("Result(stitching of gelu-3l-mini")
    assert f": {result.headlines[0]}; {result.folder})" in repr(result)
    record = (result.folder / "result.json").read_text()
    (result.folder / "result.json").write_text(record.replace('"stitching"', '"brown2023-figure1"', 1))
    other = type(result)(result.folder)
    with pytest.raises(ResultError, match="brown2023-figure1 is drawn from several results; its figures are in"):
        plot(other)
    (result.folder / "result.json").write_text(record.replace('"stitching"', '"loss"', 1))
    with pytest.raises(ResultError, match='measure="loss" draws no figure'):
        plot(type(result)(result.folder))
    shutil.rmtree(result.folder)
    assert repr(type(result)(result.folder)) == f"Result(cannot be read, StoreError; {result.folder})"
    with pytest.raises(Exception, match="holds no finished result"):
        open_result(result.folder)
