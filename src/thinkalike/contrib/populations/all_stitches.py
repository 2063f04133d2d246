"""Identity stitches of every two members on all pairs of sentences: shared, and resumed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from thinkalike.contrib.populations.config import PopulationMeasureConfig
from thinkalike.contrib.populations.encoding import EncodedPairs, PairBatch, padded_batches
from thinkalike.contrib.populations.identity_stitches import IdentityStitches, identity_stitches
from thinkalike.contrib.populations.pairs import Pairs
from thinkalike.job import Work
from thinkalike.models.frozen import FrozenModel
from thinkalike.processes import asked, at_boundaries, doing, stop

STATE = "stitches"  # the name of the state that a job resumes from
KEPT_EVERY = 10  # batches


def stitched_members(
    models: Sequence[FrozenModel],
    encoded: EncodedPairs,
    pairs: Pairs,
    measure: PopulationMeasureConfig,
    work: Work,
) -> IdentityStitches:
    """Return losses and predicted classes of all stitches: source, target, cut and pair.

    `measure.batch` pairs run at once. A state is kept every few batches, from which an interrupted
    job resumes. Processes that share the job share the batches.

    Args:
        models: The members, of the same depth and width.
        encoded: The tokens of the pairs.
        pairs: The same pairs, with their labels.
        measure: The settings of the measure.
        work: The job's processes, and its state if it was interrupted.
    """
    processes = work.processes
    all_batches = list(padded_batches(encoded, measure.batch))
    state = work.resume(STATE)
    if state is None:
        shape = (len(models), len(models), models[0].n_layers + 1, len(pairs))
        losses = torch.zeros(shape, dtype=torch.float64)
        predicted = torch.zeros(shape, dtype=torch.int8)
        stitches = IdentityStitches(losses, predicted)
        first = 0
    else:
        stitches = IdentityStitches(
            state.entry("losses", Tensor), state.entry("predicted", Tensor)
        )
        first = state.entry("batches", int)
    not_gathered: list[tuple[PairBatch, IdentityStitches]] = []

    def stitch(batch: PairBatch) -> None:
        """Stitch all members on a batch, and keep the result in `not_gathered` until `gather`."""
        stitches_of_batch = identity_stitches(
            models,
            batch.tokens,
            pairs.labels[batch.rows],
            pairs.classes,
            mask=batch.mask.long(),
            types=batch.types,
            at_once=measure.at_once,
        )
        not_gathered.append((batch, stitches_of_batch))

    def gather() -> None:
        """Exchange the new results between processes, and write them into `stitches` in each."""
        results_of_processes = processes.everyone(not_gathered)
        for batch, stitches_of_batch in itertools.chain.from_iterable(results_of_processes):
            stitches.losses[..., batch.rows] = stitches_of_batch.losses
            stitches.predicted[..., batch.rows] = stitches_of_batch.predicted
        not_gathered.clear()

    n_batches = len(all_batches)
    with at_boundaries(), doing("batch of stitches", n_batches, first) as activity:
        for start in range(first, n_batches, processes.size):
            batch_of_process = start + processes.rank
            if batch_of_process < n_batches:
                stitch(all_batches[batch_of_process])
            done = min(start + processes.size, n_batches)
            activity.reach(done)

            is_asked_to_stop = any(processes.everyone(asked()))
            if is_asked_to_stop or done // KEPT_EVERY > start // KEPT_EVERY:
                gather()
                if processes.rank == 0:
                    work.keep(STATE, {**stitches._asdict(), "batches": done})
            if is_asked_to_stop:
                stop(f"at batch {done} of {n_batches}")
        gather()
    processes.end_of_share()
    return stitches
