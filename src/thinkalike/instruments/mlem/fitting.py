"""The fits of MLEM: encoding models with importances, importances given the word, references."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Sequence
from dataclasses import replace
from math import ceil, nan
from typing import TypeAlias

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.advice import named_setting
from thinkalike.config import AnalyzeConfig
from thinkalike.data.stimuli import Stimuli
from thinkalike.errors import DataError
from thinkalike.instruments.mlem.settings import MLEMConfig
from thinkalike.measures.kinds import NUMBER_KINDS
from thinkalike.measures.mlem.encoding_model import FEWEST_PER_FOLD, MLEM
from thinkalike.measures.mlem.importance import (
    Importance,
    NothingToPermuteError,
    feature_importance,
    fewest_groups_for_intervals,
)
from thinkalike.measures.mlem.split_half import split_half_reference
from thinkalike.measures.rows import naming_rows
from thinkalike.measures.sample_size import FEWEST_GROUPS
from thinkalike.states.stimuli import StimulusStates, numbered

log = logging.getLogger(__name__)

CHANCE_DRAWS = 19
"""A score beyond the greatest of so many draws is beyond chance at a level of 5 %."""

MOST_STIMULI_FOR_CHANCE = 1000
"""For more stimuli, scores by chance take long, and are computed only with a null distribution."""

REFERENCE = "split_half_reference"
"""The column of the split-half reference of all features together."""

REFERENCE_OF_WORDS = "split_half_reference_of_words"
"""The column of the split-half reference of words."""

COLUMNS_GIVEN_WORD = (
    "conditional_on_word",
    "conditional_on_word_low",
    "conditional_on_word_high",
)
"""The columns of importance beyond the identity of words, with the ends of its interval."""

Columns: TypeAlias = dict[str, np.ndarray | float]
"""Columns of a table by name: an array with a value for each row, or one value for all."""


def sentences_for_folds(config: AnalyzeConfig, stimuli: Stimuli) -> Int[Tensor, " n"] | None:
    """Return the number of each stimulus's group, such as its sentence, if folds keep it together.

    It is None if folds may divide a group: with `together=stimulus`, and with `recipe=paper`,
    whose folds consist of pairs of stimuli.
    """
    if config.recipe == "paper" or config.measure_as(MLEMConfig).together == "stimulus":
        return None
    return stimuli.groups


def check_features(measure: MLEMConfig, stimuli: Stimuli, *, is_folded: bool) -> None:
    """Check that there are enough stimuli for folds, and that each feature can explain distances.

    A feature that has a different value for every stimulus, and is not compared by size, cannot:
    all pairs of stimuli differ alike in it.

    Args:
        measure: The settings of MLEM.
        stimuli: The stimuli with their features.
        is_folded: Whether folds are of stimuli; those of `recipe=paper` are of pairs.

    Raises:
        DataError: There are too few stimuli, or a feature cannot explain distances.
    """
    fewest = FEWEST_PER_FOLD * measure.folds
    if len(measure.alphas) > 1:
        # α is chosen by folds of the stimuli that are not held out.
        fewest = ceil(fewest * measure.folds / (measure.folds - 1))
    if is_folded and len(stimuli) < fewest:
        raise DataError(
            f"{stimuli.source} has {len(stimuli)} stimuli, and "
            f"{named_setting('measure.folds', measure.folds)} needs at least {fewest}; give "
            "more stimuli, or choose fewer folds"
        )
    if is_folded and measure.together == "sentence":
        _check_sentences(measure, stimuli)

    stimuli.check_features_vary(measure.missing)
    kinds_compared_by_size: tuple[str, ...] = ("continuous",)
    if measure.difference == "scaled":
        kinds_compared_by_size = ("ordinal", *NUMBER_KINDS)
    for name, column in stimuli.features.items():
        kind = stimuli.kinds[str(name)]
        values = column
        if measure.missing in ("ignore", "drop"):
            values = column.dropna()
        if kind in kinds_compared_by_size or values.duplicated().any():
            continue
        remedy = "leave it out of features"
        if kind in NUMBER_KINDS:
            remedy = (
                f"set {named_setting(f'stimuli.kinds.{name}', 'continuous')} to compare its "
                f"sizes, or {remedy}"
            )
        raise DataError(
            f"{stimuli.source}: {name} has another value in every row, so that all pairs differ "
            f"alike and it explains no distance; {remedy}"
        )


def _check_sentences(measure: MLEMConfig, stimuli: Stimuli) -> None:
    """Check that there are enough sentences, or other groups, for folds that keep them together.

    Each fold needs one group or more. If α is chosen among several values, the groups outside each
    fold are divided into as many folds again.

    Raises:
        DataError: There are too few.
    """
    fewest = measure.folds
    if len(measure.alphas) > 1:
        # The largest fold has ceil(fewest / folds) groups; the rest must fill as many folds.
        while fewest - ceil(fewest / measure.folds) < measure.folds:
            fewest += 1
    count = len(stimuli.groups.unique())
    if count < fewest:
        raise DataError(
            f"{stimuli.source} has {count} {stimuli.unit}, and "
            f"{named_setting('measure.folds', measure.folds)} needs at least {fewest}; give more, "
            f"or choose fewer folds; {named_setting('measure.together', 'stimulus')} lets folds "
            "divide them"
        )


def check_condition(measure: MLEMConfig, stimuli: Stimuli) -> None:
    """Check that some feature varies within the levels of `conditional_on`, if this is given.

    Raises:
        DataError: All are constant within each level, so that nothing can be permuted.
    """
    condition = measure.conditional_on
    if condition is None:
        return
    if len(constant_in_levels(condition, stimuli)) == len(stimuli.names):
        n_levels = stimuli.features[condition].nunique(dropna=False)
        raise DataError(
            f"{stimuli.source}: {named_setting('measure.conditional_on', condition)}: no feature "
            f"can be permuted, as all are constant within each of the {n_levels} levels of "
            f"{condition} ({len(stimuli)} stimuli); name a feature of fewer levels, or leave it "
            "out"
        )


def constant_in_levels(condition: str, stimuli: Stimuli) -> list[str]:
    """Return the features that are constant within each level of a feature, with that feature."""
    levels, _ = pd.factorize(stimuli.features[condition], use_na_sentinel=False)
    return stimuli.constant_features(torch.from_numpy(levels))


def facts_of_condition(
    measure: MLEMConfig, stimuli: Stimuli, importance: Importance
) -> dict[str, object]:
    """Return what the provenance of a result says of the condition of importances.

    The condition is the feature that `conditional_on` names.

    `feature` is its name. `constant` lists the other features that are constant within each of its
    levels, `movable` says in how many stimuli a permutation can change each feature, and
    `untested` lists the features that permutations can change, and no draw of the null does. There
    are no facts without such a feature.

    Args:
        measure: The settings of MLEM.
        stimuli: The stimuli with their features.
        importance: The importances.
    """
    condition = measure.conditional_on
    if condition is None or importance.movable is None:
        return {}
    names = stimuli.names
    movable = dict(zip(names, importance.movable.tolist(), strict=True))
    untested = []
    if importance.null is not None and importance.groups >= FEWEST_GROUPS:
        is_tested = importance.null.isfinite().all(0).any(0).tolist()  # of each feature
        for name, has_p in zip(names, is_tested, strict=True):
            if movable[name] and not has_p:
                untested.append(name)
    return {
        "feature": condition,
        "constant": [name for name in constant_in_levels(condition, stimuli) if name != condition],
        "movable": movable,
        "untested": untested,
    }


def chance_draws(config: AnalyzeConfig, stimuli: Stimuli) -> int:
    """Return in how many draws features are permuted between groups, for scores by chance.

    There are `CHANCE_DRAWS` if a column groups the stimuli, and these are at most
    `MOST_STIMULI_FOR_CHANCE`, or a null distribution was asked for; otherwise 0.
    """
    has_groups = stimuli.groups_column is not None
    if not has_groups or sentences_for_folds(config, stimuli) is None:
        return 0
    measure = config.measure_as(MLEMConfig)
    is_cheap = len(stimuli) <= MOST_STIMULI_FOR_CHANCE
    return CHANCE_DRAWS if is_cheap or measure.null else 0


def fit_profiles(
    config: AnalyzeConfig, stimuli: Stimuli, sides: Sequence[StimulusStates], chance: int = 0
) -> tuple[MLEM, Importance]:
    """Return an encoding model of all layers, and the importance of each feature in each layer.

    The model predicts the distances between stimuli from differences of their features. Importance
    is the drop of held-out Spearman's ρ when a feature is permuted.

    Args:
        config: The job.
        stimuli: The stimuli with their features.
        sides: Their states in each model or recording.
        chance: The number of draws in which features are permuted between groups.

    Raises:
        DataError: The model cannot be fitted to these stimuli.
    """
    measure = config.measure_as(MLEMConfig)
    names = stimuli.names
    groups = sentences_for_folds(config, stimuli)
    model = MLEM(
        alpha=measure.alphas,
        kinds=[str(stimuli.kinds[name]) for name in names],
        recipe="paper" if config.recipe == "paper" else "stimuli",
        seed=config.seed,
        weights=measure.weights,
        distance=measure.distance,
        difference=measure.difference,
        missing=measure.missing,
        scale=measure.scale,
        folds=measure.folds,
    )
    features = pd.DataFrame(stimuli.codes().table.numpy(), columns=names)
    layers = states_of_all_layers(sides)
    try:
        with warnings.catch_warnings(), naming_rows(stimuli.name_of_row):
            # The fit to all stimuli gives the same warnings as the fits on folds.
            warnings.simplefilter("ignore")
            # Before that fit, as it refuses a condition within whose levels nothing varies.
            importance = feature_importance(
                model,
                features,
                layers,
                folds=measure.folds,
                permutations=measure.permutations,
                groups=groups,
                texts=stimuli.texts_beside_groups(),
                conditional_on=measure.conditional_on,
                interactions=[(first, second) for first, second in measure.interactions],
                null=measure.null,
                chance=chance,
                seed=config.seed,
            )
        with (
            warnings.catch_warnings(record=True) as caught,
            naming_rows(stimuli.name_of_row),
        ):
            warnings.simplefilter("always")
            model.fit(features, layers, groups)
        for warning in caught:
            log.warning("warning: %s", warning.message)
    except ValueError as error:
        reason = str(error)
        if "groups" in reason:
            reason += f"; {named_setting('measure.together', 'stimulus')} lets folds divide a text"
        reason += numbered(sides, str(error))  # which models' layers the message counts
        raise DataError(f"{stimuli.source}: {reason}") from error
    _warn_of_few_sentences(measure, stimuli, importance)
    return model, importance


def states_of_all_layers(sides: Sequence[StimulusStates]) -> list[Float[Tensor, "n _"]]:
    """Return the states of all layers of all models and recordings, one after the other."""
    layers = []
    for side in sides:
        layers += side.states
    return layers


def _with_names_of_layers(message: str, sides: Sequence[StimulusStates]) -> str:
    """Return an error message with the names of layers and models in place of indices.

    An index counts the layers of all sides one after the other: "layers[30]" becomes "layer 0 of
    gemma3-270m" if the first of two models has 30 layers.
    """
    names = [f"layer {layer} of {side.name}" for side in sides for layer in side.layers]
    return re.sub(r"layers\[(\d+)\]", lambda found: names[int(found[1])], message)


def _warn_of_few_sentences(measure: MLEMConfig, stimuli: Stimuli, importance: Importance) -> None:
    """Log a warning if there are too few sentences (groups) for intervals, or also for p-values.

    Args:
        measure: The settings of MLEM, with the number of folds.
        stimuli: The stimuli, whose source the warning names.
        importance: The importances, which know the number of sentences (groups).
    """
    fewest_for_intervals = fewest_groups_for_intervals(measure.folds)
    if importance.groups >= fewest_for_intervals:
        return
    missing = "no intervals"
    if importance.groups < FEWEST_GROUPS:  # which p-values need
        missing = "no intervals and no p"
    log.warning(
        "warning: %s has fewer than %d %s: %s",
        stimuli.source,
        fewest_for_intervals,
        stimuli.unit,
        missing,
    )


def importance_given_word(
    config: AnalyzeConfig, stimuli: Stimuli, sides: Sequence[StimulusStates]
) -> Columns:
    """Return columns of importance conditional on the word, for features confounded with words.

    The model is fitted with the identity of the word as a further feature, and a confounded
    feature is permuted only among stimuli of the same word. A feature that the word determines
    cannot be permuted so, and has NaN, as has a feature that is not confounded. There are no
    columns if no feature has an importance, or with `recipe=paper`, which permutes pairs.

    Args:
        config: The job.
        stimuli: The stimuli with their features.
        sides: Their states in each model or recording.
    """
    overlaps = stimuli.confounded_with_words()
    # Features that differ between some stimuli of the same word; the word determines the others.
    varying_features = [overlap.feature for overlap in overlaps if overlap.differing > 0]
    if not varying_features or config.recipe == "paper":
        return {}
    stimuli_with_words, word_feature = _with_words_as_feature(stimuli)
    measure = replace(
        config.measure_as(MLEMConfig), conditional_on=word_feature, null=0, interactions=[]
    )
    config_given_word = replace(config, measure=measure)
    try:
        _, importance = fit_profiles(config_given_word, stimuli_with_words, sides)
    except DataError as error:
        if not isinstance(error.__cause__, NothingToPermuteError):
            raise
        return {}  # held-out stimuli of one word differ in no feature
    profile = importance.profile()
    fitted = torch.stack([profile.value, profile.low, profile.high])  # (3, layer, feature)
    # Axes: (importance and the ends of its interval, layer, feature).
    values = np.full((len(COLUMNS_GIVEN_WORD), len(profile.value), len(stimuli.names)), nan)
    for feature in varying_features:
        index = stimuli.names.index(feature)
        values[:, :, index] = fitted[:, :, index].numpy()
    columns: Columns = {}
    for name, column in zip(COLUMNS_GIVEN_WORD, values, strict=True):
        columns[name] = column.flatten()  # a value for each layer and feature
    return columns


def _with_words_as_feature(stimuli: Stimuli) -> tuple[Stimuli, str]:
    """Return the stimuli with the identity of their word as a further feature, and its name.

    Words that differ only in upper and lower case are the same. The name is "word", followed by as
    many "_" as it takes to differ from the features that the stimuli have.
    """
    name = "word"
    while name in stimuli.names:
        name += "_"
    identities = pd.Categorical(pd.Series(stimuli.words).str.casefold())
    features = stimuli.features.assign(**{name: identities})
    kinds = {**stimuli.kinds, name: "nominal"}
    return replace(stimuli, features=features, kinds=kinds), name


def split_half_references(
    config: AnalyzeConfig, stimuli: Stimuli, sides: Sequence[StimulusStates]
) -> Columns:
    """Return columns of the split-half references of all features together, and of words.

    A split-half reference estimates how well a model of these features, or of words, could predict
    distances; it is no bound. Stimuli of the same combination of features (or of the same word)
    form a group. The mean distance between two groups in one half of the stimuli predicts the
    distances between their stimuli in the other half. The reference is Spearman's ρ of both,
    corrected for noise and averaged over `references` random divisions into halves. With
    `references=0` there are no columns.

    Args:
        config: The job.
        stimuli: The stimuli with their features.
        sides: Their states in each model or recording.
    """
    if not config.measure_as(MLEMConfig).references:
        return {}
    # The combination of features of each stimulus as a text, which names its group.
    combinations = [repr(row) for row in stimuli.features.itertuples(index=False, name=None)]
    return {
        **_columns_of_split_half(REFERENCE, combinations, config, stimuli, sides),
        **_columns_of_split_half(REFERENCE_OF_WORDS, stimuli.words, config, stimuli, sides),
    }


def _columns_of_split_half(
    name: str,
    group_names: Sequence[str],
    config: AnalyzeConfig,
    stimuli: Stimuli,
    sides: Sequence[StimulusStates],
) -> Columns:
    """Return the columns of one split-half reference: its value and the ends of its interval.

    The reference is Spearman's ρ between the distances of stimuli in one half and the mean
    distances of their groups in the other half. If it cannot be computed, the columns are NaN, and
    a warning says why.

    Args:
        name: The name of the first column.
        group_names: The name of each stimulus's group: its word, or its combination of features.
        config: The job.
        stimuli: The stimuli.
        sides: Their states in each model or recording.
    """
    measure = config.measure_as(MLEMConfig)
    sentences = sentences_for_folds(config, stimuli)  # None: halves may divide a sentence
    title = name.replace("_", " ")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            reference = split_half_reference(
                group_names,
                states_of_all_layers(sides),
                measure.distance,
                groups=None if sentences is None else sentences.tolist(),
                splits=measure.references,
                seed=config.seed,
            )
        except ValueError as error:
            reason = _with_names_of_layers(str(error), sides)
            log.warning("warning: %s is left out: %s", title, reason)
            return {name: nan, f"{name}_low": nan, f"{name}_high": nan}
    for warning in caught:
        log.warning("warning: %s: %s", title, _with_names_of_layers(str(warning.message), sides))
    return {
        name: reference.value.numpy(),
        f"{name}_low": reference.low.numpy(),
        f"{name}_high": reference.high.numpy(),
    }
