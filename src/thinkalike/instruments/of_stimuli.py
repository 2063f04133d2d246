"""What measures of stimuli have in common: words in sentences, in models or in recordings."""

from __future__ import annotations

import hashlib
import logging
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal, cast

import pandas as pd
import torch
from jaxtyping import Int
from torch import Tensor

from thinkalike.advice import named_setting
from thinkalike.config import AnalyzeConfig, MeasureConfig, ModelConfig, SettingValues, setting
from thinkalike.config.parts import CONTEXT
from thinkalike.data.recordings import recording_fingerprint
from thinkalike.data.stimuli import Stimuli
from thinkalike.data.tables import IN_MEMORY, read_stimuli
from thinkalike.errors import DataError
from thinkalike.instruments.layer_pairs.comparison import ComparedSide, LayerPairComparison
from thinkalike.instruments.layer_pairs.measure import AnyPairMeasure
from thinkalike.job import Instrument, Work, fingerprints
from thinkalike.job.inputs import Input, Inputs
from thinkalike.job.reductions import halvings
from thinkalike.models.labels import names_of, recording_name
from thinkalike.models.layer_choice import layers_of_sides
from thinkalike.states.batches import StateBatches, array_batches
from thinkalike.states.stimuli import (
    Compared,
    StimulusStates,
    sides_of,
    stimulus_states_of,
    without_massive,
)
from thinkalike.tables import layer_rows
from thinkalike.timing import seconds_of_rows

if TYPE_CHECKING:
    from thinkalike.models.shapes import Passes, Shapes

log = logging.getLogger(__name__)

TIMED_STIMULI = 2048
"""A forecast compares at most so many stimuli; the time of more is extrapolated."""

FEWEST_SENTENCES = 10
"""With fewer sentences, folds and resamples are of stimuli instead of sentences."""

TOKENS_PER_SENTENCE = 8
"""About how many tokens a sentence of the grammars has."""

FEWEST_STIMULI = 250
"""A budget leaves at least so many stimuli."""

BYTES_PER_NUMBER = 12
"""The bytes of a number of a state, which is in memory in float32 and in float64."""

DIGITS_OF_IDS = 16
"""So many digits of the hash of the names of stimuli enter the key of a job."""

EMBEDDING = -1
"""The number of the site before block 0."""

DistanceName = Literal["euclidean", "cosine", "correlation", "manhattan", "norm_difference"]


@dataclass
class StimulusDistanceConfig(MeasureConfig):
    """The settings that measures of the distances between stimuli have in common."""

    # distance between the states of two stimuli
    distance: DistanceName = "euclidean"
    # also analyse the embedding, the input of block 0
    embed: bool = False
    # drop excludes the stimuli with massive activations, which alone would decide a layer; keep
    # includes them
    massive: Literal["drop", "keep"] = "drop"
    # number of words to skip at the beginning of each text
    skip_first: int = setting(0, least=0, most=CONTEXT)


class OfStimuli(Instrument[AnalyzeConfig]):
    """An instrument of stimuli; `activations` takes the place of `model`."""

    takes_activations: ClassVar[bool] = True
    takes_sites: ClassVar[bool] = True

    @abstractmethod
    def compare(
        self, config: AnalyzeConfig, stimuli: Stimuli, sides: Sequence[StimulusStates]
    ) -> object:
        """Compute the numbers of all layers of all models and recordings.

        A job spends most of its time here, apart from forward passes of models. A forecast times
        this method with random states, and ignores the result.

        Args:
            config: The job.
            stimuli: The stimuli that are compared.
            sides: Their states in each model or recording.
        """

    def inputs(self, config: AnalyzeConfig) -> Inputs:
        """Return what decides the numbers besides settings: stimuli, models and recordings."""
        return inputs_of_stimuli(config)

    def unread(self, config: AnalyzeConfig) -> SettingValues:
        """Return the settings that a job with a recording ignores; {} without a recording."""
        if config.activations:
            return config.unread_beside_recordings()
        return {}

    def model_passes(self, config: AnalyzeConfig, shapes: Shapes) -> Sequence[Passes]:
        """Return the passes of each model over the sentences, to estimate the job's time."""
        return sentence_passes(config, shapes)

    def seconds_beside_passes(self, config: AnalyzeConfig, shapes: Shapes) -> float:
        """Return the seconds of a job besides forward passes of models, as an estimate.

        It is the time to compare the states of stimuli once they are there. It is measured with
        random states of two and of four layers, and extrapolated linearly to all layers of all
        models, as each layer is compared on its own. It is 0 if the job has no models but only
        recordings, or if the stimuli cannot be compared.

        Args:
            config: The job.
            shapes: The sizes of its models. A model that is compared with itself counts once.
        """
        # A shape holds the name of its model, so two models of one size have different shapes.
        shapes_of_models = set(shapes.values())
        if not shapes_of_models:
            return 0.0
        stimuli = read_stimuli(config.stimuli)
        width = max(shape.width for shape in shapes_of_models)
        has_embedding = config.measure_as(StimulusDistanceConfig).embed
        n_layers = sum(shape.layers + int(has_embedding) for shape in shapes_of_models)
        try:
            # Their difference is the time of two further layers.
            seconds_of_two = self._seconds_of_random_states(config, stimuli, 2, width)
            seconds_of_four = self._seconds_of_random_states(config, stimuli, 4, width)
        except DataError as error:  # the job itself will raise it for all stimuli
            log.debug("no time of %s: %s", stimuli.source, error)
            return 0.0
        seconds_per_layer = max(seconds_of_four - seconds_of_two, 0.0) / 2
        return seconds_of_two + seconds_per_layer * (n_layers - 2)

    def _seconds_of_random_states(
        self, config: AnalyzeConfig, stimuli: Stimuli, layers: int, width: int
    ) -> float:
        """Return the seconds of comparing random states of a model with a few layers.

        Args:
            config: The job.
            stimuli: The stimuli; the seconds are for all of them, however many are timed.
            layers: How many layers the model has.
            width: The width of its states.
        """

        def compare_some(count: int) -> None:
            """Run `compare` on some evenly spaced stimuli with random states."""
            evenly_spaced = torch.linspace(0, len(stimuli) - 1, count).long().numpy()
            generator = torch.Generator().manual_seed(0)
            states = [torch.randn(count, width, generator=generator) for _ in range(layers)]
            random_model = StimulusStates("random states", list(range(layers)), states, {})
            self.compare(config, stimuli.take(evenly_spaced), [random_model])

        # Times are remembered by this name, which says all that they depend on.
        name = (
            f"{config.measure} of {stimuli.fingerprint()}, {config.recipe}, width {width}, "
            f"{layers} layers"
        )
        return seconds_of_rows(name, compare_some, len(stimuli), TIMED_STIMULI)

    def reductions(
        self, config: AnalyzeConfig, shapes: Shapes, chosen: Collection[str]
    ) -> Iterator[dict[str, object]]:
        """Yield settings that take ever less time, of which `budget=` takes the first that fits.

        They are {} for all stimuli, and then samples of a half, a quarter and so on, of at least
        `FEWEST_STIMULI` stimuli if the job has as many.
        """
        yield {}
        n_stimuli = len(read_stimuli(config.stimuli))
        sample_sizes = halvings(n_stimuli, least=min(FEWEST_STIMULI, n_stimuli))
        for sample_size in sample_sizes[1:]:  # the first one is that of all stimuli
            yield {"stimuli.sample": sample_size}

    def bytes_beside_models(self, config: AnalyzeConfig, shapes: Shapes) -> float:
        """Return the bytes of the states of all stimuli in all layers of all models."""
        has_embedding = config.measure_as(StimulusDistanceConfig).embed
        numbers_per_stimulus = 0
        for shape in set(shapes.values()):  # a model that is compared with itself counts once
            layers = shape.layers + int(has_embedding)
            numbers_per_stimulus += layers * shape.width
        count = len(read_stimuli(config.stimuli))
        return float(BYTES_PER_NUMBER * count * numbers_per_stimulus)


def sentence_passes(config: AnalyzeConfig, shapes: Shapes) -> list[Passes]:
    """Return the passes of each model over the sentences of the stimuli, to estimate time.

    The number of tokens is estimated, as no tokenizer is loaded.
    """
    n_sentences = len(set(read_stimuli(config.stimuli).sentence))
    tokens = float(TOKENS_PER_SENTENCE * n_sentences)
    passes = []
    for shape in dict.fromkeys(shapes.values()):  # a model compared with itself runs once
        passes.append(shape.passes("states", tokens, TOKENS_PER_SENTENCE, with_logits=False))
    return passes


def inputs_of_stimuli(config: AnalyzeConfig) -> Inputs:
    """Return what a measure of stimuli reads, by name: it enters the hash of the job.

    The result of a job is stored under this hash, so that a job whose models or files have changed
    is computed anew. The inputs are the stimuli and the models. With recordings, they are also the
    hashes of the files, the ids of stimuli, which rows of a recording refer to, and, if the user
    gave recordings names of their own, the names of all that is compared.
    """
    if not config.activations:
        stimuli = read_stimuli(config.stimuli)
        return {"stimuli": stimuli, **fingerprints(config, ("model", "target"))}

    # Recordings take the places of the models that the user did not name.
    without_model = config.without_model()
    stimuli = read_stimuli(without_model.stimuli)
    # The ids decide which row of a recording belongs to which stimulus.
    hash_of_ids = hashlib.sha256(repr(stimuli.ids).encode()).hexdigest()
    recordings = [recording_fingerprint(recording) for recording in config.recordings]
    inputs: dict[str, Input] = {
        "stimuli": stimuli,
        "ids": hash_of_ids[:DIGITS_OF_IDS],
        "activations": ", ".join(recordings),
    }

    sides = sides_of(config)
    names = names_of(sides)
    names_of_recordings = []
    for side, name in zip(sides, names, strict=True):
        if not isinstance(side, ModelConfig):
            names_of_recordings.append(name)
    # Recordings come in the same order among the sides and in the settings.
    names_of_files = [recording_name(recording) for recording in config.recordings]
    if names_of_recordings != names_of_files:
        inputs["names"] = ", ".join(names)
    return {**inputs, **fingerprints(without_model, ("model", "target"))}


def sentence_of_stimuli(stimuli: Stimuli) -> Int[Tensor, " n"] | None:
    """Return the number of each stimulus's group; None with fewer than `FEWEST_SENTENCES`.

    The groups of stimuli are their sentences, unless the setting `stimuli.groups` names a column.
    Folds and resamples keep the stimuli of a group together. With None, they are drawn from single
    stimuli.
    """
    if len(stimuli.groups.unique()) < FEWEST_SENTENCES:
        return None
    return stimuli.groups


def rows_of_sides(sides: Sequence[StimulusStates]) -> pd.DataFrame:
    """Return a table with a row for each layer of each side: the columns model and layer."""
    rows = [layer_rows(side.name, side.layers) for side in sides]
    return pd.concat(rows, ignore_index=True)


def stimuli_facts(
    stimuli: Stimuli,
    subjects: Sequence[StimulusStates] = (),
    *,
    explained_by_features: bool = False,
) -> dict[str, object]:
    """Return what the provenance of a result says of its stimuli, and of its subjects if any.

    `confounded_with_words` lists the features that can hardly be told from the identity of words,
    if there are any, and `groups` has the column by which stimuli are grouped, unless these are
    their texts.

    Args:
        stimuli: The stimuli.
        subjects: The states of participants who were recorded.
        explained_by_features: Whether features explain the distances of stimuli. Then
            `shared_values` lists the features that are constant for each value of a column that
            groups share, if any.
    """
    facts_of_stimuli: dict[str, object] = {
        "source": stimuli.source,
        "count": len(stimuli),
        "fingerprint": stimuli.fingerprint(),
    }
    confounded = [str(overlap) for overlap in stimuli.confounded_with_words()]
    if confounded:
        facts_of_stimuli["confounded_with_words"] = confounded
    if explained_by_features:
        shared = [value._asdict() for value in stimuli.shared_values()]
        if shared:
            facts_of_stimuli["shared_values"] = shared
    if stimuli.groups_column is not None:
        facts_of_stimuli["groups"] = _facts_of_groups(stimuli)
    facts: dict[str, object] = {"stimuli": facts_of_stimuli}
    if subjects:
        facts["subjects"] = [subject.name for subject in subjects]
    return facts


def _facts_of_groups(stimuli: Stimuli) -> dict[str, object]:
    """Return what the provenance of a result says of the column by which stimuli are grouped.

    `varying` lists the features that differ between stimuli of one of its values, and `of_texts`
    those of them that are constant in each text of several stimuli.
    """
    constant = stimuli.constant_features(stimuli.groups)
    varying = [name for name in stimuli.names if name not in constant]
    texts = stimuli.texts_beside_groups()
    constant_in_texts = [] if texts is None else stimuli.constant_features(texts)
    return {
        "column": stimuli.groups_column,
        "count": len(stimuli.groups.unique()),
        "varying": varying,
        "of_texts": [name for name in varying if name in constant_in_texts],
    }


def stimuli_in_words(facts: Mapping[str, object]) -> str:
    """Return how many stimuli there are, and from which file: "72 stimuli of words.csv".

    If a column groups them, the independent units are its values: "72 stimuli of words.csv in 18
    groups (the values of word)".

    Args:
        facts: What the provenance of a result says of its stimuli. A table in memory has no name.
    """
    count = f"{facts['count']} stimuli"
    if facts["source"] != IN_MEMORY:
        count += f" of {facts['source']}"
    groups = cast("Mapping[str, object] | None", facts.get("groups"))
    if groups is not None:
        count += f" in {groups['count']} groups (the values of {groups['column']})"
    return count


def warn_of_features_confounded_with_words(stimuli: Stimuli) -> None:
    """Warn of each feature that can hardly be told from the identity of words."""
    for overlap in stimuli.confounded_with_words():
        log.warning("warning: %s: %s", stimuli.source, overlap)


def stimulus_states_to_compare(
    config: AnalyzeConfig, stimuli: Stimuli
) -> tuple[Compared, Compared | None]:
    """Return the stimuli to compare with their states in each model or recording, in two forms.

    The first leaves out stimuli with massive activations (very long states). The second has all
    stimuli, and is None if none are left out. Recordings of subjects (participants) come first.

    Raises:
        DataError: Subjects differ in their layers, or two have the same recording.
    """
    embed = config.measure_as(StimulusDistanceConfig).embed  # whether the embedding is a layer
    sides = stimulus_states_of(config, stimuli, embed)
    _check_subjects(sides[: len(config.subjects)])
    return without_massive(config, stimuli, _with_chosen_layers(config, sides))


def _check_subjects(subjects: Sequence[StimulusStates]) -> None:
    """Check that subjects (participants) have different recordings, of the same layers.

    Raises:
        DataError: Two subjects differ in their layers, or have the same recording.
    """
    subject_of_content: dict[str, str] = {}
    for subject in subjects:
        different_layers = set(subjects[0].layers) ^ set(subject.layers)
        if different_layers:
            raise DataError(
                f"{subject.name} and {subjects[0].name} differ in the layers "
                f"{', '.join(sorted(map(str, different_layers)))}"
            )
        # The fingerprint ends with the hash of the content, after the name of its format.
        content_hash = subject.origin["fingerprint"].split()[-1]
        if content_hash in subject_of_content:
            raise DataError(
                f"{subject.name} and {subject_of_content[content_hash]} hold the same; give each "
                "subject once"
            )
        subject_of_content[content_hash] = subject.name


def _with_chosen_layers(
    config: AnalyzeConfig, sides: list[StimulusStates]
) -> list[StimulusStates]:
    """Return models and recordings with only the layers that the setting `layers=` lists.

    The setting is for the two models of a job, or its only one; recordings keep all their layers.
    Nothing is left out if the setting is "same" or "all".

    Args:
        config: The job.
        sides: The states of the stimuli in each model and recording.
    """
    models = [side for side in sides if not side.runs]  # only recordings have runs
    if config.layers in ("same", "all") or not models:
        return sides

    source = models[0]
    target = models[-1]
    # Layers are numbered from 0, so that a model has one layer more than its greatest number.
    layers_by_side = layers_of_sides(
        config.layers,
        max(source.numbers) + 1,
        max(target.numbers) + 1,
        itself=len(models) == 1,
    )
    layers_of_model = {
        source.name: layers_by_side[0],
        target.name: layers_by_side[1],
    }
    chosen = []
    for side in sides:
        if side.name in layers_of_model:
            side = _side_with_layers(side, layers_of_model[side.name])
        chosen.append(side)
    return chosen


def _side_with_layers(side: StimulusStates, layers: Sequence[int]) -> StimulusStates:
    """Return the states of a model at these layers only, and at the embedding if they have it.

    Args:
        side: The states of the model; `layers` are layers as the user names them, and `numbers`
            their numbers.
        layers: The numbers of the wanted layers.

    Raises:
        DataError: There are no states of one of the layers.
    """
    missing = sorted(set(layers) - set(side.numbers))
    if missing:
        available = ", ".join(str(layer) for layer in side.layers)
        raise DataError(
            f"layers: {side.name} has no states of layer {missing[0]}, only of {available}"
        )
    numbers_kept = {EMBEDDING, *layers}
    indices = [index for index, number in enumerate(side.numbers) if number in numbers_kept]
    return side._replace(
        layers=[side.layers[index] for index in indices],
        states=[side.states[index] for index in indices],
    )


def comparison_of_stimuli(
    instrument: AnyPairMeasure, config: AnalyzeConfig, work: Work
) -> LayerPairComparison:
    """Return the comparison of two recordings, or of a recording with a model, on stimuli.

    Args:
        instrument: Computes a measure of layer pairs.
        config: The job.
        work: The context of the running job, which has its stimuli.
    """
    # Some settings of the measure have a fixed value if stimuli are compared.
    measure = replace(instrument.measure_settings(config), **instrument.for_stimuli)
    stimuli = work.input("stimuli", Stimuli)
    states_by_side = stimulus_states_of(config, stimuli, measure.embed)
    # The stimuli to compare, and, if massive ones (with very long states) are left out, all.
    compared, all_compared = without_massive(config, stimuli, states_by_side)

    needed_by = ""  # the setting to blame in an error if there are too few stimuli
    if hasattr(measure, "neighbours"):
        needed_by = named_setting("measure.neighbours", measure.neighbours)

    def batches_of(chosen: Compared) -> StateBatches:
        """Return batches of both sides' states; groups of stimuli take the place of documents."""
        return array_batches(
            # A recording that is compared with itself is the only side, so both first and last.
            [chosen.sides[0].states, chosen.sides[-1].states],
            chosen.stimuli.groups,
            name_of_stimulus=chosen.stimuli.name_of_row,
            rows_per_batch=measure.tokens_per_batch,
            fewest=instrument.fewest(measure),
            needed_by=needed_by,
        )

    batches = batches_of(compared)
    if all_compared:
        # Each batch gets a counterpart that includes massive stimuli.
        batches = batches.beside(batches_of(all_compared))
    batches = replace(batches, facts={**batches.facts, **stimuli_facts(compared.stimuli)})

    sides = []
    for side in compared.sides:
        # Called, it returns a copy of what the provenance says of the side.
        describe: Callable[[], dict[str, str]] = partial(dict, side.origin)
        sides.append(ComparedSide(side.name, side.layers, describe))
    measure = replace(measure, batches=batches.batches)
    return instrument.comparison(measure, (sides[0], sides[-1]), batches, work)
