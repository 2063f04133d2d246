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
from typing import Any, ClassVar, Generic, Literal, NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from thinkalike.arguments import takes_arrays
from thinkalike.measures.folds import JACKKNIFE_PARTS
from thinkalike.measures.powers_of_two import power_of_two_unit
from thinkalike.measures.row_groups import RowGroups, common_dtype
from thinkalike.measures.rows import indices_where, labels_of_rows, rows_of
from thinkalike.measures.working_copies import Prepared, WorkingCopy, copied_layer
from thinkalike.ranges import check_within

# entries of each matrix on a CPU: those of all layers of two models stay in the cache
ENTRIES_AT_ONCE = 2**16
Pair = tuple[int, int]  # the indices of two models, which may be the same model

Invariance = Literal[
    "orthogonal",
    "isotropic_scaling",
    "translation",
    "row_permutation",
    "row_permutation_of_one",
    "unit_scaling",
    "invertible_linear",
]
Refusal = Literal["nan", "inf", "few_rows", "unequal_rows", "unequal_widths", "constant"]
SAME_SHAPE: frozenset[Invariance] = frozenset(
    {"orthogonal", "isotropic_scaling", "translation", "row_permutation"}
)
BAD_INPUT: frozenset[Refusal] = frozenset({"nan", "inf", "few_rows", "unequal_rows", "constant"})


# Each fast path, by the attributes that offer it, with the methods whose values it gives in less
# time. It holds for these methods of the class that defines it, and not for those of a subclass.
# Nor does what a class says in words of its values hold for a subclass that computes others.
STANDS_FOR: Mapping[tuple[str, ...], tuple[str, ...]] = {
    ("compare_all",): ("compare",),
    ("prepares_together", "prepare_all"): ("prepare",),
    ("leaves_out_parts", "compare_leaving_out_parts"): ("prepare", "compare", "compare_all"),
    ("has_units",): ("prepare", "compare", "compare_all"),
    ("has_leverage", "leverage"): ("prepare",),
    ("is_unbiased",): ("prepare", "compare", "compare_all", "ratios"),
    ("compares_within_groups", "within", "similarities"): (
        "prepare",
        "compare",
        "compare_all",
        "ratios",
    ),
    ("formula",): ("prepare", "compare", "compare_all", "ratios"),
    ("meaning",): ("prepare", "compare", "compare_all", "ratios"),
}


class ModelPairs(NamedTuple):
    """The layers of several models, and which models are compared.

    The values of two models are the same to the bit whichever other models are compared, because
    each pair is computed in the same steps, with operands of the same shapes.

    Attributes:
        layers_of_model: For each model, the indices of its layers in a list of all different
            layers.
        pairs: The indices of the two models of each comparison.
    """

    layers_of_model: Sequence[Sequence[int]]
    pairs: Sequence[Pair]

    def by_model(self, tensor_of_layer: Sequence[Tensor]) -> list[Tensor]:
        """Return for each model the tensors of its l layers, stacked: (l, *shape of one tensor).

        Args:
            tensor_of_layer: A tensor for each of the distinct layers, to which the indices in
                `layers_of_model` refer. All tensors of one model have the same shape.
        """
        stacked = []
        for layer_indices in self.layers_of_model:
            stacked.append(torch.stack([tensor_of_layer[index] for index in layer_indices]))
        return stacked


def joint_matrix(values: Mapping[Pair, Float[Tensor, "_ _"]], pair: Pair) -> Float[Tensor, "k k"]:
    """Return the values of every two of the k = l + m layers of two models, as one matrix.

    The l layers of the first model come first, then the m layers of the second.

    Args:
        values: The values of layers by pair of models: of these two models, (l, m), and of each of
            them with itself, (l, l) and (m, m).
        pair: The two models.
    """
    first, second = pair
    across = values[pair]  # (l, m)
    rows_of_first = torch.cat([values[first, first], across], 1)  # (l, k)
    rows_of_second = torch.cat([across.T, values[second, second]], 1)  # (m, k)
    return torch.cat([rows_of_first, rows_of_second])


@dataclass(frozen=True)
class FastPaths(Generic[Prepared]):
    """The optional half of a measure: what compares many layers in less time.

    A subclass sets an attribute, or computes it as a property, where it has written the method.
    What it offers holds for the methods of that class, see `STANDS_FOR`.

    Attributes:
        prepares_together: Whether layers of one shape can be prepared at once, by `prepare_all`.
        leaves_out_parts: Whether values without a part of the rows follow from sums, by
            `compare_leaving_out_parts`.
        is_ratio: Whether a value is a ratio, as CKA is of HSICs. What compares layers then returns
            numerators, which are averaged over batches before `ratios` divides them.
        has_units: Whether a numerator grows with the squares of the sizes of both layers, which
            `ratios` divides out.
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
        """Return l layers, each in the form that `compare` takes, in their order.

        The results are those that `prepare` returns for single layers. On a GPU, where launches
        cost more than passes over memory, this is called once for all layers of one width; on a
        CPU for one layer at a time, l = 1.

        Args:
            layers: The n rows of width d of each layer.
            names: What errors call each layer.
            in_place: Whether `layers` may be overwritten, because it is a copy of the states that
                nothing else reads.
        """
        raise NotImplementedError

    def compare_leaving_out_parts(
        self, layers: Sequence[Prepared], model_pairs: ModelPairs, sizes: Sequence[int]
    ) -> dict[Pair, Float[Tensor, "_ l m"]]:
        """Return the values of layer pairs with all rows, and then without each part of the rows.

        For each pair of models the result is (1 + parts, l, m): a value for each of the l layers
        of the first model and each of the m layers of the second. For a measure that is a ratio,
        such as CKA, the values are its numerators (HSIC). The denominators are the numerators of a
        layer with itself, so that `ratios` computes the measure from these alone.

        Args:
            layers: The layers of all models, as `prepare` returns them.
            model_pairs: Which of the layers belong to each model, and which models are compared.
            sizes: How many rows each part has; the parts follow one another and cover all rows.
        """
        raise NotImplementedError

    def ratios(self, numerators: Float[Tensor, "*b k k"]) -> Float[Tensor, "*b k k"]:
        """Return the values of every two of k layers, such as CKA, from numerators, such as HSICs.

        The denominators come from the diagonal, the numerators of each layer with itself.
        """
        raise NotImplementedError

    def leverage(self, prepared: Prepared) -> Float[Tensor, ""]:
        """Return the greatest share that a single row has in the variance of a layer."""
        raise NotImplementedError

    def within(self, groups: RowGroups) -> AnyMeasure:
        """Return the measure that compares rows only with rows of the same group."""
        raise NotImplementedError

    def similarities(self, prepared: Prepared) -> list[Float[Tensor, "_ _ _"]]:
        """Return how similar the rows of each group are to each other in one layer.

        This is for a measure that compares rows only within groups, such as those of one token.
        The measure says what similarity is: for CKA the inner product of two rows, for nearest
        neighbours whether they are such. A null asks whether similarities in two layers correlate
        by chance alone.

        Args:
            prepared: The layer as `prepare` returns it.

        Returns:
            For each size s of groups, in rising order, a tensor (g, s, s): for each of the g
            groups of this size, the symmetric matrix of the similarities of its s rows.
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
        meaning: What a value is, in a sentence below the map of a result, with the values of the
            parameters; by default the formula.
        value_range: The least and the greatest value.
        scale: The ends of the colours of figures.
        invariances: Changes of one layer alone that leave the value as it is; "row_permutation" is
            of both. A measure with "row_permutation_of_one" has no null, because it does not
            depend on which row of one layer goes with which row of the other.
        differentiable: In how many layers, from the first, the value has a gradient.
        refuses: Bad input that raises a ValueError. Rows and widths are checked before `prepare`,
            which sees to the rest.
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

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Turn off inherited fast paths that no longer agree with the methods of a subclass.

        A fast path, such as `compare_all`, gives the values of the methods of the class that
        defines it. A subclass that overrides one of these methods, such as `compare`, has the slow
        path, unless it defines the fast path as well.
        """
        super().__init_subclass__(**kwargs)
        for offered_by, methods in STANDS_FOR.items():
            # The first of the attributes turns the fast path on.
            default = getattr(LayerMeasure, offered_by[0])
            if getattr(cls, offered_by[0]) is default:
                continue
            if cls._generations_to(methods) < cls._generations_to(offered_by):
                setattr(cls, offered_by[0], default)

    @classmethod
    def _generations_to(cls, names: Sequence[str]) -> int:
        """Return how far up the class is that last defined one of these; 0: the class itself."""
        classes = enumerate(cls.__mro__)
        return min(i for i, parent in classes if not vars(parent).keys().isdisjoint(names))

    @property
    def fewest(self) -> int:
        """The least number of rows that can be compared."""
        return 4

    @property
    def needed_by(self) -> str:
        """What needs the least number of rows, for errors; "": any use of the measure."""
        return ""

    @property
    def meaning(self) -> str:
        """What a value is, in a sentence; "" for a measure without a formula."""
        if not self.formula:
            return ""
        return f"Formula: {self.formula}."

    def __post_init__(self) -> None:
        """Raise a ValueError if a setting of the measure is outside of its declared range.

        A setting whose default is a whole number must be a whole number.
        """
        for setting in self.settings():
            is_whole = isinstance(setting.default, int)
            check_within(
                setting.name,
                getattr(self, setting.name),
                setting.metadata["range"],
                is_whole=is_whole,
            )

    def check_widths(self, widths: Sequence[int], names: Sequence[str]) -> None:
        """Raise a ValueError if the measure refuses unequal widths, and these are not all equal.

        Args:
            widths: The width of each layer that is compared.
            names: What the error calls each layer.
        """
        if "unequal_widths" not in self.refuses:
            return
        for width, name in zip(widths, names, strict=True):
            if width != widths[0]:
                raise ValueError(
                    f"only layers of equal width can be compared, but {names[0]} has width "
                    f"{widths[0]} and {name} has width {width}: choose other layers, or another "
                    "measure"
                )

    @abstractmethod
    def prepare(self, layer: Float[Tensor, "n d"], name: str) -> Prepared:
        """Return a layer in the form that `compare` takes, such as centred or as distances.

        It is computed once for each layer, however many layers it is compared with. A ValueError
        that names a row as "row 3", counted from 0, gets to the user with the name of his row.

        Args:
            layer: The rows of one layer, in float32 or float64.
            name: What errors call the layer.
        """

    @abstractmethod
    def compare(self, first: Prepared, second: Prepared) -> Float[Tensor, ""]:
        """Return the value of two prepared layers; if the measure is a ratio, its numerator.

        A class outside of this package gets a working copy of each layer, which it may change. It
        is the same object for all pairs of one call of `compare_all`.
        """

    def reordered(self, prepared: Prepared, order: Int[Tensor, " n"]) -> Prepared:
        """Return a prepared layer whose row i is the former row order[i].

        Where a prepared layer is not a tensor with rows along its first axis, a measure overrides
        this.
        """
        return prepared[order]  # type: ignore[index,no-any-return]

    def compare_all(
        self, layers: Sequence[Prepared], model_pairs: ModelPairs
    ) -> dict[Pair, Float[Tensor, "l m"]]:
        """Return the value of each of l layers of a model with each of m of another one.

        A ratio, such as CKA, has only its numerators here, HSICs, from which `ratios` computes the
        values. By default `compare` is called for two layers at a time.

        Args:
            layers: The distinct layers of all models, prepared.
            model_pairs: Which of these layers each model has, and which models are compared.

        Returns:
            A matrix for each pair of models.
        """
        if not self._is_user_defined:
            return compare_one_by_one(self.compare, layers, model_pairs, self.is_symmetric)
        # The `compare` of a user may change the layers that it is given, which are compared again.
        # So it gets copies, in which `_compare_copies` undoes changes after each comparison.
        copies = [WorkingCopy(layer, type(self).__name__) for layer in layers]
        return compare_one_by_one(self._compare_copies, copies, model_pairs, self.is_symmetric)

    def _compare_copies(
        self, first: WorkingCopy[Prepared], second: WorkingCopy[Prepared]
    ) -> Float[Tensor, ""]:
        """Return the value of copies of two prepared layers, which other pairs are given as well.

        Raises:
            ValueError: A prepared layer cannot be copied.
        """
        if first is second:
            try:
                value = self.compare(first.copy, first.copy)
            except Exception:
                if not first.restore():
                    raise
            else:
                if not first.restore():
                    return value
            second = first.twin  # a change of one of them must not be a change of both
        value = self.compare(first.copy, second.copy)
        first.restore()
        second.restore()
        return value

    def copied(self, prepared: Prepared) -> Prepared:
        """Return a prepared layer for a single use: a copy, for a class outside of this package.

        Raises:
            ValueError: It cannot be copied.
        """
        if not self._is_user_defined:
            return prepared
        return copied_layer(prepared, type(self).__name__)

    @property
    def _is_user_defined(self) -> bool:
        """Whether the class is defined outside of this package.

        Its `prepare` and `compare` may then change tensors that they are given, so that they get
        copies.
        """
        return type(self).__module__.partition(".")[0] != __name__.partition(".")[0]

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
        """Return what `prepare` returns for each of these layers.

        A tensor that occurs several times in `layers` is prepared once. All layers are computed in
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
            for group in self._layers_prepared_together([*different.values()]):
                rows = []
                for _, layer in group:
                    ordered = layer
                    if order is not None:
                        ordered = layer.index_select(0, order)
                    ordered = ordered.to(dtype)
                    if ordered is layer and self._is_user_defined:
                        ordered = layer.clone()  # `prepare` may change it in place
                    rows.append(ordered)
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

    def _layers_prepared_together(
        self, named_layers: list[tuple[str, Tensor]]
    ) -> list[list[tuple[str, Tensor]]]:
        """Return groups of layers, each of which is prepared in one call.

        On a GPU a group has all layers of one width, if the measure can prepare layers at once
        (`prepare_all`). Otherwise each layer is a group of its own.

        Args:
            named_layers: The name and the states (n, d) of each layer.
        """
        _, first_layer = named_layers[0]
        if not self.prepares_together or not first_layer.is_cuda:
            return [[named_layer] for named_layer in named_layers]
        layers_by_width: dict[int, list[tuple[str, Tensor]]] = {}
        for name, layer in named_layers:
            width = layer.shape[1]
            layers_by_width.setdefault(width, []).append((name, layer))
        return [*layers_by_width.values()]

    @takes_arrays
    def of(self, X: Float[Tensor, "n d"], Y: Float[Tensor, "m e"]) -> Float[Tensor, ""]:
        """Return the value of this measure, such as CKA, for two layers.

        Row i of both layers is the state for the same token or stimulus, so that they need equally
        many rows (n = m). The widths d and e may differ.

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

        Args:
            sources: The states (n, d) of each of l source layers.
            targets: The states (n, e) of each of m target layers.
            names: What errors call the source layers and then the target layers.

        Raises:
            ValueError: A side has no layer, layers have different or too few rows, or the measure
                refuses a layer.
        """
        for argument, layers_of_side in {"sources": sources, "targets": targets}.items():
            if not len(layers_of_side):
                raise ValueError(f"{argument} is empty: give the states of one layer or more")
        layers = [*sources, *targets]
        self.check_widths([layer.shape[1] for layer in layers], names)
        depth = len(sources)
        prepared = self.prepared(layers, names)
        # A layer that is given twice is compared once.
        first_index: dict[int, int] = {}
        for index, layer in enumerate(layers):
            first_index.setdefault(id(layer), index)
        indices = [first_index[id(layer)] for layer in layers]
        pairs = [(0, 1)]
        if self.is_ratio:  # its denominator needs each layer with itself
            pairs = [(0, 0), (0, 1), (1, 1)]
        with torch.autocast(layers[0].device.type, enabled=False):
            values = self.compare_all(
                prepared, ModelPairs([indices[:depth], indices[depth:]], pairs)
            )
        if self.is_ratio:
            return self.ratios(joint_matrix(values, (0, 1)))[:depth, depth:]
        return values[0, 1]


AnyMeasure = LayerMeasure[Any]  # whatever it prepares


def compare_one_by_one(
    compare: Callable[[Prepared, Prepared], Tensor],
    layers: Sequence[Prepared],
    model_pairs: ModelPairs,
    is_symmetric: bool,
) -> dict[Pair, Float[Tensor, "l m *k"]]:
    """Return the value of every layer of one model with every layer of another, one by one.

    For each pair of models, the values have the shape (l, m, *k), with (*k) that of one value.

    Args:
        compare: Returns the value of two prepared layers.
        layers: The distinct layers of all models, prepared.
        model_pairs: Which of these layers each model has, and which models are compared.
        is_symmetric: Whether `compare` gives the same value in either order, so that one of them
            is enough.
    """
    values: dict[Pair, Tensor] = {}
    for source, target in model_pairs.pairs:
        source_layers = model_pairs.layers_of_model[source]
        target_layers = model_pairs.layers_of_model[target]
        # Values of other pairs of models are not reused, so that the values of two models do not
        # depend on which other models are compared.
        value_of_layers: dict[tuple[int, int], Tensor] = {}  # by the indices of both layers
        for i, j in product(source_layers, target_layers):
            if is_symmetric and (j, i) in value_of_layers:
                value_of_layers[i, j] = value_of_layers[j, i]
            elif (i, j) not in value_of_layers:
                value_of_layers[i, j] = compare(layers[i], layers[j])
        rows = []
        for i in source_layers:
            rows.append(torch.stack([value_of_layers[i, j] for j in target_layers]))
        values[source, target] = torch.stack(rows)
    return values


def products(
    layers: Sequence[Float[Tensor, "n k"]], model_pairs: ModelPairs, is_symmetric: bool = False
) -> dict[Pair, Float[Tensor, "l m"]]:
    """Return the inner product Σᵢⱼ A_ij B_ij of the matrices of every two layers.

    Matrices are summed strip by strip of rows, which stays in the cache of a CPU. Of symmetric
    matrices only the diagonal blocks and what is right of them are read, which counts twice.

    Args:
        layers: A matrix for each of the distinct layers, all of one shape.
        model_pairs: Which of these layers each model has, and which models are compared.
        is_symmetric: Whether all matrices are symmetric.

    Returns:
        The products (l, m) for each pair of models; 0 for matrices without rows.
    """
    sums: dict[Pair, Tensor] = {}
    row_count = len(layers[0])
    rows_at_once = max(ENTRIES_AT_ONCE // max(layers[0].shape[1], 1), 1)
    if layers[0].is_cuda:  # one launch for all rows
        rows_at_once = max(row_count, 1)
    for start in range(0, max(row_count, 1), rows_at_once):  # once, if there are no rows
        end = start + rows_at_once
        strips = [layer[start:end] for layer in layers]
        weighted_columns = [(1, slice(None))]
        if is_symmetric:
            weighted_columns = [(1, slice(start, end)), (2, slice(end, None))]
        for weight, columns in weighted_columns:
            by_model = model_pairs.by_model([strip[:, columns] for strip in strips])
            flat = [entries.flatten(1) for entries in by_model]  # (l, entries) for each model
            for source, target in model_pairs.pairs:
                products_of_strip = flat[source] @ flat[target].T  # (l, m)
                sum_so_far = sums.get((source, target), 0)
                sums[source, target] = sum_so_far + weight * products_of_strip
    return sums


def reordered_matrix(
    prepared: Shaped[Tensor, "n n"], order: Int[Tensor, " n"]
) -> Shaped[Tensor, "n n"]:
    """Return a matrix of row pairs, such as distances, with its rows and its columns reordered.

    Entry (i, j) of the result is entry (order[i], order[j]) of the matrix.
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
    """The rows of the distinct layers of a batch, with those of a part of documents together.

    Attributes:
        layers: The r rows of each layer as they came: nothing is copied before a layer is
            prepared.
        names: What errors call each layer.
        order: The n rows of `layers` that are compared, sorted by the part of their document.
        documents: The number of the document of each compared row, in that order.
        tokens: The token of each compared row, in that order; None if rows are not grouped.
        numbers: The number of each row of `layers` in the batch, counted through its tokens;
            None: that of the row.
    """

    layers: Sequence[Float[Tensor, "r _"]]
    names: Sequence[str]
    order: Int[Tensor, " n"]
    documents: Int[Tensor, " n"]
    tokens: Int[Tensor, " n"] | None
    numbers: Int[Tensor, " r"] | None = None

    def selected(self, chosen: Int[Tensor, " m"]) -> BatchRows:
        """Return the batch with only some of its compared rows.

        The states of layers are not copied: the new `order` says which of their rows are compared.

        Args:
            chosen: The positions of the selected rows in the present `order`.
        """
        tokens = None
        if self.tokens is not None:
            tokens = self.tokens[chosen]
        return self._replace(
            order=self.order[chosen], documents=self.documents[chosen], tokens=tokens
        )

    def name_of_row(self, number: int) -> str:
        """Return what errors call a compared row: by its number in the batch."""
        row = int(self.order[number])
        if self.numbers is not None:
            row = int(self.numbers[row])
        return f"row {row}"

    def in_units(self) -> tuple[BatchRows, list[Float[Tensor, ""]]]:
        """Return the rows with each float64 layer divided by a power of two, and these powers.

        The power is the greatest one up to the layer's largest absolute value. float32 layers stay
        as they are, and their powers are 1.
        """
        if self.layers[0].dtype != torch.float64:
            return self, [self.layers[0].new_ones((), dtype=torch.float64)] * len(self.layers)
        units = [power_of_two_unit(layer) for layer in self.layers]
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
        self, pairs: Sequence[Pair], flatten: str
    ) -> tuple[BatchRows, dict[int, tuple[int, ...]]]:
        """Return the rows of each layer, and for each model the indices of its layers among them.

        A layer that several models share occurs once. Layers keep their rows in the order of the
        text. The order in which they are read, with the rows of each part of the jackknife
        together, is returned beside them, and the labels of rows are in this order already.

        Args:
            pairs: The pairs of models, as indices, that are compared.
            flatten: What a row is: a "token", a "sample" (sequence), or the "mean" of a sequence.

        Raises:
            ValueError: The mask or the labels do not fit the states, or row counts differ.
        """
        layers, names, layers_of_model = self._distinct_layers(pairs)
        dtype = common_dtype(layers)
        token_indices = None
        if self.mask is not None:
            token_indices = indices_where(self.mask)
        rows = [rows_of(layer.to(dtype), flatten, self.mask, token_indices) for layer in layers]
        documents = self.documents_of_rows(layers[0], flatten)
        tokens = None
        if self.groups is not None:
            tokens = labels_of_rows(self.groups, self.mask, layers[0], "groups")
        row_counts = [*map(len, rows), len(documents)]
        check_same_rows(row_counts, [*names, "documents"])

        # The jackknife leaves out one of `JACKKNIFE_PARTS` parts of the documents at a time, so
        # the rows of each part stand together.
        order = (documents % JACKKNIFE_PARTS).argsort(stable=True)
        if tokens is not None:
            tokens = tokens[order]
        numbers = token_indices if flatten == "token" else None
        return BatchRows(rows, names, order, documents[order], tokens, numbers), layers_of_model

    def _distinct_layers(
        self, pairs: Sequence[Pair]
    ) -> tuple[list[Tensor], list[str], dict[int, tuple[int, ...]]]:
        """Return the distinct layers of the compared models.

        Args:
            pairs: The pairs of models that are compared.

        Returns:
            The layers, each tensor once although several models may have it; what errors call each
            of them; and for each model the indices of its layers in the first list.
        """
        model_names = {model: f"model {model}" for pair in pairs for model in pair}
        if len(pairs) == 1:
            source, target = pairs[0]
            # A model that is compared with itself is called the source.
            model_names[target] = "target"
            model_names[source] = "source"
        index_of_tensor: dict[int, int] = {}  # by the `id` of the tensor
        layers: list[Tensor] = []
        names = []
        for model, model_name in model_names.items():
            for index, layer in enumerate(self.states[model]):
                if id(layer) not in index_of_tensor:
                    index_of_tensor[id(layer)] = len(layers)
                    layers.append(layer)
                    names.append(f"{model_name} layer {index}")
        layers_of_model = {}
        for model in model_names:
            indices = [index_of_tensor[id(layer)] for layer in self.states[model]]
            layers_of_model[model] = tuple(indices)
        return layers, names, layers_of_model

    def documents_of_rows(self, states: Tensor, flatten: str) -> Int[Tensor, " n"]:
        """Return the document of each row; if a row is a sequence, that of its first token.

        If the batch has no documents, each token is its own document, with a number that no other
        batch has.

        Args:
            states: The states of any layer, (b, t, d) or (n, d); all layers have them for the same
                tokens.
            flatten: What a row is: a "token", a "sample" (sequence), or the "mean" of a sequence.
        """
        documents = self.documents
        if documents is None:
            token_count = states[..., 0].numel()
            documents = torch.arange(token_count, device=states.device).view(states.shape[:-1])
            documents = documents + self.number * NUMBERS_PER_BATCH
        if flatten == "token" or states.ndim == 2:
            return labels_of_rows(documents, self.mask, states, "documents")
        return documents.to(states.device).flatten(1)[:, 0]
