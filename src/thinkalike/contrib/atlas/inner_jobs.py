"""The jobs of an atlas: every measure of every pair of models, and their results as one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import NamedTuple

import pandas as pd

from thinkalike.config import MEASURES, AnalyzeConfig, measure_schema
from thinkalike.contrib.atlas.config import AtlasConfig
from thinkalike.instruments import instrument
from thinkalike.job.listed_jobs import jobs_of_model_pairs
from thinkalike.models.labels import distinct_labels
from thinkalike.store import Result

MODEL_COLUMNS = ["source", "target"]
LAYER_COLUMNS = ["source_layer", "target_layer"]
PAIR_COLUMNS = [*MODEL_COLUMNS, *LAYER_COLUMNS]

# A measure with two values for each layer pair: as asked for, and with source and target
# exchanged.
DIRECTED = "r2"
BACK = "_back"


class MeasureJob(NamedTuple):
    """A job of an atlas: one measure of one pair of models.

    Attributes:
        measure: The name of the measure.
        source, target: What the atlas calls the models.
        config: The configuration of the job.
    """

    measure: str
    source: str
    target: str
    config: AnalyzeConfig

    @property
    def label(self) -> str:
        """What the atlas calls the job."""
        return f"{self.measure} of {self.source} and {self.target}"


class FinishedJobs(NamedTuple):
    """The jobs of an atlas with their results, whose keys are its fingerprint."""

    jobs: Sequence[MeasureJob]
    results: Sequence[Result]

    def fingerprint(self) -> str:
        """Return a text that identifies the jobs and their results; a result's key is a hash."""
        pairs = zip(self.jobs, self.results, strict=True)
        return repr([(job.label, result.key) for job, result in pairs])


def inner_jobs(config: AnalyzeConfig) -> list[MeasureJob]:
    """Return one job for each measure and each pair of models of an atlas, in this order.

    An atlas applies several measures to all pairs of some models. A job takes over each setting of
    the atlas that is also a setting of its measure.
    """
    atlas = config.measure_as(AtlasConfig)
    # A job for each pair of models. Its measure is replaced by each measure of the atlas in turn.
    jobs_of_pairs = jobs_of_model_pairs(config)
    models = {}  # by their text, as configurations of models are not hashable
    for job_of_pair in jobs_of_pairs:
        for model in (job_of_pair.model, job_of_pair.target):
            models[repr(model)] = model
    # Names are made for all models together, so that no two models have the same name.
    names = distinct_labels(list(models.values()))
    name_of = dict(zip(models, names, strict=True))

    # Both an atlas and a measure have the field `kind`, which names what they are.
    atlas_settings = {field.name for field in fields(atlas)} - {"kind"}
    jobs = []
    for measure in atlas.measures:
        settings_class = measure_schema(measure)
        names_in_both = atlas_settings & {field.name for field in fields(settings_class)}
        measure_settings = settings_class(**{name: getattr(atlas, name) for name in names_in_both})
        for job_of_pair in jobs_of_pairs:
            jobs.append(
                MeasureJob(
                    measure,
                    source=name_of[repr(job_of_pair.model)],
                    target=name_of[repr(job_of_pair.target)],
                    config=replace(job_of_pair, measure=measure_settings),
                )
            )
    return jobs


def model_names(jobs: Sequence[MeasureJob]) -> list[str]:
    """Return the names of all models of some jobs, each once, in order."""
    names: dict[str, None] = {}
    for job in jobs:
        names |= dict.fromkeys((job.source, job.target))
    return list(names)


def joined_table(jobs: Sequence[MeasureJob], results: Sequence[Result]) -> pd.DataFrame:
    """Join the results of all jobs to one row for each layer pair, with a column for each measure.

    Layer pairs are those of the first measure of states, of which an atlas has at least one. A
    measure of predictions (logits) has a value only in the rows of the last layers of both models;
    its other cells are NaN.

    Args:
        jobs: The jobs of the atlas, each of which applies one measure to one pair of models.
        results: The result of each job.
    """
    tables_by_measure: dict[str, list[pd.DataFrame]] = {}
    for job, result in zip(jobs, results, strict=True):
        tables_by_measure.setdefault(job.measure, []).append(_values_between_models(job, result))

    # Each of these tables has the values of one measure for all pairs of models.
    tables_of_outputs = []
    tables_of_states = []
    value_columns = []
    for tables in tables_by_measure.values():
        values = pd.concat(tables)
        # Besides the columns that identify a layer pair, there are those of the measure's values.
        value_columns += [column for column in values if column not in PAIR_COLUMNS]
        if values["source_layer"].iloc[0] == "logits":
            tables_of_outputs.append(values)
        else:
            tables_of_states.append(values)

    table = tables_of_states[0]
    for values in tables_of_states[1:]:
        table = table.merge(values, how="left", on=PAIR_COLUMNS)
    last_layers = table.groupby(MODEL_COLUMNS, sort=False)[LAYER_COLUMNS].max().reset_index()
    for values in tables_of_outputs:
        # These have one row for each pair of models, and the word "logits" in place of the numbers
        # of layers. The row gets the numbers of the last layers of both models.
        at_last_layers = values.drop(columns=LAYER_COLUMNS).merge(last_layers, on=MODEL_COLUMNS)
        table = table.merge(at_last_layers, how="left", on=PAIR_COLUMNS)
    return table[[*PAIR_COLUMNS, *value_columns]]


def _values_between_models(job: MeasureJob, result: Result) -> pd.DataFrame:
    """Return the values of one measure between the two models of a job, by layer pair.

    An atlas applies several measures to all pairs of some models, and gives the models names of
    its own, which replace those of the result. A measure whose value differs between both
    directions has a second column. The first rows of a result compare both models; later rows may
    compare layers within one model, and are left out.
    """
    table = result.details
    source_and_target = table[MODEL_COLUMNS].iloc[0]
    between = table[(table[MODEL_COLUMNS] == source_and_target).all(axis=1)]
    values = between[PAIR_COLUMNS].assign(source=job.source, target=job.target)
    values[job.measure] = between["value"]
    if "value_backward" in between:
        values[f"{job.measure}{BACK}"] = between["value_backward"]
    return values


def columns_of(jobs: Sequence[MeasureJob]) -> dict[str, bool]:
    """Return the names of the columns of values, each with whether its values are distances.

    There is a column for each measure. A measure that differs between both directions has a second
    column, with the ending "_back".
    """
    columns = []
    for measure in dict.fromkeys(job.measure for job in jobs):
        columns.append(measure)
        if measure == DIRECTED:  # the only measure with a value for each direction
            columns.append(f"{measure}{BACK}")
    return {column: is_distance(column) for column in columns}


def is_distance(column: str) -> bool:
    """Return whether a larger value means less similar, for the column of a measure."""
    measure = column.removesuffix(BACK)
    return bool(instrument(MEASURES[measure]).is_distance)  # type: ignore[attr-defined]
