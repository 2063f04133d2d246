"""What each measure promises, as data; one test proves it for all of them."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal

Invariance = Literal["orthogonal", "isotropic_scaling", "translation", "row_permutation", "invertible_linear"]


@dataclass(frozen=True)
class Properties:
    """Of a measure of two sets of features of the same stimuli.

    `invariances` are to changes of one side's features alone, but for "row_permutation", which reorders both.
    """

    low: float
    high: float
    invariances: frozenset[Invariance]
    differentiable: bool
    higher_is_closer: bool


SAME_SHAPE: frozenset[Invariance] = frozenset({"orthogonal", "isotropic_scaling", "translation", "row_permutation"})

PROPERTIES = {
    "cka": Properties(-1.0, 1.0, SAME_SHAPE, differentiable=True, higher_is_closer=True),
    "cka biased": Properties(0.0, 1.0, SAME_SHAPE, differentiable=True, higher_is_closer=True),
    "cka rbf": Properties(-1.0, 1.0, SAME_SHAPE, differentiable=True, higher_is_closer=True),
    "hsic1": Properties(-inf, inf, SAME_SHAPE - {"isotropic_scaling"}, differentiable=True, higher_is_closer=True),
}
