"""The terms of an encoding model: an entry of W each, and what it multiplies.

The term (f, g) is the entry W_fg with the regressor Δ_f Δ_g; the term (f, a, b) the weight of the levels a and b of
feature f, with the regressor 1[one stimulus has a, the other b]; the term () is the intercept. Terms of the levels of
one feature are in the order of their codes, see `pair_codes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, groupby

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from thinkalike.measures.mlem.features import level_pairs

Term = tuple[int, ...]
MOST = 1000  # weights of pairs of levels: a fit solves systems of as many equations, hundreds of times


def terms_of(known: Sequence[int], interactions: bool, labels: Sequence[str] = ()) -> list[Term]:
    """Return the intercept, the diagonal of W or the pairs of levels, and with interactions W's upper triangle.

    Args:
        known: For each feature the number of levels whose pairs have weights, or 0, see `Features`.
        labels: What an error calls the features; by default their numbers.

    Raises:
        ValueError: Interactions are asked for beside weights of pairs of levels, or there are more than `MOST` of them.
    """
    if any(known) and interactions:
        raise ValueError("weights='full' has no levels: difference='levels' and 'points' need weights='diagonal'")
    number = sum(size * (size - 1) // 2 for size in known)
    if number > MOST:
        worst = max(range(len(known)), key=lambda feature: known[feature])
        name = labels[worst] if labels else worst
        raise ValueError(
            f"{number} pairs of levels, of which {MOST} can have weights; feature {name} has {known[worst] - 1} "
            "levels: leave it out, or give it another kind, such as ordinal, and so one weight"
        )
    single = [[(f, a, b) for a, b in level_pairs(size)] if size else [(f, f)] for f, size in enumerate(known)]
    return [
        (),
        *(term for part in single for term in part),
        *(combinations(range(len(known)), 2) if interactions else ()),
    ]


def grouped(terms: Sequence[Term]) -> list[tuple[Term, slice]]:
    """Return the terms but the first, with the places of their weights; (f,) stands for all pairs of levels of f."""
    groups, start = [], 0
    for term, same in groupby(terms[1:], key=lambda term: term[:1] if len(term) == 3 else term):
        stop = start + len(list(same))
        groups.append((term, slice(start, stop)))
        start = stop
    return groups


def regressors(differences: Sequence[Tensor], terms: Sequence[Term]) -> list[Float[Tensor, "*p"]]:
    """Return what each term multiplies, in float64: 1, the product of two differences, or whether levels are a pair."""
    products = [torch.ones_like(differences[0], dtype=torch.float64)]
    for term, places in grouped(terms):
        if len(term) == 1:
            codes = differences[term[0]]
            products += [(codes == code).double() for code in range(1, places.stop - places.start + 1)]
        else:
            products.append(differences[term[0]].double() * differences[term[1]])
    return products


# ---------------------------------------------------------------------------------------------------------- predictions


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


DENSE = 2**16  # patterns that may be counted, met or not
SAMPLE = 4096  # pairs that say whether most of all pairs are different


def mostly_different(differences: Sequence[Tensor]) -> bool:
    """Return whether so few pairs have the same differences that sorting them all is quicker than finding those."""
    if all(column.dtype == torch.bool for column in differences):
        return False
    some = [column[:: -(-len(column) // SAMPLE)] for column in differences]
    return 2 * len(distinct(some)[0][0]) > len(some[0])


def distinct(differences: Sequence[Tensor]) -> tuple[list[Tensor], Int[Tensor, " p"]]:
    """Return the different differences that pairs have, feature by feature, and which of them each pair has."""
    key, number = torch.zeros_like(differences[0], dtype=torch.int64), 1
    for column in map(_numbered, differences):
        size = int(column.max()) + 1
        if number * size >= 2**62:
            key, number = torch.unique(key, return_inverse=True)[1], len(key)
        key, number = key * size + column, number * size
    if number <= DENSE:  # without sorting
        key = ((torch.bincount(key, minlength=number) > 0).cumsum(0) - 1)[key]
    else:
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
