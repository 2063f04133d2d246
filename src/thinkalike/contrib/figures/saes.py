"""Sparse autoencoders with different starts: explained variance against FLOPs."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator

from thinkalike.figures.style import COLOURS, canvas, save, width_of, write_title

STARTS = {
    "random": "random",
    "least_squares": "random, fitted decoder",
    "transferred": "transferred",
}
SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def draw_sae_curves(curves: pd.DataFrame, folder: Path) -> None:
    """Draw the variance that sparse autoencoders explain against the FLOPs of their training.

    Lines are means over seeds, points single seeds, and colours the starts: how weights are
    initialised. At each number of training tokens, the learning rate is the one that is best
    there.

    Args:
        curves: A row for each start, learning rate, seed and number of training tokens. With a
            column `transfer`, there is a panel for each of its values.
        folder: Where the figure is written.
    """
    titled_tables = [("", curves)]
    if "transfer" in curves:
        by_transfer = curves.groupby("transfer", sort=False)
        titled_tables = [(str(name), rows) for name, rows in by_transfer]
    n_panels = len(titled_tables)
    width = width_of(n_panels)
    with canvas(width, 2.8, columns=n_panels, sharey=True, squeeze=False) as (figure, panels):
        for axes, (title, rows) in zip(panels[0], titled_tables, strict=True):
            _draw_starts(axes, rows)
            axes.set_title(title)
        panels[0][0].set_ylabel("explained variance [share]")
        handles, labels = panels[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
        note = f"lines: means over {curves['seed'].nunique()} seeds; points: seeds"
        write_title(figure, panels[0][0], "Sparse autoencoders by their start", note)
        save(figure, folder, "explained_variance")


def _draw_starts(axes: Axes, table: pd.DataFrame) -> None:
    """Draw explained variance against FLOPs for each start: a point per seed, a line of means.

    A start is how the weights of an autoencoder are initialised. At each number of tokens, only
    the best learning rate is drawn.

    Args:
        axes: Where it is drawn.
        table: A row for each start, learning rate, seed and number of training tokens.
    """
    for number, (start, rows) in enumerate(table.groupby("start", sort=False)):
        at_best_rate = _at_best_rate(rows)
        means = at_best_rate.groupby("tokens")[["flops", "explained_variance"]].mean()
        colour = COLOURS[number % len(COLOURS)]
        axes.scatter(
            at_best_rate["flops"],
            at_best_rate["explained_variance"],
            s=4,
            color=colour,
            alpha=0.4,
            linewidths=0,
        )
        axes.plot(
            means["flops"],
            means["explained_variance"],
            color=colour,
            label=STARTS.get(str(start), str(start)),
        )
    # A random start has taken 0 FLOPs before training, which a logarithmic axis cannot show. The
    # axis is linear from 0 to a power of ten that is below the first number after training.
    first_flops = max(table.loc[table["tokens"] > 0, "flops"].min(), 1.0)
    exponent = math.floor(math.log10(first_flops))
    axes.set_xscale("symlog", linthresh=10.0**exponent)
    highest = math.floor(math.log10(max(table["flops"].max(), first_flops)))
    powers = [10.0**power for power in range(exponent, highest + 1)]
    axes.xaxis.set_major_locator(FixedLocator([0, *powers]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set(xlabel=f"all FLOPs, logarithmic\nfrom {_power_of_ten(exponent)}, linear below")


def _power_of_ten(exponent: int) -> str:
    """Return a power of ten as it is written at an axis, such as "10⁹"."""
    return "10" + str(exponent).translate(SUPERSCRIPTS)


def _at_best_rate(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the best learning rate at each number of tokens.

    The best one explains most variance, in the mean over seeds.

    Args:
        rows: A row for each learning rate (column `rate`), seed and number of training tokens.
    """
    means = rows.groupby(["tokens", "rate"])["explained_variance"].mean()
    best_pairs = list(means.groupby("tokens").idxmax())  # of tokens and rate
    return rows.set_index(["tokens", "rate"]).loc[best_pairs].reset_index()
