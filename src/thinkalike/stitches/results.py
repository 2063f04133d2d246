"""The stitches of a finished result, by layer pair."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from thinkalike.arguments import Seed, checked_numbers
from thinkalike.errors import PluginError, StitchError, short
from thinkalike.measures.closed_forms import AffineMap
from thinkalike.measures.moments import LayerPair
from thinkalike.plugins import digest, is_plugin, trust
from thinkalike.stitches.kinds import CLOSED, KINDS, MOST_SEEDS, NORMS
from thinkalike.stitches.stitch import NAME, Stitch
from thinkalike.stitches.stitch_map import Site, StitchMap, explained, in_file
from thinkalike.store import Result, open_result


@dataclass(frozen=True)
class _Claims:
    """What the file of a result says of its stitches, once it is checked.

    Attributes:
        pairs: the layer pairs, in the order in which the tensors are numbered.
        widths: of the source and the target; None: the maps are closed forms, or an old file does not say it.
    """

    kind: str
    norm: str
    pairs: list[LayerPair]
    widths: list[Any] | None
    rank: Any

    @classmethod
    def of(cls, facts: Any, path: str) -> _Claims:
        """Return the claims of a file; a StitchError names the first that no stitch of this package can have."""
        if not isinstance(facts, dict):
            raise StitchError(f"cannot read {path}: what it says of its stitches is no JSON object")
        missing = [name for name in ("kind", "norm", "pairs") if name not in facts]
        if missing:
            raise StitchError(f"cannot read {path}: it does not say the {missing[0]} of its stitches")
        kind, norm, pairs, widths = facts["kind"], facts["norm"], facts["pairs"], facts.get("widths")
        if not isinstance(kind, str) or not (kind in KINDS or kind in CLOSED or is_plugin(kind)):
            known = ", ".join([*KINDS, *CLOSED])
            raise StitchError(f"cannot read {path}: its kind {short(kind)} is unknown; kinds are {known}")
        if norm not in NORMS:
            raise StitchError(f"cannot read {path}: its norm {short(norm)} is unknown; norms are {', '.join(NORMS)}")
        if not isinstance(pairs, list) or not all(map(_is_pair, pairs)):
            raise StitchError(f"cannot read {path}: its pairs {short(pairs)} must be lists of two layers, from 0 on")
        layer_pairs = [(source, target) for source, target in pairs]
        if len(set(layer_pairs)) < len(layer_pairs):
            raise StitchError(f"cannot read {path}: its pairs {short(pairs)} name a layer pair twice")
        if widths is not None and not (isinstance(widths, list) and len(widths) == 2 and all(map(_is_size, widths))):
            raise StitchError(f"cannot read {path}: its widths {short(widths)} must be two whole numbers above 0")
        return cls(kind, norm, layer_pairs, widths, facts.get("rank"))


def _is_pair(pair: Any) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and all(type(layer) is int and layer >= 0 for layer in pair)


def _is_size(size: Any) -> bool:
    return type(size) is int and size > 0


def _contents(result: Result, seed: Seed, is_back: bool) -> tuple[_Claims, str]:
    """Return what a result says of its stitches, and the prefix of the tensors of one seed and direction."""
    checked_seed = checked_numbers(_contents, {"seed": seed})["seed"]
    assert isinstance(checked_seed, int)
    seed = checked_seed
    path = _path(result)
    direction = "back." if is_back else ""
    prefix = f"{direction}seed_{seed}." if seed else direction
    if NAME not in result.files:
        found = f"{result.place} keeps no stitches (its kind is {result.kind})"
        raise StitchError(f"{found}; python train.py keeps those of every stitch= but identity")
    with explained(f"cannot read {path}"), result.opened_tensors(NAME) as file:
        claims = _Claims.of(json.loads(file.metadata()["stitch"]), path)
        names = list(file.keys())
    with explained(f"cannot read the stitches of {result.place}"), in_file(path):
        for pair in claims.pairs:
            _sites(result, pair)
    if not any(name.startswith(f"{prefix}0.") for name in names):
        if is_back:
            raise StitchError(f"{result.place} holds no stitches back: fit them with stitch.both=true")
        remedy = f": fit them with stitch.seeds={seed + 1}" if seed < MOST_SEEDS else "; seeds are numbered from 0"
        raise StitchError(f"{result.place} holds no stitches of seed {seed}{remedy}")
    return claims, prefix


def _path(result: Result) -> str:
    """Return what errors call the file of the stitches of a result."""
    return f"{result.place}/{NAME}" if result.is_kept else NAME


def _sites(result: Result, pair: LayerPair) -> list[Site]:
    """Return the sites of a layer pair; a StitchError says that a model of the result does not have its layer."""
    models: Sequence[Mapping[str, Any]] = result.provenance["models"]
    return [Site.of(model, layer) for model, layer in zip(models, pair, strict=True)]


def _tensors(result: Result, prefix: str) -> dict[str, Tensor]:
    """Return the tensors of one stitch by name; a StitchError names one that does not hold real numbers."""
    path = _path(result)
    with result.opened_tensors(NAME) as file:
        tensors = {name: file.get_tensor(name) for name in file.keys() if name.startswith(prefix)}  # noqa: SIM118
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():  # load_state_dict would convert it without a word
            dtype = str(tensor.dtype).removeprefix("torch.")
            raise StitchError(f"cannot read {path}: {name} is of dtype {dtype}, and weights are floating-point numbers")
    return {name[len(prefix) :]: tensor for name, tensor in tensors.items()}


def _loaded(kind: str, widths: Sequence[Any], norm: str, rank: Any, tensors: Mapping[str, Tensor]) -> Stitch:
    """Return the stitch of tensors by name, with the widths and the rank that their file claims.

    The claim is compared with the tensors before any weights are made: a file of a kilobyte can claim any width.
    """
    width_in, width_out = widths
    sizes = [width_in, width_out, rank] if kind == "low_rank" else [width_in, width_out]
    if not all(map(_is_size, sizes)):
        raise ValueError(f"its widths or its rank are no whole numbers above 0: {str(sizes)[:60]}")
    if not is_plugin(kind):  # whose weights may be of any shape
        claimed = _least_weights(kind, width_in, width_out, norm, rank)
        stored = sum(tensor.numel() for tensor in tensors.values())
        if claimed > stored:
            of = f"{kind} from width {width_in:,} to {width_out:,}"
            raise ValueError(f"it claims a stitch of {claimed:,} weights or more ({of}), and holds {stored:,}")
    stitch = Stitch(kind, width_in, width_out, norm, rank)
    stitch.load_state_dict(dict(tensors))
    return stitch


def _least_weights(kind: str, width_in: int, width_out: int, norm: str, rank: int) -> int:
    """Return how many weights a stitch of a kind has at least."""
    of_norm = 0 if norm == "none" else min(width_in, width_out)
    if kind == "identity":
        return of_norm
    if kind == "low_rank":
        return of_norm + rank * (width_in + width_out)
    return of_norm + width_in * width_out


class UnknownPairError(StitchError, KeyError):
    """A result has no stitch of this layer pair."""

    __str__ = Exception.__str__  # a KeyError would put its message in quotes


class Stitches(Mapping[LayerPair, StitchMap]):
    """The stitches of a result, read from its file one by one as they are asked for.

    `stitches[l, m]` goes from the source's layer l to the target's layer m, `stitches[l]` from l to l; those that are
    `back` go from the target to the source.

    Raises:
        StitchError: The result holds no such stitches.
    """

    def __init__(self, result: Result, seed: int = 0, *, is_back: bool = False):
        self.result, self.seed, self.is_back = result, seed, is_back
        claims, self._prefix = _contents(result, seed, is_back)
        self._kind, self._pairs, self._widths = claims.kind, claims.pairs, claims.widths
        with explained(f"cannot read the stitches of {result.place}"):
            self._models: Sequence[Mapping[str, Any]] = result.provenance["models"]
        if claims.norm != "none" or is_plugin(claims.kind):
            settings = f"stitch={claims.kind}, stitch.norm={claims.norm}"
            if claims.widths is None:
                remedy = f", and its {NAME} does not say their widths: fit them again"
            else:
                remedy = ": thinkalike.stitches.results.stitch_modules(result) gives the modules"
            raise StitchError(f"the stitches of {result.place} may be no affine maps ({settings}){remedy}")

    @property
    def back(self) -> Stitches:
        """The stitches from the target to the source: `back[l, m]` goes from the target's layer m to the source's l."""
        return Stitches(self.result, self.seed, is_back=not self.is_back)

    def __getitem__(self, pair: int | np.integer | LayerPair) -> StitchMap:
        chosen = tuple(map(int, pair if isinstance(pair, tuple) else (pair, pair)))
        if chosen not in self._pairs:
            there = ", ".join(f"{l}→{m}" for l, m in self._pairs)  # noqa: E741
            raise UnknownPairError(f"{self.result.place} has no stitch {chosen}; there is: {there}")
        with explained(f"cannot read the stitch {chosen} of {self.result.place}"):
            fit = _folded(self._kind, _tensors(self.result, f"{self._prefix}{self._pairs.index(chosen)}."))
            widths = [fit.weight.shape[1], fit.weight.shape[0]]
            if self._widths is not None and self._widths[:: -1 if self.is_back else 1] != widths:
                raise ValueError(f"its weights are for the widths {widths}, and the file claims {self._widths}")
            sites = _sites(self.result, (chosen[0], chosen[1]))
            source, target = reversed(sites) if self.is_back else sites
            stitch = StitchMap(fit.weight, fit.bias, source, target)
            stitch.file = self.result.place if self.result.is_kept else ""
            return stitch

    def __iter__(self) -> Iterator[LayerPair]:
        return iter(self._pairs)

    def __len__(self) -> int:
        return len(self._pairs)

    def __repr__(self) -> str:
        source, target = (model["name"] for model in self._models)
        names = f"{target} into {source}" if self.is_back else f"{source} into {target}"
        return f"Stitches({names}, {self._kind}, {len(self)} layer pairs)"


def load_stitch(result: Result | str | os.PathLike[str], *, seed: int = 0) -> Stitches:
    """Return the stitches of a finished result, or of its folder, fitted with one seed, numbered from 0.

    Raises:
        StoreError: The folder holds no finished result, or a file of it is damaged.
        StitchError: See `Stitches`.

    >>> result = stitch("gelu-3l-mini", kind="least_squares", layers=[1], steps=1, report_tokens=2048)
    >>> load_stitch(result)[1, 1](torch.zeros(5, 128)).shape
    torch.Size([5, 128])
    """
    if isinstance(result, Result):
        return Stitches(open_result(result.folder) if result.is_kept else result, seed)
    return Stitches(open_result(result), seed)


def _folded(kind: str, parts: dict[str, Tensor]) -> AffineMap:
    """Return the affine map of a stitch, from its tensors by name."""
    if kind not in KINDS:  # a closed form
        return AffineMap(**{name.removeprefix("map."): each for name, each in parts.items()})
    matrices = [parts[name] for name in sorted(parts) if parts[name].dim() == 2]
    first, last = matrices[0], matrices[-1]
    widths = first.shape[1], last.shape[0]
    return _loaded(kind, widths, "none", len(first), parts).affine()


def stitch_modules(
    result: Result | str | os.PathLike[str], *, seed: int = 0, is_back: bool = False, plugin: str | None = None
) -> dict[LayerPair, Stitch]:
    """Return the trained φ of every layer pair of a result of task=stitch, or of its folder.

    Args:
        is_back: Whether to return those from the target to the source, by pairs of the target's layer and the source's.
        plugin: The file of the plugin that made the stitches; a path that the result names is never run.

    Raises:
        PluginError: The stitches are a plugin's, and `plugin` is not the very file that made them.
        StoreError: The folder holds no finished result.
        StitchError: The result keeps no stitches that were trained, or none of that seed and direction.
    """
    result = result if isinstance(result, Result) else open_result(result)
    claims, prefix = _contents(result, seed, is_back)
    if claims.widths is None:
        if claims.norm != "none" or claims.kind not in CLOSED:
            raise StitchError(f"cannot read {_path(result)}: it does not say the widths of its stitches")
        raise StitchError(f"the stitches of {result.place} were not trained: load_stitch(result) gives them")
    way, found = -1 if is_back else 1, {}
    with explained(f"cannot read the stitches of {result.place}"):
        kind = claims.kind
        if is_plugin(kind):  # the file that the caller gives, instead of the one that is stored
            here, made = f"{plugin}:{kind.rpartition(':')[2]}", result.provenance.get("plugins", [])
            if plugin is None or digest(here) not in {each["sha256"] for each in made if each["name"] == kind}:
                wanted = "give that file, unchanged, as plugin="
                raise PluginError(f"the stitches of {result.place} are made by {kind}; {wanted}")
            trust([here])
            kind = here
        for number, pair in enumerate(claims.pairs):
            tensors = _tensors(result, f"{prefix}{number}.")
            phi = _loaded(kind, claims.widths[::way], claims.norm, claims.rank, tensors)
            if not all(each.isfinite().all() for each in tensors.values()):
                raise StitchError(f"the stitch {pair} of {result.place} has weights that are not finite")
            found[pair[::way]] = phi.eval().requires_grad_(False)
    return found
