"""Sources that are other models: never trained, trained to a shortcut, or really trained otherwise."""

from __future__ import annotations

import copy

import torch

from thinkalike.config import PretrainConfig
from thinkalike.court.source import Setting, States, stage
from thinkalike.evaluation import BATCH_TOKENS
from thinkalike.models import fresh, randomised, variant
from thinkalike.training import Pretraining

SHORTCUT = PretrainConfig(tokens=100 * 2048, tokens_per_step=2048, lr=1e-3, warmup=10)  # half of each pair is predicted


def fresh_weights(setting: Setting) -> States:
    """Return the states of the target's architecture as it is before any training."""
    model = fresh(setting.target, setting.number("fresh"))
    return lambda rows: stage(model, setting.layer, rows)


def redrawn_matrices(setting: Setting) -> States:
    """Return the states of the target after every matrix was drawn anew at its own spread."""
    model = randomised(setting.target, setting.number("redrawn"))
    return lambda rows: stage(model, setting.layer, rows)


def token_alone(setting: Setting) -> States:
    """Return the states of a twin of the target that was trained on to predict from the current token alone.

    Each token is a row of its own, so that there is nothing else to attend to, in whatever architecture. The twin
    begins with the target's weights, which makes it the harder to tell apart.
    """
    module = copy.deepcopy(setting.target.module).train().requires_grad_(True)
    pairs = torch.stack([setting.other[:, :-1], setting.other[:, 1:]], -1).flatten(0, 1)
    setting.train(Pretraining(module, pairs, SHORTCUT, setting.number("token alone")), "token alone")
    model = variant(setting.target, module.to(setting.target.device), f"{setting.target.name} (token alone)")
    tokens = torch.arange(model.vocabulary)[:, None].split(BATCH_TOKENS)
    table = torch.cat([stage(model, setting.layer, part)[:, 0] for part in tokens])
    return lambda rows: table[rows.to(table.device)]


def sibling(setting: Setting, name: str) -> States:
    """Return the states of a model that was really trained otherwise, at the block of the same relative depth."""
    model = setting.siblings[name]
    depth = round((setting.layer + 1) / setting.target.n_layers * model.n_layers)
    return lambda rows: stage(model, max(depth, 1) - 1, rows)
