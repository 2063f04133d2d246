"""Cross-fitted ridge regression, its penalty chosen by cross-validation over documents.

Whole documents are held out, both to choose the penalty and to judge; see `thinkalike.measures.closed_forms`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.arguments import takes_arrays
from thinkalike.measures.closed_forms import PENALTIES, Basis, chosen, gained
from thinkalike.measures.estimates import Estimate, jackknife, without_parts
from thinkalike.measures.folds import JACKKNIFE_PARTS
from thinkalike.measures.ladder import RUNGS, reading_of

FOLDS = 5  # of documents; those of a fold are judged by maps of the others. It divides JACKKNIFE_PARTS
FEWEST_FOLDS = 3  # that have rows: one that is judged, and two that agree on the penalty
FINE = 0.02  # of the unit of a reading, between places that are tried


def fold_of(documents: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
    """Return the fold, below `FOLDS`, of each row, from the number of its document by `numbered_by_part`."""
    return documents % JACKKNIFE_PARTS % FOLDS


class _Fold(NamedTuple):
    """What the rows outside a fold say of the states that predict, and the fold's own rows in that basis."""

    rows: Tensor  # the numbers of the fold's rows
    mean: Float[Tensor, " d"]
    basis: Basis
    inside: Float[Tensor, "k d"]
    products: Float[Tensor, "d d"]


@dataclass(frozen=True)
class HeldOut:
    """Squares of what a cross-fitted map left of states, and of the states, summed by part of the documents.

    Attributes:
        sums: (JACKKNIFE_PARTS, 2).
        documents: The number of the document of each row.
    """

    sums: Float[Tensor, "parts 2"]
    documents: Int[Tensor, " n"]

    @property
    def shares(self) -> Float[Tensor, " replicates"]:
        """R² = 1 - Σ ‖y - ŷ‖² / Σ ‖y - ȳ‖² of all documents, and then without each part; 0 of constant states."""
        missed, varied = torch.cat([self.sums.sum(0)[None], without_parts(self.sums, self.documents)]).unbind(1)
        return torch.where(varied > 0, 1 - missed / varied.clamp(min=torch.finfo(varied.dtype).tiny), 0.0)


class Predictor:
    """States that predict others of the same rows, by ridge regression.

    For each of `FOLDS` folds of documents, W minimises Σ ‖y - ȳ - W (x - x̄)‖² + λ ‖W‖² over the rows outside, and
    predicts those inside. The λ of a fold is that `chosen` of the maps of the *other*
    folds, so that no row is judged by what was chosen for it.

    Args:
        x: The states.
        documents: The number of the document of each row, by `numbered_by_part`.

    Attributes:
        states: x in float64, less its mean, in units of its largest entry.

    Raises:
        ValueError: A state is not finite, or there are too few documents.
    """

    @takes_arrays
    def __init__(self, x: Float[Tensor, "n d"], documents: Int[Tensor, " n"]):
        self.documents, self.states = documents.long(), _of_unit_size(x)
        if len(self.documents) != len(x):
            raise ValueError(f"documents has {len(documents)} numbers for {len(x)} rows: give the document of each row")
        folds = len(fold_of(self.documents).unique())
        if folds < FEWEST_FOLDS:
            raise ValueError(f"documents are of {folds} folds, and R² needs {FEWEST_FOLDS}: give more documents")
        self._folds = [self._fold(fold) for fold in range(FOLDS)]

    def _fold(self, number: int) -> _Fold:
        is_inside = (fold_of(self.documents) == number).to(self.states.device)
        rows, outside = is_inside.nonzero()[:, 0], self.states[~is_inside]
        mean = outside.mean(0)
        basis = Basis.of((outside - mean).T @ (outside - mean))
        inside = (self.states[rows] - mean) @ basis.vectors
        return _Fold(rows, mean, basis, inside, inside.T @ inside)

    @takes_arrays
    def of(self, y: Float[Tensor, "n e"]) -> HeldOut:
        """Return how well y is predicted on held-out documents."""
        sums = torch.zeros(JACKKNIFE_PARTS, 2, dtype=torch.float64)
        for rows, left, apart in self._residuals(_of_unit_size(y)):
            squares = torch.stack([left.square().sum(1), apart.square().sum(1)], 1).cpu()
            sums.index_add_(0, self.documents[rows].cpu() % JACKKNIFE_PARTS, squares)
        return HeldOut(sums, self.documents)

    @takes_arrays
    def residuals(self, y: Float[Tensor, "n e"]) -> Float[Tensor, "n e"]:
        """Return what is left of y where each row is predicted by the map of the other documents."""
        y = _of_unit_size(y)
        residuals = torch.zeros_like(y)
        for rows, left, _ in self._residuals(y):
            residuals[rows] = left
        return residuals

    def _residuals(self, y: Float[Tensor, "n e"]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield for each fold its rows, y - ŷ of them, and y - ȳ, with maps and means of the rows outside."""
        if len(y) != len(self.states):
            raise ValueError(f"y has {len(y)} rows, but x has {len(self.states)}: give both states of the same rows")
        total, count, whole = y.sum(0), len(y), self.states.T @ y
        found, gains = [], []
        for fold in self._folds:
            own = y[fold.rows]
            apart = own - (total - own.sum(0)) / max(count - len(own), 1)
            # Σ (x - x̄) y' over the rows outside needs no mean of y taken out
            across = whole - self.states[fold.rows].T @ own - torch.outer(fold.mean, total - own.sum(0))
            fitted, penalties = fold.basis.vectors.T @ across, PENALTIES.to(y) * fold.basis.unit
            gains.append(gained(fold.basis.values, penalties, fitted, fold.inside.T @ apart, fold.products))
            found.append((fitted, apart, penalties))
        for number, (fold, (fitted, apart, penalties)) in enumerate(zip(self._folds, found, strict=True)):
            shift = chosen(torch.stack([*gains[:number], *gains[number + 1 :]]), penalties)
            yield fold.rows, apart - (fold.inside / (fold.basis.values + shift)) @ fitted, apart


def both_ways(one: Predictor, other: Predictor) -> Float[Tensor, "2 replicates"]:
    """Return the held-out R² of the second states from the first, and of the first from the second."""
    return torch.stack([one.of(other.states).shares, other.of(one.states).shares])


def bytes_of_predictor(rows: int, width: int) -> float:
    """Return the bytes of a `Predictor`: its states, also in the bases of all folds, and two matrices for each fold."""
    return 8.0 * (2 * rows * width + 2 * FOLDS * width**2)


def _of_unit_size(x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """Return states less their mean, in float64 and units of their largest entry: R² keeps its value.

    Raises:
        ValueError: A state is not finite.
    """
    if not x.isfinite().all():
        raise ValueError("a state is not finite; run the model in a wider dtype")
    apart = x.double() - x.double().mean(0)
    return apart / apart.abs().max().clamp(min=torch.finfo(apart.dtype).tiny)


def with_interval(shares: Float[Tensor, "*s r"]) -> Estimate:
    """Return values with 95 % intervals over documents, from their replicates without a part of these.

    The jackknife leaves documents out of what is judged, and the maps stay. That these are of few documents, too, makes
    the variance 1 + k / (k - 1) times that, with k folds (Nadeau & Bengio 2003, equation 8).
    """
    found, wider = jackknife(shares[..., 0], shares[..., 1:].movedim(-1, 0)), (1 + FOLDS / (FOLDS - 1)) ** 0.5
    return Estimate(found.value, *(found.value + (end - found.value) * wider for end in (found.low, found.high)))


def with_ends(value: Float[Tensor, " r"], marks: Sequence[int], rungs: Float[Tensor, "k r"]) -> Estimate:
    """Return the reading of a value, see `reading_of`, and between which readings it does not differ from the rungs.

    The interval holds the places at which that of the difference of value and rungs holds 0 (Fieller 1954), so that it
    is right where rungs lie close to each other or a value below all. Rungs are interpolated, and go on beyond the
    outer marks as between the last two.
    """
    places = torch.arange(RUNGS[0], RUNGS[-1] + FINE / 2, FINE, dtype=value.dtype, device=value.device)
    known, rising = torch.tensor(marks).to(places), rungs[rungs[:, 0].cummax(0).indices]
    below = torch.bucketize(places, known[1:-1])
    share = ((places - known[below]) / (known[below + 1] - known[below]))[:, None]
    apart = with_interval(value - torch.lerp(rising[below], rising[below + 1], share))
    middle = reading_of(value[:1], marks, rungs[:, :1])
    held = torch.cat([places[(apart.low <= 0) & (apart.high >= 0)], middle])
    return Estimate(middle[0], held.min(), held.max())
