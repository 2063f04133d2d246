"""measure=diff: what a change did to a model: whether, where, on what, in which directions, and within which margin."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, Optional

import torch
from torch import Tensor

from thinkalike import figures
from thinkalike.config import AnalyzeConfig, MeasureConfig, ModelConfig, SettingValues, model_named, setting
from thinkalike.data.alignment import check_same_tokens
from thinkalike.data.corpus import read_corpus
from thinkalike.data.rows import TokenRows
from thinkalike.errors import ConfigError
from thinkalike.evaluation.changes import perturbed
from thinkalike.evaluation.exchanges import exchange_outputs, exchange_parts
from thinkalike.evaluation.forks import fork, rate_for
from thinkalike.files import is_there
from thinkalike.instruments.diff.answers import NULLS, SIGNS, Answers, unchanged
from thinkalike.instruments.diff.exact import edits_of, pass_that_differs, settings_that_differ
from thinkalike.instruments.diff.screen import lines
from thinkalike.job import Instrument, Outcome, Work
from thinkalike.job.setting_groups import REPORT_TEXT, left_in_key
from thinkalike.measures.changes import random_signs, signed_permutation
from thinkalike.measures.seeds import seeded
from thinkalike.models.fingerprints import checkpoint_fingerprint
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.load import load_model, load_models
from thinkalike.models.parts import Part, changed_parts, check_one_basis, norms, one_form, without_difference
from thinkalike.models.shapes import Passes, Shapes
from thinkalike.screen import show_text
from thinkalike.states.contrasts import CONTRASTS, Contrasts, grammar_contrasts, read_contrasts
from thinkalike.store import Headline, Result

log = logging.getLogger(__name__)

ROW = 64  # tokens of a row of text, unless `data.context` says otherwise
SPREAD, LEAST = 8, 2**13  # times as much text is read as is used, and tokens at least: rows are of many documents
FORKED = 2**18  # tokens of text that forks are trained on, at most
EXCHANGED = 16  # parts of blocks, at most
MARGINS = ("kl", "flips", "loss", "class", "word")
LENGTH = 8  # tokens of a text of a pair, about


# ruff: noqa: UP045
@dataclass
class DiffConfig(MeasureConfig):
    """The settings of a diff."""

    kind: str = "diff"
    tokens: int = setting(2048, least=64, most=10**9)  # of text that both models read
    tokens_per_part: int = setting(512, least=64, most=10**9)  # of them, that parts are exchanged and nulls run on
    # of attention and MLPs, and as many of heads, that are exchanged
    outputs: int = setting(4, least=0, most=10**6)
    null: Literal["perturbation", "drift"] = "perturbation"  # random changes, or forks by training on `data`
    # of a fork, by AdamW at a rate by which it moves as far
    steps: int = setting(40, least=1, most=10**7)
    contrast: Optional[Literal["number", "question", "table"]] = None  # pairs of the grammar, or of your own
    path: Optional[str] = setting(None, in_key=False)  # contrast=table: .csv .tsv .parquet
    pairs: int = setting(2048, least=2, most=10**7)  # of the grammar
    # a model that may have been mixed in: a folder, ORG/NAME or a name
    other: Optional[str] = setting(None, in_key=False)
    margin: dict[str, float | None] = setting(partial(dict.fromkeys, MARGINS), above=0)  # of equivalence, null: none;
    # kl, class (kl of every token class), loss and word (contrast of every word), up or down, in nats; flips: a share

    paths: ClassVar[tuple[str, ...]] = ("path",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.contrast == "table") != bool(self.path):
            raise ConfigError("pairs of your own need measure.contrast=table measure.path=FILE")
        if self.margin.get("word") is not None and self.contrast is None:
            raise ConfigError("measure.margin.word= is of a contrast: add measure.contrast=number, question or table")

    def settings_read(self) -> frozenset[str]:
        read = super().settings_read()
        if self.null != "drift":
            read -= {"steps"}
        is_of_grammar = self.contrast in ("number", "question")
        return read if is_of_grammar else read - {"pairs"}


class Diff(Instrument[AnalyzeConfig], kind="diff", version=7, reads=("model", "target", "data", "measure")):
    """Says what the change from `model` to `model@target` did."""

    of_models: ClassVar[str] = "pairs"
    smallest: ClassVar[Mapping[str, Any]] = {"measure.tokens": 4096}

    def unread(self, config: AnalyzeConfig) -> SettingValues:
        """Only forks of the base are fitted on text."""
        unread = left_in_key(config, REPORT_TEXT)
        is_fitted = config.measure_as(DiffConfig).null == "drift"
        return unread if is_fitted else unread | {"data.fit_tokens": None}

    def inputs(self, config: AnalyzeConfig) -> Mapping[str, Any]:
        measure = config.measure_as(DiffConfig)
        own: dict[str, Any] = {"contrasts": read_contrasts(measure.path)} if measure.path else {}
        if measure.other:
            own["other"] = checkpoint_fingerprint(_other(measure.other))
        return {**own, **super().inputs(config)}

    def passes(self, config: AnalyzeConfig, shapes: Shapes) -> Sequence[Passes]:
        """Return the passes of both models, and those of parts and nulls, as if each began at the first block."""
        measure: Any = config.measure
        own, row = shapes["model"], config.data.context or ROW
        nulls = NULLS * (2 if measure.null == "perturbation" else 1)
        exchanges = min(2 * own.layers, EXCHANGED) + 2 * min(measure.outputs, 2 * own.layers)
        again = float(measure.tokens_per_part * (2 * exchanges + nulls))
        again += 2 * LENGTH * (measure.pairs if measure.contrast else 0) * (NULLS + 2)
        both = [each.passes("both models", float(measure.tokens), row) for each in dict.fromkeys(shapes.values())]
        return [*both, own.passes("parts and null", again, row)]

    def run(self, config: AnalyzeConfig, work: Work) -> Outcome:
        measure = config.measure_as(DiffConfig)
        with work.phase("loading"):
            base, changed = load_models(config.model, config.target)
            models = [base.describe(), changed.describe()]
            for done in one_form(base, changed):
                log.warning(done)
            check_one_basis(base, changed)
            for model in (base, changed):
                model.check_context(config.data.context)
        with work.phase("weights"):
            settings = settings_that_differ(base, changed)
            third = load_model(replace(_other(measure.other), dtype=config.model.dtype)) if measure.other else None
            edits, tokens = edits_of(base, changed, third)
            del third
            parts = changed_parts(base, changed)
            if not parts and settings.empty:  # as far as can be read, so the models themselves decide
                settings = pass_that_differs(base, changed)
        exact = {"weights": edits, "settings": settings}
        if not parts and settings.empty:
            return replace(unchanged(base, measure.margin), models=models)
        with work.phase("text"):
            rows, text, facts = read_rows(config, measure.tokens, base, FORKED if measure.null == "drift" else 0)
            check_same_tokens(base, changed, rows.tokens)
        pairs = work.optional_input("contrasts", Contrasts)
        if measure.contrast in CONTRASTS:
            pairs = grammar_contrasts(measure.contrast, base.tokenizer, measure.pairs, size="large")
        first = min(max(measure.tokens_per_part // rows.context, 1), len(rows))
        answers = Answers(base, changed, rows, first, measure.margin, pairs, exact, tokens)
        with work.phase("both models"):
            batches = answers.read()
        with work.phase("changed tokens"):
            answers.read_unread()
        if parts:
            with work.phase("parts"):
                most, keep = EXCHANGED if measure.null == "perturbation" else len(parts), partial(work.keep, "parts")
                answers.parts = exchange_parts(base, changed, parts, batches, most, work.resume("parts"), keep)
                answers.directions_at(batches)
        with work.phase("outputs"):
            if bool(answers.kl()[: len(answers.documents(first))].any()):
                answers.outputs = exchange_outputs(base, changed, batches, measure.outputs)
        if name := without_difference(base, changed):
            reasons = "is packed, of two shapes, in one model alone or less precise in the base"
            log.warning("%s %s: so it has no null", name, reasons)
        elif parts:
            with work.phase("null"):
                answers.beside(*_null(measure, base, changed, parts, text), batches, work)
        facts = {"data": facts}
        if pairs:
            facts["contrasts"] = {"source": pairs.source, "fingerprint": pairs.fingerprint()}
        return replace(answers.outcome(), models=models, facts=facts)

    def draw(self, result: Result, folder: Path) -> None:
        if "layers" in result.tables:
            base, changed = (model["name"] for model in result.provenance["models"][:2])
            about = f"{base} → {changed}, {result.scalars['documents']:.0f} documents"
            figures.changes(result.table, result.tables["layers"], folder, about)

    def headlines(self, result: Result) -> Sequence[Headline]:
        found = result.scalars
        names = ("kl", "flips", "loss_change")
        return [
            Headline.with_ends(name, *(found.get(f"{name}{end}", math.nan) for end in ("", "_low", "_high")))
            for name in names
        ]

    def show(self, result: Result) -> None:
        for line in lines(result):
            show_text(line)


def _other(named: str) -> ModelConfig:
    return model_named(str(Path(named).absolute()) if is_there(named) else named, {})


Opened = dict[str, Callable[[int], AbstractContextManager[FrozenModel]]]  # a model of a null by its number


def _null(
    measure: DiffConfig, base: FrozenModel, changed: FrozenModel, parts: Sequence[Part], text: Tensor
) -> tuple[Opened, int]:
    """Return what opens a model of each kind of null by its number, and the block before which it is as the base."""
    if measure.null == "perturbation":
        at_random = partial(perturbed, base, changed, parts)
        kinds = {"permuted": signed_permutation, SIGNS: random_signs}
        opened: Opened = {kind: partial(at_random, random_change=change) for kind, change in kinds.items()}
        return opened, parts[0].layer
    norm, steps = norms(base, changed)[0], measure.steps
    forked = partial(fork, base, text, norm, rate=rate_for(base, text, norm, steps), steps=steps)
    return {"forks": lambda seed: nullcontext(forked(seed))}, -1


def read_rows(
    config: AnalyzeConfig, tokens: int, base: FrozenModel, fit_tokens: int = 0
) -> tuple[TokenRows, Tensor, dict[str, Any]]:
    """Return so many tokens of the report's text in random rows, those to fit on, and what provenance says of them."""
    context = config.data.context or min(ROW, base.context)
    wanted = max(tokens // context, 2)
    data = replace(config.data, report_tokens=max(SPREAD * wanted * context, LEAST))
    corpus = read_corpus(data, base.tokenizer, context, bos=base.bos_each_row, fit_tokens=fit_tokens)
    chosen = torch.randperm(len(corpus.report), generator=seeded(0))[:wanted]
    return corpus.report.select(chosen), corpus.fit.tokens, {"name": config.data.name, **corpus.facts()}
