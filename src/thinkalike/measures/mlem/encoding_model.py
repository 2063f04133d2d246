"""Metric-learning encoding models (Salle et al. 2024, appendix B), fitted exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from thinkalike.arguments import (
    Count,
    Seed,
    Within,
    check_choice,
    check_rows,
    checked_numbers,
    real_numbers,
    refuse_huge,
    shown,
    tensor_of,
)
from thinkalike.measures.distances.neural import NeuralDistances, upper
from thinkalike.measures.folds import check_groups, stimulus_folds
from thinkalike.measures.kinds import Columns, Kinds, Level, level_of
from thinkalike.measures.mlem.features import DIFFERENCES, MISSING, FeatureEncoder, Features, grouped, predict
from thinkalike.measures.mlem.solver import Division, Fitted, describe, fit_weights
from thinkalike.measures.mlem.sums import StimulusPairs

ALPHAS = tuple(10.0**power for power in range(-4, 5))
FEWEST_PER_FOLD = 3  # stimuli whose distances can be ranked: two have one distance
FEWEST_PAIRS_PER_FOLD = 2  # under recipe="paper", where folds divide pairs
UNEXPLAINED = 1e-9  # of the mean squared distance: smaller weights are rounding
CHOICES = {
    "weights": ("diagonal", "full"),
    "unknown": ("error", "new"),
    "recipe": ("stimuli", "paper"),
    "scale": ("auto", "mean", "minmax", "none"),
    "difference": DIFFERENCES,
    "missing": MISSING,
}


class MLEM(BaseEstimator):
    """A model of the squared neural distances of pairs of stimuli: a metric over their features.

    (D_ij)² ≈ b + Δᵀ W Δ with Δ the differences of the features, so that W_ff is the weight of a category's indicator,
    or of the squared difference of a scaled feature. W is diagonal and non-negative, or symmetric positive
    semidefinite, and minimises Σ_{i<j} (b + Δᵀ W Δ - (D^N_ij)²)² + α ‖W‖²; b is free, as in `Ridge(positive=True)`. The
    solution is exact; only the folds are random. It is an estimator of scikit-learn, for `cross_val_score` and others,
    and can be pickled.

    With difference="levels" each two levels a, b of a nominal feature have a weight w^f_ab ≥ 0 of their own, and α
    shrinks the weights of a feature to their mean: α = ∞ is the model with one weight per feature, see `level_path`.

    Args:
        weights: "diagonal", or "full" with an interaction W_fg of every two features, which levels do not have.
        distance: The neural distance D^N, see `NeuralDistances`.
        alpha: One ridge, or several, from which each layer gets that of the best mean Spearman's ρ over the folds; with
            levels its unit is a number of stimuli, and ∞ is added to several α.
        kinds: "auto": as the type and the values of each column imply, see `kinds.kind_of`; else the kind of all
            features, of each, or {name or number: kind} of some, see `Columns.of`.
        difference, missing: See `FeatureEncoder`.
        unknown: How `predict` and `score` treat a level that is new to the fit: "error", or "new": its distance to all
            other levels is the mean distance of two levels of that feature, as `feature_importance` always does.
        scale: The unit of W, b and predictions: "mean", the mean squared distance of the training pairs; "minmax",
            which maps their squared distances to [0, 1]; "none"; "auto", "minmax" under recipe="paper", else "mean".
        recipe: "stimuli": folds divide stimuli; "paper": they divide pairs, so that training and test share stimuli.
        folds, seed: The number and the seed of the folds that choose alpha.

    Attributes:
        weights_: W, (f) if diagonal, else (f, f); it and the next three have a first axis of layers if Y has one. With
            levels it is the mean weight of each feature's pairs of levels.
        level_weights_: With levels, those of each nominal feature, see `LevelWeights`.
        intercept_, alpha_: b and α.
        range_: The squared distances that become 0 and 1 in the scale of the fit.
        correlation_: (f, f), Pearson's r of the features' Δ over the pairs (figure S5), NaN beside a constant.
        condition_number_: The condition number of that matrix without the constant features.

    >>> features, states = np.array([[0, 0], [0, 1], [1, 0], [1, 1]] * 5), torch.randn(20, 3)
    >>> states[:, 0] += 9 * torch.tensor([0.0, 0.0, 1.0, 1.0] * 5)  # of the first feature
    >>> int(MLEM(alpha=0.0).fit(features, states).weights_.argmax())
    0
    """

    def __init__(
        self,
        *,
        weights: str = "diagonal",
        distance: str = "euclidean",
        alpha: Annotated[float, Within(least=0, is_finite=False)] | Sequence[float] | np.ndarray = ALPHAS,
        kinds: Kinds = "auto",
        difference: str = "indicator",
        missing: str = "own_level",
        unknown: str = "error",
        scale: str = "auto",
        recipe: str = "stimuli",
        folds: Count = 5,
        seed: Seed = 0,
    ):
        self.weights, self.distance, self.alpha = weights, distance, alpha
        self.kinds, self.difference, self.missing, self.unknown = kinds, difference, missing, unknown
        self.scale, self.recipe, self.folds, self.seed = scale, recipe, folds, seed

    def fit(self, X: Any, Y: Any, groups: Any = None) -> MLEM:
        """Fit all layers, with a warning of features that are constant, taken for continuous, or much the same.

        Args:
            X: (n, f), a DataFrame, an array, a tensor or a list of lists; numbers, text, truth values or categories,
                and NaN, None or pd.NA where a value is missing.
            Y: (n, d) states, or (n, n) precomputed distances; or a sequence of layers, of any models and widths.
            groups: (n) numbers or names; stimuli of a group, such as the words of a sentence, stay in one fold.

        Raises:
            ValueError: The tables do not fit together, or every feature, or all distances of a layer, are constant.
        """
        table = self.read(X, Y, groups)
        self.encoder_ = FeatureEncoder.of(table.values, table.columns, self.difference, self.missing)
        features, pairs = self.encoder_.encode_values(table.values), table.stimulus_pairs
        fitted = self.fit_weights(features, pairs, self.divide(pairs, table.groups))
        self.correlation_, self.condition_number_ = describe(fitted, features.labels)
        self._keep(fitted, table)
        self.level_weights_ = level_weights(self._fitted, self.encoder_, features, table.single)
        return self

    def predict(self, X: Any) -> Float[Tensor, "*l p"]:
        """Return the squared distances of all pairs i < j of stimuli, in the scale of the fit and the order of `pdist`.

        Under missing="drop" stimuli that lack a value are left out. A ValueError names a level that is new to the fit.
        """
        check_is_fitted(self, "encoder_")
        values, levels = self.encoder_.columns.read(X, self._fitted.weights.device)
        values = values[kept_rows(values, self.missing == "drop")]
        if self.unknown == "error":
            self.encoder_.refuse_new(values, levels)
        features = self.encoder_.encode_values(values)
        chosen = upper(len(features), features.levels.device)
        differences = [features.difference(feature).flatten()[chosen] for feature in range(len(features.scaled))]
        predicted = predict(differences, self._fitted.terms, self._fitted.weights) + self._fitted.intercept[:, None]
        return predicted[0] if self._single else predicted

    def score(self, X: Any, Y: Any) -> float | Float[Tensor, " l"]:
        """Return Spearman's ρ of predicted and neural distances over all pairs; one number, or one per layer.

        A ValueError says that a prediction is constant, or that the fit had other layers or not a level.
        """
        check_is_fitted(self, "encoder_")
        table = self.read(X, Y, columns=self.encoder_.columns)
        if self.unknown == "error":
            self.encoder_.refuse_new(table.values, table.levels)
        pairs, fitted = table.stimulus_pairs, self._fitted
        if len(pairs.layers) != len(fitted.weights):
            raise ValueError(f"{len(pairs.layers)} layers, but the model was fitted on {len(fitted.weights)}")
        differences = pairs.differences(self.encoder_.encode_values(table.values))
        scores = pairs.score([differences], fitted.terms, fitted.weights)[0]
        if scores.isnan().any():
            layer = int(scores.isnan().nonzero()[0])
            raise ValueError(f"the prediction of layer {layer} is constant: no feature explains its distances")
        return float(scores[0]) if table.single else scores

    def read(self, X: Any, Y: Any, groups: Any = None, columns: Columns | None = None) -> Table:
        """Check this model's choices, and the data of a `fit`; X is read by these columns, by default its own."""
        for name, choices in CHOICES.items():
            check_choice(name, getattr(self, name), choices)
        checked_numbers(MLEM.__init__, self.get_params(deep=False))
        by_pair, columns = self.recipe == "paper", Columns.of(X, self.kinds) if columns is None else columns
        if by_pair and groups is not None:
            raise ValueError("recipe='paper' divides pairs into folds and cannot keep groups together")
        check_rows([("X", X), ("Y", Y), ("groups", groups)])
        layers, single = _layers_of(Y)
        states = [tensor_of(layer, Float, f"Y, layer {index}") for index, layer in enumerate(layers)]
        values, levels = columns.read(X, states[0].device)
        for index, layer in enumerate(states):
            if layer.dim() != 2 or len(layer) != len(values):
                shape = tuple(layer.shape)
                raise ValueError(f"Y, layer {index} has shape {shape}; X has {len(values)} stimuli: give as many rows")
        if len(values) < 2:
            raise ValueError(f"X has {len(values)} stimuli: give two or more, as distances are of pairs")
        kept = kept_rows(values, self.missing == "drop")
        distances = [NeuralDistances.of(layer, self.distance, f"layer {index}") for index, layer in enumerate(states)]
        if len(kept) < len(values):
            distances = [each.take(kept) for each in distances]
        pairs = StimulusPairs(distances)
        if by_pair:
            pairs = StimulusPairs(distances, chosen=pairs.flat, targets=pairs.targets())
        owners = None
        if groups is not None:
            owners = tensor_of(groups, Int, "groups")
            check_groups(owners, len(values))
            owners = owners.to(kept.device)[kept]
        return Table(values[kept], levels, columns, pairs, owners, single)

    def divide(self, pairs: StimulusPairs, groups: Tensor | None) -> Division:
        units = pairs.index if pairs.chosen is None else pairs.chosen
        if len(self._alphas()) == 1:
            return Division(torch.zeros_like(units), [])
        cells = self.folds_of(pairs, self.folds, self.seed, groups).to(units.device)
        return Division(cells, (pairs.part((cells == fold).nonzero()[:, 0]) for fold in range(self.folds)))

    def folds_of(self, pairs: StimulusPairs, folds: int, seed: int, groups: Tensor | None) -> Int[Tensor, " n"]:
        """Return the fold of each stimulus, or of each pair; a ValueError if a fold has too few distances to rank."""
        by_pair = pairs.chosen is not None
        unit, fewest = ("pairs", FEWEST_PAIRS_PER_FOLD) if by_pair else ("stimuli", FEWEST_PER_FOLD)
        most = len(pairs) // fewest
        if most < 2:
            raise ValueError(f"{len(pairs)} {unit} are too few for two folds: give {2 * fewest} or more")
        if folds > most:
            raise ValueError(f"folds={folds} leaves a fold with fewer than {fewest} {unit}: choose at most {most}")
        fold_of = stimulus_folds(len(pairs), folds, seed, groups)
        smallest = int(fold_of.bincount().min())
        if smallest < fewest:
            raise ValueError(
                f"folds={folds} of whole groups leaves a fold with {smallest} {unit}, and it needs "
                f"{fewest}: choose fewer folds, or smaller groups"
            )
        return fold_of

    def fit_weights(self, features: Features, stimulus_pairs: StimulusPairs, division: Division) -> Fitted:
        return fit_weights(features, stimulus_pairs, division, self._alphas(), self.weights == "full")

    def _alphas(self) -> tuple[float, ...]:
        levels = self.difference == "levels"
        refuse_huge(self.alpha, "alpha")
        alphas = real_numbers(self.alpha, Within(least=0, is_finite=not levels))
        if not alphas:
            wanted = "a finite number, at least 0, or a list of them"
            infinity = "" if levels else "; inf goes with difference='levels' alone"
            raise ValueError(f"alpha={shown(self.alpha)} must be {wanted}{infinity}")
        more = (torch.inf,) if levels and len(alphas) > 1 and torch.inf not in alphas else ()
        return (*alphas, *more)

    def _keep(self, fitted: Fitted, table: Table) -> None:
        ends = self._ends(fitted, table.stimulus_pairs)
        unit = ends[:, 1] - ends[:, 0]
        intercept = (fitted.intercept - ends[:, 0]) / unit
        self._fitted = fitted._replace(weights=fitted.weights / unit[:, None], intercept=intercept)
        self._single = table.single
        kept = self._fitted.matrices, intercept, fitted.alpha, ends
        self.weights_, self.intercept_, self.alpha_, self.range_ = (x[0] if table.single else x for x in kept)

    def _ends(self, fitted: Fitted, pairs: StimulusPairs) -> Float[Tensor, "l 2"]:
        scale = self.scale if self.scale != "auto" else "minmax" if self.recipe == "paper" else "mean"
        zero = torch.zeros_like(fitted.mean)
        if scale == "none":
            return torch.stack([zero, zero + 1], 1)
        ends = torch.stack([zero, fitted.mean], 1)
        doubtful = fitted.weights.abs().amax(1) <= UNEXPLAINED * fitted.mean
        for index, layer in enumerate(pairs.layers):
            if scale == "minmax" or doubtful[index]:
                low, high = layer.vector().aminmax()
                if low == high:
                    raise ValueError(f"all distances of layer {index} are equal")
                if scale == "minmax":
                    ends[index] = torch.stack([low, high])
        return ends


def _layers_of(Y: Any) -> tuple[Sequence[Any], bool]:
    """Return the layers that states are, and whether they are one layer, as an array or a list of lists of numbers."""
    is_list = isinstance(Y, list | tuple)
    is_array = hasattr(Y, "ndim") and Y.ndim in (2, 3)
    if not is_array and not (is_list and len(Y)):
        raise ValueError(f"Y has no layers: give states of shape (stimuli, width) or a list of them, not {shown(Y)}")
    first_row = Y[0] if is_list else None
    is_list_of_rows = isinstance(first_row, list | tuple) and len(first_row) > 0 and np.ndim(first_row[0]) == 0
    is_single = Y.ndim == 2 if is_array else is_list_of_rows
    return ([Y] if is_single else Y), is_single


class Table(NamedTuple):
    """The checked data of a fit."""

    values: Float[Tensor, "n f"]
    levels: list[list[Level] | None]  # see `Columns.read`
    columns: Columns
    stimulus_pairs: StimulusPairs
    groups: Int[Tensor, " n"] | None
    single: bool  # Y was one layer, not a sequence of them


def kept_rows(values: Float[Tensor, "n f"], drop: bool) -> Int[Tensor, " k"]:
    return (~values.isnan().any(1) | (not drop)).nonzero()[:, 0]


class LevelWeights(NamedTuple):
    """How far apart the levels of one feature are in each layer, in the scale of the fit."""

    feature: int
    values: Float[Tensor, " k"]  # the levels that the training stimuli have, NaN where a value is missing
    weights: Float[Tensor, "*l k k"]  # symmetric, at least 0, with a zero diagonal
    levels: list[Level | None]  # the values in the table, None where a value is missing


def level_weights(fitted: Fitted, encoder: FeatureEncoder, features: Features, single: bool) -> list[LevelWeights]:
    """Return the weights of all pairs of levels, feature by feature."""
    found = []
    for (feature, *_), places in grouped(fitted.terms):
        if size := features.known[feature]:
            rows, columns = torch.triu_indices(size, size, 1)
            matrix = fitted.weights.new_zeros(len(fitted.weights), size, size)
            pairs = fitted.weights[:, places.start : places.stop - 1]
            matrix[:, rows, columns] = matrix[:, columns, rows] = pairs
            first = 0 if (features.levels[:, feature] == 0).any() else 1  # whether a stimulus lacks the value
            values = torch.cat([pairs.new_tensor([torch.nan]), encoder.known[feature]])[first:]
            names = [level_of(value, encoder.columns.levels[feature]) for value in values.tolist()]
            matrix = matrix[:, first:, first:]
            found.append(LevelWeights(feature, values, matrix[0] if single else matrix, names))
    return found
