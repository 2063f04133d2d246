"""The command lines of two models, such as `thinkalike diff BASE CHANGED [key=value ...]`."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Sequence

from thinkalike.config.overrides import quoted
from thinkalike.errors import ConfigError
from thinkalike.files import is_folder, is_there

CHECKPOINT = ".ckpt"
OVERRIDE_SIGNS = "+~-"  # how options, and overrides of Hydra that are not settings, begin
HELP_FLAGS = ("-h", "--help")
# what the commands of two models call them
NAMES_OF_MODELS = {"diff": "BASE CHANGED", "lineage": "A B"}


def as_analysis(words: Sequence[str], command: str = "diff") -> list[str]:
    """Return the command line of analyze.py that the words of a command of two models stand for.

    Args:
        words: The words after the command.
        command: "diff" or "lineage", which is also the name of the measure.
    """
    if any(word in HELP_FLAGS for word in words):
        return [f"measure={command}", "--help"]
    models = list(itertools.takewhile(_is_model, words))
    if len(models) != 2:
        raise ConfigError(
            f"thinkalike {command} {NAMES_OF_MODELS[command]} [key=value ...] takes two models, "
            "by name or folder"
        )
    base, changed = models
    short_settings = names_of_short_settings(command)
    settings = []
    for word in words[2:]:
        name = re.split("[.=]", word)[0]
        if name in short_settings:
            settings.append(f"measure.{word}")
        else:
            settings.append(word)
    return [
        f"measure={command}",
        f"model={_as_value(base)}",
        f"model@target={_as_value(changed)}",
        *settings,
    ]


def names_of_short_settings(command: str) -> frozenset[str]:
    """Return the settings that may stand without "measure." before them.

    These are the settings that the measure declares itself. A name that is also a setting of the
    whole job, such as `seed`, means the latter.

    Args:
        command: "diff" or "lineage", which is also the name of the measure.
    """
    # This module is imported for every command, and the schema of a measure imports torch.
    from thinkalike.config import AnalyzeConfig, MeasureConfig, measure_schema

    names = {item.name for item in dataclasses.fields(measure_schema(command))}
    for common in (MeasureConfig, AnalyzeConfig):
        names -= {item.name for item in dataclasses.fields(common)}
    return frozenset(names)


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
        return quoted(model)
    return model
