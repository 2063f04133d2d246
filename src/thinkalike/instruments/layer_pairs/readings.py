"""What values of layer pairs are in bits of both models, by the ruler of `thinkalike.instruments.ruler`: `ruler=bits`.

Both models and their changed copies read the same rows of text, `READ` batches at most, at five layer pairs at most.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from thinkalike.config import AnalyzeConfig
from thinkalike.errors import listed
from thinkalike.instruments.ruler import (
    DEPTHS,
    changed,
    copies_in_words,
    measured,
    rungs_table,
    shares_more,
    show_readings,
    table_of,
)  # fmt: skip
from thinkalike.job import Work
from thinkalike.measures.estimates import PARTS
from thinkalike.memory import hand_back
from thinkalike.models.families import layers_at_depths, pairs_of_layers
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.load import can_be_rounded
from thinkalike.processes import counted
from thinkalike.screen import show_text
from thinkalike.states.batches import ModelRuns, StateBatch, StateBatches, sampled, text_batches
from thinkalike.store import Result

log = logging.getLogger(__name__)

NO_MORE = "no more than an untrained twin's"
AtPairs = list[Tensor]  # the states of a batch at each layer pair, of one side


def pairs_read(layers: Any, source: int, target: int) -> list[tuple[int, int]]:
    """Return the layer pairs that have a reading: some of `layers=`, or of equal relative depth."""
    if layers in ("same", "all"):
        return layers_at_depths(DEPTHS, source, target)
    pairs = pairs_of_layers(layers, source, target)
    return [pairs[place] for place, _ in layers_at_depths(DEPTHS, len(pairs), len(pairs))]


def readings(
    kind: Any, config: AnalyzeConfig, models: Sequence[FrozenModel], level: str, work: Work
) -> tuple[dict[str, pd.DataFrame], dict[str, float]]:
    """Return a table of some layer pairs with their readings and one of both models' rungs, and numbers of the text."""
    if unfit := [model.name for model in models if not can_be_rounded(model)]:
        log.warning("warning: there are no readings in bits, as %s cannot be rounded", listed(unfit))
        return {}, {}
    pairs, measure = pairs_read(config.layers, *(model.n_layers for model in models)), sampled(config.measure, level)
    layers = [[pair[side] for pair in pairs] for side in (0, 1)]
    both = list(zip(models, layers, strict=True))
    at = [sorted({layer for other, own in both if other is model for layer in own}) for model in models]
    labels: list[dict[str, Any]] = []
    states: tuple[list[AtPairs], list[AtPairs]] = ([], [])
    hand_back(models[0].device)
    with work.phase("readings"):
        total = measure.batches + getattr(measure, "fit_batches", 0)
        batches = text_batches(models, at, config.data, replace(measure, batches=total), ModelRuns(), is_spread=True)
        for batch in _each(batches):
            tokens = {} if measure.given == "none" else {"groups": batch.tokens}
            labels.append({"mask": batch.mask, "number": batch.number, "documents": batch.groups, **tokens})
            for own, found, sites, wanted in zip(states, batch.states, at, layers, strict=True):
                own.append([found[sites.index(layer)] for layer in wanted])
        given = "none" if measure.given == "none" else "token"  # positions are out of the states already
        alike = partial(_alike, partial(kind.metric, replace(measure, given=given), 1, 1), labels)
        value = alike(*states)

    def rung(side: int, name: str) -> Float[Tensor, "l 2 r"]:
        sites = list(dict.fromkeys(layers[side]))
        copies = _each(batches.of(changed(models[side], name), sites))  # type: ignore[misc]
        found = alike(states[side], ([batch.states[0][sites.index(e)] for e in layers[side]] for batch in copies))
        return pad(found, (0, value.shape[-1] - found.shape[-1]), value=math.nan)

    sides: dict[int, Any] = {
        number: (model, partial(rung, number)) for number, model in enumerate(dict.fromkeys(models))
    }
    rungs, names = measured(value, sides, work), [model.name for model in models]
    owners = torch.cat([each["documents"].flatten() for each in labels])
    tables = {"readings": table_of(names, pairs, value, rungs), "rungs": rungs_table(names, layers, rungs)}
    return tables, {"rows_read": float(len(owners)), "documents_read": float(len(owners.unique()))}


def _each(batches: StateBatches) -> Iterator[StateBatch]:
    """Yield the batches of all pools."""
    for number in counted(range(batches.total), "pool"):
        yield from batches.pool(number)


def _alike(
    new: Any, labels: Sequence[Mapping[str, Any]], mine: Sequence[AtPairs], theirs: Iterable[AtPairs]
) -> Float[Tensor, "l 2 r"]:
    """Return a measure at each layer pair, of all documents and without each part, the same both ways.

    States of a copy that cannot be compared, as they are all alike, share nothing.
    """
    metrics: list[Any] = [new() for _ in mine[0]]
    for label, *both in zip(labels, mine, theirs, strict=True):
        for number, (metric, x, y) in enumerate(zip(metrics, *both, strict=True)):
            place = {name: each.to(x.device) if isinstance(each, Tensor) else each for name, each in label.items()}
            try:
                metric and metric.update([x], [y.to(x.device)], **place)
            except ValueError:
                metrics[number] = None
    shares = [each.replicates()[:, 0, 0].cpu() if each else torch.zeros(1 + PARTS).double() for each in metrics]
    most = max(map(len, shares))
    return torch.stack([pad(each, (0, most - len(each)), value=math.nan) for each in shares])[:, None].expand(-1, 2, -1)


def show_read(result: Result, label: str) -> None:
    """Print the readings of a measure, and in words that of the middle layer pair."""
    table = result.tables["readings"]
    rows, documents = (result.scalars[f"{name}_read"] for name in ("rows", "documents"))
    show_readings(table, f"{label} on {rows:,.0f} rows of {documents:.0f} documents, as bits of a copy", label)
    row = table.iloc[len(table) // 2]
    at, twin = f"{row['source_layer']} → {row['target_layer']}", max(row["source_untrained"], row["target_untrained"])
    beside = f"as {copies_in_words(row, 'has')}; an untrained twin has" if shares_more(row) else NO_MORE
    show_text(f"At layers {at}, {label} is {row['value']:.2f}, {beside} {twin:.2f}.")
