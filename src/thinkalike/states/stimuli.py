"""States of the same stimuli in the layers of models and in recordings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.config import AnalyzeConfig, ModelConfig
from thinkalike.data import Stimuli, read_recording
from thinkalike.data.text.cache import cache_folder
from thinkalike.digests import digest_of
from thinkalike.errors import DataError
from thinkalike.models import FrozenModel, load_model, told_apart
from thinkalike.progress import counted
from thinkalike.states.kept import KeptStates, kept_states
from thinkalike.states.tokens import site_numbers
from thinkalike.states.words import Pieces, word_states

TEXTS_AT_ONCE = 64


class StimulusStates(NamedTuple):
    """States of the same n stimuli in the layers of one model, or of a recording."""

    name: str
    layers: list[Any]  # numbers of a model's layers, -1 for the embedding; names of a recording's
    states: list[Float[Tensor, "n _"]]
    origin: dict[str, str]  # for the provenance
    runs: Sequence[Float[Tensor, "m n _"]] = ()  # of a recording: each of its runs, whose mean the states are


def stimulus_states_of(
    config: AnalyzeConfig, stimuli: Stimuli, embed: bool, loaded: Sequence[FrozenModel] = ()
) -> list[StimulusStates]:
    """Return the states on each side that is compared, a model or a recording; see `AnalyzeConfig.sides`.

    Those of models are kept in the cache: whichever jobs want them, a model reads the same stimuli once.

    Args:
        loaded: models that are there already, and are not loaded again.

    Raises:
        DataError: a text is longer than a model's context, or a recording does not fit the stimuli.
        ModelError: see `load_model`.
    """
    cache = cache_folder(config.data) / "states"
    return [
        _recorded(side, name, stimuli)
        if isinstance(side, str)
        else _of_model(side, name, stimuli, embed, cache, loaded)
        for side, name in zip(config.sides, names_of(config.sides), strict=True)
    ]


def names_of(sides: Sequence[str | ModelConfig]) -> list[str]:
    """Return what tables call models and recordings: a recording by its file, with as much of the path as tells it."""
    models = iter(told_apart([side for side in sides if not isinstance(side, str)]))
    labels = [side if isinstance(side, str) else next(models) for side in sides]
    for parts in range(max(len(Path(side).parts) for side in labels) + 1):  # 0: the name of the file without its ending
        names = [_last(side, parts) if isinstance(side, str) else own for side, own in zip(sides, labels, strict=True)]
        if len(set(names)) == len(names):
            break
    return names


def _last(path: str, parts: int) -> str:
    return "/".join(Path(path).parts[-parts:]) if parts else Path(path).stem


def _recorded(path: str, name: str, stimuli: Stimuli) -> StimulusStates:
    layers, runs = read_recording(path, stimuli)
    origin = {"name": Path(path).name, "fingerprint": recording_fingerprint(path)}
    states = [layer.mean(0) if len(runs) > 1 else layer[0] for layer in layers.values()]
    return StimulusStates(name, list(layers), states, origin, list(layers.values()))


def _of_model(
    config: ModelConfig, name: str, stimuli: Stimuli, embed: bool, cache: Path, loaded: Sequence[FrozenModel]
) -> StimulusStates:
    def compute() -> KeptStates:
        model = next((model for model in loaded if model.name == name), None) or load_model(config, name)
        states = stimulus_states(model, stimuli, embed)
        return KeptStates(states, {"layers": site_numbers(model, embed), "origin": model.describe()})

    states, about = kept_states(cache, config, stimuli.fingerprint(), embed, compute)
    return StimulusStates(name, about["layers"], states, {**about["origin"], "name": name})


def recording_fingerprint(path: str) -> str:
    """Return a fingerprint of a file of recorded states and of its name, by which tables call it.

    Raises:
        DataError: the file cannot be read.
    """
    file = Path(path)
    try:
        return f"{file.stem} {digest_of(file)[:16]}"
    except OSError as error:
        raise DataError(f"cannot read activations={path}: {error.strerror}") from error


def stimulus_states(model: FrozenModel, stimuli: Stimuli, embed: bool = False) -> list[Float[Tensor, "n d"]]:
    """Return the states of all stimuli at all layers, on the CPU: each is its last token in its own text, read alone.

    Raises:
        DataError: a text is longer than the model's context; see `word_states`.
    """
    order = np.argsort(stimuli.sentence, kind="stable")  # word by word within a text; rows of one may lie apart
    words: list[list[tuple[int, int]]] = [[] for _ in stimuli.texts]
    for row in order:
        words[stimuli.sentence[row]].append(stimuli.span[row])
    parts = []
    for first in counted(range(0, len(words), TEXTS_AT_ONCE), "batch of texts"):
        texts = stimuli.texts[first : first + TEXTS_AT_ONCE]
        _check_lengths(model, texts, stimuli)
        states = word_states(model, Pieces(texts, words[first : first + TEXTS_AT_ONCE]), embed)
        parts.append([layer.cpu() for layer in states])
    back = torch.from_numpy(np.argsort(order, kind="stable"))
    return [torch.cat(layer)[back] for layer in zip(*parts, strict=True)]


def _check_lengths(model: FrozenModel, texts: list[str], stimuli: Stimuli) -> None:
    for text in texts:
        length = len(model.tokenizer(text, verbose=False)["input_ids"])
        if length > model.context:
            raise DataError(
                f"{stimuli.source}: a text of {length} tokens is longer than the {model.context} of {model.name}; "
                f"split it: {text[:80]}"
            )


def numbered(sides: Sequence[StimulusStates]) -> str:
    """Return the part of an error that says what the numbers of layers stand for."""
    names = [f"{side.name} {layer}" for side in sides for layer in side.layers]
    return "; layers are numbered " + ", ".join(f"{number} {name}" for number, name in enumerate(names))
