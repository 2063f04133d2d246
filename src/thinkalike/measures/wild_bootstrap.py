"""The wild bootstrap of a correlation of similarities: documents get random signs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.measures.splitmix import random_codes


def signed_similarities(
    similarities: Sequence[Sequence[Float[Tensor, "_ _ _"]]],
    compared_layers: tuple[Sequence[int], Sequence[int]],
    documents: Sequence[Int[Tensor, "_ _"]],
    permutations: int,
) -> Float[Tensor, "a l m"]:
    """Return the correlation of two layers' similarities, and those with random signs.

    The correlation is Σ K_ij L_ij / √(Σ K_ij² Σ L_ij²) over the rows i and j of one group and of
    different documents, where K and L are the similarities in the two layers, each less what its
    two rows have on average. If it were due to chance alone, so would be Σ s_i s_j K_ij L_ij, with
    a random sign s_i for the document of row i: this is the wild bootstrap of a degenerate
    U-statistic over documents (Dehling & Mikosch 1994; for HSIC Chwialkowski et al. 2014).
    Centring reduces the variance of signed sums, so they are scaled up.

    Args:
        similarities: For each layer and each size of groups, the similarities (g, s, s) of the s
            rows of each of g groups.
        compared_layers: The indices of the l source layers and of the m target layers.
        documents: For each size of groups, the document (g, s) of each row.
        permutations: How often signs are drawn.

    Returns:
        The correlation and then those with random signs, (1 + permutations, l, m).
    """
    source_layers, target_layers = compared_layers
    totals = torch.zeros(
        permutations + 1, len(source_layers), len(target_layers), dtype=torch.float64
    )
    squares = torch.zeros(len(similarities), dtype=torch.float64)
    for size_index, document_of in enumerate(documents):  # of each row, (g, s)
        # 1 for two rows of different documents, else 0, (g, s, s)
        is_between = (document_of[:, :, None] != document_of[:, None, :]).double()
        # The row effects a solve Σ_j (K_ij - a_i - a_j) = 0 over the rows j of other documents.
        system = is_between.sum(2).diag_embed() + is_between
        inverse = torch.linalg.pinv(system, hermitian=True)
        centred = [
            _without_row_effects(layer[size_index].double(), is_between, inverse)
            for layer in similarities
        ]
        squares += torch.stack([similarity.square().sum() for similarity in centred]).cpu()

        # 1, and then for each draw 1 or -1, which all rows of a document share, (g, s, 1 + p)
        draws = [1 - 2 * (random_codes(document_of, seed) & 1) for seed in range(permutations)]
        signs = torch.stack([torch.ones_like(document_of), *draws], -1).double()
        scales = _scales_of_signed_sums(is_between, permutations)  # (g, 1 + p)
        for i, j in product(range(len(source_layers)), range(len(target_layers))):
            terms = centred[source_layers[i]] * centred[target_layers[j]]  # K_ij L_ij
            signed_sums = ((terms @ signs) * signs).sum(1)  # (g, 1 + p)
            totals[:, i, j] += (signed_sums * scales).sum(0).cpu()
    norms = squares.sqrt()
    return totals / torch.outer(norms[list(source_layers)], norms[list(target_layers)])


def _scales_of_signed_sums(
    is_between: Float[Tensor, "g s s"], permutations: int
) -> Float[Tensor, "g a"]:
    """Return the factors by which each group's signed sums Σ s_i s_j K_ij L_ij are multiplied.

    K and L are similarities of rows in two layers, less what each row has on average, and s_i the
    random sign of the document of row i. Subtracting the means takes a share 2 / (n - 1) of the
    variance of these sums in a group of n documents, and the factor √((n - 1) / (n - 3)) restores
    it. It is 1 for n ≤ 3, and for the sum without random signs, which comes first.

    Args:
        is_between: 1 for two rows of different documents, else 0, for g groups of s rows.
        permutations: How often signs are drawn.

    Returns:
        The factors, (g, a) with a = 1 + permutations.
    """
    group_count, size, _ = is_between.shape
    rows_of_same_document = size - is_between.sum(2)  # for each row
    # A document of m rows adds m times 1/m to this sum.
    document_count = (1 / rows_of_same_document).sum(1).round()[:, None]  # n, (g, 1)
    scales = torch.ones(
        group_count, permutations + 1, dtype=torch.float64, device=is_between.device
    )
    ratio = (document_count - 1) / (document_count - 3)
    scales[:, 1:] = torch.where(document_count > 3, ratio, 1).sqrt()
    return scales


def _without_row_effects(
    similarity: Float[Tensor, "g s s"],
    is_between: Float[Tensor, "g s s"],
    inverse: Float[Tensor, "g s s"],
) -> Float[Tensor, "g s s"]:
    """Return the similarities K_ij of rows of different documents, less the effects a_i + a_j.

    The effect of a row is such that its similarities with all rows of other documents sum to 0
    afterwards. Similarities within a document are set to 0.

    Args:
        similarity: The similarity of every two rows of a group.
        is_between: 1 for two rows of different documents, else 0.
        inverse: The pseudo-inverse of the system of equations for the effects, whose right side is
            the sum of each row's similarities with rows of other documents.
    """
    between = similarity * is_between
    effects = (inverse @ between.sum(2, keepdim=True))[..., 0]  # a, (g, s)
    return between - is_between * (effects[:, :, None] + effects[:, None, :])
