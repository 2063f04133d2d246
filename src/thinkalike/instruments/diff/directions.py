"""The principal directions of the change of states, and the tokens that they raise and lower."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from thinkalike.evaluation.changes import BatchStates
from thinkalike.evaluation.exchanges import PartChanges
from thinkalike.instruments.diff.observations import Observations
from thinkalike.measures.changes import directions_of_change
from thinkalike.measures.massive_rows import massive
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.parts import Part

TOKENS_NAMED = 6
"""So many tokens that a direction raises or lowers are named."""

STATES_READ = 64
"""A step is taken along a direction from so many states."""


def rows_of_directions(
    observed: Observations, batches: Sequence[BatchStates]
) -> list[dict[str, object]]:
    """Return a table row for each principal direction of the change of states.

    States are those after the block in which most of the change begins. There are no rows if
    states do not differ inside the blocks, or if the text is of one document: the directions of
    two halves of the documents are compared, which gives their stability. Massive states are left
    out: a few of them, such as those of first tokens, would decide the directions of all.

    Args:
        observed: The observations of the two models.
        batches: The first rows of text, with the states of both models.
    """
    part = _part_of_greatest_onset(observed.parts)
    if part is None:
        return []
    before = _states_after([batch.base for batch in batches], part.layer)
    after = _states_after([batch.changed for batch in batches], part.layer)
    # Documents with even numbers are the first half, the others the second one.
    is_first_half = (observed.documents(observed.n_first_rows) % 2 == 0).to(before.device)
    is_massive = _massive_states(before, after, [batch.base for batch in batches])
    before = before[~is_massive]
    after = after[~is_massive]
    is_first_half = is_first_half[~is_massive]
    is_all_one_half = not is_first_half.any() or bool(is_first_half.all())
    if is_all_one_half or torch.equal(before, after):
        return []

    change = after - before
    principal = directions_of_change(change, is_first_half)
    projections = change.double() @ principal.directions.T  # (n, k)
    typical_lengths = projections.square().mean(0).sqrt()
    rows: list[dict[str, object]] = []
    for index, direction in enumerate(principal.directions):
        step = typical_lengths[index] * direction
        raised, lowered = _tokens_raised_and_lowered(observed.base, before, step)
        rows.append(
            {
                "layer": part.layer,
                "direction": index + 1,
                "share_of_change": float(principal.share[index]),
                "stability": float(principal.stability[index]),
                "massive_states": int(is_massive.sum()),
                "raises": raised,
                "lowers": lowered,
            }
        )
    return rows


def _part_of_greatest_onset(parts: Mapping[Part, PartChanges]) -> Part | None:
    """Return the module in which states begin to differ most, by the mean onset over tokens.

    The onset is the relative change of states when this module alone is exchanged in the base.
    The function returns None if no module has an onset.

    Args:
        parts: What the exchange of each module does. The field `entering` has the onset at each
            token.
    """
    mean_onset = {}
    for part, changes in parts.items():
        if changes.entering is not None:
            mean_onset[part] = float(changes.entering.mean())
    if not mean_onset:
        return None
    return max(mean_onset, key=lambda part: mean_onset[part])


def _states_after(
    batches: Sequence[Sequence[Float[Tensor, "b t d"]]], layer: int
) -> Float[Tensor, "n d"]:
    """Return the states after a block, at all tokens but the last of each row.

    Args:
        batches: For each batch, its states before block 0 and then after each block.
        layer: The number of the block; -1 for the embedding.
    """
    states_of_batches = []
    for states_by_layer in batches:
        states = states_by_layer[layer + 1]  # entry 0 is before block 0; (rows, tokens, width)
        # The last token of a row is left out, as the row has no token after it to predict.
        states_of_batches.append(states[:, :-1].flatten(0, 1))
    return torch.cat(states_of_batches)


def _massive_states(
    before: Float[Tensor, "n d"],
    after: Float[Tensor, "n d"],
    batches: Sequence[Sequence[Float[Tensor, "b t d"]]],
) -> Bool[Tensor, " n"]:
    """Return a mask of the states that are left out: those that are massive in either model.

    Massive states are those of a few tokens that are so long that they would decide a direction.
    No state is left out if none is massive, or if only massive states differ between the models.

    Args:
        before: The states of the base after a block, at all tokens but the last of each row.
        after: The states of the changed model, at the same block and tokens.
        batches: The states of each batch by layer, which tell where its rows begin.
    """
    none_left_out = torch.zeros(len(before), dtype=torch.bool, device=before.device)
    # First tokens of rows are judged apart: attention often rests on them, which makes them long.
    is_first_by_batch = []
    for states_by_layer in batches:
        n_rows, n_tokens, _ = states_by_layer[0].shape
        is_first = torch.zeros(n_rows, n_tokens, dtype=torch.bool)
        is_first[:, 0] = True
        is_first_by_batch.append(is_first[:, :-1].flatten())  # nothing follows the last token
    is_massive = massive([before, after], torch.cat(is_first_by_batch))
    if is_massive is None:  # no state is massive
        return none_left_out
    is_massive = is_massive.to(before.device)
    if torch.equal(before[~is_massive], after[~is_massive]):
        return none_left_out
    return is_massive


@torch.no_grad()
def _tokens_raised_and_lowered(
    model: FrozenModel, states: Float[Tensor, "n d"], step: Float[Tensor, " d"]
) -> tuple[str, str]:
    """Return the tokens whose logits a step in state space raises most, and lowers most, as text.

    The step is added to about `STATES_READ` states. `model.finish` (the final norm and the
    unembedding) turns the states with and without the step into logits, and the difference of the
    logits is averaged over the states.

    Args:
        model: The model.
        states: States of the model, from which a few are taken at equal distances.
        step: The vector that is added to each of these states.
    """
    stride = max(len(states) // STATES_READ, 1)
    sampled_states = states[::stride]
    logits_before = model.finish(sampled_states)
    logits_after = model.finish(sampled_states + step.to(sampled_states))
    change_of_logits = (logits_after - logits_before).mean(0)
    raised = change_of_logits.topk(TOKENS_NAMED).indices.tolist()
    lowered = change_of_logits.topk(TOKENS_NAMED, largest=False).indices.tolist()
    return _tokens_in_quotes(model, raised), _tokens_in_quotes(model, lowered)


def _tokens_in_quotes(model: FrozenModel, tokens: Sequence[int]) -> str:
    """Return the texts of tokens, each in quotes, separated by spaces."""
    return " ".join(repr(model.tokenizer.decode([token])) for token in tokens)
