"""Two models by their logits for the same tokens: Jensen-Shannon divergence, and disagreement of the top token."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.arguments import takes_arrays
from thinkalike.measures.contract import Blocks, LayerMeasure, Pair, each_pair, rows_in_order

AT_ONCE = 2**18  # logits whose divergence is computed at a time: they stay in the cache


@takes_arrays
def jensen_shannon(X: Float[Tensor, "n v"], Y: Float[Tensor, "m w"]) -> Float[Tensor, ""]:
    """Return the mean Jensen-Shannon divergence of softmax(X) and softmax(Y) row by row, in nats, in [0, ln 2].

    ½ KL(p ‖ m) + ½ KL(q ‖ m), m = (p + q) / 2 (Lin 1991), of the logits of two models with one vocabulary. A logit of
    -∞ has a probability of 0. It is differentiable, and computed in float32, or what is wider. A ValueError says that
    n or the vocabulary differs, or that a logit is NaN or +∞, or all of a row are -∞.
    """
    return JENSEN_SHANNON.of(X, Y)


@takes_arrays
def disagreement(X: Float[Tensor, "n v"], Y: Float[Tensor, "m w"]) -> Float[Tensor, ""]:
    """Return the share of rows whose largest logit, the first of equal ones, differs, in [0, 1]; it has no gradient.

    See Klabunde et al. (2024) and Madani et al. (2004, "prediction disagreement").
    """
    return DISAGREEMENT.of(X, Y)


def _log_shares(logits: Float[Tensor, "n v"], name: str) -> Float[Tensor, "n v"]:
    return _checked(logits, name).log_softmax(1)


class _Tops(NamedTuple):
    places: Int[Tensor, " n"]
    vocabulary: int

    def moved(self, order: Int[Tensor, " n"]) -> _Tops:
        return self._replace(places=self.places[order])


def _top(logits: Float[Tensor, "n v"], name: str) -> _Tops:
    return _Tops(_checked(logits, name).argmax(1), logits.shape[1])


def _checked(logits: Float[Tensor, "n v"], name: str) -> Float[Tensor, "n v"]:
    if not logits.amax(1).isfinite().all():  # also NaN, which is larger than all numbers
        raise ValueError(f"{name}: a logit is NaN or +inf, or all those of a row are -inf")
    return logits


def _check_vocabulary(source: int, target: int) -> None:
    if source != target:
        raise ValueError(f"outputs over {source} and {target} entries are not of one vocabulary: choose such models")


def _divergences(source: Float[Tensor, "n v"], target: Float[Tensor, "n w"]) -> Float[Tensor, " n"]:
    _check_vocabulary(source.shape[1], target.shape[1])
    rows = max(AT_ONCE // source.shape[1], 1)
    sums = []
    for p, q in zip(source.split(rows), target.split(rows), strict=True):
        middle = torch.logaddexp(p, q) - math.log(2)
        terms = [torch.where(side > -torch.inf, side.exp() * (side - middle), 0) for side in (p, q)]
        sums.append((terms[0] + terms[1]).sum(1, dtype=torch.float64) / 2)
    return torch.cat(sums)


def _disagreements(source: _Tops, target: _Tops) -> Float[Tensor, " n"]:
    _check_vocabulary(source.vocabulary, target.vocabulary)
    return (source.places != target.places).double()


def mean_of_rows(
    prepare: Callable[[Tensor, str], Any], values: Callable[[Any, Any], Float[Tensor, " n"]], **options: Any
) -> LayerMeasure:
    """Return the measure whose value is the mean over rows of a value of each, which is the same in both directions."""
    without = partial(_means_without_parts, values)
    options = {"moved": rows_in_order, "fewest": 1, "is_unbiased": True, **options}
    return LayerMeasure(prepare, each_pair(lambda x, y: values(x, y).mean()), compare_without_parts=without, **options)


def _means_without_parts(
    values: Callable[[Any, Any], Float[Tensor, " n"]], layers: Sequence[Any], blocks: Blocks, sizes: Sequence[int]
) -> dict[Pair, Float[Tensor, "_ l m"]]:
    """Return the means of all rows and without each part, from the sums of the parts; NaN where no row is left."""

    def totals(x: Any, y: Any) -> Float[Tensor, " _"]:
        sums = torch.stack([part.sum() for part in values(x, y).split([*sizes])])
        return torch.stack([sums.sum(), *(sums.sum() - sums)])

    found = {pair: each.movedim(-1, 0) for pair, each in each_pair(totals)(layers, blocks).items()}
    counts = found[blocks.pairs[0]].new_tensor([sum(sizes), *(sum(sizes) - size for size in sizes)])[:, None, None]
    return {pair: each / counts for pair, each in found.items()}


JENSEN_SHANNON = mean_of_rows(_log_shares, _divergences, best=0.0, higher_is_closer=False)
DISAGREEMENT = mean_of_rows(_top, _disagreements, moved=_Tops.moved, best=0.0, higher_is_closer=False)
