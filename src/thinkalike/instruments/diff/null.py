"""The null of a diff: random changes of the same size, or forks by further training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from thinkalike.evaluation.changes import BatchStates, perturbed
from thinkalike.evaluation.forks import fork, learning_rate_for_norm, part_moves
from thinkalike.instruments.diff.null_runs import FORKS, RANDOM_SIGNS, NullRuns
from thinkalike.instruments.diff.observations import Observations
from thinkalike.instruments.diff.settings import DiffConfig
from thinkalike.job import Work
from thinkalike.measures.amplified import ShiftSum
from thinkalike.measures.changes import divergence, random_signs, signed_permutation
from thinkalike.measures.seeds import seeded
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.parts import Part, norms_of_change_and_base
from thinkalike.processes import counted
from thinkalike.timing import remembered_seconds

RUNS = 19
"""The runs of each kind of null: the fewest that can be exceeded with p = .05."""

PERMUTED = "permuted"
"""The kind of null whose changes move to random rows and columns."""

SIDE_OF_TIMED_MATRIX = 1024
"""The rows and columns of the matrix whose random changes are timed for a forecast."""

OpenModel = Callable[[int], AbstractContextManager[FrozenModel]]
"""Opens a model of a null by its number."""


class NullModels(NamedTuple):
    """The models of a null."""

    open_by_kind: Mapping[str, OpenModel]
    """By the kind of null, what opens a model by its number."""

    first_block: int
    """The first block whose output differs from the base's; -1 if the embedding may differ."""


def null_models(
    measure: DiffConfig,
    base: FrozenModel,
    changed: FrozenModel,
    parts: Sequence[Part],
    text: Int[Tensor, "rows t"],
) -> NullModels:
    """Return the models of the null distribution, which are made when they are opened.

    With `null=random_change` they are the base with random changes of the same size: entries of
    the change moved to random rows and columns, or given random signs. With
    `null=continued_training` they are forks: copies of the base that were trained further, whose
    change is scaled to the norm of the change that is judged.

    Args:
        measure: The settings of the diff.
        base, changed: The models.
        parts: The modules that differ, in order of depth.
        text: The rows of tokens that forks are trained on.

    Returns:
        The models, with the layer of the first module that they change: -1, the embedding, for
        forks, in which every module changes.
    """
    if measure.null == "random_change":
        perturb = partial(perturbed, base, changed, parts)
        open_by_kind: dict[str, OpenModel] = {
            PERMUTED: partial(perturb, random_change=signed_permutation),
            RANDOM_SIGNS: partial(perturb, random_change=random_signs),
        }
        return NullModels(open_by_kind, parts[0].layer)

    norm_of_change, _ = norms_of_change_and_base(base, changed)
    rate = learning_rate_for_norm(base, text, norm_of_change, measure.steps)

    def open_fork(seed: int) -> AbstractContextManager[FrozenModel]:
        """Return a context with a copy of the base that was trained further, with this seed.

        The base is not changed, so that there is nothing to undo when the context closes.
        """
        return nullcontext(fork(base, text, norm_of_change, seed, rate=rate, steps=measure.steps))

    return NullModels({FORKS: open_fork}, -1)


def seconds_of_random_changes(weights: int) -> float:
    """Return the seconds to make all random changes of the null, to estimate the job's time.

    There are `RUNS` changes of each of two kinds: moved entries, and random signs. A change of
    each kind is timed on the processor, once for a machine.

    Args:
        weights: The number of weights that are changed.
    """
    matrix = torch.ones(SIDE_OF_TIMED_MATRIX, SIDE_OF_TIMED_MATRIX)
    generator = seeded(0)

    def change_of_each_kind() -> None:
        """Make one random change of each kind, as the null does for each weight (`perturbed`)."""
        for random_change in (signed_permutation, random_signs):
            # In three steps: changed - base, a random change of the same size, and base + this.
            random_change(matrix - matrix, generator).add_(matrix)

    seconds = remembered_seconds("random changes of a matrix", change_of_each_kind)
    seconds_per_weight = seconds / matrix.numel()
    return RUNS * weights * seconds_per_weight


def run_null(
    observed: Observations,
    models: NullModels,
    batches: Sequence[BatchStates],
    work: Work,
    with_shifts: bool,
) -> None:
    """Run all models of the null on the first rows, and add what they do to `observed.null`.

    The models of the null are the base with random changes, or copies of it that were trained
    further. If the job was interrupted, only the runs that it had not saved are done.

    Args:
        observed: The observations of the two models.
        models: The models of the null, by kind and number.
        batches: The first rows with the states of the base.
        work: The context of the running job, which saves the runs.
        with_shifts: Whether the mean change of each vocabulary token's log-probability is stored.
    """
    state = work.resume("null")
    if state is not None:
        lists = {item.name: state.entry(item.name, list) for item in fields(NullRuns)}
        observed.null = NullRuns(**lists)
    null = observed.null
    runs = []
    for kind in models.open_by_kind:
        runs += [(kind, number) for number in range(RUNS)]
    runs_done = len(null.kl)
    for kind, number in counted(runs[runs_done:], "model of the null"):
        with models.open_by_kind[kind](number) as model:
            kl = []
            shift = ShiftSum(observed.base.vocabulary)
            for batch in batches:
                predictions = batch.predictions(model, models.first_block, batch.base)
                kl.append(divergence(batch.base_log_probabilities, predictions).cpu())
                if with_shifts:
                    shift.add(batch.base_log_probabilities, predictions)
            contrasts = torch.zeros(0)  # nothing reads the contrasts of random signs
            if kind != RANDOM_SIGNS:
                contrasts = observed.contrast_by_pair(model)
            null.kind.append(kind)
            null.kl.append(torch.cat(kl))
            null.effects.append(contrasts)
            if with_shifts:
                null.shifts.append(shift.mean())
            if model is not observed.base:
                parts = observed.parts_compared_with_control
                moves = part_moves(observed.base, model, parts)
                null.moves.append([(move.weights, move.log_singular_value) for move in moves])
        work.keep("null", dict(vars(null)))
