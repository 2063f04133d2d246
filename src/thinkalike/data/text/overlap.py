"""Documents that nearly repeat another: most of their runs of words stand in it, too.

A document is the set of its *shingles*: all runs of eight words that follow each other in it. Words are runs of letters
and digits whose case does not matter, so line ends, indentation, punctuation and quotation marks do not count; in
scripts that put no spaces between words, every character is a word. The share of its shingles that another document
holds (Broder 1997: containment) says how much of it that other one repeats.

A document of fewer than `LEAST` shingles, such as one sentence, is one single shingle: its canonical form. Sentences of
a grammar share most of their words by construction, so short documents repeat each other only as a whole.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thinkalike.data.text.documents import canonical, document_fingerprint

Shingles = NDArray[np.uint64]  # the hashes of a document's shingles, sorted, each once

WORDS = 8  # of a shingle
LEAST = 16  # a document of fewer shingles than this is one shingle
AT_ONCE = 1 << 20  # shingles that are looked up in one call
UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"  # Thai, Khmer, kana, Han, ...
)
WORD = re.compile(rf"[^\W{UNSPACED}]+|[{UNSPACED}]")
FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so that no bit of a word's hash is lost


def shingles(text: str) -> Shingles:
    """Return the hashes of a document's shingles, or the one of its canonical form if they are too few.

    They are of 64 bits, made of 32 bits a word, and the same in every process.
    """
    words = WORD.findall(text.casefold())
    count = len(words) - WORDS + 1
    if count >= LEAST:
        encoded = "\n".join(words).encode("utf-8", errors="replace").split(b"\n")
        codes = np.fromiter(map(zlib.crc32, encoded), np.uint64, len(words))
        runs = np.zeros(count, np.uint64)
        for place in range(WORDS):
            runs = runs * FACTOR + codes[place : place + count]  # modulo 2 ** 64
        if len(distinct := np.unique(runs)) >= LEAST:
            return distinct
    return np.array([int(document_fingerprint(canonical(text))[:16], 16)], np.uint64)


def near_duplicates(documents: Sequence[Shingles], others: Iterable[Shingles]) -> NDArray[np.bool_]:
    """Return of each document whether one of the others holds more than half of its shingles.

    The others are read once and not kept: memory grows with the shingles of the documents alone.
    """
    sizes = np.array([len(each) for each in documents], np.int64)
    most = np.zeros(len(documents), np.int64)
    table = np.concatenate([np.zeros(0, np.uint64), *documents])
    order = np.argsort(table, kind="stable")
    owners = np.repeat(np.arange(len(documents)), sizes)[order]
    keys, starts, counts = np.unique(table[order], return_index=True, return_counts=True)
    for hashes, numbers in _parts(others if len(keys) else ()):
        places = np.minimum(np.searchsorted(keys, hashes), len(keys) - 1)
        there = keys[places] == hashes
        ends = np.flatnonzero(np.diff(numbers[there])) + 1
        for found in np.split(places[there], ends):  # the keys that one of the others holds
            several = counts[found]
            within = np.arange(several.sum()) - np.repeat(several.cumsum() - several, several)
            holders, shared = np.unique(owners[np.repeat(starts[found], several) + within], return_counts=True)
            most[holders] = np.maximum(most[holders], shared)
    return 2 * most > sizes


def _parts(documents: Iterable[Shingles]) -> Iterator[tuple[Shingles, NDArray[Any]]]:
    """Yield the shingles of some documents at a time, with the numbers of their documents."""
    some: list[Shingles] = []
    size = 0
    for each in documents:
        some.append(each)
        size += len(each)
        if size >= AT_ONCE:
            yield np.concatenate(some), np.repeat(np.arange(len(some)), [len(one) for one in some])
            some, size = [], 0
    if some:
        yield np.concatenate(some), np.repeat(np.arange(len(some)), [len(one) for one in some])
