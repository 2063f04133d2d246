"""The distances of stimuli in recordings and models, and whether recordings can be subjects of one job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thinkalike.config import AnalyzeConfig
from thinkalike.errors import DataError
from thinkalike.measures import NeuralDistances, crossnobis
from thinkalike.states import StimulusStates


def layer_distances(side: StimulusStates, measure: Any) -> list[NeuralDistances]:
    """Return the distances of stimuli in each layer.

    Under distance=crossnobis those of a model, which has no noise, are squared Euclidean ones.

    Raises:
        DataError: crossnobis distances are asked for, and a recording has one run, or no inverse of its noise.
        ValueError: see `NeuralDistances`.
    """
    if measure.distance != "crossnobis":
        return [NeuralDistances.of(states, measure.distance, _called(side, number)) for number, states in _layers(side)]
    if not side.runs:
        return [NeuralDistances.of(states, "euclidean", _called(side, number)) for number, states in _layers(side)]
    found = []
    for name, runs in zip(side.layers, side.runs, strict=True):
        if len(runs) < 2:
            raise DataError(
                f"{side.origin['name']} has one run, and measure.distance=crossnobis needs two or more; say in an "
                "array `runs` beside ids in which run each row was measured, or choose another distance"
            )
        try:
            found.append(NeuralDistances.given(crossnobis(runs, measure.noise)))
        except ValueError as error:
            message = str(error).replace("noise=", "measure.noise=")
            raise DataError(f"{side.origin['name']}: {name}: {message}") from error
    return found


def check_subjects(subjects: Sequence[StimulusStates]) -> None:
    """Check that recordings are different subjects with the same layers.

    Raises:
        DataError: two are the same file under two names, or a layer is missing in one.
    """
    contents = dict[str, str]()
    for each in subjects:
        first = subjects[0]
        if missing := set(first.layers) ^ set(each.layers):
            raise DataError(
                f"{each.name} has the layers {', '.join(each.layers)}, and {first.name} has {', '.join(first.layers)}; "
                f"give all subjects the same, or leave {', '.join(sorted(missing))} out"
            )
        content = each.origin["fingerprint"].split()[-1]
        if content in contents:
            raise DataError(f"{each.name} and {contents[content]} hold the same; give each subject once")
        contents[content] = each.name


def subject_names(config: AnalyzeConfig, sides: Sequence[StimulusStates]) -> dict[str, list[str]]:
    """Return what the provenance of a result says of its subjects; nothing where recordings are none."""
    return {"subjects": [side.name for side in sides[: len(config.subjects)]]} if config.subjects else {}


def _layers(side: StimulusStates) -> Any:
    return enumerate(side.states)


def _called(side: StimulusStates, number: int) -> str:
    return f"{side.name} {side.layers[number]}"
