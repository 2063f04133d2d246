"""Scores of models in subjects as columns of a table."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from thinkalike.contrib.subjects.model_scores import Scored
from thinkalike.contrib.subjects.random_effects import random_effects
from thinkalike.contrib.subjects.resampling import Draws, two_factor
from thinkalike.measures.changes import two_sided


def score_columns(
    scores: Sequence[Scored], draws: Draws | None = None, value: str = "value"
) -> pd.DataFrame:
    """Return a row for each model: the mean score over subjects, intervals, and a p-value.

    `low` and `high` are the ends of the interval over subjects; `both_low` and `both_high` are the
    ends of the interval over subjects and stimuli. The null hypothesis of `p` is a mean of 0.
    Without resamples of the stimuli, `both_low` and `both_high` are left out, and `p` considers
    subjects alone.

    Args:
        scores: The scores of each model in each subject.
        draws: The resamples that the scores' replicates come from; None: there are none.
        value: The name of the column of means.
    """
    rows = []
    for scored in scores:
        mean, low, high = random_effects(scored.values)
        row = {value: float(mean), "low": float(low), "high": float(high)}
        if draws is not None and len(scored.replicates):
            two_factors = two_factor(scored.values, scored.replicates, draws)
            row["both_low"] = float(two_factors.estimate.low)
            row["both_high"] = float(two_factors.estimate.high)
            row["p"] = float(two_factors.p)
        else:
            n_subjects = len(scored.values)
            error = scored.values.std() / n_subjects**0.5
            row["p"] = float(two_sided(mean, error, n_subjects - 1))
        rows.append(row)
    return pd.DataFrame(rows)
