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
from thinkalike.measures.ridge_penalty import (
    PENALTIES,
    Basis,
    best_penalty,
    gains_of_penalties,
)

# Documents of a fold are judged by maps that were fitted on the other folds. This divides
# `JACKKNIFE_PARTS`, so that no document is in two folds.
FOLDS = 5

# Folds that must have rows: one that is judged, and two that agree on the penalty.
FEWEST_FOLDS = 3


def fold_of(documents: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
    """Return the fold, 0..`FOLDS` - 1, of each row, such that no document is in two folds.

    Documents are divided into `JACKKNIFE_PARTS` parts, by the last digits of their numbers. The
    jackknife leaves out a part at a time, so each fold is made of whole parts.

    Args:
        documents: A number for the document of each row. With the numbers that `numbered_by_part`
            gives documents, folds have nearly equal sizes.
    """
    part = documents % JACKKNIFE_PARTS
    return part % FOLDS


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
        deviations: y - ȳ for the rows of the fold, with ȳ the mean over the rows outside.
        penalties: The penalties that are tried.
        gains: What the map of each penalty gains on the fold, see `gains_of_penalties`.
    """

    fitted: Float[Tensor, "d e"]
    deviations: Float[Tensor, "k e"]
    penalties: Float[Tensor, " p"]
    gains: Float[Tensor, " p"]


class _FoldResiduals(NamedTuple):
    """How well the k rows of a fold are predicted by a map that was fitted on the rows outside.

    Attributes:
        rows: The indices of the rows.
        residuals: y - ŷ, with the prediction ŷ.
        deviations: y - ȳ, with ȳ the mean of the rows outside.
    """

    rows: Int[Tensor, " k"]
    residuals: Float[Tensor, "k e"]
    deviations: Float[Tensor, "k e"]


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
        """R² = 1 - Σ ‖y - ŷ‖² / Σ ‖y - ȳ‖² of all documents, then without each part of them.

        ŷ is what a map that was fitted on other documents predicts of the states y, and ȳ the mean
        of y in these documents. R² is 0 if y is constant. If the documents are too few for an
        interval, there is only the value of all documents.
        """
        total = self.sums.sum(0)[None]  # (1, 2)
        totals = torch.cat([total, without_parts(self.sums, self.documents)])  # (replicates, 2)
        residual_squares, total_squares = totals.unbind(1)
        smallest = torch.finfo(total_squares.dtype).tiny
        unexplained = residual_squares / total_squares.clamp(min=smallest)
        return torch.where(total_squares > 0, 1 - unexplained, 0.0)


class Predictor:
    """Predicts states from other states of the same rows, on held-out documents, by ridge maps.

    Documents are divided into `FOLDS` folds. The map W for a fold minimises
    Σ ‖y - ȳ - W (x - x̄)‖² + λ ‖W‖² over the rows of the remaining folds, and predicts y for the
    rows of the fold. The λ of a fold is the one with which the maps of the *other* folds predict
    best (`best_penalty`), so that no row has a say in the λ by which it is predicted.

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
        """Prepare n states x for predicting other states of the same rows by ridge regression.

        `documents` has the document of each row. Documents are divided into folds, and each fold
        is predicted by a regression on the rows outside of it. The eigenvectors that this needs of
        the states outside are computed here, once for all states that are predicted later.
        """
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
        """Return the states of the rows in one fold, in the form from which they predict.

        The maps of a fold are fitted on the rows outside of it, and applied to the k rows inside.
        Those are centred by the mean of the rows outside, and expressed in the eigenbasis of
        their scatter matrix. `products` are sums of products of the resulting states.
        """
        is_inside = (fold_of(self.documents) == fold).to(self.states.device)
        rows = is_inside.nonzero()[:, 0]
        outside = self.states[~is_inside]
        mean = outside.mean(0)
        basis = Basis.of((outside - mean).T @ (outside - mean))
        inside = (self.states[rows] - mean) @ basis.vectors  # (k, d)
        return _FoldStates(rows, mean, basis, states=inside, products=inside.T @ inside)

    @takes_arrays
    def of(self, y: Float[Tensor, "n e"]) -> HeldOut:
        """Return how well x predicts y, states of the same rows, on held-out documents.

        The result has, for each part of the documents, the two sums of squares that give R².

        Raises:
            ValueError: y has another number of rows, or a state is not finite.
        """
        # For each part of the documents that the jackknife leaves out, Σ ‖y - ŷ‖² and Σ ‖y - ȳ‖².
        sums = torch.zeros(JACKKNIFE_PARTS, 2, dtype=torch.float64)
        for fold in self._residuals_of_folds(_of_unit_size(y)):
            residual_squares = fold.residuals.square().sum(1)
            total_squares = fold.deviations.square().sum(1)
            squares = torch.stack([residual_squares, total_squares], 1).cpu()  # (k, 2)
            part_of_row = self.documents[fold.rows].cpu() % JACKKNIFE_PARTS
            sums.index_add_(0, part_of_row, squares)
        return HeldOut(sums, self.documents)

    @takes_arrays
    def residuals(self, y: Float[Tensor, "n e"]) -> Float[Tensor, "n e"]:
        """Return the residuals y - ŷ, where ŷ is predicted by a map fitted on other documents.

        They are in float64, in the order of the rows, and divided by the largest absolute entry
        of y less its mean.

        Raises:
            ValueError: y has another number of rows, or a state is not finite.
        """
        y = _of_unit_size(y)
        residuals = torch.zeros_like(y)
        for fold in self._residuals_of_folds(y):
            residuals[fold.rows] = fold.residuals
        return residuals

    def _residuals_of_folds(self, y: Float[Tensor, "n e"]) -> Iterator[_FoldResiduals]:
        """Yield for each fold of documents how well the states x predict y on its rows.

        The prediction ŷ is that of a ridge regression on the rows outside of the fold. Its penalty
        is the one with which the regressions of all *other* folds predict best, so that the rows
        of a fold have no say in it. Residuals are y - ŷ, and deviations y - ȳ, with ȳ the mean of
        the rows outside.

        Raises:
            ValueError: y has a different number of rows than x.
        """
        if len(y) != len(self.states):
            raise ValueError(
                f"y has {len(y)} rows, but x has {len(self.states)}: "
                "give both states of the same rows"
            )
        fits = self._fits(y)
        for index, (fold, fit) in enumerate(zip(self._folds, fits, strict=True)):
            other_fits = [*fits[:index], *fits[index + 1 :]]
            # how much each penalty predicts better than the mean, on each other fold
            gains = torch.stack([other_fit.gains for other_fit in other_fits])
            penalty = best_penalty(gains, fit.penalties)
            # `fold.states` are in the eigenbasis of Σ (x - x̄)(x - x̄)' over the rows outside, in
            # which ridge regression divides by the eigenvalues plus the penalty.
            shrunk_states = fold.states / (fold.basis.values + penalty)
            predicted_deviations = shrunk_states @ fit.fitted  # ŷ - ȳ
            yield _FoldResiduals(fold.rows, fit.deviations - predicted_deviations, fit.deviations)

    def _fits(self, y: Float[Tensor, "n e"]) -> list[_FoldFit]:
        """Return what each fold needs for the ridge regression of y, and what each penalty gains.

        The maps for a fold are fitted on the rows outside of it. The gain of a penalty is by how
        much the map's squared error on the rows inside is below that of the mean outside.
        `fold.states` and `fold.products` are of the rows inside, centred and in the eigenbasis.
        """
        sum_of_all = y.sum(0)
        products_of_all = self.states.T @ y  # Σ x y'
        fits = []
        for fold in self._folds:
            inside = y[fold.rows]
            sum_outside = sum_of_all - inside.sum(0)
            mean_outside = sum_outside / max(len(y) - len(inside), 1)
            deviations = inside - mean_outside

            # Σ (x - x̄) y' over the rows outside: as x is centred, y need not be.
            products_outside = products_of_all - self.states[fold.rows].T @ inside
            centred_products = products_outside - torch.outer(fold.mean, sum_outside)
            fitted = fold.basis.vectors.T @ centred_products
            penalties = PENALTIES.to(y) * fold.basis.unit
            gains = gains_of_penalties(
                fold.basis.values,
                penalties,
                fitted,
                across=fold.states.T @ deviations,
                products=fold.products,
            )
            fits.append(_FoldFit(fitted, deviations, penalties, gains))
        return fits


def both_ways(first: Predictor, second: Predictor) -> Float[Tensor, "2 replicates"]:
    """Return the held-out R² with which the first states predict the second, and in reverse.

    Each row, a direction, has the R² of all documents, and then its jackknife replicates: the R²
    without each part of the documents, if there are enough documents.

    Args:
        first, second: Ridge predictors from the states of the same rows in two layers.
    """
    return torch.stack([first.of(second.states).shares, second.of(first.states).shares])


def bytes_of_predictor(rows: int, width: int) -> float:
    """Return how many bytes a ridge predictor (`Predictor`) takes, in float64.

    It holds its states, the same states in the basis of their fold, and two matrices for each
    fold.

    Args:
        rows: The number of its states.
        width: Their width.
    """
    states = 2 * rows * width
    matrices = 2 * FOLDS * width**2
    return 8.0 * (states + matrices)


def _of_unit_size(x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """Return states less their mean, divided by their largest absolute entry, in float64.

    This changes no R², and squares stay within the range of float64. Constant states become 0.

    Raises:
        ValueError: A state is not finite.
    """
    if not x.isfinite().all():
        raise ValueError("a state is not finite; run the model in a wider dtype")
    centred_states = x.double() - x.double().mean(0)
    smallest = torch.finfo(centred_states.dtype).tiny
    return centred_states / centred_states.abs().max().clamp(min=smallest)


def with_interval(shares: Float[Tensor, "*s r"]) -> Estimate:
    """Return held-out R² values with 95 % intervals over documents.

    The jackknife leaves out documents on which maps are judged, but the maps stay the same. That
    they were fitted on few documents, too, makes the variance 1 + k / (k - 1) times as large, with
    k = `FOLDS` folds (Nadeau & Bengio 2003, equation 8).

    The interval covers the expected R² of maps that are fitted on as many documents of as many
    rows. Maps of more rows predict better. The R² of the best map may therefore lie above the
    interval, and does so with many documents, too, if the states are wide.

    Args:
        shares: The R² of all documents, and then those without each part of the documents, in the
            last axis.
    """
    estimate = jackknife(shares[..., 0], shares[..., 1:].movedim(-1, 0))
    widening = (1 + FOLDS / (FOLDS - 1)) ** 0.5
    value = estimate.value
    low = value + (estimate.low - value) * widening
    high = value + (estimate.high - value) * widening
    return Estimate(value, low, high)
