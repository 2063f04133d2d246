"""How near a stitched model's output is to that of its target, token by token, from logits that are made once."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from thinkalike.measures.stitching.losses import CHUNK, Finish, logits_of


class OutputMatch(NamedTuple):
    """What `compare_outputs` finds of each of n tokens, for each of k ways to their last residuals."""

    loss: Float[Tensor, "k n"]  # cross-entropy of the token that follows, in nats
    kl: Float[Tensor, "k n"]  # KL(reference || ours), in nats
    top: Bool[Tensor, "k n"]  # whether the most likely token is that of the reference


@torch.no_grad()
def compare_outputs(
    states: Float[Tensor, "k n d"],
    finish: Finish,
    reference: Float[Tensor, "n d"],
    targets: Int[Tensor, " n"],
    chunk: int = CHUNK,
) -> OutputMatch:
    """Return `token_loss`, `token_kl` and whether the top token is the same, without making any logits twice.

    Args:
        states: The last residuals, of k ways to them.
        finish: The final norm and the unembedding.
        reference: The last residuals of the model whose output is the standard.
        targets: The token that follows.
        chunk: How many tokens' logits are in memory at a time.
    """
    parts: list[OutputMatch] = []
    for start in range(0, len(targets), chunk):
        rows = slice(start, start + chunk)
        top, standard = _distribution(reference[rows], finish)
        shares, matches = standard.exp(), []
        for own in states:
            likely, logs = _distribution(own[rows], finish)
            loss = -logs.gather(-1, targets[rows, None].long()).squeeze(-1)
            kl = (standard - logs).mul_(shares).sum(-1)
            matches.append(OutputMatch(loss, kl, likely == top))
        parts.append(OutputMatch(*(torch.stack(values) for values in zip(*matches, strict=True))))
    return OutputMatch(*(torch.cat(values, 1) for values in zip(*parts, strict=True)))


def _distribution(states: Float[Tensor, "m d"], finish: Finish) -> tuple[Int[Tensor, " m"], Float[Tensor, "m v"]]:
    """Return the most likely token after each state, and the logarithms of all tokens' probabilities."""
    logits = logits_of(states, finish)
    return logits.argmax(-1), logits.log_softmax(-1)
