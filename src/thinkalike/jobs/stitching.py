"""task=stitch: train φ at every chosen pair of layers between two frozen models, and report what it costs."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table
from safetensors.torch import save_file
from torch import Tensor

from thinkalike import figures
from thinkalike.config import TrainConfig, as_dict
from thinkalike.data import Corpus, identity
from thinkalike.errors import ConfigError
from thinkalike.jobs.steps import BATCH_TOKENS, finished, prepare, provenance, read_corpus
from thinkalike.measures import bootstrap_interval
from thinkalike.models import FrozenModel, content, load_model, same_vocabulary
from thinkalike.store import Job, key_of
from thinkalike.training import Run, StitchTraining, document_losses, fit, peak_rate

log = logging.getLogger(__name__)

TOKENS_PER_PARAMETER = 20  # of φ; with fewer fit tokens than that it overfits


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
        module = StitchTraining(source, target, pairs, corpus.fit.tokens, config.stitch, config.seed)
        _warn_of_overfitting(module, corpus)
        if config.stitch.steps:
            log.info("%d stitches, %d steps, peak rate %g", len(pairs), config.stitch.steps, peak_rate(config.stitch))
            name = f"{source.name} to {target.name}, {config.stitch.kind}"
            fit(module, Run(name, partial, target.device, config.trainer, config.logger, settings))
        module.to(target.device).eval()
        rows = corpus.report
        sums = document_losses(module, rows.tokens, rows.documents, max(BATCH_TOKENS // rows.tokens.shape[1], 1))
        table = _penalties(config, source.name, target.name, pairs, sums)
        _print(table, corpus)
        if config.stitch.kind != "identity":
            weights = {name: weight.cpu().contiguous() for name, weight in module.stitches.state_dict().items()}
            save_file(
                weights, job.out() / "stitch.safetensors", metadata={"pairs": str(pairs), "kind": config.stitch.kind}
            )
        figures.penalties(table, job.out() / "figures")
        scalars = {"mean_penalty": float(table["penalty"].mean()), "worst_penalty": float(table["penalty"].max())}
        arrays = {"curve": module.curve.cpu().numpy(), **{name: value.numpy() for name, value in sums.items()}}
        return job.finish(scalars, table, provenance(config, corpus, source, target), arrays)


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
    if config.stitch.kind == "identity" and source.d_model != target.d_model:
        raise ConfigError(
            f"stitch=identity needs equal widths, and {source.name} has {source.d_model}, "
            f"{target.name} {target.d_model}; use stitch=linear"
        )
    return layer_pairs(config.layers, source.n_layers, target.n_layers)


def _corpus(config: TrainConfig, source: FrozenModel, target: FrozenModel) -> Corpus:
    needed = config.stitch.steps * config.stitch.tokens_per_step
    context = min(source.context, target.context)
    return read_corpus(config.data, source.tokenizer, context, bos=source.bos_each_row, fit_tokens=max(needed, 1))


def _warn_of_overfitting(module: StitchTraining, corpus: Corpus) -> None:
    if not len(module.stitches) or module.config.kind == "identity":
        return
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


def _penalties(
    config: TrainConfig, source: str, target: str, pairs: Sequence[tuple[int, int]], sums: dict[str, Tensor]
) -> pd.DataFrame:
    """One row per stitch: losses in nats per token, penalty with its 95 % interval over documents."""
    counts = sums["tokens"]
    own = {name: float(sums[name].sum() / counts.sum()) for name in ("target", "source")}
    penalty, low, high = bootstrap_interval(sums["stitched"] - sums["target"], counts)
    table = pd.DataFrame(
        {
            "source": source,
            "target": target,
            "source_layer": [layer for layer, _ in pairs],
            "target_layer": [depth for _, depth in pairs],
            "stitch": config.stitch.kind,
            "stitching_loss": (sums["stitched"].sum(-1) / counts.sum()).tolist(),
            "target_loss": own["target"],
            "source_loss": own["source"],
            "penalty": penalty.tolist(),
            "penalty_low": low.tolist(),
            "penalty_high": high.tolist(),
        }
    )
    if "identity" in sums:
        identity, low, high = bootstrap_interval(sums["identity"] - sums["target"], counts)
        table["identity_penalty"], table["identity_low"], table["identity_high"] = (
            identity.tolist(),
            low.tolist(),
            high.tolist(),
        )
    return table


def _print(table: pd.DataFrame, corpus: Corpus) -> None:
    first, counts = table.iloc[0], corpus.counts
    printed = Table(
        title=f"{first.source} into {first.target}: φ {first.stitch}, nats per token, 95 % intervals over "
        f"{counts['report_documents']} documents ({counts['report_tokens']:,} tokens)"
    )
    columns = ["layer", "stitching loss", "target loss", "source loss", "penalty", "interval", "identity penalty"]
    for column in columns[: 7 if "identity_penalty" in table else 6]:
        printed.add_column(column, justify="right")
    for _, row in table.iterrows():
        cells = [f"{row.source_layer}→{row.target_layer}"]
        cells += [f"{value:.4f}" for value in (row.stitching_loss, row.target_loss, row.source_loss)]
        cells += [f"{row.penalty:+.4f}", f"{row.penalty_low:+.4f} to {row.penalty_high:+.4f}"]
        if "identity_penalty" in table:
            cells.append(f"{row.identity_penalty:+.4f}")
        printed.add_row(*cells)
    console = Console()
    Console(width=max(console.width, 110)).print(printed)
