"""The report of stitches: sums over documents of every loss and distance, all on the same tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from thinkalike.data.rows import Corpus, Layout, PairedRows
from thinkalike.evaluation.language import DocumentSums, halved, next_token_losses, with_ends
from thinkalike.measures.closed_forms import LayerPair
from thinkalike.measures.losses import CHUNK, compare_outputs
from thinkalike.memory import Budget, LiveBytes
from thinkalike.models.frozen import FrozenModel
from thinkalike.progress import counted

Maps = Sequence[Callable[[Tensor], Tensor]]  # one map from source states to target states for every layer pair


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
            values |= _losses(target, name, functions, layer_pairs, ours, groups)
        for name, reader in counted((readers or {}).items(), "control"):
            if reader.instead == "source":
                read = layout.source_states(reader.model, part, layers)
            else:
                read = goals if reader.model is target else reader.model.residuals(tokens, depths)
            values |= _losses(target, name, reader.maps, layer_pairs, ours._replace(states=read), groups)
        for losses, owner in ((alone, layout.source_documents(part, owners)), (values, owners)):
            sums.add(owner[:, 1:].flatten(), {name: each.flatten(-2) for name, each in losses.items()})
    return sums


class _Batch(NamedTuple):
    """Rows of a report: tokens, and by layer pair states of the source and of the target, whose last is `standard`."""

    tokens: Tensor
    states: list[Tensor]
    goals: list[Tensor]
    standard: Tensor


def _losses(
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


def _distance(state: Tensor, goal: Tensor) -> Tensor:
    return (state.float() - goal.float()).norm(dim=-1) / goal.float().norm(dim=-1)


BITS = 1 / math.log(2)  # per nat


def document_bytes(corpus: Corpus) -> dict[str, Tensor]:
    """Return by document the bytes that each model predicts, and a hash of its text, if the tokenizers differ."""
    rows = corpus.report
    if not isinstance(rows, PairedRows):
        return {}
    return {"target_bytes": rows.target_bytes, "source_bytes": rows.source_bytes, "documents": rows.names}


def bits_columns(sums: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return both models' own losses and the penalty in bits per byte of each one's own tokens."""
    target, source = (readable_bytes(sums[f"{side}_bytes"]) for side in ("target", "source"))
    return {
        **with_ends("target_bits_per_byte", sums["target"] * BITS, target),
        **with_ends("source_bits_per_byte", sums["source"] * BITS, source),
        **with_ends("penalty_bits_per_byte", (sums["stitch"] - sums["target"]) * BITS, target),
    }


def readable_bytes(counts: Int[Tensor, " documents"]) -> Int[Tensor, " documents"]:
    """Return the bytes of each document, at least 1, so that a document of which only the end is predicted counts."""
    return counts.clamp(min=1)


def bytes_by_document(
    tokenizer: Any, rows: Int[Tensor, "rows context"], documents: Int[Tensor, "rows context"]
) -> Int[Tensor, " documents"]:
    """Return the bytes in UTF-8 of each document's predicted tokens, to within a character per document and row."""
    runs, owners = [], []
    for row, numbers in zip(rows[:, 1:], documents[:, 1:], strict=True):
        values, lengths = torch.unique_consecutive(numbers, return_counts=True)
        runs += [part.tolist() for part in row.split(lengths.tolist())]
        owners += values.tolist()
    sizes = [len(text.encode()) for text in tokenizer.batch_decode(runs, skip_special_tokens=True)]
    total = torch.zeros(int(documents.max()) + 1, dtype=torch.long)
    return total.index_add_(0, torch.tensor(owners), torch.tensor(sizes))


def alignment_scalars(corpus: Corpus) -> dict[str, float]:
    """Return the shares of target tokens by how they are aligned, if the tokenizers differ."""
    if not isinstance(corpus.report, PairedRows):
        return {}
    from thinkalike.data.paired import alignment_shares

    return {f"aligned_{how}": share for how, share in alignment_shares(corpus).items()}


COPIES = 6  # of the states of a layer pair: mapped and last ones of two kinds of maps, and two of parts of them


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
