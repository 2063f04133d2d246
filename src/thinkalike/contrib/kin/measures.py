"""Two layers by their main directions, single units, and neighbours of each row; two models by their logits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from thinkalike.arguments import takes_arrays
from thinkalike.measures.contract import Blocks, LayerMeasure, Pair, both_in_order, each_pair, rows_in_order
from thinkalike.measures.estimates import ROUNDINGS, RowGroups
from thinkalike.measures.neighbours import NEIGHBOURS, directions, in_order, nearest, neighbours, numbers_of
from thinkalike.measures.shape import centred_rows

KEPT = 0.99  # of the variance


@takes_arrays
def svcca(X: Float[Tensor, "n d"], Y: Float[Tensor, "m e"], kept: float = KEPT) -> Float[Tensor, ""]:
    """Return the mean canonical correlation of the top principal components, in [0, 1].

    1/k Σᵢ σᵢ(U_X' U_Y), U the left singular vectors of centred features that hold at least a share `kept` of their
    variance, k the smaller count of these (Raghu et al. 2017). It has no gradient here. Where both counts together
    exceed n - 1, some correlations are 1 whatever the features are: compare the value with its null.
    """
    if not 0 < kept <= 1:
        raise ValueError(f"kept={kept} is no share of the variance: it must lie in (0, 1]")
    return svcca_measure(kept).of(X, Y)


def svcca_measure(kept: float = KEPT) -> LayerMeasure:
    return LayerMeasure(partial(_components, kept=kept), each_pair(_correlation), rows_in_order, fewest=2)


@torch.no_grad()
def _components(features: Float[Tensor, "n d"], name: str, kept: float) -> Float[Tensor, "n r"]:
    """Return the left singular vectors of the largest singular values, in float64, from the smaller Gram matrix."""
    rows = centred_rows(features, name)
    wide = rows.shape[1] >= len(rows)
    values, vectors = torch.linalg.eigh(rows @ rows.T if wide else rows.T @ rows)
    values, vectors = values.flip(0).clamp(min=0), vectors.flip(1)
    shares = values.cumsum(0) / values.sum()
    least = max(max(rows.shape) * torch.finfo(rows.dtype).eps, (ROUNDINGS * torch.finfo(features.dtype).eps) ** 2)
    count = min(int((shares < kept).sum()) + 1, int((values > least * values[0]).sum()))
    top = vectors[:, :count]
    return top if wide else rows @ top / values[:count].sqrt()


def _correlation(source: Float[Tensor, "n r"], target: Float[Tensor, "n s"]) -> Float[Tensor, ""]:
    return torch.linalg.svdvals(source.T @ target).mean()


# ---- Soft matching: how alike are the single units, matched one to one or, between widths, in shares?

COPIES = 8192  # units of a side up to which shares are matched as whole copies
CONSTANT = 1e-12  # share of the widest unit's norm below which a unit does not vary


@takes_arrays
def soft_matching(X: Float[Tensor, "n d"], Y: Float[Tensor, "m e"]) -> Float[Tensor, ""]:
    """Return the mean correlation of matched units, in [-1, 1]: max_P Σᵢⱼ Pᵢⱼ corr(xᵢ, yⱼ).

    P is a transport plan between units of weight 1/d and units of weight 1/e; of equal widths the best one is a
    permutation (Khosla & Williams 2024, "Soft matching distance"; their distance of standardised units is
    √(2 - 2 s)). It is exact, not regularised. A unit that does not vary correlates with nothing: 0. Rotations change
    the value, as they should; scales of single units do not. It is differentiable where the plan is unique.
    """
    return SOFT_MATCHING.of(X, Y)


def transport_plan(likeness: Float[Tensor, "d e"]) -> Float[Tensor, "d e"]:
    """Return the plan P ≥ 0 with rows that sum to 1/d and columns to 1/e and the largest Σ P likeness, in float64.

    An assignment of copies of units where widths have a common multiple of at most `COPIES`; else a linear program,
    which takes minutes for some hundred units.
    """
    from scipy.optimize import linear_sum_assignment

    d, e = likeness.shape
    size, scores = math.lcm(d, e), likeness.detach().cpu().numpy()
    if size > COPIES:
        return torch.from_numpy(_transported(scores)).to(likeness.device)
    copies = scores.repeat(size // d, 0).repeat(size // e, 1)
    rows, columns = linear_sum_assignment(copies, maximize=True)
    plan = np.zeros((d, e))
    np.add.at(plan, (rows // (size // d), columns // (size // e)), 1 / size)
    return torch.from_numpy(plan).to(likeness.device)


def _transported(scores: np.ndarray) -> np.ndarray:
    from scipy.optimize import linprog
    from scipy.sparse import eye_array, kron, vstack

    d, e = scores.shape
    sums = vstack([kron(eye_array(d), np.ones((1, e))), kron(np.ones((1, d)), eye_array(e))]).tocsr()
    weights = np.concatenate([np.full(d, 1 / d), np.full(e, 1 / e)])
    return linprog(-scores.ravel(), A_eq=sums, b_eq=weights, method="highs").x.reshape(d, e)  # type: ignore[no-any-return]


def _units(features: Float[Tensor, "n d"], name: str) -> Float[Tensor, "n d"]:
    rows = centred_rows(features, name)
    norms = torch.linalg.vector_norm(rows, dim=0)
    varies = norms > CONSTANT * norms.max()
    return torch.where(varies, rows, 0) / torch.where(varies, norms, 1)


def _matched(source: Float[Tensor, "n d"], target: Float[Tensor, "n e"]) -> Float[Tensor, ""]:
    correlations = source.T @ target
    return (transport_plan(correlations) * correlations).sum()


SOFT_MATCHING = LayerMeasure(_units, each_pair(_matched), rows_in_order, fewest=2)


# ---- How alike are the neighbours of each row: their sets, and their similarities?


@takes_arrays
def jaccard(X: Float[Tensor, "n d"], Y: Float[Tensor, "m e"], k: int = NEIGHBOURS) -> Float[Tensor, ""]:
    """Return the mean Jaccard index of the k nearest neighbours of each row, in [0, 1].

    1/n Σᵢ |S_X(i) ∩ S_Y(i)| / |S_X(i) ∪ S_Y(i)|, S(i) as in `mutual_knn`, whose errors it has (Klabunde et al. 2024,
    ReSi). Features with nothing in common give about k / (2n). It has no gradient.
    """
    return jaccard_measure(k).of(X, Y)


@takes_arrays
def second_order_cosine(X: Float[Tensor, "n d"], Y: Float[Tensor, "m e"], k: int = NEIGHBOURS) -> Float[Tensor, ""]:
    """Return the mean cosine of two layers' similarities of each row with its neighbours in either, in [-1, 1].

    1/n Σᵢ cos(s_X(i), s_Y(i)), s(i) the cosine similarities of row i with the rows of S_X(i) ∪ S_Y(i), see `mutual_knn`
    (Hamilton et al. 2016). ReSi's code takes cosine *distances* in their place. Similarities are mostly above 0,
    so chance lies far above 0 where states share a direction: compare it with its null. It has no gradient here.
    """
    return second_order_measure(k).of(X, Y)


class Neighbours(NamedTuple):
    numbers: Int[Tensor, "n k"]
    member: Bool[Tensor, "n n"]
    cosine: Float[Tensor, "n n"]


def jaccard_measure(k: int = NEIGHBOURS) -> LayerMeasure:
    return LayerMeasure(partial(numbers_of, k=k), each_pair(_jaccard), in_order, k + 2, needed_by=neighbours(k))


def second_order_measure(k: int = NEIGHBOURS) -> LayerMeasure:
    return LayerMeasure(partial(_neighbours, k=k), each_pair(_second_order), _moved, k + 2, needed_by=neighbours(k))


@torch.no_grad()
def _neighbours(features: Float[Tensor, "n d"], name: str, k: int) -> Neighbours:
    rows = directions(features, RowGroups.whole(len(features), features.device), name)
    cosines = rows.new_empty(1, len(rows), len(rows))
    numbers = nearest(rows[None], k, cosines)[0]
    return Neighbours(numbers, _members(numbers), cosines[0])


def _moved(prepared: Neighbours, order: Int[Tensor, " n"]) -> Neighbours:
    member, cosine = (both_in_order(pairs, order) for pairs in (prepared.member, prepared.cosine))
    return Neighbours(in_order(prepared.numbers, order), member, cosine)


def _jaccard(source: Int[Tensor, "n k"], target: Int[Tensor, "n k"]) -> Float[Tensor, ""]:
    shared = _members(source).gather(1, target).sum(1).double()
    return (shared / (2 * source.shape[1] - shared)).mean()


def _members(numbers: Int[Tensor, "n k"]) -> Bool[Tensor, "n n"]:
    """Return which rows are among the neighbours of each."""
    n = len(numbers)
    return torch.zeros(n, n, dtype=torch.bool, device=numbers.device).scatter_(1, numbers, True)


def _second_order(source: Neighbours, target: Neighbours) -> Float[Tensor, ""]:
    places = torch.cat([source.numbers, target.numbers], 1)
    once = torch.ones_like(places, dtype=torch.bool)
    once[:, source.numbers.shape[1] :] = ~source.member.gather(1, target.numbers)
    own, other = (side.cosine.gather(1, places).double() * once for side in (source, target))
    return torch.nn.functional.cosine_similarity(own, other, dim=1).mean()


# ---- How alike are the logits of two models for the same tokens?

AT_ONCE = 2**17  # logits that are compared at a time: they stay in the cache; on a GPU 64 times as many
LEAST = -80  # is the logarithm of the least share of the largest one: 0 times -inf would be NaN


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
