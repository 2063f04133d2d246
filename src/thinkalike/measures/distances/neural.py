"""Neural distances D^N of stimuli, squared (Salle et al. 2024, appendix B), and their similarity: RSA."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.arguments import Count, Repetitions, Seed, Within, check_choice, takes_arrays
from thinkalike.measures.chance import TIE, balanced_rows, permuted_rows
from thinkalike.measures.distances.comparators import TIED, compare, mid_ranks, stimuli_of, with_ties
from thinkalike.measures.estimates import (
    FEWEST_GROUPS,
    Estimate,
    all_alike,
    check_groups,
    effective_number,
    freedom_of_groups,
    has_interval,
    interval_around,
    jackknife,
    power_of_two_below,
    stimulus_folds,
    student_t,
    why_no_interval,
)
from thinkalike.processes import counted

DISTANCES = ("euclidean", "cosine", "correlation", "manhattan", "norm_difference", "precomputed")
NOISES = ("shrinkage", "diagonal", "none")
GIVEN = "given"  # the states are squared distances: of a precomputed matrix, or from `NeuralDistances.given`
Index = Int[Tensor, " _"] | slice
CLOSE = 1e-6  # share of the squared norms below which ‖x‖² + ‖y‖² - 2 x·y loses digits
ROUNDED = 4 * torch.finfo(torch.float64).eps  # share of a state's norm that computing in float64 may change
SUMMED = 16 * torch.finfo(torch.float64).eps  # share of the squared norms that ‖x‖² + ‖y‖² - 2 x·y may be off
GREATEST_SIZE = 2.0**480  # of states: sums over all pairs of their squared distances stay within float64
LEAST_SIZE = 2.0**-480  # of the largest difference of two states
PANEL = 256  # rows of distances that are computed at a time


@dataclass(frozen=True, eq=False)
class NeuralDistances:
    """The distances of n stimuli in one layer.

    | distance | (D^N)² |
    |---|---|
    | euclidean | ‖x - y‖² |
    | cosine | ‖x/‖x‖ - y/‖y‖‖² = 2 (1 - cos) |
    | correlation | ‖z(x) - z(y)‖² = 2 (1 - r), z(x) = (x - mean of x) / ‖x - mean of x‖, r Pearson's over units |
    | norm_difference | (‖x‖ - ‖y‖)² |
    | manhattan | (Σ abs(x - y))² |
    | precomputed | the square of what is given |

    The first four are squared Euclidean distances of some states, whose sums have a closed form.
    """

    states: Float[Tensor, "n d"]  # float64; if `exact`, centred states with these squared Euclidean distances
    distance: str
    whole: bool = False  # whether (D^N)² are whole numbers: they are rounded, so that equal ones tie
    error: Float[Tensor, " n"] | None = None  # by how much rounding may have moved each state, in units of D^N; None:
    # that is not known

    @classmethod
    @takes_arrays
    def of(cls, states: Float[Tensor, "n d"], distance: str = "euclidean", name: str = "layer") -> NeuralDistances:
        """Check and prepare the states of one layer, which errors call by its name.

        Raises:
            ValueError: A state is not finite, zero under cosine or constant under correlation, or a precomputed matrix
                is not symmetric and non-negative with a zero diagonal.
        """
        check_choice("distance", distance, DISTANCES)
        precision = torch.finfo(states.dtype).eps if states.dtype == torch.float32 else ROUNDED
        states = states.detach().double()
        sizes = states.abs().amax(1, keepdim=True)
        if not sizes.isfinite().all():
            raise ValueError(
                f"states of {name} are not finite: correct them, or, if a model computed them, run it in a wider dtype"
            )
        if distance in ("cosine", "correlation"):
            # These ignore the size of each state, whose squares may leave the range of float64.
            states = states / power_of_two_below(sizes)
        else:
            _refuse_size(states, distance, name)
        mean = states.mean(0)
        error = precision * _sizes(states, distance)
        if distance in ("cosine", "correlation", "norm_difference"):
            states = _transformed(states, distance, name)
            mean = states.mean(0)
        elif distance == "precomputed":
            square = states.shape[0] == states.shape[1]
            if not square or (states < 0).any() or states.diagonal().any() or not torch.equal(states, states.T):
                raise ValueError(f"{name} must be symmetric and non-negative, with a zero diagonal")
            return cls(states.square(), GIVEN, error=error)
        distances = cls(states, distance, error=error)
        if not distances.exact:
            return distances
        whole = distance == "euclidean" and all(bool((part == part.round()).all()) for part in states.split(PANEL))
        return cls(states - mean, distance, whole, None if whole else error)

    @classmethod
    @takes_arrays
    def given(cls, squared: Float[Tensor, "n n"]) -> NeuralDistances:
        """Return squared distances from elsewhere, such as `crossnobis`; some may be negative."""
        if not squared.isfinite().all() or squared.diagonal().any() or not torch.equal(squared, squared.T):
            raise ValueError("squared distances must be finite and symmetric, with a zero diagonal")
        return cls(squared.double(), GIVEN)

    @property
    def exact(self) -> bool:
        """Whether (D^N)² is the squared Euclidean distance of `states`."""
        return self.distance in ("euclidean", "cosine", "correlation", "norm_difference")

    @cached_property
    def norms(self) -> Float[Tensor, " n"]:
        return torch.linalg.vector_norm(self.states, dim=1).square()

    def __len__(self) -> int:
        return len(self.states)

    def take(self, index: Int[Tensor, " k"]) -> NeuralDistances:
        states = self.states[index][:, index] if self.distance == GIVEN else self.states[index]
        error = None if self.error is None else self.error[index]
        return NeuralDistances(states, self.distance, self.whole, error)

    def block(self, rows: Index, columns: Index, out: Float[Tensor, "a b"] | None = None) -> Float[Tensor, "a b"]:
        """Return (D^N)² between two sets of stimuli, in float64; for `out` see `squared_distances`."""
        if self.distance == GIVEN:
            return self.states[rows][:, columns]
        left, right = self.states[rows], self.states[columns]
        if self.exact:
            squared = squared_distances(left, right, self.norms[rows], self.norms[columns], out)
            return squared.round_() if self.whole else squared
        return torch.cdist(left, right, p=1).square()  # manhattan

    def squared(self) -> Float[Tensor, "n n"]:
        """Return (D^N)² of all pairs of stimuli; identical rows are exactly 0 apart, and have the same distances."""
        squared = self.states.new_empty(len(self), len(self))
        for start in range(0, len(self), PANEL):  # the upper triangle, mirrored into the lower
            end = start + PANEL
            part = squared[start:end, start:]
            part.copy_(self.block(slice(start, end), slice(start, None), part))
            squared[end:, start:end] = squared[start:end, end:].T
        if not self.exact or int(squared.fill_diagonal_(0).count_nonzero()) == len(self) * (len(self) - 1):
            return squared
        first = (squared == 0).int().argmax(1)  # a product rounds copies of a row differently
        return squared[first][:, first]

    def vector(self) -> Float[Tensor, " p"]:
        """Return (D^N)² of all pairs i < j of stimuli, in the order of `upper`; equal ones are exactly equal."""
        return self.at(upper(len(self), self.states.device))

    def at(self, pairs: Int[Tensor, " p"]) -> Float[Tensor, " p"]:
        """Return (D^N)² of pairs, given as flat indices in an n x n matrix.

        Those that rounding alone has taken apart are exactly equal.
        """
        squared = self.squared().flatten()[pairs]
        return with_ties(squared, self.rounding(pairs, squared))

    def rounding(self, pairs: Int[Tensor, " p"], squared: Float[Tensor, " p"]) -> Float[Tensor, " p"]:
        """Return by how much rounding may have changed the (D^N)² of pairs.

        States x and y that are off by e and f give D off by e + f and D² by 2 D (e + f) + (e + f)², however small D is.
        """
        found = TIED * squared.abs()
        rows, columns = pairs // len(self), pairs % len(self)
        if self.error is not None:
            moved = self.error[rows] + self.error[columns]
            found += moved * (2 * squared.clamp(min=0).sqrt() + moved)
        if self.exact and not self.whole:
            sizes = self.norms[rows] + self.norms[columns]
            found += SUMMED * sizes.where(squared >= CLOSE * sizes, 0.0)  # closer ones are sums of squares
        return found


def _refuse_size(states: Float[Tensor, "n d"], distance: str, name: str) -> None:
    """Raise a ValueError for states whose squared distances, or the sums of these, leave the range of float64."""
    largest = float(torch.stack([states.amax(), -states.amin()]).max()) if states.numel() else 0.0
    spread = largest
    if distance != "precomputed" and LEAST_SIZE < largest < GREATEST_SIZE:
        # of each column alone, since subtracting the mean of all states would copy them
        mean = states.mean(0)
        furthest_above = (states.amax(0) - mean).max()
        furthest_below = (mean - states.amin(0)).max()
        spread = float(torch.maximum(furthest_above, furthest_below))
    size = spread if spread < LEAST_SIZE else largest
    if size and not LEAST_SIZE < size < GREATEST_SIZE:
        what = "distances" if distance == "precomputed" else "states"
        differ = "differ by at most" if largest > LEAST_SIZE > spread else "are at most"
        raise ValueError(
            f"{what} of {name} {differ} {size:.0e}, and squares of such numbers leave the range of float64: "
            f"divide them by {size:.0e}"
        )


def _sizes(states: Float[Tensor, "n d"], distance: str) -> Float[Tensor, " n"]:
    """Return the size of what distances subtract: of each state, in units of the distance."""
    if distance == "manhattan":
        return states.abs().sum(1)
    if distance == "cosine":
        return states.new_ones(len(states))
    norms = torch.linalg.vector_norm(states, dim=1)
    if distance == "correlation":
        return norms / torch.linalg.vector_norm(states - states.mean(1, keepdim=True), dim=1)
    # Of distances that are given nothing is known but that they were computed from numbers of their size.
    return states.new_full((len(states),), float(states.abs().max())) if distance == "precomputed" else norms


def _transformed(states: Float[Tensor, "n d"], distance: str, name: str) -> Float[Tensor, "n _"]:
    if distance == "norm_difference":
        return states.norm(dim=1, keepdim=True)
    flat = (states == (states[:, :1] if distance == "correlation" else 0)).all(1)
    if flat.any():
        still = "constant" if distance == "correlation" else "zero"
        raise ValueError(f"row {int(flat.nonzero()[0])} of {name} is {still} and has no {distance}")
    if distance == "correlation":
        states = states - states.mean(1, keepdim=True)
    return states / states.norm(dim=1, keepdim=True)


def upper(n: int, device: torch.device | None = None) -> Int[Tensor, " p"]:
    """Return the flat indices of the pairs i < j in an n x n matrix, in the order of `scipy.spatial.distance.pdist`."""
    rows, columns = torch.triu_indices(n, n, 1, device=device)
    return rows * n + columns


def squared_distances(
    left: Float[Tensor, "a d"],
    right: Float[Tensor, "b d"],
    own: Float[Tensor, " a"],
    other: Float[Tensor, " b"],
    out: Float[Tensor, "a b"] | None = None,
) -> Float[Tensor, "a b"]:
    """Return ‖x‖² + ‖y‖² - 2 x·y, or ‖x - y‖² itself where digits would cancel: ten digits for centred states.

    The squared norms of both sides are at hand. Into `out` go distances of the first rows of the right from all, and
    infinity for those from themselves.
    """
    squared = torch.add(own[:, None], other, out=out).addmm_(left, right.T, alpha=-2)
    if out is not None:
        squared.fill_diagonal_(torch.inf)
    near = (squared < CLOSE * (own.max() + other.max())).nonzero()  # few candidates, to avoid another (a, b) matrix
    rows, columns = near.unbind(1)
    close = near[squared[rows, columns] < CLOSE * (own[rows] + other[columns])]
    for rows, columns in (places.unbind(1) for places in close.split(max(1, 2**22 // left.shape[1]))):
        squared[rows, columns] = (left[rows] - right[columns]).square().sum(1)
    return squared


def crossnobis(
    runs: Annotated[Float[Tensor, "m n d"], Within(fewest=1)], noise: str = "shrinkage"
) -> Float[Tensor, "n n"]:
    """Return the crossnobis distance of every two stimuli, squared and per unit: 0 on average if they are equal.

    d²_ij = 1 / (m (m - 1) d) Σ_{a≠b} (x_ai - x_aj)ᵀ Σ⁻¹ (x_bi - x_bj), over pairs of different runs a and b (Walther et
    al. 2016, eq. 6). The noise of two runs is independent and adds nothing on average, so values can be negative, and 0
    is a true zero.

    Σ is the covariance of units in the residuals of all runs from each stimulus's mean, with ν = n (m - 1) degrees of
    freedom; see `noise_covariance`. As it comes from the same runs, it adds a small constant to all distances: for
    noise=diagonal 4 / (m (ν - 2)) on average. Noise is shrinkage, diagonal (each unit's variance alone), or none (Σ is
    the identity). Runs are m ≥ 2.

    Raises:
        ValueError: The noise is unknown, or a unit is constant over runs.
        torch.linalg.LinAlgError: The covariance cannot be inverted: noise="diagonal" always can.
    """
    check_choice("noise", noise, NOISES)
    m, n, d = runs.shape
    if m < 2:
        raise ValueError(f"runs has {m} run: give two or more")
    runs = runs.detach().double()
    # Squares of very small or very large numbers leave the range of float64. Powers of two change no other digits.
    units = power_of_two_below(runs.abs().amax((0, 1)))
    if noise == "none":  # with a covariance, distances do not depend on the unit of any column
        units = units.max().expand(d)
    runs = runs / units
    size = runs.square().mean((0, 1))
    runs = runs - runs.mean((0, 1))
    if noise != "none":
        residuals = runs - runs.mean(0)
        is_constant = all_alike(residuals.square().mean((0, 1)), size, torch.float64)
        if is_constant.any():
            unit = int(is_constant.nonzero()[0])
            raise ValueError(f"unit {unit} is the same in all runs: leave it out, or choose noise=none")
        covariance = noise_covariance(residuals.reshape(m * n, d), n * (m - 1))
        if noise == "diagonal":
            runs = runs / covariance.diagonal().sqrt()
        else:
            factor, flat = torch.linalg.cholesky(covariance), runs.reshape(m * n, d)
            runs = torch.linalg.solve_triangular(factor, flat.T, upper=False).T.reshape(m, n, d)
    total = runs.sum(0)
    products = (total @ total.T - torch.einsum("mid,mjd->ij", runs, runs)) / (m * (m - 1) * d)
    own = products.diagonal()
    distances = own[:, None] + own - 2 * products
    distances = ((distances + distances.T) / 2).fill_diagonal_(0)
    if noise != "none":
        return distances
    return _in_units(distances, units[0], units[0], "runs")


def _in_units(
    scaled: Float[Tensor, "n n"], left: Float[Tensor, "*#n"], right: Float[Tensor, "*#n"], name: str
) -> Float[Tensor, "n n"]:
    """Return products of scaled numbers in units of both; a ValueError if they leave the range of float64."""
    values = scaled * left * right
    largest = float(values.abs().max())
    if not largest < GREATEST_SIZE**2 or (largest < LEAST_SIZE**2 and scaled.any()):
        size = float(left.max())
        raise ValueError(
            f"{name} are of the size {size:.0e}, and squares of such numbers leave the range of float64: "
            f"divide them by {size:.0e}"
        )
    return values


def noise_covariance(residuals: Annotated[Float[Tensor, "k d"], Within()], freedom: Count) -> Float[Tensor, "d d"]:
    """Return the covariance of d units in k residuals, with covariances shrunk towards 0 by Schäfer & Strimmer (2005).

    Covariances are multiplied by 1 - λ, λ = Σ_{i≠j} Var(r_ij) / Σ_{i≠j} r_ij², cut to [0, 1], where r_ij and its
    variance are estimated as rsatoolbox does (`method="shrinkage_diag"`): with z the residuals over their standard
    deviations, r_ij = Σ z_i z_j / (k - 1) and Var(r_ij) = k / freedom² (Σ z_i² z_j² / (k - 1) - r_ij²). Residuals have
    mean 0 and these degrees of freedom. A ValueError names a unit that is constant.
    """
    k, d = residuals.shape
    if k < 2:
        raise ValueError(f"residuals has shape {(k, d)}: give two rows or more")
    if freedom > k:
        raise ValueError(f"freedom={freedom} is more than the {k} residuals: give their degrees of freedom")
    units = power_of_two_below(residuals.abs().amax(0))
    residuals = residuals / units
    covariance = residuals.T @ residuals / freedom
    variances = covariance.diagonal()
    if (still := (variances <= 0).nonzero()[:, 0]).numel():
        raise ValueError(f"unit {int(still[0])} of residuals is constant: leave it out")
    standard = residuals / variances.sqrt()
    r, squares = standard.T @ standard / (k - 1), standard.square().T @ standard.square() / (k - 1)
    off = ~torch.eye(d, dtype=torch.bool, device=residuals.device)
    size = r[off].square().sum()
    share = (k / freedom**2 * (squares - r.square())[off].sum() / size).clamp(0, 1) if size > 0 else 1.0
    return _in_units(torch.where(off, covariance * (1 - share), covariance), units[:, None], units, "residuals")


# ---- representational similarity analysis (Kriegeskorte et al. 2008; Salle et al. 2024, section 4)

Layers = (
    Sequence[Float[Tensor, "_ _"] | NeuralDistances] | Float[Tensor, "l n d"]
)  # states of the same n stimuli, of any widths; or their distances


def rsa(
    layers: Layers, others: Layers | None = None, distance: str = "euclidean", comparator: str = "spearman"
) -> Float[Tensor, "l m"]:
    """Return Spearman's ρ, over pairs of stimuli, of the distances in every two layers, in [-1, 1].

    Args:
        others: The layers to compare with; by default the same.
        distance: See `NeuralDistances`; layers that are `NeuralDistances` keep theirs.
        comparator: The similarity of squared distances, instead of Spearman's ρ; see `compare`.
    """
    return compare(*_both(layers, others, distance), comparator)


def rsa_of_models(
    models: Layers, others: Layers | None = None, distance: str = "euclidean", comparator: str = "spearman"
) -> Float[Tensor, "l m"]:
    """Return `rsa` of layers that `thinkalike.rsa` calls models."""
    return compare(*_both(models, others, distance, "models"), comparator)


def rsa_estimate(
    layers: Layers,
    others: Layers | None = None,
    distance: str = "euclidean",
    groups: Int[Tensor, " n"] | None = None,
    folds: Count = 10,
    seed: Seed = 0,
    comparator: str = "spearman",
) -> Estimate:
    """Return `rsa` with a 95 % jackknife interval that leaves out one fold of stimuli, and all their pairs, at a time.

    The stimuli of a group, such as the words of a sentence, are left out together. Groups that are worth fewer than
    `FEWEST_GROUPS` of equal size have the interval (-∞, ∞), and a warning says why. A fold with one group that
    outweighs the others says as little about the spread as that group alone, so Student's t has at most
    `freedom_of_groups` degrees of freedom.
    """
    vectors, further = _both(layers, others, distance)
    n = stimuli_of(vectors.shape[1])
    sizes = torch.ones(n)
    if groups is not None:
        check_groups(groups, n)
        sizes = groups.unique(return_counts=True)[1]
    worth = effective_number(sizes)
    if not has_interval(worth):
        unit = "stimuli" if groups is None else "groups"
        warnings.warn(why_no_interval(worth, len(sizes), unit), stacklevel=2)
        return interval_around(compare(vectors, further, comparator), math.inf)
    owners = stimulus_folds(n, folds, seed, groups).to(vectors.device)
    kept = torch.stack([torch.ones_like(owners), *(owners != fold for fold in range(folds))])
    found = compare(vectors, further, comparator, kept.double())
    if found.isnan().any():
        raise ValueError("all distances of a layer are equal without one fold of stimuli: use more folds, or stimuli")
    t = student_t(0.95, min(folds - 1, freedom_of_groups(sizes)))
    return jackknife(found[0], found[1:], t=t)


class Mantel(NamedTuple):
    """`rsa` and its p-values.

    Attributes:
        p: (1 + #{value of permuted stimuli ≥ value}) / (1 + permutations), one-sided, of each layer pair.
        p_of_largest: The same against the largest value of all layer pairs in each permutation, for a pair that was
            chosen because it is the largest (Westfall & Young 1993).
    """

    value: Float[Tensor, "l m"]
    p: Float[Tensor, "l m"]
    p_of_largest: Float[Tensor, "l m"]


def mantel(
    layers: Layers,
    others: Layers | None = None,
    distance: str = "euclidean",
    permutations: Repetitions = 999,
    seed: Seed = 0,
    comparator: str = "spearman",
    groups: Int[Tensor, " n"] | None = None,
) -> Mantel:
    """Return `rsa` and its p-values under permutations of the stimuli of the other layers (Mantel 1967).

    Pairs that share a stimulus depend on each other, so stimuli are permuted, not pairs. The stimuli of a group, such
    as the words of a sentence, are moved together, as many of each (see `balanced_rows`): not all orders of unequal
    ones are as likely. p is of the pairs between groups alone, as those within are closer in any model. All layers see
    the same permutations. Fewer than `FEWEST_GROUPS` groups give no p-values (NaN), and a warning.

    >>> X = torch.randn(30, 4)
    >>> float(mantel([X], [2 * X], permutations=19).p)
    0.05
    """
    vectors, further = _both(layers, others, distance)
    n, value = stimuli_of(vectors.shape[1]), compare(vectors, further, comparator)
    if groups is not None:
        check_groups(groups, n)
    owners = torch.arange(n, device=vectors.device) if groups is None else groups.to(vectors.device)
    if groups is not None and (count := len(groups.unique())) < FEWEST_GROUPS:
        warnings.warn(f"{count} groups have too few orders for p-values: give {FEWEST_GROUPS} or more", stacklevel=2)
        return Mantel(value, value * torch.nan, value * torch.nan)
    if comparator == "spearman":  # Pearson's r of ranks, which move with the stimuli
        ranks = mid_ranks(vectors, TIED)
        vectors, further, comparator = ranks, ranks if further is vectors else mid_ranks(further, TIED), "corr"
    place = torch.zeros(n, n, dtype=torch.long, device=vectors.device)  # of each pair, in either order, in the vectors
    rows, columns = torch.triu_indices(n, n, 1, device=vectors.device)
    place[rows, columns] = place[columns, rows] = torch.arange(len(rows), device=vectors.device)
    kept = balanced_rows(owners).flatten().sort().values
    owners, place = owners[kept], place[kept][:, kept]
    rows, columns = torch.triu_indices(len(kept), len(kept), 1, device=vectors.device)
    vectors, within = vectors[:, place[rows, columns]], owners[rows] == owners[columns]
    vectors = vectors.where(~within, vectors[:, ~within].double().mean(1, keepdim=True))  # which adds a constant
    found = compare(vectors, further[:, place[rows, columns]], comparator)
    reached, surpassed = torch.ones_like(found), torch.ones_like(found)
    for number in counted(range(permutations), "permutation"):
        order = permuted_rows(owners, seed * permutations + number)
        chance = compare(vectors, further[:, place[order[rows], order[columns]]], comparator)
        reached += chance >= found - TIE
        surpassed += chance.max() >= found - TIE
    return Mantel(value, reached / (1 + permutations), surpassed / (1 + permutations))


def distance_vectors(
    layers: Layers, distance: str = "euclidean", n: Count | None = None, name: str = "layers"
) -> Float[Tensor, "l p"]:
    """Return the squared distances of all pairs of n stimuli, by default of the first layer's, as `upper` has them.

    Errors call the layers by the name of the argument.
    """
    if not len(layers):
        raise ValueError(f"{name} is empty: give the states of one layer or more")
    if n is None:
        first = f"{name}[0] has {len(layers[0])} stimuli"
        n = len(layers[0])
    else:
        first = f"n={n}"
    if n < 2:
        raise ValueError(f"{first}: give two or more, as distances are of pairs")
    vectors = []
    for index, states in enumerate(layers):
        called = f"{name}[{index}]"
        if len(states) != n:
            raise ValueError(f"{called} has {len(states)} stimuli, and {first}: give states of the same stimuli")
        known = states if isinstance(states, NeuralDistances) else NeuralDistances.of(states, distance, called)
        vectors.append(known.vector())
    distances = torch.stack(vectors)
    is_finite = distances.isfinite().all(1)
    if not is_finite.all():  # once, as it waits for the device
        called = f"{name}[{int((~is_finite).nonzero()[0])}]"
        raise ValueError(f"the distances of {called} are beyond float64: divide its states by a large number")
    return distances


def _both(layers: Layers, others: Layers | None, distance: str, name: str = "layers") -> tuple[Tensor, Tensor]:
    vectors = distance_vectors(layers, distance, name=name)
    if others is None:
        return vectors, vectors
    if len(others) and len(others[0]) != len(layers[0]):
        raise ValueError(
            f"others[0] has {len(others[0])} stimuli, and {name}[0] has {len(layers[0])}: "
            "give states of the same stimuli"
        )
    return vectors, distance_vectors(others, distance, name="others")
