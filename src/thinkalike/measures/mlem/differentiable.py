"""A metric-learning encoding model whose loss has gradients, in W and in the states.

See Salle et al. (2024, appendix B).
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from thinkalike.arguments import check_choice, takes_arrays
from thinkalike.measures.mlem.features import Features
from thinkalike.measures.powers_of_two import power_of_two_unit

LOSSES = ("squared_error", "pearson", "spearman")


class DifferentiableMLEM(nn.Module):
    """The model (D_ij)² ≈ b + Δᵀ W Δ, W = R Rᵀ (symmetric positive semidefinite), or diagonal.

    A diagonal W has the squares of R. With squared_error on all pairs, training converges to the
    weights of `MLEM(scale="none")`, which is exact and far faster. This model is for another loss,
    or for states that are trained too.

    | loss | |
    |---|---|
    | squared_error | mean squared error of the squared distances, + alpha ‖W‖² / pairs |
    | pearson | 1 - Pearson's r |
    | spearman | 1 - Pearson's r of the soft ranks of both sides, see `soft_ranks` |

    Args:
        features: The number of features.
        weights: "diagonal" or "full".
        loss: The loss, see above.
        alpha: The ridge of the squared error, as in `MLEM`.
        strength: The strength of the soft ranks, above 0; by default 1 / pairs.

    >>> DifferentiableMLEM(features=2)
    DifferentiableMLEM()
    """

    def __init__(
        self,
        features: int,
        weights: str = "diagonal",
        loss: str = "squared_error",
        alpha: float = 0.0,
        strength: float | None = None,
    ):
        """Check the choices, and begin with W = I and an intercept of 0.

        R is trained, with W = R Rᵀ, or R² for a diagonal W.

        Args:
            features: The number of features.
            weights: "diagonal" or "full".
            loss: "squared_error", "pearson" or "spearman".
            alpha: The ridge of the squared error.
            strength: How soft the ranks of "spearman" are, above 0; None: 1 / pairs.
        """
        super().__init__()
        check_choice("weights", weights, ("diagonal", "full"))
        check_choice("loss", loss, LOSSES)
        self.loss_name = loss
        self.alpha = alpha
        self.strength = strength
        start = torch.eye(features) if weights == "full" else torch.ones(features)
        self.root = nn.Parameter(start)  # R
        self.intercept = nn.Parameter(torch.zeros(()))

    @property
    def weights(self) -> Float[Tensor, " f"] | Float[Tensor, "f f"]:
        """The weights W = R Rᵀ of the features: a matrix (f, f), or its diagonal (f).

        The parameter `root` is R, or the diagonal of R if W is diagonal.
        """
        if self.root.dim() == 1:
            return self.root.square()
        return self.root @ self.root.T

    @takes_arrays
    def forward(self, differences: Float[Tensor, "p f"]) -> Float[Tensor, " p"]:
        """Return the predicted squared distances b + Δᵀ W Δ of p pairs, given their Δ.

        W is R Rᵀ, with R the parameter `root`, which is a vector if R is diagonal.
        """
        if self.root.dim() == 1:
            return self.intercept + differences.square() @ self.root.square()
        return self.intercept + (differences @ self.root).square().sum(-1)

    @takes_arrays
    def loss(
        self,
        features: Features,
        states: Float[Tensor, "n d"],
        pairs: Int[Tensor, "2 p"] | None = None,
    ) -> Float[Tensor, ""]:
        """Return the loss on pairs of the n stimuli, at least 0, differentiable in W and states.

        Args:
            features: The features of the stimuli.
            states: Their states.
            pairs: The pairs; by default all i < j.

        Raises:
            ValueError: States are not one for each stimulus, or what is to be correlated is all
                equal.
        """
        if len(states) != len(features):
            raise ValueError(
                f"there are {len(states)} states of {len(features)} stimuli: give one for each"
            )
        if pairs is None:
            pairs = torch.triu_indices(len(states), len(states), 1, device=states.device)
        if self.loss_name != "squared_error":
            # Correlations do not depend on the scale, whose squares may be beyond the dtype.
            states = states / power_of_two_unit(states.detach())
        predicted = self(features.differences(pairs).to(self.root.dtype))
        distances = (states[pairs[0]] - states[pairs[1]]).square().sum(-1)
        wider = torch.promote_types(predicted.dtype, distances.dtype)
        predicted = predicted.to(wider)
        distances = distances.to(wider)

        pair_count = pairs.shape[1]
        if self.loss_name == "squared_error":
            error = (predicted - distances).square().mean()
            penalty = self.weights.square().sum() * self.alpha / pair_count
            loss: Tensor = error + penalty
            return loss
        if self.loss_name == "spearman":
            strength = 1 / pair_count if self.strength is None else self.strength
            predicted = soft_ranks(predicted, strength)
            distances = soft_ranks(distances, strength)
        return 1 - pearson(predicted, distances)


def pearson(x: Float[Tensor, " p"], y: Float[Tensor, " p"]) -> Float[Tensor, ""]:
    """Return Pearson's r of two vectors, in [-1, 1], differentiable in both.

    Raises:
        ValueError: A vector is constant or not finite.
    """
    x = x - x.mean()
    y = y - y.mean()
    norm: Tensor = x.norm() * y.norm()
    if not norm > 0:  # 0 or NaN
        raise ValueError(f"{len(x)} predictions or distances are all equal, or not finite")
    return x @ y / norm


def soft_ranks(values: Float[Tensor, " p"], strength: float) -> Float[Tensor, " p"]:
    """Return differentiable ranks from 1, r_i = ½ + Σ_j σ((x_i - x_j) / (strength · s)).

    σ is the sigmoid and s the standard deviation of the values x. At strength → 0 they are the
    mid-ranks, at strength → ∞ linear in x. 1/p is a good strength, as neighbouring ones of p
    values are about s / p apart. The memory is p² numbers.
    """
    differences = values[:, None] - values
    return 0.5 + (differences / (strength * values.std())).sigmoid().sum(1)
