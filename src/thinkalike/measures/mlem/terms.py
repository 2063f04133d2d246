"""The terms of an encoding model: an entry of W each, and what it multiplies.

The term (f, g) is the entry W_fg with the regressor Δ_f Δ_g; the term (f, a, b) the weight of the levels a and b of
feature f, with the regressor 1[one stimulus has a, the other b]; the term () is the intercept. Terms of the levels of
one feature are in the order of their codes, see `pair_codes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, groupby

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.measures.mlem.levels.codes import level_pairs

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
