"""Several jobs of layer pairs in one pass.

They go through their batches in step, so that each model runs once for each different input, and
pairs of models share their products.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from thinkalike.config import AnalyzeConfig
from thinkalike.errors import DataError, ThinkalikeError
from thinkalike.instruments.layer_pairs.comparison import LayerPairComparison, pools_to_gather
from thinkalike.instruments.layer_pairs.measure import AnyPairMeasure
from thinkalike.instruments.layer_pairs.table import outcome_of_comparison
from thinkalike.job import Outcome, Work
from thinkalike.job.work import phase_of_all
from thinkalike.measures.accumulator import Accumulator
from thinkalike.measures.contract import Batch
from thinkalike.measures.layer_means import LayerMeans
from thinkalike.models.load import load_groups
from thinkalike.states.batches import ModelRuns, StateBatch
from thinkalike.states.folder import load_source

Job: TypeAlias = tuple[AnyPairMeasure, AnalyzeConfig, Work]
"""An instrument, the configuration of its job, and the context of the running job."""


class MetricUpdate(NamedTuple):
    """A batch that is to be added to a metric of a comparison.

    Attributes:
        comparison: The comparison.
        metric: One of its metrics.
        batch: The batch.
    """

    comparison: LayerPairComparison
    metric: Accumulator
    batch: StateBatch

    def run(self) -> None:
        """Add the batch to the metric. If that fails, the comparison keeps the error and ends."""
        self.comparison.update(self.metric, self.batch)


def run_together(jobs: Sequence[Job]) -> list[Outcome | ThinkalikeError]:
    """Run several jobs of layer pairs together, so that each model reads a text only once.

    Each job compares the batches that it would read alone, and its numbers are the same to the
    bit. A batch that cannot be compared does not end the other jobs: the error of its job is
    returned in the place of the outcome.
    """
    runs = ModelRuns()
    with phase_of_all([work for _, _, work in jobs], "loading"):
        configs_of_jobs = [(config.model, config.target) for _, config, _ in jobs]
        models_of_jobs = load_groups(configs_of_jobs, load_source)
        comparisons = []
        for (instrument, config, work), models in zip(jobs, models_of_jobs, strict=True):
            comparisons.append(instrument.comparison_on_text(config, work, models, runs))

    # A pool is some batches over which all models run at once.
    for number in pools_to_gather(comparisons, runs):
        # The updates with the first batch of every comparison, then those with the second, ...
        for updates in _updates_in_step(comparisons, number):
            _update_together(updates)
            runs.forget(of_batch=True)

    outcomes: list[Outcome | ThinkalikeError] = []
    for (instrument, _, _), comparison in zip(jobs, comparisons, strict=True):
        try:
            outcomes.append(outcome_of_comparison(instrument, comparison))
        except DataError as error:
            outcomes.append(error)
    comparisons[0].work.processes.end_of_share()  # all processes end here but the first

    for index, (instrument, config, work) in enumerate(jobs):
        outcome = outcomes[index]
        if isinstance(outcome, Outcome) and instrument.has_bit_widths(config):
            # Few jobs ask for equivalent bit widths, so their module is imported only here.
            from thinkalike.instruments.layer_pairs.readings import with_bit_widths

            level = comparisons[index].batches.level
            models = models_of_jobs[index]
            outcomes[index] = with_bit_widths(instrument, outcome, config, models, level, work)
    return outcomes


def _updates_in_step(
    comparisons: Sequence[LayerPairComparison], number: int
) -> Iterator[list[MetricUpdate]]:
    """Yield the updates for each batch of a pool: those of all comparisons at once.

    A pool is some batches over which the models run at once; an update is a batch with the metric
    that it is added to. The first list has the first batch of every comparison, and so on, until
    no comparison has a further batch in the pool.

    Args:
        comparisons: The comparisons; those that do not need this pool are left out.
        number: The number of the pool.
    """
    pools = []
    for comparison in comparisons:
        if comparison.needs_pool(number):
            pools.append((comparison, comparison.pool(number)))
    while True:
        updates = []
        for comparison, batches_of_pool in pools:
            batch = next(batches_of_pool, None)
            if batch:
                for metric, batch_of_metric in comparison.metrics_of(batch):
                    updates.append(MetricUpdate(comparison, metric, batch_of_metric))
        if not updates:
            return
        yield updates


def _update_together(updates: Sequence[MetricUpdate]) -> None:
    """Add batches to their metrics; comparisons on the same rows of text share what they can.

    What a measure computes from the states of one model, such as a Gram matrix, is then computed
    once for all comparisons with this model. If that fails, each batch is added alone, so that
    only the comparison that cannot be computed gets the error.
    """
    updates_by_key: dict[Hashable, list[MetricUpdate]] = {}
    for update in updates:
        key = _key_of_shared_products(update)
        updates_by_key.setdefault(key, []).append(update)
    for group in updates_by_key.values():
        # `_add_with_shared_products` is False if some batch could not be compared.
        if len(group) > 1 and _add_with_shared_products(group):
            continue
        for update in group:
            update.run()


def _key_of_shared_products(update: MetricUpdate) -> Hashable:
    """Return a key that is equal for updates that can share intermediate products.

    These are products of one model's states, such as a Gram matrix. Updates share them if they
    have the same rows of text on the same device, and the same settings. An update has a key that
    no other has if its text is not known, or if its metric is not a `LayerMeans`, the metric that
    can add batches for several metrics at once.
    """
    batch = update.batch
    # `content` is a key of the text whose states a batch holds; None if it is not known.
    can_share = batch.content is not None and isinstance(update.metric, LayerMeans)
    # The id of its metric tells an update that cannot share from all others.
    id_if_alone = None if can_share else id(update.metric)
    return (
        repr(update.comparison.measure),
        batch.number,
        batch.states[0][0].device,
        batch.content,
        id_if_alone,
    )


def _add_with_shared_products(group: Sequence[MetricUpdate]) -> bool:
    """Add batches of the same rows of text to several metrics, and return whether that worked.

    Products of one model's states are computed once for all metrics. If the states of one update
    cannot be compared, no metric is changed, and the result is False.

    Args:
        group: Updates with the same rows and settings, whose metrics are `LayerMeans`.
    """
    first = group[0]
    # The states of a model, a tensor for each layer, are one list in all updates that have them.
    states_by_id = {}
    for update in group:
        for states in update.batch.states:
            states_by_id[id(states)] = states
    index_by_id = {key: index for index, key in enumerate(states_by_id)}
    index_pairs = []  # of the source and the target of each update, in `states_by_id`
    for update in group:
        source, target = update.batch.states
        index_pairs.append((index_by_id[id(source)], index_by_id[id(target)]))

    device = first.batch.states[0][0].device
    states_on_device = []
    for states in states_by_id.values():
        states_on_device.append([layer.to(device) for layer in states])
    metrics = []
    for update in group:
        assert isinstance(update.metric, LayerMeans)
        metrics.append(update.metric)
    # The labels of rows, such as their documents, are the same in all updates.
    batch = Batch(states_on_device, **first.comparison.labels(first.batch))
    try:
        # All metrics have the same measure and settings, so that any of them can add to all.
        metrics[0].gather(batch, metrics, index_pairs)
    except ValueError:
        return False
    return True
