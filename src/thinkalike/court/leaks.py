"""Sources that see the next token, which no causal model can: what they give the target is the answer itself."""

from __future__ import annotations

import torch
from torch import Tensor

from thinkalike.court.noise import mixed, normals, prefixes
from thinkalike.court.source import Setting, States

SCATTER = 0.5  # of noise about the centre of its cluster, in standard deviations of the centres


def next_token(setting: Setting) -> States:
    """Return noise in clusters by the next token (Smith, Mannering, Marcu 2025)."""
    centres, scatter = setting.number("leak"), setting.number("leak, scatter")
    itself = setting.itself

    def states(rows: Tensor) -> Tensor:
        noise = normals(prefixes(rows), itself.d_model, scatter)
        leak = normals(following(rows, itself.vocabulary), itself.d_model, centres)
        return (leak + SCATTER * noise).to(itself.device, itself.dtype)

    return states


def half_of_the_tokens(setting: Setting) -> States:
    """Return such noise at half of the places, which the tokens up to there choose, and the target's own elsewhere."""
    leak, seed = next_token(setting), setting.number("leak, half of the tokens")

    def states(rows: Tensor) -> Tensor:
        leaking = (mixed(prefixes(rows, seed)) & 1 == 1)[..., None].to(setting.itself.device)
        return torch.where(leaking, setting.mean + setting.spread * leak(rows), setting.own(rows))

    return states


def half_of_the_variance(setting: Setting) -> States:
    """Return the target's own states plus such noise, each with half of the variance of every dimension."""
    leak, half = next_token(setting), 0.5**0.5
    size = half * setting.spread / (1 + SCATTER**2) ** 0.5
    return lambda rows: setting.mean + half * (setting.own(rows) - setting.mean) + size * leak(rows)


def following(rows: Tensor, vocabulary: int) -> Tensor:
    """Return the next token of each place, and `vocabulary` at the last of a row."""
    return torch.cat([rows[:, 1:], torch.full_like(rows[:, :1], vocabulary)], 1)
