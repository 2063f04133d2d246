"""The terms of an encoding model: an entry of W each, and what it multiplies.

The term (f, g) is the entry W_fg with the regressor Δ_f Δ_g; the term () is the intercept.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import torch
from jaxtyping import Float
from torch import Tensor

Term = tuple[int, ...]


def terms_of(features: int, interactions: bool) -> list[Term]:
    """Return the intercept, the diagonal of W, and with interactions its upper triangle."""
    diagonal = [(feature, feature) for feature in range(features)]
    return [(), *diagonal, *(combinations(range(features), 2) if interactions else ())]


def regressors(differences: Sequence[Tensor], terms: Sequence[Term]) -> list[Float[Tensor, "*p"]]:
    """Return the product of the differences of each term, in float64."""
    products = []
    for term in terms:
        product = torch.ones_like(differences[0], dtype=torch.float64)
        for feature in term:
            product = product * differences[feature]
        products.append(product)
    return products
