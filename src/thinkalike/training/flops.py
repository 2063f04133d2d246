"""The operations of a training step of stitches, the most that a device can do, and the share that was reached."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from thinkalike.config import TrainerConfig
from thinkalike.models import Operations, operations, peak_of, precision_of
from thinkalike.training.stitching import StitchTraining


class Place(NamedTuple):
    """Where a stitch reads and joins: whether it reads the target itself, and the layers of both."""

    own: bool
    layer: int
    depth: int


def stitching_step(
    source: Operations,
    target: Operations,
    places: Sequence[Place],
    weights: float,
    loss: str,
    tokens: int,
    context: int,
) -> float:
    """Return the operations of a step that trains stitches together.

    n · (source to the deepest site that is read + target likewise + Σ over stitches of (4 · weights of φ + forward and
    backward through the tail and the unembedding)). The weights of φ get a gradient, and frozen ones do not.

    Args:
        source, target: of each model.
        places: one for each stitch.
        weights: of one φ's map.
        loss: the name of `stitch.loss`.
        tokens: of the target in a step.
        context: tokens in a row.
    """
    last = len(target.blocks)
    read = [place.layer + 1 for place in places if place.own]
    if loss != "cross_entropy":
        read += [place.depth + 1 for place in places] if loss == "mse" else [last]
    total = target.forward(0, max(read, default=0), context) + (loss == "kl") * target.output
    total += source.forward(0, max((place.layer + 1 for place in places if not place.own), default=0), context)
    predicted = (context - 1) / context if loss == "cross_entropy" else 1.0
    for place in places:
        total += 4 * weights
        if loss != "mse":
            span = place.depth + 1, last, context
            total += target.forward(*span) + target.backward(*span)
        if loss in ("cross_entropy", "kl"):
            total += 2 * predicted * target.output
    return tokens * total


def step_operations(module: StitchTraining) -> float:
    """Return the operations of one step of a training, on all tokens of the step.

    A source that was never trained runs beside the source and costs the same. Where tokenizers differ, the source's
    tokens count as the target's.
    """
    models: tuple[Any, Any] = module.models
    source, target = models
    places = [Place(fit.reads is target, fit.layer, fit.depth) for fit in module.fits]
    shapes, context, config = (operations(source), operations(target)), module.layout.target, module.config
    tokens = config.tokens_per_step // context * context
    total = stitching_step(*shapes, places, weights_of(module.stitches[0]), config.loss, tokens, context)
    others = len({fit.reads for fit in module.fits} - {source, target})
    deepest = max(place.layer for place in places) + 1
    return total + others * tokens * shapes[0].forward(0, deepest, context)


def weights_of(phi: nn.Module) -> float:
    """Return the weights of a φ's linear maps."""
    return float(sum(part.weight.numel() for part in phi.modules() if isinstance(part, nn.Linear)))


def peak(device: torch.device, trainer: TrainerConfig) -> float | None:
    """Return the most operations per second of a device in the precision of a training, or None if nobody knows."""
    return peak_of(device, precision_of("float32", trainer))


def speed(module: Any, device: torch.device, trainer: TrainerConfig) -> dict[str, float]:
    """Return what the provenance of a result says of its training: `flops`, `flops_per_second`, `share_of_peak`.

    The operations and the seconds are those of the steps that ran since the job began or went on; the share stands
    there if the device's peak is known, and is of all devices that share the job.

    Args:
        module: a `StitchTraining` that has ended.
    """
    done = step_operations(module) * module.steps_here
    facts = {"flops": done, "flops_per_second": done / max(module.seconds, 1e-9)}
    most = peak(device, trainer)
    return facts | ({"share_of_peak": facts["flops_per_second"] / most / module.trainer.world_size} if most else {})
