"""What a job takes in operations, phase by phase: multiplications and additions, two for each product."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from thinkalike.config import ModelConfig
from thinkalike.models import Shape, label, peak_of, pick_device, precision_of

Shapes = Mapping[str, Shape]  # by the part of the configuration: model, target, or the name of a member


@dataclass(frozen=True)
class Phase:
    """A part of a job.

    Attributes:
        name: forward passes, training, report or comparing.
        operations: that it takes.
        tokens: how many tokens each model reads in it, by the name of the model.
        is_shared: whether jobs of one pass that have the same phase do it once.
    """

    name: str
    operations: float
    tokens: Mapping[str, float] = field(default_factory=dict)
    is_shared: bool = False


class Estimate(NamedTuple):
    """What a job takes, as far as it is known: its phases, its models by name, and those of no known shape."""

    phases: Sequence[Phase]
    shapes: Shapes
    unknown: Sequence[str]


def estimate(instrument: Any, config: Any) -> Estimate:
    """Return what a job takes, without any weights and without any download.

    Args:
        instrument: has `models_of`, `shapes_of` and `operations`.
    """
    models: Mapping[str, ModelConfig] = instrument.models_of(config)
    found: Mapping[str, Shape | None] = instrument.shapes_of(config)
    shapes = {part: shape for part, shape in found.items() if shape is not None}
    unknown = [label(model) for part, model in models.items() if found[part] is None]
    return Estimate(instrument.operations(config, shapes), shapes, list(dict.fromkeys(unknown)))


def speeds(jobs: Sequence[tuple[Any, Any]], seconds: float) -> list[dict[str, float]]:
    """Return what the provenance of each of the jobs of a pass says of its speed.

    `flops` are those of the job by itself; `flops_per_second` are of the pass, in which what jobs share is done once;
    `share_of_peak` is there if the device's peak is known. A job with a model of no known shape says nothing.

    Args:
        jobs: instrument and configuration of each.
        seconds: that the pass took.
    """
    found = [estimate(*job) for job in jobs]
    if any(each.unknown or not total(each.phases) for each in found):
        return [{} for _ in jobs]
    rate = total(together(each.phases for each in found)) / max(seconds, 1e-9)
    _, first = jobs[0]
    most = peak_of(torch.device(pick_device(first.model.device)), precision_of(first.model.dtype, first.trainer))
    share = {"share_of_peak": rate / most} if most else {}
    return [{"flops": total(each.phases), "flops_per_second": rate, **share} for each in found]


def forward_passes(shapes: Iterable[Shape], tokens: float, context: int, full: bool = False) -> list[Phase]:
    """Return the passes of each different model over so many tokens, which jobs of one pass share.

    Args:
        context: tokens of a row.
        full: whether they go through the unembedding, too.
    """
    different = {(shape.name, shape.operations): shape for shape in shapes}.values()
    return [
        Phase("forward passes", shape.forward(tokens, context, full), {shape.name: tokens}, is_shared=True)
        for shape in different
    ]


def together(jobs: Iterable[Sequence[Phase]]) -> list[Phase]:
    """Return the phases of jobs that are done in one pass: what they share stands there once."""
    found: list[Phase] = []
    for phase in (phase for phases in jobs for phase in phases):
        if not (phase.is_shared and phase in found):
            found.append(phase)
    return found


def total(phases: Iterable[Phase]) -> float:
    """Return the operations of phases."""
    return float(sum(phase.operations for phase in phases))
