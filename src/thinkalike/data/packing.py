"""Documents, tokenised and packed into rows: they are joined with EOS and cut into equal lengths.

Rows to fit on and rows for the report are filled from one pass over the source. Where a set of the
hub is streamed, a document of the report may turn out to repeat a later one to fit on, so that the
report is packed again at the end without it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch

from thinkalike.advice import named_setting
from thinkalike.config import DataConfig
from thinkalike.data.documents import batched, beginning, group_of
from thinkalike.data.rows import Corpus, TokenRows
from thinkalike.data.splits import DocumentSplit
from thinkalike.errors import DataError
from thinkalike.processes import Activity, doing

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

DOCUMENTS_PER_CALL = 64
"""How many documents are tokenised in one call."""


class TextLimits(NamedTuple):
    """How much text is read."""

    fit_tokens: int | None
    """How many tokens to fit on; None takes all that there are, and 0 fits nothing."""

    evaluation_tokens: int
    """How many tokens the report has."""

    document_bytes: int | None
    """How many UTF-8 bytes of each document the report reads; None reads whole documents."""


@runtime_checkable
class DocumentReader(Protocol):
    """Turns documents into token ids."""

    @property
    def start(self) -> int | None:
        """The token that begins each row, or None."""

    def __call__(self, texts: Sequence[str]) -> Iterator[Sequence[int]]:
        """Yield the tokens of each document, which end with EOS."""


class TokenizerReader:
    """Turns documents into the tokens of one tokenizer, which must have EOS, and BOS if needed."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, bos: bool):
        """Remember the tokenizer and the ids of its EOS and BOS; `start` is None without BOS."""
        self.tokenizer = tokenizer
        self.end, self.start = separators(tokenizer, bos)

    def __call__(self, texts: Sequence[str]) -> Iterator[Sequence[int]]:
        """Yield the token ids of each document, which end with EOS and have no BOS."""
        bare_texts = without_separators(texts, self.tokenizer, self.start, self.end)
        encoded = self.tokenizer(bare_texts, add_special_tokens=False, verbose=False)
        for token_ids in encoded["input_ids"]:
            yield [*token_ids, self.end]


def separators(tokenizer: PreTrainedTokenizerBase, bos: bool) -> tuple[int, int | None]:
    """Return the ids of the token that ends each document and of the one that begins each row.

    The first is EOS or, for a tokenizer without it such as BERT's, its separator. The second is
    BOS, or None if rows do not begin with it.

    Args:
        tokenizer: The tokenizer.
        bos: Whether rows begin with BOS.

    Raises:
        DataError: The tokenizer lacks a token that is needed.
    """
    end = tokenizer.eos_token_id
    if end is None:
        end = tokenizer.sep_token_id
    if end is None:
        raise DataError(
            "the tokenizer has no EOS token to separate documents with; choose another model"
        )
    if not bos:
        return end, None
    if tokenizer.bos_token_id is None:
        raise DataError(
            "the tokenizer has no BOS token to begin rows with; set "
            f"{named_setting('data.bos', False)}"
        )
    return end, tokenizer.bos_token_id


def without_separators(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, start: int | None, end: int
) -> list[str]:
    """Return documents without a written BOS token at their beginning or EOS token at their end.

    Packing adds both tokens itself, and a document that has them already would get them twice.

    Args:
        texts: The documents.
        tokenizer: Tells how the two tokens are written.
        start: The id of BOS; None: rows have no BOS, and documents keep their beginning.
        end: The id of EOS.
    """
    start_text = ""
    if start is not None:
        start_text = tokenizer.convert_ids_to_tokens(start)
    end_text = tokenizer.convert_ids_to_tokens(end)
    return [text.removeprefix(start_text).removesuffix(end_text) for text in texts]


class RowPacker:
    """Joins documents into one stream of tokens, up to a limit, and cuts it into rows.

    Args:
        limit: How many tokens all rows may have, BOS included; None sets no limit.
        context: How many tokens a row has, BOS included.
        bos: The token that begins each row, or None.
        aligned: Whether a document that passes the end of a row is cut there, so that the next
            document begins a row.
    """

    def __init__(self, limit: int | None, context: int, bos: int | None, aligned: bool = False):
        """Compute how many rows `limit` tokens fill, and begin without documents.

        Every row has `context` tokens, of which `bos`, unless it is None, is the first. With
        `aligned`, a document is cut where it passes the end of a row.
        """
        self.limit = limit
        self.context = context
        self.bos = bos
        self.aligned = aligned
        self.text_width = context if bos is None else context - 1
        self.most_rows: int | None = None
        if limit is not None:
            fewest_rows = min(limit, 1)  # one row, unless the limit is 0
            self.most_rows = max(limit // context, fewest_rows)

        self.tokens = array("i")  # four bytes for each token, where a list takes thirty
        self.document_lengths: list[int] = []
        self.document_numbers: list[int] = []  # documents of one group share a number
        self.cut_tokens = 0
        self._numbers_of_groups: dict[object, int] = {}

    @property
    def is_full(self) -> bool:
        """Return whether no further row is needed; without a limit there is always room."""
        if self.most_rows is None:
            return False
        return len(self.tokens) >= self.most_rows * self.text_width

    def add(self, tokens: Sequence[int], group: str | None = None) -> None:
        """Append a document to the stream; documents of one group get the same document number.

        If the setting `aligned` is true, the document is cut where it passes the end of the row in
        which it begins, so that the next one begins a row.

        Args:
            tokens: The token ids of the document, which end with EOS.
            group: The name of its group; None: it is in no group.
        """
        row_tokens = tokens
        if self.aligned:
            left_in_row = self.text_width - len(self.tokens) % self.text_width
            row_tokens = tokens[:left_in_row]
        self.tokens.extend(row_tokens)

        # A document without a group is a group of its own, whose key is its index, an int. A group
        # that was not seen before gets the next number.
        group_key = group or len(self.document_lengths)
        next_number = len(self._numbers_of_groups)
        number = self._numbers_of_groups.setdefault(group_key, next_number)
        self.document_numbers.append(number)
        self.document_lengths.append(len(row_tokens))
        self.cut_tokens += len(tokens) - len(row_tokens)

    def rows(self) -> tuple[TokenRows, int]:
        """Return the complete rows, `most_rows` at most, and the number of tokens left out.

        These are the tokens behind the last row that is returned, and with `aligned` also the
        tokens of documents that were cut at the end of a row.
        """
        row_count = len(self.tokens) // self.text_width
        if self.most_rows is not None:
            row_count = min(row_count, self.most_rows)
        used_tokens = row_count * self.text_width

        token_ids = torch.from_numpy(np.array(self.tokens[:used_tokens]))
        token_ids = token_ids.view(row_count, self.text_width)
        lengths = torch.tensor(self.document_lengths, dtype=torch.long)
        document_numbers = torch.tensor(self.document_numbers, dtype=torch.int32)
        documents = document_numbers.repeat_interleave(lengths)
        documents = documents[:used_tokens].view_as(token_ids)
        if self.bos is not None:
            bos_column = torch.full((row_count, 1), self.bos, dtype=torch.int32)
            token_ids = torch.cat([bos_column, token_ids], 1)
            documents = torch.cat([documents[:, :1], documents], 1)  # BOS belongs to what follows

        dropped_tokens = len(self.tokens) - used_tokens + self.cut_tokens
        return TokenRows(token_ids, documents), dropped_tokens


def pack(config: DataConfig, reader: DocumentReader, context: int, limits: TextLimits) -> Corpus:
    """Tokenise as many documents as fitting and evaluation need, and pack them into rows.

    Names with "report" are about the evaluation text.

    Args:
        config: The settings of the text.
        reader: Turns documents into token ids, by one tokenizer or by those of two models.
        context: How many tokens a row has, BOS included.
        limits: How much text is read.

    Raises:
        DataError: There is too little text.
    """
    aligned = bool(config.aligned)
    fit = RowPacker(limits.fit_tokens, context, reader.start, aligned)
    report = RowPacker(limits.evaluation_tokens, context, reader.start, aligned)
    split = DocumentSplit(config, is_fitted=limits.fit_tokens != 0)

    total_tokens = None  # not known if all of the text is fitted on
    if limits.fit_tokens is not None:
        total_tokens = limits.fit_tokens + limits.evaluation_tokens
    with doing("tokenising, token", total_tokens) as activity:
        report = _fill_rows(fit, report, split, reader, limits.document_bytes, activity)

    fit_rows, dropped_from_fit = fit.rows()
    report_rows, dropped_from_report = report.rows()
    counts = dict(split.counts)
    counts |= {
        "fit_tokens": fit_rows.tokens.numel(),
        "report_tokens": report_rows.tokens.numel(),
        "fit_documents": len(fit_rows.documents.unique()),
        "report_documents": len(report_rows.documents.unique()),
        "dropped_tokens": dropped_from_fit + dropped_from_report,
    }
    _check_enough_text(config, context, limits, counts, split, report)
    return Corpus(fit_rows, report_rows, counts)


def _check_enough_text(
    config: DataConfig,
    context: int,
    limits: TextLimits,
    counts: dict[str, int],
    split: DocumentSplit,
    report: RowPacker,
) -> None:
    """Raise a DataError unless there are a row to fit on and two documents for evaluation.

    Args:
        config: The settings of the text.
        context: How many tokens a row has.
        limits: How much text was to be read.
        counts: How many tokens and documents were read.
        split: The documents that were read.
        report: The packer of the evaluation text.
    """
    is_fit_empty = limits.fit_tokens != 0 and counts["fit_tokens"] == 0
    is_report_small = counts["report_documents"] < 2
    if not is_fit_empty and not is_report_small:
        return

    # There is enough text, but a single document takes up all evaluation tokens.
    if report.is_full and not is_fit_empty:
        raise DataError(
            f"{named_setting('data', config.name)}: one document fills the "
            f"{counts['report_tokens']:,} tokens that are read for the report, and an interval "
            "needs two; give shorter documents, or read more tokens: raise "
            f"{named_setting('measure.batches')}, or {named_setting('data.evaluation_tokens')} "
            "of a job without batches"
        )

    if is_fit_empty:
        lack = f"to fit on: not one row of {context} tokens"
    else:
        documents = _documents_in_words(counts, split, context)
        lack = f"for the report: {documents}, and an interval needs two"
    remedy = named_setting("data.context", context)
    if split.evaluation_share < 1:
        remedy = f"{named_setting('data.evaluation_share', split.evaluation_share)} or {remedy}"
    raise DataError(
        f"{named_setting('data', config.name)} has too little text {lack}; give more text, or "
        f"change {remedy}"
    )


def _documents_in_words(counts: Mapping[str, int], split: DocumentSplit, context: int) -> str:
    """Return a clause for users: what each document of a too short text was used for.

    For example, "of 4 documents, 3 are on the side to fit on, 1 is for the report". The report is
    the text for evaluation.

    Args:
        counts: How much was read.
        split: The documents, all of which were read.
        context: How many tokens a row has.
    """
    n_copies = counts.get("duplicate_documents", 0)
    n_near_duplicates = counts["near_duplicates"]
    n_for_report = split.report_document_count
    # A provisional split has handed out documents for evaluation before it had read those to fit
    # on. It has counted them all, also those that then turned out to be near-duplicates.
    if split.evaluation_is_provisional:
        n_for_report -= n_near_duplicates
    clauses = []
    if n_copies:
        clauses.append(f"{_count_with_verb(n_copies)} empty or a copy of one before")
    if split.fit_document_count:
        clauses.append(f"{_count_with_verb(split.fit_document_count)} on the side to fit on")
    if n_near_duplicates:
        count = _count_with_verb(n_near_duplicates)
        clauses.append(f"{count} left out as nearly the same as one to fit on")
    clauses.append(f"{_count_with_verb(n_for_report)} for the report")
    total = n_copies + split.fit_document_count + n_near_duplicates + n_for_report
    in_words = f"of {total} documents, {', '.join(clauses)}"
    n_in_whole_rows = counts["report_documents"]
    if n_in_whole_rows < n_for_report:
        in_words += f", {n_in_whole_rows} in whole rows of {context} tokens"
    return in_words


def _count_with_verb(number: int) -> str:
    """Return a number with its verb: "1 is", "2 are"."""
    return f"{number} {'is' if number == 1 else 'are'}"


@dataclass(frozen=True)
class _TokenisedDocument:
    """The tokens of a document, and the name of its group if it has one."""

    tokens: Sequence[int]
    group: str | None


def _fill_rows(
    fit: RowPacker,
    report: RowPacker,
    split: DocumentSplit,
    reader: DocumentReader,
    document_bytes: int | None,
    activity: Activity,
) -> RowPacker:
    """Add documents to the packers until both are full or the source of text ends.

    Args:
        fit, report: The packers of the fitting text and of the evaluation text (the report).
        split: The documents. If `split.evaluation_is_provisional`, an evaluation document may
            turn out later to nearly repeat a fitting one, and is then removed again.
        reader: Turns documents into tokens.
        document_bytes: How many bytes of each evaluation document are read; None: all.
        activity: Is told how many tokens both packers have.

    Returns:
        The packer of the evaluation text: `report`, or a new one if documents had to be removed
        that nearly repeat one of the fitting text.
    """
    same_split = bool(split.config.same_split)
    # All evaluation documents so far, while a later document may still remove some of them.
    provisional: list[_TokenisedDocument] = []

    for number, batch in enumerate(batched(split, DOCUMENTS_PER_CALL)):
        if number == 0:
            activity.begin(0)  # the clock starts now: before, near-duplicates were looked for
        activity.reach(len(fit.tokens) + len(report.tokens))

        report_texts = [text for text, is_for_evaluation in batch if is_for_evaluation]
        # With `same_split`, the evaluation documents are also those to fit on.
        fit_texts = [text for text, is_for_evaluation in batch if is_for_evaluation == same_split]
        if split.evaluation_is_provisional or not report.is_full:
            for document in _tokenised(report_texts, reader, document_bytes):
                if split.evaluation_is_provisional:
                    compact = _TokenisedDocument(array("i", document.tokens), document.group)
                    provisional.append(compact)
                if not report.is_full:
                    report.add(document.tokens, document.group)
        if not fit.is_full:
            for document in _tokenised(fit_texts, reader):
                if not fit.is_full:
                    fit.add(document.tokens, document.group)

        if fit.is_full and report.is_full:
            report = _without_near_duplicates(report, split, provisional)
            if report.is_full:
                return report
    return _without_near_duplicates(report, split, provisional)


def _tokenised(
    texts: Sequence[str], reader: DocumentReader, document_bytes: int | None = None
) -> Iterator[_TokenisedDocument]:
    """Yield the token ids of each document, with the name of its group.

    Only the first `document_bytes` bytes of a document are tokenised; None: all of it.
    """
    if not texts:
        return
    beginnings = [beginning(text, document_bytes) for text in texts]
    for text, tokens in zip(texts, reader(beginnings), strict=True):
        yield _TokenisedDocument(tokens, group_of(text))


def _without_near_duplicates(
    report: RowPacker, split: DocumentSplit, provisional: Sequence[_TokenisedDocument]
) -> RowPacker:
    """Return a packer of the evaluation text without documents that nearly repeat a fitting one.

    Each document is for evaluation (the report) or for fitting, that is, to train maps on. The
    evaluation documents are provisional if the source can be read only once, as a data set of the
    hub: a fitting document that one of them nearly repeats may come later, so that repeats are
    removed here, at the end. Only fitting documents that were read so far are compared.

    If they are not provisional (`split.evaluation_is_provisional` is False), `report` itself is
    returned: the split has already left out such documents, or the job need not leave them out.

    Args:
        report: The packer of the evaluation text.
        split: The documents; its `counts` get the number of those that are left out.
        provisional: The tokens of all evaluation documents that were read so far. It may have
            more of them than fit into `report`, so that others can take the place of repeats.
    """
    if not split.evaluation_is_provisional:
        return report
    are_repeats = split.repeats_of_fitting_documents()
    split.counts["near_duplicates"] = int(are_repeats.sum())
    new_report = RowPacker(report.limit, report.context, report.bos, report.aligned)
    for document, is_repeat in zip(provisional, are_repeats, strict=True):
        if not is_repeat and not new_report.is_full:
            new_report.add(document.tokens, document.group)
    return new_report
