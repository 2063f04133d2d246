"""The stitches of a finished result, by layer pair."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np
from torch import Tensor

from thinkalike.advice import named_setting
from thinkalike.arguments import Seed, checked_numbers
from thinkalike.errors import PluginError, StitchError, short
from thinkalike.global_state import without_default_device
from thinkalike.measures.closed_forms import AffineMap
from thinkalike.measures.moments import LayerPair
from thinkalike.plugins import digest, is_plugin, trust
from thinkalike.stitches.errors import explaining_file_errors, in_file
from thinkalike.stitches.kinds import CLOSED, KINDS, MOST_SEEDS, NORMS
from thinkalike.stitches.site import Site
from thinkalike.stitches.stitch import NAME, StitchModule
from thinkalike.stitches.stitch_map import StitchMap
from thinkalike.store import Result, open_result


@dataclass(frozen=True)
class _StatedFacts:
    """What the metadata of a file states about the stitches in it, once this is checked.

    Attributes:
        kind: that of the stitches.
        norm: where they have a LayerNorm.
        pairs: the layer pairs, in the order in which the tensors are numbered.
        widths: of the source and the target; None: the maps are closed forms, or an old file does
            not say it.
        rank: that of low_rank; it is not checked yet.
    """

    kind: str
    norm: str
    pairs: list[LayerPair]
    widths: list[int] | None
    rank: object

    @classmethod
    def of(cls, facts: object, path: str) -> _StatedFacts:
        """Check the facts about its stitches that a file states, and return them.

        Args:
            facts: The parsed JSON of the file's metadata.
            path: What errors call the file.

        Raises:
            StitchError: A fact is missing, or impossible for stitches of this package.
        """
        try:
            return cls._checked(facts)
        except _ImpossibleFact as problem:
            raise StitchError(f"cannot read {path}: {problem}") from None

    @classmethod
    def _checked(cls, facts: object) -> _StatedFacts:
        """Check the facts about its stitches that a file states, and return them.

        The rank is returned unchecked: who makes the stitches checks it.

        Args:
            facts: The parsed JSON of the file's metadata, which may be anything.

        Raises:
            _ImpossibleFact: A fact is missing, or impossible for stitches of this package.
        """
        if not isinstance(facts, dict):
            raise _ImpossibleFact("what it says of its stitches is no JSON object")
        for name in ("kind", "norm", "pairs"):
            if name not in facts:
                raise _ImpossibleFact(f"it does not say the {name} of its stitches")
        kind = facts["kind"]
        norm = facts["norm"]
        pairs = facts["pairs"]
        widths = facts.get("widths")

        if not isinstance(kind, str) or not (kind in (*KINDS, *CLOSED) or is_plugin(kind)):
            known_kinds = ", ".join([*KINDS, *CLOSED])
            raise _ImpossibleFact(f"its kind {short(kind)} is unknown; kinds are {known_kinds}")
        if norm not in NORMS:
            known_norms = ", ".join(NORMS)
            raise _ImpossibleFact(f"its norm {short(norm)} is unknown; norms are {known_norms}")
        if not isinstance(pairs, list) or not all(map(_is_pair, pairs)):
            raise _ImpossibleFact(
                f"its pairs {short(pairs)} must be lists of two layers, from 0 on"
            )
        layer_pairs = [(source, target) for source, target in pairs]
        if len(set(layer_pairs)) < len(layer_pairs):
            raise _ImpossibleFact(f"its pairs {short(pairs)} name a layer pair twice")
        if widths is not None and not _are_widths(widths):
            raise _ImpossibleFact(f"its widths {short(widths)} must be two whole numbers above 0")
        return cls(kind, norm, layer_pairs, widths, facts.get("rank"))


class _ImpossibleFact(Exception):
    """A file states something about its stitches that stitches of this package cannot have."""


def _is_pair(pair: object) -> bool:
    """Return whether a value, which may come from any file, is a pair of layers."""
    if not isinstance(pair, list) or len(pair) != 2:
        return False
    return all(type(layer) is int and layer >= 0 for layer in pair)


def _are_widths(widths: object) -> bool:
    """Return whether a value, which may come from any file, is a list of two widths."""
    return isinstance(widths, list) and len(widths) == 2 and all(map(_is_size, widths))


def _is_size(size: object) -> TypeGuard[int]:
    """Return whether a value, which may come from any file, is a whole number above 0."""
    return type(size) is int and size > 0


def _stated_facts(result: Result, seed: Seed, is_back: bool) -> tuple[_StatedFacts, str]:
    """Return the facts about a result's stitches, and the prefix of the names of their tensors.

    The prefix is that of the stitches of one seed and one direction.

    Args:
        result: The result.
        seed: The seed of the fits, numbered from 0.
        is_back: Whether the stitches from the target to the source are asked for.

    Raises:
        StitchError: The result has no such stitches, or their file is damaged.
    """
    checked_seed = checked_numbers(_stated_facts, {"seed": seed})["seed"]
    assert isinstance(checked_seed, int)
    seed = checked_seed
    path = _path_in_words(result)
    prefix = ""
    if is_back:
        prefix = "back."
    if seed:
        prefix += f"seed_{seed}."

    if NAME not in result.files:
        raise StitchError(
            f"{result.place} keeps no stitches (its kind is {result.kind}); "
            "python train.py keeps those of every stitch= but identity"
        )
    with explaining_file_errors(f"cannot read {path}"), result.opened_tensors(NAME) as file:
        stated = _StatedFacts.of(json.loads(file.metadata()["stitch"]), path)
        names = list(file.keys())
    with explaining_file_errors(f"cannot read the stitches of {result.place}"), in_file(path):
        for pair in stated.pairs:
            _sites(result, pair)  # raises an error if a model lacks a layer

    if not any(name.startswith(f"{prefix}0.") for name in names):
        if is_back:
            raise StitchError(
                f"{result.place} holds no stitches back: fit them with "
                f"{named_setting('stitch.both', True)}"
            )
        remedy = "; seeds are numbered from 0"
        if seed < MOST_SEEDS:
            remedy = f": fit them with {named_setting('stitch.seeds', seed + 1)}"
        raise StitchError(f"{result.place} holds no stitches of seed {seed}{remedy}")
    return stated, prefix


def _path_in_words(result: Result) -> str:
    """Return what errors call the file of a result's stitches, with its folder if it has one."""
    if result.is_kept:
        return f"{result.place}/{NAME}"
    return NAME


def _sites(result: Result, pair: LayerPair) -> tuple[Site, Site]:
    """Return the site in the source and the site in the target of a layer pair.

    The two models are those that the result was made from, as it describes them.

    Raises:
        StitchError: One of the two models does not have its layer.
    """
    source, target = result.provenance["models"]
    source_layer, target_layer = pair
    return Site.of(source, source_layer), Site.of(target, target_layer)


def _tensors(result: Result, prefix: str) -> dict[str, Tensor]:
    """Read the tensors of one stitch from a result's file of stitches; names lose the prefix.

    Args:
        result: The result.
        prefix: What the names of the stitch's tensors in the file begin with.

    Raises:
        StitchError: A tensor is not of floating-point numbers.
    """
    tensors = {}
    with result.opened_tensors(NAME) as file:
        names = list(file.keys())
        for name in names:
            if name.startswith(prefix):
                tensors[name.removeprefix(prefix)] = file.get_tensor(name)
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():  # `load_state_dict` would convert it silently
            dtype = str(tensor.dtype).removeprefix("torch.")
            raise StitchError(
                f"cannot read {_path_in_words(result)}: {prefix}{name} is of dtype {dtype}, "
                "and weights are floating-point numbers"
            )
    return tensors


def _stitch_of_tensors(
    kind: str, widths: Sequence[int], norm: str, rank: object, tensors: Mapping[str, Tensor]
) -> StitchModule:
    """Return a trained stitch with stored weights.

    The widths and the rank, which a file states, are compared with the size of the tensors before
    any memory is allocated: a file of a kilobyte can state any width.

    Args:
        kind: The kind of the stitch.
        widths: The widths of the states that it maps from and to.
        norm: Where it has a LayerNorm.
        rank: The rank of a stitch of low rank, as a file states it: a value of any type. Other
            kinds ignore it, but a file states it for all of them.
        tensors: Its weights by name.

    Raises:
        ValueError: The rank is no whole number above 0, or there are fewer weights than a stitch
            of these widths has.
        RuntimeError: The tensors do not fit the stitch.
    """
    width_in, width_out = widths
    if not _is_size(rank):
        raise ValueError(
            f"its widths or its rank are no whole numbers above 0: {str([*widths, rank])[:60]}"
        )
    # The weights of a user's module may have any shape.
    if not is_plugin(kind):
        least = _least_weight_count(kind, width_in, width_out, norm, rank)
        stored = sum(tensor.numel() for tensor in tensors.values())
        if least > stored:
            raise ValueError(
                f"it claims a stitch of {least:,} weights or more "
                f"({kind} from width {width_in:,} to {width_out:,}), and holds {stored:,}"
            )
    stitch = StitchModule(kind, width_in, width_out, norm, rank)
    stitch.load_state_dict(dict(tensors))
    return stitch


def _least_weight_count(kind: str, width_in: int, width_out: int, norm: str, rank: int) -> int:
    """Return a lower bound of the number of weights of a stitch: its matrices and a LayerNorm.

    The identity has no matrix, low_rank has two of rank `rank`, and other kinds have at least one.
    Biases are not counted.
    """
    count = 0
    if norm != "none":
        # A LayerNorm before the map has a gain of the width in, and one after it of the width out.
        count += min(width_in, width_out)
    if kind == "low_rank":
        count += rank * (width_in + width_out)
    elif kind != "identity":
        count += width_in * width_out
    return count


class UnknownPairError(StitchError, KeyError):
    """A result has no stitch of this layer pair."""

    __str__ = Exception.__str__  # a KeyError would put its message in quotes


class Stitches(Mapping[LayerPair, StitchMap]):
    """The stitches of a result, read from its file one by one as they are asked for.

    `stitches[l, m]` goes from the source's layer l to the target's layer m, `stitches[l]` from l
    to l; those that are `back` go from the target to the source.

    Raises:
        StitchError: The result holds no such stitches.
    """

    def __init__(self, result: Result, seed: int = 0, *, is_back: bool = False):
        """Check what the file of the result states about its stitches; read no weights yet.

        Stitches with a LayerNorm or from a plugin are refused, as they may be no affine maps.

        Args:
            result: The result.
            seed: The seed of the fits, numbered from 0.
            is_back: Whether the stitches are those from the target to the source.
        """
        self.result = result
        self.seed = seed
        self.is_back = is_back
        stated, self._prefix = _stated_facts(result, seed, is_back)
        self._kind = stated.kind
        self._pairs = stated.pairs
        self._widths = stated.widths
        with explaining_file_errors(f"cannot read the stitches of {result.place}"):
            self._names = [str(model["name"]) for model in result.provenance["models"]]

        may_be_no_affine_map = stated.norm != "none" or is_plugin(stated.kind)
        if may_be_no_affine_map:
            settings = (
                f"{named_setting('stitch', stated.kind)}, "
                f"{named_setting('stitch.norm', stated.norm)}"
            )
            remedy = ": thinkalike.stitches.results.stitch_modules(result) gives the modules"
            if stated.widths is None:  # an old file, from which no module can be made
                remedy = f", and its {NAME} does not say their widths: fit them again"
            raise StitchError(
                f"the stitches of {result.place} may be no affine maps ({settings}){remedy}"
            )

    @property
    def back(self) -> Stitches:
        """The stitches of the opposite direction.

        If `stitches[l, m]` goes from the source's layer l to the target's layer m, then
        `stitches.back[l, m]` goes from the target's layer m to the source's layer l.
        """
        return Stitches(self.result, self.seed, is_back=not self.is_back)

    @without_default_device()
    def __getitem__(self, pair: int | np.integer | LayerPair) -> StitchMap:
        """Read the stitch of a layer pair (l, m) and return it as an affine map with its sites.

        l is the layer of the source and m that of the target, also for stitches back. A single
        number l stands for (l, l).

        Raises:
            UnknownPairError: The result has no stitch of this pair.
            StitchError: Its tensors are damaged.
        """
        layer_pair = _layer_pair(pair)
        if layer_pair not in self._pairs:
            known_pairs = ", ".join(f"{source}→{target}" for source, target in self._pairs)
            raise UnknownPairError(
                f"{self.result.place} has no stitch {layer_pair}; there is: {known_pairs}"
            )
        with explaining_file_errors(f"cannot read the stitch {layer_pair} of {self.result.place}"):
            number = self._pairs.index(layer_pair)  # by which its tensors are named
            tensors = _tensors(self.result, f"{self._prefix}{number}.")
            affine = _affine_map_of(self._kind, tensors)
            self._check_widths(affine)
            source, target = _sites(self.result, layer_pair)
            sites = (source, target)
            if self.is_back:  # it maps the target's states to the source's
                sites = (target, source)
            stitch = StitchMap(affine.weight, affine.bias, *sites)
            if self.result.is_kept:  # in a folder, which errors of the stitch can name
                stitch.file = self.result.place
            return stitch

    def _check_widths(self, affine: AffineMap) -> None:
        """Raise a ValueError if the file states other widths than those of a map.

        A file of closed forms and an old file state none, and all widths pass.
        """
        if self._widths is None:
            return
        stated_widths = self._widths  # of the source and the target
        if self.is_back:
            stated_widths = self._widths[::-1]
        width_out, width_in = affine.weight.shape
        if stated_widths != [width_in, width_out]:
            raise ValueError(
                f"its weights are for the widths {[width_in, width_out]}, "
                f"and the file claims {self._widths}"
            )

    def __iter__(self) -> Iterator[LayerPair]:
        return iter(self._pairs)

    def __len__(self) -> int:
        return len(self._pairs)

    def __repr__(self) -> str:
        """Return the names of the models, the kind, and the number of layer pairs."""
        source, target = self._names
        names = f"{source} into {target}"
        if self.is_back:
            names = f"{target} into {source}"
        return f"Stitches({names}, {self._kind}, {len(self)} layer pairs)"


def _layer_pair(pair: int | np.integer | LayerPair) -> LayerPair:
    """Return a key of `Stitches` as a layer pair; a single layer l stands for (l, l)."""
    if isinstance(pair, tuple):
        source, target = pair
        return int(source), int(target)
    return int(pair), int(pair)


def load_stitch(result: Result | str | os.PathLike[str], *, seed: int = 0) -> Stitches:
    """Return the stitches of a finished result as affine maps, by layer pair.

    Args:
        result: The result, or its folder.
        seed: The seed with which the stitches were fitted; seeds are numbered from 0.

    Raises:
        StoreError: The folder holds no finished result, or a file of it is damaged.
        StitchError: The result holds no stitches of the seed, or they may be no affine maps, as
            those with a LayerNorm or from a plugin.

    >>> quick = {"steps": 1, "evaluation_tokens": 2048}
    >>> result = stitch("gelu-3l-mini", kind="least_squares", layers=[1], **quick)
    >>> load_stitch(result)[1, 1](torch.zeros(5, 128)).shape
    torch.Size([5, 128])
    """
    if not isinstance(result, Result):
        return Stitches(open_result(result), seed)
    if result.is_kept:  # opened again, which checks that its files are undamaged
        return Stitches(open_result(result.folder), seed)
    return Stitches(result, seed)  # it is in memory, without files


def _affine_map_of(kind: str, tensors: dict[str, Tensor]) -> AffineMap:
    """Return the affine map that the stored tensors of a stitch stand for.

    Args:
        kind: The kind of the stitch: a trained kind, or the name of a closed form. It has no
            LayerNorm.
        tensors: Its tensors by name.
    """
    if kind not in KINDS:  # a closed form has the tensors "map.weight" and "map.bias"
        tensors = {name.removeprefix("map."): tensor for name, tensor in tensors.items()}
        return AffineMap(**tensors)
    matrices = [tensors[name] for name in sorted(tensors) if tensors[name].dim() == 2]
    # Two factors of a map of low rank, in the order in which they are applied, or one matrix, or
    # for an orthogonal map several of one size.
    first = matrices[0]
    last = matrices[-1]
    widths = (first.shape[1], last.shape[0])
    rank = len(first)  # ignored by all kinds but low_rank
    stitch = _stitch_of_tensors(kind, widths, norm="none", rank=rank, tensors=tensors)
    return stitch.affine()


@without_default_device()
def stitch_modules(
    result: Result | str | os.PathLike[str],
    *,
    seed: int = 0,
    is_back: bool = False,
    plugin: str | None = None,
) -> dict[LayerPair, StitchModule]:
    """Return the trained φ of every layer pair of a result of task=stitch, or of its folder.

    Args:
        result: The result, or its folder.
        seed: Of the fits, numbered from 0.
        is_back: Whether to return those from the target to the source, by pairs of the target's
            layer and the source's.
        plugin: The file of the plugin that made the stitches; a path that the result names is
            never run.

    Raises:
        PluginError: The stitches are a plugin's, and `plugin` is not the very file that made them.
        StoreError: The folder holds no finished result.
        StitchError: The result keeps no stitches that were trained, or none of that seed and
            direction.
    """
    if not isinstance(result, Result):
        result = open_result(result)
    stated, prefix = _stated_facts(result, seed, is_back)
    widths = stated.widths
    if widths is None:
        if stated.norm != "none" or stated.kind not in CLOSED:
            raise StitchError(
                f"cannot read {_path_in_words(result)}: it does not say the widths of its stitches"
            )
        raise StitchError(
            f"the stitches of {result.place} were not trained: load_stitch(result) gives them"
        )
    if is_back:
        widths = widths[::-1]

    modules = {}
    with explaining_file_errors(f"cannot read the stitches of {result.place}"):
        kind = stated.kind
        if is_plugin(kind):
            kind = _trusted_plugin(result, kind, plugin)
        for number, (source_layer, target_layer) in enumerate(stated.pairs):
            tensors = _tensors(result, f"{prefix}{number}.")
            phi = _stitch_of_tensors(kind, widths, stated.norm, stated.rank, tensors)
            if not all(tensor.isfinite().all() for tensor in tensors.values()):
                pair = (source_layer, target_layer)
                raise StitchError(
                    f"the stitch {pair} of {result.place} has weights that are not finite"
                )
            key = (source_layer, target_layer)
            if is_back:
                key = (target_layer, source_layer)
            modules[key] = phi.eval().requires_grad_(False)
    return modules


def _trusted_plugin(result: Result, stored_kind: str, plugin: str | None) -> str:
    """Return the kind FILE.py:NAME of a plugin's stitches, with FILE.py as the caller gives it.

    From now on the file may be run, because the caller has named it and its content is that of the
    file that made the stitches (by digest). A path that only a result names is never run.

    Args:
        result: The result, whose provenance has the digests of its plugins.
        stored_kind: The kind FILE.py:NAME that the result states.
        plugin: The path of the file that the caller gives; None if none is given.

    Raises:
        PluginError: No path is given, or its file is not the one that made the stitches.
    """
    name = stored_kind.rpartition(":")[2]
    given_kind = f"{plugin}:{name}"
    stored_digests = set()
    for facts in result.provenance.get("plugins", []):
        if facts["name"] == stored_kind:
            stored_digests.add(facts["sha256"])
    if plugin is None or digest(given_kind) not in stored_digests:
        raise PluginError(
            f"the stitches of {result.place} are made by {stored_kind}; "
            "give that file, unchanged, as plugin="
        )
    trust([given_kind])
    return given_kind
