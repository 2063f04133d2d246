"""Sources that are the target itself in other coordinates, or as good as itself."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor

from thinkalike.config import PretrainConfig
from thinkalike.court.noise import normals, prefixes
from thinkalike.court.source import Setting, States, stage
from thinkalike.models import perturbed, variant
from thinkalike.training import Pretraining

SCALES, CONDITION = 100.0, 30.0  # the largest over the smallest: of scales of dimensions, of singular values
WEIGHT_NOISE, STATE_NOISE = 0.02, 0.1  # of a tensor's root mean square, of a dimension's standard deviation
TRAINED = PretrainConfig(tokens=50 * 2048, tokens_per_step=2048, lr=1e-4, warmup=10)  # a twentieth of a mini's rate


def rotated(setting: Setting) -> States:
    """Return the target's states through a random orthogonal map."""
    turn = _orthogonal(setting, "rotated")
    return lambda rows: setting.own(rows) @ turn


def rescaled(setting: Setting) -> States:
    """Return the target's states with dimensions in another order, each at a scale of its own, log-uniform."""
    generator = torch.Generator().manual_seed(setting.number("rescaled"))
    width = setting.itself.d_model
    order = torch.randperm(width, generator=generator).to(setting.itself.device)
    exponents = torch.rand(width, generator=generator).to(setting.itself.device, setting.itself.dtype) - 0.5
    return lambda rows: setting.own(rows)[..., order] * SCALES**exponents


def through_affine(setting: Setting) -> States:
    """Return the target's states through an affine map whose singular values lie log-evenly between 1 and 30."""
    left, right = _orthogonal(setting, "affine, left"), _orthogonal(setting, "affine, right")
    values = torch.logspace(0, math.log10(CONDITION), setting.itself.d_model, dtype=left.dtype, device=left.device)
    weight, shift = left * values @ right, setting.spread * setting.drawn("affine, shift", setting.itself.d_model)
    return lambda rows: setting.own(rows) @ weight + shift


def with_noisy_weights(setting: Setting) -> States:
    """Return the states of the target after noise on all its weights."""
    model = perturbed(setting.target, WEIGHT_NOISE, setting.number("noisy weights"))
    return lambda rows: stage(model, setting.layer, rows)


def trained_on(setting: Setting) -> States:
    """Return the states of the target after some more steps of training on other documents."""
    module = copy.deepcopy(setting.target.module).train().requires_grad_(True)
    setting.train(Pretraining(module, setting.other, TRAINED, setting.number("trained on")), "trained on")
    model = variant(setting.target, module.to(setting.target.device), f"{setting.target.name} (trained on)")
    return lambda rows: stage(model, setting.layer, rows)


def with_noisy_states(setting: Setting) -> States:
    """Return the target's states with noise that is a function of all tokens up to there."""
    seed, spread = setting.number("noisy states"), STATE_NOISE * setting.spread

    def states(rows: Tensor) -> Tensor:
        own = setting.own(rows)
        return own + spread * normals(prefixes(rows), own.shape[-1], seed).to(own)

    return states


def _orthogonal(setting: Setting, purpose: str) -> Tensor:
    """Return an orthogonal matrix, drawn uniformly but for signs of its columns."""
    width = setting.itself.d_model
    return torch.linalg.qr(setting.drawn(purpose, width, width).double()).Q.to(setting.itself.dtype)
