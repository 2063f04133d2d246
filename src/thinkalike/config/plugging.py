"""`plugins=[mine.py]`: what the plugins of a command line add to the options of configuration groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.types import ChoiceSweep, Override

from thinkalike import plugins
from thinkalike.config.registry import KINDS, MEASURES, PLUGGED
from thinkalike.config.training import CLOSED, RATES, TRAINED
from thinkalike.errors import ConfigError
from thinkalike.plugins import Plugin

OWN = {
    "stitch": (*TRAINED, *CLOSED, "identity"),
    "measure": tuple(MEASURES),
    "optimizer": tuple(RATES),
}  # names that no plugin may take


def plugins_of(value: Any) -> list[str]:
    """Return the names that a value of `plugins=` gives: a list of them, or one.

    Raises:
        ConfigError: it is neither.
    """
    names = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(name, str) and name for name in names):
        raise ConfigError(f"plugins={value} must be names of modules or paths of .py files: plugins=[mine.py]")
    return list(names)


def plug_in(value: Any) -> list[Plugin]:
    """Let the options of this process be those of the package and of these plugins, and no others; returns them.

    Raises:
        ConfigError: see `plugins_of`.
        PluginError: see `activate`.
    """
    found = plugins.activate(plugins_of(value), OWN)
    for kinds in (MEASURES, KINDS):
        for name in kinds.keys() - {*OWN["measure"]}:
            if kinds[name].startswith(PLUGGED):
                del kinds[name]
        kinds |= {name: f"{PLUGGED}:{name}" for name in plugins.active("measure")}
    for name in plugins.active("stitch"):
        node = {"defaults": ["/stitch/linear@_here_", "_self_"], "kind": name, "init": "identity"}
        ConfigStore.instance().store(group="stitch", name=name, node=node)
    return found


def plug_in_those_of(parsed: Sequence[Override]) -> None:
    """Do the same for a command line; of a sweep over plugins, for the first of its jobs."""
    values = [override.value() for override in parsed if override.key_or_group == "plugins"]
    plug_in(_plain(values[-1]) if values else [])


def _plain(value: Any) -> Any:
    if isinstance(value, ChoiceSweep):
        return _plain(value.list[0])
    return [_plain(each) for each in value] if isinstance(value, list) else getattr(value, "text", value)
