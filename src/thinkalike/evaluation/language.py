"""Losses on text of language models and of stitched ones, summed by document, all on the same tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn.functional import cross_entropy

from thinkalike.data.rows import Corpus, Layout
from thinkalike.measures.closed_forms import LayerPair
from thinkalike.measures.estimates import (
    FEWEST_GROUPS,
    Estimate,
    bootstrap_interval,
    effective_number,
    interval_around,
    sum_by_document,
)
from thinkalike.measures.losses import CHUNK, compare_outputs, token_loss, unigram_entropy
from thinkalike.memory import Budget, LiveBytes
from thinkalike.models.frozen import FrozenModel
from thinkalike.progress import counted

BATCH_TOKENS = 8192  # of a report
COPIES = 6  # of the states of a layer pair: mapped and last ones of two kinds of maps, and two of parts of them

Maps = Sequence[Callable[[Tensor], Tensor]]  # one map from source states to target states for every layer pair


def rows_at_once(corpus: Corpus) -> int:
    """Return how many rows of a corpus a report reads together where there is enough memory."""
    return max(BATCH_TOKENS // corpus.report.context, 1)


def halved(most: int, fits: Callable[[int], bool]) -> int:
    """Return the first of most, most / 2, ... down to 1 that fits into memory; 1 if none does."""
    while most > 1 and not fits(most):
        most //= 2
    return most


def ends_of(column: str, estimate: Estimate) -> dict[str, Any]:
    """Return a column of values, and the columns `_low` and `_high` of the ends of their intervals."""
    return {f"{column}{end}": values.tolist() for end, values in zip(("", "_low", "_high"), estimate, strict=True)}


def with_ends(
    column: str, sums: Shaped[Tensor, "*b documents"], counts: Shaped[Tensor, " documents"]
) -> dict[str, Any]:
    """Return a column of means per token with their 95 % intervals, see `bootstrap_interval` and `ends_of`."""
    return ends_of(column, bootstrap_interval(sums.double(), counts.double()))


def mean_over_documents(
    values: Float[Tensor, "*b n"], documents: Int[Tensor, " n"], level: float = 0.95, *, together: bool = False
) -> Estimate:
    """Return means over n tokens with intervals over documents, without ends if these are fewer than `FEWEST_GROUPS`.

    Args:
        documents: the number of the document of each token; each number below the largest occurs.
        together: see `bootstrap_interval`.
    """
    count = int(documents.max()) + 1
    if count < FEWEST_GROUPS:
        return interval_around(values.double().mean(-1), math.inf)
    sums = sum_by_document(values, documents, count)
    return bootstrap_interval(sums, torch.bincount(documents).double(), level=level, together=together)


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


def masked_losses(
    model: Callable[[Tensor], Any], tokens: Int[Tensor, "b t"], tokenizer: Any, generator: torch.Generator
) -> tuple[Float[Tensor, " hidden"], Bool[Tensor, "b t"]]:
    """Return the cross-entropies of hidden tokens in nats, and which they were (Devlin et al. 2019, section 3.1).

    15 % of the tokens that are not special are chosen; of these 80 % become [MASK], 10 % a random token, and 10 % stay.
    The model takes tokens to a tuple that begins with logits (b, t, v).
    """
    chance, action = (torch.rand(tokens.shape, generator=generator).to(tokens.device) for _ in range(2))
    noise = torch.randint(len(tokenizer), tokens.shape, generator=generator).to(tokens.device)
    special = torch.isin(tokens, torch.tensor(tokenizer.all_special_ids, device=tokens.device))
    chosen = (chance < 0.15) & ~special
    visible = torch.where(chosen & (action < 0.8), tokenizer.mask_token_id, tokens)
    visible = torch.where(chosen & (action >= 0.9), noise, visible)
    return cross_entropy(model(visible)[0][chosen], tokens[chosen], reduction="none"), chosen


def _predicted(
    model: FrozenModel, tokens: Int[Tensor, "b t"], generator: torch.Generator
) -> tuple[Float[Tensor, " n"], Bool[Tensor, "b t"]]:
    """Return the losses of the tokens that the model predicts, and which they are."""
    if not model.predicts_next:
        losses, hidden = masked_losses(model.module, tokens.to(model.device), model.tokenizer, generator)
        return losses.cpu(), hidden.cpu()
    losses = next_token_losses(model, [model.head(tokens, model.n_layers - 1)], tokens)[0].flatten().cpu()
    later = torch.ones_like(tokens, dtype=torch.bool)
    later[:, 0] = False
    return losses, later


def _that_fit(model: FrozenModel, rows: Int[Tensor, "rows context"], most: int) -> int:
    """Return how many rows fit into memory, at most `most`, from what the rows of one chunk and of two take."""
    few = -(-49 * CHUNK // (50 * rows.shape[1]))  # 98 % of a chunk count as one
    if 2 * few > min(most, len(rows)):
        return most
    taken = []
    for count in (few, 2 * few):
        with LiveBytes(model.device) as live:
            _predicted(model, rows[:count].long(), torch.Generator().manual_seed(0))
        taken.append(live.peak)
    slope, room = (taken[1] - taken[0]) / few, Budget.of(model.device).room
    return halved(most, lambda count: taken[0] + slope * (count - few) <= room)


@torch.no_grad()
def held_out_loss(model: FrozenModel, corpus: Corpus) -> dict[str, float]:
    """Return the loss on the report rows with its interval over documents, and the tokens' unigram entropy, in nats.

    `documents` and `effective_documents` are those of `document_numbers`. A model that predicts hidden tokens is asked
    for those that `masked_losses` hides, the same each time.
    """
    rows = corpus.report
    batch, sums = _that_fit(model, rows.tokens, rows_at_once(corpus)), DocumentSums(rows.documents)
    asked, generator = [], torch.Generator().manual_seed(0)
    parts = zip(rows.tokens.long().split(batch), rows.documents.split(batch), strict=True)
    for part, documents in counted(parts, "batch", -(-len(rows) // batch)):
        losses, predicted = _predicted(model, part, generator)
        sums.add(documents[predicted], {"loss": losses, "tokens": torch.ones_like(losses)})
        asked.append(part[predicted])
    entropy = {"unigram_entropy": unigram_entropy(torch.cat(asked))}
    return with_ends("loss", sums["loss"], sums["tokens"]) | entropy | document_numbers(sums["tokens"])


class Reader(NamedTuple):
    """Maps, one for every layer pair, of the states of another model than the source.

    Attributes:
        model: has `residuals`, as a `FrozenModel` has.
        instead: "source" or "target": whose tokens and layers are read.
    """

    model: Any
    maps: Maps
    instead: str


def states_of_both(
    source: Any,
    target: FrozenModel,
    rows: Int[Tensor, "b width"],
    layers: Sequence[int],
    depths: Sequence[int],
    layout: Layout,
) -> tuple[list[Tensor], list[Tensor]]:
    """Return states of the source (anything with `residuals`) and of the target, each for all tokens that it reads.

    Each model runs once, and only once in all if both are the same model.
    """
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
    rows: Int[Tensor, "rows width"],
    documents: Int[Tensor, "rows context"],
    batch: int,
    pairs_at_once: int | None = None,
    *,
    layout: Layout | None = None,
    readers: Mapping[str, Reader] | None = None,
) -> dict[str, Tensor]:
    """Run the report's rows through all maps, and sum by document what they lose.

    Args:
        maps: by name; those of `stitch` are also compared with the target's own output and states.
        readers: further maps by name, of other states than the source's.
        documents: number of the document of each of the target's tokens.
        batch: rows at a time.
        pairs_at_once: layer pairs at a time, which changes the memory and no number; None: all.
        layout: None: rows hold tokens that both models read.

    Returns:
        Sums over the predicted tokens of each document, float64. By the name of each map, its loss in nats
        (layer pairs, documents); `target` and `source`, the models' own losses (documents,), and the number of
        `tokens`; for `stitch` also (layer pairs, documents): `kl` to the target's output in nats, `top1` agreements
        with it, `distance` = |φ(h) - t| / |t| and `norm` = |φ(h)| / |t| with t the target's own state, and
        `penultimate`, that distance at the last block. Where tokenizers differ, `source` sums over the source's own
        tokens, whose number is `source_tokens`.
    """
    sums, last = DocumentSums(documents), target.n_layers - 1
    layers, depths = ([pair[side] for pair in layer_pairs] for side in (0, 1))
    layout = layout or Layout(documents.shape[1])
    groups = torch.arange(len(layer_pairs)).split(pairs_at_once or len(layer_pairs))
    parts = zip(rows.split(batch), documents.split(batch), strict=True)
    for part, owners in counted(parts, "batch", -(-len(rows) // batch)):
        part = part.long()
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


class Share(NamedTuple):
    """How many rows and layer pairs of a report are in memory at once."""

    rows: int
    pairs: int


@torch.no_grad()
def report_share(
    source: FrozenModel,
    target: FrozenModel,
    layer_pairs: Sequence[LayerPair],
    rows: Int[Tensor, "rows width"],
    most: int,
    budget: Budget,
    layout: Layout | None = None,
    *,
    others: bool = False,
) -> Share:
    """Return how many rows, at most `most`, and layer pairs of `document_sums` fit; first there are fewer pairs.

    The memory of one row through both models, one block of the target, and one chunk of logits is measured. Readers of
    `others` take as much again as the target's states.
    """
    row, device, width = rows[:1].long(), target.device, target.d_model
    layout = layout or Layout(rows.shape[1])
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

    rows_at_once = halved(most, fits)
    pairs = max(sum(fits(rows_at_once, count) for count in range(1, len(layer_pairs) + 1)), 1)
    return Share(rows_at_once, pairs)
