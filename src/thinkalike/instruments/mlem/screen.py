"""What a result of MLEM says on the screen: what the features explain, and how that changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite, nan
from typing import Any, NamedTuple

import pandas as pd

from thinkalike.advice import named_setting
from thinkalike.errors import listed
from thinkalike.instruments.mlem.fitting import CHANCE_DRAWS, COLUMNS_GIVEN_WORD, REFERENCE
from thinkalike.instruments.mlem.table import CHANCE_GREATEST, CHANCE_MEAN, SHARE_OF_REFERENCE
from thinkalike.matrices import matrix_of
from thinkalike.measures.sample_size import FEWEST_GROUPS
from thinkalike.screen import (
    Table,
    capitalised,
    few,
    number_column,
    number_text,
    show_table,
    show_text,
    span,
    text_column,
    with_share,
)

MOST_FEATURES = 5
"""The columns of features on the screen."""

MOST_ROWS = 12
"""The rows on the screen of all models together, beside those of layers that a sentence names."""

FEWEST_ROWS = 2
"""The fewest rows of each model."""

MOST_CHANGES = 3
"""At most so many features are named whose importance rises or falls over the layers; of two
models one each, and of more models none, so that all fits a screen."""

MOST_MODELS_APART = 2
"""At most so many models have a table each; more have one together."""


MOST_GROUPS_WITH_CHANCE = 200
"""With more groups of six stimuli, ρ by chance is below 0.05."""

SIGNIFICANT = 0.05
"""A feature matters beyond chance in a layer if its corrected p-value is at most this."""

MEANING_OF_IMPORTANCE = (
    "Importance of a feature: how much ρ drops, possibly to below 0, when it is permuted; at 0 or "
    "less, the prediction does not need it."
)

MEANING_OF_NO_WEIGHT = "0.000 [0.000, 0.000]: no fit gives the feature any weight."
"""What follows where an importance and its interval are 0."""

MEANING_OF_REFERENCE = (
    "The split-half reference is the ρ with which the mean distances between combinations of "
    "features in one half of the stimuli predict those in the other half; it is no upper bound."
)


class ImportanceChange(NamedTuple):
    """How the importance of a feature rises or falls over the layers of a model."""

    feature: str

    first: pd.Series
    """The row of the profile at the shallower of the two extremes."""

    second: pd.Series
    """The row at the deeper one."""

    @property
    def size(self) -> float:
        """How much the importance changes."""
        return abs(float(self.second["importance"] - self.first["importance"]))

    @property
    def is_certain(self) -> bool:
        """Whether the intervals at the two layers are known and do not overlap."""
        lower, higher = sorted((self.first, self.second), key=lambda row: float(row["importance"]))
        return bool(lower["high"] < higher["low"])

    def __str__(self) -> str:
        """Return the change in words, with intervals.

        Such as "PoS rises from 0.003 [-0.010, 0.016] at layer 3 to 0.265 [0.251, 0.279] at layer
        21".
        """
        verb = "rises"
        if self.second["importance"] < self.first["importance"]:
            verb = "falls"
        before = _importance_in_words(self.first)
        after = _importance_in_words(self.second)
        return (
            f"{self.feature} {verb} from {before} at layer {self.first['layer']} to {after} at "
            f"layer {self.second['layer']}"
        )


def _importance_in_words(row: pd.Series) -> str:
    """Return an importance with its interval: "0.003 [-0.010, 0.016]"."""
    return span(row["importance"], row["low"], row["high"], ".3f")


class NamedInSentences(NamedTuple):
    """What the sentences about a model name, which its table shows."""

    layers: list[int]
    features: list[str]


def show_scores(
    profiles: pd.DataFrame,
    scores: pd.DataFrame,
    groups: Mapping[str, Any] | None = None,
    given_feature: str | None = None,
) -> None:
    """Print how well the features predict the distances in each model: sentences, and a table.

    The table has some layers, evenly spaced, and the layers that the sentences name. Up to
    `MOST_MODELS_APART` models have a table each; more models share one, after all sentences.

    Args:
        profiles: The importance of each feature in each layer.
        scores: The score of each layer.
        groups: What the provenance of a result says of the column that groups stimuli; None:
            there is no such column.
        given_feature: The feature that importances are conditional on; None: they are not.
    """
    models = scores["model"].unique()
    rows_per_model = max(MOST_ROWS // len(models), FEWEST_ROWS)
    has_own_table = len(models) <= MOST_MODELS_APART
    # With more models, the sentences on each name fewer features whose importance changes.
    most_changes = MOST_CHANGES
    if len(models) > 1:
        most_changes = 1
    if not has_own_table:
        most_changes = 0
    rows_of_all_models = []
    features_of_all_sentences: list[str] = []
    for model in models:
        scores_of_model = scores[scores["model"] == model].reset_index(drop=True)
        profiles_of_model = profiles[profiles["model"] == model]
        named_in_sentences = _show_sentences(
            model, profiles_of_model, scores_of_model, most_changes, groups, given_feature
        )
        is_named = scores_of_model["layer"].isin(named_in_sentences.layers)
        named_rows = scores_of_model.index[is_named]
        evenly_spaced_rows = few(len(scores_of_model), rows_per_model)
        shown_rows = scores_of_model.iloc[sorted({*evenly_spaced_rows, *named_rows})]
        if has_own_table:
            _show_table_of_layers(shown_rows, profiles_of_model, named_in_sentences.features)
        rows_of_all_models.append(shown_rows)
        features_of_all_sentences += named_in_sentences.features
    if not has_own_table:
        _show_table_of_layers(pd.concat(rows_of_all_models), profiles, features_of_all_sentences)


def _show_sentences(
    model: str,
    profiles: pd.DataFrame,
    scores: pd.DataFrame,
    most_changes: int,
    groups: Mapping[str, Any] | None,
    given_feature: str | None,
) -> NamedInSentences:
    """Print in sentences what the features explain of one model.

    Args:
        model: The name of the model.
        profiles: A row for each layer of the model and feature, with the feature's importance.
        scores: A row for each layer of the model, with its held-out score.
        most_changes: How many changes over depth are named at most.
        groups: What the provenance of a result says of the column that groups stimuli, or None.
        given_feature: The feature that importances are conditional on; None: they are not.

    Returns:
        The layers and features that the sentences name, so that a table can show them.
    """
    best = scores.iloc[int(scores["score"].argmax())]
    peak = profiles.iloc[int(profiles["importance"].argmax())]
    changes = largest_changes(profiles)[:most_changes]
    # The importance of features that are permuted only among stimuli of the same word.
    rows_given_word = _rows_given_word(profiles)

    sentences = [_best_in_words(best)]
    greatest_by_chance = nan
    # The chance of a mean of subjects is not known.
    if groups is not None and CHANCE_MEAN in scores and scores[CHANCE_MEAN].notna().all():
        sentences.append(_chance_in_words(best, scores, groups))
        greatest_by_chance = float(profiles[CHANCE_GREATEST].max())
    sentences.append(_peak_in_words(peak, greatest_by_chance))
    show_text(f"{model}: {' '.join(sentences)}")
    if has_corrected_p(profiles):
        show_text(_beyond_chance_in_words(profiles, given_feature))
    if changes:
        show_text(f"Over depth, importances change: {'; '.join(map(str, changes))}.")
    for row in rows_given_word:
        show_text(_importance_given_word(row))

    named_layers = [best["layer"], peak["layer"], *(row["layer"] for row in rows_given_word)]
    for change in changes:
        named_layers += [change.first["layer"], change.second["layer"]]
    named_features = [str(peak["feature"]), *(change.feature for change in changes)]
    return NamedInSentences(named_layers, named_features)


def _show_table_of_layers(
    rows: pd.DataFrame, profiles: pd.DataFrame, named_features: list[str]
) -> None:
    """Print a table of some layers with their score and the importance of some features.

    Args:
        rows: The rows of the table of scores that are shown, of one model or several.
        profiles: The importance of each feature in each layer of these models.
        named_features: The features that sentences name, which come first.
    """
    title = "held-out Spearman's ρ, and the importance of features"
    models = rows["model"].unique()
    columns = []
    if len(models) == 1:
        title = f"{title} in {models[0]}"
    else:
        columns.append(text_column("model", rows["model"]))
    columns.append(number_column("layer", rows["layer"]))
    n_key_columns = len(columns)  # they are repeated where the table is too wide for the screen

    columns.append(number_column("held-out ρ", rows["score"], ".3f"))
    importances = matrix_of(
        profiles, index=["model", "layer"], columns="feature", values="importance"
    )
    shown_layers = pd.MultiIndex.from_frame(rows[["model", "layer"]])
    for feature in _features_of_table(importances, named_features):
        values = [number_text(value, ".3f") for value in importances[feature].loc[shown_layers]]
        columns.append(number_column(feature, values))
    n_layers = len(importances.loc[list(models)])
    counts = {
        "layers": (len(rows), n_layers),
        "features": (len(columns) - n_key_columns - 1, importances.shape[1]),
    }
    title = with_share(capitalised(title), counts)
    show_table(Table(title, columns, keys=n_key_columns))


def has_no_weight(profiles: pd.DataFrame) -> bool:
    """Return whether a feature has no weight in any fit: its importance and interval are 0.

    Args:
        profiles: The importance of each feature in each layer.
    """
    numbers = profiles[["importance", "low", "high"]]
    return bool((numbers == 0).all(axis=1).any())


def largest_changes(profiles: pd.DataFrame) -> list[ImportanceChange]:
    """Return the `MOST_CHANGES` largest changes of a feature's importance over the layers.

    A change is from the smallest to the largest importance of a feature, in order of depth. It is
    left out if the intervals at the two layers overlap or are not known. Layers that have names,
    such as regions of a brain, have no order, and so no changes.

    Args:
        profiles: The importance of each feature in each layer of one model.
    """
    if not all(str(layer).removeprefix("-").isdigit() for layer in profiles["layer"]):
        return []
    changes = []
    for feature, rows in profiles.groupby("feature", sort=False):
        smallest = rows.iloc[int(rows["importance"].argmin())]
        largest = rows.iloc[int(rows["importance"].argmax())]
        first, second = sorted((smallest, largest), key=lambda row: int(row["layer"]))
        change = ImportanceChange(str(feature), first, second)
        if change.size > 0 and change.is_certain:
            changes.append(change)
    changes.sort(key=lambda change: -change.size)
    return changes[:MOST_CHANGES]


def _features_of_table(importances: pd.DataFrame, named_features: list[str]) -> list[str]:
    """Return at most `MOST_FEATURES` features for a table, without repetition.

    Those that sentences name come first, then those with the largest mean importance.

    Args:
        importances: A row for each layer, and a column for each feature.
        named_features: The features that sentences name.
    """
    mean_importances = importances.mean()
    ranked = mean_importances.nlargest(len(mean_importances)).index
    ranked_features = [str(name) for name in ranked]
    return list(dict.fromkeys([*named_features, *ranked_features]))[:MOST_FEATURES]


def _best_in_words(best: pd.Series) -> str:
    """Return in which layer the features predict distances best, with the score there.

    The split-half reference and the noise ceiling (of recordings of several participants) follow
    where they are known.

    Args:
        best: The row of the table of scores with the highest score.
    """
    score = span(best["score"], best["low"], best["high"], ".3f")
    sentence = (
        f"the features predict the distances of stimuli best in layer {best['layer']}, with ρ "
        f"{score}"
    )
    if isfinite(best.get(SHARE_OF_REFERENCE, nan)):
        share = number_text(best[SHARE_OF_REFERENCE], ".0%")
        sentence += f", {share} of the split-half reference of {best[REFERENCE]:.3f}"
    if isfinite(best.get("lower", nan)):
        sentence += f", and a noise ceiling of {best['lower']:.3f} to {best['upper']:.3f}"
    return f"{sentence}."


def _chance_in_words(best: pd.Series, scores: pd.DataFrame, groups: Mapping[str, Any]) -> str:
    """Return which ρ chance reaches: features that were permuted between groups, such as words.

    Chance is not 0, as stimuli of one group are alike and do not differ in a feature of groups.

    Args:
        best: The row of the table of scores with the highest score.
        scores: The rows of all layers of the same model.
        groups: What the provenance of a result says of the column that groups stimuli.
    """
    greatest = float(scores[CHANCE_GREATEST].max())
    beyond = ""
    if best["score"] <= greatest:
        beyond = ", so that this ρ is not shown to be beyond chance"
    return (
        f"By chance, ρ is {number_text(best[CHANCE_MEAN], '.3f')} there on average, and at most "
        f"{number_text(greatest, '.3f')} in any layer: in {CHANCE_DRAWS} permutations of the "
        f"features between the {groups['count']} values of {groups['column']}{beyond}."
    )


def unknown_chance_in_words(groups: Mapping[str, Any] | None, scores: pd.DataFrame) -> str:
    """Return a sentence that says why ρ is not 0 by chance, and what tells how large it is.

    It is "" if no column groups stimuli, if chance was computed, and if there are so many groups
    that it is next to 0, or so few that it cannot be computed.

    Args:
        groups: What the provenance of a result says of the column that groups stimuli, or None.
        scores: The table of scores.
    """
    if groups is None or CHANCE_MEAN in scores:
        return ""
    if not FEWEST_GROUPS <= groups["count"] <= MOST_GROUPS_WITH_CHANCE:
        return ""
    return (
        f"By chance, ρ and importances are above 0, as the stimuli of one of the "
        f"{groups['count']} values of {groups['column']} are alike, the more the fewer these "
        f"values; {named_setting('measure.null', 99)} says how far."
    )


def _peak_in_words(peak: pd.Series, greatest_by_chance: float) -> str:
    """Return which feature matters most, and in which layer, or that none is shown to matter.

    None matters if the highest importance, rounded, is not above 0. None is shown to matter if the
    interval of the highest importance has 0 in it, if a feature that was permuted between groups
    reaches this importance in some layer, or if neither is known, as of few sentences or groups.

    Args:
        peak: The row of the table of profiles with the highest importance.
        greatest_by_chance: The greatest importance of a feature that was permuted between groups,
            in any layer and draw; NaN if it is not known.
    """
    importance = _importance_in_words(peak)
    if round(peak["importance"], 3) <= 0:
        return f"no feature matters: permuting one lowers ρ by at most {importance}."
    if peak["low"] <= 0:
        return (
            f"no feature is shown to matter: permuting {peak['feature']} lowers ρ most, by "
            f"{importance} in layer {peak['layer']}, and this interval has 0 in it."
        )
    if peak["importance"] <= greatest_by_chance:
        return (
            f"no feature is shown to matter: permuting {peak['feature']} lowers ρ most, by "
            f"{importance} in layer {peak['layer']}, and by chance that is up to "
            f"{number_text(greatest_by_chance, '.3f')}."
        )
    p_corrected = peak.get("p_corrected", nan)
    if not any(map(isfinite, (peak["low"], greatest_by_chance, p_corrected))):
        return (
            f"no feature is shown to matter: permuting {peak['feature']} lowers ρ most, by "
            f"{importance} in layer {peak['layer']}, and neither an interval nor chance is known."
        )
    sentence = (
        f"{peak['feature']} matters most: permuting it lowers ρ by {importance} in layer "
        f"{peak['layer']}"
    )
    if isfinite(greatest_by_chance):
        by_chance = number_text(greatest_by_chance, ".3f")
        sentence += f", and by chance by at most {by_chance} in any layer"
    return f"{sentence}."


def has_corrected_p(profiles: pd.DataFrame) -> bool:
    """Return whether importances have a p-value, corrected for all layers and features.

    Otherwise the user did not ask for permutations, the sentences are too few to be permuted, or
    the rows are means over several models, for which no p-values are computed. Features that no
    draw of the null changes have no p-value in any row, and do not count.

    Args:
        profiles: Rows of the table of profiles.
    """
    if "p_corrected" not in profiles:
        return False
    has_p = profiles["p_corrected"].notna()
    is_of_tested_feature = has_p.groupby(profiles["feature"]).transform("any")
    return bool(has_p.any() and has_p[is_of_tested_feature].all())


def condition_in_words(condition: Mapping[str, Any] | None, n_stimuli: int) -> list[str]:
    """Return sentences about importances that are conditional on a feature: what is permuted.

    Args:
        condition: What the provenance of a result says of the feature that importance is
            conditional on; None if it says nothing.
        n_stimuli: How many stimuli there are.
    """
    if condition is None:
        return []
    feature = condition["feature"]
    constant = condition["constant"]
    varying = {
        name: count
        for name, count in condition["movable"].items()
        if name != feature and name not in constant
    }
    alike = [name for name, count in varying.items() if count == 0]
    in_part = [f"{name} in {count}" for name, count in varying.items() if 0 < count < n_stimuli]
    sentences = [
        f"Importances are conditional on {feature}: values are permuted within each of its "
        f"levels, so that {feature} itself has no importance."
    ]
    if constant:
        sentences.append(
            f"{listed(constant)} cannot be told from {feature}: {_is_or_are(constant)} constant "
            "within each level."
        )
    if alike:
        sentences.append(
            f"{listed(alike)} cannot be permuted: in no fold do held-out stimuli of one level of "
            f"{feature} differ in {'it' if len(alike) == 1 else 'them'}."
        )
    if in_part:
        sentences.append(
            f"Within the levels of {feature}, a feature can be permuted only where held-out "
            f"stimuli differ in it: {listed(in_part)} of {n_stimuli} stimuli. The fewer, the "
            "smaller its importance."
        )
    untested = condition["untested"]
    if untested:
        sentences.append(
            f"Whether {listed(untested)} {'matters' if len(untested) == 1 else 'matter'} beyond "
            f"chance was not tested: no draw exchanges values within the levels of {feature}."
        )
    return sentences


def _is_or_are(names: Sequence[str]) -> str:
    """Return "it is" for one name, and "they are" for several."""
    return "it is" if len(names) == 1 else "they are"


def shared_values_in_words(stimuli: Mapping[str, Any], *, has_p: bool) -> list[str]:
    """Return sentences about features that are constant for each value of a shared column.

    The tense of a verb is such a feature where many texts have the same verb. It may look
    important because stimuli of one verb are alike, whatever its tense. With more values than
    `MOST_GROUPS_WITH_CHANCE`, that is next to nothing, and only p-values need the sentence.

    Args:
        stimuli: What the provenance of a result says of its stimuli.
        has_p: Whether importances have a p-value, for which each text, or group, is permuted.
    """
    groups = stimuli.get("groups")
    unit = "sentence" if groups is None else f"value of {groups['column']}"
    sentences = []
    for shared in stimuli.get("shared_values", ()):
        features = shared["features"]
        column = shared["column"]
        is_constant = (
            f"{listed(features)} {'is' if len(features) == 1 else 'are'} constant for each of the "
            f"{shared['n_values']} values of {column}."
        )
        setting = named_setting("stimuli.groups", column)
        if not has_p and shared["n_values"] > MOST_GROUPS_WITH_CHANCE:
            continue
        if has_p:
            consequence = (
                f"For p, each {unit} is permuted alone, so a small p may be due to {column}; "
                f"{setting} permutes whole values."
            )
        else:
            consequence = (
                "Stimuli that share a value are alike, so that by chance, ρ and "
                f"{'this importance' if len(features) == 1 else 'these importances'} are above "
                f"0; {setting} says how far."
            )
        sentences.append(f"{is_constant} {consequence}")
    return sentences


def permuted_groups_in_words(groups: Mapping[str, Any]) -> str:
    """Return in sentences how features are permuted for p if a column groups stimuli.

    If the column is the word, for example, and the plural is a feature that differs between
    stimuli of one word, a word gets the plurals of the stimuli of another word.

    Args:
        groups: What the provenance of a result says of the groups: the name of the "column"; the
            "count" of its values; the features "varying" between stimuli of one value; and those
            of them that are constant in each text, "of_texts".
    """
    text = f"For p, the {groups['count']} values of {groups['column']} are permuted as wholes."
    of_texts = groups["of_texts"]
    varying = [name for name in groups["varying"] if name not in of_texts]
    if varying:
        text += (
            f" {listed(varying)} {'varies' if len(varying) == 1 else 'vary'} within them: the "
            "stimuli of a value get the levels of those of another value, in random order."
        )
    if of_texts:
        is_or_are = "is" if len(of_texts) == 1 else "are"
        text += f" {listed(of_texts)} {is_or_are} constant in each text, and permuted by text."
    return text


def untested_in_words(
    details: pd.DataFrame,
    shown: pd.DataFrame,
    stimuli: Mapping[str, Any],
    condition: Mapping[str, Any] | None,
) -> str:
    """Return in a sentence what was not tested against the null distribution, and why.

    The sentence is "" if all was tested, if nobody asked for a null distribution, or if
    `condition_in_words` says why.

    Args:
        details: The table of profiles of a result.
        shown: The profiles on the screen, in which the mean of subjects may stand for them.
        stimuli: What the provenance of the result says of its stimuli.
        condition: What it says of the feature that importance is conditional on, if anything.
    """
    if "p_corrected" not in details or has_corrected_p(shown):
        return ""
    if not has_corrected_p(details):
        if condition is not None and condition["untested"]:
            return ""
        groups = stimuli.get("groups")
        unit = "sentences" if groups is None else f"values of {groups['column']}"
        return (
            "Whether a feature matters beyond chance was not tested, as that takes "
            f"{FEWEST_GROUPS} {unit} or more."
        )
    return (
        "Whether a feature matters beyond chance was tested in each subject alone, and not for "
        "their mean; p_corrected in the table is that of each subject."
    )


def _beyond_chance_in_words(profiles: pd.DataFrame, given_feature: str | None) -> str:
    """Return in how many layers each feature matters beyond chance.

    Args:
        profiles: The rows of one model in the table of profiles, with p-values.
        given_feature: The feature that importances are conditional on; None: they are not.
    """
    beyond_chance = "beyond chance"
    in_distances = "shapes no distances that these stimuli can show"
    if given_feature is not None:
        beyond_chance += f" conditional on {given_feature}"
        in_distances = f"adds nothing to {given_feature} that these stimuli can show"

    profiles = profiles.dropna(subset="p_corrected")
    p = profiles["p_corrected"]
    significant = profiles[p <= SIGNIFICANT]
    if significant.empty:
        return (
            f"No feature matters {beyond_chance}: the lowest p is {p.min():.2g}, corrected for "
            "all layers and features."
        )
    counts = significant["feature"].value_counts()  # features in no layer are not in it
    features = profiles["feature"].unique()
    most_first = sorted(features, key=lambda feature: -counts.get(feature, 0))
    layers_by_feature = [f"{feature} in {counts.get(feature, 0)}" for feature in most_first]
    sentence = (
        f"{capitalised(beyond_chance)} (p ≤ {SIGNIFICANT}, corrected for all layers and features) "
        f"in this many of {profiles['layer'].nunique()} layers: {', '.join(layers_by_feature)}."
    )
    if len(counts) < len(features):
        sentence += f" A feature in 0 layers {in_distances}; a probe may still decode it."
    return sentence


def _rows_given_word(profiles: pd.DataFrame) -> list[pd.Series]:
    """Return a row for each feature: that of the layer with its largest conditional importance.

    A feature that is confounded with the identity of words also has an importance conditional on
    the word, in a column of its own. The list is empty if there is no such feature.

    Args:
        profiles: The rows of one model in the table of profiles.
    """
    column, _, _ = COLUMNS_GIVEN_WORD
    if column not in profiles:
        return []
    rows = []
    for _, rows_of_feature in profiles.dropna(subset=column).groupby("feature", sort=False):
        rows.append(rows_of_feature.iloc[int(rows_of_feature[column].argmax())])
    return rows


def _importance_given_word(row: pd.Series) -> str:
    """Return in words how important a feature is conditional on the identity of the word."""
    column, low, high = COLUMNS_GIVEN_WORD
    importance = span(row[column], row[low], row[high], ".3f")
    return (
        f"Conditional on the word, {row['feature']} has importance {importance} in layer "
        f"{row['layer']}, of {number_text(row['importance'], '.3f')} without that condition."
    )
