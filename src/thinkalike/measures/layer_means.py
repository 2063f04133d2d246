"""The mean over batches of any measure of layer pairs, with intervals over documents and a null."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from thinkalike.arguments import seeded, takes_arrays
from thinkalike.measures.accumulators import APART, Accumulator, LayerPairEstimate, States
from thinkalike.measures.bootstrapping import effective_number
from thinkalike.measures.chance import BatchNull, chance_of
from thinkalike.measures.contract import Blocks, LayerMeasure, Pair, joined
from thinkalike.measures.estimates import EVERY, FEWEST_EQUAL, FEWEST_GROUPS, PARTS, jackknife
from thinkalike.measures.rows import BatchRows, RowGroups, common_dtype, labels_of_rows, places_of, rows_of


class Batch(NamedTuple):
    """The states of several models for the same tokens; see `LayerMeans.update`."""

    states: Sequence[States]
    mask: Shaped[Tensor, " ..."] | None = None
    number: int = 0
    groups: Int[Tensor, " ..."] | None = None
    documents: Int[Tensor, " ..."] | None = None

    @classmethod
    @takes_arrays
    def of(
        cls,
        source: States,
        target: States,
        mask: Shaped[Tensor, " ..."] | None,
        number: int,
        groups: Int[Tensor, " ..."] | None,
        documents: Int[Tensor, " ..."] | None,
    ) -> Batch:
        """Return the batch of two models, from tensors or arrays."""
        return cls([source, target], mask, number, groups, documents)

    def rows(self, sides: Sequence[Pair], flatten: str) -> tuple[BatchRows, dict[int, tuple[int, ...]]]:
        """Return the rows of the different layers, and where the layers of each model stand among them."""
        called = {model: f"model {model}" for side in sides for model in side}
        if len(sides) == 1:
            called |= dict(zip(reversed(sides[0]), ("target", "source"), strict=True))
        different: dict[int, tuple[Tensor, str]] = {}
        for model, name in called.items():
            for index, layer in enumerate(self.states[model]):
                different.setdefault(id(layer), (layer, f"{name} layer {index}"))
        numbers = {key: place for place, key in enumerate(different)}
        places = {model: tuple(numbers[id(layer)] for layer in self.states[model]) for model in called}
        layers, names = zip(*different.values(), strict=True)
        dtype, kept = common_dtype(layers), None if self.mask is None else places_of(self.mask)
        rows = [rows_of(layer.to(dtype), flatten, self.mask, kept) for layer in layers]
        documents, tokens = self._documents(layers[0], flatten), None
        if self.groups is not None:
            tokens = labels_of_rows(self.groups, self.mask, layers[0], "tokens")
        for name, row in zip(names, rows, strict=True):
            if len(row) != len(documents):
                raise ValueError(
                    f"all layers need the same rows, but {names[0]} has {len(rows[0])} and {name} has {len(row)}"
                )
        return BatchRows(rows, names, documents, tokens).of((documents % PARTS).argsort(stable=True)), places

    def _documents(self, first: Tensor, flatten: str) -> Int[Tensor, " n"]:
        """Return the document of each row; where a sequence is one row, that of its first token."""
        documents = self.documents
        if documents is None:
            documents = torch.arange(first[..., 0].numel(), device=first.device).view(first.shape[:-1])
            documents = documents + self.number * APART
        if flatten == "token" or first.ndim == 2:
            return labels_of_rows(documents, self.mask, first, "documents")
        return documents.to(first.device).flatten(1)[:, 0]


# ---- a batch without some of its rows


def _within(measure: LayerMeasure, rows: BatchRows) -> tuple[LayerMeasure, RowGroups | None]:
    """Return the measure, given the token that within groups of rows of one token, and these groups."""
    if rows.tokens is None:
        return measure, None
    assert measure.given is not None
    within = RowGroups.of(rows.tokens, measure.fewest)
    return measure.given(within), within


def without_each(
    measure: LayerMeasure, parts: Int[Tensor, " n"], rows: BatchRows, blocks: Blocks, whole: Mapping[Pair, Tensor]
) -> list[Mapping[Pair, Tensor]]:
    """Return the values without the rows of each part in turn; NaN where what is left has no value."""
    nothing = {pair: torch.full_like(each, torch.nan) for pair, each in whole.items()}
    found: list[Mapping[Pair, Tensor]] = []
    for kept in (parts != part for part in range(PARTS)):
        try:
            found.append(whole if kept.all() else _again(measure, rows.of(kept), blocks))
        except ValueError:
            found.append(nothing)
    return found


def _again(measure: LayerMeasure, rows: BatchRows, blocks: Blocks) -> dict[Pair, Float[Tensor, "_ _"]]:
    compared, _ = _within(measure, rows)
    return compared.compare(compared.prepared(rows.layers, rows.names), blocks)


def dependence(
    measure: LayerMeasure, rows: BatchRows, blocks: Blocks, values: Mapping[Pair, Float[Tensor, "_ _ _"]]
) -> dict[Pair, Float[Tensor, "_ _"]]:
    """Return by how much the mean value without parts of the documents is above that without parts of the rows."""
    parts = (rows.documents % PARTS).cpu()
    parts = parts[torch.randperm(len(parts), generator=seeded(0))].to(rows.documents.device)
    found = without_each(measure, parts, rows, blocks, {pair: each[0] for pair, each in values.items()})
    return {pair: (each[1:] - torch.stack([other[pair] for other in found])).mean(0) for pair, each in values.items()}


# ---- all batches


class LayerMeans(Accumulator):
    """The mean over batches of any measure of layer pairs, with intervals over documents.

    Each batch is compared with all its rows, and without the documents of each tenth in turn; the means over batches
    give the jackknife. Rows of one document depend on each other, which biases most measures. Where the number of rows
    matters as well, every fourth batch is also compared without tenths of its rows drawn at random, which says how
    large that bias is, and the interval leaves it out; see `jackknife`. The null is that of the first batch, see
    `BatchNull`.

    Args:
        source_layers, target_layers, given: See `Accumulator`; the measure must have a form within groups for "token".
        measure: The measure; of a ratio, such as CKA, means over batches come before the ratio.
        permutations: How often to compare also with the target's documents permuted, see `Chance`. A p-value is at
            least 1 / (permutations + 1). 0: no null.
        after_ratio: Whether to take the mean of each batch's ratio instead.
        kwargs: Options of `torchmetrics.Metric`.
    """

    parts: ClassVar[tuple[str, ...]] = ("values", "leverages", "used", "dependence", "null", "tested", "moved")
    moved: list[Tensor] | Tensor

    def __init__(
        self,
        source_layers: int,
        target_layers: int,
        measure: LayerMeasure,
        permutations: int = 0,
        *,
        given: str = "none",
        after_ratio: bool = False,
        **kwargs: Any,
    ):
        super().__init__(source_layers, target_layers, given=given, **kwargs)
        self.measure, self.permutations, self.after_ratio = measure, permutations, after_ratio

    def update(
        self,
        source: Any,
        target: Any,
        mask: Any = None,
        number: int | None = None,
        groups: Any = None,
        documents: Any = None,
    ) -> None:
        """Add one batch: the same tokens, or rows, in both models, as tensors or arrays.

        Args:
            source, target: Per layer (b, t, d), or (n, d); widths and dtypes may differ.
            mask: The tokens that count.
            number: The number of this batch in the whole run; by default the next one. Processes that share a run, and
                metrics that are merged, need it.
            groups: The token of each state, (b, t) or (n,), for given="token" only.
            documents: The number of the document of each state, or of what else rows depend on each other in, the same
                in all batches; by default each row is one. Intervals leave out those of one `number % 10` at a time,
                see `numbered_by_part`, and nulls move them as blocks.

        Raises:
            ValueError: The number of layers is not the announced one, groups are missing or not wanted, or none has
                enough rows, the mask, groups or documents do not fit, or the measure refuses a layer. Nothing is added.
        """
        batch = Batch.of(source, target, mask, self.next_number(number), groups, documents)
        self.update_pairs([self], [(0, 1)], batch)

    @staticmethod
    @torch.no_grad()
    def update_pairs(metrics: Sequence[LayerMeans], sides: Sequence[Pair], batch: Batch) -> None:
        """Add one batch of several models to a metric for each pair of them, with the same bits and errors as `update`.

        Args:
            metrics: One for each pair; they compare in the same way.
            sides: The numbers of the source and of the target of each metric; both may be the same.
        """
        for metric, (a, b) in zip(metrics, sides, strict=True):
            metric.check(batch.states[a], batch.states[b], batch.groups)
        rows, places = batch.rows(sides, metrics[0].measure.flatten)
        models = list(dict.fromkeys(places.values()))  # a model that is the same as another is compared once
        pairs = [(models.index(places[a]), models.index(places[b])) for a, b in sides]
        whole = list(dict.fromkeys([*((model, model) for pair in pairs for model in pair), *pairs]))
        blocks = Blocks(models, whole)
        measure, within = _within(metrics[0].measure, rows)
        layers, nulls, shared = measure.prepared(rows.layers, rows.names), {}, {}
        with torch.autocast(rows.layers[0].device.type, enabled=False):
            if measure.compare_without_parts:
                sizes = torch.bincount(rows.documents % PARTS, minlength=PARTS).tolist()
                values = measure.compare_without_parts(layers, blocks, sizes)
            else:
                first = measure.compare(layers, blocks)
                rest = without_each(metrics[0].measure, rows.documents % PARTS, rows, blocks, first)
                values = {pair: torch.stack([first[pair], *(each[pair] for each in rest)]) for pair in whole}
            if any(metric._has_null(batch.number) for metric in metrics):
                compared = Blocks(models, list(dict.fromkeys(pairs)))
                null = BatchNull(measure, layers, rows, within, compared, metrics[0].permutations)
                nulls = null.of({pair: each[0] for pair, each in values.items()})
            is_apart = batch.number % EVERY == 0 and not measure.finish
            apart = dependence(metrics[0].measure, rows, blocks, values) if is_apart else {}
        if within:
            shared["used"] = torch.tensor([len(within.order), within.rows], dtype=torch.float64)
        for metric, (a, b), pair in zip(metrics, sides, pairs, strict=True):
            joint = [joined({key: each[part] for key, each in values.items()}, pair) for part in range(1 + PARTS)]
            found = {"values": torch.stack(joint).double(), **shared}
            if pair in nulls:
                moved = torch.stack([torch.tensor(batch.number), nulls[pair]["moved"]])
                found |= {**nulls[pair], "moved": moved}
            if apart:
                found["dependence"] = joined(apart, pair).double()
            if measure.leverage:
                own = [measure.leverage(layers[place]).double() for place in (*places[a], *places[b])]
                found["leverages"] = torch.stack(own)
            metric.add(batch.number, rows.documents, **found)

    def _has_null(self, number: int) -> bool:
        """Return whether a batch is to have a null: no batch before it has one."""
        return self.permutations > 0 and all(number < int(moved[0, 0]) for moved in self.moved)

    def compute(self) -> LayerPairEstimate:
        """Return the mean over all batches so far, with intervals and the null; a ValueError of no batch."""
        return LayerPairEstimate(**self.estimates(self.gathered()))

    def estimates(self, found: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return the arguments of the estimate, from what all batches left."""
        values, depth = self.finished(found), self.source_layers
        parts = jackknife(values[0], values[1:], self._reference(values, found), is_drawn="dependence" in found)
        across, first, second = parts[:depth, depth:], parts[:depth, :depth], parts[depth:, depth:]
        further: dict[str, Any] = {}
        if "null" in found:
            place = int(found["moved"][:, 0].argmin())
            null, tested, (_, moved) = (found[name][place] for name in ("null", "tested", "moved"))
            sign = 1 if self.measure.higher_is_closer else -1
            further["chance"] = chance_of(across, null, tested, int(moved), self.measure.best, sign)
        if "used" in found:
            kept, rows = found["used"].sum(0)
            further["rows_used"] = float(kept / rows)
        counts = {"batches": len(found["values"]), "documents": len(found["documents"].unique())}
        return {"across": across, "within_source": first, "within_target": second, **counts, **further}

    def finished(self, found: Mapping[str, Tensor]) -> Float[Tensor, "a k k"]:
        """Return the values over all batches, of all rows, and without each part of enough documents, if known."""
        values, (documents, counts) = found["values"], found["documents"].unique(return_counts=True)
        count = len(documents) if self.measure.finish else effective_number(counts)
        enough = count >= (FEWEST_GROUPS if self.measure.finish else FEWEST_EQUAL)
        kept = [0, *(1 + documents % PARTS).unique().tolist()] if enough else [0]
        finish, values = self.measure.finish or torch.Tensor.clone, values[:, kept]
        means = finish(values).mean(0) if self.after_ratio else finish(values.mean(0))
        return means if means[1:].isfinite().all() else means[:1]

    def _reference(self, values: Float[Tensor, "a k k"], found: Mapping[str, Tensor]) -> Float[Tensor, "k k"] | None:
        """Return what values without parts of the documents would average if rows did not depend on each other."""
        if "dependence" in found and len(values) > 1:
            return values[1:].mean(0) - found["dependence"].mean(0)
        return values[0] if self.is_unbiased else None

    @property
    def is_unbiased(self) -> bool:
        """Whether the value expected of independent rows is the same however many there are."""
        return self.measure.is_unbiased and not self.after_ratio
