"""Pairs as the tokens that a classifier reads: [CLS] premise [SEP] hypothesis [SEP], in padded batches."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from thinkalike.data.inference.pairs import Pairs
from thinkalike.errors import DataError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PairBatch:
    """Some pairs, padded to the longest of them."""

    tokens: Int[Tensor, "b t"]
    mask: Bool[Tensor, "b t"]  # true where there is no padding
    types: Int[Tensor, "b t"]  # 0 in the premise, 1 in the hypothesis
    rows: Int[Tensor, " b"]  # which pairs these are


@dataclass(frozen=True)
class EncodedPairs:
    """The tokens of pairs, without padding, and how many pairs were cut."""

    tokens: list[list[int]]
    types: list[list[int]]
    padding: int
    truncated: int

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def longest(self) -> int:
        """The tokens of the longest pair."""
        return max(map(len, self.tokens))

    def batch(self, rows: Sequence[int], at_least: int = 0) -> PairBatch:
        """Return these pairs, in this order, padded to the longest of them, or further to `at_least` tokens."""
        shape = len(rows), max(at_least, *(len(self.tokens[row]) for row in rows))
        tokens, types = torch.full(shape, self.padding), torch.zeros(shape, dtype=torch.long)
        mask = torch.zeros(shape, dtype=torch.bool)
        for place, row in enumerate(rows):
            length = len(self.tokens[row])
            tokens[place, :length] = torch.tensor(self.tokens[row])
            types[place, :length] = torch.tensor(self.types[row])
            mask[place, :length] = True
        return PairBatch(tokens, mask, types, torch.tensor(rows))


def encode(pairs: Pairs, tokenizer: Any, context: int, truncate: bool = True) -> EncodedPairs:
    """Encode pairs as the tokenizer itself writes them.

    Args:
        context: the most tokens of a pair; in a longer one the longer text loses its end, token by token.
        truncate: whether that is allowed; the number of such pairs is logged.

    Raises:
        DataError: a pair is longer and `truncate` is false, `context` has no room for two texts, or the tokenizer sets
            no [CLS] and [SEP].
    """
    if context < (least := tokenizer.num_special_tokens_to_add(pair=True) + 2):
        raise DataError(f"context={context} has no room for a pair; {least} tokens are the least; raise it")
    encoded = _encoded(pairs, tokenizer)
    first = encoded["input_ids"][0]
    if tokenizer.cls_token_id is None or (first[0], first[-1]) != (tokenizer.cls_token_id, tokenizer.sep_token_id):
        raise DataError("the tokenizer does not write pairs as [CLS] premise [SEP] hypothesis [SEP]; use one of BERT's")
    lengths = [len(tokens) for tokens in encoded["input_ids"]]
    truncated = sum(length > context for length in lengths)
    if truncated and not truncate:
        row = next(row for row, length in enumerate(lengths) if length > context)
        raise DataError(
            f"{pairs.source} row {row + 1} has {lengths[row]} tokens, but context={context}; "
            "raise it, or allow truncation"
        )
    if truncated:
        encoded = _encoded(pairs, tokenizer, truncation="longest_first", max_length=context)
        log.warning("%s: cut %s of %s pairs to %s tokens", pairs.source, truncated, len(pairs), context)
    padding = tokenizer.pad_token_id or 0  # without a padding token any will do: the mask hides it
    return EncodedPairs(encoded["input_ids"], encoded["token_type_ids"], padding, truncated)


def _encoded(pairs: Pairs, tokenizer: Any, **options: Any) -> Any:
    return tokenizer(pairs.premises, pairs.hypotheses, return_token_type_ids=True, verbose=False, **options)


def batches(encoded: EncodedPairs, size: int) -> Iterator[PairBatch]:
    """Yield all pairs, those of a length together so that little is padded.

    The longest come first, as they need most memory.

    `values[batch.rows] = ...` puts results back in the order of the pairs.

    Raises:
        DataError: size is not positive.
    """
    if size < 1:
        raise DataError(f"size={size} must be at least 1; it is the number of pairs of a batch")
    order = sorted(range(len(encoded)), key=lambda row: -len(encoded.tokens[row]))
    for start in range(0, len(order), size):
        yield encoded.batch(order[start : start + size])
