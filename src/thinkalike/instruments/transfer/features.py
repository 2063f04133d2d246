"""The tasks of probes: the stimuli that have a level of a feature, divided by sentences or by words."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int
from torch import Tensor

from thinkalike.data import Stimuli
from thinkalike.errors import DataError
from thinkalike.measures import balanced_folds

log = logging.getLogger(__name__)

SPLITS = ("sentence", "word")


@dataclass(frozen=True, eq=False)
class Task:
    """To tell the levels of a feature apart in n stimuli, of which folds keep those of a sentence, or a word, together.

    Attributes:
        rows: which of all stimuli.
        labels: the number of each one's level, below `levels`.
        sentences: the number of the text of each.
        groups: what a fold keeps together.
    """

    feature: str
    split: str
    levels: Sequence[str]
    rows: Int[Tensor, " n"]
    labels: Int[Tensor, " n"]
    sentences: Int[Tensor, " n"]
    groups: Int[Tensor, " n"]
    fold_of: Int[Tensor, " n"]

    def take(self, kept: Int[Tensor, " m"]) -> Task:
        """Return the task of some of the stimuli, with the levels that these have."""
        present, labels = self.labels[kept].unique(return_inverse=True)
        parts = (each[kept] for each in (self.sentences, self.groups, self.fold_of))
        levels = [self.levels[place] for place in present.tolist()]
        return Task(self.feature, self.split, levels, self.rows[kept], labels, *parts)


def tasks_of(stimuli: Stimuli, splits: Sequence[str], folds: int, least: int, seed: int) -> list[Task]:
    """Return the task of each feature by each split; one that words are too few for is left out, which a warning says.

    Args:
        least: how many stimuli a level must have, to be told apart.

    Raises:
        DataError: a feature has fewer than two such levels, or is continuous, or the sentences are too few.
    """
    return [task for name in stimuli.names for task in _of_feature(stimuli, name, splits, folds, least, seed)]


def _of_feature(
    stimuli: Stimuli, name: str, splits: Sequence[str], folds: int, least: int, seed: int
) -> Iterator[Task]:
    rows, labels, levels = _labelled(stimuli, name, least)
    words = torch.from_numpy(pd.factorize(np.array(stimuli.words, dtype=object))[0])
    for split in splits:
        groups = (stimuli.groups if split == "sentence" else words)[rows]
        try:
            fold_of = balanced_folds(labels, groups, folds, seed)
        except ValueError as error:
            if split == "sentence":
                raise DataError(f"{stimuli.source}: {name}: {error}; lower measure.folds") from error
            log.warning("warning: %s is not judged on held-out words: %s", name, error)
            continue
        task = _learnable(Task(name, split, levels, rows, labels, stimuli.groups[rows], groups, fold_of))
        if len(task.levels) > 1:
            yield task
        else:
            log.warning("warning: %s is not judged on held-out %ss: each level has one alone", name, split)


def _labelled(stimuli: Stimuli, name: str, least: int) -> tuple[Int[Tensor, " n"], Int[Tensor, " n"], Sequence[str]]:
    """Return the stimuli with a level of the feature that is not too rare, the number of that level, and its name."""
    column = stimuli.features[name]
    if stimuli.kinds[name] == "continuous":
        raise DataError(
            f"{stimuli.source}: {name} is continuous, and a probe tells levels apart; leave it out of stimuli.features"
        )
    values = column.dropna()
    if values.nunique() < 2:
        raise DataError(
            f"{stimuli.source}: {name} has one level only, {values.iloc[0] if len(values) else 'none'}; leave it out "
            "of stimuli.features"
        )
    counts = values.value_counts()
    kept = values[values.map(counts).astype(int) >= least]
    if kept.nunique() < 2:
        raise DataError(
            f"{stimuli.source}: {name} has fewer than two levels of measure.least={least} stimuli; lower it, or leave "
            f"{name} out of stimuli.features"
        )
    labels, levels = pd.factorize(kept.astype(float) if kept.dtype.kind in "if" else kept.astype(str), sort=True)
    names = [f"{level:g}" if isinstance(level, float) else str(level) for level in levels]
    return torch.tensor(kept.index.to_numpy()), torch.from_numpy(labels), names


def _learnable(task: Task) -> Task:
    """Return the task without levels that one fold has alone, as the probe that is judged there never saw them."""
    folds = torch.stack(
        [torch.bincount(task.fold_of[task.labels == k]).count_nonzero() for k in range(len(task.levels))]
    )
    kept = (folds[task.labels] > 1).nonzero()[:, 0]
    return task if len(kept) == len(task.labels) else task.take(kept)
