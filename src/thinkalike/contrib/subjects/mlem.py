"""measure=mlem of several subjects: the profile of the group, and held-out scores beside the noise ceiling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.config import AnalyzeConfig
from thinkalike.contrib.subjects.measures import noise_ceiling, random_effects
from thinkalike.data.stimuli import Stimuli
from thinkalike.errors import DataError
from thinkalike.instruments.mlem import FeatureProfiles
from thinkalike.instruments.rsa import layer_distances
from thinkalike.measures.changes import two_sided
from thinkalike.measures.distances.neural import distance_vectors
from thinkalike.measures.estimates import splits, stimulus_folds
from thinkalike.states.stimuli import StimulusStates
from thinkalike.store import Result


class SubjectsMLEM(FeatureProfiles, kind="mlem", version=FeatureProfiles.version, reads=FeatureProfiles.reads):
    """Finds the feature profiles of every recorded layer, also of the group, and of all layers of the models."""

    def beside(
        self, config: AnalyzeConfig, stimuli: Stimuli, sides: Sequence[StimulusStates], *tables: pd.DataFrame
    ) -> dict[str, pd.DataFrame]:
        return group_tables(config, stimuli, sides[: len(config.subjects)], *tables)

    def shown(self, result: Result) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return the profiles and the scores of all sides of a result; subjects are one, the group."""
        table, scores = result.table, result.tables["scores"]
        if "group" not in result.tables:
            return table, scores
        subjects = result.provenance["subjects"]
        name, pair = f"{len(subjects)} subjects", [each[~each["model"].isin(subjects)] for each in (table, scores)]
        own = [result.tables[each].assign(model=name) for each in ("group", "group_scores")]
        profiles, scores = (pd.concat(both, ignore_index=True) for both in zip(own, pair, strict=True))
        return profiles, scores


def group_tables(
    config: AnalyzeConfig,
    stimuli: Stimuli,
    subjects: Sequence[StimulusStates],
    profiles: pd.DataFrame,
    scores: pd.DataFrame,
) -> dict[str, pd.DataFrame]:
    """Return the group's profile and its scores, each the mean over subjects with a random-effects interval.

    Beside the mean score of each layer stand lower and upper, the noise ceiling of Spearman's ρ over the same held-out
    pairs. Equal distances of a fold are a DataError.
    """
    names, held_out, ends = [side.name for side in subjects], _held_out(config, stimuli), []
    recorded = zip(*(layer_distances(each, config.measure) for each in subjects), strict=True)
    try:
        for layers in recorded:  # both ends of the noise ceiling of held-out pairs, each a mean over the folds
            found = [noise_ceiling(distance_vectors([layer.take(rows) for layer in layers])) for rows in held_out]
            ends.append([[float(each.lower.mean()), float(each.upper.mean())] for each in found])
    except ValueError as error:
        raise DataError(f"{stimuli.source}: the noise ceiling of held-out stimuli: {error}") from error
    lower, upper = torch.tensor(ends, dtype=torch.float64).mean(1).T.tolist()
    score = _mean(scores, names, ["layer"], "score").assign(lower=lower, upper=upper)
    return {"group": _mean(profiles, names, ["layer", "feature"], "importance"), "group_scores": score}


def _mean(table: pd.DataFrame, names: Sequence[str], by: list[str], value: str) -> pd.DataFrame:
    """Return the mean over subjects of a column, with its interval and the p-value of 0."""
    rows = []
    for key, inside in table[table["model"].isin(names)].groupby(by, sort=False):
        values = torch.tensor(inside[value].to_numpy(float))
        mean, low, high = random_effects(values)
        p = two_sided(mean, values.std() / len(values) ** 0.5, len(values) - 1)
        numbers = dict(zip((value, "low", "high", "p"), map(float, (mean, low, high, p)), strict=True))
        rows.append(dict(zip(by, key, strict=True)) | numbers)
    return pd.DataFrame(rows)


def _held_out(config: AnalyzeConfig, stimuli: Stimuli) -> list[Int[Tensor, " k"]]:
    """Return the stimuli that each fold holds out; all of them, where folds are of pairs."""
    measure: Any = config.measure
    table: Float[Tensor, "n f"] = stimuli.codes().table
    kept = (~table.isnan().any(1) | (measure.missing != "drop")).nonzero()[:, 0]
    if config.recipe == "paper":
        return [kept]
    owners = stimuli.groups[kept] if measure.together == "sentence" else None
    return [kept[test] for _, test in splits(stimulus_folds(len(kept), measure.folds, config.seed, owners))]
