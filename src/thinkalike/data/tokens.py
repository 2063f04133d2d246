"""Packed token rows: documents are joined with EOS, cut into rows, and kept apart for fitting and for reporting.

Which side a document falls on is decided by a hash of its content, so a copy of a document is never on the other side
and the split does not move when files are added.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from thinkalike.config import DataConfig
from thinkalike.data.sources import content_hash, documents, identity
from thinkalike.errors import DataError

log = logging.getLogger(__name__)

CACHE_VERSION = 2


@dataclass(frozen=True)
class TokenRows:
    """Rows of tokens, and for every token the number of its document."""

    tokens: Int[Tensor, "rows context"]
    documents: Int[Tensor, "rows context"]

    def __len__(self) -> int:
        return self.tokens.shape[0]


@dataclass(frozen=True)
class Corpus:
    """What a job reads: rows to fit on, rows to report on, and the count of what was used and what was dropped."""

    fit: TokenRows
    report: TokenRows
    counts: dict[str, int]

    def fingerprint(self) -> str:
        """SHA-256 of all tokens of both sides, as 16 hexadecimal digits."""
        digest = hashlib.sha256()
        for rows in (self.fit, self.report):
            digest.update(rows.tokens.contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]

    def facts(self) -> dict[str, Any]:
        """What the provenance of a result says of it."""
        return {"tokens": self.fingerprint(), **self.counts}


def read_tokens(
    config: DataConfig, tokenizer: Any, *, context: int, bos: bool, fit_tokens: int | None, report_tokens: int
) -> Corpus:
    """Tokenise as many documents as both sides need (fit_tokens None: all that there are), or read the cache.

    Args:
        context: tokens per row, BOS included.
        bos: begin every row with BOS.

    Raises:
        DataError: there is no text, too little for the report, or the cache is damaged.
    """
    request = {
        "version": CACHE_VERSION,
        "tokenizer": hashlib.sha256(repr(sorted(tokenizer.get_vocab().items())).encode()).hexdigest(),
        "source": identity(config),
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
    corpus = _from_cache(path) if path.exists() else None
    if corpus is None:
        corpus = _pack(config, tokenizer, context, bos, fit_tokens, report_tokens)
        _to_cache(path, corpus)
    counts = corpus.counts
    log.info(
        "data %s: %s fit and %s report tokens of %s and %s documents; dropped: %s tokens of last rows, %s duplicates",
        config.name,
        *(f"{counts[key]:,}" for key in ("fit_tokens", "report_tokens", "fit_documents", "report_documents")),
        *(f"{counts[key]:,}" for key in ("dropped_tokens", "duplicate_documents")),
    )
    return corpus


def cache_folder(config: DataConfig) -> Path:
    return Path(config.cache or os.environ.get("THINKALIKE_CACHE") or "~/.cache/thinkalike").expanduser()


def training_texts(config: DataConfig) -> Iterator[str]:
    """The documents that may be fitted on, in order, without copies: what a tokenizer is trained on."""
    return (text for text, report in _split(documents(config), config, {}) if not report)


def held_out_texts(config: DataConfig) -> Iterator[str]:
    """The documents that no one fits on, in order, without copies."""
    return (text for text, report in _split(documents(config), config, {}) if report)


def _split(texts: Iterable[str], config: DataConfig, counts: dict[str, int]) -> Iterator[tuple[str, bool]]:
    """(document, whether it is for the report), copies and empty documents left out and counted."""
    seen: set[str] = set()
    share = config.report_share or 0.1
    for text in texts:
        digest = content_hash(text)
        if not text.strip() or digest in seen:
            counts["duplicate_documents"] = counts.get("duplicate_documents", 0) + 1
            continue
        seen.add(digest)
        yield text, int(digest[:8], 16) / 16**8 < share


class _Packer:
    """Joins documents into one stream of tokens, up to a limit, and cuts it into rows.

    Where it is `aligned`, a document that passes the end of a row is cut there, and the next begins a row.
    """

    def __init__(self, limit: int | None, context: int, bos: int | None, aligned: bool = False):
        self.limit, self.context, self.bos, self.aligned, self.cut = limit, context, bos, aligned, 0
        self.tokens = array("i")  # four bytes a token, where a list takes thirty
        self.lengths: list[int] = []

    @property
    def payload(self) -> int:
        """Tokens of text in a row."""
        return self.context - (self.bos is not None)

    @property
    def full(self) -> bool:
        return self.limit is not None and len(self.tokens) >= max(self.limit // self.context, 1) * self.payload

    def add(self, tokens: list[int]) -> None:
        kept = tokens[: self.payload - len(self.tokens) % self.payload] if self.aligned else tokens
        self.tokens.extend(kept)
        self.lengths.append(len(kept))
        self.cut += len(tokens) - len(kept)

    def rows(self) -> tuple[TokenRows, int]:
        """The rows, and how many tokens are in none."""
        if not self.tokens:
            return TokenRows(*torch.zeros(2, 0, self.context, dtype=torch.int32)), 0
        count = len(self.tokens) // self.payload
        if self.limit is not None:
            count = min(count, max(self.limit // self.context, 1))
        used = count * self.payload
        tokens = torch.frombuffer(self.tokens, dtype=torch.int32)[:used].clone().view(count, self.payload)
        owners = torch.repeat_interleave(torch.arange(len(self.lengths), dtype=torch.int32), torch.tensor(self.lengths))
        owners = owners[:used].view(count, self.payload)
        if self.bos is not None:
            tokens = torch.cat([torch.full((count, 1), self.bos, dtype=torch.int32), tokens], 1)
            owners = torch.cat([owners[:, :1], owners], 1)
        return TokenRows(tokens, owners), len(self.tokens) - used + self.cut


def _pack(
    config: DataConfig, tokenizer: Any, context: int, bos: bool, fit_tokens: int | None, report_tokens: int
) -> Corpus:
    start = tokenizer.bos_token_id if bos else None
    end = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id
    if end is None:
        raise DataError("the tokenizer has no EOS token to separate documents with; choose another model")
    if bos and start is None:
        raise DataError("the tokenizer has no BOS token to begin rows with; data.bos=false")
    fit, report = (_Packer(limit, context, start, bool(config.aligned)) for limit in (fit_tokens, report_tokens))
    counts = {"duplicate_documents": 0}
    pairs = _split(documents(config), config, counts)
    while batch := list(islice(pairs, 64)):
        encoded = tokenizer([text for text, _ in batch], add_special_tokens=False, verbose=False)["input_ids"]
        for tokens, (_, for_report) in zip(encoded, batch, strict=True):
            for side, wanted in ((report, for_report), (fit, bool(config.same_split) == for_report)):
                if wanted and not side.full:
                    side.add([*tokens, end])
        if fit.full and report.full:
            break
    (fit_rows, fit_left), (report_rows, report_left) = fit.rows(), report.rows()
    _check(config, fit_rows, report_rows, context, report_tokens)
    counts |= {
        "fit_tokens": fit_rows.tokens.numel(),
        "report_tokens": report_rows.tokens.numel(),
        "fit_documents": _count(fit_rows),
        "report_documents": _count(report_rows),
        "dropped_tokens": fit_left + report_left,
    }
    return Corpus(fit_rows, report_rows, counts)


def _count(rows: TokenRows) -> int:
    return len(torch.unique(rows.documents))


def _check(config: DataConfig, fit: TokenRows, report: TokenRows, context: int, report_tokens: int) -> None:
    if len(fit) + len(report) == 0:
        raise DataError(f"data={config.name} holds no text: not one row of {context} tokens")
    if len(fit) == 0:
        raise DataError(f"data={config.name} has too little text to fit on: not one row of {context} tokens")
    if len(report) == 0 or _count(report) < 2:
        raise DataError(
            f"data={config.name} has too little text for the report: {len(report)} rows of {_count(report)} documents, "
            f"and an interval needs two documents; give more text, or raise data.report_share={config.report_share}"
        )
    if report.tokens.numel() < report_tokens // context * context:
        log.warning("data %s: the report has %s tokens of the %s asked for: there are no more", config.name,
                    f"{report.tokens.numel():,}", f"{report_tokens:,}")  # fmt: skip


def _to_cache(path: Path, corpus: Corpus) -> None:
    arrays = {
        f"{side}.{key}": value
        for side, rows in (("fit", corpus.fit), ("report", corpus.report))
        for key, value in asdict(rows).items()
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f"{path.name}.{os.getpid()}")
        save_file(arrays, aside, metadata={"counts": json.dumps(corpus.counts)})
        os.replace(aside, path)
    except (OSError, SafetensorError) as error:
        log.warning("the token cache %s cannot be written (%s); going on without it", path.parent, error)


def _from_cache(path: Path) -> Corpus:
    try:
        with safe_open(path, "pt") as file:
            arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            counts = json.loads(file.metadata()["counts"])
        fit, report = (TokenRows(arrays[f"{side}.tokens"], arrays[f"{side}.documents"]) for side in ("fit", "report"))
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise DataError(f"the token cache {path} is damaged ({error}); deleting it is safe") from error
    return Corpus(fit, report, counts)
