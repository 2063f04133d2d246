"""The operations of a job, phase by phase: multiplications and additions, two for each product."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from thinkalike.models.outline import label

if TYPE_CHECKING:
    from thinkalike.models.shapes import Shape

Shapes = Mapping[str, "Shape"]  # by the part of the configuration: model, target, or the name of a member


@dataclass(frozen=True)
class Phase:
    """A part of a job.

    Attributes:
        name: such as forward passes, training, report or comparing.
        operations: of the whole phase.
        tokens: the tokens that each model reads in it, by the name of the model.
        is_shared: whether jobs of one pass that have the same phase do it once.
    """

    name: str
    operations: float
    tokens: Mapping[str, float] = field(default_factory=dict)
    is_shared: bool = False


class Estimate(NamedTuple):
    """The phases and the models of a job, and the names of the models of unknown shape; with any, phases are empty."""

    phases: Sequence[Phase]
    shapes: Shapes
    unknown: Sequence[str]


def estimate(instrument: Any, config: Any) -> Estimate:
    """Return what a job takes, without any weights and without any download.

    Args:
        instrument: has `models_of`, `shapes_of` and `operations`.
    """
    found: Mapping[str, Shape | None] = instrument.shapes_of(config)
    shapes = {part: shape for part, shape in found.items() if shape is not None}
    unknown = [label(model) for part, model in instrument.models_of(config).items() if found[part] is None]
    phases = [] if unknown else [phase for phase in instrument.operations(config, shapes) if phase.operations]
    return Estimate(phases, shapes, list(dict.fromkeys(unknown)))


def speeds(jobs: Sequence[tuple[Any, Any]], seconds: float) -> list[dict[str, float]]:
    """Return what the provenance of each of the jobs of a pass says of its speed.

    `flops` are those of the job by itself; `flops_per_second` are of the pass, in which shared phases are done once;
    `share_of_peak` is there if the device's peak is known. A job with a model of unknown shape has none of them.

    Args:
        jobs: instrument and configuration of each.
        seconds: the time that the pass took.
    """
    import torch

    from thinkalike.models.places import pick_device
    from thinkalike.models.shapes import peak_of, precision_of

    found = [estimate(*job) for job in jobs]
    if not all(each.phases for each in found):
        return [{} for _ in jobs]
    rate = total(together(each.phases for each in found)) / max(seconds, 1e-9)
    _, first = jobs[0]
    most = peak_of(torch.device(pick_device(first.model.device)), precision_of(first.model.dtype, first.trainer))
    share = {"share_of_peak": rate / most} if most else {}
    return [{"flops": total(each.phases), "flops_per_second": rate, **share} for each in found]


def forward_passes(shapes: Iterable[Shape], tokens: float, context: int, full: bool = False) -> list[Phase]:
    """Return the passes of each different model over a number of tokens, which jobs of one pass share.

    Args:
        context: tokens of a row.
        full: whether they go through the unembedding, too.
    """
    return [
        Phase("forward passes", shape.forward(tokens, context, full), {shape.name: tokens}, is_shared=True)
        for shape in {(shape.name, shape.operations): shape for shape in shapes}.values()
    ]


def together(jobs: Iterable[Sequence[Phase]]) -> list[Phase]:
    """Return the phases of jobs that are done in one pass: shared ones stand there once."""
    found: list[Phase] = []
    for phase in itertools.chain(*jobs):
        if not (phase.is_shared and phase in found):
            found.append(phase)
    return found


def total(phases: Iterable[Phase]) -> float:
    """Return the operations of phases."""
    return float(sum(phase.operations for phase in phases))
