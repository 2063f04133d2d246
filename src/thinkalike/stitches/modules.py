"""The stitches that a job trained, as the modules that they were: those of plugins, and those with a LayerNorm, too."""

from __future__ import annotations

import os

from safetensors.torch import load_file

from thinkalike.config import plug_in
from thinkalike.errors import PluginError, StitchError
from thinkalike.measures import Stitch
from thinkalike.plugins import fingerprint
from thinkalike.stitches.files import NAME, LayerPair, contents, prefix
from thinkalike.store import Result, open_result


def stitch_modules(
    result: Result | str | os.PathLike[str], *, seed: int = 0, is_back: bool = False, plugin: str | None = None
) -> dict[LayerPair, Stitch]:
    """Return the trained φ of every layer pair of a result of task=stitch.

    Args:
        result: the result, or its folder.
        seed: which of several seeds, from 0.
        is_back: whether it is those from the target to the source; pairs are then of the target's layer first.
        plugin: where the plugin is now that made them; by default where it was.

    Raises:
        PluginError: the plugin is not there, or not what it was.
        StoreError: the folder holds no finished result.
        StitchError: the result keeps no stitches that were trained, or none of that seed and direction.
    """
    result = result if isinstance(result, Result) else open_result(result)
    path = result.folder / NAME
    facts, names = contents(path) if path.exists() else ({}, [])
    start = prefix(seed, is_back)
    if "widths" not in facts or not any(name.startswith(f"{start}0.") for name in names):
        which = f"of seed {seed}{', back' if is_back else ''}"
        raise StitchError(
            f"{result.folder} keeps no stitches {which} as modules: fit some with python train.py force=true"
        )
    _plug_in(result, plugin)
    tensors, found = load_file(path), {}
    sides = -1 if is_back else 1
    for number, pair in enumerate(facts["pairs"]):
        own = f"{start}{number}."
        width_in, width_out = facts["widths"][::sides]
        phi = Stitch(facts["kind"], width_in, width_out, facts["norm"], facts["rank"])
        phi.load_state_dict({name[len(own) :]: each for name, each in tensors.items() if name.startswith(own)})
        layer, depth = pair[::sides]
        found[layer, depth] = phi.eval().requires_grad_(False)
    return found


def _plug_in(result: Result, place: str | None) -> None:
    """Let this process know the plugins of a result.

    Raises:
        PluginError: one is not there, or has changed.
    """
    before = result.provenance.get("plugins", [])
    now = plug_in([place] if place else [each["name"] for each in before])
    if fingerprint(now) != " ".join(sorted(each["sha256"] for each in before)):
        names = ", ".join(each["name"] for each in before) or "none"
        raise PluginError(
            f"{result.folder} was made with plugins {names}, which are not those that are here: give the file as it was"
        )
