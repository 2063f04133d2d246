"""Stitches in several directions: penalties by layer, and learning curves (Brown et al. 2023)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float
from matplotlib.axes import Axes

from thinkalike.figures.style import (
    COLOURS,
    NESTED_NOTE,
    PAGE,
    canvas,
    leave_out,
    line,
    nested_look,
    save,
    width_of,
    write_title,
)

LINE_STYLES = ("-", "--")
SMOOTHED_STEPS = 10  # of a running mean
LOSSES = {
    "cross_entropy": "next-token loss\n[nats per token]",
    "kl": "KL from the target's\npredictions [nats per token]",
}


def draw_directions(table: pd.DataFrame, folder: Path, units: str) -> None:
    """Draw the penalty of stitches against the layer, a line for each source and target.

    A stitch maps the states of a source to those of a target. Its penalty is the target's loss
    when it reads the mapped states, minus its own loss.

    Args:
        table: A row for each source, target and layer, with the columns penalty, penalty_low and
            penalty_high. There is a panel for each value of the column `group`, with at most
            eight pairs of source and target.
        folder: Where the figure is written.
        units: What the intervals are over, such as "58 documents".
    """
    groups = list(dict.fromkeys(table["group"]))
    n_panels = len(groups)
    width = width_of(n_panels)
    with canvas(width, 3.2, columns=n_panels, sharey=True, squeeze=False) as (figure, panels):
        for axes, group in zip(panels[0], groups, strict=True):
            rows_of_group = table[table["group"] == group]
            directions = rows_of_group.groupby(["source", "target"], sort=True)
            for number, ((source, target), rows) in enumerate(directions):
                # When all colours are used, they are used again with the next line style.
                line(
                    axes,
                    rows.reset_index(),
                    column="penalty",
                    ends=("penalty_low", "penalty_high"),
                    label=f"{source} → {target}",
                    colour=COLOURS[number % len(COLOURS)],
                    style=LINE_STYLES[number // len(COLOURS)],
                    **nested_look(number, len(directions)),
                )
            axes.axhline(0, color="0.6", linewidth=0.8, zorder=0)
            n_layers = rows_of_group["source_layer"].nunique()
            axes.set_xticks(range(n_layers))
            axes.set(xlabel="layer of the stitch", title=group)
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.25))
        panels[0][0].set_ylabel("penalty [nats per token]")
        note = f"bars: 95 % intervals over {units}; {NESTED_NOTE}"
        write_title(figure, panels[0][0], "Stitches in all directions", note)
        save(figure, folder, "penalties")


def draw_learning_curves(
    curves: Mapping[tuple[str, str], Float[np.ndarray, "steps layers"]], folder: Path, loss: str
) -> None:
    """Draw the smoothed training losses of stitches: a row of panels per group, a panel per layer.

    Args:
        curves: The losses of the stitches of all layers at each step, by (group, label). The label
            names source and target. Stitches of one group have the same number of layers.
        folder: Where the figure is written.
        loss: What training minimises, as the setting `stitch.loss` has it.
    """
    groups = list(dict.fromkeys(group for group, _ in curves))
    most_layers = max(curve.shape[1] for curve in curves.values())
    n_rows = len(groups)  # of panels
    n_legend_rows = len(curves) / 2  # below the panels, in two columns
    height = 1.8 * n_rows + 0.15 * n_legend_rows + 0.4
    handle_of_label = {}
    with canvas(PAGE, height, n_rows, most_layers, sharey=True, squeeze=False) as (figure, panels):
        for row, group in zip(panels, groups, strict=True):
            curves_of_group = {
                label: curve
                for (group_of_curve, label), curve in curves.items()
                if group_of_curve == group
            }
            n_layers = next(iter(curves_of_group.values())).shape[1]
            leave_out(row[n_layers:])  # panels of layers that these models do not have
            for layer, axes in enumerate(row[:n_layers]):
                _draw_losses(axes, curves_of_group, layer)
                axes.set_title(f"{group}, layer {layer}")
                axes.set_xlabel("step")
            row[0].set_ylabel(LOSSES.get(loss, loss))
            for handle, label in zip(*row[0].get_legend_handles_labels(), strict=True):
                handle_of_label[f"{group}: {label}"] = handle
        labels = list(handle_of_label)
        figure.legend(handle_of_label.values(), labels, loc="outside lower center", ncols=2)
        title = "Training of stitches: the loss on the text of each step"
        note = f"lines: means over {SMOOTHED_STEPS} steps; {NESTED_NOTE}"
        write_title(figure, panels[0][0], title, note)
        save(figure, folder, "learning_curves")


def _draw_losses(
    axes: Axes, curves: Mapping[str, Float[np.ndarray, "steps layers"]], layer: int
) -> None:
    """Draw the smoothed losses of one layer over training steps, a line for each label.

    A loss is averaged with those of the steps before it, `SMOOTHED_STEPS` in all.

    Args:
        axes: Where it is drawn.
        curves: The losses of all layers at each step, by label.
        layer: The column of the losses that is drawn.
    """
    for number, (label, curve) in enumerate(sorted(curves.items())):
        losses = pd.Series(curve[:, layer])
        smooth = losses.rolling(SMOOTHED_STEPS, min_periods=1).mean()
        width = nested_look(number, len(curves))["linewidth"]
        axes.plot(smooth, color=COLOURS[number % len(COLOURS)], label=label, linewidth=width)
