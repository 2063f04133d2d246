"""How much of one model's states a linear map of another's predicts on held-out rows: R², in both directions.

Given states less the mean of their token (`RowGroups.without_means`) it is R² given the token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.arguments import takes_arrays
from thinkalike.measures.accumulators import APART, Accumulator, Batch, Record, States
from thinkalike.measures.chance import LayerPairEstimate
from thinkalike.measures.closed_forms import RIDGE, LayerPair, LayerStates, Moments, PairStatistics
from thinkalike.measures.contract import Pair
from thinkalike.measures.estimates import PARTS, Estimate, jackknife, without_parts
from thinkalike.measures.hsic import FEWEST
from thinkalike.measures.rows import RowGroups, labels_of_rows, rows_of


class LinearPrediction:
    """Held-out R² of the least-squares maps of layer pairs (l, m), from the source to the target and back.

    R² = 1 - Σ ‖y - ŷ‖² / Σ ‖y - ȳ‖² over the rows that judge, with ŷ = ȳ + W (x - x̄), and W, x̄, ȳ from the rows to
    fit on. It is at most 1, and 0 for what predicts no better than ȳ; a map that overfits goes below. W minimises
    Σ ‖y - ŷ‖² + λ ‖W‖², with λ the ridge times the mean of the diagonal of Σ (x - x̄)(x - x̄)'. Everything is in
    float64, and sums over batches come before the ratio. R² back predicts x from y. First come all batches to `fit` on,
    then those that `judge`.

    Args:
        ridge: More than 0, in units of the mean variance of the states that predict.
        nothing: The R² of states that do not vary; None: that is an error.
    """

    def __init__(self, pairs: Iterable[LayerPair], *, ridge: float = RIDGE, nothing: float | None = None):
        self.moments, self.ridge, self.nothing = Moments(pairs), ridge, nothing
        self.pairs = self.moments.pairs
        self._sums: dict[int, Tensor] = {}  # by batch: (part, pair, direction, squares of residuals and of states)
        self._documents: dict[int, Tensor] = {}  # by batch: the numbers of those in it
        self._factors: dict[tuple[int, int], Tensor] = {}  # by direction and layer

    @takes_arrays
    def fit(self, sources: LayerStates, targets: LayerStates) -> None:
        """Add the states of the same n rows in both models to fit on, before any judge; see `Moments.update`."""
        if self._sums:
            raise ValueError("the maps have been judged already: give all batches to fit on first")
        self.moments.update(sources, targets)

    @takes_arrays
    @torch.no_grad()
    def judge(
        self,
        sources: LayerStates,
        targets: LayerStates,
        number: int | None = None,
        documents: Int[Tensor, " n"] | None = None,
    ) -> None:
        """Add a batch of held-out rows, as `Moments.update` takes them.

        Args:
            number: Of the batch; by default the next one.
            documents: The number of the document of each row, the same in all batches; by default each row is one.

        Raises:
            ValueError: Fewer than two rows came to fit on, layers differ in rows, or a state is not finite.
        """
        rows: dict[tuple[int, int], Tensor] = {}
        number = len(self._sums) if number is None else number
        sums = torch.zeros(PARTS, len(self.pairs), 2, 2, dtype=torch.float64)
        for place, pair in enumerate(self.pairs):
            moments = self.moments.of(pair)
            ways = moments, moments.reversed
            for key, states, way in zip(enumerate(pair), (sources, targets), ways, strict=True):
                if key not in rows:  # zeros where the states to fit on did not vary but by rounding
                    states_apart = states[key[1]].double() - way.mean_x
                    rows[key] = torch.zeros_like(states_apart) if way.is_constant else states_apart
            x, y = rows[0, pair[0]], rows[1, pair[1]]
            if len(x) != len(y):
                raise ValueError(f"source layer {pair[0]} has {len(x)} rows, but target layer {pair[1]} has {len(y)}")
            owners = torch.arange(len(x)) + number * APART if documents is None else documents
            belongs = torch.nn.functional.one_hot(owners.to(x.device).long() % PARTS, PARTS).to(x).T
            for direction, (given, wanted) in enumerate(((x, y), (y, x))):
                residual = wanted - given @ self._map((direction, pair[direction]), ways[direction])
                squares = torch.stack([residual.square().sum(1), wanted.square().sum(1)], 1)
                sums[:, place, direction] = (belongs @ squares).cpu()
        if not sums.isfinite().all():
            raise ValueError("a state is not finite, or too large for float64; run the model in a wider dtype")
        self._sums[number], self._documents[number] = sums, owners.unique().cpu()

    def documents(self, number: int) -> Int[Tensor, " documents"]:
        """Return the numbers of the documents of a batch that judged."""
        return self._documents[number]

    def compute(self) -> tuple[Estimate, Estimate]:
        """Return R² from the source, and back, of each pair, with 95 % intervals over documents, a tenth left out.

        Fewer than `FEWEST_GROUPS` documents have the interval (-∞, ∞).

        Raises:
            ValueError: No batch judged, or a layer does not vary in those that did, unless `nothing` says what that is.
        """
        if not self._sums:
            raise ValueError("there is no R² of no rows: call fit, then judge")
        sums = torch.stack([self._sums[number] for number in sorted(self._sums)]).sum(0)
        documents = torch.cat(list(self._documents.values()))
        constant = (sums[..., 1].sum(0) == 0).nonzero().tolist()
        if constant and self.nothing is None:
            place, direction = constant[0]
            side, layer = ("source", self.pairs[place][0]) if direction else ("target", self.pairs[place][1])
            raise ValueError(f"{side} layer {layer} does not vary, so no share of it can be predicted: leave it out")
        both = jackknife(self._explained(sums.sum(0)), self._explained(without_parts(sums, documents)))
        return both[:, 0], both[:, 1]

    def state_dict(self) -> dict[str, Any]:
        """Return all that was seen, to go on from."""
        return {
            "moments": self.moments.state_dict(),
            "sums": {str(number): (sums, self._documents[number]) for number, sums in self._sums.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what the `state_dict` of a prediction of the same pairs holds."""
        self.moments.load_state_dict(state["moments"])
        self._sums = {int(number): sums for number, (sums, _) in state["sums"].items()}
        self._documents = {int(number): documents for number, (_, documents) in state["sums"].items()}
        self._factors = {}

    def _explained(self, sums: Float[Tensor, "*b 2"]) -> Float[Tensor, "*b"]:
        left, whole = sums.unbind(-1)
        constant = whole == 0
        nothing = torch.full_like(whole, self.nothing or 0.0)
        return torch.where(constant, nothing, 1 - left / whole.masked_fill(constant, 1))

    def _map(self, key: tuple[int, int], moments: PairStatistics) -> Float[Tensor, "d e"]:
        """Return W' of one direction; it is solved for anew each time, as the maps of all pairs may be gigabytes."""
        if moments.is_constant:
            return torch.zeros_like(moments.xy)
        if key not in self._factors:
            own = moments.xx
            ridge = self.ridge * own.diagonal().mean() * torch.eye(len(own), dtype=own.dtype, device=own.device)
            self._factors[key] = torch.linalg.cholesky(own + ridge)
        return torch.cholesky_solve(moments.xy, self._factors[key])


@dataclass(frozen=True, eq=False, repr=False)
class PredictionEstimate(LayerPairEstimate):
    """Held-out R² of each target layer from each source layer, (l, m).

    `back` is that of each source layer from each target layer, (l, m).
    """

    back: Estimate


class LayerPredictions(Accumulator):
    """`LinearPrediction` of every layer pair across two models; batches come in the order of their numbers.

    Moments of all layer pairs are in memory: l m d e numbers of 8 bytes for l and m layers of widths d and e.

    Args:
        source_layers, target_layers: How many layers a batch brings.
        fit_batches: How many batches, from the first, the maps are fitted on; the others judge.
        given: "token" takes the mean of its token from every state, in each batch; "none" takes states as they are.
        ridge: See `LinearPrediction`.
    """

    def __init__(
        self, source_layers: int, target_layers: int, *, fit_batches: int, given: str = "none", ridge: float = RIDGE
    ):
        super().__init__(source_layers, target_layers, given=given)
        self.fit_batches, self.ridge = fit_batches, ridge
        self._prediction: LinearPrediction | None = None

    def _compared(self, metrics: Sequence[LayerPredictions], sides: Sequence[Pair], batch: Batch) -> list[Record]:
        states, pairs = batch.states, zip(metrics, sides, strict=True)
        return [metric._predicted(states[source], states[target], batch) for metric, (source, target) in pairs]

    def _predicted(self, source: States, target: States, batch: Batch) -> Record:
        """Fit or judge maps between the layers of a pair; a batch to fit on leaves an empty record."""
        sides = [[rows_of(layer, "token", batch.mask) for layer in side] for side in (source, target)]
        within = None
        if batch.groups is not None:
            within = RowGroups.of(labels_of_rows(batch.groups, batch.mask, source[0], "tokens"), FEWEST)
            sides = [[within.without_means(layer) for layer in side] for side in sides]
        if self._prediction is None:
            pairs = product(range(self.source_layers), range(self.target_layers))
            self._prediction = LinearPrediction(pairs, ridge=self.ridge)
        if batch.number < self.fit_batches:
            self._prediction.fit(*sides)
            return {}
        documents = batch.documents
        if documents is not None:
            documents = labels_of_rows(documents, batch.mask, source[0], "documents")
            documents = documents[within.order] if within else documents
        self._prediction.judge(*sides, batch.number, documents)
        used = torch.tensor([len(within.order), within.rows] if within else [1, 1])
        return {"used": used, "documents": self._prediction.documents(batch.number)}

    def compute(self) -> PredictionEstimate:
        """Return R² over all batches that judged so far, with intervals; see `LinearPrediction.compute`."""
        columns = self._columns()
        assert self._prediction is not None
        shape = (self.source_layers, self.target_layers)
        across, back = (Estimate(*(part.view(shape) for part in way)) for way in self._prediction.compute())
        kept, rows = columns["used"].sum(0).tolist()
        used = kept / rows if self.given == "token" else None
        counts = len(columns["used"]), len(columns["documents"])
        ends = across.value, across.low, across.high
        return PredictionEstimate(*ends, None, None, *counts, back=back, rows_used=used)

    def state_dict(self) -> dict[str, Any]:
        """Return the batches so far, to go on from."""
        prediction = self._prediction and (self._prediction.pairs, self._prediction.state_dict())
        return {"prediction": prediction, "records": super().state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the batches of a `state_dict`."""
        super().load_state_dict(state["records"])
        if state["prediction"]:
            pairs, gathered = state["prediction"]
            self._prediction = LinearPrediction([tuple(pair) for pair in pairs], ridge=self.ridge)
            self._prediction.load_state_dict(gathered)
