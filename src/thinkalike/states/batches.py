"""One iterator for every measure: models and what they read, to batches of states, each model run once per batch."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
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
from thinkalike.states.tokens import counted, pieces, token_states, word_documents, word_forms, word_states
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
    """Batches of states, which can be read from any batch on, with any step."""

    starting: Callable[[int, int], Iterator[StateBatch]]  # gives the batches from a number on, in steps
    total: int  # the number of batches, as far as it is known beforehand
    level: str  # of the rows: token, word or stimulus
    facts: dict[str, Any] = field(default_factory=dict)  # of the data, for the provenance of a result
    parts_left_out: int = 0  # n where the first batch has all rows, and each of n others leaves a part of them out


def text_batches(models: Sequence[FrozenModel], data: DataConfig, measure: Any, runs: ModelRuns) -> StateBatches:
    """Return batches of the states of several models on held-out text.

    Args:
        measure: the settings `batches`; `tokens_per_batch`, tokens or words; `level`: token, word, or auto, which is
            words where the tokenizers differ; `embed`, `skip_first_tokens` and `skip_special_tokens`.
        runs: where states are kept for other jobs until they are forgotten.

    Raises:
        ModelError: at the level of tokens the tokenizers differ.
        DataError: tokens are to be left out at the level of words; see `read_corpus`, `word_states`.
    """
    level = measure.level
    if level == "auto":
        level = "token" if len({tokenizer_fingerprint(model.tokenizer) for model in models}) == 1 else "word"
        if level == "word":
            names = " and ".join(model.name for model in models)
            log.info("%s have different tokenizers: compared word by word", names)
    if level == "token":
        return _by_token(models, data, measure, runs)
    if measure.skip_first_tokens or measure.skip_special_tokens:
        raise DataError("words are compared one by one: skip_first_tokens and skip_special_tokens are for tokens")
    return _by_word(models, data, measure, runs)


def _by_token(models: Sequence[FrozenModel], data: DataConfig, measure: Any, runs: ModelRuns) -> StateBatches:
    first = models[0]
    for model in models:
        same_vocabulary(first, model)  # the same rows must be the same text
    context = min(model.context for model in models)
    data = replace(data, report_tokens=measure.batches * measure.tokens_per_batch)
    asked = (repr(data), tokenizer_fingerprint(first.tokenizer), context, first.bos_each_row)
    read = partial(read_corpus, data, first.tokenizer, context, bos=first.bos_each_row, fit_tokens=1, whole=True)
    corpus = runs.text(asked, read)
    size = max(measure.tokens_per_batch // corpus.report.tokens.shape[1], 1)
    rows, documents = corpus.report.tokens.split(size), corpus.report.documents.split(size)
    special = first.tokenizer.all_special_ids if measure.skip_special_tokens else []

    def starting(number: int, step: int) -> Iterator[StateBatch]:
        for part, owners in zip(rows[number::step], documents[number::step], strict=True):
            content = (tuple(part.shape), part.numpy().tobytes())
            key, run = (content, measure.embed), partial(token_states, rows=part, embed=measure.embed)
            states = [runs.once(model, key, run) for model in models]
            yield StateBatch(states, counted(part, measure.skip_first_tokens, special), part, owners, content)

    return StateBatches(starting, len(rows), "token", {"data": {"name": data.name, **corpus.facts()}})


def _by_word(models: Sequence[FrozenModel], data: DataConfig, measure: Any, runs: ModelRuns) -> StateBatches:
    def starting(number: int, step: int) -> Iterator[StateBatch]:
        texts = pieces(held_out_texts(data), list(dict.fromkeys(models)), measure.tokens_per_batch)
        for batch in itertools.islice(texts, number, measure.batches, step):
            content = (tuple(batch.texts), tuple(map(tuple, batch.words)))
            key, run = (content, measure.embed), partial(word_states, batch=batch, embed=measure.embed)
            states = [runs.once(model, key, run) for model in models]
            yield StateBatch(states, tokens=word_forms(batch), documents=word_documents(batch), content=content)

    return StateBatches(starting, measure.batches, "word", {"data": {"name": data.name, "level": "word"}})


def pair_batches(
    models: Sequence[FrozenModel], encoded: EncodedPairs, measure: Any, *, rows: int, first_only: bool, pairs: int
) -> StateBatches:
    """Return batches of `rows` tokens of pairs of sentences, rows (n, d); the rest at the end is dropped.

    Pairs come in random order, because batches serve as folds.

    Args:
        measure: the settings `site` (see `token_states`); `include_padding` (see `counted`); `batch`, how many pairs
            run together; `padding`, how many tokens they are padded to, where the longest of them is shorter.
        first_only: one row for each pair, its first token.
        pairs: how many are read, the first in that order.
    """
    order = torch.randperm(len(encoded), generator=torch.Generator().manual_seed(0)).tolist()[:pairs]

    def states_of(batch: PairBatch) -> list[list[Float[Tensor, "n _"]]]:
        mask = batch.mask.long()
        chosen = counted(batch.tokens, mask=mask, include_padding=measure.include_padding)
        if first_only:
            chosen[:, 1:] = False

        def rows_of(model: FrozenModel) -> list[Float[Tensor, "n _"]]:
            layers = token_states(model, batch.tokens, mask=mask, types=batch.types, site=measure.site)
            return [layer[chosen.to(layer.device)].cpu() for layer in layers]

        found = {id(model): rows_of(model) for model in dict.fromkeys(models)}  # the whole states of one at a time
        return [found[id(model)] for model in models]

    def everything() -> Iterator[StateBatch]:
        waiting: list[list[list[Tensor]]] = []
        for start in range(0, len(order), measure.batch):
            waiting.append(states_of(encoded.batch(order[start : start + measure.batch], measure.padding or 0)))
            while sum(len(part[0][0]) for part in waiting) >= rows:
                whole = [[torch.cat(parts) for parts in zip(*own, strict=True)] for own in zip(*waiting, strict=True)]
                yield StateBatch([[layer[:rows] for layer in own] for own in whole])
                waiting = [[[layer[rows:] for layer in own] for own in whole]]

    return StateBatches(lambda number, step: itertools.islice(everything(), number, None, step), 0, "token")


def array_batches(
    sides: Sequence[Sequence[Float[Tensor, "n _"]]], groups: Int[Tensor, " n"], *, rows_per_batch: int, fewest: int = 2
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
        DataError: a batch would have too few.
    """
    n, whole = len(groups), len(groups) <= rows_per_batch
    part_of = _parts(groups, PARTS if whole else -(-n // rows_per_batch))
    parts = range(int(part_of.max()) + 1)
    chosen = [part_of >= 0, *(part_of != part for part in parts)] if whole else [part_of == part for part in parts]
    if (least := min(int(each.sum()) for each in chosen)) < fewest:
        raise DataError(
            f"of {n} stimuli, measure.tokens_per_batch={rows_per_batch} compares {least} at once, and at least "
            f"{fewest} are needed; give more stimuli, or raise measure.tokens_per_batch if it is below their number"
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

    def forget(self) -> None:
        """Let go of all states, because the next inputs come."""
        self._states.clear()

    def once(self, model: FrozenModel, content: Hashable, run: Callable[[FrozenModel], list[Tensor]]) -> list[Tensor]:
        """Return what a model makes of an input, of this content, which `run` makes the first time."""
        place = (id(model.module), content)
        if place not in self._states:
            self._states[place] = run(model)
        return self._states[place]
