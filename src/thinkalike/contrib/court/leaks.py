"""Sources that know the next token, which no causal model does."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.contrib.court.bags_and_shifts import token_vectors
from thinkalike.contrib.court.materials import Materials
from thinkalike.contrib.court.random_codes import normals_by_code, prefix_codes
from thinkalike.contrib.court.source import States, Tokens
from thinkalike.measures.splitmix import splitmix

SCATTER = 0.5  # of noise about the centre of its cluster, in standard deviations of the centres


def next_tokens(materials: Materials, rows: Tokens) -> Tokens:
    """Return the token after each.

    After the last token of a row it is the size of the vocabulary, which is no token: the last
    row of `token_vectors`.
    """
    no_token = torch.full_like(rows[:, :1], materials.target.vocabulary)
    return torch.cat([rows[:, 1:], no_token], 1)


def next_token(materials: Materials) -> States:
    """Return noise in clusters by the next token (Smith, Mannering, Marcu 2025)."""
    seed_of_centres = materials.seed_for("leak")
    seed_of_scatter = materials.seed_for("leak, scatter")
    width = materials.width

    def states(rows: Tokens) -> Float[Tensor, "b t d"]:
        """Return noise about the centre of the next token of each position."""
        centre = normals_by_code(next_tokens(materials, rows), width, seed_of_centres)
        scatter = normals_by_code(prefix_codes(rows), width, seed_of_scatter)
        return (centre + SCATTER * scatter).to(materials.device, materials.dtype)

    return states


def half_of_the_tokens(materials: Materials) -> States:
    """Return the leak at half of the positions, and the target's own states elsewhere.

    The tokens up to a position decide whether it leaks.
    """
    leak = next_token(materials)
    seed = materials.seed_for("leak, half of the tokens")

    def states(rows: Tokens) -> Float[Tensor, "b t d"]:
        """Return the leak where the code of the tokens so far is odd; else the target's states."""
        is_odd = splitmix(prefix_codes(rows, seed)) & 1 == 1
        leaks = is_odd[..., None].to(materials.device)
        leaking_states = materials.mean + materials.spread * leak(rows)
        return torch.where(leaks, leaking_states, materials.target_states(rows))

    return states


def half_of_the_variance(materials: Materials) -> States:
    """Return the target's own states plus the leak, each with half the variance of a dimension."""
    leak = next_token(materials)
    share = 0.5**0.5
    # The leak is the sum of normal numbers of variance 1 and SCATTER².
    size = share * materials.spread / (1 + SCATTER**2) ** 0.5
    return lambda rows: materials.mean + share * materials.centred_states(rows) + size * leak(rows)


def with_next_token(materials: Materials, share: float, of: str = "embedding") -> States:
    """Return the target's own states plus a vector of the next token.

    Args:
        materials: The materials of a court.
        share: The size of the vector, in spreads of each dimension.
        of: "embedding" or "code", see `token_vectors`.
    """
    vectors = share * materials.spread * token_vectors(materials, of)

    def states(rows: Tokens) -> Float[Tensor, "b t d"]:
        following = next_tokens(materials, rows).long().to(vectors.device)
        return materials.target_states(rows) + vectors[following]

    return states
