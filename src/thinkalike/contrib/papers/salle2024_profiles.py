"""Feature profiles over the layers of BERT, GPT-2 and Mamba: figure 3 of Salle et al. 2024.

What the paper reads off its figure is stated here as a statistic of the profiles of a model's
layers, on each fold of the stimuli by itself, with an interval over the folds (`fold_interval`).
Early and late are the first and the last third of the layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pandas as pd

from thinkalike.contrib.papers.claims import (
    ABOVE_ZERO,
    BELOW_ZERO,
    Claim,
    bonferroni_level,
    bonferroni_note,
    judged_claim,
)
from thinkalike.contrib.papers.experiment import Conclusion, Experiment, ExperimentRun
from thinkalike.contrib.papers.feature_profiles import (
    MODELS,
    RECURRENT,
    Profiles,
    claim_over_folds,
    lead_over_others,
    profile_jobs,
    profiles_of,
    units_of_folds,
    words_and_weights,
)
from thinkalike.figures.layers import profiles as draw_profiles
from thinkalike.measures.mlem.importance import fold_interval


def _conclude_figure3(experiment: ExperimentRun) -> Conclusion:
    """Judge the claims of figure 3 of Salle et al. 2024: feature profiles over layers.

    A profile is the importance of each feature of words in one layer. Some claims are about
    Mamba, the recurrent model, alone.
    """
    profiles = profiles_of(experiment)  # of each model
    recurrent = [model for model in profiles if model.family == RECURRENT]
    transformers = [model for model in profiles if model.family != RECURRENT]
    claims = [_claim_that_part_of_speech_leads(model) for model in transformers]
    for model in recurrent:
        claims.append(_claim_that_part_of_speech_leads_at_ends(model))
        claims.append(_claim_that_position_rises(model))
    claims += [_claim_that_number_fades(model) for model in profiles]
    claims.append(_claim_that_distances_are_predicted(profiles))

    score_tables = [model.result.tables["scores"] for model in profiles]
    scores = pd.concat(score_tables, ignore_index=True)
    table = pd.concat([model.result.details for model in profiles], ignore_index=True)
    intervals = f"bands: 95 % intervals over {units_of_folds(profiles[0].scores)}"
    note = f"{words_and_weights(profiles)}\n{intervals}"
    draw = partial(draw_profiles, table, scores, about=note)
    return Conclusion(table, claims, draw, tables={"scores": scores})


def _claim_that_part_of_speech_leads(model: Profiles) -> Claim:
    """Judge the claim that part of speech (PoS) is the most important feature of a model.

    It holds if the importance of PoS minus that of the runner-up, averaged over layers, is above
    0 by its interval over folds of the stimuli.
    """
    lead = lead_over_others(model.importances, model.features)  # (folds, layers)
    n_layers_led = model.leading.count("PoS")  # `leading` is the first feature of each layer
    statistic_name = (
        f"it is first in {n_layers_led} of {model.n_layers} layers; it leads the next by"
    )
    claim = f"PoS is the dominant feature of {model.name}"
    return claim_over_folds(claim, lead.mean(-1), statistic_name)


def _claim_that_part_of_speech_leads_at_ends(model: Profiles) -> Claim:
    """Judge the claim that part of speech (PoS) dominates only in the first and the last layer.

    The lead is the importance of PoS minus that of the most important other feature, with an
    interval over folds in each layer. It must be above 0 in these two layers and below 0 in all
    others; the intervals hold for all layers together.
    """
    lead = lead_over_others(model.importances, model.features)  # (folds, layers)
    n_layers = lead.shape[1]
    mean_lead = fold_interval(lead.T, bonferroni_level(n_layers))  # one estimate for each layer
    by_layer = ", ".join(f"{mean_lead[layer]:+.3f}" for layer in range(n_layers))
    return judged_claim(
        f"PoS dominates only in the first and last layer of {model.name}",
        [
            (ABOVE_ZERO, mean_lead[[0, n_layers - 1]]),
            (BELOW_ZERO, mean_lead[1:-1]),
        ],
        finding=f"first by layer: {', '.join(model.leading)}; PoS leads the next by {by_layer}"
        f"{bonferroni_note(n_layers)}",
        units=units_of_folds(lead),
    )


def _claim_that_position_rises(model: Profiles) -> Claim:
    """Judge the claim that the importance of word position is higher after the turn than before.

    The turn is the layer, at 0.4 of a recurrent model's depth, where the paper sees its profile
    change. The statistic is the mean importance in all layers from the turn on, minus that in all
    layers before it.
    """
    position = model.importance_of("Word position")  # (folds, layers)
    rise = position[:, model.turn :].mean(1) - position[:, : model.turn].mean(1)
    claim = f"word position gains importance midway in {model.name}"
    return claim_over_folds(
        claim, rise, f"importance from layer {model.turn} on minus that before"
    )


def _claim_that_number_fades(model: Profiles) -> Claim:
    """Judge the claim that grammatical number matters less in the last third of the layers.

    It matters as much as it explains distances between states (feature importance). The statistic
    is the mean importance in the first third minus that in the last third (of at least one layer
    each). Its interval is over folds of the stimuli.
    """
    number = model.importance_of("Number")  # (folds, layers)
    third = max(model.n_layers // 3, 1)
    fall = number[:, :third].mean(1) - number[:, -third:].mean(1)
    claim = f"number fades from early to late layers of {model.name}"
    statistic_name = f"importance in the first {third} layers minus that in the last {third}"
    return claim_over_folds(claim, fall, statistic_name)


def _claim_that_distances_are_predicted(profiles: Sequence[Profiles]) -> Claim:
    """Judge the claim that the features predict distances of held-out words in every layer.

    The score of a layer is Spearman's ρ between predicted and measured distances. All layers of
    all models must be above 0, by intervals over folds that hold for all of them together.
    """
    n_layers = sum(model.n_layers for model in profiles)
    level = bonferroni_level(n_layers)
    bounds_and_estimates = [
        (ABOVE_ZERO, fold_interval(model.scores.T, level)) for model in profiles
    ]
    means = ", ".join(
        f"{model.name} {model.scores.mean():.2f}{model.reference_note}" for model in profiles
    )
    return judged_claim(
        "the features predict held-out distances in every layer",
        bounds_and_estimates,
        finding=f"mean Spearman's ρ over layers: {means}{bonferroni_note(n_layers)}",
        units=units_of_folds(profiles[0].scores),
    )


EXPERIMENTS = [
    Experiment(
        "salle2024/figure3",
        _conclude_figure3,
        MODELS,
        profile_jobs,
        "mlem",
        accepted_model_counts=(1, 2),
    ),
]
