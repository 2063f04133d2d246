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
from thinkalike.contrib.subjects.model_scores import ModelScores, SubjectScores, model_scores
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
from thinkalike.measures.rows import naming_rows
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

        Subjects are recorded participants, and a recorded layer is, for example, a region of their
        brains. Without models the result is the noise ceilings alone.

        Raises:
            DataError: The distances of a layer cannot be compared.
        """
        measure = config.measure_as(RSAConfig)
        stimuli = work.input("stimuli", Stimuli)
        # The sides are the subjects, and then the models.
        (stimuli, sides), _ = of_stimuli.stimulus_states_to_compare(config, stimuli)
        n_subjects = len(config.subjects)
        recorded_layers = sides[0].layers  # all subjects have the same
        try:
            with naming_rows(stimuli.name_of_row):
                distances = [distance_vectors(layer_distances(side, measure)) for side in sides]
            for distances_of_side, side in zip(distances, sides, strict=True):
                names = [f"{side.name} {layer}" for layer in side.layers]
                comparable(distances_of_side, measure.comparator, names)  # raises an error if not
            tables_of_layers = []
            for index in range(len(recorded_layers)):
                tables_of_layers.append(_tables_of_layer(index, sides, distances, config, stimuli))
        except ValueError as error:
            raise DataError(f"{stimuli.source}: {error}") from error

        tables = _joined_by_name(tables_of_layers)
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
            n_subjects = len(result.provenance["subjects"])
            draw_subject_scores(result.details, ceilings, folder, comparator, n_subjects)

    def headlines(self, result: Result) -> list[Headline]:
        """Return the highest mean score of a layer, if there are models, and the noise ceiling."""
        ceiling = Headline("ceiling", result.scalars["ceiling"])
        if "models" not in result.tables:
            return [ceiling]
        best_row = result.details.iloc[int(result.details["value"].argmax())]
        low_column, high_column = _interval_columns(best_row)  # of the widest interval
        best_score = Headline.with_ends(
            "best", best_row["value"], best_row[low_column], best_row[high_column]
        )
        return [best_score, ceiling]

    def show(self, result: Result) -> None:
        """Print, for each recorded layer, the noise ceiling and how models compare with it.

        A recorded layer is what was measured in subjects, for example a region of their brains. A
        result without models has only noise ceilings.
        """
        measure = result.config["measure"]
        stimuli = result.provenance["stimuli"]
        n_subjects = len(result.provenance["subjects"])
        show_text(
            f"{n_subjects} participants, {of_stimuli.stimuli_in_words(stimuli)}; "
            f"{measure['comparator']} of {measure['distance']} distances, mean over participants; "
            "best layers are chosen on the other participants."
        )
        for recorded, ceilings in result.tables["ceilings"].groupby("recorded", sort=False):
            _show_ceiling(str(recorded), ceilings)
            if "models" in result.tables:
                best_layers = result.tables["models"]
                comparisons = result.tables["comparisons"]
                _show_models(
                    best_layers[best_layers["recorded"] == recorded],
                    comparisons[comparisons["recorded"] == recorded],
                    float(ceilings["lower"].mean()),
                )


def _joined_by_name(
    tables_of_layers: Sequence[dict[str, pd.DataFrame]],
) -> dict[str, pd.DataFrame]:
    """Return for each name the tables of this name of all recorded layers, as one table."""
    joined = {}
    for name in tables_of_layers[0]:  # all layers have tables of the same names
        tables = [tables_of_layer[name] for tables_of_layer in tables_of_layers]
        joined[name] = pd.concat(tables, ignore_index=True)
    return joined


def _show_ceiling(recorded: str, ceilings: pd.DataFrame) -> None:
    """Print the noise ceiling of a recorded layer, with a warning if it may not be above 0.

    The ceiling is how well the best model could explain the recordings. The interval of the mean
    of its lower end over subjects decides.

    Args:
        recorded: The name of the recorded layer.
        ceilings: The lower and upper end of the ceiling for each subject.
    """
    lower_ends = torch.tensor(ceilings["lower"].to_numpy(float))
    doubt = ""
    if float(random_effects(lower_ends).low) <= 0:
        doubt = "; participants share too little to judge a model by"
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
    """Return in words the value in a column of a row, with its interval."""
    low_column, high_column = _interval_columns(row)
    return span(row[column], row[low_column], row[high_column])


def _interval_columns(row: pd.Series) -> tuple[str, str]:
    """Return the names of the two columns of a row that have the ends of its widest interval.

    It is the interval over subjects and stimuli, or that over subjects if stimuli were not
    resampled.
    """
    if "both_low" in row.index:
        return "both_low", "both_high"
    return "low", "high"


def _mean_ceilings(ceilings: pd.DataFrame) -> pd.DataFrame:
    """Return the lower and upper ends of the noise ceiling of each recorded layer, over subjects.

    A subject is a recorded participant. The best possible model is expected to score above the
    mean lower end, and hardly above the mean upper end.

    Args:
        ceilings: A row for each recorded layer and subject, with the columns lower and upper.
    """
    return ceilings.groupby("recorded", sort=False)[["lower", "upper"]].mean().reset_index()


def _tables_of_layer(
    index: int,
    sides: Sequence[StimulusStates],
    distances: LayerVectors,
    config: AnalyzeConfig,
    stimuli: Stimuli,
) -> dict[str, pd.DataFrame]:
    """Return the tables about one recorded layer of the subjects, by name.

    The names are "ceilings" (the noise ceiling of each subject), and, if there are models, "table"
    (the mean score of each layer of each model over subjects), "by_subject" (the score in each
    subject), "models" (the best layer of each model), and "comparisons" (of models with each other
    and with the ceiling).

    Args:
        index: The index of the recorded layer.
        sides: The subjects first, and then the models.
        distances: For each side, the distances between stimuli in each of its layers.
        config: The configuration of the job.
        stimuli: What subjects and models saw.
    """
    measure = config.measure_as(RSAConfig)
    n_subjects = len(config.subjects)
    names = [side.name for side in sides[:n_subjects]]
    recorded = sides[0].layers[index]
    subjects = torch.stack([of_subject[index] for of_subject in distances[:n_subjects]])
    if len(sides) == n_subjects:  # there are no models
        ceiling = noise_ceiling(subjects, measure.comparator)
        return {"ceilings": ceiling_rows(ceiling, names, recorded)}

    layers = of_stimuli.rows_of_sides(sides[n_subjects:])  # a row for each layer of each model
    scores = model_scores(
        torch.cat(list(distances[n_subjects:])),
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
        "models": best_layer_table(scores, layers),
        "comparisons": comparisons_of_models(scores, layers),
    }
    for table_of_name in tables.values():
        table_of_name.insert(0, "recorded", recorded)
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


def best_layer_table(scores: ModelScores, layers: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each model with the score of its best layer.

    For each subject, the best layer is chosen by the scores in all other subjects, so that it may
    differ between subjects. The column `layers` lists the chosen layers, from the most to the
    least frequent.

    Args:
        scores: The scores of all layers of all models.
        layers: The model and the layer of each row of `scores`.
    """
    rows = []
    best_scores = []
    for model, rows_of_model in layers.groupby("model", sort=False):
        indices_in_scores = rows_of_model.index.tolist()
        best, best_indices = scores.best(indices_in_scores)
        best_scores.append(best)
        # How often each layer is the best one of a subject.
        frequencies = Counter(str(layers["layer"][index]) for index in best_indices.tolist())
        names = [name for name, _ in frequencies.most_common()]
        rows.append({"model": model, "layers": ", ".join(names)})
    return pd.DataFrame(rows).join(score_columns(best_scores, scores.draws))


def comparisons_of_models(scores: ModelScores, layers: pd.DataFrame) -> pd.DataFrame:
    """Return how models' best-layer scores differ from one another and from the noise ceiling.

    A score says how well a layer explains the recordings of a subject (participant). A row
    compares two models, or a model and the lower end of the ceiling. Its `difference` is the score
    of `model` minus that of `other`.

    Args:
        scores: The scores of all layers of all models.
        layers: The model and the layer of each row of `scores`.
    """
    best_scores: dict[str, SubjectScores] = {}
    for model, rows_of_model in layers.groupby("model", sort=False):
        indices_in_scores = rows_of_model.index.tolist()
        best_scores[str(model)], _ = scores.best(indices_in_scores)
    pairs = [(model, CEILING) for model in best_scores]
    pairs += list(combinations(best_scores, 2))
    all_scores = {**best_scores, CEILING: scores.ceiling_scores()}  # of the lower end
    differences = [all_scores[model].minus(all_scores[other]) for model, other in pairs]
    columns = score_columns(differences, scores.draws, "difference")
    return pd.DataFrame(pairs, columns=["model", "other"]).join(columns)
