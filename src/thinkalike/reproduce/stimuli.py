"""The probing words: table S1 and figure S5 of Salle et al. 2024."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import pandas as pd

from thinkalike import figures
from thinkalike.config import AnalyzeConfig
from thinkalike.data import derivations, from_sentences
from thinkalike.jobs.states import read_stimuli
from thinkalike.reproduce.claims import Claim, conclude


def table_s1(config: AnalyzeConfig) -> Path:
    """The sentences of table S1, as the grammar derives them, beside the table."""
    with resources.as_file(resources.files("thinkalike.reproduce") / "table_s1.csv") as path:
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
    texts = [" ".join(rows["word"]) for _, rows in table.groupby("sentence", sort=False)]
    stimuli = from_sentences([derivations(text)[0] for text in texts])
    made = stimuli.features.astype(object).map(printed)
    made.insert(0, "word", stimuli.words)
    print(made.to_string(index=False))
    same = int((made == table[made.columns]).all(axis=1).sum())
    claim = Claim("the grammar makes every row of table S1", same == len(table), f"{same} of {len(table)} rows")
    return conclude(config, {}, made, [claim], lambda *_: None)


def printed(value: Any) -> str:
    """As the table prints it."""
    if pd.isna(value):
        return "NaN"
    return str(int(value)) if isinstance(value, float) else str(value)


def figure_s5(config: AnalyzeConfig) -> Path:
    """Correlations of all features with all over pairs of probing words."""
    stimuli = read_stimuli(config.stimuli)
    correlation = stimuli.correlation()
    pairs = [f"{a} and {b} {value:+.2f}" for a, b, value in correlation.strongest(5)]
    claim = Claim(
        "no two features of the probing words are nearly the same",
        bool(abs(correlation.strongest(1)[0][2]) < 0.9),
        "strongest correlations: " + ", ".join(pairs),
    )
    return conclude(
        config,
        {"stimuli": Path(stimuli.fingerprint())},
        correlation.table.rename_axis("feature").reset_index(),
        [claim],
        lambda _, folder: figures.correlation(correlation.table, folder),
    )
