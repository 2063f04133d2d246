"""How similar the states of two models are at each layer pair: in canonical directions, and beyond the tokens.

A stitch is cheap wherever the tail can read off what it needs, whatever else differs. So these measures compare the
states themselves, held out, in both directions, and in ways that no change of basis moves: as they are, and *beyond
the tokens*, which is what is left of the states less all that the current token, its position, and any bag of the
tokens before (a linear function of their embeddings) explain. Untrained networks share nothing beyond the tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.nn.functional import one_hot, pad

from thinkalike.data.corpus import Layout, TokenRows
from thinkalike.errors import DataError
from thinkalike.evaluation.language import BATCH_TOKENS, ends_of, halved
from thinkalike.measures import estimates
from thinkalike.measures.closed_forms import LEFT, DirectionSums, LayerPair, Moments, canonical_directions, whitening
from thinkalike.measures.estimates import FEWEST, FEWEST_GROUPS, PARTS, Estimate, RowGroups, interval_around, jackknife
from thinkalike.measures.losses import surprises, token_codes, token_loss
from thinkalike.models.families import EMBED
from thinkalike.models.frozen import FrozenModel
from thinkalike.processes import counted

TOKENS = 2**16  # at most, that directions are fitted on, and that measures are of
GROUPED_TOKENS = 2**14  # of a batch, in which the tokens' part is taken out; the last batch has more
OUTPUT_TOKENS = 2**14  # at most, that the output's sensitivity is measured on
FOR_GRADIENTS, KEPT = 2**31, 25  # bytes at a time, and numbers that a block keeps for each of its width, about
SOURCE_BYTES, TARGET_BYTES = 28, 24  # of a number of a state: as it is, beyond the tokens, in float64 for moments
AHEAD = 2  # how many of the next tokens a source may know
COMPONENTS = 64  # of the embedding, by which a bag of tokens is described
LAGS = (1, 2, 3, 4, 5, 6)  # of the tokens before that are taken one by one
DECAYS = (0.5, 0.7, 0.85, 0.95)  # of running means of the tokens before, beside the mean of all
ROWS_PER_COVARIATE = 8  # at least
RIDGE = 1e-6  # of the covariates' mean variance

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
    `future`: the same beyond the tokens; about 0 for a source that knows no later text.

    Attributes:
        measures: The estimates by these names.
        rows_used: The share of the report's rows whose token stands in their batch at least 4 times, in (0, 1];
            measures beyond the tokens are of these.
    """

    measures: Mapping[str, Estimate]
    rows_used: float

    def columns(self) -> dict[str, list[float]]:
        """Return each measure with its `_low` and `_high`, in columns with a row per layer pair."""
        return {key: part for name, each in self.measures.items() for key, part in ends_of(name, each).items()}

    @classmethod
    def joined(cls, parts: Sequence[Likeness]) -> Likeness:
        """Return the likeness of all layer pairs of several, of the same rows."""
        found = {name: zip(*(each.measures[name] for each in parts), strict=True) for name in parts[0].measures}
        return cls({name: Estimate(*map(torch.cat, each)) for name, each in found.items()}, parts[0].rows_used)


def in_parts(layer_pairs: Sequence[LayerPair], d: int, e: int, tokens: int, room: float) -> list[list[LayerPair]]:
    """Return layer pairs of these widths in parts, so that the states of a batch of each part fit into `room` bytes.

    Args:
        tokens: Of all batches.
    """
    in_batch, parts = tokens / max(tokens // GROUPED_TOKENS, 1), list[list[LayerPair]]([[]])
    for pair in layer_pairs:
        layers, depths = ({each[side] for each in (*parts[-1], pair)} for side in (0, 1))
        if parts[-1] and in_batch * (len(layers) * SOURCE_BYTES * d + len(depths) * TARGET_BYTES * e) > room:
            parts.append([])
        parts[-1].append(pair)
    return parts


def inner(states: Shaped[Tensor, " ..."]) -> Shaped[Tensor, " ..."]:
    """Drop the first and the last token of each row: (b, t, ...) → (n, ...)."""
    return states[:, 1:-1].flatten(0, 1)


def _running(codes: Float[Tensor, "b t k"], decay: float | None) -> Float[Tensor, "b t k"]:
    """Return Σ decay^(s-1) code at s places before, over all s, as a weighted mean; None: the mean of all."""
    found, total = torch.zeros_like(codes), torch.zeros_like(codes[:, 0])
    for place in range(1, codes.shape[1]):
        total = codes[:, place - 1] + (total if decay is None else decay * total)
        found[:, place] = total / place if decay is None else total * (1 - decay)
    return found


class TokensBefore:
    """Describes the tokens before each token by what a bag of them could say: linear functions of their embeddings.

    Each token is its embedding's leading principal components, weighed by how often tokens occur in `rows`; the tokens
    before are those of the last places one by one, running means of several decays, and the mean of all, also times
    the root of their number.
    """

    def __init__(self, target: FrozenModel, rows: Int[Tensor, "b t"]):
        self.target = target
        known, counts = rows.long().unique(return_counts=True)
        states, weights = self._embedded(known), (counts / counts.sum()).double()
        self.mean = weights @ states
        apart = (states - self.mean) * weights[:, None].sqrt()
        self.components = torch.linalg.eigh(apart.T @ apart).eigenvectors[:, -COMPONENTS:].flip(1)

    def _embedded(self, tokens: Int[Tensor, " n"]) -> Float[Tensor, "n d"]:
        parts = tokens[:, None].split(BATCH_TOKENS)
        return torch.cat([self.target.residuals(part, [EMBED])[0][:, 0] for part in parts]).cpu().double()

    def __call__(self, rows: Int[Tensor, "b t"]) -> Float[Tensor, "b t c"]:
        """Return the covariates of each place; they are 0 where there is no token before."""
        known, places = rows.long().unique(return_inverse=True)
        codes = ((self._embedded(known) - self.mean) @ self.components).float()[places]
        lagged = [pad(codes, (0, 0, lag, 0))[:, : rows.shape[1]] for lag in LAGS]
        mean = _running(codes, None)
        root = torch.arange(rows.shape[1]).sqrt()[:, None] * mean
        return torch.cat([*lagged, *(_running(codes, decay) for decay in DECAYS), mean, root], -1)


class Beyond:
    """Takes out of states what tokens explain: the residuals of least squares within one batch.

    Args:
        tokens, positions: Of each row of the batch; rows of a token that stands there less than 4 times are left out.
        before: See `TokensBefore`.
    """

    def __init__(self, tokens: Int[Tensor, " n"], positions: Int[Tensor, " n"], before: Float[Tensor, "n c"]):
        try:
            self.groups = RowGroups.of(tokens, FEWEST)
        except ValueError as error:
            needed = f"{FEWEST} rows of one token, and a batch of {len(tokens)} has none"
            remedy = "raise data.report_tokens, and data.fit_tokens where it is set"
            raise DataError(f"likeness beyond the tokens needs {needed}: {remedy}") from error
        self.order, self.positions = self.groups.order, positions
        kept = before[:, : len(self.order) // ROWS_PER_COVARIATE]
        self.before = self.groups.without_means(kept, positions, torch.float32)
        gram = (self.before.T @ self.before).double()
        gram.diagonal().add_(RIDGE * gram.diagonal().mean() + torch.finfo(gram.dtype).tiny)
        self.factor = torch.linalg.cholesky(gram)

    def of(self, states: Float[Tensor, "n d"]) -> Float[Tensor, "kept d"]:
        """Return what is left of states, in the order of `order`."""
        rows = self.groups.without_means(states, self.positions)
        weight = torch.cholesky_solve((self.before.T @ rows.float()).double(), self.factor)
        return rows - (self.before @ weight.float()).double()


class TargetBatch(NamedTuple):
    """The target's side of a batch: its inner tokens, those that have others of their row on both sides."""

    rows: Int[Tensor, "b width"]
    whole: dict[int, Float[Tensor, "b t d"]]  # states of all its tokens
    own: dict[int, Float[Tensor, "n d"]]
    left: dict[int, Float[Tensor, "kept d"]]  # of `own`, beyond the tokens
    beyond: Beyond
    surprises: Float[Tensor, "n codes"]  # about the next token, then the one after it
    left_of_surprises: Float[Tensor, "kept codes"]  # beyond the tokens
    parts: Int[Tensor, " n"]


class TargetReader:
    """Reads batches of rows with the target; `fit` are the rows that directions are fitted on."""

    def __init__(self, target: FrozenModel, depths: Sequence[int], fit: Int[Tensor, "rows t"]):
        self.target, self.depths, self.before = target, depths, TokensBefore(target, fit)
        state = torch.zeros(1, target.d_model, device=target.device, dtype=target.dtype)
        logits = target.finish(state).shape[-1]  # which may be more than its tokenizer knows
        self.codes = token_codes(logits).to(target.device)

    def batches(
        self, rows: Int[Tensor, "rows width"], documents: Int[Tensor, "rows t"], layout: Layout
    ) -> Iterator[TargetBatch]:
        """Yield batches of at least `GROUPED_TOKENS` tokens, if there are as many."""
        parts = estimates.numbered_by_part(documents.flatten()).view_as(documents) % PARTS
        count = max(len(rows) * layout.target // GROUPED_TOKENS, 1)
        for piece, owners in counted(zip(rows.tensor_split(count), parts.tensor_split(count), strict=True), "batch"):
            yield self._read(piece, owners, layout)

    def _read(self, rows: Int[Tensor, "b width"], parts: Int[Tensor, "b t"], layout: Layout) -> TargetBatch:
        target, tokens = self.target, layout.target_tokens(rows).long()
        place, last, found = target.device, target.n_layers - 1, []
        for part in tokens.split(max(BATCH_TOKENS // layout.target, 1)):
            *states, end = (state.to(place) for state in target.residuals(part, [*self.depths, last]))
            following = part[:, 2:].flatten().to(place)
            surprising = surprises(inner(end), target.finish, following, self.codes).unflatten(0, (len(part), -1))
            later = [pad(surprising[:, ahead:], (0, 0, 0, ahead)) for ahead in range(AHEAD)]
            found.append([*states, torch.cat(later, -1).flatten(0, 1)])
        *states, surprising = (torch.cat(each) for each in zip(*found, strict=True))
        positions = inner(torch.arange(tokens.shape[1]).expand_as(tokens))
        beyond = Beyond(*(each.to(place) for each in (inner(tokens), positions, inner(self.before(tokens)))))
        whole = dict(zip(self.depths, states, strict=True))
        own = {depth: inner(state) for depth, state in whole.items()}
        left = {depth: beyond.of(state).to(state.dtype) for depth, state in own.items()}
        surprised = surprising, beyond.of(surprising)
        return TargetBatch(rows, whole, own, left, beyond, *surprised, inner(parts).to(place))


def source_states(
    source: Any, batch: TargetBatch, layers: Sequence[int], layout: Layout
) -> dict[int, Float[Tensor, "b t d"]]:
    """Return the source's states of a batch, of all its tokens, by layer, on the target's device."""
    place = batch.surprises.device
    parts = batch.rows.long().split(max(BATCH_TOKENS // layout.target, 1))
    found = zip(*(layout.source_states(source, part, layers) for part in parts), strict=True)
    return {layer: torch.cat([each.to(place) for each in own]) for layer, own in zip(layers, found, strict=True)}


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
    return roots


def _correlation(sums: Float[Tensor, "*b 3"]) -> Float[Tensor, "*b"]:
    """Return Σ ab / √(Σ a² Σ b²), 0 where a or b is constant."""
    product, first, second = sums.unbind(-1)
    size = (first * second).sqrt()
    return torch.where(size > 0, product / size.clamp(min=torch.finfo(size.dtype).tiny), 0.0)


class Foreseen:
    """How well states of a source foresee what a target did not, beside the target's own state, of each layer pair.

    Least squares of both states on the surprises (Frisch & Waugh 1933): the target's own predicts first, and then what
    it leaves of the source's predicts what it leaves of the surprises. No change of basis of either side matters.

    Args:
        states: The moments of the same rows of both sides, which are complete before rows are judged.
    """

    def __init__(self, states: Moments):
        self.states = states
        self._across: dict[tuple[int, int], Tensor] = {}  # Σ x s' by side and layer, of states x and surprises s
        self._surprises = torch.zeros(())  # Σ s
        self._maps: list[tuple[Tensor, Tensor, Tensor]] = []
        self._sums = [torch.zeros(PARTS, AHEAD, 3, dtype=torch.float64) for _ in states.pairs]

    def fit(self, source: ByLayer, target: ByLayer, surprises: Float[Tensor, "n codes"]) -> None:
        """Add rows to fit on; for `surprises` see `TargetBatch`."""
        surprised = surprises.double()
        self._surprises = self._surprises + surprised.sum(0)
        for side, states in enumerate((source, target)):
            for layer, rows in states.items():
                self._across[side, layer] = self._across.get((side, layer), 0) + rows.double().T @ surprised

    def judge(
        self,
        source: ByLayer,
        target: ByLayer,
        surprises: Float[Tensor, "n codes"],
        parts: Int[Tensor, " n"],
        whitened: Sequence[tuple[Float[Tensor, "d a"], Float[Tensor, "e b"]]],
    ) -> None:
        """Add held-out rows, given the part of each, below `PARTS`, and directions of unit variance of both sides."""
        self._maps = self._maps or [self._fitted(place, *both) for place, both in enumerate(whitened)]
        belongs = one_hot(parts, PARTS).double().T
        for pair, maps, sums in zip(self.states.pairs, self._maps, self._sums, strict=True):
            both = self.states.of(pair)
            x, y = source[pair[0]].double() - both.mean_x, target[pair[1]].double() - both.mean_y
            found = (x @ maps[0] - y @ maps[1]).unflatten(1, (AHEAD, -1))
            actual = (surprises - self._surprises / both.n - y @ maps[2]).unflatten(1, (AHEAD, -1))
            each = torch.stack([(found * actual).sum(2), found.square().sum(2), actual.square().sum(2)], 2)
            sums += torch.einsum("pn,nas->pas", belongs, each).cpu()

    def _fitted(self, place: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the maps by which both sides predict beside the target's own state, and the map of that state."""
        pair = self.states.pairs[place]
        both = self.states.of(pair)
        means = enumerate((both.mean_x, both.mean_y))
        mine, own = (self._across[side, pair[side]] - torch.outer(mean, self._surprises) for side, mean in means)
        across, by_source, by_target = (each / (both.n - 1) for each in (x.T @ both.xy @ y, x.T @ mine, y.T @ own))
        left = whitening(torch.eye(len(across)).to(across) - across @ across.T, LEFT)
        more = left @ (left.T @ (by_source - across @ by_target))
        return x @ more, y @ (across.T @ more), y @ by_target

    def result(self, documents: int) -> list[Estimate]:
        """Return the correlation of surprises with what was foreseen of them, the largest over tokens ahead, by pair.

        Its interval leaves out a tenth of the documents at a time; fewer than `FEWEST_GROUPS` have (-∞, ∞).
        """
        found = []
        for sums in self._sums:
            there = sums[sums[:, 0, 2] > 0]
            value = _correlation(there.sum(0))
            left = (there.sum(0) - there)[: len(there) if documents >= FEWEST_GROUPS else 0]
            found.append(jackknife(value, _correlation(left))[int(value.argmax())])
        return found


class LikenessSums:
    """Sums for all layer pairs: moments of the rows to fit on, then sums over the report's.

    Args:
        roots: See `output_roots`.
    """

    def __init__(self, pairs: Sequence[LayerPair], roots: Mapping[int, Tensor]):
        self.pairs, self.roots = list(pairs), roots
        self.plain, self.beyond = Moments(pairs), Moments(pairs)
        self.foresight, self.future = Foreseen(self.plain), Foreseen(self.beyond)
        self.used: list[tuple[int, int]] = []

    def fit(self, batch: TargetBatch, source: dict[int, Tensor]) -> None:
        self.plain.update(source, batch.own)
        left = {layer: batch.beyond.of(each) for layer, each in source.items()}
        self.beyond.update(left, batch.left)
        self.foresight.fit(source, batch.own, batch.surprises)
        self.future.fit(left, batch.left, batch.left_of_surprises)

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
        found: dict[str, list[DirectionSums]] = {}
        for suffix, moments, whitened in (("", self.plain, self._whitened), ("_beyond", self.beyond, self._rest)):
            pairs = zip(self.pairs, whitened, strict=True)
            canonical = [(canonical_directions(moments.of(pair), *own), pair[1]) for pair, own in pairs]
            found[suffix] = [DirectionSums(directions, self.roots[depth]) for directions, depth in canonical]
        return found

    def judge(self, batch: TargetBatch, source: dict[int, Tensor]) -> None:
        left = {layer: batch.beyond.of(each) for layer, each in source.items()}
        parts = batch.parts[batch.beyond.order]
        for pair, plain, beyond in zip(self.pairs, *self._judges.values(), strict=True):
            plain.judge(source[pair[0]], batch.own[pair[1]], batch.parts)
            beyond.judge(left[pair[0]], batch.left[pair[1]], parts)
        self.foresight.judge(source, batch.own, batch.surprises, batch.parts, self._whitened)
        self.future.judge(left, batch.left, batch.left_of_surprises, parts, self._rest)
        self.used.append((len(parts), len(batch.parts)))

    def result(self, documents: int) -> Likeness:
        """Return all measures of a report of this many documents."""
        found: dict[str, list[Estimate]] = {}
        for suffix, judges in self._judges.items():
            for judge in judges:
                for name, estimate in judge.compute(documents).items():
                    found.setdefault(f"{name}{suffix}", []).append(estimate)
        for pair, (x, y) in zip(self.pairs, self._whitened, strict=True):
            left = self.beyond.of(pair)
            for name, own, rest in (("context_back", x, left.xx), ("context", y, left.yy)):
                share = (own * (rest / (left.n - 1) @ own)).sum() / max(own.shape[1], 1)  # of their variance, the mean
                found.setdefault(name, []).append(interval_around(share, 0.0))
        found |= {"foresight": self.foresight.result(documents), "future": self.future.result(documents)}
        parts = {name: zip(*each, strict=True) for name, each in found.items()}
        kept, rows = map(sum, zip(*self.used, strict=True))
        return Likeness(
            {name: Estimate(*(torch.stack(p).cpu() for p in own)) for name, own in parts.items()}, kept / rows
        )


@torch.no_grad()
def likeness_of(
    source: Any,
    target: FrozenModel,
    layer_pairs: Sequence[LayerPair],
    fit: TokenRows,
    report: TokenRows,
    seen: Callable[[Tensor, dict[int, Tensor], dict[int, Tensor]], None] = lambda rows, mine, theirs: None,
) -> Likeness:
    """Compare the states of two models at these layer pairs, in one pass of each model over the rows.

    The first token of each row is left out, as its state has no context and is often massive, and the last, which has
    no next.

    Args:
        source: A `FrozenModel`, or anything with `residuals(tokens, layers)`, which gives states (b, t, d).
        fit: Rows that directions are fitted on; 2^16 tokens of them are read.
        report: Rows of other documents, which all measures are of; about as many of them are read.
        seen: Is given each batch of the rows to fit on, and the states (b, t, _) of source and target by layer.

    Raises:
        DataError: No token occurs in 4 rows of a batch.
    """
    layers, depths = (sorted({pair[side] for pair in layer_pairs}) for side in (0, 1))
    fit_rows, fit_documents = (each[: max(TOKENS // fit.context, 1)] for each in (fit.tokens, fit.documents))
    spread = slice(None, None, max(-(-report.documents.numel() // TOKENS), 1))  # over all documents
    report_rows, report_documents = report.tokens[spread], report.documents[spread]
    fit_tokens = fit.layout.target_tokens(fit_rows)
    reader = TargetReader(target, depths, fit_tokens)
    sums = LikenessSums(layer_pairs, output_roots(target, depths, fit_tokens))
    for batch in reader.batches(fit_rows, fit_documents, fit.layout):
        states = source_states(source, batch, layers, fit.layout)
        seen(batch.rows, states, batch.whole)
        sums.fit(batch, {layer: inner(each) for layer, each in states.items()})
        del states
    for batch in reader.batches(report_rows, report_documents, report.layout):
        states = source_states(source, batch, layers, report.layout)
        sums.judge(batch, {layer: inner(each) for layer, each in states.items()})
    return sums.result(len(report_documents.unique()))
