"""Scores of models in subjects as columns of a table."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from thinkalike.contrib.subjects.model_scores import SubjectScores
from thinkalike.contrib.subjects.random_effects import random_effects
from thinkalike.contrib.subjects.resampling import Draws, two_factor
from thinkalike.measures.changes import two_sided


def score_columns(
    scores: Sequence[SubjectScores], draws: Draws | None = None, value: str = "value"
) -> pd.DataFrame:
    """Return a row for each model: the mean score over subjects, intervals, and a p-value.

    A subject is a recorded participant. `low` and `high` are the ends of the interval over
    subjects; `both_low` and `both_high` are the ends of the interval over subjects and stimuli.
    The null hypothesis of `p` is a mean of 0. Without resamples of the stimuli, `both_low` and
    `both_high` are left out, and `p` is that of a t test over subjects alone.

    Args:
        scores: For each model, its score in each subject from all stimuli (`values`), and again
            from each resample of the stimuli (`replicates`, empty if there are no resamples).
        draws: How often each stimulus and each subject is drawn in these same resamples; None:
            there are none.
        value: The name of the column of means.
    """
    rows = []
    for subject_scores in scores:
        mean, low, high = random_effects(subject_scores.values)
        row = {value: float(mean), "low": float(low), "high": float(high)}
        if draws is not None and len(subject_scores.replicates):
            over_both = two_factor(subject_scores.values, subject_scores.replicates, draws)
            row["both_low"] = float(over_both.estimate.low)
            row["both_high"] = float(over_both.estimate.high)
            row["p"] = float(over_both.p)
        else:
            n_subjects = len(subject_scores.values)
            standard_error = subject_scores.values.std() / n_subjects**0.5
            row["p"] = float(two_sided(mean, standard_error, n_subjects - 1))
        rows.append(row)
    return pd.DataFrame(rows)
