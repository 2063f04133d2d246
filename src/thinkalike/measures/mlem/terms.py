"""The terms of an encoding model: the entries of W and their regressors.

The term (f, g) is the entry W_fg with the regressor Δ_f Δ_g; the term (f, a, b) the weight of the levels a and b of
feature f, with the regressor 1[one stimulus has a, the other b]; the term () is the intercept. Terms of the levels of
one feature are in the order of their codes, see `pair_codes`; the last, (f, k, k), is any pair with a new level.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, groupby

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

Term = tuple[int, ...]
DENSE = 2**16  # possible patterns of differences up to which all of them are counted
SAMPLE = 4096  # pairs that are looked at to estimate how many differ
MOST = 1000  # weights of pairs of levels: a fit solves systems of that size hundreds of times


def terms_of(known: Sequence[int], interactions: bool, labels: Sequence[str] = ()) -> list[Term]:
    """Return the intercept, the diagonal of W or the pairs of levels, and with interactions W's upper triangle.

    Raises:
        ValueError: There are both interactions and weights of pairs of levels, or more than `MOST` of the latter.
    """
    if any(known) and interactions:
        raise ValueError("weights='full' has no levels: difference='levels' and 'points' need weights='diagonal'")
    number = sum(size * (size - 1) // 2 for size in known)
    if number > MOST:
        worst = max(range(len(known)), key=lambda feature: known[feature])
        raise ValueError(
            f"{number} pairs of levels are more than {MOST} weights; feature {labels[worst] if labels else worst} has "
            f"{known[worst] - 1} levels: leave it out, or give it another kind, such as ordinal, with one weight"
        )
    terms: list[Term] = [()]
    for feature, size in enumerate(known):
        pairs = [*combinations(range(size), 2), (size, size)]
        terms += [(feature, *pair) for pair in pairs] if size else [(feature, feature)]
    return [*terms, *combinations(range(len(known)), 2)] if interactions else terms


def grouped(terms: Sequence[Term]) -> list[tuple[Term, slice]]:
    """Return the terms but the first, with the places of their weights; (f,) stands for all pairs of levels of f."""
    groups, start = [], 0
    for term, same in groupby(terms[1:], key=lambda term: term[:1] if len(term) == 3 else term):
        stop = start + len(list(same))
        groups.append((term, slice(start, stop)))
        start = stop
    return groups


def of_features(terms: Sequence[Term]) -> Float[Tensor, "f r"]:
    """Return which terms sum to Δ_f."""
    own = [term[0] if len(term) == 3 or term[0] == term[1] else -1 for term in terms[1:]]
    return (torch.tensor(own) == torch.arange(max(own) + 1)[:, None]).double()


def regressors(differences: Sequence[Tensor], terms: Sequence[Term]) -> list[Float[Tensor, "*p"]]:
    """Return the regressor of each term, in float64: 1, the product of two differences, or an indicator of levels."""
    products = [torch.ones_like(differences[0], dtype=torch.float64)]
    for term, places in grouped(terms):
        if len(term) == 1:
            codes = differences[term[0]]
            products += [(codes == code).double() for code in range(1, places.stop - places.start + 1)]
        else:
            products.append(differences[term[0]].double() * differences[term[1]])
    return products


def predict(
    differences: Sequence[Tensor], terms: Sequence[Term], weights: Float[Tensor, "*b r"]
) -> Float[Tensor, "*b p"]:
    """Return the sum of weights times `regressors`, without the intercept.

    Terms are added one by one, so that equal Δ give equal bits.
    """
    total = weights.new_zeros(*weights.shape[:-1], len(differences[0]))
    for term, places in grouped(terms):
        if len(term) == 1:
            total += pad(weights[..., places], (1, 0)).index_select(-1, differences[term[0]].long())
        else:
            total += weights[..., places] * (differences[term[0]] * differences[term[1]])
    return total


def distinct(differences: Sequence[Tensor]) -> tuple[list[Tensor], Int[Tensor, " p"]]:
    """Return patterns of differences, feature by feature, and the pattern of each pair.

    Patterns are distinct, but each pair has its own if most are different, since nothing is gained then by grouping.
    """
    some = [column[:: -(-len(column) // SAMPLE)] for column in differences]
    if any(column.dtype != torch.bool for column in some) and 2 * int(_pattern(some).max() + 1) > len(some[0]):
        return list(differences), torch.arange(len(differences[0]), device=differences[0].device)
    key = _pattern(differences)
    first = torch.empty(int(key.max()) + 1, dtype=torch.int64, device=key.device)
    first[key] = torch.arange(len(key), device=key.device)  # any pair of the pattern
    return [column[first] for column in differences], key


def _pattern(differences: Sequence[Tensor]) -> Int[Tensor, " p"]:
    """Return the number of the pattern of each pair."""
    key, number = torch.zeros_like(differences[0], dtype=torch.int64), 1
    for column in differences:
        column = torch.unique(column, return_inverse=True)[1] if column.is_floating_point() else column
        size = int(column.max()) + 1
        if number * size >= 2**62:
            key, number = torch.unique(key, return_inverse=True)[1], len(key)
        key, number = key * size + column, number * size
    if number > DENSE:
        return torch.unique(key, return_inverse=True)[1]
    return ((torch.bincount(key, minlength=number) > 0).cumsum(0) - 1)[key]  # without sorting
