"""The contract of a measure of layer pairs: prepare each layer once, compare prepared ones, move rows of prepared ones.

mine = LayerMeasure(prepare, each_pair(compare), rows_in_order)
mine.of(X, Y)                   # (n, d) and (n, e): one number
mine.matrix([X0, X1], [Y0])     # every layer pair, each layer prepared once
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import product
from math import inf, log, pi
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from thinkalike.arguments import takes_arrays

if TYPE_CHECKING:
    from thinkalike.measures.rows import RowGroups

Pair = tuple[int, int]  # numbers of two models; a model is with itself, too
ROUNDING = 1e-12  # share of a matrix in float64 that centring leaves of nothing


class Blocks(NamedTuple):
    """The layers of several models, by their places in a list of different layers, and which models are compared.

    Two models are compared in the same steps, with operands of the same shapes, whether they come alone or with others:
    so the numbers of a pair are the same to the bit in any company.
    """

    models: Sequence[Sequence[int]]
    pairs: Sequence[Pair]

    def by_model(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Return one stack for each model of what each different layer has."""
        return [torch.stack([parts[place] for place in places]) for places in self.models]


def one_model(layers: int) -> Blocks:
    """Return the blocks of a single model of this many different layers: it is compared with itself."""
    return Blocks([list(range(layers))], [(0, 0)])


def joined(blocks: Mapping[Pair, Tensor], pair: Pair) -> Float[Tensor, "k k"]:
    """Return the matrix of all layers of the first model and then the second, from the blocks within and between."""
    first, second = pair
    across = blocks[pair]
    above = torch.cat([blocks[first, first], across], 1)
    return torch.cat([above, torch.cat([across.T, blocks[second, second]], 1)])


CompareAll = Callable[[Sequence[Any], Blocks], dict[Pair, Tensor]]


@dataclass(frozen=True)
class LayerMeasure:
    """A measure of two layers of the same n rows.

    Attributes:
        prepare: Makes a layer, (n, d), of float32 or float64, into what is compared; the second argument is its name in
            errors.
        compare: The likenesses of the prepared layers of models that are compared, by pair of models.
        moved: Returns a prepared layer with its rows in another order.
        fewest: The least number of rows.
        best: The value of a layer with itself.
        higher_is_closer: False for a distance.
        finish: Makes likenesses of all layers with all, (.., k, k), into values, where these are ratios of likenesses,
            since sums over batches come before the ratio; None if likenesses are the values.
        flatten: What a row is, see `rows_of`.
        given: The same measure within groups of rows, such as those of one token; None if there is none.
        similarities: The similarities of rows that a measure within groups compares, (g, s, s) for each size of groups.
        compare_without_parts: As `compare`, of all rows and of all but each part, (1 + parts, l, m), from the sizes of
            parts that follow one another; None: by comparing again.
        leverage: The share of a prepared layer that a single row decides.
        is_unbiased: Whether the value expected of independent rows is the same however many there are.
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
    is_unbiased: bool = False

    def prepared(self, layers: Sequence[Float[Tensor, "_ _"]], names: Sequence[str]) -> list[Any]:
        """Return all layers prepared, each tensor once.

        Raises:
            ValueError: Layers differ in the number of rows, or have too few; see `prepare`.
        """
        n, dtype = len(layers[0]), common_dtype(layers)
        for name, layer in zip(names, layers, strict=True):
            if len(layer) != n:
                raise ValueError(f"all layers need the same rows, but {names[0]} has {n} and {name} has {len(layer)}")
        if n < self.fewest:
            raise ValueError(f"{n} rows are too few to compare: give at least {self.fewest}")
        known: dict[int, Any] = {}
        with torch.autocast(layers[0].device.type, enabled=False):
            for name, layer in zip(names, layers, strict=True):
                if id(layer) not in known:
                    known[id(layer)] = self.prepare(layer.to(dtype), name)
        return [known[id(layer)] for layer in layers]

    @takes_arrays
    def of(self, X: Float[Tensor, "n d"], Y: Float[Tensor, "m e"]) -> Float[Tensor, ""]:
        """Return the likeness of two layers; see `prepared` for its errors."""
        return self._values([X], [Y], ["X", "Y"])[0, 0]

    @takes_arrays
    def matrix(self, sources: Sequence[Float[Tensor, "_ _"]], targets: Sequence[Float[Tensor, "_ _"]]) -> Tensor:
        """Return the likeness of every source layer with every target layer, (l, m); see `prepared` for its errors."""
        return self._values(sources, targets, [f"layer {index}" for index in range(len(sources) + len(targets))])

    def _values(self, sources: Sequence[Tensor], targets: Sequence[Tensor], names: Sequence[str]) -> Tensor:
        layers, depth = [*sources, *targets], len(sources)
        prepared = self.prepared(layers, names)
        first = {id(layer): place for place, layer in reversed([*enumerate(layers)])}
        places = [first[id(layer)] for layer in layers]
        pairs = [(0, 0), (0, 1), (1, 1)] if self.finish else [(0, 1)]
        with torch.autocast(layers[0].device.type, enabled=False):
            found = self.compare(prepared, Blocks([places[:depth], places[depth:]], pairs))
        return self.finish(joined(found, (0, 1)))[:depth, depth:] if self.finish else found[0, 1]


def common_dtype(features: Iterable[Tensor]) -> torch.dtype:
    """Return the widest dtype, and at least float32."""
    return reduce(torch.promote_types, (x.dtype for x in features), torch.float32)


def each_pair(compare: Callable[[Any, Any], Tensor], *, is_symmetric: bool = True) -> CompareAll:
    """Return a comparison of every two layers one by one; if it is symmetric, each two of one model once."""
    return partial(_compare_each, compare, is_symmetric)


def _compare_each(
    compare: Callable[[Any, Any], Tensor], is_symmetric: bool, layers: Sequence[Any], blocks: Blocks
) -> dict[Pair, Float[Tensor, "l m"]]:
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


def products(layers: Sequence[Float[Tensor, "n n"]], blocks: Blocks) -> dict[Pair, Float[Tensor, "l m"]]:
    """Return the sums of the products of all entries of two matrices, for every two: one product of two models."""
    flat = [each.flatten(1) for each in blocks.by_model(layers)]
    return {(a, b): flat[a] @ flat[b].T for a, b in blocks.pairs}


def rows_in_order(prepared: Shaped[Tensor, "n d"], order: Int[Tensor, " n"]) -> Shaped[Tensor, "n d"]:
    """Return prepared rows in another order."""
    return prepared[order]


def both_in_order(prepared: Shaped[Tensor, "n n"], order: Int[Tensor, " n"]) -> Shaped[Tensor, "n n"]:
    """Return a prepared matrix of pairs of rows, with the rows in another order."""
    return prepared[order[:, None], order]


def unit(matrix: Float[Tensor, "n n"], size: Float[Tensor, ""], name: str) -> Float[Tensor, "n n"]:
    """Return a centred matrix divided by its norm; a ValueError if only rounding is left of its `size` before that."""
    norm = matrix.norm()
    if not norm > ROUNDING * size:
        raise ValueError(f"{name}: all distances are equal, or all but those of one row, so none can be compared")
    return matrix / norm


# ---- what each measure of two sets of features promises, as data; one tester proves it for all of them

Invariance = Literal[
    "orthogonal", "isotropic_scaling", "translation", "row_permutation", "unit_scaling", "invertible_linear"
]
Refusal = Literal["nan", "inf", "few_rows", "unequal_rows", "constant"]


@dataclass(frozen=True)
class Properties:
    """The promises of a measure of two sets of features, (n, d) and (n, e), of the same n stimuli.

    | promise | |
    |---|---|
    | low, high | the range of the value |
    | invariances | changes of one side's features alone that leave the value as it is; "row_permutation" is of both |
    | differentiable | in which sides the value has a gradient: 2 is both, 1 the first alone, 0 neither |
    | higher_is_closer | False for a distance or a loss |
    | identical | the value of features with themselves; None if that depends on the features |
    | symmetric | whether the two sides may change places |
    | fewest | the least number of rows |
    | refuses | bad input that raises a ValueError |
    """

    low: float
    high: float
    invariances: frozenset[Invariance]
    differentiable: Literal[0, 1, 2]
    higher_is_closer: bool
    identical: float | None
    symmetric: bool = True
    fewest: int = 4
    refuses: frozenset[Refusal] = frozenset({"nan", "inf", "few_rows", "unequal_rows", "constant"})


SAME_SHAPE: frozenset[Invariance] = frozenset({"orthogonal", "isotropic_scaling", "translation", "row_permutation"})
OF_RANKS: frozenset[Invariance] = SAME_SHAPE - {"orthogonal"} | {"unit_scaling", "invertible_linear"}  # of one column
FORMULA: frozenset[Refusal] = frozenset({"few_rows"})  # of Gram matrices: what they are made of is the caller's concern
RANKLESS: frozenset[Refusal] = frozenset({"few_rows", "constant"})
OF_LOGITS: frozenset[Invariance] = frozenset({"row_permutation"})
OUTPUT: frozenset[Refusal] = frozenset({"nan", "inf", "few_rows", "unequal_rows"})
UNCORRELATED: frozenset[Refusal] = frozenset({"nan", "inf", "few_rows", "constant"})

NEIGHBOURS = Properties(0.0, 1.0, SAME_SHAPE - {"translation"}, 0, True, identical=1.0, fewest=5)
OUTPUTS = Properties(0.0, log(2), OF_LOGITS, 2, False, identical=0.0, fewest=1, refuses=OUTPUT)
CORRELATION = Properties(-1.0, 1.0, SAME_SHAPE, 0, True, identical=1.0)
RSA = replace(CORRELATION, fewest=3)
RANKS = Properties(-1.0, 1.0, OF_RANKS, 0, True, identical=1.0, fewest=2, refuses=RANKLESS)
MLEM = Properties(-1.0, 1.0, SAME_SHAPE, 0, True, identical=None, symmetric=False, fewest=3)
MLEM_LOSS = replace(MLEM, low=0.0, high=2.0, differentiable=1, higher_is_closer=False, refuses=UNCORRELATED)

PROPERTIES = {
    **dict.fromkeys(("cka", "cka rbf"), Properties(-1.0, 1.0, SAME_SHAPE, 2, True, identical=1.0)),
    "cka biased": Properties(0.0, 1.0, SAME_SHAPE, 2, True, identical=1.0),
    **dict.fromkeys(("cka of batches", "cka given the token"), CORRELATION),
    "hsic1": Properties(-inf, inf, SAME_SHAPE - {"isotropic_scaling"}, 2, True, identical=None, refuses=FORMULA),
    "hsic0": Properties(0.0, inf, SAME_SHAPE - {"isotropic_scaling"}, 2, True, identical=None, refuses=frozenset()),
    "arc length": Properties(0.0, pi, SAME_SHAPE, 2, False, identical=0.0),
    **dict.fromkeys(("mutual knn", "mutual knn given the token", "jaccard"), NEIGHBOURS),
    "second order cosine": replace(NEIGHBOURS, low=-1.0),
    "procrustes": Properties(0.0, pi / 2, SAME_SHAPE, 2, False, identical=0.0, fewest=2),
    "svcca": Properties(0.0, 1.0, SAME_SHAPE, 0, True, identical=1.0, fewest=2),
    "soft matching": Properties(
        -1.0, 1.0, SAME_SHAPE - {"orthogonal"} | {"unit_scaling"}, 2, True, identical=1.0, fewest=2
    ),
    "distance correlation": CORRELATION,
    "jensen-shannon": OUTPUTS,
    "disagreement": replace(OUTPUTS, high=1.0, differentiable=0, invariances=OF_LOGITS | {"isotropic_scaling"}),
    "r2": Properties(
        -inf, 1.0, SAME_SHAPE | {"unit_scaling", "invertible_linear"}, 0, True, identical=1.0, symmetric=False, fewest=3
    ),
    "rsa": RSA,
    "rsa cosine": replace(RSA, invariances=SAME_SHAPE - {"translation"}),
    "rsa correlation": replace(RSA, invariances=SAME_SHAPE - {"orthogonal", "translation"}),
    "rsa manhattan": replace(RSA, invariances=SAME_SHAPE - {"orthogonal"}),
    "rsa norm_difference": replace(RSA, invariances=SAME_SHAPE - {"translation"}),
    **{f"rsa by {name}": RSA for name in ("tau_a", "corr", "corr_cov")},
    **{f"rsa by {name}": replace(RSA, low=0.0) for name in ("cosine", "cosine_cov")},
    **dict.fromkeys(("spearman", "weighted tau"), RANKS),
    **dict.fromkeys(("mlem", "mlem levels"), MLEM),
    **dict.fromkeys(("mlem loss pearson", "mlem loss spearman"), MLEM_LOSS),
    "token kl": replace(OUTPUTS, high=inf, differentiable=1, symmetric=False, refuses=frozenset()),
}
