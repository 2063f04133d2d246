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

from thinkalike.advice import named_setting
from thinkalike.errors import DataError, refusing_data
from thinkalike.instruments.layer_pairs.equal_depth import LayerName
from thinkalike.instruments.layer_pairs.settings import LayerPairsConfig
from thinkalike.job import Work
from thinkalike.measures.accumulator import Accumulator
from thinkalike.measures.contract import AnyMeasure
from thinkalike.measures.layer_pair_estimate import LayerPairEstimate
from thinkalike.measures.rows import naming_rows
from thinkalike.processes import asked, at_boundaries, doing, stop
from thinkalike.states.batches import ModelRuns, StateBatch, StateBatches

log = logging.getLogger(__name__)

KEPT_EVERY = 2
"""After so many pools (some batches over which the models run at once) the metrics are saved."""


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
        n_pools_saved: How many pools of batches an earlier run added to the saved metrics.
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
        """Make empty metrics, or take over those that an interrupted run of the job has saved.

        There are two metrics, as tokens with massive activations (very long states) are left out:
        one without them, and one of the same batches with them.

        Args:
            new_metric: Makes an empty metric.
            measure: The settings of the measure.
            sides: The source and the target, one object where a model is compared with itself.
            batches: The batches of states of both sides.
            work: The context of the running job, which keeps the saved metrics.
        """
        self.measure = measure
        self.source, self.target = sides
        self.batches = batches
        self.work = work
        self.metric = new_metric()
        self.with_massive = new_metric()
        self.error: DataError | None = None
        self.n_pools_saved = 0

        state = work.resume("metrics")
        if state is not None:
            self.n_pools_saved = state.entry("pools", int)
            # The states of all processes are joined, so only the first one takes them over.
            if work.processes.rank == 0:
                self.metric.load_state_dict(state.entry("metric", dict))
                self.with_massive.load_state_dict(state.entry("with_massive", dict))

    def needs_pool(self, number: int) -> bool:
        """Return whether a pool must be added to the metrics.

        A pool is some batches over which the models run at once. It is not needed if an earlier
        run of the job added it and saved the metrics, or if a batch could not be compared.

        Args:
            number: The number of the pool, from 0.
        """
        return self.error is None and self.n_pools_saved <= number < self.batches.total

    def pool(self, number: int) -> Iterator[StateBatch]:
        """Yield the batches of a pool.

        It ends early if a batch cannot be read, and after a batch that could not be compared (the
        caller compares them one by one). The reason is in `error`.

        Args:
            number: The number of the pool.
        """
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
        """Yield each metric with the batch that is to be added to it.

        `metric` takes the batch itself, without massive tokens (those with very long states). If
        massive tokens were left out of some batch, `with_massive` takes its counterpart, whose
        rows may include them.
        """
        yield self.metric, batch
        if batch.with_massive:
            yield self.with_massive, batch.with_massive

    def labels(self, batch: StateBatch) -> BatchLabels:
        """Return the labels of the rows of a batch, on the device of the source's states.

        `documents` are the documents of the rows, or groups of stimuli. `groups` are the tokens of
        the rows, and only rows of the same group are compared; they are left out unless rows are
        compared conditional on the token.
        """
        device = batch.states[0][0].device  # the states of the source at its first layer
        labels: BatchLabels = {
            "number": batch.number,
            "mask": _labels_on_device(batch.mask, device),
            "documents": _labels_on_device(batch.groups, device),
        }
        if self.measure.conditional_on != "none":
            labels["groups"] = _labels_on_device(batch.tokens, device)
        return labels

    def refuse_widths(
        self, measure: AnyMeasure, widths: Sequence[int], names: Sequence[str]
    ) -> None:
        """Note an error, which ends this comparison, if layers of these widths do not go together.

        Other comparisons that read the same states go on.

        Args:
            measure: The measure.
            widths: The width of each layer of both sides.
            names: What the error calls each layer.
        """
        try:
            with refusing_data(f"{self.source.name} (source) and {self.target.name} (target)"):
                measure.check_widths(widths, names)
        except DataError as error:
            self.error = error

    def update(self, metric: Accumulator, batch: StateBatch) -> None:
        """Add a batch to a metric; if it cannot be compared, set `self.error` to the reason."""
        source, target = batch.states
        if target is not source:
            target = [states.to(source[0].device) for states in target]
        compared = (
            f"batch {batch.number} of {self.source.name} (source) and {self.target.name} (target)"
        )
        try:
            # A ValueError of the metric becomes a DataError, with the names of rows and layers.
            with (
                refusing_data(compared, self._with_names_of_layers),
                naming_rows(batch.name_of_row),
            ):
                metric.update(source=source, target=target, **self.labels(batch))
        except DataError as error:
            self.error = error

    def _with_names_of_layers(self, reason: str) -> str:
        """Return an error message of a metric with the names of layers in place of their indices.

        A metric counts the layers of either side from 0: "source layer 3".
        """
        layers_by_side = {"source": self.source.layers, "target": self.target.layers}

        def name_layer(match: re.Match[str]) -> str:
            """Return "source layer 3" with what tables call the layer in place of its index."""
            side, index = match.groups()
            return f"{side} layer {layers_by_side[side][int(index)]}"

        return re.sub(r"\b(source|target) layer (\d+)", name_layer, reason)

    def keep(self, pools: int) -> None:
        """Save the state of the metrics, so that a later run can resume from it.

        There are two metrics. `metric` leaves out massive tokens, those with very long states.
        `with_massive` has the same batches with these tokens.

        All processes must call this, since their states are joined; the first process saves them.
        Nothing is saved after a batch that could not be compared, or if an earlier run has saved
        as many pools.

        Args:
            pools: How many pools the metrics hold. A pool is a number of batches for which the
                models run at once.
        """
        metrics = {"metric": self.metric, "with_massive": self.with_massive}
        # Within `sync_context`, the state of a metric is joined over all processes, and afterwards
        # each process has its own state again. `dist_sync_fn` is the metric's own function that
        # gathers the states. It must be given here: by default, `sync_context` takes one of
        # torchmetrics, which requires that all states have the same number of axes.
        with contextlib.ExitStack() as joined_states:
            for metric in metrics.values():
                joined_states.enter_context(metric.sync_context(dist_sync_fn=metric.dist_sync_fn))
            is_first_process = self.work.processes.rank == 0
            if is_first_process and self.error is None and pools > self.n_pools_saved:
                states = {name: dict(metric.state_dict()) for name, metric in metrics.items()}
                self.work.keep("metrics", {"pools": pools, **states})

    def estimates(self) -> tuple[LayerPairEstimate, LayerPairEstimate | None]:
        """Return the estimate over all batches of all processes, and that with massive tokens.

        The second is None where no batch has massive tokens, those with very long states. A
        warning is logged if the text was too short for all batches.

        Raises:
            DataError: A batch could not be read or compared, or there is none.
        """
        # Returns the value of each process, in a list that is the same in all of them.
        from_all_processes = self.work.processes.everyone
        for error in from_all_processes(self.error):
            if error is not None:
                raise error
        has_batch = any(from_all_processes(self.metric.update_called))
        has_massive = any(from_all_processes(self.with_massive.update_called))
        if not has_batch:
            raise DataError(
                "there is too little text for one batch of "
                f"{self.measure.tokens_per_batch} {self.batches.level}s; lower "
                f"{named_setting('measure.tokens_per_batch')}"
            )

        estimate: LayerPairEstimate = self.metric.compute()
        if estimate.batches < self.measure.batches:
            log.warning(
                "%d of the %d batches asked for: too little text is left for another",
                estimate.batches,
                self.measure.batches,
            )
        if not has_massive:
            return estimate, None
        return estimate, self.with_massive.compute()


def _labels_on_device(labels: Tensor | None, device: torch.device) -> Tensor | None:
    """Return labels on a device; None if there are no labels."""
    if labels is None:
        return None
    return labels.to(device)


def pools_to_gather(comparisons: Sequence[LayerPairComparison], runs: ModelRuns) -> Iterator[int]:
    """Yield the numbers of the pools that this process gathers for some comparisons.

    A pool is some batches of text over which the models run at once. The first number is that of
    the first pool that any comparison still needs after an interruption; other comparisons skip
    the pools that they have, see `needs_pool`. Processes that share the jobs take turns. After
    every `KEPT_EVERY` pools, and when a signal asks the job to stop, the metrics are saved. The
    pools end early once no comparison needs another one.

    Args:
        comparisons: The comparisons of jobs that run together.
        runs: The states that the comparisons share, which are freed after each pool.

    Raises:
        Interrupted: A signal asked the job to stop.
    """
    processes = comparisons[0].work.processes
    total = max(comparison.batches.total for comparison in comparisons)
    first = min(comparison.n_pools_saved for comparison in comparisons)
    with at_boundaries(), doing("pool", total or None, first) as activity:
        # In each turn, every process gathers one pool.
        for start in range(first, total, processes.size):
            number = start + processes.rank
            if number < total:
                yield number
                runs.forget()
            done = min(start + processes.size, total)
            activity.reach(done)

            is_asked_to_stop = any(processes.everyone(asked()))
            is_time_to_save = done // KEPT_EVERY > start // KEPT_EVERY
            if is_asked_to_stop or is_time_to_save:
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
