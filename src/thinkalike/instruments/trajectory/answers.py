"""The numbers of a trajectory: held-out accuracies beside their null, onsets, and tables by step, layer and feature.

A feature is there from the first step on from which its accuracy stays above its null to the end. The null permutes
labels between groups of stimuli, such as sentences or words, and takes the greatest accuracy over all steps. Bands hold
for all steps together.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from thinkalike.config import AnalyzeConfig, ModelConfig
from thinkalike.data.stimuli import Stimuli
from thinkalike.digests import tokenizer_fingerprint
from thinkalike.errors import DataError
from thinkalike.evaluation.batch_sizes import BATCH_TOKENS
from thinkalike.evaluation.columns import document_counts, interval_columns
from thinkalike.evaluation.document_means import mean_over_documents
from thinkalike.evaluation.forward import next_token_losses
from thinkalike.instruments.diff.instrument import read_rows
from thinkalike.instruments.mlem import MLEMConfig, fit_profiles
from thinkalike.instruments.of_stimuli import stimuli_facts
from thinkalike.instruments.probing_tasks import SPLITS, Task, tasks_of
from thinkalike.job import Outcome, Work
from thinkalike.measures.accuracy import balanced_accuracies
from thinkalike.measures.bootstrap import drawn_counts, sum_by_document
from thinkalike.measures.estimates import Estimate, interval_around, jackknife
from thinkalike.measures.folds import numbered_by_part, splits
from thinkalike.measures.massive_rows import massive
from thinkalike.measures.metric import CKA, CKAResult
from thinkalike.measures.mlem.importance import fold_interval, regrouped
from thinkalike.measures.row_groups import FEWEST_HSIC_ROWS, RowGroups
from thinkalike.measures.sample_size import FEWEST_GROUPS
from thinkalike.measures.seeds import seeded
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.load import load_model
from thinkalike.states.stimuli import StimulusStates, stimulus_states
from thinkalike.states.tokens import sites

SHRINKAGE = 0.1
ALPHA = 0.05  # of the null: the share of permutations that a feature may be below by chance


def held_out_right(
    states: Float[Tensor, "n d"],
    labels: Int[Tensor, "p n"],
    levels: int,
    fold_of: Int[Tensor, " n"],
    shrinkage: float = SHRINKAGE,
) -> Bool[Tensor, "p n"]:
    """Return which stimuli get their label from a linear discriminant of the other folds, for each of p labellings.

    The answer is the level whose mean is nearest in (1 - s) S + s tr(S)/d I, s the shrinkage and S the covariance of
    all states of the other folds, so that all levels are equally likely beforehand. S knows no labels, and so one
    inversion serves all labellings; of two levels the answers are those of S within levels (Fisher 1936) where s is 0.
    """
    right = torch.zeros(labels.shape, dtype=torch.bool)
    for train, test in splits(fold_of):
        rows = states[train].double()
        mean = rows.mean(0)
        covariance = (rows - mean).T @ (rows - mean) / len(rows)
        ridge = shrinkage * covariance.diagonal().mean()
        covariance = (1 - shrinkage) * covariance + ridge * torch.eye(len(mean), dtype=torch.float64)
        root = torch.linalg.cholesky(covariance)
        whitened = torch.linalg.solve_triangular(root, (states.double() - mean).T, upper=False)
        held = one_hot(labels[:, train], levels).double()
        counts = held.sum(1)  # (p, k)
        means = torch.einsum("dm,pmk->pkd", whitened[:, train], held) / counts.clamp(min=1)[..., None]
        scores = means @ whitened[:, test] - means.square().sum(-1, keepdim=True) / 2
        answers = scores.masked_fill(counts[..., None] == 0, -torch.inf).argmax(1)
        right[:, test] = answers == labels[:, test]
    return right


def permuted_labels(
    labels: Int[Tensor, " n"], groups: Int[Tensor, " n"], permutations: int, seed: int = 0
) -> Int[Tensor, "p n"]:
    """Return the labels, and then permutations of them between groups, see `regrouped`."""
    generator, strata = seeded(seed), torch.zeros(len(labels))
    return torch.stack([labels, *(labels[regrouped(strata, groups, generator)] for _ in range(permutations))])


def balanced(right: Bool[Tensor, "p n"], labels: Int[Tensor, "p n"], levels: int) -> Float[Tensor, " p"]:
    """Return the mean recall over the levels of each labelling, of those that occur in it."""
    held = one_hot(labels, levels).double()
    counts = held.sum(1)
    recalls = (held * right[..., None]).sum(1) / counts.clamp(min=1)
    return recalls.sum(1) / (counts > 0).sum(1)


def simultaneous_t(replicates: Float[Tensor, "b s *r"], level: float = 0.95, draws: int = 4000) -> Float[Tensor, " *r"]:
    """Return the t with which the intervals of s values hold for all of them together, for each of r such families.

    It is the quantile of maxₛ |Tₛ| for T of the multivariate t distribution with b - 1 degrees of freedom, whose
    correlation is that of the replicates: Tₛ = Σ g d / √(Σ d²) / √(χ² / (b - 1)) over b, with normal g and the
    deviations d of a value's replicates from their mean (Hothorn, Bretz & Westfall 2008). Of one value it is Student's
    t up to the error of drawing. A value without deviations takes no part.
    """
    generator, (b, s, *rest) = seeded(0), replicates.shape
    families = (replicates - replicates.mean(0)).double().cpu().reshape(b, s, -1).unbind(2)
    normal = torch.randn(draws, b, generator=generator, dtype=torch.float64)
    chi = torch.randn(draws, b - 1, generator=generator, dtype=torch.float64).square().mean(1).sqrt()
    found = [(normal @ each / each.square().sum(0).sqrt()).nan_to_num(0.0).abs().amax(1) / chi for each in families]
    return torch.stack([t.quantile(level) for t in found]).view(rest).to(replicates)


def band(
    value: Float[Tensor, " s"], replicates: Float[Tensor, "b s"], reference: Float[Tensor, " s"] | None = None
) -> Estimate:
    """Return values by step with intervals that hold for all steps together, from those without parts of the groups.

    Fewer than `FEWEST_GROUPS` parts have no interval: it is (-∞, ∞).
    """
    if len(replicates) < FEWEST_GROUPS:
        return interval_around(value, torch.inf)
    return jackknife(value, replicates, reference, t=simultaneous_t(replicates))


def percentile_interval(value: Int[Tensor, "*b"], draws: Int[Tensor, "*b r"], level: float) -> Estimate:
    """Return the whole number with the interval of this share of its r draws, whose ends are draws."""
    tail, numbers = (1 - level) / 2, draws.double()
    low = numbers.quantile(tail, -1, interpolation="lower").to(draws)
    return Estimate(value, low, numbers.quantile(1 - tail, -1, interpolation="higher").to(draws))


class Curve(NamedTuple):
    """The held-out accuracy of a feature by step, in [0, 1], beside its null, and its onset."""

    accuracy: Estimate  # balanced, with intervals that hold for all steps together, over groups of stimuli
    threshold: float  # what an accuracy exceeds by chance, at any of the steps, in 5 % of permutations
    onset: int  # the index of the first step from which the accuracy stays above it, or the number of steps
    draws: Int[Tensor, " r"]  # the same in each resample of groups


def curve_of(
    right: Bool[Tensor, "s n"],
    labels: Int[Tensor, " n"],
    groups: Int[Tensor, " n"],
    null: Float[Tensor, "s p"],
    resamples: int = 2000,
) -> Curve:
    """Return the curve of a feature: `right` is by probes of other groups, `null` are accuracies of permuted labels.

    Stimuli depend on each other in groups; resamples draw whole ones. Permutations and resamples are the same at all
    steps.
    """
    levels = int(labels.max()) + 1
    judged = balanced_accuracies(right, labels, groups, levels)
    held = one_hot(labels, levels).double().T  # (k, n)
    greatest = null.amax(0).sort(descending=True).values
    threshold = float(greatest[max(int(ALPHA * (len(greatest) + 1)) - 1, 0)])
    number = groups.unique(return_inverse=True)[1]
    weights = drawn_counts(int(number.max()) + 1, resamples, seeded(0))
    counts = weights @ sum_by_document(held, number, weights.shape[1]).T  # (r, k)
    by_group = sum_by_document(right[:, None] * held, number, weights.shape[1])
    sums = torch.einsum("rg,skg->rsk", weights, by_group)
    drawn = (sums / counts.clamp(min=1)[:, None]).sum(-1) / (counts > 0).sum(-1, keepdim=True)
    accuracy = band(torch.stack([each.value for each in judged]), torch.stack([each.replicates for each in judged], 1))
    return Curve(accuracy, threshold, int(onset(accuracy.value > threshold)), onset(drawn > threshold))


def onset(above: Bool[Tensor, "*b s"]) -> Int[Tensor, "*b"]:
    """Return the place of the first step from which on all are above; the number of steps if the last one is not."""
    return above.shape[-1] - above.flip(-1).long().cumprod(-1).sum(-1)


SETTLED = 0.9  # of the way from the first to the last checkpoint
Kept = Sequence[Mapping[str, Any]]  # what each checkpoint gave
Curves = Sequence[tuple[Task, int, Curve]]  # of each task in each layer


def tasks_of_features(config: AnalyzeConfig, stimuli: Stimuli) -> list[Task]:
    """Return the task of each feature: words are held out where each word has one level, and else sentences."""
    measure: Any = config.measure
    found: dict[str, Task] = {}
    for task in tasks_of(stimuli, SPLITS, measure.folds, measure.least, config.seed):
        labelled = pd.DataFrame({"word": [stimuli.words[row] for row in task.rows.tolist()], "level": task.labels})
        if task.split == "sentence" or labelled.groupby("word")["level"].nunique().max() == 1:
            found[task.feature] = task  # that of words comes last
    return list(found.values())


class Reading:
    """Reads checkpoints, each once: all of the same text and the same stimuli."""

    def __init__(self, config: AnalyzeConfig, work: Work):
        measure: Any = config.measure
        self.config, self.measure, self.work, self.stimuli = config, measure, work, work.input("stimuli", Stimuli)
        self.text = work.resume("text") or {}  # what the first checkpoint read
        self.tasks = tasks_of_features(config, self.stimuli)
        permuted = partial(permuted_labels, permutations=measure.permutations, seed=config.seed)
        self.labels = [permuted(task.labels, task.groups) for task in self.tasks]

    def of(self, checkpoint: ModelConfig) -> dict[str, Any]:
        """Return what one checkpoint gives: states and losses of text, and of stimuli accuracies and importances."""
        with self.work.phase("loading"):
            model = load_model(checkpoint)
            cut = tokenizer_fingerprint(model.tokenizer)
            if not self.text:
                rows, _, facts = read_rows(self.config, self.measure.tokens, model)
                self.text = {"tokens": rows.tokens, "documents": rows.documents, "facts": facts, "tokenizer": cut}
                self.work.keep("text", self.text)
        if cut != self.text["tokenizer"]:
            raise DataError(f"{model.name} has another tokenizer than the checkpoints before it")
        with self.work.phase("text"):
            states, losses = _of_text(model, self.text["tokens"].long())
        with self.work.phase("stimuli"):
            words = stimulus_states(model, self.stimuli)
            found = {"states": states, "losses": losses, "model": model.describe(), **self._accuracies(words)}
        if self.measure.importance:
            with self.work.phase("importance"):  # of each feature in each layer on each fold, (l, f, k)
                side = StimulusStates(model.name, list(range(len(words))), list(words), {})
                config = replace(self.config, measure=MLEMConfig(folds=self.measure.folds))
                found["importance"] = fit_profiles(config, self.stimuli, [side])[1].by_fold()
        return found

    def _accuracies(self, words: Sequence[Tensor]) -> dict[str, list[Any]]:
        right, null = [], []  # of each task: what each layer gets right, (l, n), and the accuracies of its null, (l, p)
        for task, labels in zip(self.tasks, self.labels, strict=True):
            count, folds = len(task.levels), task.fold_of
            found = [held_out_right(layer[task.rows], labels, count, folds) for layer in words]
            right.append(torch.stack([each[0] for each in found]))
            null.append(torch.stack([balanced(each[1:], labels[1:], count) for each in found]))
        return {"right": right, "null": null}


def _of_text(model: FrozenModel, rows: Tensor) -> tuple[list[Tensor], Tensor]:
    """Return the states of all tokens by layer, (n, d), and the loss of each token but the first of a row."""
    parts, losses = [], []
    with torch.no_grad():
        for tokens in rows.split(max(BATCH_TOKENS // rows.shape[1], 1)):
            *states, last = model.residuals(tokens, [*sites(model), model.n_layers - 1])
            losses.append(next_token_losses(model, [last], tokens)[0].float().cpu())
            parts.append([layer.flatten(0, 1).float().cpu() for layer in states])
    return [torch.cat(each) for each in zip(*parts, strict=True)], torch.cat(losses)


def outcome(steps: Sequence[int], kept: Kept, reading: Reading) -> Outcome:
    """Return all tables and headline numbers of the checkpoints of these steps."""
    layers, likeness = [], []
    documents = reading.text["documents"][:, 1:].flatten().long().unique(return_inverse=True)[1]
    loss = mean_over_documents(torch.stack([each["losses"].flatten() for each in kept]), documents, together=True)
    losses = pd.DataFrame({"step": steps, **interval_columns("loss", loss)})
    for layer, result in enumerate(_alike(kept, reading)):
        layers.append(_by_step(steps, layer, result))
        cells = pd.DataFrame(itertools.product(steps, steps), columns=["step", "other"])
        value, uncorrected = (each.flatten().numpy() for each in (result.value, result.as_found))
        likeness.append(cells.assign(layer=layer, value=value, uncorrected=uncorrected))
    curves = []
    for layer, (n, task) in itertools.product(range(len(layers)), enumerate(reading.tasks)):
        right, null = (torch.stack([each[part][n][layer] for each in kept]) for part in ("right", "null"))
        curves.append((task, layer, curve_of(right, task.labels, task.groups, null)))
    table, joint = pd.concat(layers, ignore_index=True), pd.concat(likeness, ignore_index=True)
    tables = {
        "losses": losses,
        "likeness": joint[["layer", "step", "other", "value"]],
        "features": _features(steps, kept, reading, curves),
        "onsets": _onsets(steps, curves),
    }
    settled = settling(table, losses)
    scalars = {f"{name}_settles": settled[name] for name in ("loss", "likeness") if math.isfinite(settled[name])}
    scalars |= {"checkpoints": float(len(steps)), "tokens": float(reading.text["tokens"].numel())}
    scalars |= document_counts(torch.bincount(documents).double())
    return Outcome(
        table,
        scalars,
        tables={name: each for name, each in tables.items() if len(each)},
        models=[each["model"] for each in kept],
        facts={**stimuli_facts(reading.stimuli), "data": reading.text["facts"]},
        blank=[*table.columns, *tables["features"].columns, *tables["onsets"].columns],
    )


def settling(table: pd.DataFrame, losses: pd.DataFrame) -> dict[str, float]:
    """Return when the loss, the mean likeness to the last checkpoint and that of each layer settle."""
    curves = {"loss": losses["loss"], "likeness": table.groupby("step")["to_last"].mean()}
    curves |= {f"layer {layer}": rows["to_last"] for layer, rows in table.groupby("layer")}
    return {name: settles(losses["step"].tolist(), [*curve]) for name, curve in curves.items()}


def settles(steps: Sequence[int], values: Sequence[float]) -> float:
    """Return the step from which on a curve has gone nine tenths of the way from its first to its last value.

    Between checkpoints it is interpolated over log₂(1 + step). It is NaN where both values are the same.
    """
    curve, place = np.asarray(values, float), np.log2(1 + np.asarray(steps, float))
    if curve[0] == curve[-1]:
        return math.nan
    left = 1 - (curve - curve[0]) / (curve[-1] - curve[0]) - (1 - SETTLED)  # above 0: not yet there
    last = int(np.flatnonzero(left > 0)[-1])
    share = left[last] / (left[last] - left[last + 1])
    return float(2 ** (place[last] + share * (place[last + 1] - place[last])) - 1)


def _alike(kept: Kept, reading: Reading) -> list[CKAResult]:
    """Return for each layer the CKA of every two checkpoints, of states less the means of their token and position."""
    documents = numbered_by_part(reading.text["documents"].flatten().long())
    tokens = reading.text["tokens"].flatten().long()
    positions = torch.arange(reading.text["tokens"].shape[1]).expand_as(reading.text["tokens"]).flatten()
    outliers = massive([layer for each in kept for layer in each["states"]])
    rows = torch.arange(len(tokens)) if outliers is None else (~outliers).nonzero()[:, 0]
    found = []
    for layer in range(len(kept[0]["states"])):
        states = [each["states"][layer][rows] for each in kept]
        try:
            within, metric = RowGroups.of(tokens[rows], FEWEST_HSIC_ROWS), CKA(len(kept), len(kept), given="token")
            states = [within.without_means(each, positions[rows]).to(each) for each in states]
            metric.update(states, states, documents=documents[rows][within.order], groups=tokens[rows][within.order])
        except ValueError as error:
            raise DataError(f"layer {layer} at the checkpoints, numbered from 0: {error}") from error
        found.append(metric.compute())
    return found


def _by_step(steps: Sequence[int], layer: int, result: CKAResult) -> pd.DataFrame:
    """Return likeness to the last checkpoint and to the one before, and the angle between these per doubling."""
    value, without = result.as_found, result.without
    place = torch.log2(1 + torch.tensor(steps, dtype=torch.float64))
    last = band(value[:, -1], without[:, :, -1], value[:, -1])
    before = band(*(each.diagonal(1, -2, -1) for each in (value, without, value)))
    angle, angles = (each.diagonal(1, -2, -1).clamp(-1, 1).arccos() / place.diff() for each in (value, without))
    columns = {"step": list(steps), "layer": layer, **interval_columns("to_last", last)}
    for name, each in {"to_previous": before, "speed": band(angle, angles, angle)}.items():
        columns |= {key: [math.nan, *values] for key, values in interval_columns(name, each).items()}
    return pd.DataFrame(columns)


def _features(steps: Sequence[int], kept: Kept, reading: Reading, curves: Curves) -> pd.DataFrame:
    parts = []
    for task, layer, curve in curves:
        columns = {"step": list(steps), "layer": layer, "feature": task.feature, "held_out": task.split}
        columns |= interval_columns("accuracy", curve.accuracy)
        parts.append(pd.DataFrame({**columns, "null": curve.threshold, "chance": 1 / len(task.levels)}))
    table = pd.concat(parts, ignore_index=True)
    if "importance" not in kept[0]:
        return table
    folds = torch.stack([each["importance"] for each in kept])  # (s, l, f, k)
    importance = interval_columns("importance", fold_interval(folds, t=simultaneous_t(folds.movedim(-1, 0))))
    names = reading.stimuli.names
    cells = pd.DataFrame(itertools.product(steps, range(folds.shape[1]), names), columns=["step", "layer", "feature"])
    cells = cells.assign(**{name: np.asarray(each).ravel() for name, each in importance.items()})
    return table.merge(cells, how="outer", on=["step", "layer", "feature"], sort=False)


def _onsets(steps: Sequence[int], curves: Curves) -> pd.DataFrame:
    """Return the step of onset by layer and feature with its interval; a blank is after the last checkpoint."""
    after = [*map(float, steps), math.nan]
    rows = []
    for task, layer, curve in curves:
        ends = percentile_interval(torch.tensor(curve.onset), curve.draws, 0.95)
        rows.append((layer, task.feature, *(after[int(place)] for place in ends)))
    return pd.DataFrame(rows, columns=["layer", "feature", "onset", "earliest", "latest"])
