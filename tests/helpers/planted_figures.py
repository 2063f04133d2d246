"""Tables as large as those of real models, and what a reviewer looks for in the figure of one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from figure_checks import complaints
from thinkalike import figures

NOWHERE = Path("figures")
FEATURES = ["Word length", "Gender", "Number", "PoS", "Tense", "Person", "Word position", "Question"]
RANDOM = np.random.default_rng(0)


def matrix(source: str, target: str, rows: int, columns: int, low: float = 0.0) -> pd.DataFrame:
    """Return a value for each layer pair; that of a model with itself is symmetric with 1 on its diagonal."""
    values = RANDOM.uniform(low, 1, (rows, columns))
    if source == target:
        values = (values + values.T) / 2
        np.fill_diagonal(values, 1)
    index = pd.MultiIndex.from_product([range(rows), range(columns)], names=["source_layer", "target_layer"])
    table = pd.DataFrame({"value": values.ravel()}, index=index).reset_index()
    return table.assign(source=source, target=target)


def blocks(models: dict[str, int], low: float = 0.0) -> pd.DataFrame:
    """Return the similarity of all layers of all models, which is symmetric."""
    layers = [(name, layer) for name, count in models.items() for layer in range(count)]
    values = matrix("", "", len(layers), len(layers), low)["value"].to_numpy().reshape(len(layers), -1)
    rows = []
    for (source, source_layer), row in zip(layers, values, strict=True):
        for (target, target_layer), value in zip(layers, row, strict=True):
            rows.append((source, target, source_layer, target_layer, value))
    return pd.DataFrame(rows, columns=["source", "target", "source_layer", "target_layer", "value"])


def with_ends(table: pd.DataFrame, *names: str) -> pd.DataFrame:
    """Return a table with the ends of the intervals of columns."""
    columns = {}
    for name in names:
        low, high = ("low", "high") if name in ("value", "mean", "importance", "score", "accuracy") else (None, None)
        columns[low or f"{name}_low"] = table[name] - 0.05
        columns[high or f"{name}_high"] = table[name] + 0.05
    return table.assign(**columns)


STEPS = np.array([0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600])


def similarity_to_last() -> pd.DataFrame:
    rows = [(step, layer) for layer in range(6) for step in STEPS]
    table = pd.DataFrame(rows, columns=["step", "layer"])
    return with_ends(table.assign(similarity_to_last=np.sqrt(table["step"] / 600)), "similarity_to_last")


def check_figure(draw: Callable[[], None], folder: str | None) -> None:
    """Draw a figure, save it into a folder if there is one, and look at it as a reviewer does."""
    with figures.shown_figures() as shown:
        draw()
    drawn = [figure for figure, _ in shown.values()] or [plt.gcf()]
    for figure in drawn:
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            figure.savefig(Path(folder) / f"{draw.__name__}.png", dpi=200)
        assert complaints(figure) == []
