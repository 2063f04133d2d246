"""What a change of a model does on text: to its predictions and states, part by part, and beside random changes.

A part that differs is exchanged both ways. The pass begins at the block of the part, with the states that the model had
before it, so that later parts cost less.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.arguments import seeded
from thinkalike.data.corpus import TokenRows
from thinkalike.measures.changes import TokenChanges, divergence, relative_distance, signed_permutation, token_changes
from thinkalike.models.families import EMBED
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.parts import Part, exchanged, moved
from thinkalike.progress import counted

AT_ONCE = 2**24  # logits of one model in memory
SCREENED = 128  # tokens that decide which parts are exchanged


class Change(NamedTuple):
    """What a change does at each of n tokens of text, in the order of rows, the last token of each row left out."""

    tokens: TokenChanges
    tops: Int[Tensor, "2 n"]  # the most likely next token before and after the change
    distance: Float[Tensor, "l n"]  # ‖y - x‖ / ‖x‖ of states before block 0 and after each block


class PartChanges(NamedTuple):
    """What one part does at each of n tokens; None where it was not tried."""

    entering: Float[Tensor, " n"] | None  # ‖y - x‖ / ‖x‖ after the block of the base that got this part
    without: Float[Tensor, " n"] | None  # KL(base ‖ changed model with the base's part) in nats
    alone: Float[Tensor, " n"] | None  # KL(base ‖ base with the changed part) in nats


@dataclass(frozen=True)
class Seen:
    """Rows of tokens, the states of both models at them by layer, and the base's log-probabilities of what follows."""

    tokens: Int[Tensor, "b t"]
    base: list[Float[Tensor, "b t d"]]
    changed: list[Float[Tensor, "b t d"]]
    logs: Float[Tensor, "n v"]

    def few(self) -> Seen:
        """Return the first rows, of about `SCREENED` tokens."""
        count = max(SCREENED // self.tokens.shape[1], 1)
        base, changed = ([state[:count] for state in side] for side in (self.base, self.changed))
        return Seen(self.tokens[:count], base, changed, self.logs[: count * (self.tokens.shape[1] - 1)])

    def kl(self, model: FrozenModel, start: int, states: Sequence[Tensor]) -> Float[Tensor, " n"]:
        """Return KL(base ‖ model) of each token, for a model that has these states before block `start`."""
        last = model.n_layers - 1
        end = model.head(self.tokens, last) if start < 0 else model.advance(states[start], start, last + 1)
        return divergence(self.logs, log_probabilities(model, end)).cpu()

    def alone(self, base: FrozenModel, changed: FrozenModel, part: Part) -> Float[Tensor, " n"]:
        """Return KL(base ‖ base with the changed part) of each token."""
        with exchanged(base, changed, part):
            return self.kl(base, part.layer, self.base)

    def entering(self, base: FrozenModel, changed: FrozenModel, part: Part) -> Float[Tensor, " n"]:
        """Return how far the state moves in the block, or the embedding, of the base that gets the changed part."""
        with exchanged(base, changed, part):
            if part.layer < 0:
                state = base.head(self.tokens, EMBED)
            else:
                state = base.advance(self.base[part.layer], part.layer, part.layer + 1)
        return distances_of_tokens(self.base[part.layer + 1], state)


@torch.no_grad()
def seen(base: FrozenModel, changed: FrozenModel, rows: TokenRows, first: int) -> Iterator[tuple[Seen, Change]]:
    """Yield batches of rows; none has rows both before and after row `first`."""
    at_once = max(AT_ONCE // (base.vocabulary * rows.context), 1)
    layers = [EMBED, *range(base.n_layers)]
    parts = [part for whole in (rows.tokens[:first], rows.tokens[first:]) for part in whole.long().split(at_once)]
    for tokens in counted([part for part in parts if len(part)], "batch"):
        before, after = base.residuals(tokens, layers), changed.residuals(tokens, layers)
        logs, other = log_probabilities(base, before[-1]), log_probabilities(changed, after[-1])
        compared = token_changes(logs, other, tokens[:, 1:].flatten().to(base.device))
        tops = torch.stack([logs.argmax(1), other.argmax(1)]).cpu()
        distance = torch.stack([distances_of_tokens(*each) for each in zip(before, after, strict=True)])
        yield (
            Seen(tokens, before, after, logs),
            Change(TokenChanges(*(each.cpu() for each in compared)), tops, distance),
        )


def log_probabilities(model: FrozenModel, states: Float[Tensor, "b t d"]) -> Float[Tensor, "n v"]:
    """Return the log-probabilities of what follows each token but the last of a row."""
    return model.finish(states[:, :-1]).flatten(0, 1).float().log_softmax(-1)


def distances_of_tokens(x: Float[Tensor, "b t d"], y: Float[Tensor, "b t d"]) -> Float[Tensor, " n"]:
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
    """Return what each part that differs does.

    Of more parts of blocks than `most`, those with the greatest KL alone at about `SCREENED` tokens are exchanged.

    Args:
        state: what an earlier run kept.
        keep: keeps a state after each part.
    """
    if state is None:
        inside = [part for part in parts if part.layer < base.n_layers]
        entering = {str(part): torch.cat([own.entering(base, changed, part) for own in batches]) for part in inside}
        blocks, least = [part for part in inside if part.layer >= 0], list[Part]()
        if len(blocks) > most:
            few, named = batches[0].few(), counted(blocks, "part at few tokens")
            alone = {part: float(few.alone(base, changed, part).mean()) for part in named}
            least = sorted(blocks, key=lambda part: alone[part])[:-most]
        tried = [str(part) for part in parts if part not in least]
        state = {"tried": tried, "entering": entering, "without": {}, "alone": {}}
    for part in counted([each for each in parts if str(each) in state["tried"]], "part"):
        if str(part) not in state["alone"]:
            with exchanged(changed, base, part):
                state["without"][str(part)] = torch.cat([own.kl(changed, part.layer, own.changed) for own in batches])
            state["alone"][str(part)] = torch.cat([own.alone(base, changed, part) for own in batches])
            keep(state)
    kinds = [state[kind] for kind in ("entering", "without", "alone")]
    return {part: PartChanges(*(found.get(str(part)) for found in kinds)) for part in parts}


@contextlib.contextmanager
def perturbed(base: FrozenModel, changed: FrozenModel, seed: int) -> Iterator[FrozenModel]:
    """Change the base at random, and as much as the changed model, while this is open; see `signed_permutation`."""
    generator = seeded(seed)
    with moved(base, changed, lambda name, change: signed_permutation(change, generator)):
        yield base
