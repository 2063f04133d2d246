"""Identity stitches of every two members on all pairs of sentences: shared, and resumed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from thinkalike.contrib.populations.config import PopulationMeasureConfig
from thinkalike.contrib.populations.encoding import EncodedPairs, PairBatch, padded_batches
from thinkalike.contrib.populations.identity_stitches import IdentityStitches, identity_stitches
from thinkalike.contrib.populations.pairs import Pairs
from thinkalike.job import Work
from thinkalike.models.frozen import FrozenModel
from thinkalike.processes import ProcessGroup, asked, at_boundaries, doing, stop

STATE = "stitches"  # the name of the saved state from which an interrupted job resumes
BATCHES_PER_STATE = 10  # after which the state is saved


class StitchedBatch(NamedTuple):
    """The stitches of all models on one batch.

    Attributes:
        pair_indices: The indices of the batch's pairs of sentences among all pairs.
        stitches: The losses and predictions on these pairs.
    """

    pair_indices: Int[Tensor, " b"]
    stitches: IdentityStitches


def stitched_members(
    models: Sequence[FrozenModel],
    encoded: EncodedPairs,
    pairs: Pairs,
    measure: PopulationMeasureConfig,
    work: Work,
) -> IdentityStitches:
    """Stitch every two models at every cut, on all pairs of sentences.

    The processes that share the job take turns with the batches: process r of s stitches on the
    batches r, r + s, r + 2 s and so on. Every few batches they exchange their results, and the
    first process saves all results, so that an interrupted job resumes from there.

    Args:
        models: Classifiers of the same depth and width.
        encoded: The tokens of the pairs.
        pairs: The same pairs, with their labels.
        measure: The settings of the measure, such as how many pairs run at once (`batch`).
        work: The job's processes, and its saved state if it was interrupted.
    """
    processes = work.processes
    batches = list(padded_batches(encoded, measure.batch))
    n_batches = len(batches)
    saved = work.resume(STATE)
    if saved is None:
        stitches = _zeros_for_all_stitches(models, len(pairs))
        n_done_before = 0
    else:
        stitches = IdentityStitches(
            saved.entry("losses", Tensor), saved.entry("predicted", Tensor)
        )
        n_done_before = saved.entry("batches", int)

    new_results: list[StitchedBatch] = []  # of this process, not yet sent to the others
    with at_boundaries(), doing("batch of stitches", n_batches, n_done_before) as activity:
        for start in range(n_done_before, n_batches, processes.size):
            index = start + processes.rank
            if index < n_batches:
                new_results.append(_stitched_batch(models, batches[index], pairs, measure))
            n_done = min(start + processes.size, n_batches)
            activity.reach(n_done)

            is_asked_to_stop = any(processes.everyone(asked()))
            is_time_to_save = n_done // BATCHES_PER_STATE > start // BATCHES_PER_STATE
            if is_asked_to_stop or is_time_to_save:
                _exchange(new_results, stitches, processes)
                if processes.rank == 0:
                    work.keep(STATE, {**stitches._asdict(), "batches": n_done})
            if is_asked_to_stop:
                stop(f"at batch {n_done} of {n_batches}")
        _exchange(new_results, stitches, processes)
    processes.end_of_share()
    return stitches


def _zeros_for_all_stitches(models: Sequence[FrozenModel], n_pairs: int) -> IdentityStitches:
    """Return tensors of zeros for all stitches, which are filled batch by batch.

    Their axes are source, target, cut (after the embedding or a block) and pair of sentences.
    """
    n_models = len(models)
    n_cuts = models[0].n_layers + 1
    shape = (n_models, n_models, n_cuts, n_pairs)
    losses = torch.zeros(shape, dtype=torch.float64)
    predicted = torch.zeros(shape, dtype=torch.int8)
    return IdentityStitches(losses, predicted)


def _stitched_batch(
    models: Sequence[FrozenModel],
    batch: PairBatch,
    pairs: Pairs,
    measure: PopulationMeasureConfig,
) -> StitchedBatch:
    """Stitch every two models at every cut, on one batch of pairs.

    The blocks of one model before the cut and those of the other after it run as one classifier.

    Args:
        models: Classifiers of the same depth and width.
        batch: The tokens of some pairs of sentences, and the indices of these pairs.
        pairs: All pairs, with their labels.
        measure: The settings, of which `at_once` is how many sources run together.
    """
    stitches = identity_stitches(
        models,
        batch.tokens,
        pairs.labels[batch.pair_indices],
        pairs.classes,
        mask=batch.mask.long(),
        types=batch.types,
        at_once=measure.at_once,
    )
    return StitchedBatch(batch.pair_indices, stitches)


def _exchange(
    new_results: list[StitchedBatch], stitches: IdentityStitches, processes: ProcessGroup
) -> None:
    """Send new results to all processes, and write those of all processes into `stitches`.

    Args:
        new_results: The results of this process since the last exchange. The list is emptied.
        stitches: The losses and predictions of all stitched classifiers, with the pairs of
            sentences that they classify along the last axis. They are changed in place.
        processes: The processes that share the job. All of them must call this function.
    """
    results_of_processes = processes.everyone(new_results)  # a list from each process
    for pair_indices, of_batch in itertools.chain.from_iterable(results_of_processes):
        stitches.losses[..., pair_indices] = of_batch.losses  # the last axis is that of pairs
        stitches.predicted[..., pair_indices] = of_batch.predicted
    new_results.clear()
