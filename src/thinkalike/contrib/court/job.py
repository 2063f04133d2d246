"""measure=court: every source of known likeness to one layer of one target, before every judge."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional

import pandas as pd
import torch

from thinkalike.config import AnalyzeConfig, MeasureConfig, ModelConfig, TrainerConfig, model_named, options
from thinkalike.config.schema import COUNTS, left_open, ranged
from thinkalike.contrib.court.evidence import Bench, Evidence
from thinkalike.contrib.court.judges import JUDGES, verdicts
from thinkalike.contrib.court.source import Setting
from thinkalike.contrib.court.table import entries
from thinkalike.data.alignment import same_vocabulary
from thinkalike.data.corpus import Corpus, TokenRows, read_corpus
from thinkalike.errors import ConfigError, DataError, one_of
from thinkalike.job import Instrument, Outcome, Work, fingerprints
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.load import load_model
from thinkalike.models.places import checkpoint_fingerprint
from thinkalike.processes import asked, at_boundaries, doing, stop
from thinkalike.screen import Table, few, number_column, show_table, show_text, text_column
from thinkalike.store import Result
from thinkalike.training.run import Run, StepData, SteppedModule, fit

STATE = "court"
SHOWN, ROWS = ("penalty", "KL", "CKA", "RSA"), 10  # on the screen


# ruff: noqa: UP045
@dataclass
class CourtConfig(MeasureConfig):
    """The settings of a court."""

    kind: str = "court"
    layer: int = left_open(1, least=0, most=10**4)  # of the target; there must be a block after it
    siblings: Optional[dict[str, str]] = None  # other models, {what is other: a name in conf/model}; null: none
    sources: Optional[list[str]] = None  # their names; null: all
    fit_tokens: int = ranged(2**16, least=2, most=COUNTS)  # that maps are fitted on
    report_tokens: int = ranged(2**15, least=2, most=COUNTS)  # that scores are of
    other_tokens: int = ranged(2**17, least=2, most=COUNTS)  # of other documents, for what a source has to learn
    seeds: int = ranged(1, least=1, most=1000, in_key=False)  # experiment=validity/court: how many courts of a target


class Court(Instrument, kind="court", version=6, reads=("model", "data", "measure", "seed")):
    """Makes every source from `model` at `measure.layer`, and leaves what each judge says of it, a row each."""

    def inputs(self, config: AnalyzeConfig) -> Mapping[str, Any]:
        siblings = {f"sibling {name}": checkpoint_fingerprint(each) for name, each in _siblings(config).items()}
        return fingerprints(config, ("model", "data")) | siblings

    def run(self, config: AnalyzeConfig, work: Work) -> Outcome:
        measure: Any = config.measure
        with work.phase("loading"):
            target = load_model(config.model)
        if measure.layer >= target.n_layers - 1:
            most = target.n_layers - 2
            raise ConfigError(f"measure.layer={measure.layer} has no block after it; choose one from 0 to {most}")
        siblings = {name: load_model(each) for name, each in _siblings(config).items()}
        for sibling in siblings.values():
            same_vocabulary(target, sibling)
        needed = measure.fit_tokens + 2 * measure.other_tokens  # some of them are of documents that maps are fitted on
        corpus = read_corpus(config.data, target.tokenizer, target.context, bos=target.bos_each_row, fit_tokens=needed)
        teller = logging.getLogger("thinkalike.training")
        work.opened.callback(teller.setLevel, teller.level)
        teller.setLevel(logging.WARNING)  # a court has dozens of trainings, whose steps nobody reads
        with at_boundaries():
            scores = _heard(_bench(config, target, siblings, corpus, work), measure.sources, work)
        said = {"target": target.name, "layer": measure.layer, "seed": config.seed}
        table = pd.DataFrame([said | row for row in scores])
        return Outcome(
            table,
            {"sources": float(len(table))},
            models=[model.describe() for model in (target, *siblings.values())],
            facts={"data": {"name": config.data.name, **corpus.facts()}},
        )

    def show(self, result: Result) -> None:
        first = result.table.iloc[0]
        title = f"sources of known likeness to {first['target']}, layer {first['layer']}"
        rows = result.table.iloc[few(len(result.table), ROWS)]
        judged = [number_column(name, rows[name], ".3f") for name in SHOWN]
        show_table(Table(title, [*(text_column(name, rows[name]) for name in ("source", "kind")), *judged]))
        show_text(f"{len(rows)} of {len(result.table)} sources and {len(SHOWN)} of {len(JUDGES)} judges are shown.")


def _siblings(config: AnalyzeConfig) -> dict[str, ModelConfig]:
    """Return the configurations of the models that were really trained otherwise, on the device of the target."""
    given: dict[str, str] = config.measure.siblings or {}  # type: ignore[attr-defined]
    for other, name in given.items():
        one_of(f"measure.siblings.{other}", name, options("model"))
    own = {"device": config.model.device, "context": config.model.context}
    return {name: model_named(model, own) for name, model in given.items()}


def _bench(
    config: AnalyzeConfig, target: FrozenModel, siblings: Mapping[str, FrozenModel], corpus: Corpus, work: Work
) -> Bench:
    measure: Any = config.measure
    fit_rows, other = _apart(corpus.fit, measure.fit_tokens, measure.other_tokens)
    report = _spread(corpus.report, measure.report_tokens)
    for name, count in {"fit": fit_rows.numel(), "other": other.numel(), "report": report.tokens.numel()}.items():
        if (wanted := getattr(measure, f"{name}_tokens")) >= count + corpus.report.context:
            raise DataError(f"there are only {count:,} tokens for measure.{name}_tokens={wanted}; give more text")

    def train(module: SteppedModule, data: StepData, name: str) -> None:
        folder = work.job.partial / "sources" / re.sub(r"\W+", "-", name)
        fit(module, data, Run(folder, target.device, TrainerConfig()))
        shutil.rmtree(folder, ignore_errors=True)

    text = fit_rows, report.tokens, report.documents, other
    return Bench(Setting(target, measure.layer, *text, config.seed, train, siblings))


def _apart(rows: TokenRows, fit_tokens: int, other_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows to fit on, and rows none of whose documents is in them."""
    count = fit_tokens // rows.context
    mine, theirs = rows.documents[:count], rows.documents[count:]
    apart = ~torch.isin(theirs, mine.unique()).any(1)
    return rows.tokens[:count], rows.tokens[count:][apart][: other_tokens // rows.context]


def _spread(rows: TokenRows, tokens: int) -> TokenRows:
    """Return rows from all over the report, so that they are of as many documents as can be."""
    step = max(rows.tokens.numel() // tokens, 1)
    return TokenRows(*(each[::step][: tokens // rows.context] for each in (rows.tokens, rows.documents)))


def _heard(bench: Bench, chosen: list[str] | None, work: Work) -> list[dict[str, Any]]:
    """Return a row for each source; rows are kept one by one, and those of an earlier run are not repeated."""
    table = entries(bench.setting)
    for name in chosen or []:
        one_of("measure.sources", name, [entry.name for entry in table])
    table = [entry for entry in table if chosen is None or entry.name in chosen]
    rows: list[dict[str, Any]] = (work.resume(STATE) or {"rows": []})["rows"]
    work.keep(STATE, {"rows": rows})  # so that a first training which a signal ends can go on, too
    for number, entry in enumerate(table[len(rows) :], len(rows) + 1):
        try:
            with doing(f"source {number} of {len(table)}: {entry.name}"):
                said = verdicts(Evidence(entry.made(bench.setting), bench))
        except ValueError as error:
            raise DataError(f"the source '{entry.name}' of {bench.setting.target.name}: {error}") from error
        rows.append({"source": entry.name, "kind": entry.kind, **said})
        work.keep(STATE, {"rows": rows})
        if asked():
            stop(f"at source {number} of {len(table)}")
    return rows
