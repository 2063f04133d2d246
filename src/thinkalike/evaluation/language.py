"""Losses of stitched models on text, summed by document, all on the same tokens; and sources that know only tokens.

`TokenMeans` knows the current token, `BigramMeans` the current and the last one. The penalty of a stitch from them is
that of the tokens alone, without any context.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from thinkalike.data.corpus import Layout, TokenRows
from thinkalike.measures.bootstrap import bootstrap_interval, sum_by_document
from thinkalike.measures.estimates import Estimate
from thinkalike.measures.halved_moments import HalvedMoments, halves_of
from thinkalike.measures.losses import CHUNK, compare_outputs, token_loss
from thinkalike.measures.moments import LayerPair
from thinkalike.measures.sample_size import effective_number
from thinkalike.memory import Budget, LiveBytes
from thinkalike.models.frozen import FrozenModel
from thinkalike.processes import counted
from thinkalike.states.source import StateSource

BATCH_TOKENS = 8192  # of a report, that a model reads at once
# the same on a CPU, whose caches hold the activations of so many: a sixth less time than with 8192
CPU_BATCH_TOKENS = 2048
COPIES = 6  # of the states of a layer pair: mapped and last ones of two kinds of maps, and two of parts of them
MOST_TOKENS = 2**18  # that means of tokens are taken over

Maps = Sequence[Callable[[Tensor], Tensor]]  # one map from source states to target states for every layer pair
Codes = Callable[[Tensor, int], Tensor]  # rows (b, t) and the size of the vocabulary to numbers (b, t)


def tokens_at_once(device: torch.device) -> int:
    """Return how many tokens a model on a device reads together where there is enough memory."""
    return min(CPU_BATCH_TOKENS, BATCH_TOKENS) if device.type == "cpu" else BATCH_TOKENS


def rows_at_once(rows: TokenRows, tokens: int | None = None) -> int:
    """Return how many of the rows are read together, of this many tokens; None: `BATCH_TOKENS`."""
    return max(min((tokens or BATCH_TOKENS) // rows.context, len(rows)), 1)


def halved(most: int, fits: Callable[[int], bool]) -> int:
    """Return the first of most, most / 2, ... down to 1 that fits into memory; 1 if none does."""
    while most > 1 and not fits(most):
        most //= 2
    return most


def ends_of(column: str, estimate: Estimate) -> dict[str, Any]:
    """Return a column of values, the columns `_low` and `_high` of the ends of their intervals, and `_uncorrected`."""
    parts = zip(("", "_low", "_high", "_uncorrected"), (*estimate, estimate.uncorrected), strict=True)
    return {f"{column}{end}": values.tolist() for end, values in parts if values is not None}


def with_ends(
    column: str, sums: Shaped[Tensor, "*b documents"], counts: Shaped[Tensor, " documents"]
) -> dict[str, Any]:
    """Return a column of means per token with their 95 % intervals, see `bootstrap_interval` and `ends_of`."""
    return ends_of(column, bootstrap_interval(sums.double(), counts.double()))


def document_numbers(counts: Shaped[Tensor, " documents"]) -> dict[str, float]:
    """Return the number of documents that have tokens, and their `effective_number`."""
    return {"documents": float((counts > 0).sum()), "effective_documents": effective_number(counts)}


def next_token_losses(
    model: FrozenModel, states: Sequence[Float[Tensor, "b t d"]], tokens: Int[Tensor, "b t"]
) -> list[Float[Tensor, "b u"]]:
    """Return the cross-entropy in nats of tokens 1.. (u = t - 1), given each of several last residuals."""
    following = tokens[:, 1:].to(model.device)
    joined = torch.stack([state[:, :-1] for state in states])
    losses = token_loss(joined.flatten(0, 2), model.finish, following.repeat(len(states), 1, 1).flatten())
    return list(losses.view(len(states), *following.shape))


class DocumentSums(dict[str, Tensor]):
    """Sums over the tokens of each document by name, (*b, documents) in float64; tokens of document -1 are left out."""

    def __init__(self, documents: Int[Tensor, "rows t"]):
        super().__init__()
        self.count = int(documents.max()) + 1

    def add(self, documents: Int[Tensor, " n"], values: Mapping[str, Float[Tensor, "*b n"]]) -> None:
        """Add the values of some tokens, given the document of each."""
        kept = documents >= 0
        for name, each in values.items():
            summed = sum_by_document(each.cpu()[..., kept], documents[kept], self.count)
            self[name] = self[name] + summed if name in self else summed


class Reader(NamedTuple):
    """Maps, one for every layer pair, of the states of another model than the source."""

    model: Any  # has `residuals`, as a `FrozenModel` has
    maps: Maps
    instead: str  # "source" or "target": whose tokens and layers are read


def states_of_both(
    source: Any,
    target: FrozenModel,
    rows: Int[Tensor, "b width"],
    layers: Sequence[Any],
    depths: Sequence[Any],
    layout: Layout,
) -> tuple[list[Tensor], list[Tensor]]:
    """Return states of the source (anything with `residuals`) and of the target, from one pass of each model."""
    tokens = layout.target_tokens(rows)
    if source is target and not layout.source:
        states = target.residuals(tokens, [*layers, *depths])
        return states[: len(layers)], states[len(layers) :]
    return source.residuals(layout.source_tokens(rows), layers), target.residuals(tokens, depths)


def last_states(target: FrozenModel, entering: Sequence[tuple[int, Tensor]]) -> list[Tensor]:
    """Run states, each (b, t, d) after a block m of the target, to its end: every block once for all of them."""
    order = sorted(range(len(entering)), key=lambda i: entering[i][0])
    carried: list[Tensor] = []
    depth = 0
    for layer, state in (entering[i] for i in order):
        if carried:
            carried = [*target.advance(torch.cat(carried), depth, layer + 1).chunk(len(carried))]
        carried.append(state.to(target.device, target.dtype))
        depth = layer + 1
    finished = target.advance(torch.cat(carried), depth, target.n_layers).chunk(len(carried))
    return [finished[order.index(i)] for i in range(len(entering))]


def states_onwards(target: FrozenModel, entering: Sequence[tuple[int, Tensor]]) -> list[list[Tensor]]:
    """Return the states of `last_states` after every block: those that enter, then after blocks m + 1 to the last."""
    onwards = [[state.to(target.device, target.dtype)] for _, state in entering]
    for block in range(min(layer for layer, _ in entering) + 1, target.n_layers):
        inside = [states for (layer, _), states in zip(entering, onwards, strict=True) if layer < block]
        passed = target.advance(torch.cat([states[-1] for states in inside]), block, block + 1)
        for states, state in zip(inside, passed.chunk(len(inside)), strict=True):
            states.append(state)
    return onwards


class _Batch(NamedTuple):
    """Rows of a report: tokens, and by layer pair states of the source and of the target, whose last is `standard`."""

    tokens: Tensor
    states: list[Tensor]
    goals: list[Tensor]
    standard: Tensor


def _distance(state: Tensor, goal: Tensor) -> Tensor:
    return (state.float() - goal.float()).norm(dim=-1) / goal.float().norm(dim=-1)


def _matches(
    target: FrozenModel, mapped: list[Tensor], goals: list[Tensor], ends: list[Tensor], batch: _Batch
) -> dict[str, Tensor]:
    """Return the loss of φ, and how near its states and outputs are to the target's own, (l, b, t - 1) each."""
    standard, following = batch.standard, batch.tokens[:, 1:].to(target.device)
    rows = torch.stack([end[:, :-1].flatten(0, 1) for end in ends])
    match = compare_outputs(rows, target.finish, standard[:, :-1].flatten(0, 1), following.flatten())
    loss, kl, top = (each.float().unflatten(1, following.shape) for each in match)
    states = [(state[:, :-1].float(), goal[:, :-1].float()) for state, goal in zip(mapped, goals, strict=True)]
    return {
        "stitch": loss,
        "kl": kl,
        "top1": top,
        "distance": torch.stack([_distance(state, goal) for state, goal in states]),
        "norm": torch.stack([state.norm(dim=-1) / goal.norm(dim=-1) for state, goal in states]),
        "penultimate": torch.stack([_distance(end[:, :-1], standard[:, :-1]) for end in ends]),
    }


def _losses_of_maps(
    target: FrozenModel,
    name: str,
    functions: Maps,
    layer_pairs: Sequence[LayerPair],
    batch: _Batch,
    groups: Sequence[Tensor],
) -> dict[str, Tensor]:
    """Return the losses of the maps of one name, some layer pairs at a time, by name: (l, b, t - 1) each."""
    found = []
    for group in (each.tolist() for each in groups):
        mapped = [functions[i](batch.states[i].to(target.device)) for i in group]
        ends = last_states(target, [(layer_pairs[i][1], state) for i, state in zip(group, mapped, strict=True)])
        if name == "stitch":
            losses = _matches(target, mapped, [batch.goals[i] for i in group], ends, batch)
        else:
            losses = {name: torch.stack(next_token_losses(target, ends, batch.tokens))}
        found.append({key: each.cpu() for key, each in losses.items()})
    return {key: torch.cat([each[key] for each in found]) for key in found[0]}


@torch.no_grad()
def document_sums(
    source: FrozenModel,
    target: FrozenModel,
    layer_pairs: Sequence[LayerPair],
    maps: Mapping[str, Maps],
    rows: TokenRows,
    batch: int,
    pairs_at_once: int | None = None,
    *,
    readers: Mapping[str, Reader] | None = None,
) -> dict[str, Tensor]:
    """Run the report's rows through all maps, and sum by document what they lose.

    Args:
        maps: by name; those of `stitch` are also compared with the target's own output and states.
        batch, pairs_at_once: rows and layer pairs at a time, which change the memory and no number; None: all pairs.
        readers: further maps by name, of other states than the source's.

    Returns:
        Sums over the predicted tokens of each document, float64. By the name of each map, its loss in nats
        (layer pairs, documents); `target` and `source`, the models' own losses (documents,), and the number of
        `tokens`; for `stitch` also (layer pairs, documents): `kl` to the target's output in nats, `top1` agreements
        with it, `distance` = |φ(h) - t| / |t| and `norm` = |φ(h)| / |t| with t the target's own state, and
        `penultimate`, that distance at the last block. Where tokenizers differ, `source` sums over the source's own
        tokens, whose number is `source_tokens`.
    """
    sums, last, layout = DocumentSums(rows.documents), target.n_layers - 1, rows.layout
    layers, depths = ([pair[side] for pair in layer_pairs] for side in (0, 1))
    groups = torch.arange(len(layer_pairs)).split(pairs_at_once or len(layer_pairs))
    for part, owners in rows.batches(batch):
        tokens = layout.target_tokens(part)
        asked = [*layers, source.n_layers - 1], [*depths, last]
        (*states, own), (*goals, standard) = states_of_both(source, target, part, *asked, layout)
        states = layout.gathered(states, part)
        (loss,) = next_token_losses(target, [standard], tokens)
        values, alone = {"target": loss, "tokens": torch.ones_like(loss)}, {"source": loss}
        if own is not standard:
            (alone["source"],) = next_token_losses(source, [own], layout.source_tokens(part))
        if layout.source:
            alone["source_tokens"] = torch.ones_like(alone["source"])
        ours = _Batch(tokens, states, goals, standard)
        for name, functions in counted(maps.items(), "map"):
            values |= _losses_of_maps(target, name, functions, layer_pairs, ours, groups)
        for name, reader in counted((readers or {}).items(), "control"):
            if reader.instead == "source":
                read = layout.source_states(reader.model, part, layers)
            else:
                read = goals if reader.model is target else reader.model.residuals(tokens, depths)
            values |= _losses_of_maps(target, name, reader.maps, layer_pairs, ours._replace(states=read), groups)
        for losses, owner in ((alone, layout.source_documents(part, owners)), (values, owners)):
            sums.add(owner[:, 1:].flatten(), {name: each.flatten(-2) for name, each in losses.items()})
    return sums


@torch.no_grad()
def own_losses(model: FrozenModel, rows: TokenRows) -> Float[Tensor, " documents"]:
    """Return the sum of a target's own losses over the predicted tokens of each document, as `document_sums` has it."""
    sums = DocumentSums(rows.documents)
    for part, owners in rows.batches(rows_at_once(rows, tokens_at_once(model.device))):
        tokens = rows.layout.target_tokens(part)
        (loss,) = next_token_losses(model, [model.head(tokens, model.n_layers - 1)], tokens)
        sums.add(owners[:, 1:].flatten(), {"loss": loss.flatten()})
    return sums["loss"]


@torch.no_grad()
def report_share(
    source: FrozenModel,
    target: FrozenModel,
    layer_pairs: Sequence[LayerPair],
    rows: TokenRows,
    budget: Budget,
    *,
    others: bool = False,
) -> tuple[int, int]:
    """Return how many rows, at most `rows_at_once`, and layer pairs of `document_sums` fit; pairs give way first.

    The memory of one row through both models, one block of the target, and one chunk of logits is measured; readers of
    `others` take as much again as the target's states.
    """
    row, layout, device, width = rows.tokens[:1].long(), rows.layout, target.device, target.d_model
    with LiveBytes(device) as live:
        states = layout.source_states(source, row, [layer for layer, _ in layer_pairs])
        goals = target.residuals(layout.target_tokens(row), [depth for _, depth in layer_pairs])
        kept, a_row = live.now, live.peak + others * sum(goal.nbytes for goal in goals)
        live.restart()
        last_states(target, [(target.n_layers - 2, goals[-1])])
        a_pair = live.peak - kept + COPIES * goals[-1].nbytes
        del states, goals
        live.restart()
        before, chunk = live.now, torch.zeros(CHUNK, width, device=device, dtype=target.dtype)
        compare_outputs(chunk[None], target.finish, chunk, torch.zeros(CHUNK, dtype=torch.long, device=device))
        logits = live.peak - before

    def fits(rows_at_once: int, pairs: int = 1) -> bool:
        return logits + rows_at_once * (a_row + pairs * a_pair) <= budget.room

    count = halved(rows_at_once(rows, tokens_at_once(device)), fits)
    return count, max(sum(fits(count, pairs) for pairs in range(1, len(layer_pairs) + 1)), 1)


@torch.no_grad()
def state_moments(
    source: StateSource,
    target: FrozenModel,
    layer_pairs: Sequence[LayerPair],
    rows: TokenRows,
    budget: Budget,
    means: TokenMeans | None = None,
) -> HalvedMoments:
    """Return the statistics of halves of the documents for maps of all layer pairs, in one pass.

    Args:
        means: Takes the target's states of the first `MOST_TOKENS` tokens from the same pass; its
            layers are those of the target, in the order of the layer pairs.
    """
    moments = HalvedMoments(layer_pairs)
    layout = rows.layout
    layers, depths = (list(dict.fromkeys(side)) for side in zip(*layer_pairs, strict=True))
    halves = halves_of(rows.documents.flatten()).view_as(rows.documents)
    batch = rows_of_moments(source, target, layer_pairs, rows, budget)
    rows_of_means = max(MOST_TOKENS // rows.context, 1) if means is not None else 0
    for part, half in TokenRows(rows.tokens, halves).batches(batch, "batch of closed forms"):
        source_states, target_states = states_of_both(source, target, part, layers, depths, layout)
        if means is not None and rows_of_means > 0:
            tokens = layout.target_tokens(part)[:rows_of_means]
            means.update(tokens, [state[:rows_of_means] for state in target_states])
            rows_of_means -= len(part)
        aligned = layout.gathered(source_states, part)
        by_layer = [state.flatten(0, 1).to(target.device) for state in aligned]
        by_depth = [state.flatten(0, 1) for state in target_states]
        moments.update(
            dict(zip(layers, by_layer, strict=True)),
            dict(zip(depths, by_depth, strict=True)),
            half.flatten(),
        )
    return moments


def rows_of_moments(
    source: StateSource, target: FrozenModel, layer_pairs: Sequence[LayerPair], rows: TokenRows, budget: Budget
) -> int:
    """Return how many rows fit into memory, at most `rows_at_once`: the layers' states, and two copies in float64."""
    sides = zip((source, target), zip(*layer_pairs, strict=True), strict=True)
    numbers = sum(len(set(side)) * model.d_model * (model.dtype.itemsize + 16) for model, side in sides)
    tokens = max(rows.layout.target, rows.layout.source)
    most = rows_at_once(rows, tokens_at_once(target.device))
    return halved(most, lambda count: count * tokens * numbers <= budget.room)


def bigrams(rows: Int[Tensor, "b t"], vocabulary: int) -> Int[Tensor, "b t"]:
    """Return current token + vocabulary * last token; before the first of a row the last one counts as `vocabulary`."""
    last = torch.cat([torch.full_like(rows[:, :1], vocabulary), rows[:, :-1]], 1)
    return rows + vocabulary * last


_CONTEXTS: tuple[Codes, ...] = (lambda rows, _: torch.zeros_like(rows), lambda rows, _: rows)  # of all, of each token


class _Means:
    """Running means of states by code, for the codes of a sorted list."""

    def __init__(self, codes: Int[Tensor, " c"], layers: int):
        self._codes, self._counts = codes, torch.zeros(len(codes))
        self._means: list[Tensor] = [torch.empty(0)] * layers

    def _places(self, codes: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
        """Return where each code is in the list, -1 where it is not."""
        places = torch.searchsorted(self._codes, codes).clamp(max=len(self._codes) - 1)
        return torch.where(self._codes[places] == codes, places, -1)

    def update(self, codes: Int[Tensor, " n"], states: Sequence[Float[Tensor, "n d"]]) -> None:
        """Add states: the mean of n₁ + n₂ of them is m + Σ(x - m) / (n₁ + n₂), with m that of the first n₁."""
        places = self._places(codes)
        kept = places >= 0
        present, inverse, counts = places[kept].unique(return_inverse=True, return_counts=True)
        self._counts[present] += counts
        for layer, state in enumerate(states):
            if not len(self._means[layer]):
                self._means[layer] = state.new_zeros(len(self._codes), state.shape[1])
            means = self._means[layer][present]
            departures = torch.zeros_like(means).index_add_(0, inverse, state[kept] - means[inverse])
            self._means[layer][present] = means + departures / self._counts[present, None].to(means)

    def of(self, codes: Int[Tensor, " n"], layer: int, otherwise: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Return the mean of each code, or `otherwise` where none of its states was seen."""
        places = self._places(codes)
        means, seen = self._means[layer][places.clamp(min=0)], self._counts[places.clamp(min=0)] > 0
        return torch.where((seen & (places >= 0))[:, None], means, otherwise.to(means))


class TokenMeans:
    """The mean state of each token after several blocks of a model, over at most 2^18 tokens of fit rows.

    Only the means of the tokens of `report`, the rows that `residuals` will be asked for, are in memory. A token that
    no fit row has gets the mean of all tokens. The model reads the rows of `fit` now; `update` takes states of others.
    """

    contexts: ClassVar[tuple[Codes, ...]] = _CONTEXTS  # each stands in where the next was not seen

    def __init__(
        self, model: StateSource, layers: Sequence[int], fit: Int[Tensor, "rows t"], report: Int[Tensor, "some u"]
    ):
        self.layers = list(dict.fromkeys(layers))
        self.d_model, self.n_layers, self.vocabulary = model.d_model, model.n_layers, model.vocabulary
        self.device, self.dtype = model.device, model.dtype
        asked = report.long().cpu()
        self._tables = [_Means(codes(asked, self.vocabulary).unique(), len(self.layers)) for codes in self.contexts]
        self.read(model, fit)

    @torch.no_grad()
    def read(self, model: StateSource, fit: Int[Tensor, "rows t"]) -> None:
        """Add the states of the first 2^18 tokens of rows."""
        context = fit.shape[1]
        rows = fit[: max(MOST_TOKENS // context, 1)].long().cpu()
        batches = rows.split(max(tokens_at_once(model.device) // context, 1))
        for part in counted(batches, "batch of token means"):
            if len(part):
                self.update(part, model.residuals(part, self.layers))

    def update(self, rows: Int[Tensor, "b t"], states: Sequence[Float[Tensor, "b t d"]]) -> None:
        """Add the states of rows, one tensor for each of `layers`."""
        flat = [state.flatten(0, 1).float().cpu() for state in states]
        for codes, table in zip(self.contexts, self._tables, strict=True):
            table.update(codes(rows.long().cpu(), self.vocabulary).flatten(), flat)

    def residuals(self, rows: Int[Tensor, "b t"], layers: Sequence[int]) -> list[Float[Tensor, "b t d"]]:
        """Return for each token the mean state of that token at each of these layers."""
        tokens, found = rows.long().cpu(), []
        for layer in layers:
            state = torch.zeros(rows.numel(), self.d_model)
            for codes, table in zip(self.contexts, self._tables, strict=False):
                state = table.of(codes(tokens, self.vocabulary).flatten(), self.layers.index(layer), state)
            found.append(state.view(*rows.shape, -1).to(self.device, self.dtype))
        return found

    @property
    def tokens(self) -> TokenMeans:
        """The means of tokens alone, of the same pass."""
        view = copy(self)
        view._tables = self._tables[: len(TokenMeans.contexts)]
        return view


class BigramMeans(TokenMeans):
    """The mean state of each pair of the last token and the current one; see `bigrams` for the first of a row.

    A pair that no fit row has gets the mean of its current token.
    """

    contexts: ClassVar[tuple[Codes, ...]] = (*_CONTEXTS, bigrams)
