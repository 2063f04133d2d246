"""Text as rows of tokens, through the cache: documents are tokenised, joined with EOS and cut into rows.

A report may read the beginnings of documents alone, so that it holds many documents of about one length rather than a
few long ones: intervals are over documents, and a document that holds most of the tokens decides most of the mean.

An entry of the cache is one safetensors file with a checksum. Damaged ones are computed anew, and jobs run without a
cache that cannot be written.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from filelock import FileLock
from jaxtyping import Float, Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from thinkalike.config import DataConfig
from thinkalike.data.documents import DOCUMENTS, Sides, beginning, beginning_bytes, group_of, text_fingerprint
from thinkalike.digests import cache_home, tokenizer_fingerprint
from thinkalike.errors import DataError
from thinkalike.measures.document_order import neighbour_correlation
from thinkalike.processes import Activity, counted, doing

log = logging.getLogger(__name__)

CACHE_VERSION = 4
ALIGNMENT_VERSION = 1  # raised where a change moves states to other tokens
BEGINNINGS_VERSION = 1  # raised where a change ends the documents of a report elsewhere

DOCUMENTS_AT_ONCE = 64  # how many are tokenised in one call
REPORT_TOKENS = 262144
Limits = tuple[int | None, int, int | None]  # tokens to fit on, tokens of the report, bytes of each document of it


class Entry(NamedTuple):
    """Tensors by name, and facts about them: an entry of the cache."""

    tensors: dict[str, Tensor]
    about: dict[str, Any]

    def digest(self) -> str:
        digest = hashlib.sha256(json.dumps(self.about, sort_keys=True).encode())
        for name, part in sorted(self.tensors.items()):
            digest.update(f"{name} {tuple(part.shape)} {part.dtype}".encode())
            digest.update(part.contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class Layout:
    """The parts of a row.

    A row is t tokens that the target and the source read. Where they cut text differently, it is four parts side by
    side: t target tokens | s source tokens, padded on the right | for each target token the place of the source token
    whose state it gets (t) | the document of each source token, -1 for a token of none (s).
    """

    target: int  # t
    source: int = 0  # s; 0 where the source reads the target's tokens

    def target_tokens(self, rows: Int[Tensor, "b width"]) -> Int[Tensor, "b t"]:
        """Return the tokens that the target reads and that losses are of."""
        return rows[:, : self.target]

    def source_tokens(self, rows: Int[Tensor, "b width"]) -> Int[Tensor, "b s"]:
        return rows[:, self.target : self.target + self.source] if self.source else rows

    def source_documents(self, rows: Int[Tensor, "b width"], documents: Int[Tensor, "b t"]) -> Int[Tensor, "b s"]:
        """Return the documents of the source's tokens, given those of the target's; -1 for a token that is of none."""
        return rows[:, 2 * self.target + self.source :] if self.source else documents

    def gathered(self, states: Sequence[Float[Tensor, "b s _"]], rows: Int[Tensor, "b width"]) -> list[Tensor]:
        """Return for each target token the states that it gets, of each layer of the source."""
        if not self.source:
            return list(states)
        places = rows[:, self.target + self.source : 2 * self.target + self.source, None].long()
        return [state.gather(1, places.to(state.device).expand(-1, -1, state.shape[-1])) for state in states]

    def source_states(self, source: Any, rows: Int[Tensor, "b width"], layers: Sequence[int]) -> list[Tensor]:
        """Return for each target token the states that it gets, of these layers of a source model, in one pass."""
        return self.gathered(source.residuals(self.source_tokens(rows), layers), rows)


@dataclass(frozen=True)
class TokenRows:
    """Rows of tokens, see `Layout`, and for every token of the target the number of its document."""

    tokens: Int[Tensor, "rows width"]
    documents: Int[Tensor, "rows context"]

    def __len__(self) -> int:
        return self.tokens.shape[0]

    def chosen(self, rows: slice | Int[Tensor, " some"]) -> TokenRows:
        return TokenRows(self.tokens[rows], self.documents[rows])

    def batches(self, size: int, name: str = "batch") -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the tokens and the documents of at most `size` rows at a time, which are `counted`."""
        parts = zip(self.tokens.split(size), self.documents.split(size), strict=True)
        for tokens, documents in counted(parts, name, -(-len(self) // size)):
            yield tokens.long(), documents

    @property
    def context(self) -> int:
        """The number of tokens of a row that losses are of."""
        return self.documents.shape[1]

    @property
    def layout(self) -> Layout:
        """The parts of a row, which are four where it has more tokens than documents."""
        return Layout(self.context, max(self.tokens.shape[1] // 2 - self.context, 0))


@dataclass(frozen=True)
class PairedRows(TokenRows):
    """Rows of the tokens of two tokenizers."""

    target_bytes: Int[Tensor, " documents"]  # the bytes in UTF-8 of all tokens that each model predicts
    source_bytes: Int[Tensor, " documents"]
    names: Int[Tensor, " documents"]  # a hash of each document's text


@dataclass(frozen=True)
class Corpus:
    """Rows to fit on, rows to report on, and counts of what was used and what was dropped."""

    fit: TokenRows
    report: TokenRows
    counts: dict[str, int]

    def fingerprint(self) -> str:
        """Return the SHA-256 of all tokens of both sides, as 16 hexadecimal digits."""
        digest = hashlib.sha256()
        for rows in (self.fit, self.report):
            digest.update(rows.tokens.contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]

    def entry(self) -> Entry:
        sides = {"fit": self.fit, "report": self.report}
        return Entry({f"{side}.{key}": each for side in sides for key, each in vars(sides[side]).items()}, self.counts)

    @classmethod
    def of(cls, entry: Entry) -> Corpus:
        sides: dict[str, dict[str, Tensor]] = {"fit": {}, "report": {}}
        for name, each in entry.tensors.items():
            side, _, part = name.partition(".")
            sides[side][part] = each
        fit, report = (PairedRows(**parts) if "names" in parts else TokenRows(**parts) for parts in sides.values())
        return cls(fit, report, entry.about)

    def alignment(self) -> dict[str, float]:
        """Return which shares of the report's target tokens end where a source token does, later, or before any."""
        names = ("aligned_exactly", "aligned_nowhere")
        exactly, nowhere = (self.counts[name] / self.counts["report_tokens"] for name in names)
        return {"aligned_exactly": exactly, "aligned_earlier": 1 - exactly - nowhere, "aligned_nowhere": nowhere}

    def facts(self) -> dict[str, Any]:
        return {"tokens": self.fingerprint(), **self.counts}


def read_corpus(
    data: DataConfig,
    tokenizer: Any,
    context: int,
    *,
    bos: bool,
    fit_tokens: int | None,
    source: Any = None,
    whole: bool = False,
) -> Corpus:
    """Tokenise and pack as many documents as both sides need, or read them from the cache; too few are a DataError.

    Args:
        data: the text; its context, bos and fit_tokens, if set, replace the ones given here.
        context: tokens per row, BOS included.
        bos: whether each row begins with BOS.
        fit_tokens: how many tokens to fit on; None takes all that there are, and 0 says that nothing is fitted.
        source: a `SourceText` of a model that reads the same text with another tokenizer; rows are then `PairedRows`.
        whole: read whole documents for the report, where intervals are not over documents, not only their beginnings.
    """
    context, bos = data.context or context, bos if data.bos is None else data.bos
    fit_tokens = 0 if fit_tokens == 0 else data.fit_tokens or fit_tokens
    report_tokens = data.report_tokens or REPORT_TOKENS
    source = replace(source, bos=bos) if source and data.bos is not None else source
    if source and data.group:
        raise DataError("data.group is for models that cut text alike, and these have different tokenizers")
    most_bytes = None if whole else beginning_bytes(report_tokens)
    request = {
        "version": CACHE_VERSION,
        "tokenizer": tokenizer_fingerprint(tokenizer),
        "source": text_fingerprint(data),
        "context": context,
        "bos": bos,
        "fit_tokens": fit_tokens,
        "report_tokens": report_tokens,
        **{name: getattr(data, name) for name in ("report_share", "same_split", "aligned")},
    }
    if source:
        read_by = tokenizer_fingerprint(source.tokenizer), source.bos, source.context
        request |= {"read_by": read_by, "alignment": ALIGNMENT_VERSION}
    if most_bytes:
        request |= {"most_bytes": most_bytes, "beginnings": BEGINNINGS_VERSION}

    def packed() -> Entry:
        limits = (fit_tokens, report_tokens, most_bytes)
        if source:
            return source.pack(data, tokenizer, context, bos, limits).entry()
        return pack(data, OneTokenizer(tokenizer, bos), context, limits).entry()

    name = hashlib.sha256(json.dumps(request).encode()).hexdigest()[:16]
    corpus = Corpus.of(kept(cache_folder(data) / "tokens" / f"{name}.safetensors", packed))
    counts = (f"{count:,} {name.replace('_', ' ')}" for name, count in corpus.counts.items())
    log.info("data %s: %s", data.name, ", ".join(counts))
    if most_bytes:
        warn_of_few(data, corpus.counts["report_documents"])
    report = corpus.report
    if data.group is None and (
        alike := neighbour_correlation(report.layout.target_tokens(report.tokens), report.documents)
    ):
        found = f"documents that follow each other are alike (correlation {alike:.2f}), and may be of one source"
        log.warning(f"warning: data {data.name}: {found}: intervals are then too narrow; see data.group")
    return corpus


def warn_of_few(data: DataConfig, documents: int) -> None:
    """Warn of a report of few documents."""
    if documents < DOCUMENTS:
        log.warning(f"warning: data {data.name}: the report has {documents} documents, and fewer than {DOCUMENTS} make "
                    "wide intervals; read more tokens, or give more text")  # fmt: skip


class _Packer:
    """Joins documents into one stream of tokens, up to a limit, and cuts it into rows.

    Where it is `aligned`, a document that passes the end of a row is cut there, and the next one begins a row.
    """

    def __init__(self, limit: int | None, context: int, bos: int | None, aligned: bool = False):
        self.limit, self.context, self.bos, self.aligned, self.cut = limit, context, bos, aligned, 0
        self.payload = context - (bos is not None)  # tokens of text in a row
        self.most_rows = None if limit is None else max(limit // context, min(limit, 1))
        self.tokens = array("i")  # four bytes a token, where a list takes thirty
        self.lengths: list[int] = []
        self.owners: list[int] = []  # the number of the group of each document, or its own
        self._groups: dict[object, int] = {}

    @property
    def full(self) -> bool:
        return self.most_rows is not None and len(self.tokens) >= self.most_rows * self.payload

    def add(self, tokens: Sequence[int], group: str | None = None) -> None:
        kept = tokens[: self.payload - len(self.tokens) % self.payload] if self.aligned else tokens
        self.tokens.extend(kept)
        self.owners.append(self._groups.setdefault(group or len(self.lengths), len(self._groups)))
        self.lengths.append(len(kept))
        self.cut += len(tokens) - len(kept)

    def rows(self) -> tuple[TokenRows, int]:
        """Return the rows, and the number of tokens that did not fit."""
        count = len(self.tokens) // self.payload
        count = count if self.most_rows is None else min(count, self.most_rows)
        used = count * self.payload
        tokens = torch.from_numpy(np.array(self.tokens[:used])).view(count, self.payload)
        lengths = torch.tensor(self.lengths, dtype=torch.long)
        owners = torch.tensor(self.owners, dtype=torch.int32).repeat_interleave(lengths)[:used].view_as(tokens)
        if self.bos is not None:
            tokens = torch.cat([torch.full((count, 1), self.bos, dtype=torch.int32), tokens], 1)
            owners = torch.cat([owners[:, :1], owners], 1)
        return TokenRows(tokens, owners), len(self.tokens) - used + self.cut


class OneTokenizer:
    """Turns documents into tokens as a tokenizer does, which must have EOS, and BOS if asked for."""

    def __init__(self, tokenizer: Any, bos: bool):
        self.tokenizer = tokenizer
        self.end, self.start = separators(tokenizer, bos)

    def __call__(self, texts: Sequence[str]) -> Iterator[Sequence[int]]:
        texts = without_marks(texts, self.tokenizer, self.start, self.end)
        for tokens in self.tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]:
            yield [*tokens, self.end]


def without_marks(texts: Sequence[str], tokenizer: Any, start: int | None, end: int) -> list[str]:
    """Return documents without the marks that packing adds by itself, `start` before and `end` after each."""
    first, last = ("" if mark is None else tokenizer.convert_ids_to_tokens(mark) for mark in (start, end))
    return [text.removeprefix(first).removesuffix(last) for text in texts]


def pack(config: DataConfig, reader: Any, context: int, limits: Limits) -> Corpus:
    """Tokenise as many documents as both sides need, by a `reader` such as `OneTokenizer`, and pack them."""
    fit_tokens, report_tokens, most_bytes = limits
    fit, report = (_Packer(limit, context, reader.start, bool(config.aligned)) for limit in limits[:2])
    sides = Sides(config, is_fitted=fit_tokens != 0)
    with doing("tokenising, token", None if fit_tokens is None else fit_tokens + report_tokens) as activity:
        report = _filled(fit, report, sides, reader, most_bytes, activity)
    (fit_rows, fit_left), (report_rows, report_left) = fit.rows(), report.rows()
    counts = dict(sides.counts) | {
        "fit_tokens": fit_rows.tokens.numel(),
        "report_tokens": report_rows.tokens.numel(),
        "fit_documents": len(fit_rows.documents.unique()),
        "report_documents": len(report_rows.documents.unique()),
        "dropped_tokens": fit_left + report_left,
    }
    found = ""
    if fit_tokens != 0 and not counts["fit_tokens"]:
        found = f"to fit on: not one row of {context} tokens"
    elif counts["report_documents"] < 2:
        near = f"{counts['near_duplicates']} more nearly repeat one to fit on"
        found = f"for the report: {counts['report_documents']} documents ({near}), and an interval needs two"
    if found and report.full and counts["fit_tokens"] >= min(fit_tokens or 0, 1):
        raise DataError(f"data={config.name}: one document fills the {counts['report_tokens']:,} tokens that are read "
                        "for the report, and an interval needs two; give shorter documents, or read more tokens: "
                        "raise measure.batches, or data.report_tokens of a job without batches")  # fmt: skip
    if found:
        settings = [f"data.report_share={sides.share}"] if sides.share < 1 else []
        remedy = " or ".join([*settings, f"data.context={context}"])
        raise DataError(f"data={config.name} has too little text {found}; give more text, or change {remedy}")
    return Corpus(fit_rows, report_rows, counts)


def _filled(
    fit: _Packer, report: _Packer, sides: Sides, reader: Any, most_bytes: int | None, activity: Activity
) -> _Packer:
    """Read documents until both sides are full, or there are no more, and return what the report has become."""
    reading, same = iter(sides), bool(sides.config.same_split)
    given: list[tuple[array[int], str | None]] = []  # documents of the report, while they may still have to give way

    def read(texts: Sequence[tuple[str, str | None]]) -> Iterator[tuple[Sequence[int], str | None]]:
        cut = reader([text for text, _ in texts]) if texts else ()
        return ((tokens, group) for tokens, (_, group) in zip(cut, texts, strict=True))

    while batch := list(islice(reading, DOCUMENTS_AT_ONCE)):
        if activity.done == 0:
            activity.begin(0)  # the source has been looked through by now
        activity.reach(len(fit.tokens) + len(report.tokens))
        reported = [(beginning(text, most_bytes), group_of(text)) for text, for_report in batch if for_report]
        fitted = [(text, group_of(text)) for text, for_report in batch if for_report == same]
        for tokens, group in read(reported) if not (sides.settled and report.full) else ():
            if not sides.settled:
                given.append((array("i", tokens), group))
            if not report.full:
                report.add(tokens, group)
        for tokens, group in read(fitted) if not fit.full else ():
            if not fit.full:
                fit.add(tokens, group)
        if fit.full and report.full:
            report = _settled(report, sides, given)
            if report.full:
                return report
    return _settled(report, sides, given)


def _settled(report: _Packer, sides: Sides, given: Sequence[tuple[array[int], str | None]]) -> _Packer:
    """Return the report without the documents that nearly repeat one to fit on that was read up to now."""
    if sides.settled:
        return report
    gone = sides.repeats()
    sides.counts["near_duplicates"] = int(gone.sum())
    settled = _Packer(report.limit, report.context, report.bos, report.aligned)
    for document, repeats in zip(given, gone, strict=True):
        if not repeats and not settled.full:
            settled.add(*document)
    return settled


def separators(tokenizer: Any, bos: bool) -> tuple[int, int | None]:
    """Return the token that ends a document and the one that begins a row, or None; a lack of one is a DataError."""
    end = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id
    if end is None:
        raise DataError("the tokenizer has no EOS token to separate documents with; choose another model")
    if bos and tokenizer.bos_token_id is None:
        raise DataError("the tokenizer has no BOS token to begin rows with; set data.bos=false")
    return end, tokenizer.bos_token_id if bos else None


def cache_folder(config: DataConfig) -> Path:
    """Return the folder of all caches: the configured one, or that of the environment."""
    return Path(config.cache).expanduser() if config.cache else cache_home()


def kept(path: Path, compute: Callable[[], Entry], most: int | None = None) -> Entry:
    """Return an entry from the cache, or compute it and put it there; other processes wait meanwhile.

    All entries of the folder together have at most `most` bytes.
    """
    lock = path.with_suffix(".lock")
    with contextlib.ExitStack() as held:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            held.enter_context(FileLock(lock))
            held.callback(lock.unlink, missing_ok=True)
        except OSError as error:  # a folder that can only be read: processes may compute the same
            log.debug("no lock on %s: %s", path, error)
        if found := _read(path):
            return found
        computed = compute()
        _write(path, computed, most)
    return computed


def _read(path: Path) -> Entry | None:
    """Return an entry, or None if there is none; one that is damaged is removed."""
    if not path.exists():
        return None
    try:
        with safe_open(path, "pt") as file:
            written = json.loads(file.metadata()["about"])
            entry = Entry({key: file.get_tensor(key) for key in file.keys()}, written["about"])  # noqa: SIM118
        if entry.digest() != written["digest"]:
            raise ValueError("checksum mismatch")
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        log.warning("%s cannot be used (%s) and is made anew", path, error)
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        return None
    with contextlib.suppress(OSError):
        os.utime(path)
    return entry


def _write(path: Path, entry: Entry, most: int | None) -> None:
    """Write an entry in one step, after the least recently read ones have made room; warn where that is impossible."""
    aside, written = path.with_suffix(".aside"), {"about": entry.about, "digest": entry.digest()}
    try:
        if most is not None:
            if (room := most - sum(part.nbytes for part in entry.tensors.values())) < 0:
                return
            for each in sorted(path.parent.glob("*.safetensors"), key=lambda each: -each.stat().st_mtime):
                room -= each.stat().st_size
                if room < 0:
                    each.unlink(missing_ok=True)
        arrays = {name: part.contiguous() for name, part in entry.tensors.items()}
        save_file(arrays, aside, metadata={"about": json.dumps(written)})  # one entry: several have no order
        os.replace(aside, path)
    except (OSError, SafetensorError) as error:
        log.warning("the cache %s cannot be written (%s); the job runs without it", path.parent, error)
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
