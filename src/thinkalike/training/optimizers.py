"""The optimisers of stitches: those of the package, and those of plugins."""

from __future__ import annotations

from typing import Any

import torch

from thinkalike import plugins
from thinkalike.config import StitchConfig
from thinkalike.errors import PluginError

EPSILON = 1e-6  # of Adam: far above gradients that are rounding alone (1e-9), far below others (1e-3)


def optimizer_of(config: StitchConfig, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """Return the optimiser that a configuration names.

    Args:
        groups: of parameters, each with params, lr and weight_decay.

    Raises:
        PluginError: a plugin makes no optimiser.
    """
    if own := plugins.active("optimizer").get(config.optimizer):
        made = own.make(groups)
        if not isinstance(made, torch.optim.Optimizer):
            raise PluginError(
                f"optimizer {config.optimizer} makes a {type(made).__name__}: give a torch.optim.Optimizer"
            )
        return made
    more: dict[str, Any] = {"foreach": False}  # all at once would take two more copies of all weights
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, momentum=config.momentum, nesterov=config.momentum > 0, **more)
    return torch.optim.AdamW(groups, eps=EPSILON, **more)
