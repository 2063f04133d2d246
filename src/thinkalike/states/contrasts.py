"""Pairs of texts that differ in one feature, and the tokens that may continue each."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from thinkalike.advice import named_setting
from thinkalike.data.grammar import lexicon, noun, with_s
from thinkalike.data.stimuli import select_names
from thinkalike.data.tables import read_frame
from thinkalike.data.words import Span, spans_of
from thinkalike.errors import DataError
from thinkalike.models.frozen import FrozenModel
from thinkalike.states.spans import has_own_state, last_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TEXTS_PER_BATCH = 64
"""How many texts a model reads together."""

BOUNDARY = "<boundary>"
"""Says that the word before ends here: any token that does not continue it."""

SPACE_PREFIXES = ("Ġ", "▁", "Ċ", "ĉ", " ")
"""With these, tokenizers begin a token that follows white space, or is white space."""

CONTRASTS = ("number", "question")
"""The contrasts that the grammar has."""

COLUMNS = ("text", "counterpart", "word", "up", "down")
"""The columns that a table of contrasts has."""

COUNTERPART_WORD = "counterpart_word"
"""The column of the word in the counterpart, where it is another one."""


class Prompt(NamedTuple):
    """A text to be continued, and a word of it."""

    text: str

    span: Span
    """The characters of the word."""

    @property
    def word(self) -> str:
        """The word as it is written."""
        return self.text[slice(*self.span)]


@dataclass(frozen=True)
class Contrasts:
    """Pairs of texts that differ in a feature of a word, at which states are read and changed.

    A continuation is one token as it follows the text, or `BOUNDARY`.
    """

    texts: list[Prompt]
    """The texts without the feature."""

    counterparts: list[Prompt]
    """The texts with the feature."""

    up: list[str]
    """The continuation of each pair that the feature makes likelier."""

    down: list[str]
    """The continuation of each pair that the feature makes less likely."""

    source: str = "contrasts"
    """What errors call the pairs."""

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def groups(self) -> Int[Tensor, " n"]:
        """A number for the word of each text; texts with the same word have the same number.

        Folds and resamples never separate pairs of one number.
        """
        words = np.array([text.word for text in self.texts], dtype=object)
        return torch.from_numpy(pd.factorize(words)[0])

    def fingerprint(self) -> str:
        """Return the SHA-256 of all texts, words and continuations, as 16 hexadecimal digits."""
        content = (self.texts, self.counterparts, self.up, self.down)
        return hashlib.sha256(repr(content).encode()).hexdigest()[:16]


def ids_of(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Return the token ids of a text, without special tokens."""
    encoded = tokenizer(text, add_special_tokens=False, verbose=False)
    token_ids: list[int] = encoded["input_ids"]
    return token_ids


def continuations(
    contrasts: Contrasts, tokenizer: PreTrainedTokenizerBase, vocabulary: int
) -> tuple[Bool[Tensor, "n v"], Bool[Tensor, "n v"]]:
    """Return which next tokens are the continuations `up` and `down` of each pair of texts.

    The feature in which the texts of a pair differ makes `up` likelier and `down` less likely.
    Each is one token, or all tokens that end the current word.

    Args:
        contrasts: The n pairs.
        tokenizer: The tokenizer of a model.
        vocabulary: The number v of tokens for which the model has logits.

    Raises:
        DataError: A continuation is not one token, or `up` and `down` have a token in common.
    """
    boundary = boundary_tokens(tokenizer, vocabulary)

    def tokens_of(continuation_of_pair: Sequence[str]) -> Bool[Tensor, "n v"]:
        """Return which next tokens are the continuation of each pair.

        It is a single token, or all tokens that end the word before if it is `BOUNDARY`.
        """
        is_continuation = torch.zeros(len(contrasts), vocabulary, dtype=torch.bool)
        for pair, continuation in enumerate(continuation_of_pair):
            if continuation == BOUNDARY:
                is_continuation[pair, boundary] = True
            else:
                token = _next_token(contrasts, pair, continuation, tokenizer)
                is_continuation[pair, token] = True
        return is_continuation

    up = tokens_of(contrasts.up)
    down = tokens_of(contrasts.down)
    overlapping = (up & down).any(1).nonzero()[:, 0].tolist()
    if overlapping:
        row = overlapping[0] + 1
        raise DataError(f"{contrasts.source} row {row}: its up and down have a token in common")
    return up, down


def boundary_tokens(tokenizer: PreTrainedTokenizerBase, vocabulary: int) -> Bool[Tensor, " v"]:
    """Return which tokens do not continue the word before them, but end it.

    They begin with white space, with punctuation or with the mark of a special token. Logits of a
    model beyond the tokens of its tokenizer are none of them.

    Args:
        tokenizer: The tokenizer of a model.
        vocabulary: The number v of tokens for which the model has logits.
    """
    token_ids = list(range(min(len(tokenizer), vocabulary)))
    ends_word = []
    for token in tokenizer.convert_ids_to_tokens(token_ids):
        text = str(token)
        follows_space = text.startswith(SPACE_PREFIXES)
        begins_with_letter_or_digit = text[:1].isalnum()
        ends_word.append(follows_space or not begins_with_letter_or_digit)
    is_boundary = torch.zeros(vocabulary, dtype=torch.bool)
    is_boundary[: len(ends_word)] = torch.tensor(ends_word)
    return is_boundary


def kind_of_token(tokenizer: PreTrainedTokenizerBase, token: int) -> str:
    """Return the kind of a token as a word.

    It is "special", "white space", "punctuation", "number" (it begins with a digit), "word" (it
    begins a word), or "rest of a word".
    """
    if token in tokenizer.all_special_ids:
        return "special"
    text = str(tokenizer.decode([token])).strip()
    if not text:
        return "white space"
    if not any(character.isalnum() for character in text):
        return "punctuation"
    if text[0].isdigit():
        return "number"
    written = str(tokenizer.convert_ids_to_tokens(token))
    if written.startswith(SPACE_PREFIXES):
        return "word"
    return "rest of a word"


def _next_token(
    contrasts: Contrasts, pair: int, continuation: str, tokenizer: PreTrainedTokenizerBase
) -> int:
    """Return the id of the token that a continuation adds to both texts of a pair.

    Args:
        contrasts: The pairs of texts.
        pair: The index of the pair.
        continuation: The text that follows, with the space before it, if there is one.
        tokenizer: The tokenizer of a model.

    Raises:
        DataError: The continuation adds more or less than one token to one of the two texts, or
            changes its other tokens.
    """
    next_token = -1
    for text in (contrasts.counterparts[pair].text, contrasts.texts[pair].text):
        token_ids = ids_of(tokenizer, text)
        continued_ids = ids_of(tokenizer, text + continuation)
        if continued_ids[:-1] != token_ids:
            raise DataError(
                f"{contrasts.source} row {pair + 1}: {continuation!r} after {text[-40:]!r} is not "
                f"one token; give one with its space, such as ' is', or {BOUNDARY}"
            )
        next_token = continued_ids[-1]
    return next_token


class _VerbEnding(NamedTuple):
    """How a pair of texts ends in a verb, or before one."""

    after_subject: str
    """What follows the subject in both texts."""

    bare: str
    """The continuation for a plural subject, or in a question."""

    third_person: str
    """The continuation for a singular subject of a statement."""


def grammar_contrasts(
    kind: str, tokenizer: PreTrainedTokenizerBase, count: int, seed: int = 0, size: str = "small"
) -> Contrasts:
    """Draw pairs of texts that end in a verb, or before one, whose form the feature decides.

    The verb ends in -s after a singular subject of a statement: the girl sings, the girls sing,
    does the girl sing. If its third person is its stem and one further token, the text has the
    stem, and that token is compared with the end of the word. If its forms are single tokens, the
    text ends with the subject, and one form is compared with the other. Other verbs are left out.

    Args:
        kind: "number": a singular subject against a plural one; "question": a statement against a
            do-question.
        tokenizer: The tokenizer of a model.
        count: How many, at most as many as there are in the grammar.
        seed: Decides which pairs are drawn.
        size: The size of the grammar.

    Raises:
        DataError: All verbs are left out.
    """
    words = lexicon(size)
    endings = list(_verb_endings(words["intransitive"] + words["transitive"], tokenizer))
    if not endings:
        raise DataError(
            f"{named_setting('measure.contrast', kind)}: this tokenizer needs more than one "
            "token for the ending of every verb; give pairs of your own: "
            f"{named_setting('measure.contrast', 'table')} "
            f"{named_setting('measure.path', like='FILE')}"
        )
    nouns = words["female"] + words["male"] + words["neither"]
    combinations = list(product(words["either"], nouns, endings))
    drawn = random.Random(seed).sample(combinations, min(count, len(combinations)))

    texts = []
    counterparts = []
    for determiner, entry, ending in drawn:
        singular = noun(entry, None, "singular").form
        plural = noun(entry, None, "plural").form
        statement = f"{determiner} "
        texts.append(_prompt(statement, singular, ending.after_subject))
        if kind == "number":
            counterpart = _prompt(statement, plural, ending.after_subject)
        else:
            question = f"does {determiner} "
            counterpart = _prompt(question, singular, ending.after_subject)
        counterparts.append(counterpart)
    return Contrasts(
        texts,
        counterparts,
        up=[ending.bare for _, _, ending in drawn],
        down=[ending.third_person for _, _, ending in drawn],
        source=f"the {size} grammar, {kind}",
    )


def _prompt(before: str, word: str, after: str) -> Prompt:
    """Return the text `before + word + after` with the span of the word."""
    start = len(before)
    return Prompt(before + word + after, (start, start + len(word)))


def _verb_endings(
    entries: Sequence[str], tokenizer: PreTrainedTokenizerBase
) -> Iterator[_VerbEnding]:
    """Yield how a text can end before the token that tells "sing" from "sings", for each verb.

    If "sings" is the tokens of "sing" and one more, the text ends in "sing". Otherwise, if each
    form is a single token, the text ends before the verb. Other verbs are left out.

    Args:
        entries: Verbs of the lexicon; behind a slash stands an irregular past tense.
        tokenizer: The tokenizer of a model.
    """
    # Verbs are tokenised behind another word, because their tokens include the space before them.
    subject_ids = ids_of(tokenizer, "the")
    for entry in entries:
        stem = entry.partition("/")[0]
        third_person = with_s(stem)
        stem_ids = ids_of(tokenizer, f"the {stem}")
        third_person_ids = ids_of(tokenizer, f"the {third_person}")
        has_ending_token = third_person_ids[:-1] == stem_ids
        single_token_length = len(subject_ids) + 1
        if has_ending_token and third_person.startswith(stem):
            ending = third_person[len(stem) :]
            yield _VerbEnding(after_subject=f" {stem}", bare=BOUNDARY, third_person=ending)
        elif len(stem_ids) == len(third_person_ids) == single_token_length:
            yield _VerbEnding(after_subject="", bare=f" {stem}", third_person=f" {third_person}")


def read_contrasts(path: str | Path) -> Contrasts:
    """Read pairs of texts from a .csv, .tsv or .parquet file, a pair in each row.

    The columns are `text`, `counterpart` (which differs from it in one feature), `word` (at which
    states are read), and `up` and `down` (the continuations that the feature makes likelier and
    less likely). The column `counterpart_word`, which may be missing or empty, has the word of the
    counterpart if it is not the same. Rows in errors are counted from 1, below the header.

    Raises:
        DataError: The file cannot be read, a column is missing, a cell is empty, or a word does
            not occur once in its text.
    """
    frame = read_frame(Path(path)).fillna("").astype(str)
    select_names(path, COLUMNS, [str(name) for name in frame.columns], "column")
    texts = []
    counterparts = []
    for number, row in enumerate(frame.to_dict("records"), 1):
        location = f"{path} row {number}"
        for name in COLUMNS:
            if not row[name]:
                raise DataError(f"{location}: {name} is empty")
        counterpart_word = row.get(COUNTERPART_WORD) or row["word"]
        texts.append(prompt_with_word(location, row["text"], row["word"]))
        counterparts.append(prompt_with_word(location, row["counterpart"], counterpart_word))
    return Contrasts(texts, counterparts, list(frame["up"]), list(frame["down"]), str(path))


def prompt_with_word(location: str, text: str, word: str) -> Prompt:
    """Return a text with the span of a word in it.

    Args:
        location: What errors call the text.
        text: The text.
        word: The word to look for.

    Raises:
        DataError: The word does not occur exactly once, as a whole word.
    """
    spans = spans_of(word, text)
    if len(spans) != 1:
        raise DataError(
            f"{location}: the word {word!r} must occur once, not {len(spans)} times, in "
            f"{text[:80]!r}"
        )
    return Prompt(text, spans[0])


@dataclass(frozen=True)
class EncodedPrompts:
    """The texts of contrasts, or their counterparts, as a model reads them."""

    tokens: Int[Tensor, "n t"]
    """Token ids, padded on the right."""

    words: Int[Tensor, " n"]
    """The position of the last token of the word of each text."""

    ends: Int[Tensor, " n"]
    """The position of the last token of each text."""

    up: Bool[Tensor, "n v"]
    """The next tokens that the feature makes likelier."""

    down: Bool[Tensor, "n v"]
    """The next tokens that the feature makes less likely."""

    def batches(self) -> Iterator[tuple[slice, EncodedPrompts]]:
        """Yield the texts in batches of `TEXTS_PER_BATCH`, each with the slice of its rows.

        A batch is cut to the length of its longest text; what is cut off is padding.
        """
        for first in range(0, len(self.tokens), TEXTS_PER_BATCH):
            rows = slice(first, first + TEXTS_PER_BATCH)
            longest = int(self.ends[rows].max()) + 1
            batch = EncodedPrompts(
                tokens=self.tokens[rows, :longest],
                words=self.words[rows],
                ends=self.ends[rows],
                up=self.up[rows],
                down=self.down[rows],
            )
            yield rows, batch


def encode_prompts(
    model: FrozenModel, contrasts: Contrasts
) -> tuple[EncodedPrompts, EncodedPrompts]:
    """Return the texts of contrasts, and their counterparts, as token ids of a model.

    Both come with the next tokens that the feature makes likelier (`up`) and less likely (`down`),
    which is the feature in which a text and its counterpart differ.

    Raises:
        DataError: A continuation is not one token, or a token goes on beyond the word at which
            states are read.
    """
    up, down = continuations(contrasts, model.tokenizer, model.vocabulary)
    texts = _encode_prompts(model, contrasts.texts, up, down)
    counterparts = _encode_prompts(model, contrasts.counterparts, up, down)
    return texts, counterparts


def _encode_prompts(
    model: FrozenModel, texts: Sequence[Prompt], up: Tensor, down: Tensor
) -> EncodedPrompts:
    """Return the token ids of prompts with the positions of their words, for one model.

    Args:
        model: The model.
        texts: The prompts.
        up, down: Which next tokens the feature makes likelier and less likely, (n, v).

    Raises:
        DataError: The last token of a word also holds letters after it, so that the state at this
            token is not that of the word alone.
    """
    bos = model.tokenizer.bos_token_id
    prefix = []
    if model.bos_each_row and bos is not None:
        prefix = [bos]
    rows = []
    word_positions = []
    words_without_state = []
    for text in texts:
        encoded = model.tokenizer(
            text.text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        offsets = encoded["offset_mapping"]
        (last_token,) = last_tokens(text.text, [text.span], offsets, model.name)
        (has_own,) = has_own_state(text.text, [text.span], offsets, model.name)
        rows.append([*prefix, *encoded["input_ids"]])
        word_positions.append(len(prefix) + last_token)
        if not has_own:
            words_without_state.append(text.word)
    if words_without_state:
        raise DataError(
            f"in {len(words_without_state)} of {len(texts)} texts of contrasts a token of "
            f"{model.name} goes on beyond the word, such as {words_without_state[0]!r}: choose a "
            "model with shorter tokens, or leave these pairs out"
        )
    return EncodedPrompts(
        tokens=pad_sequence([torch.tensor(row) for row in rows], batch_first=True),
        words=torch.tensor(word_positions),
        ends=torch.tensor([len(row) - 1 for row in rows]),
        up=up,
        down=down,
    )


def gap(
    model: FrozenModel, state: Float[Tensor, "n t d"], texts: EncodedPrompts
) -> Float[Tensor, " n"]:
    """Return log P(up) - log P(down) for the token after each text, in nats.

    `up` and `down` are sets of next tokens that a feature of the text makes likelier and less
    likely.

    Args:
        model: The model, whose final norm and unembedding are applied.
        state: The states after the last block, of width d at each of t tokens of n texts.
        texts: The n texts, with the last token of each (`ends`).
    """
    rows = torch.arange(len(state))
    logits = model.finish(state[rows, texts.ends]).double().cpu()  # (n, v)
    # log P(set) = logsumexp of its logits - log Z; log Z cancels in the difference.
    up = logits.masked_fill(~texts.up, -torch.inf).logsumexp(1)
    down = logits.masked_fill(~texts.down, -torch.inf).logsumexp(1)
    return up - down


@torch.no_grad()
def gaps(model: FrozenModel, texts: EncodedPrompts) -> Float[Tensor, " n"]:
    """Run a model and return log P(up) - log P(down) for the token after each text, in nats.

    `up` and `down` are sets of next tokens that a feature of the text makes likelier and less
    likely; `texts` has them for each text.
    """
    last_block = model.n_layers - 1
    gaps_of_batches = []
    for _, batch in texts.batches():
        # Padding follows the text, so that it does not change the states at the text's end.
        last_states = model.head(batch.tokens, last_block)
        gaps_of_batches.append(gap(model, last_states, batch))
    return torch.cat(gaps_of_batches)
