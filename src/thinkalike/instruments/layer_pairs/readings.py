"""What values of layer pairs are in bits of both models, by the ruler of `thinkalike.instruments.ruler`: `ruler=bits`.

Both models and their changed copies read the same rows of text, `READ` batches at most, at five layer pairs at most.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from thinkalike.config import AnalyzeConfig, DataConfig
from thinkalike.errors import listed
from thinkalike.instruments.ruler import (
    DEPTHS,
    MIXING,
    Comparison,
    States,
    changed,
    copies_in_words,
    local_mixing,
    measured,
    most,
    rungs_table,
    shares_more,
    show_readings,
    table_of,
)  # fmt: skip
from thinkalike.job import Work
from thinkalike.measures.estimates import without_parts
from thinkalike.measures.folds import JACKKNIFE_PARTS
from thinkalike.memory import free_cached_memory
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.layer_choice import layers_at_depths, pairs_of_layers
from thinkalike.models.rounding import can_be_rounded
from thinkalike.processes import counted
from thinkalike.screen import show_text
from thinkalike.states.batches import ModelRuns, StateBatch, StateBatches, sampled, text_batches
from thinkalike.states.mixing import CONTROLS, TokenMixing
from thinkalike.states.source import StateSource
from thinkalike.store import Result

log = logging.getLogger(__name__)


def pairs_read(layers: Any, source: int, target: int) -> list[tuple[int, int]]:
    """Return the layer pairs that have a reading: some of `layers=`, or of equal relative depth."""
    if layers in ("same", "all"):
        return layers_at_depths(DEPTHS, source, target)
    pairs = pairs_of_layers(layers, source, target)
    return [pairs[place] for place, _ in layers_at_depths(DEPTHS, len(pairs), len(pairs))]


def readings(
    kind: Any, config: AnalyzeConfig, models: Sequence[StateSource], level: str, work: Work
) -> tuple[dict[str, pd.DataFrame], dict[str, float]]:
    """Return a table of some layer pairs with their readings and one of both models' rungs, and numbers of the text."""
    fit = [model for model in models if isinstance(model, FrozenModel) and can_be_rounded(model)]
    if unfit := [model.name for model in models if model not in fit]:
        log.warning("warning: there are no readings in bits, as %s cannot be rounded", listed(unfit))
        return {}, {}
    pairs = pairs_read(config.layers, *(model.n_layers for model in models))
    measure = sampled(config.measure, level)
    free_cached_memory(models[0].device)
    with work.phase("readings"):
        compared = BatchComparison(kind.metric, config.data, measure, models, pairs)
    value, rungs = measured(compared, models, work)
    names = [model.name for model in models]
    layers = [[pair[side] for pair in pairs] for side in (0, 1)]
    documents = torch.cat([batch.documents for batch in compared.batches])
    tables = {"readings": table_of(names, pairs, value, rungs), "rungs": rungs_table(names, layers, rungs)}
    return tables, {"rows_read": float(len(documents)), "documents_read": float(len(documents.unique()))}


class Labels(NamedTuple):
    """What is known of the rows of a batch."""

    number: int
    documents: Int[Tensor, " n"]
    tokens: Int[Tensor, " n"] | None  # of a measure given the token
    mask: Bool[Tensor, "b t"] | None  # of a measure of whole sequences


class BatchComparison(Comparison):
    """Compares two models, and the points of their rulers, by a measure of layer pairs on batches of text.

    States of a point are those of all batches, one after the other, at each layer pair.
    """

    def __init__(
        self,
        metric: Any,
        data: DataConfig,
        measure: Any,
        models: Sequence[StateSource],
        pairs: Sequence[tuple[int, int]],
    ):
        self.models = list(models)
        self.layers = [[pair[side] for pair in pairs] for side in (0, 1)]
        self.measure = measure
        # Positions are out of the states of text_batches already.
        given = "none" if measure.given == "none" else "token"
        self._new_metric = partial(metric, replace(measure, given=given), 1, 1)
        sites = [self._sites(side) for side in (0, 1)]
        self._text = text_batches(models, sites, data, measure, ModelRuns(), is_spread=True)
        self.batches: list[Labels] = []
        batches_by_side: tuple[list[list[Tensor]], list[list[Tensor]]] = ([], [])
        for batch in _each(self._text):
            tokens = None if measure.given == "none" else batch.tokens
            self.batches.append(Labels(batch.number, batch.groups, tokens, batch.mask))
            for side in (0, 1):
                batches_by_side[side].append(self._at_layers(side, batch.states[side], sites[side]))
        self.states = [_joined(batches) for batches in batches_by_side]
        self.is_massive = torch.zeros(len(self.states[0][0]), dtype=torch.bool)
        is_of_sequences = self.states[0][0].dim() > 2
        self.keeps_massive = measure.massive == "keep" or is_of_sequences

    def _sites(self, side: int) -> list[int]:
        """Return the layers of a side at which its model is read, also where it is both sides."""
        same = [other for other in (0, 1) if self.models[other] is self.models[side]]
        return sorted({layer for other in same for layer in self.layers[other]})

    def _at_layers(self, side: int, states: list[Tensor], sites: Sequence[int]) -> list[Tensor]:
        return [states[sites.index(layer)] for layer in self.layers[side]]

    def read(self, side: int, point: str) -> States:
        model = self.models[side]
        if point == MIXING:
            return _joined([batch.states[0] for batch in self._read_as(TokenMixing(model), CONTROLS)])
        sites = sorted(set(self.layers[side]))
        batches = self._read_as(changed(model, point), sites)
        return _joined([self._at_layers(side, batch.states[0], sites) for batch in batches])

    def _read_as(self, model: Any, sites: Sequence[Any]) -> list[StateBatch]:
        assert self._text.of is not None
        return list(_each(self._text.of(model, sites)))

    def prepare(self) -> None:
        """Nothing: a metric is given the rows that are compared when it is asked for."""

    def value(self) -> Float[Tensor, "l 2 r"]:
        return self._alike(self.states[0], self.states[1])

    def shared(self, side: int, point: str, states: States) -> Float[Tensor, "l 2 r"]:
        own = self.states[side]
        if point == MIXING:
            return most([self._alike(own, [control] * len(own)) for control in states])
        return self._alike(own, states)

    def _alike(self, ours: States, theirs: States) -> Float[Tensor, "l 2 r"]:
        """Return the measure at each layer pair, of all documents and without each part, the same both ways.

        States of a copy that cannot be compared, as they are all alike, share nothing.
        """
        values = []
        for x, y in zip(ours, theirs, strict=True):
            metric = self._new_metric()
            try:
                self._update(metric, x, y)
                values.append(metric.replicates()[:, 0, 0].cpu())
            except ValueError:
                values.append(torch.zeros(1, dtype=torch.float64))
        padded = [pad(shares, (0, self._replicates - len(shares)), value=math.nan) for shares in values]
        return torch.stack(padded)[:, None].expand(-1, 2, -1)

    @cached_property
    def _replicates(self) -> int:
        """How many values a layer pair has: that of all documents, and those without each part where there are enough.

        States of a copy that cannot be compared have one value alone, and NaN in the place of the others.
        """
        documents = torch.cat([batch.documents.flatten() for batch in self.batches])
        parts = torch.zeros(JACKKNIFE_PARTS, dtype=torch.float64)
        return 1 + len(without_parts(parts, documents))

    def _update(self, metric: Any, x: Tensor, y: Tensor) -> None:
        """Give a metric the batches of two layers, without the rows that are left out."""
        start = 0
        for batch in self.batches:
            rows = slice(start, start + len(batch.documents))
            start = rows.stop
            kept = (~self.is_massive[rows]).nonzero()[:, 0]
            if not len(kept):
                continue
            labels: dict[str, Any] = {"number": batch.number, "documents": batch.documents[kept]}
            if batch.tokens is not None:
                labels["groups"] = batch.tokens[kept]
            if batch.mask is not None:
                labels["mask"] = batch.mask[kept]
            on_device = {
                name: label.to(x.device) if isinstance(label, Tensor) else label for name, label in labels.items()
            }
            places = kept.to(x.device)
            metric.update([x[rows][places]], [y[rows].to(x.device)[places]], **on_device)


def _joined(batches: Sequence[Sequence[Tensor]]) -> States:
    """Return the states of all batches together, by layer."""
    return [torch.cat(list(layer)) for layer in zip(*batches, strict=True)]


def _each(batches: StateBatches) -> Iterator[StateBatch]:
    """Yield the batches of all pools."""
    for number in counted(range(batches.total), "pool"):
        yield from batches.pool(number)


def show_read(result: Result, label: str) -> None:
    """Print the readings of a measure, and in words that of the middle layer pair."""
    table = result.tables["readings"]
    rows, documents = (result.scalars[f"{name}_read"] for name in ("rows", "documents"))
    show_readings(table, f"{label} on {rows:,.0f} rows of {documents:.0f} documents, as bits of a copy", label)
    row = table.iloc[len(table) // 2]
    layers = f"{row['source_layer']} → {row['target_layer']}"
    mixing = float(local_mixing(row))
    if shares_more(row):
        beside = f"as {copies_in_words(row, 'has')}; a network that only mixes neighbouring tokens has {mixing:.2f}"
    else:
        beside = f"no more than that of a network that only mixes neighbouring tokens, {mixing:.2f}"
    show_text(f"At layers {layers}, {label} is {row['value']:.2f}, {beside}.")
