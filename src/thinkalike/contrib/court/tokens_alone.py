"""What tokens alone explain of states, and what networks share that were never trained: the nulls of `likeness`.

`TargetReader` reads rows with the target, and gives of each batch its states as they are and *beyond the tokens*.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.nn.functional import pad

from thinkalike.contrib.court.regression import Regression, RegressionMoments
from thinkalike.data.corpus import Layout, TokenRows
from thinkalike.errors import DataError
from thinkalike.evaluation.language import BATCH_TOKENS
from thinkalike.measures.closed_forms import halves_of
from thinkalike.measures.estimates import (
    FEWEST,
    FEWEST_GROUPS,
    PARTS,
    Estimate,
    RowGroups,
    has_interval,
    in_halves,
    jackknife,
    massive,
    numbered_by_part,
    seeded,
)  # fmt: skip
from thinkalike.measures.losses import Finish, logits_of, rows_of_logits
from thinkalike.measures.ridge import share_explained
from thinkalike.models.families import EMBED
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.load import twin
from thinkalike.processes import counted

GROUPED_TOKENS = 2**14  # of a batch, in which the tokens' part is taken out; the last batch has more
CODES = 64  # numbers that describe a token
AHEAD = 8  # how many of the next tokens a source may know
COMPONENTS = 64  # of the embedding, by which a bag of tokens is described
LAGS = (1, 2, 3, 4, 5, 6)  # of the tokens before that are taken one by one
DECAYS = (0.5, 0.7, 0.85, 0.95)  # of running means of the tokens before, beside the mean of all
BAGS = (0.5, 0.8, 0.95, None)  # of running means of whole embeddings
RANK, PLACES = 64, 8  # of what token and place decide together, and how many functions of places are found
BENT = 128  # random nonlinear functions of a token's embedding, beside its components
ROWS_PER_COVARIATE = 8  # at least
LEFT = 1e-6  # of the variance of a state or a direction; with less there is nothing left of it
RIDGE, LOW_RIDGE = 1e-6, 1e-2  # of the mean variance: of covariates, of what token and place decide together
EARLY_ROWS = 4  # on which it is tried whether states move with later tokens
RADIUS = 0.2  # of the weights of recurrent networks; others between 0 and 1 share less
MORE = (2.0, 2.0, *(1.25 for _ in BAGS))  # times what a twin, a recurrent network and bags share, above which none was


def token_codes(vocabulary: int, numbers: int = CODES, seed: int = 0) -> Float[Tensor, "v c"]:
    """Return a random standard normal code for every token of a vocabulary, on the CPU.

    They tell tokens apart with a fraction of the numbers of one-hot vectors (Johnson &
    Lindenstrauss 1984).
    """
    return torch.randn(vocabulary, numbers, generator=torch.Generator().manual_seed(int(seed)))


@torch.no_grad()
def surprises(
    states: Float[Tensor, "n d"],
    finish: Finish,
    targets: Int[Tensor, " n"],
    codes: Float[Tensor, "v c"],
    chunk: int | None = None,
) -> Float[Tensor, "n c"]:
    """Return for each token what its model did not foresee: code(next) - Σ_v p(v) code(v).

    p = softmax(finish(states)) is the model's own distribution. If p is right, the mean is 0
    whatever came before, so nothing that is made of earlier tokens predicts it. A leak of the next
    token as random vectors of d numbers is found up to about d tokens. For the codes see
    `token_codes`.
    """
    surprising, chunk = [], chunk or rows_of_logits(states, finish)
    for part, following in zip(states.split(chunk), targets.split(chunk), strict=True):
        foreseen = logits_of(part, finish).softmax(-1).to(codes.dtype) @ codes
        surprising.append(codes[following] - foreseen)
    return torch.cat(surprising)


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
        states, weights = self.embedded(known), (counts / counts.sum()).double()
        self.mean = weights @ states
        apart = (states - self.mean) * weights[:, None].sqrt()
        self.size = apart.square().sum().sqrt()
        self.components = torch.linalg.eigh(apart.T @ apart).eigenvectors[:, -COMPONENTS:].flip(1)

    def embedded(self, tokens: Int[Tensor, " n"]) -> Float[Tensor, "n d"]:
        """Return the embedding of each token in the first place."""
        parts = tokens[:, None].split(BATCH_TOKENS)
        return torch.cat([self.target.residuals(part, [EMBED])[0][:, 0] for part in parts]).cpu().double()

    def codes(self, rows: Int[Tensor, "b t"]) -> Float[Tensor, "b t k"]:
        """Return the components of the embedding of each token."""
        known, places = rows.long().unique(return_inverse=True)
        return ((self.embedded(known) - self.mean) @ self.components).float()[places]

    def __call__(self, rows: Int[Tensor, "b t"]) -> Float[Tensor, "b t c"]:
        """Return the covariates of each place; they are 0 where there is no token before."""
        codes = self.codes(rows)
        lagged = [pad(codes, (0, 0, lag, 0))[:, : rows.shape[1]] for lag in LAGS]
        mean = _running(codes, None)
        root = torch.arange(rows.shape[1]).sqrt()[:, None] * mean
        return torch.cat([*lagged, *(_running(codes, decay) for decay in DECAYS), mean, root], -1)


class TokenAtPlace:
    """Predicts what a token and its place decide together of a target's states, beside the sum of what each decides.

    Codes of the token, components of its embedding and random functions tanh(a'x) of these, times functions of the
    place t, 1/(t+1), 1/√(t+1), t/T and components of the mean states by place, predict by ridge regression the states
    at all depths, less the means of their token and of their place. The `RANK` directions in which predictions vary
    most are kept. The regression is of each half of `rows`: a row to fit on gets what the other half predicts, any
    other row the mean of both.
    """

    def __init__(self, before: TokensBefore, depths: Sequence[int], rows: Int[Tensor, "b t"]):
        self.before, self.depths = before, depths
        some = rows[: max(GROUPED_TOKENS // rows.shape[1], 1)].long()
        means = torch.cat([each - each.mean(0) for each in (own.mean(0) for own in self._states(some))], 1)
        place = torch.arange(1, rows.shape[1] + 1, dtype=means.dtype)[:, None]
        found = torch.linalg.svd(means, full_matrices=False).U[:, :PLACES] * len(means) ** 0.5
        self.places = torch.cat([1 / place, place.rsqrt(), place / len(place), found], 1)
        codes = before.codes(some)
        self.bend = torch.randn(codes.shape[-1], BENT, generator=seeded(0)) / (2 * codes.norm(dim=-1).mean())
        self.maps = torch.zeros(3, self._factors(some[:1]).shape[-1], 0)
        try:
            halves = [self._products(half) for half in rows.tensor_split(2)]
        except DataError:  # too few tokens to know anything of their places
            return
        xx, xy = (left + right for left, right in zip(*halves, strict=True))
        first, second, whole = (_ridge(*each) for each in (*halves, (xx, xy)))
        top = torch.linalg.eigh(whole.T @ xx @ whole).eigenvectors[:, -RANK:].flip(1)
        self.maps = torch.stack([second, first, (first + second) / 2]).matmul(top).float()

    def __call__(self, rows: Int[Tensor, "b t"], half: Int[Tensor, " b"]) -> Float[Tensor, "b t k"]:
        """Return the predictions for rows of the first (0) or the second half (1) of those to fit on, or others (2)."""
        factors = self._factors(rows)
        return torch.stack([factors @ each for each in self.maps])[half, torch.arange(len(rows))]

    def _factors(self, rows: Int[Tensor, "b t"]) -> Float[Tensor, "b t p"]:
        codes = self.before.codes(rows)
        codes = torch.cat([codes, (codes @ self.bend).tanh()], -1)
        return (codes[..., None, :] * self.places[: rows.shape[1], :, None]).flatten(2)

    def _states(self, rows: Int[Tensor, "b t"]) -> list[Float[Tensor, "b t d"]]:
        pieces = rows.split(max(BATCH_TOKENS // rows.shape[1], 1))
        found = zip(*(self.before.target.residuals(piece, self.depths) for piece in pieces), strict=True)
        return [torch.cat([each.float().cpu() for each in own]) for own in found]

    def _products(self, rows: Int[Tensor, "b t"]) -> tuple[Float[Tensor, "p p"], Float[Tensor, "p q"]]:
        """Return X'X and X'Y of regressors and states, of each depth in units of its spread, on one batch of rows."""
        some = rows[:: max(rows.numel() // GROUPED_TOKENS, 1)].long()
        groups, positions = groups_of(inner(some)), inner(torch.arange(rows.shape[1]).expand_as(some))
        x = groups.without_means(inner(self._factors(some)), positions, torch.float32)
        left = [groups.without_means(inner(own), positions, torch.float32) for own in self._states(some)]
        products = [x.T @ (y / y.std().clamp(min=torch.finfo(y.dtype).tiny)) for y in left]
        return (x.T @ x).double(), torch.cat(products, 1).double()


def _ridge(xx: Float[Tensor, "p p"], xy: Float[Tensor, "p q"]) -> Float[Tensor, "p q"]:
    least = LOW_RIDGE * xx.diagonal().mean() + torch.finfo(xx.dtype).tiny  # more than 0 where no covariate varies
    damped = xx + least * torch.eye(len(xx)).to(xx)
    return torch.cholesky_solve(xy, torch.linalg.cholesky(damped))


def groups_of(tokens: Int[Tensor, " n"]) -> RowGroups:
    """Return the rows of each token; a DataError if none stands there four times."""
    try:
        return RowGroups.of(tokens, FEWEST)
    except ValueError as error:
        needed = f"{FEWEST} rows of one token, and a batch of {len(tokens)} has none"
        remedy = "raise data.report_tokens, and data.fit_tokens where it is set"
        raise DataError(f"likeness beyond the tokens needs {needed}: {remedy}") from error


class Beyond:
    """Takes out of states what tokens explain: the residuals of least squares within one batch.

    Args:
        tokens, positions: Of each row of the batch; rows of a token that stands there less than 4 times are left out.
        before: See `TokensBefore`, and `TokenAtPlace`.
    """

    def __init__(self, tokens: Int[Tensor, " n"], positions: Int[Tensor, " n"], before: Float[Tensor, "n c"]):
        self.groups = groups_of(tokens)
        self.order, self.positions = self.groups.order, positions
        kept = before[:, : len(self.order) // ROWS_PER_COVARIATE]
        wide = torch.float64 if len(tokens) < GROUPED_TOKENS else torch.float32  # few rows make singular products
        self.before = self.groups.without_means(kept, positions, wide)
        gram = (self.before.T @ self.before).double()
        gram.diagonal().add_(RIDGE * gram.diagonal().mean() + torch.finfo(gram.dtype).tiny)
        self.factor = torch.linalg.cholesky(gram)

    def of(self, states: Float[Tensor, "n d"]) -> Float[Tensor, "kept d"]:
        """Return what is left of states, in the order of `order`: 0 where covariates leave rounding alone."""
        rows = self.groups.without_means(states, self.positions)
        weight = torch.cholesky_solve((self.before.T @ rows.to(self.before)).double(), self.factor)
        left = rows - (self.before @ weight.to(self.before)).double()
        return left.masked_fill_(left.square().sum(1, True) <= LEFT * rows.square().sum(1, True), 0)


class TargetBatch(NamedTuple):
    """The target's side of a batch: its inner tokens, those that have others of their row on both sides."""

    target: FrozenModel
    rows: Int[Tensor, "b width"]
    layout: Layout  # of `rows`
    tokens: Int[Tensor, "b t"]  # the target's
    whole: dict[int, Float[Tensor, "b t d"]]  # states of all its tokens
    own: dict[int, Float[Tensor, "n d"]]
    left: dict[int, Float[Tensor, "kept d"]]  # of `own`, beyond the tokens
    beyond: Any  # None before `beside`
    surprises: Float[Tensor, "n codes"]  # about the next token, then those after it
    parts: Int[Tensor, " n"]  # of the documents, below `PARTS`; of rows to fit on, their halves
    halves: Int[Tensor, " b"]  # see `TokenAtPlace`
    kept: Any = slice(None)  # which inner tokens the n are

    @property
    def alone(self) -> TargetBatch:
        """The batch for a source that reads the target's tokens."""
        return self._replace(rows=self.tokens, layout=Layout(self.tokens.shape[1]))

    def inner(self, states: Float[Tensor, "b t d"]) -> Float[Tensor, "n d"]:
        return inner(states)[self.kept]


class TargetReader:
    """Reads batches of rows with the target; `fit` are the rows that directions are fitted on."""

    def __init__(self, target: FrozenModel, depths: Sequence[int], fit: Int[Tensor, "rows t"]):
        self.target, self.depths, self.before = target, depths, TokensBefore(target, fit)
        self.at_place = TokenAtPlace(self.before, depths, fit)
        state = torch.zeros(1, target.d_model, device=target.device, dtype=target.dtype)
        logits = target.finish(state).shape[-1]  # which may be more than its tokenizer knows
        self.codes = token_codes(logits).to(target.device)

    def batches(self, rows: TokenRows, is_fit: bool = False) -> Iterator[TargetBatch]:
        """Yield batches of at least `GROUPED_TOKENS` tokens, if there are as many; `is_fit`: of rows to fit on."""
        parts = (halves_of if is_fit else numbered_by_part)(rows.documents.flatten()).view_as(rows.documents) % PARTS
        count = max(rows.documents.numel() // GROUPED_TOKENS, 1)
        half = (torch.arange(len(rows)) >= -(-len(rows) // 2)).long() if is_fit else torch.full((len(rows),), 2)
        pieces = (each.tensor_split(count) for each in (rows.tokens, parts, half))
        for piece, owners, halves in counted(zip(*pieces, strict=True), "batch"):
            yield self._read(piece, rows.layout, owners, halves)

    def _read(
        self, rows: Int[Tensor, "b width"], layout: Layout, parts: Int[Tensor, "b t"], halves: Int[Tensor, " b"]
    ) -> TargetBatch:
        target, tokens = self.target, layout.target_tokens(rows).long()
        place, last, found = target.device, target.n_layers - 1, []
        for part in tokens.split(max(BATCH_TOKENS // layout.target, 1)):
            *states, end = (state.to(place) for state in target.residuals(part, [*self.depths, last]))
            following = part[:, 2:].flatten().to(place)
            surprising = surprises(inner(end), target.finish, following, self.codes).unflatten(0, (len(part), -1))
            length = surprising.shape[1]
            later = [pad(surprising[:, ahead:], (0, 0, 0, min(ahead, length))) for ahead in range(AHEAD)]
            found.append([*states, torch.cat(later, -1).flatten(0, 1)])
        *states, surprising = (torch.cat(each) for each in zip(*found, strict=True))
        whole = dict(zip(self.depths, states, strict=True))
        own = {depth: inner(state) for depth, state in whole.items()}
        return TargetBatch(target, rows, layout, tokens, whole, own, {}, None, surprising, inner(parts), halves)

    def beside(self, batch: TargetBatch, source: dict[int, Float[Tensor, "b t d"]]) -> TargetBatch:
        """Return a batch with what is left of the target's states beyond the tokens.

        The few tokens whose long states, in the target or the source, decide some layer are left
        out.
        """
        found = massive([*map(inner, source.values()), *batch.own.values()])
        kept = slice(None) if found is None else ~found
        tokens, place = batch.tokens, self.target.device
        places = torch.arange(tokens.shape[1]).expand_as(tokens)
        before = torch.cat([self.before(tokens), self.at_place(tokens, batch.halves)], -1)
        before, known, positions = (inner(each)[kept] for each in (before, tokens, places))
        half = batch.parts[kept]
        apart = in_halves(known, half)
        often, counts = apart.unique(return_counts=True)
        in_either = len((often[counts >= FEWEST] % 2).unique()) == 2
        if bool((batch.halves < 2).all()) and in_either:  # of rows to fit on: a half judges the other's maps
            known, positions = apart, in_halves(positions, half)
            before = torch.stack([before * (1 - half)[:, None], before * half[:, None]], -1).flatten(1)
        beyond = Beyond(*(each.to(place) for each in (known, positions, before)))
        own = {depth: state[kept] for depth, state in batch.own.items()}
        left = {depth: beyond.of(state).to(state.dtype) for depth, state in own.items()}
        about = batch.surprises[kept]
        return batch._replace(own=own, left=left, beyond=beyond, surprises=about, parts=half.to(place), kept=kept)


def source_states(source: Any, batch: TargetBatch, layers: Sequence[int]) -> dict[int, Float[Tensor, "b t d"]]:
    """Return the source's states of a batch, of all its tokens, by layer, on the target's device."""
    layout = batch.layout
    if source is batch.target and not layout.source and {*layers} <= batch.whole.keys():
        return {layer: batch.whole[layer] for layer in layers}
    place = batch.surprises.device
    parts = batch.rows.long().split(max(BATCH_TOKENS // layout.target, 1))
    found = zip(*(layout.source_states(source, part, layers) for part in parts), strict=True)
    return {layer: torch.cat([each.to(place) for each in own]) for layer, own in zip(layers, found, strict=True)}


def _with_others_later(tokens: Int[Tensor, "b t"], half: int) -> Int[Tensor, "b t"]:
    """Return rows whose tokens from the place `half` on are each replaced by a different token."""
    known, numbers = tokens.unique(return_inverse=True)
    replaced = known[(numbers + 1) % len(known)]
    return torch.cat([tokens[:, :half], replaced[:, half:]], 1)


@torch.no_grad()
def later_shares(source: Any, rows: TokenRows, layers: Sequence[int]) -> dict[int, float]:
    """Return by layer the share of a source's states that moves where later tokens are replaced.

    The states are those of the first half of each row, and every token of the second half is
    replaced. The share is the largest over places of the mean squared movement, less that of a
    second run on the same tokens, beside the median squared distance of states from their mean;
    exactly 0 for a causal source that draws nothing.
    """
    tokens = rows.layout.source_tokens(rows.tokens[:EARLY_ROWS]).long()
    half = tokens.shape[1] // 2
    inputs = tokens, tokens, _with_others_later(tokens, half)
    runs = [source.residuals(each, layers) for each in inputs]
    shares = {}
    for layer, first, again, other in zip(layers, *runs, strict=True):
        states, repeated, moved = (each[:, :half].double() for each in (first, again, other))
        size = (states - states.mean((0, 1))).square().sum(-1).median()
        movement = (moved - states).square().sum(-1).mean(0)
        by_chance = (repeated - states).square().sum(-1).mean(0)
        share = (movement - by_chance).max() / size.clamp(min=torch.finfo(size.dtype).tiny)
        shares[layer] = max(float(share), 0.0)
    return shares


class Recurrent:
    """A recurrent network of random weights on the embedding e of tokens without place: h ← tanh(W h + U e + b)."""

    def __init__(self, before: TokensBefore, width: int, seed: int):
        self.before, generator = before, seeded(seed)
        self.onward = torch.randn(width, width, generator=generator) * RADIUS / width**0.5
        self.inward = torch.randn(len(before.mean), width, generator=generator).double() / before.size
        self.bias = torch.randn(width, generator=generator)

    def residuals(self, rows: Int[Tensor, "b t"], layers: Sequence[int]) -> list[Float[Tensor, "b t d"]]:
        """Return the states, which are those of every layer."""
        known, places = rows.unique(return_inverse=True)
        added = ((self.before.embedded(known) - self.before.mean) @ self.inward).float()[places] + self.bias
        state, found = torch.zeros_like(added[:, 0]), []
        for each in added.unbind(1):
            state = (state @ self.onward + each).tanh()
            found.append(state)
        return [torch.stack(found, 1)] * len(layers)


class Bag:
    """A running mean of the whole embedding of the tokens before: context without a network."""

    def __init__(self, before: TokensBefore, decay: float | None):
        self.before, self.decay = before, decay

    def residuals(self, rows: Int[Tensor, "b t"], layers: Sequence[int]) -> list[Float[Tensor, "b t d"]]:
        """Return the means, which are those of every layer."""
        known, places = rows.unique(return_inverse=True)
        return [_running(self.before.embedded(known).float()[places], self.decay)] * len(layers)


class Judged:
    """What a regression misses of held-out rows: sums of squares by part of their documents."""

    def __init__(self, fit: Regression):
        self.fit = fit
        self._sums = torch.zeros(PARTS, 2, fit.weight.shape[1]).to(fit.weight)
        self._rows = torch.zeros(PARTS, dtype=torch.long)

    @torch.no_grad()
    def add(self, x: Float[Tensor, "n d"], y: Float[Tensor, "n e"], parts: Int[Tensor, " n"]) -> None:
        """Add rows, given the part, below `PARTS`, of each."""
        belongs = torch.nn.functional.one_hot(parts, PARTS).to(self._sums).T
        whole = y.double() - self.fit.mean_y
        whole = whole if self.fit.read is None else whole @ self.fit.read
        left = whole - (x.double() - self.fit.mean_x) @ self.fit.weight
        self._sums += torch.stack([belongs @ each.square() for each in (left, whole)], 1)
        self._rows += parts.cpu().bincount(minlength=PARTS)

    def r2(self, worth: float | int, whole: bool = False) -> Float[Tensor, " r *k"]:
        """Return R² of all rows, and without each part of them, of each component or of the `whole`.

        There are no replicates of documents worth fewer than `FEWEST_GROUPS` of equal length.
        """
        sums = self._sums[self._rows > 0]
        sums = sums.sum(-1) if whole else sums
        left = (sums.sum(0) - sums)[: len(sums) if has_interval(worth, FEWEST_GROUPS) else 0]
        errors, varied = torch.cat([sums.sum(0)[None], left]).unbind(1)
        return share_explained(errors, varied)


class Untrained:
    """What networks that were never trained share with the target beyond the tokens, on the rows of a comparison.

    They are the target's architecture with its own embedding, at each of its depths, a recurrent network of the
    source's width, as wider states hold more functions of the last tokens, and bags of the tokens before.
    """

    def __init__(self, before: TokensBefore, depths: Sequence[int], width: int, roots: Mapping[int, Tensor]):
        self.networks = [twin(before.target, 0), Recurrent(before, width, 0), *(Bag(before, each) for each in BAGS)]
        self.depths, self.roots = depths, roots
        layers = [depths, *([depths[0]] * len(depths) for _ in self.networks[1:])]
        self.moments = [RegressionMoments(zip(own, depths, strict=True), both=False) for own in layers]

    def _left(self, network: Any, moments: RegressionMoments, batch: TargetBatch) -> dict[int, Tensor]:
        states = source_states(network, batch.alone, sorted({layer for layer, _ in moments.pairs}))
        return {layer: batch.beyond.of(batch.inner(each)) for layer, each in states.items()}

    def fit(self, batch: TargetBatch) -> None:
        for network, moments in zip(self.networks, self.moments, strict=True):
            moments.update(self._left(network, moments, batch), batch.left, batch.parts[batch.beyond.order])

    @cached_property
    def _judges(self) -> list[list[Judged]]:
        """The maps of each network, whose moments make room for them."""
        found = []
        for own in self.moments:
            found.append([Judged(own.ridge(pair, read=self.roots[pair[1]])) for pair in own.pairs])
            own.halves, own.bases = [], {}
        return found

    def judge(self, batch: TargetBatch) -> None:
        parts = batch.parts[batch.beyond.order]
        for network, moments, judges in zip(self.networks, self.moments, self._judges, strict=True):
            left = self._left(network, moments, batch)
            for (layer, depth), each in zip(moments.pairs, judges, strict=True):
                each.add(left[layer], batch.left[depth], parts)

    def beside(self, source: Judged, depth: int, worth: float | int) -> tuple[Estimate, Estimate]:
        """Return the most of `r2_output` that a network has, and by how much a source has more than `MORE` times any.

        The difference is paired over documents.
        """
        place = self.depths.index(depth)
        own, *known = (each.r2(worth, whole=True) for each in (source, *(each[place] for each in self._judges)))
        limits = [more * each.clamp(min=0) for more, each in zip(MORE, known, strict=True)]
        most, limit = (max(every, key=lambda each: float(each[0])) for every in (known, limits))
        return tuple(jackknife(each[0], each[1:]) for each in (most, own - limit))  # type: ignore[return-value]
