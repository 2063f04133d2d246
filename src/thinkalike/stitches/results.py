"""The stitches of a finished result, by layer pair."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from thinkalike.errors import StitchError, first_line
from thinkalike.measures import AffineMap, Stitch
from thinkalike.measures.stitching.stitch import KINDS
from thinkalike.stitches.files import NAME, LayerPair, contents, opened, prefix
from thinkalike.stitches.site import Site
from thinkalike.stitches.stitch_map import StitchMap
from thinkalike.store import Result, open_result


class UnknownPairError(StitchError, KeyError):
    """A result has no stitch of this layer pair."""

    __str__ = Exception.__str__  # a KeyError would put its message in quotes


class Stitches(Mapping[LayerPair, StitchMap]):
    """The stitches of a result, read from its file one by one as they are asked for.

    `stitches[l, m]` goes from the source's layer l to the target's layer m, `stitches[l]` from l to l.

    Args:
        result: A finished result.
        seed: Which of several seeds, from 0.
        is_back: Whether it is the stitches from the target to the source.

    Raises:
        StitchError: The result holds no such stitches.
    """

    def __init__(self, result: Result, seed: int = 0, *, is_back: bool = False):
        self.result, self.seed, self.is_back = result, seed, is_back
        self._path = result.folder / NAME
        facts, self._names = _contents(result)
        self._kind, self._pairs = str(facts["kind"]), [(int(l), int(m)) for l, m in facts["pairs"]]  # noqa: E741
        if facts["norm"] != "none":
            raise StitchError(
                f"the stitches of {result.folder} have a LayerNorm (stitch.norm={facts['norm']}), so they are no "
                "affine maps: fit them with stitch.norm=none"
            )
        if any(f"stitch {self._kind}" in plugin["adds"] for plugin in result.provenance.get("plugins", [])):
            raise StitchError(
                f"the stitches of {result.folder} are of a plugin (stitch={self._kind}) and may be no affine maps: "
                "thinkalike.stitches.stitch_modules(result) gives the modules"
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
        seed: Which of several seeds, from 0.

    Raises:
        StoreError: The folder holds no finished result, or a file of it is damaged.
        StitchError: The result holds no stitches, or none that is an affine map.
    """
    return Stitches(open_result(result.folder if isinstance(result, Result) else result), seed)


def _contents(result: Result) -> tuple[dict[str, Any], list[str]]:
    """Return `contents` of the file of a result.

    Raises:
        StitchError: There is no such file, or it is damaged.
    """
    path = result.folder / NAME
    if not path.exists():
        stitching = result.kind == "stitching"
        what = "of the identity, which have no weights" if stitching else f"in a result of {result.kind}"
        raise StitchError(
            f"{result.folder} keeps no stitches {what}; load_stitch reads results of python train.py stitch=linear, "
            "another kind that is trained, or a closed form, and of python analyze.py measure=transfer_maps"
        )
    return contents(path)


def _folded(kind: str, parts: dict[str, Tensor]) -> AffineMap:
    """Return the affine map of a stitch, from its tensors by name."""
    if kind not in KINDS:  # a closed form
        return AffineMap(**{name.removeprefix("map."): each for name, each in parts.items()})
    matrices = [parts[name] for name in sorted(parts) if parts[name].dim() == 2]
    first, last = matrices[0], matrices[-1]
    stitch = Stitch(kind, first.shape[1], last.shape[0], rank=len(first))
    stitch.load_state_dict(parts)
    return stitch.affine()
