"""What a trajectory says on one screen."""

from __future__ import annotations

import pandas as pd

from thinkalike.screen import Table, number_column, number_of_documents, show_table, show_text
from thinkalike.store import Result

ROWS = 14  # checkpoints of the table, at most


def show(result: Result) -> None:
    """Print the loss and likeness by step, and the onset of each feature."""
    losses, table, scalars = result.tables["losses"], result.table, result.scalars
    places = sorted({*range(0, len(losses), -(-len(losses) // ROWS)), len(losses) - 1})
    columns = [number_column("step", losses["step"][places]), number_column("loss", losses["loss"][places], ".3f")]
    alike = table.pivot(index="step", columns="layer", values="to_last").iloc[places]
    for layer in sorted({alike.columns[place] for place in (0, len(alike.columns) // 2, -1)}):
        columns.append(number_column(f"layer {layer}", alike[layer], ".3f"))
    speed = table.groupby("step")["speed"].mean().iloc[places]
    columns.append(number_column("speed", ["" if pd.isna(each) else f"{each:.2f}" for each in speed]))
    last = result.provenance["models"][-1]["name"]
    show_table(Table(f"loss, CKA with {last} by layer, and radians of change per doubling of the step", columns))
    show_text(_onsets(result))
    show_text(
        f"Nine tenths of the way: loss by step {scalars.get('loss_settles', float('nan')):.0f}, likeness to the end by "
        f"step {scalars.get('likeness_settles', float('nan')):.0f}; {number_of_documents(scalars)}."
    )


def _onsets(result: Result) -> str:
    """Return the earliest onset over layers of each feature, in their order."""
    onsets = result.tables["onsets"]
    found = onsets.dropna(subset="onset").sort_values("onset", kind="stable").groupby("feature", sort=False).first()
    named = [f"{feature} {row['onset']:.0f} (layer {row['layer']:.0f})" for feature, row in found.iterrows()]
    never = [name for name in dict.fromkeys(onsets["feature"]) if name not in found.index]
    said = f"Features are there for good from step: {', '.join(named) or 'none'}."
    return said + (f" Not at the end: {', '.join(never)}." if never else "")
