"""The probing words of Salle et al. 2024: table S1 and figure S5."""

from __future__ import annotations

from functools import partial
from importlib import resources

import pandas as pd
import torch

from thinkalike.contrib.figures.features import draw_correlation
from thinkalike.contrib.papers.claims import Bound, exact_claim, judged_claim
from thinkalike.contrib.papers.experiment import Conclusion, Experiment, ExperimentRun
from thinkalike.data.grammar import derivations
from thinkalike.data.stimuli import from_sentences
from thinkalike.data.tables import read_stimuli
from thinkalike.measures.estimates import jackknife
from thinkalike.measures.folds import stimulus_folds

NEARLY_THE_SAME = 0.9  # a correlation of features
MOST_FOLDS = 10  # of the stimuli, which an interval leaves out in turn
PAIRS_LISTED = 5


def _conclude_table_s1(experiment: ExperimentRun) -> Conclusion:
    """Judge the claim of table S1 of Salle et al. 2024: the grammar gives each word its features.

    The features of the sentences in the published table are derived by this project's grammar. The
    claim holds if every row (a word with its features) is the same as in the table.
    """
    with resources.as_file(resources.files("thinkalike.contrib.papers") / "table_s1.csv") as path:
        published = pd.read_csv(path, dtype=str, keep_default_na=False)
    rows_of_sentences = [rows for _, rows in published.groupby("sentence", sort=False)]
    sentences = [" ".join(rows["word"]) for rows in rows_of_sentences]
    # Where the grammar can derive a sentence in several ways, the first one counts.
    stimuli = from_sentences([derivations(sentence)[0] for sentence in sentences])
    derived = stimuli.features.astype(object).map(printed)  # as text, as in the published table
    derived.insert(0, "word", stimuli.words)

    # Both tables have the words sentence by sentence, in the same order.
    in_order_of_sentences = pd.concat(rows_of_sentences, ignore_index=True)
    is_same = (derived == in_order_of_sentences[derived.columns]).all(axis=1)
    n_same = int(is_same.sum())
    n_rows = len(published)
    claim = exact_claim(
        "the grammar makes every row of table S1",
        n_same == n_rows,
        finding=f"{n_same} of {n_rows} rows",
        units=f"{n_rows} rows",
    )
    return Conclusion(derived, [claim])


def printed(value: str | float | bool | None) -> str:
    """Return the value of a feature as the paper prints it.

    A missing value is "NaN", a number has no decimals, and any other value is printed as it is.
    """
    if pd.isna(value):
        return "NaN"
    if isinstance(value, float):
        return str(int(value))
    return str(value)


def _conclude_figure_s5(experiment: ExperimentRun) -> Conclusion:
    """Judge the claim of figure S5 of Salle et al. 2024: no two features are nearly the same.

    The correlation of two features is computed over all pairs of probing words: do words that
    differ in one feature also differ in the other? The interval of the strongest correlation, a
    jackknife over folds of sentences, must be within ±`NEARLY_THE_SAME`.
    """
    stimuli = read_stimuli(experiment.config.stimuli)
    correlation = stimuli.correlation()
    strongest = correlation.strongest(PAIRS_LISTED)  # (feature, feature, correlation)
    correlations_in_words = ", ".join(
        f"{first} and {second} {value:+.2f}" for first, second, value in strongest
    )
    first, second, _ = strongest[0]

    n_folds = min(MOST_FOLDS, len(stimuli.groups.unique()))  # `groups`: the sentence of each word
    fold_of_word = stimulus_folds(len(stimuli), n_folds, groups=stimuli.groups)
    value = torch.tensor(correlation.table.loc[first, second])
    values_without_fold = []
    for fold in range(n_folds):
        remaining = stimuli.take((fold_of_word != fold).numpy())
        values_without_fold.append(remaining.correlation().table.loc[first, second])
    estimate = jackknife(value, torch.tensor(values_without_fold))
    claim = judged_claim(
        "no two features of the probing words are nearly the same",
        [(Bound("within", NEARLY_THE_SAME), estimate)],
        finding=f"strongest correlations: {correlations_in_words}; the first {estimate:+.2f}",
        units=f"{n_folds} parts of {len(stimuli)} words",
    )
    table = correlation.table.rename_axis("feature").reset_index()
    draw = partial(draw_correlation, correlation.table, n_words=len(stimuli))
    return Conclusion(table, [claim], draw)


NO_MODELS: dict[str, list[str]] = {"paper": [], "mini": []}  # these are about words alone
EXPERIMENTS = [
    Experiment("salle2024/figure_s5", _conclude_figure_s5, NO_MODELS, measure="mlem"),
    Experiment(
        "salle2024/table_s1", _conclude_table_s1, NO_MODELS, measure="mlem", prints_table=True
    ),
]
