"""Pairs of texts that differ in one feature, the tokens that may continue each, and how a model reads them."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from thinkalike.data.grammar import lexicon, noun, with_s
from thinkalike.data.stimuli import select_names
from thinkalike.data.tables import read_frame
from thinkalike.errors import DataError
from thinkalike.models.frozen import FrozenModel
from thinkalike.states.tokens import Span, has_own_state, last_tokens

AT_ONCE = 64  # texts
BOUNDARY = "<boundary>"  # the word before ends here: any token that does not continue it
SPACES = (
    "Ġ",
    "▁",
    "Ċ",
    "ĉ",
    " ",
)  # with which tokenizers begin a token that follows white space, or is some
CONTRASTS = ("number", "question")
COLUMNS = ("text", "counterpart", "word", "up", "down")
OPTIONAL = "counterpart_word"  # where the word is another one in the counterpart


class Prompt(NamedTuple):
    """A text to be continued, and a word of it."""

    text: str
    span: Span

    @property
    def word(self) -> str:
        return self.text[slice(*self.span)]


@dataclass(frozen=True)
class Contrasts:
    """Pairs of texts, alike but for a feature of a word, at which states are read and changed.

    A continuation is one token as it follows the text, or `BOUNDARY`.
    """

    texts: list[Prompt]  # without the feature
    counterparts: list[Prompt]  # with it
    up: list[str]  # the continuations that the feature makes likelier
    down: list[str]  # and those that it makes less likely
    source: str = "contrasts"  # what the message of an error begins with

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


def ids_of(tokenizer: Any, text: str) -> list[int]:
    found: list[int] = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    return found


def continuations(
    contrasts: Contrasts, tokenizer: Any, vocabulary: int
) -> tuple[Bool[Tensor, "n v"], Bool[Tensor, "n v"]]:
    """Return which of the tokens that the model has logits for are the `up` and the `down` of each pair."""
    boundary = boundary_tokens(tokenizer, vocabulary)
    up, down = torch.zeros(2, len(contrasts), vocabulary, dtype=torch.bool)
    for rows, ends in ((up, contrasts.up), (down, contrasts.down)):
        for place, end in enumerate(ends):
            rows[
                place,
                boundary if end == BOUNDARY else _next_token(contrasts, place, end, tokenizer),
            ] = True
    for place in (up & down).any(1).nonzero()[:, 0].tolist()[:1]:
        raise DataError(
            f"{contrasts.source} row {place + 1}: its up and down have a token in common"
        )
    return up, down


def boundary_tokens(tokenizer: Any, vocabulary: int) -> Bool[Tensor, " v"]:
    """Return which tokens do not continue the word before: white space, punctuation, special tokens."""
    found = torch.zeros(vocabulary, dtype=torch.bool)
    tokens = tokenizer.convert_ids_to_tokens(list(range(min(len(tokenizer), vocabulary))))
    ends = [str(token).startswith(SPACES) or not str(token)[:1].isalnum() for token in tokens]
    found[: len(ends)] = torch.tensor(ends)
    return found


def kind_of_token(tokenizer: Any, token: int) -> str:
    """Return whether a token is special, white space, punctuation, a number, a word or its beginning, or the rest."""
    if token in tokenizer.all_special_ids:
        return "special"
    text = str(tokenizer.decode([token])).strip()
    if not any(map(str.isalnum, text)):
        return "punctuation" if text else "white space"
    is_first = str(tokenizer.convert_ids_to_tokens(token)).startswith(SPACES)
    return "number" if text[0].isdigit() else "word" if is_first else "rest of a word"


def _next_token(contrasts: Contrasts, place: int, end: str, tokenizer: Any) -> int:
    """Return the token that an end adds to the text of a pair, and to its counterpart."""
    after: list[int] = []
    for text in (contrasts.counterparts[place].text, contrasts.texts[place].text):
        before, after = ids_of(tokenizer, text), ids_of(tokenizer, text + end)
        if after[:-1] != before:
            found = f"{contrasts.source} row {place + 1}: {end!r} after {text[-40:]!r} is not one token"
            raise DataError(f"{found}; give one with its space, such as ' is', or {BOUNDARY}")
    return after[-1]


def grammar_contrasts(
    kind: str, tokenizer: Any, count: int, seed: int = 0, size: str = "small"
) -> Contrasts:
    """Draw pairs of texts that end in a verb, or before one, whose form the feature decides.

    The verb ends in -s after a singular subject of a statement: the girl sings, the girls sing, does the girl sing. One
    whose third person is its stem and one further token is asked for that token, after the stem, against the end of the
    word. One whose forms are single tokens is asked for one form against the other, after the subject. Other verbs are
    left out; if none is left, that is a DataError.

    Args:
        kind: number: a singular subject against a plural one; question: a statement against a do-question.
        count: how many, at most as many as there are in the grammar of this size.
    """
    words = lexicon(size)
    verbs = list(_verbs(words["intransitive"] + words["transitive"], tokenizer))
    if not verbs:
        found = f"measure.contrast={kind}: this tokenizer needs more than one token for the ending of every verb"
        raise DataError(
            f"{found}; give pairs of your own: measure.contrast=table measure.path=FILE"
        )
    entries = words["female"] + words["male"] + words["neither"]
    every = [
        (determiner, entry, verb)
        for determiner in words["either"]
        for entry in entries
        for verb in verbs
    ]
    drawn = random.Random(seed).sample(every, min(count, len(every)))
    texts, counterparts = list[Prompt](), list[Prompt]()
    for determiner, entry, (after, _, _) in drawn:
        singular, plural = (noun(entry, None, number).form for number in ("singular", "plural"))
        other = (
            (f"{determiner} ", plural) if kind == "number" else (f"does {determiner} ", singular)
        )
        for side, (before, word) in ((texts, (f"{determiner} ", singular)), (counterparts, other)):
            side.append(Prompt(before + word + after, (len(before), len(before) + len(word))))
    ups, downs = [bare for *_, (_, bare, _) in drawn], [third for *_, (_, _, third) in drawn]
    return Contrasts(texts, counterparts, ups, downs, f"the {size} grammar, {kind}")


def _verbs(entries: Sequence[str], tokenizer: Any) -> Iterator[tuple[str, str, str]]:
    """Yield the text after the subject, and its continuations in the bare form and in the third person."""
    for base in (entry.partition("/")[0] for entry in entries):
        third = with_s(base)
        before, stem, whole = (
            ids_of(tokenizer, text) for text in ("the", f"the {base}", f"the {third}")
        )
        if whole[:-1] == stem and third.startswith(base):
            yield f" {base}", BOUNDARY, third[len(base) :]
        elif len(stem) == len(whole) == len(before) + 1:
            yield "", f" {base}", f" {third}"


def read_contrasts(path: str | Path) -> Contrasts:
    """Read pairs of texts from a .csv, .tsv or .parquet; rows are counted from 1, below the header."""
    frame = read_frame(Path(path)).astype(str)
    select_names(path, COLUMNS, list(map(str, frame.columns)), "column")
    texts, counterparts = list[Prompt](), list[Prompt]()
    for number, row in enumerate(frame.to_dict("records"), 1):
        place = f"{path} row {number}"
        if empty := [name for name in COLUMNS if not row[name]]:
            raise DataError(f"{place}: {empty[0]} is empty")
        texts.append(prompt(place, row["text"], row["word"]))
        counterparts.append(prompt(place, row["counterpart"], row.get(OPTIONAL) or row["word"]))
    return Contrasts(texts, counterparts, list(frame["up"]), list(frame["down"]), str(path))


def prompt(place: str, text: str, word: str) -> Prompt:
    """Return a text with the characters of a word of it, which must occur once; messages begin with `place`."""
    found = list(re.finditer(rf"(?<!\w){re.escape(word)}(?!\w)", text))
    if len(found) != 1:
        raise DataError(
            f"{place}: the word {word!r} must occur once, not {len(found)} times, in {text[:80]!r}"
        )
    return Prompt(text, found[0].span())


@dataclass(frozen=True)
class Prompts:
    """Texts as a model reads them, padded on the right."""

    tokens: Int[Tensor, "n t"]
    words: Int[Tensor, " n"]  # the place of the last token of the word of each
    ends: Int[Tensor, " n"]  # the place of the last token of each
    up: Bool[Tensor, "n v"]  # the next tokens that the feature makes likelier
    down: Bool[Tensor, "n v"]  # and less likely

    def batches(self) -> Iterator[tuple[slice, Prompts]]:
        """Yield some of the texts at a time, cut to the longest of them."""
        for first in range(0, len(self.tokens), AT_ONCE):
            part = slice(first, first + AT_ONCE)
            longest = int(self.ends[part].max()) + 1
            rest = (self.words[part], self.ends[part], self.up[part], self.down[part])
            yield part, Prompts(self.tokens[part, :longest], *rest)


def read_prompts(model: FrozenModel, contrasts: Contrasts) -> tuple[Prompts, Prompts]:
    """Return the texts of contrasts and their counterparts as a model reads them."""
    masks = continuations(contrasts, model.tokenizer, model.vocabulary)
    texts, counterparts = (
        _read(model, side, *masks) for side in (contrasts.texts, contrasts.counterparts)
    )
    return texts, counterparts


def _read(model: FrozenModel, texts: Sequence[Prompt], up: Tensor, down: Tensor) -> Prompts:
    bos = model.tokenizer.bos_token_id
    first = [bos] if model.bos_each_row and bos is not None else []
    rows, words, crossed = [], [], []
    for text, span in texts:
        read = model.tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        offsets = read["offset_mapping"]
        rows.append([*first, *read["input_ids"]])
        words.append(len(first) + last_tokens(text, [span], offsets, model.name)[0])
        crossed += (
            [] if has_own_state(text, [span], offsets, model.name)[0] else [text[slice(*span)]]
        )
    if crossed:
        raise DataError(
            f"in {len(crossed)} of {len(texts)} texts of contrasts a token of {model.name} goes on beyond the word, "
            f"such as {crossed[0]!r}: choose a model with shorter tokens, or leave these pairs out"
        )
    tokens = pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    return Prompts(
        tokens, torch.tensor(words), torch.tensor([len(row) - 1 for row in rows]), up, down
    )


def gap(
    model: FrozenModel, state: Float[Tensor, "n t d"], prompts: Prompts
) -> Float[Tensor, " n"]:
    logits = model.finish(state[torch.arange(len(state)), prompts.ends]).double().cpu()
    up, down = (
        logits.masked_fill(~mask, -torch.inf).logsumexp(1) for mask in (prompts.up, prompts.down)
    )
    return up - down


@torch.no_grad()
def gaps(model: FrozenModel, prompts: Prompts) -> Float[Tensor, " n"]:
    """Return log P(up) - log P(down) for the token after each text, in nats."""
    last = model.n_layers - 1
    return torch.cat(
        [gap(model, model.head(part.tokens, last), part) for _, part in prompts.batches()]
    )
