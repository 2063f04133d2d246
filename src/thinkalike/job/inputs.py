"""What a job reads besides its settings, and how its key is made of both."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Protocol, runtime_checkable

from thinkalike.config import DataConfig, JobConfig, ModelConfig
from thinkalike.config.in_memory import LoadedModelConfig
from thinkalike.config.schema import SettingValues
from thinkalike.data.documents import text_fingerprint
from thinkalike.errors import listed
from thinkalike.global_state import id_of_this_call
from thinkalike.models.fingerprints import checkpoint_fingerprint
from thinkalike.models.labels import distinct_labels
from thinkalike.models.patched_libraries import patched_names

log = logging.getLogger(__name__)

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

    They are named as the parts of the configuration: "model" (the source), "target" and "data".
    There may be two further entries:

    - "labels", if the job reads a model: the labels of its models, because they stand in the
      tables of the result;
    - "patches", if code outside the libraries has replaced some of their functions in this process
      (monkey patches): the names of these functions, with a text that no other call has. It is
      only there for models that are read from files, as the files do not tell what a replaced
      function does. The digest of a model in memory accounts for its code, and stored states are
      computed already.

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
    if any(_is_described_by_files(model) for model in models):
        patches = names_of_replaced_functions(id_of_this_call())
        if patches:
            by_part["patches"] = patches

    data: DataConfig | None = config.data if "data" in parts else None
    if data is not None:
        by_part["data"] = text_fingerprint(data)
    return by_part


def _is_described_by_files(model: ModelConfig) -> bool:
    """Return whether a model is read from files and then run.

    It is false for a model in memory, and for a folder of stored states, which is not run.
    """
    return not isinstance(model, LoadedModelConfig) and not model.holds_states


@lru_cache(maxsize=1)
def names_of_replaced_functions(call_id: str) -> str:
    """Return the names of replaced functions of libraries, followed by the id of this call.

    What a replaced function reads cannot be known, so a stored result of an earlier call must not
    be taken for the result of this one. The returned text enters the key of a job, and no other
    call has it. It is "" if nothing is replaced. The last text is remembered, so that the warning
    is logged once in each call.

    Args:
        call_id: A random text that is new for each call of the package.
    """
    names = patched_names()
    if not names:
        return ""
    log.warning(
        "warning: libraries that run models hold code of your own in this process (%s), so this "
        "result is not found again",
        listed(names),
    )
    return f"{', '.join(names)} {call_id}"


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
