"""measure=rsa: how similar the distances of stimuli are in every two layers.

The method is that of Salle et al. (2024), section 4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd
from torch import Tensor

from thinkalike import figures
from thinkalike.advice import named_setting
from thinkalike.config import AnalyzeConfig, SettingValues
from thinkalike.data.stimuli import Stimuli
from thinkalike.errors import ConfigError, refusing_data
from thinkalike.instruments.layer_note import show_layer_note
from thinkalike.instruments.of_stimuli import (
    OfStimuli,
    rows_of_sides,
    stimuli_facts,
    stimuli_in_words,
    stimulus_states_to_compare,
    warn_of_features_confounded_with_words,
)
from thinkalike.instruments.rsa.distances import RSAConfig, distances_of_sides
from thinkalike.instruments.rsa.similarity import (
    FEWEST_PAIRS,
    p_values,
    pairs_of_one_word,
    similarity_estimate,
    similarity_given_word,
)
from thinkalike.job import Outcome, Work
from thinkalike.matrices import matrix_of
from thinkalike.measures.distances.rsa import rsa
from thinkalike.measures.estimates import Estimate
from thinkalike.measures.rows import naming_rows
from thinkalike.ranking import ranked_layer_pairs
from thinkalike.screen import number_text, show_map, show_note, show_text, span
from thinkalike.states.stimuli import Compared, StimulusStates, numbered
from thinkalike.store import Headline, Result
from thinkalike.tables import matrix_rows

NAMES_OF_COMPARATORS = {
    "spearman": "Spearman's ρ",
    "tau_a": "Kendall's τ_a",
    "corr": "Pearson's r",
    "cosine": "cosine",
    "corr_cov": "whitened Pearson's r",
    "cosine_cov": "whitened cosine",
}
"""What screens and figures call each comparator."""

MEANING_OF_P = (
    "p is the share of permutations of whole groups of stimuli, such as sentences, in which two "
    "layers are at least as similar, over pairs of stimuli of different groups. Permuted values "
    "need not be near 0, as the stimuli of a group keep their order; so p may be small where the "
    "value is below 0."
)
"""What follows where there are p-values, by Mantel's test."""

BLANK = ("p", "p_corrected", "conditional_on_word")
"""Columns that may have empty cells: few sentences have no p, and a word may determine states."""


class RSA(
    OfStimuli,
    kind="rsa",
    version=6,
    reads=("model", "target", "layers", "measure", "stimuli", "seed"),
):
    """Compares all layers of `model`, and of `model@target` if it differs, with all of them."""

    of_models: ClassVar[str] = "pairs"
    smallest: ClassVar[Mapping[str, object]] = {"stimuli.sentences": 40}

    def completed(self, config: AnalyzeConfig) -> AnalyzeConfig:
        """Return the configuration with all settings filled in, also those that a recipe decides.

        Raises:
            ConfigError: Crossnobis distances are asked for without a recording, whose runs they
                need.
        """
        measure = config.measure_as(RSAConfig)
        if measure.distance == "crossnobis" and not config.activations:
            raise ConfigError(
                f"{named_setting('measure.distance', 'crossnobis')} needs runs of a recording; "
                f"give {named_setting('activations', like='FILE')}"
            )
        return super().completed(config)

    def unread(self, config: AnalyzeConfig) -> SettingValues:
        """Return the settings that this job ignores, with the values that enter its hash.

        With subjects (participants), intervals and p-values come from resamples of the subjects,
        and `permutations` is ignored. Without subjects, `resamples` is ignored.
        """
        unread = dict(super().unread(config))
        if config.subjects:
            unread["measure.permutations"] = 0
        else:
            unread["measure.resamples"] = RSAConfig.resamples
        return unread

    def run(self, config: AnalyzeConfig, work: Work) -> Outcome:
        """Compare the distances between stimuli in every two layers of all models and recordings.

        Stimuli with massive (very long) states are left out, and a column has the similarity with
        them.

        Raises:
            DataError: The distances of a layer cannot be compared, such as those of equal states.
        """
        with work.phase("states"):
            compared, with_massive = stimulus_states_to_compare(
                config, work.input("stimuli", Stimuli)
            )
        stimuli = compared.stimuli
        warn_of_features_confounded_with_words(stimuli)
        similarity, columns = _similarity(config, compared, with_massive)

        rows = rows_of_sides(compared.sides)
        value = similarity.value.numpy()
        scalars = {"stimuli": float(len(stimuli))}
        is_pair_of_layers = ~np.eye(len(rows), dtype=bool)  # the diagonal: a layer with itself
        if stimuli.confounded_with_words():
            scalars["pairs_of_one_word"] = float(pairs_of_one_word(stimuli).sum())
        if is_pair_of_layers.any():
            scalars["mean_similarity"] = float(value[is_pair_of_layers].mean())
        return Outcome(
            matrix_rows(rows, rows, value=similarity.value, **columns),
            scalars,
            {"value": value},
            models=[side.origin for side in compared.sides],
            facts=stimuli_facts(stimuli),
            blank=BLANK,  # the columns that may lack values
        )

    def compare(
        self, config: AnalyzeConfig, stimuli: Stimuli, sides: Sequence[StimulusStates]
    ) -> None:
        """Compute the similarity of all layers as a job does, to measure how long it takes."""
        _similarity(config, Compared(stimuli, list(sides)), None)

    def draw(self, result: Result, folder: Path) -> None:
        """Draw a map of the similarity of all layers."""
        label = NAMES_OF_COMPARATORS[result.config["measure"]["comparator"]]
        subtitle = f"{result.scalars['stimuli']:,.0f} stimuli"
        figures.similarity({f"{label} of distances": result.details}, folder, about=subtitle)

    def ranked(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return the most similar layers first."""
        return ranked_layer_pairs(table)

    def headlines(self, result: Result) -> Sequence[Headline]:
        """Return the mean similarity of different layers and the highest one as headlines.

        If there is a single layer, return the first headline number of the result instead.
        """
        pairs = _different_layers(result.details)
        if pairs.empty:
            return super().headlines(result)
        most = pairs.iloc[int(pairs["value"].argmax())]
        return [
            Headline("mean_similarity", result.scalars["mean_similarity"]),
            Headline.with_ends("highest_similarity", most["value"], most["low"], most["high"]),
        ]

    def show(self, result: Result) -> None:
        """Print the most and the least similar layers, a map, and what was compared.

        If there is a single layer, only a sentence that says so is printed.
        """
        pairs = _different_layers(result.details)
        if pairs.empty:
            row = result.details.iloc[0]
            show_text(
                f"There is one layer only, layer {row['source_layer']} of {row['source']}, so no "
                "two layers are compared."
            )
            return
        stimuli = result.provenance["stimuli"]
        label = NAMES_OF_COMPARATORS[result.config["measure"]["comparator"]]
        most_similar = pairs.iloc[int(pairs["value"].argmax())]
        least_similar = pairs.iloc[int(pairs["value"].argmin())]
        count = f" of all {len(pairs)} layer pairs" if len(pairs) > 1 else ""
        show_text(
            f"Most similar{count}: {_layers_and_similarity(most_similar, label)}"
            f"{_untested_in_words(result)}."
        )
        if len(pairs) > 1:
            show_text(f"Least similar: {_layers_and_similarity(least_similar, label)}.")
            _show_map(result, pairs, label)
        if "p" in pairs and pairs["p"].notna().any():
            show_note(MEANING_OF_P)
        show_text(
            f"Compared by the distances of {stimuli_in_words(stimuli)}; "
            "95 % intervals are over their groups."
        )
        for sentence in stimuli.get("confounded_with_words", ()):
            show_text(f"{sentence}.")
        if "conditional_on_word" in pairs:
            given_word = _similarity_given_word(pairs["conditional_on_word"], result.scalars)
            show_text(f"Conditional on the word (pairs of stimuli of one word): {given_word}.")


def _similarity(
    config: AnalyzeConfig, compared: Compared, with_massive: Compared | None
) -> tuple[Estimate, dict[str, Tensor]]:
    """Return the similarity of every two layers, and further columns of the table by name.

    The columns are the ends of its interval; its value over all stimuli, if some are left out; its
    value over pairs of stimuli of the same word, if a feature is confounded with words; and
    p-values, if permutations are asked for.

    Args:
        config: The job.
        compared: The stimuli that are compared, with their states.
        with_massive: All stimuli, also those left out of `compared` because their states are
            massive (very long); None if none are left out.

    Raises:
        DataError: A layer cannot be compared.
    """
    measure = config.measure_as(RSAConfig)
    columns: dict[str, Tensor] = {}
    stimuli = compared.stimuli

    def with_numbers_of_layers(reason: str) -> str:
        # Errors name layers by numbers; a list of these numbers with the layers is added.
        return f"{reason}{numbered(compared.sides, reason)}"

    with refusing_data(stimuli.source, with_numbers_of_layers):
        if with_massive:
            with naming_rows(with_massive.stimuli.name_of_row):
                all_distances = distances_of_sides(with_massive.sides, measure)
            similarity_of_all = rsa(all_distances, comparator=measure.comparator)
            columns["including_massive_activations"] = similarity_of_all

        with naming_rows(stimuli.name_of_row):
            layers = distances_of_sides(compared.sides, measure)
        similarity = similarity_estimate(layers, measure, config.seed, stimuli)
        columns["low"] = similarity.low
        columns["high"] = similarity.high
        if stimuli.confounded_with_words():
            columns["conditional_on_word"] = similarity_given_word(layers, stimuli)
        if measure.permutations:
            columns |= p_values(layers, measure, config.seed, stimuli)
    return similarity, columns


def _layers_and_similarity(row: pd.Series, label: str) -> str:
    """Return the layers of a row in words, with their similarity and its p-values if known.

    Args:
        row: A row of the table of layer pairs.
        label: What the similarity is called, such as "Spearman's ρ".
    """
    similarity = span(row["value"], row["low"], row["high"], ".3f")
    in_words = (
        f"layer {row['source_layer']} of {row['source']} and layer {row['target_layer']} of "
        f"{row['target']}, {label} {similarity}"
    )
    if pd.isna(row.get("p")):
        return in_words
    return (
        f"{in_words}, one-sided p = {row['p']:.3g}, and {row['p_corrected']:.3g} corrected for "
        "all pairs of layers"
    )


def _untested_in_words(result: Result) -> str:
    """Return a clause that says that no null was computed; "" if there was one.

    Participants are tested in their own way, and results of earlier versions lack the setting.
    """
    measure = result.config.get("measure") or {}
    if result.config.get("subjects") or measure.get("permutations") != 0:
        return ""
    permutations = named_setting("measure.permutations", 99)
    return f"; whether that is more than by chance ({permutations}) was not computed"


def _show_map(result: Result, pairs: pd.DataFrame, label: str) -> None:
    """Print a map of the similarity of all layers of two models, or of one with itself.

    Nothing is printed where more than two models or recordings are compared.

    Args:
        result: The result.
        pairs: The rows of layer pairs of different models, or of one model if there is only one.
        label: What the similarity is called, such as "Spearman's ρ".
    """
    names = pairs[["source", "target"]].drop_duplicates()
    if len(names) > 1:
        return
    source, target = names.iloc[0]
    table = result.details
    shown = table[(table["source"] == source) & (table["target"] == target)]
    models = f"{source} (rows) and {target} (columns)"
    if source == target:
        models = f"the layers of {source}"
    show_note(f"{label} of the distances of stimuli, {models}:")
    values = matrix_of(shown, index="source_layer", columns="target_layer", values="value")
    # The matrix has sorted layers; the map has them in the order of the table.
    rows = shown["source_layer"].unique()
    columns = shown["target_layer"].unique()
    show_map(values.loc[rows, columns])
    show_note(
        f"Each cell compares two layers: the distances between all pairs of stimuli in one layer "
        f"with the distances between the same pairs in the other, by {label}."
    )
    show_layer_note(result)


def _similarity_given_word(similarities: pd.Series, scalars: Mapping[str, float]) -> str:
    """Return in words the range of similarities over pairs of stimuli of the same word.

    If there are too few such pairs, or all are equally far apart, return the reason instead.

    Args:
        similarities: The similarity of each layer pair over pairs of stimuli of the same word.
        scalars: The headline numbers of the result, with the number of such pairs. Results of
            earlier versions lack it.
    """
    finite = similarities.dropna()
    # If the number of pairs is not known, they are assumed to be enough.
    count = scalars.get("pairs_of_one_word", FEWEST_PAIRS)
    if count < FEWEST_PAIRS:
        return f"not computed, as there are {count:.0f} and at least {FEWEST_PAIRS} are needed"
    if finite.empty:
        return "not computed, as they are all equally far apart in every layer"
    lowest = number_text(finite.min(), ".3f")
    highest = number_text(finite.max(), ".3f")
    return f"Spearman's ρ {lowest} to {highest}"


def _different_layers(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of pairs of different layers, one for each pair.

    If there are several models, only pairs of layers of different models are returned. The table
    has every pair twice, as (a, b) and as (b, a), and one of the two rows is returned: that whose
    source layer comes first in the table.
    """
    sources = list(zip(table["source"], table["source_layer"], strict=True))
    targets = list(zip(table["target"], table["target_layer"], strict=True))
    distinct_layers = dict.fromkeys([*sources, *targets])
    index_of_layer = {layer: index for index, layer in enumerate(distinct_layers)}
    source_indices = [index_of_layer[layer] for layer in sources]
    target_indices = [index_of_layer[layer] for layer in targets]
    one_row_per_pair = table[np.less(source_indices, target_indices)]
    is_across = one_row_per_pair["source"] != one_row_per_pair["target"]
    if is_across.any():
        return one_row_per_pair[is_across]
    return one_row_per_pair
