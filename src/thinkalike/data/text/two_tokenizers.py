"""Documents that two tokenizers read: the target's, which decides the rows, and the source's."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thinkalike.data.text.alignment import Alignment, Cut, align
from thinkalike.data.text.documents import document_fingerprint
from thinkalike.data.text.packing import Reader, separators

Numbers = NDArray[np.integer]
BOS = -1  # in place of the number of a token of text


@dataclass(frozen=True)
class SourceText:
    """How a source reads text: its tokenizer, whether rows begin with BOS, and how long they can be."""

    name: str
    tokenizer: Any
    bos: bool
    context: int


@dataclass(frozen=True)
class AllTokens:
    """The tokens of all documents end to end, of the target and of the source.

    Attributes:
        target, source: ids; each document ends with EOS.
        target_bytes, source_bytes: how much text each token adds.
        last: for each target token the number of the source token whose state it gets; one less than the first of its
            document if there is none.
        exact: whether that token ends where the target token does.
        target_first, source_first: the number of each document's first token.
        names: a hash of each document's text.
    """

    target: Numbers
    source: Numbers
    target_bytes: Numbers
    source_bytes: Numbers
    last: Numbers
    exact: NDArray[np.bool_]
    target_first: Numbers
    source_first: Numbers
    names: Numbers


class TwoTokenizers(Reader):
    """Reads documents with two tokenizers, and calls the target's tokens by their numbers in `AllTokens`.

    Raises:
        DataError: a tokenizer lacks EOS or BOS.
    """

    def __init__(self, target: Any, source: SourceText, bos: bool):
        self.start = BOS if bos else None
        self.end, self.bos = separators(target, bos)
        self.source_end, self.source_bos = separators(source.tokenizer, source.bos)
        self._tokenizers = untrimmed(target), untrimmed(source.tokenizer)
        self._known: dict[int, range] = {}  # the target tokens of each document, by its name
        self._read: list[tuple[Numbers, Numbers, Alignment]] = []
        self._count = 0

    def __call__(self, texts: Sequence[str]) -> Iterator[range]:
        """Return the numbers of each document's target tokens; one that was read before is not cut again."""
        names = [int(document_fingerprint(text)[:15], 16) for text in texts]
        new = {name: text for name, text in zip(names, texts, strict=True) if name not in self._known}
        cuts = (cuts_of(tokenizer, list(new.values())) for tokenizer in self._tokenizers)
        for (name, text), target, source in zip(new.items(), *cuts, strict=True):
            self._known[name] = range(self._count, self._count + len(target.ids) + 1)
            self._count += len(target.ids) + 1
            ids = (np.array([*target.ids, self.end], np.int32), np.array([*source.ids, self.source_end], np.int32))
            self._read.append((*ids, align(text, target, source)))
        return (self._known[name] for name in names)

    def everything(self) -> AllTokens:
        """Return all tokens that were read."""
        targets, sources, alignments = zip(*self._read, strict=True)
        target_first, source_first = (np.cumsum([0, *map(len, each[:-1])]) for each in (targets, sources))
        lasts = [each.last.astype(np.int64) + first for each, first in zip(alignments, source_first, strict=True)]
        return AllTokens(
            target=np.concatenate(targets),
            source=np.concatenate(sources),
            target_bytes=np.concatenate([each.target_bytes for each in alignments]),
            source_bytes=np.concatenate([each.source_bytes for each in alignments]),
            last=np.concatenate(lasts),
            exact=np.concatenate([each.exact for each in alignments]),
            target_first=target_first,
            source_first=source_first,
            names=np.array(list(self._known)),
        )


def untrimmed(tokenizer: Any) -> Any:
    """Return a tokenizer of the `tokenizers` library that cuts alike and whose offsets leave no white space out."""
    from tokenizers import Tokenizer

    whole = json.loads(tokenizer.backend_tokenizer.to_str())
    backend = Tokenizer.from_str(json.dumps(whole | {"post_processor": None, "truncation": None, "padding": None}))
    backend.encode_special_tokens = bool(getattr(tokenizer, "split_special_tokens", False))
    return backend


def cuts_of(tokenizer: Any, texts: Sequence[str]) -> list[Cut]:
    """Return how a tokenizer of `untrimmed` cuts texts."""
    encoded = tokenizer.encode_batch(texts, add_special_tokens=False)
    look, composes = tokenizer.id_to_token, tokenizer.normalizer is not None
    return [Cut(each.ids, np.array(each.offsets, np.int64).reshape(-1, 2), look, composes) for each in encoded]
