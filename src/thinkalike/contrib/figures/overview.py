"""Figures of the atlas (how far measures agree), of courts (how they rank known likeness), and of several subjects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.colors import Normalize

from thinkalike.figures.layers import band
from thinkalike.figures.style import canvas, colour_of, save, ticks, write_values


def agreement(table: pd.DataFrame, measures: Sequence[str], folder: Path) -> None:
    """Draw a table of measure, other and rho as a matrix, the measure that agrees most with the others first."""
    both = pd.concat([table, table.rename(columns={"measure": "other", "other": "measure"})])
    cells = both.pivot(index="measure", columns="other", values="rho").loc[list(measures), list(measures)]
    cells = cells.mask(np.eye(len(measures), dtype=bool), 1.0)
    order = cells.mean().sort_values(ascending=False, kind="stable").index
    cells = cells.loc[order, order]
    size = 0.42 * len(order)
    with canvas(size + 2.6, size + 1.3) as (figure, axes):
        image = axes.imshow(cells.to_numpy(), norm=Normalize(-1, 1), cmap="RdBu_r")
        write_values(axes, cells.to_numpy(), image)
        axes.set_xticks(range(len(order)), order, rotation=90)
        axes.set_yticks(range(len(order)), order)
        axes.spines[:].set_visible(False)
        figure.colorbar(image, ax=axes, label="Spearman's ρ over layer pairs", shrink=0.8, aspect=30)
        save(figure, folder, "agreement")


def ranks(table: pd.DataFrame, measures: Sequence[str], folder: Path) -> None:
    """Draw the layer pairs of every pair of models, a column, by every measure, a row: bright is close.

    The table has the rank of each layer pair by measure, from 0, the farthest, to 1.
    """
    pairs = list(table.groupby(["source", "target"], sort=False))
    with canvas(0.75 * len(pairs) + 1.8, 0.72 * len(measures) + 1.3, len(measures), len(pairs), squeeze=False) as drawn:
        figure, panels = drawn
        for row, measure in zip(panels, measures, strict=True):
            for axes, (_, inside) in zip(row, pairs, strict=True):
                cells = inside.pivot(index="source_layer", columns="target_layer", values=measure)
                image = axes.imshow(cells.to_numpy(), origin="lower", norm=Normalize(0, 1), cmap="magma", aspect="auto")
                axes.set(xticks=[], yticks=[])
                axes.spines[:].set_visible(False)
            row[0].set_ylabel(measure, rotation=0, ha="right", va="center")
        for axes, ((source, target), _) in zip(panels[-1], pairs, strict=True):
            axes.set_xlabel(f"{source}\n× {target}", rotation=90, fontsize=7)
        figure.colorbar(image, ax=panels, label="rank among the layer pairs of two models", shrink=0.5, aspect=30)
        save(figure, folder, "ranks")


COLUMNS = 4


def court(table: pd.DataFrame, judges: Sequence[str], folder: Path) -> None:
    """Draw a panel per judge: a row of points for each kind of source, a point for each source in each court."""
    kinds = list(dict.fromkeys(table["kind"]))[::-1]
    rows = -(-len(judges) // COLUMNS)
    with canvas(3.0 * COLUMNS, 2.4 * rows, rows, COLUMNS, squeeze=False, sharey=True) as (figure, panels):
        for axes, judge in zip(panels.flat, judges, strict=False):
            for place, kind in enumerate(kinds):
                values = table[table["kind"] == kind][judge].to_numpy()
                jitter = np.linspace(-0.25, 0.25, len(values)) if len(values) > 1 else np.zeros(1)
                colour = colour_of(len(kinds) - 1 - place)
                axes.plot(values, place + jitter, ".", color=colour, markersize=4, alpha=0.7)
            axes.set_title(judge)
        panels[0][0].set_yticks(range(len(kinds)), kinds)
        for axes in panels.flat[len(judges) :]:
            axes.set_axis_off()
        save(figure, folder, "court")


def doses(curves: Mapping[str, pd.DataFrame], folder: Path) -> None:
    """Draw each judge's value against the share of the target's own variance: own_share, value."""
    rows = -(-len(curves) // COLUMNS)
    with canvas(3.0 * COLUMNS, 2.2 * rows, rows, COLUMNS, squeeze=False, sharex=True) as (figure, panels):
        for axes, (judge, curve) in zip(panels.flat, curves.items(), strict=False):
            axes.plot(curve["own_share"], curve["value"], "o-", color=colour_of(0), markersize=3)
            axes.set_title(judge)
        for axes in panels[-1]:
            axes.set_xlabel("share of the target's own variance")
        for axes in panels.flat[len(curves) :]:
            axes.set_axis_off()
        save(figure, folder, "doses")


def subject_scores(table: pd.DataFrame, ceilings: pd.DataFrame, folder: Path, comparator: str) -> None:
    """Draw the mean score of each layer of each model with its interval, a panel per recorded layer.

    A grey band is the noise ceiling, from `lower` to `upper` of `ceilings`.
    """
    recorded = list(ceilings["recorded"])
    with canvas(3.4 * len(recorded) + 1.2, 3.4, 1, len(recorded), squeeze=False, sharey=True) as (figure, panels):
        for axes, name in zip(panels[0], recorded, strict=True):
            ends = ceilings[ceilings["recorded"] == name].iloc[0]
            axes.axhspan(ends["lower"], ends["upper"], color="0.85", label="noise ceiling", zorder=0)
            inside = table[table["recorded"] == name]
            for number, (model, rows) in enumerate(inside.groupby("model", sort=False)):
                band(axes, rows, "value", str(model), color=colour_of(number), marker="o")
                ticks(axes.xaxis, list(rows["layer"]))
            axes.axhline(0, color="0.6", linewidth=0.8, zorder=0)
            axes.set(title=str(name), xlabel="layer")
        panels[0, 0].set_ylabel(f"{comparator.replace('_', ' ')}, mean over subjects")
        figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside right upper", fontsize=8)
        save(figure, folder, "subjects")
