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
from thinkalike.contrib.court.bench import Bench
from thinkalike.contrib.court.catalogue import source_recipes
from thinkalike.contrib.court.evidence import Evidence
from thinkalike.contrib.court.judges import JUDGES, judge_source
from thinkalike.contrib.court.materials import Materials
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
        """Return the fingerprints of the target, the text and each sibling."""
        inputs = dict(fingerprints(config, ("model", "data")))
        for name, sibling in _siblings(config).items():
            inputs[f"sibling {name}"] = checkpoint_fingerprint(sibling)
        return inputs

    def run(self, config: AnalyzeConfig, work: Work) -> Outcome:
        """Compare every source with the target's layer, by every measure (judge).

        A source is a function from tokens to states whose similarity to the target is known. The
        table has a row for each.

        Raises:
            ConfigError: The target has no block after the layer.
        """
        measure = config.measure_as(CourtConfig)
        with work.phase("loading"):
            target = load_model(config.model)
        deepest = target.n_layers - 2
        if measure.layer > deepest:
            raise ConfigError(
                f"measure.layer={measure.layer} has no block after it; "
                f"choose one from 0 to {deepest}"
            )
        siblings = {name: load_model(sibling) for name, sibling in _siblings(config).items()}
        for sibling in siblings.values():
            check_same_tokenizer(target, sibling)

        # Some of the other tokens are of documents that maps are fitted on, so twice as many are
        # read.
        n_fit_tokens = measure.fit_tokens + 2 * measure.other_tokens
        corpus = read_corpus(
            config.data,
            target.tokenizer,
            target.context,
            bos=target.bos_each_row,
            fit_tokens=n_fit_tokens,
        )
        _silence_trainings(work)
        with at_boundaries():
            bench = Bench(_materials(config, target, siblings, corpus, work))
            rows = _judged_sources(bench, measure.sources, work)

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
        """Print a table of some of the sources, with the values of some similarity measures."""
        first = result.details.iloc[0]
        # At most `ROWS_SHOWN`, evenly spaced.
        rows = result.details.iloc[few(len(result.details), ROWS_SHOWN)]
        columns = [text_column("source", rows["source"]), text_column("kind", rows["kind"])]
        columns += [number_column(judge, rows[judge], ".3f") for judge in JUDGES_SHOWN]
        title = f"sources of known similarity to {first['target']}, layer {first['layer']}"
        show_table(Table(title, columns))
        show_text(
            f"{len(rows)} of {len(result.details)} sources and {len(JUDGES_SHOWN)} of "
            f"{len(JUDGES)} judges are shown."
        )


def _silence_trainings(work: Work) -> None:
    """Log only warnings of trainings until the job ends, as many sources are trained."""
    training_log = logging.getLogger("thinkalike.training")
    work.opened.callback(training_log.setLevel, training_log.level)  # restores it at the end
    training_log.setLevel(logging.WARNING)


def _siblings(config: AnalyzeConfig) -> dict[str, ModelConfig]:
    """Return the configurations of separately trained models, by what is different about them.

    The setting `measure.siblings` names them; without it there are none. They run on the device of
    the target, with its length of rows.
    """
    names = config.measure_as(CourtConfig).siblings or {}
    for difference, name in names.items():
        one_of(f"measure.siblings.{difference}", name, options("model"))
    settings = {"device": config.model.device, "context": config.model.context}
    return {difference: model_named(name, settings) for difference, name in names.items()}


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
        corpus: The text, which is divided here.
        work: The job, in whose folder sources are trained.

    Raises:
        DataError: The text is too short.
    """
    measure = config.measure_as(CourtConfig)
    fit_rows, other_rows = _rows_of_different_documents(
        corpus.fit, measure.fit_tokens, measure.other_tokens
    )
    report = _spread_rows(corpus.report, measure.evaluation_tokens)
    token_counts = {
        "fit": fit_rows.numel(),
        "other": other_rows.numel(),
        "evaluation": report.tokens.numel(),
    }
    for name, count in token_counts.items():
        n_wanted = getattr(measure, f"{name}_tokens")
        if n_wanted >= count + corpus.report.context:  # whole rows may leave out a part of a row
            raise DataError(
                f"there are only {count:,} tokens for measure.{name}_tokens={n_wanted}; "
                "give more text"
            )

    def train(module: SteppedModule, data: StepData, name: str) -> None:
        """Train a module of a source; a resumed job continues from the last checkpoint."""
        folder = work.job.partial / "sources" / re.sub(r"\W+", "-", name)
        fit(module, data, TrainingRun(folder, target.device, TrainerConfig()))
        shutil.rmtree(folder, ignore_errors=True)

    return Materials(
        target=target,
        layer=measure.layer,
        fit_rows=fit_rows,
        evaluation_rows=report.tokens,
        evaluation_documents=report.documents,
        other_rows=other_rows,
        seed=config.seed,
        train=train,
        siblings=siblings,
    )


def _rows_of_different_documents(
    rows: TokenRows, fit_tokens: int, other_tokens: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows of tokens to fit on, and further rows that share no document with them.

    Both consist of whole rows, so there may be slightly fewer tokens than asked for. There are
    also fewer if the text is too short.

    Args:
        rows: All rows. The first ones are those to fit on.
        fit_tokens: How many tokens to fit on.
        other_tokens: How many tokens of other documents.
    """
    n_fit_rows = fit_tokens // rows.context
    n_other_rows = other_tokens // rows.context
    fit_documents = rows.documents[:n_fit_rows].unique()
    shares_document = torch.isin(rows.documents[n_fit_rows:], fit_documents).any(1)
    other_rows = rows.tokens[n_fit_rows:][~shares_document]
    return rows.tokens[:n_fit_rows], other_rows[:n_other_rows]


def _spread_rows(rows: TokenRows, tokens: int) -> TokenRows:
    """Return evenly spaced rows, so that they come from as many documents as possible.

    Args:
        rows: All rows of tokens of the evaluation text.
        tokens: How many tokens are wanted; whole rows have at most as many.
    """
    step = max(rows.tokens.numel() // tokens, 1)
    n_rows = tokens // rows.context
    every_step = rows.select(slice(None, None, step))
    return every_step.select(slice(n_rows))


def _judged_sources(
    bench: Bench, names: list[str] | None, work: Work
) -> list[dict[str, str | float]]:
    """Return a row for each source with the values of all measures.

    Each row is saved when it is complete, so that a resumed job does not repeat it.

    Args:
        bench: What sources are made from, with the target's side of each comparison.
        names: The names of the sources; None: all.
        work: The job, which keeps the rows.

    Raises:
        ConfigError: A name is not that of a source.
        DataError: A source or a judge refuses the data.
    """
    chosen = source_recipes(bench.materials)
    if names is not None:
        all_names = [entry.name for entry in chosen]
        for name in names:
            one_of("measure.sources", name, all_names)
        chosen = [entry for entry in chosen if entry.name in names]

    rows: list[dict[str, str | float]] = []
    state = work.resume(STATE)
    if state is not None:
        rows = state.entry("rows", list)
    # There is a state from the beginning, so that the first training can be resumed as well.
    work.keep(STATE, {"rows": rows})
    n_done = len(rows)
    for number, entry in enumerate(chosen[n_done:], n_done + 1):
        try:
            with doing(f"source {number} of {len(chosen)}: {entry.name}"):
                source = entry.made(bench.materials)
                values = judge_source(Evidence(source, bench))
        except ValueError as error:
            raise DataError(
                f"the source '{entry.name}' of {bench.materials.target.name}: {error}"
            ) from error
        rows.append({"source": entry.name, "kind": entry.kind, **values})
        work.keep(STATE, {"rows": rows})
        if asked():
            stop(f"at source {number} of {len(chosen)}")
    return rows
