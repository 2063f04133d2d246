"""Figures of results; nothing here computes a measure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.colors import LogNorm, Normalize

STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",  # text stays text, to be set in a paper's own font
    "svg.hashsalt": "thinkalike",
}
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")  # told apart by colour-blind readers, too


def stitches(table: pd.DataFrame, folder: Path) -> None:
    """The figure of a stitching job: a map where every source layer was stitched to every target layer, else a line."""
    cells = table.pivot(index="source_layer", columns="target_layer", values="penalty")
    if len(cells.columns) > 1 and len(cells) > 1 and cells.notna().all(axis=None):
        penalty_map(cells, f"{table['source'].iloc[0]} into {table['target'].iloc[0]}", folder)
    else:
        penalties(table, folder)


def penalty_map(cells: pd.DataFrame, title: str, folder: Path) -> None:
    """Penalties of all layer pairs; the colours are logarithmic, because a few pairs cost ten times the others."""
    with plt.rc_context(STYLE):
        size = 0.45 * max(cells.shape) + 1.2
        figure, axes = plt.subplots(figsize=(size + 0.8, size), layout="constrained")
        values = cells.to_numpy()
        least = max(values.min(), values.max() / 100, 1e-3)
        image = heatmap(axes, cells, LogNorm(least, max(values.max(), 2 * least), clip=True), "viridis_r")
        write_values(axes, values, image)
        axes.set_xlabel("layer of the target")
        axes.set_ylabel("layer of the source")
        axes.set_title(title, fontsize=9)
        figure.colorbar(image, ax=axes, label="penalty [nats per token]", format="%g")
        _save(figure, folder, "penalty")


def asymmetry(table: pd.DataFrame, folder: Path) -> None:
    """What one direction costs more than the other, against layer, with its interval."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(4.2, 2.6), layout="constrained")
        _line(axes, table, "asymmetry", ("low", "high"), "", COLOURS[0], "o-")
        axes.axhline(0, color="0.6", linewidth=0.8, zorder=0)
        axes.set_xticks(range(len(table)), table["layer"].astype(str))
        axes.set_xlabel("layer of the stitch")
        axes.set_ylabel("asymmetry [nats per token]")
        first = table.iloc[0]
        axes.set_title(f"{first.source} into {first.target}, minus the reverse", fontsize=9)
        _save(figure, folder, "asymmetry")


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
        _save(figure, folder, "cka")


def heatmap(axes: Any, cells: pd.DataFrame, scale: Any, colours: Any) -> Any:
    """A matrix with layer 0 at the bottom left; rows are the source's layers, columns the target's."""
    image = axes.imshow(cells.to_numpy(), origin="lower", norm=scale, cmap=colours)
    for axis, layers in ((axes.xaxis, cells.columns), (axes.yaxis, cells.index)):
        places = range(0, len(layers), max(1, round(len(layers) / 8)))
        axis.set_ticks(places, ["embed" if int(layers[place]) < 0 else str(layers[place]) for place in places])
    axes.spines[:].set_visible(False)
    return image


def write_values(axes: Any, values: np.ndarray, image: Any) -> None:
    """Each cell's number, in whichever of black and white can be read on its colour."""
    for (row, column), value in np.ndenumerate(values):
        red, green, blue, _ = image.cmap(image.norm(value))
        colour = "black" if 0.3 * red + 0.6 * green + 0.1 * blue > 0.5 else "white"
        axes.text(column, row, f"{value:.2f}", ha="center", va="center", color=colour, fontsize=7)


def penalties(table: pd.DataFrame, folder: Path) -> None:
    """Penalty against layer with its interval, and that of φ = identity where there is one."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(4.2, 2.8), layout="constrained")
        first = table.iloc[0]
        _line(axes, table, "penalty", ("penalty_low", "penalty_high"), f"φ {first.stitch}, trained", COLOURS[0], "o-")
        if "identity_penalty" in table and first.stitch != "identity":
            ends = ("identity_penalty_low", "identity_penalty_high")
            _line(axes, table, "identity_penalty", ends, "φ = identity", COLOURS[1], "s--")
        axes.axhline(0, color="0.6", linewidth=0.8, zorder=0)
        axes.set_xticks(range(len(table)), [_site(row) for row in table.itertuples()])
        axes.set_xlabel("layer of the stitch")
        axes.set_ylabel("penalty [nats per token]")
        axes.set_title(f"{first.source} into {first.target}", fontsize=9)
        figure.legend(loc="outside lower center", frameon=False, ncols=2)
        _save(figure, folder, "penalty")


def _line(
    axes: Any, table: pd.DataFrame, column: str, ends: tuple[str, str], label: str, colour: str, style: str
) -> None:
    values = table[column]
    errors = [(values - table[ends[0]]).clip(lower=0), (table[ends[1]] - values).clip(lower=0)]
    axes.errorbar(range(len(table)), values, yerr=errors, fmt=style, color=colour, label=label, capsize=3, markersize=4)


def _site(row: Any) -> str:
    return str(row.source_layer) if row.source_layer == row.target_layer else f"{row.source_layer}→{row.target_layer}"


def _save(figure: Any, folder: Path, name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"{name}.png", dpi=200)
    figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)


def directions(table: pd.DataFrame, folder: Path) -> None:
    """Penalty against layer with its interval, one panel per group of models, one line per direction."""
    groups = list(dict.fromkeys(table["group"]))
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(
            1, len(groups), figsize=(3.1 * len(groups), 3.3), sharey=True, squeeze=False, layout="constrained"
        )
        for axes, group in zip(panels[0], groups, strict=True):
            inside = table[table["group"] == group]
            for number, ((source, target), rows) in enumerate(inside.groupby(["source", "target"], sort=True)):
                label = f"{_short(source)} → {_short(target)}"
                colour, style = COLOURS[number % len(COLOURS)], ("o-", "s--")[number // len(COLOURS)]
                _line(axes, rows.reset_index(), "penalty", ("penalty_low", "penalty_high"), label, colour, style)
            axes.axhline(0, color="0.6", linewidth=0.8, zorder=0)
            axes.set_xticks(range(inside["source_layer"].nunique()))
            axes.set_xlabel("layer of the stitch")
            axes.set_title(group, fontsize=9)
            axes.legend(frameon=False, fontsize=7)
        panels[0][0].set_ylabel("penalty [nats per token]")
        _save(figure, folder, "penalties")


def learning_curves(curves: dict[tuple[str, str], Any], folder: Path, window: int = 10) -> None:
    """Loss against step, a running mean of `window` steps: a row per group of models, a panel per layer.

    Args:
        curves: (group, direction) to losses (steps, layers), in nats per token.
    """
    groups = list(dict.fromkeys(group for group, _ in curves))
    layers = max(curve.shape[1] for curve in curves.values())
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(
            len(groups),
            layers,
            figsize=(2.3 * layers, 2.3 * len(groups)),
            sharey=True,
            squeeze=False,
            layout="constrained",
        )
        for row, group in zip(panels, groups, strict=True):
            inside = {label: curve for (name, label), curve in curves.items() if name == group}
            for layer, axes in enumerate(row):
                if layer >= next(iter(inside.values())).shape[1]:
                    axes.set_axis_off()
                    continue
                for number, (label, curve) in enumerate(sorted(inside.items())):
                    smooth = pd.Series(curve[:, layer]).rolling(window, min_periods=1).mean()
                    axes.plot(smooth, color=COLOURS[number % len(COLOURS)], label=_short(label), linewidth=1)
                axes.set_title(f"{group}, layer {layer}", fontsize=8)
                axes.set_xlabel("step")
            row[0].set_ylabel("loss [nats per token]")
            row[0].legend(frameon=False, fontsize=6)
        _save(figure, folder, "learning_curves")


def _short(name: str) -> str:
    return name.replace("-mini", "")
