"""Stimuli, and their states in the layers of models or in recordings: what mlem and rsa begin with."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.activations import Pieces, sites, word_states
from thinkalike.config import AnalyzeConfig, ModelConfig, StimuliConfig
from thinkalike.data import Stimuli, controlled_stimuli, read_arrays, read_conllu, read_table
from thinkalike.errors import DataError
from thinkalike.jobs.steps import settings_of
from thinkalike.models import FrozenModel, checkpoint_fingerprint, load_model
from thinkalike.store import Job, key_of

TEXTS_PER_PASS = 64


class States(NamedTuple):
    """States of the same n stimuli in the layers of one model, or of a recording."""

    name: str
    layers: list[Any]  # numbers of a model's layers, -1 for the embedding; names of a recording's
    states: list[Float[Tensor, "n _"]]
    origin: dict[str, str]  # for the provenance


def job_of(config: AnalyzeConfig, stimuli: Stimuli) -> Job:
    """The job of a measure on these stimuli."""
    settings = settings_of(config, "model", "target", "measure", "stimuli", "activations")
    digests = {"stimuli": stimuli.fingerprint(), "target": checkpoint_fingerprint(config.target)}
    if config.activations:
        settings |= {"model": None, "target": None if config.target == config.model else settings["target"]}
        digests["activations"] = _digest(Path(config.activations).expanduser())
    else:
        digests["model"] = checkpoint_fingerprint(config.model)
    return Job(config.store, config.measure.kind, key_of(settings, digests), settings)


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError as error:
        raise DataError(f"cannot read activations={path}: {error.strerror}") from error


def read_stimuli(config: StimuliConfig) -> Stimuli:
    """The stimuli that a configuration describes.

    Raises:
        DataError: a file is missing, damaged or lacks what is asked for; there are too few stimuli for the sample.
    """
    if config.kind == "controlled":
        stimuli = controlled_stimuli(config.sentences, config.seed, config.grammar)
        if config.features:
            stimuli = replace(stimuli, features=stimuli.features[list(config.features)], kinds={})
    elif config.kind == "conllu":
        stimuli = read_conllu(str(config.path), features=config.features, kinds=config.kinds)
    else:
        stimuli = read_table(str(config.path), features=config.features, kinds=config.kinds, columns=config.columns)
    return stimuli.sample(config.sample, config.seed, config.balance) if config.sample else stimuli


def read_states(config: AnalyzeConfig, stimuli: Stimuli, embed: bool) -> list[States]:
    """States in `model`, or in the recording that takes its place, and in `model@target` if that is another model."""
    if config.activations:
        return [_recorded(config.activations, stimuli), *_others(config, stimuli, embed)]
    return [_computed(config.model, stimuli, embed), *_others(config, stimuli, embed)]


def _others(config: AnalyzeConfig, stimuli: Stimuli, embed: bool) -> list[States]:
    return [] if config.target == config.model else [_computed(config.target, stimuli, embed)]


def _recorded(path: str, stimuli: Stimuli) -> States:
    layers = read_arrays(Path(path).expanduser(), stimuli)
    return States(Path(path).stem, list(layers), list(layers.values()), {"name": Path(path).name})


def _computed(config: ModelConfig, stimuli: Stimuli, embed: bool) -> States:
    model = load_model(config)
    return States(model.name, sites(model, embed), stimulus_states(model, stimuli, embed), model.describe())


def stimulus_states(model: FrozenModel, stimuli: Stimuli, embed: bool = False) -> list[Float[Tensor, "n d"]]:
    """States of all stimuli at all layers, on the CPU: each is its last token in its own text, read alone.

    Raises:
        DataError: a text is longer than the model's context; see `word_states`.
    """
    order = np.argsort(stimuli.sentence, kind="stable")  # word by word within a text; rows of one may lie apart
    words: list[list[tuple[int, int]]] = [[] for _ in stimuli.texts]
    for row in order:
        words[stimuli.sentence[row]].append(stimuli.span[row])
    parts = []
    for first in range(0, len(words), TEXTS_PER_PASS):
        texts = stimuli.texts[first : first + TEXTS_PER_PASS]
        _check_lengths(model, texts, stimuli)
        states = word_states(model, Pieces(texts, words[first : first + TEXTS_PER_PASS]), embed)
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


def numbered(found: Sequence[States]) -> str:
    """What a measure's error calls the layers."""
    names = [f"{each.name} {layer}" for each in found for layer in each.layers]
    return "; layers are numbered " + ", ".join(f"{number} {name}" for number, name in enumerate(names))


def origin(config: AnalyzeConfig, stimuli: Stimuli, found: list[States]) -> dict[str, Any]:
    """The provenance of a result."""
    described = {"source": stimuli.source, "count": len(stimuli), "fingerprint": stimuli.fingerprint()}
    return {"models": [each.origin for each in found], "stimuli": described, "seed": config.seed}
