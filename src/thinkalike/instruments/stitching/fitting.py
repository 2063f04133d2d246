"""The setting of a stitching job, and its stitches: fits those of all layer pairs with the controls beside them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from thinkalike.config import DataConfig
from thinkalike.data.corpus import read_corpus
from thinkalike.data.rows import Corpus, TokenRows
from thinkalike.digests import tokenizer_fingerprint
from thinkalike.errors import ConfigError
from thinkalike.evaluation.moments import state_moments
from thinkalike.evaluation.stitched_losses import (
    Control,
    StateMaps,
    document_sums,
    largest_report_batch,
    target_losses,
)
from thinkalike.evaluation.token_means import MOST_TOKENS, BigramMeans, TokenMeans
from thinkalike.measures import closed_forms
from thinkalike.measures.closed_forms import AffineMap
from thinkalike.measures.halved_moments import HalvedMoments
from thinkalike.measures.ladder import next_rung
from thinkalike.measures.moments import LayerPair, PairStatistics
from thinkalike.memory import (
    FRAGMENTATION,
    STATE_BYTES_ON_CPU,
    USABLE_SHARE,
    Budget,
    bytes_in_use,
    check_memory,
    free_cached_memory,
)
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.layer_choice import pairs_of_layers
from thinkalike.models.load import load_models
from thinkalike.models.rounding import can_be_rounded, rounded
from thinkalike.processes import counted, doing, own_device
from thinkalike.stitches.stitch import Stitch
from thinkalike.training.optimizers import momenta, peak_rate
from thinkalike.training.recipe import StitchConfig, StitchJob, whole_rows
from thinkalike.training.run import Run, StepData, fit
from thinkalike.training.stitching import Fit, StitchTraining

log = logging.getLogger(__name__)

TOKENS_PER_PARAMETER = 20  # of φ; with fewer fit tokens it overfits
LEAST = 1e-6  # nats per token that a rung costs, and what costs nothing is above it
CONTROL_TOKENS = 2**16  # that the closed forms of controls and starts are fitted on


@dataclass(frozen=True)
class Setting:
    """Two models, their layer pairs and the text that both read."""

    config: StitchConfig
    seed: int
    source: FrozenModel
    target: FrozenModel
    layer_pairs: Sequence[LayerPair]
    corpus: Corpus
    memory: float | None = None  # the most bytes that the user allows
    ruler: str | None = None  # what penalties stand beside

    @property
    def models(self) -> tuple[FrozenModel, FrozenModel, Sequence[LayerPair]]:
        return self.source, self.target, self.layer_pairs

    @property
    def equal_widths(self) -> bool:
        return self.source.d_model == self.target.d_model

    @property
    def rows_of_closed_forms(self) -> TokenRows:
        """All rows to fit on if φ is a closed form; else `CONTROL_TOKENS`, of controls and starts."""
        fit = self.corpus.fit
        if self.config.is_closed:
            return fit
        return fit.select(slice(max(CONTROL_TOKENS // fit.context, 1)))

    @property
    def budget(self) -> Budget:
        """The memory for states outside of training."""
        place = self.target.device
        limit = (
            (bytes_in_use(place) + FRAGMENTATION * STATE_BYTES_ON_CPU) / USABLE_SHARE if place.type == "cpu" else None
        )
        return Budget.of(place, self.memory or limit)

    def reversed(self, data: DataConfig) -> Setting:
        """Return the same from the target to the source."""
        config, pairs = self.config, [(depth, layer) for layer, depth in self.layer_pairs]
        corpus = shared_text(data, self.target, self.source, max(config.steps * config.tokens_per_step, 1))
        return replace(self, source=self.target, target=self.source, layer_pairs=pairs, corpus=corpus)


def load_setting(config: StitchJob) -> Setting:
    """Load models and text, and check that kind and size of the stitches suit them."""
    stitch, memory, both = config.stitch, config.trainer.memory, (config.model, config.target)
    source, target = load_models(*(replace(e, device=own_device(e.device, config.trainer)) for e in both))
    if source.sites or target.sites:
        from thinkalike.models.middle import MiddleModel  # which jobs at the usual site need not load

        cut = {id(each): MiddleModel(each) if each.sites else each for each in (source, target)}
        source, target = cut[id(source)], cut[id(target)]
    if stitch.both and source is target:
        raise ConfigError(f"stitch.both=true needs two models, and {source.name} is source and target")
    _check_widths(stitch, source, target)
    pairs = pairs_of_layers(config.layers, source.n_layers, target.n_layers)
    _check_room(stitch, source.d_model, target.d_model, pairs, Budget.of(target.device, memory))
    corpus = shared_text(config.data, source, target, max(stitch.steps * stitch.tokens_per_step, 1))
    free_cached_memory(target.device)
    return Setting(stitch, config.seed, source, target, pairs, corpus, memory, config.ruler)


def _check_widths(config: StitchConfig, source: FrozenModel, target: FrozenModel) -> None:
    widths = f"{source.name} has {source.d_model}, {target.name} {target.d_model}"
    if config.kind in ("identity", "orthogonal", "bias") and source.d_model != target.d_model:
        raise ConfigError(f"stitch={config.kind} needs equal widths, and {widths}; use stitch=linear")
    narrower = source.d_model > target.d_model or (config.both and source.d_model < target.d_model)
    if "procrustes" in (config.kind, config.init) and narrower:
        raise ConfigError(f"procrustes keeps lengths, so it cannot go to a smaller width: {widths}")
    limited = {"low_rank", "reduced_rank"} & {config.kind, config.init}
    if limited and config.rank > min(source.d_model, target.d_model):
        raise ConfigError(f"stitch.rank={config.rank} is more than the smaller width: {widths}")


def shared_text(data: DataConfig, source: FrozenModel, target: FrozenModel, fit_tokens: int) -> Corpus:
    """Read rows of the tokens of both models, or, where tokenizers differ, of each model's own."""
    for model in (source, target):
        model.check_context(data.context)
    context = min(source.context, target.context)
    if tokenizer_fingerprint(source.tokenizer) == tokenizer_fingerprint(target.tokenizer):
        return read_corpus(data, source.tokenizer, context, bos=source.bos_each_row, fit_tokens=fit_tokens)
    from thinkalike.data.alignment import check_alignable  # which jobs of one tokenizer need not load
    from thinkalike.data.paired import SourceTokenizer

    check_alignable(source, target)
    log.info("%s and %s have different tokenizers: their tokens are aligned", source.name, target.name)
    reader = SourceTokenizer(source.name, source.tokenizer, source.bos_each_row, source.context)
    bos = target.bos_each_row
    return read_corpus(data, target.tokenizer, context, bos=bos, fit_tokens=fit_tokens, source=reader)


def bytes_trained(config: StitchConfig, d: int, e: int, pairs: Sequence[LayerPair]) -> float:
    """Return the bytes of all φ that are trained together, with gradients, momenta and means, in float32."""
    if not config.trained or config.kind == "identity":
        return 0.0
    depths = {depth for _, depth in pairs}
    count = len(pairs) * (1 + len(config.lr_multiples) + config.controls) + config.floor * len(depths)
    of_map = 4.0 * (config.rank * (d + e) if config.kind == "low_rank" else d * e)
    return of_map * (count * (3 + momenta(config)) + len(pairs))


def bytes_of_moments(d: int, e: int, pairs: Sequence[LayerPair], maps: int = 0) -> float:
    """Return the bytes of Σ d² + Σ e² over layers and Σ d e over pairs, of both halves of the text, and of maps."""
    layers, depths = (len(set(side)) for side in zip(*pairs, strict=True))
    return 8.0 * (2 * (layers * d**2 + depths * e**2) + (2 + maps) * len(pairs) * d * e)


def _check_room(config: StitchConfig, d: int, e: int, pairs: Sequence[LayerPair], budget: Budget) -> None:
    trained, fewer = bytes_trained(config, d, e, pairs), "choose fewer layers"
    check_memory(f"stitches of {len(pairs)} layer pairs need", trained, budget, f"{fewer}, or stitch=low_rank")
    if config.has_closed_forms:
        remedy = fewer + (", stitch.controls=false" if config.controls else "")
        closed = bytes_of_moments(d, e, pairs, maps=3 if config.controls else 1)
        check_memory(f"closed forms of {len(pairs)} layer pairs need", closed, budget, remedy)


class ClosedForms:
    """The affine maps of all layer pairs of a setting in closed form, by the moments that another pass has gathered.

    Otherwise these are gathered when a map is first asked for.
    """

    def __init__(self, setting: Setting, moments: HalvedMoments | None = None):
        self.setting, self._known = setting, moments

    @cached_property
    def moments(self) -> HalvedMoments:
        """Statistics of both models' states."""
        if self._known:
            return self._known
        setting = self.setting
        return state_moments(*setting.models, setting.rows_of_closed_forms, setting.budget)

    def maps(self, kind: str, *, bias: bool = True) -> list[AffineMap]:
        """Return a closed form of every layer pair, fitted with or without a constant."""
        config = self.setting.config
        moments = self.moments
        fits = [(moments, pair) for pair in counted(self.setting.layer_pairs, "closed form")]
        if kind == "least_squares":
            return [closed_forms.least_squares(*fit, config.ridge, bias) for fit in fits]
        if kind == "reduced_rank":
            return [closed_forms.reduced_rank(*fit, config.rank, config.ridge, bias) for fit in fits]
        if kind == "procrustes":
            return [closed_forms.procrustes(*fit, bias=bias) for fit in fits]
        return [closed_forms.bias_only(*fit) for fit in fits]

    @cached_property
    def starts(self) -> list[AffineMap]:
        """The maps that training starts from; those of stitch=linear are fitted without a constant."""
        return self.maps(self.setting.config.init, bias=self.setting.config.kind != "linear")

    def read_by(self, fit: Fit) -> PairStatistics:
        """Return the statistics of the states that a stitch reads, of the source or of the target."""
        for pair in self.setting.layer_pairs:
            if fit.reads is self.setting.source and fit.layer == pair[0]:
                return self.moments.of(pair)
        return self.moments.of(next(pair for pair in self.setting.layer_pairs if fit.layer == pair[1])).reversed


class Statistics(NamedTuple):
    """What one pass over the text to fit on gathers of the states of both models."""

    moments: HalvedMoments | None  # of closed forms; None: the job has none
    means: TokenMeans  # the target's mean states, with controls also of pairs of tokens


def statistics_of(setting: Setting) -> Statistics:
    """Read the text to fit on for closed forms and for the mean states of tokens.

    The target reads what both need once, and the source reads what closed forms need.
    """
    source, target, pairs = setting.models
    fit = setting.corpus.fit
    report = setting.corpus.report
    tokens = fit.tokens
    depths = [depth for _, depth in pairs]
    kind = BigramMeans if setting.config.controls else TokenMeans
    means = kind(target, depths, tokens[:0], report.tokens)
    moments = None
    rows_read = 0
    if setting.config.has_closed_forms:
        rows = setting.rows_of_closed_forms
        moments = state_moments(source, target, pairs, rows, setting.budget, means)
        rows_read = len(rows.tokens)
    most_rows = max(MOST_TOKENS // fit.context, 1)
    means.read(target, tokens[rows_read : max(rows_read, most_rows)])
    free_cached_memory(target.device)
    return Statistics(moments, means)


@dataclass(frozen=True)
class Fitted:
    """The φ of every layer pair, and the stitches that were trained in the same pass, one per layer pair and name."""

    maps: StateMaps
    half: StateMaps | None = None  # the φs after half of the steps
    # lr_x3 at three times the rate, random_source from a source that was never trained, floor: the target into itself
    beside: Mapping[str, StateMaps] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)  # that the result keeps
    arrays: dict[str, np.ndarray] = field(default_factory=dict)  # learning curves


def _identity(model: FrozenModel, pairs: Sequence[LayerPair]) -> StateMaps:
    return [Stitch("identity", model.d_model, model.d_model)] * len(pairs)


def _warn_of_overfitting(module: StitchTraining, tokens: int, context: int) -> None:
    parameters = sum(weight.numel() for weight in module.stitches[0].parameters())
    seen = module.config.steps * whole_rows(module.config.tokens_per_step, context)
    if tokens < TOKENS_PER_PARAMETER * parameters:
        remedy = "give more text" if seen > tokens else "raise stitch.steps or stitch.tokens_per_step"
        log.warning(
            f"warning: {tokens:,} fit tokens are fewer than {TOKENS_PER_PARAMETER} per parameter of φ "
            f"({parameters:,}): expect overfitting; {remedy}"
        )
    if seen > 1.01 * tokens:
        log.warning("warning: training reads the fit tokens %.1f times over: there are no more", seen / tokens)


def _start(module: StitchTraining, known: Sequence[ClosedForms]) -> None:
    """Let stitches begin with a closed form; those of the target into itself begin with the identity."""
    starts: dict[Any, AffineMap] = {}
    for forms in known:
        starts |= {
            (forms.setting.source, *pair): each
            for pair, each in zip(forms.setting.layer_pairs, forms.starts, strict=True)
        }
    begun = [(number, starts.get(each[:3])) for number, each in enumerate(module.fits)]
    module.start_from([(number, start) for number, start in begun if start is not None])


def _train(module: StitchTraining, data: StepData, target: FrozenModel, run: Run, loggers: Sequence[Any]) -> None:
    rate, read = peak_rate(module.config, module.models[0].d_model), list(dict.fromkeys(f.reads for f in module.fits))
    log.info("%d stitches, %d steps, peak rate %g", len(module.stitches), module.config.steps, rate)
    with contextlib.ExitStack() as changed:
        for model in read:
            changed.enter_context(model.compiled(run.trainer.compile))
        for model in (*read, target):
            changed.enter_context(model.cast(run.trainer.precision == "bf16-mixed"))
        changed.enter_context(target.recomputed(run.trainer.recompute))
        fit(module, data, run, loggers)
    module.to(target.device).eval()


def _trained(forms: ClosedForms, run: Run, loggers: Sequence[Any], untrained: ClosedForms | None) -> Fitted:
    setting = forms.setting
    config, (source, target, pairs) = setting.config, setting.models
    beside = {f"lr_x{times:g}": [Fit(source, *pair, times) for pair in pairs] for times in config.lr_multiples}
    if untrained:
        beside["random_source"] = [Fit(untrained.setting.source, *pair) for pair in pairs]
    # a φ of a model into itself, from a layer to the same one, is a stitch of the target into itself already
    itself = {m: i for i, (l, m) in enumerate(pairs) if source is target and l == m}  # noqa: E741
    depths = sorted({depth for _, depth in pairs} - set(itself)) if config.floor else []
    beside["floor"] = [Fit(target, depth, depth) for depth in depths]
    rows, further = setting.corpus.fit, [each for fits in beside.values() for each in fits]
    options: dict[str, Any] = {"layout": rows.layout, "limits": run.trainer, "beside": further}
    module = StitchTraining(source, target, pairs, config, setting.seed, **options)
    _warn_of_overfitting(module, setting.corpus.counts["fit_tokens"], rows.context)
    if config.init != "identity":
        _start(module, [forms, *([untrained] if untrained else [])])
    if config.whiten:
        read = [untrained if untrained and each.reads is untrained.setting.source else forms for each in module.fits]
        module.whiten([own.read_by(each) for own, each in zip(read, module.fits, strict=True)])
    asked = config.tokens_per_step
    data = StepData(rows.packed(), asked, config.steps, setting.seed, rows.context, setting="stitch.tokens_per_step")
    _train(module, data, target, run, loggers)
    stitches = iter(module.stitches)
    own: list[Any] = list(islice(stitches, len(pairs)))
    done = {name: list(islice(stitches, len(fits))) for name, fits in beside.items()}
    into_itself = {depth: own[i] for depth, i in itself.items()} | dict(zip(depths, done.pop("floor"), strict=True))
    if config.floor:
        done["floor"] = [into_itself[depth] for _, depth in pairs]
    curves = module.curve.cpu().numpy()
    return Fitted(
        own,
        list(module.halfway),
        done,
        {name: weight.cpu().contiguous() for name, weight in nn.ModuleList(own).state_dict().items()},
        {"curve": curves[:, : len(pairs)], "curves_beside": curves[:, len(pairs) :]},
    )


def fitted(forms: ClosedForms, run: Run, loggers: Sequence[Any] = (), untrained: ClosedForms | None = None) -> Fitted:
    """Train the φ of every layer pair, or solve for them, and alike those of `untrained`, a source without training."""
    kind = forms.setting.config.kind
    if forms.setting.config.trained:
        return _trained(forms, run, loggers, untrained)
    if kind == "identity":
        return Fitted(_identity(forms.setting.source, forms.setting.layer_pairs))
    closed, parts = forms.maps(kind), ("weight", "bias")
    weights = {f"{i}.map.{part}": getattr(phi, part).cpu() for i, phi in enumerate(closed) for part in parts}
    beside = {"random_source": untrained.maps(kind)} if untrained else {}
    return Fitted(closed, beside=beside, weights=weights)


def _shuffled(phi: Any, seed: int) -> Callable[[Tensor], Tensor]:
    """Return φ on the states of other tokens of the batch."""

    def mapped(state: Tensor) -> Tensor:
        found = phi(state)
        rows = found.flatten(0, 1)
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
        return rows[order.to(rows.device)].view_as(found)

    return mapped


def reported(
    forms: ClosedForms,
    fits: Fitted,
    untrained: ClosedForms | None,
    again: Mapping[str, StateMaps],
    means: TokenMeans,
) -> dict[str, Tensor]:
    """Return sums by document of φ and its controls, see `document_sums`; `again` are the φs of further seeds."""
    setting = forms.setting
    maps: dict[str, StateMaps] = {"stitch": fits.maps, **again}
    if setting.equal_widths:
        maps["identity"] = _identity(setting.source, setting.layer_pairs)
    if fits.half:
        maps["half"] = fits.half
    maps |= {name: phis for name, phis in fits.beside.items() if name.startswith("lr_x")}
    if setting.config.controls:
        kinds = ["least_squares", *(["procrustes", "bias"] if setting.equal_widths else [])]
        maps |= {kind: forms.maps(kind) for kind in kinds}
        maps["shuffled"] = [_shuffled(phi, setting.seed) for phi in fits.maps]
    target, floor = setting.target, fits.beside.get("floor")
    is_itself, as_it_is = floor == fits.maps, _identity(target, setting.layer_pairs)
    controls = {"floor": Control(target, floor, "target")} if floor and not is_itself else {}
    controls["token_mean"] = Control(means.tokens, as_it_is, "target")
    if setting.config.controls:
        controls["bigram_mean"] = Control(means, as_it_is, "target")
    if untrained:
        phis = fits.beside.get("random_source") or untrained.maps("least_squares")
        controls["random_source"] = Control(untrained.setting.source, phis, "source")
    rows = setting.corpus.report
    free_cached_memory(target.device)
    batch = largest_report_batch(*setting.models, rows, setting.budget, has_controls=True)
    sums = document_sums(*setting.models, maps, rows, *batch, controls=controls)
    return sums | {"floor": sums["stitch"]} if is_itself else sums  # the target is stitched into itself anyway


def rungs(setting: Setting, sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the losses by document of the target rounded to some bits: `rung_4`, and those around each penalty.

    Weights that are integers already, or on several devices, have no rungs.
    """
    target = setting.target
    if setting.ruler is None or not can_be_rounded(target):
        return {}
    tokens, found = sums["tokens"].sum(), dict[str, Tensor]()
    gains = ((sums["target"] - sums["stitch"]).sum(-1) / tokens).clamp(max=0).tolist()
    known: dict[int, list[float]] = {}
    while bits := next_rung(gains, known):
        log.info("%s at %d bits", target.name, bits)
        with doing(f"rounding to {bits} bits"):
            copy = rounded(target, bits)
        loss = target_losses(copy, setting.corpus.report)
        del copy  # before the next
        known[bits] = [min(float((sums["target"] - loss).sum() / tokens), -LEAST)] * len(gains)
        found[f"rung_{bits}"] = loss
    return found
