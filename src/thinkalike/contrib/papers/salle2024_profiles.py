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
    Bound,
    Claim,
    bonferroni_note,
    judged_claim,
    level_of_each,
)
from thinkalike.contrib.papers.experiment import Case, Conclusion, Experiment
from thinkalike.contrib.papers.feature_profiles import (
    MODELS,
    RECURRENT,
    Profiles,
    claim_over_folds,
    lead_over_others,
    profile_jobs,
    profiles_of,
    units_of_folds,
)
from thinkalike.figures.layers import profiles as draw_profiles
from thinkalike.measures.mlem.importance import fold_interval


def _figure3(case: Case) -> Conclusion:
    """Feature profiles over the layers of each model, with what the paper reads off them."""
    profiles = profiles_of(case)
    claims = []
    for model in profiles:
        if model.family != RECURRENT:
            claims.append(_part_of_speech_leads(model))
    for model in profiles:
        if model.family == RECURRENT:
            claims += [_leads_at_the_ends(model), _position_rises(model)]
    claims += [_number_fades(model) for model in profiles]
    claims.append(_predicts(profiles))

    score_tables = [model.result.tables["scores"] for model in profiles]
    scores = pd.concat(score_tables, ignore_index=True)
    table = pd.concat([model.result.details for model in profiles], ignore_index=True)
    return Conclusion(table, claims, partial(draw_profiles, table, scores), {"scores": scores})


def _part_of_speech_leads(model: Profiles) -> Claim:
    """Return the claim that PoS leads all other features, in the mean over layers."""
    lead = lead_over_others(model.importances, model.features)
    n_leading = model.leading.count("PoS")
    words = f"it is first in {n_leading} of {model.n_layers} layers; it leads the next by"
    claim = f"PoS is the dominant feature of {model.name}"
    return claim_over_folds(claim, lead.mean(-1), words)


def _leads_at_the_ends(model: Profiles) -> Claim:
    """Return the claim that PoS leads in the first and the last layer, and in none between.

    The intervals hold for all layers together.
    """
    lead = lead_over_others(model.importances, model.features)  # (k, l)
    n_layers = lead.shape[1]
    mean_lead = fold_interval(lead.T, level_of_each(n_layers))
    by_layer = ", ".join(f"{mean_lead[layer]:+.3f}" for layer in range(n_layers))
    return judged_claim(
        f"PoS dominates only in the first and last layer of {model.name}",
        [
            (Bound("above"), mean_lead[[0, n_layers - 1]]),
            (Bound("below"), mean_lead[1:-1]),
        ],
        f"first by layer: {', '.join(model.leading)}; PoS leads the next by {by_layer}"
        f"{bonferroni_note(n_layers)}",
        units_of_folds(lead),
    )


def _position_rises(model: Profiles) -> Claim:
    """Return the claim that word position is more important after the turn than before it."""
    position = model.of("Word position")
    rise = position[:, model.turn :].mean(1) - position[:, : model.turn].mean(1)
    claim = f"word position gains importance midway in {model.name}"
    return claim_over_folds(
        claim, rise, f"importance from layer {model.turn} on minus that before"
    )


def _number_fades(model: Profiles) -> Claim:
    """Return the claim that number is less important in the last third than in the first."""
    number = model.of("Number")
    third = max(model.n_layers // 3, 1)
    fall = number[:, :third].mean(1) - number[:, -third:].mean(1)
    claim = f"number fades from early to late layers of {model.name}"
    words = f"importance in the first {third} layers minus that in the last {third}"
    return claim_over_folds(claim, fall, words)


def _predicts(profiles: Sequence[Profiles]) -> Claim:
    """Return the claim that held-out distances are predicted in every layer of every model."""
    n_layers = sum(model.n_layers for model in profiles)
    level = level_of_each(n_layers)
    bounded = [(Bound("above"), fold_interval(model.scores.T, level)) for model in profiles]
    means = ", ".join(
        f"{model.name} {model.scores.mean():.2f}{model.reference_note}" for model in profiles
    )
    return judged_claim(
        "the features predict held-out distances in every layer",
        bounded,
        f"mean Spearman's ρ over layers: {means}{bonferroni_note(n_layers)}",
        units_of_folds(profiles[0].scores),
    )


EXPERIMENTS = [
    Experiment("salle2024/figure3", _figure3, MODELS, profile_jobs, "mlem", takes=(1, 2)),
]
