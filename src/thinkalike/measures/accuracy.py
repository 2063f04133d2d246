"""Balanced accuracy, the mean recall over levels, with intervals over groups of stimuli."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from thinkalike.measures.bootstrap import sum_by_document
from thinkalike.measures.estimates import Estimate, interval_around, jackknife, student_t
from thinkalike.measures.folds import JACKKNIFE_PARTS, numbered_by_part
from thinkalike.measures.sample_size import FEWEST_GROUPS, effective_number


def balanced_folds(
    labels: Int[Tensor, " n"], groups: Int[Tensor, " n"], folds: int, seed: int
) -> Int[Tensor, " n"]:
    """Return the fold, from 0, of each stimulus, such that labels are spread evenly over folds.

    All stimuli of a group are in one fold.

    Args:
        labels: The class of each stimulus.
        groups: The group of each stimulus, such as its sentence.
        folds: How many folds there are.
        seed: The seed of the random folds.

    Raises:
        ValueError: There are fewer groups than folds.
    """
    from sklearn.model_selection import StratifiedGroupKFold

    group_count = len(groups.unique())
    if group_count < folds:
        raise ValueError(f"{folds} folds of {group_count} groups: there must be as many groups")
    splitter = StratifiedGroupKFold(folds, shuffle=True, random_state=seed)
    fold_of = torch.empty(len(labels), dtype=torch.long)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of labels with fewer stimuli than there are folds
        for fold, (_, test) in enumerate(splitter.split(labels, labels, groups)):
            fold_of[torch.from_numpy(test)] = fold
    return fold_of


def sums_without_each_part(
    values: Float[Tensor, "*b n"], groups: Int[Tensor, " n"]
) -> Float[Tensor, "*b r"]:
    """Return the sum of n values, and then the sums that a jackknife over groups needs.

    These leave out one part of the groups each. The parts, `JACKKNIFE_PARTS` of them, have about
    equally many values. If there are fewer groups than parts, each group is a part.

    Args:
        values: The values, along the last axis.
        groups: The group of each value.

    Returns:
        The r = 1 + parts sums, along the last axis.
    """
    part_of_value = numbered_by_part(groups) % JACKKNIFE_PARTS
    sums = sum_by_document(values, part_of_value, int(part_of_value.max()) + 1)
    total = sums.sum(-1, keepdim=True)
    return torch.cat([total, total - sums], -1)


@dataclass(frozen=True, eq=False)
class Jackknifed:
    """Values of all stimuli, and their jackknife replicates: the values without some stimuli.

    The stimuli are in groups, such as sentences, and the groups are divided into r parts. Each
    replicate leaves out one part.

    Attributes:
        value: The values of all stimuli.
        replicates: The values without each part of the groups.
        effective_parts: How many parts of equal size the parts are worth, see `effective_number`.
    """

    value: Float[Tensor, "*b"]
    replicates: Float[Tensor, "*b r"]
    effective_parts: float

    def interval(self, level: float = 0.95) -> Estimate:
        """Return the values with jackknife intervals over the parts of the stimuli.

        Their ends are NaN if there are fewer than `FEWEST_GROUPS` parts. If parts have unequal
        sizes, they are worth fewer parts of equal size, `effective_parts`. Student's t has one
        degree of freedom less than this number, at least 1, which widens the intervals.

        Args:
            level: The probability with which an interval covers the value.
        """
        if self.replicates.shape[-1] < FEWEST_GROUPS:
            return interval_around(self.value, torch.nan)
        t = torch.tensor(student_t(level, max(self.effective_parts - 1, 1)), dtype=torch.float64)
        return jackknife(self.value, self.replicates.movedim(-1, 0), level=level, t=t)

    def share_of(self, other: Jackknifed, above: float = 0.0, level: float = 0.95) -> Estimate:
        """Return (a - above) / (b - above), with intervals, for each of these values a and one b.

        If a and b are accuracies and `above` is that of chance, it is the share of b's accuracy
        above chance that a reaches. It is NaN if the lower end of b's interval is not greater than
        `above`, because the divisor may then be about 0.

        Args:
            other: The single value b, jackknifed over the same parts.
            above: The value that is subtracted from both, such as the accuracy of chance.
            level: The probability with which the interval covers the share.
        """
        if other.interval(level).low <= above:
            return interval_around(torch.full_like(self.value, torch.nan), torch.nan)
        share = (self.value - above) / (other.value - above)
        shares_without = (self.replicates - above) / (other.replicates - above)
        return Jackknifed(share, shares_without, self.effective_parts).interval(level)


@dataclass(frozen=True, eq=False)
class Accuracy(Jackknifed):
    """A balanced accuracy, in [0, 1], jackknifed over sentences.

    Attributes:
        levels: How many levels the labels have.
    """

    levels: int

    @property
    def chance(self) -> float:
        """The balanced accuracy of answers that do not depend on the stimulus."""
        return 1 / self.levels


def balanced_accuracies(
    right: Shaped[Tensor, "c n"],
    labels: Int[Tensor, " n"],
    sentences: Int[Tensor, " n"],
    levels: int,
) -> list[Accuracy]:
    """Return the balanced accuracy of each of c conditions, jackknifed over the same sentences.

    It is the mean recall over the levels, which are the classes of the stimuli. A jackknife
    replicate leaves out a part of the sentences, and is the mean over the levels that still occur.

    Args:
        right: Whether the answer to each stimulus was right in each condition, 1 or 0, or if there
            were several answers, the share of right ones.
        labels: The level of each stimulus, from 0; each of the levels occurs.
        sentences: The sentence of each stimulus; sentences are left out as a whole.
        levels: How many levels there are.
    """
    has_level = torch.nn.functional.one_hot(labels, levels).double().T  # (levels, n)
    # Entry 0 of the last axis is of all sentences, the others are without each part.
    level_sizes = sums_without_each_part(has_level, sentences)  # (levels, 1 + parts)
    occurs = level_sizes > 0
    right_of_level = sums_without_each_part(right.double()[:, None] * has_level, sentences)
    # The recall of a level that does not occur is 0 / 1, which adds nothing to the sum.
    recalls = right_of_level / level_sizes.masked_fill(~occurs, 1)  # (c, levels, 1 + parts)
    means = recalls.sum(1) / occurs.sum(0)  # (c, 1 + parts)
    stimulus_counts = level_sizes.sum(0)  # of all stimuli, then without each part
    part_sizes = stimulus_counts[0] - stimulus_counts[1:]
    effective_parts = effective_number(part_sizes)
    return [Accuracy(values[0], values[1:], effective_parts, levels) for values in means]
