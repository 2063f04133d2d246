"""measure=rsa of several subjects, beside models.

It says how well layers of models explain the subjects, how near to the noise ceiling, and which
model does best.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.config import AnalyzeConfig
from thinkalike.contrib.subjects.model_scores import ModelScores, Scored, model_scores
from thinkalike.contrib.subjects.noise_ceiling import NoiseCeiling, noise_ceiling
from thinkalike.contrib.subjects.random_effects import random_effects
from thinkalike.contrib.subjects.score_columns import score_columns
from thinkalike.data.stimuli import Stimuli
from thinkalike.errors import DataError
from thinkalike.instruments import of_stimuli
from thinkalike.instruments.rsa.distances import RSAConfig, layer_distances
from thinkalike.instruments.rsa.instrument import RSA
from thinkalike.job import Outcome, Work
from thinkalike.measures.distances.comparators import comparable
from thinkalike.measures.distances.rsa import distance_vectors
from thinkalike.screen import show_text, span
from thinkalike.states.stimuli import StimulusStates
from thinkalike.store import Headline, Result
from thinkalike.tables import repeated_rows

CEILING = "noise ceiling"  # what comparisons call its lower end

# One entry for each side, which has layers of its own.
LayerVectors = Sequence[Float[Tensor, "_ p"]]
"""The distances in each layer, of each side."""


class SubjectsRSA(RSA, kind="rsa", version=RSA.version, reads=RSA.reads):
    """Compares all layers of the models with all recorded layers of all subjects."""

    def run(self, config: AnalyzeConfig, work: Work) -> Outcome:
        """Compare each recorded layer of the subjects with all layers of all models.

        Without models the result is the noise ceilings alone.

        Raises:
            DataError: The distances of a layer cannot be compared.
        """
        measure = config.measure_as(RSAConfig)
        stimuli = work.input("stimuli", Stimuli)
        (stimuli, sides), _ = of_stimuli.stimulus_states_to_compare(config, stimuli)
        n_subjects = len(config.subjects)
        recorded_layers = sides[0].layers
        try:
            vectors = [distance_vectors(layer_distances(side, measure)) for side in sides]
            for of_side, side in zip(vectors, sides, strict=True):
                names = [f"{side.name} {layer}" for layer in side.layers]
                comparable(of_side, measure.comparator, names)
            tables_of_layers = []
            for number in range(len(recorded_layers)):
                tables_of_layers.append(_tables_of_layer(number, sides, vectors, config, stimuli))
        except ValueError as error:
            raise DataError(f"{stimuli.source}: {error}") from error

        tables = {}
        for name in tables_of_layers[0]:
            of_layers = [tables_of_layer[name] for tables_of_layer in tables_of_layers]
            tables[name] = pd.concat(of_layers, ignore_index=True)
        ceilings = _mean_ceilings(tables["ceilings"])
        scalars = {
            "subjects": float(n_subjects),
            "stimuli": float(len(stimuli)),
            "ceiling": float(ceilings["lower"].max()),
        }
        if "table" in tables:
            scalars["best"] = float(tables["table"]["value"].max())
        return Outcome(
            tables.pop("table", ceilings),
            scalars,
            tables=tables,
            models=[side.origin for side in sides],
            facts=of_stimuli.stimuli_facts(stimuli, sides[:n_subjects]),
        )

    def draw(self, result: Result, folder: Path) -> None:
        """Draw the scores of the models' layers beside the noise ceiling, if there are models."""
        from thinkalike.contrib.figures.subjects import draw_subject_scores  # imports matplotlib

        if "models" in result.tables:
            ceilings = _mean_ceilings(result.tables["ceilings"])
            comparator = result.config["measure"]["comparator"]
            draw_subject_scores(result.details, ceilings, folder, comparator)

    def headlines(self, result: Result) -> list[Headline]:
        """Return the highest mean score of a layer, if there are models, and the noise ceiling."""
        ceiling = Headline("ceiling", result.scalars["ceiling"])
        if "models" not in result.tables:
            return [ceiling]
        best = result.details.iloc[int(result.details["value"].argmax())]
        low_column, high_column = _widest_interval(best)
        headline = Headline.with_ends("best", best["value"], best[low_column], best[high_column])
        return [headline, ceiling]

    def show(self, result: Result) -> None:
        """Print, for each recorded layer, the noise ceiling and how models compare with it."""
        measure = result.config["measure"]
        stimuli = result.provenance["stimuli"]
        n_subjects = len(result.provenance["subjects"])
        show_text(
            f"{n_subjects} subjects, {of_stimuli.stimuli_in_words(stimuli)}; "
            f"{measure['comparator']} of {measure['distance']} distances, mean over subjects; "
            "best layers are chosen on the other subjects."
        )
        for recorded, ceilings in result.tables["ceilings"].groupby("recorded", sort=False):
            _show_ceiling(str(recorded), ceilings)
            if "models" in result.tables:
                best = result.tables["models"]
                comparisons = result.tables["comparisons"]
                _show_models(
                    best[best["recorded"] == recorded],
                    comparisons[comparisons["recorded"] == recorded],
                    float(ceilings["lower"].mean()),
                )


def _show_ceiling(recorded: str, ceilings: pd.DataFrame) -> None:
    """Print the noise ceiling of a recorded layer, with a warning if it is not above 0.

    Args:
        recorded: The name of the recorded layer.
        ceilings: The lower and upper end of the ceiling for each subject.
    """
    lower = torch.tensor(ceilings["lower"].to_numpy(float))
    doubt = ""
    if float(random_effects(lower).low) <= 0:
        doubt = "; subjects share too little to judge a model by"
    ends = f"{ceilings['lower'].mean():.3f} to {ceilings['upper'].mean():.3f}"
    show_text(f"{recorded}: noise ceiling {ends}{doubt}", indent=2)


def _show_models(best: pd.DataFrame, comparisons: pd.DataFrame, ceiling: float) -> None:
    """Print the score of each model's best layer, and the differences between models.

    Args:
        best: A row for each model, with the score of its best layer.
        comparisons: A row for each two models, and for each model and the noise ceiling, with the
            difference of their scores.
        ceiling: The lower end of the noise ceiling. If it is above 0, scores are also printed as
            shares of it.
    """
    for _, row in best.iterrows():
        share = ""
        if ceiling > 0:
            share = f", {row['value'] / ceiling:.0%} of the ceiling's lower end"
        show_text(
            f"{row['model']}, best layer {row['layers']}: {_with_interval(row, 'value')}{share}",
            indent=4,
        )
    for _, row in comparisons.iterrows():
        subtrahend = row["other"]
        if subtrahend == CEILING:
            subtrahend = "the ceiling's lower end"
        show_text(
            f"{row['model']} minus {subtrahend}: {_with_interval(row, 'difference')}, "
            f"p = {row['p']:.2g}",
            indent=4,
        )


def _with_interval(row: pd.Series, column: str) -> str:
    """Return a value with its widest interval."""
    low_column, high_column = _widest_interval(row)
    return span(row[column], row[low_column], row[high_column])


def _widest_interval(row: pd.Series) -> tuple[str, str]:
    """Return the columns of the interval over subjects and stimuli, or else over subjects."""
    if "both_low" in row.index:
        return "both_low", "both_high"
    return "low", "high"


def _mean_ceilings(ceilings: pd.DataFrame) -> pd.DataFrame:
    """Return the mean lower and upper end over subjects, a row for each recorded layer."""
    return ceilings.groupby("recorded", sort=False)[["lower", "upper"]].mean().reset_index()


def _tables_of_layer(
    number: int,
    sides: Sequence[StimulusStates],
    vectors: LayerVectors,
    config: AnalyzeConfig,
    stimuli: Stimuli,
) -> dict[str, pd.DataFrame]:
    """Return the tables of one recorded layer, by name; "ceilings" alone if there are no models.

    Args:
        number: The index of the recorded layer.
        sides: The subjects first, and then the models.
        vectors: The distances of each side.
        config: The configuration.
        stimuli: The stimuli.
    """
    measure = config.measure_as(RSAConfig)
    n_subjects = len(config.subjects)
    names = [side.name for side in sides[:n_subjects]]
    recorded = sides[0].layers[number]
    subjects = torch.stack([of_side[number] for of_side in vectors[:n_subjects]])
    if len(sides) == n_subjects:
        ceiling = noise_ceiling(subjects, measure.comparator)
        return {"ceilings": ceiling_rows(ceiling, names, recorded)}

    layers = of_stimuli.rows_of_sides(sides[n_subjects:])
    scores = model_scores(
        torch.cat(list(vectors[n_subjects:])),
        subjects,
        measure.comparator,
        resamples=measure.resamples,
        seed=config.seed,
        groups=of_stimuli.sentence_of_stimuli(stimuli),
    )
    ceilings = ceiling_rows(scores.ceiling, names, recorded)
    columns = score_columns([scores.of(row) for row in range(len(layers))], scores.draws)
    table = layers.join(columns)
    table = table.assign(lower=ceilings["lower"].mean(), upper=ceilings["upper"].mean())
    tables = {
        "table": table,
        "by_subject": repeated_rows(layers, "subject", names, value=scores.values),
        "models": best_layers(scores, layers),
        "comparisons": comparisons_of_models(scores, layers),
    }
    for of_name in tables.values():
        of_name.insert(0, "recorded", recorded)
    return {**tables, "ceilings": ceilings}


def ceiling_rows(
    ceiling: NoiseCeiling, subjects: Sequence[str], recorded: str | int
) -> pd.DataFrame:
    """Return a table with the noise ceiling of each subject, for one recorded layer.

    Args:
        ceiling: The noise ceiling of one recorded layer.
        subjects: The names of the subjects, in the order of the ceiling.
        recorded: The name or the number of the recorded layer.
    """
    return pd.DataFrame(
        {
            "recorded": recorded,
            "subject": list(subjects),
            "lower": ceiling.lower.cpu().numpy(),
            "upper": ceiling.upper.cpu().numpy(),
        }
    )


def best_layers(scores: ModelScores, layers: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each model with the score of its best layer.

    For each subject, the best layer is chosen by the scores in all other subjects, so that it may
    differ between subjects. The column `layers` lists the chosen layers, from the most to the
    least frequent.

    Args:
        scores: The scores of all layers of all models.
        layers: The model and the layer of each row of `scores`.
    """
    rows = []
    scored = []
    for model, rows_of_model in layers.groupby("model", sort=False):
        best, chosen_rows = scores.best(rows_of_model.index.tolist())
        scored.append(best)
        frequencies = Counter(str(layers["layer"][row]) for row in chosen_rows.tolist())
        names = [name for name, _ in frequencies.most_common()]
        rows.append({"model": model, "layers": ", ".join(names)})
    return pd.DataFrame(rows).join(score_columns(scored, scores.draws))


def comparisons_of_models(scores: ModelScores, layers: pd.DataFrame) -> pd.DataFrame:
    """Return how models' best-layer scores differ from one another and from the noise ceiling.

    There is a row for each model and the lower end of the ceiling, and for each two models.

    Args:
        scores: The scores of all layers of all models.
        layers: The model and the layer of each row of `scores`.
    """
    best_of: dict[str, Scored] = {}
    for model, rows_of_model in layers.groupby("model", sort=False):
        best_of[str(model)], _ = scores.best(rows_of_model.index.tolist())
    candidates = {**best_of, CEILING: scores.of_ceiling()}
    pairs = [(model, CEILING) for model in best_of]
    pairs += list(combinations(best_of, 2))
    differences = [candidates[model].minus(candidates[other]) for model, other in pairs]
    columns = score_columns(differences, scores.draws, "difference")
    return pd.DataFrame(pairs, columns=["model", "other"]).join(columns)
