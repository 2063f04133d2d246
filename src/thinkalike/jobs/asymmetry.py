"""measure=asymmetry: what stitching one way costs more than the other way, from two results of a store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from thinkalike import figures
from thinkalike.config import AnalyzeConfig
from thinkalike.errors import StoreError
from thinkalike.jobs.steps import finished, settings_of
from thinkalike.measures import Estimate, bootstrap_interval
from thinkalike.store import Job, finished_results, key_of


def asymmetry(config: AnalyzeConfig) -> Path:
    """Penalty of `model` into `target` minus that of `target` into `model`, by layer, from the newest such results.

    Raises:
        StoreError: the store does not hold both directions with one recipe.
    """
    there, back = max(_directions(config), key=lambda both: both[0].stat().st_mtime, default=(None, None))
    if there is None or back is None:
        names = f"{config.model.name},{config.target.name}"
        raise StoreError(
            f"{config.store} holds no stitches of {config.model.name} into {config.target.name} and back with one "
            f"recipe; make them: python train.py -m model={names} model@target={names}"
        )
    settings = settings_of(config, "model", "target", "measure")
    job = Job(config.store, "asymmetry", key_of(settings, {"there": there.name, "back": back.name}), settings)
    if finished(job, config.force):
        return job.folder
    with job.running():
        table = asymmetries(there, back)
        figures.asymmetry(table, job.out() / "figures")
        print(table.to_string(index=False, float_format="{:+.4f}".format))
        return job.finish(
            {"mean_asymmetry": float(table["asymmetry"].mean())}, table, {"parts": [str(there), str(back)]}
        )


def _directions(config: AnalyzeConfig) -> Iterator[tuple[Path, Path]]:
    """All results from `model` into `target` in the store, each with the one that differs in direction only."""
    found = dict(finished_results(config.store, "stitching"))
    for folder, settings in found.items():
        if (settings["model"]["name"], settings["target"]["name"]) == (config.model.name, config.target.name):
            reverse = settings | {"model": settings["target"], "target": settings["model"]}
            yield from ((folder, other) for other, others in found.items() if others == reverse)


def asymmetries(there: Path, back: Path) -> pd.DataFrame:
    """One row per layer that both results stitch to itself: penalty there minus penalty back, in nats per token."""
    table = _same_layers(there)[["source", "target", "source_layer"]]
    mean, low, high = (values.numpy() for values in penalty_difference(there, back))
    return table.rename(columns={"source_layer": "layer"}).assign(asymmetry=mean, low=low, high=high)


def penalty_difference(more: Path, less: Path) -> Estimate:
    """Penalty of one stitching result minus another's at every same-layer pair, by the same documents: mean, interval.

    Raises:
        StoreError: they report on different documents or layers.
    """
    (layers, first, tokens), (others, second, counts) = _penalties(more), _penalties(less)
    if not torch.equal(tokens, counts) or layers != others:
        raise StoreError(f"{more} and {less} report on different documents or layers; force=true computes them anew")
    return bootstrap_interval(first - second, tokens)


def _penalties(folder: Path) -> tuple[list[int], Tensor, Tensor]:
    """The same-layer pairs' layers and penalty sums (layers, documents), and the tokens of each document."""
    table, arrays = _same_layers(folder), np.load(folder / "arrays.npz")
    sums = torch.from_numpy(arrays["stitch"][table.index] - arrays["target"])
    return table["source_layer"].tolist(), sums, torch.from_numpy(arrays["tokens"])


def _same_layers(folder: Path) -> pd.DataFrame:
    """The rows of a result's table, under their numbers, that stitch a layer to itself."""
    table = pd.read_csv(folder / "table.csv")
    return table[table["source_layer"] == table["target_layer"]]
