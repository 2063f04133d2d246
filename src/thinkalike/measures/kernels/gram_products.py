"""What HSIC needs of many layers' Gram matrices at once; of linear kernels without ever holding a whole one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.measures.kernels.hsic import GramStatistics

CPU_TILE = (128, 1024)  # 14 MB for 26 layers: it stays in the cache between being written and being read
GPU_TILE = (2048, 2048)  # few launches
LARGE = 512  # rows; a larger group is a Gram matrix of its own
AT_ONCE = 2**22  # numbers of the blocks of small groups


@torch.no_grad()
def linear_statistics(rows: Sequence[Float[Tensor, "n _"]], places: Sequence[int] | None = None) -> GramStatistics:
    """Return the statistics of K = X X' for the rows X of every layer, which are about centred.

    Products are taken in the dtype of the rows, and summed up in float64.

    Args:
        places: Which of the rows each layer has, where several layers have the same; by default each has its own.
    """
    places = list(range(len(rows))) if places is None else list(places)
    own = torch.stack([torch.linalg.vector_norm(x, dim=1) for x in rows]).double().square()
    sums = torch.stack([x @ x.sum(0) for x in rows]).double() - own
    return GramStatistics(_tiled_products(rows, places), sums[places], own[places])


def _tiled_products(rows: Sequence[Float[Tensor, "n _"]], places: list[int]) -> Float[Tensor, "l l"]:
    """Return Σ_{i≠j} K_ij L_ij of every two layers, tile by tile on and above the diagonal.

    The product over pairs of layers waits for memory, so all layers' tiles are written side by side, and one small
    product reads each of them once, out of the cache.
    """
    n, layers = len(rows[0]), len(places)
    height, width = GPU_TILE if rows[0].is_cuda else CPU_TILE
    total = rows[0].new_zeros(layers, layers, dtype=torch.float64)
    memory = rows[0].new_empty(layers * min(height, n) * min(width, n))
    for top in range(0, n, height):
        for left in range(top, n, width):
            h, w = min(height, n - top), min(width, n - left)
            tile = memory[: layers * h * w].view(layers, h, w)
            for layer, place in enumerate(places):
                if (first := places.index(place)) < layer:
                    tile[layer].copy_(tile[first])  # and not left out: float32 sums depend on how many layers there are
                else:
                    torch.mm(rows[place][top : top + h], rows[place][left : left + w].T, out=tile[layer])
            if left == top:
                tile[:, :, :h].triu_(1)
            by_row = tile.transpose(0, 1)  # one float32 sum per row of the tile: a longer one loses a digit
            total += torch.bmm(by_row, by_row.mT).sum(0, dtype=torch.float64)
    return 2 * total


@torch.no_grad()
def block_statistics(
    rows: Sequence[Float[Tensor, "n _"]], groups: int, places: Sequence[int] | None = None
) -> GramStatistics:
    """Return the statistics of the blocks of K = X X' that belong to groups of rows, products summed over the groups.

    Small blocks of many groups are made together, large ones tile by tile, and the whole K never.

    Args:
        groups: How many groups there are; all are of one size, and the rows of each stand side by side.
        places: See `linear_statistics`.
    """
    places = list(range(len(rows))) if places is None else list(places)
    size = len(rows[0]) // groups
    at_once = 1 if size > LARGE else max(AT_ONCE // (len(rows) * size**2), 1)
    parts = []
    for part in zip(*(x.split(size * at_once) for x in rows), strict=True):
        if size > LARGE:
            parts.append(linear_statistics(part, places))
        else:
            blocks = [x.unflatten(0, (-1, size)) for x in part]
            parts.append(_block_products(torch.stack([x @ x.mT for x in blocks]), places))
    products, sums, diagonals = zip(*parts, strict=True)
    return GramStatistics(torch.stack(products).sum(0), torch.cat(sums, 1), torch.cat(diagonals, 1))


def _block_products(grams: Float[Tensor, "l g s s"], places: list[int]) -> GramStatistics:
    off = grams.double()
    own = off.diagonal(dim1=2, dim2=3).clone()
    off.diagonal(dim1=2, dim2=3).zero_()
    flat = off.flatten(1)
    return GramStatistics((flat @ flat.T)[places][:, places], off.sum(3).flatten(1)[places], own.flatten(1)[places])


def dense_statistics(grams: Float[Tensor, "l n n"]) -> GramStatistics:
    """Return the statistics of any symmetric Gram matrices; differentiable."""
    own = grams.diagonal(dim1=1, dim2=2).double()
    off = grams.double() - own.diag_embed()
    return GramStatistics(off.flatten(1) @ off.flatten(1).T, off.sum(2), own)


def linear_gram(rows: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
    """Return ⟨xᵢ, xⱼ⟩."""
    return rows @ rows.T


def rbf_gram(rows: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
    """Return exp(-‖xᵢ - xⱼ‖² / 2σ²) with σ the median distance of different rows, so that their scale cancels.

    Raises:
        ValueError: Half of all distances are zero.
    """
    gram = rows @ rows.T
    own = gram.diagonal()
    squared = (own[:, None] + own - 2 * gram).clamp(min=0)  # rounding can leave less than none
    i, j = torch.triu_indices(len(rows), len(rows), 1, device=rows.device)
    median = squared[i, j].median()
    if median <= 0:
        raise ValueError("the median distance between rows is 0, so the rbf kernel has no bandwidth: use kernel=linear")
    return torch.exp(-squared / (2 * median))
