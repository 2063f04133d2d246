"""What measures of stimuli have in common: words in sentences, in models or in a recording; and tidy rows of layers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
from jaxtyping import Shaped
from torch import Tensor

from thinkalike.config import AnalyzeConfig, MeasureConfig, layers_of_sides, ranged
from thinkalike.config.schema import CONTEXT
from thinkalike.data.sources import recording_fingerprint
from thinkalike.data.stimuli import Stimuli
from thinkalike.data.tables import read_stimuli
from thinkalike.errors import DataError, one_of
from thinkalike.job import Instrument, fingerprints
from thinkalike.models.outline import names_of
from thinkalike.models.shapes import Passes, Shapes
from thinkalike.states.stimuli import Compared, StimulusStates, stimulus_states_of, without_massive

FEW = 10  # sentences, below which stimuli are left out and drawn one by one
WORDS = 8  # tokens of a sentence of the grammars, about


class OfStimuli(Instrument):
    """What measures of stimuli have in common: `activations` takes the place of `model`."""

    takes_activations: ClassVar[bool] = True
    takes_subjects: ClassVar[bool] = True

    def inputs(self, config: AnalyzeConfig) -> Mapping[str, Any]:
        return stimuli_inputs(config)

    def with_unread_reset(self, config: AnalyzeConfig) -> AnalyzeConfig:
        return without_model(config) if config.activations else config

    def passes(self, config: AnalyzeConfig, shapes: Shapes) -> Sequence[Passes]:
        """Return the passes of each model over the sentences."""
        return sentence_passes(config, shapes)

    def holds(self, config: AnalyzeConfig, shapes: Shapes) -> float:
        """Return the bytes of the states of all stimuli, as they are and in float64."""
        count, embed = len(read_stimuli(config.stimuli)), config.measure.embed  # type: ignore[attr-defined]
        return 12.0 * count * sum((each.layers + embed) * each.width for each in set(shapes.values()))


def sentence_passes(config: AnalyzeConfig, shapes: Shapes) -> list[Passes]:
    """Return one pass of each model over the sentences of the stimuli."""
    tokens = float(WORDS * len(read_stimuli(config.stimuli).groups.unique()))
    return [Passes("states", shape, tokens, WORDS, full=False) for shape in dict.fromkeys(shapes.values())]


def stimuli_inputs(config: AnalyzeConfig) -> dict[str, Any]:
    """Return what decides the numbers of a measure of stimuli: them, and models or recordings."""
    stimuli = read_stimuli(config.stimuli)
    if not config.activations:
        return {"stimuli": stimuli, **fingerprints(config, ("model", "target"))}
    recordings = ", ".join(recording_fingerprint(path) for path in config.recordings)
    ids = hashlib.sha256(repr(stimuli.ids).encode()).hexdigest()[:16]  # they decide which row is whose
    read = {"stimuli": stimuli, "ids": ids, "activations": recordings}
    names = names_of(config.sides)
    if names[: len(config.recordings)] != [Path(path).stem for path in config.recordings]:
        read["names"] = ", ".join(names)
    return {**read, **fingerprints(without_model(config), ("model", "target"))}


def without_model(config: AnalyzeConfig) -> AnalyzeConfig:
    """Return a configuration with recordings, with those models alone that are asked for beside them."""
    without = copy(config)  # not `replace`, as a configuration that a user gives must have them
    without.model, without.target = map(config.beside_recordings.get, ("model", "target"))  # type: ignore[assignment]
    return without


@dataclass
class DistanceConfig(MeasureConfig):
    """The settings that measures of the distances between stimuli have in common."""

    distance: str = "euclidean"  # euclidean | cosine | correlation | manhattan | norm_difference
    embed: bool = False  # also the site before block 0
    massive: Literal["drop", "keep"] = "drop"  # the stimuli whose long states decide some layer
    skip_first: int = ranged(0, least=0, most=CONTEXT)  # words of every text that are left out

    distances: ClassVar[tuple[str, ...]] = ("euclidean", "cosine", "correlation", "manhattan", "norm_difference")

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("measure.distance", self.distance, self.distances)


def sentence_groups(stimuli: Stimuli) -> Tensor | None:
    """Return what folds and resamples keep together: the stimuli of a sentence, unless there are few sentences."""
    groups = stimuli.groups
    return groups if len(groups.unique()) >= FEW else None


def rows_of_sides(sides: Sequence[StimulusStates]) -> pd.DataFrame:
    """Return model and layer of all layers of all sides."""
    return pd.concat([layer_rows(side.name, side.layers) for side in sides], ignore_index=True)


def stimuli_facts(stimuli: Stimuli, subjects: Sequence[StimulusStates] = ()) -> dict[str, Any]:
    """Return what the provenance of a result says of its stimuli, and of its subjects if it has any."""
    facts = {"source": stimuli.source, "count": len(stimuli), "fingerprint": stimuli.fingerprint()}
    return {"stimuli": facts} | ({"subjects": [side.name for side in subjects]} if subjects else {})


def states_of_sides(config: AnalyzeConfig, stimuli: Stimuli) -> tuple[Compared, Compared | None]:
    """Return the stimuli that are compared, and their states on each side, and all of them, see `without_massive`.

    Subjects come first, and are different recordings with the same layers.

    Raises:
        ConfigError: `layers=` names a layer that is not there.
        DataError: two subjects are the same file under two names, or a layer is missing in one.
    """
    sides = stimulus_states_of(config, stimuli, config.measure.embed)  # type: ignore[attr-defined]
    contents = dict[str, str]()
    for each in sides[: len(config.subjects)]:
        if missing := set(sides[0].layers) ^ set(each.layers):
            raise DataError(f"{each.name} and {sides[0].name} differ in the layers {', '.join(sorted(missing))}")
        content = each.origin["fingerprint"].split()[-1]
        if content in contents:
            raise DataError(f"{each.name} and {contents[content]} hold the same; give each subject once")
        contents[content] = each.name
    return without_massive(config, stimuli, _with_layers(config, sides))


def _with_layers(config: AnalyzeConfig, sides: list[StimulusStates]) -> list[StimulusStates]:
    """Return the sides with the layers of models that `layers=` names, and all layers of recordings."""
    models = [side for side in sides if isinstance(side.layers[0], int)]
    if config.layers in ("same", "all") or not models:
        return sides
    ends = models[0], models[-1]
    chosen = layers_of_sides(config.layers, *(max(side.layers) + 1 for side in ends), itself=len(models) == 1)
    wanted = {side.name: {-1, *layers} for side, layers in zip(ends, chosen, strict=True)}
    for place, side in enumerate(sides):
        if side.name in wanted:
            at = [number for number, layer in enumerate(side.layers) if layer in wanted[side.name]]
            sides[place] = side._replace(layers=[side.layers[n] for n in at], states=[side.states[n] for n in at])
    return sides


# ---- layers and matrices of layers as tidy rows


def layer_rows(model: str, layers: Sequence[Any]) -> pd.DataFrame:
    """Return one row per layer of a model: model, layer; a layer of -1 is the embedding."""
    return pd.DataFrame({"model": model, "layer": list(layers)})


def matrix_rows(rows: pd.DataFrame, columns: pd.DataFrame, **values: Shaped[Tensor, "l m"]) -> pd.DataFrame:
    """Return one row per cell of matrices of layers: source, target, source_layer, target_layer, and each value.

    Args:
        rows, columns: the layers of both sides, see `layer_rows`.
        values: matrices by the names of their columns.
    """
    first, second = np.indices((len(rows), len(columns))).reshape(2, -1)
    table = pd.DataFrame(
        {
            "source": rows["model"].to_numpy()[first],
            "target": columns["model"].to_numpy()[second],
            "source_layer": rows["layer"].to_numpy()[first],
            "target_layer": columns["layer"].to_numpy()[second],
        }
    )
    return table.assign(**{name: cells.cpu().flatten().numpy() for name, cells in values.items()})


def repeated_rows(rows: pd.DataFrame, what: str, names: Sequence[str], **values: Shaped[Tensor, "l f"]) -> pd.DataFrame:
    """Return one row per layer and name, such as a feature's: model, layer, the name in column `what`, each value."""
    table = rows.loc[rows.index.repeat(len(names))].reset_index(drop=True)
    columns = {name: cells.cpu().flatten().numpy() for name, cells in values.items()}
    return table.assign(**{what: list(names) * len(rows)}, **columns)
