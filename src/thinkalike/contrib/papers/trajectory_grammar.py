"""How representations form in five seeds: what settles first, and when features appear."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import torch

from thinkalike.contrib.figures.trajectories import draw_settling
from thinkalike.contrib.papers.claims import Bound, Claim, judged_claim, untestable_claim
from thinkalike.contrib.papers.experiment import Case, Conclusion, Experiment, InnerJob
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


def _trajectories(case: Case) -> list[InnerJob]:
    """Return a trajectory for each seed.

    At mini scale each seed is trained first, by `measure.train` if that is set.
    """
    if case.scale == "paper":
        return [InnerJob(name, (model,)) for name, model in case.models.items()]
    measure = case.config.measure_as(TrajectoryConfig)
    ((name, model),) = case.models.items()
    jobs = []
    for seed in range(N_SEEDS):
        training = [*(measure.train or MINI_TRAINING), f"model.seed={seed}"]
        settings = replace(measure, importance=False, tokens=MINI_TOKENS, train=training)
        jobs.append(InnerJob(f"{name}, seed {seed}", (model,), changes={"measure": settings}))
    return jobs


def _conclude(case: Case) -> Conclusion:
    """Return what settles when in each run, and the claims about the order over all runs."""
    results = case.results
    settled_by_run = [_settled(result).assign(run=run) for run, result in results.items()]
    table = pd.concat(settled_by_run, ignore_index=True)
    onsets_by_run = [result.tables["onsets"].assign(run=run) for run, result in results.items()]
    onsets = pd.concat(onsets_by_run, ignore_index=True)

    units = f"{len(results)} seeds"
    doublings = table.pivot(index="run", columns="what", values="doublings")
    # In the order of `_settled`, the same in every run.
    loss, likeness, lowest_layer, *_, highest_layer = table["what"].unique()
    claims = [
        _earlier(
            "the loss settles before likeness to the end does",
            doublings[likeness] - doublings[loss],
            units,
        ),
        _earlier(
            f"{lowest_layer} settles before {highest_layer}",
            doublings[highest_layer] - doublings[lowest_layer],
            units,
        ),
        _aligned(results, units),
    ]
    for feature in dict.fromkeys(onsets["feature"]):
        claims.append(_appears(onsets, feature, units))
    draw = partial(draw_settling, {run: result.details for run, result in results.items()}, onsets)
    return Conclusion(
        table, claims, draw, {"onsets": onsets}, blank=["onset", "earliest", "latest"]
    )


def _settled(result: Result) -> pd.DataFrame:
    """Return when loss, likeness to the end, and each layer settle in one run."""
    steps = settling_steps(result.details, result.tables["losses"])
    table = pd.DataFrame(steps.items(), columns=["what", "step"])
    return table.assign(doublings=np.log2(1 + table["step"]))


def _over_seeds(values: Iterable[float]) -> Estimate:
    """Return the mean of one value per seed, with its interval over seeds."""
    return random_effects(torch.tensor([float(value) for value in values], dtype=torch.float64))


def _earlier(claim: str, gap: pd.Series, units: str) -> Claim:
    """Return the claim that a gap, in doublings of the step, is above 0.

    Args:
        claim: What is said to come before what.
        gap: How many doublings later the second comes, for each run.
        units: What the interval is over.
    """
    mean = _over_seeds(gap)
    numbers = f"doublings of the step between them {mean:+.2f}"
    return judged_claim(claim, [(Bound("above"), mean)], numbers, units)


def _aligned(results: Mapping[str, Result], units: str) -> Claim:
    """Return the claim that runs differ less at the same loss than at the same step."""
    runs = []
    for result in results.values():
        likeness = result.details.pivot(index="step", columns="layer", values="similarity_to_last")
        runs.append(result.tables["losses"].merge(likeness, on="step"))

    mean_gains = []
    for run in runs:
        gains = []
        for other in runs:
            if other is not run:
                at_step = _mean_distance(run, other, "step")
                at_loss = _mean_distance(run, other, "loss")
                gains.append(at_step - at_loss)
        mean_gains.append(float(np.mean(gains)))
    gain = _over_seeds(mean_gains)
    claim = "seeds are nearer to each other at the same loss than at the same step"
    numbers = f"difference of CKA less by {gain:+.4f}"
    return judged_claim(claim, [(Bound("above"), gain)], numbers, units)


def _mean_distance(run: pd.DataFrame, other: pd.DataFrame, at: str) -> float:
    """Return the mean distance of two runs' curves by layer, at the steps or losses of the first.

    Between the points of the other run its curve is taken as straight.

    Args:
        run: The first run: columns for step and loss, and one for each layer by its number.
        other: The other run, in the same form.
        at: "step" or "loss".
    """
    other = other.sort_values(at)
    layers = [name for name in run if not isinstance(name, str)]
    distances = []
    for layer in layers:
        interpolated = np.interp(run[at], other[at], other[layer])
        distances.append(np.abs(run[layer] - interpolated))
    return float(np.mean(distances))


def _appears(onsets: pd.DataFrame, feature: str, units: str) -> Claim:
    """Return the claim that a feature is absent at first, and appears in most seeds.

    A seed counts as such if the first layer that has an onset has it after step 0. It is
    untestable if no layer of any seed has one.

    Args:
        onsets: A row for each run, feature and layer; the onset is NaN where there is none.
        feature: The feature.
        units: What the interval is over.
    """
    claim = f"{feature} is not there at the first checkpoint, and comes for good"
    of_feature = onsets[onsets["feature"] == feature]
    earliest = of_feature.groupby("run")["onset"].min()
    if earliest.isna().all():
        return untestable_claim(claim, "it is not there at the end in any layer or seed")
    steps = ", ".join("never" if pd.isna(step) else f"{step:.0f}" for step in earliest)
    share_of_seeds = _over_seeds(earliest.gt(0).astype(float))
    numbers = f"onset in the first layer that has it: {steps}"
    return judged_claim(claim, [(Bound("above", 0.5), share_of_seeds)], numbers, units)


EXPERIMENTS = [
    Experiment(
        "trajectory/grammar",
        _conclude,
        MODELS,
        _trajectories,
        measure="trajectory",
        tabulates=True,
    )
]
