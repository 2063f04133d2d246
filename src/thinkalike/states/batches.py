"""One iterator for every measure: models and what they read, to batches of states, each model run once per pool.

Unbiased estimators take the rows of a batch for independent draws, and intervals need batches that differ by chance
alone, which consecutive text is not. So rows of text are drawn at random over all documents into pools, and the tokens
of a pool, one by one, into batches.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise, starmap
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from thinkalike.arguments import seeded
from thinkalike.config import DataConfig
from thinkalike.config.schema import pool_tokens
from thinkalike.data.corpus import read_corpus
from thinkalike.data.split import held_out_texts
from thinkalike.digests import tokenizer_fingerprint
from thinkalike.errors import DataError
from thinkalike.measures.estimates import numbered_by_part
from thinkalike.measures.hsic import FEWEST
from thinkalike.measures.rows import RowGroups, places_of
from thinkalike.models.families import Layer
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.tokenizers import same_vocabulary
from thinkalike.states.tokens import WORDS_AT_ONCE, Pieces, counted, pieces, token_states, word_states

log = logging.getLogger(__name__)
MASSIVE = 3  # times the median norm of a layer; few states are beyond it, and may carry most variance (Sun et al. 2024)
DECIDES, TIMES = 0.25, 10  # of the variance, and times their share of the rows, beyond which such rows decide a layer
ALONE = 0.9  # of the variance, beyond which rows that begin their text decide a layer, however many there are
FEWEST_ROWS, SHORTEST = 32, 64  # of text: where few tokens are compared, or are in memory at once, rows are shorter
BESIDE = 4  # batches, of which the values with massive states are given beside those without
SPREAD = 4  # times as much text is read as is compared, whose rows are then of more documents

Run = Callable[[FrozenModel], list[Tensor]]


class StateBatch(NamedTuple):
    """States of one batch: by model in the order asked for, then by layer; a model asked for twice has one list."""

    number: int  # in the whole run, whoever reads it
    states: list[list[Tensor]]  # each (n, d) of rows, or (b, t, d) where a measure takes whole sequences
    groups: Int[Tensor, " *n"]  # what it depends on: a document, sentence or pair, by its number in all batches
    mask: Bool[Tensor, "b t"] | None = None  # the tokens that count; None: all do
    tokens: Int[Tensor, " *n"] | None = None  # of each state: the token, or the number of the form of the word
    content: Hashable = None  # equal where models read the same; None: not known
    with_massive: StateBatch | None = None  # as many rows, drawn with `massive` ones, in the first pool


@dataclass(frozen=True)
class StateBatches:
    """Batches of states in pools, over each of which models run at once."""

    pool: Callable[[int], Iterator[StateBatch]]  # gives the batches of the pool of that number
    total: int  # the number of pools
    batches: int  # in all pools
    level: str  # of the rows: token, word or stimulus
    facts: dict[str, Any] = field(default_factory=dict)  # of the data, for the provenance of a result


def text_batches(
    models: Sequence[FrozenModel], at: Sequence[Sequence[Layer]], data: DataConfig, measure: Any, runs: ModelRuns
) -> StateBatches:
    """Return batches of the states of several models on held-out text.

    Args:
        at: the layers of each model.
        measure: the settings `batches`; `tokens_per_batch`, tokens or words; `level`: token, word, or auto, which is
            words where the tokenizers differ; `skip_first_tokens`, of which None leaves out `massive` tokens wherever
            they are, and `skip_special_tokens`; `given`, of which "token_position" takes the means of both from the
            states of a pool. `flatten` other than token keeps rows of text whole, and the first `fit_batches` share no
            row of text with the others.
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
        return _by_token(models, at, data, measure, runs)
    if measure.skip_first_tokens or measure.skip_special_tokens:
        raise DataError("words are compared one by one: skip_first_tokens and skip_special_tokens are for tokens")
    return _by_word(models, at, data, measure, runs)


class _Labels(NamedTuple):
    """What is known of the tokens or words of a pool, (n,), or of whole rows of text, (b, t)."""

    content: Hashable
    tokens: Int[Tensor, " *n"]
    groups: Int[Tensor, " *n"]
    positions: Int[Tensor, " *n"] | None = None
    mask: Bool[Tensor, "b t"] | None = None


class _Text(NamedTuple):
    """Units of text that models read, rows of tokens or pieces of words, some of which are chosen by their numbers."""

    level: str
    facts: dict[str, Any]
    batches: int
    units: int
    at_once: int  # how many a model reads in one pass
    read: Callable[[Int[Tensor, " u"]], _Labels]
    run: Callable[[FrozenModel, Sequence[Layer], Int[Tensor, " u"]], list[Tensor]]  # states of what `read` labels
    named: Callable[[Int[Tensor, " u"], Int[Tensor, " n"]], list[str]]  # tokens or words that `read` labels, in writing

    def states(self, model: FrozenModel, at: Sequence[Layer], units: Int[Tensor, " u"]) -> list[Tensor]:
        """Return the states of a pool by layer, of which no more than one is in memory twice."""
        parts = [self.run(model, at, part) for part in units.split(self.at_once)]
        return [torch.cat([part.pop(0) for part in parts]) for _ in range(len(parts[0]))]


def _by_token(
    models: Sequence[FrozenModel], at: Sequence[Sequence[Layer]], data: DataConfig, measure: Any, runs: ModelRuns
) -> StateBatches:
    first, asked_for, tokens = models[0], measure.tokens_per_batch, measure.batches * measure.tokens_per_batch
    for model in models:
        same_vocabulary(first, model)  # the same rows must be the same text
    is_whole = getattr(measure, "flatten", "token") != "token"
    held = tokens if is_whole else min(tokens, _pool_tokens(measure, {model: model.n_layers for model in models}))
    context = data.context or min(*(model.context for model in models), max(held // FEWEST_ROWS, SHORTEST))
    wanted = -(-tokens // context)
    data = replace(data, report_tokens=SPREAD * wanted * context)
    asked = (repr(data), tokenizer_fingerprint(first.tokenizer), context, first.bos_each_row)
    how = partial(read_corpus, bos=first.bos_each_row, fit_tokens=1, whole=True, quota="measure.batches")
    read_text = partial(how, data, first.tokenizer, context)
    corpus = runs.text(asked, read_text)
    chosen = torch.randperm(len(corpus.report), generator=seeded(0))[:wanted].sort().values
    rows, documents = corpus.report.tokens[chosen], corpus.report.documents[chosen]
    groups = numbered_by_part(documents.flatten().long()).view(-1, context)
    special = first.tokenizer.all_special_ids if measure.skip_special_tokens else []
    kept, at_once = counted(rows, measure.skip_first_tokens or 0, special), max(asked_for // context, 1)

    def read(units: Int[Tensor, " u"]) -> _Labels:
        part, mask = rows[units], kept[units]
        content = (is_whole, tuple(part.shape), part.numpy().tobytes(), mask.numpy().tobytes())
        if is_whole:
            return _Labels(content, part, groups[units], mask=mask)
        return _Labels(content, part[mask], groups[units][mask], torch.arange(context).expand_as(part)[mask])

    def run(model: FrozenModel, at: Sequence[Layer], units: Int[Tensor, " u"]) -> list[Tensor]:
        states, places = token_states(model, rows[units], at), places_of(kept[units]).to(model.device)
        return states if is_whole else [layer.flatten(0, 1)[places] for layer in states]

    def named(_: Int[Tensor, " u"], tokens: Int[Tensor, " n"]) -> list[str]:
        return [repr(first.tokenizer.decode([token])) for token in tokens.tolist()]

    per_batch = at_once * context if is_whole else asked_for
    total = min(measure.batches, max(rows.numel() // per_batch, 1))
    text = _Text("token", {"name": data.name, **corpus.facts()}, total, len(rows), at_once, read, run, named)
    return _drawn(text, models, at, measure, runs)


def _by_word(
    models: Sequence[FrozenModel], at: Sequence[Sequence[Layer]], data: DataConfig, measure: Any, runs: ModelRuns
) -> StateBatches:
    wanted, different = measure.batches * measure.tokens_per_batch, list(dict.fromkeys(models))
    cut_for = frozenset((tokenizer_fingerprint(model.tokenizer), model.context) for model in different)
    text: Pieces = runs.text((repr(data), wanted, cut_for), lambda: pieces(held_out_texts(data), different, wanted))
    if not text.count:
        raise DataError(f"the report has no words; give more text, or raise data.report_share={data.report_share}")
    at_once = max(measure.tokens_per_batch // WORDS_AT_ONCE, 1)

    def read(units: Int[Tensor, " u"]) -> _Labels:
        part = text.chosen(units)
        content = (tuple(part.texts), tuple(map(tuple, part.words)))
        return _Labels(content, part.forms, part.owners)

    def run(model: FrozenModel, at: Sequence[Layer], units: Int[Tensor, " u"]) -> list[Tensor]:
        return word_states(model, text.chosen(units), at)

    def named(units: Int[Tensor, " u"], forms: Int[Tensor, " n"]) -> list[str]:
        own = text.chosen(units)
        first = {number: place for place, number in reversed([*enumerate(own.forms.tolist())])}
        words = [part[start:stop] for part, spans in zip(own.texts, own.words, strict=True) for start, stop in spans]
        return [repr(words[first[form]]) for form in forms.tolist()]

    total = min(measure.batches, max(text.count // measure.tokens_per_batch, 1))
    units = _Text("word", {"name": data.name, "level": "word"}, total, len(text.texts), at_once, read, run, named)
    return _drawn(units, models, at, measure, runs)


def _pool_tokens(measure: Any, layers: Mapping[FrozenModel, int]) -> int:
    floats = sum(count * model.d_model for model, count in layers.items())
    return pool_tokens(measure.tokens_per_batch, floats, sum(model.parameters()[0] for model in layers))


def _drawn(
    text: _Text, models: Sequence[FrozenModel], at: Sequence[Sequence[Layer]], measure: Any, runs: ModelRuns
) -> StateBatches:
    """Return batches of text, in pools; those of a pool have equally many rows. A batch of whole rows is a pool."""
    layers = dict(zip(models, map(tuple, at), strict=True))
    is_whole = getattr(measure, "flatten", "token") != "token"
    tokens = _pool_tokens(measure, {model: len(own) for model, own in layers.items()})
    most = 1 if is_whole else tokens // measure.tokens_per_batch
    beside = 0 if hasattr(measure, "fit_batches") else BESIDE  # maps are fitted once
    leaves_out = measure.skip_first_tokens is None and not is_whole
    pools = _pools(text.units, text.batches, min(getattr(measure, "fit_batches", 0), text.batches), most)
    is_new = iter([True])  # what is left out is said once, however often the pools are read

    def pool_of(number: int) -> Iterator[StateBatch]:
        units, numbers = pools[number]
        labels = text.read(units)
        key: Hashable = (labels.content, text.at_once)
        pool = {
            model: runs.once(model, (key, own), partial(text.states, at=own, units=units))
            for model, own in layers.items()
        }
        outliers = massive([layer for own in pool.values() for layer in own]) if leaves_out else None
        if outliers is not None and number == 0 and next(is_new, False):
            say_massive(outliers, text.named(units, labels.tokens[outliers]), f"{text.level}s")
        if measure.given == "token_position" and labels.positions is not None:
            try:
                within = RowGroups.of(labels.tokens, FEWEST)
            except ValueError as error:
                raise DataError(f"batches {numbers.start} to {numbers.stop - 1}: {error}") from error
            key, run = (key, "residuals"), partial(_residuals, pool=pool, within=within, positions=labels.positions)
            pool = {model: runs.once(model, (key, own), run) for model, own in layers.items()}
        order = torch.randperm(len(labels.groups), generator=seeded(numbers.start))
        size = max(min(len(order) // len(numbers), measure.tokens_per_batch), 1)

        def batch_of(number: int, chosen: Int[Tensor, " b"], key: Hashable) -> StateBatch:
            rows = chosen.sort().values  # in the order of the text, which permutations of documents keep
            content, run = (key, numbers, number), partial(_chosen, pool=pool, rows=rows)
            states = [runs.once(model, (content, layers[model]), run, of_batch=True) for model in models]
            mask = None if labels.mask is None else labels.mask[rows]
            return StateBatch(number, states, labels.groups[rows], mask, labels.tokens[rows], content)

        if outliers is None:
            yield from starmap(partial(batch_of, key=key), zip(numbers, order.split(size), strict=False))
            return
        left, moved = order[~outliers[order]], (key, outliers.numpy().tobytes())
        for number, chosen, every in zip(numbers, left.split(size), order.split(size), strict=False):
            batch = batch_of(number, chosen, moved)
            yield batch if number >= beside else batch._replace(with_massive=batch_of(number, every, key))

    return StateBatches(pool_of, len(pools), text.batches, text.level, {"data": text.facts})


def _pools(units: int, batches: int, fitted: int, most: int) -> list[tuple[Int[Tensor, " u"], range]]:
    """Draw units into pools of about equal size, and return those of each with the numbers of its batches.

    Pools of the batches that maps are `fitted` on have the first units, so that they share at most one document with
    the others.
    """
    pools, generator, edge = [], seeded(0), units * fitted // batches
    for own, numbers in ((range(edge), range(fitted)), (range(edge, units), range(fitted, batches))):
        parts = min(-(-len(numbers) // most), max(len(own), 1))
        drawn = own.start + torch.randperm(len(own), generator=generator)
        for start, stop in pairwise(len(numbers) * part // max(parts, 1) for part in range(parts + 1)):
            first, last = (-(-len(own) * cut // len(numbers)) for cut in (start, stop))
            pools.append((drawn[first:last].sort().values, numbers[start:stop]))
    return pools


Pool = dict[FrozenModel, list[Tensor]]


def massive(
    layers: Sequence[Float[Tensor, "n _"]], begins: Bool[Tensor, " n"] | None = None
) -> Bool[Tensor, " n"] | None:
    """Return which rows are among the few that decide what is found of some layer; None: no row is.

    These are the rows whose norm is more than `MASSIVE` times the median of the layer, where they carry more than
    `DECIDES` of its variance about the mean of all others, and more than `TIMES` their share of the rows.

    Args:
        begins: which rows begin their text, each of which attention may rest on. They are judged by themselves, and
            are left out where they carry more than `ALONE` of the variance, although they may be many.
    """
    found = torch.zeros(len(layers[0]), dtype=torch.bool)
    for layer in layers:
        norms = torch.linalg.vector_norm(layer, dim=1)
        long = norms > MASSIVE * norms.median()
        if not long.any():
            continue
        first = torch.zeros_like(long) if begins is None else long & begins.to(long.device)
        apart = (layer.float() - layer[~long].float().mean(0)).square().sum(1)
        for outliers, enough in ((first, ALONE), (long & ~first, 1.0)):
            chosen = outliers | ~long
            share, carried = outliers.sum() / chosen.sum(), apart[outliers].sum() / apart[chosen].sum()
            if carried > min(max(DECIDES, TIMES * float(share)), enough):
                found |= outliers.cpu()
    return found if found.any() else None


def say_massive(outliers: Bool[Tensor, " n"], names: Sequence[str], units: str, remedy: str = "") -> None:
    """Name the most frequent ones of the tokens, words or stimuli that are left out."""
    count, share = len(names), 100 * len(names) / len(outliers)
    often = ", ".join(f"{name} {times} times" for name, times in Counter(names).most_common(3))
    log.warning(
        f"warning: {count} of {len(outliers)} {units} ({share:{'.1g' if share < 9.5 else '.0f'}} %) are left out, as "
        f"their states, more than {MASSIVE} times as long as the median, decide some layer: {often}; "
        f"measure.skip_first_tokens=0 keeps them{remedy}"
    )


def _residuals(model: FrozenModel, pool: Pool, within: RowGroups, positions: Int[Tensor, " n"]) -> list[Tensor]:
    """Return the states of a model less the means of their token and of their position; 0 where that token is rare.

    No batch can have a group of such a token either, so that these rows are left out.
    """
    order, places = within.order.to(model.device), positions.to(model.device)
    residuals = ((layer, within.without_means(layer, places).to(layer.dtype)) for layer in pool[model])
    return [torch.zeros_like(layer).index_copy_(0, order, residual) for layer, residual in residuals]


def _chosen(model: FrozenModel, pool: Pool, rows: Int[Tensor, " b"]) -> list[Tensor]:
    places = rows.to(model.device)
    return [layer[places] for layer in pool[model]]


def array_batches(
    sides: Sequence[Sequence[Float[Tensor, "n _"]]], groups: Int[Tensor, " n"], *, rows_per_batch: int, fewest: int = 2
) -> StateBatches:
    """Return batches of the states of n stimuli, for each side its layers; a side that is there twice has one list.

    Where a batch can hold all of them, there is one. Else they are drawn, one by one, into batches of about equal size.
    Each batch is a pool.

    Args:
        groups: what each stimulus belongs to, such as a sentence.
        rows_per_batch: how many stimuli a batch can hold.
        fewest: how many stimuli there must be in a batch.

    Raises:
        DataError: a batch would have too few.
    """
    n, total = len(groups), -(-len(groups) // rows_per_batch)
    if n // total < fewest:
        raise DataError(
            f"of {n} stimuli, measure.tokens_per_batch={rows_per_batch} compares {n // total} at once, and at least "
            f"{fewest} are needed; give more stimuli, or raise measure.tokens_per_batch if it is below their number"
        )
    parts = [part.sort().values for part in torch.randperm(n, generator=seeded(0)).tensor_split(total)]
    different, numbers = {id(side): side for side in sides}, numbered_by_part(groups)

    def pool(number: int) -> Iterator[StateBatch]:
        own = parts[number]
        states = {key: [layer[own] for layer in side] for key, side in different.items()}
        yield StateBatch(number, [states[id(side)] for side in sides], numbers[own])

    return StateBatches(pool, total, total, "stimulus", {"data": {"rows": n, "batches": total}})


class ModelRuns:
    """Runs models, each once for each different input until `forget`.

    Jobs that go through their batches in step share one of these. Inputs are equal if their content is, so that jobs
    whose contexts or tokenizers cut a text differently get states of their own. Two models are one if they have the
    same module, whatever they are called.
    """

    def __init__(self) -> None:
        self._of_pool: dict[Hashable, list[Tensor]] = {}
        self._of_batch: dict[Hashable, list[Tensor]] = {}
        self._texts: dict[Hashable, Any] = {}

    def text(self, asked: Hashable, read: Callable[[], Any]) -> Any:
        """Return a text, which `read` reads the first time that exactly this is asked for; it is never forgotten."""
        if asked not in self._texts:
            self._texts[asked] = read()
        return self._texts[asked]

    def forget(self, of_batch: bool = False) -> None:
        """Let go of the states of a batch, because the next one comes, or else of all."""
        self._of_batch.clear()
        if not of_batch:
            self._of_pool.clear()

    def once(self, model: FrozenModel, content: Hashable, run: Run, *, of_batch: bool = False) -> list[Tensor]:
        """Return what a model makes of an input, of this content, which `run` makes the first time."""
        place, states = (id(model.module), content), self._of_batch if of_batch else self._of_pool
        if place not in states:
            states[place] = run(model)
        return states[place]
