"""The tables of MLEM: profiles, scores, the similarity of layers, pairs of features and levels."""

from __future__ import annotations

import logging

import numpy as np
import pandas as pd
import torch

from thinkalike.data.stimuli import Stimuli
from thinkalike.instruments.mlem.fitting import COLUMNS_GIVEN_WORD, REFERENCE, REFERENCE_OF_WORDS
from thinkalike.instruments.mlem.settings import MLEMConfig
from thinkalike.measures.distances.comparators import weighted_tau
from thinkalike.measures.mlem.encoding_model import MLEM
from thinkalike.measures.mlem.importance import Importance
from thinkalike.tables import matrix_rows, repeated_rows

log = logging.getLogger(__name__)

CHANCE_MEAN = "chance_mean"
"""The column of the mean of scores, or importances, by chance: with features of other groups."""

CHANCE_GREATEST = "chance_greatest"
"""The column of the greatest of these."""

SHARE_OF_REFERENCE = "share_of_reference"
"""The column of the share of the split-half reference that a score is."""


def _names_with_ends(name: str) -> tuple[str, str, str]:
    """Return the name of a column and those of the ends of its interval."""
    return name, f"{name}_low", f"{name}_high"


BLANK = (
    "alpha",
    SHARE_OF_REFERENCE,
    *_names_with_ends(REFERENCE),
    *_names_with_ends(REFERENCE_OF_WORDS),
    "p",
    "p_corrected",
    *COLUMNS_GIVEN_WORD,
)
"""Columns that may have empty cells."""

BLANK_IF_CONDITIONAL = (
    "importance",
    "low",
    "high",
    CHANCE_MEAN,
    CHANCE_GREATEST,
    "including_massive_activations",
    "effect",
    "importances",
)
"""Further columns and arrays that may have empty cells if importance is conditional on a feature.

A feature that is constant within each level of that one has no importance.
"""


def profile_table(
    model: MLEM, importance: Importance, stimuli: Stimuli, rows: pd.DataFrame
) -> pd.DataFrame:
    """Return one row for each layer and feature: importance with its interval, weight, and p.

    With weights of interactions of features, `weight` is that of the feature itself. The columns
    of p-values exist only if a null distribution was computed, and those of chance only if
    features were permuted between groups.

    Args:
        model: The encoding model of all layers.
        importance: The importance of each feature in each layer.
        stimuli: The stimuli, which name the features.
        rows: The model and layer of each row of the importances.
    """
    weights = model.weights_
    has_interactions = weights.dim() == 3  # (l, f, f): a weight for each pair of features
    if has_interactions:
        weights = weights.diagonal(dim1=1, dim2=2)  # (l, f)
    profile = importance.profile()
    columns = {
        "importance": profile.value,
        "low": profile.low,
        "high": profile.high,
        "weight": weights,
    }
    if importance.null is not None:
        columns["p"] = importance.p_values()
        columns["p_corrected"] = importance.p_of_largest()
    if importance.chance is not None:
        columns[CHANCE_MEAN] = importance.chance.importances.mean(0)
        columns[CHANCE_GREATEST] = importance.chance.importances.amax(0)
    return repeated_rows(rows, "feature", stimuli.names, **columns)


def score_table(model: MLEM, importance: Importance, rows: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each layer: held-out Spearman's ρ with its interval, and α of the fit.

    α is the ridge penalty; it is NaN where it is infinite. If features were permuted between
    groups, further columns have the mean and the greatest score of that.

    Args:
        model: The encoding model of all layers.
        importance: Has the score of each layer on each fold.
        rows: The model and layer of each row.
    """
    score = importance.score()
    # With difference=levels, α = ∞ stands for one weight of all pairs of a feature's levels.
    alpha = model.alpha_.where(model.alpha_.isfinite(), torch.nan)
    scores = rows.assign(
        score=score.value.numpy(),
        low=score.low.numpy(),
        high=score.high.numpy(),
        alpha=alpha.numpy(),
    )
    if importance.chance is not None:
        scores[CHANCE_MEAN] = importance.chance.scores.mean(0).numpy()
        scores[CHANCE_GREATEST] = importance.chance.scores.amax(0).numpy()
    return scores


def with_share_of_reference(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the scores with a further column: score / split-half reference.

    It is NaN where the reference is not above 0. Without a reference, the scores are returned as
    they are.
    """
    if REFERENCE not in scores:
        return scores
    reference = scores[REFERENCE]
    share = scores["score"] / reference.where(reference > 0)
    return scores.assign(**{SHARE_OF_REFERENCE: share})


def similarity_table(importance: Importance, rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row for every two layers, with weighted Kendall's τ of their importances.

    Features without an importance, because they cannot be permuted, are left out. If a layer does
    not rank the features, as when all have the same importance, the table is empty, and a warning
    says why.

    Args:
        importance: The importance of each feature in each layer.
        rows: The model and layer of each row of the importances.
    """
    profiles = importance.profile().value
    is_known = ~profiles.isnan().any(0)
    try:
        similarity = weighted_tau(profiles[:, is_known])
    except ValueError as error:
        log.warning("warning: layers are not compared by their profiles: %s", error)
        return pd.DataFrame()
    return matrix_rows(rows, rows, value=similarity)


def interaction_table(
    measure: MLEMConfig, importance: Importance, rows: pd.DataFrame
) -> pd.DataFrame:
    """Return one row for each layer and pair of features: the effect of their interaction.

    It is the drop of the held-out ρ when both features are permuted together, less the drop when
    only the first is permuted, less the drop when only the second is.

    Args:
        measure: The settings, which name the pairs.
        importance: Has the scores with both features of a pair permuted.
        rows: The model and layer of each row of the importances.
    """
    effects = importance.pair_effects()
    names = [" x ".join(pair) for pair in measure.interactions]
    return repeated_rows(
        rows, "features", names, effect=effects.value, low=effects.low, high=effects.high
    )


def level_table(model: MLEM, stimuli: Stimuli, rows: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each layer and pair of levels of a feature: the weight of that pair.

    Only with `difference=levels` do pairs of levels have weights; otherwise the table is empty.

    Args:
        model: The encoding model of all layers.
        stimuli: The stimuli, which name the levels.
        rows: The model and layer of each row of the weights.
    """
    levels_by_feature = stimuli.codes().levels
    tables = []
    for level_weights in model.level_weights_:  # one entry for each nominal feature
        feature = stimuli.names[level_weights.feature]
        levels = []
        for code in level_weights.values.tolist():  # the index of a level; NaN: missing values
            if np.isnan(code):
                levels.append("missing")
            else:
                levels.append(levels_by_feature[feature][int(code)])
        first, second = np.triu_indices(len(levels), 1)  # each pair of different levels once
        first_levels = [levels[index] for index in first]
        second_levels = [levels[index] for index in second]
        weights_of_pairs = level_weights.weights[:, first, second]  # (layer, pair of levels)
        table = repeated_rows(rows, "level", first_levels, weight=weights_of_pairs)
        # All pairs of levels follow each other in the first layer, then in the second, and so on.
        tables.append(table.assign(feature=feature, other_level=second_levels * len(rows)))
    if not tables:
        return pd.DataFrame()
    columns = ["model", "layer", "feature", "level", "other_level", "weight"]
    return pd.concat(tables, ignore_index=True)[columns]
