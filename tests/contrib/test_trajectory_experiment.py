"""The experiment on trajectories: claims hold where they are planted, and each seed is trained first."""

import json
import math

import numpy as np
import pandas as pd
import pytest

from conftest import composed
from stores import finish
from thinkalike.contrib.papers import paper_experiment, trajectory_grammar
from thinkalike.contrib.papers.experiment import ExperimentRun, inner_job_config
from thinkalike.instruments.trajectory.instrument import training_job


def formed(folder, starts, onset, noise):
    """A finished trajectory whose layers rise by 1 over a doubling from these steps on, and its loss at step 16."""
    steps = [0, 4, 8, 16, 32, 64, 128, 256]

    def rise(start):
        return np.clip(np.log2(1 + np.array(steps)) - math.log2(1 + start) + noise, 0, 1)

    table = [{"step": step, "layer": layer, "similarity_to_last": value}
             for layer, start in enumerate(starts) for step, value in zip(steps, rise(start), strict=True)]  # fmt: skip
    losses = {"step": steps, "loss": 7 - 4 * rise(16)}
    onsets = [{"layer": 0, "feature": "Gender", "onset": onset}, {"layer": 0, "feature": "Length", "onset": math.nan}]
    tables = {"table": table, "losses": losses, "onsets": onsets}
    return finish(folder, "trajectory", "k", {name: pd.DataFrame(rows) for name, rows in tables.items()})


@pytest.mark.parametrize(
    ("starts", "onset", "verdicts"),
    [
        ([32, 64], 8.0, ["holds", "holds", "holds", "not testable here"]),
        ([8, 4], 0.0, ["does not hold", "does not hold", "does not hold", "not testable here"]),
    ],
)
def test_claims_of_trajectories_hold_where_they_are_planted(tmp_path, starts, onset, verdicts):
    noises = [0.0, 0.02, -0.02, 0.01, -0.01]
    results = {f"seed {n}": formed(tmp_path / str(n), starts, onset, noise) for n, noise in enumerate(noises)}
    config = composed("experiment=trajectory/grammar", "scale=mini", entry="analyze")
    found = trajectory_grammar._conclude(ExperimentRun(config, {}, results)).claims
    assert [claim.verdict for claim in found if "nearer" not in claim.claim] == verdicts


def test_runs_of_different_speed_are_alike_at_equal_loss(tmp_path):
    """The loss of each run is a function of its likeness to the end."""
    results = {}
    for seed, delay in enumerate([0, 0.5, 1, 1.5, 2]):
        results[str(seed)] = formed(tmp_path / str(seed), [16, 16], 8.0, -delay)
    assert trajectory_grammar._claim_that_loss_aligns_seeds(results, "5 seeds").verdict == "holds"


@pytest.mark.ci_slow
def test_each_seed_of_the_experiment_is_trained_first():
    config = composed("experiment=trajectory/grammar", "scale=mini", entry="analyze")
    figure = paper_experiment("trajectory/grammar")
    jobs = [inner_job_config(config, part) for part in figure.inner_jobs(figure.experiment_run(config))]
    assert [job.measure.train[-1] for job in jobs] == [f"model.seed={seed}" for seed in range(5)]
    assert {tuple(training_job(job).pretrain.kept_steps) for job in jobs} == {
        tuple(json.loads(trajectory_grammar.KEPT_STEPS))
    }
