"""The probing words: table S1 and figure S5 of Salle et al. 2024."""

from __future__ import annotations

from functools import partial
from importlib import resources
from typing import Any

import pandas as pd
import torch

from thinkalike import figures
from thinkalike.data import Stimuli, derivations, from_sentences, read_stimuli
from thinkalike.measures import Estimate, jackknife, stimulus_folds
from thinkalike.papers.claims import Bound, counted, judged
from thinkalike.papers.experiment import Case, Conclusion, Experiment

NEARLY = 0.9  # a correlation of features that are nearly the same
PARTS = 10  # of the stimuli, which an interval leaves out in turn


def _table_s1(case: Case) -> Conclusion:
    """The sentences of table S1, as the grammar derives them, beside the table."""
    with resources.as_file(resources.files("thinkalike.papers") / "table_s1.csv") as path:
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
    texts = [" ".join(rows["word"]) for _, rows in table.groupby("sentence", sort=False)]
    stimuli = from_sentences([derivations(text)[0] for text in texts])
    made = stimuli.features.astype(object).map(printed)
    made.insert(0, "word", stimuli.words)
    same = int((made == table[made.columns]).all(axis=1).sum())
    rows = f"{len(table)} rows"
    claim = counted("the grammar makes every row of table S1", same == len(table), f"{same} of {rows}", rows)
    return Conclusion(made, [claim])


def printed(value: Any) -> str:
    """Return a value as the table prints it."""
    if pd.isna(value):
        return "NaN"
    return str(int(value)) if isinstance(value, float) else str(value)


def _figure_s5(case: Case) -> Conclusion:
    """Correlations of all features with all over pairs of probing words."""
    stimuli = read_stimuli(case.config.stimuli)
    correlation = stimuli.correlation()
    (a, b, _), *_ = correlation.strongest(1)
    pairs = ", ".join(f"{first} and {second} {value:+.2f}" for first, second, value in correlation.strongest(5))
    found, parts = _correlated(stimuli, a, b)
    claim = judged(
        "no two features of the probing words are nearly the same",
        [(Bound("within", NEARLY), found)],
        f"strongest correlations: {pairs}; the first {found:+.2f}",
        f"{parts} parts of {len(stimuli)} words",
    )
    table = correlation.table.rename_axis("feature").reset_index()
    return Conclusion(table, [claim], partial(figures.correlation, correlation.table))


def _correlated(stimuli: Stimuli, a: str, b: str) -> tuple[Estimate, int]:
    """Return the correlation of two features with its jackknife interval over parts of the stimuli, and their number.

    Words of one sentence are in one part.
    """
    groups = stimuli.groups
    parts = min(PARTS, len(groups.unique()))
    part_of = stimulus_folds(len(stimuli), parts, groups=groups)
    some = [stimuli, *(stimuli.take((part_of != part).numpy()) for part in range(parts))]
    values = torch.tensor([each.correlation().table.loc[a, b] for each in some])
    return jackknife(values[0], values[1:]), parts


MODELS: dict[str, list[str]] = {"paper": [], "mini": []}  # these are about words alone
EXPERIMENTS = [
    Experiment("salle2024/figure_s5", _figure_s5, MODELS, measure="mlem"),
    Experiment("salle2024/table_s1", _table_s1, MODELS, measure="mlem", tabulates=True),
]
