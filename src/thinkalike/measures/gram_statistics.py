"""What HSIC needs of the Gram matrices of many layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.measures.contract import ModelPairs, Pair
from thinkalike.measures.hsic import biased_from_sums, unbiased_from_sums
from thinkalike.measures.row_groups import SUM_ROUNDING

# The Gram matrix of a group of more rows is computed in tiles.
MOST_ROWS_OF_SMALL_GROUP = 512

# The Gram matrices of smaller groups are computed together, up to this many entries at a time.
ENTRIES_OF_SMALL_GROUPS = 2**17

# From this many rows on, products of features in float64 cost less than Gram matrices.
FEWEST_ROWS_FOR_FEATURE_PRODUCTS = 8192


class GramStatistics(NamedTuple):
    """All that HSIC needs of the Gram matrices of the layers of models, in float64.

    K and L are the n x n Gram matrices of two layers, and K̃ is K with a zero diagonal. Where the
    statistics are of several sets of rows, such as all rows but those of one part, the leading
    axis p has one entry for each set; statistics of a single set have no such axis.

    Attributes:
        products: Σᵢⱼ K̃ᵢⱼ L̃ᵢⱼ for every two layers, by the models that K and L belong to.
        sums: For each model, the sum of each row of K̃; 0 for rows that a set leaves out.
        diagonals: For each model, the diagonal of K; 0 for rows that a set leaves out.
    """

    products: dict[Pair, Float[Tensor, "*p l m"]]
    sums: list[Float[Tensor, "*p l n"]]
    diagonals: list[Float[Tensor, "*p l n"]]

    def of_all_rows(self) -> GramStatistics:
        """Return the statistics of all rows, if these are statistics of several sets of rows.

        All rows are the first set; the others leave out some rows.
        """
        return GramStatistics(
            {pair: products[0] for pair, products in self.products.items()},
            [sums[0] for sums in self.sums],
            [diagonal[0] for diagonal in self.diagonals],
        )

    def rounding(
        self,
        model_pairs: ModelPairs,
        dtype: torch.dtype,
        groups: int = 1,
        rows: Float[Tensor, "p 1"] | None = None,
    ) -> dict[int, Float[Tensor, "*p l"]]:
        """Return a bound of the rounding error of the unbiased HSIC of each layer with itself.

        It has two parts. The terms of the formula cancel, but their rounding errors do not: a few
        units in the last place of what the terms would sum to if none of them was subtracted. And
        an entry Kᵢⱼ was itself rounded, by a few units in the last place of ‖xᵢ‖ ‖xⱼ‖, which is
        much more than itself where a massive row is orthogonal to the others: for the matrix E of
        these errors, 2 ‖K̃‖ ‖E‖ + ‖E‖². Products of features also have the diagonal of K in them,
        which is subtracted.

        Args:
            model_pairs: The layers of each model, and which models are compared.
            dtype: The dtype of the Gram matrices.
            groups: How many groups of equal size the rows consist of.
            rows: How many rows each of the p sets has; None if the statistics are of all rows
                alone.

        Returns:
            For each model that is compared with itself, a bound for each of its l layers.
        """
        unit = SUM_ROUNDING * torch.finfo(dtype).eps
        rounding = {}
        for model, target in model_pairs.pairs:
            if model != target:
                continue
            sums = self.sums[model]  # (*p, l, n); the rows of a group follow one another
            n: int | Tensor = sums.shape[-1] // groups  # rows of each group
            if rows is not None:
                n = rows
            products = self.products[model, model].diagonal(dim1=-2, dim2=-1)
            totals = sums.unflatten(-1, (groups, -1)).sum(-1)  # (*p, l, groups)
            squared_totals = totals.square().sum(-1)
            # The formula subtracts its second term; with a minus sign it is added.
            sum_of_terms = unbiased_from_sums(n, products, -sums.square().sum(-1), squared_totals)

            squared_norms = self.diagonals[model].unflatten(-1, (groups, -1))  # ‖xᵢ‖²
            largest = squared_norms.amax(-1)
            # Σᵢ ‖xᵢ‖² without the largest, which would not be subtracted without loss
            index_of_largest = squared_norms.argmax(-1, keepdim=True)
            rest = squared_norms.scatter(-1, index_of_largest, 0).sum(-1)
            errors = unit**2 * (rest * (2 * largest + rest)).sum(-1)  # ‖E‖²
            # A product below the least normal number may have become 0.
            lost = torch.finfo(dtype).smallest_normal * n**2 * groups
            of_products = 2 * (products * errors).sqrt() + errors + lost
            if _multiplies_features(sums.shape[-1] // groups, dtype):
                of_products = of_products + unit * squared_norms.square().sum((-1, -2))
            rounding[model] = unit * sum_of_terms + of_products / (n * (n - 3))
        return rounding


def all_hsics(
    statistics: GramStatistics,
    estimator: str,
    groups: int = 1,
    rows: Float[Tensor, "p 1 1"] | None = None,
) -> dict[Pair, Float[Tensor, "*p l m"]]:
    """Return the HSIC of every two layers that are compared, summed over groups of rows.

    Args:
        statistics: The statistics of their symmetric Gram matrices, of one or of p sets of rows.
        estimator: "unbiased" or "biased".
        groups: How many groups of equal size the rows consist of.
        rows: How many rows each of the p sets has; None if the statistics are of all rows alone.

    Returns:
        For each pair of models the HSICs of their layers; an axis p comes first if the statistics
        have one.
    """
    products = dict(statistics.products)
    row_sums = list(statistics.sums)
    if estimator == "biased":
        # The biased estimator is a sum over K, whose diagonal K̃ lacks.
        diagonals = statistics.diagonals
        for source, target in products:
            products[source, target] = (
                products[source, target] + diagonals[source] @ diagonals[target].mT
            )
        for model, diagonal in enumerate(diagonals):
            row_sums[model] = row_sums[model] + diagonal

    rows_per_group: int | Tensor = row_sums[0].shape[-1] // groups
    if rows is not None:
        rows_per_group = rows
    totals = [sums.unflatten(-1, (groups, -1)).sum(-1) for sums in row_sums]  # (*p, l, groups)
    formula = unbiased_from_sums
    if estimator == "biased":
        formula = biased_from_sums
    hsics = {}
    for source, target in products:
        hsics[source, target] = formula(
            rows_per_group,
            products[source, target],
            row_sums[source] @ row_sums[target].mT,
            totals[source] @ totals[target].mT,
        )
    return hsics


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
        height: How many rows a tile off the diagonal has, and a square on the diagonal.
        width: How many columns a tile off the diagonal has.
        step: How many rows a tile on the diagonal has. A square on the diagonal is cut into tiles
            of so many rows, each of which begins on the diagonal, because only the entries above
            it are needed.
    """

    height: int
    width: int
    step: int

    def tiles(self, n: int) -> Iterator[Tile]:
        """Yield tiles (row, column, height, width) that cover the upper triangle of a matrix.

        The matrix is gone through in bands of `height` rows. In each, the square on the diagonal
        is cut into strips of `step` rows, which begin on the diagonal and so also reach a little
        below it. To the right of the square follow tiles of `width` columns.

        Args:
            n: How many rows and columns the matrix has.
        """
        for top in range(0, n, self.height):
            end = min(top + self.height, n)  # of the band, and of the square on the diagonal
            for row in range(top, end, self.step):
                yield Tile(row, row, height=min(self.step, end - row), width=end - row)
            for column in range(end, n, self.width):
                yield Tile(top, column, height=end - top, width=min(self.width, n - column))


# 14 MB for 26 layers: a tile stays in the cache between being written and being read.
CPU_TILE = Tiling(256, 512, 128)
# A GPU wants few launches.
GPU_TILE = Tiling(2048, 2048, 2048)


def _parts_of_columns(sizes: Sequence[int], first: int, count: int) -> Iterator[tuple[int, slice]]:
    """Yield each part of a matrix's columns that a window of columns overlaps, and where.

    Args:
        sizes: How many columns each part has; the parts follow one another.
        first: The first column of the window.
        count: How many columns the window has.

    Yields:
        The index of each overlapping part, and the slice of its columns, counted from the first
        column of the window.
    """
    start = 0
    for part_number, size in enumerate(sizes):
        stop = start + size
        low = max(start, first) - first
        high = min(stop, first + count) - first
        if low < high:
            yield part_number, slice(low, high)
        start = stop


def _multiplies_features(n: int, dtype: torch.dtype) -> bool:
    """Return whether products of n rows come from their features, and not from Gram matrices."""
    return n >= FEWEST_ROWS_FOR_FEATURE_PRODUCTS and dtype == torch.float64


def _feature_products(
    rows: Sequence[Float[Tensor, "n _"]], model_pairs: ModelPairs, sizes: Sequence[int]
) -> dict[Pair, Float[Tensor, "p p l m"]]:
    """Return Σ_{i≠j} K_ij L_ij over rows i of part g and rows j of part h, for all g and h.

    With K = X X' and L = Y Y' for the rows X and Y of two layers, the sum over all i and j is the
    inner product <X_g'Y_g, X_h'Y_h>, so that no Gram matrix is needed. For g = h, Σᵢ K_ii L_ii
    over the rows of the part is subtracted.

    Args:
        rows: The rows of each of the distinct layers.
        model_pairs: Which of these layers each model has, and which models are compared.
        sizes: The sizes of the p parts of the rows, which follow one another.

    Returns:
        For each pair of models the sums, with the axes g, h, layer of K, layer of L.
    """
    parts_of_layers = [layer.split([*sizes]) for layer in rows]
    products = {}
    for source, target in model_pairs.pairs:
        source_layers = model_pairs.layers_of_model[source]
        target_layers = model_pairs.layers_of_model[target]
        products_of_models = rows[0].new_empty(
            len(sizes), len(sizes), len(source_layers), len(target_layers)
        )
        for (i, source_layer), (j, target_layer) in product(
            enumerate(source_layers), enumerate(target_layers)
        ):
            feature_products = []  # X_g'Y_g of each part g, flat
            diagonal_products = []  # Σᵢ K_ii L_ii of each part
            for x, y in zip(
                parts_of_layers[source_layer], parts_of_layers[target_layer], strict=True
            ):
                feature_products.append((x.T @ y).flatten())
                diagonal_products.append((x.square().sum(1) * y.square().sum(1)).sum())
            flat_products = torch.stack(feature_products)  # (p, d e)
            products_of_parts = flat_products @ flat_products.T  # (p, p)
            products_of_parts -= torch.stack(diagonal_products).diag()
            products_of_models[..., i, j] = products_of_parts
        products[source, target] = products_of_models
    return products


def gram_products(
    rows: Sequence[Float[Tensor, "n _"]], model_pairs: ModelPairs, sizes: Sequence[int]
) -> dict[Pair, Float[Tensor, "p p l m"]]:
    """Return Σ_{i≠j} K_ij L_ij over i of part g and j of part h, of every two layers compared.

    The result of two models has the axes g, h, the layer of K and that of L. It comes from
    products of features where these cost less, else tile by tile. The product over pairs of layers
    is limited by memory bandwidth, so the tiles of all layers are written side by side, and small
    products for each two models read them out of the cache. The tiles of each model have memory of
    their own that begins at an aligned address, as bits may depend on the alignment.

    Args:
        rows: The rows X of each layer, with K = X X'. They are nearly centred, which keeps the
            rounding errors of the sums small.
        model_pairs: The layers of each model, and which models are compared.
        sizes: The sizes of the parts of the rows, which follow one another.
    """
    n = len(rows[0])
    if _multiplies_features(n, rows[0].dtype):
        return _feature_products(rows, model_pairs, sizes)

    depths = [len(layers) for layers in model_pairs.layers_of_model]
    totals = {
        (source, target): rows[0].new_zeros(
            len(sizes), len(sizes), depths[source], depths[target], dtype=torch.float64
        )
        for source, target in model_pairs.pairs
    }
    is_in_part = part_indicators(sizes, rows[0], torch.float64)  # (p, n)
    tiling = GPU_TILE if rows[0].is_cuda else CPU_TILE
    most_entries = min(tiling.height, n) * min(max(tiling.height, tiling.width), n)  # of a tile
    memory = [rows[0].new_empty(depth * most_entries) for depth in depths]
    for tile in tiling.tiles(n):
        grams = _tiles_of_models(rows, model_pairs, tile, memory)
        # Each row of the tile is multiplied by itself, and rows are added up in float64: a longer
        # sum in float32 would lose a digit.
        by_row = [gram.transpose(0, 1) for gram in grams]  # (height, l, width)
        is_row_in_part = is_in_part[:, tile.row : tile.row + tile.height]
        for part_number, columns in _parts_of_columns(sizes, tile.column, tile.width):
            for source, target in model_pairs.pairs:
                products = torch.bmm(by_row[source][..., columns], by_row[target][..., columns].mT)
                by_part = is_row_in_part @ products.double().flatten(1)
                shape = (depths[source], depths[target])
                totals[source, target][:, part_number] += by_part.unflatten(1, shape)
    # The tiles cover the upper triangle; the lower one has the same products, transposed.
    return {pair: total + total.transpose(0, 1) for pair, total in totals.items()}


def _tiles_of_models(
    rows: Sequence[Float[Tensor, "n _"]],
    model_pairs: ModelPairs,
    tile: Tile,
    memory: Sequence[Float[Tensor, " _"]],
) -> list[Float[Tensor, "_ h w"]]:
    """Return the same tile of the Gram matrix X X' of every layer, (l, h, w) for each model.

    h and w are the height and the width of the tile. If it lies on the diagonal of the matrix, its
    entries on the diagonal and below are set to 0.

    Args:
        rows: The rows X of each layer.
        model_pairs: Which of these layers each model has.
        tile: Where the tile is in the Gram matrices.
        memory: For each model, flat memory into which the tiles of its layers are written. The
            results are views of it.
    """
    grams = []
    for memory_of_model, layers in zip(memory, model_pairs.layers_of_model, strict=True):
        entries = len(layers) * tile.height * tile.width
        grams.append(memory_of_model[:entries].view(len(layers), tile.height, tile.width))

    computed: dict[int, Tensor] = {}  # layers that several models share are computed once
    for gram, layers in zip(grams, model_pairs.layers_of_model, strict=True):
        for gram_of_layer, layer in zip(gram, layers, strict=True):
            if layer in computed:
                gram_of_layer.copy_(computed[layer])
                continue
            rows_of_tile = rows[layer][tile.row : tile.row + tile.height]
            columns_of_tile = rows[layer][tile.column : tile.column + tile.width].T
            computed[layer] = torch.mm(rows_of_tile, columns_of_tile, out=gram_of_layer)
    if tile.column == tile.row:
        for gram in grams:
            gram.triu_(1)
    return grams


def part_indicators(
    sizes: Sequence[int], rows: Float[Tensor, "n _"], dtype: torch.dtype
) -> Float[Tensor, "p n"]:
    """Return the matrix whose entry (g, i) is 1 if row i belongs to part g, and else 0.

    Args:
        sizes: The sizes of the p parts; the first part has the first rows, and so on.
        rows: The n rows, of which only the number and the device matter.
        dtype: The dtype of the result.
    """
    indicators = rows.new_zeros(len(sizes), len(rows), dtype=dtype)
    start = 0
    for indicator, size in zip(indicators, sizes, strict=True):
        indicator[start : start + size] = 1
        start += size
    return indicators


@torch.no_grad()
def left_out_statistics(
    rows: Sequence[Float[Tensor, "n _"]],
    model_pairs: ModelPairs,
    sizes: Sequence[int],
    products: Mapping[Pair, Float[Tensor, "p p l m"]],
) -> GramStatistics:
    """Return what HSIC needs of Gram matrices K = X X', of all rows and without each part of them.

    The jackknife needs HSIC for 1 + p sets of rows: all rows, and all but those of each of p
    parts. The statistics are the diagonal of each layer's K and, without these diagonals, the
    inner product of the K of every two layers and the sum of each row of K.

    Args:
        rows: The rows X of each layer.
        model_pairs: The layers of each model, and which models are compared.
        sizes: The sizes of the p parts of the rows, which follow one another.
        products: Σ_{i≠j} K_ij L_ij over rows i and j of every two parts, see `gram_products`.
    """
    is_in_part = part_indicators(sizes, rows[0], rows[0].dtype)  # (p, n)
    norms = []
    sums_over_parts = []
    for layer in rows:  # both are computed while the layer is in the cache
        norms_of_layer = torch.linalg.vector_norm(layer, dim=1).double()
        norms.append(norms_of_layer)
        sums_over_parts.append(_row_sums_over_parts(layer, is_in_part, norms_of_layer))
    # For each model the diagonals of its layers, (l, n), and row sums over parts, (l, p, n).
    diagonals = [norms_of_layers.square() for norms_of_layers in model_pairs.by_model(norms)]
    to_parts = [sums.mT for sums in model_pairs.by_model(sums_over_parts)]

    # The sums over all parts, and over all parts but one. None comes from subtracting the sum over
    # a part from that over all, which would leave only rounding where the part has a massive row.
    without_one = 1 - torch.eye(len(sizes), dtype=torch.float64, device=rows[0].device)
    has_part = torch.cat([torch.ones_like(without_one[:1]), without_one])  # (1 + p, p)
    products_of_sets = {}
    for pair, products_of_parts in products.items():  # (p, p, l, m)
        over_columns = torch.einsum("sh,ghlm->sglm", has_part, products_of_parts.double())
        products_of_sets[pair] = torch.einsum("sg,sglm->slm", has_part, over_columns)

    all_rows = torch.ones_like(is_in_part[:1])
    is_in_set = torch.cat([all_rows, 1 - is_in_part]).double()[:, None]  # (1 + p, 1, n)
    sums_of_sets = []
    for to_part in to_parts:
        sums_to_sets = torch.einsum("sg,lgn->sln", has_part, to_part)
        sums_of_sets.append(sums_to_sets * is_in_set)
    diagonals_of_sets = [diagonal * is_in_set for diagonal in diagonals]
    return GramStatistics(products_of_sets, sums_of_sets, diagonals_of_sets)


def _row_sums_over_parts(
    layer: Float[Tensor, "n d"], is_in_part: Float[Tensor, "p n"], norms: Float[Tensor, " n"]
) -> Float[Tensor, "n p"]:
    """Return Σⱼ Kᵢⱼ over the rows j ≠ i of each part, for each row i of a layer, in float64.

    K = X X' has the inner products of the rows X. The sums are computed as xᵢ · Σⱼ xⱼ, from which
    the diagonal Kᵢᵢ is subtracted if row i is in the part. For a row of very large norm, Kᵢᵢ is
    nearly all of the sum, and subtracting it would leave only rounding. So the row of largest norm
    is left out of these sums, and its column of K is added afterwards.

    Args:
        layer: The rows.
        is_in_part: 1 where a row belongs to a part, else 0.
        norms: The norm of each row.
    """
    largest = norms.argmax(keepdim=True)  # the index of the row
    is_not_largest = torch.ones_like(layer[:, 0]).index_fill(0, largest, 0)  # (n)
    part_without_largest = is_in_part * is_not_largest  # (p, n)
    sums = (layer @ (part_without_largest @ layer).T).double()  # X Σⱼ xⱼ, (n, p)
    sums -= part_without_largest.T.double() * norms.square()[:, None]  # Kᵢᵢ

    column_of_largest = (layer @ layer.index_select(0, largest).T).double()  # (n, 1)
    part_of_largest = is_in_part.index_select(1, largest).T.double()  # (1, p)
    # The sum of the largest row itself lacks nothing, as j ≠ i.
    return sums + is_not_largest[:, None] * column_of_largest * part_of_largest


@torch.no_grad()
def linear_statistics(
    rows: Sequence[Float[Tensor, "n _"]], model_pairs: ModelPairs
) -> GramStatistics:
    """Return what HSIC needs of the Gram matrices K = X X' of all layers.

    The statistics are, without the diagonals of the matrices: the inner product of every two
    layers' matrices, and the sum of each row; and the diagonals themselves.

    Args:
        rows: The rows X of each layer, of mean 0 up to rounding.
        model_pairs: The layers of each model, and which models are compared.
    """
    # The functions below also compute statistics without parts of the rows. With all rows as a
    # single part, only those of all rows are of use.
    single_part = [len(rows[0])]
    products = gram_products(rows, model_pairs, single_part)
    return left_out_statistics(rows, model_pairs, single_part, products).of_all_rows()


@torch.no_grad()
def block_statistics(
    rows: Sequence[Float[Tensor, "n _"]], model_pairs: ModelPairs, groups: int
) -> GramStatistics:
    """Return what HSIC needs of the Gram matrices K = X X' within groups of rows.

    The statistics of each group are, without the diagonals: the inner product of every two layers'
    matrices, which is summed over groups, and the sum of each row; and the diagonals themselves.
    Small groups are computed several at a time.

    Args:
        rows: The rows X of each layer; those of a group follow one another.
        model_pairs: The layers of each model, and which models are compared.
        groups: How many groups there are, all of one size.
    """
    size = len(rows[0]) // groups  # of a group
    is_large = size > MOST_ROWS_OF_SMALL_GROUP
    groups_at_once = 1
    if not is_large:
        groups_at_once = max(ENTRIES_OF_SMALL_GROUPS // size**2, 1)
    rows_at_once = size * groups_at_once
    statistics = []  # of the groups that are computed at once
    for layers in zip(*(layer.split(rows_at_once) for layer in rows), strict=True):
        if is_large:
            statistics.append(linear_statistics(layers, model_pairs))
            continue
        grams = []
        for layer in layers:
            rows_of_groups = layer.unflatten(0, (-1, size))  # (g, s, d)
            grams.append(rows_of_groups @ rows_of_groups.mT)
        statistics.append(dense_statistics(grams, model_pairs))

    products = {}
    for pair in model_pairs.pairs:
        total = statistics[0].products[pair]
        for of_groups in statistics[1:]:
            total = total + of_groups.products[pair]
        products[pair] = total
    sums = []
    diagonals = []
    for model in range(len(model_pairs.layers_of_model)):
        sums.append(torch.cat([of_groups.sums[model] for of_groups in statistics], 1))
        diagonals.append(torch.cat([of_groups.diagonals[model] for of_groups in statistics], 1))
    return GramStatistics(products, sums, diagonals)


def dense_statistics(
    grams: Sequence[Float[Tensor, "*g n n"]], model_pairs: ModelPairs
) -> GramStatistics:
    """Return what HSIC needs of symmetric Gram matrices, differentiably.

    The statistics are, without the diagonals of the matrices: the inner product of every two
    layers' matrices, and the sum of each row; and the diagonals themselves.

    Args:
        grams: The Gram matrix (n, n) of each layer, or those of several groups of rows, (g, n, n).
            Products are summed over groups; sums and diagonals of groups follow one another.
        model_pairs: The layers of each model, and which models are compared.
    """
    diagonals = []
    off_diagonals = []
    for gram in grams:
        diagonal = gram.double().diagonal(dim1=-2, dim2=-1)
        diagonals.append(diagonal)
        off_diagonals.append(gram.double() - diagonal.diag_embed())
    # For each model the matrices of its layers, flat, (l, g n²).
    flat = model_pairs.by_model([off_diagonal.flatten() for off_diagonal in off_diagonals])
    products = {}
    for source, target in model_pairs.pairs:
        products[source, target] = flat[source] @ flat[target].T
    row_sums = [off_diagonal.sum(-1).flatten() for off_diagonal in off_diagonals]
    flat_diagonals = [diagonal.flatten() for diagonal in diagonals]
    return GramStatistics(
        products, model_pairs.by_model(row_sums), model_pairs.by_model(flat_diagonals)
    )


def rbf_gram(rows: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
    """Return exp(-‖xᵢ - xⱼ‖² / 2σ²) of all rows i, j with σ the median distance of pairs i < j.

    The scale of the rows cancels. The result is differentiable.

    Raises:
        ValueError: The median distance is 0.
    """
    gram = rows @ rows.T
    squared_norms = gram.diagonal()
    squared_distances = squared_norms[:, None] + squared_norms - 2 * gram
    squared_distances = squared_distances.clamp(min=0)  # rounding can leave less than 0
    i, j = torch.triu_indices(len(rows), len(rows), 1, device=rows.device)
    of_pairs = squared_distances[i, j]
    # Of an even number of values, `median` returns the lower one of the two in the middle.
    middle = torch.stack([of_pairs.median(), -(-of_pairs).median()])
    squared_bandwidth = middle.sqrt().mean().square()  # σ²
    if squared_bandwidth <= 0:
        raise ValueError(
            "the median distance between rows is 0, so the rbf kernel has no bandwidth: "
            "use kernel=linear"
        )
    return torch.exp(-squared_distances / (2 * squared_bandwidth))
