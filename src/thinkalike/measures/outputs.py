"""Jensen-Shannon divergence and disagreement of two models' logits for the same tokens."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.measures.contract import LayerMeasure, each_pair, rows_in_order

AT_ONCE = 2**24  # logits whose divergence is computed at a time


def jensen_shannon(X: Float[Tensor, "n v"], Y: Float[Tensor, "m w"]) -> Float[Tensor, ""]:
    """Return the mean Jensen-Shannon divergence of softmax(X) and softmax(Y) row by row, in nats, in [0, ln 2].

    ½ KL(p ‖ m) + ½ KL(q ‖ m), m = (p + q) / 2 (Lin 1991), of the logits of two models with one vocabulary. A logit of
    -∞ has a probability of 0. It is differentiable, and computed in float32, or what is wider.

    Raises:
        ValueError: n or the vocabulary differs, there is no row, or a logit is NaN or +∞, or all of a row are -∞.
    """
    return JENSEN_SHANNON.of(X, Y)


def disagreement(X: Float[Tensor, "n v"], Y: Float[Tensor, "m w"]) -> Float[Tensor, ""]:
    """Return the share of rows whose largest logit differs, in [0, 1]; it has no gradient.

    Of equal logits the first one counts (Klabunde et al. 2024; Madani et al. 2004, "prediction disagreement"). It has
    the errors of `jensen_shannon`.
    """
    return DISAGREEMENT.of(X, Y)


def _log_shares(logits: Float[Tensor, "n v"], name: str) -> Float[Tensor, "n v"]:
    return _checked(logits, name).to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(1)


def _top(logits: Float[Tensor, "n v"], name: str) -> Int[Tensor, "n 2"]:
    """Return the place of the largest logit of each row, and the size of the vocabulary."""
    top = _checked(logits, name).argmax(1)
    return torch.stack([top, torch.full_like(top, logits.shape[1])], 1)


def _checked(logits: Float[Tensor, "n v"], name: str) -> Float[Tensor, "n v"]:
    if not logits.amax(1).isfinite().all():  # also NaN, which is larger than all numbers
        raise ValueError(f"{name}: a logit is NaN or +inf, or all those of a row are -inf")
    return logits


def _check_vocabulary(source: int, target: int) -> None:
    if source != target:
        raise ValueError(f"outputs over {source} and {target} entries are not of one vocabulary: choose such models")


def _divergence(source: Float[Tensor, "n v"], target: Float[Tensor, "n w"]) -> Float[Tensor, ""]:
    """Return the mean divergence of log-probabilities, some rows at a time."""
    _check_vocabulary(source.shape[1], target.shape[1])
    rows = max(AT_ONCE // source.shape[1], 1)
    parts = zip(source.split(rows), target.split(rows), strict=True)
    return torch.stack([_summed(*part) for part in parts]).sum() / len(source)


def _summed(p: Float[Tensor, "n v"], q: Float[Tensor, "n v"]) -> Float[Tensor, ""]:
    middle = torch.logaddexp(p, q) - math.log(2)
    terms = [torch.where(side > -torch.inf, side.exp() * (side - middle), 0) for side in (p, q)]
    return (terms[0] + terms[1]).sum(dtype=torch.float64) / 2


def _disagree(source: Int[Tensor, "n 2"], target: Int[Tensor, "n 2"]) -> Float[Tensor, ""]:
    _check_vocabulary(int(source[0, 1]), int(target[0, 1]))
    return (source[:, 0] != target[:, 0]).double().mean()


JENSEN_SHANNON = LayerMeasure(
    _log_shares, each_pair(_divergence), rows_in_order, fewest=1, best=0.0, higher_is_closer=False
)
DISAGREEMENT = LayerMeasure(_top, each_pair(_disagree), rows_in_order, fewest=1, best=0.0, higher_is_closer=False)
