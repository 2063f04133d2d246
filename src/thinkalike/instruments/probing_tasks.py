"""Probing tasks: which stimuli have which level of a feature, in folds that keep a sentence, or a word, together."""

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


@dataclass(frozen=True, eq=False)
class Task:
    """A probing task: n stimuli with their levels of a feature, in folds that keep a sentence, or a word, together."""

    feature: str
    split: str
    levels: Sequence[str]
    rows: Int[Tensor, " n"]  # the numbers of the stimuli among all
    labels: Int[Tensor, " n"]  # the number of each one's level
    sentences: Int[Tensor, " n"]  # the number of the text of each
    groups: Int[Tensor, " n"]  # the number of the sentence or the word of each
    fold_of: Int[Tensor, " n"]

    def learnable(self) -> Task:
        """Return the task without levels that occur in one fold only, which its probe never sees."""
        folds = torch.tensor([len(self.fold_of[self.labels == k].unique()) for k in range(len(self.levels))])
        kept = folds[self.labels] > 1
        present, labels = self.labels[kept].unique(return_inverse=True)
        parts = {name: getattr(self, name)[kept] for name in ("rows", "sentences", "groups", "fold_of")}
        return replace(self, levels=[self.levels[place] for place in present.tolist()], labels=labels, **parts)


def tasks_of(stimuli: Stimuli, splits: Sequence[str], folds: int, least: int, seed: int) -> Iterator[Task]:
    """Yield the task of each feature by each split; a split by too few words is left out with a warning.

    Levels of fewer than `least` stimuli are left out. A feature without two levels, or a continuous one, is refused.
    """
    words = torch.from_numpy(pd.factorize(np.array(stimuli.words, dtype=object))[0])
    for name, split in itertools.product(stimuli.names, splits):
        rows, labels, levels = _labelled(stimuli, name, least)
        groups = (stimuli.groups if split == "sentence" else words)[rows]
        try:
            fold_of = balanced_folds(labels, groups, folds, seed)
        except ValueError as error:
            if split == "sentence":
                raise DataError(f"{stimuli.source}: {name}: {error}; lower measure.folds") from error
            log.warning("warning: %s is not judged on held-out words: %s", name, error)
            continue
        task = Task(name, split, levels, rows, labels, stimuli.groups[rows], groups, fold_of).learnable()
        if len(task.levels) > 1:
            yield task
        else:
            log.warning("warning: %s is not judged on held-out %ss: each level has one alone", name, split)


def _labelled(stimuli: Stimuli, name: str, least: int) -> tuple[Int[Tensor, " n"], Int[Tensor, " n"], Sequence[str]]:
    """Return the stimuli whose level of the feature is not too rare, the number of each one's level, and all levels."""
    column = stimuli.features[name]
    if stimuli.kinds[name] == "continuous":
        raise DataError(f"{stimuli.source}: {name} is continuous, without levels; leave it out of stimuli.features")
    values = column.dropna()
    kept = values[values.map(values.value_counts()).astype(int) >= least]
    if kept.nunique() < 2:
        raise DataError(f"{stimuli.source}: {name} has fewer than two levels of measure.least={least} stimuli")
    labels, levels = pd.factorize(kept.astype(float) if kept.dtype.kind in "if" else kept.astype(str), sort=True)
    names = [f"{level:g}" if isinstance(level, float) else str(level) for level in levels]
    return torch.tensor(kept.index.to_numpy()), torch.from_numpy(labels), names
