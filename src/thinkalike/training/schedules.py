"""Learning rates step by step, and what the optimisers of stitches keep."""

from __future__ import annotations

import math

from thinkalike import plugins
from thinkalike.config import StitchConfig


def rate(step: int, config: StitchConfig) -> float:
    """Return the learning rate at a step, as a share of the peak.

    linear: (s + 1) / (W + 1) in the W warm-up steps, 1 at step W, then down to 1 / (N - W) at the last step N - 1, so
    every step trains. cosine: the same warm-up, then half a cosine towards 0 at step N. tuned_lens: s / W, then linear
    to 0 at step N - W, as that library's schedule does in effect; step 0 and the last W steps do not train.
    """
    steps, warmup = config.steps, config.warmup
    if config.schedule == "tuned_lens":
        if step < warmup:
            return step / warmup
        return max(0.0, (steps - warmup - step) / max(steps - 2 * warmup, 1))
    if step < warmup:
        return (step + 1) / (warmup + 1)
    progress = (step - warmup) / (steps - warmup)
    return (1 + math.cos(math.pi * progress)) / 2 if config.schedule == "cosine" else 1 - progress


def cosine(step: int, steps: int, warmup: int, floor: float = 0.1) -> float:
    """Rate at a step as a share of the peak: (step + 1) / warmup at first, then a half cosine down to `floor`."""
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(steps - warmup, 1)
    return floor + (1 - floor) * (1 + math.cos(math.pi * progress)) / 2


def momenta(config: StitchConfig) -> int:
    """Return how many numbers the optimiser keeps of each weight."""
    if own := plugins.active("optimizer").get(config.optimizer):
        return int(own.momenta)
    return 2 if config.optimizer == "adam" else int(config.momentum > 0)


def peak_rate(config: StitchConfig, width: int) -> float:
    """Return the peak rate of the optimiser for a φ that reads states of this width.

    SGD's is lr, or, if so asked, lr (1 - momentum), which is what tuned-lens means by 1.0. Adam moves every entry by
    about its rate, and those of an isometry are of size 1 / √width, so its rate is lr / √width. That of a plugin's
    optimiser is lr.
    """
    if config.optimizer in plugins.active("optimizer"):
        return config.peak
    if config.optimizer == "adam":
        return config.peak / math.sqrt(width)
    return config.peak * (1 - config.momentum) if config.scale_lr_by_momentum else config.peak
