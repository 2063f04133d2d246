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
    """Return the fold of each stimulus: groups stay together, and levels are spread evenly.

    A ValueError says that there are fewer groups than folds.
    """
    from sklearn.model_selection import StratifiedGroupKFold

    if (count := len(groups.unique())) < folds:
        raise ValueError(f"{folds} folds of {count} groups: there must be as many groups")
    splitter = StratifiedGroupKFold(folds, shuffle=True, random_state=seed)
    fold_of = torch.empty(len(labels), dtype=torch.long)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of levels with fewer stimuli than there are folds
        for fold, (_, test) in enumerate(splitter.split(labels, labels, groups)):
            fold_of[torch.from_numpy(test)] = fold
    return fold_of


def without_each_part(
    values: Float[Tensor, "*b n"], groups: Int[Tensor, " n"]
) -> Float[Tensor, "*b r"]:
    """Return the sum of all values, and the sums without each of up to `PARTS` parts of groups."""
    part_of = numbered_by_part(groups) % JACKKNIFE_PARTS
    sums = sum_by_document(values, part_of, int(part_of.max()) + 1)
    total = sums.sum(-1, keepdim=True)
    return torch.cat([total, total - sums], -1)


@dataclass(frozen=True, eq=False)
class Jackknifed:
    """Values, and those without each of r parts of the groups; see `without_each_part`."""

    value: Float[Tensor, "*b"]
    replicates: Float[Tensor, "*b r"]
    worth: float  # how many parts of equal size these are worth; see `effective_number`

    def interval(self, level: float = 0.95) -> Estimate:
        """Return the values with `jackknife` intervals; NaN for fewer than `FEWEST_GROUPS` groups.

        Unequal parts say less about the spread, so Student's t is that of as many parts as they
        are worth.
        """
        if self.replicates.shape[-1] < FEWEST_GROUPS:
            return interval_around(self.value, torch.nan)
        t = torch.tensor(student_t(level, max(self.worth - 1, 1)), dtype=torch.float64)
        return jackknife(self.value, self.replicates.movedim(-1, 0), level=level, t=t)

    def share_of(self, other: Jackknifed, above: float = 0.0, level: float = 0.95) -> Estimate:
        """Return (a - above) / (b - above) of these values a and one other, b, of the same groups.

        It is NaN where the interval of b is not above `above`.
        """
        if other.interval(level).low <= above:
            return interval_around(torch.full_like(self.value, torch.nan), torch.nan)
        value = (self.value - above) / (other.value - above)
        return Jackknifed(
            value, (self.replicates - above) / (other.replicates - above), self.worth
        ).interval(level)


@dataclass(frozen=True, eq=False)
class Accuracy(Jackknifed):
    """A balanced accuracy, in [0, 1], jackknifed over sentences."""

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
    """Return the balanced accuracy of each of c conditions on the same stimuli and parts.

    `right` may also be the share of several answers. Each of the levels occurs.
    """
    has_level = torch.nn.functional.one_hot(labels, levels).double().T  # (levels, n)
    level_sizes = without_each_part(has_level, sentences)  # (levels, 1 + parts)
    occurs = level_sizes > 0
    right_of_level = without_each_part(right.double()[:, None] * has_level, sentences)
    recalls = right_of_level / level_sizes.masked_fill(~occurs, 1)  # (c, levels, 1 + parts)
    means = recalls.sum(1) / occurs.sum(0)  # over the levels that occur without a part
    sizes = level_sizes.sum(0)
    worth = effective_number(sizes[0] - sizes[1:])
    return [Accuracy(values[0], values[1:], worth, levels) for values in means]
