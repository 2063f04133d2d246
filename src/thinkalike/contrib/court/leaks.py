"""Sources that know the next token, which no causal model does."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.contrib.court.bags_and_shifts import VectorKind, token_vectors
from thinkalike.contrib.court.materials import Materials
from thinkalike.contrib.court.random_codes import normals_by_code, prefix_codes
from thinkalike.contrib.court.source import StateFunction, Tokens
from thinkalike.measures.splitmix import splitmix

SCATTER = 0.5  # of noise about the centre of its cluster, in standard deviations of the centres


def next_tokens(materials: Materials, rows: Tokens) -> Tokens:
    """Return the next token at each position of rows of tokens.

    At the end of a row it is the size of the vocabulary, which is no token id and stands for "no
    token".
    """
    no_token = torch.full_like(rows[:, :1], materials.target.vocabulary)
    return torch.cat([rows[:, 1:], no_token], 1)


def next_token(materials: Materials) -> StateFunction:
    """Return a function of tokens: noise in clusters, one cluster for each possible next token.

    The state at a position is a random vector (centre) for the token that follows, plus noise. So
    it contains what a language model has to predict, and nothing else (Smith, Mannering, Marcu
    2025). It tests whether a measure of similarity to a language model is fooled by this. The end
    of a row has a centre of its own.

    Args:
        materials: The target model with its layer, the text, and a seed for each purpose.
    """
    seed_of_centres = materials.seed_for("leak")
    seed_of_scatter = materials.seed_for("leak, scatter")
    width = materials.width

    def states(rows: Tokens) -> Float[Tensor, "b t d"]:
        """Return the centre of the next token, plus noise, at each position."""
        centre = normals_by_code(next_tokens(materials, rows), width, seed_of_centres)
        # A hash of all tokens so far, so that the same text always has the same noise.
        scatter = normals_by_code(prefix_codes(rows), width, seed_of_scatter)
        return (centre + SCATTER * scatter).to(materials.device, materials.dtype)

    return states


def half_of_the_tokens(materials: Materials) -> StateFunction:
    """Return a function of tokens that leaks the next token at half of the positions.

    At these positions it gives a random vector for the next token plus noise, scaled to the mean
    and the standard deviations of the target's states. At all other positions it gives the
    target's state. A hash of the tokens up to a position decides between the two, so that the same
    text always leaks at the same positions.

    Args:
        materials: The target model with its layer, the text, and a seed for each purpose.
    """
    leak_of_next_token = next_token(materials)
    seed_of_hash = materials.seed_for("leak, half of the tokens")

    def states(rows: Tokens) -> Float[Tensor, "b t d"]:
        """Return a state that leaks the next token where a hash is odd, and else the target's."""
        hashes = splitmix(prefix_codes(rows, seed_of_hash))  # (b, t), of all tokens up to each
        is_leak = (hashes % 2 == 1)[..., None].to(materials.device)
        leak = materials.mean + materials.standard_deviations * leak_of_next_token(rows)
        return torch.where(is_leak, leak, materials.target_states(rows))

    return states


def half_of_the_variance(materials: Materials) -> StateFunction:
    """Return a function of tokens: the target's states plus a leak of the next token.

    The leak is a random vector for the next token plus noise. In each dimension, half of the
    variance comes from the states and half from the leak.

    Args:
        materials: The target model with its layer, the text, and a seed for each purpose.
    """
    leak = next_token(materials)
    weight_of_states = 0.5**0.5
    # In each dimension the leak is a normal number for the next token, of variance 1, plus normal
    # noise of variance SCATTER².
    leak_deviation = (1 + SCATTER**2) ** 0.5
    weight_of_leak = 0.5**0.5 * materials.standard_deviations / leak_deviation

    def states(rows: Tokens) -> Float[Tensor, "b t d"]:
        """Return mean + √½ (target's state - mean) + √½ (leak, as spread out as the states)."""
        part_of_states = weight_of_states * materials.centred_states(rows)
        return materials.mean + part_of_states + weight_of_leak * leak(rows)

    return states


def with_next_token(
    materials: Materials, share: float, kind: VectorKind = "embedding"
) -> StateFunction:
    """Return a function of tokens: the target's states plus a vector of the next token.

    Args:
        materials: The target model with its layer, the text, and a seed for each purpose.
        share: The standard deviation of each dimension of the vector, as a share of that of the
            states.
        kind: What the vectors are: "embedding" for the target's embeddings, or "random" for random
            normal vectors.
    """
    vectors = share * materials.standard_deviations * token_vectors(materials, kind)

    def states(rows: Tokens) -> Float[Tensor, "b t d"]:
        """Return the target's state + the vector of the next token, at each position."""
        following = next_tokens(materials, rows).long().to(vectors.device)
        # The last token of a row has no next one; "no token" has a vector of zeros.
        return materials.target_states(rows) + vectors[following]

    return states
