"""The probing words: table S1 and figure S5 of Salle et al. 2024."""

from __future__ import annotations

from functools import partial
from importlib import resources
from typing import Any

import pandas as pd

from thinkalike import figures
from thinkalike.data import derivations, from_sentences, read_stimuli
from thinkalike.papers.experiment import Case, Claim, Conclusion, Experiment


def _table_s1(case: Case) -> Conclusion:
    """The sentences of table S1, as the grammar derives them, beside the table."""
    with resources.as_file(resources.files("thinkalike.papers") / "table_s1.csv") as path:
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
    texts = [" ".join(rows["word"]) for _, rows in table.groupby("sentence", sort=False)]
    stimuli = from_sentences([derivations(text)[0] for text in texts])
    made = stimuli.features.astype(object).map(printed)
    made.insert(0, "word", stimuli.words)
    print(made.to_string(index=False))
    same = int((made == table[made.columns]).all(axis=1).sum())
    claim = Claim("the grammar makes every row of table S1", same == len(table), f"{same} of {len(table)} rows")
    return Conclusion(made, [claim])


def printed(value: Any) -> str:
    """Return a value as the table prints it."""
    if pd.isna(value):
        return "NaN"
    return str(int(value)) if isinstance(value, float) else str(value)


def _figure_s5(case: Case) -> Conclusion:
    """Correlations of all features with all over pairs of probing words."""
    correlation = read_stimuli(case.config.stimuli).correlation()
    pairs = [f"{a} and {b} {value:+.2f}" for a, b, value in correlation.strongest(5)]
    claim = Claim(
        "no two features of the probing words are nearly the same",
        bool(abs(correlation.strongest(1)[0][2]) < 0.9),
        "strongest correlations: " + ", ".join(pairs),
    )
    table = correlation.table.rename_axis("feature").reset_index()
    return Conclusion(table, [claim], partial(figures.correlation, correlation.table))


MODELS: dict[str, list[str]] = {"paper": [], "mini": []}  # these are about words alone
EXPERIMENTS = [
    Experiment("salle2024/figure_s5", _figure_s5, MODELS, measure="mlem"),
    Experiment("salle2024/table_s1", _table_s1, MODELS, measure="mlem"),
]
