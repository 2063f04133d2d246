"""How alike the logits of two models are for the same tokens."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from thinkalike.measures.contract import BAD_INPUT, Blocks, LayerMeasure, Pair, each_pair

# logits that are compared at a time: they stay in the cache; on a GPU 64 times as many
AT_ONCE = 2**17
LEAST = -80  # is the logarithm of the least share of the largest one: 0 times -inf would be NaN


def jensen_shannon(X: Float[Tensor, "n v"], Y: Float[Tensor, "m w"]) -> Float[Tensor, ""]:
    """Return the mean Jensen-Shannon divergence of softmax(X) and softmax(Y), in [0, ln 2] nats.

    ½ KL(p ‖ m) + ½ KL(q ‖ m), m = (p + q) / 2 (Lin 1991), of the logits of two models with one
    vocabulary. A logit of -∞ has a probability of 0. It is differentiable, and computed in
    float32, or what is wider. A ValueError says that n or the vocabulary differs, or that a logit
    is NaN or +∞, or all of a row are -∞.
    """
    return JensenShannon().of(X, Y)


def disagreement(X: Float[Tensor, "n v"], Y: Float[Tensor, "m w"]) -> Float[Tensor, ""]:
    """Return the share of rows whose largest logit differs, in [0, 1]; it has no gradient.

    See Klabunde et al. (2024) and Madani et al. (2004, "prediction disagreement").
    """
    return Disagreement().of(X, Y)


class _Outputs(NamedTuple):
    values: Shaped[Tensor, "n ..."]  # logits, or the place of the largest
    vocabulary: int
    name: str  # what an error calls them


def _refuse_flawed(largest: Float[Tensor, "..."], name: str) -> None:
    if not largest.isfinite().all():
        raise ValueError(f"{name}: a logit is NaN or +inf, or all those of a row are -inf")


def _check_vocabulary(source: _Outputs, target: _Outputs) -> None:
    if (own := source.vocabulary) != (other := target.vocabulary):
        raise ValueError(
            f"outputs over {own} and {other} entries are not of one vocabulary: choose such models"
        )


def _divergences(source: _Outputs, target: _Outputs) -> Float[Tensor, " n"]:
    """Return the divergence of each row from the exponentials P and Q of the logits.

    With sums S and T, w = S / (S + T) and M = log((1 - w) P + w Q) it is ½ Σ P (log P - M) / S + ½
    Σ Q (log Q - M) / T + log((1 - w) S + w T) - ½ log S T. It is least for this w, whose rounding
    so adds next to nothing.
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
        logs = [
            torch.sub(z, z.amax(1, keepdim=True), out=own)
            for z, own in zip((x, y), made[:2], strict=True)
        ]
        p, q = (
            torch.exp(z.clamp_(min=LEAST), out=own) for z, own in zip(logs, made[2:4], strict=True)
        )
        p_sum, q_sum = p.sum(1), q.sum(1)
        weight = 1 / (1 + q_sum / p_sum)
        middle = torch.lerp(p, q, weight[:, None], out=made[4]).log_()
        apart = (
            logs[0].sub_(middle).mul_(p).sum(1) / p_sum
            + logs[1].sub_(middle).mul_(q).sum(1) / q_sum
        )
        found.append((apart, p_sum, q_sum, weight))
    apart, p_sum, q_sum, weight = (torch.cat(each).double() for each in zip(*found, strict=True))
    for side, each in ((source, p_sum), (target, q_sum)):
        _refuse_flawed(each, side.name)  # is NaN also where all are -inf
    return apart / 2 + (torch.lerp(p_sum, q_sum, weight) / (p_sum * q_sum).sqrt()).log()


@dataclass(frozen=True)
class MeanOfRows(LayerMeasure[_Outputs]):
    """A distance of the logits of two models that is the mean over rows of a value of each row."""

    best = 0.0
    higher_is_closer = False
    invariances = frozenset({"row_permutation"})
    refuses = BAD_INPUT - {"constant"}
    fewest = 1
    is_unbiased = True
    leaves_out_parts = True
    version = 9
    in_benchmarks = True

    @abstractmethod
    def of_rows(self, first: _Outputs, second: _Outputs) -> Float[Tensor, " n"]:
        """Return the value of each row, which is the same in both directions."""

    def compare(self, first: _Outputs, second: _Outputs) -> Float[Tensor, ""]:
        return self.of_rows(first, second).mean()

    def moved(self, prepared: _Outputs, order: Int[Tensor, " n"]) -> _Outputs:
        return prepared._replace(values=prepared.values[order])

    def compare_without_parts(
        self, layers: Sequence[_Outputs], blocks: Blocks, sizes: Sequence[int]
    ) -> dict[Pair, Float[Tensor, "_ l m"]]:
        """Return the means of all rows and without each part; NaN if no row remains."""

        def sums_without_parts(first: _Outputs, second: _Outputs) -> Float[Tensor, " _"]:
            sums = torch.stack(
                [part.sum() for part in self.of_rows(first, second).split([*sizes])]
            )
            return torch.stack([sums.sum(), *(sums.sum() - sums)])

        sums = each_pair(sums_without_parts, layers, blocks, self.is_symmetric)
        rows = [sum(sizes), *(sum(sizes) - size for size in sizes)]
        return {
            pair: each.movedim(-1, 0) / each.new_tensor(rows)[:, None, None]
            for pair, each in sums.items()
        }


@dataclass(frozen=True)
class JensenShannon(MeanOfRows):
    """Jensen-Shannon divergence, see `jensen_shannon`."""

    formula = "Jensen-Shannon divergence of the models' next-token distributions, nats"
    source = "Lin 1991"
    value_range = (0.0, math.log(2))
    scale = (0.0, math.log(2))
    differentiable = 2

    def prepare(self, layer: Float[Tensor, "n v"], name: str) -> _Outputs:
        return _Outputs(layer, layer.shape[1], name)

    def of_rows(self, first: _Outputs, second: _Outputs) -> Float[Tensor, " n"]:
        return _divergences(first, second)


@dataclass(frozen=True)
class Disagreement(MeanOfRows):
    """Disagreement of the most likely token, see `disagreement`."""

    formula = "share of tokens whose most likely next token differs"
    source = "Madani et al. 2004"
    invariances = frozenset({"row_permutation", "isotropic_scaling"})

    def prepare(self, layer: Float[Tensor, "n v"], name: str) -> _Outputs:
        # NumPy compares with vector instructions, in a fifth of the time
        places = (
            torch.from_numpy(np.argmax(layer.detach().numpy(), 1))
            if layer.is_cpu
            else layer.argmax(1)
        )
        # also NaN, which is larger than all numbers
        _refuse_flawed(layer.gather(1, places[:, None]), name)
        return _Outputs(places, layer.shape[1], name)

    def of_rows(self, first: _Outputs, second: _Outputs) -> Float[Tensor, " n"]:
        _check_vocabulary(first, second)
        return (first.values != second.values).double()
