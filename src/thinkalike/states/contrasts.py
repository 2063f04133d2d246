"""Texts to be continued, as a model reads them, and the log-probability gap between two continuations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from thinkalike.data.contrasts import Contrasts, Prompt, continuations
from thinkalike.models.frozen import FrozenModel
from thinkalike.states.tokens import last_tokens

AT_ONCE = 64  # texts


@dataclass(frozen=True)
class Prompts:
    """Texts as a model reads them, padded on the right."""

    tokens: Int[Tensor, "n t"]
    words: Int[Tensor, " n"]  # the place of the last token of the word of each
    ends: Int[Tensor, " n"]  # the place of the last token of each
    up: Bool[Tensor, "n v"]  # the next tokens that the feature makes likelier
    down: Bool[Tensor, "n v"]  # and less likely

    def batches(self) -> Iterator[tuple[slice, Prompts]]:
        """Yield some of the texts at a time, cut to the longest of them."""
        for first in range(0, len(self.tokens), AT_ONCE):
            part = slice(first, first + AT_ONCE)
            longest = int(self.ends[part].max()) + 1
            rest = (self.words[part], self.ends[part], self.up[part], self.down[part])
            yield part, Prompts(self.tokens[part, :longest], *rest)


def read_prompts(model: FrozenModel, contrasts: Contrasts) -> tuple[Prompts, Prompts]:
    """Return the texts of contrasts and their counterparts as a model reads them."""
    masks = continuations(contrasts, model.tokenizer, model.vocabulary)
    texts, counterparts = (_read(model, side, *masks) for side in (contrasts.texts, contrasts.counterparts))
    return texts, counterparts


def _read(model: FrozenModel, texts: Sequence[Prompt], up: Tensor, down: Tensor) -> Prompts:
    bos = model.tokenizer.bos_token_id
    first = [bos] if model.bos_each_row and bos is not None else []
    rows, words = [], []
    for text, span in texts:
        read = model.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        rows.append([*first, *read["input_ids"]])
        words.append(len(first) + last_tokens(text, [span], read["offset_mapping"], model.name)[0])
    tokens = pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    return Prompts(tokens, torch.tensor(words), torch.tensor([len(row) - 1 for row in rows]), up, down)


def gap(model: FrozenModel, state: Float[Tensor, "n t d"], prompts: Prompts) -> Float[Tensor, " n"]:
    logits = model.finish(state[torch.arange(len(state)), prompts.ends]).double().cpu()
    up, down = (logits.masked_fill(~mask, -torch.inf).logsumexp(1) for mask in (prompts.up, prompts.down))
    return up - down


@torch.no_grad()
def gaps(model: FrozenModel, prompts: Prompts) -> Float[Tensor, " n"]:
    """Return log P(up) - log P(down) for the token after each text, in nats."""
    last = model.n_layers - 1
    return torch.cat([gap(model, model.head(part.tokens, last), part) for _, part in prompts.batches()])
