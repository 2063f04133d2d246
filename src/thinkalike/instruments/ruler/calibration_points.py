"""The calibration points of a ruler: known changes of a model itself, and how alike it they are.

Both models are rounded to fewer and fewer bits, in memory, and read the same text. Networks that
only mix earlier tokens (`thinkalike.states.mixing`) say what is shared without training.
"""

from __future__ import annotations

import hashlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from thinkalike.errors import DataError
from thinkalike.job import Work
from thinkalike.measures.bit_readings import next_bits
from thinkalike.measures.estimates import Estimate, jackknife
from thinkalike.measures.massive_rows import massive
from thinkalike.memory import free_cached_memory
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.rounding import rounded_copy
from thinkalike.models.variants import twin
from thinkalike.states.source import StateSource

log = logging.getLogger(__name__)

States = list[Tensor]
"""The states of rows of text, at each layer that is compared."""

Values = Float[Tensor, "l 2 replicates"]
"""The likeness of layer pairs, there and back, of all documents and without each part of them."""

UNTRAINED = "untrained"
"""The point of the same architecture with new initial weights and the model's own embedding."""

TEXT = "other text"
"""The calibration point of the model's own states of other text."""

MIXING = "local mixing"
"""The calibration point of networks that only mix earlier tokens."""

BLOCKS_AWAY = {"1 block away": 1, "2 blocks away": 2, "4 blocks away": 4}
"""The calibration points of the model's own layers that are so many blocks away."""

TWIN_SEED = 65537
"""The seed of the untrained twin. No model of a user's is likely to have it."""

DIFFERENCE_LEVEL = 0.9
"""Of equal values, 5 % have a difference whose 90 % interval lies above 0."""

DIGITS_OF_NAME = 12
"""Kept states are named by so many digits of the hash of their calibration point."""


class RulerComparison(ABC):
    """The same rows of text as two models have them, and as changed copies of each have them.

    A side is 0 for the source and 1 for the target. A calibration point is called by
    its name; that of a copy of 4 bits is "4". States of a point are those of all rows that were
    read, and values are of the rows that are still compared.

    Attributes:
        is_massive: Which of the rows that were read are left out, as their long states decide some
            layer.
        keeps_massive: Whether such rows stay.
    """

    is_massive: Bool[Tensor, " rows"]
    keeps_massive: bool

    @abstractmethod
    def read(self, side: int, point: str) -> States:
        """Return the states of a calibration point of one side."""

    @abstractmethod
    def prepare(self) -> None:
        """Prepare what depends on which rows are compared."""

    @abstractmethod
    def value(self) -> Values:
        """Return the likeness of both models."""

    @abstractmethod
    def shared(self, side: int, point: str, states: States) -> Values:
        """Return the likeness of one side's model and a calibration point.

        Args:
            side: The side.
            point: The name of the point.
            states: The states of the calibration point, see `read`.
        """

    def leave_out_massive(self, states: States) -> bool:
        """Leave out the rows whose long states decide some layer.

        Args:
            states: The states of a calibration point.

        Returns:
            Whether rows are left out that were compared so far.
        """
        if self.keeps_massive:
            return False
        outliers = massive(states)
        if outliers is None or not (outliers & ~self.is_massive).any():
            return False
        self.is_massive |= outliers
        self.prepare()
        return True


def changed_copy(model: StateSource, point: str) -> FrozenModel:
    """Return a changed copy of a model.

    Args:
        model: The model.
        point: The number of bits that its weights are rounded to, or `UNTRAINED` for a twin with
            new weights.
    """
    # A folder of states has no such calibration points, see `_next_point`.
    assert isinstance(model, FrozenModel)
    if point == UNTRAINED:
        return twin(model, TWIN_SEED)
    return rounded_copy(model, int(point))


def point_in_words(point: str) -> str:
    """Return what tables call a point: "4 bits" for "4", and its name for any other."""
    if point.isdigit():
        return f"{point} bits"
    return point


class RulerValues(NamedTuple):
    """The values of a comparison and of its rulers."""

    value: Values
    """The likeness of both models."""

    points: list[dict[str, Values]]
    """For each side, the likeness of its model and each of its calibration points, by name."""


def _no_further_points(model: StateSource) -> Sequence[str]:
    """Return no names: a model has no points besides copies of fewer bits and local mixing."""
    return ()


def measure_calibration_points(
    comparison: RulerComparison,
    models: Sequence[StateSource],
    work: Work,
    further: Callable[[StateSource], Sequence[str]] = _no_further_points,
) -> RulerValues:
    """Return the likeness of two models, and the points of both models' rulers around it.

    A model that is compared with itself has one ruler. A folder of states has no weights that
    could be rounded, so that local mixing is the only calibration point of its side.

    Rows that decide some layer of one calibration point are left out of all of them. So states of
    points are kept, and all values are computed once more at the end if rows were left out on the
    way. What was read is also kept when the job stops.

    Args:
        comparison: The comparison.
        models: The source and the target.
        work: The context of the running job.
        further: Returns the points of a model that are neither copies of fewer bits nor local
            mixing.
    """
    states: list[dict[str, States]] = [{}, {}]
    points: list[dict[str, Values]] = [{}, {}]
    value = comparison.value()
    is_outdated = False
    sides = range(len(dict.fromkeys(models)))
    for side in sorted(sides, key=lambda number: models[number].parameters()):
        model = models[side]
        with work.phase(f"calibration points of {model.name}"):
            point = _next_point(model, value.mean(1), points[side], further(model))
            while point:
                log.info("%s beside %s", model.name, point_in_words(point))
                states[side][point] = _read_or_resumed(comparison, side, point, work)
                free_cached_memory(model.device)
                if point != MIXING and comparison.leave_out_massive(states[side][point]):
                    is_outdated = True
                points[side][point] = comparison.shared(side, point, states[side][point])
                point = _next_point(model, value.mean(1), points[side], further(model))

    if is_outdated:
        value = comparison.value()
        for side, states_by_point in enumerate(states):
            for point, states_of_point in states_by_point.items():
                points[side][point] = comparison.shared(side, point, states_of_point)
    source_points, target_points = points
    return RulerValues(value, [source_points, target_points or source_points])


def _read_or_resumed(comparison: RulerComparison, side: int, point: str, work: Work) -> States:
    """Return the states of a point, which an earlier run of the job may have kept.

    States that are read now are kept for a later run.

    Args:
        comparison: What reads the states.
        side: 0 for the source, 1 for the target.
        point: The name of the point.
        work: The job.
    """
    digest = hashlib.sha256(point.encode()).hexdigest()
    name = f"rung-{side}-{digest[:DIGITS_OF_NAME]}"
    resumed = work.resume(name)
    if resumed is not None:
        return cast(States, resumed["states"])
    states = comparison.read(side, point)
    work.keep(name, {"states": states})
    return states


def _next_point(
    model: StateSource,
    value: Float[Tensor, "l replicates"],
    points: Mapping[str, Values],
    further: Sequence[str],
) -> str | None:
    """Return the calibration point to measure next; None: there are enough.

    There are enough copies once each layer that shares more than local mixing does lies between
    two of them.

    Args:
        model: The model of the side.
        value: The likeness of both models, the mean of there and back.
        points: The calibration points that are measured already.
        further: Calibration points that are neither copies of fewer bits nor local mixing.
    """
    if MIXING not in points:
        return MIXING
    if not isinstance(model, FrozenModel):
        return None

    beyond = is_beyond(difference_interval(value - points[MIXING].mean(1)))
    known_bits = {}
    for point, shared in points.items():
        if point.isdigit():
            known_bits[int(point)] = shared.mean(1)[beyond, 0].tolist()
    bits = next_bits(value[beyond, 0].tolist(), known_bits)
    if bits:
        return str(bits)
    for point in (UNTRAINED, *further):
        if point not in points:
            return point
    return None


def check_has_ruler(models: Sequence[StateSource]) -> None:
    """Warn if one side has no weights, and so no copies of fewer bits.

    Args:
        models: The source and the target, which may be one model.

    Raises:
        DataError: No side has weights.
    """
    without_weights = []
    for model in dict.fromkeys(models):
        if not isinstance(model, FrozenModel):
            without_weights.append(model.name)
    with_weights = [model.name for model in models if isinstance(model, FrozenModel)]
    if not without_weights:
        return
    if not with_weights:
        raise DataError(
            "the ruler needs a model, as its points are copies of one, and "
            f"{' and '.join(without_weights)} have no weights: give one side as a model, or take "
            "measure=r2"
        )
    log.warning(
        f"warning: {without_weights[0]} is a folder of states, which has no weights: values are "
        f"read in bits of {with_weights[0]} alone"
    )


def greatest_by_layer(values: Sequence[Values]) -> Values:
    """Return at each layer the greatest of several values, by the mean of both ways.

    The value of all documents decides; its replicates come along.
    """
    stacked = torch.stack(list(values))
    greatest = stacked[..., 0].mean(-1).argmax(0)
    layers = torch.arange(stacked.shape[1])
    return stacked[greatest, layers]


def difference_interval(difference: Float[Tensor, "l replicates"]) -> Estimate:
    """Return differences of values of the same rows with their 90 % intervals.

    The interval of a difference that is 0 lies wholly above 0 in 5 % of the cases.

    Args:
        difference: The differences of all rows, and then without each part of the documents.
    """
    return jackknife(difference[:, 0], difference[:, 1:].T, level=DIFFERENCE_LEVEL)


def is_beyond(difference: Estimate) -> Bool[Tensor, " l"]:
    """Return whether a difference is above 0: by its interval where there is one."""
    has_interval = difference.low.isfinite()
    return torch.where(has_interval, difference.low, difference.value) > 0
