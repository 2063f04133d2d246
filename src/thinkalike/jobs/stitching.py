"""task=stitch: fit φ at every chosen pair of layers between two frozen models, and report what it costs."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from thinkalike import figures
from thinkalike.config import StitchConfig, TrainConfig
from thinkalike.data import Corpus, text_fingerprint
from thinkalike.errors import ConfigError
from thinkalike.jobs.steps import BATCH_TOKENS, finished, held, placed, prepare, provenance, read_corpus, settings_of
from thinkalike.jobs.table import byte_count, penalties, show, warn_of_far_states
from thinkalike.measures import (
    AffineMap,
    Moments,
    Stitch,
    bias_only,
    least_squares,
    procrustes,
    reduced_rank,
)
from thinkalike.models import FrozenModel, checkpoint_fingerprint, load_model, randomised, same_vocabulary
from thinkalike.store import Job, key_of
from thinkalike.training import (
    Maps,
    Pair,
    Run,
    StitchTraining,
    document_sums,
    fit,
    logged,
    peak_rate,
    state_moments,
    upload,
)

log = logging.getLogger(__name__)

TOKENS_PER_PARAMETER = 20  # of φ; with fewer fit tokens than that it overfits
CONTROL_TOKENS = 2**18  # that the closed forms of controls and starts are fitted on


@dataclass(frozen=True)
class _Setting:
    """What a job works with: two models, the pairs of layers, text, and statistics for closed forms if it needs any."""

    config: StitchConfig
    seed: int
    source: FrozenModel
    target: FrozenModel
    pairs: Sequence[Pair]
    corpus: Corpus
    moments: Moments | None

    @property
    def equal_widths(self) -> bool:
        return self.source.d_model == self.target.d_model

    def identity(self) -> Maps:
        return [Stitch("identity", self.source.d_model, self.target.d_model)] * len(self.pairs)

    def closed_forms(self, kind: str) -> list[AffineMap]:
        assert self.moments is not None
        return [_closed_form(kind, self.moments, pair, self.config) for pair in self.pairs]

    def sums(self, maps: Mapping[str, Maps], source: FrozenModel | None = None) -> dict[str, Tensor]:
        """Losses by document of all maps on the report's rows."""
        rows = self.corpus.report
        batch = _rows_at_once(self.corpus)
        return document_sums(source or self.source, self.target, self.pairs, maps, rows.tokens, rows.documents, batch)


def stitch(config: TrainConfig) -> Path:
    """Stitch `model` to `target` at `layers`; leaves table, stitches, learning curves and figure."""
    settings = settings_of(config, "model", "target", "data", "layers", "stitch")
    digests = {
        "data": text_fingerprint(config.data),
        "model": checkpoint_fingerprint(config.model),
        "target": checkpoint_fingerprint(config.target),
    }
    job = Job(config.store, "stitching", key_of(settings, digests), settings)
    if finished(job, config.force):
        return job.folder
    with held(job, config.trainer) as partial:
        prepare(config.seed, config.trainer.threads)
        setting = _set(config)
        source, target, corpus = setting.source, setting.target, setting.corpus
        name = f"{source.name} to {target.name}, {config.stitch.kind}"
        run = Run(name, partial, job.store, target.device, config.trainer, config.logger, settings)
        with logged(run) as loggers:
            fitted = _fit(setting, run, loggers)
            sums = _report(setting, fitted.maps)
            text_bytes = byte_count(source.tokenizer, corpus.report.tokens)
            table = penalties(config.stitch.kind, source.name, target.name, setting.pairs, sums, text_bytes)
            _save(job.out(), setting, fitted.weights, table)
            upload(loggers, table, job.out(), name)
        show(table, corpus)
        warn_of_far_states(table)
        scalars = {"mean_penalty": float(table["penalty"].mean()), "worst_penalty": float(table["penalty"].max())}
        arrays = fitted.arrays | {name: value.numpy() for name, value in sums.items()}
        return job.finish(scalars, table, provenance(config, corpus.facts(), source, target), arrays)


def _set(config: TrainConfig) -> _Setting:
    """Load models and text, and check that they go together."""
    source = load_model(placed(config.model, config.trainer))
    target = source if config.target == config.model else load_model(placed(config.target, config.trainer))
    same_vocabulary(source, target)
    _check_widths(config.stitch, source, target)
    pairs = layer_pairs(config.layers, source.n_layers, target.n_layers)
    corpus = _corpus(config, source, target)
    moments = _moments(config.stitch, source, target, pairs, corpus)
    return _Setting(config.stitch, config.seed, source, target, pairs, corpus, moments)


def _rows_at_once(corpus: Corpus) -> int:
    return max(BATCH_TOKENS // corpus.fit.tokens.shape[1], 1)


def _report(setting: _Setting, phis: Maps) -> dict[str, Tensor]:
    """Sums by document of φ, of the identity where widths match, and of the controls if asked."""
    maps: dict[str, Maps] = {"stitch": phis}
    if setting.equal_widths:
        maps["identity"] = setting.identity()
    if setting.config.controls:
        maps |= _controls(setting, phis)
    sums = setting.sums(maps)
    if setting.config.controls:
        sums["random_source"] = _random_source(setting)
    return sums


def _save(folder: Path, setting: _Setting, weights: dict[str, Tensor], table: Any) -> None:
    if weights:
        facts = {"pairs": setting.pairs, "kind": setting.config.kind, "norm": setting.config.norm}
        metadata = {"stitch": json.dumps(facts)}  # one entry: the order of several is not kept
        save_file(weights, folder / "stitch.safetensors", metadata=metadata)
    figures.stitches(table, folder / "figures")


class _Fitted(NamedTuple):
    """The φ of every pair, what of them is kept, and the learning curves."""

    maps: Maps
    weights: dict[str, Tensor]
    arrays: dict[str, np.ndarray]


def _fit(setting: _Setting, run: Run, loggers: Sequence[Any]) -> _Fitted:
    config, source, target, pairs = setting.config, setting.source, setting.target, setting.pairs
    if not config.trained and config.kind == "identity":
        return _Fitted(setting.identity(), {}, {})
    if not config.trained:
        closed = setting.closed_forms(config.kind)
        parts = ("weight", "bias")
        weights = {f"{i}.map.{part}": getattr(phi, part).cpu() for i, phi in enumerate(closed) for part in parts}
        return _Fitted(closed, weights, {})
    module = StitchTraining(source, target, pairs, setting.corpus.fit.tokens, config, setting.seed)
    _warn_of_overfitting(module, setting.corpus)
    if config.init != "identity":
        for phi, start in zip(module.stitches, setting.closed_forms(config.init), strict=True):
            phi.start_from(start.weight, start.bias)  # type: ignore[operator]
    log.info("%d stitches, %d steps, peak rate %g", len(pairs), config.steps, peak_rate(config))
    with source.compiled(run.trainer.compile), target.compiled(run.trainer.compile and target is not source):
        fit(module, run, loggers)
    module.to(target.device).eval()
    weights = {name: weight.cpu().contiguous() for name, weight in module.stitches.state_dict().items()}
    return _Fitted(list(module.stitches), weights, {"curve": module.curve.cpu().numpy()})


def layer_pairs(layers: Any, source_layers: int, target_layers: int) -> list[tuple[int, int]]:
    """The pairs (source layer, target layer) that `layers=` means.

    Raises:
        ConfigError: it is neither same, all, nor a list of pairs of layers that exist.
    """
    if layers == "same":
        return [(layer, layer) for layer in range(min(source_layers, target_layers))]
    if layers == "all":
        return list(itertools.product(range(source_layers), range(target_layers)))
    wellformed = isinstance(layers, list) and layers and all(_is_pair(pair) for pair in layers)
    if not wellformed:
        raise ConfigError(f"layers={layers} is not known; give same, all, or a list of pairs such as [[0,0],[1,2]]")
    pairs = [(pair[0], pair[1]) for pair in layers]
    for layer, depth in pairs:
        if not (0 <= layer < source_layers and 0 <= depth < target_layers):
            raise ConfigError(
                f"layers: [{layer},{depth}] is out of range; the source has layers 0 to {source_layers - 1}, "
                f"the target 0 to {target_layers - 1}"
            )
    return pairs


def _is_pair(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == 2 and all(isinstance(layer, int) for layer in value)


def _check_widths(config: StitchConfig, source: FrozenModel, target: FrozenModel) -> None:
    widths = f"{source.name} has {source.d_model}, {target.name} {target.d_model}"
    if config.kind in ("identity", "orthogonal", "bias") and source.d_model != target.d_model:
        raise ConfigError(f"stitch={config.kind} needs equal widths, and {widths}; use stitch=linear")
    if "procrustes" in (config.kind, config.init) and source.d_model > target.d_model:
        raise ConfigError(f"procrustes keeps lengths, so it cannot go to a smaller width: {widths}")
    limited = {"low_rank", "reduced_rank"} & {config.kind, config.init}
    if limited and config.rank > min(source.d_model, target.d_model):
        raise ConfigError(f"stitch.rank={config.rank} is more than the smaller width: {widths}")


def _corpus(config: TrainConfig, source: FrozenModel, target: FrozenModel) -> Corpus:
    needed = config.stitch.steps * config.stitch.tokens_per_step
    context = min(source.context, target.context)
    return read_corpus(config.data, source.tokenizer, context, bos=source.bos_each_row, fit_tokens=max(needed, 1))


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
    config: StitchConfig, source: FrozenModel, target: FrozenModel, pairs: Sequence[Pair], corpus: Corpus
) -> Moments | None:
    """Statistics for the closed forms that this job needs, if any."""
    closed = not config.trained and config.kind != "identity"
    if not (closed or config.controls or config.init != "identity"):
        return None
    rows = corpus.fit.tokens
    rows = rows if closed else rows[: CONTROL_TOKENS // rows.shape[1]]
    return state_moments(source, target, pairs, rows, _rows_at_once(corpus))


def _closed_form(kind: str, moments: Moments, pair: Pair, config: StitchConfig) -> AffineMap:
    if kind == "least_squares":
        return least_squares(moments, pair, config.ridge)
    if kind == "reduced_rank":
        return reduced_rank(moments, pair, config.rank, config.ridge)
    return {"procrustes": procrustes, "bias": bias_only}[kind](moments, pair)


def _controls(setting: _Setting, phis: Maps) -> dict[str, Maps]:
    """What φ has to beat: closed forms, a mere shift, and itself on the states of other tokens."""
    kinds = ["least_squares", *(["procrustes", "bias"] if setting.equal_widths else [])]
    found: dict[str, Maps] = {kind: setting.closed_forms(kind) for kind in kinds}
    found["shuffled"] = [_Shuffled(phi, setting.seed) for phi in phis]
    return found


class _Shuffled:
    """φ on the states of other tokens of the batch: what is left when the source says nothing of the token."""

    def __init__(self, phi: Any, seed: int):
        self.phi, self.seed = phi, seed

    def __call__(self, state: Tensor) -> Tensor:
        mapped = self.phi(state)
        rows = mapped.flatten(0, 1)
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(self.seed))
        return rows[order.to(rows.device)].view_as(mapped)


def _random_source(setting: _Setting) -> Tensor:
    """Loss by document of least squares from a source that was never trained."""
    untrained = randomised(setting.source, setting.seed)
    moments = _moments(setting.config, untrained, setting.target, setting.pairs, setting.corpus)
    maps = replace(setting, moments=moments).closed_forms("least_squares")
    return setting.sums({"random_source": maps}, untrained)["random_source"]
