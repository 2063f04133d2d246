"""How representations form in five seeds: what settles first, and when features appear."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import torch

from thinkalike.contrib.figures.trajectories import draw_settling
from thinkalike.contrib.papers.claims import (
    ABOVE_ZERO,
    Bound,
    Claim,
    judged_claim,
    untestable_claim,
)
from thinkalike.contrib.papers.experiment import Conclusion, Experiment, ExperimentRun, InnerJob
from thinkalike.contrib.subjects.random_effects import random_effects
from thinkalike.instruments.trajectory.settings import TrajectoryConfig
from thinkalike.instruments.trajectory.tables import settling_steps
from thinkalike.matrices import matrix_of
from thinkalike.measures.estimates import Estimate
from thinkalike.store import Result

N_SEEDS = 5
MODELS = {
    "paper": [f"EleutherAI/pythia-70m-seed{seed}" for seed in range(1, N_SEEDS + 1)],
    "mini": ["gpt2-mini"],
}
KEPT_STEPS = "[0,4,16,32,48,64,96,128,192,256,384,512,600]"
# Each seed takes minutes.
MINI_TRAINING = (
    "pretrain.tokens=307200",
    "pretrain.tokens_per_step=512",
    f"pretrain.keep={KEPT_STEPS}",
)
MINI_TOKENS = 2048  # that the checkpoints of a mini are compared on


def _trajectory_jobs(experiment: ExperimentRun) -> list[InnerJob]:
    """Return one job for each seed, which compares the checkpoints of its training.

    At the paper's scale the checkpoints are published, as one model for each seed. At mini scale
    the experiment has one model, which each job trains first: with the options in `measure.train`,
    or else with `MINI_TRAINING`. To be quick, it then compares fewer tokens, and leaves out the
    importance of features, which the claims of the experiment do not rest on.
    """
    if experiment.scale == "paper":
        return [InnerJob(name, (model,)) for name, model in experiment.models.items()]
    measure = experiment.config.measure_as(TrajectoryConfig)
    ((name, model),) = experiment.models.items()
    jobs = []
    for seed in range(N_SEEDS):
        training = [*(measure.train or MINI_TRAINING), f"model.seed={seed}"]
        settings = replace(measure, importance=False, tokens=MINI_TOKENS, train=training)
        jobs.append(InnerJob(f"{name}, seed {seed}", (model,), changes={"measure": settings}))
    return jobs


def _conclude(experiment: ExperimentRun) -> Conclusion:
    """Return when loss and layers settle in each run, and judge the claims about their order.

    A run is the training with one seed. A curve has settled once it has gone nine tenths of the
    way from its first to its last value. A further table has the onset of each feature: the first
    checkpoint from which it can be read out.
    """
    results = experiment.results  # one for each run
    settling_tables = [_settling_table(result).assign(run=run) for run, result in results.items()]
    table = pd.concat(settling_tables, ignore_index=True)
    onset_tables = [result.tables["onsets"].assign(run=run) for run, result in results.items()]
    onsets = pd.concat(onset_tables, ignore_index=True)

    units = f"{len(results)} seeds"
    claims = [*_claims_about_settling(table, units), _claim_that_loss_aligns_seeds(results, units)]
    for feature in dict.fromkeys(onsets["feature"]):  # each once, in order
        claims.append(_claim_that_feature_appears(onsets, feature, units))
    draw = partial(draw_settling, {run: result.details for run, result in results.items()}, onsets)
    # These cells are empty for a feature without an onset.
    may_be_empty = ["onset", "earliest", "latest"]
    return Conclusion(table, claims, draw, tables={"onsets": onsets}, blank=may_be_empty)


def _claims_about_settling(table: pd.DataFrame, units: str) -> list[Claim]:
    """Judge that the loss settles before the states do, and the lowest layer before the highest.

    A curve over the training steps of a run settles at the step from which on it has gone nine
    tenths of the way from its first to its last value.

    Args:
        table: A row for each run and curve (its name is in the column `what`), with log₂(1 + step)
            for the step where the curve settles (column `doublings`). The curves of a run are in
            this order: the loss, the similarity (CKA) of states to those of the last checkpoint as
            a mean over layers, and then the same in each layer, from the lowest on.
        units: What intervals are over, in words.
    """
    loss, similarity, lowest_layer, *_, highest_layer = table["what"].unique()
    doublings = matrix_of(table, index="run", columns="what", values="doublings")
    return [
        _claim_that_first_settles_earlier(
            "the loss settles before similarity to the end does",
            doublings[similarity] - doublings[loss],
            units,
        ),
        _claim_that_first_settles_earlier(
            f"{lowest_layer} settles before {highest_layer}",
            doublings[highest_layer] - doublings[lowest_layer],
            units,
        ),
    ]


def _settling_table(result: Result) -> pd.DataFrame:
    """Return the step at which the loss, the mean similarity and each layer settle in one run.

    A curve settles when it has gone nine tenths of the way to its last value. Similarity is the
    CKA of a checkpoint with the last one, as a mean over layers or in one layer.

    Returns:
        A table with a row for each curve: its name (`what`), the step, and `doublings`,
        log₂(1 + step).
    """
    steps = settling_steps(result.details, result.tables["losses"])
    table = pd.DataFrame(steps.items(), columns=["what", "step"])
    return table.assign(doublings=np.log2(1 + table["step"]))


def _mean_over_seeds(values: Iterable[float]) -> Estimate:
    """Return the mean of one value per seed, with its interval over seeds."""
    return random_effects(torch.tensor([float(value) for value in values], dtype=torch.float64))


def _claim_that_first_settles_earlier(claim: str, gap: pd.Series, units: str) -> Claim:
    """Judge the claim that one curve settles before another, on average over runs.

    A difference of 1 means that the second curve takes twice as many steps: a doubling.

    Args:
        claim: The claim in words.
        gap: For each run, log₂(1 + step) where the second curve settles minus that of the first.
        units: What the interval is over, in words.
    """
    mean = _mean_over_seeds(gap)
    finding = f"doublings of the step between them {mean:+.2f}"
    return judged_claim(claim, [(ABOVE_ZERO, mean)], finding, units)


def _claim_that_loss_aligns_seeds(results: Mapping[str, Result], units: str) -> Claim:
    """Judge the claim that runs differ less at the same loss than at the same training step.

    A run is the training with one seed. The distance of two runs is the mean difference of their
    curves of CKA with the last checkpoint. The interval is over runs, each of which has the mean
    over all others.

    Args:
        results: The result of each run.
        units: What the interval is over, in words.
    """
    curves_of_runs = []  # for each run, a row for each step: its loss, and the CKA of each layer
    for result in results.values():
        similarity = matrix_of(
            result.details, index="step", columns="layer", values="similarity_to_last"
        )
        curves_of_runs.append(result.tables["losses"].merge(similarity, on="step"))

    mean_gains = []
    for curves in curves_of_runs:
        gains = []
        for other_curves in curves_of_runs:
            if other_curves is not curves:
                distance_at_step = _mean_curve_distance(curves, other_curves, "step")
                distance_at_loss = _mean_curve_distance(curves, other_curves, "loss")
                gains.append(distance_at_step - distance_at_loss)
        mean_gains.append(float(np.mean(gains)))
    gain = _mean_over_seeds(mean_gains)
    claim = "seeds are nearer to each other at the same loss than at the same step"
    finding = f"difference of CKA less by {gain:+.4f}"
    return judged_claim(claim, [(ABOVE_ZERO, gain)], finding, units)


def _mean_curve_distance(run: pd.DataFrame, other: pd.DataFrame, at: str) -> float:
    """Return the mean |curve of one run - curve of another|, over layers and checkpoints.

    A run is a training, and a curve has the value of one layer at each checkpoint. The curves are
    compared at the steps (or losses) of the first run's checkpoints. The curve of the other run is
    interpolated linearly between its own checkpoints.

    Args:
        run: The first run: the columns step and loss, and one for each layer, whose name is the
            layer's number.
        other: The other run, in the same form.
        at: "step" or "loss".
    """
    other = other.sort_values(at)  # `np.interp` needs rising values
    layers = [name for name in run if not isinstance(name, str)]  # other columns have a text
    distances = []
    for layer in layers:
        interpolated = np.interp(run[at], other[at], other[layer])
        distances.append(np.abs(run[layer] - interpolated))
    return float(np.mean(distances))


def _claim_that_feature_appears(onsets: pd.DataFrame, feature: str, units: str) -> Claim:
    """Judge the claim that a feature is absent at first, and appears later in most seeds.

    The onset of a layer is the checkpoint from which the feature can be read out. A run is the
    training with one seed. A seed supports the claim if its earliest onset is after step 0. The
    claim is untestable if no layer of any seed has an onset.

    Args:
        onsets: A row for each run, feature and layer; the onset is NaN where there is none.
        feature: The feature that is judged.
        units: What the interval is over, in words.
    """
    claim = f"{feature} is not there at the first checkpoint, and comes for good"
    rows_of_feature = onsets[onsets["feature"] == feature]
    earliest = rows_of_feature.groupby("run")["onset"].min()  # NaN if no layer has an onset
    if earliest.isna().all():
        return untestable_claim(claim, "it is not there at the end in any layer or seed")
    steps = ", ".join("never" if pd.isna(step) else f"{step:.0f}" for step in earliest)
    appears_later = earliest.gt(0)  # False for NaN
    share_of_seeds = _mean_over_seeds(appears_later.astype(float))
    finding = f"onset in the first layer that has it: {steps}"
    return judged_claim(claim, [(Bound("above", 0.5), share_of_seeds)], finding, units)


EXPERIMENTS = [
    Experiment(
        "trajectory/grammar",
        _conclude,
        MODELS,
        _trajectory_jobs,
        measure="trajectory",
        prints_table=True,
    )
]
