"""measure=rsa and measure=mlem of several subjects, beside models.

RSA says how well layers of models explain the subjects, how near to the noise ceiling, and which does best; MLEM gives
the profile of the group, and held-out scores beside the ceiling.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.config import AnalyzeConfig
from thinkalike.contrib import figures
from thinkalike.contrib.subjects import measures
from thinkalike.contrib.subjects.measures import Draws, ModelScores, NoiseCeiling, Scored, noise_ceiling, random_effects
from thinkalike.data.stimuli import Stimuli
from thinkalike.errors import DataError
from thinkalike.instruments import of_stimuli
from thinkalike.instruments.mlem import FeatureProfiles, MLEMConfig
from thinkalike.instruments.rsa import RSA, RSAConfig, layer_distances
from thinkalike.job import Outcome, Work
from thinkalike.measures.changes import two_sided
from thinkalike.measures.distances.comparators import comparable
from thinkalike.measures.distances.rsa import distance_vectors
from thinkalike.measures.folds import splits, stimulus_folds
from thinkalike.screen import show_text, span
from thinkalike.states.stimuli import StimulusStates
from thinkalike.store import Headline, Result
from thinkalike.tables import repeated_rows

CEILING = "noise ceiling"  # what comparisons call its lower end
Vectors = Sequence[Float[Tensor, "_ p"]]  # the distances in each layer, of each side


class SubjectsRSA(RSA, kind="rsa", version=RSA.version, reads=RSA.reads):
    """Compares all layers of the models with all recorded layers of all subjects."""

    def run(self, config: AnalyzeConfig, work: Work) -> Outcome:
        """Compare every layer of the models that are asked for with every recorded layer in every subject."""
        measure = config.measure_as(RSAConfig)
        stimuli: Stimuli = work.input("stimuli", Stimuli)
        ((stimuli, sides), _), count = of_stimuli.states_of_sides(config, stimuli), len(config.subjects)
        try:
            vectors = [distance_vectors(layer_distances(side, measure)) for side in sides]
            for each, side in zip(vectors, sides, strict=True):
                comparable(each, measure.comparator, [f"{side.name} {layer}" for layer in side.layers])
            tables = [_tables(place, sides, vectors, config, stimuli) for place in range(len(sides[0].layers))]
        except ValueError as error:
            raise DataError(f"{stimuli.source}: {error}") from error
        joined = {name: pd.concat([part[name] for part in tables], ignore_index=True) for name in tables[0]}
        means = _mean_ceilings(joined["ceilings"])
        scalars = {"subjects": float(count), "stimuli": float(len(stimuli)), "ceiling": float(means["lower"].max())}
        if "table" in joined:
            scalars["best"] = float(joined["table"]["value"].max())
        return Outcome(
            joined.pop("table", means),
            scalars,
            tables=joined,
            models=[side.origin for side in sides],
            facts=of_stimuli.stimuli_facts(stimuli, sides[:count]),
        )

    def draw(self, result: Result, folder: Path) -> None:
        if "models" in result.tables:
            means = _mean_ceilings(result.tables["ceilings"])
            figures.subject_scores(result.table, means, folder, result.config["measure"]["comparator"])

    def headlines(self, result: Result) -> list[Headline]:
        """Return the mean score of the best layer of a model, if there is one, and the noise ceiling's lower end."""
        ceiling = Headline("ceiling", result.scalars["ceiling"])
        if "models" not in result.tables:
            return [ceiling]
        best = result.table.iloc[int(result.table["value"].argmax())]
        return [Headline.with_ends("best", best["value"], *(best[end] for end in _ends(best.index))), ceiling]

    def show(self, result: Result) -> None:
        measure, stimuli = result.config["measure"], result.provenance["stimuli"]
        count = len(result.provenance["subjects"])
        show_text(
            f"{count} subjects, {stimuli['count']} stimuli of {stimuli['source']}; {measure['comparator']} of "
            f"{measure['distance']} distances, mean over subjects; best layers are chosen on the other subjects."
        )
        for recorded, rows in result.tables["ceilings"].groupby("recorded", sort=False):
            low = float(random_effects(torch.tensor(rows["lower"].to_numpy(float))).low)
            doubt = "" if low > 0 else "; subjects share too little to judge a model by"
            ceiling = f"noise ceiling {rows['lower'].mean():.3f} to {rows['upper'].mean():.3f}"
            show_text(f"{recorded}: {ceiling}{doubt}", indent=2)
            if "models" not in result.tables:
                continue
            bests, pairs = (result.tables[name] for name in ("models", "comparisons"))
            row: Any
            lower = float(rows["lower"].mean())
            for row in bests[bests["recorded"] == recorded].itertuples():
                share = f", {row.value / lower:.0%} of the ceiling's lower end" if lower > 0 else ""
                show_text(f"{row.model}, best layer {row.layers}: {_written(row, 'value')}{share}", indent=4)
            for row in pairs[pairs["recorded"] == recorded].itertuples():
                word = "minus the ceiling's lower end" if row.other == CEILING else f"minus {row.other}"
                show_text(f"{row.model} {word}: {_written(row, 'difference')}, p = {row.p:.2g}", indent=4)


def _mean_ceilings(ceilings: pd.DataFrame) -> pd.DataFrame:
    return ceilings.groupby("recorded", sort=False)[["lower", "upper"]].mean().reset_index()


def _tables(
    place: int, sides: Sequence[StimulusStates], vectors: Vectors, config: AnalyzeConfig, stimuli: Stimuli
) -> dict[str, pd.DataFrame]:
    measure = config.measure_as(RSAConfig)
    count, settings = len(config.subjects), dict[str, Any](resamples=measure.resamples, seed=config.seed)
    names, recorded = [side.name for side in sides[:count]], sides[0].layers[place]
    subjects = torch.stack([each[place] for each in vectors[:count]])
    if len(sides) == count:
        return {"ceilings": ceiling_rows(noise_ceiling(subjects, measure.comparator), names, recorded)}
    models, layers = torch.cat(list(vectors[count:])), of_stimuli.rows_of_sides(sides[count:])
    settings["groups"] = of_stimuli.sentence_groups(stimuli)
    found = measures.model_scores(models, subjects, measure.comparator, **settings)
    ceilings = ceiling_rows(found.ceiling, names, recorded)
    table = layers.join(score_columns([found.of(row) for row in range(len(layers))], found.draws))
    table = table.assign(lower=ceilings["lower"].mean(), upper=ceilings["upper"].mean())
    bests, comparisons = best_of_models(found, layers)
    tables = {"table": table, "by_subject": repeated_rows(layers, "subject", names, value=found.values)}
    tables |= {"models": bests, "comparisons": comparisons}
    for part in tables.values():
        part.insert(0, "recorded", recorded)
    return {**tables, "ceilings": ceilings}


def _written(row: Any, column: str) -> str:
    """Return a value with its widest interval: over subjects and stimuli, or else over subjects."""
    return span(getattr(row, column), *(getattr(row, end) for end in _ends(row._fields)))


def _ends(columns: Collection[str]) -> tuple[str, str]:
    return ("both_low", "both_high") if "both_low" in columns else ("low", "high")


def ceiling_rows(found: NoiseCeiling, subjects: Sequence[str], recorded: Any) -> pd.DataFrame:
    """Return one row per subject: recorded, subject, lower, upper."""
    ends = {"lower": found.lower.cpu().numpy(), "upper": found.upper.cpu().numpy()}
    return pd.DataFrame({"recorded": recorded, "subject": list(subjects), **ends})


def score_columns(scored: Sequence[Scored], draws: Draws | None = None, value: str = "value") -> pd.DataFrame:
    """Return the mean over subjects of each, its interval over subjects, that over stimuli, too, and p of 0.

    Without resamples the interval over both is left out, and p is of subjects alone.
    """
    rows = []
    for each in scored:
        row = dict(zip((value, "low", "high"), random_effects(each.values), strict=True))
        if draws and len(each.replicates):
            both = measures.two_factor(*each, draws)
            row |= {"both_low": both.estimate.low, "both_high": both.estimate.high, "p": both.p}
        else:
            count = len(each.values)
            row["p"] = two_sided(row[value], each.values.std() / count**0.5, count - 1)
        rows.append({name: float(number) for name, number in row.items()})
    return pd.DataFrame(rows)


def best_of_models(found: ModelScores, layers: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the best layer of each model, and the differences of all of them and of the ceiling's lower end."""
    bests, rows = dict[str, Scored](), []
    for model, inside in layers.groupby("model", sort=False):
        bests[str(model)], chosen = found.best(inside.index.tolist())
        counted = Counter(str(layers["layer"][row]) for row in chosen.tolist())
        rows.append({"model": model, "layers": ", ".join(name for name, _ in counted.most_common())})
    table = pd.DataFrame(rows).join(score_columns(list(bests.values()), found.draws))
    ceiling = found.of_ceiling()
    pairs = [(name, CEILING) for name in bests] + list(combinations(bests, 2))
    differences = [bests[name].minus(bests.get(other, ceiling)) for name, other in pairs]
    compared = score_columns(differences, found.draws, "difference")
    return table, pd.DataFrame(pairs, columns=["model", "other"]).join(compared)


# MLEM.


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
    recorded = zip(*(layer_distances(each, config.measure_as(MLEMConfig)) for each in subjects), strict=True)
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
    groups = list(table[table["model"].isin(names)].groupby(by, sort=False)[value])
    scored = [Scored(torch.tensor(inside.to_numpy(float)), torch.empty(0, len(inside))) for _, inside in groups]
    return pd.DataFrame([key for key, _ in groups], columns=by).join(score_columns(scored, value=value))


def _held_out(config: AnalyzeConfig, stimuli: Stimuli) -> list[Int[Tensor, " k"]]:
    """Return the stimuli that each fold holds out; all of them, where folds are of pairs."""
    measure = config.measure_as(MLEMConfig)
    table: Float[Tensor, "n f"] = stimuli.codes().table
    kept = (~table.isnan().any(1) | (measure.missing != "drop")).nonzero()[:, 0]
    if config.recipe == "paper":
        return [kept]
    owners = stimuli.groups[kept] if measure.together == "sentence" else None
    return [kept[test] for _, test in splits(stimulus_folds(len(kept), measure.folds, config.seed, owners))]
