"""How representations form in five seeds of one model: what settles first, and when features are there."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch

from thinkalike import figures
from thinkalike.instruments.trajectory.answers import settling
from thinkalike.measures.estimates import Estimate, random_effects
from thinkalike.papers.claims import Bound, Claim, judged, untestable
from thinkalike.papers.experiment import Case, Conclusion, Experiment, Part
from thinkalike.store import Result

SEEDS = 5
MODELS = {"paper": [f"EleutherAI/pythia-70m-seed{seed}" for seed in range(1, SEEDS + 1)], "mini": ["gpt2-mini"]}
KEPT = "[0,4,16,32,48,64,96,128,192,256,384,512,600]"
TRAINED = ("pretrain.tokens=307200", "pretrain.tokens_per_step=512", f"pretrain.keep={KEPT}")  # minutes for each seed


def _parts(case: Case) -> list[Part]:
    """Return a trajectory for each seed; at the scale of minis each is trained first, unless `measure.train` is set."""
    measure: Any = case.config.measure
    if case.scale == "paper":
        return [Part(model.name, model.words) for model in case.models]
    parts = []
    for model, seed in itertools.product(case.models, range(SEEDS)):
        train = [*(measure.train or TRAINED), f"model.seed={seed}"]
        own = replace(measure, importance=False, tokens=2048, train=train)
        parts.append(Part(f"{model.name}, seed {seed}", model.words, changes={"measure": own}))
    return parts


def _conclude(case: Case) -> Conclusion:
    """Say whether the loss settles before likeness, and low layers before high ones, and whether seeds are alike."""
    results = case.results
    table = pd.concat([_settled(result).assign(run=run) for run, result in results.items()], ignore_index=True)
    onsets = pd.concat([result.tables["onsets"].assign(run=run) for run, result in results.items()], ignore_index=True)
    units = f"{len(results)} seeds"
    by_run = {run: rows.set_index("what")["doublings"] for run, rows in table.groupby("run", sort=False)}
    layers = [name for name in table["what"].unique() if name.startswith("layer ")]
    first = _over([rows["likeness"] - rows["loss"] for rows in by_run.values()])
    low = _over([rows[layers[-1]] - rows[layers[0]] for rows in by_run.values()])
    claims = [
        _claim("the loss settles before likeness to the end does", "above", first, units),
        _claim(f"{layers[0]} settles before {layers[-1]}", "above", low, units),
        _aligned(results, units),
        *(_there(onsets, feature, units) for feature in dict.fromkeys(onsets["feature"])),
    ]
    curves = {run: result.table for run, result in results.items()}
    draw = partial(figures.settling, curves, onsets)
    return Conclusion(table, claims, draw, {"onsets": onsets}, blank=["onset", "earliest", "latest"])


def _settled(result: Result) -> pd.DataFrame:
    """Return the step by which the loss, likeness, and likeness of each layer went nine tenths of their way."""
    found = pd.DataFrame(settling(result.table, result.tables["losses"]).items(), columns=["what", "step"])
    return found.assign(doublings=np.log2(1 + found["step"]))


def _over(values: Any) -> Estimate:
    return random_effects(torch.tensor([float(each) for each in values], dtype=torch.float64))


def _claim(claim: str, kind: Any, found: Estimate, units: str) -> Claim:
    return judged(claim, [(Bound(kind), found)], f"doublings of the step between them {found:+.2f}", units)


def _aligned(results: Mapping[str, Result], units: str) -> Claim:
    """Return whether likeness to the end differs less between seeds at the same loss than at the same step."""
    curves = [
        result.table.pivot(index="step", columns="layer", values="to_last").to_numpy() for result in results.values()
    ]
    losses = [result.tables["losses"]["loss"].to_numpy() for result in results.values()]
    found = []
    for own, (curve, loss) in enumerate(zip(curves, losses, strict=True)):
        others = [n for n in range(len(curves)) if n != own]
        at_step = np.mean([np.abs(curves[n] - curve).mean() for n in others])
        at_loss = np.mean([_apart(curve, loss, curves[n], losses[n]) for n in others])
        found.append(at_step - at_loss)
    claim = "seeds are nearer to each other at the same loss than at the same step"
    less = _over(found)
    return judged(claim, [(Bound("above"), less)], f"difference of CKA less by {less:+.4f}", units)


def _apart(curve: Any, loss: Any, other: Any, its_loss: Any) -> float:
    """Return the mean distance of two runs' curves by layer, (s, l), at the losses of the first."""
    order = its_loss.argsort()
    columns = range(curve.shape[1])
    there = [np.interp(loss, its_loss[order], other[order, column]) for column in columns]
    return float(np.abs(curve - np.stack(there, 1)).mean())


def _there(onsets: pd.DataFrame, feature: str, units: str) -> Claim:
    """Return whether a feature comes after the first checkpoint in the layer that has it first, in all seeds."""
    claim = f"{feature} is not there at the first checkpoint, and comes for good"
    earliest = onsets[onsets["feature"] == feature].groupby("run")["onset"].min()
    if earliest.isna().all():
        return untestable(claim, "it is not there at the end in any layer or seed")
    steps = ", ".join("never" if pd.isna(step) else f"{step:.0f}" for step in earliest)
    came = _over(earliest.gt(0).astype(float))
    return judged(claim, [(Bound("above", 0.5), came)], f"onset in the first layer that has it: {steps}", units)


EXPERIMENTS = [Experiment("trajectory/grammar", _conclude, MODELS, _parts, measure="trajectory", tabulates=True)]
