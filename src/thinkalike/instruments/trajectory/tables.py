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
    curve_of,
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
    """Return all tables and headline numbers.

    Args:
        steps: The step of each checkpoint.
        checkpoints: What each checkpoint gave.
        reader: What read them.
    """
    likeness = _likeness_of_checkpoints(checkpoints, reader)
    by_layer = [_steps_of_layer(steps, layer, cka) for layer, cka in enumerate(likeness)]
    table = pd.concat(by_layer, ignore_index=True)
    documents = _documents_of_losses(reader)
    losses = _loss_table(steps, checkpoints, documents)
    curves = _curves(checkpoints, reader, layers=len(likeness))
    features = _feature_table(steps, checkpoints, reader, curves)
    onsets = _onset_table(steps, curves)
    tables = {
        "losses": losses,
        "similarity": _likeness_table(steps, likeness),
        "features": features,
        "onsets": onsets,
    }

    scalars = {}
    settled = settling(table, losses)
    for curve, scalar in (("loss", "loss_settles"), ("likeness", "similarity_settles")):
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
    """Return the number of the document, from 0, of each token but the first of a row.

    The first token has no loss.
    """
    documents = reader.text["documents"][:, 1:].flatten().long()
    numbers: Tensor = documents.unique(return_inverse=True)[1]
    return numbers


def _loss_table(
    steps: Sequence[int], checkpoints: Sequence[CheckpointNumbers], documents: Tensor
) -> pd.DataFrame:
    """Return the loss of each checkpoint in nats, with intervals that hold for all together.

    Args:
        steps: The step of each checkpoint.
        checkpoints: What each checkpoint gave.
        documents: The document of each token that has a loss.
    """
    losses = torch.stack([checkpoint["losses"].flatten() for checkpoint in checkpoints])
    means = mean_over_documents(losses, documents, together=True)
    return pd.DataFrame({"step": steps, **interval_columns("loss", means)})


def settling(table: pd.DataFrame, losses: pd.DataFrame) -> dict[str, float]:
    """Return when the loss, the mean likeness to the last checkpoint and each layer's settle.

    Args:
        table: The likeness of each layer at each step.
        losses: The loss at each step.
    """
    steps = losses["step"].tolist()
    mean_likeness = table.groupby("step")["similarity_to_last"].mean()
    settled = {
        "loss": _settles(steps, losses["loss"].tolist()),
        "likeness": _settles(steps, mean_likeness.tolist()),
    }
    for layer, rows in table.groupby("layer"):
        settled[f"layer {layer}"] = _settles(steps, rows["similarity_to_last"].tolist())
    return settled


def _settles(steps: Sequence[int], values: Sequence[float]) -> float:
    """Return the step from which on a curve has gone nine tenths of its way to its last value.

    Between checkpoints it is interpolated over log₂(1 + step). It is NaN if the first and the last
    value are the same.

    Args:
        steps: The step of each checkpoint, in rising order.
        values: The value of the curve at each.
    """
    curve = np.asarray(values, float)
    log_steps = np.log2(1 + np.asarray(steps, float))
    if curve[0] == curve[-1]:
        return math.nan
    share_gone = (curve - curve[0]) / (curve[-1] - curve[0])
    missing = SETTLED_SHARE - share_gone
    last = int(np.flatnonzero(missing > 0)[-1])  # the last step that has not settled
    fraction = missing[last] / (missing[last] - missing[last + 1])
    log_step = log_steps[last] + fraction * (log_steps[last + 1] - log_steps[last])
    return float(2**log_step - 1)


def _likeness_of_checkpoints(
    checkpoints: Sequence[CheckpointNumbers], reader: CheckpointReader
) -> list[CKAResult]:
    """Return for each layer the CKA of every two checkpoints.

    It is of states less the means of their token and position.
    """
    text = reader.text
    documents = numbered_by_part(text["documents"].flatten().long())
    tokens = text["tokens"].flatten().long()
    positions = torch.arange(text["tokens"].shape[1]).expand_as(text["tokens"]).flatten()
    all_layers = []
    for checkpoint in checkpoints:
        all_layers += checkpoint["states"]
    outliers = massive(all_layers)
    rows = torch.arange(len(tokens))
    if outliers is not None:
        rows = (~outliers).nonzero()[:, 0]

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


def _likeness_table(steps: Sequence[int], likeness: Sequence[CKAResult]) -> pd.DataFrame:
    """Return a row for each layer and each two checkpoints, with their CKA.

    Args:
        steps: The step of each checkpoint.
        likeness: The CKA of every two checkpoints, for each layer.
    """
    tables = []
    for layer, cka in enumerate(likeness):
        table = pd.DataFrame(itertools.product(steps, steps), columns=["step", "other_step"])
        tables.append(table.assign(layer=layer, value=cka.value.flatten().numpy()))
    joined = pd.concat(tables, ignore_index=True)
    return joined[["layer", "step", "other_step", "value"]]


def _steps_of_layer(steps: Sequence[int], layer: int, cka: CKAResult) -> pd.DataFrame:
    """Return for each step the likeness of a layer to other checkpoints, and how fast it changes.

    The columns are the likeness to the last checkpoint and to the one before, and the angle
    between a checkpoint and the one before per doubling of the step.

    Args:
        steps: The steps of s checkpoints, rising.
        layer: The number of the layer, for a column.
        cka: CKA of the layer between each two checkpoints, in the order of `steps`.
    """
    value = cka.as_found  # (s, s)
    without = cka.without  # (parts, s, s)
    to_last = simultaneous_band(value[:, -1], without[:, :, -1], value[:, -1])
    columns = {"step": list(steps), "layer": layer}
    columns |= interval_columns("similarity_to_last", to_last)

    previous = value.diagonal(1, -2, -1)
    previous_without = without.diagonal(1, -2, -1)
    doublings = torch.log2(1 + torch.tensor(steps, dtype=torch.float64)).diff()
    angle = previous.clamp(-1, 1).arccos() / doublings
    angle_without = previous_without.clamp(-1, 1).arccos() / doublings
    to_previous = simultaneous_band(previous, previous_without, previous)
    speed = simultaneous_band(angle, angle_without, angle)
    for name, estimate in {"similarity_to_previous": to_previous, "speed": speed}.items():
        for column, values in interval_columns(name, estimate).items():
            columns[column] = [math.nan, *values]  # the first checkpoint has none before it
    return pd.DataFrame(columns)


def _curves(
    checkpoints: Sequence[CheckpointNumbers], reader: CheckpointReader, layers: int
) -> list[FeatureCurve]:
    """Return the curve of each feature in each layer, layer after layer.

    Args:
        checkpoints: The numbers of all checkpoints, in order.
        reader: What read them; it has the tasks of the features.
        layers: How many layers there are.
    """
    curves = []
    for layer in range(layers):
        for index, task in enumerate(reader.tasks):
            is_right = torch.stack(
                [checkpoint["right"][index][layer] for checkpoint in checkpoints]
            )
            null = torch.stack([checkpoint["null"][index][layer] for checkpoint in checkpoints])
            curve = curve_of(is_right, task.labels, task.groups, null)
            curves.append(FeatureCurve(task, layer, curve))
    return curves


def _feature_table(
    steps: Sequence[int],
    checkpoints: Sequence[CheckpointNumbers],
    reader: CheckpointReader,
    curves: Sequence[FeatureCurve],
) -> pd.DataFrame:
    """Return the accuracy of each feature by step and layer, and its importance if asked for.

    Args:
        steps: The step of each checkpoint.
        checkpoints: What each checkpoint gave.
        reader: What read them.
        curves: The curve of each feature in each layer.
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

    by_fold = torch.stack([checkpoint["importance"] for checkpoint in checkpoints])  # (s, l, f, k)
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
    """Return the step of onset by layer and feature, with the interval over resamples.

    A blank, NaN, is after the last checkpoint.
    """
    step_of_index = [*(float(step) for step in steps), math.nan]
    rows = []
    for task, layer, curve in curves:
        interval = percentile_interval(torch.tensor(curve.onset), curve.draws, 0.95)
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
