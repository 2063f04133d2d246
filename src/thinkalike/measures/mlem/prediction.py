"""Predictions of an encoding model from the differences of stimuli."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from thinkalike.measures.mlem.terms import Term, grouped


def predict(
    differences: Sequence[Tensor], terms: Sequence[Term], weights: Float[Tensor, "*b r"]
) -> Float[Tensor, "*b p"]:
    """Return the sum of the weights of all terms times what they multiply, see `regressors`, without the intercept.

    Terms are added one by one, so that equal Δ give equal bits.
    """
    total = weights.new_zeros(*weights.shape[:-1], len(differences[0]))
    for term, places in grouped(terms):
        total += _part(differences, term, weights[..., places])
    return total


def _part(differences: Sequence[Tensor], term: Term, weights: Float[Tensor, "*b q"]) -> Float[Tensor, "*b p"]:
    """Return what one term, or all pairs of levels of one feature, add to the prediction."""
    if len(term) == 1:
        return pad(weights, (1, 0)).index_select(-1, differences[term[0]].long())
    return weights * (differences[term[0]] * differences[term[1]])


class Variants:
    """The predictions, in one layer, of variants of the differences of the same pairs.

    What a column adds is looked up once for all variants that have it; a permutation moves few of them.

    Args:
        common: The columns that most variants have.
    """

    def __init__(self, common: Sequence[Tensor], terms: Sequence[Term], weights: Float[Tensor, " r"]):
        self.common = common
        self.groups = [(term, weights[places]) for term, places in grouped(terms)]
        self.parts = [_part(common, term, own) for term, own in self.groups]

    def predict(self, differences: Sequence[Tensor]) -> Float[Tensor, " p"]:
        """Return what `predict` does, to the bit."""
        total = self.groups[0][1].new_zeros(len(differences[0]))
        for (term, own), part in zip(self.groups, self.parts, strict=True):
            same = all(differences[feature] is self.common[feature] for feature in term)
            total += part if same else _part(differences, term, own)
        return total


SAMPLE = 4096  # pairs that say whether most of all pairs are different


def mostly_different(differences: Sequence[Tensor]) -> bool:
    """Return whether so few pairs have the same differences that sorting them all is quicker than finding those."""
    if all(column.dtype == torch.bool for column in differences):
        return False
    some = [column[:: -(-len(column) // SAMPLE)] for column in differences]
    return 2 * len(distinct(some)[0][0]) > len(some[0])


def pattern_codes(differences: Sequence[Tensor]) -> Int[Tensor, " p"]:
    """Return a number for each pair, whose bit f says whether feature f differs."""
    code = torch.zeros_like(differences[0], dtype=torch.uint8 if len(differences) <= 8 else torch.int64)
    for column in reversed(differences):
        code = torch.add(column, code, alpha=2)
    return code.long()


def distinct(differences: Sequence[Tensor]) -> tuple[list[Tensor], Int[Tensor, " p"]]:
    """Return the different differences that pairs have, feature by feature, and which of them each pair has."""
    key, number = torch.zeros_like(differences[0], dtype=torch.int64), 1
    for column in map(_numbered, differences):
        size = int(column.max()) + 1
        if number * size >= 2**62:
            key, number = torch.unique(key, return_inverse=True)[1], len(key)
        key, number = key * size + column, number * size
    key = torch.unique(key, return_inverse=True)[1]
    first = torch.empty(int(key.max()) + 1, dtype=torch.int64, device=key.device)
    first[key] = torch.arange(len(key), device=key.device)  # any pair that has them
    return [column[first] for column in differences], key


def _numbered(column: Tensor) -> Tensor:
    return torch.unique(column, return_inverse=True)[1] if column.is_floating_point() else column


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
