"""The table of probes: a row per layer pair, feature, split and condition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from thinkalike.data import Stimuli
from thinkalike.evaluation import LayerPair
from thinkalike.instruments.transfer.carrying import CARRIED, NATIVE, SHARE_OF
from thinkalike.instruments.transfer.features import Task
from thinkalike.measures import Accuracy, Estimate
from thinkalike.models import FrozenModel

SHARES = ("share", "share_above_chance")
BLANK = [f"{share}{end}" for share in SHARES for end in ("", "_low", "_high")]  # where there is nothing to share


def named(source: FrozenModel, target: FrozenModel, pair: LayerPair) -> dict[str, Any]:
    """Return the columns that say what a row is of."""
    return {"source": source.name, "target": target.name, "source_layer": pair[0], "target_layer": pair[1]}


def rows_of(task: Task, stimuli: Stimuli, judged: Mapping[str, Accuracy]) -> Iterator[dict[str, Any]]:
    """Yield the columns of each condition: its accuracy, and what share it is of the native one's."""
    words = {stimuli.words[row] for row in task.rows.tolist()}
    sizes = {"stimuli": len(task.rows), "sentences": len(task.sentences.unique()), "words": len(words)}
    for condition, accuracy in judged.items():
        row: dict[str, Any] = {"feature": task.feature, "split": task.split, "condition": condition}
        row |= _ends("accuracy", accuracy.interval(), ("low", "high")) | {"chance": accuracy.chance}
        whole = judged.get(SHARE_OF.get(condition, ""))
        for name, above in zip(SHARES, (0.0, accuracy.chance), strict=True):
            row |= _ends(name, accuracy.share_of(whole, above) if whole else None, (f"{name}_low", f"{name}_high"))
        yield {**row, "levels": len(task.levels), **sizes}


def means_of(table: pd.DataFrame) -> dict[str, float]:
    """Return means over features and layer pairs, on held-out sentences where there are any."""
    first = table[table["split"] == table["split"].iloc[0]]
    native, carried = (first[first["condition"] == condition] for condition in (NATIVE, CARRIED))
    found = {"mean_native_accuracy": native["accuracy"].mean(), "mean_carried_accuracy": carried["accuracy"].mean()}
    shares = carried["share_above_chance"].dropna()
    return {name: float(value) for name, value in found.items()} | (
        {"mean_share_above_chance": float(shares.mean())} if len(shares) else {}
    )


def _ends(name: str, estimate: Estimate | None, ends: Sequence[str]) -> dict[str, float]:
    values = map(float, estimate) if estimate else (float("nan"),) * 3
    return dict(zip((name, *ends), values, strict=True))
