"""HSIC of Gram matrices, and centred kernel alignment, within groups of rows and of batches (Kornblith et al. 2019)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.arguments import Within, check_choice
from thinkalike.measures.contract import Blocks, LayerMeasure, Pair
from thinkalike.measures.estimates import FEWEST, ROUNDINGS, RowGroups, common_dtype
from thinkalike.measures.rows import FLATTEN, CentredRows, centre, centre_all, centre_groups, refuse_flaws

MOST_CKA = 1 + 1e-6  # of two equal layers, with what rounding in float32 adds
AGGREGATES = ("ratio_of_means", "mean_of_ratios")
CHOICES = {
    "estimator": ("unbiased", "biased"),
    "kernel": ("linear", "rbf"),
    "flatten": FLATTEN,
}
LARGE = 512  # rows; a larger group is a Gram matrix of its own
AT_ONCE = 2**17  # numbers of the blocks of small groups of one layer
MANY = 8192  # rows in float64, from which on products of features cost less than Gram matrices


class GramStatistics(NamedTuple):
    """All that HSIC needs of the Gram matrices of the layers of models, in float64; K̃ is K with a zero diagonal."""

    products: dict[Pair, Float[Tensor, "*p l m"]]  # Σᵢⱼ K̃ᵢⱼ L̃ᵢⱼ, by the two models whose layers K and L are of
    sums: list[Float[Tensor, "*p l n"]]  # of each row of K̃, by model; 0 of rows that are left out
    diagonals: list[Float[Tensor, "*p l n"]]  # of K, by model, likewise

    def rounding(self, blocks: Blocks, dtype: torch.dtype, groups: int = 1) -> dict[int, Float[Tensor, " l"]]:
        """Return what rounding may leave of the unbiased HSIC of each layer with itself, whose terms cancel."""
        found = {}
        for model in (a for a, b in blocks.pairs if a == b):
            sums = self.sums[model]
            totals = sums.unflatten(1, (groups, -1)).sum(2).square().sum(1)
            terms = self.products[model, model].diagonal(), -sums.square().sum(1), totals
            found[model] = ROUNDINGS * torch.finfo(dtype).eps * unbiased_from_sums(sums.shape[1] // groups, *terms)
        return found


def hsic1(
    K: Annotated[Float[Tensor, "n n"], Within()], L: Annotated[Float[Tensor, "n n"], Within()]
) -> Float[Tensor, ""]:
    """Return the unbiased HSIC of two Gram matrices (Song et al. 2012, eq. 5); a ValueError of fewer than 4 rows.

    It is [tr(K̃L̃) + 1'K̃1 1'L̃1 / ((n-1)(n-2)) - 2/(n-2) 1'K̃L̃1] / (n(n-3)), where K̃ is K with a zero diagonal: any real
    number, in the unit of K times that of L, differentiable. Uncentred Grams of large offsets leave float32 no digits:
    centre the features first, or use `cka`.

    >>> x = torch.tensor([[-1.0], [-1.0], [1.0], [1.0]])
    >>> round(hsic1(x @ x.T, x @ x.T).item(), 4)
    2.6667
    """
    if len(K) < FEWEST:
        raise ValueError(f"HSIC needs at least {FEWEST} rows, not {len(K)}")
    K, L = K - K.diagonal().diag(), L - L.diagonal().diag()
    return unbiased_from_sums(len(K), (K * L.T).sum(), (K.sum(0) * L.sum(1)).sum(), K.sum() * L.sum())


def hsic0(
    K: Annotated[Float[Tensor, "n n"], Within()], L: Annotated[Float[Tensor, "n n"], Within()]
) -> Float[Tensor, ""]:
    """Return the biased HSIC tr(KHLH) / (n-1)², H = 1 - 11'/n (Gretton et al. 2005, eq. 9), at least 0 for kernels.

    A ValueError of fewer than 2 rows.

    >>> K = [[1.0, 0.0], [0.0, 1.0]]
    >>> hsic0(K, K).item()
    1.0
    """
    if len(K) < 2:
        raise ValueError(f"the biased HSIC needs at least 2 rows, not {len(K)}")
    return _biased(len(K), (K * L.T).sum(), (K.sum(0) * L.sum(1)).sum(), K.sum() * L.sum())


def all_hsics(
    statistics: GramStatistics, estimator: str, groups: int = 1, rows: Float[Tensor, "p 1 1"] | None = None
) -> dict[Pair, Float[Tensor, "*p l m"]]:
    """Return the HSIC of every two symmetric Gram matrices compared, summed over blocks of `groups` of one size.

    `rows` are how many are left, where some are left out.
    """
    formula, products = unbiased_from_sums, statistics.products
    sums, own = statistics.sums, statistics.diagonals
    if estimator == "biased":  # of K itself
        formula, products = _biased, {(a, b): each + own[a] @ own[b].mT for (a, b), each in products.items()}
        sums = [off + diagonal for off, diagonal in zip(sums, own, strict=True)]
    totals = [each.unflatten(-1, (groups, -1)).sum(-1) for each in sums]
    n = sums[0].shape[-1] // groups if rows is None else rows
    parts = {(a, b): (sums[a] @ sums[b].mT, totals[a] @ totals[b].mT) for a, b in products}
    return {pair: formula(n, each, *parts[pair]) for pair, each in products.items()}


def unbiased_from_sums(n: int | Tensor, products: Tensor, of_sums: Tensor, of_totals: Tensor) -> Tensor:
    """Return `hsic1` from Σᵢⱼ K̃ᵢⱼ L̃ᵢⱼ, the product of the rows' sums of K̃ and L̃, and that of their totals."""
    return (products - of_sums * 2 / (n - 2) + of_totals / ((n - 1) * (n - 2))) / (n * (n - 3))


def _biased(n: int | Tensor, products: Tensor, of_sums: Tensor, of_totals: Tensor) -> Tensor:
    return (products - of_sums * 2 / n + of_totals / n**2) / (n - 1) ** 2


# ---- statistics of many layers' Gram matrices; a linear kernel's matrix is never held whole


class Tiling(NamedTuple):
    """Cuts a Gram matrix from its diagonal on: squares of `height`, in strips of `step`, and tiles to their right."""

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


CPU_TILE = Tiling(256, 512, 128)  # 14 MB for 26 layers: it stays in the cache between being written and being read
GPU_TILE = Tiling(2048, 2048, 2048)  # few launches


def _within(sizes: Sequence[int], first: int, count: int) -> Iterator[tuple[int, slice]]:
    """Yield the parts that `count` rows from the first one on are of, with their places among these."""
    start = 0
    for number, size in enumerate(sizes):
        low, high = max(start, first) - first, min(start + size, first + count) - first
        if low < high:
            yield number, slice(low, high)
        start += size


def _feature_products(
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


def gram_products(
    rows: Sequence[Float[Tensor, "n _"]], blocks: Blocks, sizes: Sequence[int]
) -> dict[Pair, Float[Tensor, "p p l m"]]:
    """Return Σ_{i≠j} K_ij L_ij over i of one part and j of another, of every two layers of the models compared.

    They come from products of features where these cost less, else tile by tile. The product over pairs of layers waits
    for memory, so tiles of all layers are written side by side, and small products for each two models read them out of
    the cache. A model's tiles have memory of their own, which begins where memory is aligned: bits may depend on that.
    """
    if len(rows[0]) >= MANY and rows[0].dtype == torch.float64:
        return _feature_products(rows, blocks, sizes)
    n, counts, parts = len(rows[0]), [len(places) for places in blocks.models], (len(sizes), len(sizes))
    tiling = GPU_TILE if rows[0].is_cuda else CPU_TILE
    total = {(a, b): rows[0].new_zeros(*parts, counts[a], counts[b], dtype=torch.float64) for a, b in blocks.pairs}
    belongs = _belongs(sizes, rows[0], torch.float64)
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
                found = torch.bmm(by_row[a][..., across], by_row[b][..., across].mT).double().flatten(1)
                total[a, b][:, column] += (belongs[:, top : top + h] @ found).unflatten(1, (counts[a], counts[b]))
    return {pair: each + each.transpose(0, 1) for pair, each in total.items()}  # of both halves


def _belongs(sizes: Sequence[int], rows: Float[Tensor, "n _"], dtype: torch.dtype) -> Float[Tensor, "p n"]:
    """Return 1 where a row is of a part, else 0."""
    belongs = rows.new_zeros(len(sizes), len(rows), dtype=dtype)
    for part, (start, stop) in zip(belongs, itertools.pairwise(itertools.accumulate(sizes, initial=0)), strict=True):
        part[start:stop] = 1
    return belongs


@torch.no_grad()
def left_out_statistics(
    rows: Sequence[Float[Tensor, "n _"]],
    blocks: Blocks,
    sizes: Sequence[int],
    products: Mapping[Pair, Float[Tensor, "p p l m"]],
) -> GramStatistics:
    """Return the statistics of K = X X' of all rows, then of all but each part, from the `gram_products` of parts."""
    belongs = _belongs(sizes, rows[0], rows[0].dtype)
    found = [(torch.linalg.vector_norm(x, dim=1), x @ (belongs @ x).T) for x in rows]  # of each layer while it is near
    norms, sums_of = (blocks.by_model([each.double() for each in kind]) for kind in zip(*found, strict=True))
    own = [each.square() for each in norms]
    to_parts = [each.mT for each in sums_of]  # (l, p, n): the sums of K over parts
    kept = torch.cat([torch.ones_like(belongs[:1]), 1 - belongs]).double()[:, None]
    left = {}
    for pair, each in products.items():
        without = each.sum((0, 1)) - each.sum(0) - each.sum(1) + each.diagonal().movedim(-1, 0)
        left[pair] = torch.cat([each.sum((0, 1))[None], without])
    sums = [each.sum(1, keepdim=True) - norms[:, None] for each, norms in zip(to_parts, own, strict=True)]
    without_part = [torch.cat([every, every - part], 1).movedim(1, 0) * kept
                    for every, part in zip(sums, to_parts, strict=True)]  # fmt: skip
    return GramStatistics(left, without_part, [each * kept for each in own])


@torch.no_grad()
def linear_statistics(rows: Sequence[Float[Tensor, "n _"]], blocks: Blocks) -> GramStatistics:
    """Return the statistics of K = X X' for the rows X of each different layer, which are about centred."""
    sizes = [len(rows[0])]
    return of_all(left_out_statistics(rows, blocks, sizes, gram_products(rows, blocks, sizes)))


def of_all(statistics: GramStatistics) -> GramStatistics:
    """Return those of all rows out of `left_out_statistics`."""
    products, *others = statistics
    return GramStatistics({pair: each[0] for pair, each in products.items()}, *([e[0] for e in own] for own in others))


@torch.no_grad()
def block_statistics(rows: Sequence[Float[Tensor, "n _"]], blocks: Blocks, groups: int) -> GramStatistics:
    """Return the statistics of the blocks of K = X X' of groups of one size, whose rows stand side by side."""
    size = len(rows[0]) // groups
    at_once = 1 if size > LARGE else max(AT_ONCE // size**2, 1)
    parts = []
    for part in zip(*(x.split(size * at_once) for x in rows), strict=True):
        grams = (y @ y.mT for y in (x.unflatten(0, (-1, size)) for x in part))
        parts.append(linear_statistics(part, blocks) if size > LARGE else dense_statistics([*grams], blocks))
    products, sums, diagonals = zip(*parts, strict=True)
    joint = [[torch.cat(each, 1) for each in zip(*kind, strict=True)] for kind in (sums, diagonals)]
    return GramStatistics({pair: sum(part[pair] for part in products) for pair in blocks.pairs}, *joint)


def dense_statistics(grams: Sequence[Float[Tensor, "*g n n"]], blocks: Blocks) -> GramStatistics:
    """Return the statistics of any symmetric Gram matrices, or of those of several groups; differentiable."""
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


# ---- CKA


def cka(
    X: Float[Tensor, "n d"], Y: Float[Tensor, "m e"], *, estimator: str = "unbiased", kernel: str = "linear"
) -> Float[Tensor, ""]:
    """Return HSIC(K, L) / √(HSIC(K, K) HSIC(L, L)) of the Gram matrices K of X and L of Y.

    It is in [-1, 1] up to rounding, [0, 1] if biased, and differentiable. Products are taken of centred features in
    float32, or what is wider, and summed up in float64. `thinkalike.compare(X, Y)` takes off the bias that a jackknife
    over stimuli estimates of this ratio, which is large of few rows; its column `uncorrected` has the value as it is
    here, up to rounding, and so has `value` with aggregate="mean_of_ratios", where one batch holds all rows.

    Args:
        X, Y: Features, with row i of both from stimulus i; widths and dtypes may differ.
        estimator: "unbiased" (Song et al. 2012, eq. 5), or "biased", which tends to 1 where n is far below the widths.
        kernel: "linear", or "rbf" with the median distance as its bandwidth.

    Raises:
        ValueError: n < 4 or n differs between the sides, a value is not finite, or a side has no variance.

    >>> X = torch.randn(20, 4)
    >>> round(float(cka(X, 3 * X.flip(1))), 4)  # rotated and scaled
    1.0
    """
    return CKAMeasure(estimator, kernel, is_relative=True).of(X, Y).to(common_dtype([X, Y]))


@dataclass(frozen=True, eq=False)
class CKAMeasure(LayerMeasure[CentredRows]):
    """CKA as a measure of layer pairs: HSICs of batches are averaged, and CKA is a ratio of the means.

    Attributes:
        estimator, kernel: See `cka`.
        groups: With them rows are compared within these.
        flatten: What a row is, see `rows_of`.
        is_relative: Whether HSICs are of rows of unit variance.
    """

    estimator: str = "unbiased"
    kernel: str = "linear"
    groups: RowGroups | None = None
    flatten: str = "token"
    is_relative: bool = False

    formula = "HSIC₁(K, L) / √(HSIC₁(K, K) HSIC₁(L, L)), K = XX'"
    source = "Kornblith et al. 2019, Song et al. 2012"
    value_range = (-1.0, 1.0)
    differentiable = 2
    fewest = FEWEST
    is_ratio = True
    has_leverage = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("estimator", "kernel", "flatten"):
            check_choice(name, getattr(self, name), CHOICES[name])

    @property
    def prepares_together(self) -> bool:
        return self.groups is None

    @property
    def has_units(self) -> bool:
        return self.kernel == "linear" and not self.is_relative

    @property
    def leaves_out_parts(self) -> bool:
        return self.kernel == "linear" and self.groups is None

    @property
    def compares_within_groups(self) -> bool:
        return self.groups is None and (self.kernel, self.flatten) == ("linear", "token")

    @property
    def is_unbiased(self) -> bool:
        return self.estimator == "unbiased" and self.groups is None

    def prepare(self, layer: Float[Tensor, "n d"], name: str) -> CentredRows:
        return centre(layer, name) if self.groups is None else centre_groups(self.groups, layer, name)

    def prepare_all(self, layers: Float[Tensor, "l n d"], names: Sequence[str], in_place: bool) -> list[CentredRows]:
        return centre_all(layers, names, in_place)

    def compare(self, first: CentredRows, second: CentredRows) -> Float[Tensor, ""]:
        """Return the HSIC of two prepared layers."""
        return self.compare_all([first, second], Blocks([[0], [1]], [(0, 0), (0, 1), (1, 1)]))[0, 1][0, 0]

    def moved(self, prepared: CentredRows, order: Int[Tensor, " n"]) -> CentredRows:
        return prepared._replace(rows=prepared.rows[order])

    def compare_all(self, layers: Sequence[CentredRows], blocks: Blocks) -> dict[Pair, Float[Tensor, "l m"]]:
        """Return the HSIC of every two layers of models that are compared."""
        if self.groups is not None:
            return hsics_within(layers, blocks, groups=self.groups, estimator=self.estimator)
        return layer_hsics(layers, blocks, kernel=self.kernel, estimator=self.estimator, is_relative=self.is_relative)

    def compare_without_parts(
        self, layers: Sequence[CentredRows], blocks: Blocks, sizes: Sequence[int]
    ) -> dict[Pair, Float[Tensor, "_ l m"]]:
        return hsics_without_parts(layers, blocks, sizes, estimator=self.estimator)

    def finish(self, likenesses: Float[Tensor, "*b k k"]) -> Float[Tensor, "*b k k"]:
        return alignment(likenesses)

    def leverage(self, prepared: CentredRows) -> Float[Tensor, ""]:
        return prepared.leverage

    def within(self, groups: RowGroups) -> CKAMeasure:
        return CKAMeasure(self.estimator, self.kernel, groups)

    def similarities(self, prepared: CentredRows) -> list[Float[Tensor, "_ _ _"]]:
        """Return the Gram matrices of all groups, of rows divided by the fourth root of their group's size."""
        assert self.groups is not None
        return [block @ block.mT / block.shape[1] ** 0.5 for block in self.groups.blocks(prepared.rows)]


def alignment(hsics: Annotated[Float[Tensor, "*b l l"], Within()]) -> Float[Tensor, "*b l l"]:
    """Return the CKA of every two layers from their HSICs; NaN of a layer whose HSIC with itself is not above 0."""
    norms = hsics.diagonal(dim1=-2, dim2=-1).sqrt()
    return hsics / (norms[..., :, None] * norms[..., None, :])


def layer_hsics(
    layers: Sequence[CentredRows], blocks: Blocks, *, kernel: str, estimator: str, is_relative: bool = False
) -> dict[Pair, Float[Tensor, "l m"]]:
    """Return the HSIC of every two layers of models compared in float64, in the unit of the features; differentiable.

    A ValueError names a layer that cannot be compared, or whose rows are all alike but for one.
    """
    _refuse_flawed(layers, blocks)
    rows = [layer.rows for layer in layers]
    if kernel == "linear" and not any(x.requires_grad for x in rows):
        statistics = linear_statistics(rows, blocks)
    else:
        statistics = dense_statistics([x @ x.T if kernel == "linear" else rbf_gram(x) for x in rows], blocks)
    hsics = all_hsics(statistics, estimator)
    if estimator == "unbiased":
        _refuse_flat(hsics, statistics.rounding(blocks, rows[0].dtype), layers, blocks)
    return hsics if kernel == "rbf" or is_relative else _in_units(hsics, layers, blocks)


def hsics_without_parts(
    layers: Sequence[CentredRows], blocks: Blocks, sizes: Sequence[int], *, estimator: str
) -> dict[Pair, Float[Tensor, "_ _ _"]]:
    """Return `layer_hsics` of the linear kernel of all rows, and without each part; NaN of fewer than 4 rows."""
    _refuse_flawed(layers, blocks)
    rows = [layer.rows for layer in layers]
    statistics = left_out_statistics(rows, blocks, sizes, gram_products(rows, blocks, sizes))
    left = len(rows[0]) - _belongs(sizes, rows[0], torch.float64).sum(1)
    left = torch.cat([left.new_full((1,), len(rows[0])), left])[:, None, None]
    hsics = {
        pair: each.where(left >= FEWEST, torch.nan)
        for pair, each in all_hsics(statistics, estimator, rows=left).items()
    }
    if estimator == "unbiased":
        own = {pair: each[0] for pair, each in hsics.items()}
        _refuse_flat(own, of_all(statistics).rounding(blocks, rows[0].dtype), layers, blocks)
    return _in_units(hsics, layers, blocks)


def hsics_within(
    layers: Sequence[CentredRows], blocks: Blocks, *, groups: RowGroups, estimator: str
) -> dict[Pair, Float[Tensor, "l m"]]:
    """Return Σ_g n_g HSIC_g of every two layers of models compared, over the n_g rows of each group g.

    A shift of a whole group cancels. A ValueError says that nothing but rounding is left of a layer.
    """
    _refuse_flawed(layers, blocks, "the rows of each token are the same")
    total: dict[Pair, Tensor] = {}
    least: dict[int, Tensor] = {}
    start = 0
    for count, size in groups.shapes:
        part = [layer.rows[start : start + count * size] for layer in layers]
        statistics = block_statistics(part, blocks, count)
        for pair, hsics in all_hsics(statistics, estimator, count).items():
            total[pair] = total.get(pair, 0) + size * hsics
        for model, rounding in statistics.rounding(blocks, part[0].dtype, count).items():
            least[model] = least.get(model, 0) + size * rounding
        start += count * size
    _refuse_flat(total, least, layers, blocks, "given the token there is no variance but in single rows")
    return _in_units(total, layers, blocks)


def _in_units(hsics: Mapping[Pair, Tensor], layers: Sequence[CentredRows], blocks: Blocks) -> dict[Pair, Tensor]:
    squares = [scale.square() for scale in blocks.by_model([layer.scale for layer in layers])]
    return {(a, b): each * torch.outer(squares[a], squares[b]) for (a, b), each in hsics.items()}


def _refuse_flawed(layers: Sequence[CentredRows], blocks: Blocks, alike: str = "all rows are the same") -> None:
    """Refuse a flawed layer, unless rows are permuted, where no model is compared with itself."""
    if any(a == b for a, b in blocks.pairs):
        refuse_flaws(layers, alike)


def _refuse_flat(
    hsics: Mapping[Pair, Tensor],
    least: Mapping[int, Tensor],
    layers: Sequence[CentredRows],
    blocks: Blocks,
    message: str = "no variance but in one row, which the unbiased estimator cannot see",
) -> None:
    """Refuse the first layer whose HSIC with itself is at most what rounding may leave of it."""
    for model, rounding in least.items():
        flat = (hsics[model, model].diagonal() <= rounding).tolist()
        for place, is_flat in zip(blocks.models[model], flat, strict=True):
            if is_flat:
                raise ValueError(f"{layers[place].name}: {message}")


def arc_length(
    ckas: Annotated[Float[Tensor, "*b l"], Within(least=-MOST_CKA, most=MOST_CKA)],
) -> Float[Tensor, "*b"]:
    """Return √Σ arccos²(CKA) over l layers, in [0, π √l] radians (Brown et al. 2023, eq. 2), with CKA in [-1, 1].

    Values beyond by rounding alone are taken for -1 and 1.
    """
    return ckas.clamp(-1, 1).arccos().square().sum(-1).sqrt()
