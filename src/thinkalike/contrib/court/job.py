"""measure=court: sources of known similarity to one layer of a target, before every judge."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import pandas as pd
import torch

from thinkalike.advice import named_setting
from thinkalike.config import (
    AnalyzeConfig,
    MeasureConfig,
    ModelConfig,
    TrainerConfig,
    model_named,
    options,
)
from thinkalike.config.parts import COUNTS
from thinkalike.config.schema import setting
from thinkalike.contrib.court.catalogue import SourceRecipe, source_recipes
from thinkalike.contrib.court.evidence import Evidence
from thinkalike.contrib.court.judges import JUDGES, judge_source
from thinkalike.contrib.court.materials import Materials
from thinkalike.contrib.court.target_results import TargetResults
from thinkalike.data.alignment import check_same_tokenizer
from thinkalike.data.corpus import read_corpus
from thinkalike.data.rows import Corpus, TokenRows
from thinkalike.errors import ConfigError, DataError, one_of
from thinkalike.job import Instrument, Outcome, Work, fingerprints
from thinkalike.models.fingerprints import checkpoint_fingerprint
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.load import load_model
from thinkalike.processes import asked, at_boundaries, doing, stop
from thinkalike.screen import Table, few, number_column, show_table, show_text, text_column
from thinkalike.store import Result
from thinkalike.training.data import StepData
from thinkalike.training.module import SteppedModule
from thinkalike.training.run import TrainingRun
from thinkalike.training.trainer import fit

STATE = "court"  # the name of the state that a job resumes from
JUDGES_SHOWN = ("penalty", "KL", "CKA", "RSA")  # on the screen
ROWS_SHOWN = 10


@dataclass
class CourtConfig(MeasureConfig):
    """The settings of a court."""

    kind: str = "court"
    # layer of the target; there must be a block after it
    layer: int = setting(1, by_recipe=True, least=0, most=10**4)
    # separately trained models, {what differs: a name in conf/model}; null: none
    siblings: dict[str, str] | None = None
    # names of the sources; null: all
    sources: list[str] | None = None
    # tokens that maps are fitted on
    fit_tokens: int = setting(2**16, least=2, most=COUNTS)
    # tokens that scores are computed on
    evaluation_tokens: int = setting(2**15, least=2, most=COUNTS)
    # tokens of other documents, from which a source itself learns
    other_tokens: int = setting(2**17, least=2, most=COUNTS)
    # experiment=validity/court: how many courts there are of a target
    seeds: int = setting(1, least=1, most=1000, in_key=False)


class Court(
    Instrument[AnalyzeConfig],
    kind="court",
    version=9,
    reads=("model", "data", "measure", "seed"),
):
    """Makes every source from `model` at `measure.layer`, and tables what each judge says."""

    needs_store: ClassVar[bool] = True  # each training of a source has a folder

    def inputs(self, config: AnalyzeConfig) -> Mapping[str, str]:
        """Return hashes of what decides the numbers of the result besides the settings.

        They are those of the target, of the text and of each sibling: a separately trained model,
        which is compared with the target.
        """
        inputs = dict(fingerprints(config, ("model", "data")))
        for name, sibling in _siblings(config).items():
            inputs[f"sibling {name}"] = checkpoint_fingerprint(sibling)
        return inputs

    def run(self, config: AnalyzeConfig, work: Work) -> Outcome:
        """Compare every source with one layer of the target, by every measure of similarity.

        A source is a function from tokens to states whose similarity to the target is known, such
        as rotated states of the target, or states of a sibling (a separately trained model). The
        table has a row for each.

        Raises:
            ConfigError: The target has no block after the layer.
        """
        measure = config.measure_as(CourtConfig)
        with work.phase("loading"):
            target = load_model(config.model)
        _check_layer(measure.layer, target)
        siblings = {name: load_model(sibling) for name, sibling in _siblings(config).items()}
        for sibling in siblings.values():
            check_same_tokenizer(target, sibling)

        corpus = _corpus(config, target)
        _silence_trainings(work)
        with at_boundaries():  # a signal ends the job only between two sources
            target_results = TargetResults(_materials(config, target, siblings, corpus, work))
            rows = _judged_sources(target_results, measure.sources, work)

        table = pd.DataFrame(rows)
        table.insert(0, "target", target.name)
        table.insert(1, "layer", measure.layer)
        table.insert(2, "seed", config.seed)
        return Outcome(
            table,
            {"sources": float(len(table))},
            models=[model.describe() for model in (target, *siblings.values())],
            facts={"data": {"name": config.data.name, **corpus.facts()}},
        )

    def show(self, result: Result) -> None:
        """Print a table of some of the sources, with the values of some similarity measures.

        A court tests these measures (the judges) on sources whose similarity to a target is known.
        """
        first = result.details.iloc[0]
        # At most `ROWS_SHOWN`, evenly spaced.
        shown_indices = few(len(result.details), ROWS_SHOWN)
        rows = result.details.iloc[shown_indices]
        columns = [text_column("source", rows["source"]), text_column("kind", rows["kind"])]
        columns += [number_column(judge, rows[judge], ".3f") for judge in JUDGES_SHOWN]
        # The target and its layer are the same in every row.
        title = f"sources of known similarity to {first['target']}, layer {first['layer']}"
        show_table(Table(title, columns))
        show_text(
            f"{len(rows)} of {len(result.details)} sources and {len(JUDGES_SHOWN)} of "
            f"{len(JUDGES)} judges are shown."
        )


def _check_layer(layer: int, target: FrozenModel) -> None:
    """Raise `ConfigError` if the target has no block after the layer, to which one can stitch."""
    deepest = target.n_layers - 2
    if layer > deepest:
        raise ConfigError(
            f"{named_setting('measure.layer', layer)} has no block after it; choose one from 0 "
            f"to {deepest}"
        )


def _corpus(config: AnalyzeConfig, target: FrozenModel) -> Corpus:
    """Return the tokenized text: a fitting and an evaluation text of different documents.

    The first `measure.fit_tokens` tokens of the fitting text are for maps between models. What
    sources are trained on, `measure.other_tokens` tokens, must be of other documents, and follows
    later in the fitting text. Rows there that belong to documents of the first part are of no
    use, so twice `other_tokens` are read.

    Args:
        config: The job.
        target: The model whose tokenizer reads the text.
    """
    measure = config.measure_as(CourtConfig)
    return read_corpus(
        config.data,
        target.tokenizer,
        target.context,
        bos=target.bos_each_row,
        fit_tokens=measure.fit_tokens + 2 * measure.other_tokens,
    )


def _silence_trainings(work: Work) -> None:
    """Log nothing of trainings but warnings until the job ends.

    A job trains many sources (functions that are compared with its target model), and their logs
    would hide its own progress.
    """
    training_log = logging.getLogger("thinkalike.training")
    # `opened` is an exit stack, which calls this at the end of the job.
    work.opened.callback(training_log.setLevel, training_log.level)
    training_log.setLevel(logging.WARNING)


def _siblings(config: AnalyzeConfig) -> dict[str, ModelConfig]:
    """Return the configurations of the target's siblings, by what is different about them.

    Siblings are separately trained models that are compared with the target. The setting
    `measure.siblings` has the name of a known model for each difference, such as
    {"other seed": "..."}; without it the result is empty. The models run on the same device as the
    target, and read rows of the same length.

    Raises:
        ConfigError: A name is not that of a known model.
    """
    name_by_difference = config.measure_as(CourtConfig).siblings or {}
    for difference, name in name_by_difference.items():
        one_of(f"measure.siblings.{difference}", name, options("model"))
    settings = {"device": config.model.device, "context": config.model.context}
    return {
        difference: model_named(name, settings) for difference, name in name_by_difference.items()
    }


def _materials(
    config: AnalyzeConfig,
    target: FrozenModel,
    siblings: Mapping[str, FrozenModel],
    corpus: Corpus,
    work: Work,
) -> Materials:
    """Return what sources are made from: models, three disjoint texts, and a training function.

    Args:
        config: The configuration of the job.
        target: The model that sources are compared with.
        siblings: Separately trained models, by what is different about them.
        corpus: The text, whose fitting part is divided here.
        work: The job, in whose folder sources are trained.

    Raises:
        DataError: The text is too short.
    """
    measure = config.measure_as(CourtConfig)
    fit_rows, other_rows = _rows_of_different_documents(
        corpus.fit, measure.fit_tokens, measure.other_tokens
    )
    evaluation = _spread_rows(corpus.report, measure.evaluation_tokens)
    rows_by_purpose = {"fit": fit_rows, "other": other_rows, "evaluation": evaluation.tokens}
    for purpose, rows in rows_by_purpose.items():
        _check_token_count(f"{purpose}_tokens", rows, measure)

    def train(module: SteppedModule, data: StepData, name: str) -> None:
        """Train a module of a source; a resumed job continues from the last checkpoint."""
        folder = work.job.partial / "sources" / re.sub(r"\W+", "-", name)
        fit(module, data, TrainingRun(folder, target.device, TrainerConfig()))
        shutil.rmtree(folder, ignore_errors=True)

    return Materials(
        target=target,
        layer=measure.layer,
        fit_rows=fit_rows,
        evaluation_rows=evaluation.tokens,
        evaluation_documents=evaluation.documents,
        other_rows=other_rows,
        seed=config.seed,
        train=train,
        siblings=siblings,
    )


def _check_token_count(setting_name: str, rows: torch.Tensor, measure: CourtConfig) -> None:
    """Raise `DataError` if rows (n, t) have fewer tokens than a setting asks for.

    Less than one row may be missing, since only whole rows are used.

    Args:
        setting_name: The setting of `measure` that says how many tokens there should be.
        rows: The tokens that there are.
        measure: The settings.
    """
    n_wanted = getattr(measure, setting_name)
    row_length = rows.shape[1]
    if n_wanted >= rows.numel() + row_length:
        raise DataError(
            f"there are only {rows.numel():,} tokens for measure.{setting_name}={n_wanted}; "
            "give more text"
        )


def _rows_of_different_documents(
    rows: TokenRows, fit_tokens: int, other_tokens: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows of tokens to fit on, and further rows that share no document with them.

    Both consist of whole rows, so there may be slightly fewer tokens than asked for. There are
    also fewer if the text is too short.

    Args:
        rows: All rows, each of `rows.context` tokens, with the document of each token. The first
            rows are those to fit on.
        fit_tokens: How many tokens to fit on.
        other_tokens: How many tokens of other documents.
    """
    row_length = rows.context
    n_fit_rows = fit_tokens // row_length
    n_other_rows = other_tokens // row_length
    fit_documents = rows.documents[:n_fit_rows].unique()
    shares_document = torch.isin(rows.documents[n_fit_rows:], fit_documents).any(1)
    other_rows = rows.tokens[n_fit_rows:][~shares_document]
    return rows.tokens[:n_fit_rows], other_rows[:n_other_rows]


def _spread_rows(rows: TokenRows, n_tokens: int) -> TokenRows:
    """Return evenly spaced rows, so that they come from as many documents as possible.

    Args:
        rows: All rows of tokens of the evaluation text.
        n_tokens: How many tokens are wanted. The result has at most as many, as rows are whole.
    """
    step = max(rows.tokens.numel() // n_tokens, 1)  # every row is taken if there are few
    n_rows = n_tokens // rows.context  # `context` is the length of a row
    evenly_spaced = rows.select(slice(None, None, step))
    return evenly_spaced.select(slice(n_rows))


def _judged_sources(
    target_results: TargetResults, names: list[str] | None, work: Work
) -> list[dict[str, str | float]]:
    """Return a row for each source: its name, its kind and its values of all measures.

    A source is a function from tokens to states whose similarity to the target is known. Each row
    is saved when it is complete, so that a resumed job does not repeat it. After each source, the
    job ends if a signal has asked it to.

    Args:
        target_results: What sources are made from, and what the target itself gives.
        names: The names of the sources; None: all.
        work: The job, which saves the rows.

    Raises:
        ConfigError: A name is not that of a source.
        DataError: A source or a measure refuses the data.
    """
    recipes = _chosen_recipes(target_results.materials, names)
    rows: list[dict[str, str | float]] = []
    state = work.resume(STATE)
    if state is not None:
        rows = state.entry("rows", list)
    # There is a state from the beginning, as making the first source may take a long training,
    # which keeps states of its own beside this one.
    work.keep(STATE, {"rows": rows})
    n_done = len(rows)  # not 0 in a resumed job
    for number, recipe in enumerate(recipes[n_done:], n_done + 1):
        try:
            with doing(f"source {number} of {len(recipes)}: {recipe.name}"):
                source = recipe.make_source(target_results.materials)
                values = judge_source(Evidence(source, target_results))
        except ValueError as error:
            target = target_results.materials.target
            raise DataError(f"the source '{recipe.name}' of {target.name}: {error}") from error
        rows.append({"source": recipe.name, "kind": recipe.kind, **values})
        work.keep(STATE, {"rows": rows})
        if asked():  # whether a signal, such as Ctrl-C, has asked the process to stop
            stop(f"at source {number} of {len(recipes)}")
    return rows


def _chosen_recipes(materials: Materials, names: list[str] | None) -> list[SourceRecipe]:
    """Return the recipes of the sources with these names, or of all sources if `names` is None.

    A source is a function from tokens to states, which its recipe makes for the target model in
    `materials`. The recipes are in the order of the catalogue, whatever the order of the names.

    Raises:
        ConfigError: A name is not that of a source.
    """
    recipes = source_recipes(materials)
    if names is None:
        return recipes
    all_names = [recipe.name for recipe in recipes]
    for name in names:
        one_of("measure.sources", name, all_names)  # raises an error unless it is one of these
    return [recipe for recipe in recipes if recipe.name in names]
