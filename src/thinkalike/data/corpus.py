"""Text as rows of token ids, read through the cache.

A report may read only the beginning of each document, so that it has many documents of about one
length rather than a few long ones. Intervals are over documents, and a document that has most of
the tokens decides most of the mean.
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from thinkalike.advice import named_setting, text_label
from thinkalike.code_text import runs_code_of_user
from thinkalike.config import DataConfig
from thinkalike.data.cache import CacheEntry, cache_folder, read_or_compute
from thinkalike.data.documents import (
    beginning_bytes,
    text_fingerprint,
)
from thinkalike.data.packing import TextLimits, TokenizerReader, pack
from thinkalike.data.rows import Corpus, PairedRows, SourceTokens, TokenRows
from thinkalike.digests import tokenizer_fingerprint
from thinkalike.errors import DataError
from thinkalike.measures.document_order import neighbour_correlation

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from thinkalike.data.paired import SourceTokenizer

log = logging.getLogger(__name__)

CACHE_VERSION = 4
"""Raised where a change packs other tokens, or stores the rows of one tokenizer differently."""

ALIGNMENT_VERSION = 2
"""Raised where a change aligns tokens differently, or stores the rows of two differently."""

BEGINNINGS_VERSION = 1
"""Raised where a change ends the documents of a report elsewhere."""

SPLIT_IN_WORDS = {"fit": "fitting", "report": "evaluation"}
"""What messages call the two splits of a text; stored counts have the short names."""

REPORT_TOKENS = 262144
"""How many tokens the report has if `data.evaluation_tokens` is not set."""


def read_corpus(
    data: DataConfig,
    tokenizer: PreTrainedTokenizerBase,
    context: int,
    *,
    bos: bool,
    fit_tokens: int | None,
    source: SourceTokenizer | None = None,
    whole: bool = False,
) -> Corpus:
    """Return rows to fit on and rows for evaluation (the report), made now or read from the cache.

    Args:
        data: The text. Its context, bos and fit_tokens replace the arguments of the same names
            where they are set.
        tokenizer: The target's tokenizer.
        context: How many tokens a row has, BOS included.
        bos: Whether each row begins with BOS.
        fit_tokens: How many tokens to fit on. None takes all that there are; 0 fits nothing.
        source: A source that reads the same text with another tokenizer. The rows then have the
            tokens of both models (`PairedRows`).
        whole: Read whole documents for the report, and not only their beginnings. This is for
            reports whose intervals are not over documents.

    Raises:
        DataError: There is too little text, it cannot be read, the tokenizer lacks EOS or BOS, or
            `data.group` is set for models with different tokenizers.
    """
    context = data.context or context
    if data.bos is not None:
        bos = data.bos
        if source is not None:
            source = replace(source, bos=bos)
    if fit_tokens != 0:
        fit_tokens = data.fit_tokens or fit_tokens
    evaluation_tokens = data.evaluation_tokens or REPORT_TOKENS
    if source is not None and data.group:
        raise DataError(
            f"{named_setting('data.group')} is for models that cut text alike, and these have "
            "different tokenizers"
        )
    document_bytes = None if whole else beginning_bytes(evaluation_tokens)
    limits = TextLimits(fit_tokens, evaluation_tokens, document_bytes)

    def compute() -> CacheEntry:
        """Tokenise the text and pack it into rows, with the source's tokens if it has its own."""
        if source is not None:
            corpus = source.pack(data, tokenizer, context, bos, limits)
        else:
            corpus = pack(data, TokenizerReader(tokenizer, bos), context, limits)
        return _named_tensors(corpus)

    tokenizers = [tokenizer]
    if source is not None:
        tokenizers.append(source.tokenizer)
    if any(map(runs_code_of_user, tokenizers)):
        # What code of the user does at the next call cannot be known, so nothing is cached.
        corpus = _corpus_of(compute())
    else:
        name = _cache_name(data, tokenizer, context, bos, limits, source)
        path = cache_folder(data) / "tokens" / f"{name}.safetensors"
        corpus = _corpus_of(read_or_compute(path, compute))

    counts = []
    for name, count in corpus.counts.items():
        words = [SPLIT_IN_WORDS.get(word, word) for word in name.split("_")]
        counts.append(f"{count:,} {' '.join(words)}")
    log.info("%s: %s", text_label(data.name), ", ".join(counts))
    if data.group is None:
        _warn_of_similar_neighbours(data, corpus.report)
    return corpus


def _warn_of_similar_neighbours(data: DataConfig, rows: TokenRows) -> None:
    """Log a warning if consecutive documents of the evaluation text resemble each other.

    Intervals resample documents as if they were independent, and come out too narrow then.
    """
    correlation = neighbour_correlation(rows.tokens, rows.documents)
    if correlation:  # 0 if it is no larger than in a random order
        log.warning(
            f"warning: {text_label(data.name)}: documents that follow each other are alike "
            f"(correlation {correlation:.2f}), and may be of one source: intervals are then too "
            f"narrow; see {named_setting('data.group')}"
        )


def _cache_name(
    data: DataConfig,
    tokenizer: PreTrainedTokenizerBase,
    context: int,
    bos: bool,
    limits: TextLimits,
    source: SourceTokenizer | None,
) -> str:
    """Return the name of a cache entry: a hash of everything that decides the packed rows.

    It has 16 hexadecimal digits. The settings of a source with another tokenizer, and the limit of
    bytes of each document, enter the hash only if there is such a source or limit.
    """
    request = {
        "version": CACHE_VERSION,
        "tokenizer": tokenizer_fingerprint(tokenizer),
        "source": text_fingerprint(data),  # of the text, and not of the source model
        "context": context,
        "bos": bos,
        "fit_tokens": limits.fit_tokens,
        "report_tokens": limits.evaluation_tokens,
        "report_share": data.evaluation_share,
        "same_split": data.same_split,
        "aligned": data.aligned,
    }
    if source is not None:
        source_fingerprint = tokenizer_fingerprint(source.tokenizer)
        request["read_by"] = (source_fingerprint, source.bos, source.context)
        request["alignment"] = ALIGNMENT_VERSION
    if limits.document_bytes:
        request["most_bytes"] = limits.document_bytes
        request["beginnings"] = BEGINNINGS_VERSION
    return hashlib.sha256(json.dumps(request).encode()).hexdigest()[:16]


def _named_tensors(corpus: Corpus) -> CacheEntry:
    """Return a corpus as a cache entry, whose tensors have names such as "fit.tokens".

    The splits are "fit" (text for fitting) and "report" (text for evaluation). The function
    `_corpus_of` makes the corpus again from the entry.
    """
    tensors: dict[str, Tensor] = {}
    for split, rows in {"fit": corpus.fit, "report": corpus.report}.items():
        tensors[f"{split}.tokens"] = rows.tokens
        tensors[f"{split}.documents"] = rows.documents
        if isinstance(rows, PairedRows):
            assert rows.source is not None
            tensors[f"{split}.source_tokens"] = rows.source.tokens
            tensors[f"{split}.source_positions"] = rows.source.positions
            tensors[f"{split}.source_documents"] = rows.source.documents
            tensors[f"{split}.target_bytes"] = rows.target_bytes
            tensors[f"{split}.source_bytes"] = rows.source_bytes
            tensors[f"{split}.document_hashes"] = rows.document_hashes
    return CacheEntry(tensors, corpus.counts)


def _corpus_of(entry: CacheEntry) -> Corpus:
    """Return the corpus that is stored in a cache entry, whose tensors `_named_tensors` made.

    The facts of the entry are the corpus's counts, such as that of its documents.
    """
    return Corpus(
        fit=_rows_of_split(entry.tensors, "fit"),
        report=_rows_of_split(entry.tensors, "report"),
        counts=entry.facts,
    )


def _rows_of_split(tensors: dict[str, Tensor], split: str) -> TokenRows:
    """Return the rows of one split, "fit" or "report", from the tensors of a cache entry.

    If the entry was made for a source with another tokenizer, the rows are `PairedRows`, which
    hold the source's tokens as well.
    """
    token_ids = tensors[f"{split}.tokens"]
    documents = tensors[f"{split}.documents"]
    if f"{split}.source_tokens" not in tensors:
        return TokenRows(token_ids, documents)
    source = SourceTokens(
        tokens=tensors[f"{split}.source_tokens"],
        positions=tensors[f"{split}.source_positions"],
        documents=tensors[f"{split}.source_documents"],
    )
    return PairedRows(
        token_ids,
        documents,
        source,
        target_bytes=tensors[f"{split}.target_bytes"],
        source_bytes=tensors[f"{split}.source_bytes"],
        document_hashes=tensors[f"{split}.document_hashes"],
    )
