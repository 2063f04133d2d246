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


def directions_at(
    observed: Observations, batches: Sequence[BatchStates]
) -> list[dict[str, object]]:
    """Return the principal directions of the change of states, one row each.

    They are taken after the block at which most of the change enters. There are none if states do
    not differ inside the blocks, or if the text is of one document. Massive states are left out:
    a few of them, such as those of first tokens, would decide the directions of all.

    Args:
        observed: The observations of the two models.
        batches: The batches of the first rows.
    """
    part = _part_where_most_enters(observed.parts)
    if part is None:
        return []
    before = _states_after([batch.base for batch in batches], part.layer)
    after = _states_after([batch.changed for batch in batches], part.layer)
    is_first_half = (observed.documents(observed.first) % 2 == 0).to(before.device)
    is_massive = _massive_states(before, after, [batch.base for batch in batches])
    before = before[~is_massive]
    after = after[~is_massive]
    is_first_half = is_first_half[~is_massive]
    is_one_half = not is_first_half.any() or bool(is_first_half.all())
    if is_one_half or torch.equal(before, after):
        return []

    change = after - before
    principal = directions_of_change(change, is_first_half)
    along = change.double() @ principal.directions.T  # (n, k)
    sizes = along.square().mean(0).sqrt()
    rows: list[dict[str, object]] = []
    for index, direction in enumerate(principal.directions):
        raised, lowered = _tokens_moved(observed.base, before, sizes[index] * direction)
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


def _part_where_most_enters(parts: Mapping[Part, PartChanges]) -> Part | None:
    """Return the part at which states move most, on average; None if it is known of no part."""
    entering = {}
    for part, changes in parts.items():
        if changes.entering is not None:
            entering[part] = float(changes.entering.mean())
    if not entering:
        return None
    return max(entering, key=lambda part: entering[part])


def _states_after(
    batches: Sequence[Sequence[Float[Tensor, "b t d"]]], layer: int
) -> Float[Tensor, "n d"]:
    """Return the states after a block at all tokens but the last of each row.

    Args:
        batches: The states of each batch before block 0 and after each block.
        layer: The number of the block; -1 for the embedding.
    """
    return torch.cat([states[layer + 1][:, :-1].flatten(0, 1) for states in batches])


def _massive_states(
    before: Float[Tensor, "n d"],
    after: Float[Tensor, "n d"],
    batches: Sequence[Sequence[Float[Tensor, "b t d"]]],
) -> Bool[Tensor, " n"]:
    """Return which states are massive in either model, beside others that differ.

    Args:
        before: The states of the base.
        after: The same of the changed model.
        batches: The states of each batch, whose rows begin with their first token.
    """
    nothing = torch.zeros(len(before), dtype=torch.bool, device=before.device)
    begins = []
    for states in batches:
        is_first = torch.zeros(states[0].shape[:2], dtype=torch.bool)
        is_first[:, 0] = True
        begins.append(is_first[:, :-1].flatten())
    outliers = massive([before, after], torch.cat(begins))
    if outliers is None:
        return nothing
    outliers = outliers.to(before.device)
    if torch.equal(before[~outliers], after[~outliers]):
        return nothing
    return outliers


@torch.no_grad()
def _tokens_moved(
    model: FrozenModel, states: Float[Tensor, "n d"], step: Float[Tensor, " d"]
) -> tuple[str, str]:
    """Return the tokens whose logits a step raises most, and those that it lowers most.

    Logits are read by the final norm and the unembedding.

    Args:
        model: The model.
        states: Some states of which a few are stepped from.
        step: The step.
    """
    stride = max(len(states) // STATES_READ, 1)
    starts = states[::stride]
    change = (model.finish(starts + step.to(starts)) - model.finish(starts)).mean(0)
    raised = change.topk(TOKENS_NAMED).indices.tolist()
    lowered = change.topk(TOKENS_NAMED, largest=False).indices.tolist()
    return _tokens_in_quotes(model, raised), _tokens_in_quotes(model, lowered)


def _tokens_in_quotes(model: FrozenModel, tokens: Sequence[int]) -> str:
    """Return tokens in writing, each in quotes."""
    return " ".join(repr(model.tokenizer.decode([token])) for token in tokens)
