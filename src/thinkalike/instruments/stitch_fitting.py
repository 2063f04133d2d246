"""How the φ of every layer pair is had: trained, or in closed form; and the controls beside it."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from thinkalike.config import DataConfig, StitchConfig, TrainConfig, TrainerConfig, pairs_of_layers
from thinkalike.data import Corpus, SourceText, read_corpus
from thinkalike.errors import ConfigError, ModelError
from thinkalike.evaluation import (
    LayerPair,
    Maps,
    document_sums,
    report_share,
    rows_at_once,
    rows_of_moments,
    state_moments,
)
from thinkalike.job import check_memory, check_time
from thinkalike.measures import AffineMap, Moments, Stitch, bias_only, least_squares, procrustes, reduced_rank
from thinkalike.memory import Budget
from thinkalike.models import FrozenModel, check_alignable, load_models, outline, randomised, tokenizer_fingerprint
from thinkalike.training import Run, StitchTraining, fit, own_device, peak_rate

log = logging.getLogger(__name__)

TOKENS_PER_PARAMETER = 20  # of φ; with fewer fit tokens than that it overfits
CONTROL_TOKENS = 2**18  # that the closed forms of controls and starts are fitted on


@dataclass(frozen=True)
class Setting:
    """What a job works with: two models, the layer pairs, text, and statistics for closed forms if it needs any."""

    config: StitchConfig
    seed: int
    source: FrozenModel
    target: FrozenModel
    layer_pairs: Sequence[LayerPair]
    corpus: Corpus
    moments: Moments | None
    memory: float | None = None  # the most bytes that the user allows

    @classmethod
    def of(cls, config: TrainConfig) -> Setting:
        """Load models and text, and check that they go together.

        Raises:
            ConfigError: the kind of map does not fit the models' widths, or layers do not exist.
            ModelError: a model cannot be had, or the tokenizers differ so that tokens cannot be aligned.
            DataError: there is too little text.
        """
        both = (config.model, config.target)
        source, target = load_models(*(replace(e, device=own_device(e.device, config.trainer)) for e in both))
        _check_widths(config.stitch, source, target)
        layer_pairs = pairs_of_layers(config.layers, source.n_layers, target.n_layers)
        needed = config.stitch.steps * config.stitch.tokens_per_step
        if config.stitch.trained:
            _check_feasible(config.stitch, config.trainer, source, target, len(layer_pairs))
        corpus = _text(config.data, source, target, max(needed, 1))
        memory = config.trainer.memory_bytes
        moments = _moments(config.stitch, source, target, layer_pairs, corpus, memory)
        return cls(config.stitch, config.seed, source, target, layer_pairs, corpus, moments, memory)

    @property
    def equal_widths(self) -> bool:
        return self.source.d_model == self.target.d_model

    def identity(self) -> Maps:
        return [Stitch("identity", self.source.d_model, self.target.d_model)] * len(self.layer_pairs)

    def closed_forms(self, kind: str) -> list[AffineMap]:
        if self.moments is None:
            raise ValueError(f"no statistics were gathered for the closed form {kind}")
        return [_closed_form(kind, self.moments, pair, self.config) for pair in self.layer_pairs]

    def sums(self, maps: Mapping[str, Maps], source: FrozenModel | None = None) -> dict[str, Tensor]:
        """Return losses by document of all maps on the report's rows, see `document_sums`."""
        rows, source = self.corpus.report, source or self.source
        models, budget = (source, self.target, self.layer_pairs), Budget.of(self.target.device, self.memory)
        share = report_share(*models, rows.tokens, rows_at_once(self.corpus), budget, rows.layout)
        at_once = share.rows, share.pairs
        return document_sums(*models, maps, rows.tokens, rows.documents, *at_once, layout=rows.layout)


class Fitted(NamedTuple):
    """The φ of every layer pair, what of them is kept, and the learning curves."""

    maps: Maps
    weights: dict[str, Tensor]
    arrays: dict[str, np.ndarray]


def fitted(setting: Setting, run: Run, loggers: Sequence[Any]) -> Fitted:
    """Train the φ of every layer pair, or solve for them."""
    config, source, target = setting.config, setting.source, setting.target
    if not config.trained and config.kind == "identity":
        return Fitted(setting.identity(), {}, {})
    if not config.trained:
        closed = setting.closed_forms(config.kind)
        parts = ("weight", "bias")
        weights = {f"{i}.map.{part}": getattr(phi, part).cpu() for i, phi in enumerate(closed) for part in parts}
        return Fitted(closed, weights, {})
    rows, trainer = setting.corpus.fit, run.trainer
    module = StitchTraining(
        source, target, setting.layer_pairs, rows.tokens, config, setting.seed, layout=rows.layout, limits=trainer
    )
    _warn_of_overfitting(module, setting.corpus)
    if config.init != "identity":
        for phi, start in zip(module.stitches, setting.closed_forms(config.init), strict=True):
            phi.start_from(start.weight, start.bias)  # type: ignore[operator]
    log.info("%d stitches, %d steps, peak rate %g", len(setting.layer_pairs), config.steps, peak_rate(config))
    with contextlib.ExitStack() as changed:
        for model in dict.fromkeys((source, target)):
            changed.enter_context(model.compiled(trainer.compile))
        changed.enter_context(target.recomputed(trainer.recompute))
        fit(module, run, loggers)
    module.to(target.device).eval()
    weights = {name: weight.cpu().contiguous() for name, weight in module.stitches.state_dict().items()}
    return Fitted(list(module.stitches), weights, {"curve": module.curve.cpu().numpy()})


def reported(setting: Setting, phis: Maps) -> dict[str, Tensor]:
    """Return sums by document of φ, of the identity where widths match, and of the controls if asked for."""
    maps: dict[str, Maps] = {"stitch": phis}
    if setting.equal_widths:
        maps["identity"] = setting.identity()
    if setting.config.controls:
        maps |= _controls(setting, phis)
    sums = setting.sums(maps)
    if setting.config.controls:
        sums["random_source"] = _random_source(setting)
    return sums


def foresee(config: TrainConfig) -> None:
    """Refuse what is seen without any weights: a model that predicts no next token, or layers that do not exist.

    Raises:
        ConfigError: layers do not exist.
        ModelError: a model predicts no next token.
    """
    models = config.model, config.target
    source, target = map(outline, models)
    for each, seen in zip(models, (source, target), strict=True):
        if seen.predicts not in (None, "next"):
            raise ModelError(
                f"{each.name} predicts no next token, and task=stitch stitches models that do; choose one of them, or "
                "compare representations: python analyze.py measure=cka"
            )
    if source.layers and target.layers:
        pairs_of_layers(config.layers, source.layers, target.layers)


def _text(data: DataConfig, source: FrozenModel, target: FrozenModel, fit_tokens: int) -> Corpus:
    """Read rows of the tokens of both models, or, where they cut a text differently, of each model's own.

    Raises:
        ModelError: the tokenizers differ so that tokens cannot be aligned.
        DataError: there is too little text.
    """
    context = min(source.context, target.context)
    if tokenizer_fingerprint(source.tokenizer) == tokenizer_fingerprint(target.tokenizer):
        return read_corpus(data, source.tokenizer, context, bos=source.bos_each_row, fit_tokens=fit_tokens)
    check_alignable(source, target)
    log.info("%s and %s have different tokenizers: their tokens are aligned", source.name, target.name)
    reader = SourceText(source.name, source.tokenizer, source.bos_each_row, source.context)
    bos = target.bos_each_row
    return read_corpus(data, target.tokenizer, context, bos=bos, fit_tokens=fit_tokens, source=reader)


def _check_feasible(
    config: StitchConfig, trainer: TrainerConfig, source: FrozenModel, target: FrozenModel, stitches: int
) -> None:
    """Refuse what no machine can train, in however small parts: weights, gradients and momenta of φ, and the pass.

    What one part takes is measured when training begins.
    """
    size, budget = config.tokens_per_step, Budget.of(target.device, trainer.memory_bytes)
    rank = config.rank if config.kind == "low_rank" else 0
    widths = source.d_model, target.d_model
    weights = rank * sum(widths) or (config.kind != "identity") * math.prod(widths)
    kept = 4.0 * stitches * weights * (2 + (config.momentum > 0))
    check_memory(f"{stitches} stitches need", kept, budget, "choose fewer layers, or stitch=low_rank")
    tokens = 12.0 * size  # as they are read, and as they are given to the models
    check_memory(f"stitch.tokens_per_step={size} needs", kept + tokens, budget)
    operations = 2.0 * config.steps * size * target.parameters()[1]
    check_time(f"stitch.steps={config.steps} of stitch.tokens_per_step={size} for {stitches} stitches", operations)


def _check_widths(config: StitchConfig, source: FrozenModel, target: FrozenModel) -> None:
    widths = f"{source.name} has {source.d_model}, {target.name} {target.d_model}"
    if config.kind in ("identity", "orthogonal", "bias") and source.d_model != target.d_model:
        raise ConfigError(f"stitch={config.kind} needs equal widths, and {widths}; use stitch=linear")
    if "procrustes" in (config.kind, config.init) and source.d_model > target.d_model:
        raise ConfigError(f"procrustes keeps lengths, so it cannot go to a smaller width: {widths}")
    limited = {"low_rank", "reduced_rank"} & {config.kind, config.init}
    if limited and config.rank > min(source.d_model, target.d_model):
        raise ConfigError(f"stitch.rank={config.rank} is more than the smaller width: {widths}")


def _warn_of_overfitting(module: StitchTraining, corpus: Corpus) -> None:
    parameters = sum(weight.numel() for weight in module.stitches[0].parameters())
    tokens, seen = corpus.counts["fit_tokens"], module.config.steps * module.config.tokens_per_step
    if tokens < TOKENS_PER_PARAMETER * parameters:
        log.warning(
            "warning: %s fit tokens are fewer than %d per parameter of φ (%s): expect overfitting; give more text",
            f"{tokens:,}",
            TOKENS_PER_PARAMETER,
            f"{parameters:,}",
        )
    if seen > 1.01 * tokens:
        log.warning("warning: training reads the fit tokens %.1f times over: there are no more", seen / tokens)


def _moments(
    config: StitchConfig,
    source: FrozenModel,
    target: FrozenModel,
    layer_pairs: Sequence[LayerPair],
    corpus: Corpus,
    memory: float | None,
) -> Moments | None:
    """Return statistics for the closed forms that this job needs, if any."""
    closed = not config.trained and config.kind != "identity"
    if not (closed or config.controls or config.init != "identity"):
        return None
    rows, fit = corpus.fit.tokens, corpus.fit
    rows = rows if closed else rows[: CONTROL_TOKENS // fit.context]
    budget = Budget.of(target.device, memory)
    _check_closed_forms(config, source, target, layer_pairs, budget)
    batch = rows_of_moments(source, target, rows, rows_at_once(corpus), budget, fit.layout)
    return state_moments(source, target, layer_pairs, rows, batch, layout=fit.layout)


def _check_closed_forms(
    config: StitchConfig, source: FrozenModel, target: FrozenModel, layer_pairs: Sequence[LayerPair], budget: Budget
) -> None:
    """Refuse statistics and maps, all in float64, that do not fit."""
    d, e, pairs = source.d_model, target.d_model, len(layer_pairs)
    within = sum(len({pair[side] for pair in layer_pairs}) * width**2 for side, width in enumerate((d, e)))
    kinds = 3 if config.controls else 1
    remedy = "choose fewer layers" + (", stitch.controls=false" if config.controls else "")
    memory = 8.0 * (within + (1 + kinds) * pairs * d * e)
    check_memory(f"closed forms of {pairs} layer pairs need", memory, budget, remedy)


def _closed_form(kind: str, moments: Moments, pair: LayerPair, config: StitchConfig) -> AffineMap:
    if kind == "least_squares":
        return least_squares(moments, pair, config.ridge)
    if kind == "reduced_rank":
        return reduced_rank(moments, pair, config.rank, config.ridge)
    return {"procrustes": procrustes, "bias": bias_only}[kind](moments, pair)


def _controls(setting: Setting, phis: Maps) -> dict[str, Maps]:
    """Return what φ has to beat: closed forms, a mere shift, and itself on the states of other tokens."""
    kinds = ["least_squares", *(["procrustes", "bias"] if setting.equal_widths else [])]
    maps: dict[str, Maps] = {kind: setting.closed_forms(kind) for kind in kinds}
    maps["shuffled"] = [_Shuffled(phi, setting.seed) for phi in phis]
    return maps


class _Shuffled:
    """φ on the states of other tokens of the batch: what is left when the source says nothing of the token."""

    def __init__(self, phi: Any, seed: int):
        self.phi, self.seed = phi, seed

    def __call__(self, state: Tensor) -> Tensor:
        mapped = self.phi(state)
        rows = mapped.flatten(0, 1)
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(self.seed))
        return rows[order.to(rows.device)].view_as(mapped)


def _random_source(setting: Setting) -> Tensor:
    """Return the loss by document of least squares from a source that was never trained."""
    untrained = randomised(setting.source, setting.seed)
    moments = _moments(setting.config, untrained, setting.target, setting.layer_pairs, setting.corpus, setting.memory)
    maps = replace(setting, moments=moments).closed_forms("least_squares")
    return setting.sums({"random_source": maps}, untrained)["random_source"]
