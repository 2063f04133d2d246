"""measure=mlem: which features explain the distances of stimuli in each layer."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from thinkalike import figures
from thinkalike.config import AnalyzeConfig, MLEMConfig
from thinkalike.data import Stimuli
from thinkalike.errors import DataError, nearest
from thinkalike.jobs.states import States, job_of, numbered, origin, read_states, read_stimuli
from thinkalike.jobs.steps import finished, prepare
from thinkalike.measures import MLEM, Importance, feature_importance, weighted_tau

log = logging.getLogger(__name__)

SHOWN = 3  # features of each layer on the screen


def mlem(config: AnalyzeConfig) -> Path:
    """Feature profiles of all layers of `model`, and of `model@target` if that is another.

    Leaves the profiles in table.csv, held-out scores in scores.csv, the likeness of layers in similarity.csv, pair
    effects in interactions.csv if there are any, weights in arrays.npz, and figures.
    """
    assert isinstance(config.measure, MLEMConfig)
    stimuli = read_stimuli(config.stimuli)
    _check_features(config.measure, stimuli)
    job = job_of(config, stimuli)
    if finished(job, config.force):
        return job.folder
    with job.running():
        prepare(config.seed, config.threads)
        found = read_states(config, stimuli, config.measure.embed)
        model, importance = _fit(config, stimuli, found)
        tables = {
            "scores": scores(model, importance, found),
            "similarity": similarity(importance, found),
            "interactions": interactions(config.measure, importance, found),
        }
        table = profiles(model, importance, stimuli, found)
        for name, part in tables.items():
            if len(part):
                part.to_csv(job.out() / f"{name}.csv", index=False)
        figures.profiles(table, tables["scores"], job.out() / "figures")
        if len(tables["similarity"]):
            figures.similarity({"weighted τ of profiles": tables["similarity"]}, job.out() / "figures")
        _show(table, tables["scores"], stimuli)
        arrays = {
            "weights": model.weights_,
            "correlation": model.correlation_,
            "scores": importance.scores,
            "importances": importance.by_fold(),
        }
        return job.finish(
            {"mean_score": float(tables["scores"]["score"].mean()), "stimuli": float(len(stimuli))},
            table,
            origin(config, stimuli, found),
            {name: values.numpy() for name, values in arrays.items()},
        )


def _check_features(measure: MLEMConfig, stimuli: Stimuli) -> None:
    named = [*([measure.given] if measure.given else []), *(name for pair in measure.interactions for name in pair)]
    for name in named:
        if name not in stimuli.names:
            raise DataError(f"{stimuli.source} has no feature {name}; {nearest(name, stimuli.names)}")


def _fit(config: AnalyzeConfig, stimuli: Stimuli, found: Sequence[States]) -> tuple[MLEM, Importance]:
    measure, names = config.measure, stimuli.names
    assert isinstance(measure, MLEMConfig)
    by_pairs = config.recipe == "paper"
    model = MLEM(
        weights=measure.weights,
        distance=measure.distance,
        alpha=measure.alphas,
        kinds=[str(stimuli.kinds[name]) for name in names],
        difference=measure.difference,
        missing=measure.missing,
        scale=measure.scale,
        recipe="paper" if by_pairs else "stimuli",
        folds=measure.folds,
        seed=config.seed,
    )
    features, layers = stimuli.codes().table, [layer for each in found for layer in each.states]
    apart = by_pairs or measure.together == "stimulus"
    groups = None if apart else torch.from_numpy(np.ascontiguousarray(stimuli.sentence))
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            model.fit(features, layers, groups)
        for warning in said:
            log.warning("warning: %s", _named(str(warning.message), names))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the same again on every fold
            importance = feature_importance(
                model,
                features,
                layers,
                folds=measure.folds,
                permutations=measure.permutations,
                groups=groups,
                given=None if measure.given is None else names.index(measure.given),
                interactions=[(names.index(a), names.index(b)) for a, b in measure.interactions],
                null=measure.null,
                seed=config.seed,
            )
    except ValueError as error:
        remedy = "; measure.together=stimulus lets folds divide a text" if "groups" in str(error) else ""
        raise DataError(f"{stimuli.source}: {error}{remedy}{numbered(found)}") from error
    return model, importance


def _named(message: str, names: Sequence[str]) -> str:
    """A measure's message with the names of features beside their numbers."""
    return f"{message}; features are numbered " + ", ".join(f"{place} {name}" for place, name in enumerate(names))


def profiles(model: MLEM, importance: Importance, stimuli: Stimuli, found: Sequence[States]) -> pd.DataFrame:
    """One row per model, layer and feature: importance with its interval over folds, weight, and p if it was asked."""
    weights = model.weights_ if model.weights_.dim() == 2 else model.weights_.diagonal(dim1=1, dim2=2)
    columns = dict(zip(("importance", "low", "high"), importance.profile(), strict=True)) | {"weight": weights}
    if importance.null is not None:
        columns["p"] = importance.p_values()
    return _by_layer(found, columns, "feature", stimuli.names)


def interactions(measure: MLEMConfig, importance: Importance, found: Sequence[States]) -> pd.DataFrame:
    """One row per model, layer and pair of features: the pair effect S_a + S_b - S_ab - S with its interval."""
    if not measure.interactions:
        return pd.DataFrame()
    columns = dict(zip(("effect", "low", "high"), importance.pair_effects(), strict=True))
    return _by_layer(found, columns, "features", [" x ".join(pair) for pair in measure.interactions])


def scores(model: MLEM, importance: Importance, found: Sequence[States]) -> pd.DataFrame:
    """One row per model and layer: held-out Spearman's ρ with its interval over folds, and the α of the fit."""
    columns = dict(zip(("score", "low", "high"), importance.score(), strict=True)) | {"alpha": model.alpha_}
    return places(found).assign(**{name: values.numpy() for name, values in columns.items()})


def similarity(importance: Importance, found: Sequence[States]) -> pd.DataFrame:
    """Weighted Kendall τ of the profiles of every two layers; empty if a profile ranks no feature."""
    try:
        values = weighted_tau(importance.profile().value)
    except ValueError as error:
        log.warning("warning: layers are not compared by their profiles: %s", error)
        return pd.DataFrame()
    return matrix(values, places(found))


def matrix(values: Tensor, rows: pd.DataFrame, **more: Tensor) -> pd.DataFrame:
    """A matrix of layers, whose `places` are given, as long rows."""
    first, second = (rows.iloc[index].reset_index(drop=True) for index in np.indices(values.shape).reshape(2, -1))
    table = {"source": first["model"], "target": second["model"]}
    table |= {"source_layer": first["layer"], "target_layer": second["layer"]}
    return pd.DataFrame({**table, **{key: cells.flatten().numpy() for key, cells in {"value": values, **more}.items()}})


def places(found: Sequence[States]) -> pd.DataFrame:
    """Model and layer of all layers of all models."""
    return pd.DataFrame([(each.name, layer) for each in found for layer in each.layers], columns=["model", "layer"])


def _by_layer(found: Sequence[States], columns: dict[str, Tensor], what: str, names: Sequence[str]) -> pd.DataFrame:
    """Columns (l, f) as long rows."""
    rows = places(found)
    table = rows.loc[rows.index.repeat(len(names))].reset_index(drop=True)
    values = {key: column.flatten().numpy() for key, column in columns.items()}
    return table.assign(**{what: list(names) * len(rows)}, **values)


def _show(table: pd.DataFrame, scores: pd.DataFrame, stimuli: Stimuli) -> None:
    print(f"{len(stimuli)} stimuli of {stimuli.source}; held-out Spearman's ρ, and the most important features")
    for row in scores.itertuples():
        layer = table[(table["model"] == row.model) & (table["layer"] == row.layer)]
        top = layer.nlargest(SHOWN, "importance")
        words = ", ".join(f"{name} {value:.3f}" for name, value in zip(top["feature"], top["importance"], strict=True))
        print(f"  {row.model} layer {row.layer!s:>3}   {row.score:+.3f} ({row.low:+.3f} to {row.high:+.3f})   {words}")
