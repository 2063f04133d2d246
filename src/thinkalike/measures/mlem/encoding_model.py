"""Metric-learning encoding models (Salle et al. 2024, appendix B), fitted exactly."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.arguments import check_rows, tensor_of
from thinkalike.measures.distances.neural import DistanceChoice, NeuralDistances, upper
from thinkalike.measures.estimates import check_groups
from thinkalike.measures.mlem.columns import Columns, Kinds, Level
from thinkalike.measures.mlem.features import OF_LEVELS, FeatureEncoder, Features
from thinkalike.measures.mlem.solver import Division, Fitted, describe, divide, fit_weights
from thinkalike.measures.mlem.stimulus_pairs import StimulusPairs
from thinkalike.measures.mlem.terms import check_scores, grouped, predict

ALPHAS = tuple(10.0**power for power in range(-4, 5))
UNEXPLAINED = 1e-9  # of the mean squared distance: weights as small are rounding
CHOICES = {
    "weights": ("diagonal", "full"),
    "unknown": ("error", "new"),
    "recipe": ("stimuli", "paper"),
    "scale": ("auto", "mean", "minmax", "none"),
}


class MLEM:
    """A model of the squared neural distances of pairs of stimuli: a metric over their features.

    (D_ij)² ≈ b + Δᵀ W Δ with Δ the differences of the features, so that W_ff weighs the indicator of a category, and of
    a scaled feature the squared difference. W is diagonal and non-negative, or symmetric positive
    semidefinite, and minimises Σ_{i<j} (b + Δᵀ W Δ - (D^N_ij)²)² + α ‖W‖²; b is free, as in scikit-learn's
    `Ridge(positive=True)`. The solution is exact; only the folds are random. All layers, of all models, share what does
    not depend on them. scikit-learn's `clone`, `cross_val_score` and the like accept the model.

    With difference="levels" each two levels a, b of a nominal feature have a weight w^f_ab ≥ 0 of their own, Δᵀ W Δ is
    Σ_f w^f_{f_i f_j}, and α draws the weights of a feature together: α = ∞ is the model with one weight per feature,
    see `level_path`. With difference="points" the weights of a feature are the squared distances of points, one per
    level (a positive semidefinite form), so that distances are a metric.

    Args:
        weights: "diagonal", or "full" with an interaction W_fg of every two features, which levels do not have.
        distance: The neural distance D^N, see `NeuralDistances`.
        alpha: One ridge, or several, of which each layer gets the one with the best mean Spearman's ρ over the folds.
            It has no unit: for any α the weights are proportional to the squared distances. With levels it counts
            stimuli, and several α have ∞ beside them.
        kinds: "auto": what the type and the values of each column imply, see `thinkalike.kinds`; else the kind of all
            features, of each, or {name or number: kind} of some, see `Columns.of`.
        difference, missing: See `FeatureEncoder`.
        unknown: What `predict` and `score` do with a level that no stimulus of the fit had: "error", or "new", which
            holds it to be as far from all others as two levels of that feature are in the mean. Folds of this package
            know that their levels are those of one table and take "new"; scikit-learn's `cross_val_score` does not,
            and needs it where a fold may lack a rare level, or columns of categories, which declare their levels.
        scale: The unit of W, b and predictions: "mean", the mean squared distance of the training pairs, which costs
            nothing; "minmax", which puts their squared distances into [0, 1], and looks at all pairs for it; "none";
            "auto", which is "minmax" under recipe="paper" and else "mean". Scores and importance have no unit.
        recipe: "stimuli": folds divide stimuli; "paper": they divide pairs, so that training and test share stimuli.
        folds, seed: The number and the seed of the folds that choose alpha.

    Attributes:
        weights_: W, (f) if diagonal, else (f, f); it and the next three have a first axis of layers if Y has one. With
            levels it has the mean weight of each feature's pairs of levels, which a level new to the model gets.
        level_weights_: With levels, those of each nominal feature, see `LevelWeights`.
        intercept_, alpha_: b and α.
        range_: The squared distances that are 0 and 1 in the scale of the fit.
        correlation_: (f, f), Pearson's r of the features' Δ over the pairs (figure S5), NaN beside a constant.
        condition_number_: The condition number of that matrix without the constant features.
    """

    def __init__(
        self,
        *,
        weights: str = "diagonal",
        distance: DistanceChoice = "euclidean",
        alpha: float | Sequence[float] | np.ndarray = ALPHAS,
        kinds: Kinds = "auto",
        difference: str = "indicator",
        missing: str = "own_level",
        unknown: str = "error",
        scale: str = "auto",
        recipe: str = "stimuli",
        folds: int = 5,
        seed: int = 0,
    ):
        self.weights, self.distance, self.alpha = weights, distance, alpha
        self.kinds, self.difference, self.missing, self.unknown = kinds, difference, missing, unknown
        self.scale, self.recipe, self.folds, self.seed = scale, recipe, folds, seed

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return what the constructor was given."""
        return {name: getattr(self, name) for name in inspect.signature(MLEM).parameters}

    def __repr__(self) -> str:
        usual = inspect.signature(MLEM).parameters
        chosen = [f"{name}={value!r}" for name, value in self.get_params().items() if value != usual[name].default]
        fitted = getattr(self, "_fitted", None)
        told = [f"features={len(self.encoder_.kinds)}", f"layers={len(fitted.weights)}"] if fitted else []
        return f"{'fitted ' if fitted else ''}MLEM({', '.join([*chosen, *told])})"

    def set_params(self, **params: Any) -> MLEM:
        """Change some parameters of the constructor.

        Raises:
            ValueError: There is no such parameter.
        """
        for name, value in params.items():
            if name not in self.get_params():
                raise ValueError(f"MLEM has no parameter {name!r}; there is {', '.join(self.get_params())}")
            setattr(self, name, value)
        return self

    def __sklearn_tags__(self) -> Any:
        from sklearn.base import BaseEstimator  # only scikit-learn calls this

        tags = BaseEstimator().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.categorical = tags.input_tags.string = True
        return tags

    @property
    def feature_names_in_(self) -> Any:
        """The names of the columns of the fit, (f) text; there is none of a table without names, as in scikit-learn."""
        if not getattr(self, "encoder_", None) or not self.encoder_.columns.names:
            raise AttributeError(
                "the features have no names: this MLEM was not fitted on a DataFrame with named columns"
            )
        return np.array(self.encoder_.columns.names, dtype=object)

    def fit(self, X: Any, Y: Any, groups: Any = None) -> MLEM:
        """Fit all layers, with a warning of features that are constant, taken for continuous, or much the same.

        Args:
            X: (n, f), a DataFrame, an array, a tensor or a list of lists; numbers, text, truth values or categories,
                and NaN, None or pd.NA where a value is missing.
            Y: (n, d) states, or (n, n) precomputed distances; or a sequence of layers, of any models and widths.
            groups: (n) numbers or names; stimuli of a group, such as the words of a sentence, stay in one fold.

        Raises:
            ValueError: A parameter has no such choice, the tables do not fit together, every feature is constant, or
                all distances of a layer are equal; see `NeuralDistances`, `FeatureEncoder`, `stimulus_folds`.
        """
        table = self.read(X, Y, groups)
        self.encoder_ = self.encoder(table.values, table.columns)
        features = self.encoder_.encode_values(table.values)
        fitted = self.fit_weights(features, table.stimulus_pairs, self.divide(table.stimulus_pairs, table.groups))
        self.correlation_, self.condition_number_ = describe(fitted, features.labels)
        self._keep(fitted, table)
        self.level_weights_ = [
            each._replace(weights=each.weights[0]) if table.single else each
            for each in level_weights(self._fitted, self.encoder_, features)
        ]
        return self

    def predict(self, X: Any) -> Float[Tensor, "*l p"]:
        """Return the squared distances of all pairs i < j of stimuli, in the scale of the fit.

        Pairs come in the order of SciPy's `pdist`. Under missing="drop" stimuli that lack a value are left out.

        Raises:
            ValueError: The model was not fitted, or a level is new to it, see `unknown`; see `FeatureEncoder.encode`.
        """
        self._check_fitted()
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

        Raises:
            ValueError: The prediction is constant, the number of layers is not that of the fit, or a level is new to
                the model, see `unknown`; see `fit`.
        """
        self._check_fitted()
        table = self.read(X, Y, columns=self.encoder_.columns)
        if self.unknown == "error":
            self.encoder_.refuse_new(table.values, table.levels)
        pairs, fitted = table.stimulus_pairs, self._fitted
        if len(pairs.layers) != len(fitted.weights):
            raise ValueError(f"{len(pairs.layers)} layers, but the model was fitted on {len(fitted.weights)}")
        differences = pairs.differences(self.encoder_.encode_values(table.values))
        scores = check_scores(pairs.score([differences], fitted.terms, fitted.weights)[0])
        return float(scores[0]) if table.single else scores

    def save(self, path: str | PathLike[str]) -> None:
        """Write the parameters and the fit to a file.

        Raises:
            ValueError: The distance is a function, or the model was not fitted.
        """
        if callable(self.distance):
            raise ValueError("a distance that is a function cannot be saved: precompute the distances")
        self._check_fitted()
        state = {name: value for name, value in vars(self).items() if name not in (*self.get_params(), "_fitted")}
        state |= {
            "_found": tuple(self._fitted),
            "encoder_": vars(self.encoder_) | {"columns": tuple(self.encoder_.columns)},
        }
        state["level_weights_"] = [tuple(each) for each in self.level_weights_]
        torch.save({"params": self.get_params(), "state": state}, path)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> MLEM:
        """Read a model that `save` wrote."""
        content = torch.load(path, weights_only=True)
        model, state = cls(**content["params"]), content["state"]
        fitted = Fitted(*state.pop("_found"))
        state["level_weights_"] = [LevelWeights(*each) for each in state["level_weights_"]]
        encoder = state["encoder_"] | {"columns": Columns(*state["encoder_"]["columns"])}
        vars(model).update(state, _fitted=fitted, encoder_=FeatureEncoder(**encoder))
        return model

    def read(self, X: Any, Y: Any, groups: Any = None, columns: Columns | None = None) -> Table:
        """Check this model's choices, and the data of a fit.

        Args:
            X, Y, groups: See `fit`.
            columns: What an earlier table said of its features; by default it is what this one says.

        Raises:
            ValueError: See `fit`.
        """
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name}={getattr(self, name)!r} is none of {', '.join(choices)}")
        columns = Columns.of(X, self.kinds) if columns is None else columns
        return read(X, Y, groups, columns, self.distance, self.missing == "drop", self.recipe == "paper")

    def encoder(self, values: Float[Tensor, "n f"], columns: Columns) -> FeatureEncoder:
        """Return an encoder that knows the levels of these stimuli."""
        return FeatureEncoder.of(values, columns, self.difference, self.missing)

    def divide(self, stimulus_pairs: StimulusPairs, groups: Tensor | None) -> Division:
        """Return the folds for the choice of α, if there is a choice."""
        return divide(stimulus_pairs, self.folds if len(self._alphas()) > 1 else None, self.seed, groups)

    def fit_weights(self, features: Features, stimulus_pairs: StimulusPairs, division: Division) -> Fitted:
        """Return the weights, in units of the squared distances."""
        full, euclidean = self.weights == "full", self.difference == "points"
        return fit_weights(features, stimulus_pairs, division, self._alphas(), full, euclidean)

    def _alphas(self) -> tuple[float, ...]:
        alphas = np.atleast_1d(self.alpha).ravel().tolist()
        levels = self.difference in OF_LEVELS
        if not alphas or not all(
            isinstance(alpha, int | float) and (0 <= alpha < torch.inf or (levels and alpha == torch.inf))
            for alpha in alphas
        ):
            raise ValueError(f"alpha={self.alpha} is no number >= 0, nor several")
        more = (torch.inf,) if levels and len(alphas) > 1 and torch.inf not in alphas else ()
        return (*map(float, alphas), *more)

    def _keep(self, fitted: Fitted, table: Table) -> None:
        """Keep the fit in the scale that was asked for."""
        ends = self._ends(fitted, table.stimulus_pairs)
        unit = ends[:, 1] - ends[:, 0]
        self._single = table.single
        intercept = (fitted.intercept - ends[:, 0]) / unit
        fitted = fitted._replace(weights=fitted.weights / unit[:, None], intercept=intercept)
        kept = fitted.matrices, fitted.intercept, fitted.alpha, ends
        self.weights_, self.intercept_, self.alpha_, self.range_ = (x[0] if table.single else x for x in kept)
        self._fitted = fitted

    def _ends(self, fitted: Fitted, pairs: StimulusPairs) -> Float[Tensor, "l 2"]:
        """Return the squared distances that are 0 and 1 in the scale of each layer.

        Raises:
            ValueError: All distances of a layer are equal, which is looked up where nothing else needs it only if no
                weight is left.
        """
        scale = self.scale if self.scale != "auto" else "minmax" if self.recipe == "paper" else "mean"
        zero = torch.zeros_like(fitted.mean)
        if scale == "none":
            return torch.stack([zero, zero + 1], 1)
        ends = torch.stack([zero, fitted.mean], 1)
        doubtful = fitted.weights.abs().amax(1) <= UNEXPLAINED * fitted.mean
        for index, layer in enumerate(pairs.layers):
            if scale == "minmax" or doubtful[index]:
                low, high = layer.extremes()
                if low == high:
                    raise ValueError(f"all distances of layer {index} are equal")
                if scale == "minmax":
                    ends[index] = torch.stack([low, high])
        return ends

    def _check_fitted(self) -> None:
        if not hasattr(self, "encoder_"):
            raise ValueError("this MLEM is not fitted: call fit first")


# ---------------------------------------------------------------------------------------------------- the data of a fit


class Table(NamedTuple):
    """Checked data."""

    values: Float[Tensor, "n f"]
    levels: list[list[Level] | None]  # see `Columns.read`
    columns: Columns
    stimulus_pairs: StimulusPairs
    groups: Int[Tensor, " n"] | None
    single: bool  # Y was one layer, not a sequence of them


def read(X: Any, Y: Any, groups: Any, columns: Columns, distance: DistanceChoice, drop: bool, by_pair: bool) -> Table:
    """Check the data of a fit, see `MLEM.fit`.

    Args:
        columns: What the table of features is read by.
        drop: Whether stimuli that lack a value are left out.
        by_pair: Whether folds divide pairs, not stimuli.

    Raises:
        ValueError: Y is no layer and no list of layers, a layer is no matrix, tables have the same rows in another
            order (`check_rows`), layers and X differ in the number of stimuli, or groups are given although folds
            divide pairs; see `Columns.read`.
    """
    if isinstance(Y, Mapping):
        raise ValueError(f"Y is a {type(Y).__name__}: give a list of layers, such as list(Y.values())")
    if isinstance(Y, Sequence) and not Y:
        raise ValueError("Y is empty: give a layer, or a list of layers")
    check_rows([("X", X), ("Y", Y), ("groups", groups)])
    single = _is_matrix(Y)
    states = [tensor_of(layer, Float, f"layer {index}") for index, layer in enumerate([Y] if single else Y)]
    values, levels = columns.read(X, states[0].device)
    for index, layer in enumerate(states):
        if layer.dim() != 2 or len(layer) != len(values):
            raise ValueError(f"layer {index} has shape {tuple(layer.shape)}; X has {len(values)} stimuli")
    kept = kept_rows(values, drop)
    if by_pair and groups is not None:
        raise ValueError("recipe='paper' divides pairs into folds and cannot keep groups together")
    layers = [NeuralDistances.of(layer, distance, f"layer {i}") for i, layer in enumerate(states)]
    if len(kept) < len(states[0]):
        layers = [layer.take(kept) for layer in layers]
    stimulus_pairs = StimulusPairs(layers)
    if by_pair:
        stimulus_pairs = StimulusPairs(layers, chosen=stimulus_pairs.flat, targets=stimulus_pairs.targets())
    owners = None if groups is None else _owners(groups, len(values)).to(kept.device)[kept]
    return Table(values[kept], levels, columns, stimulus_pairs, owners, single)


def _owners(groups: Any, n: int) -> Int[Tensor, " n"]:
    """Return the group of each stimulus, as a number."""
    owners = tensor_of(groups, Int, "groups", named=True)
    check_groups(owners, n)
    return owners


def kept_rows(values: Float[Tensor, "n f"], drop: bool) -> Int[Tensor, " k"]:
    """Return which stimuli stay: with `drop` those that lack no value."""
    return (~values.isnan().any(1) | (not drop)).nonzero()[:, 0]


def _is_matrix(Y: Any) -> bool:
    """Return whether this is one layer, also as a list of lists of numbers, and no sequence of layers."""
    rows = Y if isinstance(Y, list | tuple) else None
    return getattr(Y, "ndim", 3) == 2 or bool(rows and isinstance(rows[0], list | tuple) and np.ndim(rows[0][0]) == 0)


# ------------------------------------------------------------------------------------------- weights of pairs of levels


class LevelWeights(NamedTuple):
    """How far apart the levels of one feature are in each layer, in the scale of the fit."""

    feature: int
    values: Float[Tensor, " k"]  # the levels that the training stimuli have, NaN where a value is missing
    weights: Float[Tensor, "*l k k"]  # symmetric, at least 0, with a zero diagonal
    levels: list[Level | None]  # the same in the words of the table, None where a value is missing


def level_weights(fitted: Fitted, encoder: FeatureEncoder, features: Features) -> list[LevelWeights]:
    """Return the weights of all features whose pairs of levels have some."""
    found = []
    for (feature, *_), places in grouped(fitted.terms):
        if size := features.known[feature]:
            rows, columns = torch.triu_indices(size, size, 1)
            matrix = fitted.weights.new_zeros(len(fitted.weights), size, size)
            pairs = fitted.weights[:, places.start : places.stop - 1]
            matrix[:, rows, columns] = matrix[:, columns, rows] = pairs
            lacks = bool((features.levels[:, feature] == 0).any())
            values = torch.cat([pairs.new_tensor([torch.nan]), encoder.known[feature]])
            first = 0 if lacks else 1
            names = [_named(value, encoder.columns.levels[feature]) for value in values[first:].tolist()]
            found.append(LevelWeights(feature, values[first:], matrix[:, first:, first:], names))
    return found


def _named(value: float, levels: Sequence[Level] | None) -> Level | None:
    if value != value:
        return None
    return value if levels is None else levels[int(value)]
