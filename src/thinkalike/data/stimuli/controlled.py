"""Stimuli from the grammar, with the features of table S1 (Salle et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from thinkalike.data.grammar.sentences import Sentence, controlled_sentences, crossed_sentences
from thinkalike.data.stimuli.stimuli import Stimuli

FEATURES = ["Word length", "Gender", "Number", "PoS", "Tense", "Person", "Word position", "Question"]  # table S1


def controlled_stimuli(count: int, seed: int = 0, size: str = "small") -> Stimuli:
    """Return every word of `count` controlled sentences.

    Raises:
        DataError: the grammar has fewer sentences, or there is no grammar of this size.
    """
    return from_sentences(controlled_sentences(count, seed, size), f"the {size} grammar")


def crossed_stimuli() -> Stimuli:
    """Return every word of the sentences of the crossed grammar."""
    return from_sentences(crossed_sentences(), "the crossed grammar")


def from_sentences(sentences: Sequence[Sentence], source: str = "the grammar") -> Stimuli:
    """Return every word of these sentences.

    Args:
        source: what the message of an error begins with.
    """
    rows, sentence, span, words, ids = [], [], [], [], []
    for number, each in enumerate(sentences):
        start = 0
        for place, word in enumerate(each.words):
            length, question = len(word.form), str(each.question)
            rows.append((length, word.gender, word.number, word.pos, word.tense, word.person, place, question))
            span.append((start, start + length))
            sentence.append(number)
            words.append(word.form)
            ids.append(f"{number + 1}:{place + 1}")
            start += length + 1
    features = pd.DataFrame(rows, columns=FEATURES)
    texts = [each.text for each in sentences]
    return Stimuli(texts, np.array(sentence), span, words, features, ids=ids, source=source)
