"""task=stitch: fit φ at every chosen layer pair of two frozen models, and report what it costs (Brown et al. 2023)."""

from __future__ import annotations

import functools
import json
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table
from safetensors.torch import save_file
from torch import Tensor

from thinkalike import figures
from thinkalike.config import TrainConfig
from thinkalike.evaluation import byte_count
from thinkalike.instruments.stitch_fitting import Setting, fitted, foresee, reported
from thinkalike.job import Instrument, Outcome, Work
from thinkalike.measures import bootstrap_interval
from thinkalike.store import Result
from thinkalike.training import Run, logged, upload

log = logging.getLogger(__name__)

CONTROLS = ("identity", "least_squares", "procrustes", "bias", "shuffled", "random_source")
LOW_PENALTY, FAR = 0.1, 1.0  # nats; distance to the target's state relative to its norm


class Stitching(
    Instrument,
    kind="stitching",
    config=TrainConfig,
    reads=("model", "target", "data", "layers", "stitch", "trainer", "seed"),
):
    """Stitches `model` to `target` at `layers`; leaves table, stitches, learning curves and figure."""

    def inputs(self, config: TrainConfig) -> Mapping[str, Any]:
        foresee(config)
        return super().inputs(config)

    def run(self, config: TrainConfig, work: Work) -> Outcome:
        setting = Setting.of(config)
        source, target, corpus = setting.source, setting.target, setting.corpus
        name = f"{source.name} to {target.name}, {config.stitch.kind}"
        run = Run(name, work.job.partial, work.job.store, target.device, config.trainer, config.logger, work.settings)
        loggers = work.opened.enter_context(logged(run))
        phis = fitted(setting, run, loggers)
        sums = reported(setting, phis.maps)
        text_bytes = byte_count(source.tokenizer, corpus.report.tokens)
        table = penalties(setting, sums, text_bytes)
        if phis.weights:
            facts = {"pairs": setting.layer_pairs, "kind": config.stitch.kind, "norm": config.stitch.norm}
            metadata = {"stitch": json.dumps(facts)}  # one entry: the order of several is not kept
            save_file(phis.weights, work.job.aside / "stitch.safetensors", metadata=metadata)
        work.publish.append(functools.partial(upload, loggers, name))
        return Outcome(
            table,
            {"mean_penalty": float(table["penalty"].mean()), "worst_penalty": float(table["penalty"].max())},
            phis.arrays | {name: value.numpy() for name, value in sums.items()},
            models=[source.describe(), target.describe()],
            facts={"data": {"name": config.data.name, **corpus.facts()}},
        )

    def draw(self, result: Result, folder: Path) -> None:
        """Draw a map where every source layer was stitched to every target layer, else a line."""
        table = result.table
        cells = table.pivot(index="source_layer", columns="target_layer", values="penalty")
        if len(cells.columns) > 1 and len(cells) > 1 and cells.notna().all(axis=None):
            figures.penalty_map(cells, f"{table['source'].iloc[0]} into {table['target'].iloc[0]}", folder)
        else:
            figures.penalties(table, folder)

    def show(self, result: Result) -> None:
        """Print penalties, then how near the stitched model is to the target, and the controls."""
        table, counts = result.table, result.provenance["data"]
        first = table.iloc[0]
        title = (
            f"{first['source']} into {first['target']}: φ {first['stitch']}, nats per token, 95 % intervals over "
            f"{counts['report_documents']} documents ({counts['report_tokens']:,} tokens)"
        )
        columns = {"stitching loss": "stitching_loss", "target loss": "target_loss", "source loss": "source_loss"}
        losses = {label: [f"{value:.4f}" for value in table[column]] for label, column in columns.items()}
        spans = zip(table["penalty_low"], table["penalty_high"], strict=True)
        losses["penalty"] = [f"{value:+.4f}" for value in table["penalty"]]
        losses["interval"] = [f"{low:+.4f} to {high:+.4f}" for low, high in spans]
        controls = [name for name in CONTROLS if f"{name}_penalty" in table]
        few = {f"{name} penalty": [f"{value:+.4f}" for value in table[f"{name}_penalty"]] for name in controls[:1]}
        _print(title, table, losses | few)
        nearness = {
            "KL": [f"{value:.4f}" for value in table["kl"]],
            "same top token": [f"{value:.1%}" for value in table["top1_agreement"]],
            "distance": [f"{value:.3f}" for value in table["distance"]],
            "norm ratio": [f"{value:.3f}" for value in table["norm_ratio"]],
            "bits per byte": [f"{value:.4f}" for value in table["bits_per_byte"]],
        }
        _print("against the target's own output and states", table, nearness)
        if len(controls) > 1:
            cells = {
                name.replace("_", " "): [f"{value:+.4f}" for value in table[f"{name}_penalty"]] for name in controls
            }
            _print("penalties of the controls, nats per token", table, cells)
        _warn_of_far_states(table)


def penalties(setting: Setting, sums: dict[str, Tensor], text_bytes: int) -> pd.DataFrame:
    """Return one row per stitch: losses and penalties in nats per token, with 95 % intervals over documents.

    Args:
        sums: what `document_sums` gives.
        text_bytes: bytes of the predicted tokens' text.
    """
    counts = sums["tokens"]
    total = counts.sum()
    columns: dict[str, Any] = {
        "source": setting.source.name,
        "target": setting.target.name,
        "source_layer": [layer for layer, _ in setting.layer_pairs],
        "target_layer": [depth for _, depth in setting.layer_pairs],
        "stitch": setting.config.kind,
        "stitching_loss": (sums["stitch"].sum(-1) / total).tolist(),
        "target_loss": float(sums["target"].sum() / total),
        "source_loss": float(sums["source"].sum() / total),
    }
    for name in ("stitch", *CONTROLS):
        if name in sums:
            column = "penalty" if name == "stitch" else f"{name}_penalty"
            ends = bootstrap_interval(sums[name] - sums["target"], counts)
            for label, values in zip((column, f"{column}_low", f"{column}_high"), ends, strict=True):
                columns[label] = values.tolist()
    columns["bits_per_byte"] = (sums["stitch"].sum(-1) / math.log(2) / text_bytes).tolist()
    for name, column in {"kl": "kl", "top1": "top1_agreement", "distance": "distance", "norm": "norm_ratio"}.items():
        columns[column] = (sums[name].sum(-1) / total).tolist()
    return pd.DataFrame(columns)


def _print(title: str, table: pd.DataFrame, cells: dict[str, list[str]]) -> None:
    printed = Table(title=title)
    printed.add_column("layer", justify="right")
    for name in cells:
        printed.add_column(name, justify="right")
    for number, (layer, depth) in enumerate(zip(table["source_layer"], table["target_layer"], strict=True)):
        printed.add_row(f"{layer}→{depth}", *(column[number] for column in cells.values()))
    Console(width=max(Console().width, 120)).print(printed)


def _warn_of_far_states(table: pd.DataFrame) -> None:
    """Say when a stitch does well with states that the target never has: its loss then says little of likeness."""
    for row in table[(table["penalty"] < LOW_PENALTY) & (table["distance"] > FAR)].itertuples():
        log.warning(
            "warning: %s→%s costs only %.3f nats, but its states lie %.1f norms from the target's own",
            row.source_layer, row.target_layer, row.penalty, row.distance,
        )  # fmt: skip
