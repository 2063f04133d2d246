"""One iterator for every measure: models and what they read, to batches of states, each model run once per batch."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from thinkalike.config import DataConfig
from thinkalike.data.corpus import read_corpus
from thinkalike.data.pairs import EncodedPairs, PairBatch
from thinkalike.data.split import held_out_texts
from thinkalike.errors import DataError
from thinkalike.measures.estimates import stimulus_folds
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.tokenizers import same_vocabulary
from thinkalike.states.tokens import Pieces, counted, pieces, token_states, word_documents, word_forms, word_states
from thinkalike.tokenizers import tokenizer_fingerprint

log = logging.getLogger(__name__)

PARTS = 10  # of stimuli that one batch can hold, if there are as many


class StateBatch(NamedTuple):
    """States of one batch: by model in the order asked for, then by layer; a model asked for twice has one list."""

    states: list[list[Tensor]]  # each (b, t, d) of tokens, or (n, d) of rows
    mask: Bool[Tensor, "b t"] | None = None  # the tokens that count; None: all do
    tokens: Int[Tensor, " *n"] | None = None  # of each state: the token, or the number of the form of the word
    documents: Int[Tensor, " *n"] | None = None  # of each state: the number of its document, or of a stimulus's group
    content: Hashable = None  # equal where models read the same; None: not known


@dataclass(frozen=True)
class StateBatches:
    """Batches of states, which can be read from any batch on, with any step.

    Attributes:
        starting: gives the batches from a number on, in steps.
        total: the number of batches, as far as it is known beforehand.
        level: of the rows: token, word or stimulus.
        facts: of the data, for the provenance of a result.
        parts_left_out: n where the first batch has all rows, and each of n others leaves a part of them out; else 0.
    """

    starting: Callable[[int, int], Iterator[StateBatch]]
    total: int
    level: str
    facts: dict[str, Any] = field(default_factory=dict)
    parts_left_out: int = 0


def text_batches(
    models: Sequence[FrozenModel],
    data: DataConfig,
    *,
    batches: int,
    tokens_per_batch: int,
    level: str = "auto",
    embed: bool = False,
    skip_first_tokens: int = 0,
    skip_special_tokens: bool = False,
    runs: ModelRuns | None = None,
) -> StateBatches:
    """Return batches of the states of several models on held-out text.

    Args:
        tokens_per_batch: tokens, or words where the level is that of words.
        level: token, word, or auto: words where the tokenizers differ.
        embed: also the site before block 0.
        runs: where states are kept for other jobs until they are forgotten; None: nowhere.

    Raises:
        ModelError: at the level of tokens the tokenizers differ.
        DataError: tokens are to be left out at the level of words; see `read_tokens`, `word_states`.
    """
    if level == "auto":
        level = "token" if len({tokenizer_fingerprint(model.tokenizer) for model in models}) == 1 else "word"
        if level == "word":
            names = " and ".join(model.name for model in models)
            log.info("%s have different tokenizers: compared word by word", names)
    if level == "token":
        return _by_token(models, data, batches, tokens_per_batch, embed, skip_first_tokens, skip_special_tokens, runs)
    if skip_first_tokens or skip_special_tokens:
        raise DataError("words are compared one by one: skip_first_tokens and skip_special_tokens are for tokens")
    return _by_word(models, data, batches, tokens_per_batch, embed, runs)


def _by_token(
    models: Sequence[FrozenModel],
    data: DataConfig,
    batches: int,
    tokens_per_batch: int,
    embed: bool,
    skip_first: int,
    skip_special: bool,
    runs: ModelRuns | None,
) -> StateBatches:
    first = models[0]
    for model in models:
        same_vocabulary(first, model)  # the same rows must be the same text
    context = min(model.context for model in models)
    data = replace(data, report_tokens=batches * tokens_per_batch)

    def read() -> Any:
        return read_corpus(data, first.tokenizer, context, bos=first.bos_each_row, fit_tokens=1, whole=True)

    asked = (repr(data), tokenizer_fingerprint(first.tokenizer), context, first.bos_each_row)
    corpus = runs.text(asked, read) if runs else read()
    size = max(tokens_per_batch // corpus.report.tokens.shape[1], 1)
    rows, documents = corpus.report.tokens.split(size), corpus.report.documents.split(size)
    special = first.tokenizer.all_special_ids if skip_special else []

    def starting(number: int, step: int) -> Iterator[StateBatch]:
        for part, owners in zip(rows[number::step], documents[number::step], strict=True):
            states = (runs or ModelRuns()).of_tokens(models, part, embed)
            counts = counted(part, skip_first, special)
            yield StateBatch(states, counts, part, owners, content_of_rows(part))

    return StateBatches(starting, len(rows), "token", {"data": {"name": data.name, **corpus.facts()}})


def _by_word(
    models: Sequence[FrozenModel],
    data: DataConfig,
    batches: int,
    words_per_batch: int,
    embed: bool,
    runs: ModelRuns | None,
) -> StateBatches:
    different = list(dict.fromkeys(models))

    def starting(number: int, step: int) -> Iterator[StateBatch]:
        texts = pieces(held_out_texts(data), different, words_per_batch)
        for batch in itertools.islice(texts, number, batches, step):
            states = (runs or ModelRuns()).of_words(models, batch, embed)
            content = content_of_pieces(batch)
            yield StateBatch(states, tokens=word_forms(batch), documents=word_documents(batch), content=content)

    return StateBatches(starting, batches, "word", {"data": {"name": data.name, "level": "word"}})


def pair_batches(
    models: Sequence[FrozenModel],
    encoded: EncodedPairs,
    *,
    tokens_per_batch: int,
    site: str = "resid_post",
    include_padding: bool = False,
    first_only: bool = False,
    padded_to: int = 0,
    pairs: int | None = None,
    pairs_at_once: int = 64,
) -> StateBatches:
    """Return batches of `tokens_per_batch` tokens of pairs of sentences, rows (n, d); the rest at the end is dropped.

    Pairs come in random order, because batches serve as folds.

    Args:
        site, include_padding: see `token_states`, `counted`.
        first_only: one row for each pair, its first token.
        padded_to: how many tokens each pair is padded to, where the longest of those that run together is shorter.
        pairs: how many are read, the first in that order; None: all.
        pairs_at_once: how many run together.
    """
    order = torch.randperm(len(encoded), generator=torch.Generator().manual_seed(0)).tolist()[:pairs]

    def states_of(batch: PairBatch) -> list[list[Float[Tensor, "n _"]]]:
        mask = batch.mask.long()
        chosen = counted(batch.tokens, mask=mask, include_padding=include_padding)
        if first_only:
            chosen[:, 1:] = False

        def rows_of(model: FrozenModel) -> list[Float[Tensor, "n _"]]:
            (layers,) = token_states([model], batch.tokens, mask=mask, types=batch.types, site=site)
            return [layer[chosen.to(layer.device)].cpu() for layer in layers]

        rows = {id(model): rows_of(model) for model in dict.fromkeys(models)}  # the whole states of one at a time
        return [rows[id(model)] for model in models]

    def everything() -> Iterator[StateBatch]:
        waiting: list[list[list[Tensor]]] = []
        for start in range(0, len(order), pairs_at_once):
            waiting.append(states_of(encoded.batch(order[start : start + pairs_at_once], padded_to)))
            while sum(len(part[0][0]) for part in waiting) >= tokens_per_batch:
                whole = [[torch.cat(parts) for parts in zip(*own, strict=True)] for own in zip(*waiting, strict=True)]
                yield StateBatch([[layer[:tokens_per_batch] for layer in own] for own in whole])
                waiting = [[[layer[tokens_per_batch:] for layer in own] for own in whole]]

    return StateBatches(lambda number, step: itertools.islice(everything(), number, None, step), 0, "token")


def array_batches(
    sides: Sequence[Sequence[Float[Tensor, "n _"]]], groups: Int[Tensor, " m"], *, rows_per_batch: int, fewest: int = 2
) -> StateBatches:
    """Return batches of the states of n stimuli, for each side its layers; a side that is there twice has one list.

    Where a batch can hold all of them, the first does, and each of the others leaves a part out, on which an interval
    rests. Else they are drawn into batches of about equal size. Either way the order of the stimuli does not matter,
    and those of one group are in one part, unless there are too few groups; then each stimulus is a group.

    Args:
        groups: what each stimulus belongs to, such as a sentence.
        rows_per_batch: how many stimuli a batch can hold.
        fewest: how many stimuli there must be in a batch.

    Raises:
        DataError: layers differ in n, or a batch would have too few.
    """
    counts = sorted({len(layer) for side in sides for layer in side})
    if len(counts) > 1:
        raise DataError(f"layers have {counts} rows, and row i of each must belong to the same stimulus")
    n, whole = counts[0], counts[0] <= rows_per_batch
    part_of = _parts(groups, PARTS if whole else -(-n // rows_per_batch))
    parts = range(int(part_of.max()) + 1)
    chosen = [part_of >= 0, *(part_of != part for part in parts)] if whole else [part_of == part for part in parts]
    if (least := min(int(each.sum()) for each in chosen)) < fewest:
        remedy = "give more stimuli" if whole else f"set measure.tokens_per_batch to {n} or less, but more than now"
        raise DataError(
            f"of {n} stimuli, measure.tokens_per_batch={rows_per_batch} compares {least} at once, and at least "
            f"{fewest} are needed; {remedy}"
        )
    different = {id(side): side for side in sides}

    def starting(number: int, step: int) -> Iterator[StateBatch]:
        for own in chosen[number::step]:
            states = {key: [layer[own] for layer in side] for key, side in different.items()}
            yield StateBatch([states[id(side)] for side in sides], documents=groups[own])

    facts = {"data": {"rows": n, "parts": len(parts)}}
    return StateBatches(starting, len(chosen), "stimulus", facts, parts_left_out=len(parts) if whole else 0)


def _parts(groups: Int[Tensor, " n"], most: int) -> Int[Tensor, " n"]:
    """Return the part of each stimulus, drawn at random, always in the same way."""
    n, units = len(groups), len(groups.unique())
    together = units >= PARTS
    count = min(most, units if together else n)
    return torch.zeros_like(groups) if count < 2 else stimulus_folds(n, count, groups=groups if together else None)


# ----------------------------------------------------------------------------------------------------------------- runs


class ModelRuns:
    """Runs models, each once for each different input until `forget`.

    Jobs that go through their batches in step share one of these. Inputs are equal if their content is, so that jobs
    whose contexts or tokenizers cut a text differently get states of their own. Two models are one if they have the
    same module, whatever they are called.
    """

    def __init__(self) -> None:
        self._states: dict[Hashable, list[Tensor]] = {}
        self._texts: dict[Hashable, Any] = {}

    def text(self, asked: Hashable, read: Callable[[], Any]) -> Any:
        """Return a text, which `read` reads the first time that exactly this is asked for; it is never forgotten."""
        if asked not in self._texts:
            self._texts[asked] = read()
        return self._texts[asked]

    def of_tokens(
        self, models: Sequence[FrozenModel], rows: Int[Tensor, "b t"], embed: bool
    ) -> list[list[Float[Tensor, "b t _"]]]:
        """Return the states of each model at all layers; see `token_states`."""
        content = (*content_of_rows(rows), embed)
        return [self.once(model, content, lambda model: token_states([model], rows, embed)[0]) for model in models]

    def of_words(
        self, models: Sequence[FrozenModel], batch: Pieces, embed: bool
    ) -> list[list[Float[Tensor, "words _"]]]:
        """Return the states of each model at all layers; see `word_states`."""
        content = (*content_of_pieces(batch), embed)
        return [self.once(model, content, lambda model: word_states(model, batch, embed)) for model in models]

    def forget(self) -> None:
        """Let go of all states, because the next inputs come."""
        self._states.clear()

    def once(self, model: FrozenModel, content: Hashable, run: Callable[[FrozenModel], list[Tensor]]) -> list[Tensor]:
        """Return what a model makes of an input, of this content, which `run` makes the first time."""
        place = (id(model.module), content)
        if place not in self._states:
            self._states[place] = run(model)
        return self._states[place]


def content_of_rows(rows: Int[Tensor, "b t"]) -> tuple[Hashable, ...]:
    """Return what is equal for equal rows of tokens alone."""
    return (tuple(rows.shape), rows.cpu().numpy().tobytes())


def content_of_pieces(batch: Pieces) -> tuple[Hashable, ...]:
    """Return what is equal for equal pieces of text with equal words alone."""
    return (tuple(batch.texts), tuple(map(tuple, batch.words)))
