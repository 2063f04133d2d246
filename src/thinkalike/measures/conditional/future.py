"""What only later text decides: the part of the next token that a model could not have foreseen, as a few numbers.

A state that predicts it linearly holds something of the text to come, or knows more than the model does.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.arguments import seeded
from thinkalike.measures.stitching.losses import CHUNK, Finish, logits_of

NUMBERS = 64  # of a token's code


def token_codes(vocabulary: int, numbers: int = NUMBERS, seed: int = 0) -> Float[Tensor, "v c"]:
    """Return a random standard normal code for every token of a vocabulary, on the CPU, by which tokens are told apart.

    Products of the codes of two tokens are about 0, so that codes stand for tokens at a fraction of the numbers
    (Johnson & Lindenstrauss 1984).
    """
    return torch.randn(vocabulary, numbers, generator=seeded(seed))


@torch.no_grad()
def surprises(
    states: Float[Tensor, "n d"],
    finish: Finish,
    targets: Int[Tensor, " n"],
    codes: Float[Tensor, "v c"],
    chunk: int = CHUNK,
) -> Float[Tensor, "n c"]:
    """Return for each token what its model did not foresee of the next: code(next) - Σ_v p(v) code(v).

    p = softmax(finish(states)) is the model's own distribution. If p is right, the mean is 0 whatever came before, so
    nothing that is made of earlier tokens predicts it. Of a random vector for each next token a linear map
    reads only as many tokens as it has numbers: see docs/LOG.md for what leaks of several widths come to.

    Args:
        states: The last residuals of the model, one per token.
        finish: The final norm and the unembedding.
        targets: The token that follows.
        codes: See `token_codes`, on the device of the states.
        chunk: How many tokens' logits are in memory at a time; the result does not depend on it.
    """
    surprising = []
    for part, following in zip(states.split(chunk), targets.split(chunk), strict=True):
        foreseen = logits_of(part, finish).softmax(-1).to(codes.dtype) @ codes
        surprising.append(codes[following] - foreseen)
    return torch.cat(surprising)
