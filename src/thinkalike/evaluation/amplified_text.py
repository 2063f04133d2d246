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
        mean_log_ratio: The mean of log q - log p over these tokens, in nats per token, with p and
            q their probabilities in the base and in the changed model: how much more the changed
            model expects the text.
    """

    tokens: Int[Tensor, "b steps"]
    mean_log_ratio: Float[Tensor, " b"]


@torch.no_grad()
def amplified_text(
    base: FrozenModel,
    changed: FrozenModel,
    beginnings: Sequence[Sequence[int]],
    factors: Sequence[float],
    steps: int,
) -> AmplifiedText:
    """Continue texts by tokens that amplify how a changed model differs from its base.

    Each next token maximises log q + α (log q - log p), see `amplified_choice`. Each step is a
    whole pass of both models over all texts. Shorter texts are padded at their end, which causal
    models do not see.

    Args:
        base: The base, a causal language model.
        changed: The changed model, of the same tokenizer. If it is the base itself, the text is
            the base's greedy continuation.
        beginnings: The token ids of each beginning, at least one.
        factors: The factor α of each beginning.
        steps: How many tokens follow.
    """
    lengths = torch.tensor([len(beginning) for beginning in beginnings])
    rows = torch.arange(len(beginnings))
    factor_of_row = torch.tensor(factors)
    tokens = torch.zeros(len(beginnings), int(lengths.max()) + steps, dtype=torch.long)
    for row, beginning in enumerate(beginnings):
        tokens[row, : len(beginning)] = torch.tensor(beginning)

    chosen_tokens = []
    log_ratios = []  # log q - log p of each chosen token
    for step in range(steps):
        ends = lengths + step
        tokens_so_far = tokens[:, : int(ends.max())]
        base_logs = log_probabilities_after(base, tokens_so_far, ends)
        changed_logs = base_logs
        if changed is not base:
            changed_logs = log_probabilities_after(changed, tokens_so_far, ends)
        chosen = amplified_choice(base_logs, changed_logs, factor_of_row)
        tokens[rows, ends] = chosen
        chosen_tokens.append(chosen)
        log_ratios.append((changed_logs - base_logs)[rows, chosen])
    mean_log_ratio = torch.stack(log_ratios, 1).mean(1)
    return AmplifiedText(torch.stack(chosen_tokens, 1), mean_log_ratio)


def log_probabilities_after(
    model: FrozenModel, tokens: Int[Tensor, "b t"], lengths: Int[Tensor, " b"]
) -> Float[Tensor, "b v"]:
    """Return the log-probabilities of the token after the first `lengths` tokens of each row.

    Args:
        model: A causal language model.
        tokens: The token ids of the rows.
        lengths: How many tokens of each row count, at least one; further ones are ignored.
    """
    states = model.head(tokens, model.n_layers - 1)  # after the last block
    rows = torch.arange(len(tokens), device=states.device)
    last_states = states[rows, lengths.to(states.device) - 1]  # (b, d)
    return model.finish(last_states).float().log_softmax(-1).cpu()
