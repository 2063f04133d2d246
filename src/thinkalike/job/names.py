"""What a run of a job is called, so that it can be told from others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thinkalike.config import flat, written

SHOWN = 5  # settings in a name
PARTS_OF_MODELS = ("model.", "target.")
FOLLOWING = "data."  # settings that mostly follow from the name of the data


def run_name(kind: str, key: str, entered: Mapping[str, Any], inputs: Mapping[str, Any]) -> str:
    """Return the name of a run: its kind, models, main settings and key, such as "cka gpt2, bert batches=4 9d95e636".

    Args:
        entered: the settings that differ from their defaults and can change the numbers.
        inputs: what the instrument read; of models it holds their labels.
    """
    labels = inputs.get("labels") or inputs.get("names") or ""
    models = ", ".join(dict.fromkeys(str(labels).split(", "))) if isinstance(labels, str) else ""
    settings = [written(name, value) for name, value in flat(entered).items() if _telling(name)]
    return " ".join([kind, *([models] if models else []), *settings[:SHOWN], key])


def _telling(name: str) -> bool:
    if name.startswith(PARTS_OF_MODELS) or name == "measure.kind":
        return False
    return name == "data.name" or not name.startswith(FOLLOWING)
