"""Metric-learning encoding models (Salle et al. 2024, appendix B), fitted exactly."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from os import PathLike
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.measures.distances import Distance
from thinkalike.measures.estimate import Division, Fitted, Table, describe, divide, estimate, read, read_values
from thinkalike.measures.features import FeatureEncoder, Features
from thinkalike.measures.pairs import PairSet, check_scores, predict, upper

ALPHAS = tuple(10.0**power for power in range(-4, 5))
CHOICES = {"weights": ("diagonal", "full"), "recipe": ("stimuli", "paper"), "scale": ("minmax", "none")}


class MLEM:
    """Squared neural distances of pairs of stimuli as a metric over their features.

    (D_ij)² ≈ b + Δᵀ W Δ with Δ the differences of the features. W is diagonal and non-negative, or symmetric positive
    semidefinite, and minimises Σ_{i<j} (b + Δᵀ W Δ - (D^N_ij)²)² + α ‖W‖²; b is free, as in scikit-learn's
    `Ridge(positive=True)`. The solution is exact; the seed is that of the folds. All layers, of all models, share what
    does not depend on them. scikit-learn's `clone`, `cross_val_score` and the like take it.

    Args:
        weights: "diagonal", or "full" with an interaction W_fg of every two features.
        distance: D^N, see `NeuralDistances`.
        alpha: one number, or several of which each layer gets the one with the best mean Spearman's ρ over the folds.
            It has no unit: for any α the weights are proportional to the squared distances.
        kinds, difference, missing: see `FeatureEncoder`.
        scale: "minmax" puts the squared distances of the training pairs into [0, 1]; "none" leaves them.
        recipe: "stimuli": folds divide stimuli; "paper": they divide pairs, so that training and test share stimuli.
        folds, seed: of the choice of alpha.

    Attributes:
        weights_: W, (f) if diagonal, else (f, f); after the axis of layers, if Y has one, as are all others.
        intercept_, alpha_: b and α.
        range_: the squared distances that are 0 and 1 in the scale of the fit.
        correlation_: (f, f) Pearson correlation of the features' Δ over the pairs (figure S5), NaN beside a constant.
        condition_number_: of that matrix without the constant features.
    """

    def __init__(
        self,
        *,
        weights: str = "diagonal",
        distance: Distance = "euclidean",
        alpha: float | Sequence[float] = ALPHAS,
        kinds: str | Sequence[str] = "nominal",
        difference: str = "indicator",
        missing: str = "own_level",
        scale: str = "minmax",
        recipe: str = "stimuli",
        folds: int = 5,
        seed: int = 0,
    ):
        self.weights, self.distance, self.alpha = weights, distance, alpha
        self.kinds, self.difference, self.missing = kinds, difference, missing
        self.scale, self.recipe, self.folds, self.seed = scale, recipe, folds, seed

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """What the constructor was given."""
        return {name: getattr(self, name) for name in inspect.signature(MLEM).parameters}

    def set_params(self, **params: Any) -> MLEM:
        """Change some of it.

        Raises:
            ValueError: there is no such parameter.
        """
        for name, value in params.items():
            if name not in self.get_params():
                raise ValueError(f"MLEM has no parameter {name!r}; there is {', '.join(self.get_params())}")
            setattr(self, name, value)
        return self

    def __sklearn_tags__(self) -> Any:
        from sklearn.base import BaseEstimator  # only scikit-learn calls this

        return BaseEstimator().__sklearn_tags__()

    def fit(self, X: Any, Y: Any, groups: Any = None) -> MLEM:
        """Fit all layers; warns of constant features, and of such as differ on much the same pairs.

        Args:
            X: (n, f) table of numbers, NaN where a value is missing.
            Y: (n, d) states, or (n, n) precomputed distances; or a sequence of layers, of any models and widths.
            groups: (n) numbers; stimuli of a group, such as the words of a sentence, stay in one fold.

        Raises:
            ValueError: a parameter has no such choice, the tables do not fit together, every feature is constant, or
                all distances of a layer are equal; see `NeuralDistances`, `FeatureEncoder`, `stimulus_folds`.
        """
        table = self.read(X, Y, groups)
        self.encoder_ = self.encoder(table.values)
        features = self.encoder_.encode(table.values)
        found = self.estimate(features, table.pairs, self.divide(table.pairs, table.groups))
        self.correlation_, self.condition_number_ = describe(found)
        self._keep(found, table)
        return self

    def predict(self, X: Any) -> Float[Tensor, "*l p"]:
        """Squared distances of all pairs i < j of stimuli, in the scale of the fit and the order of SciPy's `pdist`.

        Under missing="drop" stimuli that lack a value are left out.

        Raises:
            ValueError: the model was not fitted; see `FeatureEncoder.encode`.
        """
        self._check_fitted()
        features = self.encoder_.encode(read_values(X, self.missing == "drop", self._found.weights.device)[0])
        chosen = upper(len(features), features.levels.device)
        differences = [features.difference(feature).flatten()[chosen] for feature in range(len(features.scaled))]
        made = predict(differences, self._found.terms, self._found.weights) + self._found.intercept[:, None]
        return made[0] if self._single else made

    def score(self, X: Any, Y: Any) -> float | Float[Tensor, " l"]:
        """Spearman's ρ of predicted and neural distances over all pairs; one number, or one per layer.

        Raises:
            ValueError: the prediction is constant, or the number of layers is not that of the fit; see `fit`.
        """
        self._check_fitted()
        table = self.read(X, Y)
        pairs, fitted = table.pairs, self._found
        if len(pairs.layers) != len(fitted.weights):
            raise ValueError(f"{len(pairs.layers)} layers, but the model was fitted on {len(fitted.weights)}")
        differences = pairs.differences(self.encoder_.encode(table.values))
        found = check_scores(pairs.score([differences], fitted.terms, fitted.weights)[0])
        return float(found[0]) if table.single else found

    def save(self, path: str | PathLike[str]) -> None:
        """Write parameters and fit.

        Raises:
            ValueError: the distance is a function, or the model was not fitted.
        """
        if callable(self.distance):
            raise ValueError("a distance that is a function cannot be saved: precompute the distances")
        self._check_fitted()
        state = {name: value for name, value in vars(self).items() if name not in self.get_params()}
        state |= {"_found": tuple(self._found), "encoder_": vars(self.encoder_)}
        torch.save({"params": self.get_params(), "state": state}, path)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> MLEM:
        """Read what `save` wrote."""
        found = torch.load(path, weights_only=True)
        model, state = cls(**found["params"]), found["state"]
        vars(model).update(state, _found=Fitted(*state["_found"]), encoder_=FeatureEncoder(**state["encoder_"]))
        return model

    def read(self, X: Any, Y: Any, groups: Any = None) -> Table:
        """Check this model's choices, and the data."""
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name}={getattr(self, name)!r} is none of {', '.join(choices)}")
        return read(X, Y, groups, self.distance, self.missing == "drop", self.recipe == "paper")

    def encoder(self, values: Float[Tensor, "n f"]) -> FeatureEncoder:
        """Fitted on these stimuli."""
        return FeatureEncoder.fit(values, self.kinds, self.difference, self.missing)

    def divide(self, pairs: PairSet, groups: Tensor | None) -> Division:
        """The folds for the choice of α, if there is one."""
        return divide(pairs, self.folds if len(self._alphas()) > 1 else 1, self.seed, groups)

    def estimate(self, features: Features, pairs: PairSet, division: Division) -> Fitted:
        """Weights, in units of the squared distances."""
        return estimate(features, pairs, division, self._alphas(), self.weights == "full")

    def _alphas(self) -> tuple[float, ...]:
        alphas = tuple(self.alpha) if isinstance(self.alpha, Sequence) else (self.alpha,)
        if not alphas or not all(0 <= alpha < float("inf") for alpha in alphas):
            raise ValueError(f"alpha={self.alpha} is no number >= 0, nor several")
        return tuple(float(alpha) for alpha in alphas)

    def _keep(self, found: Fitted, table: Table) -> None:
        ends = found.weights.new_tensor([[0.0, 1.0]]).expand(len(found.weights), 2)
        if self.scale == "minmax":
            ends = torch.stack([torch.stack(layer.extremes()) for layer in table.pairs.layers])
        unit = ends[:, 1] - ends[:, 0]
        if (unit == 0).any():
            raise ValueError(f"all distances of layer {int((unit == 0).nonzero()[0])} are equal")
        self._single = table.single
        found = found._replace(weights=found.weights / unit[:, None], intercept=(found.intercept - ends[:, 0]) / unit)
        kept = found.matrices, found.intercept, found.alpha, ends
        self.weights_, self.intercept_, self.alpha_, self.range_ = (x[0] if table.single else x for x in kept)
        self._found = found

    def _check_fitted(self) -> None:
        if not hasattr(self, "encoder_"):
            raise ValueError("this MLEM is not fitted: call fit first")
