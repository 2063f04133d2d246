"""The tables of a trajectory: by step, layer and feature."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from thinkalike.errors import DataError
from thinkalike.evaluation.columns import document_counts, interval_columns
from thinkalike.evaluation.document_means import mean_over_documents
from thinkalike.instruments.of_stimuli import stimuli_facts
from thinkalike.instruments.probing_tasks import Task
from thinkalike.instruments.trajectory.accuracies import (
    Curve,
    accuracy_curve,
    percentile_interval,
    simultaneous_band,
    simultaneous_t,
)
from thinkalike.instruments.trajectory.reader import CheckpointNumbers, CheckpointReader
from thinkalike.job import Outcome
from thinkalike.measures.folds import numbered_by_part
from thinkalike.measures.massive_rows import massive
from thinkalike.measures.metric import CKA, CKAResult
from thinkalike.measures.mlem.importance import fold_interval
from thinkalike.measures.row_groups import FEWEST_HSIC_ROWS, RowGroups

SETTLED_SHARE = 0.9
"""A curve has settled once it has gone this share of the way to the last checkpoint."""


class FeatureCurve(NamedTuple):
    """The curve of the task of a feature in one layer.

    Attributes:
        task: What is probed.
        layer: The layer.
        curve: The accuracy by step, beside its null.
    """

    task: Task
    layer: int
    curve: Curve


def outcome_of_trajectory(
    steps: Sequence[int], checkpoints: Sequence[CheckpointNumbers], reader: CheckpointReader
) -> Outcome:
    """Return the outcome of a trajectory: its tables, without empty ones, and headline numbers.

    Args:
        steps: The step of each checkpoint.
        checkpoints: The states, losses and accuracies of each checkpoint.
        reader: Read the checkpoints; it has the text, the stimuli and the probing tasks.
    """
    cka_by_layer = _cka_of_checkpoints(checkpoints, reader)
    by_layer = [_table_of_layer(steps, layer, cka) for layer, cka in enumerate(cka_by_layer)]
    table = pd.concat(by_layer, ignore_index=True)
    documents = _documents_of_losses(reader)
    losses = _loss_table(steps, checkpoints, documents)
    curves = _curves_of_features(checkpoints, reader, layers=len(cka_by_layer))
    features = _feature_table(steps, checkpoints, reader, curves)
    onsets = _onset_table(steps, curves)
    tables = {
        "losses": losses,
        "similarity": _similarity_table(steps, cka_by_layer),
        "features": features,
        "onsets": onsets,
    }

    scalars = {}
    settled = settling_steps(table, losses)
    for curve, scalar in (("loss", "loss_settles"), ("similarity", "similarity_settles")):
        if math.isfinite(settled[curve]):
            scalars[scalar] = settled[curve]
    scalars["checkpoints"] = float(len(steps))
    scalars["tokens"] = float(reader.text["tokens"].numel())
    scalars |= document_counts(torch.bincount(documents).double())
    return Outcome(
        table,
        scalars,
        tables={name: entries for name, entries in tables.items() if len(entries)},
        models=[checkpoint["model"] for checkpoint in checkpoints],
        facts={**stimuli_facts(reader.stimuli), "data": reader.text["facts"]},
        blank=[*table.columns, *features.columns, *onsets.columns],
    )


def _documents_of_losses(reader: CheckpointReader) -> Tensor:
    """Return the document of each token that has a loss: all but the first of each row.

    Documents are numbered from 0, without gaps.
    """
    documents = reader.text["documents"][:, 1:].flatten().long()
    renumbered: Tensor = documents.unique(return_inverse=True)[1]
    return renumbered


def _loss_table(
    steps: Sequence[int], checkpoints: Sequence[CheckpointNumbers], documents: Tensor
) -> pd.DataFrame:
    """Return a row for each checkpoint with its mean loss in nats per token.

    The intervals over documents hold for all checkpoints together.

    Args:
        steps: The step of each checkpoint.
        checkpoints: What was read of each checkpoint, with the loss of each token.
        documents: The document of each token that has a loss.
    """
    losses = torch.stack([checkpoint["losses"].flatten() for checkpoint in checkpoints])
    means = mean_over_documents(losses, documents, together=True)
    return pd.DataFrame({"step": steps, **interval_columns("loss", means)})


def settling_steps(table: pd.DataFrame, losses: pd.DataFrame) -> dict[str, float]:
    """Return the steps by which curves have gone nine tenths of the way to their last value.

    The curves are the loss ("loss"), the similarity to the last checkpoint as a mean over layers
    ("similarity"), and that of each layer ("layer 0", ...).

    Args:
        table: The similarity of each layer to the last checkpoint, at each step.
        losses: The loss at each step.
    """
    steps = losses["step"].tolist()
    mean_similarity = table.groupby("step")["similarity_to_last"].mean()
    settled = {
        "loss": _settling_step(steps, losses["loss"].tolist()),
        "similarity": _settling_step(steps, mean_similarity.tolist()),
    }
    for layer, rows in table.groupby("layer"):
        settled[f"layer {layer}"] = _settling_step(steps, rows["similarity_to_last"].tolist())
    return settled


def _settling_step(steps: Sequence[int], values: Sequence[float]) -> float:
    """Return the step from which on a curve has gone `SETTLED_SHARE` of the way to its last value.

    Between checkpoints it is interpolated linearly over log₂(1 + step). It is NaN if the first and
    the last value are the same.

    Args:
        steps: The step of each checkpoint, in rising order.
        values: The value of the curve at each.
    """
    curve = np.asarray(values, float)
    log_steps = np.log2(1 + np.asarray(steps, float))
    if curve[0] == curve[-1]:
        return math.nan
    share_gone = (curve - curve[0]) / (curve[-1] - curve[0])
    missing_share = SETTLED_SHARE - share_gone
    # The last checkpoint that has not reached the share: the curve crosses it for good between
    # this one and the next.
    before = int(np.flatnonzero(missing_share > 0)[-1])
    fraction = missing_share[before] / (missing_share[before] - missing_share[before + 1])
    log_step = log_steps[before] + fraction * (log_steps[before + 1] - log_steps[before])
    return float(2**log_step - 1)


def _cka_of_checkpoints(
    checkpoints: Sequence[CheckpointNumbers], reader: CheckpointReader
) -> list[CKAResult]:
    """Return for each layer the CKA of every two checkpoints, conditional on token and position.

    The means of each token and position are subtracted from the states. Tokens with massive
    activations, very long states, are left out.

    Args:
        checkpoints: The states of all tokens at each checkpoint, by layer.
        reader: Has the text.

    Raises:
        DataError: The states of a layer cannot be compared.
    """
    text = reader.text
    documents = numbered_by_part(text["documents"].flatten().long())
    tokens = text["tokens"].flatten().long()
    positions = torch.arange(text["tokens"].shape[1]).expand_as(text["tokens"]).flatten()
    all_layers = []
    for checkpoint in checkpoints:
        all_layers += checkpoint["states"]
    massive_rows = massive(all_layers)  # None: there are none
    rows = torch.arange(len(tokens))
    if massive_rows is not None:
        rows = (~massive_rows).nonzero()[:, 0]

    results = []
    for layer in range(len(checkpoints[0]["states"])):
        try:
            groups = RowGroups.of(tokens[rows], FEWEST_HSIC_ROWS)
            states = []
            for checkpoint in checkpoints:
                of_checkpoint = checkpoint["states"][layer][rows]
                without_means = groups.without_means(of_checkpoint, positions[rows])
                states.append(without_means.to(of_checkpoint))
            metric = CKA(len(checkpoints), len(checkpoints), conditional_on="token")
            metric.update(
                states,
                states,
                documents=documents[rows][groups.order],
                groups=tokens[rows][groups.order],
            )
        except ValueError as error:
            raise DataError(
                f"layer {layer} at the checkpoints, numbered from 0: {error}"
            ) from error
        results.append(metric.compute())
    return results


def _similarity_table(steps: Sequence[int], cka_by_layer: Sequence[CKAResult]) -> pd.DataFrame:
    """Return a row for each layer and every two checkpoints, with their CKA.

    Args:
        steps: The step of each checkpoint.
        cka_by_layer: The CKA of every two checkpoints, for each layer.
    """
    tables = []
    for layer, cka in enumerate(cka_by_layer):
        table = pd.DataFrame(itertools.product(steps, steps), columns=["step", "other_step"])
        tables.append(table.assign(layer=layer, value=cka.value.flatten().numpy()))
    joined = pd.concat(tables, ignore_index=True)
    return joined[["layer", "step", "other_step", "value"]]


def _table_of_layer(steps: Sequence[int], layer: int, cka: CKAResult) -> pd.DataFrame:
    """Return a row for each step: how similar a layer is to other checkpoints, and its speed.

    The columns are the CKA with the last checkpoint, the CKA with the checkpoint before, and the
    speed: arccos(CKA with the checkpoint before) / doublings, in radians per doubling of 1 + step.
    The last two are NaN for the first checkpoint, as there is none before it.

    Args:
        steps: The steps of s checkpoints, in rising order.
        layer: The number of the layer, for a column.
        cka: The CKA of the layer between every two checkpoints, in the order of `steps`.
    """
    value = cka.with_bias  # (s, s)
    without = cka.without  # (parts, s, s): without each part of the documents
    # The bias that `simultaneous_band` subtracts is the mean of the values without a part, less
    # its last argument: the value of all documents.
    to_last = simultaneous_band(value[:, -1], without[:, :, -1], value[:, -1])
    columns = {"step": list(steps), "layer": layer}
    columns |= interval_columns("similarity_to_last", to_last)

    # The diagonal above the main one compares each checkpoint but the first with the one before.
    previous = value.diagonal(offset=1, dim1=-2, dim2=-1)  # (s - 1,)
    previous_without = without.diagonal(offset=1, dim1=-2, dim2=-1)  # (parts, s - 1)
    to_previous = simultaneous_band(previous, previous_without, previous)
    doublings = torch.log2(1 + torch.tensor(steps, dtype=torch.float64)).diff()
    angle_per_doubling = previous.clamp(-1, 1).arccos() / doublings
    without_part = previous_without.clamp(-1, 1).arccos() / doublings
    speed = simultaneous_band(angle_per_doubling, without_part, angle_per_doubling)
    for name, estimate in {"similarity_to_previous": to_previous, "speed": speed}.items():
        for column, values in interval_columns(name, estimate).items():
            columns[column] = [math.nan, *values]  # the first checkpoint has none before it
    return pd.DataFrame(columns)


def _curves_of_features(
    checkpoints: Sequence[CheckpointNumbers], reader: CheckpointReader, layers: int
) -> list[FeatureCurve]:
    """Return the accuracy by step of each feature in each layer, layer after layer.

    Args:
        checkpoints: What was read of each checkpoint, in the order of steps: which answers of
            probes are right, and their null, the accuracies with permuted labels.
        reader: Has the probing tasks of the features.
        layers: How many layers there are.
    """
    curves = []
    for layer in range(layers):
        for index, task in enumerate(reader.tasks):
            is_right = torch.stack(
                [checkpoint["right"][index][layer] for checkpoint in checkpoints]
            )
            null = torch.stack([checkpoint["null"][index][layer] for checkpoint in checkpoints])
            curve = accuracy_curve(is_right, task.labels, task.groups, null)
            curves.append(FeatureCurve(task, layer, curve))
    return curves


def _feature_table(
    steps: Sequence[int],
    checkpoints: Sequence[CheckpointNumbers],
    reader: CheckpointReader,
    curves: Sequence[FeatureCurve],
) -> pd.DataFrame:
    """Return a row for each step, layer and feature: accuracy, and importance if asked for.

    A feature without a probing task has only importance, and NaN for its accuracy.

    Args:
        steps: The step of each checkpoint.
        checkpoints: What was read of each checkpoint, perhaps with importances on folds.
        reader: Read the checkpoints; it has the stimuli.
        curves: The accuracy by step of each feature in each layer.
    """
    tables = []
    for task, layer, curve in curves:
        columns = {
            "step": list(steps),
            "layer": layer,
            "feature": task.feature,
            "held_out": task.split,
            **interval_columns("accuracy", curve.accuracy),
            "null_threshold": curve.threshold,
            "chance": 1 / len(task.levels),
        }
        tables.append(pd.DataFrame(columns))
    table = pd.concat(tables, ignore_index=True)
    if "importance" not in checkpoints[0]:
        return table

    # (step, layer, feature, fold)
    by_fold = torch.stack([checkpoint["importance"] for checkpoint in checkpoints])
    t = simultaneous_t(by_fold.movedim(-1, 0))
    importance = interval_columns("importance", fold_interval(by_fold, t=t))
    layers = range(by_fold.shape[1])
    cells = pd.DataFrame(
        itertools.product(steps, layers, reader.stimuli.names),
        columns=["step", "layer", "feature"],
    )
    for name, values in importance.items():
        cells[name] = np.asarray(values).ravel()
    return table.merge(cells, how="outer", on=["step", "layer", "feature"], sort=False)


def _onset_table(steps: Sequence[int], curves: Sequence[FeatureCurve]) -> pd.DataFrame:
    """Return a row for each layer and feature: the step of its onset, with an interval.

    The onset is the first step from which on the feature can be read out. NaN means that it cannot
    at the last checkpoint.

    Args:
        steps: The step of each checkpoint.
        curves: The accuracy of each feature in each layer, with the index of its onset.
    """
    # An onset index after the last step means that there is no onset.
    step_of_index = [*(float(step) for step in steps), math.nan]
    rows = []
    for task, layer, curve in curves:
        # `draws` are the onset indices in resamples.
        interval = percentile_interval(torch.tensor(curve.onset_index), curve.draws, level=0.95)
        rows.append(
            {
                "layer": layer,
                "feature": task.feature,
                "onset": step_of_index[int(interval.value)],
                "earliest": step_of_index[int(interval.low)],
                "latest": step_of_index[int(interval.high)],
            }
        )
    return pd.DataFrame(rows, columns=["layer", "feature", "onset", "earliest", "latest"])
