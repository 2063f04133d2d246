"""What measures of stimuli have in common: words in sentences, in models or in a recording."""

from __future__ import annotations

import hashlib
import logging
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pandas as pd
import torch
from torch import Tensor

from thinkalike.config import AnalyzeConfig, MeasureConfig, ModelConfig, SettingValues, setting
from thinkalike.config.parts import CONTEXT
from thinkalike.data.recordings import recording_fingerprint
from thinkalike.data.stimuli import Stimuli
from thinkalike.data.tables import read_stimuli
from thinkalike.errors import DataError
from thinkalike.instruments.layer_pairs.comparison import Comparison, Side
from thinkalike.job import Instrument, Work, fingerprints
from thinkalike.models.labels import names_of, recording_name
from thinkalike.models.layer_choice import layers_of_sides
from thinkalike.states.batches import StateBatches, array_batches
from thinkalike.states.stimuli import Compared, StimulusStates, sides_of, stimulus_states_of, without_massive
from thinkalike.tables import layer_rows
from thinkalike.timing import seconds_of_rows

if TYPE_CHECKING:
    from thinkalike.models.shapes import Passes, Shapes

log = logging.getLogger(__name__)

TIMED_STIMULI = 2048  # that a forecast compares at most; the time of more is extrapolated
FEW = 10  # sentences, below which stimuli are left out and drawn one by one
WORDS = 8  # tokens of a sentence of the grammars, about
DistanceName = Literal["euclidean", "cosine", "correlation", "manhattan", "norm_difference"]


class OfStimuli(Instrument[AnalyzeConfig]):
    """What measures of stimuli have in common: `activations` takes the place of `model`."""

    takes_activations: ClassVar[bool] = True
    takes_sites: ClassVar[bool] = True

    def inputs(self, config: AnalyzeConfig) -> Mapping[str, Any]:
        return stimuli_inputs(config)

    def unread(self, config: AnalyzeConfig) -> SettingValues:
        return config.unread_beside_recordings() if config.activations else {}

    def passes(self, config: AnalyzeConfig, shapes: Shapes) -> Sequence[Passes]:
        return sentence_passes(config, shapes)

    def seconds(self, config: AnalyzeConfig, shapes: Shapes) -> float:
        """Return what comparing takes, from the time of random states of two and of four layers."""
        models = set(shapes.values())
        if not models:
            return 0.0
        stimuli = read_stimuli(config.stimuli)
        width = max(shape.width for shape in models)
        embed = config.measure_as(DistanceConfig).embed
        layers = sum(shape.layers + embed for shape in models)

        def timed(count: int) -> float:
            def compare(rows: int) -> None:
                some = stimuli.take(torch.linspace(0, len(stimuli) - 1, rows).long().numpy())
                generator = torch.Generator().manual_seed(0)
                states = [torch.randn(rows, width, generator=generator) for _ in range(count)]
                side = StimulusStates("random states", list(range(count)), states, {})
                self.compare(config, some, [side])

            name = f"{config.measure} of {stimuli.fingerprint()}, {config.recipe}, width {width}, {count} layers"
            return seconds_of_rows(name, compare, len(stimuli), TIMED_STIMULI)

        try:
            two = timed(2)
            of_layer = max(timed(4) - two, 0.0) / 2
        except DataError as error:  # which the job itself says of all stimuli
            log.debug("no time of %s: %s", stimuli.source, error)
            return 0.0
        return two + of_layer * (layers - 2)

    @abstractmethod
    def compare(self, config: AnalyzeConfig, stimuli: Stimuli, sides: Sequence[StimulusStates]) -> Any:
        """Compute the numbers of all layers of all sides: most of what a job does with states."""

    def holds(self, config: AnalyzeConfig, shapes: Shapes) -> float:
        """Return the bytes of the states of all stimuli, as they are and in float64."""
        count, embed = len(read_stimuli(config.stimuli)), config.measure.embed  # type: ignore[attr-defined]
        return 12.0 * count * sum((each.layers + embed) * each.width for each in set(shapes.values()))


def sentence_passes(config: AnalyzeConfig, shapes: Shapes) -> list[Passes]:
    """Return one pass of each model over the sentences of the stimuli."""
    tokens = float(WORDS * len(read_stimuli(config.stimuli).groups.unique()))
    return [shape.passes("states", tokens, WORDS, full=False) for shape in dict.fromkeys(shapes.values())]


def stimuli_inputs(config: AnalyzeConfig) -> dict[str, Any]:
    """Return what decides the numbers of a measure of stimuli: them, and models or recordings."""
    if not config.activations:
        return {"stimuli": read_stimuli(config.stimuli), **fingerprints(config, ("model", "target"))}
    stimuli = read_stimuli(config.without_model().stimuli)
    recordings = ", ".join(recording_fingerprint(path) for path in config.recordings)
    ids = hashlib.sha256(repr(stimuli.ids).encode()).hexdigest()[:16]  # they decide which row is whose
    read = {"stimuli": stimuli, "ids": ids, "activations": recordings}
    sides = sides_of(config)
    names = names_of(sides)
    recorded = [name for side, name in zip(sides, names, strict=True) if not isinstance(side, ModelConfig)]
    if recorded != [recording_name(each) for each in config.recordings]:
        read["names"] = ", ".join(names)
    return {**read, **fingerprints(config.without_model(), ("model", "target"))}


@dataclass
class DistanceConfig(MeasureConfig):
    """The settings that measures of the distances between stimuli have in common."""

    distance: DistanceName = "euclidean"
    embed: bool = False  # also the site before block 0
    massive: Literal["drop", "keep"] = "drop"  # the stimuli whose long states decide some layer
    skip_first: int = setting(0, least=0, most=CONTEXT)  # words of every text that are left out


def sentence_groups(stimuli: Stimuli) -> Tensor | None:
    """Return what folds and resamples keep together: the stimuli of a sentence, unless there are few sentences."""
    groups = stimuli.groups
    return groups if len(groups.unique()) >= FEW else None


def rows_of_sides(sides: Sequence[StimulusStates]) -> pd.DataFrame:
    """Return model and layer of all layers of all sides."""
    return pd.concat([layer_rows(side.name, side.layers) for side in sides], ignore_index=True)


def stimuli_facts(stimuli: Stimuli, subjects: Sequence[StimulusStates] = ()) -> dict[str, Any]:
    """Return what the provenance of a result says of its stimuli, and of its subjects if it has any."""
    facts: dict[str, Any] = {"source": stimuli.source, "count": len(stimuli), "fingerprint": stimuli.fingerprint()}
    if confounded := [str(overlap) for overlap in stimuli.confounded_with_words()]:
        facts["confounded_with_words"] = confounded
    return {"stimuli": facts} | ({"subjects": [side.name for side in subjects]} if subjects else {})


def warn_of_words(stimuli: Stimuli) -> None:
    """Warn of each feature that can hardly be told from the identity of words."""
    for overlap in stimuli.confounded_with_words():
        log.warning("warning: %s: %s", stimuli.source, overlap)


def states_of_sides(config: AnalyzeConfig, stimuli: Stimuli) -> tuple[Compared, Compared | None]:
    """Return the stimuli that are compared, and their states on each side, and all of them, see `without_massive`.

    Subjects come first, and are different recordings with the same layers; a DataError says where they are not.
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
    models = [side for side in sides if not side.runs]
    if config.layers in ("same", "all") or not models:
        return sides
    ends = models[0], models[-1]
    chosen = layers_of_sides(config.layers, *(max(side.numbers) + 1 for side in ends), itself=len(models) == 1)
    wanted = {side.name: {-1, *layers} for side, layers in zip(ends, chosen, strict=True)}
    for place, side in enumerate(sides):
        if side.name in wanted:
            lacking = sorted(wanted[side.name] - {-1, *side.numbers})
            if lacking:
                has = ", ".join(map(str, side.layers))
                raise DataError(f"layers: {side.name} has no states of layer {lacking[0]}, only of {has}")
            at = [place for place, number in enumerate(side.numbers) if number in wanted[side.name]]
            sides[place] = side._replace(layers=[side.layers[n] for n in at], states=[side.states[n] for n in at])
    return sides


def comparison_of_stimuli(kind: Any, config: AnalyzeConfig, work: Work) -> Comparison:
    """Return the comparison of recordings, or of one with a model, on the same stimuli, by an instrument of a kind."""
    measure: Any = replace(config.measure, **kind.for_stimuli)
    stimuli = work.input("stimuli", Stimuli)
    left, every = without_massive(config, stimuli, stimulus_states_of(config, stimuli, measure.embed))

    def batches_of(compared: Compared) -> StateBatches:
        states, groups = [compared.sides[0].states, compared.sides[-1].states], compared.stimuli.groups
        return array_batches(
            states,
            groups,
            rows_per_batch=measure.tokens_per_batch,
            fewest=kind.fewest(measure),
            needed_by=f"measure.neighbours={measure.neighbours}" if hasattr(measure, "neighbours") else "",
        )

    batches = batches_of(left).beside(batches_of(every)) if every else batches_of(left)
    batches = replace(batches, facts={**batches.facts, **stimuli_facts(left.stimuli)})
    sides = [Side(each.name, each.layers, partial(dict, each.origin)) for each in left.sides]
    measure = replace(measure, batches=batches.batches)
    return kind.comparison(measure, [sides[0], sides[-1]], batches, work)  # type: ignore[no-any-return]
