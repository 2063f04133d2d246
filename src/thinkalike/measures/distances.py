"""Neural distances D^N of stimuli, squared (Salle et al. 2024, appendix B)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

DISTANCES = ("euclidean", "cosine", "manhattan", "norm_difference", "precomputed")
Distance = str | Callable[[Tensor, Tensor], Tensor]  # or a function of (a, d) and (b, d) states that gives (a, b)
Index = Int[Tensor, " _"] | slice
CLOSE = 1e-6  # share of the squared norms below which a product of rows has lost digits of their distance
PANEL = 256  # rows whose distances exist beside the result


@dataclass(frozen=True, eq=False)
class NeuralDistances:
    """Distances of n stimuli in one layer.

    | distance | (D^N)² |
    |---|---|
    | euclidean | ‖x - y‖² |
    | cosine | ‖x/‖x‖ - y/‖y‖‖² = 2 (1 - cos) |
    | norm_difference | (‖x‖ - ‖y‖)² |
    | manhattan | (Σ abs(x - y))² |
    | precomputed | the square of what is given |

    The first three are squared Euclidean distances of some states, which is what has sums in closed form.
    """

    states: Float[Tensor, "n d"]  # float64; where `exact`, those whose squared Euclidean distances are meant, centred
    distance: Distance
    screen: torch.dtype  # the precision in which extremes are searched

    @classmethod
    def of(cls, states: Float[Tensor, "n d"], distance: Distance = "euclidean", name: str = "layer") -> NeuralDistances:
        """Check and prepare the states of one layer.

        Raises:
            ValueError: an unknown distance, states that are not finite, a zero state under cosine, a precomputed
                matrix that is not one of distances.
        """
        if not callable(distance) and distance not in DISTANCES:
            raise ValueError(f"distance={distance!r} is none of {', '.join(DISTANCES)}, nor a function")
        screen = torch.float64 if states.dtype == torch.float64 else torch.float32
        states = states.detach().double()
        mean = states.mean(0)
        if not mean.isfinite().all():
            raise ValueError(f"states of {name} are not finite; run the model in a wider dtype")
        if distance in ("cosine", "norm_difference"):
            norms = states.norm(dim=1, keepdim=True)
            if distance == "cosine" and (norms == 0).any():
                raise ValueError(f"row {int((norms == 0).nonzero()[0, 0])} of {name} is zero and has no direction")
            states = states / norms if distance == "cosine" else norms
            mean = states.mean(0)
        elif distance == "precomputed":
            square = states.shape[0] == states.shape[1]
            if not square or (states < 0).any() or states.diagonal().any() or not torch.equal(states, states.T):
                raise ValueError(f"{name} is no matrix of distances: symmetric, none negative, a zero diagonal")
        made = cls(states, distance, screen)
        return cls(states - mean, distance, screen) if made.exact else made

    @property
    def exact(self) -> bool:
        """Whether (D^N)² is the squared Euclidean distance of `states`."""
        return self.distance in ("euclidean", "cosine", "norm_difference")

    def __len__(self) -> int:
        return len(self.states)

    def take(self, index: Int[Tensor, " k"]) -> NeuralDistances:
        """The stimuli at `index`."""
        states = self.states[index][:, index] if self.distance == "precomputed" else self.states[index]
        return NeuralDistances(states, self.distance, self.screen)

    def block(self, rows: Index, columns: Index) -> Float[Tensor, "a b"]:
        """(D^N)² between two sets of stimuli, float64.

        Raises:
            ValueError: a function that is the distance gives another shape.
        """
        if self.distance == "precomputed":
            return self.states[rows][:, columns].square()
        left, right = self.states[rows], self.states[columns]
        if self.exact:
            return squared_distances(left, right)
        if not callable(self.distance):
            return torch.cdist(left, right, p=1).square()
        found = self.distance(left, right)
        if found.shape != (len(left), len(right)):
            raise ValueError(f"the distance gave {tuple(found.shape)} for {len(left)} and {len(right)} states")
        return found.double().square()

    def squared(self) -> Float[Tensor, "n n"]:
        """(D^N)² of all pairs; identical rows are at exactly 0, and at exactly the same distance from any other."""
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

    def extremes(self) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """Least and greatest (D^N)² of two different stimuli, some rows at a time.

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


def squared_distances(left: Float[Tensor, "a d"], right: Float[Tensor, "b d"]) -> Float[Tensor, "a b"]:
    """‖x - y‖² = ‖x‖² + ‖y‖² - 2 x·y, and by the difference itself where that would cancel.

    Fast and good to ten digits if the states are centred.
    """
    norms = left.square().sum(1)[:, None] + right.square().sum(1)
    squared = torch.addmm(norms, left, right.T, alpha=-2)
    close = (squared < CLOSE * norms).nonzero()
    for pairs in close.split(max(1, 2**22 // left.shape[1])):
        squared[pairs[:, 0], pairs[:, 1]] = (left[pairs[:, 0]] - right[pairs[:, 1]]).square().sum(1)
    return squared
