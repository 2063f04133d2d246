"""The command line that computes a result again: the one that is kept in it, or one made from its configuration."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from thinkalike.config import MEASURES, TASKS, as_dict, compose_job, options
from thinkalike.errors import ThinkalikeError
from thinkalike.store import Result

GROUPS = {"data": "name", "stitch": "kind", "stimuli": "kind", "population": "name", "pairs": "source"}
RUNS_WITH = ("dtype", "device", "device_map", "quantization", "context", "processing")  # what a target takes over
OF_THE_RUN = ("store", "force", "wait", "threads", "logger", "chosen", "trainer.checkpoint_every")
DEVICES = ("model.device", "target.device")

Words = tuple[str, ...]


def command_of(result: Result) -> str:
    """Return the command line that computes a result again, or nothing where none is known.

    A command line that was kept is taken, unless it is that of an experiment of which the job was a part. Otherwise it
    is made of the settings that differ from the defaults, so it holds as long as these do not change.
    """
    kept = str(result.provenance.get("command", ""))
    if _is_of_a_door(kept) and ("experiment=" not in kept or result.config.get("experiment")):
        return kept
    if not _is_known(result.config, result.kind):
        return ""
    try:
        return shlex.join(["python", f"{door_of(result.config)}.py", *words_of(result.config, result.kind)])
    except (ThinkalikeError, KeyError, TypeError, AttributeError):  # of another version, which had other settings
        return ""


def settings_of(command: str) -> str:
    """Return what tells a job from others of its kind: the words of a command line but those that name models."""
    dull = ("model=", "model@target=", "models=", "measure=", "task=", "experiment=", "data.cache=", "model.device=")
    run = tuple(f"{name}=" for name in (*OF_THE_RUN, "logger.kind", "target.device"))
    words = [word for word in shlex.split(command)[2:] if not word.startswith((*dull, *run))]
    return " ".join(word.removeprefix("measure.") for word in words)


def door_of(config: Mapping[str, Any]) -> str:
    """Return which door did a job: train or analyze."""
    return "train" if "task" in config else "analyze"


def words_of(config: Mapping[str, Any], kind: str) -> list[str]:
    """Return the words of a command line that composes a configuration, in all that its job read.

    Args:
        config: the resolved configuration of a result; a part that its job did not read is None.
        kind: the kind of the result, which is its measure where that has no settings.

    Raises:
        ThinkalikeError: it names what this version does not have.
    """
    door, base = door_of(config), _base(config, kind)
    default = _composed(door, tuple(base))
    job = tuple(filter(None, [_job_word(config, kind)]))
    words = [*base, *_target_words(config, default, job)]
    for name, part in config.items():
        if name not in (*OF_THE_RUN, "target", "task", "experiment", "scale", "recipe") and part is not None:
            words += _differing(name, default.get(name), part)
    return words


def _base(config: Mapping[str, Any], kind: str) -> list[str]:
    """Return the words that choose the job and the options of groups."""
    words = [_job_word(config, kind)]
    if model := config.get("model"):
        words.append(f"model={_option(model)}")
    for name in ("scale", "recipe"):
        if config.get(name) not in (None, "auto", "honest"):
            words.append(f"{name}={config[name]}")
    words = [word for word in words if word]
    default = _composed(door_of(config), tuple(words))
    for group, key in GROUPS.items():
        part = config.get(group)
        if part and part[key] != default[group][key] and part[key] in options(group):
            words.append(f"{group}={part[key]}")
    return words


def _is_known(config: Mapping[str, Any], kind: str) -> bool:
    """Return whether this version has the experiment, the measure or the task of a job."""
    if experiment := config.get("experiment"):
        return experiment in options("experiment")
    measure = (config.get("measure") or {"kind": kind})["kind"]
    return door_of(config) == "train" or measure in MEASURES


def _job_word(config: Mapping[str, Any], kind: str) -> str:
    """Return the word that says what a job does, or nothing for the task that a door does without one."""
    if config.get("experiment"):
        return f"experiment={config['experiment']}"
    if door_of(config) == "analyze":
        return f"measure={(config.get('measure') or {'kind': kind})['kind']}"
    task = config.get("task") or next((task for task in TASKS if config.get(task)), "stitch")
    return "" if task == "stitch" else f"task={task}"


def _option(model: Mapping[str, Any]) -> str:
    """Return the option of the group `model` that a model comes from."""
    if model["name"] in options("model"):
        return str(model["name"])
    return "local" if model.get("path") else "hub"


def _target_words(config: Mapping[str, Any], default: Mapping[str, Any], job: Words) -> Iterator[str]:
    """Yield the words that choose the target, if it is another than the source.

    Args:
        default: what the words before compose; the target takes over how the source runs where that differs from it.
        job: the word that says what the job does.
    """
    source, target = config.get("model"), config.get("target")
    if not source or not target or source == target:
        return
    start = source
    if (option := _option(target)) != _option(source) or option in ("local", "hub"):
        yield f"model@target={option}"
        start = _composed(door_of(config), (*job, f"model={option}"))["model"]
        ran = default.get("model", {})
        start = start | {key: source[key] for key in RUNS_WITH if source[key] != ran.get(key)}
    yield from _differing("target", start, target)


def _differing(key: str, default: Any, value: Any) -> Iterator[str]:
    """Yield the words for what differs from the default, from the inside of dictionaries, too."""
    if value == default or key in (*OF_THE_RUN, *DEVICES):
        return
    if isinstance(value, dict) and isinstance(default, dict) and default.keys() == value.keys():
        for name, inner in value.items():
            yield from _differing(f"{key}.{name}", default[name], inner)
    else:
        yield f"{key}={written(value)}"


def written(value: Any) -> str:
    """Return a value as Hydra reads it: keys of dictionaries without quotes, texts in quotes where they need them."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{_escaped(str(key))}:{written(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(written, value)) + "]"
    if isinstance(value, str) and value and all(letter.isalnum() or letter in "/._-~" for letter in value):
        return value if not _reads_as_another(value) else json.dumps(value)
    return json.dumps(value, ensure_ascii=False)


def _escaped(key: str) -> str:
    return "".join(f"\\{letter}" if letter in "\\()[]{}:=, \t" else letter for letter in key)


def _reads_as_another(text: str) -> bool:
    """Return whether a text without quotes is read as a number, as true or false, or as null."""
    with contextlib.suppress(ValueError):
        float(text)
        return True
    return text.lower() in ("true", "false", "null")


@cache
def _composed(door: str, words: Words) -> dict[str, Any]:
    """Return the configuration that words compose; what they need beyond that is filled in so that it can be made."""
    return as_dict(compose_job(door, [*words, *_places(words)]))


def _places(words: Words) -> list[str]:
    needs = {
        "model=local": "model.path=.",
        "model=hub": "model.hub_id=a/b",
        "data=text": "data.files=[.]",
        "stimuli=table": "stimuli.path=.",
        "stimuli=conllu": "stimuli.path=.",
    }
    return [place for word, place in needs.items() if word in words]


def _is_of_a_door(command: str) -> bool:
    words = command.split()[:2]
    return len(words) == 2 and words[1].removesuffix(".py").rpartition("/")[2] in ("train", "analyze")
