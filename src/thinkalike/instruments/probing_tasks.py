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

from thinkalike.advice import named_setting
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
        rows: The index of each stimulus among all stimuli.
        labels: The index of its level in `levels`.
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

    def without_levels_of_one_fold(self) -> Task:
        """Return the task without the stimuli of levels that occur in one fold only.

        A level is a value of the feature that a probe predicts, such as plural. One that occurs in
        one fold cannot be learned: a probe that is evaluated on that fold is fitted on the
        other folds, and never sees it. The remaining levels are numbered anew.
        """
        fold_count_of_level = []
        for label in range(len(self.levels)):
            folds = self.fold_of[self.labels == label].unique()
            fold_count_of_level.append(len(folds))
        is_kept = torch.tensor(fold_count_of_level)[self.labels] > 1  # (stimuli)
        # `new_labels` numbers the remaining levels from 0, in the order of their former labels.
        kept_labels, new_labels = self.labels[is_kept].unique(return_inverse=True)
        return replace(
            self,
            levels=[self.levels[label] for label in kept_labels.tolist()],
            labels=new_labels,
            rows=self.rows[is_kept],
            sentences=self.sentences[is_kept],
            groups=self.groups[is_kept],
            fold_of=self.fold_of[is_kept],
        )


def tasks_of_features_and_splits(
    stimuli: Stimuli, splits: Sequence[str], folds: int, least: int, seed: int
) -> Iterator[Task]:
    """Yield a probing task for each feature and each way of splitting stimuli into folds.

    A task is left out with a warning if there are fewer words than folds, or if fewer than two
    levels occur in several folds.

    Args:
        stimuli: The stimuli.
        splits: What folds keep together, "sentence", "word" or both.
        folds: How many folds there are.
        least: Levels that fewer stimuli have are left out.
        seed: The seed of the folds.

    Raises:
        DataError: A feature is continuous, or has fewer than two levels, or too few sentences.
    """
    word_numbers, _ = pd.factorize(np.array(stimuli.words, dtype=object))
    group_numbers = {"sentence": stimuli.groups, "word": torch.from_numpy(word_numbers)}
    for name, split in itertools.product(stimuli.names, splits):
        rows, labels, levels = _stimuli_of_frequent_levels(stimuli, name, least)
        groups = group_numbers[split][rows]
        try:
            fold_of = balanced_folds(labels, groups, folds, seed)
        except ValueError as error:
            if split == "sentence":
                raise DataError(
                    f"{stimuli.source}: {name}: {error}; lower {named_setting('measure.folds')}"
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
        task = task.without_levels_of_one_fold()
        if len(task.levels) > 1:
            yield task
        else:
            log.warning(
                "warning: %s is not judged on held-out %ss: each level has one alone", name, split
            )


def _stimuli_of_frequent_levels(
    stimuli: Stimuli, name: str, least: int
) -> tuple[Int[Tensor, " n"], Int[Tensor, " n"], Sequence[str]]:
    """Return the stimuli that have a frequent level of a feature.

    Args:
        stimuli: The stimuli.
        name: The feature.
        least: A level is frequent if at least so many stimuli have it.

    Returns:
        The index of each such stimulus among all stimuli, the index of its level, and the names of
        the levels in rising order.

    Raises:
        DataError: The feature is continuous, or has fewer than two frequent levels.
    """
    column = stimuli.features[name]
    if stimuli.kinds[name] == "continuous":
        raise DataError(
            f"{stimuli.source}: {name} is continuous, without levels; leave it out of "
            f"{named_setting('stimuli.features')}"
        )
    values = column.dropna()
    stimuli_per_level = values.map(values.value_counts()).astype(int)
    frequent = values[stimuli_per_level >= least]
    if frequent.nunique() < 2:
        raise DataError(
            f"{stimuli.source}: {name} has fewer than two levels of "
            f"{named_setting('measure.least', least)} stimuli"
        )
    is_number = frequent.dtype.kind in "if"  # integers and floats
    sortable = frequent.astype(float) if is_number else frequent.astype(str)
    labels, levels = pd.factorize(sortable, sort=True)
    level_names = []
    for level in levels:
        level_names.append(f"{level:g}" if isinstance(level, float) else str(level))
    rows = torch.tensor(frequent.index.to_numpy())  # the index of the table numbers the stimuli
    return rows, torch.from_numpy(labels), level_names
