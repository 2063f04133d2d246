"""Which of the commands `train` and `analyze` has a setting."""

from __future__ import annotations

from functools import cache

import yaml

from thinkalike.config.groups import CONF, schema_node
from thinkalike.errors import short


@cache
def settings_of_command(command: str) -> frozenset[str]:
    """Return the settings and the groups of `train` or `analyze`, as `seed` and `stitch`."""
    content = yaml.safe_load((CONF / f"{command}.yaml").read_text())
    names = {*(schema_node(f"{command}_schema") or {})}
    for item in content["defaults"]:
        if isinstance(item, dict):
            names.update(group.partition("@")[0] for group in item)
    return frozenset(names)


def of_other_command(name: str) -> str:
    """Return what to say of a setting that only the other command has; "": both have it, or none.

    That a name is asked for means that the present command lacks it.
    """
    of_train = settings_of_command("train")
    of_analyze = settings_of_command("analyze")
    if name not in of_train ^ of_analyze:
        return ""
    command = "train" if name in of_train else "analyze"
    return f"{short(name)} is a setting of {command}; leave it out, or run thinkalike {command}"
