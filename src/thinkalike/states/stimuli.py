"""States of the same stimuli in the layers of models and in recordings."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from thinkalike.config import AnalyzeConfig, ModelConfig
from thinkalike.config.recorded import RecordedArrays
from thinkalike.config.schema import as_settings
from thinkalike.data.corpus import Entry, cache_folder, kept
from thinkalike.data.recordings import mean_of_runs, read_recording, recording_fingerprint
from thinkalike.data.stimuli import Stimuli
from thinkalike.data.words import word_spans
from thinkalike.digests import versions_of
from thinkalike.errors import DataError
from thinkalike.measures.estimates import massive
from thinkalike.models.families import names_of, pick_device
from thinkalike.models.places import checkpoint_fingerprint
from thinkalike.processes import counted
from thinkalike.states.batches import KEEPS_MASSIVE, say_massive
from thinkalike.states.folder import load_source
from thinkalike.states.source import StateSource
from thinkalike.states.tokens import Pieces, WordStates, site_numbers, sites, states_of_words

log = logging.getLogger(__name__)

TEXTS_AT_ONCE = 64
MOST_LEFT_OUT = 0.5  # share of the stimuli
LARGEST = 4 * 2**30  # bytes of all entries of the cache together
PACKAGES = ("torch", "transformers", "transformer-lens", "tokenizers", "mamba-ssm", "causal-conv1d")
CODE = ("models", "states")  # the parts of this package that states come from, whose code may change in a version
HAS_OWN = "has_own"  # of the states in an entry of the cache
LEFT_OUT = ("name", "path", "device", "corpus", "members")  # settings of a model that its states do not show


class StimulusStates(NamedTuple):
    """States of the same n stimuli in the layers of one model, or of a recording."""

    name: str
    layers: list[Any]  # numbers of a model's layers, -1 for the embedding; names of a recording's
    states: list[Float[Tensor, "n _"]]
    origin: dict[str, str]  # for the provenance
    runs: Sequence[Float[Tensor, "m n _"]] = ()  # of a recording: each of its runs, whose mean the states are
    has_own: Bool[Tensor, " n"] | None = None  # which stimuli have a state; that of the others is 0. None: all have

    @property
    def numbers(self) -> list[int]:
        """The numbers of a model's layers, also where several sites of each have names, see `Place`."""
        return [int(str(layer).partition(".")[0]) for layer in self.layers]


def sides_of(config: AnalyzeConfig) -> list[str | RecordedArrays | ModelConfig]:
    """Return what measures of stimuli compare, each once: files of `activations`, `model` and `model@target`.

    The source comes first. Recordings are the source, but for a single one beside `model`, which is the source itself.
    """
    if config.activations:
        recordings, beside = config.recordings, config.beside_recordings
        is_target = len(recordings) == 1 and "model" in beside
        return [*beside.values(), *recordings] if is_target else [*recordings, *beside.values()]
    return [config.model] if config.target == config.model else [config.model, config.target]


def stimulus_states_of(
    config: AnalyzeConfig, stimuli: Stimuli, embed: bool, loaded: Sequence[StateSource] = ()
) -> list[StimulusStates]:
    """Return the states on each side that is compared, a model or a recording; see `sides_of`.

    Those of models are kept in the cache, so that a model reads the same stimuli once for all jobs. Models that are
    `loaded` already are not loaded again.
    """
    cache, sides, found = cache_folder(config.data) / "states", sides_of(config), []
    for side, name in zip(sides, names_of(sides), strict=True):
        if isinstance(side, ModelConfig):
            found.append(_of_model(side, name, stimuli, embed, cache, loaded))
            continue
        runs = read_recording(side, stimuli).layers
        origin = {
            "name": Path(side).name if isinstance(side, str) else side.name,
            "fingerprint": recording_fingerprint(side),
        }
        means = [mean_of_runs(states) for states in runs.values()]
        found.append(StimulusStates(name, [*runs], means, origin, [*runs.values()]))
    return found


def _of_model(
    config: ModelConfig, name: str, stimuli: Stimuli, embed: bool, cache: Path, loaded: Sequence[StateSource]
) -> StimulusStates:
    def compute() -> Entry:
        model = next((model for model in loaded if model.name == name), None) or load_source(config, name)
        found = states_of_stimuli(model, stimuli, embed)
        states = {str(number): layer for number, layer in enumerate(found.states)}
        about = {"layers": site_numbers(sites(model, embed)), "origin": model.describe()}
        return Entry({**states, HAS_OWN: found.has_own}, about)

    if config.holds_states:  # a copy in the cache would be no faster
        entry = compute()
        states, about = entry.tensors, entry.about
    else:
        states, about = kept(cache / f"{_key(config, stimuli.fingerprint(), embed)}.safetensors", compute, LARGEST)
    layers = [states[str(number)] for number in range(len(states) - 1)]
    origin = {**about["origin"], "name": name}
    return StimulusStates(name, about["layers"], layers, origin, has_own=states[HAS_OWN])


def _key(config: ModelConfig, stimuli: str, embed: bool) -> str:
    """Return a digest of all that can change a bit of the states."""
    settings = {name: value for name, value in as_settings(config).items() if name not in LEFT_OUT}
    device, instructions = pick_device(config.device), torch.backends.cpu.get_cpu_capability()  # which choose kernels
    kind = torch.cuda.get_device_name(device) if device.startswith("cuda") else instructions
    arithmetic = [device, kind, torch.get_num_threads(), torch.get_float32_matmul_precision()]
    files = sorted(path for part in CODE for path in (Path(__file__).parents[1] / part).rglob("*.py"))
    code = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    everything = [settings, checkpoint_fingerprint(config), stimuli, embed, arithmetic, versions_of(PACKAGES), code]
    return hashlib.sha256(json.dumps(everything, sort_keys=True).encode()).hexdigest()[:32]


def stimulus_states(model: StateSource, stimuli: Stimuli, embed: bool = False) -> list[Float[Tensor, "n d"]]:
    """Return the states of all stimuli at all layers, on the CPU, by `Stimuli.token`; each text is read alone.

    A stimulus without a state of its own is a DataError, see `has_own_state`.
    """
    states, has_own = states_of_stimuli(model, stimuli, embed)
    if not has_own.all():
        raise DataError(f"{_without_own(stimuli, has_own)} of {model.name} goes on beyond them: leave these rows out")
    return states


def states_of_stimuli(model: StateSource, stimuli: Stimuli, embed: bool = False) -> WordStates:
    """Return the states of stimuli as `stimulus_states` does; those without one of their own have zeros."""
    order = np.argsort(stimuli.sentence, kind="stable")  # word by word within a text; rows of one may lie apart
    words: list[list[tuple[int, int]]] = [[] for _ in stimuli.texts]
    for row in order:
        words[stimuli.sentence[row]].append(stimuli.span[row])
    parts, owned = [], []
    for first in counted(range(0, len(words), TEXTS_AT_ONCE), "batch of texts"):
        texts = stimuli.texts[first : first + TEXTS_AT_ONCE]
        for text in texts:
            if len(model.encoded(text)[0]) > model.context:
                most = f"{model.context} of {model.name}"
                raise DataError(f"{stimuli.source}: a text is longer than the {most}; split it: {text[:80]}")
        batch = Pieces(texts, words[first : first + TEXTS_AT_ONCE])
        found = states_of_words(model, batch, sites(model, embed), stimuli.token)
        parts.append([_in_place(layer.cpu(), found.has_own) for layer in found.states])
        owned.append(found.has_own)
    back = torch.from_numpy(np.argsort(order, kind="stable"))
    states = [torch.cat(layer)[back] for layer in zip(*parts, strict=True)]
    return WordStates(states, torch.cat(owned)[back])


def _in_place(states: Float[Tensor, "kept d"], has_own: Bool[Tensor, " n"]) -> Float[Tensor, "n d"]:
    if has_own.all():
        return states
    return states.new_zeros(len(has_own), states.shape[1]).masked_scatter_(has_own[:, None], states)


def _without_own(stimuli: Stimuli, has_own: Bool[Tensor, " n"]) -> str:
    """Return the first part of a sentence that says how many stimuli have no state of their own."""
    missing = (~has_own).nonzero()[:, 0].tolist()
    count = f"{len(missing)} of {len(stimuli)} stimuli"
    return f"{stimuli.source}: {count}, such as {stimuli.words[missing[0]]!r}, have no state of their own, as a token"


class Compared(NamedTuple):
    """Stimuli, and their states on each side."""

    stimuli: Stimuli
    sides: list[StimulusStates]

    def of(self, rows: Bool[Tensor, " n"]) -> Compared:
        """Return some of the stimuli."""
        if rows.all():
            return self
        sides = [
            side._replace(
                states=[layer[rows] for layer in side.states],
                runs=[each[:, rows] for each in side.runs],
                has_own=None if side.has_own is None else side.has_own[rows],
            )
            for side in self.sides
        ]
        return Compared(self.stimuli.take(rows.numpy()), sides)


def with_own_states(stimuli: Stimuli, sides: Sequence[StimulusStates]) -> Bool[Tensor, " n"]:
    """Return which stimuli have a state of their own on every side; a warning says how many have none.

    Raises:
        DataError: More than `MOST_LEFT_OUT` of them have none on some side, so that the rest is another set of stimuli.
    """
    everywhere = torch.ones(len(stimuli), dtype=torch.bool)
    for side in sides:
        if side.has_own is None or side.has_own.all():
            continue
        found = f"{_without_own(stimuli, side.has_own)} of {side.name} goes on beyond them"
        if float((~side.has_own).double().mean()) > MOST_LEFT_OUT:
            raise DataError(f"{found}: choose a model with shorter tokens, or longer words")
        log.warning(f"warning: {found}; they are left out")
        everywhere &= side.has_own
    return everywhere


def without_massive(
    config: AnalyzeConfig, stimuli: Stimuli, sides: Sequence[StimulusStates]
) -> tuple[Compared, Compared | None]:
    """Return the stimuli and their states without those stimuli whose states decide a layer of some model, and with.

    All sides keep the same ones. Stimuli that have no state of their own in some model are left out of both, and with
    measure.skip_first=N the first N words of each text. The second is None with measure.massive=keep, and where no
    state decides a layer.
    """
    measure: Any = config.measure
    places = zip(stimuli.sentence, stimuli.span, strict=True)
    before = torch.tensor([len(word_spans(stimuli.texts[number][:start])) for number, (start, _) in places])
    late = (before >= measure.skip_first) & with_own_states(stimuli, sides)
    every = Compared(stimuli, list(sides)).of(late)
    layers = [layer for side in every.sides if not side.runs for layer in side.states]
    outliers = massive(layers, before[late] == 0) if layers and measure.massive == "drop" else None
    if outliers is None:
        return every, None
    bare = any(isinstance(side, ModelConfig) and not side.bos for side in sides_of(config))
    at_start = 2 * int((before[late][outliers] == 0).sum()) > int(outliers.sum())
    remedy = KEEPS_MASSIVE
    if bare and at_start:
        remedy += ", and model.bos=true puts a token before each text"
    say_massive(outliers, [repr(every.stimuli.words[row]) for row in outliers.nonzero()[:, 0]], "stimuli", remedy)
    return every.of(~outliers), every


def numbered(sides: Sequence[StimulusStates], message: str) -> str:
    """Return what the numbers of layers stand for, to end a message that has such a number; else nothing."""
    if not re.search(r"\blayers?\b\D?\d", message):
        return ""
    names = [f"{side.name} {layer}" for side in sides for layer in side.layers]
    return "; layers are numbered " + ", ".join(f"{number} {name}" for number, name in enumerate(names))
