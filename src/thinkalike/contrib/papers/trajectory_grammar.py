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

    At the paper's scale the checkpoints are published. At mini scale the job trains the model
    first, with the options in `measure.train` if these are set.
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
    """Return when loss and layers settle in each run, and the claims about their order.

    A curve has settled once it has gone nine tenths of the way from its first to its last value. A
    run is the training with one seed.
    """
    results = experiment.results
    settled_by_run = [_settling_table(result).assign(run=run) for run, result in results.items()]
    table = pd.concat(settled_by_run, ignore_index=True)
    onsets_by_run = [result.tables["onsets"].assign(run=run) for run, result in results.items()]
    onsets = pd.concat(onsets_by_run, ignore_index=True)

    units = f"{len(results)} seeds"
    doublings = table.pivot(index="run", columns="what", values="doublings")
    # The rows of each run are: the loss, the likeness, and then the layers from the lowest on.
    loss, likeness, lowest_layer, *_, highest_layer = table["what"].unique()
    claims = [
        _claim_that_first_settles_earlier(
            "the loss settles before likeness to the end does",
            doublings[likeness] - doublings[loss],
            units,
        ),
        _claim_that_first_settles_earlier(
            f"{lowest_layer} settles before {highest_layer}",
            doublings[highest_layer] - doublings[lowest_layer],
            units,
        ),
        _claim_that_loss_aligns_seeds(results, units),
    ]
    for feature in dict.fromkeys(onsets["feature"]):
        claims.append(_claim_that_feature_appears(onsets, feature, units))
    draw = partial(draw_settling, {run: result.details for run, result in results.items()}, onsets)
    return Conclusion(
        table, claims, draw, {"onsets": onsets}, blank=["onset", "earliest", "latest"]
    )


def _settling_table(result: Result) -> pd.DataFrame:
    """Return the step at which the loss, the mean likeness and each layer settle in one run.

    Likeness is the CKA of a checkpoint with the last one, as a mean over layers or in one layer.
    `doublings` is log₂(1 + step).
    """
    steps = settling_steps(result.details, result.tables["losses"])
    table = pd.DataFrame(steps.items(), columns=["what", "step"])
    return table.assign(doublings=np.log2(1 + table["step"]))


def _mean_over_seeds(values: Iterable[float]) -> Estimate:
    """Return the mean of one value per seed, with its interval over seeds."""
    return random_effects(torch.tensor([float(value) for value in values], dtype=torch.float64))


def _claim_that_first_settles_earlier(claim: str, gap: pd.Series, units: str) -> Claim:
    """Judge the claim that one curve settles before another, on average over runs.

    Args:
        claim: The claim in words.
        gap: For each run, log₂(1 + step) where the second curve settles minus that of the first.
        units: What the interval is over, in words.
    """
    mean = _mean_over_seeds(gap)
    numbers = f"doublings of the step between them {mean:+.2f}"
    return judged_claim(claim, [(ABOVE_ZERO, mean)], numbers, units)


def _claim_that_loss_aligns_seeds(results: Mapping[str, Result], units: str) -> Claim:
    """Judge the claim that runs differ less at the same loss than at the same training step.

    The distance of two runs is the mean difference of their curves of CKA to the last checkpoint.
    """
    runs = []  # for each seed, a row for each step: its loss, and the CKA of each layer
    for result in results.values():
        likeness = result.details.pivot(index="step", columns="layer", values="similarity_to_last")
        runs.append(result.tables["losses"].merge(likeness, on="step"))

    mean_gains = []
    for run in runs:
        gains = []
        for other in runs:
            if other is not run:
                at_step = _mean_curve_distance(run, other, "step")
                at_loss = _mean_curve_distance(run, other, "loss")
                gains.append(at_step - at_loss)
        mean_gains.append(float(np.mean(gains)))
    gain = _mean_over_seeds(mean_gains)
    claim = "seeds are nearer to each other at the same loss than at the same step"
    numbers = f"difference of CKA less by {gain:+.4f}"
    return judged_claim(claim, [(ABOVE_ZERO, gain)], numbers, units)


def _mean_curve_distance(run: pd.DataFrame, other: pd.DataFrame, at: str) -> float:
    """Return the mean |curve of one run - curve of another|, over layers and checkpoints.

    The curves are compared at the steps (or losses) of the first run's checkpoints. The curve of
    the other run is interpolated linearly between its own checkpoints.

    Args:
        run: The first run: the columns step and loss, and one for each layer by its number.
        other: The other run, in the same form.
        at: "step" or "loss".
    """
    other = other.sort_values(at)
    layers = [name for name in run if not isinstance(name, str)]  # their columns are integers
    distances = []
    for layer in layers:
        interpolated = np.interp(run[at], other[at], other[layer])
        distances.append(np.abs(run[layer] - interpolated))
    return float(np.mean(distances))


def _claim_that_feature_appears(onsets: pd.DataFrame, feature: str, units: str) -> Claim:
    """Judge the claim that a feature is absent at first, and appears later in most seeds.

    The onset of a layer is the checkpoint from which the feature can be read out. A seed supports
    the claim if its earliest onset is after step 0. The claim is untestable if no layer of any
    seed has an onset.

    Args:
        onsets: A row for each run, feature and layer; the onset is NaN where there is none.
        feature: The feature that is judged.
        units: What the interval is over, in words.
    """
    claim = f"{feature} is not there at the first checkpoint, and comes for good"
    rows_of_feature = onsets[onsets["feature"] == feature]
    earliest = rows_of_feature.groupby("run")["onset"].min()
    if earliest.isna().all():
        return untestable_claim(claim, "it is not there at the end in any layer or seed")
    steps = ", ".join("never" if pd.isna(step) else f"{step:.0f}" for step in earliest)
    share_of_seeds = _mean_over_seeds(earliest.gt(0).astype(float))
    numbers = f"onset in the first layer that has it: {steps}"
    return judged_claim(claim, [(Bound("above", 0.5), share_of_seeds)], numbers, units)


EXPERIMENTS = [
    Experiment(
        "trajectory/grammar",
        _conclude,
        MODELS,
        _trajectory_jobs,
        measure="trajectory",
        tabulates=True,
    )
]
