"""What a job reads besides its settings, and how its key is made of both."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from thinkalike.config import DataConfig, JobConfig, ModelConfig
from thinkalike.config.schema import SettingValues
from thinkalike.data.documents import text_fingerprint
from thinkalike.models.fingerprints import checkpoint_fingerprint
from thinkalike.models.labels import distinct_labels

# How many hexadecimal digits a key has.
KEY_DIGITS = 12


@runtime_checkable
class Fingerprinted(Protocol):
    """Something that was read, such as the stimuli of a file."""

    def fingerprint(self) -> str:
        """Return a text that changes with anything that can change a number."""
        ...


Input = str | Fingerprinted  # a fingerprint, or something that has one
Inputs = Mapping[str, Input]


def fingerprints(config: JobConfig, parts: Sequence[str]) -> dict[str, str]:
    """Return the fingerprints of the checkpoints and the text that a job reads.

    They are named as the parts of the configuration: "model" (the source), "target" and "data". If
    the job reads a model, the entry "labels" has the labels of its models, because they stand in
    the tables of the result.

    Args:
        config: The configuration.
        parts: The parts of the configuration that the job reads. Parts other than "model",
            "target" and "data" are ignored, and so are those that are not set.
    """
    by_part: dict[str, str] = {}
    models: list[ModelConfig] = []
    for side in ("model", "target"):
        model: ModelConfig | None = getattr(config, side) if side in parts else None
        if model is not None:
            by_part[side] = checkpoint_fingerprint(model)
            models.append(model)
    if models:
        by_part["labels"] = ", ".join(distinct_labels(models))

    data: DataConfig | None = config.data if "data" in parts else None
    if data is not None:
        by_part["data"] = text_fingerprint(data)
    return by_part


def contents_of(inputs: Inputs) -> dict[str, str]:
    """Return the fingerprint of each input of a job by its name."""
    return {name: fingerprint_of(value) for name, value in inputs.items()}


def fingerprint_of(value: Input) -> str:
    """Return the fingerprint of an input; a string is a fingerprint already."""
    if isinstance(value, str):
        return value
    return value.fingerprint()


def key_of(kind: str, version: int, entered: SettingValues, inputs: Inputs) -> str:
    """Return the key of a job: a hash of its kind, version, settings and inputs.

    The results of jobs are stored under their keys.

    Args:
        kind: The kind of the job, such as "cka".
        version: The version of the computation of this kind.
        entered: The settings that the job reads and that are not the default.
        inputs: What the job reads besides its settings, such as checkpoints and texts.
    """
    text = json.dumps([kind, version, entered, contents_of(inputs)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_DIGITS]
