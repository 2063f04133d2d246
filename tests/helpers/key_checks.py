"""What enters the key of a result, and what does not."""

import dataclasses
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from conftest import composed
from thinkalike.config import (
    DataConfig,
    key_settings,
    measure_schema,
)
from thinkalike.config.parts import model_settings
from thinkalike.config.schema import left_out_of
from thinkalike.former_names import FORMER_NAMES, with_former_names
from thinkalike.instruments import instrument_of

NEUTRAL = {
    "store", "force", "screen", "wait", "logger.kind", "logger.project", "logger.entity", "logger.group", "data.cache",
    "model.device_map", "target.device_map", "data.group",
    "data.files", "model.path", "target.path", "model.device", "target.device", "trainer.checkpoint_every",
    "trainer.memory", "trainer.recompute", "stimuli.path", "activations", "threads", "chosen", "models", "dry_run",
    "budget", "model.base", "target.base", "model.implausible", "target.implausible", "trainer.log_every",
}  # fmt: skip


def leaves(value, prefix=""):
    for item in dataclasses.fields(value):
        inner = getattr(value, item.name)
        name = f"{prefix}{item.name}"
        yield from leaves(inner, f"{name}.") if dataclasses.is_dataclass(inner) else [(value, item.name, name)]


def outside_the_key(root, **model) -> set[str]:
    """The settings of a job that can change without a change of what its key is made of.

    Args:
        model: further settings of its models, with values that are not the defaults.
    """

    def made():
        models = {name: model_settings(name=name, **model) for name in ("model", "target")}
        return root(**models, data=DataConfig(name="stdlib"))

    outside = set()
    for number, (_, _, name) in enumerate(leaves(made())):
        changed = made()
        plain = json.dumps(key_settings(changed), sort_keys=True)
        owner, attribute, _ = list(leaves(changed))[number]
        setattr(owner, attribute, "something else")
        if json.dumps(key_settings(changed), sort_keys=True) == plain:
            outside.add(name)
    return outside


def check_defaults(file: Path, schemas: Iterable[Any], measures: Iterable[str]) -> None:
    """Check that the defaults of schemas and of the settings of measures are those that a file holds."""
    by_name = {schema.__name__: schema for schema in schemas}
    by_name |= {f"measure={kind}": measure_schema(kind) for kind in measures}
    known = json.loads(file.read_text())
    for name, values in known.items():
        items = {FORMER_NAMES.get(item.name, item.name): item for item in dataclasses.fields(by_name[name])}
        found = with_former_names({key: left_out_of(items[key]) for key in values})
        assert found == values, name
    assert set(known) <= set(by_name), f"{file} has the defaults of schemas that results were stored with"


def key_of_settings(line: str) -> str:
    """A hash of all that the settings of a command line give to the key of its result."""
    entry, *words = line.split(" ")
    config = composed(*words, entry=entry)
    kind = instrument_of(config)
    entered = kind.key_settings(kind.completed(config))
    return hashlib.sha256(json.dumps([kind.kind, entered], sort_keys=True).encode()).hexdigest()[:12]
