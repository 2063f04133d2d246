"""Sources that hold a part of the target's states, more than them, another stage of them, or only what they lead to."""

from __future__ import annotations

import torch
from torch import Tensor

from thinkalike.court.noise import normals, prefixes
from thinkalike.court.source import Setting, States, stage
from thinkalike.measures import CHUNK
from thinkalike.models import EMBED, Layer

LARGE = 3.0  # standard deviations of the added dimensions, in those of the target's


def top_components(setting: Setting) -> States:
    """Return the target's states in their first principal components on the fit rows, half as many as dimensions."""
    mean, covariance = setting.moments
    half = setting.itself.d_model // 2
    top = torch.linalg.eigh(covariance).eigenvectors[:, -half:].to(setting.itself.dtype)
    return lambda rows: (setting.own(rows) - mean.to(top)) @ top


def layer_before(setting: Setting) -> States:
    """Return the target's states one block earlier."""
    layer: Layer = setting.layer - 1 if setting.layer else EMBED
    return lambda rows: stage(setting.target, layer, rows)


def layer_after(setting: Setting) -> States:
    """Return the target's states one block later."""
    return lambda rows: stage(setting.target, setting.layer + 1, rows)


def superset(setting: Setting) -> States:
    """Return the target's states beside as many dimensions of large noise, a function of all tokens up to there."""
    seed, width = setting.number("superset"), setting.itself.d_model
    size = LARGE * setting.spread.square().mean().sqrt()

    def states(rows: Tensor) -> Tensor:
        own = setting.own(rows)
        return torch.cat([own, size * normals(prefixes(rows), width, seed).to(own)], -1)

    return states


def log_probabilities(setting: Setting) -> States:
    """Return a random projection of the target's log-probabilities of the next token: its answers, not its states."""
    target, width = setting.target, setting.itself.d_model
    weight = setting.drawn("log-probabilities", target.vocabulary, width) / target.vocabulary**0.5

    def states(rows: Tensor) -> Tensor:
        last = stage(target, target.n_layers - 1, rows).flatten(0, 1)
        parts = [target.finish(part.to(target.dtype)).to(weight).log_softmax(-1) @ weight for part in last.split(CHUNK)]
        return torch.cat(parts).view(*rows.shape, width)

    return states
