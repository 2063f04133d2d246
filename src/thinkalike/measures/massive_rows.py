"""Massive activations: a few rows that are so large that they alone decide what is measured.

See Sun et al. (2024), "Massive Activations in Large Language Models".
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

log = logging.getLogger(__name__)

# A row is long beyond this many times the median norm of its layer. Few states are, and they may
# carry most of the variance.
LONG_NORM = 3

# Long rows decide a layer where they carry more than this share of its variance about the mean of
# all other rows, ...
DECISIVE_VARIANCE = 0.25

# ... and more than this many times their share of the rows.
DECISIVE_CONCENTRATION = 10

# Long rows that begin their text decide a layer beyond this share of its variance, however many
# they are: attention may rest on every first token.
DECISIVE_VARIANCE_AT_BEGINNING = 0.9


def massive(
    layers: Iterable[Float[Tensor, "n _"]], begins: Bool[Tensor, " n"] | None = None
) -> Bool[Tensor, " n"] | None:
    """Return which rows are massive at some layer; None if no row is.

    A row is massive if its norm is more than `LONG_NORM` times the median of the layer, and all
    such rows of the layer carry more than `DECISIVE_VARIANCE` of its variance about the mean of
    all others, and more than `DECISIVE_CONCENTRATION` times their share of the rows.

    Rows that begin their text, each of which attention may rest on, are judged by themselves. They
    are massive where they carry more than `DECISIVE_VARIANCE_AT_BEGINNING` of the variance,
    although they may be many.

    All layers together may name at most 1 / `DECISIVE_CONCENTRATION` of the rows inside of texts,
    which is the most that one layer can name. Norms at a head of attention vary so much that each
    of many heads names a few different rows, and all of them together name most rows. Massive rows
    are the same few at layer after layer. So where more rows are named, none inside of a text is
    taken for massive, with a warning.

    Args:
        layers: The states of the same n rows, layer by layer.
        begins: Which rows begin their text; None: none does.
    """
    at_beginning: Tensor | None = None
    inside: Tensor | None = None
    for layer in layers:
        norms = torch.linalg.vector_norm(layer, dim=1)
        is_long = norms > LONG_NORM * norms.median()
        if not is_long.any():
            continue
        is_long_first = torch.zeros_like(is_long)
        if begins is not None:
            is_long_first = is_long & begins.to(is_long.device)
        is_long_inside = is_long & ~is_long_first

        centre = layer[~is_long].float().mean(0)
        squares = (layer.float() - centre).square().sum(1)
        if _judged_rows_decide_layer(
            is_long_first, is_long, squares, DECISIVE_VARIANCE_AT_BEGINNING
        ):
            at_beginning = _union(at_beginning, is_long_first.cpu())
        # No share is above 1: what is inside of texts must always be few rows.
        if _judged_rows_decide_layer(is_long_inside, is_long, squares, 1.0):
            inside = _union(inside, is_long_inside.cpu())

    if inside is None:
        return at_beginning
    share_inside = float(inside.float().mean())
    if share_inside > 1 / DECISIVE_CONCENTRATION:
        log.warning(
            f"warning: {share_inside:.0%} of the rows are more than {LONG_NORM} times as long as "
            "the median at some layer or head; as these are not few, none of them is left out"
        )
        return at_beginning
    return _union(at_beginning, inside)


def _judged_rows_decide_layer(
    judged: Bool[Tensor, " n"],
    is_long: Bool[Tensor, " n"],
    squares: Float[Tensor, " n"],
    always_enough: float,
) -> bool:
    """Return whether some long rows have so much variance that they decide how a layer compares.

    They are judged beside the rows that are not long; other long rows are left out. They decide
    the layer if their share of the variance is above `DECISIVE_VARIANCE`, and above
    `DECISIVE_CONCENTRATION` times their share of the rows.

    Args:
        judged: Which rows are judged, all of them long.
        is_long: Which rows are long: those whose norm is far above the median.
        squares: The squared distance of each row from the mean of the rows that are not long.
        always_enough: A share of the variance above which they decide the layer in any case, even
            if they are many rows; 1: there is no such share.
    """
    compared = judged | ~is_long
    share_of_rows = float(judged.sum() / compared.sum())
    share_of_variance = squares[judged].sum() / squares[compared].sum()
    least_share = max(DECISIVE_VARIANCE, DECISIVE_CONCENTRATION * share_of_rows)
    return bool(share_of_variance > min(least_share, always_enough))


def _union(rows: Bool[Tensor, " n"] | None, more: Bool[Tensor, " n"]) -> Bool[Tensor, " n"]:
    """Return the rows that are in `rows` or in `more`; None stands for no rows."""
    if rows is None:
        return more
    return rows | more
