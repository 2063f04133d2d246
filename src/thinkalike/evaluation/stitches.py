"""What a stitch is measured by: sums over documents of every loss and distance, all on the same tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.data.rows import Layout, TokenRows
from thinkalike.errors import ModelError
from thinkalike.evaluation.language import ends_of, halved, next_token_losses
from thinkalike.measures.bootstrapping import bootstrap_interval, sum_by_document
from thinkalike.measures.closed_forms import BothDirections, Moments, Unexplained
from thinkalike.measures.estimates import Estimate
from thinkalike.measures.losses import CHUNK, compare_outputs
from thinkalike.memory import Budget, LiveBytes
from thinkalike.models.frozen import FrozenModel, StateSource
from thinkalike.progress import counted

LayerPair = tuple[int, int]  # layer of the source, layer of the target
Maps = Sequence[Callable[[Tensor], Tensor]]  # one map from source states to target states for every layer pair


class Reader(NamedTuple):
    """Maps that read something else than the source.

    Attributes:
        model: has `residuals`, as a model has.
        maps: one for every layer pair.
        instead: "source": it reads the source's tokens, at the source's layers; "target": likewise.
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

    One pass of each model, and a single one where both are the same model.
    """
    tokens = layout.target_tokens(rows)
    if source is target and not layout.source:
        states = target.residuals(tokens, [*layers, *depths])
        return states[: len(layers)], states[len(layers) :]
    return source.residuals(layout.source_tokens(rows), layers), target.residuals(tokens, depths)


def last_states(target: FrozenModel, entering: Sequence[tuple[int, Tensor]]) -> list[Tensor]:
    """Run states that enter the target after different layers to its end, every block once for all of them.

    Args:
        entering: (layer m, state as after block m), each state (b, t, d).

    Returns:
        The last block's residual of each, in the order given.
    """
    order = sorted(range(len(entering)), key=lambda i: entering[i][0])
    carried: list[Tensor] = []
    depth = 0
    for i in order:
        layer, state = entering[i]
        if carried:
            joined = target.advance(torch.cat(carried), depth, layer + 1)
            carried = list(joined.chunk(len(carried)))
        carried.append(state.to(target.device, target.dtype))
        depth = layer + 1
    finished = target.advance(torch.cat(carried), depth, target.n_layers).chunk(len(carried))
    return [finished[order.index(i)] for i in range(len(entering))]


def states_onwards(target: FrozenModel, entering: Sequence[tuple[int, Tensor]]) -> list[list[Tensor]]:
    """Run states that enter the target after different layers to its end, and return those after each block.

    Args:
        entering: (layer m, state as after block m), each state (b, t, d).

    Returns:
        Of each, in the order given, the state that enters and those after blocks m + 1, ..., n_layers - 1.
    """
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
    """Run the report's rows through all maps, and sum what they lose by document.

    Args:
        maps: by name; `stitch` is the one that is also compared with the target's output and states.
        readers: further maps by name, of other states than the source's.
        documents: number of the document of each of the target's tokens.
        batch: rows at a time.
        pairs_at_once: layer pairs at a time; None: all. It decides the memory, and nothing else.
        layout: what stands in the rows; None: tokens that both models read.

    Returns:
        Sums over the predicted tokens of each document, float64. By the name of each map, its loss in nats
        (layer pairs, documents); `target` and `source`, the models' own losses (documents,), and `tokens`, how many
        there are; for `stitch` also (layer pairs, documents): `kl` to the target's output in nats, `top1` agreements
        with it, `distance` = |φ(h) - t| / |t| and `norm` = |φ(h)| / |t| with t the target's own state, and
        `penultimate`, that distance at the last block. Where the source cuts the text differently, `source` sums over
        its own tokens, and `source_tokens` says how many those are.
    """
    count, last = int(documents.max()) + 1, target.n_layers - 1
    layers, depths = ([pair[side] for pair in layer_pairs] for side in (0, 1))
    layout = layout or Layout(documents.shape[1])
    groups = torch.arange(len(layer_pairs)).split(pairs_at_once or len(layer_pairs))
    totals: dict[str, Tensor] = {}
    parts = zip(rows.split(batch), documents.split(batch), strict=True)
    for part, owners in counted(parts, "batch", -(-len(rows) // batch)):
        part = part.long()
        tokens, read = layout.target_tokens(part), layout.source_tokens(part)
        asked = [*layers, source.n_layers - 1], [*depths, last]
        (*states, own), (*goals, standard) = states_of_both(source, target, part, *asked, layout)
        states = layout.gathered(states, part)
        values = {"target": next_token_losses(target, [standard], tokens)[0]}
        alone = {"source": values["target"] if own is standard else next_token_losses(source, [own], read)[0]}
        if layout.source:
            alone["source_tokens"] = torch.ones_like(alone["source"])
        values["tokens"] = torch.ones_like(values["target"])
        ours = _Batch(tokens, states, goals, standard)
        for name, functions in counted(maps.items(), "map"):
            values |= _losses_in_groups(target, name, functions, layer_pairs, ours, groups)
        for name, reader in counted((readers or {}).items(), "control"):
            others = _states_instead(reader, target, part, layer_pairs, layout, goals)
            theirs = ours._replace(states=others)
            values |= _losses_in_groups(target, name, reader.maps, layer_pairs, theirs, groups)
        for losses, owner in ((alone, layout.source_documents(part, owners)), (values, owners)):
            owner = owner[:, 1:].flatten()
            for name, each in losses.items():
                summed = sum_by_document(each.flatten(-2).cpu()[..., owner >= 0], owner[owner >= 0], count)
                totals[name] = totals.get(name, 0) + summed
    return totals


def _states_instead(
    reader: Reader,
    target: FrozenModel,
    rows: Tensor,
    layer_pairs: Sequence[LayerPair],
    layout: Layout,
    goals: list[Tensor],
) -> list[Tensor]:
    """Return the states that a reader reads, by layer pair; those of the target itself are there already."""
    if reader.instead == "source":
        return layout.source_states(reader.model, rows, [layer for layer, _ in layer_pairs])
    if reader.model is target:
        return goals
    read: list[Tensor] = reader.model.residuals(layout.target_tokens(rows), [depth for _, depth in layer_pairs])
    return read


class _Batch(NamedTuple):
    """Rows of a report, and what no map changes: states of the source and of the target by layer pair, and the last."""

    tokens: Tensor
    states: list[Tensor]
    goals: list[Tensor]
    standard: Tensor


def _losses_in_groups(
    target: FrozenModel,
    name: str,
    functions: Maps,
    layer_pairs: Sequence[LayerPair],
    batch: _Batch,
    groups: Sequence[Tensor],
) -> dict[str, Tensor]:
    """Return what the maps of one name lose at all layer pairs, some pairs at a time, by what is measured."""
    found = [_losses(target, name, functions, layer_pairs, batch, group) for group in groups]
    return {key: torch.cat([each[key] for each in found]) for key in found[0]}


def _losses(
    target: FrozenModel, name: str, functions: Maps, layer_pairs: Sequence[LayerPair], batch: _Batch, group: Tensor
) -> dict[str, Tensor]:
    """Return what the maps of one name lose at a group of layer pairs, by what is measured: (l, b, t - 1) each."""
    chosen = group.tolist()
    mapped = [functions[i](batch.states[i].to(target.device)) for i in chosen]
    ends = last_states(target, [(layer_pairs[i][1], state) for i, state in zip(chosen, mapped, strict=True)])
    if name == "stitch":
        losses = _matches(target, mapped, [batch.goals[i] for i in chosen], ends, batch)
    else:
        losses = {name: torch.stack(next_token_losses(target, ends, batch.tokens))}
    return {key: each.cpu() for key, each in losses.items()}


def _matches(
    target: FrozenModel, mapped: list[Tensor], goals: list[Tensor], ends: list[Tensor], batch: _Batch
) -> dict[str, Tensor]:
    """Return the loss of φ at each layer pair, and how near its states and outputs are to the target's own.

    All are of predicted tokens, (l, b, t - 1).
    """
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


@torch.no_grad()
def state_moments(
    source: StateSource,
    target: FrozenModel,
    layer_pairs: Sequence[LayerPair],
    rows: Int[Tensor, "rows width"],
    batch: int,
    layout: Layout | None = None,
) -> Moments:
    """Return sufficient statistics of the closed-form maps of all layer pairs, from one pass over fit rows.

    Args:
        layout: what stands in the rows; None: tokens that both models read.
    """
    moments, layout = Moments(layer_pairs), layout or Layout(rows.shape[1])
    for part in counted(rows.split(batch), "batch of closed forms"):
        part = part.long()
        mine, theirs = states_of_both(source, target, part, range(source.n_layers), range(target.n_layers), layout)
        mine = layout.gathered(mine, part)
        moments.update(
            [state.flatten(0, 1).to(target.device) for state in mine], [state.flatten(0, 1) for state in theirs]
        )
    return moments


# ------------------------------------------------------------
# How many rows and layer pairs the report of stitches has in memory at once.

COPIES = 6  # of a pair's states: mapped and last ones of two kinds of maps, and two of parts of them


class Share(NamedTuple):
    """How much of a report is in memory at once."""

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
    """Return how many rows, at most `most`, and layer pairs of `document_sums` fit; pairs give way first.

    One row through both models, one block of the target, and one chunk of logits are measured.

    Args:
        others: whether there are readers of other states, which take as much again as the target's.
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


def rows_of_moments(
    source: FrozenModel,
    target: FrozenModel,
    rows: Int[Tensor, "rows width"],
    most: int,
    budget: Budget,
    layout: Layout | None = None,
) -> int:
    """Return how many rows, at most `most`, of `state_moments` fit: all layers' states, and two copies in float64."""
    numbers = sum(model.n_layers * model.d_model * (model.dtype.itemsize + 16) for model in (source, target))
    tokens = max(layout.target, layout.source) if layout else rows.shape[1]
    return halved(most, lambda count: count * tokens * numbers <= budget.room)


# ------------------------------------------------------------
# What maps in both directions leave unexplained of held-out states, by document.


class ResidualSums(NamedTuple):
    """Sums of squares over the tokens of each document, in float64; see `residual_sums`."""

    left: Float[Tensor, "pairs maps documents"]  # in the order of `Unexplained`
    whole: Float[Tensor, "pairs maps documents"]

    def columns(self) -> dict[str, list[float]]:
        """Return shares of variance that are left unexplained, with the ends of 95 % intervals over documents."""
        columns: dict[str, list[float]] = {}
        for number, name in enumerate(Unexplained._fields):
            pairs = zip(self.left[:, number], self.whole[:, number], strict=True)
            found = zip(*(bootstrap_interval(*sums) for sums in pairs), strict=True)
            columns |= ends_of(UNEXPLAINED[name], Estimate(*map(torch.stack, found)))
        return columns


UNEXPLAINED = {  # columns of a table, by map
    "phi": "unexplained",
    "psi": "unexplained_back",
    "psi_phi": "round_trip_unexplained",
    "phi_psi": "round_trip_unexplained_back",
}


def unexplained_variance(
    maps: BothDirections, moments: Moments, pair: LayerPair, names: tuple[str, str]
) -> Unexplained:
    """Return what the maps of a layer pair leave unexplained of the states that moments were gathered of.

    Args:
        names: of both models, for messages.

    Raises:
        ModelError: the states of a layer do not vary.
    """
    try:
        return maps.unexplained(moments.of(pair))
    except ValueError as error:
        raise ModelError(f"layer {pair[0]} of {names[0]} and layer {pair[1]} of {names[1]}: {error}") from None


@torch.no_grad()
def residual_sums(
    source: FrozenModel,
    target: FrozenModel,
    layer_pairs: Sequence[LayerPair],
    maps: Sequence[BothDirections],
    moments: Moments,
    rows: TokenRows,
    batch: int,
) -> ResidualSums:
    """Run rows through both models, and sum by document what maps and their round trips miss of the states.

    The variance of a side is about the mean of the rows that the maps were fitted on.

    Args:
        maps: of each layer pair.
        moments: of the rows that the maps were fitted on.
        batch: rows at a time.
    """
    count, layout = int(rows.documents.max()) + 1, rows.layout
    layers, depths = ([pair[side] for pair in layer_pairs] for side in (0, 1))
    sums = torch.zeros(2, len(layer_pairs), len(Unexplained._fields), count, dtype=torch.float64)
    for part, owners in zip(rows.tokens.split(batch), rows.documents.split(batch), strict=True):
        part, owner = part.long(), owners.flatten()
        mine, theirs = states_of_both(source, target, part, layers, depths, layout)
        for place, (x, y) in enumerate(zip(layout.gathered(mine, part), theirs, strict=True)):
            statistics = moments.of(layer_pairs[place])
            x = x.flatten(0, 1).to(target.device).double() - statistics.mean_x
            y = y.flatten(0, 1).double() - statistics.mean_y
            for side, squares in enumerate(_squares(maps[place], x, y)):
                sums[side, place] += sum_by_document(squares.cpu()[:, owner >= 0], owner[owner >= 0], count)
    return ResidualSums(*sums)


def _squares(
    maps: BothDirections, x: Float[Tensor, "n d"], y: Float[Tensor, "n e"]
) -> tuple[Float[Tensor, "maps n"], Float[Tensor, "maps n"]]:
    """Return the squared residuals of states about the fitted means, and their squared lengths."""
    phi, psi = maps.phi.weight.T, maps.psi.weight.T  # biases only lead from one mean to the other
    there, back = x @ phi, y @ psi
    left = torch.stack([each.square().sum(1) for each in (y - there, x - back, x - there @ psi, y - back @ phi)])
    own = [side.square().sum(1) for side in (x, y)]
    return left, torch.stack([own[1], own[0], own[0], own[1]])
