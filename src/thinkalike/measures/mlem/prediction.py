"""Predictions of an encoding model from the differences of stimuli."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.measures.mlem.terms import Term


def predict(
    differences: Sequence[Tensor], terms: Sequence[Term], weights: Float[Tensor, "*b r"]
) -> Float[Tensor, "*b p"]:
    """Return Σ weight · Δ_f Δ_g over the terms (f, g), without the intercept.

    Terms are added one by one, so that equal Δ give equal bits.
    """
    total = weights.new_zeros(*weights.shape[:-1], len(differences[0]))
    for index, (f, g) in enumerate(terms[1:]):
        total += weights[..., index, None] * (differences[f] * differences[g])
    return total


def pattern_codes(differences: Sequence[Tensor]) -> Int[Tensor, " p"]:
    """Return a number for each pair, whose bit f says whether feature f differs."""
    code = torch.zeros_like(differences[0], dtype=torch.uint8 if len(differences) <= 8 else torch.int64)
    for column in reversed(differences):
        code = torch.add(column, code, alpha=2)
    return code.long()


def check_scores(scores: Float[Tensor, " l *b"]) -> Float[Tensor, " l *b"]:
    """Return the scores if each is a number.

    Raises:
        ValueError: The prediction of a layer is constant.
    """
    if scores.isnan().any():
        layer = int(scores.isnan().nonzero()[0, 0])
        raise ValueError(
            f"the prediction of layer {layer} is constant and has no ranks: no feature explains its distances"
        )
    return scores
