"""Neural distances D^N of stimuli, squared (Salle et al. 2024, appendix B)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.arguments import check_choice, takes_arrays
from thinkalike.measures.distances.comparators import TIE_TOLERANCE
from thinkalike.measures.distances.ranks import mid_ranks, with_ties
from thinkalike.measures.powers_of_two import power_of_two_below

DISTANCES = (
    "euclidean",
    "cosine",
    "correlation",
    "manhattan",
    "norm_difference",
    "precomputed",
)

# The states are squared distances: of a precomputed matrix, or from `NeuralDistances.given`.
GIVEN_DISTANCES = "given"

Index = Int[Tensor, " _"] | slice

# ‖x‖² + ‖y‖² - 2 x·y loses digits below this share of the squared norms, ...
CANCELLING_SHARE = 1e-6
# ... and may be off by this share of them.
PRODUCT_ROUNDING = 16 * torch.finfo(torch.float64).eps

# Computing in float64 may change this share of a state's norm.
STATE_ROUNDING = 4 * torch.finfo(torch.float64).eps

# Sums over all pairs of squared distances stay within float64 for states of at most this size, ...
GREATEST_SIZE = 2.0**480
# ... whose largest difference is at least this.
LEAST_SIZE = 2.0**-480

# Rows of distances that are computed at a time.
ROWS_AT_ONCE = 256

# Differences of close states that are computed at a time.
DIFFERENCES_AT_ONCE = 2**22


@dataclass(frozen=True, eq=False)
class NeuralDistances:
    """The distances of n stimuli in one layer.

    | distance | (D^N)² |
    |---|---|
    | euclidean | ‖x - y‖² |
    | cosine | ‖x/‖x‖ - y/‖y‖‖² = 2 (1 - cos) |
    | correlation | ‖z(x) - z(y)‖² = 2 (1 - r), z(x) = (x - mean) / ‖x - mean‖, Pearson's r |
    | norm_difference | (‖x‖ - ‖y‖)² |
    | manhattan | (Σ abs(x - y))² |
    | precomputed | the square of the given distance |

    The first four are squared Euclidean distances of some states, whose sums have a closed form.

    Attributes:
        states: In float64. If `is_euclidean`, centred states with these squared Euclidean
            distances; of given distances, (n, n), these.
        distance: The distance.
        is_integral: Whether (D^N)² are whole numbers: they are rounded, so that equal ones tie.
        error: By how much rounding may have moved each state, in units of D^N; None if that is not
            known.
    """

    states: Float[Tensor, "n d"]
    distance: str
    is_integral: bool = False
    error: Float[Tensor, " n"] | None = None

    @classmethod
    @takes_arrays
    def of(
        cls, states: Float[Tensor, "n d"], distance: str = "euclidean", name: str = "layer"
    ) -> NeuralDistances:
        """Check and prepare the states of one layer.

        Args:
            states: The states of n stimuli, or a precomputed matrix of distances, (n, n).
            distance: The distance, see above.
            name: What errors call the layer.

        Raises:
            ValueError: A state is not finite, zero under cosine or constant under correlation, or
                a precomputed matrix is not symmetric and non-negative with a zero diagonal.
        """
        check_choice("distance", distance, DISTANCES)
        precision = STATE_ROUNDING
        if states.dtype == torch.float32:
            precision = torch.finfo(states.dtype).eps
        states = states.detach().double()
        # the largest absolute value of each state; `abs` would copy them all
        sizes = torch.maximum(states.amax(1, keepdim=True), -states.amin(1, keepdim=True))
        if not sizes.isfinite().all():
            raise ValueError(
                f"states of {name} are not finite: "
                "correct them, or, if a model computed them, run it in a wider dtype"
            )
        if distance in ("cosine", "correlation"):
            # These ignore the size of each state, whose squares may leave the range of float64.
            states = states / power_of_two_below(sizes)
        else:
            _refuse_size(states, distance, name)
        mean = states.mean(0)
        error = precision * _subtracted_sizes(states, distance)

        if distance == "precomputed":
            _check_precomputed(states, name)
            return cls(states.square(), GIVEN_DISTANCES, error=error)
        if distance in ("cosine", "correlation", "norm_difference"):
            states = _euclidean_states(states, distance, name)
            mean = states.mean(0)
        distances = cls(states, distance, error=error)
        if not distances.is_euclidean:
            return distances
        is_whole = False
        if distance == "euclidean":
            panels = states.split(ROWS_AT_ONCE)
            is_whole = all(bool((panel == panel.round()).all()) for panel in panels)
        return cls(states - mean, distance, is_whole, None if is_whole else error)

    @classmethod
    @takes_arrays
    def given(cls, squared: Float[Tensor, "n n"]) -> NeuralDistances:
        """Return `NeuralDistances` with given squared distances, such as crossnobis distances.

        These may be negative.

        Args:
            squared: The squared distance of each of n stimuli from each.

        Raises:
            ValueError: They are not finite and symmetric with a zero diagonal.
        """
        is_symmetric = torch.equal(squared, squared.T)
        if not squared.isfinite().all() or squared.diagonal().any() or not is_symmetric:
            raise ValueError(
                "squared distances must be finite and symmetric, with a zero diagonal"
            )
        return cls(squared.double(), GIVEN_DISTANCES)

    @property
    def is_euclidean(self) -> bool:
        """Whether the squared distances (D^N)² are squared Euclidean distances of `states`."""
        return self.distance in ("euclidean", "cosine", "correlation", "norm_difference")

    @cached_property
    def squared_norms(self) -> Float[Tensor, " n"]:
        """The squared Euclidean norm of each state."""
        norms: Tensor = torch.linalg.vector_norm(self.states, dim=1)
        return norms.square()

    def __len__(self) -> int:
        return len(self.states)

    def take(self, index: Int[Tensor, " k"]) -> NeuralDistances:
        """Return the distances among the stimuli with these indices, in this order."""
        states = self.states[index]
        if self.distance == GIVEN_DISTANCES:  # `states` is a matrix of distances: columns, too
            states = states[:, index]
        error = None if self.error is None else self.error[index]
        return NeuralDistances(states, self.distance, self.is_integral, error)

    def block(
        self, rows: Index, columns: Index, out: Float[Tensor, "a b"] | None = None
    ) -> Float[Tensor, "a b"]:
        """Return the squared neural distance of each of a stimuli from each of b, in float64.

        Args:
            rows, columns: The a and the b stimuli, as indices or a slice.
            out: If given, the columns must begin with the stimuli of the rows. Euclidean distances
                are then written into it, with ∞ for the distance of a stimulus from itself. Other
                distances do not use it.
        """
        if self.distance == GIVEN_DISTANCES:  # `states` is the matrix of squared distances itself
            return self.states[rows][:, columns]
        row_states = self.states[rows]
        column_states = self.states[columns]
        if not self.is_euclidean:
            return torch.cdist(row_states, column_states, p=1).square()  # manhattan
        squared = squared_distances(
            row_states,
            column_states,
            x_squared_norms=self.squared_norms[rows],
            y_squared_norms=self.squared_norms[columns],
            out=out,
        )
        if self.is_integral:  # distances of whole-numbered states are whole
            return squared.round_()
        return squared

    def squared(self) -> Float[Tensor, "n n"]:
        """Return (D^N)², the squared neural distances, of all pairs of stimuli.

        Identical rows are exactly 0 apart, and have the same distances.
        """
        n = len(self)
        squared = self.states.new_empty(n, n)
        for start in range(0, n, ROWS_AT_ONCE):  # the upper triangle, mirrored into the lower
            end = start + ROWS_AT_ONCE
            panel = squared[start:end, start:]
            # Euclidean distances are written into the panel by `block` itself, others here.
            panel.copy_(self.block(slice(start, end), slice(start, None), out=panel))
            squared[end:, start:end] = squared[start:end, end:].T
        if not self.is_euclidean:
            return squared  # `cdist` treats identical rows alike, and given distances stay
        squared.fill_diagonal_(0)
        has_identical_rows = int(squared.count_nonzero()) < n * (n - 1)
        if not has_identical_rows:
            return squared
        # Matrix products round identical rows differently, so all take the distances of the first.
        first_identical_row = (squared == 0).int().argmax(1)
        return squared[first_identical_row][:, first_identical_row]

    def vector(self) -> Float[Tensor, " p"]:
        """Return the squared neural distances of all pairs i < j of stimuli.

        Their order is that of SciPy's `pdist`: (0, 1), (0, 2), ..., (1, 2), .... Distances that
        differ by rounding alone are made exactly equal.
        """
        return self.at(upper_triangle_indices(len(self), self.states.device))

    def at(self, pairs: Int[Tensor, " p"]) -> Float[Tensor, " p"]:
        """Return the squared neural distances of these pairs of stimuli.

        Distances that differ by rounding alone are made exactly equal, so that they tie in ranks.

        Args:
            pairs: For stimuli i and j the flat index i n + j in an n x n matrix.
        """
        squared = self.squared().flatten()[pairs]
        return with_ties(squared, self.rounding(pairs, squared))

    def ranks_at(self, pairs: Int[Tensor, " p"]) -> Float[Tensor, " p"]:
        """Return the ranks, from 1, of the distances of these pairs of stimuli.

        Ties share the mean of their ranks; distances that differ by rounding alone tie. The ranks
        are those of `at(pairs)`, for which the distances are sorted only once.

        Args:
            pairs: For stimuli i and j the flat index i n + j in an n x n matrix.
        """
        squared = self.squared().flatten()[pairs]
        return mid_ranks(squared, self.rounding(pairs, squared))

    def rounding(
        self, pairs: Int[Tensor, " p"], squared: Float[Tensor, " p"]
    ) -> Float[Tensor, " p"]:
        """Return by how much rounding may have changed the squared distance of each pair.

        If rounding moved two states by e and f, it changed their distance D by at most e + f, and
        D² by at most 2 D (e + f) + (e + f)². The rounding of D² itself is added. e and f count as
        0 for whole-numbered states, which are exact, and if they are not known.

        Args:
            pairs: For stimuli i and j the flat index i n + j in an n x n matrix.
            squared: The squared distance D² of each pair.
        """
        rounding = TIE_TOLERANCE * squared.abs()
        n = len(self)
        first = pairs // n
        second = pairs - first * n  # a remainder by % would take three times as long
        if self.error is not None:
            error = self.error[first] + self.error[second]  # e + f
            distance = squared.clamp(min=0).sqrt()
            rounding += error * (2 * distance + error)
        if self.is_euclidean and not self.is_integral:
            # Most D² were computed as ‖x‖² + ‖y‖² - 2 x·y, which is rounded relative to the norms.
            # Those below this share of the norms were computed as Σ (x - y)², which loses no
            # digits.
            norms = self.squared_norms[first] + self.squared_norms[second]
            comes_from_norms = squared >= CANCELLING_SHARE * norms
            rounding += PRODUCT_ROUNDING * norms.where(comes_from_norms, 0.0)
        return rounding


def _check_precomputed(distances: Float[Tensor, "n m"], name: str) -> None:
    """Raise a ValueError unless distances are symmetric and non-negative with a zero diagonal.

    Args:
        distances: The matrix of distances that a user gave, which may not be square.
        name: What the error calls it.
    """
    is_square = distances.shape[0] == distances.shape[1]
    is_symmetric = is_square and torch.equal(distances, distances.T)
    if not is_symmetric or (distances < 0).any() or distances.diagonal().any():
        raise ValueError(f"{name} must be symmetric and non-negative, with a zero diagonal")


def _refuse_size(states: Float[Tensor, "n d"], distance: str, name: str) -> None:
    """Raise a ValueError for states whose squared distances, or their sums, overflow or underflow.

    These are states with an entry of `GREATEST_SIZE` or more, or with no entry that deviates from
    the mean of its column by `LEAST_SIZE`. The entries of a precomputed matrix are distances
    themselves, so the largest one must lie between these two sizes. Equal states, such as those
    that are all 0, pass.

    Args:
        states: The states, or the distances of a precomputed matrix.
        distance: The name of the distance, such as "euclidean" or "precomputed".
        name: What the error calls the layer.
    """
    is_precomputed = distance == "precomputed"
    largest = 0.0  # absolute value
    if states.numel():
        largest = float(torch.stack([states.amax(), -states.amin()]).max())
    # The largest deviation from the mean, if it matters, else the largest value.
    deviation = largest
    if not is_precomputed and LEAST_SIZE < largest < GREATEST_SIZE:
        # by the extremes of each column, since subtracting the mean would copy all states
        mean = states.mean(0)
        furthest_above = (states.amax(0) - mean).max()
        furthest_below = (mean - states.amin(0)).max()
        deviation = float(torch.maximum(furthest_above, furthest_below))
    # If something is wrong, either the deviation is too small or the largest value too large.
    checked_size = deviation if deviation < LEAST_SIZE else largest
    are_equal = checked_size == 0
    if are_equal or LEAST_SIZE < checked_size < GREATEST_SIZE:
        return
    noun = "distances" if is_precomputed else "states"
    verb = "differ by at most" if largest > LEAST_SIZE > deviation else "are at most"
    raise ValueError(
        f"{noun} of {name} {verb} {checked_size:.0e}, and squares of such numbers leave the range "
        f"of float64: divide them by {checked_size:.0e}"
    )


def _subtracted_sizes(states: Float[Tensor, "n d"], distance: str) -> Float[Tensor, " n"]:
    """Return for each state how large the numbers are that the distance subtracts.

    Multiplied by the relative precision of the states, this bounds how far rounding moves a state,
    in the unit of the distance. For Euclidean distances it is the norm of the state; for cosine,
    which subtracts states of norm 1, it is 1; for correlation, which first subtracts the mean of
    the state and then divides by the norm of the rest, the norm of the state over that of the
    rest. The latter is ∞ or NaN for a constant state, which the caller refuses later.

    Args:
        states: The states, or the distances of a precomputed matrix.
        distance: The name of the distance, such as "euclidean".
    """
    if distance == "manhattan":
        return states.abs().sum(1)
    if distance == "cosine":
        return states.new_ones(len(states))
    norms: Tensor = torch.linalg.vector_norm(states, dim=1)
    if distance == "correlation":
        deviations = states - states.mean(1, keepdim=True)
        deviation_norms: Tensor = torch.linalg.vector_norm(deviations, dim=1)
        return norms / deviation_norms
    if distance == "precomputed":
        # Nothing is known but that they were computed from numbers of their size.
        return states.new_full((len(states),), float(states.abs().max()))
    return norms


def _euclidean_states(
    states: Float[Tensor, "n d"], distance: str, name: str
) -> Float[Tensor, "n _"]:
    """Return the states transformed such that their Euclidean distance is the wanted distance.

    For "norm_difference" each state becomes its norm, (n, 1); for "cosine" it is divided by its
    norm; for "correlation" the mean of its entries is subtracted before.

    Args:
        states: The states.
        distance: The wanted distance, one of these three.
        name: What errors call the layer.

    Raises:
        ValueError: A state is zero under cosine, or constant under correlation.
    """
    if distance == "norm_difference":
        norms: Tensor = states.norm(dim=1, keepdim=True)
        return norms
    is_correlation = distance == "correlation"
    if is_correlation:
        has_no_direction = (states == states[:, :1]).all(1)
    else:
        has_no_direction = (states == 0).all(1)
    if has_no_direction.any():
        row = int(has_no_direction.nonzero()[0])
        adjective = "constant" if is_correlation else "zero"
        raise ValueError(f"row {row} of {name} is {adjective} and has no {distance}")
    if is_correlation:
        states = states - states.mean(1, keepdim=True)
    norms = states.norm(dim=1, keepdim=True)
    return states / norms


def upper_triangle_indices(n: int, device: torch.device | None = None) -> Int[Tensor, " p"]:
    """Return the flat indices of the pairs i < j in an n x n matrix.

    They are in the order of SciPy's `pdist`: (0, 1), (0, 2), ..., (1, 2), ....
    """
    indices: Tensor = torch.triu_indices(n, n, 1, device=device)
    rows, columns = indices.unbind()
    return rows * n + columns


def squared_distances(
    x: Float[Tensor, "a d"],
    y: Float[Tensor, "b d"],
    x_squared_norms: Float[Tensor, " a"],
    y_squared_norms: Float[Tensor, " b"],
    out: Float[Tensor, "a b"] | None = None,
) -> Float[Tensor, "a b"]:
    """Return ‖x - y‖² of each row x with each row y, to ten digits for centred states.

    It is ‖x‖² + ‖y‖² - 2 x·y, or Σ (x - y)² for close rows, whose digits would cancel.

    Args:
        x, y: The rows.
        x_squared_norms, y_squared_norms: Their squared norms.
        out: If given, y must begin with the rows of x. The distances are written into it, with ∞
            for the distance of a row from itself.
    """
    sums_of_norms = torch.add(x_squared_norms[:, None], y_squared_norms, out=out)  # (a, b)
    squared = sums_of_norms.addmm_(x, y.T, alpha=-2)  # in the same memory
    if out is not None:
        squared.fill_diagonal_(torch.inf)
    # Digits cancel where a distance is a small share of the norms. A bound by the largest norms
    # first leaves few candidates, to avoid another (a, b) matrix.
    bound = CANCELLING_SHARE * (x_squared_norms.max() + y_squared_norms.max())
    candidates = (squared < bound).nonzero()
    rows, columns = candidates.unbind(1)
    norms_of_candidates = x_squared_norms[rows] + y_squared_norms[columns]
    is_close = squared[rows, columns] < CANCELLING_SHARE * norms_of_candidates
    close_pairs = candidates[is_close]
    pairs_at_once = max(1, DIFFERENCES_AT_ONCE // x.shape[1])
    for pairs in close_pairs.split(pairs_at_once):
        rows, columns = pairs.unbind(1)
        squared[rows, columns] = (x[rows] - y[columns]).square().sum(1)
    return squared
