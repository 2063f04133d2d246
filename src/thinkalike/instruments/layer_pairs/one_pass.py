"""Several jobs of layer pairs in one pass.

They go through their batches in step, so that each model runs once for each different input, and
pairs of models share their products.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from thinkalike.config import AnalyzeConfig
from thinkalike.errors import DataError, ThinkalikeError
from thinkalike.instruments.layer_pairs.comparison import LayerPairComparison, rounds
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
        """Add the batch to the metric alone, or let the comparison remember why it cannot be."""
        self.comparison.update(self.metric, self.batch)


def run_together(jobs: Sequence[Job]) -> list[Outcome | ThinkalikeError]:
    """Compute the numbers of several jobs of layer pairs.

    Each job reads the batches that it would read alone, and its numbers are the same to the bit.
    The error of one job does not end the others: it is returned in the place of its outcome.
    """
    runs = ModelRuns()
    with phase_of_all([work for _, _, work in jobs], "loading"):
        configs_of_jobs = [(config.model, config.target) for _, config, _ in jobs]
        models_of_jobs = load_groups(configs_of_jobs, load_source)
        comparisons = []
        for (instrument, config, work), models in zip(jobs, models_of_jobs, strict=True):
            comparisons.append(instrument.of_text(config, work, models, runs))

    for number in rounds(comparisons, runs):
        for updates in _updates_in_step(comparisons, number):
            _update_together(updates)
            runs.forget(of_batch=True)

    outcomes: list[Outcome | ThinkalikeError] = []
    for (instrument, _, _), comparison in zip(jobs, comparisons, strict=True):
        try:
            outcomes.append(outcome_of_comparison(instrument, comparison))
        except DataError as error:
            outcomes.append(error)
    comparisons[0].work.processes.end_of_share()

    for index, (instrument, config, work) in enumerate(jobs):
        outcome = outcomes[index]
        if isinstance(outcome, Outcome) and instrument.has_readings(config):
            # Few jobs have readings, so that their module is imported here.
            from thinkalike.instruments.layer_pairs.readings import with_readings

            level = comparisons[index].batches.level
            models = models_of_jobs[index]
            outcomes[index] = with_readings(instrument, outcome, config, models, level, work)
    return outcomes


def _updates_in_step(
    comparisons: Sequence[LayerPairComparison], number: int
) -> Iterator[list[MetricUpdate]]:
    """Yield the updates of the next batch of all comparisons, until no pool has more batches.

    Args:
        comparisons: The comparisons.
        number: The number of the pool.
    """
    pools = []
    for comparison in comparisons:
        if comparison.needs_pool(number):
            pools.append((comparison, comparison.pool(number)))
    while True:
        updates = []
        for comparison, pool in pools:
            batch = next(pool, None)
            if batch:
                for metric, batch_of_metric in comparison.metrics_of(batch):
                    updates.append(MetricUpdate(comparison, metric, batch_of_metric))
        if not updates:
            return
        yield updates


def _update_together(updates: Sequence[MetricUpdate]) -> None:
    """Add batches to their metrics, batches of the same rows by one product.

    Such batches have the same content on the same device, and are compared with the same settings.
    """
    groups: dict[Hashable, list[MetricUpdate]] = {}
    for update in updates:
        key = _key_of_product(update)
        groups.setdefault(key, []).append(update)
    for group in groups.values():
        if len(group) > 1 and _add_by_one_product(group):
            continue
        for update in group:
            update.run()


def _key_of_product(update: MetricUpdate) -> Hashable:
    """Return a key that updates share if one product can do them."""
    batch = update.batch
    metric_alone = None
    if batch.content is None or not isinstance(update.metric, LayerMeans):
        metric_alone = id(update.metric)
    return (
        repr(update.comparison.measure),
        batch.number,
        batch.states[0][0].device,
        batch.content,
        metric_alone,
    )


def _add_by_one_product(group: Sequence[MetricUpdate]) -> bool:
    """Add the same batch to several metrics, and return whether that worked.

    Where one of them cannot be compared, the batch is added to no metric.

    Args:
        group: Updates with the same rows and settings, whose metrics are `LayerMeans`.
    """
    first = group[0]
    states_by_id = {}
    for update in group:
        for states in update.batch.states:
            states_by_id[id(states)] = states
    index_of_states = {key: index for index, key in enumerate(states_by_id)}
    sides = []
    for update in group:
        source, target = update.batch.states
        sides.append((index_of_states[id(source)], index_of_states[id(target)]))

    device = first.batch.states[0][0].device
    states_on_device = []
    for states in states_by_id.values():
        states_on_device.append([layer.to(device) for layer in states])
    metrics = []
    for update in group:
        assert isinstance(update.metric, LayerMeans)
        metrics.append(update.metric)
    batch = Batch(states_on_device, **first.comparison.labels(first.batch))
    try:
        metrics[0].gather(batch, metrics, sides)
    except ValueError:
        return False
    return True
