"""The command line of `thinkalike diff BASE CHANGED [key=value ...]`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from thinkalike.errors import ConfigError
from thinkalike.files import is_folder, is_there

CHECKPOINT = ".ckpt"
OVERRIDE_SIGNS = "+~-"  # how options, and overrides of Hydra that are not settings, begin
HELP_FLAGS = ("-h", "--help")
# settings of the measure that may stand without "measure." before them
SHORT_SETTINGS = (
    "margin",
    "null",
    "tokens",
    "tokens_per_part",
    "contrast",
    "path",
    "pairs",
    "steps",
    "other",
)


def as_analysis(words: Sequence[str]) -> list[str]:
    """Return the command line of analyze.py that the words of `thinkalike diff` stand for."""
    if any(word in HELP_FLAGS for word in words):
        return ["measure=diff", "--help"]
    models = list(itertools.takewhile(_is_model, words))
    if len(models) != 2:
        raise ConfigError(
            "thinkalike diff BASE CHANGED [key=value ...] takes two models, by name or folder"
        )
    base, changed = models
    settings = []
    for word in words[2:]:
        name = re.split("[.=]", word)[0]
        if name in SHORT_SETTINGS:
            settings.append(f"measure.{word}")
        else:
            settings.append(word)
    return [
        "measure=diff",
        f"model={_as_value(base)}",
        f"model@target={_as_value(changed)}",
        *settings,
    ]


def _is_model(word: str) -> bool:
    """Return whether a word names a model, and is neither an option nor a setting."""
    if not word or word[0] in OVERRIDE_SIGNS:
        return False
    if "=" not in word:
        return True
    return word.endswith(CHECKPOINT) or is_there(word)  # such as epoch=0-step=500.ckpt


def _as_value(model: str) -> str:
    """Return a model as the value of a setting.

    A folder of the working folder becomes a path, and what Hydra would interpret gets quotes.
    """
    is_in_working_folder = "/" not in model and (is_folder(model) or model.endswith(CHECKPOINT))
    if is_in_working_folder:
        model = f"./{model}"
    if "=" in model or model.startswith("{"):
        return f"'{model}'"
    return model
