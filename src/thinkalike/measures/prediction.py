"""How much of one model's states a linear map of another's predicts on held-out rows: R², in both directions.

Given states less the mean of their token (`RowGroups.without_means`) it is R² given the token.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.arguments import takes_arrays
from thinkalike.measures.closed_forms import LayerPair, LayerStates, Moments, PairStatistics
from thinkalike.measures.contract import APART, Batch
from thinkalike.measures.estimates import FEWEST, PARTS, Estimate, RowGroups, jackknife, without_parts
from thinkalike.measures.layer_means import Accumulator, LayerPairEstimate
from thinkalike.measures.ridge import PENALTIES, gained
from thinkalike.measures.rows import labels_of_rows, rows_of

MAPS = 2**31  # bytes of maps in memory at once; batches are read again for those of further layer pairs
READING = 2**32  # between the numbers of a batch in two readings


def pairs_at_once(source: int, target: int) -> int:
    """Return of how many layer pairs of these widths the maps, there and back, are in memory at once."""
    return max(MAPS // (2 * 8 * source * target), 1)


class _Map(NamedTuple):
    """The map of one direction of a layer pair, for states less `mean`; of constant states nothing is predicted."""

    mean: Float[Tensor, " d"]
    weight: Float[Tensor, "d e"]
    is_constant: bool


class LinearPrediction:
    """Held-out R² of ridge regressions of layer pairs (l, m), from the source to the target and back.

    R² = 1 - Σ ‖y - ŷ‖² / Σ ‖y - ȳ‖² over the rows that judge, with ŷ = ȳ + W (x - x̄), and W, x̄, ȳ from the rows to
    fit on. It is at most 1, and 0 for what predicts no better than ȳ; a map that overfits goes below. W minimises
    Σ ‖y - ŷ‖² + λ ‖W‖². Everything is in float64, and sums over batches come before the ratio. R² back predicts x from
    y. First come all batches to `fit` on, then those that `judge`.

    Unless a ridge is given, λ is chosen by cross-validation over documents: maps of each half of them, with each of
    `PENALTIES`, predict the other half, and the λ that does so best is taken for the map of all rows, as that of a sum
    over rows does not change with their number. Where no map does better than ȳ, W is 0.

    Args:
        ridge: λ in units of the mean of the diagonal of Σ (x - x̄)(x - x̄)', more than 0; None: it is chosen.
    """

    def __init__(self, pairs: Iterable[LayerPair], *, ridge: float | None = None):
        pairs = list(pairs)
        self._moments: list[Moments] = [Moments(pairs) for _ in range(1 if ridge else 2)]  # none: maps are solved for
        self.pairs, self.ridge = self._moments[0].pairs, ridge
        self.maps: list[tuple[_Map, _Map]] = []  # of each pair, there and back
        # by part of the documents, pair and direction: the squares of residuals and of states
        self._sums = torch.zeros(PARTS, len(self.pairs), 2, 2, dtype=torch.float64)
        self.documents = torch.zeros(0, dtype=torch.long)  # the numbers of those that judged

    @takes_arrays
    def fit(self, sources: LayerStates, targets: LayerStates, documents: Int[Tensor, " n"] | None = None) -> None:
        """Add the states of the same n rows in both models to fit on, before any judge; see `Moments.update`.

        Args:
            documents: The number of the document of each row, as for `judge`; by default each row is one.
        """
        if not self._moments:
            raise ValueError("the maps have been judged already: give all batches to fit on first")
        if self.ridge:
            self._moments[0].update(sources, targets)
            return
        n = len(next(iter(sources.values() if isinstance(sources, Mapping) else sources)))
        halves = (torch.arange(n) if documents is None else documents) % PARTS % len(self._moments)
        for half, moments in enumerate(self._moments):
            rows = (halves == half).nonzero()[:, 0]
            moments.update(*(_rows(side, rows) for side in (sources, targets)))

    @takes_arrays
    @torch.no_grad()
    def judge(
        self,
        sources: LayerStates,
        targets: LayerStates,
        number: int | None = None,
        documents: Int[Tensor, " n"] | None = None,
    ) -> Int[Tensor, " documents"]:
        """Add a batch of held-out rows, as `Moments.update` takes them, and return the numbers of its documents.

        Args:
            number: Of the batch; by default one that no other has.
            documents: The number of the document of each row, the same in all batches; by default each row is one.

        Raises:
            ValueError: Fewer than two rows came to fit on, layers differ in rows, or a state is not finite.
        """
        if self._moments:
            self.maps, self._moments = self._solved(), []
        rows: dict[tuple[int, int], Tensor] = {}
        number = len(self.documents) if number is None else number
        sums = torch.zeros_like(self._sums)
        for place, (pair, ways) in enumerate(zip(self.pairs, self.maps, strict=True)):
            for key, states, way in zip(enumerate(pair), (sources, targets), ways, strict=True):
                if key not in rows:  # zeros where the states to fit on did not vary but by rounding
                    states_apart = states[key[1]].double() - way.mean
                    rows[key] = torch.zeros_like(states_apart) if way.is_constant else states_apart
            x, y = rows[0, pair[0]], rows[1, pair[1]]
            if len(x) != len(y):
                raise ValueError(f"source layer {pair[0]} has {len(x)} rows, but target layer {pair[1]} has {len(y)}")
            owners = torch.arange(len(x)) + number * APART if documents is None else documents
            belongs = torch.nn.functional.one_hot(owners.to(x.device).long() % PARTS, PARTS).to(x).T
            for direction, (given, wanted) in enumerate(((x, y), (y, x))):
                residual = wanted - given @ ways[direction].weight
                squares = torch.stack([residual.square().sum(1), wanted.square().sum(1)], 1)
                sums[:, place, direction] = (belongs @ squares).cpu()
        if not sums.isfinite().all():
            raise ValueError("a state is not finite, or too large for float64; run the model in a wider dtype")
        self._sums, found = self._sums + sums, owners.unique().cpu()
        self.documents = torch.cat([self.documents, found]).unique()
        return found

    def compute(self) -> tuple[Estimate, Estimate]:
        """Return R² from the source, and back, of each pair, with 95 % intervals over documents, a tenth left out.

        Fewer than `FEWEST_GROUPS` documents have the interval (-∞, ∞).

        Raises:
            ValueError: No batch judged, or a layer does not vary in those that did.
        """
        if not len(self.documents):
            raise ValueError("there is no R² of no rows: call fit, then judge")
        sums = self._sums
        if constant := (sums[..., 1].sum(0) == 0).nonzero().tolist():
            place, direction = constant[0]
            side, layer = ("source", self.pairs[place][0]) if direction else ("target", self.pairs[place][1])
            raise ValueError(f"{side} layer {layer} does not vary, so no share of it can be predicted: leave it out")
        left, whole = torch.cat([sums.sum(0)[None], without_parts(sums, self.documents)]).unbind(-1)
        explained = 1 - left / whole
        both = jackknife(explained[0], explained[1:])
        return both[:, 0], both[:, 1]

    def state_dict(self) -> dict[str, Any]:
        """Return all that was seen, to go on from."""
        return {
            "moments": [each.state_dict() for each in self._moments],
            "maps": [[tuple(way) for way in both] for both in self.maps],
            "judged": (self._sums, self.documents),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what the `state_dict` of a prediction of the same pairs holds."""
        self._moments = [Moments(self.pairs) for _ in state["moments"]]
        for moments, own in zip(self._moments, state["moments"], strict=True):
            moments.load_state_dict(own)
        self.maps = [(_Map(*there), _Map(*back)) for there, back in state["maps"]]
        self._sums, self.documents = state["judged"]

    def _solved(self) -> list[tuple[_Map, _Map]]:
        """Return the maps of all pairs; products across layers make room for them one by one."""
        if not self.ridge and any(each.n < 2 for each in self._moments):
            raise ValueError(
                "each half of the documents to fit on needs two rows, to choose a penalty; or give a ridge"
            )
        bases: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = {}  # by direction and layer: of all rows, of halves

        def solve(key: tuple[int, int], ways: Sequence[PairStatistics]) -> _Map:
            whole = ways[0] if self.ridge else ways[0].joined(ways[1])
            if whole.is_constant:
                return _Map(whole.mean_x, torch.zeros_like(whole.xy), True)
            if key not in bases:
                bases[key] = [torch.linalg.eigh(way.xx) for way in ([whole] if self.ridge else [whole, *ways])]
            (values, vectors), *halves = bases[key]
            size = float(whole.xx.diagonal().mean())
            penalty = self.ridge * size if self.ridge else _chosen(ways, halves, size)
            shrunk = 1 / (values.clamp(min=0) + penalty)
            return _Map(whole.mean_x, (vectors * shrunk) @ (vectors.T @ whole.xy), False)

        def both(pair: LayerPair) -> tuple[_Map, _Map]:
            there = [moments.take(pair) for moments in self._moments]
            return solve((0, pair[0]), there), solve((1, pair[1]), [way.reversed for way in there])

        return [both(pair) for pair in self.pairs]


def _rows(side: LayerStates, rows: Int[Tensor, " k"]) -> LayerStates:
    """Return these rows of the states of each layer."""
    if isinstance(side, Mapping):
        return {layer: states[rows.to(states.device)] for layer, states in side.items()}
    return [states[rows.to(states.device)] for states in side]


def _chosen(halves: Sequence[PairStatistics], bases: Sequence[tuple[Tensor, Tensor]], size: float) -> float:
    """Return the λ with which the maps of each half predict the other best; ∞ where none does better than the mean.

    Args:
        size: The mean of the diagonal of Σ (x - x̄)(x - x̄)', in whose unit everything is, so that no product overflows.
    """
    penalties = PENALTIES.to(halves[0].xx)
    scale = size**0.5 * sum(float(half.yy.diagonal().mean()) for half in halves) ** 0.5
    gains = torch.zeros_like(penalties)
    for (values, vectors), own, other in zip(bases, halves, reversed(halves), strict=True):
        x, y = other.mean_x - own.mean_x, other.mean_y - own.mean_y
        xx, xy = (torch.addr(each, x, mean, alpha=other.n) for each, mean in ((other.xx, x), (other.xy, y)))
        fitted, across = (vectors.T @ (each / scale) for each in (own.xy, xy))
        gains += gained(values.clamp(min=0) / size, penalties, fitted, across, vectors.T @ (xx / size) @ vectors)
    return float(penalties[gains.argmax()] * size) if gains.max() > 0 else math.inf


class PredictionEstimate(LayerPairEstimate):
    """Held-out R² of each target layer from each source layer, (l, m); `back` is the reverse, (l, m) as well."""

    def __init__(self, *, back: Estimate, **estimates: Any):
        super().__init__(**estimates)
        self.back = back


class LayerPredictions(Accumulator):
    """`LinearPrediction` of every layer pair across two models; batches come in the order of their numbers.

    Where the maps of all layer pairs take more than `MAPS` bytes, batches come again for those of the next
    `pairs_at_once`, with numbers from `READING` on, and so forth.

    Args:
        source_layers, target_layers: How many layers a batch brings.
        fit_batches: How many batches, from the first, the maps are fitted on; the others judge.
        given: "token" takes the mean of its token from every state, in each batch; "none" takes states as they are.
        ridge: See `LinearPrediction`.
        kwargs: Options of `torchmetrics.Metric`.
    """

    parts: ClassVar[tuple[str, ...]] = ("used",)  # of batches that judge; the rest of the state is the predictions'

    def __init__(
        self,
        source_layers: int,
        target_layers: int,
        *,
        fit_batches: int,
        given: str = "none",
        ridge: float | None = None,
        **kwargs: Any,
    ):
        super().__init__(source_layers, target_layers, given=given, **kwargs)
        self.fit_batches, self.ridge = fit_batches, ridge
        self.predictions: list[LinearPrediction] = []  # by reading
        self.last = -1  # the number of the last batch

    @property
    def judged(self) -> int:
        """How many layer pairs have an R²."""
        return sum(len(each.pairs) for each in self.predictions if len(each.documents))

    @property
    def update_called(self) -> bool:
        """Whether every layer pair has an R²."""
        return self.judged == self.source_layers * self.target_layers

    def next_number(self, number: int | None) -> int:
        return self.last + 1 if number is None else number

    def gather(self, batch: Batch) -> None:
        """Fit or judge maps on a batch."""
        (source, target), mask, documents = batch.states, batch.mask, batch.documents
        self.check(source, target, batch.groups)
        sides, within = [[rows_of(layer, "token", mask) for layer in side] for side in (source, target)], None
        if batch.groups is not None:
            within = RowGroups.of(labels_of_rows(batch.groups, mask, source[0], "tokens"), FEWEST)
            sides = [[within.without_means(layer) for layer in side] for side in sides]
        reading, place = divmod(batch.number, READING)
        prediction = self._of_reading(reading, *(max(layer.shape[1] for layer in side) for side in sides))
        if documents is not None:
            documents = labels_of_rows(documents, mask, source[0], "documents")
            documents = documents[within.order] if within else documents
        if place < self.fit_batches:
            prediction.fit(*sides, documents)
        else:
            used = torch.tensor([len(within.order), within.rows] if within else [1, 1])
            self.add(batch.number, prediction.judge(*sides, place, documents), used=used)
        self.last = batch.number

    def _of_reading(self, reading: int, source: int, target: int) -> LinearPrediction:
        """Return the prediction of the layer pairs, of layers of these widths, that a reading of the batches is for."""
        if reading == len(self.predictions):
            for each in self.predictions:
                each.maps = []  # no further batch is to judge them
            most = pairs_at_once(source, target)
            pairs = [*product(range(self.source_layers), range(self.target_layers))][reading * most :][:most]
            self.predictions.append(LinearPrediction(pairs, ridge=self.ridge))
        return self.predictions[reading]

    def compute(self) -> PredictionEstimate:
        """Return R² over all batches that judged so far, with intervals; see `LinearPrediction.compute`.

        Raises:
            ValueError: Batches must come again for further layer pairs.
        """
        shape = self.source_layers, self.target_layers
        if not self.update_called:
            again = f"give all batches again, with numbers from {len(self.predictions) * READING} on"
            raise ValueError(f"{self.judged} of {shape[0] * shape[1]} layer pairs have an R²: {again}")
        found = self.gathered()
        ways = zip(*(each.compute() for each in self.predictions), strict=True)
        parts = ([torch.cat(part).view(shape) for part in zip(*way, strict=True)] for way in ways)
        across, back = (Estimate(*part) for part in parts)
        kept, rows = found["used"].sum(0).tolist()
        return PredictionEstimate(
            across=across,
            batches=len(found["used"]) // len(self.predictions),
            documents=len(found["documents"].unique()),
            back=back,
            rows_used=kept / rows if self.given == "token" else None,
        )

    def get_extra_state(self) -> dict[str, Any]:
        """Return the predictions, as torch keeps what is no list of a metric."""
        return {"last": self.last, "predictions": [(each.pairs, each.state_dict()) for each in self.predictions]}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Take over the predictions of `get_extra_state`."""
        self.last, self.predictions = state["last"], []
        for pairs, gathered in state["predictions"]:
            self.predictions.append(LinearPrediction([tuple(pair) for pair in pairs], ridge=self.ridge))
            self.predictions[-1].load_state_dict(gathered)

    def reset(self) -> None:
        """Forget all batches."""
        super().reset()
        self.last, self.predictions = -1, []
