"""What a run of a job is called, so that it can be told from others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

LONGEST = 128  # characters of a name, the most that W&B takes
SAID = ("task", "measure", "experiment")  # by the kind
BESIDE = (  # said by the models' names, or of no consequence for the numbers
    "model", "models", "target", "store", "force", "wait", "logger", "trainer", "threads", "hydra", "data.files",
    "data.cache",
)  # fmt: skip


def run_name(kind: str, key: str, inputs: Mapping[str, Any], words: Sequence[str]) -> str:
    """Return the name of a run: kind, models, main settings, key, as "cka gpt2, bert measure.batches=4 9d95e636c1fb".

    Args:
        inputs: what the instrument read; of models it holds their labels.
        words: those of the job's command line, as many of which are in the name as there is room for.
    """
    labels = inputs.get("labels") or inputs.get("names") or ""
    models = ", ".join(dict.fromkeys(str(labels).split(", "))) if isinstance(labels, str) else ""
    name = " ".join([kind, *([models] if models else [])])
    for word in words:
        if _telling(word) and len(f"{name} {word} {key}") <= LONGEST:
            name = f"{name} {word}"
    return f"{name[: LONGEST - len(key) - 1]} {key}"


def _telling(word: str) -> bool:
    """Return whether a word says more than kind and models do, and can change numbers."""
    setting = word.lstrip("+~").partition("=")[0]
    inside = tuple(f"{part}{mark}" for part in BESIDE for mark in ".@/")
    return setting not in (*SAID, *BESIDE) and not setting.startswith(inside)
