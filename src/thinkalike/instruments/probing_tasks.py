"""Probing tasks: which stimuli have which level of a feature, in folds of sentences or words."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int
from torch import Tensor

from thinkalike.data.stimuli import Stimuli
from thinkalike.errors import DataError
from thinkalike.measures.accuracy import balanced_folds

log = logging.getLogger(__name__)

SPLITS = ("sentence", "word")
"""What a fold keeps together."""


@dataclass(frozen=True, eq=False)
class Task:
    """A probing task: n stimuli with their levels of a feature, in folds.

    Attributes:
        feature: The name of the feature.
        split: What a fold keeps together, one of `SPLITS`.
        levels: The levels of the feature.
        rows: The number of each stimulus among all.
        labels: The number of its level.
        sentences: The number of its text.
        groups: The number of its sentence or word, which a fold keeps together.
        fold_of: The number of its fold.
    """

    feature: str
    split: str
    levels: Sequence[str]
    rows: Int[Tensor, " n"]
    labels: Int[Tensor, " n"]
    sentences: Int[Tensor, " n"]
    groups: Int[Tensor, " n"]
    fold_of: Int[Tensor, " n"]

    def learnable(self) -> Task:
        """Return the task without levels that occur in one fold only.

        A probe that is judged on that fold never sees such a level.
        """
        folds_of_levels = []
        for label in range(len(self.levels)):
            folds = self.fold_of[self.labels == label].unique()
            folds_of_levels.append(len(folds))
        is_learnable = torch.tensor(folds_of_levels)[self.labels] > 1  # (n)
        present, labels = self.labels[is_learnable].unique(return_inverse=True)
        return replace(
            self,
            levels=[self.levels[label] for label in present.tolist()],
            labels=labels,
            rows=self.rows[is_learnable],
            sentences=self.sentences[is_learnable],
            groups=self.groups[is_learnable],
            fold_of=self.fold_of[is_learnable],
        )


def tasks_of(
    stimuli: Stimuli, splits: Sequence[str], folds: int, least: int, seed: int
) -> Iterator[Task]:
    """Yield the task of each feature by each split.

    A split by too few words is left out with a warning.

    Args:
        stimuli: The stimuli.
        splits: What folds keep together, some of `SPLITS`.
        folds: How many folds there are.
        least: Levels of fewer stimuli are left out.
        seed: The seed of the folds.

    Raises:
        DataError: A feature is continuous, or has fewer than two levels, or too few sentences.
    """
    words, _ = pd.factorize(np.array(stimuli.words, dtype=object))
    groups_of_splits = {"sentence": stimuli.groups, "word": torch.from_numpy(words)}
    for name, split in itertools.product(stimuli.names, splits):
        rows, labels, levels = _labelled(stimuli, name, least)
        groups = groups_of_splits[split][rows]
        try:
            fold_of = balanced_folds(labels, groups, folds, seed)
        except ValueError as error:
            if split == "sentence":
                raise DataError(
                    f"{stimuli.source}: {name}: {error}; lower measure.folds"
                ) from error
            log.warning("warning: %s is not judged on held-out words: %s", name, error)
            continue

        task = Task(
            feature=name,
            split=split,
            levels=levels,
            rows=rows,
            labels=labels,
            sentences=stimuli.groups[rows],
            groups=groups,
            fold_of=fold_of,
        )
        task = task.learnable()
        if len(task.levels) > 1:
            yield task
        else:
            log.warning(
                "warning: %s is not judged on held-out %ss: each level has one alone", name, split
            )


def _labelled(
    stimuli: Stimuli, name: str, least: int
) -> tuple[Int[Tensor, " n"], Int[Tensor, " n"], Sequence[str]]:
    """Return the stimuli that have a frequent level of a feature.

    Args:
        stimuli: The stimuli.
        name: The feature.
        least: Levels of fewer stimuli are left out.

    Returns:
        The number of each such stimulus among all, the number of its level, and the names of the
        levels in rising order.

    Raises:
        DataError: The feature is continuous, or has fewer than two frequent levels.
    """
    column = stimuli.features[name]
    if stimuli.kinds[name] == "continuous":
        raise DataError(
            f"{stimuli.source}: {name} is continuous, without levels; leave it out of "
            "stimuli.features"
        )
    values = column.dropna()
    stimuli_per_level = values.map(values.value_counts()).astype(int)
    frequent = values[stimuli_per_level >= least]
    if frequent.nunique() < 2:
        raise DataError(
            f"{stimuli.source}: {name} has fewer than two levels of measure.least={least} stimuli"
        )
    is_number = frequent.dtype.kind in "if"
    sortable = frequent.astype(float) if is_number else frequent.astype(str)
    labels, levels = pd.factorize(sortable, sort=True)
    level_names = []
    for level in levels:
        level_names.append(f"{level:g}" if isinstance(level, float) else str(level))
    rows = torch.tensor(frequent.index.to_numpy())
    return rows, torch.from_numpy(labels), level_names
