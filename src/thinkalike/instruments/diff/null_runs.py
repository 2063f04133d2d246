"""What the runs of a null do: random changes of the same size, or forks by further training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

FORKS = "forks"
"""The kind of null whose models are copies of the base that were trained further."""

SIGNS = "signs"
"""The kind of null whose changes stay at their entries."""


@dataclass
class NullRuns:
    """What each random change or fork does.

    Attributes:
        kind: The kind of null of each run.
        kl: The KL from the base of each token.
        effects: The effects of the pairs of texts; none for random signs.
        moves: How each part moved, for each fork.
        shifts: How far the log-probability of each token of the vocabulary rises on average; none
            if it is not asked what was taught.
    """

    kind: list[str] = field(default_factory=list)
    kl: list[Float[Tensor, " n"]] = field(default_factory=list)
    effects: list[Float[Tensor, " p"]] = field(default_factory=list)
    moves: list[list[tuple[Float[Tensor, " w"], float]]] = field(default_factory=list)
    shifts: list[Float[Tensor, " v"]] = field(default_factory=list)

    @property
    def kinds(self) -> list[str]:
        """The different kinds."""
        return list(dict.fromkeys(self.kind))

    def kl_of_kind(self, kind: str) -> Float[Tensor, "r n"]:
        """Return the KL of each token of the runs of one kind."""
        runs = zip(self.kind, self.kl, strict=True)
        return torch.stack([kl for kind_of_run, kl in runs if kind_of_run == kind])

    def shifts_of_kind(self, kind: str) -> Float[Tensor, "r v"]:
        """Return the mean shift of each token of the vocabulary of the runs of one kind."""
        runs = zip(self.kind, self.shifts, strict=True)
        return torch.stack([shift for kind_of_run, shift in runs if kind_of_run == kind])

    def moved_kl(self) -> Float[Tensor, "r n"]:
        """Return the KL of each token of the runs without random signs.

        Where only the embedding of a token changed, random signs change that embedding as well,
        and so cannot tell this token from the remaining ones.
        """
        return self._without_signs(self.kl)

    def moved_effects(self) -> Float[Tensor, "r p"]:
        """Return the effects of the pairs of texts of the runs without random signs."""
        return self._without_signs(self.effects)

    def _without_signs(self, values: Sequence[Float[Tensor, " _"]]) -> Float[Tensor, "r n"]:
        """Return the values of the runs without random signs; `values` has one for each run."""
        runs = zip(self.kind, values, strict=True)
        return torch.stack([of_run for kind, of_run in runs if kind != SIGNS])
