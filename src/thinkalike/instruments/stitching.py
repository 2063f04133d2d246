"""task=stitch: fit φ at every chosen layer pair of two frozen models, and report what it costs (Brown et al. 2023)."""

from __future__ import annotations

import functools
import json
import logging
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
from thinkalike.evaluation import (
    BITS,
    alignment_scalars,
    bits_columns,
    bytes_by_document,
    document_bytes,
    document_numbers,
    number_of_documents,
    readable_bytes,
    with_ends,
)
from thinkalike.instruments.stitch_fitting import Setting, fitted, foresee, reported
from thinkalike.job import Instrument, Outcome, Work
from thinkalike.store import Result
from thinkalike.training import Run, logged, upload

log = logging.getLogger(__name__)

CONTROLS = ("identity", "least_squares", "procrustes", "bias", "shuffled", "random_source")
LOW_PENALTY, FAR = 0.1, 1.0  # nats; distance to the target's state relative to its norm


class Stitching(
    Instrument,
    kind="stitching",
    version=2,
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
        sums = reported(setting, phis.maps) | document_bytes(corpus)
        table = penalties(setting, sums)
        if phis.weights:
            facts = {"pairs": setting.layer_pairs, "kind": config.stitch.kind, "norm": config.stitch.norm}
            metadata = {"stitch": json.dumps(facts)}  # one entry: the order of several is not kept
            save_file(phis.weights, work.job.aside / "stitch.safetensors", metadata=metadata)
        work.publish.append(functools.partial(upload, loggers, name))
        return Outcome(
            table,
            {"mean_penalty": float(table["penalty"].mean()), "worst_penalty": float(table["penalty"].max())}
            | document_numbers(sums["tokens"])
            | alignment_scalars(corpus),
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
        aligned = "penalty_bits_per_byte" in table
        unit = f"nats per token of {first['target']}" if aligned else "nats per token"
        title = (
            f"{first['source']} into {first['target']}: φ {first['stitch']}, {unit}, 95 % intervals over "
            f"{number_of_documents(result.scalars)}, {counts['report_tokens']:,} tokens"
        )
        columns = {"stitching loss": "stitching_loss", "target loss": "target_loss", "source loss": "source_loss"}
        if aligned:
            del columns["source loss"]  # of other tokens
        losses = {label: [f"{value:.4f}" for value in table[column]] for label, column in columns.items()}
        spans = zip(table["penalty_low"], table["penalty_high"], strict=True)
        losses["penalty"] = [f"{value:+.4f}" for value in table["penalty"]]
        losses["interval"] = [f"{low:+.4f} to {high:+.4f}" for low, high in spans]
        controls = [name for name in CONTROLS if f"{name}_penalty" in table]
        few = {f"{name} penalty": [f"{value:+.4f}" for value in table[f"{name}_penalty"]] for name in controls[:1]}
        _print(title, table, losses | few)
        if aligned:
            _print_bits(result)
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


def penalties(setting: Setting, sums: dict[str, Tensor]) -> pd.DataFrame:
    """Return one row per stitch: losses and penalties in nats per token, and what else `document_sums` sums per token.

    Each has `_low` and `_high`, the ends of its 95 % interval over documents.

    Args:
        sums: what `document_sums` and, where tokenizers differ, `document_bytes` give.
    """
    counts, aligned = sums["tokens"], "target_bytes" in sums
    own = sums.get("source_tokens", counts)
    columns: dict[str, Any] = {
        "source": setting.source.name,
        "target": setting.target.name,
        "source_layer": [layer for layer, _ in setting.layer_pairs],
        "target_layer": [depth for _, depth in setting.layer_pairs],
        "stitch": setting.config.kind,
    }
    reads = {"stitching": ("stitch", counts), "target": ("target", counts), "source": ("source", own)}
    for column, (name, tokens) in reads.items():
        columns |= with_ends(f"{column}_loss", sums[name], tokens)
    for name in ("stitch", *CONTROLS):
        if name in sums:
            column = "penalty" if name == "stitch" else f"{name}_penalty"
            columns |= with_ends(column, sums[name] - sums["target"], counts)
    text = sums["target_bytes"] if aligned else _text_bytes(setting)
    columns |= with_ends("bits_per_byte", sums["stitch"] * BITS, readable_bytes(text))
    for name, column in {"kl": "kl", "top1": "top1_agreement", "distance": "distance", "norm": "norm_ratio"}.items():
        columns |= with_ends(column, sums[name], counts)
    return pd.DataFrame(columns | (bits_columns(sums) if aligned else {}))


def _text_bytes(setting: Setting) -> Tensor:
    """Return the bytes of the text of each document's predicted tokens."""
    rows = setting.corpus.report
    return bytes_by_document(setting.source.tokenizer, rows.tokens, rows.documents)


def _print(title: str, table: pd.DataFrame, cells: dict[str, list[str]]) -> None:
    printed = Table(title=title)
    printed.add_column("layer", justify="right")
    for name in cells:
        printed.add_column(name, justify="right")
    for number, (layer, depth) in enumerate(zip(table["source_layer"], table["target_layer"], strict=True)):
        printed.add_row(f"{layer}→{depth}", *(column[number] for column in cells.values()))
    Console(width=max(Console().width, 120)).print(printed)


def _print_bits(result: Result) -> None:
    """Print what models of different tokenizers can be compared in, and how their tokens are aligned."""
    table, shares = result.table, result.scalars
    losses = {"stitching": "bits_per_byte", "target": "target_bits_per_byte", "source": "source_bits_per_byte"}
    cells = {label: [f"{value:.4f}" for value in table[column]] for label, column in losses.items()}
    ends = zip(table["penalty_bits_per_byte_low"], table["penalty_bits_per_byte_high"], strict=True)
    cells["penalty"] = [f"{value:+.4f}" for value in table["penalty_bits_per_byte"]]
    cells["interval"] = [f"{low:+.4f} to {high:+.4f}" for low, high in ends]
    how = ", ".join(f"{shares[f'aligned_{name}']:.1%} {name}" for name in ("exactly", "earlier", "nowhere"))
    _print(f"the same in bits per byte; tokens of the target are aligned: {how}", table, cells)


def _warn_of_far_states(table: pd.DataFrame) -> None:
    """Say when a stitch does well with states that the target never has: its loss then says little of likeness."""
    for row in table[(table["penalty"] < LOW_PENALTY) & (table["distance"] > FAR)].itertuples():
        log.warning(
            "warning: %s→%s costs only %.3f nats, but its states lie %.1f norms from the target's own",
            row.source_layer, row.target_layer, row.penalty, row.distance,
        )  # fmt: skip
