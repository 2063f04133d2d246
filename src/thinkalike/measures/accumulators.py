"""Measures of all layer pairs of two models, gathered batch by batch, with intervals over documents and a null.

Every measure of layer pairs is gathered by an `Accumulator`: each batch leaves a few small tensors, its record, for
each pair of models, and records may come in any order, from several processes, and go on from a `state_dict`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from thinkalike.arguments import seeded, takes_arrays
from thinkalike.measures.bootstrapping import effective_number
from thinkalike.measures.chance import (
    AT_HOME,
    LayerPairEstimate,
    balanced_rows,
    chance_of,
    permuted_rows,
    permuted_within,
    signed_similarities,
)
from thinkalike.measures.contract import Blocks, LayerMeasure, Pair, common_dtype, joined
from thinkalike.measures.estimates import EVERY, FEWEST_EQUAL, FEWEST_GROUPS, PARTS, jackknife
from thinkalike.measures.rows import RowGroups, labels_of_rows, places_of, rows_of
from thinkalike.progress import counted

States = Sequence[Float[Tensor, " ..."]]
Record = dict[str, Tensor]
APART = 2**32  # between the numbers of the rows of two batches, where each row is a document
NO_ROOM = 1e-6  # between chance and the best value, in its unit: then the value says nothing


class Batch(NamedTuple):
    """The states of several models for the same tokens; see `Accumulator.update`."""

    states: Sequence[States]
    mask: Shaped[Tensor, " ..."] | None = None
    number: int = 0
    groups: Int[Tensor, " ..."] | None = None
    documents: Int[Tensor, " ..."] | None = None


class Accumulator:
    """Gathers a measure batch by batch; the order of the batches does not matter.

    Args:
        source_layers, target_layers: How many layers a batch brings.
        given: "token" compares rows within groups of one token; "none" compares all rows.
    """

    def __init__(self, source_layers: int, target_layers: int, *, given: str = "none"):
        self.source_layers, self.target_layers, self.given = source_layers, target_layers, given
        self.records: dict[int, Record] = {}  # by the number of the batch

    @property
    def update_called(self) -> bool:
        """Whether there is a batch."""
        return any(self.records.values())

    @takes_arrays
    def update(
        self,
        source: States,
        target: States,
        mask: Shaped[Tensor, " ..."] | None = None,
        number: int | None = None,
        groups: Int[Tensor, " ..."] | None = None,
        documents: Int[Tensor, " ..."] | None = None,
    ) -> None:
        """Add one batch: the same tokens, or rows, in both models.

        Args:
            source, target: Per layer (b, t, d), or (n, d); widths and dtypes may differ.
            mask: The tokens that count.
            number: The number of this batch in the whole run; by default the next one. A batch takes the place of one
                that has its number. Processes that share a run need it.
            groups: The token of each state, (b, t) or (n,), for given="token" only.
            documents: The number of the document of each state, or of what else rows depend on each other in, the same
                in all batches; by default each row is one. Intervals leave out those of one `number % 10` at a time,
                see `numbered_by_part`, and nulls move them as blocks.

        Raises:
            ValueError: The number of layers is not the announced one, groups are missing or not wanted, or none has
                enough rows, the mask, groups or documents do not fit, or the measure refuses a layer. Nothing is added.
        """
        number = max(self.records, default=-1) + 1 if number is None else number
        self.update_pairs([self], [(0, 1)], Batch([source, target], mask, number, groups, documents))

    @staticmethod
    @torch.no_grad()
    def update_pairs(metrics: Sequence[Accumulator], sides: Sequence[Pair], batch: Batch) -> None:
        """Add one batch of several models to a metric for each pair of them, with the same bits and errors as `update`.

        Args:
            metrics: One for each pair; they compare in the same way.
            sides: The numbers of the source and of the target of each metric; both may be the same.
        """
        states = batch.states
        for metric, (source, target) in zip(metrics, sides, strict=True):
            announced, counts = (metric.source_layers, metric.target_layers), (len(states[source]), len(states[target]))
            if counts != announced:
                raise ValueError(f"{announced[0]} and {announced[1]} layers were announced, but {counts} came")
        if (batch.groups is None) != (metrics[0].given == "none"):
            given = metrics[0].given
            raise ValueError(f"groups, the token of each state, come with given=token alone, and this is {given}")
        for metric, record in zip(metrics, metrics[0]._compared(metrics, sides, batch), strict=True):
            metric.records[batch.number] = {name: each.detach().cpu() for name, each in record.items()}

    @abstractmethod
    def _compared(self, metrics: Sequence[Any], sides: Sequence[Pair], batch: Batch) -> list[Record]:
        """Return the record of a batch for each pair of models."""

    @abstractmethod
    def compute(self) -> LayerPairEstimate:
        """Return the value over all batches so far, with intervals; a ValueError of no batch."""

    def merge_state(self, other: Accumulator) -> None:
        """Add the batches of another accumulator of the same sort; a ValueError if both have a batch of one number."""
        if both := sorted(self.records.keys() & other.records.keys()):
            raise ValueError(f"both have a batch {both[0]}: number the batches of one run, update(..., number=)")
        self.records |= other.records

    def state_dict(self) -> dict[str, Any]:
        """Return the batches so far, to go on from."""
        return {str(number): dict(record) for number, record in self.records.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the batches of a `state_dict`."""
        self.records = {int(number): dict(record) for number, record in state.items()}

    def _columns(self) -> Record:
        """Return the records of all batches in the order of their numbers, by name."""
        return columns_of([self.records[number] for number in sorted(self.records) if self.records[number]])


def columns_of(records: Sequence[Record]) -> Record:
    """Return what batches recorded, stacked by name; of documents, that of each row."""
    if not records:
        raise ValueError("there is no mean of no batches: call update first")
    names = dict.fromkeys(name for record in records for name in record)
    columns = {name: [record[name] for record in records if name in record] for name in names}
    documents = torch.cat(columns.pop("documents"))
    return {name: torch.stack(each) for name, each in columns.items()} | {"documents": documents}


class Rows(NamedTuple):
    """The rows of a batch, those of one part of the documents side by side."""

    layers: Sequence[Tensor]  # different ones
    names: Sequence[str]
    documents: Int[Tensor, " n"]
    tokens: Int[Tensor, " n"] | None

    def of(self, chosen: Shaped[Tensor, " m"]) -> Rows:
        """Return some of the rows, by number or by a mask."""
        tokens = None if self.tokens is None else self.tokens[chosen]
        return Rows([layer[chosen] for layer in self.layers], self.names, self.documents[chosen], tokens)


class LayerMeans(Accumulator):
    """The mean over batches of any measure of layer pairs, with intervals over documents.

    Each batch is compared with all its rows, and without those of each tenth of the documents. Means over batches of
    all, and of each that leaves out the same documents, give the jackknife. Rows of one document depend on each other,
    which biases most measures; where the number of rows matters, too, every fourth batch is also compared without
    tenths of its rows drawn at random, so that the interval leaves out this bias, see `jackknife`.

    The null is that of the first batch, of which all layer pairs see the same permutations, so that the closest of them
    has a null as well. Given the token it is that of the measure's `similarities`.

    Args:
        source_layers, target_layers, given: See `Accumulator`; the measure must have a form within groups for "token".
        measure: The measure; of a ratio, such as CKA, means over batches come before the ratio.
        permutations: How often to compare also with the target's documents permuted, see `Chance`. A p-value is at
            least 1 / (permutations + 1). 0: no null.
        after_ratio: Whether to take the mean of each batch's ratio instead.
    """

    def __init__(
        self,
        source_layers: int,
        target_layers: int,
        measure: LayerMeasure,
        permutations: int = 0,
        *,
        given: str = "none",
        after_ratio: bool = False,
    ):
        super().__init__(source_layers, target_layers, given=given)
        self.measure, self.permutations, self.after_ratio = measure, permutations, after_ratio

    def _compared(self, metrics: Sequence[Any], sides: Sequence[Pair], batch: Batch) -> list[Record]:
        rows, places = self._rows(sides, batch)
        models = list(dict.fromkeys(places.values()))  # a model that is the same as another is compared once
        pairs = [(models.index(places[a]), models.index(places[b])) for a, b in sides]
        whole = list(dict.fromkeys([*((model, model) for pair in pairs for model in pair), *pairs]))
        measure, within = self._within(rows)
        layers = measure.prepared(rows.layers, rows.names)
        with torch.autocast(rows.layers[0].device.type, enabled=False):
            values = self._without_parts(measure, layers, rows, Blocks(models, whole))
            is_first = any(metric._is_first(batch.number) for metric in metrics)
            compared = Blocks(models, list(dict.fromkeys(pairs)))
            nulls = self._nulls(measure, within, layers, rows, compared, values) if is_first else {}
            apart = self._dependence(rows, Blocks(models, whole), values) if batch.number % EVERY == 0 else {}
        shared, records = {"documents": rows.documents}, []
        if within:
            shared["used"] = torch.tensor([len(within.order), within.rows], dtype=torch.float64)
        for (a, b), pair in zip(sides, pairs, strict=True):
            joint = [joined({key: each[part] for key, each in values.items()}, pair) for part in range(1 + PARTS)]
            record = {"values": torch.stack(joint).double(), **nulls.get(pair, {}), **shared}
            if apart:
                record["dependence"] = joined(apart, pair).double()
            if measure.leverage:
                own = [measure.leverage(layers[place]).double() for place in (*places[a], *places[b])]
                record["leverages"] = torch.stack(own)
            records.append(record)
        return records

    def _is_first(self, number: int) -> bool:
        """Return whether a batch is to have a null: no batch before it has one."""
        known = [other for other, record in self.records.items() if "null" in record]
        return self.permutations > 0 and number <= min(known, default=number)

    def _rows(self, sides: Sequence[Pair], batch: Batch) -> tuple[Rows, dict[int, tuple[int, ...]]]:
        """Return the rows of the different layers, and where the layers of each model stand among them."""
        called = {model: f"model {model}" for side in sides for model in side}
        if len(sides) == 1:
            called |= dict(zip(reversed(sides[0]), ("target", "source"), strict=True))
        different: dict[int, tuple[Tensor, str]] = {}
        for model, name in called.items():
            for index, layer in enumerate(batch.states[model]):
                different.setdefault(id(layer), (layer, f"{name} layer {index}"))
        numbers = {key: place for place, key in enumerate(different)}
        places = {model: tuple(numbers[id(layer)] for layer in batch.states[model]) for model in called}
        layers, names = zip(*different.values(), strict=True)
        dtype, kept = common_dtype(layers), None if batch.mask is None else places_of(batch.mask)
        rows = [rows_of(layer.to(dtype), self.measure.flatten, batch.mask, kept) for layer in layers]
        documents, tokens = self._documents(batch, layers[0]), None
        if batch.groups is not None:
            tokens = labels_of_rows(batch.groups, batch.mask, layers[0], "tokens")
        for name, row in zip(names, rows, strict=True):
            if len(row) != len(documents):
                raise ValueError(
                    f"all layers need the same rows, but {names[0]} has {len(rows[0])} and {name} has {len(row)}"
                )
        return Rows(rows, names, documents, tokens).of((documents % PARTS).argsort(stable=True)), places

    def _documents(self, batch: Batch, first: Tensor) -> Int[Tensor, " n"]:
        """Return the document of each row; a sequence that is one row is of that of its first token."""
        documents = batch.documents
        if documents is None:
            documents = torch.arange(first[..., 0].numel(), device=first.device).view(first.shape[:-1])
            documents = documents + batch.number * APART
        if self.measure.flatten == "token" or first.ndim == 2:
            return labels_of_rows(documents, batch.mask, first, "documents")
        return documents.to(first.device).flatten(1)[:, 0]

    def _within(self, rows: Rows) -> tuple[LayerMeasure, RowGroups | None]:
        """Return the measure, given the token that within groups of rows of one token, and these groups."""
        if rows.tokens is None:
            return self.measure, None
        assert self.measure.given is not None
        within = RowGroups.of(rows.tokens, self.measure.fewest)
        return self.measure.given(within), within

    def _without_parts(
        self, measure: LayerMeasure, layers: Sequence[Any], rows: Rows, blocks: Blocks
    ) -> dict[Pair, Float[Tensor, "_ _ _"]]:
        """Return the values of all rows, and of all but those of each part; NaN where what is left has no value."""
        parts = rows.documents % PARTS
        if measure.compare_without_parts:
            return measure.compare_without_parts(layers, blocks, torch.bincount(parts, minlength=PARTS).tolist())
        whole = measure.compare(layers, blocks)
        found = self._without_each(parts, rows, blocks, whole)
        return {pair: torch.stack([whole[pair], *(each[pair] for each in found)]) for pair in whole}

    def _without_each(
        self, parts: Int[Tensor, " n"], rows: Rows, blocks: Blocks, whole: Mapping[Pair, Tensor]
    ) -> list[Mapping[Pair, Tensor]]:
        """Return the values without the rows of each part."""
        rests = (parts != part for part in range(PARTS))
        return [
            whole if each.all() else self._compared_again(rows.of(each), blocks) or _nothing(whole) for each in rests
        ]

    def _dependence(
        self, rows: Rows, blocks: Blocks, values: Mapping[Pair, Float[Tensor, "_ _ _"]]
    ) -> dict[Pair, Float[Tensor, "_ _"]]:
        """Return by how much the mean value without parts of the documents is above that without parts of the rows."""
        if self.measure.finish:
            return {}
        parts = (rows.documents % PARTS).cpu()
        parts = parts[torch.randperm(len(parts), generator=seeded(0))].to(rows.documents.device)
        found = self._without_each(parts, rows, blocks, {pair: each[0] for pair, each in values.items()})
        return {
            pair: (each[1:] - torch.stack([other[pair] for other in found])).mean(0) for pair, each in values.items()
        }

    def _compared_again(self, rows: Rows, blocks: Blocks) -> dict[Pair, Float[Tensor, "_ _"]]:
        """Return the values of some of the rows, none if they cannot be compared."""
        try:
            measure, _ = self._within(rows)
            return measure.compare(measure.prepared(rows.layers, rows.names), blocks)
        except ValueError:
            return {}

    # ---- what chance gives

    def _nulls(
        self,
        measure: LayerMeasure,
        within: RowGroups | None,
        layers: Sequence[Any],
        rows: Rows,
        blocks: Blocks,
        values: Mapping[Pair, Float[Tensor, "_ _ _"]],
    ) -> dict[Pair, Record]:
        """Return of each pair its mean value by chance, (l, m), and the value that is tested with its permutations."""
        owners = rows.documents.cpu() if within is None else rows.documents[within.order].cpu()
        groups = within or RowGroups.whole(len(owners), owners.device)
        orders = torch.stack([permuted_within(owners, groups, seed) for seed in range(self.permutations)])
        home = (orders == torch.arange(len(owners))).double().mean(1)
        away, documents = home <= home.min().clamp(min=AT_HOME), len(owners.unique())
        permuted = self._permuted(measure, layers, blocks, orders, {pair: each[0] for pair, each in values.items()})
        null = {pair: each[1:][away].mean(0) for pair, each in permuted.items()}
        if not measure.finish and min(float((measure.best - each).abs().min()) for each in null.values()) < NO_ROOM:
            alike = f"by chance alone two layers are as close as can be, at {measure.best:g}"
            raise ValueError(f"{alike}: give more rows, as by measure.tokens_per_batch")
        chosen, tested = balanced_rows(owners), permuted
        if within:
            assert measure.similarities is not None
            tested = self._signed([measure.similarities(layer) for layer in layers], within.blocks(owners), blocks)
            documents *= effective_number(owners.unique(return_counts=True)[1]) >= FEWEST_EQUAL
        elif documents >= FEWEST_GROUPS and chosen.numel() < len(owners):
            documents = len(chosen) if chosen.numel() >= measure.fewest else 0
            tested = self._balanced(rows.of(chosen.flatten()), blocks, list(values)) if documents else permuted
        moved = torch.tensor(documents)
        return {pair: {"null": null[pair], "tested": tested[pair], "moved": moved} for pair in blocks.pairs}

    def _signed(
        self, similarities: Sequence[Sequence[Tensor]], owners: Iterable[Tensor], blocks: Blocks
    ) -> dict[Pair, Float[Tensor, "_ _ _"]]:
        documents = list(owners)
        sides = {(a, b): (blocks.models[a], blocks.models[b]) for a, b in blocks.pairs}
        return {
            pair: signed_similarities(similarities, each, documents, self.permutations) for pair, each in sides.items()
        }

    def _balanced(self, rows: Rows, blocks: Blocks, whole: Sequence[Pair]) -> dict[Pair, Float[Tensor, "_ _ _"]]:
        """Return the values of as many rows of each document, and with permuted documents."""
        layers = self.measure.prepared(rows.layers, rows.names)
        owners = rows.documents.cpu()
        orders = torch.stack([permuted_rows(owners, seed) for seed in range(self.permutations)])
        values = self.measure.compare(layers, blocks._replace(pairs=whole))
        return self._permuted(self.measure, layers, blocks, orders, values)

    def _permuted(
        self,
        measure: LayerMeasure,
        layers: Sequence[Any],
        blocks: Blocks,
        orders: Int[Tensor, "p n"],
        values: Mapping[Pair, Float[Tensor, "_ _"]],
    ) -> dict[Pair, Float[Tensor, "_ _ _"]]:
        """Return the final value of each pair of models, and those with the rows of the second permuted."""
        models, pairs = blocks
        sources, targets = (list(dict.fromkeys(side)) for side in zip(*pairs, strict=True))
        front, back = (sorted({place for model in side for place in models[model]}) for side in (sources, targets))
        own = [tuple(front.index(place) for place in models[model]) for model in sources]
        own += [tuple(len(front) + back.index(place) for place in models[model]) for model in targets]
        apart = Blocks(own, [(sources.index(a), len(sources) + targets.index(b)) for a, b in pairs])
        found: dict[Pair, list[Tensor]] = {pair: [values[pair].double()] for pair in pairs}
        for order in counted(orders.to(values[pairs[0]].device), "permutation"):
            moved = [measure.moved(layers[place], order) for place in back]
            across = measure.compare([*(layers[place] for place in front), *moved], apart)
            for pair, place in zip(pairs, apart.pairs, strict=True):
                found[pair].append(across[place].double())
        if not measure.finish:
            return {pair: torch.stack(each) for pair, each in found.items()}
        finished = {}
        for pair, each in found.items():
            depth = len(each[0])
            joint = joined(values, pair).double().repeat(len(each), 1, 1)
            joint[:, :depth, depth:] = torch.stack(each)
            finished[pair] = measure.finish(joint)[:, :depth, depth:]
        return finished

    # ---- all batches

    def compute(self) -> LayerPairEstimate:
        """Return the mean over all batches so far, with intervals and the null; a ValueError of no batch."""
        return self.result(self._columns())

    def result(self, columns: Record) -> LayerPairEstimate:
        """Return the mean over batches, with intervals and the null, from their records by name."""
        values, depth = self._finished(columns), self.source_layers
        parts = jackknife(values[0], values[1:], self._reference(values, columns), is_drawn="dependence" in columns)
        across, first, second = parts[:depth, depth:], parts[:depth, :depth], parts[depth:, depth:]
        further: dict[str, Any] = {}
        if "null" in columns:
            null, tested, moved = (columns[name][0] for name in ("null", "tested", "moved"))
            sign = 1 if self.measure.higher_is_closer else -1
            further["chance"] = chance_of(across, null, tested, int(moved), self.measure.best, sign)
        if "used" in columns:
            kept, rows = columns["used"].sum(0)
            further["rows_used"] = float(kept / rows)
        counts = len(columns["values"]), len(columns["documents"].unique())
        return LayerPairEstimate(across.value, across.low, across.high, first, second, *counts, **further)

    def _finished(self, columns: Record) -> Float[Tensor, "a k k"]:
        """Return the values over all batches, of all rows, and without each part of enough documents, if known."""
        values, (documents, counts) = columns["values"], columns["documents"].unique(return_counts=True)
        count = len(documents) if self.measure.finish else effective_number(counts)
        enough = count >= (FEWEST_GROUPS if self.measure.finish else FEWEST_EQUAL)
        kept = [0, *(1 + documents % PARTS).unique().tolist()] if enough else [0]
        finish, values = self.measure.finish or torch.Tensor.clone, values[:, kept]
        found = finish(values).mean(0) if self.after_ratio else finish(values.mean(0))
        return found if found[1:].isfinite().all() else found[:1]

    def _reference(self, values: Float[Tensor, "a k k"], columns: Record) -> Float[Tensor, "k k"] | None:
        """Return what values without parts of the documents would average if rows did not depend on each other."""
        if "dependence" in columns and len(values) > 1:
            return values[1:].mean(0) - columns["dependence"].mean(0)
        return values[0] if self._is_unbiased else None

    @property
    def _is_unbiased(self) -> bool:
        return self.measure.is_unbiased and not self.after_ratio


def _nothing(values: Mapping[Pair, Float[Tensor, "_ _"]]) -> dict[Pair, Float[Tensor, "l m"]]:
    return {pair: torch.full_like(each, torch.nan) for pair, each in values.items()}
