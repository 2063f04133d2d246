"""Figures of CKA."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.colors import Normalize

from thinkalike.figures.style import STYLE, heatmap, save, write_values


def cka(table: pd.DataFrame, folder: Path, across: int = 3) -> None:
    """CKA of every pair of models in the table, `across` in a row, all on one scale; below 0 it is blue."""
    pairs = list(table[["source", "target"]].drop_duplicates().itertuples(index=False, name=None))
    rows, columns = -(-len(pairs) // across), min(len(pairs), across)
    colours = plt.get_cmap("magma").with_extremes(under="#4a90d9")
    with plt.rc_context(STYLE):
        size = (2.3 * columns + 0.9, 2.5 * rows)
        figure, panels = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
        for axes in panels.flat[len(pairs) :]:
            axes.set_axis_off()
        for axes, (source, target) in zip(panels.flat, pairs, strict=False):
            inside = table[(table["source"] == source) & (table["target"] == target)]
            cells = inside.pivot(index="source_layer", columns="target_layer", values="value")
            image = heatmap(axes, cells, Normalize(0, 1), colours)
            if cells.size <= 36:
                write_values(axes, cells.to_numpy(), image)
            axes.set_xlabel(f"{target}, layer")
            axes.set_ylabel(f"{source}, layer")
        extend = "min" if (table["value"] < 0).any() else "neither"
        figure.colorbar(image, ax=panels, label="CKA", extend=extend, shrink=0.8, aspect=30)
        save(figure, folder, "cka")
