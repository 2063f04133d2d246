"""Sources that move or add up vectors of neighbouring tokens, without looking ahead."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.contrib.court.materials import Materials
from thinkalike.contrib.court.random_codes import normals_by_code
from thinkalike.contrib.court.source import StateFunction, Tokens, states_after
from thinkalike.evaluation.batch_sizes import BATCH_TOKENS
from thinkalike.models.families import EMBED

DECAY = 2.0  # the weights of a bag fall from 1 to exp(-2) over its tokens


def token_vectors(materials: Materials, of: str) -> Float[Tensor, "v_plus_1 d"]:
    """Return a vector for each of v tokens, and a last row of zeros for "no token".

    Each dimension has mean 0 and standard deviation 1 over the tokens that maps are fitted on.

    Args:
        materials: The target model with its layer, the text, and a seed for each purpose.
        of: "embedding" for the target's embeddings, or "code" for random normal vectors.
    """
    tokens = torch.arange(materials.target.vocabulary)
    if of == "code":
        vectors = normals_by_code(tokens, materials.width, materials.seed_for("vectors"))
        vectors = vectors.to(materials.device, materials.dtype)
    else:
        embeddings = []
        for batch in tokens.split(BATCH_TOKENS):
            embeddings.append(states_after(materials.target, EMBED, batch[:, None])[:, 0])
        vectors = torch.cat(embeddings)
    # The vector of every token of the fitting text, so that frequent tokens count more.
    vectors_of_text = vectors[materials.fit_rows.long().flatten().to(vectors.device)]
    standardised = (vectors - vectors_of_text.mean(0)) / vectors_of_text.std(0)
    return torch.cat([standardised, torch.zeros_like(vectors[:1])])


def token_and_bag(materials: Materials, last: float, of: str = "embedding") -> StateFunction:
    """Return a function of tokens: each token's vector plus a rotated bag of the last tokens.

    The bag is a weighted sum of the vectors of the last tokens, including the current one. The
    weights fall from 1 to exp(-2) over `last` tokens, or are equal if that is infinite. They are
    scaled so that a sum of independent vectors is as large as one of them.

    Args:
        materials: The target model with its layer, the text, and a seed for each purpose.
        last: How many tokens the sum is over; infinity: all from the beginning of the row.
        of: What the vectors are: "embedding" for the target's embeddings, or "code" for random
            normal vectors.
    """
    vectors = token_vectors(materials, of)
    rotation = materials.orthogonal_for("bag")  # so that the bag is not confused with the token

    def states(rows: Tokens) -> Float[Tensor, "b t d"]:
        """Return the token's vector plus the rotated bag, at each position."""
        positions = torch.arange(rows.shape[1])
        lag = positions[:, None] - positions  # (t, t): how far back each other position is
        is_in_bag = (lag >= 0) & (lag < last)
        weights = torch.where(is_in_bag, torch.exp(-DECAY * lag / last), 0).to(vectors)
        normalised = weights / weights.norm(dim=1, keepdim=True)
        vector = vectors[rows.long().to(vectors.device)]
        return vector + normalised @ vector @ rotation

    return states


def shifted(materials: Materials, steps: int) -> StateFunction:
    """Return a function of tokens: the target's state at the token before (or after) each one.

    Where a row has no such token, it is the mean state.

    Args:
        materials: The target model with its layer, the text, and a seed for each purpose.
        steps: -1 for the token before, 1 for the token after.
    """

    def states(rows: Tokens) -> Float[Tensor, "b t d"]:
        """Return the neighbour's state at each position, and the mean state at the end."""
        mean = materials.mean.expand(len(rows), 1, -1)
        padded = torch.cat([mean, materials.target_states(rows), mean], 1)  # (b, t + 2, d)
        # The state of position i is at i + 1 in `padded`.
        return padded[:, 1 + steps :][:, : rows.shape[1]]

    return states
