"""Metric-learning encoding models (Salle et al. 2024, appendix B), fitted exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple, cast

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
    shown,
    tensor_of,
)
from thinkalike.arguments.huge_arrays import refuse_huge
from thinkalike.global_state import without_default_device
from thinkalike.measures.distances.neural import NeuralDistances, upper_triangle_indices
from thinkalike.measures.folds import check_groups, stimulus_folds
from thinkalike.measures.kinds import FeatureColumns, Kinds, Level, level_of
from thinkalike.measures.mlem.features import (
    DIFFERENCES,
    MISSING,
    FeatureEncoder,
    Features,
    predict,
    weight_slices,
)
from thinkalike.measures.mlem.solver import (
    Division,
    FittedWeights,
    feature_correlations,
    fit_weights,
)
from thinkalike.measures.mlem.stimulus_pairs import StimulusPairs

ALPHAS = tuple(10.0**power for power in range(-4, 5))

# A fold needs this many stimuli, whose distances can be ranked: two have one distance.
FEWEST_PER_FOLD = 3

# Under recipe="paper" folds divide pairs, and one needs this many of them.
FEWEST_PAIRS_PER_FOLD = 2

# Weights below this share of the mean squared distance are rounding.
WEIGHT_ROUNDING = 1e-9

CHOICES = {
    "weights": ("diagonal", "full"),
    "unknown": ("error", "new"),
    "recipe": ("stimuli", "paper"),
    "scale": ("auto", "mean", "minmax", "none"),
    "difference": DIFFERENCES,
    "missing": MISSING,
}


class MLEM(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no annotations
    """A model of the squared neural distances of pairs of stimuli: a metric over their features.

    (D_ij)² ≈ b + Δᵀ W Δ with Δ the differences of the features, so that W_ff is the weight of a
    category's indicator, or of the squared difference of a scaled feature. W is diagonal and
    non-negative, or symmetric positive semidefinite, and minimises
    Σ_{i<j} (b + Δᵀ W Δ - (D^N_ij)²)² + α ‖W‖²; b is free, as in `Ridge(positive=True)`. The
    solution is exact; only the folds are random. It is an estimator of scikit-learn, for
    `cross_val_score` and others, and can be pickled.

    With difference="levels" each two levels a, b of a nominal feature have a weight w^f_ab ≥ 0 of
    their own, and α shrinks the weights of a feature to their mean: α = ∞ is the model with one
    weight per feature, see `level_path`.

    Args:
        weights: "diagonal", or "full" with an interaction W_fg of every two features, which levels
            do not have.
        distance: The neural distance D^N, see `NeuralDistances`.
        alpha: One ridge, or several, from which each layer gets that of the best mean Spearman's ρ
            over the folds; with levels its unit is a number of stimuli, and ∞ is added to several
            α.
        kinds: "auto": as the type and the values of each column imply, see `kinds.kind_of`; else
            the kind of all features, of each, or {name or number: kind} of some, see
            `FeatureColumns.of`.
        difference, missing: See `FeatureEncoder`.
        unknown: How `predict` and `score` treat a level that is new to the fit: "error", or "new":
            its distance to all other levels is the mean distance of two levels of that feature, as
            `feature_importance` always does.
        scale: The unit of W, b and predictions: "mean", the mean squared distance of the training
            pairs; "minmax", which maps their squared distances to [0, 1]; "none"; "auto", "minmax"
            under recipe="paper", else "mean".
        recipe: "stimuli": folds divide stimuli; "paper": they divide pairs, so that training and
            test share stimuli.
        folds, seed: The number and the seed of the folds that choose alpha.

    Attributes:
        weights_: W, (f) if diagonal, else (f, f); it and the next three have a first axis of
            layers if Y has one. With levels it is the mean weight of each feature's pairs of
            levels.
        level_weights_: With levels, those of each nominal feature, see `LevelWeights`.
        intercept_, alpha_: b and α.
        range_: The squared distances that become 0 and 1 in the scale of the fit.
        correlation_: (f, f), Pearson's r of the features' Δ over the pairs (figure S5), NaN beside
            a constant.
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
        alpha: Annotated[float, Within(least=0, allows_infinity=True)]
        | Sequence[float]
        | np.ndarray = ALPHAS,
        kinds: Kinds = "auto",
        difference: str = "indicator",
        missing: str = "own_level",
        unknown: str = "error",
        scale: str = "auto",
        recipe: str = "stimuli",
        folds: Count = 5,
        seed: Seed = 0,
    ):
        """Store the parameters under their names, as scikit-learn asks; `fit` checks them.

        Args:
            weights: "diagonal", or "full" with a weight of every two features.
            distance: The distance of two states, such as "euclidean".
            alpha: One ridge, or several, from which `fit` chooses.
            kinds: The kind of features, such as "nominal"; "auto": as their values imply.
            difference: How two values of a feature differ: "indicator", "scaled" or "levels".
            missing: What a missing value is: "own_level", "ignore", "drop" or "error".
            unknown: What a level is that is new to the fit: "error" or "new".
            scale: The unit of squared distances: "mean", "minmax", "none" or "auto".
            recipe: Whether folds divide "stimuli", or pairs, as in the "paper".
            folds, seed: The number and the seed of the folds that choose alpha.
        """
        self.weights = weights
        self.distance = distance
        self.alpha = alpha
        self.kinds = kinds
        self.difference = difference
        self.missing = missing
        self.unknown = unknown
        self.scale = scale
        self.recipe = recipe
        self.folds = folds
        self.seed = seed

    def fit(self, X: object, Y: object, groups: object = None) -> MLEM:
        """Fit the weights of the features to the distances of stimuli in each layer.

        A warning names features that are constant, that are taken for continuous because of their
        values, or that are highly correlated with each other over the pairs of stimuli.

        Args:
            X: The f features of n stimuli, (n, f): a DataFrame, an array, a tensor or a list of
                lists; numbers, text, truth values or categories, and NaN, None or pd.NA where a
                value is missing.
            Y: The states (n, d) of one layer, or a matrix of precomputed distances (n, n); or a
                sequence of layers, of any models and widths.
            groups: (n) numbers or names. Stimuli of a group, such as the words of a sentence, stay
                together in the folds that choose alpha. None: each stimulus is its own group.

        Returns:
            This model, with the attributes that end in an underscore.

        Raises:
            ValueError: The tables do not fit together, or every feature, or all distances of a
                layer, are constant.
        """
        with without_default_device():
            table = self.read(X, Y, groups)
            self.encoder_ = FeatureEncoder.of(
                table.values, table.columns, self.difference, self.missing
            )
            features = self.encoder_.encode_values(table.values)
            pairs = table.stimulus_pairs
            fitted = self.fit_weights(features, pairs, self.divide(pairs, table.groups))
            self.correlation_, self.condition_number_ = feature_correlations(
                fitted, features.labels
            )
            self._set_fitted(fitted, table)
            self.level_weights_ = level_weights(
                self._fitted, self.encoder_, features, table.single
            )
            return self

    def predict(self, X: object) -> Float[Tensor, "*l p"]:
        """Return the predicted squared distances of all pairs i < j of stimuli.

        They are in the unit that the parameter `scale` asks for, (p) for a fit to one layer, else
        (l, p), in the order of SciPy's `pdist`: (0, 1), (0, 2), ..., (1, 2), .... Under
        missing="drop" stimuli that lack a value are left out.

        Args:
            X: The features of the stimuli, as in `fit`.

        Raises:
            ValueError: A level is new to the fit, under unknown="error".
        """
        with without_default_device():
            check_is_fitted(self, "encoder_")
            fitted = self._fitted
            values, levels = self.encoder_.columns.read(X, fitted.weights.device)
            values = values[complete_rows(values, drop=self.missing == "drop")]
            if self.unknown == "error":
                self.encoder_.refuse_new(values, levels)
            features = self.encoder_.encode_values(values)
            pairs = upper_triangle_indices(len(features), features.levels.device)
            differences = []
            for feature in range(len(features.scaled)):
                differences.append(features.difference(feature).flatten()[pairs])
            predicted = (
                predict(differences, fitted.terms, fitted.weights) + fitted.intercept[:, None]
            )
            if self._single:
                return predicted[0]
            return predicted

    def score(self, X: object, Y: object) -> float | Float[Tensor, " l"]:
        """Return Spearman's ρ of predicted and neural distances over all pairs.

        It is a number if Y is one layer, else a tensor with the ρ of each layer. X may have a
        level (a value of a nominal feature) that the fit did not see. The parameter `unknown` says
        what then happens: under "error" it is refused, and under "new" it is equally far from all
        other levels.

        Args:
            X: The features of stimuli, a table with the columns that `fit` was given.
            Y: The states of these stimuli, in the same layers as those that `fit` was given.

        Raises:
            ValueError: A prediction is constant, Y has another number of layers than in the fit,
                or, under unknown="error", a level is new to the fit.
        """
        with without_default_device():
            check_is_fitted(self, "encoder_")
            table = self.read(X, Y, columns=self.encoder_.columns)
            if self.unknown == "error":
                self.encoder_.refuse_new(table.values, table.levels)
            pairs = table.stimulus_pairs
            fitted = self._fitted
            if len(pairs.layers) != len(fitted.weights):
                raise ValueError(
                    f"{len(pairs.layers)} layers, but the model was fitted on "
                    f"{len(fitted.weights)}"
                )
            differences = pairs.differences(self.encoder_.encode_values(table.values))
            # `score` takes several variants of the differences; here there is one.
            scores = pairs.score([differences], fitted.terms, fitted.weights)[0]
            is_constant = scores.isnan()  # Spearman's ρ of a constant prediction
            if is_constant.any():
                layer = int(is_constant.nonzero()[0])
                raise ValueError(
                    f"the prediction of layer {layer} is constant: no feature explains its "
                    "distances"
                )
            if table.single:  # Y is one layer
                return float(scores[0])
            return scores

    def read(
        self, X: object, Y: object, groups: object = None, columns: FeatureColumns | None = None
    ) -> StimulusTable:
        """Check this model's choices and the data of a `fit`, and return the data.

        Under missing="drop" the table has no stimuli that lack a value.

        Args:
            X, Y, groups: See `fit`.
            columns: How X is read: the columns of an earlier fit; None: as X describes itself.

        Raises:
            ValueError: A choice is unknown, or the data do not fit together.
        """
        for name, choices in CHOICES.items():
            check_choice(name, getattr(self, name), choices)
        checked_numbers(MLEM.__init__, self.get_params(deep=False))
        divides_pairs = self.recipe == "paper"
        if columns is None:
            columns = FeatureColumns.of(X, self.kinds)
        if divides_pairs and groups is not None:
            raise ValueError(
                "recipe='paper' divides pairs into folds and cannot keep groups together"
            )
        check_rows([("X", X), ("Y", Y), ("groups", groups)])
        layers, is_single = _layers_of_states(Y)
        states = []
        for index, layer in enumerate(layers):
            states.append(tensor_of(layer, Float, f"Y, layer {index}"))
        values, levels = columns.read(X, states[0].device)
        for index, layer in enumerate(states):
            if layer.dim() != 2 or len(layer) != len(values):
                shape = tuple(layer.shape)
                raise ValueError(
                    f"Y, layer {index} has shape {shape}; X has {len(values)} stimuli: "
                    "give as many rows"
                )
        if len(values) < 2:
            raise ValueError(
                f"X has {len(values)} stimuli: give two or more, as distances are of pairs"
            )

        rows = complete_rows(values, drop=self.missing == "drop")
        distances = []
        for index, layer in enumerate(states):
            distances.append(NeuralDistances.of(layer, self.distance, f"layer {index}"))
        if len(rows) < len(values):
            distances = [distances_of_layer.take(rows) for distances_of_layer in distances]
        pairs = StimulusPairs(distances)
        if divides_pairs:
            pairs = StimulusPairs(
                distances,
                chosen_pairs=pairs.pair_indices,
                squared_distances=pairs.squared_distances(),
            )
        groups_of_rows = None
        if groups is not None:
            group_of_stimulus = tensor_of(groups, Int, "groups")
            check_groups(group_of_stimulus, len(values))
            groups_of_rows = group_of_stimulus.to(rows.device)[rows]
        return StimulusTable(values[rows], levels, columns, pairs, groups_of_rows, is_single, rows)

    def divide(self, pairs: StimulusPairs, groups: Tensor | None) -> Division:
        """Return the inner folds of the training data, and the pairs of each, which choose alpha.

        Each alpha is scored on the pairs of each fold. If there is only one alpha, there is a
        single fold, and no pairs are scored. Folds divide the training stimuli or, if some pairs
        of them were chosen, these pairs.

        Args:
            pairs: The pairs of the training stimuli, which are divided.
            groups: The group of each training stimulus; None: each is one.
        """
        units = pairs.stimuli  # what folds divide: stimuli, ...
        if pairs.chosen_pairs is not None:
            units = pairs.chosen_pairs  # ... or pairs, under recipe="paper"
        if len(self._alphas()) == 1:
            single_fold = torch.zeros_like(units)
            return Division(single_fold, [])
        fold_of = self.folds_of(pairs, self.folds, self.seed, groups).to(units.device)
        # An iterator, as only the pairs of one fold are needed at a time.
        pairs_of_folds = (
            pairs.subset((fold_of == fold).nonzero()[:, 0]) for fold in range(self.folds)
        )
        return Division(fold_of, pairs_of_folds)

    def folds_of(
        self, pairs: StimulusPairs, folds: int, seed: int, groups: Tensor | None
    ) -> Int[Tensor, " n"]:
        """Return the fold, from 0, of each stimulus, or of each pair of stimuli.

        Under recipe="paper", `pairs.folds_divide_pairs` is true: folds divide the pairs, and the
        length of `pairs` is the number of pairs. Otherwise they divide the stimuli, and it is the
        number of stimuli.

        Args:
            pairs: The pairs of stimuli.
            folds: How many folds there are.
            seed: The seed of the random folds.
            groups: The group of each stimulus (or pair). A group is never split between two folds.

        Raises:
            ValueError: A fold has fewer stimuli or pairs than ranks of distances need.
        """
        unit = "stimuli"
        fewest = FEWEST_PER_FOLD
        if pairs.folds_divide_pairs:
            unit = "pairs"
            fewest = FEWEST_PAIRS_PER_FOLD
        unit_count = len(pairs)
        most_folds = unit_count // fewest
        if most_folds < 2:
            raise ValueError(
                f"{unit_count} {unit} are too few for two folds: give {2 * fewest} or more"
            )
        if folds > most_folds:
            raise ValueError(
                f"folds={folds} leaves a fold with fewer than {fewest} {unit}: "
                f"choose at most {most_folds}"
            )
        fold_of = stimulus_folds(unit_count, folds, seed, groups)
        smallest = int(fold_of.bincount().min())
        if smallest < fewest:
            raise ValueError(
                f"folds={folds} of whole groups leaves a fold with {smallest} {unit}, and it "
                f"needs {fewest}: choose fewer folds, or smaller groups"
            )
        return fold_of

    def fit_weights(
        self, features: Features, stimulus_pairs: StimulusPairs, division: Division
    ) -> FittedWeights:
        """Return the weights of every layer fitted to these pairs, each with its best alpha.

        The ridge alpha of a layer is the one with the highest mean score over held-out folds.

        Args:
            features: The encoded features of the stimuli.
            stimulus_pairs: Their pairs, with the distances of each layer.
            division: The folds that choose alpha.
        """
        has_interactions = self.weights == "full"  # products of two features have weights
        return fit_weights(
            features, stimulus_pairs, division, self._alphas(), interactions=has_interactions
        )

    def _alphas(self) -> tuple[float, ...]:
        """Return the ridges α that a fit tries: those of the parameter `alpha`.

        With difference="levels", where a feature has a weight for each pair of its levels, α = ∞
        makes these weights equal. It is tried, too, if `alpha` is more than one number.

        Raises:
            ValueError: `alpha` is not a number or a list of numbers, at least 0, or is ∞ although
                `difference` is not "levels".
        """
        has_levels = self.difference == "levels"
        refuse_huge(self.alpha, "alpha")
        alphas = real_numbers(self.alpha, Within(least=0, allows_infinity=has_levels))
        if not alphas:
            reason = "a finite number, at least 0, or a list of them"
            if not has_levels:
                reason += "; inf goes with difference='levels' alone"
            raise ValueError(f"alpha={shown(self.alpha)} must be {reason}")
        if has_levels and len(alphas) > 1 and torch.inf not in alphas:
            return (*alphas, torch.inf)
        return tuple(alphas)

    def _set_fitted(self, fitted: FittedWeights, table: StimulusTable) -> None:
        """Set the attributes that users read: `weights_`, `intercept_`, `alpha_` and `range_`.

        They are in the unit that the parameter `scale` asks for, and have no axis of layers if the
        user fitted one layer and not a list. `predict` and `score` use `_fitted`, which has it.

        Args:
            fitted: The weights, in units of the squared neural distance.
            table: The data of the fit.
        """
        # For each layer the squared distances that become 0 and 1 in the new unit: (layers, 2)
        ends = self._scale_ends(fitted, table.stimulus_pairs)
        zero = ends[:, 0]
        one = ends[:, 1]
        unit = one - zero
        weights = fitted.weights / unit[:, None]
        intercept = (fitted.intercept - zero) / unit
        self._fitted = fitted._replace(weights=weights, intercept=intercept)
        self._single = table.single
        layer_index = 0 if table.single else slice(None)
        self.weights_ = self._fitted.matrices[layer_index]  # W of each layer, or its diagonal
        self.intercept_ = intercept[layer_index]
        self.alpha_ = fitted.alpha[layer_index]
        self.range_ = ends[layer_index]

    def _scale_ends(self, fitted: FittedWeights, pairs: StimulusPairs) -> Float[Tensor, "l 2"]:
        """Return for each layer the squared distances that become 0 and 1 in the scale of the fit.

        They are 0 and the mean under scale="mean", the least and the greatest under "minmax", and
        0 and 1 under "none". "auto" is "minmax" under recipe="paper", else "mean".

        Args:
            fitted: The fitted weights, with the mean squared distance of the pairs.
            pairs: The pairs of the fit, with their distances in each layer.

        Raises:
            ValueError: All distances of a layer are equal, unless the scale is "none".
        """
        scale = self.scale
        if scale == "auto":
            scale = "minmax" if self.recipe == "paper" else "mean"
        zero = torch.zeros_like(fitted.mean)
        if scale == "none":
            return torch.stack([zero, zero + 1], 1)
        ends = torch.stack([zero, fitted.mean], 1)
        # The distances of a layer can only be all equal if all of its weights are 0. Under "mean"
        # other layers need no look at the distances of all pairs, which takes time.
        may_be_constant = fitted.weights.abs().amax(1) <= WEIGHT_ROUNDING * fitted.mean
        for index, layer in enumerate(pairs.layers):
            if scale == "mean" and not may_be_constant[index]:
                continue
            low, high = layer.vector().aminmax()
            if low == high:
                raise ValueError(f"all distances of layer {index} are equal")
            if scale == "minmax":
                ends[index] = torch.stack([low, high])
        return ends


def _layers_of_states(Y: object) -> tuple[Sequence[object], bool]:
    """Return the layers of the argument Y of a fit, and whether it is a single layer.

    A single layer is an array of two axes, or a list of lists of numbers. Several layers are an
    array of three axes, or a list or tuple of anything else, such as arrays.

    Raises:
        ValueError: Y is empty, or neither an array of two or three axes nor a list or tuple.
    """
    dimensions = getattr(Y, "ndim", None)  # None for a list
    if dimensions == 2:
        return [Y], True
    if dimensions == 3:
        return cast(Sequence[object], Y), False
    if not isinstance(Y, list | tuple) or not Y:
        raise ValueError(
            "Y has no layers: give states of shape (stimuli, width) or a list of them, not "
            f"{shown(Y)}"
        )
    first_entry = Y[0]
    is_filled_list = isinstance(first_entry, list | tuple) and len(first_entry) > 0
    is_row_of_numbers = is_filled_list and np.ndim(first_entry[0]) == 0
    if is_row_of_numbers:
        return [Y], True
    return Y, False


class StimulusTable(NamedTuple):
    """The checked data of a fit.

    Attributes:
        values: The features as numbers, NaN where a value is missing.
        levels: For each feature the levels that its numbers stand for; None where the
            numbers are the values.
        columns: How the table was read.
        stimulus_pairs: The pairs of the stimuli, with their neural distances.
        groups: The group of each stimulus; None if each is its own.
        single: Whether Y was one layer, and not a sequence of them.
        rows: The row of X of each stimulus.
    """

    values: Float[Tensor, "n f"]
    levels: list[list[Level] | None]
    columns: FeatureColumns
    stimulus_pairs: StimulusPairs
    groups: Int[Tensor, " n"] | None
    single: bool
    rows: Int[Tensor, " n"]


def complete_rows(values: Float[Tensor, "n f"], drop: bool) -> Int[Tensor, " k"]:
    """Return the indices of the rows that lack no value; if `drop` is False, of all rows."""
    if not drop:
        return torch.arange(len(values), device=values.device)
    is_complete = ~values.isnan().any(1)
    return is_complete.nonzero()[:, 0]


class LevelWeights(NamedTuple):
    """How far apart the levels of one feature are in each layer, in the scale of the fit.

    Attributes:
        feature: The number of the feature.
        values: The k levels that the training stimuli have, as numbers; NaN for missing values,
            which come first if there are any.
        weights: The weights of pairs of levels: symmetric, at least 0, with a zero diagonal.
        levels: The same levels as the table has them; None for missing values.
    """

    feature: int
    values: Float[Tensor, " k"]
    weights: Float[Tensor, "*l k k"]
    levels: list[Level | None]


def level_weights(
    fitted: FittedWeights, encoder: FeatureEncoder, features: Features, single: bool
) -> list[LevelWeights]:
    """Return, for each feature that has weights of pairs of levels, these as symmetric matrices.

    Row and column k of a matrix are of level k, and the diagonal is 0. A first level for missing
    values is only included if a training stimulus lacks a value.

    Args:
        fitted: The fitted weights.
        encoder: The encoder of the fit, which knows the levels.
        features: The features of the training stimuli.
        single: Whether there is a single layer, so that matrices have no axis of layers.
    """
    weights_of_features = []
    for term, weight_slice in weight_slices(fitted.terms):
        feature = term[0]
        size = features.weighted_level_counts[feature]
        if not size:  # the feature has one weight
            continue
        first, second = torch.triu_indices(size, size, 1)
        # The last weight is that of a new level, which no training stimulus has.
        known_pairs = slice(weight_slice.start, weight_slice.stop - 1)
        weights_of_pairs = fitted.weights[:, known_pairs]  # (l, pairs)
        matrix = fitted.weights.new_zeros(len(fitted.weights), size, size)
        matrix[:, first, second] = weights_of_pairs
        matrix[:, second, first] = weights_of_pairs
        missing_value = weights_of_pairs.new_tensor([torch.nan])
        values = torch.cat([missing_value, encoder.training_levels[feature]])

        has_missing = (features.levels[:, feature] == 0).any()  # level 0 is a missing value
        first_level = 0 if has_missing else 1
        matrix = matrix[:, first_level:, first_level:]
        values = values[first_level:]
        names = [level_of(value, encoder.columns.levels[feature]) for value in values.tolist()]
        weights = matrix[0] if single else matrix
        weights_of_features.append(LevelWeights(feature, values, weights, names))
    return weights_of_features
