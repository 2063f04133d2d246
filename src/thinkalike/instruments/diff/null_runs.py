"""What the runs of a null do: random changes of the same size, or forks by further training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

FORKS = "forks"
"""The kind of null whose models are copies of the base that were trained further."""

RANDOM_SIGNS = "signs"
"""The kind of null whose changes stay at their entries."""


@dataclass
class NullRuns:
    """What each run of the null does: a random change of the base, or a copy trained further.

    Attributes:
        kind: The kind of null of each run.
        kl: The KL from the base at each token.
        effects: The contrast of each pair of texts; none for random signs.
        moves: How each module moved, for each copy that was trained further (fork).
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
        """Return the KL from the base at each token, in every run of one kind of null."""
        runs = zip(self.kind, self.kl, strict=True)
        return torch.stack([kl for kind_of_run, kl in runs if kind_of_run == kind])

    def shifts_of_kind(self, kind: str) -> Float[Tensor, "r v"]:
        """Return how far each run of one kind of null raises the log-probability of each token.

        There is a row for each run and a column for each token of the vocabulary. The rise from
        the base is a mean over the positions of the text.
        """
        runs = zip(self.kind, self.shifts, strict=True)
        return torch.stack([shift for kind_of_run, shift in runs if kind_of_run == kind])

    def kl_without_random_signs(self) -> Float[Tensor, "r n"]:
        """Return the KL from the base at each token, in all runs but those with random signs.

        A run with random signs changes the same entries of the weights as the change that is
        judged. Where only the embedding of one token changed, it changes that embedding, too, and
        so cannot show that this token stands out.
        """
        return self._without_signs(self.kl)

    def contrasts_without_random_signs(self) -> Float[Tensor, "r p"]:
        """Return the contrast of each pair of texts, in all runs but those with random signs."""
        return self._without_signs(self.effects)

    def _without_signs(self, values: Sequence[Float[Tensor, " _"]]) -> Float[Tensor, "r n"]:
        """Return the values of all runs but those with random signs, a row for each run.

        Args:
            values: The values of each run.
        """
        values_without_signs = []
        for kind_of_run, values_of_run in zip(self.kind, values, strict=True):
            if kind_of_run != RANDOM_SIGNS:
                values_without_signs.append(values_of_run)
        return torch.stack(values_without_signs)
