"""What a change of a model does on text: to its predictions and states, part by part, and beside
random changes.

A part that differs is exchanged both ways, and so is the output of attention, of an MLP or of a
head. The pass begins at the block of the part, with the states that the model had before it, so
that later parts cost less. What a change without any aim does is seen in forks of a model, by
further training on its own text.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from thinkalike.data.rows import TokenRows
from thinkalike.measures import estimates
from thinkalike.measures.changes import (
    TokenChanges,
    beyond_null,
    divergence,
    relative_distance,
    signed_permutation,
    token_changes,
)
from thinkalike.models.families import EMBED, Place
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.parts import Part, common_weights, exchanged, moved
from thinkalike.models.sites import Sites
from thinkalike.models.survey import first_tensor
from thinkalike.processes import counted

AT_ONCE = 2**24  # logits of one model in memory
SCREENED = 128  # tokens that decide which parts are exchanged
STEP_TOKENS = 2048  # of a step of a fork
RATE = 3e-4  # of the first try
COMPARED = 2**16  # weights of a tensor, at most, by which changes are compared


class Change(NamedTuple):
    """What a change does at each of n tokens of text, in the order of rows, the last token of each
    row left out."""

    tokens: TokenChanges
    tops: Int[Tensor, "2 n"]  # the most likely next token before and after the change
    distance: Float[Tensor, "l n"]  # ‖y - x‖ / ‖x‖ of states before block 0 and after each block


class PartChanges(NamedTuple):
    """What one part does at each of n tokens; None where it was not tried."""

    entering: (
        Float[Tensor, " n"] | None
    )  # ‖y - x‖ / ‖x‖ after the block of the base that got this part
    without: Float[Tensor, " n"] | None  # KL(base ‖ changed model with the base's part) in nats
    alone: Float[Tensor, " n"] | None  # KL(base ‖ base with the changed part) in nats


@dataclass(frozen=True)
class Seen:
    """Rows of tokens, the states of both models at them by layer, and the base's log-probabilities
    of what follows."""

    tokens: Int[Tensor, "b t"]
    base: list[Float[Tensor, "b t d"]]
    changed: list[Float[Tensor, "b t d"]]
    logs: Float[Tensor, "n v"]

    def few(self, count: int) -> Seen:
        """Return the first rows."""
        base, changed = ([state[:count] for state in side] for side in (self.base, self.changed))
        return Seen(
            self.tokens[:count], base, changed, self.logs[: count * (self.tokens.shape[1] - 1)]
        )

    def kl(self, model: FrozenModel, start: int, states: Sequence[Tensor]) -> Float[Tensor, " n"]:
        """Return KL(base ‖ model) of each token, for a model that has these states before block
        `start`."""
        last = model.n_layers - 1
        end = (
            model.head(self.tokens, last)
            if start < 0
            else model.advance(states[start], start, last + 1)
        )
        return divergence(self.logs, log_probabilities(model, end)).cpu()

    def alone(self, base: FrozenModel, changed: FrozenModel, part: Part) -> Float[Tensor, " n"]:
        """Return KL(base ‖ base with the changed part) of each token."""
        with exchanged(base, changed, part):
            return self.kl(base, part.layer, self.base)

    def entering(self, base: FrozenModel, changed: FrozenModel, part: Part) -> Float[Tensor, " n"]:
        """Return how far the state moves in the block, or the embedding, of the base that gets the
        changed part."""
        with exchanged(base, changed, part):
            if part.layer < 0:
                state = base.head(self.tokens, EMBED)
            else:
                state = base.advance(self.base[part.layer], part.layer, part.layer + 1)
        return distances_of_tokens(self.base[part.layer + 1], state)

    def with_output(
        self, base: FrozenModel, changed: FrozenModel, place: Place, sites: tuple[Sites, Sites]
    ) -> Float[Tensor, " n"]:
        """Return KL(base ‖ base with the changed model's output at a place) of each token."""
        output = output_at(changed, sites[1], place, self.changed)
        with sites[0].replaced(place, output):
            return self.kl(base, place.layer, self.base)

    def without_output(
        self, base: FrozenModel, changed: FrozenModel, place: Place, sites: tuple[Sites, Sites]
    ) -> Float[Tensor, " n"]:
        """Return KL(base ‖ changed model with the base's output at a place) of each token."""
        output = output_at(base, sites[0], place, self.base)
        with sites[1].replaced(place, output):
            return self.kl(changed, place.layer, self.changed)


def output_at(
    model: FrozenModel, sites: Sites, place: Place, states: Sequence[Tensor]
) -> Float[Tensor, "b t d"]:
    """Return the output of a model at a place, of a head what it adds to attention's, from its
    states by layer."""
    found: dict[str, Tensor] = {}
    before = states[place.layer]
    with sites.captured(Place(place.site, place.layer), "output", before.shape[:2], found):
        model.advance(before, place.layer, place.layer + 1)
    output = found["output"]
    return output if place.head is None else sites.output_of_head(place, output)


@torch.no_grad()
def seen(
    base: FrozenModel, changed: FrozenModel, rows: TokenRows, first: int
) -> Iterator[tuple[Seen, Change]]:
    """Yield batches of rows; none has rows both before and after row `first`."""
    at_once = max(AT_ONCE // (base.vocabulary * rows.context), 1)
    layers = [EMBED, *range(base.n_layers)]
    parts = [
        part
        for whole in (rows.tokens[:first], rows.tokens[first:])
        for part in whole.long().split(at_once)
    ]
    for tokens in counted([part for part in parts if len(part)], "batch"):
        before, after = base.residuals(tokens, layers), changed.residuals(tokens, layers)
        logs, other = log_probabilities(base, before[-1]), log_probabilities(changed, after[-1])
        compared = token_changes(logs, other, tokens[:, 1:].flatten().to(base.device))
        tops = torch.stack([logs.argmax(1), other.argmax(1)]).cpu()
        distance = torch.stack(
            [distances_of_tokens(*each) for each in zip(before, after, strict=True)]
        )
        yield (
            Seen(tokens, before, after, logs),
            Change(TokenChanges(*(e.cpu() for e in compared)), tops, distance),
        )


def log_probabilities(model: FrozenModel, states: Float[Tensor, "b t d"]) -> Float[Tensor, "n v"]:
    """Return the log-probabilities of what follows each token but the last of a row."""
    return model.finish(states[:, :-1]).flatten(0, 1).float().log_softmax(-1)


def distances_of_tokens(
    x: Float[Tensor, "b t d"], y: Float[Tensor, "b t d"]
) -> Float[Tensor, " n"]:
    """Return the `relative_distance` of the states of each token but the last of a row."""
    return relative_distance(*(side[:, :-1].flatten(0, 1).double() for side in (x, y))).cpu()


@torch.no_grad()
def by_part(
    base: FrozenModel,
    changed: FrozenModel,
    parts: Sequence[Part],
    batches: Sequence[Seen],
    most: int,
    state: dict[str, Any] | None = None,
    keep: Callable[[dict[str, Any]], None] = lambda state: None,
) -> dict[Part, PartChanges]:
    """Return what each part that differs does, from the `state` of an earlier run; `keep` keeps
    one after each part.

    Of more parts of blocks than `most`, those with the greatest KL alone at about `SCREENED`
    tokens are exchanged.
    """
    if state is None:
        inside = [part for part in parts if part.layer < base.n_layers]
        entering = {
            str(part): torch.cat([own.entering(base, changed, part) for own in batches])
            for part in inside
        }
        blocks, least = [part for part in inside if part.layer >= 0], list[Part]()
        if len(blocks) > most:
            few = batches[0].few(max(SCREENED // batches[0].tokens.shape[1], 1))
            named = counted(blocks, "part at few tokens")
            alone = {part: float(few.alone(base, changed, part).mean()) for part in named}
            least = sorted(blocks, key=lambda part: alone[part])[:-most]
        tried = [str(part) for part in parts if part not in least]
        state = {"tried": tried, "entering": entering, "without": {}, "alone": {}}
    for part in counted([each for each in parts if str(each) in state["tried"]], "part"):
        if str(part) not in state["alone"]:
            with exchanged(changed, base, part):
                state["without"][str(part)] = torch.cat(
                    [own.kl(changed, part.layer, own.changed) for own in batches]
                )
            state["alone"][str(part)] = torch.cat(
                [own.alone(base, changed, part) for own in batches]
            )
            keep(state)
    kinds = [state[kind] for kind in ("entering", "without", "alone")]
    return {part: PartChanges(*(found.get(str(part)) for found in kinds)) for part in parts}


@torch.no_grad()
def by_output(
    base: FrozenModel, changed: FrozenModel, batches: Sequence[Seen], most: int
) -> dict[Place, PartChanges]:
    """Return what the exchange of one output alone does: of attention, of an MLP, or of a head of
    attention.

    The output of one model, with all that comes from the blocks before, takes the place of that of
    the other one. Of the outputs of attention and MLPs, the `most` with the greatest KL alone at
    about `SCREENED` tokens are exchanged, and as many heads of such attention. If the blocks of
    one model have no such site, as where an adapter stands around attention, there is none.
    """
    if most < 1:
        return {}
    sides = Sites(base, [], None), Sites(changed, [], None)
    few = batches[0].few(max(SCREENED // batches[0].tokens.shape[1], 1))

    def greatest(places: Sequence[Place]) -> list[Place]:
        kl = {
            place: float(few.with_output(base, changed, place, sides).mean()) for place in places
        }
        return sorted(places, key=lambda place: -kl[place])[:most]

    def shared_layers(site: str) -> list[int]:
        return [layer for layer in sides[0].layers(site) if layer in sides[1].layers(site)]

    modules = [
        Place(site, layer) for site in ("attn_out", "mlp_out") for layer in shared_layers(site)
    ]
    chosen = greatest(modules)
    with_heads = [
        place.layer
        for place in chosen
        if place.site == "attn_out" and place.layer in shared_layers("z")
    ]
    chosen += greatest(
        [Place("z", layer, head) for layer in with_heads for head in range(sides[0].n_heads)]
    )
    found = {}
    for place in counted(chosen, "output"):
        without = [seen.without_output(base, changed, place, sides) for seen in batches]
        alone = [seen.with_output(base, changed, place, sides) for seen in batches]
        found[place] = PartChanges(None, torch.cat(without), torch.cat(alone))
    return found


RandomChange = Callable[
    [Tensor, torch.Generator], Tensor
]  # as large as the change that it is given


@contextlib.contextmanager
def perturbed(
    base: FrozenModel,
    changed: FrozenModel,
    parts: Sequence[Part],
    seed: int,
    random_change: RandomChange = signed_permutation,
) -> Iterator[FrozenModel]:
    """Change parts of the base at random, as much as in the changed model, while open; see
    `signed_permutation`."""
    generator = estimates.seeded(seed)
    with moved(base, changed, parts, lambda name, change: random_change(change, generator)):
        yield base


def mean_over_documents(
    values: Float[Tensor, "*b n"],
    documents: Int[Tensor, " n"],
    level: float = 0.95,
    *,
    together: bool = False,
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> estimates.Estimate:
    """Return means over n tokens with intervals over documents, without ends if these are fewer
    than `FEWEST_GROUPS`.

    Each number of a document below the largest occurs; for `together` and `bounds` see
    `bootstrap_interval`.
    """
    count = int(documents.max()) + 1
    if count < estimates.FEWEST_GROUPS:
        return estimates.interval_around(values.double().mean(-1), math.inf)
    sums = estimates.sum_by_document(values, documents, count)
    tokens = torch.bincount(documents).double()
    return estimates.bootstrap_interval(
        sums, tokens, level=level, together=together, bounds=bounds
    )


def with_weights(model: FrozenModel, module: torch.nn.Module, name: str) -> FrozenModel:
    """Return a model that has another module of the same architecture, which is frozen."""
    other = copy(model)
    other.module, other.name = module.eval().requires_grad_(False), name
    other.blocks = list(module.get_submodule(model.family.blocks).children())
    return other


class Move(NamedTuple):
    """How one part of a model was changed."""

    weights: Float[Tensor, " n"]  # changed - base, of each tensor at most `COMPARED`
    largest: (
        float  # mean over its matrices of the log of the largest singular value of changed - base
    )


def moves(base: FrozenModel, changed: FrozenModel, parts: Sequence[Part]) -> list[Move]:
    """Return how each part was changed."""
    found = []
    for part in parts:
        changes = [
            (other - weight).float() for weight, other in common_weights(base, changed, part.paths)
        ]
        matrices = [each.flatten(1) for each in changes if each.dim() > 1] or [
            each[None] for each in changes
        ]
        wide = [each if each.shape[0] <= each.shape[1] else each.T for each in matrices]
        squares = [
            torch.linalg.eigvalsh((each @ each.T).double())[-1].clamp(min=1e-30) for each in wide
        ]
        weights = torch.cat([each.flatten()[:: -(-each.numel() // COMPARED)] for each in changes])
        found.append(Move(weights.cpu(), float(torch.stack(squares).log().mean()) / 2))
    return found


def beyond_forks(
    changed: Sequence[Move], forks: Sequence[Sequence[Move]]
) -> tuple[Float[Tensor, " p"], float]:
    """Return how far the change of each of p parts is beyond those of forks, and the p-value of
    the farthest.

    Two statistics go into `beyond_null`: the distance of the part's change from the mean over all
    runs, which holds what forks share, and its largest singular values, which are large where
    training had an aim. Another rate, batch size or weight decay than that of the forks moves most
    parts farther or less far. So a part is told apart by how far it moved beside the remaining
    parts.
    """
    statistics = []
    for part in zip(changed, *forks, strict=True):
        runs = torch.stack([move.weights for move in part])
        distances = (runs - runs.mean(0)).double().norm(dim=1).clamp(min=1e-15).log()
        largest = torch.tensor([move.largest for move in part], dtype=torch.float64)
        statistics.append(torch.stack([distances, largest], 1))
    values = torch.stack(statistics, 1)
    beyond, p = beyond_null(values[0], values[1:])
    return beyond, float(p)


def comparable_with_forks(base: FrozenModel, parts: Sequence[Part]) -> list[Part]:
    """Return the parts whose movement can be compared with that of forks: blocks' parts, such as
    attention and MLPs.

    How far embeddings and norms move depends on the optimiser's settings more than on the text.
    """
    return [
        part for part in parts if 0 <= part.layer < base.n_layers and part.component != "norms"
    ]


def fork(
    base: FrozenModel,
    rows: Int[Tensor, "rows t"],
    norm: float | None,
    seed: int,
    *,
    rate: float = RATE,
    steps: int = 40,
    paths: Sequence[str] = ("",),
) -> FrozenModel:
    """Return a copy of a model that was trained on, with the change of its weights scaled to a
    norm, if one is given.

    AdamW without weight decay, at a rate that falls linearly to 0, on batches of rows at random;
    of the modules of these `paths`, of which "" is the whole model.
    """
    module = deepcopy(base.module).requires_grad_(True)
    weights = list(
        {
            id(own): own for path in paths for own in module.get_submodule(path).parameters()
        }.values()
    )
    before = [weight.detach().clone() for weight in weights]
    distance = _train(base, module, weights, rows, seed, rate, steps)
    with torch.no_grad():
        for own, old in zip(weights, before, strict=True):
            own.copy_(old + (own - old) * (norm / distance if norm else 1.0))
    return with_weights(base, module, f"fork {seed}")


def rate_for(base: FrozenModel, rows: Int[Tensor, "rows t"], norm: float, steps: int) -> float:
    """Return the rate at which forks of this many steps move by about this norm, found in two
    tries."""
    rate = RATE
    for _ in range(2):
        module = deepcopy(base.module).requires_grad_(True)
        rate *= norm / _train(base, module, list(module.parameters()), rows, 0, rate, steps)
    return rate


def _train(
    base: FrozenModel,
    module: torch.nn.Module,
    weights: Sequence[Tensor],
    rows: Int[Tensor, "rows t"],
    seed: int,
    rate: float,
    steps: int,
) -> float:
    """Train these weights of a module, and return the norm of their change."""
    before, generator = [weight.detach().clone() for weight in weights], estimates.seeded(seed)
    optimizer = torch.optim.AdamW(weights, lr=rate, weight_decay=0.0)
    at_once = max(STEP_TOKENS // rows.shape[1], 1)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate * (1 - step / steps)
        tokens = (
            rows[torch.randint(len(rows), (at_once,), generator=generator)].long().to(base.device)
        )
        with torch.enable_grad():
            logits = first_tensor(module(tokens))[:, :-1]
            cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    pairs = zip(weights, before, strict=True)
    return float(sum((own.detach() - old).double().square().sum() for own, old in pairs)) ** 0.5
