"""How alike are the logits of two models for the same tokens: Jensen-Shannon divergence, and disagreement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from thinkalike.measures.contract import Blocks, LayerMeasure, Pair, each_pair

AT_ONCE = 2**17  # logits that are compared at a time: they stay in the cache; on a GPU 64 times as many
LEAST = -80  # is the logarithm of the least share of the largest one: 0 times -inf would be NaN


def jensen_shannon(X: Float[Tensor, "n v"], Y: Float[Tensor, "m w"]) -> Float[Tensor, ""]:
    """Return the mean Jensen-Shannon divergence of softmax(X) and softmax(Y) row by row, in nats, in [0, ln 2].

    ½ KL(p ‖ m) + ½ KL(q ‖ m), m = (p + q) / 2 (Lin 1991), of the logits of two models with one vocabulary. A logit of
    -∞ has a probability of 0. It is differentiable, and computed in float32, or what is wider. A ValueError says that
    n or the vocabulary differs, or that a logit is NaN or +∞, or all of a row are -∞.
    """
    return JENSEN_SHANNON.of(X, Y)


def disagreement(X: Float[Tensor, "n v"], Y: Float[Tensor, "m w"]) -> Float[Tensor, ""]:
    """Return the share of rows whose largest logit, the first of equal ones, differs, in [0, 1]; it has no gradient.

    See Klabunde et al. (2024) and Madani et al. (2004, "prediction disagreement").
    """
    return DISAGREEMENT.of(X, Y)


class _Outputs(NamedTuple):
    values: Shaped[Tensor, "n ..."]  # logits, or the place of the largest
    vocabulary: int
    name: str  # what an error calls them

    def moved(self, order: Int[Tensor, " n"]) -> _Outputs:
        return self._replace(values=self.values[order])


def _top(logits: Float[Tensor, "n v"], name: str) -> _Outputs:
    # NumPy compares with vector instructions, in a fifth of the time
    places = torch.from_numpy(np.argmax(logits.detach().numpy(), 1)) if logits.is_cpu else logits.argmax(1)
    _refuse_flawed(logits.gather(1, places[:, None]), name)  # also NaN, which is larger than all numbers
    return _Outputs(places, logits.shape[1], name)


def _refuse_flawed(largest: Float[Tensor, "..."], name: str) -> None:
    if not largest.isfinite().all():
        raise ValueError(f"{name}: a logit is NaN or +inf, or all those of a row are -inf")


def _check_vocabulary(source: _Outputs, target: _Outputs) -> None:
    if (own := source.vocabulary) != (other := target.vocabulary):
        raise ValueError(f"outputs over {own} and {other} entries are not of one vocabulary: choose such models")


def _divergences(source: _Outputs, target: _Outputs) -> Float[Tensor, " n"]:
    """Return the divergence of each row from exponentials P and Q of the logits, which no pass makes into shares.

    With sums S and T, w = S / (S + T) and M = log((1 - w) P + w Q) it is ½ Σ P (log P - M) / S + ½ Σ Q (log Q - M) / T
    + log((1 - w) S + w T) - ½ log S T. It is least for this w, whose rounding so adds next to nothing.
    """
    _check_vocabulary(source, target)
    (n, width), first, found = source.values.shape, source.values, []
    if source is target:
        _refuse_flawed(first.amax(1), source.name)
        return first.new_zeros(n, dtype=torch.float64)
    rows = max(min(n, AT_ONCE * (64 if first.is_cuda else 1) // width), 1)
    memory = first.new_empty(5, rows, width).unbind()
    for x, y in zip(first.split(rows), target.values.split(rows), strict=True):
        made = [None if x.requires_grad or y.requires_grad else each[: len(x)] for each in memory]
        logs = [torch.sub(z, z.amax(1, keepdim=True), out=own) for z, own in zip((x, y), made[:2], strict=True)]
        p, q = (torch.exp(z.clamp_(min=LEAST), out=own) for z, own in zip(logs, made[2:4], strict=True))
        p_sum, q_sum = p.sum(1), q.sum(1)
        weight = 1 / (1 + q_sum / p_sum)
        middle = torch.lerp(p, q, weight[:, None], out=made[4]).log_()
        apart = logs[0].sub_(middle).mul_(p).sum(1) / p_sum + logs[1].sub_(middle).mul_(q).sum(1) / q_sum
        found.append((apart, p_sum, q_sum, weight))
    apart, p_sum, q_sum, weight = (torch.cat(each).double() for each in zip(*found, strict=True))
    for side, each in ((source, p_sum), (target, q_sum)):
        _refuse_flawed(each, side.name)  # is NaN also where all are -inf
    return apart / 2 + (torch.lerp(p_sum, q_sum, weight) / (p_sum * q_sum).sqrt()).log()


def _disagreements(source: _Outputs, target: _Outputs) -> Float[Tensor, " n"]:
    _check_vocabulary(source, target)
    return (source.values != target.values).double()


def mean_of_rows(
    prepare: Callable[[Tensor, str], Any], values: Callable[[Any, Any], Float[Tensor, " n"]], **options: Any
) -> LayerMeasure:
    """Return the measure whose value is the mean over rows of a value of each, which is the same in both directions."""
    without = partial(_means_without_parts, values)
    options = {"moved": _Outputs.moved, "fewest": 1, "is_unbiased": True, **options}
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


JENSEN_SHANNON = mean_of_rows(
    lambda logits, name: _Outputs(logits, logits.shape[1], name), _divergences, best=0.0, higher_is_closer=False
)
DISAGREEMENT = mean_of_rows(_top, _disagreements, best=0.0, higher_is_closer=False)
