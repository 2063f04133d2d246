"""What a result of MLEM says on the screen: held-out scores and the features that matter most."""

from __future__ import annotations

from math import isfinite, nan

import pandas as pd

from thinkalike.instruments.mlem.fitting import GIVEN_WORD
from thinkalike.instruments.mlem.table import SHARE
from thinkalike.screen import Table, few, number_column, show_table, show_text, span

MOST_FEATURES = 5
"""The columns of features on the screen."""

MOST_ROWS = 12
"""The rows on the screen of all models together."""

FEWEST_ROWS = 2
"""The fewest rows of each model."""


def show_scores(profiles: pd.DataFrame, scores: pd.DataFrame) -> None:
    """Print for each model the scores of its layers, the features that matter most, and in words.

    Args:
        profiles: The importance of each feature in each layer.
        scores: The score of each layer.
    """
    models = scores["model"].unique()
    rows = max(MOST_ROWS // len(models), FEWEST_ROWS)
    for model in models:
        scores_of_model = scores[scores["model"] == model]
        profiles_of_model = profiles[profiles["model"] == model]
        _show_model(model, profiles_of_model, scores_of_model, rows)


def _show_model(model: str, profiles: pd.DataFrame, scores: pd.DataFrame, most_rows: int) -> None:
    """Print the scores and profiles of one model."""
    importances = profiles.pivot(index="layer", columns="feature", values="importance")
    rows = scores.iloc[few(len(scores), most_rows)]
    columns = [
        number_column("layer", rows["layer"]),
        number_column("held-out ρ", rows["score"], ".3f"),
    ]
    for name in importances.mean().nlargest(MOST_FEATURES).index:
        values = importances.loc[rows["layer"], name]
        columns.append(number_column(str(name), values, ".3f"))
    title = f"{model}: Spearman's ρ, and what it loses without a feature"
    show_table(Table(title, columns))
    show_text(_in_words(scores, importances))
    beyond_words = _beyond_words(profiles)
    if beyond_words:
        show_text(beyond_words)


def _in_words(scores: pd.DataFrame, importances: pd.DataFrame) -> str:
    """Return which layer the features explain best, its references, and what matters most.

    Args:
        scores: The score of each layer.
        importances: The importance of each feature, in columns, in each layer.
    """
    best = scores.iloc[int(scores["score"].argmax())]
    score = span(best["score"], best["low"], best["high"])
    best_layer = f"Features explain layer {best['layer']} best, ρ {score}"
    if isfinite(best.get(SHARE, nan)):
        best_layer += f", {best[SHARE]:.0%} of the reference"
    if isfinite(best.get("lower", nan)):
        best_layer += f", with a noise ceiling of {best['lower']:.3f} to {best['upper']:.3f}"
    feature = str(importances.max().idxmax())
    by_layer = importances[feature]
    return (
        f"{best_layer}. {feature} matters most, {by_layer.max():.3f} at layer {by_layer.idxmax()}."
    )


def _beyond_words(profiles: pd.DataFrame) -> str:
    """Return what is left, given the word, of the features that go with words.

    It is said of the layer where most is left.
    """
    column, low, high = GIVEN_WORD
    if column not in profiles:
        return ""
    sentences = []
    going_with_words = profiles.dropna(subset=column)
    for feature, rows in going_with_words.groupby("feature", sort=False):
        row = rows.iloc[int(rows[column].argmax())]
        importance = span(row[column], row[low], row[high])
        sentences.append(
            f"Given the word, {feature} has importance {importance} of {row['importance']:.3f} at "
            f"layer {row['layer']}."
        )
    return " ".join(sentences)
