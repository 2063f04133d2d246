"""What each part of a change does, found by exchanging parts or outputs of two models.

A part that differs is exchanged both ways, and so is the output of attention, of an MLP or of a
head. A pass begins at the block of the part, with the states that the model had before it, so that
later parts cost less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypedDict

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.evaluation.changes import BatchStates, token_distances
from thinkalike.models.families import EMBED, Place
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.parts import Part, exchanged
from thinkalike.models.sites import Sites
from thinkalike.processes import counted

SCREENING_TOKENS = 128
"""About how many tokens decide which parts are exchanged on all of the text."""

FEW_HEADS = 16
"""So many heads are all exchanged: to choose some of them would save little."""


class PartChanges(NamedTuple):
    """What one part of the changed model does at each of n tokens; None where not exchanged."""

    entering: Float[Tensor, " n"] | None
    """‖y - x‖ / ‖x‖ of the states x after the part's block in the base, and y with this part."""

    without: Float[Tensor, " n"] | None
    """KL(base ‖ changed model with the base's part) in nats."""

    alone: Float[Tensor, " n"] | None
    """KL(base ‖ base with the changed part) in nats."""


class ExchangesDone(TypedDict):
    """What `exchange_parts` has computed so far, which a job saves to resume from.

    Attributes:
        tried: The names of the parts that are exchanged on all of the text.
        entering: How far each part moves the output of its block, by the name of the part, without
            parts after the last block.
        without: KL(base ‖ changed model with the base's part) by the name of the part, so far.
        alone: KL(base ‖ base with the changed part), likewise.
    """

    tried: list[str]
    entering: dict[str, Tensor]
    without: dict[str, Tensor]
    alone: dict[str, Tensor]


def screening_tokens(context: int) -> int:
    """Return how many tokens decide which candidates are exchanged, in rows of `context` tokens.

    They are about `SCREENING_TOKENS`, in whole rows, and at least one row.
    """
    return max(SCREENING_TOKENS // context, 1) * context


def _first_rows_for_screening(batches: Sequence[BatchStates]) -> BatchStates:
    """Return the first rows of the first batch, on which candidates for exchange are compared.

    They have `screening_tokens` tokens; there are at most the rows of the batch.
    """
    context = batches[0].tokens.shape[1]
    return batches[0].first_rows(screening_tokens(context) // context)


def _kl_with_changed_part(
    batch: BatchStates, base: FrozenModel, changed: FrozenModel, part: Part
) -> Float[Tensor, " n"]:
    """Return KL(base ‖ base with one part of the changed model) of each predicted token, in nats.

    Args:
        batch: The states of both models on some rows.
        base: The base model, which has its own part again afterwards.
        changed: The changed model.
        part: The part, such as the MLP of a block.
    """
    # The blocks before the part are not run again: the base's own states enter its block.
    # `batch.kl` compares the predictions with those of the unchanged base, which the batch holds.
    with exchanged(base, changed, part):
        return batch.kl(base, first_block=part.layer, states=batch.base)


def _kl_with_base_part(
    batch: BatchStates, base: FrozenModel, changed: FrozenModel, part: Part
) -> Float[Tensor, " n"]:
    """Return KL(base ‖ changed model with one part of the base) of each predicted token, in nats.

    Args:
        batch: The states of both models on some rows.
        base: The base model.
        changed: The changed model, which has its own part again afterwards.
        part: The part, such as the MLP of a block.
    """
    # The blocks before the part are not run again: the changed model's own states enter its block.
    # `batch.kl` compares the predictions with those of the base, which the batch holds.
    with exchanged(changed, base, part):
        return batch.kl(changed, first_block=part.layer, states=batch.changed)


def _distance_after_block(
    batch: BatchStates, base: FrozenModel, changed: FrozenModel, part: Part
) -> Float[Tensor, " n"]:
    """Return how far a part of the changed model, put into the base, moves its block's output.

    It is ‖y - x‖ / ‖x‖ for each token but the last of each row. x is the state after the block in
    the base, and y the state after the same block with the changed part. For a part of the
    embedding, the states are those that enter block 0.

    Args:
        batch: Tokens, and the states of the base on them: `batch.base[l]` enters block l.
        base: The base.
        changed: The model from which the part is taken.
        part: The part that is exchanged: of the embedding or of a block, not after all blocks.
    """
    with exchanged(base, changed, part):
        if part.layer < 0:  # a part of the embedding
            state = base.head(batch.tokens, EMBED)
        else:
            state = base.advance(batch.base[part.layer], part.layer, part.layer + 1)
    return token_distances(batch.base[part.layer + 1], state)


@torch.no_grad()
def exchange_parts(
    base: FrozenModel,
    changed: FrozenModel,
    parts: Sequence[Part],
    batches: Sequence[BatchStates],
    most_parts: int,
    state: ExchangesDone | None = None,
    save: Callable[[ExchangesDone], None] = lambda state: None,
) -> dict[Part, PartChanges]:
    """Return what each part that differs does, by exchanging it between both models.

    Args:
        base: The base model.
        changed: The changed model, with the same parts.
        parts: The parts that differ.
        batches: The states of both models on all of the text.
        most_parts: How many parts of blocks are exchanged on all of the text. If more differ,
            these are the parts with the greatest KL, alone in the base, at few tokens.
        state: What an interrupted run saved, to resume from it; None: there is none.
        save: Called after each part with what has been computed so far.
    """
    if state is None:
        state = _screen_parts(base, changed, parts, batches, most_parts)
    exchanged_parts = [part for part in parts if str(part) in state["tried"]]
    for part in counted(exchanged_parts, "part"):
        name = str(part)
        if name in state["alone"]:
            continue
        without = [_kl_with_base_part(batch, base, changed, part) for batch in batches]
        alone = [_kl_with_changed_part(batch, base, changed, part) for batch in batches]
        state["without"][name] = torch.cat(without)
        state["alone"][name] = torch.cat(alone)
        save(state)

    changes = {}
    for part in parts:
        name = str(part)
        changes[part] = PartChanges(
            entering=state["entering"].get(name),
            without=state["without"].get(name),
            alone=state["alone"].get(name),
        )
    return changes


def _screen_parts(
    base: FrozenModel,
    changed: FrozenModel,
    parts: Sequence[Part],
    batches: Sequence[BatchStates],
    most_parts: int,
) -> ExchangesDone:
    """Choose the parts that will be exchanged between both models, each on all of the text.

    If more than `most_parts` of the given parts belong to blocks, each of these is put into the
    base on few tokens, and those that change the base's predictions least are left out. Parts
    outside of blocks (embedding, final norm, unembedding) are never left out.

    Args:
        base, changed: The two models.
        parts: The parts in which they differ.
        batches: Tokens and states of both models.
        most_parts: How many parts of blocks are chosen at most.

    Returns:
        Under "tried" the names of the chosen parts. Under "entering" how far each part, chosen or
        not, moves the states behind it when it is put into the base: those after its block or, of
        the embedding, those before the first block. The final norm and the unembedding have no
        entry. "without" and "alone", the effects on predictions, are empty: `exchange_parts` fills
        them.
    """
    entering = {}
    parts_of_blocks = []
    for part in parts:
        if part.layer >= base.n_layers:  # the final norm or the unembedding, after all blocks
            continue
        distances = [_distance_after_block(batch, base, changed, part) for batch in batches]
        entering[str(part)] = torch.cat(distances)
        if part.layer >= 0:  # the embedding is at layer -1
            parts_of_blocks.append(part)

    left_out: list[Part] = []
    if len(parts_of_blocks) > most_parts:
        few_rows = _first_rows_for_screening(batches)
        mean_kl = {}
        for part in counted(parts_of_blocks, "part at few tokens"):
            mean_kl[part] = float(_kl_with_changed_part(few_rows, base, changed, part).mean())
        least_first = sorted(parts_of_blocks, key=lambda part: mean_kl[part])
        left_out = least_first[:-most_parts]
    tried = [str(part) for part in parts if part not in left_out]
    return {"tried": tried, "entering": entering, "without": {}, "alone": {}}


def output_at(
    model: FrozenModel, sites: Sites, hook_point: Place, states: Sequence[Float[Tensor, "b t d"]]
) -> Float[Tensor, "b t d"]:
    """Return the output of attention, an MLP or an attention head, by running its block alone.

    The output of a head is what it adds to the output of attention.

    Args:
        model: The model.
        sites: Its hook points, which capture outputs.
        hook_point: Its site and layer, and the index of the head or None.
        states: The model's states before block 0 and after each block.
    """
    outputs: dict[str, Tensor] = {}  # filled while the block runs
    before = states[hook_point.layer]
    all_heads = Place(hook_point.site, hook_point.layer)  # the hook point without its head, if any
    with sites.captured(all_heads, "output", before.shape[:2], outputs):
        model.advance(before, hook_point.layer, hook_point.layer + 1)
    if hook_point.head is None:
        return outputs["output"]
    return sites.output_of_head(hook_point, outputs["output"])


@dataclass(frozen=True)
class _OutputExchange:
    """The base and the changed model, whose outputs are exchanged.

    Attributes:
        base: The base.
        changed: The changed model.
        base_sites, changed_sites: The hook points of each, at which outputs are captured and
            replaced.
    """

    base: FrozenModel
    changed: FrozenModel
    base_sites: Sites
    changed_sites: Sites

    def kl_alone(self, batch: BatchStates, hook_point: Place) -> Float[Tensor, " n"]:
        """Return KL(base ‖ base with the changed model's output at a hook point) of each token."""
        output = output_at(self.changed, self.changed_sites, hook_point, batch.changed)
        with self.base_sites.replaced(hook_point, output):
            return batch.kl(self.base, hook_point.layer, batch.base)

    def kl_without_and_alone(
        self, batch: BatchStates, hook_point: Place
    ) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        """Return the KL from the base of each model with the output of the other model put in.

        The first result is KL(base ‖ changed model with the base's output at the hook point), the
        second is KL(base ‖ base with the changed model's output), in nats for each token. Equal
        outputs are not exchanged: replacing the output of a head takes arithmetic, whose rounding
        would count as an effect.
        """
        base_output = output_at(self.base, self.base_sites, hook_point, batch.base)
        changed_output = output_at(self.changed, self.changed_sites, hook_point, batch.changed)
        if _are_equal(base_output, changed_output):
            # The changed model stays as it is; no block runs, only its prediction is computed. The
            # base stays as it is too, and does not differ from itself.
            kl = batch.kl(self.changed, self.changed.n_layers, batch.changed)
            return kl, torch.zeros_like(kl)
        with self.changed_sites.replaced(hook_point, base_output):
            without = batch.kl(self.changed, hook_point.layer, batch.changed)
        with self.base_sites.replaced(hook_point, changed_output):
            alone = batch.kl(self.base, hook_point.layer, batch.base)
        return without, alone

    def with_greatest_effect(
        self, batch: BatchStates, hook_points: Sequence[Place], count: int
    ) -> list[Place]:
        """Return the hook points at which the changed model's output changes the base most.

        They have the greatest mean KL(base ‖ base with the changed model's output at the hook
        point), and are sorted by it, the greatest first. If all are returned, they are in the
        given order, and no model runs.

        Args:
            batch: Some rows with the states of both models.
            hook_points: The hook points among which to choose.
            count: How many are returned; all, if there are no more.
        """
        if count >= len(hook_points):
            return list(hook_points)
        mean_kl = {}
        for hook_point in hook_points:
            mean_kl[hook_point] = float(self.kl_alone(batch, hook_point).mean())
        return sorted(hook_points, key=lambda hook_point: -mean_kl[hook_point])[:count]

    def shared_layers(self, site: str) -> list[int]:
        """Return the indices of the blocks with this site, such as "mlp_out", in both models."""
        changed_layers = self.changed_sites.layers(site)
        return [layer for layer in self.base_sites.layers(site) if layer in changed_layers]


def _are_equal(x: Tensor, y: Tensor) -> bool:
    """Return whether two tensors, which may be on different devices, have the same entries."""
    return x.dtype == y.dtype and torch.equal(x, y.to(x.device))


@torch.no_grad()
def exchange_outputs(
    base: FrozenModel, changed: FrozenModel, batches: Sequence[BatchStates], most_outputs: int
) -> dict[Place, PartChanges]:
    """Return what each output does, of attention, an MLP or a head, by exchanging it.

    The output of one model, with all that comes from the blocks before, replaces that of the
    other. A site that the blocks of one model lack, as where an adapter stands around attention,
    is left out. The output of a head is what it adds to the output of attention, z W_O^h, so that
    a tuning of the output projection is found in the heads, too; the bias belongs to no head.

    Args:
        base: The base model.
        changed: The changed model.
        batches: The states of both models on all of the text.
        most_outputs: How many outputs of attention and MLPs are exchanged: those with the greatest
            KL alone at few tokens. The heads of such attention are exchanged as well: all of them
            if there are at most `FEW_HEADS`, else as many as outputs, chosen likewise.
    """
    if most_outputs < 1:
        return {}
    exchange = _OutputExchange(base, changed, Sites(base, [], None), Sites(changed, [], None))
    few_rows = _first_rows_for_screening(batches)

    modules = []
    for site in ("attn_out", "mlp_out"):
        modules += [Place(site, layer) for layer in exchange.shared_layers(site)]
    exchanged_points = exchange.with_greatest_effect(few_rows, modules, most_outputs)

    layers_with_heads = exchange.shared_layers("z")
    heads = []
    for hook_point in exchanged_points:
        if hook_point.site == "attn_out" and hook_point.layer in layers_with_heads:
            n_heads = exchange.base_sites.n_heads
            heads += [Place("z", hook_point.layer, head) for head in range(n_heads)]
    most_heads = len(heads) if len(heads) <= FEW_HEADS else most_outputs
    exchanged_points += exchange.with_greatest_effect(few_rows, heads, most_heads)

    changes = {}
    for hook_point in counted(exchanged_points, "output"):
        kl_of_batches = [exchange.kl_without_and_alone(batch, hook_point) for batch in batches]
        without, alone = map(torch.cat, zip(*kl_of_batches, strict=True))
        changes[hook_point] = PartChanges(None, without, alone)
    return changes
