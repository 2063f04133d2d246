"""What a change of a model does on text, to its predictions and to its states."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.data.rows import TokenRows
from thinkalike.measures.changes import (
    TokenChanges,
    divergence,
    relative_distance,
    signed_permutation,
    token_changes,
)
from thinkalike.measures.seeds import seeded
from thinkalike.models.families import EMBED
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.parts import Part, weights_changed
from thinkalike.processes import counted

LOGITS_AT_ONCE = 2**24
"""How many logits of one model are in memory."""

RandomChange = Callable[[Tensor, torch.Generator], Tensor]
"""Returns a random change as large as the one that it is given."""


class Change(NamedTuple):
    """What a change does at each of n tokens of text.

    The tokens are in the order of rows, without the last of each row.
    """

    tokens: TokenChanges

    tops: Int[Tensor, "2 n"]
    """The most likely next token before and after the change."""

    distance: Float[Tensor, "l n"]
    """‖y - x‖ / ‖x‖ of states before block 0 and after each block; NaN where x is 0."""


@dataclass(frozen=True)
class BatchStates:
    """A batch of rows, with what both models make of it."""

    tokens: Int[Tensor, "b t"]

    base: list[Float[Tensor, "b t d"]]
    """The base's states before block 0 and after each block."""

    changed: list[Float[Tensor, "b t d"]]
    """The changed model's states before block 0 and after each block."""

    base_log_probabilities: Float[Tensor, "n v"]
    """What the base predicts after each token but the last of each row."""

    def first_rows(self, count: int) -> BatchStates:
        """Return the batch of only the first `count` rows, with their states and predictions."""
        prediction_count = count * (self.tokens.shape[1] - 1)  # none after the last token of a row
        return BatchStates(
            self.tokens[:count],
            [state[:count] for state in self.base],
            [state[:count] for state in self.changed],
            self.base_log_probabilities[:prediction_count],
        )

    def kl(
        self, model: FrozenModel, first_block: int, states: Sequence[Float[Tensor, "b t d"]]
    ) -> Float[Tensor, " n"]:
        """Return KL(base ‖ model) of the predictions after each token but the last of each row.

        It is in nats, on the CPU. The model is run from `first_block` on, so one of its parts may
        have been exchanged for that of the other model in this block, but in none before it.

        Args:
            model: The base or the changed model, as it is or with one part exchanged.
            first_block: The first block that is run; negative: the tokens are embedded again, too.
            states: The states of the model as it is, before block 0 and after each block. Entry
                `first_block` enters this block.
        """
        predictions = self.predictions(model, first_block, states)
        return divergence(self.base_log_probabilities, predictions).cpu()

    def predictions(
        self, model: FrozenModel, first_block: int, states: Sequence[Float[Tensor, "b t d"]]
    ) -> Float[Tensor, "n v"]:
        """Return the log-probabilities of a model after each token but the last of each row.

        The model is run from `first_block` on, so one of its parts may have been exchanged for
        that of the other model in this block, but in none before it.

        Args:
            model: The base or the changed model, as it is or with one part exchanged.
            first_block: The first block that is run; negative: the tokens are embedded again, too.
            states: The states of the model as it is, before block 0 and after each block. Entry
                `first_block` enters this block.
        """
        if first_block < 0:
            last = model.head(self.tokens, model.n_layers - 1)
        else:
            last = model.advance(states[first_block], first_block, model.n_layers)
        return log_probabilities(model, last).to(self.base_log_probabilities.device)


@torch.no_grad()
def compare_batches(
    base: FrozenModel, changed: FrozenModel, rows: TokenRows, divided_at: int
) -> Iterator[tuple[BatchStates, Change]]:
    """Run both models on all rows; yield the states of each batch and how the models differ.

    They are compared in their predictions after each token but the last of each row, in the most
    likely next token, and in the relative distance of their states before and after each block.

    Args:
        base, changed: The models, of one vocabulary and depth.
        rows: The rows of text.
        divided_at: The index of a row at which a new batch begins, so that a caller can treat the
            batches before and from it on as two texts.
    """
    batch_rows = max(LOGITS_AT_ONCE // (base.vocabulary * rows.context), 1)
    batches: list[Tensor] = []
    for token_ids in (rows.tokens[:divided_at], rows.tokens[divided_at:]):
        if len(token_ids):
            batches += token_ids.long().split(batch_rows)

    layers = [EMBED, *range(base.n_layers)]  # before block 0 and after each block
    for token_ids in counted(batches, "batch"):
        base_states = base.residuals(token_ids, layers)
        changed_states = changed.residuals(token_ids, layers)
        base_logs = log_probabilities(base, base_states[-1])
        changed_logs = log_probabilities(changed, changed_states[-1]).to(base_logs.device)
        next_tokens = token_ids[:, 1:].flatten().to(base.device)
        per_token = token_changes(base_logs, changed_logs, next_tokens)
        distances = []
        for base_state, changed_state in zip(base_states, changed_states, strict=True):
            distances.append(token_distances(base_state, changed_state))
        change = Change(
            tokens=TokenChanges(*(values.cpu() for values in per_token)),
            tops=torch.stack([base_logs.argmax(1), changed_logs.argmax(1)]).cpu(),
            distance=torch.stack(distances),
        )
        yield BatchStates(token_ids, base_states, changed_states, base_logs), change


def log_probabilities(model: FrozenModel, states: Float[Tensor, "b t d"]) -> Float[Tensor, "n v"]:
    """Return the log-probabilities of the next token after each token but the last of each row.

    They are in float32, for n = b (t - 1) tokens and a vocabulary of v.

    Args:
        model: The model, whose final norm and unembedding are used.
        states: Its states after its last block.
    """
    logits = model.finish(states[:, :-1]).flatten(0, 1)
    return logits.float().log_softmax(-1)


def token_distances(x: Float[Tensor, "b t d"], y: Float[Tensor, "b t d"]) -> Float[Tensor, " n"]:
    """Return ‖y - x‖ / ‖x‖ for each token but the last of each row, on the CPU.

    x and y are its states in two models. The last token is left out because its prediction is not
    compared, either: n = b (t - 1). The distance is NaN where x is 0, and ∞ where x or y is not
    finite.
    """
    flat_x = x[:, :-1].flatten(0, 1).double()
    flat_y = y[:, :-1].flatten(0, 1).to(x.device).double()
    # A state that is not finite gives NaN or ∞, and both become ∞.
    distances = relative_distance(flat_x, flat_y).nan_to_num(math.inf, posinf=math.inf)
    is_zero = (flat_x == 0).all(1)
    return distances.masked_fill(is_zero, math.nan).cpu()


@contextlib.contextmanager
def perturbed(
    base: FrozenModel,
    changed: FrozenModel,
    parts: Sequence[Part],
    seed: int,
    random_change: RandomChange = signed_permutation,
) -> Iterator[FrozenModel]:
    """Within this context, parts of the base are changed at random, as much as in another model.

    Args:
        base: The model, which is yielded, and which has its own weights again afterwards.
        changed: The changed model, whose weights minus the base's are the change of each weight.
        parts: The parts that are changed.
        seed: The seed of the random changes.
        random_change: Takes the change of a weight, and returns a random one of the same size; by
            default the same with rows and columns in random order and with random signs.
    """
    generator = seeded(seed)
    with weights_changed(
        base, changed, parts, lambda name, change: random_change(change, generator)
    ):
        yield base
