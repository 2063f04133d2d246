"""What each part of a change does, found by exchanging parts or outputs of two models.

A part that differs is exchanged both ways, and so is the output of attention, of an MLP or of a
head. A pass begins at the block of the part, with the states that the model had before it, so that
later parts cost less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

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


class PartChanges(NamedTuple):
    """What one part does at each of n tokens; None where it was not exchanged."""

    entering: Float[Tensor, " n"] | None
    """‖y - x‖ / ‖x‖ after the block of the base that got this part."""

    without: Float[Tensor, " n"] | None
    """KL(base ‖ changed model with the base's part) in nats."""

    alone: Float[Tensor, " n"] | None
    """KL(base ‖ base with the changed part) in nats."""


def _few_rows(batches: Sequence[BatchStates]) -> BatchStates:
    """Return the first rows of the text, of about `SCREENING_TOKENS` tokens, at least one row.

    They are at most those of the first batch.
    """
    context = batches[0].tokens.shape[1]
    return batches[0].first_rows(max(SCREENING_TOKENS // context, 1))


def _kl_alone(
    batch: BatchStates, base: FrozenModel, changed: FrozenModel, part: Part
) -> Float[Tensor, " n"]:
    """Return KL(base ‖ base with the changed part) of each predicted token, in nats.

    Args:
        batch: The states of both models on some rows.
        base: The base model, which is left as it was.
        changed: The changed model.
        part: The part that is exchanged; blocks before its layer are not run again.
    """
    with exchanged(base, changed, part):
        return batch.kl(base, part.layer, batch.base)


def _kl_without(
    batch: BatchStates, base: FrozenModel, changed: FrozenModel, part: Part
) -> Float[Tensor, " n"]:
    """Return KL(base ‖ changed model with the base's part) of each predicted token, in nats.

    The arguments are those of `_kl_alone`; here the changed model is run.
    """
    with exchanged(changed, base, part):
        return batch.kl(changed, part.layer, batch.changed)


def _distance_entering(
    batch: BatchStates, base: FrozenModel, changed: FrozenModel, part: Part
) -> Float[Tensor, " n"]:
    """Return how far each state after a block moves when one part of it is the changed model's.

    For a part of the embedding, it is the state that enters block 0.

    Args:
        batch: Tokens, and the states of the base on them: `batch.base[l]` enters block l.
        base: The base.
        changed: The model that the part is taken from.
        part: The part that is exchanged.
    """
    with exchanged(base, changed, part):
        if part.layer < 0:
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
    state: dict[str, Any] | None = None,
    save: Callable[[dict[str, Any]], None] = lambda state: None,
) -> dict[Part, PartChanges]:
    """Return what each part that differs does.

    Args:
        base: The base model.
        changed: The changed model, with the same parts.
        parts: The parts that differ.
        batches: The states of both models on all of the text.
        most_parts: Of more parts of blocks, those with the greatest KL alone at few tokens are
            exchanged on all of the text.
        state: What an earlier run saved; None: there is none.
        save: Called with the state after each part.
    """
    if state is None:
        state = _screen_parts(base, changed, parts, batches, most_parts)
    exchanged_parts = [part for part in parts if str(part) in state["tried"]]
    for part in counted(exchanged_parts, "part"):
        name = str(part)
        if name in state["alone"]:
            continue
        without = [_kl_without(batch, base, changed, part) for batch in batches]
        alone = [_kl_alone(batch, base, changed, part) for batch in batches]
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
) -> dict[str, Any]:
    """Return the state of `exchange_parts` before any part was exchanged on all of the text.

    It is a dictionary of four entries: "tried", the names of the parts to exchange; "entering",
    what each part does to the states of its block; and "without" and "alone", which are empty yet.
    Of more than `most_parts` parts of blocks, those with the least KL alone at few tokens are not
    tried; all parts outside of blocks are.
    """
    entering = {}
    parts_of_blocks = []
    for part in parts:
        if part.layer >= base.n_layers:
            continue
        distances = [_distance_entering(batch, base, changed, part) for batch in batches]
        entering[str(part)] = torch.cat(distances)
        if part.layer >= 0:
            parts_of_blocks.append(part)

    left_out: list[Part] = []
    if len(parts_of_blocks) > most_parts:
        few_rows = _few_rows(batches)
        mean_kl = {}
        for part in counted(parts_of_blocks, "part at few tokens"):
            mean_kl[part] = float(_kl_alone(few_rows, base, changed, part).mean())
        left_out = sorted(parts_of_blocks, key=lambda part: mean_kl[part])[:-most_parts]
    tried = [str(part) for part in parts if part not in left_out]
    return {"tried": tried, "entering": entering, "without": {}, "alone": {}}


def output_at(
    model: FrozenModel, sites: Sites, hook_point: Place, states: Sequence[Float[Tensor, "b t d"]]
) -> Float[Tensor, "b t d"]:
    """Return the output of a model at a hook point.

    The output of a head is what it adds to that of attention. Only the block of the hook point
    runs.

    Args:
        model: The model.
        sites: Its sites, which capture outputs.
        hook_point: A site of a block, or a head of its attention.
        states: The model's states before block 0 and after each block.
    """
    outputs: dict[str, Tensor] = {}
    before = states[hook_point.layer]
    module = Place(hook_point.site, hook_point.layer)
    with sites.captured(module, "output", before.shape[:2], outputs):
        model.advance(before, hook_point.layer, hook_point.layer + 1)
    if hook_point.head is None:
        return outputs["output"]
    return sites.output_of_head(hook_point, outputs["output"])


@dataclass(frozen=True)
class _OutputExchange:
    """The base and the changed model, whose outputs are exchanged."""

    base: FrozenModel
    changed: FrozenModel
    base_sites: Sites
    changed_sites: Sites

    def kl_alone(self, batch: BatchStates, hook_point: Place) -> Float[Tensor, " n"]:
        """Return KL(base ‖ base with the changed model's output at a hook point) of each token."""
        output = output_at(self.changed, self.changed_sites, hook_point, batch.changed)
        with self.base_sites.replaced(hook_point, output):
            return batch.kl(self.base, hook_point.layer, batch.base)

    def kl_without(self, batch: BatchStates, hook_point: Place) -> Float[Tensor, " n"]:
        """Return KL(base ‖ changed model with the base's output at a hook point) of each token."""
        output = output_at(self.base, self.base_sites, hook_point, batch.base)
        with self.changed_sites.replaced(hook_point, output):
            return batch.kl(self.changed, hook_point.layer, batch.changed)

    def greatest(
        self, batch: BatchStates, hook_points: Sequence[Place], count: int
    ) -> list[Place]:
        """Return the `count` hook points with the greatest mean KL alone, the greatest first.

        They are fewer if there are not as many.
        """
        mean_kl = {}
        for hook_point in hook_points:
            mean_kl[hook_point] = float(self.kl_alone(batch, hook_point).mean())
        return sorted(hook_points, key=lambda hook_point: -mean_kl[hook_point])[:count]

    def shared_layers(self, site: str) -> list[int]:
        """Return the blocks that have a site in both models."""
        changed_layers = self.changed_sites.layers(site)
        return [layer for layer in self.base_sites.layers(site) if layer in changed_layers]


@torch.no_grad()
def exchange_outputs(
    base: FrozenModel, changed: FrozenModel, batches: Sequence[BatchStates], most_outputs: int
) -> dict[Place, PartChanges]:
    """Return what the exchange of one output does: of attention, of an MLP, or of a head.

    The output of one model, with all that comes from the blocks before, replaces that of the
    other. A site that the blocks of one model lack, as where an adapter stands around attention,
    is left out.

    Args:
        base: The base model.
        changed: The changed model.
        batches: The states of both models on all of the text.
        most_outputs: How many outputs of attention and MLPs are exchanged: those with the greatest
            KL alone at few tokens. As many heads of such attention are exchanged as well.
    """
    if most_outputs < 1:
        return {}
    exchange = _OutputExchange(base, changed, Sites(base, [], None), Sites(changed, [], None))
    few_rows = _few_rows(batches)

    modules = []
    for site in ("attn_out", "mlp_out"):
        modules += [Place(site, layer) for layer in exchange.shared_layers(site)]
    exchanged_points = exchange.greatest(few_rows, modules, most_outputs)

    layers_with_heads = exchange.shared_layers("z")
    heads = []
    for hook_point in exchanged_points:
        if hook_point.site == "attn_out" and hook_point.layer in layers_with_heads:
            n_heads = exchange.base_sites.n_heads
            heads += [Place("z", hook_point.layer, head) for head in range(n_heads)]
    exchanged_points += exchange.greatest(few_rows, heads, most_outputs)

    changes = {}
    for hook_point in counted(exchanged_points, "output"):
        without = [exchange.kl_without(batch, hook_point) for batch in batches]
        alone = [exchange.kl_alone(batch, hook_point) for batch in batches]
        changes[hook_point] = PartChanges(None, torch.cat(without), torch.cat(alone))
    return changes
