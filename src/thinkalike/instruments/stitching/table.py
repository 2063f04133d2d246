"""The table of a stitching result: one row per stitch, in nats per token, with 95 % intervals over documents."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from thinkalike.evaluation import bits_columns, byte_count
from thinkalike.instruments.stitching.setting import Setting
from thinkalike.measures import bootstrap_interval

BESIDE = (
    "identity", "start", "floor", "token_mean", "bigram_mean",
    "least_squares", "procrustes", "bias", "shuffled", "random_source",
)  # fmt: skip
FLAT = 0.005  # nats that a stitch that has converged may still gain in the last fifth of its steps
SPREADS = {
    "kl": "kl",
    "top1": "top1_agreement",
    "distance": "distance",
    "penultimate": "penultimate_distance",
    "norm": "norm_ratio",
}


def penalties(setting: Setting, sums: dict[str, Tensor]) -> pd.DataFrame:
    """Return one row per stitch: losses and penalties in nats per token, with 95 % intervals over documents.

    Args:
        sums: what `document_sums` and, where tokenizers differ, `document_bytes` give.
    """
    counts, aligned = sums["tokens"], "target_bytes" in sums
    total, own = counts.sum(), _over_seeds(sums)
    text_bytes = sums["target_bytes"].sum() if aligned else _text_bytes(setting)
    columns: dict[str, Any] = {
        "source": setting.source.name,
        "target": setting.target.name,
        "source_layer": [layer for layer, _ in setting.layer_pairs],
        "target_layer": [depth for _, depth in setting.layer_pairs],
        "stitch": setting.config.kind,
        "stitching_loss": (own.sum(-1) / total).tolist(),
        "target_loss": float(sums["target"].sum() / total),
        "source_loss": float(sums["source"].sum() / sums.get("source_tokens", counts).sum()),
    }
    columns |= _with_ends("penalty", own - sums["target"], counts)
    for name in BESIDE:
        if name in sums:
            columns |= _with_ends(f"{name}_penalty", sums[name] - sums["target"], counts)
    columns["bits_per_byte"] = (own.sum(-1) / math.log(2) / text_bytes).tolist()
    for name, column in SPREADS.items():
        columns[column] = (sums[name].sum(-1) / total).tolist()
    return pd.DataFrame(columns | _optimisation(sums) | (bits_columns(sums) if aligned else {}))


def _over_seeds(sums: dict[str, Tensor]) -> Tensor:
    """Return the losses of the stitches by document, averaged over seeds."""
    return torch.stack([each for name, each in sums.items() if name == "stitch" or name[:5] == "seed_"]).mean(0)


def _optimisation(sums: dict[str, Tensor]) -> dict[str, Any]:
    """Return what training still gained at its end, and by how much the best of other rates and starts is ahead."""
    if "late" not in sums:
        return {}
    counts, own = sums["tokens"], sums["stitch"]
    columns = _with_ends("late_gain", sums["late"] - own, counts)
    columns["converged"] = [abs(gain) <= FLAT for gain in columns["late_gain"]]
    others = torch.stack([each for name, each in sums.items() if name in ("identity", "start") or name[:5] == "rate_"])
    best = others.sum(-1).argmin(0)
    chosen = others[best, torch.arange(len(best))]
    return columns | _with_ends("optimisation_gap", own - chosen, counts)


def _with_ends(column: str, sums: Tensor, counts: Tensor) -> dict[str, Any]:
    ends = zip(("", "_low", "_high"), bootstrap_interval(sums, counts), strict=True)
    return {f"{column}{end}": values.tolist() for end, values in ends}


def _text_bytes(setting: Setting) -> int:
    """Return the bytes of the predicted tokens' text."""
    return byte_count(setting.source.tokenizer, setting.corpus.report.tokens)
