"""From a configuration to packed rows of tokens, through the cache."""

from __future__ import annotations

import hashlib
import json
import logging
import math
from dataclasses import replace
from typing import Any

from thinkalike.config import DataConfig
from thinkalike.data.cache import Entry, cache_folder, kept
from thinkalike.data.documents import text_fingerprint
from thinkalike.data.packing import DOCUMENTS, OneTokenizer, SourceText, beginning_bytes, pack
from thinkalike.data.rows import Corpus
from thinkalike.tokenizers import tokenizer_fingerprint

log = logging.getLogger(__name__)

CACHE_VERSION = 4
ALIGNMENT_VERSION = 1  # raised where a change moves states to other tokens
BEGINNINGS_VERSION = 1  # raised where a change ends the documents of a report elsewhere


def read_tokens(
    config: DataConfig,
    tokenizer: Any,
    *,
    context: int,
    bos: bool,
    fit_tokens: int | None,
    report_tokens: int,
    source: SourceText | None = None,
    most_bytes: int | None = None,
) -> Corpus:
    """Tokenise and pack as many documents as both sides need, or read them from the cache.

    Args:
        context: tokens per row, BOS included.
        bos: whether each row begins with BOS.
        fit_tokens: how many tokens to fit on; None takes all that there are.
        report_tokens: how many tokens to report on.
        source: what else reads the text, with a tokenizer of its own; rows are then `PairedRows`.
        most_bytes: how much of each document the report reads, in bytes of UTF-8; None: all of it.

    Raises:
        DataError: there is no text, or too little for the report; see `pack_pairs`.
    """
    request = {
        "version": CACHE_VERSION,
        "tokenizer": tokenizer_fingerprint(tokenizer),
        "source": text_fingerprint(config),
        "context": context,
        "bos": bos,
        "fit_tokens": fit_tokens,
        "report_tokens": report_tokens,
        "report_share": config.report_share,
        "same_split": config.same_split,
        "aligned": config.aligned,
    }
    if source:
        read_by = tokenizer_fingerprint(source.tokenizer), source.bos, source.context
        request |= {"read_by": read_by, "alignment": ALIGNMENT_VERSION}
    if most_bytes:
        request |= {"most_bytes": most_bytes, "beginnings": BEGINNINGS_VERSION}
    name = hashlib.sha256(json.dumps(request).encode()).hexdigest()[:16]
    path = cache_folder(config) / "tokens" / f"{name}.safetensors"

    def packed() -> Entry:
        counts = (fit_tokens, report_tokens, most_bytes)
        if source:
            from thinkalike.data.paired import pack_pairs

            return pack_pairs(config, tokenizer, source, context, bos, *counts).entry()
        return pack(config, OneTokenizer(tokenizer, bos), context, *counts).entry()

    corpus = Corpus.of(kept(path, packed))
    _tell(config, corpus, context, source, most_bytes is not None)
    return corpus


def read_corpus(
    data: DataConfig,
    tokenizer: Any,
    context: int,
    *,
    bos: bool,
    fit_tokens: int | None,
    source: SourceText | None = None,
    whole: bool = False,
) -> Corpus:
    """Return the token rows that a configuration describes, with what it leaves open filled in.

    Args:
        context, bos: of the models that read them.
        fit_tokens: as many as training sees; None: all that there are.
        source: a model that reads the same text with another tokenizer.
        whole: read the documents of the report to their ends, where they are not what intervals are over. Otherwise
            their beginnings are read, so that they are many, and about equally long.

    Raises:
        DataError: see `read_tokens`.
    """
    report_tokens = data.report_tokens or 262144
    return read_tokens(
        data,
        tokenizer,
        context=data.context or context,
        bos=bos if data.bos is None else data.bos,
        fit_tokens=data.fit_tokens or fit_tokens,
        report_tokens=report_tokens,
        source=replace(source, bos=data.bos) if source and data.bos is not None else source,
        most_bytes=None if whole else beginning_bytes(report_tokens),
    )


def _tell(config: DataConfig, corpus: Corpus, context: int, source: SourceText | None, bounded: bool) -> None:
    """Log how much text there is, and how the tokens of two tokenizers go together."""
    counts = corpus.counts
    log.info(
        "data %s: %s fit and %s report tokens of %s and %s documents; dropped: %s tokens of last rows, %s copies, "
        "%s documents of the report that nearly repeat one to fit on",
        config.name,
        *(f"{counts[key]:,}" for key in ("fit_tokens", "report_tokens", "fit_documents", "report_documents")),
        *(f"{counts[key]:,}" for key in ("dropped_tokens", "duplicate_documents", "near_duplicates")),
    )
    if bounded and counts["report_documents"] < DOCUMENTS:
        is_full = counts["report_tokens"] + context > (config.report_tokens or math.inf)
        log.warning(
            "warning: data %s: the report has %d documents, and fewer than %d make wide intervals; %s",
            *(config.name, counts["report_documents"], DOCUMENTS),
            "raise data.report_tokens" if is_full else "give more text, or raise data.report_share",
        )
    if source:
        from thinkalike.data.paired import alignment_shares

        shares = alignment_shares(corpus)
        log.info(
            "of the target's report tokens %.1f %% end where one of %s does, %.1f %% take the state of an earlier one, "
            "and %.1f %% come before all of them in their document and row",
            100 * shares["exactly"],
            source.name,
            100 * shares["earlier"],
            100 * shares["nowhere"],
        )
        if corpus.report.context < context:
            log.info(
                "rows have %d of the target's tokens, not %d: %s reads at most %d, and it cuts the text into more",
                *(corpus.report.context, context, source.name, source.context),
            )
