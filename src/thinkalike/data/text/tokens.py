"""From a configuration to packed rows of tokens, through the cache."""

from __future__ import annotations

import hashlib
import json
import logging
from typing import Any

from thinkalike.config import DataConfig
from thinkalike.data.text.cache import cache_folder, load_corpus, making, save_corpus
from thinkalike.data.text.documents import text_fingerprint
from thinkalike.data.text.packing import pack
from thinkalike.data.text.rows import Corpus
from thinkalike.tokenizers import tokenizer_fingerprint

log = logging.getLogger(__name__)

CACHE_VERSION = 3


def read_tokens(
    config: DataConfig, tokenizer: Any, *, context: int, bos: bool, fit_tokens: int | None, report_tokens: int
) -> Corpus:
    """Tokenise and pack as many documents as both sides need, or read them from the cache.

    Args:
        context: tokens per row, BOS included.
        bos: whether each row begins with BOS.
        fit_tokens: how many tokens to fit on; None takes all that there are.
        report_tokens: how many tokens to report on.

    Raises:
        DataError: there is no text, or too little for the report.
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
    name = hashlib.sha256(json.dumps(request).encode()).hexdigest()[:16]
    path = cache_folder(config) / "tokens" / f"{name}.safetensors"
    corpus = load_corpus(path)
    if corpus is None:
        with making(path):
            corpus = load_corpus(path)  # another process may have made it meanwhile
            if corpus is None:
                corpus = pack(config, tokenizer, context, bos, fit_tokens, report_tokens)
                save_corpus(path, corpus)
    counts = corpus.counts
    log.info(
        "data %s: %s fit and %s report tokens of %s and %s documents; dropped: %s tokens of last rows, %s copies, "
        "%s documents of the report that nearly repeat one to fit on",
        config.name,
        *(f"{counts[key]:,}" for key in ("fit_tokens", "report_tokens", "fit_documents", "report_documents")),
        *(f"{counts[key]:,}" for key in ("dropped_tokens", "duplicate_documents", "near_duplicates")),
    )
    return corpus
