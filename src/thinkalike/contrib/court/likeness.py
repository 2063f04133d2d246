"""How similar the states of two models are at each layer pair: in canonical directions, and beyond the tokens.

A stitch is cheap wherever the tail can read off what it needs, whatever else differs. So these measures compare the
states themselves, held out, in both directions, and in ways that no rotation moves, nor, where there is enough text,
any change of basis: as they are, and *beyond the tokens*, which is what is left of the states less all that the current
token at its place, and any bag of the tokens before (a linear function of their embeddings), explain. Untrained
networks share little beyond the tokens, and how much depends on widths and text, so some are measured on the same rows;
see `Untrained`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from thinkalike.contrib.court.regression import RegressionMoments, regression
from thinkalike.contrib.court.tokens_alone import (
    AHEAD,
    LEFT,
    Judged,
    TargetBatch,
    TargetReader,
    Untrained,
    inner,
    later_shares,
    source_states,
)  # fmt: skip
from thinkalike.data.corpus import TokenRows
from thinkalike.evaluation.language import BATCH_TOKENS, halved
from thinkalike.measures.closed_forms import CUTOFF, LayerPair, PairStatistics
from thinkalike.measures.estimates import (
    FEWEST_GROUPS,
    PARTS,
    Estimate,
    effective_number,
    has_interval,
    interval_around,
    jackknife,
)
from thinkalike.measures.losses import token_loss
from thinkalike.memory import hand_back, page_out
from thinkalike.models.frozen import FrozenModel

TOKENS = 2**16  # at most, that directions are fitted on, and that measures are of
OUTPUT_TOKENS = 2**14  # at most, that the output's sensitivity is measured on
FOR_GRADIENTS, KEPT = 2**30, 25  # bytes at a time, and numbers that a block keeps for each of its width, about
AT_ONCE = 1024  # rows whose surprises are foreseen, which stay in the cache of a processor
SHARES = (0.9, 0.99)  # of all that is shared; how many directions carry as much is counted
log = logging.getLogger(__name__)
ByLayer = Mapping[int, Float[Tensor, "n _"]]


@dataclass(frozen=True, eq=False)
class Likeness:
    """How similar the states of each layer pair are, with 95 % intervals over documents of the report.

    Each measure is an `Estimate` of shape (pairs,): those of `DirectionSums.compute`, as states are, and with the
    suffix `_beyond` of what is left beyond the tokens; further
    `context`, `context_back`: the mean share of the variance of the target's and the source's directions that is left
        beyond the tokens, in [0, 1];
    `foresight`: what the source's state foresees beside the target's own, in [-1, 1]: the correlation of the part of
        the next token that the target did not foresee (see `surprises`), nor a linear function of its state, with its
        held-out prediction from what of the source's state the target's does not predict; the same of the token after
        the next, where that is more;
    `future`: the same beyond the tokens; about 0 for a source that knows no later text;
    `r2_output_untrained`: the most of `r2_output_beyond` that a network without training has, see `Untrained`;
    `r2_output_learnt`: by how much the source is above it, less what draws of such a network differ by;
    `later`: the share of the source's states, in [0, ∞), that moves where the tokens after them are replaced.

    Attributes:
        measures: The estimates by these names.
        rows_used: The share of the report's rows whose token stands in their batch at least 4 times, in (0, 1];
            measures beyond the tokens are of these.
    """

    measures: Mapping[str, Estimate]
    rows_used: float


def output_roots(
    target: FrozenModel, depths: Sequence[int], rows: Int[Tensor, "rows t"]
) -> dict[int, Float[Tensor, "d d"]]:
    """Return for each depth R with R R' = E[g g'], g the gradient of the loss of all later tokens in one token's state.

    E[g g'] is the empirical Fisher information of the state: an error e of the states costs about e' E[g g'] e / 2 nats
    of KL divergence. It moves with the basis, so that R² weighed by it does not.
    """
    sums = {depth: torch.zeros(target.d_model, target.d_model, dtype=torch.float64) for depth in depths}
    chosen = rows[: max(OUTPUT_TOKENS // rows.shape[1], 1)].long()
    each = rows.shape[1] * target.n_layers * target.d_model * target.dtype.itemsize * KEPT
    for part in chosen.split(halved(max(BATCH_TOKENS // rows.shape[1], 1), lambda n: n * each <= FOR_GRADIENTS)):
        states = [target.head(part, depths[0]).detach().requires_grad_(True)]
        with torch.enable_grad():
            for depth, following in zip(depths, [*depths[1:], target.n_layers - 1], strict=True):
                states.append(target.advance(states[-1], depth + 1, following + 1))
            ends = states.pop()[:, :-1].flatten(0, 1)
            loss = token_loss(ends, target.finish, part[:, 1:].flatten().to(ends.device)).sum()
        for depth, gradient in zip(depths, torch.autograd.grad(loss, states), strict=True):
            own = inner(gradient).double().cpu()
            sums[depth] += own.T @ own
    roots = {}
    for depth, products in sums.items():
        values, vectors = torch.linalg.eigh(products / products.trace())
        roots[depth] = (vectors * values.clamp(min=0).sqrt()).to(target.device)
    hand_back(target.device)
    return roots


def whitening(covariance: Float[Tensor, "d d"], least: float | None = None) -> Float[Tensor, "d r"]:
    """Return uncorrelated directions of variance 1, where it was above `least`, by default `CUTOFF` of the largest."""
    values, vectors = torch.linalg.eigh(covariance)
    kept = values > (CUTOFF * values[-1:].clamp(min=0) if least is None else least)
    return vectors[:, kept] / values[kept].sqrt()


class DirectionSums:
    """How well held-out rows of one layer pair predict each other: in canonical directions, and as the output reads.

    Canonical directions of x and y have unit variance, and their pairs are uncorrelated with all other pairs (Hotelling
    1936). Ridge regressions predict those of one side from the states of the other, which are not their directions, as
    of few rows these are overfitted. With as many rows as one likes, and no penalty, the mean of R² over directions is
    R²_CCA of Kornblith et al. (2019, table 1).

    Args:
        moments: Of the rows to fit on.
        whitened: Directions of unit variance of both sides, see `whitening`.
        root: Of the matrix by which errors change outputs.
    """

    def __init__(
        self,
        moments: RegressionMoments,
        pair: LayerPair,
        whitened: tuple[Float[Tensor, "d a"], Float[Tensor, "e b"]],
        root: Float[Tensor, "e k"],
    ):
        x, y = whitened
        left, _, right = torch.linalg.svd(x.T @ moments.of(pair).xy @ y, full_matrices=False)
        self.ranks = x.shape[1], y.shape[1]
        self.onward = Judged(moments.ridge(pair, read=y @ right.T))
        self.backward = Judged(moments.ridge(pair, back=True, read=x @ left))
        self.output = Judged(moments.ridge(pair, read=root))

    def judge(self, x: Float[Tensor, "n d"], y: Float[Tensor, "n e"], parts: Int[Tensor, " n"]) -> None:
        """Add held-out rows of both sides; `parts` says to which part, below `PARTS`, each row belongs."""
        for each, given, wanted in ((self.onward, x, y), (self.backward, y, x), (self.output, x, y)):
            each.add(given, wanted, parts)

    def compute(self, worth: float | int) -> dict[str, Estimate]:
        """Return each measure with an interval that leaves out a part of the documents at a time.

        `cca`, `cca_back`: the mean held-out R² of the target's directions from the source's states, and of the
        source's from the target's; `cca_least`, `cca_least_back`: the least over directions, 0 if one has no
        counterpart; `directions_90`, `directions_99`: how many directions carry that share of all that is shared;
        `r2_output`: R² with errors weighed by how much they change the target's output. All R² are at most 1.
        Of documents worth fewer than `FEWEST_GROUPS` of equal length intervals are (-∞, ∞).
        """
        (rank_x, rank_y), onward, backward = self.ranks, self.onward.r2(worth), self.backward.r2(worth)
        shared = onward.clamp(min=0).sort(-1, descending=True).values.cumsum(-1)
        found = {
            "cca": onward.sum(-1) / max(rank_y, 1),
            "cca_back": backward.sum(-1) / max(rank_x, 1),
            "cca_least": _least(onward, rank_y),
            "cca_least_back": _least(backward, rank_x),
        }
        for share in SHARES:
            count = (shared < share * shared[..., -1:]).sum(-1).double() + 1 if shared.shape[-1] else onward.sum(-1)
            found[f"directions_{round(100 * share)}"] = count
        found["r2_output"] = self.output.r2(worth, whole=True)
        return {name: jackknife(each[0], each[1:]) for name, each in found.items()}


def _least(explained: Float[Tensor, "*b r"], rank: int) -> Float[Tensor, "*b"]:
    """Return the least R² of `rank` directions, of which those that are not there have 0."""
    least = explained.amin(-1) if explained.shape[-1] else explained.sum(-1)
    return least if explained.shape[-1] == rank else least.clamp(max=0)


def _correlation(sums: Float[Tensor, "*b 3"]) -> Float[Tensor, "*b"]:
    """Return Σ ab / √(Σ a² Σ b²), 0 where a or b is constant."""
    product, first, second = sums.unbind(-1)
    size = (first * second).sqrt()
    return torch.where(size > 0, product / size.clamp(min=torch.finfo(size.dtype).tiny), 0.0)


class Foreseen:
    """How well states of a source foresee what a target did not, beside the target's own state, of each layer pair.

    The target's own state predicts first, the surprises and the source's state, and then what it leaves of the source's
    state predicts what it leaves of the surprises (Frisch & Waugh 1933), all by `regression`.

    Args:
        states: The moments of the same rows of both sides, which are complete before rows are judged.
    """

    def __init__(self, states: RegressionMoments):
        self.states = states
        # Σ x s' and Σ s of each half, of surprises s and, by side and layer, states x
        self._across: list[dict[tuple[int, int], Tensor]] = [{} for _ in states.halves]
        self._surprises = [torch.zeros(()) for _ in states.halves]
        self._maps: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        self._sums = [torch.zeros(PARTS, AHEAD, 3, dtype=torch.float64) for _ in states.pairs]

    def fit(
        self, source: ByLayer, target: ByLayer, surprises: Float[Tensor, "n codes"], halves: Int[Tensor, " n"]
    ) -> None:
        """Add rows to fit on; for `surprises` see `TargetBatch`."""
        for half, across in enumerate(self._across):
            rows = halves % len(self._across) == half
            surprised = surprises[rows].double()
            self._surprises[half] = self._surprises[half] + surprised.sum(0)
            for side, states in enumerate((source, target)):
                for layer, each in states.items():
                    across[side, layer] = across.get((side, layer), 0) + each[rows].double().T @ surprised

    def judge(
        self, source: ByLayer, target: ByLayer, surprises: Float[Tensor, "n codes"], parts: Int[Tensor, " n"]
    ) -> None:
        """Add held-out rows, given the part of each, below `PARTS`."""
        self._maps = self._maps or [self._fitted(pair) for pair in self.states.pairs]
        belongs = one_hot(parts, PARTS).double().T
        for pair, (more, beside, own, usual), sums in zip(self.states.pairs, self._maps, self._sums, strict=True):
            both = self.states.of(pair)
            x, y = source[pair[0]].double() - both.mean_x, target[pair[1]].double() - both.mean_y
            every = []
            for mine, theirs, codes in zip(*(rows.split(AT_ONCE) for rows in (x, y, surprises)), strict=True):
                found = (mine @ more).sub_(theirs @ beside).unflatten(1, (AHEAD, -1))
                actual = (codes - usual).sub_(theirs @ own).unflatten(1, (AHEAD, -1))
                sides = (found, actual), (found, found), (actual, actual)
                every.append(torch.stack([(a * b).sum(2) for a, b in sides], 2))
            sums += torch.einsum("pn,nas->pas", belongs, torch.cat(every)).cpu()

    def _fitted(self, pair: LayerPair) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the maps of both sides' states beside the target's, that of its state, and the mean of surprises."""
        by_target, left = [], []
        states = self.states.parts(pair)
        for half, across, total in zip(states, self._across, self._surprises, strict=True):
            usual, none = total / half.n, torch.zeros(len(total), len(total)).to(half.xx)
            mine, theirs = (
                across[side, pair[side]] - torch.outer(mean, total)
                for side, mean in enumerate((half.mean_x, half.mean_y))
            )
            by_target.append(PairStatistics(half.n, half.mean_y, usual, half.yy, none, theirs))
            left.append(PairStatistics(half.n, half.mean_x, usual, half.xx, none, mine))
        source = self.states.ridge(pair, back=True)
        own = regression(by_target, self.states.bases["target", pair[1]])  # which the target's states have, too
        beside, reads = source.weight, own.weight
        rest = []
        for half, to_surprise, from_target in zip(states, left, by_target, strict=True):
            explained = half.xy @ beside
            y = half.mean_y - own.mean_x
            means = half.mean_x - source.mean_y - y @ beside, to_surprise.mean_y - own.mean_y - y @ reads
            xx = half.xx - explained - explained.T + beside.T @ half.yy @ beside
            xs = to_surprise.xy - half.xy @ reads - beside.T @ (from_target.xy - half.yy @ reads)
            rest.append(PairStatistics(half.n, *means, xx, to_surprise.yy, xs))
        more = regression(rest).weight
        if sum(each.xx.trace() for each in rest) < LEFT * sum(each.xx.trace() for each in states):
            more = torch.zeros_like(more)
        return more, beside @ more, reads, own.mean_y

    def result(self, worth: float | int) -> list[Estimate]:
        """Return the correlation of surprises with what was foreseen of them, the largest over tokens ahead, by pair.

        Its interval leaves out a tenth of the documents at a time. It is (-∞, ∞) of documents that are worth fewer than
        `FEWEST_GROUPS` of equal length.
        """
        found = []
        for sums in self._sums:
            there = sums[sums[:, 0, 2] > 0]
            value = _correlation(there.sum(0))
            left = (there.sum(0) - there)[: len(there) if has_interval(worth, FEWEST_GROUPS) else 0]
            found.append(jackknife(value, _correlation(left))[int(value.argmax())])
        return found


class LikenessSums:
    """Sums for all layer pairs: moments of the rows to fit on, then sums over the report's; see `output_roots`."""

    def __init__(self, pairs: Sequence[LayerPair], roots: Mapping[int, Tensor]):
        self.pairs, self.roots = list(pairs), roots
        self.plain, self.beyond = RegressionMoments(pairs), RegressionMoments(pairs)
        self.foresight, self.future = Foreseen(self.plain), Foreseen(self.beyond)
        self.used: list[tuple[int, int, int]] = []

    def fit(self, batch: TargetBatch, source: dict[int, Tensor]) -> None:
        order, left = batch.beyond.order, {layer: batch.beyond.of(each) for layer, each in source.items()}
        self.plain.update(source, batch.own, batch.parts)
        self.beyond.update(left, batch.left, batch.parts[order])
        self.foresight.fit(source, batch.own, batch.surprises, batch.parts)
        self.future.fit(left, batch.left, batch.surprises[order], batch.parts[order])

    @cached_property
    def _whitened(self) -> list[tuple[Tensor, Tensor]]:
        """Directions of unit variance of the source's and the target's states as they are, of each pair."""
        found = (self.plain.of(pair) for pair in self.pairs)
        return [(whitening(each.xx / (each.n - 1)), whitening(each.yy / (each.n - 1))) for each in found]

    @cached_property
    def _rest(self) -> list[tuple[Tensor, Tensor]]:
        """The same beyond the tokens, of directions that keep `LEFT` of their variance there."""

        def among(directions: Tensor, products: Tensor, n: int) -> Tensor:
            return directions @ whitening(directions.T @ (products / (n - 1)) @ directions, LEFT)

        found = zip(self._whitened, map(self.beyond.of, self.pairs), strict=True)
        return [(among(x, left.xx, left.n), among(y, left.yy, left.n)) for (x, y), left in found]

    @cached_property
    def _judges(self) -> dict[str, list[DirectionSums]]:
        sides = {"": (self.plain, self._whitened), "_beyond": (self.beyond, self._rest)}
        return {
            suffix: [
                DirectionSums(moments, pair, own, self.roots[pair[1]])
                for pair, own in zip(self.pairs, whitened, strict=True)
            ]
            for suffix, (moments, whitened) in sides.items()
        }

    def judge(self, batch: TargetBatch, source: dict[int, Tensor]) -> None:
        left = {layer: batch.beyond.of(each) for layer, each in source.items()}
        parts = batch.parts[batch.beyond.order]
        for pair, plain, beyond in zip(self.pairs, *self._judges.values(), strict=True):
            plain.judge(source[pair[0]], batch.own[pair[1]], batch.parts)
            beyond.judge(left[pair[0]], batch.left[pair[1]], parts)
        self.foresight.judge(source, batch.own, batch.surprises, batch.parts)
        self.future.judge(left, batch.left, batch.surprises[batch.beyond.order], parts)
        self.plain.bases, self.beyond.bases = {}, {}  # all maps are solved for
        self.used.append((len(parts), len(batch.parts), inner(batch.tokens).numel()))

    def result(self, worth: float | int, untrained: Untrained, later: Mapping[int, float]) -> Likeness:
        """Return all measures of a report whose documents are worth this many of equal length.

        For `later` see `later_shares`.
        """
        found: dict[str, list[Estimate]] = {}
        for suffix, judges in self._judges.items():
            for judge in judges:
                for name, estimate in judge.compute(worth).items():
                    found.setdefault(f"{name}{suffix}", []).append(estimate)
        for pair, (x, y) in zip(self.pairs, self._whitened, strict=True):
            left = self.beyond.of(pair)
            for name, own, rest in (("context_back", x, left.xx), ("context", y, left.yy)):
                share = (own * (rest / (left.n - 1) @ own)).sum() / max(own.shape[1], 1)  # of their variance, the mean
                found.setdefault(name, []).append(interval_around(share, 0.0))
        for (layer, depth), judge in zip(self.pairs, self._judges["_beyond"], strict=True):
            beside = *untrained.beside(judge.output, depth, worth), interval_around(torch.tensor(later[layer]), 0.0)
            for name, each in zip(("r2_output_untrained", "r2_output_learnt", "later"), beside, strict=True):
                found.setdefault(name, []).append(each)
        found |= {"foresight": self.foresight.result(worth), "future": self.future.result(worth)}
        parts = {name: zip(*each, strict=True) for name, each in found.items()}
        kept, short, rows = map(sum, zip(*self.used, strict=True))
        if short < rows:
            log.warning(f"warning: likeness is without {rows - short} of {rows} tokens, whose states decide a layer")
        return Likeness(
            {name: Estimate(*(torch.stack(p).cpu() for p in own)) for name, own in parts.items()}, kept / rows
        )


def _sides(layer_pairs: Sequence[LayerPair]) -> list[list[int]]:
    return [sorted({pair[side] for pair in layer_pairs}) for side in (0, 1)]


@torch.no_grad()
def likeness_of(
    source: Any,
    target: FrozenModel,
    layer_pairs: Sequence[LayerPair],
    fit: TokenRows,
    report: TokenRows,
) -> Likeness:
    """Compare the states of two models at these layer pairs, in one pass of each model over the rows.

    The first token of each row is left out, as its state has no context, the last, which has no next, and the few
    tokens whose `massive` states decide some layer.

    Args:
        source: A `FrozenModel`, or anything with `residuals(tokens, layers)`, which gives states (b, t, d).
        fit: Rows that directions are fitted on; 2^16 tokens of them are read.
        report: Rows of other documents, which all measures are of; about as many of them are read.

    Raises:
        DataError: No token occurs in 4 rows of a batch.
    """
    layers = sorted({layer for layer, _ in layer_pairs})
    depths = sorted({depth for _, depth in layer_pairs})
    fit = fit.chosen(slice(max(TOKENS // fit.context, 1)))
    report = report.chosen(slice(None, None, max(-(-report.documents.numel() // TOKENS), 1)))  # over all documents
    fit_tokens = fit.layout.target_tokens(fit.tokens)
    reader = TargetReader(target, depths, fit_tokens)
    roots = output_roots(target, depths, fit_tokens)
    later = later_shares(source, fit, layers)
    sums = LikenessSums(layer_pairs, roots)
    untrained = Untrained(reader.before, depths, source.d_model, roots)

    for batch in reader.batches(fit, is_fit=True):
        states = source_states(source, batch, layers)
        batch = reader.beside(batch, states)
        sums.fit(batch, {layer: batch.inner(each) for layer, each in states.items()})
        untrained.fit(batch)
        del states, batch  # before the next
    hand_back(target.device)
    page_out()  # the source's weights leave memory until the report has read the target's states
    for batch in reader.batches(report):
        hand_back(target.device)  # the memory of logits
        states = source_states(source, batch, layers)
        batch = reader.beside(batch, states)
        untrained.judge(batch)  # first, as its moments make room for the maps of the others, which need no model
        page_out()
        sums.judge(batch, {layer: batch.inner(each) for layer, each in states.items()})
        del states, batch
    worth = effective_number(report.documents.unique(return_counts=True)[1])
    return sums.result(worth, untrained, later)
