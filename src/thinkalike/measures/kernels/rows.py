"""Which rows CKA compares: tokens, whole sequences, or their means."""

from __future__ import annotations

import torch
from jaxtyping import Shaped
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
    if mask is not None and mask.dtype != torch.bool:
        raise ValueError(f"a mask is boolean, and {mask.dtype} would choose rows by number: use mask.bool()")
    if mask is not None and mask.shape != states.shape[:-1]:
        raise ValueError(f"a mask of shape {tuple(mask.shape)} does not fit states of shape {tuple(states.shape)}")
    if flatten == "token" or states.ndim == 2:
        rows = states.flatten(0, -2)
        return rows if mask is None else rows[mask.flatten()]
    if flatten == "sample":
        if mask is not None and not mask.all():
            raise ValueError("flatten=sample lines up whole sequences, so a mask cannot drop tokens: use flatten=mean")
        return states.flatten(1)
    tokens = states.flatten(1, -2)
    if mask is None:
        return tokens.mean(1)
    kept = mask.flatten(1)
    counts = kept.sum(1, keepdim=True)
    if not counts.all():
        raise ValueError(f"sequence {int(counts.argmin())} has no token left for its mean: drop it from the batch")
    return tokens.masked_fill(~kept[..., None], 0).sum(1) / counts
