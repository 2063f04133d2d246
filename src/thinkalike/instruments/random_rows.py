"""Held-out text in rows that are drawn at random over many documents."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from thinkalike.config import AnalyzeConfig
from thinkalike.data.corpus import read_corpus
from thinkalike.data.rows import TokenRows
from thinkalike.measures.seeds import seeded
from thinkalike.models.frozen import FrozenModel

TOKENS_PER_ROW = 64
"""The tokens of a row of text, unless `data.context` says otherwise."""

TOKENS_READ_PER_TOKEN_DRAWN = 8
"""More text is read than is drawn, so that the rows come from many documents."""

FEWEST_TOKENS_READ = 2**13
FEWEST_ROWS = 2


class RandomRows(NamedTuple):
    """Text of random rows."""

    rows: TokenRows
    """The rows that are drawn of the report's text."""

    fit: Int[Tensor, "rows t"]
    """The text to fit on."""

    facts: dict[str, object]
    """What the provenance of a result says of the text."""


def read_random_rows(
    config: AnalyzeConfig, tokens: int, model: FrozenModel, fit_tokens: int = 0
) -> RandomRows:
    """Return random rows of the evaluation text, and separate text to fit on.

    Several times more text is read than is drawn, so that the rows come from many documents. A
    text with fewer rows than are asked for is taken whole. The seed is fixed, so that every call
    draws the same rows. Rows are as long as `data.context` says, or else as `TOKENS_PER_ROW` or
    the model's context, whichever is less.

    Args:
        config: The job, which says which text is read.
        tokens: About how many tokens are drawn, in at least `FEWEST_ROWS` rows.
        model: The model whose tokenizer reads the text.
        fit_tokens: How many tokens of text to fit on are read.
    """
    row_length = config.data.context or min(TOKENS_PER_ROW, model.context)
    row_count = max(tokens // row_length, FEWEST_ROWS)
    tokens_read = max(TOKENS_READ_PER_TOKEN_DRAWN * row_count * row_length, FEWEST_TOKENS_READ)
    data = replace(config.data, evaluation_tokens=tokens_read)
    corpus = read_corpus(
        data, model.tokenizer, row_length, bos=model.bos_each_row, fit_tokens=fit_tokens
    )
    evaluation_rows = corpus.report
    drawn = torch.randperm(len(evaluation_rows), generator=seeded(0))[:row_count]
    facts = {"name": config.data.name, **corpus.facts()}
    return RandomRows(evaluation_rows.select(drawn), corpus.fit.tokens, facts)
