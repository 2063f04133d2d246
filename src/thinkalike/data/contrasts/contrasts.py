"""Pairs of texts that differ in one feature, and how each may go on."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int
from torch import Tensor

BOUNDARY = "<boundary>"  # the word before ends here: any token that does not go on with it

Span = tuple[int, int]  # characters of a word: first, one past the last


class Prompt(NamedTuple):
    """A text to be continued, and a word of it."""

    text: str
    span: Span

    @property
    def word(self) -> str:
        return self.text[slice(*self.span)]


@dataclass(frozen=True)
class Contrasts:
    """Pairs of texts, alike but for a feature of a word.

    Attributes:
        texts, counterparts: without the feature and with it; at a word of each, states are read and changed.
        up, down: how a text may go on: what the feature makes likelier, and what it makes less likely. Each is one
            token as it follows the text, or `BOUNDARY`.
        source: what the message of an error begins with.
    """

    texts: list[Prompt]
    counterparts: list[Prompt]
    up: list[str]
    down: list[str]
    source: str = "contrasts"

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def groups(self) -> Int[Tensor, " n"]:
        """The number of the word of each text, by which folds and resamples keep pairs together."""
        words = np.array([prompt.word for prompt in self.texts], dtype=object)
        return torch.from_numpy(pd.factorize(words)[0])

    def fingerprint(self) -> str:
        """Return the SHA-256 of all texts, words and continuations, as 16 hexadecimal digits."""
        everything = (self.texts, self.counterparts, self.up, self.down)
        return hashlib.sha256(repr(everything).encode()).hexdigest()[:16]
