"""How representations form in five seeds of one model: what settles first, and when features are there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch

from thinkalike.contrib import figures
from thinkalike.contrib.papers.claims import Bound, Claim, judged, untestable
from thinkalike.contrib.papers.experiment import Case, Conclusion, Experiment, Part
from thinkalike.contrib.subjects.measures import random_effects
from thinkalike.instruments.trajectory.tables import settling
from thinkalike.measures.estimates import Estimate
from thinkalike.store import Result

SEEDS = 5
MODELS = {"paper": [f"EleutherAI/pythia-70m-seed{seed}" for seed in range(1, SEEDS + 1)], "mini": ["gpt2-mini"]}
KEPT = "[0,4,16,32,48,64,96,128,192,256,384,512,600]"
TRAINED = ("pretrain.tokens=307200", "pretrain.tokens_per_step=512", f"pretrain.keep={KEPT}")  # minutes for each seed


def _parts(case: Case) -> list[Part]:
    """Return a trajectory for each seed; at the scale of minis each is trained first, unless `measure.train` is set."""
    measure: Any = case.config.measure
    if case.scale == "paper":
        return [Part(name, (model,)) for name, model in case.models.items()]
    ((name, model),), parts = case.models.items(), []
    for seed in range(SEEDS):
        train = [*(measure.train or TRAINED), f"model.seed={seed}"]
        own = replace(measure, importance=False, tokens=2048, train=train)
        parts.append(Part(f"{name}, seed {seed}", (model,), changes={"measure": own}))
    return parts


def _conclude(case: Case) -> Conclusion:
    results = case.results
    table = pd.concat([_settled(result).assign(run=run) for run, result in results.items()], ignore_index=True)
    onsets = pd.concat([result.tables["onsets"].assign(run=run) for run, result in results.items()], ignore_index=True)
    units = f"{len(results)} seeds"
    settled = table.pivot(index="run", columns="what", values="doublings")
    loss, likeness, low, *_, high = table["what"].unique()
    claims = [
        _before("the loss settles before likeness to the end does", settled[likeness] - settled[loss], units),
        _before(f"{low} settles before {high}", settled[high] - settled[low], units),
        _aligned(results, units),
        *(_there(onsets, feature, units) for feature in dict.fromkeys(onsets["feature"])),
    ]
    draw = partial(figures.settling, {run: result.table for run, result in results.items()}, onsets)
    return Conclusion(table, claims, draw, {"onsets": onsets}, blank=["onset", "earliest", "latest"])


def _settled(result: Result) -> pd.DataFrame:
    found = pd.DataFrame(settling(result.table, result.tables["losses"]).items(), columns=["what", "step"])
    return found.assign(doublings=np.log2(1 + found["step"]))


def _over(values: Any) -> Estimate:
    return random_effects(torch.tensor([float(each) for each in values], dtype=torch.float64))


def _before(claim: str, gap: Any, units: str) -> Claim:
    return judged(claim, [(Bound("above"), _over(gap))], f"doublings of the step between them {_over(gap):+.2f}", units)


def _aligned(results: Mapping[str, Result], units: str) -> Claim:
    alike = [each.table.pivot(index="step", columns="layer", values="to_last") for each in results.values()]
    runs = [each.tables["losses"].merge(own, on="step") for each, own in zip(results.values(), alike, strict=True)]
    gains = [[_apart(own, its, "step") - _apart(own, its, "loss") for its in runs if its is not own] for own in runs]
    less = _over(map(np.mean, gains))
    claim = "seeds are nearer to each other at the same loss than at the same step"
    return judged(claim, [(Bound("above"), less)], f"difference of CKA less by {less:+.4f}", units)


def _apart(run: pd.DataFrame, other: pd.DataFrame, at: str) -> float:
    """Return the mean distance of two runs' curves by layer, at the steps or the losses of the first."""
    there, layers = other.sort_values(at), [name for name in run if not isinstance(name, str)]
    return float(np.mean([np.abs(run[layer] - np.interp(run[at], there[at], there[layer])) for layer in layers]))


def _there(onsets: pd.DataFrame, feature: str, units: str) -> Claim:
    claim = f"{feature} is not there at the first checkpoint, and comes for good"
    earliest = onsets[onsets["feature"] == feature].groupby("run")["onset"].min()
    if earliest.isna().all():
        return untestable(claim, "it is not there at the end in any layer or seed")
    steps = ", ".join("never" if pd.isna(step) else f"{step:.0f}" for step in earliest)
    came = _over(earliest.gt(0).astype(float))
    return judged(claim, [(Bound("above", 0.5), came)], f"onset in the first layer that has it: {steps}", units)


EXPERIMENTS = [Experiment("trajectory/grammar", _conclude, MODELS, _parts, measure="trajectory", tabulates=True)]
