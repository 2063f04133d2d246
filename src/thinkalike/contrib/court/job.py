"""measure=court: a table of sources of known likeness to one layer of a target, and all of them before every judge."""

from __future__ import annotations

import logging
import math
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, Optional

import pandas as pd
import torch

from thinkalike.config import AnalyzeConfig, MeasureConfig, ModelConfig, TrainerConfig, model_named, options
from thinkalike.config.parts import COUNTS
from thinkalike.config.schema import setting
from thinkalike.contrib.court import constructions as make
from thinkalike.contrib.court.evidence import Bench, Evidence
from thinkalike.contrib.court.judges import JUDGES, verdicts
from thinkalike.contrib.court.source import Remembered, Setting, Source, States
from thinkalike.data.alignment import check_same_tokenizer
from thinkalike.data.corpus import read_corpus
from thinkalike.data.rows import Corpus, TokenRows
from thinkalike.errors import ConfigError, DataError, one_of
from thinkalike.evaluation.token_means import BigramMeans, TokenMeans
from thinkalike.job import Instrument, Outcome, Work, fingerprints
from thinkalike.models.fingerprints import checkpoint_fingerprint
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.load import load_model
from thinkalike.models.variants import fresh, randomised, twin
from thinkalike.processes import asked, at_boundaries, doing, stop
from thinkalike.screen import Table, few, number_column, show_table, show_text, text_column
from thinkalike.store import Result
from thinkalike.training.run import Run, StepData, SteppedModule, fit


class Entry(NamedTuple):
    """A source before it is made: its name, its kind, and what makes its states."""

    name: str
    kind: str
    make: Callable[[Setting], States]

    def made(self, setting: Setting) -> Source:
        return Source(self.name, self.kind, Remembered(self.make(setting)), setting.target)


SOURCES = (
    Entry("rotated", "same", make.rotated),
    Entry("rescaled and permuted", "same", make.rescaled),
    Entry("affine", "same", partial(make.through_affine, condition=make.CONDITION)),
    Entry("affine, condition 1000", "same", partial(make.through_affine, condition=1000.0)),
    Entry("whitened", "same", make.whitened),
    Entry("noisy weights", "near", make.changed(partial(make.perturbed, share=make.WEIGHT_NOISE), "noisy weights")),
    Entry("partly untrained weights", "near", make.changed(partial(make.reverted, share=make.REVERTED), "reverted")),
    Entry("trained on", "near", partial(make.trained_on, config=make.TRAINED, name="trained on")),
    Entry("tuned", "near", partial(make.trained_on, config=make.TUNED, name="tuned")),
    Entry("noisy states", "near", partial(make.with_noisy_states, share=0.1)),
    Entry("noise of 2 %", "near", partial(make.with_noisy_states, share=0.02)),
    Entry("noise of 30 %", "near", partial(make.with_noisy_states, share=0.3)),
    Entry("6 bits", "near", partial(make.rounded, bits=6)),
    *(Entry(f"{bits} bits", "distorted", partial(make.rounded, bits=bits)) for bits in (3, 2)),
    Entry("power 1.5", "distorted", partial(make.distorted, function=lambda x: x * x.abs().sqrt())),
    Entry("tanh", "distorted", partial(make.distorted, function=torch.tanh)),
    Entry("log-probabilities", "answers", make.log_probabilities),
    Entry("top components", "part", partial(make.components, first=0.0, last=1 / 2)),
    Entry("top 9/16 of the components", "part", partial(make.components, first=0.0, last=9 / 16)),
    Entry("top 3/4 of the components", "part", partial(make.components, first=0.0, last=3 / 4)),
    Entry("all but the top tenth", "part", partial(make.components, first=1 / 10, last=1.0)),
    Entry("without a small direction", "part", make.without_small_direction),
    Entry("less the token mean", "scaled", partial(make.reweighted, token=0.0, rest=1.0)),
    Entry("a tenth of the departure from the token mean", "scaled", partial(make.reweighted, token=1.0, rest=0.1)),
    Entry("other tokens' means", "wrong tokens", make.with_means_of_other_tokens),
    Entry("superset", "superset", make.superset),
    Entry("beside a stranger", "superset", partial(make.beside_stranger, share=1.0)),
    Entry("half own, half stranger", "mixture", partial(make.beside_stranger, share=1 / 2)),
    Entry("token mean", "token", partial(make.means, kind=TokenMeans)),
    Entry("bigram mean", "n-gram", partial(make.means, kind=BigramMeans)),
    Entry("trigram mean", "n-gram", partial(make.means, kind=make.TrigramMeans)),
    *(Entry(f"{name} code", "token", partial(make.code, of=name)) for name in make.NGRAMS),
    Entry("other context", "token", make.other_context),
    Entry("Gaussian given the token", "token", make.gaussian),
    Entry("position mean", "position", partial(make.at_position, token=0.0)),
    Entry("token and position means", "position", partial(make.at_position, token=1.0)),
    Entry("token and position means, noisy", "position", partial(make.at_position, token=1.0, noise=1.0)),
    Entry("embedding", "position", lambda setting: make.other_layer(setting, -1 - setting.layer)),
    *(Entry(f"bag of the last {last}", "bag", partial(make.bag, last=float(last))) for last in (4, 8, 32)),
    Entry("bag of all", "bag", partial(make.bag, last=math.inf)),
    Entry("bag of the last 8, random codes", "bag", partial(make.bag, last=8.0, of="code")),
    Entry("state of the last token", "delay", partial(make.shifted, steps=-1)),
    Entry("state of the next token", "leak", partial(make.shifted, steps=1)),
    Entry("next token", "leak", make.next_token),
    Entry("next token, half of the tokens", "leak", make.half_of_the_tokens),
    Entry("next token, half of the variance", "leak", make.half_of_the_variance),
    Entry("own and a tenth of the next token", "leak", partial(make.with_next_token, share=0.1)),
    Entry("own and three tenths of the next token", "leak", partial(make.with_next_token, share=0.3)),
    Entry("own and a tenth of the next token's code", "leak", partial(make.with_next_token, share=0.1, of="code")),
    Entry("fresh weights", "untrained", make.changed(fresh, "fresh")),
    Entry("fresh weights, own embedding", "untrained", make.changed(twin, "fresh")),
    Entry("redrawn matrices", "untrained", make.changed(randomised, "redrawn")),
    Entry("token alone", "shortcut", make.token_alone),
    *(Entry(f"{share} % own", "dose", partial(make.mixture, share=share / 100)) for share in (0, 20, 40, 60, 80, 100)),
)
LAYERS = {"two layers before": -2, "layer before": -1, "layer after": 1, "two layers after": 2}


def entries(setting: Setting) -> list[Entry]:
    """Return all sources that can be made in a setting: those of the table, its other layers, and its siblings."""
    inside = {name: steps for name, steps in LAYERS.items() if 0 <= setting.layer + steps < setting.target.n_layers}
    layers = [Entry(name, "layer", partial(make.other_layer, steps=steps)) for name, steps in inside.items()]
    return [*SOURCES, *layers, *(Entry(name, "real", partial(make.sibling, name=name)) for name in setting.siblings)]


STATE = "court"
SHOWN, ROWS = ("penalty", "KL", "CKA", "RSA"), 10  # on the screen


# ruff: noqa: UP045
@dataclass
class CourtConfig(MeasureConfig):
    """The settings of a court."""

    kind: str = "court"
    # of the target; there must be a block after it
    layer: int = setting(1, by_recipe=True, least=0, most=10**4)
    siblings: Optional[dict[str, str]] = None  # other models, {what is other: a name in conf/model}; null: none
    sources: Optional[list[str]] = None  # their names; null: all
    fit_tokens: int = setting(2**16, least=2, most=COUNTS)  # that maps are fitted on
    report_tokens: int = setting(2**15, least=2, most=COUNTS)  # that scores are of
    other_tokens: int = setting(2**17, least=2, most=COUNTS)  # of other documents, for what a source has to learn
    # experiment=validity/court: how many courts of a target
    seeds: int = setting(1, least=1, most=1000, in_key=False)


class Court(Instrument[AnalyzeConfig], kind="court", version=9, reads=("model", "data", "measure", "seed")):
    """Makes every source from `model` at `measure.layer`, and leaves what each judge says of it, a row each."""

    needs_store: ClassVar[bool] = True  # each training of a source has a folder

    def inputs(self, config: AnalyzeConfig) -> Mapping[str, Any]:
        siblings = {f"sibling {name}": checkpoint_fingerprint(each) for name, each in _siblings(config).items()}
        return fingerprints(config, ("model", "data")) | siblings

    def run(self, config: AnalyzeConfig, work: Work) -> Outcome:
        measure = config.measure_as(CourtConfig)
        with work.phase("loading"):
            target = load_model(config.model)
        if measure.layer >= target.n_layers - 1:
            most = target.n_layers - 2
            raise ConfigError(f"measure.layer={measure.layer} has no block after it; choose one from 0 to {most}")
        siblings = {name: load_model(each) for name, each in _siblings(config).items()}
        for sibling in siblings.values():
            check_same_tokenizer(target, sibling)
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
    given: dict[str, str] = config.measure_as(CourtConfig).siblings or {}
    for other, name in given.items():
        one_of(f"measure.siblings.{other}", name, options("model"))
    own = {"device": config.model.device, "context": config.model.context}
    return {name: model_named(model, own) for name, model in given.items()}


def _bench(
    config: AnalyzeConfig, target: FrozenModel, siblings: Mapping[str, FrozenModel], corpus: Corpus, work: Work
) -> Bench:
    measure = config.measure_as(CourtConfig)
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
    return rows.select(slice(None, None, step)).select(slice(tokens // rows.context))


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
