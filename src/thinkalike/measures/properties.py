"""What each measure of two sets of features promises, as data; one tester proves it for all of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, log, pi
from typing import Literal

Invariance = Literal[
    "orthogonal", "isotropic_scaling", "translation", "row_permutation", "unit_scaling", "invertible_linear"
]
Refusal = Literal["nan", "inf", "few_rows", "unequal_rows", "constant"]


@dataclass(frozen=True)
class Properties:
    """The promises of a measure of two sets of features, (n, d) and (n, e), of the same n stimuli.

    | promise | |
    |---|---|
    | low, high | the range of the value |
    | invariances | changes of one side's features alone that leave the value as it is; "row_permutation" is of both |
    | differentiable | in which sides the value has a gradient: 2 is both, 1 the first alone, 0 neither |
    | higher_is_closer | False for a distance or a loss |
    | identical | the value of features with themselves; None if that depends on the features |
    | symmetric | whether the two sides may change places |
    | fewest | the least number of rows |
    | refuses | bad input that raises a ValueError |
    """

    low: float
    high: float
    invariances: frozenset[Invariance]
    differentiable: Literal[0, 1, 2]
    higher_is_closer: bool
    identical: float | None
    symmetric: bool = True
    fewest: int = 4
    refuses: frozenset[Refusal] = frozenset({"nan", "inf", "few_rows", "unequal_rows", "constant"})


SAME_SHAPE: frozenset[Invariance] = frozenset({"orthogonal", "isotropic_scaling", "translation", "row_permutation"})
OF_RANKS: frozenset[Invariance] = SAME_SHAPE - {"orthogonal"} | {"unit_scaling", "invertible_linear"}  # of one column
FORMULA: frozenset[Refusal] = frozenset({"few_rows"})  # of Gram matrices: what they are made of is the caller's concern
RANKLESS: frozenset[Refusal] = frozenset({"few_rows", "constant"})
OF_LOGITS: frozenset[Invariance] = frozenset({"row_permutation"})
OUTPUT: frozenset[Refusal] = frozenset({"nan", "inf", "few_rows", "unequal_rows"})
UNCORRELATED: frozenset[Refusal] = frozenset({"nan", "inf", "few_rows", "constant"})

NEIGHBOURS = Properties(0.0, 1.0, SAME_SHAPE - {"translation"}, 0, True, identical=1.0, fewest=5)
OUTPUTS = Properties(0.0, log(2), OF_LOGITS, 2, False, identical=0.0, fewest=1, refuses=OUTPUT)
CORRELATION = Properties(-1.0, 1.0, SAME_SHAPE, 0, True, identical=1.0)
RSA = replace(CORRELATION, fewest=3)
RANKS = Properties(-1.0, 1.0, OF_RANKS, 0, True, identical=1.0, fewest=2, refuses=RANKLESS)
MLEM = Properties(-1.0, 1.0, SAME_SHAPE, 0, True, identical=None, symmetric=False, fewest=3)
MLEM_LOSS = replace(MLEM, low=0.0, high=2.0, differentiable=1, higher_is_closer=False, refuses=UNCORRELATED)

PROPERTIES = {
    **dict.fromkeys(("cka", "cka rbf"), Properties(-1.0, 1.0, SAME_SHAPE, 2, True, identical=1.0)),
    "cka biased": Properties(0.0, 1.0, SAME_SHAPE, 2, True, identical=1.0),
    **dict.fromkeys(("cka of batches", "cka given the token"), CORRELATION),
    "hsic1": Properties(-inf, inf, SAME_SHAPE - {"isotropic_scaling"}, 2, True, identical=None, refuses=FORMULA),
    "hsic0": Properties(0.0, inf, SAME_SHAPE - {"isotropic_scaling"}, 2, True, identical=None, refuses=frozenset()),
    "arc length": Properties(0.0, pi, SAME_SHAPE, 2, False, identical=0.0),
    **dict.fromkeys(("mutual knn", "mutual knn given the token", "jaccard"), NEIGHBOURS),
    "second order cosine": replace(NEIGHBOURS, low=-1.0),
    "procrustes": Properties(0.0, pi / 2, SAME_SHAPE, 2, False, identical=0.0, fewest=2),
    "svcca": Properties(0.0, 1.0, SAME_SHAPE, 0, True, identical=1.0, fewest=2),
    "soft matching": Properties(
        -1.0, 1.0, SAME_SHAPE - {"orthogonal"} | {"unit_scaling"}, 2, True, identical=1.0, fewest=2
    ),
    "distance correlation": CORRELATION,
    "jensen-shannon": OUTPUTS,
    "disagreement": replace(OUTPUTS, high=1.0, differentiable=0, invariances=OF_LOGITS | {"isotropic_scaling"}),
    "r2": Properties(
        -inf, 1.0, SAME_SHAPE | {"unit_scaling", "invertible_linear"}, 0, True, identical=1.0, symmetric=False, fewest=3
    ),
    "rsa": RSA,
    "rsa cosine": replace(RSA, invariances=SAME_SHAPE - {"translation"}),
    "rsa correlation": replace(RSA, invariances=SAME_SHAPE - {"orthogonal", "translation"}),
    "rsa manhattan": replace(RSA, invariances=SAME_SHAPE - {"orthogonal"}),
    "rsa norm_difference": replace(RSA, invariances=SAME_SHAPE - {"translation"}),
    **{f"rsa by {name}": RSA for name in ("tau_a", "corr", "corr_cov")},
    **{f"rsa by {name}": replace(RSA, low=0.0) for name in ("cosine", "cosine_cov")},
    **dict.fromkeys(("spearman", "weighted tau"), RANKS),
    **dict.fromkeys(("mlem", "mlem levels"), MLEM),
    **dict.fromkeys(("mlem loss pearson", "mlem loss spearman"), MLEM_LOSS),
    "token kl": replace(OUTPUTS, high=inf, differentiable=1, symmetric=False, refuses=frozenset()),
}
