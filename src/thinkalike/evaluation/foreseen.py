"""What states of one model foresee of later text, where another model and its own state do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.measures.canonical import LEFT, whitening
from thinkalike.measures.closed_forms import Moments
from thinkalike.measures.estimates import FEWEST_GROUPS, PARTS, Estimate, jackknife

AHEAD = 2  # how many of the next tokens a source may know
ByLayer = Mapping[int, Float[Tensor, "n _"]]
Whitened = tuple[Float[Tensor, "d a"], Float[Tensor, "e b"]]  # directions of unit variance of source and target


class Foreseen:
    """How well states of a source foresee what a target did not, beside the target's own state, of each layer pair.

    Least squares of both states on the surprises (Frisch & Waugh 1933): the target's own predicts first, and then what
    it leaves of the source's predicts what it leaves of the surprises. No change of basis of either side matters.

    Args:
        states: The moments of the same rows of both sides, which are complete before rows are judged.
    """

    def __init__(self, states: Moments):
        self.states = states
        self._across: dict[tuple[int, int], Tensor] = {}  # Σ x s' by side and layer, of states x and surprises s
        self._surprises = torch.zeros(())  # Σ s
        self._maps: list[tuple[Tensor, Tensor, Tensor]] = []
        self._sums = [torch.zeros(PARTS, AHEAD, 3, dtype=torch.float64) for _ in states.pairs]

    def fit(self, source: ByLayer, target: ByLayer, surprises: Float[Tensor, "n codes"]) -> None:
        """Add rows to fit on; for `surprises` see `TargetBatch`."""
        surprised = surprises.double()
        self._surprises = self._surprises + surprised.sum(0)
        for side, states in enumerate((source, target)):
            for layer, rows in states.items():
                self._across[side, layer] = self._across.get((side, layer), 0) + rows.double().T @ surprised

    def judge(
        self,
        source: ByLayer,
        target: ByLayer,
        surprises: Float[Tensor, "n codes"],
        parts: Int[Tensor, " n"],
        whitened: Sequence[Whitened],
    ) -> None:
        """Add held-out rows; `parts` says to which part, below `PARTS`, each row belongs."""
        self._maps = self._maps or [self._fitted(place, *both) for place, both in enumerate(whitened)]
        belongs = torch.nn.functional.one_hot(parts, PARTS).double().T
        for pair, maps, sums in zip(self.states.pairs, self._maps, self._sums, strict=True):
            both = self.states.of(pair)
            x, y = source[pair[0]].double() - both.mean_x, target[pair[1]].double() - both.mean_y
            found = (x @ maps[0] - y @ maps[1]).unflatten(1, (AHEAD, -1))
            actual = (surprises - self._surprises / both.n - y @ maps[2]).unflatten(1, (AHEAD, -1))
            each = torch.stack([(found * actual).sum(2), found.square().sum(2), actual.square().sum(2)], 2)
            sums += torch.einsum("pn,nas->pas", belongs, each).cpu()

    def _fitted(self, place: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the maps by which both states predict beside the target's own, and that by which the latter does."""
        pair = self.states.pairs[place]
        both = self.states.of(pair)
        means = enumerate((both.mean_x, both.mean_y))
        mine, own = (self._across[side, pair[side]] - torch.outer(mean, self._surprises) for side, mean in means)
        across, by_source, by_target = (each / (both.n - 1) for each in (x.T @ both.xy @ y, x.T @ mine, y.T @ own))
        left = whitening(torch.eye(len(across)).to(across) - across @ across.T, LEFT)
        more = left @ (left.T @ (by_source - across @ by_target))
        return x @ more, y @ (across.T @ more), y @ by_target

    def result(self, documents: int) -> list[Estimate]:
        """Return the correlation of surprises with what was foreseen of them, the largest over tokens ahead, by pair.

        Its interval leaves out a tenth of the documents at a time; fewer than `FEWEST_GROUPS` have (-∞, ∞).
        """
        found = []
        for sums in self._sums:
            there = sums[sums[:, 0, 2] > 0]
            value = _correlation(there.sum(0))
            left = (there.sum(0) - there)[: len(there) if documents >= FEWEST_GROUPS else 0]
            found.append(jackknife(value, _correlation(left))[int(value.argmax())])
        return found


def _correlation(sums: Float[Tensor, "*b 3"]) -> Float[Tensor, "*b"]:
    """Return Σ ab / √(Σ a² Σ b²), 0 where a or b is constant."""
    product, first, second = sums.unbind(-1)
    size = (first * second).sqrt()
    return torch.where(size > 0, product / size.clamp(min=torch.finfo(size.dtype).tiny), 0.0)
