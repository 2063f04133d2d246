"""What a job of probes prints."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

import pandas as pd

from thinkalike.instruments.transfer.carrying import CARRIED, IDENTITY, NATIVE, RANDOM, REFITTED, UNTRAINED
from thinkalike.measures import span
from thinkalike.screen import Column, Table, number_column, show_table, show_text, text_column
from thinkalike.store import Result

SHOWN = {
    "native": NATIVE,
    "carried": CARRIED,
    "refit": REFITTED,
    "random": RANDOM,
    "same": IDENTITY,
    "untr.": UNTRAINED,
}
LEGEND = (
    "native: fitted in the target; carried: in the source, read through ψ, with its share of native above chance; "
    "refit: fitted on ψ's states; random: through maps of ψ's spectrum; same: through no map; untr.: native in an "
    "untrained target"
)


def show_probes(result: Result) -> None:
    """Print the accuracies of each feature, by layer pair and split."""
    stimuli, first = result.provenance["stimuli"], result.table["split"].iloc[0]
    show_text(f"probes of {stimuli['count']} stimuli of {Path(stimuli['source']).name}; balanced accuracy")
    maps: dict[Any, Any] = result.tables["maps"].set_index(["source_layer", "target_layer"]).to_dict("index")
    for (layer, depth, split), rows in result.table.groupby(["source_layer", "target_layer", "split"], sort=False):
        names = rows.iloc[0]
        title = f"{names['source']} layer {layer} into {names['target']} layer {depth}, held-out {split}s"
        if split == first:
            unexplained = maps[layer, depth]
            title += f"; unexplained of held-out text: φ {unexplained['phi']:.3f}, ψ {unexplained['psi']:.3f}"
        show_table(_table(title, rows))
    show_text(LEGEND)


def _table(title: str, rows: pd.DataFrame) -> Table:
    by_condition = {label: rows[rows["condition"] == name] for label, name in SHOWN.items()}
    carried = by_condition["carried"]
    columns = [text_column("feature", carried["feature"]), number_column("chance", carried["chance"], ".3f")]
    for label, own in by_condition.items():
        if len(own):
            columns.append(number_column(label, own["accuracy"], ".3f"))
        if label == "carried":
            columns.append(Column("share", [_share(row) for row in own.to_dict("records")], follows=True))
    return Table(title, columns)


def _share(row: Mapping[Any, Any]) -> str:
    share, low, high = (row[f"share_above_chance{end}"] for end in ("", "_low", "_high"))
    return span(share, low, high, ".2f") if isfinite(share) else ""
