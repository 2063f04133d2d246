"""measure=mlem: which features explain the distances of stimuli in each layer.

The method is that of Salle et al. (2024).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf, isfinite
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import pandas as pd
import torch

from thinkalike import figures
from thinkalike.advice import named_setting
from thinkalike.config import AnalyzeConfig
from thinkalike.data.stimuli import Stimuli
from thinkalike.errors import ConfigError, DataError, nearest
from thinkalike.instruments.layer_note import show_layer_note
from thinkalike.instruments.mlem.fitting import (
    REFERENCE,
    chance_draws,
    check_condition,
    check_features,
    facts_of_condition,
    fit_profiles,
    importance_given_word,
    sentences_for_folds,
    split_half_references,
)
from thinkalike.instruments.mlem.screen import (
    MEANING_OF_IMPORTANCE,
    MEANING_OF_NO_WEIGHT,
    MEANING_OF_REFERENCE,
    condition_in_words,
    has_corrected_p,
    has_no_weight,
    permuted_groups_in_words,
    shared_values_in_words,
    show_scores,
    unknown_chance_in_words,
    untested_in_words,
)
from thinkalike.instruments.mlem.settings import MLEMConfig
from thinkalike.instruments.mlem.table import (
    BLANK,
    BLANK_IF_CONDITIONAL,
    interaction_table,
    level_table,
    profile_table,
    score_table,
    similarity_table,
    with_share_of_reference,
)
from thinkalike.instruments.of_stimuli import (
    OfStimuli,
    rows_of_sides,
    stimuli_facts,
    stimuli_in_words,
    stimulus_states_to_compare,
    warn_of_features_confounded_with_words,
)
from thinkalike.job import Outcome, Work
from thinkalike.job.inputs import Inputs
from thinkalike.measures.estimates import interval_around
from thinkalike.measures.mlem.importance import fold_interval
from thinkalike.ranking import ranked_rows
from thinkalike.screen import show_note, show_text
from thinkalike.states.stimuli import StimulusStates
from thinkalike.store import Headline, Result


class FeatureProfiles(
    OfStimuli,
    kind="mlem",
    version=10,
    reads=("model", "target", "layers", "measure", "stimuli", "recipe", "seed"),
):
    """Finds the feature profiles of all layers of `model`, and of `model@target` if it differs.

    Beside them stand held-out scores and split-half references in scores.csv, the similarity of
    layers in similarity.csv, pair effects in interactions.csv, and weights of pairs of levels in
    levels.csv.
    """

    of_models: ClassVar[str] = "each"
    smallest: ClassVar[Mapping[str, object]] = {
        "measure.folds": 2,
        "measure.permutations": 1,
        "measure.references": 0,
        "stimuli.sentences": 40,
    }

    def inputs(self, config: AnalyzeConfig) -> Inputs:
        """Return what decides the numbers besides settings, by name, for the hash of the job.

        The stimuli are among them, and are checked here: they must have the features that settings
        name, and be enough for the folds.

        Raises:
            DataError: The stimuli lack a feature, there are too few, a feature cannot explain
                distances, or no feature varies within the levels of `conditional_on`.
            ConfigError: The null distribution moves whole sentences (or other groups), which folds
                would divide.
        """
        inputs = super().inputs(config)
        measure = config.measure_as(MLEMConfig)
        stimuli = inputs["stimuli"]
        assert isinstance(stimuli, Stimuli)
        for name in measure.features_named:
            if name not in stimuli.names:
                raise DataError(
                    f"{stimuli.source} has no feature {name}; {nearest(name, stimuli.names)}"
                )
        check_features(measure, stimuli, is_folded=config.recipe != "paper")
        check_condition(measure, stimuli)

        has_groups = len(stimuli.groups.unique()) < len(stimuli)
        divides_groups = sentences_for_folds(config, stimuli) is None
        if measure.null and has_groups and divides_groups:
            raise ConfigError(
                f"{named_setting('measure.null')} moves whole {stimuli.unit}: it needs "
                f"{named_setting('measure.together', 'sentence')}, "
                f"{named_setting('recipe', 'stimuli')}"
            )
        if measure.null:
            _check_features_of_groups(stimuli)
        return inputs

    def run(self, config: AnalyzeConfig, work: Work) -> Outcome:
        """Fit the feature profiles of all layers of all models and recordings.

        The table has a row for each layer and feature. Further tables are `scores`, `similarity`,
        `interactions` and `levels`; those that are empty are left out.
        """
        measure = config.measure_as(MLEMConfig)
        with work.phase("states"):
            compared, with_massive = stimulus_states_to_compare(
                config, work.input("stimuli", Stimuli)
            )
        stimuli = compared.stimuli
        sides = compared.sides
        warn_of_features_confounded_with_words(stimuli)
        chance = chance_draws(config, stimuli)
        model, importance = fit_profiles(config, stimuli, sides, chance)

        rows = rows_of_sides(sides)
        profiles = profile_table(model, importance, stimuli, rows)
        scores = score_table(model, importance, rows)
        scores = with_share_of_reference(
            scores.assign(**split_half_references(config, stimuli, sides))
        )
        tables = {"similarity": similarity_table(importance, rows)}
        if measure.interactions:
            tables["interactions"] = interaction_table(measure, importance, rows)
        tables["levels"] = level_table(model, stimuli, rows)
        profiles = profiles.assign(**importance_given_word(config, stimuli, sides))
        if with_massive:
            # For comparison alone, so it may be less precise.
            quick_measure = replace(measure, permutations=1, null=0, interactions=[])
            _, importance_with_massive = fit_profiles(
                replace(config, measure=quick_measure), with_massive.stimuli, with_massive.sides
            )
            profile = importance_with_massive.profile().value
            profiles["including_massive_activations"] = profile.flatten().numpy()
            scores["including_massive_activations"] = importance_with_massive.score().value.numpy()
        tables = {"scores": scores, **tables}
        tables |= self.further_tables(config, stimuli, sides, profiles, scores)
        blank: tuple[str, ...] = BLANK
        if measure.conditional_on is not None:
            blank = (*BLANK, *BLANK_IF_CONDITIONAL)
        facts = stimuli_facts(stimuli, sides[: len(config.subjects)], explained_by_features=True)
        condition = facts_of_condition(measure, stimuli, importance)
        if condition:
            facts["condition"] = condition
        return Outcome(
            profiles,
            {"mean_score": float(scores["score"].mean()), "stimuli": float(len(stimuli))},
            {
                "weights": model.weights_.numpy(),
                "correlation": model.correlation_.numpy(),
                "scores": importance.scores.numpy(),
                "importances": importance.by_fold().numpy(),
            },
            {name: table for name, table in tables.items() if len(table)},
            models=[side.origin for side in sides],
            facts=facts,
            blank=blank,
        )

    def compare(
        self, config: AnalyzeConfig, stimuli: Stimuli, sides: Sequence[StimulusStates]
    ) -> None:
        """Compare features and states as the job does, and return nothing: a forecast times it.

        Args:
            config: The job.
            stimuli: The stimuli with their features.
            sides: The states of each model, or random ones in their place.
        """
        fit_profiles(config, stimuli, sides, chance_draws(config, stimuli))
        split_half_references(config, stimuli, sides)
        importance_given_word(config, stimuli, sides)

    def further_tables(
        self,
        config: AnalyzeConfig,
        stimuli: Stimuli,
        sides: Sequence[StimulusStates],
        profiles: pd.DataFrame,
        scores: pd.DataFrame,
    ) -> dict[str, pd.DataFrame]:
        """Return further tables of the result, by name; by default there are none.

        An instrument of several participants overrides this.

        Args:
            config: The job.
            stimuli: The stimuli with their features.
            sides: Their states in each model or recording.
            profiles: The importance of each feature in each layer.
            scores: The held-out score of each layer.
        """
        return {}

    def profiles_and_scores_to_show(self, result: Result) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return the profiles (layer by feature) and scores (by layer) to show and draw."""
        return result.details, result.tables["scores"]

    def units_of_intervals(self, result: Result) -> str:
        """Return over what the intervals of `profiles_and_scores_to_show` are, and over how many.

        An instrument of several participants overrides this.
        """
        n_folds = result.arrays["scores"].shape[1]  # (layers, folds)
        return f"{n_folds} folds"

    def draw(self, result: Result, folder: Path) -> None:
        """Draw importances and scores by layer, and the similarity of layers if it is known."""
        stimuli = f"{result.provenance['stimuli']['count']:,} stimuli"
        profiles, scores = self.profiles_and_scores_to_show(result)
        profiles = profiles.dropna(subset="importance")
        has_intervals = np.isfinite(scores[["low", "high"]].to_numpy(float)).any()
        bands = "no intervals: too few independent stimuli"
        if has_intervals:
            bands = f"bands: 95 % intervals over {self.units_of_intervals(result)}"
        figures.profiles(profiles, scores, folder, about=f"{stimuli}\n{bands}")
        if "similarity" in result.tables:
            by_title = {"weighted τ of profiles": result.tables["similarity"]}
            figures.similarity(by_title, folder, about=stimuli)

    def ranked(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return the features first that matter most, each with its layer."""
        return ranked_rows(table, "importance")

    def headlines(self, result: Result) -> list[Headline]:
        """Return two headlines: the mean held-out score ρ over layers, and that of the best layer.

        Their intervals are over folds, and unbounded if there are too few sentences.
        """
        scores = result.tables["scores"]
        best = scores.iloc[int(scores["score"].argmax())]
        scores_of_folds = torch.from_numpy(result.arrays["scores"])  # (layers, folds)
        mean = fold_interval(scores_of_folds.mean(0))
        if not isfinite(best["low"]):  # there are too few sentences for an interval
            mean = interval_around(mean.value, inf)
        return [
            Headline.with_ends("mean_score", float(mean.value), float(mean.low), float(mean.high)),
            Headline.with_ends("best_score", best["score"], best["low"], best["high"]),
        ]

    def show(self, result: Result) -> None:
        """Print what the features explain in each model, and what the numbers mean."""
        stimuli = result.provenance["stimuli"]
        profiles, scores = self.profiles_and_scores_to_show(result)
        # Stimuli that are compared do not differ in the feature that they are conditional on.
        given_feature = (result.config.get("measure") or {}).get("conditional_on")
        profiles = profiles[profiles["feature"] != given_feature]
        profiles = profiles.dropna(subset="importance")  # of features that cannot be permuted
        groups = cast("Mapping[str, Any] | None", stimuli.get("groups"))
        show_scores(profiles, scores, groups, given_feature)
        condition = cast("Mapping[str, Any] | None", result.provenance.get("condition"))
        for sentence in condition_in_words(condition, stimuli["count"]):
            show_text(sentence)
        if result.config.get("recipe") != "paper":  # whose folds divide groups
            unknown_chance = unknown_chance_in_words(groups, scores)
            if unknown_chance:
                show_text(unknown_chance)
        untested = untested_in_words(result.details, profiles, stimuli, condition)
        if untested:
            show_text(untested)
        for sentence in shared_values_in_words(stimuli, has_p=has_corrected_p(profiles)):
            show_text(sentence)
        if groups is not None and has_corrected_p(profiles):
            show_text(permuted_groups_in_words(groups))
        intervals = ""
        if scores["low"].notna().any() and "subjects" not in result.provenance:
            intervals = "; 95 % intervals are over folds"
        show_text(
            f"Computed on {stimuli_in_words(stimuli)}. Spearman's ρ is between the distances of "
            "held-out stimuli and those predicted from how their features differ, by fitted "
            f"weights{intervals}."
        )
        meanings = [MEANING_OF_IMPORTANCE]
        if has_no_weight(profiles):
            meanings.append(MEANING_OF_NO_WEIGHT)
        if "PoS" in set(profiles["feature"]):
            meanings.append("PoS: part of speech.")
        show_note(" ".join(meanings))
        if REFERENCE in scores and scores[REFERENCE].notna().any():
            show_note(MEANING_OF_REFERENCE)
        show_layer_note(result)
        for sentence in stimuli.get("confounded_with_words", ()):
            show_text(f"{sentence}.")


def _check_features_of_groups(stimuli: Stimuli) -> None:
    """Check that no feature has a level of its own for each value of the column of groups.

    Permuting whole values would not change which stimuli differ in such a feature.

    Raises:
        DataError: A feature has.
    """
    column = stimuli.groups_column
    if column is None:
        return
    n_groups = len(stimuli.groups.unique())
    for name in stimuli.constant_features(stimuli.groups):
        if stimuli.features[name].nunique(dropna=False) == n_groups:
            raise DataError(
                f"{stimuli.source}: {name} has one level for each value of {column}, and cannot "
                f"be permuted between them; leave it out of features, or leave out "
                f"{named_setting('measure.null')}"
            )
