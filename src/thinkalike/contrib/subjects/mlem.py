"""measure=mlem of several subjects: the profile of the group, and scores beside the ceiling."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import torch
from jaxtyping import Int
from torch import Tensor

from thinkalike.config import AnalyzeConfig
from thinkalike.contrib.subjects.model_scores import SubjectScores
from thinkalike.contrib.subjects.noise_ceiling import noise_ceiling
from thinkalike.contrib.subjects.score_columns import score_columns
from thinkalike.data.stimuli import Stimuli
from thinkalike.errors import DataError
from thinkalike.instruments.mlem.instrument import FeatureProfiles
from thinkalike.instruments.mlem.settings import MLEMConfig
from thinkalike.instruments.rsa.distances import layer_distances
from thinkalike.measures.distances.rsa import distance_vectors
from thinkalike.measures.folds import splits, stimulus_folds
from thinkalike.states.stimuli import StimulusStates
from thinkalike.store import Result


class SubjectsMLEM(
    FeatureProfiles, kind="mlem", version=FeatureProfiles.version, reads=FeatureProfiles.reads
):
    """Finds the feature profiles of all recorded layers, of the group, and of all models."""

    def further_tables(
        self,
        config: AnalyzeConfig,
        stimuli: Stimuli,
        sides: Sequence[StimulusStates],
        profiles: pd.DataFrame,
        scores: pd.DataFrame,
    ) -> dict[str, pd.DataFrame]:
        """Return tables of means over subjects (recorded participants): see `group_tables`.

        Args:
            config: The configuration, which names the subjects.
            stimuli: What subjects and models saw.
            sides: The states of each side: first the subjects, and then the models.
            profiles: The importance of each feature in each layer of each side.
            scores: The score of each layer of each side.
        """
        subjects = sides[: len(config.subjects)]
        return group_tables(config, stimuli, subjects, profiles, scores)

    def profiles_and_scores_to_show(self, result: Result) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return the profiles (the importance of each feature) and scores that the screen shows.

        The rows of the subjects (recorded participants) are replaced by rows of their mean, with a
        name such as "12 participants". A result without subjects has no such means and is shown as
        it is.
        """
        profiles = result.details
        scores = result.tables["scores"]
        if "group" not in result.tables:
            return profiles, scores
        subjects = result.provenance["subjects"]
        name = f"{len(subjects)} participants"
        group_profiles = result.tables["group"].assign(model=name)
        group_scores = result.tables["group_scores"].assign(model=name)
        model_profiles = profiles[~profiles["model"].isin(subjects)]
        model_scores = scores[~scores["model"].isin(subjects)]
        return (
            pd.concat([group_profiles, model_profiles], ignore_index=True),
            pd.concat([group_scores, model_scores], ignore_index=True),
        )

    def units_of_intervals(self, result: Result) -> str:
        """Return over what intervals of the group are, and those of models if there are any."""
        folds = super().units_of_intervals(result)
        if "group" not in result.tables:
            return folds
        subjects = result.provenance["subjects"]
        participants = f"{len(subjects)} participants"
        has_models = not result.tables["scores"]["model"].isin(subjects).all()
        if has_models:
            return f"{participants}; of models over {folds}"
        return participants


def group_tables(
    config: AnalyzeConfig,
    stimuli: Stimuli,
    subjects: Sequence[StimulusStates],
    profiles: pd.DataFrame,
    scores: pd.DataFrame,
) -> dict[str, pd.DataFrame]:
    """Return the group's profile and scores: means over subjects, with random-effects intervals.

    Subjects are recorded participants, whose recordings have layers as the states of a model do. A
    profile is the importance of each feature of the stimuli for the distances of their states. The
    score of a layer is Spearman's ρ, over held-out stimuli, of the measured distances and those
    that features predict. The columns `lower` and `upper` have the ends of its noise ceiling, as
    means over subjects and folds: how well the best possible model would do on the same stimuli.

    Args:
        config: The configuration of the job.
        stimuli: What subjects and models saw.
        subjects: The recorded states of each subject.
        profiles: The importance of each feature in each layer of each subject and model. Rows of
            models are left out here, also of `scores`.
        scores: The score of each layer of each subject and model.

    Returns:
        "group", a row for each layer and feature, and "group_scores", a row for each layer.

    Raises:
        DataError: The distances of a fold are all equal.
    """
    names = [subject.name for subject in subjects]
    try:
        ceilings = _mean_ceilings_of_layers(config, stimuli, subjects)
    except ValueError as error:
        raise DataError(
            f"{stimuli.source}: the noise ceiling of held-out stimuli: {error}"
        ) from error
    known_profiles = profiles.dropna(subset="importance")  # others cannot be permuted
    group_scores = _group_means(scores, names, ["layer"], "score")
    return {
        "group": _group_means(known_profiles, names, ["layer", "feature"], "importance"),
        "group_scores": group_scores.join(ceilings),
    }


def _mean_ceilings_of_layers(
    config: AnalyzeConfig, stimuli: Stimuli, subjects: Sequence[StimulusStates]
) -> pd.DataFrame:
    """Return the noise ceiling of each recorded layer, as a mean over subjects and folds.

    Subjects are recorded participants. The ceiling says how well the best possible model would
    predict the distances between the states of stimuli, as subjects differ. Its ends are the
    columns `lower` and `upper`. The ceiling of a fold is that of the distances between the stimuli
    that the fold holds out.

    Args:
        config: The configuration of the job, which says how stimuli are divided into folds.
        stimuli: What the subjects saw.
        subjects: The recorded states of each subject, all with the same layers.

    Raises:
        ValueError: The distances of a fold are all equal.
    """
    measure = config.measure_as(MLEMConfig)
    distances_of_subjects = [layer_distances(subject, measure) for subject in subjects]
    held_out = _held_out_stimuli(config, stimuli)
    rows = []
    # The distances of all subjects in one layer, layer by layer.
    for distances_of_layer in zip(*distances_of_subjects, strict=True):
        lower_of_folds = []
        upper_of_folds = []
        for indices in held_out:
            held_out_distances = [distances.take(indices) for distances in distances_of_layer]
            ceiling = noise_ceiling(distance_vectors(held_out_distances))
            lower_of_folds.append(float(ceiling.lower.mean()))
            upper_of_folds.append(float(ceiling.upper.mean()))
        lower = _float64_mean(lower_of_folds)
        upper = _float64_mean(upper_of_folds)
        rows.append({"lower": lower, "upper": upper})
    return pd.DataFrame(rows, columns=["lower", "upper"])


def _float64_mean(values: Sequence[float]) -> float:
    """Return the mean of some numbers, computed in float64."""
    return float(torch.tensor(values, dtype=torch.float64).mean())


def _group_means(
    table: pd.DataFrame, subjects: Sequence[str], identifying_columns: list[str], value: str
) -> pd.DataFrame:
    """Return means over subjects with intervals, and p-values for the hypothesis of a mean of 0.

    A subject is a recorded participant. There is a row for each value of `identifying_columns`.

    Args:
        table: A table whose column `model` has names of models and of subjects.
        subjects: The names of the subjects, whose rows are averaged.
        identifying_columns: The columns that identify a mean, such as the layer.
        value: The column that is averaged.
    """
    identifiers = []
    scores = []
    rows_of_subjects = table[table["model"].isin(subjects)]
    for identifier, values in rows_of_subjects.groupby(identifying_columns, sort=False)[value]:
        identifiers.append(identifier)
        no_replicates = torch.empty(0, len(values))  # stimuli are not resampled
        scores.append(SubjectScores(torch.tensor(values.to_numpy(float)), no_replicates))
    return pd.DataFrame(identifiers, columns=identifying_columns).join(
        score_columns(scores, value=value)
    )


def _held_out_stimuli(config: AnalyzeConfig, stimuli: Stimuli) -> list[Int[Tensor, " k"]]:
    """Return the indices of the stimuli that each fold holds out.

    With the setting `measure.missing=drop`, stimuli with a missing feature are left out. In the
    recipe "paper", folds are of pairs of stimuli, which hold out no stimulus from all pairs, so
    one set of all stimuli is returned.
    """
    measure = config.measure_as(MLEMConfig)
    is_used = torch.ones(len(stimuli), dtype=torch.bool)
    if measure.missing == "drop":
        features = stimuli.codes().table  # (stimuli, features), NaN where one is missing
        is_used = ~features.isnan().any(1)
    used_indices = is_used.nonzero()[:, 0]
    if config.recipe == "paper":
        return [used_indices]
    sentences = None
    if measure.together == "sentence":  # the words of a sentence are in one fold
        sentences = stimuli.groups[used_indices]
    fold_of_stimulus = stimulus_folds(len(used_indices), measure.folds, config.seed, sentences)
    # A split has the stimuli to fit on and those to test on.
    return [used_indices[test] for _, test in splits(fold_of_stimulus)]
