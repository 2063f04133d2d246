"""The contract of a measure of layer pairs: prepare each layer once, compare two prepared ones.

    @dataclass(frozen=True)
    class Overlap(LayerMeasure[Tensor]):
        def prepare(self, layer, name):
            return layer.double() / layer.double().norm()

        def compare(self, first, second):
            return (first.T @ second).norm()

    Overlap().of(X, Y)                   # (n, d) and (n, e): one number
    Overlap().matrix([X0, X1], [Y0])     # every layer pair, each layer prepared once

`LayerMeasure` has what each author writes, and the facts that make a measure an entry of the
package. `FastPaths` has what an author may write besides, so that many layers are compared in less
time; a measure without them gives the same numbers.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from thinkalike.arguments import takes_arrays
from thinkalike.measures.folds import JACKKNIFE_PARTS
from thinkalike.measures.powers_of_two import size_of
from thinkalike.measures.row_groups import RowGroups, common_dtype
from thinkalike.measures.rows import labels_of_rows, places_of, rows_of
from thinkalike.ranges import check_within

# entries of each matrix on a CPU: those of all layers of two models stay in the cache
ENTRIES_AT_ONCE = 2**16
Pair = tuple[int, int]  # numbers of two models; a model is with itself, too
Prepared = TypeVar("Prepared")  # what a measure makes of a layer

Invariance = Literal[
    "orthogonal",
    "isotropic_scaling",
    "translation",
    "row_permutation",
    "unit_scaling",
    "invertible_linear",
]
Refusal = Literal["nan", "inf", "few_rows", "unequal_rows", "constant"]
SAME_SHAPE: frozenset[Invariance] = frozenset(
    {"orthogonal", "isotropic_scaling", "translation", "row_permutation"}
)
BAD_INPUT: frozenset[Refusal] = frozenset({"nan", "inf", "few_rows", "unequal_rows", "constant"})


class Blocks(NamedTuple):
    """The layers of several models, and which models are compared.

    The values of two models are the same to the bit whichever other models are compared, because
    each pair is computed in the same steps, with operands of the same shapes.

    Attributes:
        models: For each model, the indices of its layers in a list of all different layers.
        pairs: The indices of the two models of each comparison.
    """

    models: Sequence[Sequence[int]]
    pairs: Sequence[Pair]

    def by_model(self, of_layers: Sequence[Tensor]) -> list[Tensor]:
        """Return for each model the tensors of its l layers, stacked: (l, *shape of one tensor).

        Args:
            of_layers: A tensor for each of the different layers, in the order that the indices of
                `models` refer to. All tensors of one model have the same shape.
        """
        stacked = []
        for layer_indices in self.models:
            stacked.append(torch.stack([of_layers[index] for index in layer_indices]))
        return stacked


def joined(likenesses: Mapping[Pair, Float[Tensor, "_ _"]], pair: Pair) -> Float[Tensor, "k k"]:
    """Return one matrix of the likenesses of all k = l + m layers of two models.

    The l layers of the first model come first, then the m layers of the second. The lower left
    block is the upper right one, transposed.

    Args:
        likenesses: The matrices of layers by pair of models. They include both models with
            themselves.
        pair: The two models.
    """
    first, second = pair
    across = likenesses[pair]  # (l, m)
    upper_half = torch.cat([likenesses[first, first], across], 1)
    lower_half = torch.cat([across.T, likenesses[second, second]], 1)
    return torch.cat([upper_half, lower_half])


@dataclass(frozen=True)
class FastPaths(Generic[Prepared]):
    """The optional half of a measure: what compares many layers in less time.

    A subclass sets an attribute, or computes it as a property, where it has written the method.

    Attributes:
        prepares_together: Whether layers of one shape can be prepared at once, by `prepare_all`.
        leaves_out_parts: Whether values without a part of the rows follow from sums, by
            `compare_without_parts`.
        is_ratio: Whether values are ratios of likenesses, by `finish`; likenesses are summed over
            batches first.
        has_units: Whether a likeness grows with the squares of the sizes of both layers, which
            `finish` divides out.
        has_leverage: Whether a single row can decide a prepared layer, by `leverage`.
        compares_within_groups: Whether rows of one token can be compared among themselves, by
            `within`.
        is_unbiased: Whether the value expected of independent rows is the same however many there
            are.
        flatten: What a row of a batch is: a "token", a whole "sample" (sequence), or the "mean" of
            the tokens of a sequence.
    """

    is_ratio: ClassVar[bool] = False
    has_leverage: ClassVar[bool] = False

    @property
    def prepares_together(self) -> bool:
        return False

    @property
    def leaves_out_parts(self) -> bool:
        return False

    @property
    def has_units(self) -> bool:
        return False

    @property
    def compares_within_groups(self) -> bool:
        return False

    @property
    def is_unbiased(self) -> bool:
        return False

    @property
    def flatten(self) -> str:
        return "token"

    def prepare_all(
        self, layers: Float[Tensor, "l n d"], names: Sequence[str], in_place: bool
    ) -> list[Prepared]:
        """Return l layers prepared, in the order in which they come.

        A GPU, where launches cost more than passes over memory, gets all layers of one width at
        once.

        Args:
            layers: The layers, stacked.
            names: What errors call each layer.
            in_place: Whether `layers` is a copy, whose memory may be overwritten.
        """
        raise NotImplementedError

    def compare_without_parts(
        self, layers: Sequence[Prepared], blocks: Blocks, sizes: Sequence[int]
    ) -> dict[Pair, Float[Tensor, "_ l m"]]:
        """Return the likenesses of all rows, then those without each part of the rows.

        They have the shape (1 + parts, l, m) for each pair of models in `blocks`.

        Args:
            layers: The prepared layers.
            blocks: The layers of each model, and which models are compared.
            sizes: How many rows each part has; the parts follow one another and cover all rows.
        """
        raise NotImplementedError

    def finish(self, likenesses: Float[Tensor, "*b k k"]) -> Float[Tensor, "*b k k"]:
        """Return the values of all k layers with all k layers, from their likenesses.

        The likeness of each layer with itself, on the diagonal, is what values are relative to.
        """
        raise NotImplementedError

    def leverage(self, prepared: Prepared) -> Float[Tensor, ""]:
        """Return the largest share of a layer that a single row decides."""
        raise NotImplementedError

    def within(self, groups: RowGroups) -> AnyMeasure:
        """Return the same measure among the rows of each group."""
        raise NotImplementedError

    def similarities(self, prepared: Prepared) -> list[Float[Tensor, "_ _ _"]]:
        """Return the similarities of rows within groups, which `within` has set.

        There is one tensor (g, s, s) for each size s of groups, with the g groups of that size.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class LayerMeasure(FastPaths[Prepared], ABC):
    """A measure of two layers of the same n rows.

    An author writes `prepare` and `compare`, and `best` and `higher_is_closer` of a distance.
    Fields of the dataclass are settings, each declared by `thinkalike.ranges.parameter`. A measure
    of the package has a row in `thinkalike.registry` and says the facts below, which tests prove
    and pages print.

    Attributes:
        best: The value of a layer with itself.
        higher_is_closer: False for a distance.
        is_symmetric: Whether both layers may change places.
        fewest: The least number of rows.
        needed_by: What needs `fewest` rows, such as "k=10 neighbours of a row"; "": any use of the
            measure.
        formula, source: As pages print them.
        value_range: The least and the greatest value.
        scale: The ends of the colours of figures.
        invariances: Changes of one layer alone that leave the value as it is; "row_permutation" is
            of both.
        differentiable: In how many layers, from the first, the value has a gradient.
        refuses: Bad input that raises a ValueError.
        version: Raised when its numbers change, see `thinkalike.job.Instrument`.
        in_atlas, in_benchmarks: Whether `measure=atlas` and the benchmarks of all measures have
            it.
        smallest: Settings that make a job small, besides those of all measures of layer pairs.
    """

    best: ClassVar[float] = 1.0
    higher_is_closer: ClassVar[bool] = True
    is_symmetric: ClassVar[bool] = True

    formula: ClassVar[str] = ""
    source: ClassVar[str] = ""
    value_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    scale: ClassVar[tuple[float, float]] = (0.0, 1.0)
    invariances: ClassVar[frozenset[Invariance]] = SAME_SHAPE
    differentiable: ClassVar[Literal[0, 1, 2]] = 0
    refuses: ClassVar[frozenset[Refusal]] = BAD_INPUT
    version: ClassVar[int] = 1
    in_atlas: ClassVar[bool] = False
    in_benchmarks: ClassVar[bool] = False
    smallest: ClassVar[Mapping[str, int | float | str]] = {}

    @property
    def fewest(self) -> int:
        """The fewest rows that can be compared."""
        return 4

    @property
    def needed_by(self) -> str:
        return ""

    def __post_init__(self) -> None:
        for item in self.settings():
            is_whole = isinstance(item.default, int)
            check_within(
                item.name, getattr(self, item.name), item.metadata["range"], is_whole=is_whole
            )

    @abstractmethod
    def prepare(self, layer: Float[Tensor, "n d"], name: str) -> Prepared:
        """Return what `compare` takes of one layer, computed once however often it is compared.

        Args:
            layer: The rows of one layer, in float32 or float64.
            name: What errors call the layer.
        """

    @abstractmethod
    def compare(self, first: Prepared, second: Prepared) -> Float[Tensor, ""]:
        """Return the likeness of two prepared layers."""

    def moved(self, prepared: Prepared, order: Int[Tensor, " n"]) -> Prepared:
        """Return a prepared layer with its rows in another order; by default it is a tensor."""
        return prepared[order]  # type: ignore[index,no-any-return]

    def compare_all(
        self, layers: Sequence[Prepared], blocks: Blocks
    ) -> dict[Pair, Float[Tensor, "l m"]]:
        """Return the likenesses of the layers of models that are compared, by pair of models.

        By default two layers at a time, and each two of one model once if the measure is
        symmetric.
        """
        return each_pair(self.compare, layers, blocks, self.is_symmetric)

    @classmethod
    def settings(cls) -> list[dataclasses.Field[int | float]]:
        """Return the fields of the measure that are settings: those that declare a range."""
        return [item for item in dataclasses.fields(cls) if "range" in item.metadata]

    def prepared(
        self,
        layers: Sequence[Float[Tensor, "_ _"]],
        names: Sequence[str],
        order: Int[Tensor, " n"] | None = None,
    ) -> list[Prepared]:
        """Return all layers prepared, one result for each entry of `layers`.

        A tensor that stands in `layers` several times is prepared once. All layers are computed in
        one dtype, and without autocast.

        Args:
            layers: The layers, (n, d) each; widths may differ.
            names: What errors call each layer.
            order: The rows that are compared, in this order; None: all rows as they come.

        Raises:
            ValueError: Layers have different or too few rows.
        """
        n = len(layers[0]) if order is None else len(order)
        dtype = common_dtype(layers)
        check_same_rows([*map(len, layers)], names)
        if n < self.fewest:
            if self.needed_by:
                raise ValueError(
                    f"{n} rows are too few to compare: "
                    f"{self.needed_by} need at least {self.fewest}"
                )
            raise ValueError(f"{n} rows are too few to compare: give at least {self.fewest}")
        different: dict[int, tuple[str, Tensor]] = {}
        for name, layer in zip(names, layers, strict=True):
            different.setdefault(id(layer), (name, layer))
        prepared: dict[int, Prepared] = {}
        with torch.autocast(layers[0].device.type, enabled=False):
            for group in self._prepared_at_once([*different.values()]):
                rows = []
                for _, layer in group:
                    ordered = layer
                    if order is not None:
                        ordered = layer.index_select(0, order)
                    rows.append(ordered.to(dtype))
                if self.prepares_together:
                    stacked = rows[0][None]
                    if len(rows) > 1:
                        stacked = torch.stack(rows)
                    is_a_copy = order is not None or len(rows) > 1
                    results = self.prepare_all(stacked, [name for name, _ in group], is_a_copy)
                else:
                    results = [self.prepare(rows[0], group[0][0])]
                for (_, layer), result in zip(group, results, strict=True):
                    prepared[id(layer)] = result
        return [prepared[id(layer)] for layer in layers]

    def _prepared_at_once(
        self, layers: list[tuple[str, Tensor]]
    ) -> list[list[tuple[str, Tensor]]]:
        """Return groups of named layers that are prepared at once.

        On a GPU they are the layers of one width, if the measure prepares several together; else
        each layer is a group of its own.
        """
        if not self.prepares_together or not layers[0][1].is_cuda:
            return [[named_layer] for named_layer in layers]
        by_width: dict[int, list[tuple[str, Tensor]]] = {}
        for name, layer in layers:
            by_width.setdefault(layer.shape[1], []).append((name, layer))
        return [*by_width.values()]

    @takes_arrays
    def of(self, X: Float[Tensor, "n d"], Y: Float[Tensor, "m e"]) -> Float[Tensor, ""]:
        """Return the value of two layers of the same n = m rows.

        Raises:
            ValueError: The layers have different or too few rows, or the measure refuses one.
        """
        return self._values([X], [Y], ["X", "Y"])[0, 0]

    @takes_arrays
    def matrix(
        self, sources: Sequence[Float[Tensor, "_ _"]], targets: Sequence[Float[Tensor, "_ _"]]
    ) -> Tensor:
        """Return the value of every source layer with every target layer, (l, m).

        Raises:
            ValueError: A side has no layer, layers have different or too few rows, or the measure
                refuses a layer. Errors number the layers of the source first, then those of the
                target.
        """
        names = [f"layer {index}" for index in range(len(sources) + len(targets))]
        return self._values(sources, targets, names)

    def _values(
        self, sources: Sequence[Tensor], targets: Sequence[Tensor], names: Sequence[str]
    ) -> Tensor:
        """Return the values of every source layer with every target layer, (l, m).

        `names` are those of the source layers, then of the target layers, in errors.
        """
        for name, side in {"sources": sources, "targets": targets}.items():
            if not len(side):
                raise ValueError(f"{name} is empty: give the states of one layer or more")
        layers = [*sources, *targets]
        depth = len(sources)
        prepared = self.prepared(layers, names)
        # A layer that is given twice is compared once.
        first_index: dict[int, int] = {}
        for index, layer in enumerate(layers):
            first_index.setdefault(id(layer), index)
        indices = [first_index[id(layer)] for layer in layers]
        pairs = [(0, 1)]
        if self.is_ratio:  # a ratio needs the likeness of each layer with itself
            pairs = [(0, 0), (0, 1), (1, 1)]
        with torch.autocast(layers[0].device.type, enabled=False):
            likenesses = self.compare_all(
                prepared, Blocks([indices[:depth], indices[depth:]], pairs)
            )
        if self.is_ratio:
            return self.finish(joined(likenesses, (0, 1)))[:depth, depth:]
        return likenesses[0, 1]


AnyMeasure = LayerMeasure[Any]  # whatever it prepares


def each_pair(
    compare: Callable[[Prepared, Prepared], Tensor],
    layers: Sequence[Prepared],
    blocks: Blocks,
    is_symmetric: bool,
) -> dict[Pair, Float[Tensor, "l m *k"]]:
    """Return the values of every two layers of the compared models, by pair of models.

    They are computed one by one, and stacked to (l, m) and the shape of one value.

    Args:
        compare: The function of two layers.
        layers: The prepared layers.
        blocks: The layers of each model, and which models are compared.
        is_symmetric: Whether `compare` gives the same value in either order, which is computed
            once.
    """
    values: dict[Pair, Tensor] = {}
    for a, b in blocks.pairs:
        # Values of other pairs of models are not reused, so that the values of two models do not
        # depend on which other models are compared.
        of_layers: dict[Pair, Tensor] = {}
        for i, j in product(blocks.models[a], blocks.models[b]):
            if is_symmetric and (j, i) in of_layers:
                of_layers[i, j] = of_layers[j, i]
            elif (i, j) not in of_layers:
                of_layers[i, j] = compare(layers[i], layers[j])
        rows = []
        for i in blocks.models[a]:
            rows.append(torch.stack([of_layers[i, j] for j in blocks.models[b]]))
        values[a, b] = torch.stack(rows)
    return values


def products(
    layers: Sequence[Float[Tensor, "n k"]], blocks: Blocks, is_symmetric: bool = False
) -> dict[Pair, Float[Tensor, "l m"]]:
    """Return Σᵢⱼ A_ij B_ij of every two matrices A and B, by pair of models.

    They are summed by strips of rows, which stay in the cache of a CPU. Of symmetric matrices each
    strip is only read from the diagonal on, and what is right of the diagonal counts twice.

    Args:
        layers: One matrix for each of the different layers, all of one shape.
        blocks: The layers of each model, and which models are compared.
        is_symmetric: Whether all matrices are symmetric.
    """
    sums: dict[Pair, Tensor] = {}
    row_count = len(layers[0])
    rows_at_once = max(ENTRIES_AT_ONCE // max(layers[0].shape[1], 1), 1)
    if layers[0].is_cuda:  # a GPU wants few launches
        rows_at_once = max(row_count, 1)
    for start in range(0, max(row_count, 1), rows_at_once):  # a part may have no rows
        end = start + rows_at_once
        strips = [layer[start:end] for layer in layers]
        weighted_columns = [(1, slice(None))]
        if is_symmetric:
            weighted_columns = [(1, slice(start, end)), (2, slice(end, None))]
        for weight, columns in weighted_columns:
            by_model = blocks.by_model([strip[:, columns] for strip in strips])
            flat = [entries.flatten(1) for entries in by_model]
            for a, b in blocks.pairs:
                sums[a, b] = sums.get((a, b), 0) + weight * (flat[a] @ flat[b].T)
    return sums


def both_in_order(
    prepared: Shaped[Tensor, "n n"], order: Int[Tensor, " n"]
) -> Shaped[Tensor, "n n"]:
    """Return a matrix of all pairs of rows after the rows took another order.

    Entry (i, j) of the result is entry (order[i], order[j]).
    """
    return prepared[order[:, None], order]


def check_same_rows(counts: Sequence[int], names: Sequence[str]) -> None:
    """Raise a ValueError unless all layers have the same number of rows.

    Args:
        counts: How many rows each layer has.
        names: What the error calls each layer.
    """
    for count, name in zip(counts, names, strict=True):
        if count != counts[0]:
            raise ValueError(
                f"all layers need the same rows, but {names[0]} has {counts[0]} and {name} has "
                f"{count}"
            )


# ---- a batch of the states of models

# Where each row is a document, the documents of two batches are numbered this far apart.
NUMBERS_PER_BATCH = 2**32

States = Sequence[Float[Tensor, "... _ _"]]


class BatchRows(NamedTuple):
    """The rows of the different layers of a batch, with those of a part of documents together.

    Attributes:
        layers: The r rows of each layer as they came: nothing is copied before a layer is
            prepared.
        names: What errors call each layer.
        order: The n rows of `layers` that are compared, sorted by the part of their document.
        documents: The number of the document of each compared row, in that order.
        tokens: The token of each compared row, in that order; None if rows are not grouped.
    """

    layers: Sequence[Float[Tensor, "r _"]]
    names: Sequence[str]
    order: Int[Tensor, " n"]
    documents: Int[Tensor, " n"]
    tokens: Int[Tensor, " n"] | None

    def of(self, chosen: Int[Tensor, " m"]) -> BatchRows:
        """Return a selection of the compared rows.

        The states of layers stay as they are, and `order` tells which of their rows are
        meant.

        Args:
            chosen: The positions of the selected rows in the present `order`.
        """
        tokens = None
        if self.tokens is not None:
            tokens = self.tokens[chosen]
        return self._replace(
            order=self.order[chosen], documents=self.documents[chosen], tokens=tokens
        )

    def in_units(self) -> tuple[BatchRows, list[Float[Tensor, ""]]]:
        """Divide each float64 layer by a power of two near its size, and return these powers.

        float32 layers stay as they are, and their units are 1.
        """
        if self.layers[0].dtype != torch.float64:
            return self, [self.layers[0].new_ones((), dtype=torch.float64)] * len(self.layers)
        units = [size_of(layer) for layer in self.layers]
        layers = [layer / unit for layer, unit in zip(self.layers, units, strict=True)]
        return self._replace(layers=layers), units


class Batch(NamedTuple):
    """The states of several models for the same tokens.

    Attributes:
        states: For each model, the states of its layers, (b, t, d) or (n, d) each.
        mask: Which tokens count; None: all of them.
        number: The number of the batch in the run.
        groups: The token of each state, if rows are compared within tokens.
        documents: The document of each state; None: each token is a document of its own.
    """

    states: Sequence[States]
    mask: Shaped[Tensor, " ..."] | None = None
    number: int = 0
    groups: Int[Tensor, " ..."] | None = None
    documents: Int[Tensor, " ..."] | None = None

    def rows(
        self, sides: Sequence[Pair], flatten: str
    ) -> tuple[BatchRows, dict[int, tuple[int, ...]]]:
        """Return the rows of the different layers, and the positions of each model's layers.

        Args:
            sides: The pairs of models that are compared.
            flatten: What a row is: a "token", a "sample" (sequence), or the "mean" of a sequence.

        Raises:
            ValueError: The mask or the labels do not fit the states, or row counts differ.
        """
        layers, names, positions = self._different_layers(sides)
        dtype = common_dtype(layers)
        token_indices = None
        if self.mask is not None:
            token_indices = places_of(self.mask)
        rows = [rows_of(layer.to(dtype), flatten, self.mask, token_indices) for layer in layers]
        documents = self._documents(layers[0], flatten)
        tokens = None
        if self.groups is not None:
            tokens = labels_of_rows(self.groups, self.mask, layers[0], "groups")
        row_counts = [*map(len, rows), len(documents)]
        check_same_rows(row_counts, [*names, "documents"])

        # The jackknife leaves out one part of the documents, so its rows stand together.
        order = (documents % JACKKNIFE_PARTS).argsort(stable=True)
        if tokens is not None:
            tokens = tokens[order]
        return BatchRows(rows, names, order, documents[order], tokens), positions

    def _different_layers(
        self, sides: Sequence[Pair]
    ) -> tuple[list[Tensor], list[str], dict[int, tuple[int, ...]]]:
        """Return the different layers of the compared models.

        Returns:
            Each tensor once, although several models may have it; what errors call each; and for
            each model the indices of its layers among these tensors.
        """
        model_names = {model: f"model {model}" for side in sides for model in side}
        if len(sides) == 1:
            source, target = sides[0]
            # A model that is compared with itself is called the source.
            model_names[target] = "target"
            model_names[source] = "source"
        numbers: dict[int, int] = {}  # by the identity of a tensor
        layers: list[Tensor] = []
        names = []
        for model, model_name in model_names.items():
            for index, layer in enumerate(self.states[model]):
                if id(layer) not in numbers:
                    numbers[id(layer)] = len(layers)
                    layers.append(layer)
                    names.append(f"{model_name} layer {index}")
        positions = {}
        for model in model_names:
            positions[model] = tuple(numbers[id(layer)] for layer in self.states[model])
        return layers, names, positions

    def _documents(self, first: Tensor, flatten: str) -> Int[Tensor, " n"]:
        """Return the document of each row; if a sequence is a row, that of its first token.

        Without documents each token is one, with a number that no other batch has.

        Args:
            first: The states of one layer, whose shape all layers have but for the width.
            flatten: What a row is.
        """
        documents = self.documents
        if documents is None:
            token_count = first[..., 0].numel()
            documents = torch.arange(token_count, device=first.device).view(first.shape[:-1])
            documents = documents + self.number * NUMBERS_PER_BATCH
        if flatten == "token" or first.ndim == 2:
            return labels_of_rows(documents, self.mask, first, "documents")
        return documents.to(first.device).flatten(1)[:, 0]
