"""The contract of a measure of layer pairs: prepare each layer once, compare prepared ones, move rows of prepared ones.

mine = LayerMeasure(prepare, each_pair(compare), rows_in_order)
mine.of(X, Y)                   # (n, d) and (n, e): one number
mine.matrix([X0, X1], [Y0])     # every layer pair, each layer prepared once
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from thinkalike.arguments import takes_arrays
from thinkalike.measures.folds import JACKKNIFE_PARTS
from thinkalike.measures.powers_of_two import size_of
from thinkalike.measures.row_groups import RowGroups, common_dtype
from thinkalike.measures.rows import labels_of_rows, places_of, rows_of

AT_ONCE = 2**16  # entries of each matrix on a CPU: those of all layers of two models stay in the cache
Pair = tuple[int, int]  # numbers of two models; a model is with itself, too


class Blocks(NamedTuple):
    """The layers of several models, by their places in a list of different layers, and which models are compared.

    Two models are compared in the same steps, with operands of the same shapes, in any company: to the bit the same.
    """

    models: Sequence[Sequence[int]]
    pairs: Sequence[Pair]

    def by_model(self, parts: Sequence[Tensor]) -> list[Tensor]:
        return [torch.stack([parts[place] for place in places]) for places in self.models]


def joined(blocks: Mapping[Pair, Tensor], pair: Pair) -> Float[Tensor, "k k"]:
    """Return the matrix of all layers of the first model and then the second."""
    first, second = pair
    across = blocks[pair]
    above = torch.cat([blocks[first, first], across], 1)
    return torch.cat([above, torch.cat([across.T, blocks[second, second]], 1)])


CompareAll = Callable[[Sequence[Any], Blocks], dict[Pair, Tensor]]


@dataclass(frozen=True)
class LayerMeasure:
    """A measure of two layers of the same n rows.

    Attributes:
        prepare: Makes a layer, (n, d), of float32 or float64, with its name in errors, into what is compared.
        compare: The likenesses of the prepared layers of models that are compared, by pair of models.
        moved: Returns a prepared layer with its rows in another order.
        fewest: The least number of rows.
        best: The value of a layer with itself.
        higher_is_closer: False for a distance.
        finish: Makes likenesses of all layers with all, (.., k, k), into values, where these are ratios of likenesses,
            which are summed over batches first; None if likenesses are the values.
        flatten: What a row is, see `rows_of`.
        given: The same measure within groups of rows, such as those of one token; None if there is none.
        similarities: The similarities of rows that a measure within groups compares, (g, s, s) for each size of groups.
        compare_without_parts: As `compare`, of all rows and of all but each part, (1 + parts, l, m), from the sizes of
            parts that follow one another; None: by comparing again.
        leverage: The share of a prepared layer that a single row decides.
        prepare_all: As `prepare`, of layers of one shape, (l, n, d), in their memory if this is said: a GPU, where
            launches cost more than passes over memory, takes them at once.
        is_unbiased: Whether the value expected of independent rows is the same however many there are.
        has_units: Whether a likeness grows with the squares of the sizes of both layers, which `finish` divides out.
        needed_by: What needs `fewest` rows, such as "k=10 neighbours of a row"; "": any use of the measure.
    """

    prepare: Callable[[Tensor, str], Any]
    compare: CompareAll
    moved: Callable[[Any, Tensor], Any]
    fewest: int = 4
    best: float = 1.0
    higher_is_closer: bool = True
    finish: Callable[[Tensor], Tensor] | None = None
    flatten: str = "token"
    given: Callable[[RowGroups], LayerMeasure] | None = None
    similarities: Callable[[Any], list[Tensor]] | None = None
    compare_without_parts: Callable[[Sequence[Any], Blocks, Sequence[int]], dict[Pair, Tensor]] | None = None
    leverage: Callable[[Any], Tensor] | None = None
    prepare_all: Callable[[Tensor, Sequence[str], bool], list[Any]] | None = None
    is_unbiased: bool = False
    has_units: bool = False
    needed_by: str = ""

    def prepared(
        self, layers: Sequence[Float[Tensor, "_ _"]], names: Sequence[str], order: Int[Tensor, " n"] | None = None
    ) -> list[Any]:
        """Return all layers prepared, each tensor once, of all rows or of those in `order`, copied one layer at a time.

        A ValueError says that layers have different or too few rows.
        """
        n, dtype = len(layers[0] if order is None else order), common_dtype(layers)
        check_same_rows([*map(len, layers)], names)
        if n < self.fewest:
            if self.needed_by:
                raise ValueError(f"{n} rows are too few to compare: {self.needed_by} need at least {self.fewest}")
            raise ValueError(f"{n} rows are too few to compare: give at least {self.fewest}")
        different: dict[int, tuple[str, Tensor]] = {}
        for name, layer in zip(names, layers, strict=True):
            different.setdefault(id(layer), (name, layer))
        known: dict[int, Any] = {}
        with torch.autocast(layers[0].device.type, enabled=False):
            for group in self._at_once([*different.values()]):
                rows = [(layer if order is None else layer.index_select(0, order)).to(dtype) for _, layer in group]
                if self.prepare_all is None:
                    made = [self.prepare(rows[0], group[0][0])]
                else:
                    stacked = torch.stack(rows) if len(rows) > 1 else rows[0][None]
                    is_own = order is not None or len(rows) > 1
                    made = self.prepare_all(stacked, [name for name, _ in group], is_own)
                known |= {id(layer): each for (_, layer), each in zip(group, made, strict=True)}
        return [known[id(layer)] for layer in layers]

    def _at_once(self, layers: list[tuple[str, Tensor]]) -> list[list[tuple[str, Tensor]]]:
        """Return groups of named layers that are prepared at once."""
        if self.prepare_all is None or not layers[0][1].is_cuda:
            return [[each] for each in layers]
        widths: dict[int, list[tuple[str, Tensor]]] = {}
        for name, layer in layers:
            widths.setdefault(layer.shape[1], []).append((name, layer))
        return [*widths.values()]

    @takes_arrays
    def of(self, X: Float[Tensor, "n d"], Y: Float[Tensor, "m e"]) -> Float[Tensor, ""]:
        """Return the likeness of two layers."""
        return self._values([X], [Y], ["X", "Y"])[0, 0]

    @takes_arrays
    def matrix(self, sources: Sequence[Float[Tensor, "_ _"]], targets: Sequence[Float[Tensor, "_ _"]]) -> Tensor:
        """Return the likeness of every source layer with every target layer, (l, m)."""
        return self._values(sources, targets, [f"layer {index}" for index in range(len(sources) + len(targets))])

    def _values(self, sources: Sequence[Tensor], targets: Sequence[Tensor], names: Sequence[str]) -> Tensor:
        for name, side in {"sources": sources, "targets": targets}.items():
            if not len(side):
                raise ValueError(f"{name} is empty: give the states of one layer or more")
        layers, depth = [*sources, *targets], len(sources)
        prepared = self.prepared(layers, names)
        first = {id(layer): place for place, layer in reversed([*enumerate(layers)])}
        places = [first[id(layer)] for layer in layers]
        pairs = [(0, 0), (0, 1), (1, 1)] if self.finish else [(0, 1)]
        with torch.autocast(layers[0].device.type, enabled=False):
            found = self.compare(prepared, Blocks([places[:depth], places[depth:]], pairs))
        return self.finish(joined(found, (0, 1)))[:depth, depth:] if self.finish else found[0, 1]


def each_pair(compare: Callable[[Any, Any], Tensor], *, is_symmetric: bool = True) -> CompareAll:
    """Return a comparison of every two layers one by one; if it is symmetric, each two of one model once."""
    return partial(_compare_each, compare, is_symmetric)


def _compare_each(
    compare: Callable[[Any, Any], Tensor], is_symmetric: bool, layers: Sequence[Any], blocks: Blocks
) -> dict[Pair, Float[Tensor, "l m *k"]]:
    found = {}
    for a, b in blocks.pairs:
        known: dict[Pair, Tensor] = {}  # of this pair of models alone, which is so compared alike in any company
        for i, j in product(blocks.models[a], blocks.models[b]):
            if is_symmetric and (j, i) in known:
                known[i, j] = known[j, i]
            elif (i, j) not in known:
                known[i, j] = compare(layers[i], layers[j])
        found[a, b] = torch.stack([torch.stack([known[i, j] for j in blocks.models[b]]) for i in blocks.models[a]])
    return found


def products(
    layers: Sequence[Float[Tensor, "n k"]], blocks: Blocks, is_symmetric: bool = False
) -> dict[Pair, Float[Tensor, "l m"]]:
    """Return the sums of the products of all entries of every two matrices; symmetric ones need about half of these."""
    found: dict[Pair, Tensor] = {}
    rows = len(layers[0]) if layers[0].is_cuda else max(AT_ONCE // max(layers[0].shape[1], 1), 1)
    for start in range(0, max(len(layers[0]), 1), rows):  # a part of few documents may have no rows
        strips, end = [layer[start : start + rows] for layer in layers], start + rows
        sides = [(1, slice(start, end)), (2, slice(end, None))] if is_symmetric else [(1, slice(None))]
        for times, columns in sides:
            flat = [each.flatten(1) for each in blocks.by_model([strip[:, columns] for strip in strips])]
            for a, b in blocks.pairs:
                found[a, b] = found.get((a, b), 0) + times * (flat[a] @ flat[b].T)
    return found


def rows_in_order(prepared: Shaped[Tensor, "n d"], order: Int[Tensor, " n"]) -> Shaped[Tensor, "n d"]:
    return prepared[order]


def both_in_order(prepared: Shaped[Tensor, "n n"], order: Int[Tensor, " n"]) -> Shaped[Tensor, "n n"]:
    """Return a prepared matrix of pairs of rows, with the rows in another order."""
    return prepared[order[:, None], order]


def check_same_rows(counts: Sequence[int], names: Sequence[str]) -> None:
    for count, name in zip(counts, names, strict=True):
        if count != counts[0]:
            raise ValueError(f"all layers need the same rows, but {names[0]} has {counts[0]} and {name} has {count}")


# ---- a batch of the states of models

APART = 2**32  # between the numbers of the rows of two batches, where each row is a document
States = Sequence[Float[Tensor, "... _ _"]]


class BatchRows(NamedTuple):
    """The rows of the different layers of a batch, those of one part of the documents side by side."""

    layers: Sequence[Float[Tensor, "r _"]]  # as they came: nothing is copied before a layer is prepared
    names: Sequence[str]
    order: Int[Tensor, " n"]  # the rows that are compared
    documents: Int[Tensor, " n"]
    tokens: Int[Tensor, " n"] | None

    def of(self, chosen: Int[Tensor, " m"]) -> BatchRows:
        tokens = None if self.tokens is None else self.tokens[chosen]
        return self._replace(order=self.order[chosen], documents=self.documents[chosen], tokens=tokens)

    def in_units(self) -> tuple[BatchRows, list[Float[Tensor, ""]]]:
        """Divide float64 layers by powers of two, and return these; 1 of float32, which needs none."""
        if self.layers[0].dtype != torch.float64:
            return self, [self.layers[0].new_ones((), dtype=torch.float64)] * len(self.layers)
        units = [size_of(layer) for layer in self.layers]
        layers = [layer / unit for layer, unit in zip(self.layers, units, strict=True)]
        return self._replace(layers=layers), units


class Batch(NamedTuple):
    """The states of several models for the same tokens; see `Accumulator.update`."""

    states: Sequence[States]
    mask: Shaped[Tensor, " ..."] | None = None
    number: int = 0
    groups: Int[Tensor, " ..."] | None = None
    documents: Int[Tensor, " ..."] | None = None

    def rows(self, sides: Sequence[Pair], flatten: str) -> tuple[BatchRows, dict[int, tuple[int, ...]]]:
        """Return the rows of the different layers, and where the layers of each model stand among them."""
        called = {model: f"model {model}" for side in sides for model in side}
        if len(sides) == 1:
            called |= dict(zip(reversed(sides[0]), ("target", "source"), strict=True))
        different: dict[int, tuple[Tensor, str]] = {}
        for model, name in called.items():
            for index, layer in enumerate(self.states[model]):
                different.setdefault(id(layer), (layer, f"{name} layer {index}"))
        numbers = {key: place for place, key in enumerate(different)}
        places = {model: tuple(numbers[id(layer)] for layer in self.states[model]) for model in called}
        layers, names = zip(*different.values(), strict=True)
        dtype, kept = common_dtype(layers), None if self.mask is None else places_of(self.mask)
        rows = [rows_of(layer.to(dtype), flatten, self.mask, kept) for layer in layers]
        documents, tokens = self._documents(layers[0], flatten), None
        if self.groups is not None:
            tokens = labels_of_rows(self.groups, self.mask, layers[0], "groups")
        check_same_rows([*map(len, rows), len(documents)], [*names, "documents"])
        order = (documents % JACKKNIFE_PARTS).argsort(stable=True)
        return BatchRows(rows, names, order, documents[order], None if tokens is None else tokens[order]), places

    def _documents(self, first: Tensor, flatten: str) -> Int[Tensor, " n"]:
        """Return the document of each row; where a sequence is one row, that of its first token."""
        documents = self.documents
        if documents is None:
            documents = torch.arange(first[..., 0].numel(), device=first.device).view(first.shape[:-1])
            documents = documents + self.number * APART
        if flatten == "token" or first.ndim == 2:
            return labels_of_rows(documents, self.mask, first, "documents")
        return documents.to(first.device).flatten(1)[:, 0]
