"""task=stitch: fit φ at every chosen pair of layers between two frozen models, and report what it costs."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from thinkalike import figures
from thinkalike.config import StitchConfig, TrainConfig, as_dict
from thinkalike.data import Corpus, identity
from thinkalike.errors import ConfigError
from thinkalike.jobs.steps import BATCH_TOKENS, finished, prepare, provenance, read_corpus
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
from thinkalike.models import FrozenModel, content, load_model, randomised, same_vocabulary
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


def stitch(config: TrainConfig) -> Path:
    """Stitch `model` to `target` at `layers`; leaves table, stitches, learning curves and figure."""
    settings = as_dict(config) | {"pretrain": None}
    digests = {"data": identity(config.data), "model": content(config.model), "target": content(config.target)}
    job = Job(config.store, "stitching", key_of(settings, digests), settings)
    if finished(job, config.force):
        return job.folder
    with job.running() as partial:
        prepare(config.seed, config.trainer.threads)
        source = load_model(config.model)
        target = source if config.target == config.model else load_model(config.target)
        pairs = _checked_pairs(config, source, target)
        corpus = _corpus(config, source, target)
        batch = max(BATCH_TOKENS // corpus.fit.tokens.shape[1], 1)
        moments = _moments(config.stitch, source, target, pairs, corpus, batch)
        name = f"{source.name} to {target.name}, {config.stitch.kind}"
        run = Run(name, partial, target.device, config.trainer, config.logger, settings)
        with logged(run) as loggers:
            fitted = _fit(config, source, target, pairs, corpus, moments, run, loggers)
            sums = _report(config, source, target, pairs, corpus, moments, fitted.maps, batch)
            text_bytes = byte_count(source.tokenizer, corpus.report.tokens)
            table = penalties(config.stitch.kind, source.name, target.name, pairs, sums, text_bytes)
            _save(job.out(), config, pairs, fitted.weights, table)
            upload(loggers, table, job.out(), name)
        show(table, corpus)
        warn_of_far_states(table)
        scalars = {"mean_penalty": float(table["penalty"].mean()), "worst_penalty": float(table["penalty"].max())}
        arrays = fitted.arrays | {name: value.numpy() for name, value in sums.items()}
        return job.finish(scalars, table, provenance(config, corpus, source, target), arrays)


def _report(
    config: TrainConfig,
    source: FrozenModel,
    target: FrozenModel,
    pairs: Sequence[Pair],
    corpus: Corpus,
    moments: Moments | None,
    phis: Maps,
    batch: int,
) -> dict[str, Tensor]:
    """Sums by document of φ, of the identity where widths match, and of the controls if asked."""
    maps, rows, equal_widths = {"stitch": phis}, corpus.report, source.d_model == target.d_model
    if equal_widths:
        maps["identity"] = _identity(source, target, pairs)
    if config.stitch.controls and moments:
        maps |= _controls(config, moments, pairs, phis, equal_widths)
    sums = document_sums(source, target, pairs, maps, rows.tokens, rows.documents, batch)
    if config.stitch.controls:
        sums["random_source"] = _random_source(config, source, target, pairs, corpus, batch)
    return sums


def _save(folder: Path, config: TrainConfig, pairs: Sequence[Pair], weights: dict[str, Tensor], table: Any) -> None:
    if weights:
        facts = {"pairs": pairs, "kind": config.stitch.kind, "norm": config.stitch.norm}
        metadata = {"stitch": json.dumps(facts)}  # one entry: the order of several is not kept
        save_file(weights, folder / "stitch.safetensors", metadata=metadata)
    figures.penalties(table, folder / "figures")


class _Fitted(NamedTuple):
    """The φ of every pair, what of them is kept, and the learning curves."""

    maps: Maps
    weights: dict[str, Tensor]
    arrays: dict[str, np.ndarray]


def _fit(
    config: TrainConfig,
    source: FrozenModel,
    target: FrozenModel,
    pairs: Sequence[Pair],
    corpus: Corpus,
    moments: Moments | None,
    run: Run,
    loggers: Sequence[Any],
) -> _Fitted:
    if config.stitch.kind == "identity":
        return _Fitted(_identity(source, target, pairs), {}, {})
    if not config.stitch.trained:
        assert moments is not None
        closed = [_closed_form(config.stitch.kind, moments, pair, config.stitch) for pair in pairs]
        parts = ("weight", "bias")
        weights = {f"{i}.map.{part}": getattr(phi, part).cpu() for i, phi in enumerate(closed) for part in parts}
        return _Fitted(closed, weights, {})
    module = StitchTraining(source, target, pairs, corpus.fit.tokens, config.stitch, config.seed)
    _warn_of_overfitting(module, corpus)
    if config.stitch.init != "identity":
        assert moments is not None
        for phi, pair in zip(module.stitches, pairs, strict=True):
            start = _closed_form(config.stitch.init, moments, pair, config.stitch)
            phi.start_from(start.weight, start.bias)  # type: ignore[operator]
    log.info("%d stitches, %d steps, peak rate %g", len(pairs), config.stitch.steps, peak_rate(config.stitch))
    fit(module, run, loggers)
    module.to(target.device).eval()
    weights = {name: weight.cpu().contiguous() for name, weight in module.stitches.state_dict().items()}
    return _Fitted(list(module.stitches), weights, {"curve": module.curve.cpu().numpy()})


def _identity(source: FrozenModel, target: FrozenModel, pairs: Sequence[Pair]) -> Maps:
    return [Stitch("identity", source.d_model, target.d_model)] * len(pairs)


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


def _checked_pairs(config: TrainConfig, source: FrozenModel, target: FrozenModel) -> list[tuple[int, int]]:
    same_vocabulary(source, target)
    _check_widths(config.stitch, source, target)
    return layer_pairs(config.layers, source.n_layers, target.n_layers)


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
    config: StitchConfig, source: FrozenModel, target: FrozenModel, pairs: Sequence[Pair], corpus: Corpus, batch: int
) -> Moments | None:
    """Statistics for the closed forms that this job needs, if any."""
    closed = not config.trained and config.kind != "identity"
    if not (closed or config.controls or config.init != "identity"):
        return None
    rows = corpus.fit.tokens
    return state_moments(source, target, pairs, rows if closed else rows[: CONTROL_TOKENS // rows.shape[1]], batch)


def _closed_form(kind: str, moments: Moments, pair: Pair, config: StitchConfig) -> AffineMap:
    if kind == "least_squares":
        return least_squares(moments, pair, config.ridge)
    if kind == "reduced_rank":
        return reduced_rank(moments, pair, config.rank, config.ridge)
    return {"procrustes": procrustes, "bias": bias_only}[kind](moments, pair)


def _controls(
    config: TrainConfig, moments: Moments, pairs: Sequence[Pair], phis: Maps, equal_widths: bool
) -> dict[str, Maps]:
    """What φ has to beat: closed forms, a mere shift, and itself on the states of other tokens."""
    kinds = ["least_squares", *(["procrustes", "bias"] if equal_widths else [])]
    found: dict[str, Maps] = {
        kind: [_closed_form(kind, moments, pair, config.stitch) for pair in pairs] for kind in kinds
    }
    found["shuffled"] = [_Shuffled(phi, config.seed) for phi in phis]
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


def _random_source(
    config: TrainConfig, source: FrozenModel, target: FrozenModel, pairs: Sequence[Pair], corpus: Corpus, batch: int
) -> Tensor:
    """Loss by document of least squares from a source that was never trained."""
    untrained, rows = randomised(source, config.seed), corpus.report
    fit_rows = corpus.fit.tokens[: CONTROL_TOKENS // corpus.fit.tokens.shape[1]]
    moments = state_moments(untrained, target, pairs, fit_rows, batch)
    maps = {"random_source": [least_squares(moments, pair, config.stitch.ridge) for pair in pairs]}
    return document_sums(untrained, target, pairs, maps, rows.tokens, rows.documents, batch)["random_source"]
