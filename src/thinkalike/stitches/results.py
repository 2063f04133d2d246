"""The stitches of a finished result, by layer pair."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from thinkalike.errors import PluginError, StitchError, first_line
from thinkalike.measures.closed_forms import AffineMap
from thinkalike.measures.stitch import KINDS, Stitch
from thinkalike.plugins import digest, is_plugin
from thinkalike.stitches.stitch_map import Site, StitchMap
from thinkalike.store import Result, open_result

# ------------------------------------------------------------------------------------------------- the file of stitches

NAME = "stitch.safetensors"
LayerPair = tuple[int, int]  # layer of the source, layer of the target


def write_stitches(
    folder: Path,
    tensors: Mapping[str, Tensor],
    pairs: Sequence[LayerPair],
    kind: str,
    norm: str = "none",
    **more: Any,
) -> None:
    """Write the stitches of a result into its folder.

    Args:
        tensors: by name: the number of the layer pair, then that of the part, as in "0.map.weight". Before it stands
            "seed_1." for those of a further seed, and before that "back." for those from the target to the source.
        kind: of the stitches, one of `Stitch` or a closed form.
        more: what else a `Stitch` is made of: widths and rank.
    """
    facts = {"pairs": pairs, "kind": kind, "norm": norm, **more}
    metadata = {"stitch": json.dumps(facts)}  # one entry: the order of several is not kept
    save_file(dict(tensors), folder / NAME, metadata=metadata)


def prefix(seed: int, is_back: bool) -> str:
    """Return what the names of the tensors of one seed and direction begin with; see `write_stitches`."""
    return ("back." if is_back else "") + (f"seed_{seed}." if seed else "")


def opened(path: Path) -> Any:
    """Return a file of stitches, opened; its tensors are read when they are asked for.

    Raises:
        StitchError: It is damaged.
    """
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise StitchError(f"{path} is damaged ({first_line(error)[:200]}): do the job with force=true") from error


def contents(result: Result) -> tuple[dict[str, Any], list[str]]:
    """Return the pairs, the kind and the norm of a result's stitches, and the names of its tensors.

    Raises:
        StitchError: The result has no such file, or it is damaged.
    """
    path = result.folder / NAME
    if not path.exists():
        raise StitchError(
            f"{result.folder} keeps no stitches (a {result.kind}); python train.py stitch=linear, another kind that is "
            "trained or a closed form keeps some, and so does python analyze.py measure=transfer_maps"
        )
    with opened(path) as file:
        return json.loads((file.metadata() or {}).get("stitch", "{}")), list(file.keys())


# ---------------------------------------------------------------------------------------------------------- affine maps


class UnknownPairError(StitchError, KeyError):
    """A result has no stitch of this layer pair."""

    __str__ = Exception.__str__  # a KeyError would put its message in quotes


class Stitches(Mapping[LayerPair, StitchMap]):
    """The stitches of a result, read from its file one by one as they are asked for.

    `stitches[l, m]` goes from the source's layer l to the target's layer m, `stitches[l]` from l to l.

    Args:
        result: A finished result.
        seed: The number of the seed, from 0.
        is_back: Whether it is the stitches from the target to the source.

    Raises:
        StitchError: The result holds no such stitches.
    """

    def __init__(self, result: Result, seed: int = 0, *, is_back: bool = False):
        self.result, self.seed, self.is_back = result, seed, is_back
        self._path = result.folder / NAME
        facts, self._names = contents(result)
        self._kind, self._pairs = str(facts["kind"]), [(int(l), int(m)) for l, m in facts["pairs"]]  # noqa: E741
        if facts["norm"] != "none":
            raise StitchError(
                f"the stitches of {result.folder} have a LayerNorm (stitch.norm={facts['norm']}), so they are no "
                "affine maps: fit them with stitch.norm=none"
            )
        if is_plugin(self._kind):
            raise StitchError(
                f"the stitches of {result.folder} are of a plugin (stitch={self._kind}) and may be no affine maps: "
                "thinkalike.stitches.results.stitch_modules(result) gives the modules"
            )
        self._prefix = prefix(seed, is_back)
        if not any(name.startswith(f"{self._prefix}0.") for name in self._names):
            which, remedy = ("back", "stitch.both=true") if is_back else (f"of seed {seed}", f"stitch.seeds={seed + 1}")
            raise StitchError(f"{result.folder} holds no stitches {which}: fit them with {remedy}")

    @property
    def back(self) -> Stitches:
        """The stitches from the target to the source: `back[l, m]` goes from the target's layer m to the source's l.

        Raises:
            StitchError: The result holds one direction only.
        """
        return Stitches(self.result, self.seed, is_back=not self.is_back)

    def __getitem__(self, pair: int | np.integer | LayerPair) -> StitchMap:
        sides = pair if isinstance(pair, tuple) else (pair, pair)
        chosen = tuple(int(layer) if isinstance(layer, np.integer) else layer for layer in sides)
        if chosen not in self._pairs:
            there = ", ".join(f"{l}→{m}" for l, m in self._pairs)  # noqa: E741
            raise UnknownPairError(f"{self.result.folder} has no stitch {chosen}; there is: {there}")
        fit = self._read(self._pairs.index(chosen))
        sites = [Site.of(model, layer) for model, layer in zip(self._models, chosen, strict=True)]
        source, target = reversed(sites) if self.is_back else sites
        return StitchMap(fit.weight, fit.bias, source, target)

    def __iter__(self) -> Iterator[LayerPair]:
        return iter(self._pairs)

    def __len__(self) -> int:
        return len(self._pairs)

    def __repr__(self) -> str:
        source, target = (model["name"] for model in self._models)
        names = f"{target} into {source}" if self.is_back else f"{source} into {target}"
        return f"Stitches({names}, {self._kind}, {len(self)} layer pairs)"

    @property
    def _models(self) -> Sequence[Mapping[str, Any]]:
        models: Sequence[Mapping[str, Any]] = self.result.provenance["models"]
        return models

    def _read(self, place: int) -> AffineMap:
        start = f"{self._prefix}{place}."
        with opened(self._path) as file:
            parts = {name[len(start) :]: file.get_tensor(name) for name in self._names if name.startswith(start)}
        try:
            return _folded(self._kind, parts)
        except (IndexError, RuntimeError, TypeError, ValueError) as error:  # parts are missing, left over or misshapen
            reason = first_line(error)[:200]
            raise StitchError(f"{self._path} does not hold a whole stitch {self._kind}: {reason}") from error


def load_stitch(result: Result | str | os.PathLike[str], *, seed: int = 0) -> Stitches:
    """Return the stitches of a finished result: of task=stitch, or of a measure that keeps maps.

    Args:
        result: The result, or its folder.
        seed: The number of the seed, from 0.

    Raises:
        StoreError: The folder holds no finished result, or a file of it is damaged.
        StitchError: The result holds no stitches, or none that is an affine map.
    """
    return Stitches(open_result(result.folder if isinstance(result, Result) else result), seed)


def _folded(kind: str, parts: dict[str, Tensor]) -> AffineMap:
    """Return the affine map of a stitch, from its tensors by name."""
    if kind not in KINDS:  # a closed form
        return AffineMap(**{name.removeprefix("map."): each for name, each in parts.items()})
    matrices = [parts[name] for name in sorted(parts) if parts[name].dim() == 2]
    first, last = matrices[0], matrices[-1]
    stitch = Stitch(kind, first.shape[1], last.shape[0], rank=len(first))
    stitch.load_state_dict(parts)
    return stitch.affine()


# ------------------------------------------------------------------------------------------------------ trained modules


def stitch_modules(
    result: Result | str | os.PathLike[str], *, seed: int = 0, is_back: bool = False, plugin: str | None = None
) -> dict[LayerPair, Stitch]:
    """Return the trained φ of every layer pair of a result of task=stitch.

    Args:
        result: the result, or its folder.
        seed: the number of the seed, from 0.
        is_back: whether it is those from the target to the source; pairs are then of the target's layer first.
        plugin: of stitches that a plugin made, the file of that plugin; a path that the result names is never run.

    Raises:
        PluginError: the plugin is not there, or not what it was.
        StoreError: the folder holds no finished result.
        StitchError: the result keeps no stitches that were trained, or none of that seed and direction.
    """
    result = result if isinstance(result, Result) else open_result(result)
    facts, names = contents(result)
    start = prefix(seed, is_back)
    if "widths" not in facts or not any(name.startswith(f"{start}0.") for name in names):
        which = f"of seed {seed}{', back' if is_back else ''}"
        raise StitchError(
            f"{result.folder} keeps no stitches {which} as modules: fit some with python train.py force=true"
        )
    kind = _kind(result, facts["kind"], plugin)
    tensors, found = load_file(result.folder / NAME), {}
    sides = -1 if is_back else 1
    for number, pair in enumerate(facts["pairs"]):
        own = f"{start}{number}."
        width_in, width_out = facts["widths"][::sides]
        phi = Stitch(kind, width_in, width_out, facts["norm"], facts["rank"])
        phi.load_state_dict({name[len(own) :]: each for name, each in tensors.items() if name.startswith(own)})
        layer, depth = pair[::sides]
        found[layer, depth] = phi.eval().requires_grad_(False)
    return found


def _kind(result: Result, kind: str, plugin: str | None) -> str:
    """Return the kind of stitches, with the file that the caller gave in the place of the one that the result names.

    Raises:
        PluginError: the caller gave none, or its content is not what made the result.
    """
    if not is_plugin(kind):
        return kind
    if plugin is None:
        raise PluginError(f"the stitches of {result.folder} are made by {kind}; give that file as plugin=, as it was")
    here = f"{plugin}:{kind.rpartition(':')[2]}"
    if digest(here) not in {each["sha256"] for each in result.provenance.get("plugins", []) if each["name"] == kind}:
        raise PluginError(f"{plugin} is not the file that made {result.folder}; give the file as it was")
    return here
