"""States of the same stimuli in the layers of models and in recordings."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.config import AnalyzeConfig, ModelConfig
from thinkalike.data import Stimuli, read_arrays
from thinkalike.errors import DataError
from thinkalike.models import FrozenModel, load_model, told_apart
from thinkalike.states.tokens import site_numbers
from thinkalike.states.words import Pieces, word_states

TEXTS_AT_ONCE = 64


class StimulusStates(NamedTuple):
    """States of the same n stimuli in the layers of one model, or of a recording."""

    name: str
    layers: list[Any]  # numbers of a model's layers, -1 for the embedding; names of a recording's
    states: list[Float[Tensor, "n _"]]
    origin: dict[str, str]  # for the provenance


def stimulus_states_of(config: AnalyzeConfig, stimuli: Stimuli, embed: bool) -> list[StimulusStates]:
    """Return the states in `model`, or in the recording in its place, and in `model@target` if that is another model.

    Raises:
        DataError: a text is longer than a model's context, or a recording does not fit the stimuli.
        ModelError: see `load_model`.
    """
    names = told_apart([config.model, config.target])
    first = (
        _recorded(config.activations, stimuli)
        if config.activations
        else _computed(config.model, names[0], stimuli, embed)
    )
    return [first] if config.target == config.model else [first, _computed(config.target, names[1], stimuli, embed)]


def _recorded(path: str, stimuli: Stimuli) -> StimulusStates:
    layers = read_arrays(Path(path).expanduser(), stimuli)
    return StimulusStates(Path(path).stem, list(layers), list(layers.values()), {"name": Path(path).name})


def _computed(config: ModelConfig, name: str, stimuli: Stimuli, embed: bool) -> StimulusStates:
    model = load_model(config, name)
    return StimulusStates(
        model.name, site_numbers(model, embed), stimulus_states(model, stimuli, embed), model.describe()
    )


def recording_fingerprint(path: str) -> str:
    """Return a fingerprint of a file of recorded states and of its name, by which tables call it.

    Raises:
        DataError: the file cannot be read.
    """
    file = Path(path).expanduser()
    try:
        return f"{file.stem} {hashlib.sha256(file.read_bytes()).hexdigest()[:16]}"
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
    for first in range(0, len(words), TEXTS_AT_ONCE):
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
