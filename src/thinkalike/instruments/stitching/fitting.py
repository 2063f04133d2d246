"""Fits the stitches of all layer pairs with the controls beside them, and sums by document what they lose."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from thinkalike.evaluation.language import Maps, Reader, document_sums, report_share, rows_at_once
from thinkalike.evaluation.likeness import TOKENS, Likeness, in_parts, likeness_of
from thinkalike.evaluation.maps import residual_sums, rows_of_moments, state_moments
from thinkalike.evaluation.tokens import MOST_TOKENS, BigramMeans
from thinkalike.instruments.stitching.setting import Setting
from thinkalike.measures import bias_only, least_squares, procrustes, reduced_rank
from thinkalike.measures.closed_forms import AffineMap, BothDirections, Moments, PairStatistics
from thinkalike.models.frozen import FrozenModel
from thinkalike.stitches.stitch import Stitch
from thinkalike.training.optimizers import peak_rate
from thinkalike.training.run import Run, fit
from thinkalike.training.steps import StepData
from thinkalike.training.stitching import Fit, StitchTraining

log = logging.getLogger(__name__)

TOKENS_PER_PARAMETER = 20  # of φ; with fewer fit tokens it overfits
CONTROL_TOKENS = 2**16  # that the closed forms of controls and starts are fitted on


class ClosedForms:
    """The affine maps of all layer pairs of a setting in closed form.

    The moments of both models' states are of all rows to fit on if φ itself is a closed form, and of `CONTROL_TOKENS`
    if closed forms are controls and starts alone. They are gathered when a map is first asked for.

    Args:
        moments: where another pass has gathered them.
    """

    def __init__(self, setting: Setting, moments: Moments | None = None):
        self.setting, self._known = setting, moments

    @cached_property
    def moments(self) -> Moments:
        """Statistics of both models' states."""
        if self._known:
            return self._known
        setting, fit = self.setting, self.setting.corpus.fit
        rows = fit.tokens[: CONTROL_TOKENS // fit.context] if only_beside(setting) else fit.tokens
        models = setting.source, setting.target, setting.layer_pairs
        return state_moments(*models, rows, self.rows_at_once(rows), layout=fit.layout)

    def rows_at_once(self, rows: Tensor) -> int:
        """Return how many rows fit into memory, with the states of all layers in float64."""
        setting, layout = self.setting, self.setting.corpus.fit.layout
        models, most = (setting.source, setting.target, setting.layer_pairs), rows_at_once(setting.corpus)
        return rows_of_moments(*models, rows, most, setting.budget, layout)

    def maps(self, kind: str, *, bias: bool = True) -> list[AffineMap]:
        """Return a closed form of every layer pair, fitted with or without a constant."""
        config, fits = self.setting.config, [(self.moments, pair) for pair in self.setting.layer_pairs]
        if kind == "least_squares":
            return [least_squares(*fit, config.ridge, bias) for fit in fits]
        if kind == "reduced_rank":
            return [reduced_rank(*fit, config.rank, config.ridge, bias) for fit in fits]
        return [procrustes(*fit, bias=bias) if kind == "procrustes" else bias_only(*fit) for fit in fits]

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


def only_beside(setting: Setting) -> bool:
    """Return whether closed forms are controls and starts alone."""
    return setting.config.trained or setting.config.kind == "identity"


class Compared(NamedTuple):
    """How alike the states of both models are, and what the same pass over the text gathers."""

    likeness: Likeness
    moments: Moments | None  # of closed forms, unless these are of more text
    means: BigramMeans  # the target's mean states of tokens and of pairs of tokens


def compared(setting: Setting) -> Compared:
    """Compare the states of both models at every layer pair.

    Where the states of all layer pairs do not fit into memory at once, the text is read again for the next of them, and
    once more for the rest.
    """
    source, target, pairs, corpus = setting.source, setting.target, setting.layer_pairs, setting.corpus
    fit, report, depths = corpus.fit, corpus.report, sorted({depth for _, depth in pairs})
    tokens, moments = fit.layout.target_tokens(fit.tokens), Moments(pairs)
    means = BigramMeans(target, depths, tokens[:0], report.layout.target_tokens(report.tokens))
    read = 0

    def seen(rows: Tensor, mine: dict[int, Tensor], theirs: dict[int, Tensor]) -> None:
        nonlocal read
        read += len(rows)
        moments.update(*({layer: each.flatten(0, 1) for layer, each in own.items()} for own in (mine, theirs)))
        means.update(fit.layout.target_tokens(rows), [theirs[depth] for depth in depths])

    longest = min(max(fit.tokens.numel(), report.documents.numel()), TOKENS)
    parts = in_parts(pairs, source.d_model, target.d_model, longest, setting.budget.room)
    given = [seen] if len(parts) == 1 else []
    alike = Likeness.joined([likeness_of(source, target, part, fit, report, *given) for part in parts])
    means.read(target, tokens[read : max(read, MOST_TOKENS // fit.context)])
    return Compared(alike, moments if read and only_beside(setting) else None, means)


@dataclass(frozen=True)
class Fitted:
    """The φ of every layer pair, and the stitches that were trained in the same pass, one per layer pair and name.

    These are lr_x3 at three times the rate, random_source from a source that was never trained, and floor from the
    target into itself.
    """

    maps: Maps
    half: Maps | None = None  # the φs after half of the steps
    beside: Mapping[str, Maps] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)  # that the result keeps
    arrays: dict[str, np.ndarray] = field(default_factory=dict)  # learning curves
    speed: dict[str, float] = field(default_factory=dict)  # operations of the training, and how fast they were


def _identity(setting: Setting) -> Maps:
    return [Stitch("identity", setting.source.d_model, setting.target.d_model)] * len(setting.layer_pairs)


def _warn_of_overfitting(module: StitchTraining, tokens: int) -> None:
    parameters = sum(weight.numel() for weight in module.stitches[0].parameters())
    seen = module.config.steps * module.config.tokens_per_step
    if tokens < TOKENS_PER_PARAMETER * parameters:
        remedy = "give more text" if seen > tokens else "raise stitch.steps or stitch.tokens_per_step"
        log.warning(
            f"warning: {tokens:,} fit tokens are fewer than {TOKENS_PER_PARAMETER} per parameter of φ "
            f"({parameters:,}): expect overfitting; {remedy}"
        )
    if seen > 1.01 * tokens:
        log.warning("warning: training reads the fit tokens %.1f times over: there are no more", seen / tokens)


def _start(module: StitchTraining, forms: ClosedForms, untrained: ClosedForms | None) -> None:
    """Let stitches begin with a closed form; those of the target into itself begin with the identity."""
    if forms.setting.config.init == "identity":
        return
    starts = {
        (each.setting.source, *pair): start
        for each in (forms, untrained)
        if each
        for pair, start in zip(each.setting.layer_pairs, each.starts, strict=True)
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
    config, pairs, target = setting.config, setting.layer_pairs, setting.target
    beside = {f"lr_x{times:g}": [Fit(setting.source, *pair, times) for pair in pairs] for times in config.lr_multiples}
    if untrained:
        beside["random_source"] = [Fit(untrained.setting.source, *pair) for pair in pairs]
    # a φ of a model into itself, from a layer to the same one, is a stitch of the target into itself already
    itself = {m: i for i, (l, m) in enumerate(pairs) if setting.source is target and l == m}  # noqa: E741
    depths = sorted({depth for _, depth in pairs} - set(itself)) if config.floor else []
    beside["floor"] = [Fit(target, depth, depth) for depth in depths]
    rows, further = setting.corpus.fit, [each for fits in beside.values() for each in fits]
    given = (setting.source, target, pairs, config, setting.seed)
    module = StitchTraining(*given, layout=rows.layout, limits=run.trainer, beside=further)
    _warn_of_overfitting(module, setting.corpus.counts["fit_tokens"])
    _start(module, forms, untrained)
    if config.whiten:
        read = [untrained if untrained and each.reads is untrained.setting.source else forms for each in module.fits]
        module.whiten([own.read_by(each) for own, each in zip(read, module.fits, strict=True)])
    data = StepData(rows.tokens, config.tokens_per_step, config.steps, setting.seed, rows.context)
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
        module.speed(),
    )


def fitted(forms: ClosedForms, run: Run, loggers: Sequence[Any] = (), untrained: ClosedForms | None = None) -> Fitted:
    """Train the φ of every layer pair, or solve for them.

    The stitches of `untrained`, of the same setting with a source that was never trained, are fitted alike.
    """
    kind = forms.setting.config.kind
    if forms.setting.config.trained:
        return _trained(forms, run, loggers, untrained)
    if kind == "identity":
        return Fitted(_identity(forms.setting))
    closed, parts = forms.maps(kind), ("weight", "bias")
    weights = {f"{i}.map.{part}": getattr(phi, part).cpu() for i, phi in enumerate(closed) for part in parts}
    beside = {"random_source": untrained.maps(kind)} if untrained else {}
    return Fitted(closed, beside=beside, weights=weights)


class _Shuffled:
    """φ on the states of other tokens of the batch."""

    def __init__(self, phi: Any, seed: int):
        self.phi, self.seed = phi, seed

    def __call__(self, state: Tensor) -> Tensor:
        mapped = self.phi(state)
        rows = mapped.flatten(0, 1)
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(self.seed))
        return rows[order.to(rows.device)].view_as(mapped)


def _readers(setting: Setting, fits: Fitted, untrained: ClosedForms | None, bigrams: BigramMeans) -> dict[str, Reader]:
    """Return the maps of mean states of tokens and of an untrained source's states."""
    depths = [depth for _, depth in setting.layer_pairs]
    as_they_are = [Stitch("identity", setting.target.d_model, setting.target.d_model)] * len(depths)
    readers = {"token_mean": bigrams.tokens, "bigram_mean": bigrams}
    found = {name: Reader(means, as_they_are, "target") for name, means in readers.items()}
    if untrained:
        maps = fits.beside.get("random_source") or untrained.maps("least_squares")
        found["random_source"] = Reader(untrained.setting.source, maps, "source")
    return found


def sums_by_document(
    setting: Setting, maps: Mapping[str, Maps], readers: Mapping[str, Reader] | None = None
) -> dict[str, Tensor]:
    """Return losses by document of all maps on the report's rows, as much of it at a time as memory allows."""
    rows, readers = setting.corpus.report, readers or {}
    models, layout = (setting.source, setting.target, setting.layer_pairs), rows.layout
    most = rows_at_once(setting.corpus)
    at_once = report_share(*models, rows.tokens, most, setting.budget, layout, others=bool(readers))
    return document_sums(*models, maps, rows.tokens, rows.documents, *at_once, layout=layout, readers=readers)


def unexplained(forms: ClosedForms, there: Mapping[str, Tensor], back: Mapping[str, Tensor]) -> dict[str, list[float]]:
    """Return what maps in both directions leave unexplained of the report's states, see `ResidualSums.columns`.

    Args:
        forms: of the direction there, whose moments the maps were fitted on.
        there, back: the weights of the maps, as results keep them.
    """
    setting, rows = forms.setting, forms.setting.corpus.report

    def fitted_map(weights: Mapping[str, Tensor], number: int) -> AffineMap:
        parts = (weights[f"{number}.map.{part}"] for part in ("weight", "bias"))
        return AffineMap(*(part.to(setting.target.device).double() for part in parts))

    numbers = range(len(setting.layer_pairs))
    maps = [BothDirections(fitted_map(there, number), fitted_map(back, number)) for number in numbers]
    models = setting.source, setting.target, setting.layer_pairs
    return residual_sums(*models, maps, forms.moments, rows, forms.rows_at_once(rows.tokens)).columns()


def reported(
    forms: ClosedForms, fits: Fitted, untrained: ClosedForms | None, again: Mapping[str, Maps], means: BigramMeans
) -> dict[str, Tensor]:
    """Return sums by document of φ and its controls, see `document_sums`; `again` are the φs of further seeds."""
    setting = forms.setting
    maps: dict[str, Maps] = {"stitch": fits.maps, **again}
    if setting.equal_widths:
        maps["identity"] = _identity(setting)
    if fits.half:
        maps["half"] = fits.half
    maps |= {name: phis for name, phis in fits.beside.items() if name.startswith("lr_x")}
    if setting.config.controls:
        kinds = ["least_squares", *(["procrustes", "bias"] if setting.equal_widths else [])]
        maps |= {kind: forms.maps(kind) for kind in kinds}
        maps["shuffled"] = [_Shuffled(phi, setting.seed) for phi in fits.maps]
    readers, floor = _readers(setting, fits, untrained, means), fits.beside.get("floor")
    if floor == fits.maps:  # the target is stitched into itself anyway
        sums = sums_by_document(setting, maps, readers)
        return sums | {"floor": sums["stitch"]}
    readers = {"floor": Reader(setting.target, floor, "target"), **readers} if floor else readers
    return sums_by_document(setting, maps, readers)
