"""States of the same stimuli in the layers of models and in recordings."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from thinkalike.advice import named_setting
from thinkalike.config import AnalyzeConfig, ModelConfig
from thinkalike.config.in_memory import LoadedModelConfig
from thinkalike.config.recorded import RecordedArrays
from thinkalike.config.values import as_settings
from thinkalike.data.cache import CacheEntry, cache_folder, read_or_compute
from thinkalike.data.recordings import mean_of_runs, read_recording, recording_fingerprint
from thinkalike.data.stimuli import Stimuli
from thinkalike.data.words import Span, word_spans
from thinkalike.digests import versions_of
from thinkalike.errors import DataError, plain_name
from thinkalike.measures.massive_rows import massive
from thinkalike.models.families import pick_device
from thinkalike.models.fingerprints import checkpoint_fingerprint
from thinkalike.models.labels import names_of
from thinkalike.processes import counted
from thinkalike.states.batches import how_to_keep_massive, say_massive
from thinkalike.states.folder import load_source
from thinkalike.states.pieces import Pieces
from thinkalike.states.source import StateSource
from thinkalike.states.tokens import site_numbers, sites
from thinkalike.states.word_states import WordStates, states_of_words

log = logging.getLogger(__name__)

TEXTS_PER_BATCH = 64
"""How many texts a model reads together."""

MOST_LEFT_OUT = 0.5
"""The largest share of the stimuli that may lack a state of their own."""

LARGEST_CACHE = 4 * 2**30
"""The bytes that all entries of the cache may have together."""

PACKAGES = (
    "torch",
    "transformers",
    "transformer-lens",
    "tokenizers",
    "mamba-ssm",
    "causal-conv1d",
)
"""Packages whose versions may change a bit of the states."""

CODE = ("models", "states")
"""Parts of this package whose code may change a bit of the states."""

HAS_OWN = "has_own"
"""The tensor of a cache entry that says which stimuli have a state of their own."""

SETTINGS_WITHOUT_EFFECT = ("name", "path", "device", "corpus", "members")
"""Settings of a model that its states do not show."""


@runtime_checkable
class StimulusChoice(Protocol):
    """The settings of a measure that decide which stimuli are compared."""

    @property
    def massive(self) -> str:
        """Whether stimuli with massive activations are compared: "drop" or "keep"."""

    @property
    def skip_first(self) -> int:
        """How many words at the beginning of each text are left out."""


class StimulusStates(NamedTuple):
    """States of the same n stimuli in the layers of one model, or of a recording."""

    name: str

    layers: Sequence[int | str]
    """The numbers of a model's layers, -1 for the embedding; the names of a recording's."""

    states: list[Float[Tensor, "n _"]]

    origin: dict[str, str]
    """What the provenance of a result says of the model or recording."""

    runs: Sequence[Float[Tensor, "m n _"]] = ()
    """For a recording: the m runs of each layer, whose mean the states are."""

    has_own: Bool[Tensor, " n"] | None = None
    """Which stimuli have a state of their own, where the others have 0; None: all have one."""

    @property
    def numbers(self) -> list[int]:
        """The numbers of a model's layers; a name such as "2.z.0" is of a site in layer 2."""
        return [int(str(layer).partition(".")[0]) for layer in self.layers]


def sides_of(config: AnalyzeConfig) -> list[str | RecordedArrays | ModelConfig]:
    """Return what a job compares, each once: configurations of models, and recorded states.

    The source comes first. Recordings (the setting `activations`) are the source, unless there is
    a single one and `model` is set, which is the source then.
    """
    if config.activations:
        recordings = config.recordings
        models = config.beside_recordings  # by "model" and "target"
        recording_is_target = len(recordings) == 1 and "model" in models
        if recording_is_target:
            return [*models.values(), *recordings]
        return [*recordings, *models.values()]
    if config.target == config.model:
        return [config.model]
    return [config.model, config.target]


def stimulus_states_of(
    config: AnalyzeConfig, stimuli: Stimuli, embed: bool, loaded: Sequence[StateSource] = ()
) -> list[StimulusStates]:
    """Return the states of stimuli in each model and recording of a job, the source first.

    States of models are cached on disk, so that a model reads the same stimuli once for all jobs.

    Args:
        config: The configuration of the job.
        stimuli: The stimuli.
        embed: Whether the states before block 0 are included, as the first layer.
        loaded: Models that are in memory already.
    """
    cache = cache_folder(config.data) / "states"
    sides = sides_of(config)
    states = []
    for side, name in zip(sides, names_of(sides), strict=True):
        if isinstance(side, ModelConfig):
            states.append(_of_model(side, name, stimuli, embed, cache, loaded))
        else:
            states.append(_of_recording(side, name, stimuli))
    return states


def _of_recording(recorded: str | RecordedArrays, name: str, stimuli: Stimuli) -> StimulusStates:
    """Return recorded states of stimuli: those of each run, and their mean over runs."""
    runs_of_layers = read_recording(recorded, stimuli).layers
    if isinstance(recorded, RecordedArrays):
        recorded_name = recorded.name
    else:
        recorded_name = plain_name(Path(recorded).name)
    return StimulusStates(
        name,
        layers=list(runs_of_layers),
        states=[mean_of_runs(runs) for runs in runs_of_layers.values()],
        origin={"name": recorded_name, "fingerprint": recording_fingerprint(recorded)},
        runs=list(runs_of_layers.values()),
    )


def _of_model(
    config: ModelConfig,
    name: str,
    stimuli: Stimuli,
    embed: bool,
    cache: Path,
    loaded: Sequence[StateSource],
) -> StimulusStates:
    """Return the states of stimuli in a model, which are cached on disk.

    Not cached are those of a folder of stored states, and those of a model in memory with code of
    the user's own.

    Args:
        config: The model.
        name: What results call it.
        stimuli: The stimuli.
        embed: Whether the states before block 0 are included, as the first layer.
        cache: The folder of the cache.
        loaded: Models that are in memory already.
    """

    def compute() -> CacheEntry:
        """Run the model over the stimuli, and return the states of its layers as a cache entry.

        The tensors are called "0", "1" and so on.
        """
        model = _loaded_model(config, name, loaded)
        states, has_own = states_of_stimuli(model, stimuli, embed)
        tensors = {str(index): layer for index, layer in enumerate(states)}
        facts = {"layers": site_numbers(sites(model, embed)), "origin": model.describe()}
        return CacheEntry({**tensors, HAS_OWN: has_own}, facts)

    is_cached = not config.holds_states  # a copy in the cache would be no faster
    if isinstance(config, LoadedModelConfig) and config.has_own_code:
        is_cached = False  # what such code computes cannot be identified by a key
    if not is_cached:
        entry = compute()
    else:
        path = cache / f"{_key_of_states(config, stimuli.fingerprint(), embed)}.safetensors"
        entry = read_or_compute(path, compute, LARGEST_CACHE)
    layer_count = len(entry.tensors) - 1  # without the tensor HAS_OWN
    return StimulusStates(
        name,
        layers=entry.facts["layers"],
        states=[entry.tensors[str(index)] for index in range(layer_count)],
        origin={**entry.facts["origin"], "name": name},
        has_own=entry.tensors[HAS_OWN],
    )


def _loaded_model(config: ModelConfig, name: str, loaded: Sequence[StateSource]) -> StateSource:
    """Return the model of this name from `loaded`; if it is not there, load it."""
    for model in loaded:
        if model.name == name:
            return model
    return load_source(config, name)


def _key_of_states(config: ModelConfig, stimuli_fingerprint: str, embed: bool) -> str:
    """Return a digest of everything that can change a bit of a model's states, as 32 digits.

    Args:
        config: The model.
        stimuli_fingerprint: The fingerprint of the stimuli.
        embed: Whether the states before block 0 are included.
    """
    settings = {}
    for name, value in as_settings(config).items():
        if name not in SETTINGS_WITHOUT_EFFECT:
            settings[name] = value

    # The device, or the instructions of the CPU, choose kernels, which round differently.
    device = pick_device(config.device)
    processor = torch.backends.cpu.get_cpu_capability()
    if device.startswith("cuda"):
        processor = torch.cuda.get_device_name(device)
    arithmetic = [device, processor, torch.get_num_threads()]

    # The code of this package that computes states.
    package_folder = Path(__file__).parents[1]
    files: list[Path] = []
    for subpackage in CODE:
        files += (package_folder / subpackage).rglob("*.py")
    code = b"".join(path.read_bytes() for path in sorted(files))

    content = [
        settings,
        checkpoint_fingerprint(config),
        stimuli_fingerprint,
        embed,
        arithmetic,
        versions_of(PACKAGES),
        hashlib.sha256(code).hexdigest(),
    ]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def stimulus_states(
    model: StateSource, stimuli: Stimuli, embed: bool = False
) -> list[Float[Tensor, "n _"]]:
    """Return, for each layer of a model, the states of all stimuli, on the CPU.

    Each text is read alone. `Stimuli.token` says which token's state is that of a stimulus.

    Args:
        model: The model.
        stimuli: The stimuli.
        embed: Whether the states before block 0 are included, as the first layer.

    Raises:
        DataError: A text is too long, or a token of a stimulus also holds letters of other words,
            so that the stimulus has no state of its own.
    """
    states, has_own = states_of_stimuli(model, stimuli, embed)
    if not has_own.all():
        raise DataError(
            f"{_stimuli_without_state(stimuli, has_own)} of {model.name} goes on beyond them: "
            "leave these rows out"
        )
    return states


def states_of_stimuli(model: StateSource, stimuli: Stimuli, embed: bool = False) -> WordStates:
    """Return, for each layer of a model, the states of all stimuli, on the CPU.

    Each text is read alone. A stimulus whose token also holds letters of other words has no state
    of its own: it gets zeros and is marked in `has_own`.

    Args:
        model: The model.
        stimuli: The stimuli.
        embed: Whether the states before block 0 are included, as the first layer.

    Raises:
        DataError: A text is longer than the context of the model.
    """
    # Stimuli are grouped by their texts here, and put back into their order at the end.
    text_order = np.argsort(stimuli.sentence, kind="stable")
    words_of_texts: list[list[Span]] = [[] for _ in stimuli.texts]
    for row in text_order:
        words_of_texts[stimuli.sentence[row]].append(stimuli.span[row])

    states_of_batches = []
    has_own_of_batches = []
    for first in counted(range(0, len(words_of_texts), TEXTS_PER_BATCH), "batch of texts"):
        texts = stimuli.texts[first : first + TEXTS_PER_BATCH]
        for text in texts:
            tokens, _ = model.encoded(text)
            if len(tokens) > model.context:
                raise DataError(
                    f"{stimuli.source}: a text is longer than the {model.context} of "
                    f"{model.name}; split it: {text[:80]}"
                )
        batch = Pieces(texts, words_of_texts[first : first + TEXTS_PER_BATCH])
        states, has_own = states_of_words(model, batch, sites(model, embed), stimuli.token)
        states_of_batches.append([_fill_zeros(layer.cpu(), has_own) for layer in states])
        has_own_of_batches.append(has_own)

    stimulus_order = torch.from_numpy(np.argsort(text_order, kind="stable"))
    layers = []
    for batches_of_layer in zip(*states_of_batches, strict=True):
        layers.append(torch.cat(batches_of_layer)[stimulus_order])
    return WordStates(layers, torch.cat(has_own_of_batches)[stimulus_order])


def _fill_zeros(
    states: Float[Tensor, "own d"], has_own: Bool[Tensor, " n"]
) -> Float[Tensor, "n d"]:
    """Return states of all stimuli: those given, and zeros for the stimuli that have none.

    Args:
        states: The states of the stimuli that have one, in order.
        has_own: Which of all stimuli have one.
    """
    if has_own.all():
        return states
    filled = states.new_zeros(len(has_own), states.shape[1])
    return filled.masked_scatter_(has_own[:, None], states)


def _stimuli_without_state(stimuli: Stimuli, has_own: Bool[Tensor, " n"]) -> str:
    """Return the beginning of a message: how many stimuli have no state of their own.

    A stimulus has none if its token also holds letters of other words. `has_own` says which have
    one; at least one must have none.
    """
    missing = (~has_own).nonzero()[:, 0].tolist()
    example = stimuli.words[missing[0]]
    return (
        f"{stimuli.source}: {len(missing)} of {len(stimuli)} stimuli, such as {example!r}, have "
        "no state of their own, as a token"
    )


class Compared(NamedTuple):
    """Stimuli, and their states in everything that is compared."""

    stimuli: Stimuli
    sides: list[StimulusStates]

    def of(self, rows: Bool[Tensor, " n"]) -> Compared:
        """Return the stimuli that a mask selects, with their states in each model or recording.

        The runs of a recording, and the mask of stimuli with a state of their own, are selected
        likewise.
        """
        if rows.all():
            return self
        sides = []
        for side in self.sides:
            has_own = None  # every stimulus has a state of its own
            if side.has_own is not None:
                has_own = side.has_own[rows]
            selected = side._replace(
                states=[layer[rows] for layer in side.states],
                runs=[layer[:, rows] for layer in side.runs],
                has_own=has_own,
            )
            sides.append(selected)
        return Compared(self.stimuli.take(rows.numpy()), sides)


def with_own_states(stimuli: Stimuli, sides: Sequence[StimulusStates]) -> Bool[Tensor, " n"]:
    """Return which stimuli have a state of their own in each model.

    A stimulus has none if its token also holds letters of other words. A warning for each model
    says how many have none.

    Raises:
        DataError: More than `MOST_LEFT_OUT` of the stimuli have none in some model, so that the
            rest would be another set of stimuli.
    """
    has_own_everywhere = torch.ones(len(stimuli), dtype=torch.bool)
    for side in sides:
        if side.has_own is None or side.has_own.all():
            continue
        cause = _stimuli_without_state(stimuli, side.has_own)
        message = f"{cause} of {side.name} goes on beyond them"
        share = float((~side.has_own).double().mean())
        if share > MOST_LEFT_OUT:
            raise DataError(f"{message}: choose a model with shorter tokens, or longer words")
        log.warning(f"warning: {message}; they are left out")
        has_own_everywhere &= side.has_own
    return has_own_everywhere


def without_massive(
    config: AnalyzeConfig, stimuli: Stimuli, sides: Sequence[StimulusStates]
) -> tuple[Compared, Compared | None]:
    """Leave out stimuli whose states are massive and decide a layer of some model.

    They are left out everywhere. Stimuli that have no state of their own in some model are left
    out as well, and with measure.skip_first=N the first N words of each text.

    Returns:
        The stimuli and their states without massive ones, and with them. The second is None if
        measure.massive=keep, or if no state decides a layer.

    Raises:
        DataError: No stimulus is left, or too few have a state of their own.
    """
    measure = config.measure
    assert isinstance(measure, StimulusChoice), (
        f"{named_setting('measure', measure.kind)} reads no stimuli"
    )
    words_before = []
    for number, (start, _) in zip(stimuli.sentence, stimuli.span, strict=True):
        words_before.append(len(word_spans(stimuli.texts[number][:start])))
    position = torch.tensor(words_before)
    is_far_enough = position >= measure.skip_first
    if not is_far_enough.any():
        raise DataError(
            f"{stimuli.source}: no text has a stimulus after its first {measure.skip_first} "
            f"words, which {named_setting('measure.skip_first')} leaves out"
        )
    is_compared = is_far_enough & with_own_states(stimuli, sides)
    compared = Compared(stimuli, list(sides)).of(is_compared)

    layers_of_models: list[Tensor] = []
    for side in compared.sides:
        if not side.runs:
            layers_of_models += side.states
    is_first_word = position[is_compared] == 0
    outliers = None
    if layers_of_models and measure.massive == "drop":
        outliers = massive(layers_of_models, is_first_word)
    if outliers is None:
        return compared, None

    lacks_bos = any(isinstance(side, ModelConfig) and not side.bos for side in sides_of(config))
    # If most of them are first words, a token before each text may take their place.
    are_mostly_first = 2 * int(is_first_word[outliers].sum()) > int(outliers.sum())
    remedy = how_to_keep_massive()
    if lacks_bos and are_mostly_first:
        remedy += f", and {named_setting('model.bos', True)} puts a token before each text"
    rows = outliers.nonzero()[:, 0].tolist()
    say_massive(outliers, [repr(compared.stimuli.words[row]) for row in rows], "stimuli", remedy)
    return compared.of(~outliers), compared


def numbered(sides: Sequence[StimulusStates], message: str) -> str:
    """Return the end of an error message, which says what its numbers of layers stand for.

    The layers of all models and recordings are numbered one after another. If the message names no
    layer by a number, the end is "".
    """
    names_a_layer = re.search(r"\blayers?\b\D?\d", message)  # such as "layer 3" or "layers 3, 4"
    if not names_a_layer:
        return ""
    names = []
    for side in sides:
        names += [f"{side.name} {layer}" for layer in side.layers]
    numbered_names = [f"{number} {name}" for number, name in enumerate(names)]
    return "; layers are numbered " + ", ".join(numbered_names)
