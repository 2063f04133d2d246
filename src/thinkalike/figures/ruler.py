"""The figure of a ruler: what two models share at each layer pair, and known changes of each model as lines across."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from thinkalike.figures.style import COLOURS, canvas, line, save


def ruler(table: pd.DataFrame, rungs: pd.DataFrame, folder: Path) -> None:
    """Draw a panel for each model: the layer pairs' values with intervals, and its rungs."""
    models = list(dict.fromkeys([table["source"].iloc[0], table["target"].iloc[0]]))
    pairs = [f"{a} → {b}" for a, b in zip(table["source_layer"], table["target_layer"], strict=True)]
    with canvas(3.6 * len(models) + 0.6, 3.4, 1, len(models), squeeze=False, sharey=True) as (figure, panels):
        for axes, model, side in zip(panels[0], models, ("source", "target"), strict=False):
            own = rungs[rungs["model"] == model]
            for name in dict.fromkeys(own.sort_values("bits", ascending=False)["rung"]):
                values = own[own["rung"] == name].set_index("layer")["value"].loc[table[f"{side}_layer"]].to_numpy()
                is_bits = name != "untrained"
                axes.plot(values, color="0.6" if is_bits else "0.2", linestyle="-" if is_bits else ":", linewidth=1)
                axes.annotate(name, (len(values) - 1, values[-1]), xytext=(4, 0), textcoords="offset points", va="center", fontsize=7)  # noqa: E501
            line(axes, table, "value", ("low", "high"), "both models", COLOURS[0], "o-")
            axes.set(title=f"beside copies of {model}", xlabel="layers", ylim=(min(-0.02, table["low"].min()), 1.02))
            axes.set_xticks(range(len(pairs)), pairs)
        panels[0][0].set_ylabel("share of what varies beyond word and place")
        panels[0][0].legend()
        save(figure, folder, "ruler")
