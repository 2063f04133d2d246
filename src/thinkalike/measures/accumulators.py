"""Measures of all layer pairs of two models, gathered batch by batch, with jackknife intervals over batches and a null.

Every measure of layer pairs is gathered by an `Accumulator`: each batch leaves a few small tensors, its record, for
each pair of models, and records may come in any order, from several processes, and go on from a `state_dict`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from thinkalike.arguments import takes_arrays
from thinkalike.measures.chance import Chance, LayerPairEstimate, Permutations, chance_of, permutations_of
from thinkalike.measures.contract import Blocks, LayerMeasure, Pair, common_dtype, joined
from thinkalike.measures.estimates import as_batches, jackknife, leave_one_out
from thinkalike.measures.rows import RowGroups, labels_of_rows, places_of, rows_of
from thinkalike.progress import counted

States = Sequence[Float[Tensor, " ..."]]
Record = dict[str, Tensor]
NO_ROOM = 1e-6  # between chance and the best value, in its unit: then the value says nothing


class Batch(NamedTuple):
    """The states of several models for the same tokens; see `Accumulator.update`."""

    states: Sequence[States]
    mask: Shaped[Tensor, " ..."] | None
    number: int
    groups: Int[Tensor, " ..."] | None
    documents: Int[Tensor, " ..."] | None


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
            number: The number of this batch in the whole run, which seeds its permutations; by default the next one. A
                batch takes the place of one that has its number. Processes that share a run need it.
            groups: The token of each state, (b, t) or (n,), for given="token" only.
            documents: The document of each state, which permutations move as blocks; by default each row is one.

        Raises:
            ValueError: The number of layers is not the announced one, groups are missing or not wanted, or none has
                enough rows, the mask, groups or documents do not fit, or the measure refuses a layer. Nothing is added.
        """
        number = max(self.records, default=-1) + 1 if number is None else number
        self.update_pairs([self], [(0, 1)], [source, target], mask, number, groups, documents)

    @staticmethod
    @torch.no_grad()
    def update_pairs(
        metrics: Sequence[Accumulator],
        sides: Sequence[Pair],
        states: Sequence[States],
        mask: Shaped[Tensor, " ..."] | None = None,
        number: int = 0,
        groups: Int[Tensor, " ..."] | None = None,
        documents: Int[Tensor, " ..."] | None = None,
    ) -> None:
        """Add one batch of several models to a metric for each pair of them, with the same bits as by `update`.

        Args:
            metrics: One for each pair; they compare in the same way.
            sides: The numbers of the source and of the target of each metric; both may be the same.
            states: The states of each model, as `update` takes those of one; it has the other arguments and errors.
        """
        for metric, (source, target) in zip(metrics, sides, strict=True):
            announced, counts = (metric.source_layers, metric.target_layers), (len(states[source]), len(states[target]))
            if counts != announced:
                raise ValueError(f"{announced[0]} and {announced[1]} layers were announced, but {counts} came")
        if (groups is None) != (metrics[0].given == "none"):
            given = metrics[0].given
            raise ValueError(f"groups, the token of each state, come with given=token alone, and this is {given}")
        batch = Batch(states, mask, number, groups, documents)
        for metric, record in zip(metrics, metrics[0]._compared(metrics, sides, batch), strict=True):
            metric.records[number] = {name: each.detach().cpu() for name, each in record.items()}

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
        """Return the records of all batches in the order of their numbers, stacked by name."""
        records = [self.records[number] for number in sorted(self.records) if self.records[number]]
        if not records:
            raise ValueError("there is no mean of no batches: call update first")
        names = dict.fromkeys(name for record in records for name in record)
        return {name: torch.stack([record[name] for record in records if name in record]) for name in names}


class LayerMeans(Accumulator):
    """The mean over batches of any measure of layer pairs.

    All layer pairs see the same permutations, so that the largest of them has a null as well. Each batch has its own;
    the p-th value by chance is the mean over batches of the p-th permutation of each.

    Args:
        source_layers, target_layers, given: See `Accumulator`; the measure must have a form within groups for "token".
        measure: The measure; of a ratio, such as CKA, means over batches come before the ratio.
        permutations: How often to compare also with the target's documents permuted inside each batch, or given the
            token, its rows of each token. A p-value is at least 1 / (permutations + 1). 0: no null.
        left_out: Whether the first batch has all rows, and the others have all but a part of them, see `as_batches`;
            then the null is that of the first batch.
        after_ratio: Whether to take the mean of each batch's ratio instead.
    """

    def __init__(
        self,
        source_layers: int,
        target_layers: int,
        measure: LayerMeasure,
        permutations: int = 0,
        left_out: bool = False,
        *,
        given: str = "none",
        after_ratio: bool = False,
    ):
        super().__init__(source_layers, target_layers, given=given)
        self.measure, self.permutations = measure, permutations
        self.left_out, self.after_ratio = left_out, after_ratio

    def _compared(self, metrics: Sequence[Any], sides: Sequence[Pair], batch: Batch) -> list[Record]:
        measure, within = self.measure, None
        if batch.groups is not None:
            assert measure.given is not None
            labels = labels_of_rows(batch.groups, batch.mask, batch.states[sides[0][0]][0], "tokens")
            within = RowGroups.of(labels, measure.fewest)
            measure = measure.given(within)
        layers, places = self._prepared(measure, sides, batch)
        models = list(dict.fromkeys(places.values()))  # a model that is the same as another is compared once
        pairs = [(models.index(places[a]), models.index(places[b])) for a, b in sides]
        whole = list(dict.fromkeys([*((model, model) for pair in pairs for model in pair), *pairs]))
        with torch.autocast(batch.states[sides[0][0]][0].device.type, enabled=False):
            values = measure.compare(layers, Blocks(models, whole))
            nulls = self._nulls(measure, layers, models, pairs, batch, within)
        shared, records = self._shares(within), []
        for (a, b), pair in zip(sides, pairs, strict=True):
            record = {"values": joined(values, pair).double(), **nulls.get(pair, {}), **shared}
            if measure.leverage:
                own = [measure.leverage(layers[place]).double() for place in (*places[a], *places[b])]
                record["leverages"] = torch.stack(own)
            records.append(record)
        return records

    def _shares(self, within: RowGroups | None) -> Record:
        """Return how many rows stand in groups, and how many there are, and the value by chance where it is known."""
        if within is None:
            return {}
        shares = {"used": [len(within.order), within.rows]}
        by_chance = {"by_chance": self.measure.by_chance(within)} if self.measure.by_chance else {}
        return {name: torch.tensor(each, dtype=torch.float64) for name, each in (shares | by_chance).items()}

    def _prepared(
        self, measure: LayerMeasure, sides: Sequence[Pair], batch: Batch
    ) -> tuple[list[Any], dict[int, tuple[int, ...]]]:
        """Return the different layers, each prepared once, and where those of each model stand among them."""
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
        return measure.prepared(rows, names), places

    def _nulls(
        self,
        measure: LayerMeasure,
        layers: Sequence[Any],
        models: Sequence[tuple[int, ...]],
        pairs: Sequence[Pair],
        batch: Batch,
        within: RowGroups | None,
    ) -> dict[Pair, Record]:
        """Return of each pair the values of permuted rows, (p, l, m), their mean by chance, and the documents."""
        if not self.permutations or (self.left_out and batch.number) or (within and self.measure.by_chance):
            return {}
        moves, documents = self._moves(batch, within)
        pairs = list(dict.fromkeys(pairs))
        sources, targets = (list(dict.fromkeys(side)) for side in zip(*pairs, strict=True))
        front, back = (sorted({place for model in side for place in models[model]}) for side in (sources, targets))
        own = [tuple(front.index(place) for place in models[model]) for model in sources]
        own += [tuple(len(front) + back.index(place) for place in models[model]) for model in targets]
        blocks = Blocks(own, [(sources.index(a), len(sources) + targets.index(b)) for a, b in pairs])
        found: list[list[Tensor]] = []
        for order in counted(moves.orders.to(batch.states[0][0].device), "permutation"):
            permuted = [measure.moved(layers[place], order) for place in back]
            values = measure.compare([*(layers[place] for place in front), *permuted], blocks)
            found.append([values[pair].double() for pair in blocks.pairs])
        nulls = {}
        for pair, each in zip(pairs, zip(*found, strict=True), strict=True):
            null = torch.stack(each).cpu()
            level = null[moves.away].mean(0)
            if not measure.finish and (measure.best - level).abs().min() < NO_ROOM:
                alike = f"by chance alone two layers are as close as can be, at {measure.best:g}"
                raise ValueError(f"{alike}: give more rows, as by measure.tokens_per_batch")
            nulls[pair] = {"nulls": null, "levels": level, "documents": torch.tensor(documents)}
        return nulls

    def _moves(self, batch: Batch, within: RowGroups | None) -> tuple[Permutations, int]:
        """Return the permutations of rows, and how many documents they move."""
        count, first = self.permutations, batch.states[0][0]
        if within is not None:  # rows of one token change places
            orders = torch.stack([within.shuffled(batch.number * count + place) for place in range(count)]).cpu()
            return Permutations(orders, torch.ones(count, dtype=torch.bool)), len(within.order)
        if self.measure.flatten == "token" or first.ndim == 2:
            documents = batch.documents
            if documents is None:
                documents = torch.arange(first[..., 0].numel()).view(first.shape[:-1])
            owners = labels_of_rows(documents, batch.mask, first, "documents").cpu()
        else:
            owners = torch.arange(len(first))
        return permutations_of(owners, count, batch.number), len(owners.unique())

    def compute(self) -> LayerPairEstimate:
        """Return the mean over all batches so far, with intervals and the null; a ValueError of no batch."""
        return self.result(self._columns())

    def result(self, columns: Record) -> LayerPairEstimate:
        """Return the mean over batches, with intervals and the null, from their records, stacked by name."""
        values, depth = self._values(columns), self.source_layers
        parts = jackknife(self.finished(values, batch_mean), self.finished(values, leave_one_out))
        across, first, second = parts[:depth, depth:], parts[:depth, :depth], parts[depth:, depth:]
        further: dict[str, Any] = {}
        if "nulls" in columns:
            further["chance"] = self._chance(values, columns)
        if "used" in columns:
            kept, rows = columns["used"].sum(0)
            further["rows_used"] = float(kept / rows)
        if "by_chance" in columns:
            levels = columns["by_chance"].mean(), leave_one_out(columns["by_chance"])[:, None, None]
            both = zip((batch_mean(values), leave_one_out(values)), levels, strict=True)
            calibrated = [(share[..., :depth, depth:] - level) / (1 - level) for share, level in both]
            further |= {"by_chance": float(levels[0]), "calibrated": jackknife(*calibrated)}
        return LayerPairEstimate(across.value, across.low, across.high, first, second, len(values), **further)

    def _values(self, columns: Record) -> Float[Tensor, "b k k"]:
        return as_batches(columns["values"]) if self.left_out else columns["values"]

    def finished(self, values: Float[Tensor, "b k k"], mean: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the values of a mean over batches: of a ratio, the mean comes before it, or after it if asked."""
        finish = self.measure.finish
        if not finish:
            return mean(values)
        return mean(finish(values)) if self.after_ratio and not self.left_out else finish(mean(values))

    def _chance(self, values: Float[Tensor, "b k k"], columns: Record) -> Chance:
        depth, count = self.source_layers, len(values)
        nulls, levels = (columns[name].expand(count, *columns[name].shape[1:]) for name in ("nulls", "levels"))

        def across(place: Tensor, mean: Callable[[Tensor], Tensor]) -> Tensor:
            """Return values across the models; permuted rows change likenesses across, and none within a model."""
            moved = values.clone()
            moved[:, :depth, depth:] = place
            return self.finished(moved, mean)[..., :depth, depth:]

        kept = values[:, :depth, depth:]
        own, chance = ((across(each, batch_mean), across(each, leave_one_out)) for each in (kept, levels))
        null = torch.stack([across(each, batch_mean) for each in nulls.unbind(1)])
        sign = 1 if self.measure.higher_is_closer else -1
        return chance_of(own, chance, null, int(columns["documents"].min()), self.measure.best, sign)


def batch_mean(values: Float[Tensor, " b *s"]) -> Float[Tensor, "*s"]:
    """Return the mean over batches."""
    return values.mean(0)
