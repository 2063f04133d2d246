"""Batches of states for every measure: each model runs once over a pool of text.

Unbiased estimators take the rows of a batch for independent draws, and intervals need batches that
differ by chance alone, which consecutive text is not. So rows of text are drawn at random over all
documents into pools, and the tokens of a pool, one by one, into batches.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Generic, NamedTuple, Protocol, TypeVar, cast, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from thinkalike.advice import named_setting
from thinkalike.config import DataConfig
from thinkalike.data.alignment import check_same_tokens
from thinkalike.data.corpus import read_corpus
from thinkalike.data.rows import Corpus
from thinkalike.digests import tokenizer_fingerprint
from thinkalike.errors import DataError
from thinkalike.measures.folds import numbered_by_part
from thinkalike.measures.massive_rows import LONG_NORM, massive
from thinkalike.measures.row_groups import FEWEST_HSIC_ROWS, RowGroups
from thinkalike.measures.rows import indices_where
from thinkalike.measures.seeds import seeded
from thinkalike.models.families import Layer
from thinkalike.states.folder import check_reads_rows, folder_of_rows
from thinkalike.states.pieces import (
    TIMES_AS_MUCH_TEXT,
    WORDS_PER_PIECE,
    drawn_pieces,
    percentage,
)
from thinkalike.states.source import AnyLayer, StateSource, WordReader
from thinkalike.states.tokens import compared_tokens
from thinkalike.states.word_states import word_states

log = logging.getLogger(__name__)

FEWEST_TEXT_ROWS = 32
"""Rows get shorter until there are at least this many, where few tokens are read at once."""

SHORTEST_CONTEXT = 64
"""Rows do not get shorter than this."""

BATCHES_WITH_MASSIVE = 4
"""In so many batches of the first pool, values with massive states stand beside those without."""

POOL_TOKENS = 2**16
"""The most tokens of a pool, unless a single batch has more; see `pool_tokens`."""

POOL_BYTES = 3 * 2**28
"""The bytes that the states of a pool may take in float32."""

POOL_BATCHES = 4
"""A pool has so many batches even if its states take more."""

MOST_POOL_BATCHES = 64
"""The most batches of a pool."""

ReadText = TypeVar("ReadText")
"""What `ModelRuns.text` caches."""

ModelLayer = TypeVar("ModelLayer")
"""What the models of some batches call their layers."""


@runtime_checkable
class BatchSettings(Protocol):
    """The settings of a measure that decide which rows are compared, and in which batches."""

    @property
    def batches(self) -> int: ...
    @property
    def tokens_per_batch(self) -> int:
        """How many tokens, or words, a batch has."""

    @property
    def unit(self) -> str:
        """What is compared: "token", "word", or "auto", which is words if tokenizers differ."""

    @property
    def massive(self) -> str:
        """Whether rows with massive activations are compared: "drop" or "keep"."""

    @property
    def skip_first(self) -> int:
        """How many tokens at the beginning of each row are left out."""

    @property
    def skip_special_tokens(self) -> bool: ...
    @property
    def conditional_on(self) -> str:
        """With "token_position" the means of both are removed from the states of a pool."""


Run = Callable[[WordReader[ModelLayer], Sequence[ModelLayer]], list[Tensor]]
"""Runs a model, and returns its states at some layers."""

Pool = dict[WordReader[ModelLayer], list[Tensor]]
"""The states of each model, by layer."""


class StateBatch(NamedTuple):
    """The states of one batch."""

    number: int
    """The number of the batch in the whole run, whoever reads it."""

    states: list[list[Tensor]]
    """By model in the order asked for, then by layer; a model asked for twice has one list.

    Each is (n, d) of rows, or (b, t, d) where a measure takes whole sequences.
    """

    groups: Int[Tensor, " *n"]
    """What each state depends on: a document, sentence or pair, by its number in all batches."""

    name_of_row: Callable[[int], str]
    """Returns what errors call a row, given its number in the batch."""

    mask: Bool[Tensor, "b t"] | None = None
    """The tokens that count; None: all do."""

    tokens: Int[Tensor, " *n"] | None = None
    """The token of each state, or the number of the form of its word."""

    content: Hashable = None
    """Equal where models read the same; None: it is not known."""

    with_massive: StateBatch | None = None
    """As many rows, drawn with massive ones, in the first pool."""


@runtime_checkable
class BatchesOfReader(Protocol):
    """Returns batches of the same rows of text as another model has them."""

    def __call__(
        self, model: WordReader[AnyLayer], layers: Sequence[AnyLayer]
    ) -> StateBatches: ...


@dataclass(frozen=True)
class StateBatches:
    """Batches of states in pools, over each of which models run at once."""

    pool: Callable[[int], Iterator[StateBatch]]
    """Yields the batches of the pool of a number."""

    total: int
    """The number of pools."""

    batches: int
    """The number of batches in all pools."""

    level: str
    """What a row is: "token", "word" or "stimulus"."""

    facts: Mapping[str, object] = field(default_factory=dict)
    """What the provenance of a result says of the data."""

    of: BatchesOfReader | None = None
    """Returns the batches of the same rows of text as another model has them."""

    def beside(self, with_massive: StateBatches) -> StateBatches:
        """Return these batches, each with a counterpart in its field `with_massive`.

        Rows with massive activations, whose norm is many times the median, are left out of these
        batches and included in the counterparts.

        Args:
            with_massive: The batches of the counterparts: as many pools, with as many batches in
                each.
        """

        def pool(number: int) -> Iterator[StateBatch]:
            """Yield the batches of a pool, each with its counterpart."""
            pairs = zip(self.pool(number), with_massive.pool(number), strict=True)
            for batch, counterpart in pairs:
                yield batch._replace(with_massive=counterpart)

        return replace(self, pool=pool)


class ModelRuns:
    """Runs models, each once for each content, for all jobs that share this object.

    States stay in memory until `forget`. Two models are one if they have the same module, whatever
    they are called.
    """

    def __init__(self) -> None:
        self._states_of_pool: dict[Hashable, list[Tensor]] = {}
        self._states_of_batch: dict[Hashable, list[Tensor]] = {}
        self._texts: dict[Hashable, object] = {}

    def text(self, key: Hashable, read: Callable[[], ReadText]) -> ReadText:
        """Return the cached text of a key; on a miss, call `read` and cache what it returns.

        Unlike states, texts are kept as long as this object.
        """
        if key not in self._texts:
            self._texts[key] = read()
        return cast(ReadText, self._texts[key])

    def forget(self, of_batch: bool = False) -> None:
        """Remove all states from the cache, or, if `of_batch`, only those of single batches."""
        self._states_of_batch.clear()
        if not of_batch:
            self._states_of_pool.clear()

    def once(
        self,
        model: WordReader[AnyLayer],
        content: Hashable,
        run: Callable[[], list[Tensor]],
        *,
        of_batch: bool = False,
    ) -> list[Tensor]:
        """Return the states of a model for some content; each is computed once and cached.

        Args:
            model: The model; models with the same identity share their states.
            content: A key of what the states are of, such as the text and the layers.
            run: Runs the model on a miss, and returns its states, one tensor for each layer.
            of_batch: Whether the states are those of a single batch, which are removed sooner
                than those of a pool of batches.
        """
        cache = self._states_of_batch if of_batch else self._states_of_pool
        key = (model.identity, content)
        if key not in cache:
            cache[key] = run()
        return cache[key]


def how_to_keep_massive() -> str:
    """Return the end of a message that says how to include rows with massive activations."""
    return f"; {named_setting('measure.massive', 'keep')} includes them"


def say_massive(
    outliers: Bool[Tensor, " n"], names: Sequence[str], units: str, remedy: str | None = None
) -> None:
    """Log a warning of how many tokens, words or stimuli with massive activations are left out.

    It names the three that are left out most often.

    Args:
        outliers: Which of all n tokens, words or stimuli are left out.
        names: What the message calls each one that is left out.
        units: "tokens", "words" or "stimuli".
        remedy: The end of the message, which says how to include them; None: by a setting.
    """
    if remedy is None:
        remedy = how_to_keep_massive()
    frequent = [f"{name} {times} times" for name, times in Counter(names).most_common(3)]
    share = percentage(len(names), len(outliers))
    log.warning(
        f"warning: excluded {len(names)} of {len(outliers)} {units} ({share}) with massive "
        f"activations, whose norm is over {LONG_NORM} times the median and would decide some "
        f"layer: {', '.join(frequent)}{remedy}"
    )


def _tokens_in_memory(measure: BatchSettings, layer_counts: Mapping[StateSource, int]) -> int:
    """Return the most tokens of a pool, the text over which models run before batches are drawn.

    Args:
        measure: The settings of the measure, with the tokens of a batch.
        layer_counts: For each model, of how many layers the states stay in memory.
    """
    numbers_per_token = 0
    parameters = 0
    for model, count in layer_counts.items():
        numbers_per_token += count * model.d_model
        parameters += model.parameters()
    return pool_tokens(measure.tokens_per_batch, numbers_per_token, parameters)


class _PoolPlan(NamedTuple):
    """The units of text of a pool, and the numbers of its batches."""

    units: Int[Tensor, " u"]
    """The indices of the units, in rising order."""

    batch_numbers: range


def _draw_pools(unit_count: int, batches: int, most_batches: int) -> list[_PoolPlan]:
    """Distribute units of text at random over pools, each of which is divided into batches.

    Each unit is in one pool, and a pool has units in proportion to its batches. The seed is fixed,
    so that the pools are the same each time.

    Args:
        unit_count: How many units there are, such as rows of tokens.
        batches: How many batches all pools have together.
        most_batches: How many batches a pool has at most. It has more if there are fewer units
            than pools would be.
    """
    # -(-a // b) is a / b, rounded up.
    pool_count = min(-(-batches // most_batches), max(unit_count, 1))
    order = torch.randperm(unit_count, generator=seeded(0))
    pools = []
    for pool in range(pool_count):
        first_batch = batches * pool // pool_count
        end_batch = batches * (pool + 1) // pool_count
        # The share of all units, in random order, that these batches are of all batches.
        first_unit = -(-unit_count * first_batch // batches)
        end_unit = -(-unit_count * end_batch // batches)
        units = order[first_unit:end_unit].sort().values
        pools.append(_PoolPlan(units, range(first_batch, end_batch)))
    return pools


class PoolLabels(NamedTuple):
    """What is known of the tokens or words of a pool, (n,), or of whole rows of text, (b, t)."""

    content: Hashable
    """Equal for pools of the same text."""

    tokens: Int[Tensor, " *n"]
    """The id of each token, or the number of the form of each word."""

    groups: Int[Tensor, " *n"]
    """The number of the document of each token or word."""

    positions: Int[Tensor, " *n"] | None = None
    """The position of each token in its row; None for words and whole rows."""

    mask: Bool[Tensor, "b t"] | None = None
    """Which tokens of whole rows are compared; None: all are."""


class TextBatches(ABC, Generic[ModelLayer]):
    """Draws batches of states of several models from pools of text; each model runs once over a
    pool.

    Text comes in units, rows of tokens or pieces of words. Those of a pool are drawn at random,
    and the tokens or words of a pool are drawn into its batches, equally many into each. If
    measures take whole rows, a pool is one batch.

    Args:
        models: The models, of which several may be the same.
        layers: The layers of each model.
        data: The text.
        measure: Settings, see `text_batches`.
        runs: Where states are kept for other jobs.
        is_spread: Whether tokens are of beginnings of documents.

    Attributes:
        sources: The models for which the text was read, and which decide its rows.
        models: The models whose states the batches have: `sources`, or another reader of the text.
        layers: The layers of each of these.
        units: How many units all of the text has.
        units_per_pass: How many units a model reads in one pass.
        batches: How many batches there are.
        facts: What the provenance of a result says of the text.
    """

    level: str
    models: Sequence[WordReader[ModelLayer]]
    layers: dict[WordReader[ModelLayer], tuple[ModelLayer, ...]]
    units: int
    units_per_pass: int
    batches: int
    facts: Mapping[str, object]

    def __init__(
        self: TextBatches[Layer],
        models: Sequence[StateSource],
        layers: Sequence[Sequence[Layer]],
        data: DataConfig,
        measure: BatchSettings,
        runs: ModelRuns,
        is_spread: bool = False,
    ):
        """Read the text, and draw its units (rows of tokens, or pieces of words) into pools.

        A pool is the text whose states are in memory at once. It has as many batches as fit, or
        one if measures take whole rows. The arguments are those of the class.
        """
        self.sources = models
        self.models = models
        self.measure = measure
        self.runs = runs
        self.is_spread = is_spread
        self.layers = {}
        layer_counts = {}
        for model, layers_of_model in zip(models, layers, strict=True):
            self.layers[model] = tuple(layers_of_model)
            layer_counts[model] = len(layers_of_model)
        self.takes_whole_rows = getattr(measure, "flatten", "token") != "token"
        self.read(data)

        most_batches = 1
        if not self.takes_whole_rows:
            tokens = _tokens_in_memory(measure, layer_counts)
            most_batches = tokens // measure.tokens_per_batch
        self.pools = _draw_pools(self.units, self.batches, most_batches)
        # The mask of rows with massive activations of each pool, so that these are determined and
        # reported once, however often a pool is read.
        self._outliers: dict[int, Tensor | None] = {}

    @abstractmethod
    def read(self, data: DataConfig) -> None:
        """Read the text, and set the attributes that say how many units and batches it has."""

    @abstractmethod
    def labels(self, units: Int[Tensor, " u"]) -> PoolLabels:
        """Return the token ids, documents and positions of the tokens or words of some units."""

    @abstractmethod
    def run(
        self,
        model: WordReader[ModelLayer],
        layers: Sequence[ModelLayer],
        units: Int[Tensor, " u"],
    ) -> list[Tensor]:
        """Return the states of a model for the tokens or words of some units, for each layer.

        `units` are the indices of u units, such as rows of tokens. The states are in the order in
        which `labels` returns their tokens or words.
        """

    @abstractmethod
    def name_of_row(self, units: Int[Tensor, " u"], number: int) -> str:
        """Return what errors call a row of states, given the units of its pool.

        `number` is that of the row in the states of the pool, as `labels` orders them.
        """

    @abstractmethod
    def named(self, units: Int[Tensor, " u"], tokens: Int[Tensor, " n"]) -> list[str]:
        """Return what messages call tokens or words, given the units that they are in.

        `tokens` are ids as in `PoolLabels.tokens`.
        """

    def pool(self, number: int) -> Iterator[StateBatch]:
        """Run each model once over a pool of text, and yield the batches drawn from it.

        Rows with massive activations are left out of the batches. The first batches come with a
        counterpart, `with_massive`, that includes them.
        """
        plan = self.pools[number]
        labels = self.labels(plan.units)
        key: Hashable = (labels.content, self.units_per_pass)
        pool = self._states_of_models(key, partial(self._states_of_units, units=plan.units))
        outliers = self._massive_rows(number, pool, labels)
        if self.measure.conditional_on == "token_position" and labels.positions is not None:
            key = (key, "residuals")
            residuals = self._residuals(pool, labels, plan.batch_numbers)
            pool = self._states_of_models(key, residuals)

        order = torch.randperm(len(labels.groups), generator=seeded(plan.batch_numbers.start))
        rows_per_batch = len(order) // len(plan.batch_numbers)
        rows_per_batch = max(min(rows_per_batch, self.measure.tokens_per_batch), 1)
        make_batch = partial(self._batch, pool, labels, plan)
        if outliers is None:
            drawn = zip(plan.batch_numbers, order.split(rows_per_batch), strict=False)
            for batch_number, rows in drawn:
                yield make_batch(batch_number, rows, key)
            return

        order_without = order[~outliers[order]]
        # Other models may have other outliers, so these are part of the key of cached states.
        key_without = (key, outliers.numpy().tobytes())
        rows_of_batches = zip(
            plan.batch_numbers,
            order_without.split(rows_per_batch),
            order.split(rows_per_batch),
            strict=False,
        )
        for batch_number, rows, rows_with_massive in rows_of_batches:
            counterpart = None
            if batch_number < BATCHES_WITH_MASSIVE:
                counterpart = make_batch(batch_number, rows_with_massive, key)
            batch = make_batch(batch_number, rows, key_without)
            yield batch._replace(with_massive=counterpart)

    def _massive_rows(
        self, number: int, pool: Pool[ModelLayer], labels: PoolLabels
    ) -> Bool[Tensor, " n"] | None:
        """Return which rows of a pool are left out, because a model's states of them are massive.

        The norm of such a state is many times the median, so that it would decide a measure alone.
        None means that all rows stay. A warning names those that are left out of the first pool.
        The mask of each pool is determined once.

        Args:
            number: The number of the pool.
            pool: The states of each model.
            labels: The tokens of its rows.
        """
        if self.measure.massive == "keep" or self.takes_whole_rows:
            return None
        if number not in self._outliers:
            layers_of_all_models = []
            for states in pool.values():
                layers_of_all_models += states
            outliers = massive(layers_of_all_models)
            self._outliers[number] = outliers
            if outliers is not None and number == 0:
                names = self.named(self.pools[number].units, labels.tokens[outliers])
                say_massive(outliers, names, f"{self.level}s")
        return self._outliers[number]

    def state_batches(self) -> StateBatches:
        """Return these batches as measures read them: counts, and a function that yields a pool.

        A pool is text over which each model runs once. The field `of` is a function that returns
        the same batches with the states of another model.
        """
        return StateBatches(
            pool=self.pool,
            total=len(self.pools),
            batches=self.batches,
            level=self.level,
            facts={"data": self.facts},
            of=self.of_model,
        )

    def of_model(self, model: WordReader[AnyLayer], layers: Sequence[AnyLayer]) -> StateBatches:
        """Return the states of another model for the same rows, in the same batches.

        Rows are left out where the states of the first models, not of this one, are massive.

        Args:
            model: A model that reads text as these do.
            layers: Its layers.
        """
        # A shallow copy: it shares the masks of rows that are left out. All that depends on what a
        # model calls its layers is replaced.
        batches = cast(TextBatches[AnyLayer], copy(self))
        batches.models = [model]
        batches.layers = {model: tuple(layers)}
        batches.runs = ModelRuns()
        return batches.state_batches()

    def _states_of_models(self, key: Hashable, run: Run[ModelLayer]) -> Pool[ModelLayer]:
        """Return the states of each model, which are cached for other jobs.

        Args:
            key: What the states are of; equal content has equal keys.
            run: Computes the states of a model at some layers if they are not cached.
        """
        pool = {}
        for model, layers in self.layers.items():
            pool[model] = self.runs.once(model, (key, layers), partial(run, model, layers))
        return pool

    def _states_of_units(
        self,
        model: WordReader[ModelLayer],
        layers: Sequence[ModelLayer],
        units: Int[Tensor, " u"],
    ) -> list[Tensor]:
        """Return the states of a model for some units, for each layer, from several passes.

        The passes of a layer are joined one layer after another, so that at most one layer is in
        memory twice.
        """
        passes = [self.run(model, layers, batch) for batch in units.split(self.units_per_pass)]
        states_of_layers = []
        for _ in range(len(passes[0])):
            # `pop` removes the next layer from each pass, so that it is freed once it is joined.
            states_of_layers.append(torch.cat([states.pop(0) for states in passes]))
        return states_of_layers

    def _residuals(
        self, pool: Pool[ModelLayer], labels: PoolLabels, batch_numbers: range
    ) -> Run[ModelLayer]:
        """Return a function that removes the means of each token and position from states.

        It returns the states of a model in a pool, without these means, for each layer. States of
        tokens that occur less than `FEWEST_HSIC_ROWS` times in the pool become 0.

        Args:
            pool: The states of each model.
            labels: The tokens and positions of its rows.
            batch_numbers: The numbers of its batches, for the error.

        Raises:
            DataError: No token occurs often enough.
        """
        try:
            rows_of_tokens = RowGroups.of(labels.tokens, FEWEST_HSIC_ROWS)
        except ValueError as error:
            last = batch_numbers.stop - 1
            raise DataError(f"batches {batch_numbers.start} to {last}: {error}") from error

        def residuals_of(
            model: WordReader[ModelLayer], layers: Sequence[ModelLayer]
        ) -> list[Tensor]:
            """Return the states of a model without the means, for each layer of the pool.

            `layers` is ignored: it is only passed because the states are cached by layers.
            """
            assert labels.positions is not None
            order = rows_of_tokens.order.to(model.device)
            positions = labels.positions.to(model.device)
            residuals = []
            for states in pool[model]:
                without_means = rows_of_tokens.without_means(states, positions).to(states.dtype)
                # Rows that are not in `order`, which are of rare tokens, stay 0.
                residuals.append(torch.zeros_like(states).index_copy_(0, order, without_means))
            return residuals

        return residuals_of

    def _batch(
        self,
        pool: Pool[ModelLayer],
        labels: PoolLabels,
        plan: _PoolPlan,
        number: int,
        rows: Int[Tensor, " b"],
        key: Hashable,
    ) -> StateBatch:
        """Return the batch of some rows of a pool, in the order of the text.

        Permutation tests that keep documents together rely on this order.

        Args:
            pool: The states of each model.
            labels: The tokens and documents of the rows of the pool.
            plan: The units and the batches of the pool.
            number: The number of the batch.
            rows: The indices of its rows, in any order.
            key: What the pool is of; equal content has equal keys.
        """
        ordered_rows = rows.sort().values

        def select(model: WordReader[ModelLayer]) -> list[Tensor]:
            """Return the states of a model for these rows, for each layer."""
            rows_on_device = ordered_rows.to(model.device)
            return [states[rows_on_device] for states in pool[model]]

        def name_of_row(row: int) -> str:
            """Return what errors call a row of this batch."""
            return self.name_of_row(plan.units, int(ordered_rows[row]))

        content = (key, plan.batch_numbers, number)
        states = []
        for model in self.models:
            model_content = (content, self.layers[model])
            states_of_model = self.runs.once(
                model, model_content, partial(select, model), of_batch=True
            )
            states.append(states_of_model)
        mask = None
        if labels.mask is not None:
            mask = labels.mask[ordered_rows]
        groups = labels.groups[ordered_rows]
        tokens = labels.tokens[ordered_rows]
        return StateBatch(number, states, groups, name_of_row, mask, tokens, content)


class TokenBatches(TextBatches[ModelLayer]):
    """Batches of the states of tokens, which models read in the same rows."""

    level = "token"
    stored_rows: Int[Tensor, " u"] | None
    """The number of each row in the folder of states that it is from; None: it is of text."""

    def read(self, data: DataConfig) -> None:
        """Read the rows of tokens, mark those that are compared, and count units and batches.

        A unit is a row. The rows are of text, or of a folder of stored states.
        """
        if data.source == "states":
            self._read_stored(data)
        else:
            self._read_text(data)
        measure = self.measure
        special: list[int] = []
        tokenizer = self.sources[0].tokenizer
        if measure.skip_special_tokens and tokenizer is not None:
            special = tokenizer.all_special_ids
        self.is_compared = compared_tokens(self.rows, measure.skip_first, special) & self.is_token

        context = self.rows.shape[1]
        self.units = len(self.rows)
        self.units_per_pass = max(measure.tokens_per_batch // context, 1)
        tokens_per_batch = measure.tokens_per_batch
        if self.takes_whole_rows:  # a batch is the rows of one pass
            tokens_per_batch = self.units_per_pass * context
        possible_batches = max(int(self.is_token.sum()) // tokens_per_batch, 1)
        self.batches = min(measure.batches, possible_batches)

    def _read_text(self, data: DataConfig) -> None:
        """Read text as token rows of one length, and draw those that are compared.

        They become the attribute `rows`, and `groups` has the number of each token's document.
        More text is read than is needed, so that the rows come from more documents.

        Raises:
            ModelError: The models cut the text into different tokens.
        """
        measure = self.measure
        first_model = self.sources[0]
        for model in self.sources:
            model.check_context(data.context)

        tokens = measure.batches * measure.tokens_per_batch
        context = data.context or self._context(tokens)
        row_count = -(-tokens // context)  # rounded up
        data = replace(data, evaluation_tokens=TIMES_AS_MUCH_TEXT * row_count * context)
        corpus = self._corpus(data, context)
        self.stored_rows = None
        order = torch.randperm(len(corpus.report), generator=seeded(0))
        drawn = corpus.report.select(order[:row_count].sort().values)
        self.rows = drawn.tokens
        for model in self.sources:
            check_same_tokens(first_model, model, self.rows)  # the same rows must be the same text
        self.is_token = torch.ones_like(self.rows, dtype=torch.bool)
        documents = drawn.documents.flatten().long()
        self.groups = numbered_by_part(documents).view(-1, context)
        self.facts = {"name": data.name, **corpus.facts()}

    def _context(self, tokens: int) -> int:
        """Return the length of rows, for a text of so many tokens, if the settings have none.

        It fits into the context of each model. Within that, it is the longest with which a pool
        (the text whose states are in memory at once) has `FEWEST_TEXT_ROWS` rows, but at least
        `SHORTEST_CONTEXT`.
        """
        tokens_in_memory = tokens
        if not self.takes_whole_rows:
            layer_counts = {model: model.n_layers for model in self.sources}
            tokens_in_memory = min(tokens, _tokens_in_memory(self.measure, layer_counts))
        longest = max(tokens_in_memory // FEWEST_TEXT_ROWS, SHORTEST_CONTEXT)
        contexts = [model.context for model in self.sources]
        return min(*contexts, longest)

    def _corpus(self, data: DataConfig, context: int) -> Corpus:
        """Return the text as rows of tokens; jobs that share `runs` read it once.

        Nothing is fitted on it, so that all of it is for evaluation. If tokens are to be spread
        over many documents (`is_spread`), only the beginnings of documents are read.
        """
        first_model = self.sources[0]
        tokenizer = first_model.tokenizer
        bos = first_model.bos_each_row
        read_rows = partial(
            read_corpus,
            data,
            tokenizer,
            context,
            bos=bos,
            fit_tokens=0,
            whole=not self.is_spread,
        )
        key = (repr(data), tokenizer_fingerprint(tokenizer), context, bos, self.is_spread)
        return self.runs.text(key, read_rows)

    def _read_stored(self, data: DataConfig) -> None:
        """Draw rows of text that a folder of stored states has; shorter ones are padded.

        They become the attribute `rows`, with `is_token` for what is no padding, and the number of
        each token's document in `groups` (0 for padding).

        Raises:
            DataError: A model cannot read the rows, or has no states of them.
        """
        folder = folder_of_rows(data, self.sources)
        tokens = self.measure.batches * self.measure.tokens_per_batch
        self.stored_rows = folder.drawn_rows(tokens)
        drawn = folder.token_rows(self.stored_rows)
        self.rows = drawn.tokens
        self.is_token = drawn.is_token
        for model in self.sources:
            check_reads_rows(model, folder, drawn)
        documents = drawn.documents[:, None].expand_as(self.rows)
        self.groups = torch.zeros_like(self.rows)
        self.groups[self.is_token] = numbered_by_part(documents[self.is_token])
        self.facts = {"name": data.name, "states": folder.fingerprint(), "rows": len(self.rows)}

    def labels(self, units: Int[Tensor, " u"]) -> PoolLabels:
        """Return the ids, documents and positions of the tokens of some rows that are compared.

        `units` are the indices of the u rows. If measures take whole rows, all tokens of the rows
        are returned with a mask instead of positions.
        """
        rows = self.rows[units]
        mask = self.is_compared[units]
        groups = self.groups[units]  # the number of each token's document
        # A key that is equal for the same tokens, by which their states are cached.
        row_bytes = rows.numpy().tobytes()
        content = (self.takes_whole_rows, tuple(rows.shape), row_bytes, mask.numpy().tobytes())
        if self.takes_whole_rows:
            return PoolLabels(content, tokens=rows, groups=groups, mask=mask)
        positions = torch.arange(rows.shape[1]).expand_as(rows)
        return PoolLabels(
            content, tokens=rows[mask], groups=groups[mask], positions=positions[mask]
        )

    def run(
        self,
        model: WordReader[ModelLayer],
        layers: Sequence[ModelLayer],
        units: Int[Tensor, " u"],
    ) -> list[Tensor]:
        """Return the states of a model at each layer for the compared tokens of some rows.

        `units` are the indices of the rows. The states are (n, d) for the n compared tokens of all
        rows, or (b, t, d) for b rows of t tokens if measures take whole rows.
        """
        is_token = self.is_token[units]
        mask = None  # no row has padding
        if not is_token.all():
            mask = is_token.long()
        states = model.residuals(self.rows[units].long(), layers, mask)
        if self.takes_whole_rows:
            return states
        compared = indices_where(self.is_compared[units]).to(model.device)
        return [layer.flatten(0, 1)[compared] for layer in states]

    def name_of_row(self, units: Int[Tensor, " u"], number: int) -> str:
        """Return what errors call a row of states, given the rows of text of its pool.

        Of stored states, it is the row of the folder and the token within it. Other text was
        packed into rows that the user does not know, so that it is the token itself.
        """
        if self.takes_whole_rows:
            unit, position = int(units[number]), None
        else:
            compared = indices_where(self.is_compared[units])
            index, position = divmod(int(compared[number]), self.rows.shape[1])
            unit = int(units[index])
        if self.stored_rows is not None:
            stored_row = f"row {int(self.stored_rows[unit])}"
            return stored_row if position is None else f"{stored_row}, token {position},"
        if position is None:
            return "a row of the text"
        (token,) = self.named(units, self.rows[unit, position : position + 1])
        return f"the state of {token}"

    def named(self, units: Int[Tensor, " u"], tokens: Int[Tensor, " n"]) -> list[str]:
        """Return what messages call these tokens: their text, or their ids without a tokenizer.

        `units` is ignored: an id names a token, in whatever row it is.
        """
        tokenizer = self.sources[0].tokenizer
        if tokenizer is None:
            return [f"token {token}" for token in tokens.tolist()]
        return [repr(tokenizer.decode([token])) for token in tokens.tolist()]


class WordBatches(TextBatches[ModelLayer]):
    """Batches of the states of words.

    Models with different tokenizers read them in the same pieces of text.
    """

    level = "word"

    def read(self, data: DataConfig) -> None:
        """Draw pieces of text that fit into each model, and count words and batches.

        The pieces become the attribute `text`, and are the units that are drawn into pools.

        Raises:
            DataError: The text has no words.
        """
        words_per_batch = self.measure.tokens_per_batch
        word_count = self.measure.batches * words_per_batch
        distinct_models = list(dict.fromkeys(self.sources))
        # How a model cuts text decides where the pieces end.
        readers = frozenset((model.ids_fingerprint, model.context) for model in distinct_models)
        key = (repr(data), word_count, readers)
        draw = partial(drawn_pieces, data, distinct_models, word_count)
        self.text = self.runs.text(key, draw)
        if self.text.count == 0:
            remedy = "give more text"
            if data.evaluation_share:
                remedy += (
                    f", or raise {named_setting('data.evaluation_share', data.evaluation_share)}"
                )
            raise DataError(f"the evaluation text has no words; {remedy}")
        self.units = len(self.text.texts)
        self.units_per_pass = max(words_per_batch // WORDS_PER_PIECE, 1)
        self.batches = min(self.measure.batches, max(self.text.count // words_per_batch, 1))
        self.facts = {"name": data.name, "level": "word"}

    def labels(self, units: Int[Tensor, " u"]) -> PoolLabels:
        """Return the form and the document of each word of some pieces, as numbers.

        `units` are the indices of the u pieces. Words that are written alike have the same form.
        """
        pieces = self.text.select(units)
        words = tuple(tuple(spans) for spans in pieces.words)
        content = (tuple(pieces.texts), words)  # a key that is equal for the same words
        return PoolLabels(content, tokens=pieces.forms, groups=pieces.owners)

    def run(
        self,
        model: WordReader[ModelLayer],
        layers: Sequence[ModelLayer],
        units: Int[Tensor, " u"],
    ) -> list[Tensor]:
        """Return the states of a model at each layer for the words of some pieces, (n, d).

        `units` are the indices of the pieces; n is the number of all their words.
        """
        return word_states(model, self.text.select(units), layers)

    def name_of_row(self, units: Int[Tensor, " u"], number: int) -> str:
        """Return what errors call the state of a word of some pieces: by the word itself."""
        word = self.text.select(units).written_words()[number]
        return f"the state of {word!r}"

    def named(self, units: Int[Tensor, " u"], tokens: Int[Tensor, " n"]) -> list[str]:
        """Return the words, in quotes, that these numbers of forms stand for in the pieces."""
        pieces = self.text.select(units)
        word_of_form = dict(zip(pieces.forms.tolist(), pieces.written_words(), strict=True))
        return [repr(word_of_form[form]) for form in tokens.tolist()]


def text_batches(
    models: Sequence[StateSource],
    layers: Sequence[Sequence[Layer]],
    data: DataConfig,
    measure: BatchSettings,
    runs: ModelRuns,
    *,
    is_spread: bool = False,
) -> StateBatches:
    """Return batches of the states of several models on held-out text, by tokens or by words.

    If the settings leave the choice open, models with different tokenizers are compared by words.

    Args:
        models: The models, of which several may be the same.
        layers: The layers of each model.
        data: The settings of the text.
        measure: The settings of the batches. If it has a setting `flatten` with another value than
            "token", rows of text are kept whole.
        runs: Caches the states for other jobs.
        is_spread: Whether only the beginnings of documents are read, so that the text comes from
            more documents. Words are always read so.

    Raises:
        DataError: There is too little text, or settings of tokens are given for words.
    """
    level = measure.unit
    if level == "auto":
        vocabularies = {model.ids_fingerprint for model in models}
        level = "token" if len(vocabularies) == 1 else "word"
        if level == "word":
            names = " and ".join(model.name for model in models)
            log.info(names + " have different tokenizers: compared word by word")
    if level == "word" and (measure.skip_first or measure.skip_special_tokens):
        raise DataError(
            "words are compared one by one: skip_first and skip_special_tokens are for tokens"
        )
    batches_of_level: type[TextBatches[Layer]] = TokenBatches
    if level == "word":
        batches_of_level = WordBatches
    batches = batches_of_level(models, layers, data, measure, runs, is_spread)
    return batches.state_batches()


def array_batches(
    sides: Sequence[Sequence[Float[Tensor, "n _"]]],
    groups: Int[Tensor, " n"],
    *,
    name_of_stimulus: Callable[[int], str] = "row {}".format,
    rows_per_batch: int,
    fewest: int = 2,
    needed_by: str = "",
) -> StateBatches:
    """Return batches of the states of n stimuli that are in memory.

    If a batch can hold all stimuli, there is one batch. Otherwise stimuli are drawn at random into
    batches of about equal size. Each batch is a pool of its own.

    Args:
        sides: The layers of each model; a side that is there twice has one list.
        groups: What each stimulus belongs to, such as a sentence.
        name_of_stimulus: Returns what errors call the states of a stimulus, given its number.
        rows_per_batch: How many stimuli a batch holds at most.
        fewest: How many stimuli a batch needs.
        needed_by: The setting that needs so many, such as "measure.neighbours=10".

    Raises:
        DataError: Batches would have fewer stimuli.
    """
    n = len(groups)
    batch_count = -(-n // rows_per_batch)  # rounded up
    smallest_batch = n // batch_count
    if smallest_batch < fewest:
        need = f"at least {fewest} are needed"
        remedies = ["give more stimuli"]
        if needed_by:
            setting = needed_by.partition("=")[0]
            need = f"{needed_by} needs at least {fewest}"
            remedies.append(f"choose a smaller {setting}")
        if rows_per_batch < n:
            remedies.append(f"raise {named_setting('measure.tokens_per_batch')}")
        raise DataError(
            f"of {n} stimuli, {named_setting('measure.tokens_per_batch', rows_per_batch)} "
            f"compares {smallest_batch} at once, and {need}; {', or '.join(remedies)}"
        )
    order = torch.randperm(n, generator=seeded(0))
    rows_of_batches = [rows.sort().values for rows in order.tensor_split(batch_count)]
    distinct_sides = {id(side): side for side in sides}
    group_numbers = numbered_by_part(groups)

    def pool(number: int) -> Iterator[StateBatch]:
        """Yield the only batch of a pool, with the states of its stimuli in each model."""
        rows = rows_of_batches[number]
        # The indices are copied to each device once; all layers of a side are on one device.
        rows_on_device: dict[torch.device, Tensor] = {}
        for side in distinct_sides.values():
            for layer in side[:1]:
                rows_on_device[layer.device] = rows.to(layer.device)
        states = {}
        for key, side in distinct_sides.items():
            states[key] = [layer[rows_on_device[layer.device]] for layer in side]
        states_of_sides = [states[id(side)] for side in sides]

        def name_of_row(row: int) -> str:
            """Return what errors call a row of this batch."""
            return name_of_stimulus(int(rows[row]))

        yield StateBatch(number, states_of_sides, group_numbers[rows], name_of_row)

    facts = {"data": {"rows": n, "batches": batch_count}}
    return StateBatches(pool, batch_count, batch_count, "stimulus", facts)


def pool_tokens(batch_tokens: int, numbers_per_token: int, parameters: int) -> int:
    """Return the most tokens of a pool: text over which models run before batches are drawn.

    The states of a pool take at most `POOL_BYTES`, or a quarter of the memory of the weights if
    that is more. But a pool has room for `POOL_BATCHES` batches in any case, within `POOL_TOKENS`
    tokens, and for at least one batch. It has at most `MOST_POOL_BATCHES` batches.

    Args:
        batch_tokens: How many tokens a batch has.
        numbers_per_token: How many numbers the states of a token are, over all models and layers.
        parameters: How many weights are in memory.
    """
    batch_bytes = 4 * batch_tokens * numbers_per_token  # float32
    # A weight takes 4 bytes, so a quarter of the memory of the weights is one byte per weight.
    batches_in_memory = max(POOL_BYTES, parameters) // batch_bytes
    batches = min(
        POOL_TOKENS // batch_tokens, max(batches_in_memory, POOL_BATCHES), MOST_POOL_BATCHES
    )
    return batch_tokens * max(batches, 1)
