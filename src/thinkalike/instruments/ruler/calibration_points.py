"""The calibration points of a ruler: known changes of a model, and how similar to it they are.

Both models are rounded to fewer and fewer bits, in memory, and read the same text. Networks that
only mix earlier tokens (`thinkalike.states.mixing`) say what is shared without training.
"""

from __future__ import annotations

import hashlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from thinkalike.advice import named_setting
from thinkalike.errors import DataError
from thinkalike.job import Work
from thinkalike.measures.bit_readings import next_bits
from thinkalike.measures.estimates import Estimate, jackknife
from thinkalike.measures.massive_rows import massive
from thinkalike.memory import free_cached_memory
from thinkalike.processes import doing
from thinkalike.states.copies import UNTRAINED, copies_of
from thinkalike.states.source import StateSource

log = logging.getLogger(__name__)

States = list[Tensor]
"""The states of rows of text, at each layer that is compared."""

Values = Float[Tensor, "l 2 replicates"]
"""The similarity of l layer pairs, in both directions. Replicate 0 is that of all documents, and
each further one leaves out one part of the documents."""

OTHER_TEXT = "other text"
"""The calibration point of the model's own states of other text."""

MIXING = "local mixing"
"""The calibration point of networks that only mix earlier tokens."""

BLOCKS_AWAY = {"1 block away": 1, "2 blocks away": 2, "4 blocks away": 4}
"""The calibration points of the model's own layers that are so many blocks away."""

POINTS_IN_WORDS = {UNTRAINED: "its untrained copy", MIXING: "local mixing of tokens"}
"""What the activity of a job calls calibration points that are no rounded copies."""

DIFFERENCE_LEVEL = 0.9
"""Of equal values, 5 % have a difference whose 90 % interval lies above 0."""

HOW_TO_WRITE_COPIES = "thinkalike.write_states(..., copies=True)"
"""What writes a folder of states with the copies of its model."""

DIGITS_OF_NAME = 12
"""Kept states are named by so many digits of the hash of their calibration point."""


class RulerComparison(ABC):
    """The same rows of text as two models have them, and as changed copies of each have them.

    A side is 0 for the source and 1 for the target. A calibration point is called by
    its name; that of a copy of 4 bits is "4". States of a point are those of all rows that were
    read, and values are of the rows that are still compared.

    Attributes:
        is_massive: Which of the rows that were read are left out, as their states have so large a
            norm (massive activations) that they alone decide some layer.
        keeps_massive: Whether such rows are compared nonetheless.
    """

    is_massive: Bool[Tensor, " rows"]
    keeps_massive: bool

    @abstractmethod
    def calibration_states(self, side: int, calibration_point: str) -> States:
        """Return the states of all rows at a calibration point of one side's model."""

    @abstractmethod
    def prepare_compared_rows(self) -> None:
        """Prepare what depends on which rows are compared, whenever rows are left out."""

    @abstractmethod
    def similarity_of_models(self) -> Values:
        """Return the similarity of the two models at each layer pair."""

    @abstractmethod
    def similarity_to_point(self, side: int, calibration_point: str, states: States) -> Values:
        """Return the similarity of one side's model to one of its calibration points.

        Args:
            side: 0 for the source, 1 for the target.
            calibration_point: The name of the calibration point, such as "4" for a copy that is
                rounded to 4 bits.
            states: The states of the calibration point, see `calibration_states`.
        """

    def leave_out_massive(self, states: States) -> bool:
        """Exclude the rows whose states are so long that they alone decide some layer.

        The rows are added to `is_massive`, which excludes them from all later values.

        Args:
            states: The states of all rows, by layer, at a calibration point.

        Returns:
            Whether further rows are excluded by this call, so that earlier values must be computed
            again. It is False with the setting `massive=keep`, which keeps all rows.
        """
        if self.keeps_massive:
            return False
        massive_rows = massive(states)  # None: there are none
        if massive_rows is None:
            return False
        newly_massive = massive_rows & ~self.is_massive
        if not newly_massive.any():
            return False
        self.is_massive |= massive_rows
        self.prepare_compared_rows()
        return True


def changed_copy(model: StateSource, calibration_point: str) -> StateSource:
    """Return the rounded or the untrained copy of a model that is a calibration point.

    Args:
        model: A model, or a folder of states that has the copies of one.
        calibration_point: The number of bits, as digits, to which the weights are rounded; or
            `UNTRAINED` for the same architecture with new initial weights.
    """
    copies = copies_of(model)
    assert copies is not None
    return copies.copy(calibration_point)


def _parameters(model: StateSource) -> int:
    """Return the number of weights of a model.

    The model is one in memory, or one whose states were recorded in a folder. Such a folder has
    the number of weights only if it also has the states of changed copies of the model, namely
    those with rounded weights and the untrained one. For a folder without copies, return 0.
    """
    copies = copies_of(model)
    if copies is None:
        return 0
    return copies.parameters


def calibration_point_in_words(name: str) -> str:
    """Return what tables call a calibration point: "4 bits" for the name "4", else its name."""
    if name.isdigit():
        return f"{name} bits"
    return name


def activity_at_point(model: str, name: str) -> str:
    """Return what a job does at a calibration point: "copy of a rounded to 4 bits".

    Args:
        model: The name of the model that is compared with the point.
        name: The name of the calibration point.
    """
    if name.isdigit():
        return f"copy of {model} rounded to {name} bits"
    return f"{model} beside {POINTS_IN_WORDS.get(name, name)}"


class RulerValues(NamedTuple):
    """The similarity of two models, and of each model to its calibration points."""

    value: Values
    """The similarity of the two models."""

    points: list[dict[str, Values]]
    """For each side, the similarity of its model to each calibration point, by its name."""


def _no_further_points(model: StateSource) -> Sequence[str]:
    """Return no names: by default a model has only the calibration points of every ruler."""
    return ()


def measure_calibration_points(
    comparison: RulerComparison,
    models: Sequence[StateSource],
    work: Work,
    further: Callable[[StateSource], Sequence[str]] = _no_further_points,
) -> RulerValues:
    """Return the similarity of two models, and of each model to its calibration points.

    A model that is compared with itself has one set of calibration points. A folder of states that
    was written without copies of the model has no further point than local mixing.

    Rows that decide some layer of one calibration point are left out of all of them. So the
    states of all points stay in memory, and all values are computed once more at the end if rows
    were left out on the way. States are also saved, so that a job that is stopped resumes.

    Args:
        comparison: Reads the text with both models and computes similarities.
        models: The source and the target.
        work: The context of the running job.
        further: Returns the names of a model's further calibration points, those other than
            rounded copies, the untrained copy and local mixing.
    """
    states: list[dict[str, States]] = [{}, {}]
    points: list[dict[str, Values]] = [{}, {}]
    value = comparison.similarity_of_models()
    is_outdated = False
    sides = range(len(dict.fromkeys(models)))
    for side in sorted(sides, key=lambda number: _parameters(models[number])):
        model = models[side]
        # The time counts for the phase; what is shown is which copy is being read.
        with work.phase.counting(f"calibration points of {model.name}"):
            point = _next_calibration_point(model, value.mean(1), points[side], further(model))
            while point:
                log.info("%s beside %s", model.name, calibration_point_in_words(point))
                with doing(activity_at_point(model.name, point)):
                    states[side][point] = _resumed_or_new_states(comparison, side, point, work)
                    free_cached_memory(model.device)
                    if point != MIXING and comparison.leave_out_massive(states[side][point]):
                        is_outdated = True
                    points[side][point] = comparison.similarity_to_point(
                        side, point, states[side][point]
                    )
                point = _next_calibration_point(model, value.mean(1), points[side], further(model))

    if is_outdated:
        value = comparison.similarity_of_models()
        for side, states_by_point in enumerate(states):
            for point, states_of_point in states_by_point.items():
                points[side][point] = comparison.similarity_to_point(side, point, states_of_point)
    source_points, target_points = points
    return RulerValues(value, [source_points, target_points or source_points])


def _resumed_or_new_states(
    comparison: RulerComparison, side: int, calibration_point: str, work: Work
) -> States:
    """Return the states of a calibration point that a stopped run of the job saved, or read them.

    A calibration point is a changed copy of a side's model, such as one rounded to 4 bits, or
    something else that the model is compared with. States that are read now are saved, so that
    the job can resume.

    Args:
        comparison: Reads the text with a calibration point.
        side: 0 for the source, 1 for the target.
        calibration_point: The name of the calibration point.
        work: The context of the running job, which saves and resumes.
    """
    # The name may be the path of a model, with characters that a file name cannot have.
    digest = hashlib.sha256(calibration_point.encode()).hexdigest()
    name_of_saved = f"rung-{side}-{digest[:DIGITS_OF_NAME]}"
    resumed = work.resume(name_of_saved)
    if resumed is not None:
        return resumed.entry("states", list)
    states = comparison.calibration_states(side, calibration_point)
    work.keep(name_of_saved, {"states": states})
    return states


def _next_calibration_point(
    model: StateSource,
    value: Float[Tensor, "l replicates"],
    measured: Mapping[str, Values],
    further: Sequence[str],
) -> str | None:
    """Return the name of the calibration point to measure next; None: there are enough.

    A calibration point is a changed copy of the model, or something else that the model is
    compared with. Local mixing (untrained networks that only mix earlier tokens) comes first, then
    rounded copies, the untrained copy, and what `further` names. Copies are rounded to further
    numbers of bits until the similarity of the two models, at each layer pair where it is above
    that of local mixing, lies between the similarities of two neighbouring copies, or outside of
    their whole range.

    Args:
        model: The model of the side. A folder of states may have no copies.
        value: The similarity of the two models, the mean of both directions. Replicate 0 is that
            of all documents.
        measured: The similarity of the model to the calibration points measured so far, by name.
        further: The names of further calibration points that the job asks for.
    """
    if MIXING not in measured:
        return MIXING
    if copies_of(model) is None:
        return None

    # Similarities have the axes (layer pair, direction, replicate).
    value_of_mixing = measured[MIXING].mean(1)  # (l, replicates)
    is_above_mixing = is_above_zero(difference_interval(value - value_of_mixing))
    values_of_copies = {}
    for name, similarity in measured.items():
        if name.isdigit():  # a number of bits
            values_of_copies[int(name)] = similarity.mean(1)[is_above_mixing, 0].tolist()
    bits = next_bits(value[is_above_mixing, 0].tolist(), values_of_copies)
    if bits:
        return str(bits)
    for name in (UNTRAINED, *further):
        if name not in measured:
            return name
    return None


def check_has_ruler(models: Sequence[StateSource]) -> None:
    """Warn if one side is a folder of states without rounded copies of its model.

    Args:
        models: The source and the target, which may be one model.

    Raises:
        DataError: Neither side has copies, or a folder lacks some of those that it lists.
    """
    without_copies = []
    with_copies = []
    for model in dict.fromkeys(models):
        copies = copies_of(model)
        if copies is None:
            without_copies.append(model.name)
        else:
            copies.check()
            with_copies.append(model.name)
    if not without_copies:
        return
    if not with_copies:
        raise DataError(
            "the ruler needs a model, as its points are copies of one, and "
            f"{' and '.join(without_copies)} have no weights: give one side as a model, write one "
            f"by {HOW_TO_WRITE_COPIES}, or take {named_setting('measure', 'r2')}"
        )
    log.warning(
        f"warning: {without_copies[0]} is a folder of states, which has no weights: values are "
        f"read in bits of {with_copies[0]} alone; {HOW_TO_WRITE_COPIES} gives it copies"
    )


def greatest_at_each_pair(values: Sequence[Values]) -> Values:
    """Return at each layer pair the greatest of several similarities, with all its replicates.

    Similarities have the axes (layer pair, direction, replicate). At each pair, the similarity is
    chosen whose value on all documents (replicate 0), as a mean of both directions, is greatest.
    """
    stacked = torch.stack(list(values))  # (similarity, pair, direction, replicate)
    value_of_all_documents = stacked[..., 0].mean(-1)  # (similarity, pair)
    index_of_greatest = value_of_all_documents.argmax(0)  # (pair)
    # Both indices have an entry for each pair, so that one similarity is taken at each pair.
    pair_indices = torch.arange(stacked.shape[1])
    return stacked[index_of_greatest, pair_indices]  # (pair, direction, replicate)


def difference_interval(difference: Float[Tensor, "l replicates"]) -> Estimate:
    """Return the differences of two similarities of the same rows, with 90 % intervals.

    If a difference is 0 in truth, its interval lies wholly above 0 in 5 % of the cases.

    Args:
        difference: The difference at each layer: replicate 0 is that of all documents, and each
            further replicate leaves one part of the documents out (the jackknife).
    """
    value = difference[:, 0]
    values_without_parts = difference[:, 1:].T  # (part, layer)
    return jackknife(value, values_without_parts, level=DIFFERENCE_LEVEL)


def is_above_zero(difference: Estimate) -> Bool[Tensor, " l"]:
    """Return at each layer whether a difference is above 0.

    The low end of its interval must be above 0, or, if there are too few documents for an
    interval, the value itself.
    """
    has_interval = difference.low.isfinite()
    return torch.where(has_interval, difference.low, difference.value) > 0
