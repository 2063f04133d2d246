"""Neural distances D^N of stimuli, squared (Salle et al. 2024, appendix B)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.arguments import takes_arrays

DISTANCES = ("euclidean", "cosine", "correlation", "manhattan", "norm_difference", "precomputed")
GIVEN = "given"  # squared distances themselves, which are no choice but come from `NeuralDistances.given`
DistanceChoice = (
    str | Callable[[Tensor, Tensor], Tensor]
)  # one of those, or a function of (a, d) and (b, d) states that gives (a, b)
Index = Int[Tensor, " _"] | slice
CLOSE = 1e-6  # share of the squared norms below which a product of rows has lost digits of their distance
PANEL = 256  # rows whose distances exist beside the result


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

    The first four are squared Euclidean distances of some states, which is what has sums in closed form.
    """

    states: Float[Tensor, "n d"]  # float64; where `exact`, those whose squared Euclidean distances are meant, centred
    distance: DistanceChoice
    screen: torch.dtype  # the precision in which extremes are searched
    whole: bool = False  # whether (D^N)² are whole numbers, which they then are exactly, so that equal ones tie

    @classmethod
    @takes_arrays
    def of(
        cls, states: Float[Tensor, "n d"], distance: DistanceChoice = "euclidean", name: str = "layer"
    ) -> NeuralDistances:
        """Check and prepare the states of one layer.

        Args:
            name: What an error calls the layer.

        Raises:
            ValueError: The distance is unknown, a state is not finite, a state is zero under cosine or constant under
                correlation, or a precomputed matrix is not one of distances.
        """
        if not callable(distance) and distance not in DISTANCES:
            raise ValueError(f"distance={distance!r} is none of {', '.join(DISTANCES)}, nor a function")
        screen = torch.float64 if states.dtype == torch.float64 else torch.float32
        states, given = states.detach().double(), states
        mean = states.mean(0)
        if not mean.isfinite().all():
            raise ValueError(f"states of {name} are not finite; run the model in a wider dtype")
        if distance in ("cosine", "correlation", "norm_difference"):
            states = _transformed(states, str(distance), name)
            mean = states.mean(0)
        elif distance == "precomputed":
            square = states.shape[0] == states.shape[1]
            if not square or (states < 0).any() or states.diagonal().any() or not torch.equal(states, states.T):
                raise ValueError(f"{name} is no matrix of distances: symmetric, none negative, a zero diagonal")
        distances = cls(states, distance, screen)
        if not distances.exact:
            return distances
        whole = distance == "euclidean" and all(bool((part == part.round()).all()) for part in states.split(PANEL))
        own = states.data_ptr() != given.data_ptr()  # a copy, which may be written to
        return cls(states.sub_(mean) if own else states - mean, distance, screen, whole)

    @classmethod
    @takes_arrays
    def given(cls, squared: Float[Tensor, "n n"]) -> NeuralDistances:
        """Return squared distances that were estimated elsewhere, such as `crossnobis`, of which some are negative.

        Raises:
            ValueError: They are not finite, not symmetric, or not 0 on the diagonal.
        """
        if not squared.isfinite().all() or squared.diagonal().any() or not torch.equal(squared, squared.T):
            raise ValueError("squared distances must be finite and symmetric, with a zero diagonal")
        return cls(squared.double(), GIVEN, torch.float64)

    @property
    def exact(self) -> bool:
        """Whether (D^N)² is the squared Euclidean distance of `states`."""
        return self.distance in ("euclidean", "cosine", "correlation", "norm_difference")

    def __len__(self) -> int:
        return len(self.states)

    def take(self, index: Int[Tensor, " k"]) -> NeuralDistances:
        """Return the distances of the stimuli at `index`."""
        between = self.distance in ("precomputed", GIVEN)
        states = self.states[index][:, index] if between else self.states[index]
        return NeuralDistances(states, self.distance, self.screen, self.whole)

    def block(self, rows: Index, columns: Index) -> Float[Tensor, "a b"]:
        """Return (D^N)² between two sets of stimuli, in float64.

        Raises:
            ValueError: The distance is a function, and it gives another shape.
        """
        if self.distance == "precomputed":
            return self.states[rows][:, columns].square()
        if self.distance == GIVEN:
            return self.states[rows][:, columns]
        left, right = self.states[rows], self.states[columns]
        if self.exact:
            squared = squared_distances(left, right)
            return squared.round_() if self.whole else squared
        if not callable(self.distance):
            return torch.cdist(left, right, p=1).square()
        distances = self.distance(left, right)
        if distances.shape != (len(left), len(right)):
            raise ValueError(f"the distance gave {tuple(distances.shape)} for {len(left)} and {len(right)} states")
        return distances.double().square()

    def squared(self) -> Float[Tensor, "n n"]:
        """Return (D^N)² of all pairs of stimuli; identical rows are at exactly 0, and equally far from any other."""
        squared = self.states.new_zeros(len(self), len(self))
        for start in range(0, len(self), PANEL):  # the upper triangle, and what it says of the lower
            end = start + PANEL
            squared[start:end, start:] = self.block(slice(start, end), slice(start, None))
            squared[end:, start:end] = squared[start:end, end:].T
        if not self.exact:
            return squared
        first = (squared.fill_diagonal_(0) == 0).int().argmax(1)  # a product rounds copies of a row differently
        everything = torch.arange(len(self), device=first.device)
        return squared if torch.equal(first, everything) else squared[first][:, first]

    def vector(self) -> Float[Tensor, " p"]:
        """Return (D^N)² of all pairs i < j of stimuli, in the order of `upper`, as `squared` has them."""
        if not self.exact:
            return self.squared().flatten()[upper(len(self), self.states.device)]
        found = self.states.new_empty(len(self) * (len(self) - 1) // 2)
        place = 0
        for start in range(0, len(self), PANEL):
            block = self.block(slice(start, start + PANEL), slice(start, None))
            part = torch.cat([row[own + 1 :] for own, row in enumerate(block)])
            found[place : place + len(part)] = part
            place += len(part)
        if (found == 0).any():  # copies of a row, which a product rounds differently
            return self.squared().flatten()[upper(len(self), found.device)]
        return found

    def extremes(self) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """Return the least and the greatest (D^N)² of two different stimuli.

        States of at most float32 are searched in float32, and the row that wins is computed in float64: which row wins
        can move the result by 1e-7 of the range.
        """
        states = self.states.to(self.screen)
        norms = states.square().sum(1)

        def coarse(rows: slice, columns: slice) -> Float[Tensor, "a b"]:
            if not self.exact:
                return self.block(rows, columns)
            return torch.addmm(norms[rows, None] + norms[columns], states[rows], states[columns].T, alpha=-2)

        lows, highs = [], []
        for start in range(0, len(self) - 1, PANEL):
            block = coarse(slice(start, start + PANEL), slice(start, None))
            highs.append(block.amax(1))
            lows.append(block.fill_diagonal_(torch.inf).amin(1))
        low, high = torch.cat(lows).argmin(), torch.cat(highs).argmax()
        others = (torch.arange(len(self), device=low.device) != low).nonzero()[:, 0]
        return self.block(low[None], others).min(), self.block(high[None], slice(None)).max()


def _transformed(states: Float[Tensor, "n d"], distance: str, name: str) -> Float[Tensor, "n _"]:
    """Return the states whose Euclidean distances are those of this kind."""
    if distance == "correlation":
        if (flat := (states == states[:, :1]).all(1).nonzero()).numel():
            raise ValueError(f"row {int(flat[0, 0])} of {name} is constant over its units and has no correlation")
        states = states - states.mean(1, keepdim=True)
    norms = states.norm(dim=1, keepdim=True)
    if distance == "norm_difference":
        return norms
    if (norms == 0).any():
        raise ValueError(f"row {int((norms == 0).nonzero()[0, 0])} of {name} is zero and has no direction")
    return states / norms


def upper(n: int, device: torch.device | None = None) -> Int[Tensor, " p"]:
    """Return the flat indices of the pairs i < j in an n x n matrix, in the order of `scipy.spatial.distance.pdist`."""
    rows, columns = torch.triu_indices(n, n, 1, device=device)
    return rows * n + columns


def squared_distances(left: Float[Tensor, "a d"], right: Float[Tensor, "b d"]) -> Float[Tensor, "a b"]:
    """Return ‖x - y‖² = ‖x‖² + ‖y‖² - 2 x·y, and the square of the difference itself where that would cancel.

    It is fast, and good to ten digits if the states are centred.
    """
    own, other = left.square().sum(1), right.square().sum(1)
    squared = (own[:, None] + other).addmm_(left, right.T, alpha=-2)
    near = (squared < CLOSE * (own.max() + other.max())).nonzero()  # few; which of them are close is looked up
    rows, columns = near.unbind(1)
    close = near[squared[rows, columns] < CLOSE * (own[rows] + other[columns])]
    for rows, columns in (places.unbind(1) for places in close.split(max(1, 2**22 // left.shape[1]))):
        squared[rows, columns] = (left[rows] - right[columns]).square().sum(1)
    return squared
