"""What a job of layer pairs compares: two sides in batches, the metric that gathers them, and how far it has come.

Several jobs of one pass go through their batches in step, so that each model runs once for each different input, and
pairs of models share their products.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torchmetrics import Metric

from thinkalike.config import AnalyzeConfig
from thinkalike.errors import DataError, ThinkalikeError
from thinkalike.job import Outcome, Work
from thinkalike.job.work import phase_of_all
from thinkalike.measures.contract import Batch
from thinkalike.measures.layer_means import LayerMeans
from thinkalike.models.load import load_groups
from thinkalike.processes import asked, at_boundaries, doing, stop
from thinkalike.states.batches import ModelRuns, StateBatch, StateBatches
from thinkalike.states.folder import load_source

log = logging.getLogger(__name__)
KEPT_EVERY = 2  # pools


class Side(NamedTuple):
    """A model or a recording: its name, its layers, and how the provenance describes it."""

    name: str
    layers: list[Any]
    describe: Callable[[], dict[str, str]]


class Comparison:
    """A job's comparison of two sides, which are one object where a model is compared with itself.

    Resumes from the state that an earlier run left; `new` makes a metric without any batch.

    Attributes:
        metric, with_massive: of the batches, and of those with massive tokens that stand beside some of them.
        first: how many pools of batches an earlier run has gathered.
        error: why a batch could not be read or compared; the comparison has ended, and no other of its pass.
    """

    def __init__(
        self, new: Callable[[], Metric], measure: Any, sides: tuple[Side, Side], batches: StateBatches, work: Work
    ):
        self.measure, self.batches, self.work = measure, batches, work
        self.source, self.target = sides
        self.metric, self.with_massive = new(), new()
        self.error: DataError | None = None
        self.first = 0
        if kept := work.resume("metrics"):
            self.first = int(kept["pools"])
            if not work.processes.rank:
                self.metric.load_state_dict(kept["metric"])
                self.with_massive.load_state_dict(kept["with_massive"])

    def wants(self, number: int) -> bool:
        """Return whether a pool is still to be gathered."""
        return self.error is None and self.first <= number < self.batches.total

    def pool(self, number: int) -> Iterator[StateBatch]:
        """Yield the batches of a pool, until one cannot be read or compared."""
        batches = self.batches.pool(number)
        while self.error is None:
            try:
                batch = next(batches, None)
            except DataError as error:
                self.error, batch = error, None
            if batch is None:
                return
            yield batch

    def parts(self, batch: StateBatch) -> Iterator[tuple[Metric, StateBatch]]:
        """Yield a batch, and that with massive tokens if there is one, each with the metric that it is for."""
        yield self.metric, batch
        if batch.with_massive:
            yield self.with_massive, batch.with_massive

    def rows(self, batch: StateBatch) -> dict[str, Any]:
        """Return which rows of a batch count, what groups them, and their documents, where its source is."""
        wanted: dict[str, Tensor | None] = {"mask": batch.mask, "documents": batch.groups}
        if self.measure.given != "none":
            wanted["groups"] = batch.tokens
        place = batch.states[0][0].device
        moved = {name: None if rows is None else rows.to(place) for name, rows in wanted.items()}
        return {"number": batch.number, **moved}

    def update(self, metric: Metric, batch: StateBatch) -> None:
        """Add a batch to a metric, or remember why it cannot be compared."""
        mine, theirs = batch.states
        theirs = mine if theirs is mine else [layer.to(mine[0].device) for layer in theirs]
        try:
            metric.update(source=mine, target=theirs, **self.rows(batch))
        except ValueError as error:
            where = f"batch {batch.number} of {self.source.name} (source) and {self.target.name} (target)"
            sides = {"source": self.source.layers, "target": self.target.layers}
            numbered = re.compile(r"\b(source|target) layer (\d+)")
            said = numbered.sub(lambda found: f"{found[1]} layer {sides[found[1]][int(found[2])]}", str(error))
            self.error = DataError(f"{where}: {said}")
            self.error.__cause__ = error

    def keep(self, done: int) -> None:
        """Keep a state after so many pools, from which an interrupted run resumes to the same bits."""
        metrics = {"metric": self.metric, "with_massive": self.with_massive}
        with contextlib.ExitStack() as synced:
            for metric in metrics.values():
                synced.enter_context(metric.sync_context(dist_sync_fn=metric.dist_sync_fn))
            if not self.work.processes.rank and self.error is None and done > self.first:
                states = {name: dict(metric.state_dict()) for name, metric in metrics.items()}
                self.work.keep("metrics", {"pools": done, **states})

    def estimates(self) -> tuple[Any, Any]:
        """Return the estimates of all batches of all processes, and those with massive tokens, None without any."""
        everyone, metrics = self.work.processes.everyone, (self.metric, self.with_massive)
        for error in filter(None, everyone(self.error)):
            raise error
        has_batch, has_massive = (any(everyone(metric.update_called)) for metric in metrics)
        if not has_batch:
            what = f"{self.measure.tokens_per_batch} {self.batches.level}s"
            raise DataError(f"there is too little text for one batch of {what}; lower measure.tokens_per_batch")
        found = self.metric.compute()
        if found.batches < self.measure.batches:
            log.warning("%d batches of the %d asked for: there is no more text", found.batches, self.measure.batches)
        return found, self.with_massive.compute() if has_massive else None


def rounds(jobs: Sequence[Comparison], runs: ModelRuns) -> Iterator[int]:
    """Yield the numbers of the pools that this process is to gather for some jobs, from where earlier runs ended.

    Processes that share the jobs take turns, and end together. A job that had come further waits for the others.
    """
    processes, total = jobs[0].work.processes, max(each.batches.total for each in jobs)
    first = min(each.first for each in jobs)
    with at_boundaries(), doing("pool", total or None, first) as activity:
        for before in range(first, total, processes.size):
            if before + processes.rank < total:
                yield before + processes.rank
                runs.forget()
            done = min(before + processes.size, total)
            activity.reach(done)
            is_asked = any(processes.everyone(asked()))
            if is_asked or done // KEPT_EVERY > before // KEPT_EVERY:
                for each in jobs:
                    each.keep(done)
            if is_asked:
                stop(f"at pool {done} of {total}")
            ended = not any(each.wants(number) for each in jobs for number in range(done, total))
            if any(processes.everyone(ended)):
                return


def run_together(jobs: Sequence[tuple[Any, AnalyzeConfig, Work]]) -> list[Outcome | ThinkalikeError]:
    """Compute the numbers of several jobs of layer pairs; the error of one leaves the others alone.

    Each reads the batches that it would read alone, and its numbers are the same to the bit.
    """
    runs = ModelRuns()
    with phase_of_all([work for _, _, work in jobs], "loading"):
        pairs = load_groups([(config.model, config.target) for _, config, _ in jobs], load_source)
        each_job = zip(jobs, pairs, strict=True)
        comparisons = [kind.of_text(config, work, models, runs) for (kind, config, work), models in each_job]
    for number in rounds(comparisons, runs):
        pools = [(each, each.pool(number)) for each in comparisons if each.wants(number)]
        while read := [(each, batch) for each, pool in pools if (batch := next(pool, None))]:
            _update_together([(each, metric, part) for each, batch in read for metric, part in each.parts(batch)])
            runs.forget(of_batch=True)
    outcomes: list[Outcome | ThinkalikeError] = []
    for (kind, _, _), each in zip(jobs, comparisons, strict=True):
        try:
            outcomes.append(kind.outcome(each))
        except DataError as error:
            outcomes.append(error)
    comparisons[0].work.processes.end_of_share()
    for number, ((kind, config, work), models, each) in enumerate(zip(jobs, pairs, comparisons, strict=True)):
        if kind.is_read(config) and isinstance(found := outcomes[number], Outcome):
            outcomes[number] = kind.with_readings(found, config, models, each.batches.level, work)
    return outcomes


def _update_together(read: Sequence[tuple[Comparison, Metric, StateBatch]]) -> None:
    """Add batches that jobs read at once: those of the same rows, in the same place and way, by one product."""
    alike: dict[Hashable, list[tuple[Comparison, Metric, StateBatch]]] = {}
    for comparison, metric, batch in read:
        is_alone = batch.content is None or not isinstance(metric, LayerMeans)
        device, alone = batch.states[0][0].device, id(metric) if is_alone else None
        key = repr(comparison.measure), batch.number, device, batch.content, alone
        alike.setdefault(key, []).append((comparison, metric, batch))
    for group in alike.values():
        if len(group) == 1 or not _by_one_product(*zip(*group, strict=True)):
            for comparison, metric, batch in group:
                comparison.update(metric, batch)


def _by_one_product(comparisons: Sequence[Comparison], metrics: Sequence[Any], batches: Sequence[StateBatch]) -> bool:
    """Add the same batch to several metrics; returns False, and adds it to none, where one cannot be compared."""
    states = {id(side): side for batch in batches for side in batch.states}
    numbered = {key: index for index, key in enumerate(states)}
    sides = [(numbered[id(batch.states[0])], numbered[id(batch.states[1])]) for batch in batches]
    moved = [[layer.to(batches[0].states[0][0].device) for layer in side] for side in states.values()]
    try:
        metrics[0].gather(Batch(moved, **comparisons[0].rows(batches[0])), metrics, sides)
    except ValueError:
        return False
    return True
