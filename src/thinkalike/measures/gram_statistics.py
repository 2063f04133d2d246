"""What HSIC needs of the Gram matrices of many layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.measures.contract import Blocks, Pair
from thinkalike.measures.hsic import biased_from_sums, unbiased_from_sums
from thinkalike.measures.row_groups import SUM_ROUNDING

# A group of more rows has a Gram matrix that is computed in tiles; the matrices of smaller groups
# are computed in blocks of so many entries.
MOST_ROWS_OF_SMALL_GROUP = 512
ENTRIES_OF_SMALL_GROUPS = 2**17

# From this many rows on, products of features in float64 cost less than Gram matrices.
FEWEST_ROWS_FOR_FEATURE_PRODUCTS = 8192


class GramStatistics(NamedTuple):
    """All that HSIC needs of the Gram matrices of the layers of models, in float64.

    K̃ is K with a zero diagonal. The leading axis p is of sets of rows, such as all rows but those
    of one part; it may be missing.

    Attributes:
        products: Σᵢⱼ K̃ᵢⱼ L̃ᵢⱼ, by the two models whose layers K and L are of.
        sums: For each model, the sum of each row of K̃; 0 for rows that are left out.
        diagonals: For each model, the diagonal of K; 0 for rows that are left out.
    """

    products: dict[Pair, Float[Tensor, "*p l m"]]
    sums: list[Float[Tensor, "*p l n"]]
    diagonals: list[Float[Tensor, "*p l n"]]

    def of_all_rows(self) -> GramStatistics:
        """Return the statistics of all rows, which `left_out_statistics` puts first."""
        return GramStatistics(
            {pair: products[0] for pair, products in self.products.items()},
            [sums[0] for sums in self.sums],
            [diagonal[0] for diagonal in self.diagonals],
        )

    def rounding(
        self, blocks: Blocks, dtype: torch.dtype, groups: int = 1
    ) -> dict[int, Float[Tensor, " l"]]:
        """Return what rounding may leave of the unbiased HSIC of each layer with itself.

        Its terms cancel, so this is the formula with the sign of one term reversed.

        Args:
            blocks: The layers of each model, and which models are compared.
            dtype: The dtype of the Gram matrices.
            groups: How many groups of one size the rows are.

        Returns:
            A number for each layer of each model that is compared with itself.
        """
        rounding = {}
        for model, target in blocks.pairs:
            if model != target:
                continue
            sums = self.sums[model]
            rows_per_group = sums.shape[1] // groups
            squared_totals = sums.unflatten(1, (groups, -1)).sum(2).square().sum(1)
            largest_terms = unbiased_from_sums(
                rows_per_group,
                self.products[model, model].diagonal(),
                -sums.square().sum(1),
                squared_totals,
            )
            rounding[model] = SUM_ROUNDING * torch.finfo(dtype).eps * largest_terms
        return rounding


def all_hsics(
    statistics: GramStatistics,
    estimator: str,
    groups: int = 1,
    rows: Float[Tensor, "p 1 1"] | None = None,
) -> dict[Pair, Float[Tensor, "*p l m"]]:
    """Return the HSIC of every two layers that are compared, summed over groups of rows.

    Args:
        statistics: The statistics of their symmetric Gram matrices.
        estimator: "unbiased" or "biased".
        groups: How many groups of one size the rows are.
        rows: How many rows each set of rows has, where some are left out.
    """
    formula = unbiased_from_sums
    products = statistics.products
    sums = statistics.sums
    if estimator == "biased":  # which is of K, and not of K̃
        formula = biased_from_sums
        diagonals = statistics.diagonals
        products = {
            (source, target): of_pair + diagonals[source] @ diagonals[target].mT
            for (source, target), of_pair in products.items()
        }
        sums = [
            off_diagonal + diagonal for off_diagonal, diagonal in zip(sums, diagonals, strict=True)
        ]
    totals = [of_model.unflatten(-1, (groups, -1)).sum(-1) for of_model in sums]
    n = sums[0].shape[-1] // groups if rows is None else rows
    products_of_sums = {
        (source, target): (sums[source] @ sums[target].mT, totals[source] @ totals[target].mT)
        for source, target in products
    }
    return {pair: formula(n, products[pair], *products_of_sums[pair]) for pair in products}


class Tile(NamedTuple):
    """A rectangle of a Gram matrix.

    Attributes:
        row, column: Its first row and column.
        height, width: How many rows and columns it has.
    """

    row: int
    column: int
    height: int
    width: int


class Tiling(NamedTuple):
    """Cuts the upper triangle of a Gram matrix into tiles.

    Attributes:
        height: The rows of tiles that lie off the diagonal, and of squares on it.
        width: The columns of tiles that lie off the diagonal.
        step: The rows of the strips that squares on the diagonal are cut into.
    """

    height: int
    width: int
    step: int

    def tiles(self, n: int) -> Iterator[Tile]:
        """Yield the tiles of an n x n matrix; those on the diagonal begin on it."""
        for top in range(0, n, self.height):
            end = min(top + self.height, n)
            for row in range(top, end, self.step):
                yield Tile(row, row, min(self.step, end - row), end - row)
            for left in range(end, n, self.width):
                yield Tile(top, left, end - top, min(self.width, n - left))


# 14 MB for 26 layers: a tile stays in the cache between being written and being read.
CPU_TILE = Tiling(256, 512, 128)
# A GPU wants few launches.
GPU_TILE = Tiling(2048, 2048, 2048)


def _parts_of_columns(sizes: Sequence[int], first: int, count: int) -> Iterator[tuple[int, slice]]:
    """Yield the parts that some columns belong to, with their slice of these columns.

    Args:
        sizes: The sizes of the parts, which follow one another.
        first: The first column.
        count: How many columns there are.
    """
    start = 0
    for part, size in enumerate(sizes):
        stop = start + size
        low = max(start, first) - first
        high = min(stop, first + count) - first
        if low < high:
            yield part, slice(low, high)
        start = stop


def _feature_products(
    rows: Sequence[Float[Tensor, "n _"]], blocks: Blocks, sizes: Sequence[int]
) -> dict[Pair, Float[Tensor, "p p l m"]]:
    """Return `gram_products` from products of features.

    They are <X_g'Y_g, X_h'Y_h> for parts g and h, less Σᵢ K_ii L_ii if g = h.
    """
    parts = [layer.split([*sizes]) for layer in rows]
    products = {}
    for source, target in blocks.pairs:
        source_layers = blocks.models[source]
        target_layers = blocks.models[target]
        of_pair = rows[0].new_empty(len(sizes), len(sizes), len(source_layers), len(target_layers))
        for (row, i), (column, j) in product(enumerate(source_layers), enumerate(target_layers)):
            crossed = []
            diagonal = []
            for x, y in zip(parts[i], parts[j], strict=True):
                crossed.append((x.T @ y).flatten())
                diagonal.append((x.square().sum(1) * y.square().sum(1)).sum())
            flat = torch.stack(crossed)
            of_pair[..., row, column] = flat @ flat.T - torch.stack(diagonal).diag()
        products[source, target] = of_pair
    return products


def gram_products(
    rows: Sequence[Float[Tensor, "n _"]], blocks: Blocks, sizes: Sequence[int]
) -> dict[Pair, Float[Tensor, "p p l m"]]:
    """Return Σ_{i≠j} K_ij L_ij over i of one part and j of another, of every two layers compared.

    They come from products of features where these cost less, else tile by tile. The product over
    pairs of layers is limited by memory bandwidth, so tiles of all layers are written side by
    side, and small products for each two models read them out of the cache. The tiles of each
    model have memory of their own that begins at an aligned address, as bits may depend on the
    alignment.

    Args:
        rows: The rows X of each layer, with K = X X'; they are about centred.
        blocks: The layers of each model, and which models are compared.
        sizes: The sizes of the parts of the rows, which follow one another.
    """
    n = len(rows[0])
    if n >= FEWEST_ROWS_FOR_FEATURE_PRODUCTS and rows[0].dtype == torch.float64:
        return _feature_products(rows, blocks, sizes)

    depths = [len(layers) for layers in blocks.models]
    totals = {
        (source, target): rows[0].new_zeros(
            len(sizes), len(sizes), depths[source], depths[target], dtype=torch.float64
        )
        for source, target in blocks.pairs
    }
    is_in_part = part_indicators(sizes, rows[0], torch.float64)  # (p, n)
    tiling = GPU_TILE if rows[0].is_cuda else CPU_TILE
    largest = min(tiling.height, n) * min(max(tiling.height, tiling.width), n)
    memory = [rows[0].new_empty(depth * largest) for depth in depths]
    for tile in tiling.tiles(n):
        grams = _tiles_of_models(rows, blocks, tile, memory)
        # A float32 sum per row of a tile: a longer one loses a digit.
        by_row = [gram.transpose(0, 1) for gram in grams]  # (height, l, width)
        is_row_in_part = is_in_part[:, tile.row : tile.row + tile.height]
        for part, columns in _parts_of_columns(sizes, tile.column, tile.width):
            for source, target in blocks.pairs:
                products = torch.bmm(by_row[source][..., columns], by_row[target][..., columns].mT)
                by_part = is_row_in_part @ products.double().flatten(1)
                shape = (depths[source], depths[target])
                totals[source, target][:, part] += by_part.unflatten(1, shape)
    # The tiles cover the upper triangle; the lower one has the same products, transposed.
    return {pair: total + total.transpose(0, 1) for pair, total in totals.items()}


def _tiles_of_models(
    rows: Sequence[Float[Tensor, "n _"]],
    blocks: Blocks,
    tile: Tile,
    memory: Sequence[Float[Tensor, " _"]],
) -> list[Float[Tensor, "_ h w"]]:
    """Return a tile of the Gram matrices of all layers of each model, above the diagonal only.

    Args:
        rows: The rows of each layer.
        blocks: The layers of each model.
        tile: The tile.
        memory: Where the tiles of each model are written.
    """
    shape = (tile.height, tile.width)
    grams = []
    for of_model, layers in zip(memory, blocks.models, strict=True):
        entries = len(layers) * tile.height * tile.width
        grams.append(of_model[:entries].view(len(layers), *shape))

    computed: dict[int, Tensor] = {}  # layers that several models share are computed once
    for gram, layers in zip(grams, blocks.models, strict=True):
        for gram_of_layer, layer in zip(gram, layers, strict=True):
            if layer in computed:
                gram_of_layer.copy_(computed[layer])
                continue
            left = rows[layer][tile.row : tile.row + tile.height]
            right = rows[layer][tile.column : tile.column + tile.width]
            computed[layer] = torch.mm(left, right.T, out=gram_of_layer)
    if tile.column == tile.row:
        for gram in grams:
            gram.triu_(1)
    return grams


def part_indicators(
    sizes: Sequence[int], rows: Float[Tensor, "n _"], dtype: torch.dtype
) -> Float[Tensor, "p n"]:
    """Return 1 where a row is of a part, else 0, for consecutive parts of these sizes."""
    indicators = rows.new_zeros(len(sizes), len(rows), dtype=dtype)
    start = 0
    for indicator, size in zip(indicators, sizes, strict=True):
        indicator[start : start + size] = 1
        start += size
    return indicators


@torch.no_grad()
def left_out_statistics(
    rows: Sequence[Float[Tensor, "n _"]],
    blocks: Blocks,
    sizes: Sequence[int],
    products: Mapping[Pair, Float[Tensor, "p p l m"]],
) -> GramStatistics:
    """Return the statistics of K = X X' of all rows, and then of all rows but each part.

    Args:
        rows: The rows X of each layer.
        blocks: The layers of each model, and which models are compared.
        sizes: The sizes of the parts of the rows, which follow one another.
        products: The `gram_products` of the parts.
    """
    is_in_part = part_indicators(sizes, rows[0], rows[0].dtype)  # (p, n)
    norms = []
    sums_over_parts = []
    for layer in rows:  # both of one layer while it is in the cache
        norms.append(torch.linalg.vector_norm(layer, dim=1).double())
        sums_over_parts.append((layer @ (is_in_part @ layer).T).double())  # (n, p)
    diagonals = [of_model.square() for of_model in blocks.by_model(norms)]  # (l, n)
    to_parts = [of_model.mT for of_model in blocks.by_model(sums_over_parts)]  # (l, p, n)

    # For all rows, and without each part: all - 2 (part x all) + (part x part).
    products_left = {}
    for pair, of_parts in products.items():
        total = of_parts.sum((0, 1))
        of_part_itself = of_parts.diagonal().movedim(-1, 0)
        without = total - of_parts.sum(0) - of_parts.sum(1) + of_part_itself
        products_left[pair] = torch.cat([total[None], without])

    all_rows = torch.ones_like(is_in_part[:1])
    is_left = torch.cat([all_rows, 1 - is_in_part]).double()[:, None]  # (1 + p, 1, n)
    sums_left = []
    for to_part, diagonal in zip(to_parts, diagonals, strict=True):
        row_sums = to_part.sum(1, keepdim=True) - diagonal[:, None]  # (l, 1, n)
        of_sets = torch.cat([row_sums, row_sums - to_part], 1).movedim(1, 0)  # (1 + p, l, n)
        sums_left.append(of_sets * is_left)
    diagonals_left = [diagonal * is_left for diagonal in diagonals]
    return GramStatistics(products_left, sums_left, diagonals_left)


@torch.no_grad()
def linear_statistics(rows: Sequence[Float[Tensor, "n _"]], blocks: Blocks) -> GramStatistics:
    """Return the statistics of K = X X' for the rows X of each layer, which are about centred."""
    sizes = [len(rows[0])]
    products = gram_products(rows, blocks, sizes)
    return left_out_statistics(rows, blocks, sizes, products).of_all_rows()


@torch.no_grad()
def block_statistics(
    rows: Sequence[Float[Tensor, "n _"]], blocks: Blocks, groups: int
) -> GramStatistics:
    """Return the statistics of the blocks of K = X X' of groups of one size.

    Args:
        rows: The rows X of each layer; those of a group stand side by side.
        blocks: The layers of each model, and which models are compared.
        groups: How many groups there are.
    """
    size = len(rows[0]) // groups
    is_large = size > MOST_ROWS_OF_SMALL_GROUP
    groups_at_once = 1 if is_large else max(ENTRIES_OF_SMALL_GROUPS // size**2, 1)
    rows_at_once = size * groups_at_once
    parts = []
    for layers in zip(*(layer.split(rows_at_once) for layer in rows), strict=True):
        if is_large:
            parts.append(linear_statistics(layers, blocks))
            continue
        grams = []
        for layer in layers:
            grouped = layer.unflatten(0, (-1, size))  # (g, s, d)
            grams.append(grouped @ grouped.mT)
        parts.append(dense_statistics(grams, blocks))

    models = range(len(blocks.models))
    products = {}
    for pair in blocks.pairs:
        total = parts[0].products[pair]
        for part in parts[1:]:
            total = total + part.products[pair]
        products[pair] = total
    return GramStatistics(
        products,
        [torch.cat([part.sums[model] for part in parts], 1) for model in models],
        [torch.cat([part.diagonals[model] for part in parts], 1) for model in models],
    )


def dense_statistics(grams: Sequence[Float[Tensor, "*g n n"]], blocks: Blocks) -> GramStatistics:
    """Return the statistics of symmetric Gram matrices, of one group or of several.

    They are differentiable.
    """
    diagonals = []
    off_diagonals = []
    for gram in grams:
        diagonal = gram.double().diagonal(dim1=-2, dim2=-1)
        diagonals.append(diagonal)
        off_diagonals.append(gram.double() - diagonal.diag_embed())
    flat = blocks.by_model([off_diagonal.flatten() for off_diagonal in off_diagonals])
    return GramStatistics(
        {(source, target): flat[source] @ flat[target].T for source, target in blocks.pairs},
        blocks.by_model([off_diagonal.sum(-1).flatten() for off_diagonal in off_diagonals]),
        blocks.by_model([diagonal.flatten() for diagonal in diagonals]),
    )


def rbf_gram(rows: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
    """Return exp(-‖xᵢ - xⱼ‖² / 2σ²) with σ the median distance of different rows.

    The scale of the rows cancels.

    Raises:
        ValueError: The median distance is 0.
    """
    gram = rows @ rows.T
    squared_norms = gram.diagonal()
    squared = squared_norms[:, None] + squared_norms - 2 * gram
    squared = squared.clamp(min=0)  # rounding can leave less than 0
    i, j = torch.triu_indices(len(rows), len(rows), 1, device=rows.device)
    median = squared[i, j].median()
    if median <= 0:
        raise ValueError(
            "the median distance between rows is 0, so the rbf kernel has no bandwidth: "
            "use kernel=linear"
        )
    return torch.exp(-squared / (2 * median))
