"""The running comparison of a job of layer pairs: two sides in batches, gathered by a metric."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypedDict

import torch
from torch import Tensor

from thinkalike.errors import DataError
from thinkalike.instruments.layer_pairs.equal_depth import LayerName
from thinkalike.instruments.layer_pairs.settings import LayerPairsConfig
from thinkalike.job import Work
from thinkalike.measures.accumulator import Accumulator
from thinkalike.measures.layer_pair_estimate import LayerPairEstimate
from thinkalike.processes import asked, at_boundaries, doing, stop
from thinkalike.states.batches import ModelRuns, StateBatch, StateBatches

log = logging.getLogger(__name__)

KEPT_EVERY = 2
"""After so many pools the state of a job is kept."""


@dataclass(frozen=True, eq=False)
class ComparedSide:
    """One side of a comparison: a model or a recording.

    Attributes:
        name: What tables call it.
        layers: What tables call its layers.
        describe: Returns what the provenance of a result says of it.
    """

    name: str
    layers: Sequence[LayerName]
    describe: Callable[[], dict[str, str]]


class BatchLabels(TypedDict, total=False):
    """What `Accumulator.update` needs to know of the rows of a batch besides their states."""

    number: int
    mask: Tensor | None
    documents: Tensor | None
    groups: Tensor | None


class LayerPairComparison:
    """The comparison of two sides, which are one object where a model is compared with itself.

    It resumes from the state that an earlier run kept.

    Args:
        new_metric: Makes a metric without any batch.
        measure: The settings of the measure.
        sides: The source and the target.
        batches: The batches of states of both sides.
        work: The context of the running job.

    Attributes:
        metric: Gathers the batches.
        with_massive: Gathers the counterparts of some batches that include massive tokens.
        pools_kept: How many pools of batches an earlier run has gathered.
        error: Why a batch could not be read or compared. The comparison has then ended; the other
            comparisons of the same pass go on.
    """

    def __init__(
        self,
        new_metric: Callable[[], Accumulator],
        measure: LayerPairsConfig,
        sides: tuple[ComparedSide, ComparedSide],
        batches: StateBatches,
        work: Work,
    ):
        self.measure = measure
        self.source, self.target = sides
        self.batches = batches
        self.work = work
        self.metric = new_metric()
        self.with_massive = new_metric()
        self.error: DataError | None = None
        self.pools_kept = 0

        state = work.resume("metrics")
        if state:
            self.pools_kept = int(state["pools"])
            # The states of all processes are joined, so only the first one takes them over.
            if work.processes.rank == 0:
                self.metric.load_state_dict(state["metric"])
                self.with_massive.load_state_dict(state["with_massive"])

    def needs_pool(self, number: int) -> bool:
        """Return whether a pool is still to be gathered."""
        return self.error is None and self.pools_kept <= number < self.batches.total

    def pool(self, number: int) -> Iterator[StateBatch]:
        """Yield the batches of a pool, until one cannot be read or compared."""
        batches = self.batches.pool(number)
        while self.error is None:
            try:
                batch = next(batches, None)
            except DataError as error:
                self.error = error
                return
            if batch is None:
                return
            yield batch

    def metrics_of(self, batch: StateBatch) -> Iterator[tuple[Accumulator, StateBatch]]:
        """Yield each metric with what it gathers of a batch.

        These are the batch itself, and its counterpart with massive tokens if it has one.
        """
        yield self.metric, batch
        if batch.with_massive:
            yield self.with_massive, batch.with_massive

    def labels(self, batch: StateBatch) -> BatchLabels:
        """Return the labels of the rows of a batch, on the device of the source's states."""
        device = batch.states[0][0].device
        labels: BatchLabels = {
            "number": batch.number,
            "mask": _moved(batch.mask, device),
            "documents": _moved(batch.groups, device),
        }
        if self.measure.conditional_on != "none":
            labels["groups"] = _moved(batch.tokens, device)
        return labels

    def update(self, metric: Accumulator, batch: StateBatch) -> None:
        """Add a batch to a metric, or remember why it cannot be compared."""
        source, target = batch.states
        if target is not source:
            target = [layer.to(source[0].device) for layer in target]
        try:
            metric.update(source=source, target=target, **self.labels(batch))
        except ValueError as error:
            self.error = self._explained(batch, error)

    def _explained(self, batch: StateBatch, error: ValueError) -> DataError:
        """Return the error of a batch with the names of the models and of their layers."""
        layers_by_side = {"source": self.source.layers, "target": self.target.layers}

        def name_layer(match: re.Match[str]) -> str:
            """Return a layer that an error numbers by what tables call it."""
            side, index = match.groups()
            return f"{side} layer {layers_by_side[side][int(index)]}"

        reason = re.sub(r"\b(source|target) layer (\d+)", name_layer, str(error))
        explained = DataError(
            f"batch {batch.number} of {self.source.name} (source) and {self.target.name} "
            f"(target): {reason}"
        )
        explained.__cause__ = error
        return explained

    def keep(self, pools: int) -> None:
        """Keep the state after so many pools.

        An interrupted run resumes from it to the same bits.
        """
        metrics = {"metric": self.metric, "with_massive": self.with_massive}
        with contextlib.ExitStack() as synced:
            for metric in metrics.values():
                synced.enter_context(metric.sync_context(dist_sync_fn=metric.dist_sync_fn))
            is_first_process = self.work.processes.rank == 0
            if is_first_process and self.error is None and pools > self.pools_kept:
                states = {name: dict(metric.state_dict()) for name, metric in metrics.items()}
                self.work.keep("metrics", {"pools": pools, **states})

    def estimates(self) -> tuple[LayerPairEstimate, LayerPairEstimate | None]:
        """Return the estimates of all batches of all processes.

        The second estimate is that with massive tokens; None: no batch has any.

        Raises:
            DataError: A batch could not be read or compared, or there is none.
        """
        everyone = self.work.processes.everyone
        for error in everyone(self.error):
            if error is not None:
                raise error
        has_batch = any(everyone(self.metric.update_called))
        has_massive = any(everyone(self.with_massive.update_called))
        if not has_batch:
            raise DataError(
                "there is too little text for one batch of "
                f"{self.measure.tokens_per_batch} {self.batches.level}s; lower "
                "measure.tokens_per_batch"
            )

        estimate: LayerPairEstimate = self.metric.compute()
        if estimate.batches < self.measure.batches:
            log.warning(
                "%d batches of the %d asked for: there is no more text",
                estimate.batches,
                self.measure.batches,
            )
        if not has_massive:
            return estimate, None
        return estimate, self.with_massive.compute()


def _moved(labels: Tensor | None, device: torch.device) -> Tensor | None:
    """Return labels on a device; None if there are none."""
    if labels is None:
        return None
    return labels.to(device)


def rounds(comparisons: Sequence[LayerPairComparison], runs: ModelRuns) -> Iterator[int]:
    """Yield the numbers of the pools that this process gathers for some comparisons.

    They begin where earlier runs ended; a comparison that had come further waits for the others.
    Processes that share the jobs take turns, and end together.

    Args:
        comparisons: The comparisons of one pass.
        runs: The states that the comparisons share, which are forgotten after each pool.
    """
    processes = comparisons[0].work.processes
    total = max(comparison.batches.total for comparison in comparisons)
    first = min(comparison.pools_kept for comparison in comparisons)
    with at_boundaries(), doing("pool", total or None, first) as activity:
        for start in range(first, total, processes.size):
            number = start + processes.rank
            if number < total:
                yield number
                runs.forget()
            done = min(start + processes.size, total)
            activity.reach(done)

            is_asked_to_stop = any(processes.everyone(asked()))
            if is_asked_to_stop or done // KEPT_EVERY > start // KEPT_EVERY:
                for comparison in comparisons:
                    comparison.keep(done)
            if is_asked_to_stop:
                stop(f"at pool {done} of {total}")

            has_ended = not any(
                comparison.needs_pool(pool)
                for comparison in comparisons
                for pool in range(done, total)
            )
            if any(processes.everyone(has_ended)):
                return
