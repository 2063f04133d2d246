"""Models beside several recorded subjects: scores by layer, with the noise ceiling."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from thinkalike.figures.layers import draw_band
from thinkalike.figures.style import (
    canvas,
    colour_of,
    save,
    ticks,
    width_of,
    write_title,
)


def draw_subject_scores(
    table: pd.DataFrame, ceilings: pd.DataFrame, folder: Path, comparator: str, n_subjects: int
) -> None:
    """Draw how well each layer of each model explains recordings, a panel for each recorded layer.

    A recorded layer is a region of a brain, for example. Scores are means over subjects (recorded
    participants). A grey band is the noise ceiling, which no model is expected to exceed by much.

    Args:
        table: A row for each recorded layer and layer of a model, with its score and interval.
        ceilings: The ends `lower` and `upper` of the noise ceiling of each recorded layer.
        folder: Where the figure is written.
        comparator: How distances were compared, such as "spearman"; a label of the axis.
        n_subjects: Over how many subjects the intervals are.
    """
    recorded_layers = list(ceilings["recorded"])
    n_panels = len(recorded_layers)
    width = width_of(n_panels)
    with canvas(width, 2.8, columns=n_panels, squeeze=False, sharey=True) as (figure, panels):
        for axes, name in zip(panels[0], recorded_layers, strict=True):
            ceiling = ceilings[ceilings["recorded"] == name].iloc[0]
            axes.axhspan(
                ceiling["lower"], ceiling["upper"], color="0.85", label="noise ceiling", zorder=0
            )
            rows_of_panel = table[table["recorded"] == name]
            for number, (model, rows) in enumerate(rows_of_panel.groupby("model", sort=False)):
                draw_band(axes, rows, "value", str(model), color=colour_of(number), marker="o")
                ticks(axes.xaxis, list(rows["layer"]))
            axes.axhline(0, color="0.6", linewidth=0.8, zorder=0)
            axes.set(title=str(name), xlabel="layer")
        panels[0, 0].set_ylabel(f"{comparator.replace('_', ' ')}, mean over participants")
        handles, labels = panels[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
        note = f"coloured bands: 95 % intervals over {n_subjects} participants"
        write_title(figure, panels[0, 0], "Layers of models beside recorded participants", note)
        save(figure, folder, "subjects")
