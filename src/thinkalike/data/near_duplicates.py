"""Near-duplicates: documents more than half of which stands in one other document (Broder 1997).

Documents are compared by their shingles, which are all runs of eight words.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from thinkalike.data.documents import batched, canonical, document_fingerprint

Shingles = NDArray[np.uint64]
"""The hashes of a document's shingles, sorted, each once."""

SHINGLE_WORDS = 8
"""How many words a shingle has."""

FEWEST_SHINGLES = 16
"""A document of fewer shingles is compared as a whole."""

DOCUMENTS_PER_LOOKUP = 128
"""How many documents are compared at a time."""

# Scripts that put no spaces between words: Thai, Khmer, kana, Han, ...
UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
WORD = re.compile(rf"[^\W{UNSPACED}]+|[{UNSPACED}]")

HASH_FACTOR = np.uint64(0x9E3779B97F4A7C15)
"""Odd, so that multiplication modulo 2 ** 64 loses no bit of a word's hash."""


def shingles(text: str) -> Shingles:
    """Return the 64-bit hashes of a document's shingles, sorted and each once.

    A shingle is a run of `SHINGLE_WORDS` words. Words are runs of letters and digits, without case
    and punctuation; in scripts without spaces between words, every character is a word. A document
    of fewer than `FEWEST_SHINGLES`, such as one sentence, has a single hash, that of its whole
    text in lower case with single spaces.
    """
    words = WORD.findall(text.casefold())
    shingle_count = len(words) - SHINGLE_WORDS + 1
    if shingle_count >= FEWEST_SHINGLES:
        # All words are encoded at once, which is faster than one by one.
        encoded_words = "\n".join(words).encode("utf-8", errors="replace").split(b"\n")
        # CRC-32 is the same in every process, unlike `hash`.
        word_hashes = np.fromiter(map(zlib.crc32, encoded_words), np.uint64, len(words))
        # The hash of a shingle is a polynomial in the hashes of its words, modulo 2 ** 64. In each
        # turn all shingles get one word more: shingle i gets word i + offset.
        hashes = np.zeros(shingle_count, np.uint64)
        for offset in range(SHINGLE_WORDS):
            hashes = hashes * HASH_FACTOR + word_hashes[offset : offset + shingle_count]
        distinct_hashes = np.unique(hashes)
        if len(distinct_hashes) >= FEWEST_SHINGLES:
            return distinct_hashes
    hash_of_whole_text = int(document_fingerprint(canonical(text))[:16], 16)  # 64 bits
    return np.array([hash_of_whole_text], np.uint64)


def near_duplicates(
    documents: Sequence[Shingles], originals: Iterable[Shingles]
) -> NDArray[np.bool_]:
    """Return, for each document, whether one original has more than half of its shingles, (n,).

    Shingles are hashes of runs of words. The originals are read once and not kept, so that memory
    grows with the documents alone.
    """
    from scipy.sparse import csr_array

    if not documents:
        return np.zeros(0, bool)
    shingle_counts = np.array([len(hashes) for hashes in documents], np.int64)
    hashes, document_indices = _concatenated(documents)
    known_hashes, hash_indices = np.unique(hashes, return_inverse=True)
    ones = np.ones(len(hash_indices), np.int64)
    document_has_hash = csr_array(  # (hashes, documents): 1 where the document has the hash
        (ones, (hash_indices, document_indices)), (len(known_hashes), len(documents))
    )

    most_shared = np.zeros(len(documents), np.int64)  # shingles that any one original shares
    for batch in batched(originals, DOCUMENTS_PER_LOOKUP):
        hashes, original_indices = _concatenated(batch)
        # Where each hash would be among the known ones, which are sorted. A hash that is larger
        # than all of these gets the index of the last one.
        hash_indices = np.searchsorted(known_hashes, hashes)
        hash_indices = np.minimum(hash_indices, len(known_hashes) - 1)
        is_known = known_hashes[hash_indices] == hashes
        ones = np.ones(int(is_known.sum()), np.int64)
        original_has_hash = csr_array(  # (originals, hashes): 1 where the original has the hash
            (ones, (original_indices[is_known], hash_indices[is_known])),
            (len(batch), len(known_hashes)),
        )
        shared_counts = original_has_hash @ document_has_hash  # (originals, documents)
        most_shared_in_batch = shared_counts.max(axis=0).toarray().ravel()  # (documents,)
        most_shared = np.maximum(most_shared, most_shared_in_batch)
    return most_shared > shingle_counts / 2


def _concatenated(documents: Sequence[Shingles]) -> tuple[Shingles, NDArray[np.int64]]:
    """Return the shingles of all documents end to end, and the index of the document of each."""
    counts = [len(hashes) for hashes in documents]
    return np.concatenate(documents), np.repeat(np.arange(len(documents)), counts)
