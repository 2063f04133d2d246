"""How similar the logits of two models are for the same tokens."""

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

from thinkalike.measures.contract import (
    BAD_INPUT,
    LayerMeasure,
    ModelPairs,
    Pair,
    compare_one_by_one,
)

# logits that are compared at a time: on a CPU they stay in the cache
AT_ONCE = 2**17
AT_ONCE_ON_GPU = 64 * AT_ONCE
# the least logarithm of a probability, as a share of the largest one: 0 times -inf would be NaN
LEAST_LOG = -80


def jensen_shannon(X: Float[Tensor, "n v"], Y: Float[Tensor, "m w"]) -> Float[Tensor, ""]:
    """Return the mean Jensen-Shannon divergence of softmax(X) and softmax(Y), in [0, ln 2] nats.

    For the logits X and Y of two models with one vocabulary it is ½ KL(p ‖ m) + ½ KL(q ‖ m) with
    m = (p + q) / 2 (Lin 1991), mean over rows. A logit of -∞ has a probability of 0. It is
    differentiable, and computed in float32 or a wider dtype.

    Raises:
        ValueError: n or the vocabulary differs, a logit is NaN or +∞, or all of a row are -∞.
    """
    return JensenShannon().of(X, Y)


def disagreement(X: Float[Tensor, "n v"], Y: Float[Tensor, "m w"]) -> Float[Tensor, ""]:
    """Return the share of rows in which X and Y are largest at different tokens, in [0, 1].

    X and Y are the logits of two models with one vocabulary. See Klabunde et al. (2024) and Madani
    et al. (2004, "prediction disagreement"). It has no gradient.
    """
    return Disagreement().of(X, Y)


class _Outputs(NamedTuple):
    """The outputs of a model for n tokens.

    Attributes:
        values: The logits, (n, v), or the position of the largest, (n).
        name: What an error calls them.
    """

    values: Shaped[Tensor, "n ..."]
    name: str


def _refuse_flawed(row_values: Float[Tensor, "..."], name: str) -> None:
    """Raise a ValueError if a logit is NaN or +∞, or if all logits of a row are -∞.

    Args:
        row_values: A number for each row that is not finite in just these cases: its largest
            logit, or the sum of the exponentials of its logits less the largest one.
        name: What the error calls the outputs.
    """
    if not row_values.isfinite().all():
        raise ValueError(f"{name}: a logit is NaN or +inf, or all those of a row are -inf")


def _divergences(source: _Outputs, target: _Outputs) -> Float[Tensor, " n"]:
    """Return the Jensen-Shannon divergence of each row, in float64, from the logits.

    P and Q are the exponentials of the logits less the largest one of the row. S and T are their
    sums, so that the probabilities are P / S and Q / T. The divergence is the least value, over
    all weights w, of

        ½ Σ P (log P - M) / S + ½ Σ Q (log Q - M) / T + log((1 - w) S + w T) - ½ log S T,

    where M is the logarithm of (1 - w) P + w Q, as log P is that of P. It has its minimum at
    w = S / (S + T), so that a small error of w, from rounding, changes it by next to nothing.

    Raises:
        ValueError: A logit is NaN or +∞, or all of a row are -∞.
    """
    source_logits = source.values
    n, width = source_logits.shape
    if source is target:  # exactly 0, without the rounding of the formula
        _refuse_flawed(source_logits.amax(1), source.name)
        return source_logits.new_zeros(n, dtype=torch.float64)

    logits_at_once = AT_ONCE
    if source_logits.is_cuda:
        logits_at_once = AT_ONCE_ON_GPU
    rows_at_once = max(min(n, logits_at_once // width), 1)
    buffers = source_logits.new_empty(5, rows_at_once, width)  # for log P, log Q, P, Q and M
    sums_of_strips = []
    strips_of_source = source_logits.split(rows_at_once)
    strips_of_target = target.values.split(rows_at_once)
    for x, y in zip(strips_of_source, strips_of_target, strict=True):
        sums_of_strips.append(_divergence_sums(x, y, buffers[:, : len(x)]))
    joined = [torch.cat(values).double() for values in zip(*sums_of_strips, strict=True)]
    sums = _DivergenceSums(*joined)  # of all rows
    _refuse_flawed(sums.p_sum, source.name)  # a sum is also NaN if all logits are -inf
    _refuse_flawed(sums.q_sum, target.name)
    middle_sum = torch.lerp(sums.p_sum, sums.q_sum, sums.weight)  # (1 - w) S + w T
    return sums.divergence / 2 + (middle_sum / (sums.p_sum * sums.q_sum).sqrt()).log()


class _DivergenceSums(NamedTuple):
    """Sums over the vocabulary from which `_divergences` computes the divergence of r rows.

    Attributes:
        divergence: Σ P (log P - M) / S + Σ Q (log Q - M) / T. This would be twice the divergence
            if exp(M) were the mean of the probabilities, and not a multiple of it.
        p_sum: S = Σ P.
        q_sum: T = Σ Q.
        weight: w = S / (S + T).
    """

    divergence: Float[Tensor, " r"]
    p_sum: Float[Tensor, " r"]
    q_sum: Float[Tensor, " r"]
    weight: Float[Tensor, " r"]


def _divergence_sums(
    x: Float[Tensor, "r v"], y: Float[Tensor, "r v"], buffers: Float[Tensor, "5 r v"]
) -> _DivergenceSums:
    """Return sums from which `_divergences` computes the divergence of r rows.

    In each row, with sums over the v tokens of the vocabulary:

        P = exp(x - max x)          S = Σ P
        Q = exp(y - max y)          T = Σ Q
        w = S / (S + T)             M = log((1 - w) P + w Q)

    The probabilities are P / S and Q / T, and exp(M) is their sum times S T / (S + T). The result
    has S, T, w and Σ P (log P - M) / S + Σ Q (log Q - M) / T. `_divergences` halves this last sum,
    and adds a term that makes up for the factor of exp(M).

    Args:
        x: The logits of the source.
        y: The logits of the target.
        buffers: Memory for log P, log Q, P, Q and M, which is used again for the next rows. It is
            not used if gradients are computed, as they need the values of these later.
    """
    out: list[Tensor | None] = [None] * len(buffers)
    if not x.requires_grad and not y.requires_grad:
        out = list(buffers)
    log_p = torch.sub(x, x.amax(1, keepdim=True), out=out[0]).clamp_(min=LEAST_LOG)
    log_q = torch.sub(y, y.amax(1, keepdim=True), out=out[1]).clamp_(min=LEAST_LOG)
    p = torch.exp(log_p, out=out[2])
    q = torch.exp(log_q, out=out[3])
    p_sum = p.sum(1)
    q_sum = q.sum(1)
    weight = 1 / (1 + q_sum / p_sum)
    log_middle = torch.lerp(p, q, weight[:, None], out=out[4]).log_()  # M

    # log P and log Q are not needed after this, so that the terms of the sums take their place.
    terms_of_p = log_p.sub_(log_middle).mul_(p)  # P (log P - M)
    terms_of_q = log_q.sub_(log_middle).mul_(q)  # Q (log Q - M)
    divergence = terms_of_p.sum(1) / p_sum + terms_of_q.sum(1) / q_sum
    return _DivergenceSums(divergence, p_sum, q_sum, weight)


@dataclass(frozen=True)
class MeanOfRows(LayerMeasure[_Outputs]):
    """A distance of the logits of two models that is the mean over rows of a value of each row."""

    best = 0.0
    higher_is_closer = False
    invariances = frozenset({"row_permutation"})
    refuses = BAD_INPUT - {"constant"} | {"unequal_widths"}
    fewest = 1
    is_unbiased = True
    leaves_out_parts = True
    version = 9
    in_benchmarks = True

    def check_widths(self, widths: Sequence[int], names: Sequence[str]) -> None:
        """Raise a ValueError if the outputs of models have different numbers of logits.

        Only logits over the same vocabulary can be compared entry by entry; its size is all that
        is known here.
        """
        for width in widths:
            if width != widths[0]:
                raise ValueError(
                    f"outputs over {widths[0]} and {width} entries are not of one vocabulary: "
                    "choose such models"
                )

    @abstractmethod
    def of_rows(self, first: _Outputs, second: _Outputs) -> Float[Tensor, " n"]:
        """Return the value of each row, which is the same in both directions."""

    def compare(self, first: _Outputs, second: _Outputs) -> Float[Tensor, ""]:
        """Return the mean of the values of all rows."""
        return self.of_rows(first, second).mean()

    def reordered(self, prepared: _Outputs, order: Int[Tensor, " n"]) -> _Outputs:
        """Return the same outputs in another order of the tokens."""
        return prepared._replace(values=prepared.values[order])

    def compare_leaving_out_parts(
        self, layers: Sequence[_Outputs], model_pairs: ModelPairs, sizes: Sequence[int]
    ) -> dict[Pair, Float[Tensor, "_ l m"]]:
        """Return the mean over all rows, and then over the rows that remain without each part.

        A jackknife takes these 1 + parts means, (1 + parts, l, m) for each pair of models. A mean
        is NaN if no row remains.

        Args:
            layers: The distinct outputs of all models.
            model_pairs: Which of these outputs each model has, and which models are compared.
            sizes: How many rows each part has; the parts follow one another.
        """

        def sums_without_parts(first: _Outputs, second: _Outputs) -> Float[Tensor, " _"]:
            """Return the sum of the values of all rows, then those without each part in turn."""
            values_by_part = self.of_rows(first, second).split([*sizes])
            part_sums = torch.stack([values.sum() for values in values_by_part])
            total = part_sums.sum()
            return torch.stack([total, *(total - part_sums)])

        sums = compare_one_by_one(sums_without_parts, layers, model_pairs, self.is_symmetric)
        row_count = sum(sizes)
        counts = [row_count, *(row_count - size for size in sizes)]  # of all rows, without a part
        means = {}
        for pair, pair_sums in sums.items():  # (l, m, 1 + parts)
            row_counts = pair_sums.new_tensor(counts)[:, None, None]
            means[pair] = pair_sums.movedim(-1, 0) / row_counts  # (1 + parts, l, m)
        return means


@dataclass(frozen=True)
class JensenShannon(MeanOfRows):
    """Jensen-Shannon divergence, see `jensen_shannon`."""

    formula = "Jensen-Shannon divergence of the models' next-token distributions, nats"
    meaning = (
        "It compares the next-token distributions, and is 0 where they are equal, and at most "
        "ln 2 = 0.693."
    )
    source = "Lin 1991"
    value_range = (0.0, math.log(2))
    scale = (0.0, math.log(2))
    differentiable = 2
    # `prepare` is of each row alone, so what `MeanOfRows` offers holds here as well.
    is_unbiased = True
    leaves_out_parts = True

    def prepare(self, layer: Float[Tensor, "n v"], name: str) -> _Outputs:
        """Return the logits as they are, with the name."""
        return _Outputs(layer, name)

    def of_rows(self, first: _Outputs, second: _Outputs) -> Float[Tensor, " n"]:
        """Return the Jensen-Shannon divergence of each row in nats."""
        return _divergences(first, second)


@dataclass(frozen=True)
class Disagreement(MeanOfRows):
    """Disagreement of the most likely token, see `disagreement`."""

    formula = "share of tokens whose most likely next token differs"
    meaning = "A value is the share of the tokens after which the most likely token differs."
    source = "Madani et al. 2004"
    invariances = frozenset({"row_permutation", "isotropic_scaling"})
    # `prepare` is of each row alone, so what `MeanOfRows` offers holds here as well.
    is_unbiased = True
    leaves_out_parts = True

    def prepare(self, layer: Float[Tensor, "n v"], name: str) -> _Outputs:
        """Return the index of the largest logit of each row, the most likely token.

        Raises:
            ValueError: A logit is NaN or +∞, or all of a row are -∞.
        """
        if layer.is_cpu:
            # NumPy compares with vector instructions, in a fifth of the time
            most_likely = torch.from_numpy(np.argmax(layer.detach().numpy(), 1))
        else:
            most_likely = layer.argmax(1)
        largest_logits = layer.gather(1, most_likely[:, None])  # NaN counts as the largest
        _refuse_flawed(largest_logits, name)
        return _Outputs(most_likely, name)

    def of_rows(self, first: _Outputs, second: _Outputs) -> Float[Tensor, " n"]:
        """Return 1 for each row whose most likely token differs, else 0."""
        return (first.values != second.values).double()
