"""Fits the stitches of all layer pairs, with the controls beside them, and makes the table of their penalties."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from thinkalike.evaluation.language import ends_of, with_ends
from thinkalike.evaluation.stitches import BITS, Maps, Reader, bits_columns, bytes_by_document, readable_bytes
from thinkalike.evaluation.token_means import BigramMeans
from thinkalike.instruments.stitching.setting import Setting
from thinkalike.measures.bootstrapping import documents_and_seeds_interval
from thinkalike.measures.closed_forms import PairStatistics
from thinkalike.models.frozen import FrozenModel
from thinkalike.stitches.stitch import Stitch
from thinkalike.training.optimizers import peak_rate
from thinkalike.training.run import Run, fit
from thinkalike.training.steps import StepData
from thinkalike.training.stitching import Fit, StitchTraining

log = logging.getLogger(__name__)

TOKENS_PER_PARAMETER = 20  # of φ; with fewer fit tokens it overfits


@dataclass(frozen=True)
class Fitted:
    """The φ of every layer pair, and the stitches that were trained in the same pass, one per layer pair and name.

    These are rate_3 at three times the rate, random_source from a source that was never trained, and floor from the
    target into itself.
    """

    maps: Maps
    half: Maps | None = None  # the φs after half of the steps
    beside: Mapping[str, Maps] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)  # that the result keeps
    arrays: dict[str, np.ndarray] = field(default_factory=dict)  # learning curves
    speed: dict[str, float] = field(default_factory=dict)  # operations of the training, and how fast they were


def fitted(setting: Setting, run: Run, loggers: Sequence[Any], untrained: Setting | None = None) -> Fitted:
    """Train the φ of every layer pair, or solve for them.

    The stitches of `untrained`, the same setting with a source that was never trained, are fitted alike.
    """
    kind = setting.config.kind
    if setting.config.trained:
        return _trained(setting, run, loggers, untrained)
    if kind == "identity":
        return Fitted(setting.identity())
    closed, parts = setting.closed_forms(kind), ("weight", "bias")
    weights = {f"{i}.map.{part}": getattr(phi, part).cpu() for i, phi in enumerate(closed) for part in parts}
    beside = {"random_source": untrained.closed_forms(kind)} if untrained else {}
    return Fitted(closed, beside=beside, weights=weights)


def _trained(setting: Setting, run: Run, loggers: Sequence[Any], untrained: Setting | None) -> Fitted:
    config, pairs, target = setting.config, setting.layer_pairs, setting.target
    beside = {f"rate_{rate:g}": [Fit(setting.source, *pair, rate) for pair in pairs] for rate in config.rates}
    if untrained:
        beside["random_source"] = [Fit(untrained.source, *pair) for pair in pairs]
    # a φ of a model into itself, from a layer to the same one, is a stitch of the target into itself already
    itself = {m: i for i, (l, m) in enumerate(pairs) if setting.source is target and l == m}  # noqa: E741
    depths = sorted({depth for _, depth in pairs} - set(itself)) if config.floor else []
    beside["floor"] = [Fit(target, depth, depth) for depth in depths]
    rows, further = setting.corpus.fit, [each for fits in beside.values() for each in fits]
    given = (setting.source, target, pairs, config, setting.seed)
    module = StitchTraining(*given, layout=rows.layout, limits=run.trainer, beside=further)
    _warn_of_overfitting(module, setting.corpus.counts["fit_tokens"])
    _start(module, setting, untrained)
    if config.whiten:
        module.whiten([_of_source(each, setting, untrained) for each in module.fits])
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


def _start(module: StitchTraining, setting: Setting, untrained: Setting | None) -> None:
    """Let stitches begin with a closed form; those of the target into itself begin with the identity."""
    if setting.config.init == "identity":
        return
    starts = {
        (each.source, *pair): start
        for each in (setting, untrained)
        if each
        for pair, start in zip(each.layer_pairs, each.starts, strict=True)
    }
    begun = [(number, starts.get(each[:3])) for number, each in enumerate(module.fits)]
    module.start_from([(number, start) for number, start in begun if start is not None])


def _of_source(fit: Fit, setting: Setting, untrained: Setting | None) -> PairStatistics:
    """Return the statistics of the states that a stitch reads."""
    own = untrained if untrained and fit.reads is untrained.source else setting
    for pair in own.layer_pairs:
        if fit.reads is own.source and fit.layer == pair[0]:
            return own.moments.of(pair)
    return own.moments.of(next(pair for pair in own.layer_pairs if fit.layer == pair[1])).reversed


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


def reported(
    setting: Setting, fits: Fitted, untrained: Setting | None, again: Mapping[str, Maps], means: BigramMeans
) -> dict[str, Tensor]:
    """Return sums by document of φ and its controls, see `document_sums`; `again` are the φs of further seeds."""
    config = setting.config
    maps: dict[str, Maps] = {"stitch": fits.maps, **again}
    if setting.equal_widths:
        maps["identity"] = setting.identity()
    if fits.half:
        maps["half"] = fits.half
    maps |= {name: phis for name, phis in fits.beside.items() if name.startswith("rate_")}
    if config.controls:
        kinds = ["least_squares", *(["procrustes", "bias"] if setting.equal_widths else [])]
        maps |= {kind: setting.closed_forms(kind) for kind in kinds}
        maps["shuffled"] = [_Shuffled(phi, setting.seed) for phi in fits.maps]
    readers, floor = _readers(setting, fits, untrained, means), fits.beside.get("floor")
    if floor == fits.maps:  # the target is stitched into itself anyway
        sums = setting.sums(maps, readers)
        return sums | {"floor": sums["stitch"]}
    return setting.sums(maps, {"floor": Reader(setting.target, floor, "target"), **readers} if floor else readers)


def _readers(setting: Setting, fits: Fitted, untrained: Setting | None, bigrams: BigramMeans) -> dict[str, Reader]:
    """Return the maps of mean states of tokens and of an untrained source's states."""
    depths = [depth for _, depth in setting.layer_pairs]
    as_they_are = [Stitch("identity", setting.target.d_model, setting.target.d_model)] * len(depths)
    readers = {"token_mean": bigrams.tokens, "bigram_mean": bigrams}
    found = {name: Reader(means, as_they_are, "target") for name, means in readers.items()}
    if untrained:
        maps = fits.beside.get("random_source") or untrained.closed_forms("least_squares")
        found["random_source"] = Reader(untrained.source, maps, "source")
    return found


class _Shuffled:
    """φ on the states of other tokens of the batch."""

    def __init__(self, phi: Any, seed: int):
        self.phi, self.seed = phi, seed

    def __call__(self, state: Tensor) -> Tensor:
        mapped = self.phi(state)
        rows = mapped.flatten(0, 1)
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(self.seed))
        return rows[order.to(rows.device)].view_as(mapped)


BESIDE = (
    "identity", "floor", "token_mean", "bigram_mean",
    "least_squares", "procrustes", "bias", "shuffled", "random_source",
)  # fmt: skip
SPREADS = {
    "kl": "kl", "top1": "top1_agreement", "distance": "distance",
    "penultimate": "penultimate_distance", "norm": "norm_ratio",
}  # fmt: skip


def penalties(setting: Setting, sums: dict[str, Tensor]) -> pd.DataFrame:
    """Return one row per layer pair: losses and penalties in nats per token, and the other means of `document_sums`.

    Each has `_low` and `_high`, the ends of its 95 % interval over documents, and, for φ with several seeds, over
    seeds.

    Args:
        sums: of `document_sums` and, where tokenizers differ, `document_bytes`.
    """
    counts, aligned = sums["tokens"], "target_bytes" in sums
    seeds = torch.stack([each for name, each in sums.items() if name == "stitch" or name[:5] == "seed_"], 1)
    columns: dict[str, Any] = {**setting.columns(), "stitch": setting.config.kind}
    columns |= ends_of("stitching_loss", documents_and_seeds_interval(seeds, counts))
    columns |= with_ends("target_loss", sums["target"], counts)
    columns |= with_ends("source_loss", sums["source"], sums.get("source_tokens", counts))
    columns |= ends_of("penalty", documents_and_seeds_interval(seeds - sums["target"], counts))
    for name in (*BESIDE, *(each for each in sums if each.startswith("rate_"))):
        if name in sums:
            columns |= with_ends(f"{name}_penalty", sums[name] - sums["target"], counts)
    rows, text = setting.corpus.report, sums.get("target_bytes")
    if text is None:
        text = bytes_by_document(setting.source.tokenizer, rows.tokens, rows.documents)
    columns |= ends_of("bits_per_byte", documents_and_seeds_interval(seeds * BITS, readable_bytes(text).double()))
    for name, column in SPREADS.items():
        columns |= with_ends(column, sums[name], counts)
    if "half" in sums:  # what three times the steps gain, if every doubling gains what the last one did
        columns |= with_ends("left_to_gain", math.log2(3) * (sums["half"] - sums["stitch"]), counts)
    return pd.DataFrame(columns | (bits_columns(sums) if aligned else {}))
