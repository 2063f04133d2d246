"""The table of a stitching result: one row per stitch, in nats per token, with 95 % intervals over documents."""

from __future__ import annotations

from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.evaluation import BITS, bits_columns, bytes_by_document, ends_of, readable_bytes, with_ends
from thinkalike.instruments.stitching.setting import Setting
from thinkalike.measures import documents_and_seeds_interval

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
    """Return one row per stitch: losses and penalties in nats per token, and what else `document_sums` sums per token.

    Each has `_low` and `_high`, the ends of its 95 % interval over documents, and, of a penalty with several seeds,
    over seeds.

    Args:
        sums: what `document_sums` and, where tokenizers differ, `document_bytes` give.
    """
    counts, aligned, seeds = sums["tokens"], "target_bytes" in sums, _by_seed(sums)
    columns: dict[str, Any] = {
        "source": setting.source.name,
        "target": setting.target.name,
        "source_layer": [layer for layer, _ in setting.layer_pairs],
        "target_layer": [depth for _, depth in setting.layer_pairs],
        "stitch": setting.config.kind,
    }
    columns |= ends_of("stitching_loss", documents_and_seeds_interval(seeds, counts))
    columns |= with_ends("target_loss", sums["target"], counts)
    columns |= with_ends("source_loss", sums["source"], sums.get("source_tokens", counts))
    columns |= ends_of("penalty", documents_and_seeds_interval(seeds - sums["target"], counts))
    for name in BESIDE:
        if name in sums:
            columns |= with_ends(f"{name}_penalty", sums[name] - sums["target"], counts)
    text = readable_bytes(sums["target_bytes"] if aligned else _text_bytes(setting))
    columns |= ends_of("bits_per_byte", documents_and_seeds_interval(seeds * BITS, text.double()))
    for name, column in SPREADS.items():
        columns |= with_ends(column, sums[name], counts)
    return pd.DataFrame(columns | _optimisation(sums) | (bits_columns(sums) if aligned else {}))


def _by_seed(sums: dict[str, Tensor]) -> Float[Tensor, "pairs seeds documents"]:
    """Return the losses of the stitches by document, of each seed."""
    return torch.stack([each for name, each in sums.items() if name == "stitch" or name[:5] == "seed_"], 1)


def _optimisation(sums: dict[str, Tensor]) -> dict[str, Any]:
    """Return what training still gained at its end, and by how much the best of other rates and starts is ahead."""
    if "late" not in sums:
        return {}
    counts, own = sums["tokens"], sums["stitch"]
    columns = with_ends("late_gain", sums["late"] - own, counts)
    columns["converged"] = [abs(gain) <= FLAT for gain in columns["late_gain"]]
    others = torch.stack([each for name, each in sums.items() if name in ("identity", "start") or name[:5] == "rate_"])
    best = others.sum(-1).argmin(0)
    chosen = others[best, torch.arange(len(best))]
    return columns | with_ends("optimisation_gap", own - chosen, counts)


def _text_bytes(setting: Setting) -> Tensor:
    """Return the bytes of the text of each document's predicted tokens."""
    rows = setting.corpus.report
    return bytes_by_document(setting.source.tokenizer, rows.tokens, rows.documents)
