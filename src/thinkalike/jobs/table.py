"""The table of a stitching job: one row per pair of layers."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

import pandas as pd
from jaxtyping import Int
from rich.console import Console
from rich.table import Table
from torch import Tensor

from thinkalike.data import Corpus
from thinkalike.measures import bootstrap_interval

log = logging.getLogger(__name__)

CONTROLS = ("identity", "least_squares", "procrustes", "bias", "shuffled", "random_source")
LOW_PENALTY, FAR = 0.1, 1.0  # nats; distance to the target's state relative to its norm


def penalties(
    kind: str, source: str, target: str, pairs: Sequence[tuple[int, int]], sums: dict[str, Tensor], text_bytes: int
) -> pd.DataFrame:
    """One row per stitch: losses and penalties in nats per token, with 95 % intervals over documents.

    Args:
        sums: what `document_sums` gives.
        text_bytes: bytes of the predicted tokens' text.
    """
    counts = sums["tokens"]
    total = counts.sum()
    table = pd.DataFrame(
        {
            "source": source,
            "target": target,
            "source_layer": [layer for layer, _ in pairs],
            "target_layer": [depth for _, depth in pairs],
            "stitch": kind,
            "stitching_loss": (sums["stitch"].sum(-1) / total).tolist(),
            "target_loss": float(sums["target"].sum() / total),
            "source_loss": float(sums["source"].sum() / total),
        }
    )
    for name in ("stitch", *CONTROLS):
        if name in sums:
            column = "penalty" if name == "stitch" else f"{name}_penalty"
            ends = bootstrap_interval(sums[name] - sums["target"], counts)
            for label, values in zip((column, f"{column}_low", f"{column}_high"), ends, strict=True):
                table[label] = values.tolist()
    table["bits_per_byte"] = (sums["stitch"].sum(-1) / math.log(2) / text_bytes).tolist()
    for name, column in {"kl": "kl", "top1": "top1_agreement", "distance": "distance", "norm": "norm_ratio"}.items():
        table[column] = (sums[name].sum(-1) / total).tolist()
    return table


def byte_count(tokenizer: Any, rows: Int[Tensor, "rows context"]) -> int:
    """Bytes of the text of all predicted tokens, to within a character per row."""
    texts = tokenizer.batch_decode(rows[:, 1:].tolist(), skip_special_tokens=True)
    return sum(len(text.encode()) for text in texts)


def show(table: pd.DataFrame, corpus: Corpus) -> None:
    """Print penalties, then how near the stitched model is to the target, and the controls."""
    first, counts = table.iloc[0], corpus.counts
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
        cells = {name.replace("_", " "): [f"{value:+.4f}" for value in table[f"{name}_penalty"]] for name in controls}
        _print("penalties of the controls, nats per token", table, cells)


def _print(title: str, table: pd.DataFrame, cells: dict[str, list[str]]) -> None:
    printed = Table(title=title)
    printed.add_column("layer", justify="right")
    for name in cells:
        printed.add_column(name, justify="right")
    for number, (layer, depth) in enumerate(zip(table["source_layer"], table["target_layer"], strict=True)):
        printed.add_row(f"{layer}→{depth}", *(column[number] for column in cells.values()))
    Console(width=max(Console().width, 120)).print(printed)


def warn_of_far_states(table: pd.DataFrame) -> None:
    """Say when a stitch does well with states that the target never has: its loss then says little of likeness."""
    for row in table[(table["penalty"] < LOW_PENALTY) & (table["distance"] > FAR)].itertuples():
        log.warning(
            "warning: %s→%s costs only %.3f nats, but its states lie %.1f norms from the target's own",
            row.source_layer, row.target_layer, row.penalty, row.distance,
        )  # fmt: skip
