"""Several jobs in one pass: each model runs once for each different input, and pairs of models share their products."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from torchmetrics import Metric

from thinkalike.config import AnalyzeConfig
from thinkalike.errors import DataError, ThinkalikeError
from thinkalike.instruments.layer_pairs.comparison import Comparison, rounds
from thinkalike.job import Outcome, Work, phase_of_all
from thinkalike.measures.contract import Batch
from thinkalike.measures.layer_means import LayerMeans
from thinkalike.models.load import load_groups
from thinkalike.states.batches import ModelRuns, StateBatch

Read = tuple[Comparison, Metric, StateBatch]


def run_together(jobs: Sequence[tuple[Any, AnalyzeConfig, Work]]) -> list[Outcome | ThinkalikeError]:
    """Compute the numbers of several jobs of layer pairs; the error of one leaves the others alone.

    They go through their pools in step. Each reads the batches that it would read alone, and its numbers are the same
    to the bit.
    """
    runs = ModelRuns()
    with phase_of_all([work for _, _, work in jobs], "loading"):
        pairs = load_groups([(config.model, config.target) for _, config, _ in jobs])
        each_job = zip(jobs, pairs, strict=True)
        comparisons = [kind.of_text(config, work, models, runs) for (kind, config, work), models in each_job]
    for number in rounds(comparisons, runs):
        pools = [(each, each.pool(number)) for each in comparisons if each.wants(number)]
        while read := [(each, batch) for each, pool in pools if (batch := next(pool, None))]:
            update_together([(each, metric, part) for each, batch in read for metric, part in each.parts(batch)])
            runs.forget(of_batch=True)
    outcomes = [_outcome(kind, each) for (kind, _, _), each in zip(jobs, comparisons, strict=True)]
    comparisons[0].work.processes.end_of_share()
    return outcomes


def _outcome(kind: Any, comparison: Comparison) -> Outcome | ThinkalikeError:
    try:
        return kind.outcome(comparison)  # type: ignore[no-any-return]
    except DataError as error:
        return error


def update_together(read: Sequence[Read]) -> None:
    """Add batches that jobs read at once: those of the same rows, in the same place and way, by one product."""
    alike: dict[Hashable, list[Read]] = {}
    for comparison, metric, batch in read:
        is_alone = batch.content is None or not isinstance(metric, LayerMeans)
        device, alone = batch.states[0][0].device, id(metric) if is_alone else None
        alike.setdefault((repr(comparison.measure), batch.number, device, batch.content, alone), []).append(
            (comparison, metric, batch)
        )
    for group in alike.values():
        if len(group) == 1 or not _by_one_product(group):
            for comparison, metric, batch in group:
                with comparison.refusing(batch):
                    metric.update(**comparison.arguments(batch))


def _by_one_product(group: Sequence[Read]) -> bool:
    """Add the same batch to several metrics; returns False, and adds it to none, where one cannot be compared."""
    comparisons, metrics, batches = zip(*group, strict=True)
    states = {id(side): side for batch in batches for side in batch.states}
    numbered = {key: index for index, key in enumerate(states)}
    sides = [(numbered[id(batch.states[0])], numbered[id(batch.states[1])]) for batch in batches]
    moved = [[layer.to(batches[0].states[0][0].device) for layer in side] for side in states.values()]
    try:
        metrics[0].gather(Batch(moved, **comparisons[0].rows(batches[0])), metrics, sides)
    except ValueError:
        return False
    return True
