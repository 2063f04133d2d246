"""From a configuration to packed rows of tokens, through the cache."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from thinkalike.config import DataConfig
from thinkalike.data.cache import Entry, cache_folder, kept
from thinkalike.data.documents import text_fingerprint
from thinkalike.data.rows import Corpus, OneTokenizer, SourceText, pack, remedy
from thinkalike.digests import tokenizer_fingerprint

log = logging.getLogger(__name__)

CACHE_VERSION = 4
ALIGNMENT_VERSION = 1  # raised where a change moves states to other tokens
BEGINNINGS_VERSION = 1  # raised where a change ends the documents of a report elsewhere

REPORT_TOKENS = 262144
DOCUMENTS = 100  # that a report should hold
BYTES = 2  # of text, which most tokens have at least
FEWEST_BYTES = 1000  # of a document that is cut


def read_corpus(
    data: DataConfig,
    tokenizer: Any,
    context: int,
    *,
    bos: bool,
    fit_tokens: int | None,
    source: SourceText | None = None,
    whole: bool = False,
    quota: str | None = None,
) -> Corpus:
    """Tokenise and pack as many documents as both sides need, or read them from the cache.

    Args:
        data: the text; its context, bos and fit_tokens, if set, replace the ones given here.
        context: tokens per row, BOS included.
        bos: whether each row begins with BOS.
        fit_tokens: how many tokens to fit on; None takes all that there are.
        source: a model that reads the same text with another tokenizer; rows are then `PairedRows`.
        whole: read whole documents for the report, where intervals are not over documents, not only their beginnings.
        quota: the setting that says how much text the report has, for messages; None: data.report_tokens.

    Raises:
        DataError: there is no text, or too little for the report; see `pack_pairs`.
    """
    context, bos = data.context or context, bos if data.bos is None else data.bos
    fit_tokens, report_tokens = data.fit_tokens or fit_tokens, data.report_tokens or REPORT_TOKENS
    source = replace(source, bos=bos) if source and data.bos is not None else source
    quota = quota or f"data.report_tokens={report_tokens}"
    most_bytes = None if whole else beginning_bytes(report_tokens)
    request = {
        "version": CACHE_VERSION,
        "tokenizer": tokenizer_fingerprint(tokenizer),
        "source": text_fingerprint(data),
        "context": context,
        "bos": bos,
        "fit_tokens": fit_tokens,
        "report_tokens": report_tokens,
        "report_share": data.report_share,
        "same_split": data.same_split,
        "aligned": data.aligned,
    }
    if source:
        read_by = tokenizer_fingerprint(source.tokenizer), source.bos, source.context
        request |= {"read_by": read_by, "alignment": ALIGNMENT_VERSION}
    if most_bytes:
        request |= {"most_bytes": most_bytes, "beginnings": BEGINNINGS_VERSION}

    def packed() -> Entry:
        counts = (fit_tokens, report_tokens, most_bytes)
        if source:
            from thinkalike.data.paired import pack_pairs

            return pack_pairs(data, tokenizer, source, context, bos, *counts).entry()
        return pack(data, OneTokenizer(tokenizer, bos), context, *counts, quota).entry()

    name = hashlib.sha256(json.dumps(request).encode()).hexdigest()[:16]
    corpus = Corpus.of(kept(cache_folder(data) / "tokens" / f"{name}.safetensors", packed))
    _log(data, corpus.counts, context, report_tokens, None if most_bytes is None else quota)
    return corpus


def _log(config: DataConfig, counts: Mapping[str, int], context: int, report_tokens: int, quota: str | None) -> None:
    """Log how much text there is, and warn of a report of few documents, unless it has no quota of them."""
    log.info(
        "data {name}: {fit_tokens:,} fit and {report_tokens:,} report tokens of {fit_documents:,} and "
        "{report_documents:,} documents; dropped: {dropped_tokens:,} tokens of last rows, {duplicate_documents:,} "
        "copies, {near_duplicates:,} documents of the report that nearly repeat one to fit on".format(
            name=config.name, **counts
        )
    )
    if quota and counts["report_documents"] < DOCUMENTS:
        log.warning(
            "warning: data %s: the report has %d documents, and fewer than %d make wide intervals; %s",
            *(config.name, counts["report_documents"], DOCUMENTS),
            remedy(config, counts, context, report_tokens, quota),
        )


def beginning_bytes(report_tokens: int) -> int:
    """Return how many bytes in UTF-8 of each document a report reads, so that it holds `DOCUMENTS` of them.

    Bytes are counted and not tokens, so that models with different tokenizers read the same text.
    """
    return max(BYTES * report_tokens // DOCUMENTS, FEWEST_BYTES)
