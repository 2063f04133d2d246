"""How well one layer predicts another on held-out documents, by ridge regression.

Whole documents are held out, both to choose the penalty and to judge the map; see
`thinkalike.measures.ridge_penalty`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.arguments import takes_arrays
from thinkalike.measures.estimates import Estimate, jackknife, without_parts
from thinkalike.measures.folds import JACKKNIFE_PARTS
from thinkalike.measures.ridge_penalty import PENALTIES, Basis, best_penalty, gained

# Documents of a fold are judged by maps that were fitted on the other folds. This divides
# `JACKKNIFE_PARTS`, so that no document is in two folds.
FOLDS = 5

# Folds that must have rows: one that is judged, and two that agree on the penalty.
FEWEST_FOLDS = 3


def fold_of(documents: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
    """Return the fold, 0..`FOLDS` - 1, of each row.

    The rows of one document are in one fold.

    Args:
        documents: The number of the document of each row, by `numbered_by_part`, so that folds
            have nearly equal sizes.
    """
    return documents % JACKKNIFE_PARTS % FOLDS


class _FoldStates(NamedTuple):
    """The states that predict, seen from one fold.

    Attributes:
        rows: The numbers of the rows of the fold.
        mean: The mean x̄ over the rows outside of the fold.
        basis: The basis V of the rows outside.
        states: V' (x - x̄) for the rows of the fold.
        products: Σ V' (x - x̄)(x - x̄)' V over the rows of the fold.
    """

    rows: Int[Tensor, " k"]
    mean: Float[Tensor, " d"]
    basis: Basis
    states: Float[Tensor, "k d"]
    products: Float[Tensor, "d d"]


class _FoldFit(NamedTuple):
    """What the rows outside of a fold say of the states y that are predicted.

    Attributes:
        fitted: V' Σ (x - x̄) y' over the rows outside.
        targets: y - ȳ for the rows of the fold, with ȳ the mean over the rows outside.
        penalties: The penalties that are tried.
        gains: What the map of each penalty gains on the fold, see `gained`.
    """

    fitted: Float[Tensor, "d e"]
    targets: Float[Tensor, "k e"]
    penalties: Float[Tensor, " p"]
    gains: Float[Tensor, " p"]


@dataclass(frozen=True)
class HeldOut:
    """How well states were predicted on held-out documents.

    Attributes:
        sums: For each part of the documents, Σ ‖y - ŷ‖² and Σ ‖y - ȳ‖², (`JACKKNIFE_PARTS`, 2).
        documents: The number of the document of each row.
    """

    sums: Float[Tensor, "parts 2"]
    documents: Int[Tensor, " n"]

    @property
    def shares(self) -> Float[Tensor, " replicates"]:
        """R² = 1 - Σ ‖y - ŷ‖² / Σ ‖y - ȳ‖² of all documents, and then without each part.

        It is 0 for constant states.
        """
        total_of_all = self.sums.sum(0)[None]
        totals = torch.cat([total_of_all, without_parts(self.sums, self.documents)])
        residual, variation = totals.unbind(1)
        smallest = torch.finfo(variation.dtype).tiny
        return torch.where(variation > 0, 1 - residual / variation.clamp(min=smallest), 0.0)


class Predictor:
    """States that predict others of the same rows, by ridge regression.

    For each of `FOLDS` folds of documents, W minimises Σ ‖y - ȳ - W (x - x̄)‖² + λ ‖W‖² over the
    rows outside, and predicts those inside. The λ of a fold is the `best_penalty` of the maps of
    the *other* folds, so that no row is judged by what was chosen for it.

    Args:
        x: The states.
        documents: The number of the document of each row, by `numbered_by_part`.

    Attributes:
        documents: The same numbers.
        states: x in float64, less its mean, in units of its largest entry.

    Raises:
        ValueError: A state is not finite, there are too few documents, or their numbers do not
            fit.
    """

    @takes_arrays
    def __init__(self, x: Float[Tensor, "n d"], documents: Int[Tensor, " n"]):
        self.documents = documents.long()
        self.states = _of_unit_size(x)
        if len(self.documents) != len(x):
            raise ValueError(
                f"documents has {len(documents)} numbers for {len(x)} rows: "
                "give the document of each row"
            )
        fold_count = len(fold_of(self.documents).unique())
        if fold_count < FEWEST_FOLDS:
            raise ValueError(
                f"documents are of {fold_count} folds, and R² needs {FEWEST_FOLDS}: "
                "give more documents"
            )
        self._folds = [self._fold_states(fold) for fold in range(FOLDS)]

    def _fold_states(self, fold: int) -> _FoldStates:
        """Return the mean, the basis and the products of the states, seen from one fold.

        The mean and the basis are those of the rows outside of the fold, which fit its maps.
        """
        is_inside = (fold_of(self.documents) == fold).to(self.states.device)
        rows = is_inside.nonzero()[:, 0]
        outside = self.states[~is_inside]
        mean = outside.mean(0)
        basis = Basis.of((outside - mean).T @ (outside - mean))
        inside = (self.states[rows] - mean) @ basis.vectors
        return _FoldStates(rows, mean, basis, inside, inside.T @ inside)

    @takes_arrays
    def of(self, y: Float[Tensor, "n e"]) -> HeldOut:
        """Return how well y, states of the same rows, is predicted on held-out documents.

        Raises:
            ValueError: y has another number of rows, or a state is not finite.
        """
        sums = torch.zeros(JACKKNIFE_PARTS, 2, dtype=torch.float64)
        for rows, residuals, targets in self._residuals(_of_unit_size(y)):
            squares = torch.stack([residuals.square().sum(1), targets.square().sum(1)], 1).cpu()
            part_of_row = self.documents[rows].cpu() % JACKKNIFE_PARTS
            sums.index_add_(0, part_of_row, squares)
        return HeldOut(sums, self.documents)

    @takes_arrays
    def residuals(self, y: Float[Tensor, "n e"]) -> Float[Tensor, "n e"]:
        """Return y - ŷ, where each row is predicted by the map of the other folds' documents.

        It is in float64 and in units of the largest entry of y less its mean, in the order of the
        rows.

        Raises:
            ValueError: y has another number of rows, or a state is not finite.
        """
        y = _of_unit_size(y)
        residuals = torch.zeros_like(y)
        for rows, residuals_of_fold, _ in self._residuals(y):
            residuals[rows] = residuals_of_fold
        return residuals

    def _residuals(self, y: Float[Tensor, "n e"]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield for each fold its rows, y - ŷ (k, e) and y - ȳ (k, e) of these k rows.

        ŷ and ȳ come from the rows outside of the fold, and the penalty from the gains on the other
        folds.
        """
        if len(y) != len(self.states):
            raise ValueError(
                f"y has {len(y)} rows, but x has {len(self.states)}: "
                "give both states of the same rows"
            )
        fits = self._fits(y)
        for index, (fold, fit) in enumerate(zip(self._folds, fits, strict=True)):
            other_fits = [*fits[:index], *fits[index + 1 :]]
            gains = torch.stack([other_fit.gains for other_fit in other_fits])
            penalty = best_penalty(gains, fit.penalties)
            predicted = (fold.states / (fold.basis.values + penalty)) @ fit.fitted
            yield fold.rows, fit.targets - predicted, fit.targets

    def _fits(self, y: Float[Tensor, "n e"]) -> list[_FoldFit]:
        """Return what the rows outside of each fold say of y, fold by fold."""
        total = y.sum(0)
        products = self.states.T @ y  # over all rows, from which those of a fold are subtracted
        fits = []
        for fold in self._folds:
            inside = y[fold.rows]
            sum_outside = total - inside.sum(0)
            targets = inside - sum_outside / max(len(y) - len(inside), 1)

            # Σ (x - x̄) y' over the rows outside does not need y less its mean.
            products_inside = self.states[fold.rows].T @ inside
            across = products - products_inside - torch.outer(fold.mean, sum_outside)
            fitted = fold.basis.vectors.T @ across
            penalties = PENALTIES.to(y) * fold.basis.unit
            gains = gained(
                fold.basis.values, penalties, fitted, fold.states.T @ targets, fold.products
            )
            fits.append(_FoldFit(fitted, targets, penalties, gains))
        return fits


def both_ways(first: Predictor, second: Predictor) -> Float[Tensor, "2 replicates"]:
    """Return the held-out R² of the second states from the first, and in reverse.

    The value of all documents comes first, then those without each part of the documents.
    """
    return torch.stack([first.of(second.states).shares, second.of(first.states).shares])


def bytes_of_predictor(rows: int, width: int) -> float:
    """Return the bytes of a `Predictor`.

    These are its states, also in the bases of all folds, and two matrices for each fold.
    """
    return 8.0 * (2 * rows * width + 2 * FOLDS * width**2)


def _of_unit_size(x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """Return states less their mean, in float64 and units of their largest entry.

    R² keeps its value, and squares stay within the range of float64. Constant states become 0.

    Raises:
        ValueError: A state is not finite.
    """
    if not x.isfinite().all():
        raise ValueError("a state is not finite; run the model in a wider dtype")
    centred_states = x.double() - x.double().mean(0)
    smallest = torch.finfo(centred_states.dtype).tiny
    return centred_states / centred_states.abs().max().clamp(min=smallest)


def with_interval(shares: Float[Tensor, "*s r"]) -> Estimate:
    """Return values with 95 % intervals over documents, from their replicates without a part.

    The jackknife leaves documents out of what is judged, and the maps stay. That these are of few
    documents, too, makes the variance 1 + k / (k - 1) times that, with k folds (Nadeau & Bengio
    2003, equation 8).

    Args:
        shares: The value and then its replicates, in the last axis, as `HeldOut.shares`.
    """
    estimate = jackknife(shares[..., 0], shares[..., 1:].movedim(-1, 0))
    widening = (1 + FOLDS / (FOLDS - 1)) ** 0.5
    value = estimate.value
    low = value + (estimate.low - value) * widening
    high = value + (estimate.high - value) * widening
    return Estimate(value, low, high)
