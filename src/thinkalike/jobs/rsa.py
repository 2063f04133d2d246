"""measure=rsa: how alike the distances of stimuli are in every two layers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import torch

from thinkalike import figures
from thinkalike.config import AnalyzeConfig, RSAConfig
from thinkalike.data import Stimuli
from thinkalike.errors import DataError
from thinkalike.jobs.mlem import matrix, places
from thinkalike.jobs.states import job_of, numbered, origin, read_states, read_stimuli
from thinkalike.jobs.steps import finished, prepare
from thinkalike.measures import Estimate, mantel, rsa_estimate

FOLDS = 10  # of the jackknife


def rsa(config: AnalyzeConfig) -> Path:
    """RSA of all layers of `model`, and of `model@target` if that is another, with all of them."""
    measure = config.measure
    assert isinstance(measure, RSAConfig)
    stimuli = read_stimuli(config.stimuli)
    job = job_of(config, stimuli)
    if finished(job, config.force):
        return job.folder
    with job.running():
        prepare(config.seed, config.threads)
        found = read_states(config, stimuli, measure.embed)
        layers = [layer for each in found for layer in each.states]
        try:
            result = _estimate(measure, layers, stimuli, config.seed)
            more = {"low": result.low, "high": result.high}
            if measure.permutations:
                more["p"] = mantel(layers, None, measure.distance, measure.permutations, config.seed)[1]
        except ValueError as error:
            raise DataError(f"{stimuli.source}: {error}{numbered(found)}") from error
        table = matrix(result.value, places(found), **more)
        figures.similarity({"Spearman's ρ of distances": table}, job.out() / "figures")
        _show(table)
        off = ~np.eye(len(layers), dtype=bool)
        scalars = {"stimuli": float(len(stimuli))}
        if off.any():
            scalars["mean_similarity"] = float(result.value.numpy()[off].mean())
        return job.finish(scalars, table, origin(config, stimuli, found), {"value": result.value.numpy()})


def _estimate(measure: RSAConfig, layers: list[torch.Tensor], stimuli: Stimuli, seed: int) -> Estimate:
    """With intervals over sentences; of stimuli of few sentences, over stimuli."""
    sentences = torch.from_numpy(np.ascontiguousarray(stimuli.sentence))
    groups = sentences if len(sentences.unique()) >= FOLDS else None
    return rsa_estimate(layers, distance=measure.distance, groups=groups, folds=FOLDS, seed=seed)


def _show(table: pd.DataFrame) -> None:
    """Print the pairs of layers that are most and least alike."""
    itself = (table["source"] == table["target"]) & (table["source_layer"] == table["target_layer"])
    pairs = table[~itself]
    if pairs.empty:
        return
    for word, rows in (("most", pairs.nlargest(1, "value")), ("least", pairs.nsmallest(1, "value"))):
        (row,) = rows.itertuples()
        print(
            f"{word} alike: {row.source} layer {row.source_layer} and {row.target} layer {row.target_layer}, "
            f"ρ {row.value:+.3f} ({row.low:+.3f} to {row.high:+.3f})"
        )
