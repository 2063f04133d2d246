"""measure=diff: what a change did to a model: whether, where, on what, in which directions, and within which margin."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from thinkalike.config import AnalyzeConfig, MeasureConfig, ranged
from thinkalike.job import Instrument, Outcome, Work
from thinkalike.job.operations import Phase, Shapes
from thinkalike.store import Headline, Result

if TYPE_CHECKING:
    from torch import Tensor

    from thinkalike.data.rows import TokenRows
    from thinkalike.models.frozen import FrozenModel

log = logging.getLogger(__name__)

ROW = 64  # tokens of a row of text, unless `data.context` says otherwise
SPREAD, LEAST = 8, 2**13  # times as much text is read as is used, and tokens at least: rows are of many documents
NULLS = 19  # random changes: the fewest that can be exceeded with p = .05
FORKED = 2**18  # tokens of text that forks are trained on, at most
EXCHANGED = 16  # parts of blocks, at most
MARGINS = ("kl", "flips", "loss")
EXIT_STATUS = {"equivalent": 0, "not equivalent": 1, "undecided": 3}


@dataclass
class DiffConfig(MeasureConfig):
    """The settings of a diff."""

    kind: str = "diff"
    tokens: int = ranged(2048, least=64, most=10**9)  # of text that both models read
    tokens_per_part: int = ranged(512, least=64, most=10**9)  # of them, that parts are exchanged and nulls run on
    null: Literal["perturbation", "drift"] = "perturbation"  # random changes, or forks by training on `data`
    rate: float = ranged(3e-4, above=0)  # of AdamW, of null=drift
    margin: dict[str, float | None] = ranged(partial(dict.fromkeys, MARGINS), above=0)  # of equivalence, null: none;
    # kl and loss, up or down, in nats per token, flips as a share of tokens

    @property
    def unused(self) -> Collection[str]:
        return () if self.null == "drift" else ("rate",)


class Diff(Instrument, kind="diff", reads=("model", "target", "data", "measure")):
    """Says what the change from `model` to `model@target` did."""

    of_models: ClassVar[str] = "pairs"

    def operations(self, config: AnalyzeConfig, shapes: Shapes) -> Sequence[Phase]:
        """Return the passes of both models, and those of parts and nulls, as if each began at the first block."""
        from thinkalike.job.operations import forward_passes

        measure: Any = config.measure
        own, row = shapes["model"], config.data.context or ROW
        tokens, again = float(measure.tokens), float(measure.tokens_per_part)
        passes = 2 * min(2 * own.layers, EXCHANGED) + NULLS
        parts = Phase("parts and null", own.forward(passes * again, row, True), {own.name: passes * again})
        return [*forward_passes(shapes.values(), tokens, row, full=True), parts]

    def run(self, config: AnalyzeConfig, work: Work) -> Outcome:
        from thinkalike.evaluation import changes
        from thinkalike.evaluation.forks import fork, norm_of_change
        from thinkalike.instruments.diff.answers import Answers
        from thinkalike.models.load import load_models
        from thinkalike.models.parts import changed_parts, check_one_basis, is_packed
        from thinkalike.models.tokenizers import same_vocabulary
        from thinkalike.progress import counted

        measure: Any = config.measure
        with work.phase("loading"):
            base, changed = load_models(config.model, config.target)
            same_vocabulary(base, changed)
            check_one_basis(base, changed)
            rows, text, facts = read_rows(config, base, FORKED if measure.null == "drift" else 1)
            parts = changed_parts(base, changed)
        first = min(max(measure.tokens_per_part // rows.context, 1), len(rows))
        answers = Answers(base, changed, rows, first, measure.margin)
        batches: list[changes.Seen] = []
        with work.phase("both models"):
            for own, change in changes.seen(base, changed, rows, first):
                answers.add(change)
                if sum(len(each.tokens) for each in batches) < first:
                    batches.append(own)
        if parts:
            with work.phase("parts"):
                most = EXCHANGED if measure.null == "perturbation" else len(parts)
                answers.parts = changes.by_part(base, changed, parts, batches, most)
                answers.directions_at(batches)
        if packed := [model.name for model in (base, changed) if is_packed(model)]:
            log.warning("%s has packed weights, which have no difference: there is no null", packed[0])
        elif parts:
            with work.phase("null"):
                if measure.null == "perturbation":
                    null = changes.random_changes(base, changed, NULLS)
                    answers.null = changes.beside_null(base, null, parts[0].layer, batches)
                else:
                    norm = norm_of_change(base, changed)
                    seeds = counted(range(NULLS), "fork")
                    answers.beside(fork(base, text, norm, seed, rate=measure.rate) for seed in seeds)
        return replace(answers.outcome(), models=[base.describe(), changed.describe()], facts={"data": facts})

    def draw(self, result: Result, folder: Path) -> None:
        from thinkalike import figures

        figures.changes(result.table, result.tables["layers"], folder)

    def headlines(self, result: Result) -> Sequence[Headline]:
        """Return KL, the share of flipped top tokens, and the change of the loss."""
        found = result.scalars
        names = ("kl", "flips", "loss_change")
        return [
            Headline.with_ends(name, *(found.get(f"{name}{end}", math.nan) for end in ("", "_low", "_high")))
            for name in names
        ]

    def show(self, result: Result) -> None:
        from thinkalike.instruments.diff.screen import lines
        from thinkalike.screen import show_text

        for line in lines(result):
            show_text(line)


def read_rows(
    config: AnalyzeConfig, base: FrozenModel, fit_tokens: int = 1
) -> tuple[TokenRows, Tensor, dict[str, Any]]:
    """Return rows of the report's text at random, those to fit on, and what the provenance says of them."""
    import torch

    from thinkalike.arguments import seeded
    from thinkalike.data.corpus import read_corpus
    from thinkalike.data.rows import TokenRows

    measure: Any = config.measure
    context = config.data.context or min(ROW, base.context)
    wanted = max(measure.tokens // context, 2)
    data = replace(config.data, report_tokens=max(SPREAD * wanted * context, LEAST))
    corpus = read_corpus(data, base.tokenizer, context, bos=base.bos_each_row, fit_tokens=fit_tokens)
    chosen = torch.randperm(len(corpus.report), generator=seeded(0))[:wanted]
    rows = TokenRows(corpus.report.tokens[chosen], corpus.report.documents[chosen])
    return rows, corpus.fit.tokens, {"name": config.data.name, **corpus.facts()}
