"""The contract of a measure of layer pairs: prepare each layer once, compare prepared ones, move rows of prepared ones.

mine = LayerMeasure(prepare, each_pair(compare), rows_in_order)
mine.of(X, Y)                   # (n, d) and (n, e): one number
mine.matrix([X0, X1], [Y0])     # every layer pair, each layer prepared once
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.arguments import takes_arrays

Compare = Callable[[Any, Any], Tensor]
CompareAll = Callable[[Sequence[Any], Sequence[Any]], Tensor]


@dataclass(frozen=True)
class LayerMeasure:
    """A measure of two layers of the same n rows.

    Attributes:
        prepare: what a layer, (n, d), is made into once; the second argument is what an error calls the layer.
        compare: prepared layers, l of a source and m of a target, to their likenesses, (l, m), in float64.
        moved: a prepared layer and an order of its rows to what `prepare` gives of the rows in that order.
        fewest: the least number of rows.
        best: the value of a layer with itself.
        higher_is_closer: False for a distance.
    """

    prepare: Callable[[Tensor, str], Any]
    compare: CompareAll
    moved: Callable[[Any, Tensor], Any]
    fewest: int = 4
    best: float = 1.0
    higher_is_closer: bool = True

    def prepared(self, layers: Sequence[Float[Tensor, "_ _"]], names: Sequence[str]) -> list[Any]:
        """Return all layers prepared, each tensor once.

        Raises:
            ValueError: Layers differ in the number of rows, or have too few; see `prepare`.
        """
        n = len(layers[0])
        for name, layer in zip(names, layers, strict=True):
            if len(layer) != n:
                raise ValueError(f"all layers need the same rows, but {names[0]} has {n} and {name} has {len(layer)}")
        if n < self.fewest:
            raise ValueError(f"{n} rows are too few to compare: give at least {self.fewest}")
        known: dict[int, Any] = {}
        for name, layer in zip(names, layers, strict=True):
            if id(layer) not in known:
                known[id(layer)] = self.prepare(layer, name)
        return [known[id(layer)] for layer in layers]

    @takes_arrays
    def of(self, X: Float[Tensor, "n d"], Y: Float[Tensor, "m e"]) -> Float[Tensor, ""]:
        """Return the likeness of two layers; see `prepared` for its errors."""
        source, target = self.prepared([X, Y], ["X", "Y"])
        return self.compare([source], [target])[0, 0]

    @takes_arrays
    def matrix(self, sources: Sequence[Float[Tensor, "_ _"]], targets: Sequence[Float[Tensor, "_ _"]]) -> Tensor:
        """Return the likeness of every source layer with every target layer, (l, m); see `prepared` for its errors."""
        if not (len(sources) and len(targets)):
            raise ValueError("there is no layer to compare: give at least one on each side")
        names = [f"layer {index}" for index in range(len(sources) + len(targets))]
        prepared = self.prepared([*sources, *targets], names)
        return self.compare(prepared[: len(sources)], prepared[len(sources) :])


def each_pair(compare: Compare, *, is_symmetric: bool = True) -> CompareAll:
    """Return what compares every two layers one by one.

    Args:
        is_symmetric: whether the order of two layers plays no part, so that each two of one list are compared once.
    """
    return partial(_compare_all, compare, is_symmetric)


def _compare_all(
    compare: Compare, is_symmetric: bool, sources: Sequence[Any], targets: Sequence[Any]
) -> Float[Tensor, "l m"]:
    if sources is not targets or not is_symmetric:
        return torch.stack([torch.stack([compare(first, second) for second in targets]) for first in sources])
    rows, columns = torch.triu_indices(len(sources), len(sources)).tolist()
    values = torch.stack([compare(sources[i], sources[j]) for i, j in zip(rows, columns, strict=True)])
    matrix = values.new_empty(len(sources), len(sources))
    matrix[rows, columns] = matrix[columns, rows] = values
    return matrix


def products(sources: Sequence[Float[Tensor, "n n"]], targets: Sequence[Float[Tensor, "n n"]]) -> Float[Tensor, "l m"]:
    """Return the sums of the products of all entries of two matrices, for every two: one product of all layers."""
    first = torch.stack([matrix.flatten() for matrix in sources])
    second = first if sources is targets else torch.stack([matrix.flatten() for matrix in targets])
    return first @ second.T


def rows_in_order(prepared: Float[Tensor, "n d"], order: Int[Tensor, " n"]) -> Float[Tensor, "n d"]:
    """Return prepared rows in another order."""
    return prepared[order]


def both_in_order(prepared: Float[Tensor, "n n"], order: Int[Tensor, " n"]) -> Float[Tensor, "n n"]:
    """Return what a prepared matrix holds of pairs of rows, with the rows in another order."""
    return prepared[order[:, None], order]


def unit(matrix: Float[Tensor, "n n"], size: Float[Tensor, ""], name: str) -> Float[Tensor, "n n"]:
    """Return a matrix of norm 1.

    Args:
        size: Of what the matrix is a difference; where rounding of that alone is left, there is nothing to compare.

    Raises:
        ValueError: There is nothing left of the matrix.
    """
    norm = matrix.norm()
    if not norm > ROUNDING * size:
        raise ValueError(
            f"{name}: all distances are equal, or all but those of one row, so there is nothing to compare"
        )
    return matrix / norm


ROUNDING = 1e-12  # share of a matrix in float64 that centring leaves of nothing
