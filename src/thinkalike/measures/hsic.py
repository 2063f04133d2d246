"""Hilbert-Schmidt independence criterion of two Gram matrices: how alike are the similarities that they hold?"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.measures.contract import Blocks, Pair, one_model
from thinkalike.measures.rows import FEWEST, ROUNDINGS


class GramStatistics(NamedTuple):
    """All that HSIC needs of the Gram matrices of the layers of models, in float64; K̃ is K with a zero diagonal."""

    products: dict[Pair, Float[Tensor, "l m"]]  # Σᵢⱼ K̃ᵢⱼ L̃ᵢⱼ, by the two models whose layers K and L are of
    sums: list[Float[Tensor, "l n"]]  # of each row of K̃, by model
    diagonals: list[Float[Tensor, "l n"]]  # of K, by model


def hsic1(K: Float[Tensor, "n n"], L: Float[Tensor, "n n"]) -> Float[Tensor, ""]:
    """Return the unbiased HSIC of two Gram matrices (Song et al. 2012, eq. 5); a ValueError of fewer than 4 rows.

    It is [tr(K̃L̃) + 1'K̃1 1'L̃1 / ((n-1)(n-2)) - 2/(n-2) 1'K̃L̃1] / (n(n-3)), where K̃ is K with a zero diagonal: any real
    number, in the unit of K times that of L, differentiable. Uncentred Grams of large offsets leave float32 no digits:
    centre the features first, or use `cka`.
    """
    if len(K) < FEWEST:
        raise ValueError(f"HSIC needs at least {FEWEST} rows, not {len(K)}")
    K, L = K - K.diagonal().diag(), L - L.diagonal().diag()
    return unbiased_from_sums(len(K), (K * L.T).sum(), (K.sum(0) * L.sum(1)).sum(), K.sum() * L.sum())


def hsic0(K: Float[Tensor, "n n"], L: Float[Tensor, "n n"]) -> Float[Tensor, ""]:
    """Return the biased HSIC tr(KHLH) / (n-1)², H = 1 - 11'/n (Gretton et al. 2005, eq. 9), at least 0 for kernels."""
    return _biased(len(K), (K * L.T).sum(), (K.sum(0) * L.sum(1)).sum(), K.sum() * L.sum())


def all_hsics(statistics: GramStatistics, estimator: str, groups: int = 1) -> dict[Pair, Float[Tensor, "l m"]]:
    """Return the HSIC of every two symmetric Gram matrices of the models that are compared, "unbiased" or "biased".

    Rows may be of several `groups` of one size, side by side, and the matrices their blocks; then HSICs are summed.
    """
    formula, products = unbiased_from_sums, statistics.products
    sums, own = statistics.sums, statistics.diagonals
    if estimator == "biased":  # of K itself
        formula, products = _biased, {(a, b): each + own[a] @ own[b].T for (a, b), each in products.items()}
        sums = [off + diagonal for off, diagonal in zip(sums, own, strict=True)]
    totals = [each.unflatten(1, (groups, -1)).sum(2) for each in sums]
    n = sums[0].shape[1] // groups
    parts = {(a, b): (sums[a] @ sums[b].T, totals[a] @ totals[b].T) for a, b in products}
    return {pair: formula(n, each, *parts[pair]) for pair, each in products.items()}


def unbiased_from_sums(n: int, products: Tensor, of_sums: Tensor, of_totals: Tensor) -> Tensor:
    """Return `hsic1` from Σᵢⱼ K̃ᵢⱼ L̃ᵢⱼ, the product of the rows' sums of K̃ and L̃, and that of their totals."""
    return (products - of_sums * 2 / (n - 2) + of_totals / ((n - 1) * (n - 2))) / (n * (n - 3))


def rounding_of(statistics: GramStatistics, model: int, dtype: torch.dtype, groups: int = 1) -> Float[Tensor, " l"]:
    """Return what rounding may leave of the unbiased HSIC of each layer of a model with itself, whose terms cancel."""
    sums = statistics.sums[model]
    totals = sums.unflatten(1, (groups, -1)).sum(2).square().sum(1)
    terms = statistics.products[model, model].diagonal(), -sums.square().sum(1), totals
    return ROUNDINGS * torch.finfo(dtype).eps * unbiased_from_sums(sums.shape[1] // groups, *terms)


def _biased(n: int, products: Tensor, of_sums: Tensor, of_totals: Tensor) -> Tensor:
    return (products - of_sums * 2 / n + of_totals / n**2) / (n - 1) ** 2


# ---- statistics of many layers' Gram matrices; a linear kernel's matrix is never held whole


class Tiling(NamedTuple):
    """Cuts the half of a Gram matrix on and above its diagonal: squares of `height` on it, and tiles to their right.

    A square is cut again into strips of `step` rows, each from its own first column on: less is computed twice.
    """

    height: int
    width: int
    step: int

    def tiles(self, n: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield the first row, the first column, the rows and the columns of each tile; diagonal ones begin on it."""
        for top in range(0, n, self.height):
            end = min(top + self.height, n)
            for row in range(top, end, self.step):
                yield row, row, min(self.step, end - row), end - row
            for left in range(end, n, self.width):
                yield top, left, end - top, min(self.width, n - left)


CPU_TILE = Tiling(256, 1024, 64)  # 27 MB for 26 layers: it stays in the cache between being written and being read
GPU_TILE = Tiling(2048, 2048, 2048)  # few launches
LARGE = 512  # rows; a larger group is a Gram matrix of its own
AT_ONCE = 2**17  # numbers of the blocks of small groups of one layer
MANY = 8192  # rows in float64, from which on products of features cost less than Gram matrices


def _within(sizes: Sequence[int], first: int, count: int) -> Iterator[tuple[int, slice]]:
    """Yield the parts that `count` rows from the first one on are of, and the places of each among them."""
    start = 0
    for number, size in enumerate(sizes):
        low, high = max(start, first) - first, min(start + size, first + count) - first
        if low < high:
            yield number, slice(low, high)
        start += size


def feature_products(
    rows: Sequence[Float[Tensor, "n _"]], blocks: Blocks, sizes: Sequence[int]
) -> dict[Pair, Float[Tensor, "p p l m"]]:
    """Return Σ_{i≠j} K_ij L_ij over i of one part and j of another: <X_g'Y_g, X_h'Y_h>, less Σᵢ K_ii L_ii if g = h."""
    parts, found = [x.split([*sizes]) for x in rows], {}
    for a, b in blocks.pairs:
        found[a, b] = rows[0].new_empty(len(sizes), len(sizes), len(blocks.models[a]), len(blocks.models[b]))
        for (row, i), (column, j) in product(enumerate(blocks.models[a]), enumerate(blocks.models[b])):
            flat = torch.stack([(x.T @ y).flatten() for x, y in zip(parts[i], parts[j], strict=True)])
            own = [(x.square().sum(1) * y.square().sum(1)).sum() for x, y in zip(parts[i], parts[j], strict=True)]
            found[a, b][..., row, column] = flat @ flat.T - torch.stack(own).diag()
    return found


def tiled_products(
    rows: Sequence[Float[Tensor, "n _"]], blocks: Blocks, sizes: Sequence[int]
) -> dict[Pair, Float[Tensor, "p p l m"]]:
    """Return Σ_{i≠j} K_ij L_ij over i of one part and j of another, of every two layers of the models compared.

    They come tile by tile on and above the diagonal. The product over pairs of layers waits for memory, so all layers'
    tiles are written side by side, and small products for each two models read them, out of the cache. A model's tiles
    have memory of their own, which begins where memory is aligned: bits may depend on that.
    """
    n, counts, parts = len(rows[0]), [len(places) for places in blocks.models], (len(sizes), len(sizes))
    tiling = GPU_TILE if rows[0].is_cuda else CPU_TILE
    total = {(a, b): rows[0].new_zeros(*parts, counts[a], counts[b], dtype=torch.float64) for a, b in blocks.pairs}
    largest = min(tiling.height, n) * min(max(tiling.height, tiling.width), n)
    memory = [rows[0].new_empty(count * largest) for count in counts]
    for top, left, h, w in tiling.tiles(n):
        tiles = [part[: count * h * w].view(count, h, w) for part, count in zip(memory, counts, strict=True)]
        made: dict[int, Tensor] = {}  # the Gram matrix of one tensor is computed once
        for own, place in zip(itertools.chain(*tiles), itertools.chain(*blocks.models), strict=True):
            if place in made:
                own.copy_(made[place])
            else:
                made[place] = torch.mm(rows[place][top : top + h], rows[place][left : left + w].T, out=own)
        if left == top:
            for tile in tiles:
                tile.triu_(1)
        by_row = [tile.transpose(0, 1) for tile in tiles]  # a float32 sum per row of a tile: a longer one loses a digit
        for column, across in _within(sizes, left, w):
            for a, b in blocks.pairs:
                found = torch.bmm(by_row[a][..., across], by_row[b][..., across].mT)
                for row, down in _within(sizes, top, h):
                    total[a, b][row, column] += found[down].sum(0, dtype=torch.float64)
    return {pair: each + each.transpose(0, 1) for pair, each in total.items()}  # of both halves


def products_of(
    rows: Sequence[Float[Tensor, "n _"]],
) -> Callable[[Sequence[Tensor], Blocks, Sequence[int]], dict[Pair, Tensor]]:
    """Return the cheaper of the two ways to the products of the Gram matrices of these rows."""
    is_tall = len(rows[0]) >= MANY and rows[0].dtype == torch.float64
    return feature_products if is_tall else tiled_products


@torch.no_grad()
def left_out_statistics(
    rows: Sequence[Float[Tensor, "n _"]],
    blocks: Blocks,
    sizes: Sequence[int],
    products: Mapping[Pair, Float[Tensor, "p p l m"]],
) -> Iterator[GramStatistics]:
    """Yield the statistics of all rows, and then of all but each part of them in turn, from one pass over K = X X'.

    Args:
        sizes: Of the parts, which follow one another.
        products: What `products_of` the rows found.
    """
    own = [torch.linalg.vector_norm(x, dim=1).double().square() for x in rows]
    totals = [torch.stack([part.sum(0) for part in x.split([*sizes])]) for x in rows]
    sums = [(x @ part.sum(0)).double() - norms for x, part, norms in zip(rows, totals, own, strict=True)]
    whole = {pair: each.sum((0, 1)) for pair, each in products.items()}
    yield GramStatistics(whole, blocks.by_model(sums), blocks.by_model(own))
    to_parts = [(x @ part.T).double() for x, part in zip(rows, totals, strict=True)]
    start = 0
    for number, size in enumerate(sizes):
        kept = torch.ones(len(rows[0]), dtype=torch.bool, device=rows[0].device)
        kept[start : start + size] = False
        left = {
            pair: whole[pair] - each[number].sum(0) - each[:, number].sum(0) + each[number, number]
            for pair, each in products.items()
        }
        without = [(every - part[:, number])[kept] for every, part in zip(sums, to_parts, strict=True)]
        yield GramStatistics(left, blocks.by_model(without), blocks.by_model([each[kept] for each in own]))
        start += size


@torch.no_grad()
def linear_statistics(rows: Sequence[Float[Tensor, "n _"]], blocks: Blocks | None = None) -> GramStatistics:
    """Return the statistics of K = X X' for the rows X of each different layer, which are about centred.

    Products are taken in the dtype of the rows, and summed up in float64. By default one model has all layers.
    """
    blocks, sizes = blocks or one_model(len(rows)), [len(rows[0])]
    return next(left_out_statistics(rows, blocks, sizes, products_of(rows)(rows, blocks, sizes)))


@torch.no_grad()
def block_statistics(rows: Sequence[Float[Tensor, "n _"]], groups: int, blocks: Blocks | None = None) -> GramStatistics:
    """Return the statistics of the blocks of K = X X' that belong to groups of rows, products summed over the groups.

    Small blocks of many groups are made together, large ones tile by tile, and the whole K never. All groups are of
    one size, and the rows of each stand side by side.
    """
    blocks = blocks or one_model(len(rows))
    size = len(rows[0]) // groups
    at_once = 1 if size > LARGE else max(AT_ONCE // size**2, 1)
    parts = []
    for part in zip(*(x.split(size * at_once) for x in rows), strict=True):
        grams = (y @ y.mT for y in (x.unflatten(0, (-1, size)) for x in part))
        parts.append(linear_statistics(part, blocks) if size > LARGE else dense_statistics([*grams], blocks))
    products, sums, diagonals = zip(*parts, strict=True)
    joint = [[torch.cat(each, 1) for each in zip(*kind, strict=True)] for kind in (sums, diagonals)]
    return GramStatistics({pair: sum(part[pair] for part in products) for pair in blocks.pairs}, *joint)


def dense_statistics(grams: Sequence[Float[Tensor, "*g n n"]], blocks: Blocks | None = None) -> GramStatistics:
    """Return the statistics of any symmetric Gram matrices, or of those of several groups; differentiable."""
    blocks = blocks or one_model(len(grams))
    own = [gram.double().diagonal(dim1=-2, dim2=-1) for gram in grams]
    off = [gram.double() - each.diag_embed() for gram, each in zip(grams, own, strict=True)]
    flat = blocks.by_model([each.flatten() for each in off])
    return GramStatistics(
        {(a, b): flat[a] @ flat[b].T for a, b in blocks.pairs},
        blocks.by_model([each.sum(-1).flatten() for each in off]),
        blocks.by_model([each.flatten() for each in own]),
    )


def rbf_gram(rows: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
    """Return exp(-‖xᵢ - xⱼ‖² / 2σ²) with σ the median distance of different rows, so that their scale cancels."""
    gram = rows @ rows.T
    own = gram.diagonal()
    squared = (own[:, None] + own - 2 * gram).clamp(min=0)  # rounding can leave less than none
    i, j = torch.triu_indices(len(rows), len(rows), 1, device=rows.device)
    median = squared[i, j].median()
    if median <= 0:
        raise ValueError("the median distance between rows is 0, so the rbf kernel has no bandwidth: use kernel=linear")
    return torch.exp(-squared / (2 * median))
