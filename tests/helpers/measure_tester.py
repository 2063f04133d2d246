"""One tester for all measures of two sets of features: it proves what `Properties` promises, and the value besides.

A measure of layer pairs declares its properties in its class, and the tester takes them from there. Any other joins
with one line in `test_declared_measures.py`: a function of (n, d) and (n, e), and its properties.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf, log, pi
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from thinkalike.measures import COMPARATORS, LayerMeasure
from thinkalike.measures.contract import BAD_INPUT, SAME_SHAPE, Invariance, Refusal
from thinkalike.registry import KindEntry

# names of comparators in rsatoolbox, and all of them as a parameter
THEIRS = dict(zip(COMPARATORS, ("spearman", "tau-a", "corr", "cosine", "corr_cov", "cosine_cov"), strict=True))
every = pytest.mark.parametrize("comparator", COMPARATORS)


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
    refuses: frozenset[Refusal] = BAD_INPUT

    @classmethod
    def of(cls, measure: LayerMeasure) -> "Properties":
        """Return what a measure of layer pairs says of itself."""
        return cls(
            *measure.value_range,
            measure.invariances,
            measure.differentiable,
            measure.higher_is_closer,
            measure.best,
            measure.is_symmetric,
            measure.fewest,
            measure.refuses,
        )


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
    "mutual knn given the token": NEIGHBOURS,
    # states that do not vary, as those of a coarse copy, share nothing
    "r2": Properties(-inf, 1.0, SAME_SHAPE, 2, True, 1.0, symmetric=False, fewest=5, refuses=OUTPUT),
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


# ---- what proves the promises

F64 = torch.float64
N = 20


def orthogonal(x: Tensor) -> Tensor:
    d = x.shape[1]
    return -x if d == 1 else x @ torch.linalg.qr(torch.randn(d, d, dtype=x.dtype)).Q


def scales(x: Tensor) -> Tensor:
    return torch.linspace(0.1, 3, x.shape[1], dtype=x.dtype)


CHANGES: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "orthogonal": lambda x, y: (orthogonal(x), y),
    "isotropic_scaling": lambda x, y: (1e-3 * x, y),
    "translation": lambda x, y: (x + 10 * torch.randn(x.shape[1], dtype=x.dtype), y),
    "row_permutation": lambda x, y: (x.flip(0), y.flip(0)),
    "row_permutation_of_one": lambda x, y: (x.flip(0), y),
    "unit_scaling": lambda x, y: (x * scales(x), y),
    "invertible_linear": lambda x, y: (x @ (scales(x).flip(0).diag() + torch.ones(2 * [x.shape[1]]).triu(1).to(x)), y),
}


def spoilt(x: Tensor, value: float) -> Tensor:
    x = x.clone()
    x[3, 0] = value
    return x


BAD: dict[str, Callable[[Tensor, int], Tensor]] = {
    "nan": lambda x, fewest: spoilt(x, torch.nan),
    "inf": lambda x, fewest: spoilt(x, torch.inf),
    "few_rows": lambda x, fewest: x[: fewest - 1],
    "unequal_rows": lambda x, fewest: x[1:],
    "unequal_widths": lambda x, fewest: x[:, 1:],
    "constant": lambda x, fewest: torch.full_like(x, 0.5),
}


@dataclass(frozen=True)
class Measure:
    """A measure with its promises; `function(x, y)` returns one number."""

    function: Callable[..., Any]
    properties: Properties
    widths: tuple[int, int] = (5, 8)
    tolerance: float = 1e-10  # of what is the same in float64
    single: float = 1e-5  # of float32 beside float64
    identical_tolerance: float = 1e-10
    goes_below_zero: bool = True  # where the range does
    rows: int = 8  # of the draws that explore the range
    noises: tuple[float, ...] = (0.01, 0.3, 1, 30)

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.as_tensor(self.function(x, y))

    def draw(self, n: int = N, noise: float = 0.5, widths: tuple[int, ...] | None = None) -> list[Tensor]:
        """Return features of the same n stimuli, float64, alike through four shared dimensions."""
        base = torch.randn(n, 4, dtype=F64)
        widths = widths or self.widths
        return [base @ torch.randn(4, d, dtype=F64) + noise * torch.randn(n, d, dtype=F64) for d in widths]


def declared(entry: KindEntry) -> Measure:
    """Return a measure of layer pairs of the registry with the properties that its class declares."""
    small = {name.removeprefix("measure."): value for name, value in entry.load().smallest.items()}
    measure = entry.load()(**small)
    widths = (8, 8) if "unequal_widths" in measure.refuses else (5, 8)
    return Measure(measure.of, Properties.of(measure), widths=widths, **DIGITS.get(entry.kind, {}))


DIGITS: dict[str, dict[str, Any]] = {  # where a measure needs other draws than most
    "procrustes": {"identical_tolerance": 1e-6},
    "svcca": {"rows": 20},
    "soft_matching": {"goes_below_zero": False},
}


def check_invariance(measure: Measure, change: str) -> None:
    """A change that is declared leaves the value as it is; any other moves it visibly."""
    declared = change in measure.properties.invariances
    apart = 0.0
    for _ in range(1 if declared else 4):  # a share of few rows may stay the same by chance
        x, y = measure.draw()
        apart = float((measure(*CHANGES[change](x, y)) - measure(x, y)).detach().abs())
        if apart > 1e-4:
            break
    assert (apart < measure.tolerance) == declared, f"{change} moves the value by {apart}"
    assert declared or apart > 1e-4, f"{change} moves the value by {apart} only"


def check_range(measure: Measure, draws: int = 6) -> None:
    """Values stay in the declared range, and are not clamped at 0 where it goes below."""
    properties = measure.properties
    values = torch.stack(
        [measure(*measure.draw(measure.rows, noise)) for noise in measure.noises for _ in range(draws)]
    )
    assert values.isfinite().all()
    assert properties.low - measure.identical_tolerance <= values.min()
    assert values.max() <= properties.high + measure.identical_tolerance
    assert bool((values.min() < -1e-6) == (properties.low < 0 and measure.goes_below_zero))


def check_order(measure: Measure) -> None:
    """The two sides may change places or not, and features with themselves have the declared value, the closest."""
    properties, (x, y) = measure.properties, measure.draw(widths=(measure.widths[0],) * 2)
    apart = float((measure(x, y) - measure(y, x)).detach().abs())
    assert (apart < measure.tolerance) == properties.symmetric, f"changing places moves the value by {apart}"
    if not properties.symmetric:
        near, far = (
            sum(float(measure(*measure.draw(noise=noise)).detach()) for _ in range(10)) for noise in (0.05, 1.0)
        )
        assert (near > far) == properties.higher_is_closer
    own, other = measure(x, x.clone()), measure(x, y)
    if properties.identical is not None:
        assert abs(float(own) - properties.identical) < measure.identical_tolerance
        assert abs(float(other) - properties.identical) > 1e-3, "control: others are not alike"
    if properties.symmetric or properties.identical is not None:
        assert bool(own > other) == properties.higher_is_closer


def check_precision(measure: Measure) -> None:
    """Float32 features give the value of float64 ones, to the digits that are declared."""
    x, y = measure.draw()
    single, double = (float(measure(*pair).detach()) for pair in ((x.float(), y.float()), (x, y)))
    assert abs(single - double) < measure.single * max(1.0, abs(double))


def check_size(measure: Measure) -> None:
    """Features whose squares are 0 or infinite have the value of others, where isotropic scaling is declared."""
    x, y = measure.draw()
    for dtype, power in ((F64, 475), (F64, -475), (torch.float32, 100), (torch.float32, -100)):
        if "isotropic_scaling" in measure.properties.invariances:
            given, other = x.to(dtype), y.to(dtype)
            size = measure(given * 2.0**power, other), measure(given, other)
            torch.testing.assert_close(*size, rtol=0, atol=measure.tolerance)


def check_refusal(measure: Measure, bad: str) -> None:
    """Bad input of either side is a ValueError, and the least number of rows is enough."""
    properties = measure.properties
    x, y = measure.draw()
    for side in (0, 1) if properties.symmetric else (0,):
        pair = [x, y]
        pair[side] = BAD[bad](pair[side], properties.fewest)
        if bad == "few_rows":
            pair[1 - side] = pair[1 - side][: properties.fewest - 1]
        with pytest.raises(ValueError):
            measure(*pair)
    if bad == "few_rows":
        assert measure(*measure.draw(properties.fewest)).isfinite(), "control: one row more is enough"


def gradient_sides(measure: Measure) -> int:
    """Return in how many sides, from the first, the value truly has a gradient.

    A gradient counts if the value requires one, it is not zero, and it is that of finite differences. `gradcheck` alone
    does not do: of a measure of ranks, which has no gradient and moves in steps that are too far apart to be seen, it
    says that all is well.
    """
    for sides in (2, 1):
        pair = [x.requires_grad_(side < sides) for side, x in enumerate(measure.draw(8, widths=(3, 3)))]
        if measure.widths[0] == 1:
            pair = [x[:, :1].detach().requires_grad_(side < sides) for side, x in enumerate(pair)]
        value = measure(*pair)
        if not value.requires_grad:
            continue
        gradients = torch.autograd.grad(value, pair[:sides], allow_unused=True)
        if any(gradient is None or not gradient.abs().max() > 1e-8 for gradient in gradients):
            continue
        if torch.autograd.gradcheck(measure, pair, raise_exception=False):
            return sides
    return 0


def check_gradient(measure: Measure) -> None:
    """The value has a gradient in as many sides as are declared."""
    assert gradient_sides(measure) == measure.properties.differentiable
