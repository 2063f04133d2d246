"""How much of one model's states a linear map of another's predicts on held-out rows: R², in both directions.

Given states less the mean of their token (`RowGroups.without_means`) it is R² given the token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.arguments import BatchNumber, Count, takes_arrays
from thinkalike.measures.closed_forms import HalvedMoments, LayerPair, LayerStates, Regression, Ridge
from thinkalike.measures.contract import APART, Batch
from thinkalike.measures.estimates import FEWEST, PARTS, Estimate, RowGroups, in_halves, jackknife, without_parts
from thinkalike.measures.layer_means import Accumulator, LayerPairEstimate, numbers_of
from thinkalike.measures.rows import labels_of_rows, rows_of

MAPS = 2**31  # bytes of maps in memory at once; batches are read again for those of further layer pairs
KEPT = 2**29  # bytes of states that stay in memory until they are read again for further layer pairs
READING = 2**32  # between the numbers of a batch in two readings


def pairs_at_once(source: int, target: int) -> int:
    """Return of how many layer pairs of these widths the maps, there and back, are in memory at once."""
    return max(MAPS // (2 * 8 * source * target), 1)


class LinearPrediction:
    """Held-out R² of ridge regressions of layer pairs (l, m), from the source to the target and back.

    R² = 1 - Σ ‖y - ŷ‖² / Σ ‖y - ȳ‖² over the rows that judge, with ŷ = ȳ + W (x - x̄), and W, x̄, ȳ from the rows to
    fit on. It is at most 1, and 0 for what predicts no better than ȳ; a map that overfits goes below. W minimises
    Σ ‖y - ŷ‖² + λ ‖W‖². Everything is in float64, and sums over batches come before the ratio. R² back predicts x from
    y. First come all batches to `fit` on, then those that `judge`.

    Unless a ridge is given, λ is chosen by cross-validation over documents, see `penalty_of`; where no map does better
    than ȳ, W is 0.

    Args:
        ridge: λ in units of the mean of the diagonal of Σ (x - x̄)(x - x̄)', more than 0; None: it is chosen.
    """

    @takes_arrays
    def __init__(self, pairs: Iterable[LayerPair], *, ridge: Ridge = None):
        self._moments: HalvedMoments | None = HalvedMoments(pairs, 1 if ridge else 2)  # None: maps are solved for
        self.pairs, self.ridge = self._moments.pairs, ridge
        self.maps: list[tuple[Regression, Regression]] = []  # of each pair, there and back
        self.halves: list[tuple[Regression, Regression]] = []  # the same, by half of the documents, where these fit
        # by part of the documents, pair and direction: the squares of residuals, of states, and of residuals by half
        self._sums = torch.zeros(PARTS, len(self.pairs), 2, 3, dtype=torch.float64)
        self.documents = torch.zeros(0, dtype=torch.long)  # the number of the document of each row that judged

    @takes_arrays
    def fit(self, sources: LayerStates, targets: LayerStates, documents: Int[Tensor, " n"] | None = None) -> None:
        """Add the states of the same n rows in both models to fit on, before any judge; see `Moments.update`.

        Args:
            documents: The number of the document of each row, as for `judge`; by default each row is one.
        """
        if not self._moments:
            raise ValueError("the maps have been judged already: give all batches to fit on first")
        layers = [*sources.values()] if isinstance(sources, Mapping) else sources
        if not len(layers):
            raise ValueError("sources is empty: give the states of one layer or more")
        n = len(layers[0])
        _check_documents(documents, n)
        self._moments.update(sources, targets, torch.arange(n) if documents is None else documents % PARTS)

    @takes_arrays
    @torch.no_grad()
    def judge(
        self,
        sources: LayerStates,
        targets: LayerStates,
        number: BatchNumber = None,
        documents: Int[Tensor, " n"] | None = None,
    ) -> Int[Tensor, " n"]:
        """Add a batch of held-out rows, as `Moments.update` takes them, and return the document of each row.

        Args:
            number: Of the batch; by default one that no other has.
            documents: The number of the document of each row, the same in all batches; by default each row is one.

        Raises:
            ValueError: Fewer than two rows came to fit on, layers differ in rows, or a state is not finite.
        """
        if self._moments:
            self.maps, self._moments = [self._solved(self._moments, pair) for pair in self.pairs], None
        rows: dict[tuple[int, int], Tensor] = {}
        number = len(self.documents) if number is None else number
        parts: list[Tensor] = []
        for place, (pair, ways) in enumerate(zip(self.pairs, self.maps, strict=True)):
            for key, states, way in zip(enumerate(pair), (sources, targets), ways, strict=True):
                if key not in rows:  # zeros where the states to fit on did not vary but by rounding
                    states_apart = states[key[1]].double() - way.mean_x
                    rows[key] = torch.zeros_like(states_apart) if way.is_constant else states_apart
            x, y = rows[0, pair[0]], rows[1, pair[1]]
            if len(x) != len(y):
                raise ValueError(f"source layer {pair[0]} has {len(x)} rows, but target layer {pair[1]} has {len(y)}")
            _check_documents(documents, len(x))
            owners = torch.arange(len(x)) + number * APART if documents is None else documents
            belongs = torch.nn.functional.one_hot(owners.to(x.device).long() % PARTS, PARTS).to(x).T
            for back, (given, wanted, way) in enumerate(((x, y, ways[0]), (y, x, ways[1]))):
                left, whole = torch.addmm(wanted, given, way.weight, alpha=-1), wanted.square().sum(1)
                of_half = torch.zeros_like(whole)
                if self.halves:
                    half = self.halves[place][back]
                    shift = (way.mean_y - half.mean_y) - (way.mean_x - half.mean_x) @ half.weight
                    of_half = torch.addmm(wanted, given, half.weight, alpha=-1).add_(shift).square_().sum(1)
                parts.append(belongs @ torch.stack([left.square_().sum(1), whole, of_half], 1))
        sums = torch.stack(parts, 1).cpu().view_as(self._sums)
        if not sums.isfinite().all():
            raise ValueError("a state is not finite, or too large for float64; run the model in a wider dtype")
        owners = owners.cpu()
        self._sums = self._sums + sums
        self.documents = torch.cat([self.documents, owners])
        return owners

    def compute(self) -> tuple[Estimate, Estimate]:
        """Return R² from the source, and back, of each pair, with 95 % intervals over documents, a tenth left out.

        Documents that are worth fewer than `FEWEST_GROUPS` of equal length have the interval (-∞, ∞).

        Raises:
            ValueError: No batch judged, or a layer does not vary in those that did.
        """
        if not len(self.documents):
            raise ValueError("there is no R² of no rows: call fit, then judge")
        if constant := (self._sums[..., 1].sum(0) == 0).nonzero().tolist():
            place, direction = constant[0]
            side, layer = ("source", self.pairs[place][0]) if direction else ("target", self.pairs[place][1])
            raise ValueError(f"{side} layer {layer} does not vary, so no share of it can be predicted: leave it out")
        explained = self.replicates()
        both = jackknife(explained[0], explained[1:])
        return both[:, 0], both[:, 1]

    def replicates(self) -> Float[Tensor, "r pairs 2"]:
        """Return R² from the source, and back, of all documents and then without each part of them."""
        left, whole, _ = torch.cat([self._sums.sum(0)[None], without_parts(self._sums, self.documents)]).unbind(-1)
        return 1 - left / whole

    def left_to_gain(self) -> Estimate:
        """Return what all documents to fit on gained over half of them in R², the mean of both ways; NaN if unknown."""
        left, whole, half = torch.cat([self._sums.sum(0)[None], without_parts(self._sums, self.documents)]).unbind(-1)
        gained = torch.where(half > 0, (half - left) / whole, torch.nan).mean(-1)
        return jackknife(gained[0], gained[1:])

    def state_dict(self) -> dict[str, Any]:
        """Return all that was seen, to go on from."""
        return {
            "moments": self._moments.state_dict() if self._moments else None,
            **{name: [[tuple(way) for way in both] for both in getattr(self, name)] for name in ("maps", "halves")},
            "judged": (self._sums, self.documents),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what the `state_dict` of a prediction of the same pairs holds."""
        if state["moments"] is None:
            self._moments = None
        else:
            self._moments = HalvedMoments(self.pairs, len(state["moments"]))
            self._moments.load_state_dict(state["moments"])
        for name in ("maps", "halves"):
            setattr(self, name, [(Regression(*there), Regression(*back)) for there, back in state[name]])
        self._sums, self.documents = state["judged"]

    def _solved(self, moments: HalvedMoments, pair: LayerPair) -> tuple[Regression, Regression]:
        """Return the maps of a pair; products across its layers make room for them."""
        maps = moments.ridge(pair, ridge=self.ridge), moments.ridge(pair, back=True, ridge=self.ridge)
        if not self.ridge and 2 * len(self.pairs) <= pairs_at_once(*maps[0].weight.shape):
            found, sides = moments.halves[0].of(pair), zip(("source", "target"), pair, strict=True)
            halves = zip((found, found.reversed), (moments.bases[side][1] for side in sides), maps, strict=True)
            there, back = (Regression(*own[1:3], basis.ridge(own.xy, way.penalty)) for own, basis, way in halves)
            self.halves.append((there, back))
        moments.forget(pair)
        return maps


def _check_documents(documents: Int[Tensor, " n"] | None, rows: int) -> None:
    if documents is not None and len(documents) != rows:
        raise ValueError(f"documents has {len(documents)} numbers for {rows} rows: give the document of each row")


class PredictionEstimate(LayerPairEstimate):
    """Held-out R² of each target layer from each source layer, (l, m), its reverse `back`, and `left_to_gain`."""

    def __init__(self, *, back: Estimate, left_to_gain: Estimate, **estimates: Any):
        super().__init__(**estimates)
        self.back, self.left_to_gain = back, left_to_gain


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

    @takes_arrays
    def __init__(
        self,
        source_layers: Count,
        target_layers: Count,
        *,
        fit_batches: Count,
        given: str = "none",
        ridge: Ridge = None,
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
        reading, place = divmod(batch.number, READING)
        is_fit, own = place < self.fit_batches, torch.arange(len(sides[0][0]), device=source[0].device) + place * APART
        owners = own if documents is None else labels_of_rows(documents, mask, source[0], "documents")
        if batch.groups is not None:
            tokens = labels_of_rows(batch.groups, mask, source[0], "groups")
            within = RowGroups.of(*(in_halves(tokens, owners), 2) if is_fit else (tokens, FEWEST))
            sides, owners = [[within.without_means(layer) for layer in side] for side in sides], owners[within.order]
        prediction = self._of_reading(reading, *(max(layer.shape[1] for layer in side) for side in sides))
        if is_fit:
            prediction.fit(*sides, owners)
        else:
            used = torch.tensor([len(within.order), within.rows] if within else [len(owners)] * 2)
            self.add(batch.number, prediction.judge(*sides, place, owners), used=used)
        self.last = batch.number

    def _of_reading(self, reading: int, source: int, target: int) -> LinearPrediction:
        """Return the prediction of the layer pairs, of layers of these widths, that a reading of the batches is for."""
        if reading == len(self.predictions):
            for each in self.predictions:
                each.maps, each.halves = [], []  # no further batch is to judge them
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
        ways = zip(*((*each.compute(), each.left_to_gain()) for each in self.predictions), strict=True)
        parts = ([torch.cat(part).view(shape) for part in zip(*way, strict=True)] for way in ways)
        across, back, left_to_gain = (Estimate(*part) for part in parts)
        kept, rows = found["used"].sum(0).tolist()
        counts = numbers_of(self.predictions[0].documents)  # all batches come once for each prediction
        counts["rows"] = rows // len(self.predictions)  # also those without a group, which `rows_used` leaves out
        return PredictionEstimate(
            across=across,
            batches=len(found["used"]) // len(self.predictions),
            **counts,
            back=back,
            left_to_gain=left_to_gain,
            rows_used=kept / rows if self.given == "token" else None,
        )

    def replicates(self) -> Float[Tensor, "r l m"]:
        """Return the mean R² of both directions, of all documents and then without each part of them."""
        parts = torch.cat([each.replicates().mean(-1) for each in self.predictions], 1)
        return parts.unflatten(1, (self.source_layers, self.target_layers))

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
