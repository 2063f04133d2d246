"""Which rows CKA compares: tokens, whole sequences, or their means."""

from __future__ import annotations

from functools import cached_property

import torch
from jaxtyping import Int, Shaped
from torch import Tensor


def rows_of(
    states: Shaped[Tensor, "*b d"], flatten: str, mask: Shaped[Tensor, " ..."] | None = None
) -> Shaped[Tensor, "n e"]:
    """Return the states of a batch of sequences as rows; states that are rows already, (n, d), stay so.

    Args:
        states: (b, t, d), or with more axes than t.
        flatten: "token": every token; "sample": a sequence laid out flat, (b, t d); "mean": the mean of its tokens.
        mask: The tokens that count, of the states' shape without d; "sample" cannot do with several lengths.

    Raises:
        ValueError: The mask has another shape or dtype, leaves no token of a sequence for its mean, or drops one from
            a whole sequence.
    """
    return RowChoice(flatten, mask)(states)


class RowChoice:
    """`rows_of` for the states of all layers of a batch; what the mask says is looked up once.

    Raises:
        ValueError: The mask is not boolean.
    """

    def __init__(self, flatten: str, mask: Shaped[Tensor, " ..."] | None):
        if mask is not None and mask.dtype != torch.bool:
            raise ValueError(f"a mask is boolean, and {mask.dtype} would choose rows by number: use mask.bool()")
        self.flatten, self.mask = flatten, mask

    def __call__(self, states: Shaped[Tensor, "*b d"]) -> Shaped[Tensor, "n e"]:
        """Return the rows of one layer.

        Raises:
            ValueError: The mask does not fit the states or the kind of rows; see `rows_of`.
        """
        if self.mask is not None and self.mask.shape != states.shape[:-1]:
            raise ValueError(
                f"a mask of shape {tuple(self.mask.shape)} does not fit states of shape {tuple(states.shape)}"
            )
        if self.flatten == "token" or states.ndim == 2:
            rows = states.flatten(0, -2)
            return rows if self.mask is None else rows[self._positions]
        if self.flatten == "sample":
            if not self._is_whole:
                raise ValueError(
                    "flatten=sample lines up whole sequences, so a mask cannot drop tokens: use flatten=mean"
                )
            return states.flatten(1)
        tokens = states.flatten(1, -2)
        if self.mask is None:
            return tokens.mean(1)
        return tokens.masked_fill(~self.mask.flatten(1)[..., None], 0).sum(1) / self._counts

    @cached_property
    def _positions(self) -> Int[Tensor, " n"]:
        """The tokens that count; a boolean index would let the host wait for a GPU at every layer."""
        assert self.mask is not None
        return self.mask.flatten().nonzero().squeeze(1)

    @cached_property
    def _is_whole(self) -> bool:
        return self.mask is None or bool(self.mask.all())

    @cached_property
    def _counts(self) -> Int[Tensor, "b 1"]:
        """How many tokens of each sequence count."""
        assert self.mask is not None
        counts = self.mask.flatten(1).sum(1, keepdim=True)
        if not counts.all():
            raise ValueError(f"sequence {int(counts.argmin())} has no token left for its mean: drop it from the batch")
        return counts
