"""Metrics of torchmetrics that gather measures of layer pairs batch by batch, and the mean of any measure over batches.

Each batch adds a few small tensors to lists, so batches may come in any order and from several processes. Apart from
the pure measures, as torchmetrics takes a second to import.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, distributed
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from thinkalike.arguments import BatchNumber, Count, RepetitionsOrNone, check_choice, takes_arrays
from thinkalike.measures import estimates
from thinkalike.measures.chance import BatchNull, Chance, chance_of
from thinkalike.measures.contract import AnyMeasure, Batch, BatchRows, Blocks, Pair, States, joined
from thinkalike.measures.estimates import FEWEST_EQUAL, FEWEST_GROUPS, PARTS, Estimate, RowGroups

GIVEN = ("none", "token")
ORDINARY = 128  # powers of two within which products of four numbers fit float64


def from_everyone(state: Tensor, group: Any = None) -> list[Tensor]:
    """Return the states of all processes, of any shapes: torchmetrics wants the same number of axes of each."""
    found: list[Tensor] = [state] * distributed.get_world_size(group)
    distributed.all_gather_object(found, state, group)
    return without_empty([each.to(state.device) for each in found])


def without_empty(states: Sequence[Tensor]) -> list[Tensor]:
    """Leave out the states of processes without any batch, whose dtype is not that of the others."""
    return [each for each in states if len(each)] or [*states[:1]]


class LayerPairEstimate(Estimate):
    """A measure of l layers of a source with m of a target, (l, m), and of the layers within each.

    Args:
        across: The values across the two models, with their intervals, (l, m).
        within_source, within_target: The same within each model, (l, l) and (m, m); None where it is not measured.
        batches, documents: How many there were.
        rows: How many rows were compared, in all batches together; None where it is not known.
        effective: How many documents of equal length are worth these; None where it is not known.
        needed: How many documents of equal length the documents must be worth for an interval.
        rows_used: The share of the rows that stood in groups of one token, where rows are compared within such groups.
        chance: The null by permutations, None without any.
    """

    label: ClassVar[str] = "value"  # what plots call a value

    def __init__(
        self,
        across: Estimate,
        batches: int,
        documents: int,
        *,
        rows: int | None = None,
        effective: float | None = None,
        needed: int = FEWEST_GROUPS,
        within_source: Estimate | None = None,
        within_target: Estimate | None = None,
        rows_used: float | None = None,
        chance: Chance | None = None,
    ):
        super().__init__(*across, uncorrected=across.uncorrected)
        self.batches, self.documents, self.rows_used, self.chance = batches, documents, rows_used, chance
        self.within_source, self.within_target, self.effective = within_source, within_target, effective
        self.needed = needed
        self.rows = rows

    def __repr__(self) -> str:
        layers, closest = "{} x {} layers".format(*self.value.shape), "{:.3f} to {:.3f}".format(*self.value.aminmax())
        width = f"intervals at most {self.widest_interval():.3g} wide"
        return f"{type(self).__name__}({layers}, {self.batches} batches: {closest}, {width})"

    @property
    def why_no_interval(self) -> str | None:
        """Why there is no interval, in one sentence; None if the documents are enough, or their lengths unknown."""
        if self.effective is None or estimates.has_interval(self.effective, self.needed):
            return None
        return estimates.why_no_interval(self.effective, self.documents, fewest=self.needed)

    def widest_interval(self) -> float:
        """Return the width of the widest interval of `value`, `within_source` and `within_target`."""
        known = (self, *filter(None, (self.within_source, self.within_target)))
        return max(float((estimate.high - estimate.low).max()) for estimate in known)


def numbers_of(documents: Int[Tensor, " n"]) -> dict[str, Any]:
    """Return how many rows and documents there are, and how many documents of equal length are worth these."""
    counts = documents.unique(return_counts=True)[1]
    return {
        "rows": len(documents),
        "documents": len(counts),
        "effective": estimates.effective_number(counts),
    }


class Accumulator(Metric):
    """Gathers a measure of layer pairs batch by batch; the order of the batches does not matter.

    Args:
        source_layers, target_layers: How many layers a batch brings.
        given: "token" compares rows within groups of one token; "none" compares all rows.
        kwargs: Options of `torchmetrics.Metric`.
    """

    is_differentiable = False
    full_state_update = False
    parts: ClassVar[tuple[str, ...]] = ()  # what a batch may add besides its number and the documents of its rows
    numbers: list[Tensor] | Tensor
    documents: list[Tensor] | Tensor

    @takes_arrays
    def __init__(self, source_layers: Count, target_layers: Count, *, given: str = "none", **kwargs: Any):
        check_choice("given", given, GIVEN)
        super().__init__(**{"dist_sync_fn": from_everyone, "compute_with_cache": False, **kwargs})
        self.source_layers, self.target_layers, self.given = source_layers, target_layers, given
        for name in ("numbers", "documents", *self.parts):
            self.add_state(name, default=[], dist_reduce_fx="cat", persistent=True)

    @property
    def update_called(self) -> bool:
        """Whether there is a batch, also one from a `state_dict`."""
        return len(self.numbers) > 0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Add one batch as `update` does, and return the estimate of this batch alone."""
        before = {name: len(state) for name, state in self.metric_state.items()}
        self.update(*args, **kwargs)
        alone = self.clone()
        for name, count in before.items():
            setattr(alone, name, getattr(alone, name)[count:])
        return type(alone).compute(alone)

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        """Take over the batches of a `state_dict`, whose lists stay as they are."""
        copied = dict(state_dict)
        for name in self.metric_state:
            if isinstance(state := copied[name], Tensor):  # of several processes, in one piece
                state = state.split(len(state) if name == "documents" else 1) if len(state) else ()
            copied[name] = [*state]
        return super().load_state_dict(copied, strict, assign)

    @takes_arrays
    def update(
        self,
        source: States,
        target: States,
        mask: Shaped[Tensor, " ..."] | None = None,
        number: BatchNumber = None,
        groups: Int[Tensor, " ..."] | None = None,
        documents: Int[Tensor, " ..."] | None = None,
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

        A ValueError says that something does not fit, or that the measure refuses a layer, and nothing is added.
        """
        self.gather(Batch([source, target], mask, self.next_number(number), groups, documents))

    @abstractmethod
    def gather(self, batch: Batch) -> None:
        """Add a batch; see `update`."""

    def next_number(self, number: int | None) -> int:
        if number is None:
            return int(dim_zero_cat(self.numbers).max()) + 1 if len(self.numbers) else 0
        return number

    def check(self, source: States, target: States, groups: Tensor | None) -> None:
        """Raise a ValueError unless a batch has the announced layers, and groups where they are wanted."""
        announced, counts = (self.source_layers, self.target_layers), (len(source), len(target))
        if counts != announced:
            raise ValueError(
                f"source and target have {counts[0]} and {counts[1]} layers, but {announced[0]} and {announced[1]} "
                "layers were announced, as source_layers and target_layers"
            )
        if (groups is None) != (self.given == "none"):
            raise ValueError(f"groups, the token of each state, come with given=token alone, and this is {self.given}")

    def add(self, number: int, documents: Int[Tensor, " n"], **parts: Shaped[Tensor, " ..."]) -> None:
        """Add what a batch leaves to the lists."""
        self.documents.append(documents.detach().to(self.device))  # type: ignore[union-attr]
        self.numbers.append(torch.full((1,), number, device=self.device))  # type: ignore[union-attr]
        for name, part in parts.items():
            getattr(self, name).append(part.detach()[None].to(self.device))

    def gathered(self) -> dict[str, Tensor]:
        """Return what all batches left, by name, in the order of their numbers; documents are those of all rows."""
        if not self.update_called:
            raise ValueError("there is no mean of no batches: call update first")
        found = {name: dim_zero_cat(state) for name, state in self.metric_state.items() if len(state)}
        numbers, order = found["numbers"].sort()
        if repeated := numbers[1:][numbers.diff() == 0].tolist():
            raise ValueError(f"two batches have number {repeated[0]}: number those of one run, update(..., number=)")
        whole = {name: each[order] for name, each in found.items() if len(each) == len(order)}
        return {**found, **whole, "documents": found["documents"]}


# ---- a batch without some of its rows


def _within(measure: AnyMeasure, rows: BatchRows) -> tuple[AnyMeasure, RowGroups | None]:
    """Return the measure, given the token that within groups of one token, and these groups."""
    if rows.tokens is None:
        return measure, None
    within = RowGroups.of(rows.tokens, measure.fewest)
    return measure.within(within), within


def sizes_of_parts(parts: Int[Tensor, " n"]) -> list[int]:
    return (parts[:, None] == torch.arange(PARTS, device=parts.device)).sum(0).tolist()  # type: ignore[no-any-return]


def without_each(
    measure: AnyMeasure, parts: Int[Tensor, " n"], rows: BatchRows, blocks: Blocks, whole: Mapping[Pair, Tensor]
) -> list[Mapping[Pair, Tensor]]:
    """Return the values without the rows of each part in turn; NaN where what is left has no value."""
    nothing = {pair: torch.full_like(each, torch.nan) for pair, each in whole.items()}
    found: list[Mapping[Pair, Tensor]] = []
    apart = parts.argsort(stable=True).split(sizes_of_parts(parts))
    for number, part in enumerate(apart):
        found.append(nothing if len(part) else whole)
        with contextlib.suppress(ValueError):
            if len(part):
                left = rows.of(torch.cat([*apart[:number], *apart[number + 1 :]]).sort().values)
                compared, _ = _within(measure, left)
                found[-1] = compared.compare_all(compared.prepared(left.layers, left.names, left.order), blocks)
    return found


def dependence(
    measure: AnyMeasure,
    layers: Sequence[Any],
    rows: BatchRows,
    blocks: Blocks,
    values: Mapping[Pair, Float[Tensor, "_ _ _"]],
) -> dict[Pair, Float[Tensor, "_ _"]]:
    """Return by how much the mean value without parts of the documents is above that without parts of the rows."""
    parts = rows.documents % PARTS
    parts = parts[torch.randperm(len(parts), generator=estimates.seeded(0)).to(parts.device)]
    compared, _ = _within(measure, rows)
    if compared.leaves_out_parts:
        order = parts.argsort(stable=True)
        moved = [compared.moved(layer, order) for layer in layers]
        left = compared.compare_without_parts(moved, blocks, sizes_of_parts(parts))
        return {pair: (each[1:] - left[pair][1:]).mean(0) for pair, each in values.items()}
    found = without_each(measure, parts, rows, blocks, {pair: each[0] for pair, each in values.items()})
    return {pair: (each[1:] - torch.stack([other[pair] for other in found])).mean(0) for pair, each in values.items()}


# ---- all batches


class LayerMeans(Accumulator):
    """The mean over batches of any measure of layer pairs, with intervals over documents.

    Each batch is compared with all its rows, and without the documents of each tenth in turn; the means over batches
    give the jackknife. Rows of one document depend on each other, which biases most measures. Where the number of rows
    matters as well, every fourth batch is also compared without tenths of its rows drawn at random, which says how
    large that bias is; see `jackknife`. The null is that of the first batch, see `BatchNull`.

    Args:
        source_layers, target_layers, given, kwargs: See `Accumulator`.
        measure: The measure; of a ratio, such as CKA, means over batches come before the ratio.
        permutations: How often to compare also with the target's documents permuted, see `Chance`. 0: no null.
        after_ratio: Whether to take the mean of each batch's ratio instead.
    """

    parts: ClassVar[tuple[str, ...]] = ("values", "leverages", "used", "dependence", "null", "tested", "moved", "units")
    moved: list[Tensor] | Tensor

    @takes_arrays
    def __init__(
        self,
        source_layers: Count,
        target_layers: Count,
        measure: AnyMeasure,
        permutations: RepetitionsOrNone = 0,
        *,
        given: str = "none",
        after_ratio: bool = False,
        **kwargs: Any,
    ):
        super().__init__(source_layers, target_layers, given=given, **kwargs)
        if given == "token" and not measure.compares_within_groups:
            raise ValueError(f"given=token: {type(measure).__name__} compares all rows; leave given out, or take CKA")
        self.measure, self.permutations, self.after_ratio = measure, permutations, after_ratio

    @torch.no_grad()
    def gather(self, batch: Batch, metrics: Sequence[LayerMeans] = (), sides: Sequence[Pair] = ((0, 1),)) -> None:
        """Add a batch of several models to a metric for each pair of them, with the same bits and errors as `update`.

        Args:
            metrics: One for each pair, by default this one alone; they compare in the same way.
            sides: The numbers of the source and of the target of each metric.
        """
        metrics = metrics or [self]
        for metric, (a, b) in zip(metrics, sides, strict=True):
            metric.check(batch.states[a], batch.states[b], batch.groups)
        rows, places = batch.rows(sides, self.measure.flatten)
        models = list(dict.fromkeys(places.values()))  # a model that is the same as another is compared once
        pairs = [(models.index(places[a]), models.index(places[b])) for a, b in sides]
        whole = list(dict.fromkeys([*((model, model) for pair in pairs for model in pair), *pairs]))
        blocks = Blocks(models, whole)
        if self.measure.has_units:
            rows, units = rows.in_units()
        measure, within = _within(self.measure, rows)
        layers, permutations = measure.prepared(rows.layers, rows.names, rows.order), self.permutations
        nulls, shared = {}, {}
        with torch.autocast(rows.layers[0].device.type, enabled=False):
            if measure.leaves_out_parts:
                values = measure.compare_without_parts(layers, blocks, sizes_of_parts(rows.documents % PARTS))
            else:
                first = measure.compare_all(layers, blocks)
                rest = without_each(self.measure, rows.documents % PARTS, rows, blocks, first)
                values = {pair: torch.stack([first[pair], *(each[pair] for each in rest)]) for pair in whole}
            firsts = [all(batch.number < int(moved[0, 0]) for moved in metric.moved) for metric in metrics]
            if permutations and any(firsts):
                compared = Blocks(models, list(dict.fromkeys(pairs)))
                null = BatchNull(measure, layers, rows, within, compared, permutations)
                nulls = null.of({pair: each[0] for pair, each in values.items()})
            is_apart = batch.number % estimates.EVERY == 0 and not (measure.is_ratio or measure.is_unbiased)
            apart = dependence(self.measure, layers, rows, blocks, values) if is_apart else {}
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
            if measure.has_leverage:
                own = [measure.leverage(layers[place]).double() for place in (*places[a], *places[b])]
                found["leverages"] = torch.stack(own)
            if self.measure.has_units:
                found["units"] = torch.stack([units[place] for place in (*places[a], *places[b])])
            metric.add(batch.number, rows.documents, **found)

    def compute(self) -> LayerPairEstimate:
        """Return the mean over all batches so far, with intervals and the null."""
        return LayerPairEstimate(**self.estimates(self.gathered()))

    def gathered(self) -> dict[str, Tensor]:
        """Return what all batches left; likenesses with units are in one, that of the states unless these are extreme.

        The mean of each batch's ratio needs no common unit. Units are powers of two, so no digit changes.
        """
        found = super().gathered()
        if self.measure.has_units:
            units = found["units"]
            common = units if self.after_ratio else units.amax(0, keepdim=True)
            factors = (units / common.where(common.log2().abs() > ORDINARY, 1.0)).square()[:, None]
            found["values"] = found["values"] * factors[..., :, None] * factors[..., None, :]
        return found

    def estimates(self, found: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return the arguments of the estimate, from what all batches left."""
        parts, depth = self._estimate(self.finished(found), found), self.source_layers
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
        counts = {"batches": len(found["values"]), **numbers_of(found["documents"])}
        further |= {"within_source": first, "within_target": second, "needed": self.needed}
        return {"across": across, **counts, **further}

    def replicates(self) -> Float[Tensor, "r l m"]:
        """Return the values of `compute` across the two models, and then those without each part of the documents."""
        found = self.gathered()
        values = self.finished(found)
        both = torch.cat([self._estimate(values, found).value[None], values[1:]])
        return both[:, : self.source_layers, self.source_layers :]

    def finished(self, found: Mapping[str, Tensor]) -> Float[Tensor, "a k k"]:
        """Return the values over all batches, of all rows, and without each part of enough documents, if known."""
        values, (documents, counts) = found["values"], found["documents"].unique(return_counts=True)
        enough = estimates.has_interval(estimates.effective_number(counts), self.needed)
        kept = [0, *(1 + documents % PARTS).unique().tolist()] if enough else [0]
        finish = self.measure.finish if self.measure.is_ratio else torch.Tensor.clone
        values = values[:, kept]
        means = finish(values).mean(0) if self.after_ratio else finish(values.mean(0))
        return means if means[1:].isfinite().all() else means[:1]

    def _estimate(self, values: Float[Tensor, "a k k"], found: Mapping[str, Tensor]) -> Estimate:
        """Return values with intervals, and without the bias of rows that depend on each other, where it is known."""
        reference = self._reference(values, found)
        parts = estimates.jackknife(values[0], values[1:], reference, is_drawn="dependence" in found)
        if parts.uncorrected is not None and self.measure.higher_is_closer:  # no layers are closer than the best
            parts.value = torch.minimum(parts.value, parts.uncorrected.clamp(min=self.measure.best))
        return parts

    def _reference(self, values: Float[Tensor, "a k k"], found: Mapping[str, Tensor]) -> Float[Tensor, "k k"] | None:
        """Return what values without parts of the documents would average if rows were independent."""
        if "dependence" in found and len(values) > 1:
            return values[1:].mean(0) - found["dependence"].mean(0)
        return values[0] if self.is_unbiased else None

    @property
    def needed(self) -> int:
        """How many documents of equal length the documents must be worth for an interval."""
        return FEWEST_GROUPS if self.measure.is_ratio else FEWEST_EQUAL

    @property
    def is_unbiased(self) -> bool:
        return self.measure.is_unbiased and not self.after_ratio
