"""Text that two language models write together: each token by their amplified difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.measures.amplified import amplified_choice
from thinkalike.models.frozen import FrozenModel


@dataclass(frozen=True)
class AmplifiedText:
    """Continuations of b beginnings.

    Attributes:
        tokens: The tokens that follow each beginning.
        lead: The mean of log q - log p over these tokens, in nats per token: how much more the
            changed model expects the text than the base does.
    """

    tokens: Int[Tensor, "b steps"]
    lead: Float[Tensor, " b"]


@torch.no_grad()
def amplified_text(
    base: FrozenModel,
    changed: FrozenModel,
    beginnings: Sequence[Sequence[int]],
    factors: Sequence[float],
    steps: int,
) -> AmplifiedText:
    """Continue texts greedily by the amplified difference, see `amplified_choice`.

    Each step is a whole pass of both models over all texts. Shorter texts are filled up behind
    their end, where a model that reads forwards does not look.

    Args:
        base: The base, which reads forwards.
        changed: The changed model, of the same tokenizer; the base itself: its greedy text.
        beginnings: The tokens of each beginning, at least one.
        factors: The factor of each beginning.
        steps: How many tokens follow.
    """
    lengths = torch.tensor([len(beginning) for beginning in beginnings])
    rows = torch.arange(len(beginnings))
    factor_of_row = torch.tensor(factors)
    tokens = torch.zeros(len(beginnings), int(lengths.max()) + steps, dtype=torch.long)
    for row, beginning in enumerate(beginnings):
        tokens[row, : len(beginning)] = torch.tensor(beginning)

    chosen = []
    leads = []
    for step in range(steps):
        ends = lengths + step
        read = tokens[:, : int(ends.max())]
        base_logs = log_probabilities_after(base, read, ends)
        changed_logs = base_logs
        if changed is not base:
            changed_logs = log_probabilities_after(changed, read, ends)
        choice = amplified_choice(base_logs, changed_logs, factor_of_row)
        tokens[rows, ends] = choice
        chosen.append(choice)
        leads.append((changed_logs - base_logs)[rows, choice])
    return AmplifiedText(torch.stack(chosen, 1), torch.stack(leads, 1).mean(1))


def log_probabilities_after(
    model: FrozenModel, tokens: Int[Tensor, "b t"], lengths: Int[Tensor, " b"]
) -> Float[Tensor, "b v"]:
    """Return the log-probabilities of what follows the first tokens of each row.

    Args:
        model: A language model that reads forwards.
        tokens: The rows.
        lengths: How many tokens of each row are read.
    """
    states = model.head(tokens, model.n_layers - 1)
    rows = torch.arange(len(tokens), device=states.device)
    last_states = states[rows, lengths.to(states.device) - 1]  # (b, d)
    return model.finish(last_states).float().log_softmax(-1).cpu()
