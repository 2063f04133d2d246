"""One iterator for every measure: models and what they read, to batches of states, each model run once per pool.

Unbiased estimators take the rows of a batch for independent draws, and intervals need batches that differ by chance
alone, which consecutive text is not. So rows of text are drawn at random over all documents into pools, and the tokens
of a pool, one by one, into batches.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from thinkalike.config import DataConfig
from thinkalike.data.alignment import check_rows
from thinkalike.data.corpus import read_corpus, warn_of_few
from thinkalike.digests import tokenizer_fingerprint
from thinkalike.errors import DataError
from thinkalike.measures.estimates import FEWEST, MASSIVE, RowGroups, massive, numbered_by_part, seeded
from thinkalike.measures.rows import places_of
from thinkalike.models.families import Layer
from thinkalike.states.folder import check_reads_rows, folder_of_rows
from thinkalike.states.mixing import TokenMixing
from thinkalike.states.source import StateSource
from thinkalike.states.tokens import SPREAD, WORDS_AT_ONCE, Pieces, counted, drawn_pieces, word_states

log = logging.getLogger(__name__)
FEWEST_ROWS, SHORTEST = 32, 64  # of text: where few tokens are compared, or are in memory at once, rows are shorter
BESIDE = 4  # batches, of which the values with massive states are given beside those without
POOL_TOKENS, POOL_BYTES, POOL_BATCHES, MOST_BATCHES = 2**16, 3 * 2**28, 4, 64  # of a pool; see `pool_tokens`
READ = 8  # batches that readings in bits are of, at most, and as many that maps are fitted on

Reader = StateSource | TokenMixing
Run = Callable[[Any], list[Tensor]]
Pool = dict[Any, list[Tensor]]  # the states of each model, by layer


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
    # gives the same rows of text as another model has them
    of: Callable[[Reader, Sequence[Any]], StateBatches] | None = None

    def beside(self, every: StateBatches) -> StateBatches:
        """Return these batches, each with that of `every` row beside it, massive ones included."""

        def pool(number: int) -> Iterator[StateBatch]:
            pairs = zip(self.pool(number), every.pool(number), strict=True)
            return (batch._replace(with_massive=whole) for batch, whole in pairs)

        return replace(self, pool=pool)


class ModelRuns:
    """Runs models, each once for each different content of an input, for all jobs that share this, until `forget`.

    Two models are one if they have the same module, whatever they are called.
    """

    def __init__(self) -> None:
        self._of_pool: dict[Hashable, list[Tensor]] = {}
        self._of_batch: dict[Hashable, list[Tensor]] = {}
        self._texts: dict[Hashable, Any] = {}

    def text(self, asked: Hashable, read: Callable[[], Any]) -> Any:
        """Return a text that `read` reads the first time that exactly this is asked for; it is never forgotten."""
        if asked not in self._texts:
            self._texts[asked] = read()
        return self._texts[asked]

    def forget(self, of_batch: bool = False) -> None:
        """Let go of all states, or only of those of a batch."""
        self._of_batch.clear()
        if not of_batch:
            self._of_pool.clear()

    def once(self, model: Reader, content: Hashable, run: Run, *, of_batch: bool = False) -> list[Tensor]:
        """Return the cached states for `content`; call `run` on a miss."""
        place, states = (model.identity, content), self._of_batch if of_batch else self._of_pool
        if place not in states:
            states[place] = run(model)
        return states[place]


KEEPS_MASSIVE = "; measure.massive=keep keeps them"


def say_massive(outliers: Bool[Tensor, " n"], names: Sequence[str], units: str, remedy: str = KEEPS_MASSIVE) -> None:
    """Name the most frequent ones of the tokens, words or stimuli that are left out, and say how to keep them."""
    count, share = len(names), 100 * len(names) / len(outliers)
    often = ", ".join(f"{name} {times} times" for name, times in Counter(names).most_common(3))
    log.warning(
        f"warning: {count} of {len(outliers)} {units} ({share:{'.1g' if share < 9.5 else '.0f'}} %) are left out, as "
        f"their states, more than {MASSIVE} times as long as the median, decide some layer: {often}{remedy}"
    )


def _tokens_at_once(measure: Any, layers: Mapping[Any, int]) -> int:
    """Return how many tokens a pool has, by how many layers of each model are kept."""
    floats = sum(count * model.d_model for model, count in layers.items())
    return pool_tokens(measure.tokens_per_batch, floats, sum(model.parameters() for model in layers))


def _drawn_pools(units: int, batches: int, most: int) -> list[tuple[Int[Tensor, " u"], range]]:
    """Draw units into pools of about equal size, and return those of each with the numbers of its batches."""
    pools = []
    parts = min(-(-batches // most), max(units, 1))
    drawn = torch.randperm(units, generator=seeded(0))
    for start, stop in pairwise(batches * part // max(parts, 1) for part in range(parts + 1)):
        first, last = (-(-units * cut // batches) for cut in (start, stop))
        pools.append((drawn[first:last].sort().values, range(start, stop)))
    return pools


class Labels(NamedTuple):
    """What is known of the tokens or words of a pool, (n,), or of whole rows of text, (b, t)."""

    content: Hashable
    tokens: Int[Tensor, " *n"]
    groups: Int[Tensor, " *n"]
    positions: Int[Tensor, " *n"] | None = None
    mask: Bool[Tensor, "b t"] | None = None


class TextBatches(ABC):
    """Draws batches of states of several models from pools of text; each model runs once over a pool.

    Text comes in units, rows of tokens or pieces of words. Those of a pool are drawn at random, and the tokens or words
    of a pool are drawn into its batches, equally many into each. A batch of whole rows is a pool.
    """

    level: str
    units: int  # of all text
    at_once: int  # how many a model reads in one pass
    batches: int
    facts: dict[str, Any]

    def __init__(
        self,
        models: Sequence[StateSource],
        at: Sequence[Sequence[Layer]],
        data: DataConfig,
        measure: Any,
        runs: ModelRuns,
        is_spread: bool = False,
    ):
        self.models: Sequence[Any] = models
        self.measure, self.runs, self.is_spread = measure, runs, is_spread
        self.layers: dict[Reader, tuple[Any, ...]] = dict(zip(models, map(tuple, at), strict=True))
        self.is_whole = getattr(measure, "flatten", "token") != "token"
        self.read(data)
        tokens = _tokens_at_once(measure, {model: len(own) for model, own in self.layers.items()})
        most = 1 if self.is_whole else tokens // measure.tokens_per_batch
        self.pools = _drawn_pools(self.units, self.batches, most)
        self.left_out: dict[int, Tensor | None] = {}  # by pool; it is said once, however often the pools are read

    @abstractmethod
    def read(self, data: DataConfig) -> None:
        """Read the text, and set how many units and batches it has."""

    @abstractmethod
    def labels(self, units: Int[Tensor, " u"]) -> Labels:
        """Return what is known of the tokens or words of some units."""

    @abstractmethod
    def run(self, model: Reader, at: Sequence[Any], units: Int[Tensor, " u"]) -> list[Tensor]:
        """Return the states of what `labels` describes, by layer."""

    @abstractmethod
    def named(self, units: Int[Tensor, " u"], tokens: Int[Tensor, " n"]) -> list[str]:
        """Return tokens or words that `labels` describes in writing."""

    def pool(self, number: int) -> Iterator[StateBatch]:
        """Yield the batches of a pool."""
        units, numbers = self.pools[number]
        labels, size = self.labels(units), self.measure.tokens_per_batch
        key: Hashable = (labels.content, self.at_once)
        pool = self.of_models(key, partial(self.states, units=units))
        keeps_all = self.measure.massive == "keep" or self.is_whole
        if number not in self.left_out:
            found = None if keeps_all else massive([layer for own in pool.values() for layer in own])
            self.left_out[number] = found
            if found is not None and number == 0:
                say_massive(found, self.named(units, labels.tokens[found]), f"{self.level}s")
        outliers = self.left_out[number]
        if self.measure.given == "token_position" and labels.positions is not None:
            key = (key, "residuals")
            pool = self.of_models(key, self.residuals(pool, labels, numbers))
        order = torch.randperm(len(labels.groups), generator=seeded(numbers.start))
        size = max(min(len(order) // len(numbers), size), 1)
        batch = partial(self.batch, pool, labels, numbers)
        left, moved, beside = order, key, 0
        if outliers is not None:
            left, moved = order[~outliers[order]], (key, outliers.numpy().tobytes())
            beside = BESIDE
        for own, chosen, every in zip(numbers, left.split(size), order.split(size), strict=False):
            whole = batch(own, every, key) if own < beside else None
            yield batch(own, chosen, moved)._replace(with_massive=whole)

    def batches_of(self) -> StateBatches:
        return StateBatches(self.pool, len(self.pools), self.batches, self.level, {"data": self.facts}, self.of)

    def of(self, model: Reader, at: Sequence[Any]) -> StateBatches:
        """Return the batches of the same rows, without the same ones, of another model that reads as these do."""
        other = copy(self)
        other.models, other.layers, other.runs = [model], {model: tuple(at)}, ModelRuns()
        return other.batches_of()

    def of_models(self, key: Hashable, run: Callable[..., list[Tensor]]) -> Pool:
        """Return the states of each model, of this content, which `run` makes unless another job has had them."""
        return {model: self.runs.once(model, (key, own), partial(run, at=own)) for model, own in self.layers.items()}

    def states(self, model: Reader, at: Sequence[Any], units: Int[Tensor, " u"]) -> list[Tensor]:
        """Return the states of a pool by layer, of which no more than one is in memory twice."""
        parts = [self.run(model, at, part) for part in units.split(self.at_once)]
        return [torch.cat([part.pop(0) for part in parts]) for _ in range(len(parts[0]))]

    def residuals(self, pool: Pool, labels: Labels, numbers: range) -> Callable[..., list[Tensor]]:
        """Return what takes the means of token and position from states of a pool; those of rare tokens become 0."""
        try:
            within = RowGroups.of(labels.tokens, FEWEST)
        except ValueError as error:
            raise DataError(f"batches {numbers.start} to {numbers.stop - 1}: {error}") from error

        def of(model: Reader, at: Sequence[Any]) -> list[Tensor]:
            assert labels.positions is not None
            order, places = within.order.to(model.device), labels.positions.to(model.device)
            found = ((layer, within.without_means(layer, places).to(layer.dtype)) for layer in pool[model])
            return [torch.zeros_like(layer).index_copy_(0, order, residual) for layer, residual in found]

        return of

    def batch(
        self, pool: Pool, labels: Labels, numbers: range, number: int, chosen: Int[Tensor, " b"], key: Hashable
    ) -> StateBatch:
        """Return the batch of these rows of a pool, in the order of the text, which permutations of documents keep."""
        rows = chosen.sort().values

        def of(model: Reader) -> list[Tensor]:
            places = rows.to(model.device)
            return [layer[places] for layer in pool[model]]

        content = (key, numbers, number)
        states = [self.runs.once(model, (content, self.layers[model]), of, of_batch=True) for model in self.models]
        mask = None if labels.mask is None else labels.mask[rows]
        return StateBatch(number, states, labels.groups[rows], mask, labels.tokens[rows], content)


class TokenBatches(TextBatches):
    """Batches of the states of tokens, which models read in the same rows."""

    level = "token"

    def read(self, data: DataConfig) -> None:
        first, measure = self.models[0], self.measure
        if data.source == "states":
            self._read_stored(data)
        else:
            self._read_text(data)
        special: list[int] = []
        if measure.skip_special_tokens and first.tokenizer is not None:
            special = first.tokenizer.all_special_ids
        self.kept = counted(self.rows, measure.skip_first, special) & self.is_token
        context = self.rows.shape[1]
        self.units, self.at_once = len(self.rows), max(measure.tokens_per_batch // context, 1)
        per_batch = self.at_once * context if self.is_whole else measure.tokens_per_batch
        self.batches = min(measure.batches, max(int(self.is_token.sum()) // per_batch, 1))

    def _read_text(self, data: DataConfig) -> None:
        """Read text as rows that all models read, of one length."""
        first, measure = self.models[0], self.measure
        for model in self.models:
            model.check_context(data.context)
        tokens = measure.batches * measure.tokens_per_batch
        every = _tokens_at_once(measure, {model: model.n_layers for model in self.models})
        held = tokens if self.is_whole else min(tokens, every)
        context = data.context or min(*(model.context for model in self.models), max(held // FEWEST_ROWS, SHORTEST))
        wanted = -(-tokens // context)
        data, bos = replace(data, report_tokens=SPREAD * wanted * context), first.bos_each_row
        read = partial(read_corpus, data, first.tokenizer, context, bos=bos, fit_tokens=0, whole=not self.is_spread)
        asked = (repr(data), tokenizer_fingerprint(first.tokenizer), context, bos, self.is_spread)
        corpus = self.runs.text(asked, read)
        chosen = torch.randperm(len(corpus.report), generator=seeded(0))[:wanted].sort().values
        self.rows, documents = corpus.report.tokens[chosen], corpus.report.documents[chosen]
        for model in self.models:
            check_rows(first, model, self.rows)  # the same rows must be the same text
        self.is_token = torch.ones_like(self.rows, dtype=torch.bool)
        self.groups = numbered_by_part(documents.flatten().long()).view(-1, context)
        self.facts = {"name": data.name, **corpus.facts()}

    def _read_stored(self, data: DataConfig) -> None:
        """Take rows of a folder of states, drawn at random; shorter ones have padding on the right."""
        folder = folder_of_rows(data, self.models)
        chosen = folder.drawn_rows(self.measure.batches * self.measure.tokens_per_batch)
        found = folder.token_rows(chosen)
        self.rows, self.is_token = found.tokens, found.is_token
        for model in self.models:
            check_reads_rows(model, folder, found)
        documents = found.documents[:, None].expand_as(self.rows)
        self.groups = torch.zeros_like(self.rows)
        self.groups[self.is_token] = numbered_by_part(documents[self.is_token])
        warn_of_few(data, len(found.documents.unique()))
        self.facts = {"name": data.name, "states": folder.fingerprint(), "rows": len(self.rows)}

    def labels(self, units: Int[Tensor, " u"]) -> Labels:
        part, mask = self.rows[units], self.kept[units]
        content = (self.is_whole, tuple(part.shape), part.numpy().tobytes(), mask.numpy().tobytes())
        if self.is_whole:
            return Labels(content, part, self.groups[units], mask=mask)
        positions = torch.arange(part.shape[1]).expand_as(part)
        return Labels(content, part[mask], self.groups[units][mask], positions[mask])

    def run(self, model: Reader, at: Sequence[Any], units: Int[Tensor, " u"]) -> list[Tensor]:
        is_token = self.is_token[units]
        mask = None if is_token.all() else is_token.long()
        states, places = (
            model.residuals(self.rows[units].long(), at, mask),
            places_of(self.kept[units]).to(model.device),
        )
        return states if self.is_whole else [layer.flatten(0, 1)[places] for layer in states]

    def named(self, units: Int[Tensor, " u"], tokens: Int[Tensor, " n"]) -> list[str]:
        tokenizer = self.models[0].tokenizer
        if tokenizer is None:
            return [f"token {token}" for token in tokens.tolist()]
        return [repr(tokenizer.decode([token])) for token in tokens.tolist()]


class WordBatches(TextBatches):
    """Batches of the states of words, which models with different tokenizers read in the same pieces of text."""

    level = "word"

    def read(self, data: DataConfig) -> None:
        size, different = self.measure.tokens_per_batch, list(dict.fromkeys(self.models))
        wanted = self.measure.batches * size
        cut_for = frozenset((model.ids_fingerprint, model.context) for model in different)
        asked = (repr(data), wanted, cut_for)
        self.text: Pieces = self.runs.text(asked, partial(drawn_pieces, data, different, wanted))
        if not self.text.count:
            share = f", or raise data.report_share={data.report_share}" if data.report_share else ""
            raise DataError(f"the report has no words; give more text{share}")
        warn_of_few(data, len(set(self.text.documents)))
        self.units, self.at_once = len(self.text.texts), max(size // WORDS_AT_ONCE, 1)
        self.batches = min(self.measure.batches, max(self.text.count // size, 1))
        self.facts = {"name": data.name, "level": "word"}

    def labels(self, units: Int[Tensor, " u"]) -> Labels:
        part = self.text.chosen(units)
        return Labels((tuple(part.texts), tuple(map(tuple, part.words))), part.forms, part.owners)

    def run(self, model: Reader, at: Sequence[Any], units: Int[Tensor, " u"]) -> list[Tensor]:
        return word_states(model, self.text.chosen(units), at)

    def named(self, units: Int[Tensor, " u"], forms: Int[Tensor, " n"]) -> list[str]:
        own = self.text.chosen(units)
        first = {number: place for place, number in reversed([*enumerate(own.forms.tolist())])}
        words = [part[start:stop] for part, spans in zip(own.texts, own.words, strict=True) for start, stop in spans]
        return [repr(words[first[form]]) for form in forms.tolist()]


def text_batches(
    models: Sequence[StateSource],
    at: Sequence[Sequence[Layer]],
    data: DataConfig,
    measure: Any,
    runs: ModelRuns,
    *,
    is_spread: bool = False,
) -> StateBatches:
    """Return batches of the states of several models at these layers of each, on held-out text.

    Args:
        measure: the settings `batches`; `tokens_per_batch`, tokens or words; `level`: token, word, or auto, which is
            words where the tokenizers differ; `massive`, of which "drop" leaves out `massive` tokens wherever they are;
            `skip_first` and `skip_special_tokens`; `given`, of which "token_position" takes the means of both from the
            states of a pool. Any other `flatten` than "token" keeps rows of text whole.
        runs: where states are kept for other jobs until they are forgotten.
        is_spread: whether tokens are of beginnings of documents, as words are, so that little text is of more of them.
    """
    level = measure.level
    if level == "auto":
        level = "token" if len({model.ids_fingerprint for model in models}) == 1 else "word"
        if level == "word":
            log.info(" and ".join(model.name for model in models) + " have different tokenizers: compared word by word")
    if level == "word" and (measure.skip_first or measure.skip_special_tokens):
        raise DataError("words are compared one by one: skip_first and skip_special_tokens are for tokens")
    return (TokenBatches if level == "token" else WordBatches)(models, at, data, measure, runs, is_spread).batches_of()


def sampled(measure: Any, level: str = "auto") -> Any:
    """Return the settings of the few batches that readings in bits are of."""
    has_null = {"null": False} if hasattr(measure, "null") else {}
    return replace(measure, level=level, batches=min(measure.batches, READ), **has_null)


def array_batches(
    sides: Sequence[Sequence[Float[Tensor, "n _"]]],
    groups: Int[Tensor, " n"],
    *,
    rows_per_batch: int,
    fewest: int = 2,
    needed_by: str = "",
) -> StateBatches:
    """Return batches of the states of n stimuli, for each side its layers; a side that is there twice has one list.

    Where a batch can hold all of them, there is one. Else they are drawn, one by one, into batches of about equal size,
    of at least `fewest`, which the setting `needed_by` asks for, such as "measure.neighbours=10". Each batch is a
    pool. `groups` is what each stimulus belongs to, such as a sentence.
    """
    n, total = len(groups), -(-len(groups) // rows_per_batch)
    if n // total < fewest:
        needed = f"{needed_by} needs at least {fewest}" if needed_by else f"at least {fewest} are needed"
        remedies = ["give more stimuli"]
        if needed_by:
            remedies.append(f"choose a smaller {needed_by.partition('=')[0]}")
        if rows_per_batch < n:
            remedies.append("raise measure.tokens_per_batch")
        raise DataError(
            f"of {n} stimuli, measure.tokens_per_batch={rows_per_batch} compares {n // total} at once, and {needed}; "
            + ", or ".join(remedies)
        )
    parts = [part.sort().values for part in torch.randperm(n, generator=seeded(0)).tensor_split(total)]
    different, numbers = {id(side): side for side in sides}, numbered_by_part(groups)

    def pool(number: int) -> Iterator[StateBatch]:
        own = parts[number]
        places = {layer.device: own.to(layer.device) for side in different.values() for layer in side[:1]}
        states = {key: [layer[places[layer.device]] for layer in side] for key, side in different.items()}
        yield StateBatch(number, [states[id(side)] for side in sides], numbers[own])

    return StateBatches(pool, total, total, "stimulus", {"data": {"rows": n, "batches": total}})


def pool_tokens(batch: int, floats: int, parameters: int) -> int:
    """Return how many tokens models run over, at most, before these are drawn into batches; a job ends between pools.

    With so many `floats` for a token, states of a pool take `POOL_BYTES` in float32, or a quarter of what the weights
    take, and more where that is below `POOL_BATCHES` batches of so many tokens.
    """
    held = max(POOL_BYTES, parameters) // (4 * batch * floats)
    return batch * max(min(POOL_TOKENS // batch, max(held, POOL_BATCHES), MOST_BATCHES), 1)
