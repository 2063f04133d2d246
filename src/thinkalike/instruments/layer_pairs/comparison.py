"""What a job of layer pairs compares: two sides in batches, the metric that gathers them, and how far it has come."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torchmetrics import Metric

from thinkalike.errors import ConfigError, DataError
from thinkalike.job import Work
from thinkalike.processes import asked, at_boundaries, doing, stop
from thinkalike.states.batches import ModelRuns, StateBatch, StateBatches

log = logging.getLogger(__name__)
KEPT_EVERY = 2  # pools


class Side(NamedTuple):
    """A model or a recording: its name, its layers, and how the provenance describes it."""

    name: str
    layers: list[Any]
    describe: Callable[[], dict[str, str]]

    def __str__(self) -> str:
        """Return the name, with the names of the layers where they are not their numbers."""
        named = [f"{number} {layer}" for number, layer in enumerate(self.layers) if not isinstance(layer, int)]
        return f"{self.name}, layers {', '.join(named)}" if named else self.name


class Comparison:
    """A job's comparison of two sides, which are one object where a model is compared with itself.

    Resumes from the state that an earlier run left.

    Args:
        new: makes a metric without any batch.

    Attributes:
        metric, with_massive: of the batches, and of those with massive tokens that stand beside some of them.
        first: how many pools of batches an earlier run has gathered.
        error: why a batch could not be read or compared; the comparison has ended, and no other of its pass.
        is_narrow: whether it has ended because every interval is narrow enough.

    Raises:
        ConfigError: several processes are asked to stop at a width of intervals.
    """

    def __init__(
        self,
        new: Callable[[], Metric],
        measure: Any,
        sides: tuple[Side, Side],
        batches: StateBatches,
        work: Work,
    ):
        if measure.stop_at_width and work.processes.size > 1:
            raise ConfigError("measure.stop_at_width looks at the batches of one process; leave it or trainer=ddp out")
        self.measure, self.batches, self.work = measure, batches, work
        self.source, self.target = sides
        self.metric, self.with_massive = new(), new()
        self.error: DataError | None = None
        self.is_narrow, self.first = False, 0
        if kept := work.resume("metrics"):
            self.first = int(kept["pools"])
            if not work.processes.rank:
                self.metric.load_state_dict(kept["metric"])
                self.with_massive.load_state_dict(kept["with_massive"])

    def wants(self, number: int) -> bool:
        """Return whether a pool is still to be gathered."""
        return self.error is None and not self.is_narrow and self.first <= number < self.batches.total

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

    @contextlib.contextmanager
    def refusing(self, batch: StateBatch) -> Iterator[None]:
        """Remember why a batch cannot be compared."""
        try:
            yield
        except ValueError as error:
            self.error = DataError(
                f"batch {batch.number} of {self.source} (source) and {self.target} (target): {error}"
            )
            self.error.__cause__ = error

    def rows(self, batch: StateBatch) -> dict[str, Any]:
        """Return which rows of a batch count, what groups them, and their documents, where its source is."""
        wanted: dict[str, Tensor | None] = {"mask": batch.mask, "documents": batch.groups}
        if self.measure.given != "none":
            wanted["groups"] = batch.tokens
        place = batch.states[0][0].device
        return {"number": batch.number} | {
            name: None if rows is None else rows.to(place) for name, rows in wanted.items()
        }

    def arguments(self, batch: StateBatch) -> dict[str, Any]:
        """Return what a metric is updated with."""
        mine, theirs = batch.states
        theirs = mine if theirs is mine else [layer.to(mine[0].device) for layer in theirs]
        return {"source": mine, "target": theirs, **self.rows(batch)}

    def keep(self, done: int) -> None:
        """Keep a state after so many pools, from which an interrupted run resumes to the same bits."""
        metrics = {"metric": self.metric, "with_massive": self.with_massive}
        with contextlib.ExitStack() as synced:
            for metric in metrics.values():
                synced.enter_context(metric.sync_context(dist_sync_fn=metric.dist_sync_fn))
            if not self.work.processes.rank and self.error is None and not self.is_narrow and done > self.first:
                states = {name: dict(metric.state_dict()) for name, metric in metrics.items()}
                self.work.keep("metrics", {"pools": done, **states})

    def look(self, done: int) -> None:
        """End the comparison where every interval is narrow enough."""
        width = self.measure.stop_at_width
        if width and self.error is None and done > self.first and self.metric.update_called:
            estimates = self.metric.compute()
            self.is_narrow = bool(estimates.widest_interval() < width)
            if self.is_narrow:
                log.info("after %d batches every interval is narrower than %g", estimates.batches, width)

    def estimates(self) -> tuple[Any, Any]:
        """Return the estimates of all batches of all processes, and those with massive tokens, None without any.

        Raises:
            DataError: a batch could not be compared, or there are too few.
        """
        everyone, metrics = self.work.processes.everyone, (self.metric, self.with_massive)
        for error in filter(None, everyone(self.error)):
            raise error
        has_batch, has_massive = (any(everyone(metric.update_called)) for metric in metrics)
        if not has_batch:
            what = f"{self.measure.tokens_per_batch} {self.batches.level}s"
            raise DataError(f"there is too little text for one batch of {what}; lower measure.tokens_per_batch")
        found = self.metric.compute()
        if found.batches < self.measure.batches and not self.measure.stop_at_width:
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
            for each in jobs:
                each.look(done)
            ended = not any(each.wants(number) for each in jobs for number in range(done, total))
            if any(processes.everyone(ended)):
                return
