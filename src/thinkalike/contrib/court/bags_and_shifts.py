"""Sources that move or add up vectors of neighbouring tokens, without looking ahead."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.contrib.court.materials import Materials
from thinkalike.contrib.court.random_codes import normals_by_code
from thinkalike.contrib.court.source import StateFunction, Tokens, states_of_lone_tokens
from thinkalike.models.families import EMBED

DECAY = 2.0  # the weights of a bag fall from 1 to exp(-2) over its tokens

VectorKind = Literal["embedding", "random"]


def token_vectors(materials: Materials, kind: VectorKind) -> Float[Tensor, "v_plus_1 d"]:
    """Return a standardised vector for each of the v tokens of the vocabulary.

    Each dimension has mean 0 and standard deviation 1 over the fitting text, where frequent tokens
    count more. The last row is zero; its index v stands for "no token".

    Args:
        materials: The target model with its layer, the text, and a seed for each purpose.
        kind: "embedding" for the target's embeddings, or "random" for vectors of random normal
            numbers, which are drawn for each token id.
    """
    if kind == "random":
        token_ids = torch.arange(materials.target.vocabulary)
        vectors = normals_by_code(token_ids, materials.width, materials.seed_for("vectors"))
        vectors = vectors.to(materials.device, materials.dtype)
    else:
        vectors = states_of_lone_tokens(materials.target, EMBED)
    tokens_of_text = materials.fit_rows.long().flatten().to(vectors.device)
    vectors_of_text = vectors[tokens_of_text]  # (n, d), one row for each occurrence of a token
    standardised = (vectors - vectors_of_text.mean(0)) / vectors_of_text.std(0)
    zeros = torch.zeros_like(vectors[:1])
    return torch.cat([standardised, zeros])


def token_and_bag(
    materials: Materials, bag_length: float, kind: VectorKind = "embedding"
) -> StateFunction:
    """Return a function of tokens: each token's vector plus a rotated bag of recent tokens.

    It tests whether a measure of similarity to a language model is fooled by the tokens alone. The
    bag is a weighted sum of the vectors of the current token and those before it. The weights fall
    from 1 to exp(-2) over `bag_length` tokens, or are equal if it is infinite. They are scaled to
    a Euclidean norm of 1, so that a sum of independent vectors is as large as one of them.

    Args:
        materials: The target model with its layer, the text, and a seed for each purpose.
        bag_length: How many tokens the sum is over; infinity: all from the beginning of the row.
        kind: What the vectors are: "embedding" for the target's embeddings, or "random" for random
            normal vectors.
    """
    vectors = token_vectors(materials, kind)
    rotation = materials.orthogonal_for("bag")  # so that the bag is not confused with the token

    def states(rows: Tokens) -> Float[Tensor, "b t d"]:
        """Return the token's vector plus the rotated bag, at each position."""
        positions = torch.arange(rows.shape[1])
        # lag[i, j] is how many tokens position j is before position i, negative if it is after.
        lag = positions[:, None] - positions
        is_in_bag = (lag >= 0) & (lag < bag_length)
        weights = torch.where(is_in_bag, torch.exp(-DECAY * lag / bag_length), 0).to(vectors)
        # (position, earlier position): a row has the weights of the bag at one position.
        normalised = weights / weights.norm(dim=1, keepdim=True)
        token_vector = vectors[rows.long().to(vectors.device)]  # (b, t, d)
        bag = normalised @ token_vector
        return token_vector + bag @ rotation

    return states


def shifted(materials: Materials, steps: int) -> StateFunction:
    """Return a function of tokens: the target's state at the token before (or after) each one.

    The first token of a row has no token before it, and the last one no token after it. For these
    the result is the target's mean state.

    Args:
        materials: The target model with its layer, the text, and a seed for each purpose.
        steps: -1 for the token before, 1 for the token after.
    """

    def states(rows: Tokens) -> Float[Tensor, "b t d"]:
        """Return at each position the state of the token `steps` after it; the mean if none is."""
        mean = materials.mean.expand(len(rows), 1, -1)
        padded = torch.cat([mean, materials.target_states(rows), mean], 1)  # (b, t + 2, d)
        # The state of position i is at i + 1 in `padded`, and the one `steps` after it, which is
        # -1 or 1, at i + 1 + steps.
        start = 1 + steps
        return padded[:, start : start + rows.shape[1]]

    return states
