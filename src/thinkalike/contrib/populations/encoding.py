"""Pairs of sentences as tokens, in padded batches."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from thinkalike.contrib.populations.pairs import Pairs
from thinkalike.errors import DataError

log = logging.getLogger(__name__)


@runtime_checkable
class PairTokenizer(Protocol):
    """What is used of a tokenizer of transformers."""

    cls_token_id: int | None
    sep_token_id: int | None
    pad_token_id: int | None

    def __call__(
        self, text: list[str], text_pair: list[str], **options: object
    ) -> Mapping[str, list[list[int]]]:
        """Return token ids ("input_ids") and types ("token_type_ids") of each pair of texts."""
        ...


@dataclass(frozen=True)
class PairBatch:
    """Some pairs, padded to one length.

    Attributes:
        tokens: The ids of the tokens, a row for each pair.
        mask: True where there is no padding.
        types: 0 in the premise, 1 in the hypothesis, and 0 in padding.
        pair_indices: The index of each of these pairs among all pairs.
    """

    tokens: Int[Tensor, "b t"]
    mask: Bool[Tensor, "b t"]
    types: Int[Tensor, "b t"]
    pair_indices: Int[Tensor, " b"]


@dataclass(frozen=True)
class EncodedPairs:
    """The tokens of pairs, without padding.

    Attributes:
        tokens: The ids of the tokens of each pair.
        types: 0 for a token of the premise, 1 for one of the hypothesis.
        padding: The id of the token that fills a row.
        truncated: How many pairs were cut.
    """

    tokens: list[list[int]]
    types: list[list[int]]
    padding: int
    truncated: int

    def __len__(self) -> int:
        return len(self.tokens)

    def batch(self, pair_indices: Sequence[int]) -> PairBatch:
        """Return the pairs at some indices, in the order of the indices, as one padded batch.

        Each row is padded at its end to the length of the longest pair in the batch.
        """
        lengths = [len(self.tokens[index]) for index in pair_indices]
        longest = max(lengths)
        padded_tokens = []
        padded_types = []
        for index, length in zip(pair_indices, lengths, strict=True):
            n_padding = longest - length
            padded_tokens.append(self.tokens[index] + [self.padding] * n_padding)
            padded_types.append(self.types[index] + [0] * n_padding)
        # (pairs, positions): True before the end of the pair, False in padding.
        is_token = torch.arange(longest) < torch.tensor(lengths)[:, None]
        return PairBatch(
            tokens=torch.tensor(padded_tokens),
            mask=is_token,
            types=torch.tensor(padded_types),
            pair_indices=torch.tensor(pair_indices),
        )


def encode_pairs(pairs: Pairs, tokenizer: PairTokenizer, context: int) -> EncodedPairs:
    """Tokenize pairs of sentences as [CLS] premise [SEP] hypothesis [SEP], without padding.

    A pair of more than `context` tokens is truncated: whichever text is longer at the moment loses
    its last token, until the pair fits. A warning says how many pairs were truncated.

    Args:
        pairs: The pairs as texts.
        tokenizer: The tokenizer of the model that reads them.
        context: How many tokens the model reads at most.

    Raises:
        DataError: The tokenizer writes pairs in a different form.
    """

    def tokenized(**options: object) -> Mapping[str, list[list[int]]]:
        """Return the token ids and the token types of each pair."""
        return tokenizer(
            pairs.premises, pairs.hypotheses, return_token_type_ids=True, verbose=False, **options
        )

    encoded = tokenized()
    tokens_of_first_pair = encoded["input_ids"][0]  # all pairs have the same form
    begins_with_cls = tokens_of_first_pair[0] == tokenizer.cls_token_id
    ends_with_sep = tokens_of_first_pair[-1] == tokenizer.sep_token_id
    if not (begins_with_cls and ends_with_sep):
        raise DataError(
            "the tokenizer does not write pairs as [CLS] premise [SEP] hypothesis [SEP]; "
            "use one of BERT's"
        )

    n_too_long = sum(len(tokens) > context for tokens in encoded["input_ids"])
    if n_too_long:
        encoded = tokenized(truncation="longest_first", max_length=context)
        log.warning(
            "%s: cut %s of %s pairs to %s tokens", pairs.source, n_too_long, len(pairs), context
        )
    padding = tokenizer.pad_token_id or 0  # without a padding token any id will do: it is masked
    return EncodedPairs(encoded["input_ids"], encoded["token_type_ids"], padding, n_too_long)


def padded_batches(encoded: EncodedPairs, size: int) -> Iterator[PairBatch]:
    """Yield all pairs in padded batches of at most `size`, the longest pairs first.

    Pairs of a batch have similar lengths, so that there is little padding, and a lack of memory
    shows in the first batch. `values[batch.pair_indices] = ...` puts results back in the order of
    the pairs.
    """
    longest_first = sorted(range(len(encoded)), key=lambda index: -len(encoded.tokens[index]))
    for start in range(0, len(longest_first), size):
        yield encoded.batch(longest_first[start : start + size])
