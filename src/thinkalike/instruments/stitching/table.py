"""The tables of a stitching job: what each stitch costs in at most fifteen columns, and details.

`table.csv` has the columns of `COLUMNS`. `details.csv` has the same rows with these and all further
columns.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.data.rows import PairedRows
from thinkalike.evaluation.columns import interval_columns, mean_columns
from thinkalike.instruments.stitching.fitting import (
    LEAST,
    ClosedForms,
    Setting,
    fitted,
    reported,
    rungs,
    statistics_of,
)
from thinkalike.job import Work
from thinkalike.measures.bootstrap import bootstrap_interval, documents_and_seeds_interval
from thinkalike.measures.estimates import Estimate, jackknife, without_parts
from thinkalike.measures.folds import JACKKNIFE_PARTS
from thinkalike.measures.ladder import reading_of
from thinkalike.models.variants import randomised
from thinkalike.training.recipe import StitchConfig
from thinkalike.training.run import Run

log = logging.getLogger(__name__)

BITS = 1 / math.log(2)  # per nat; a document has at least one byte, so that one whose end alone is predicted counts
HALVES = 4  # of the steps, that three times as many are more
NOTHING = 1e-3  # nats
BESIDE = (
    "identity", "floor", "token_mean", "bigram_mean",
    "least_squares", "procrustes", "bias", "shuffled", "random_source",
)  # fmt: skip
SPREADS = {
    "kl": "kl", "top1": "top1_agreement", "distance": "distance",
    "penultimate": "penultimate_distance", "norm": "norm_ratio",
}  # fmt: skip

# Of the table: what a stitch costs, its baselines, its worth, and whether training has converged.
COLUMNS = (
    "source", "target", "source_layer", "target_layer", "stitch",
    "stitching_loss", "penalty", "penalty_low", "penalty_high",
    "identity_penalty", "token_mean_penalty",
    "reading", "reading_low", "reading_high", "left_to_gain",
)  # fmt: skip


def table_of(details: pd.DataFrame) -> pd.DataFrame:
    """Return the columns of the table that the details of a job have."""
    return details[[name for name in COLUMNS if name in details]]


def bytes_by_document(
    tokenizer: Any, rows: Int[Tensor, "rows context"], documents: Int[Tensor, "rows context"]
) -> Int[Tensor, " documents"]:
    """Return the bytes in UTF-8 of each document's predicted tokens, to within a character per document and row."""
    runs, owners = [], []
    for row, numbers in zip(rows[:, 1:], documents[:, 1:], strict=True):
        values, lengths = torch.unique_consecutive(numbers, return_counts=True)
        runs += [part.tolist() for part in row.split(lengths.tolist())]
        owners += values.tolist()
    sizes = [len(text.encode()) for text in tokenizer.batch_decode(runs, skip_special_tokens=True)]
    total = torch.zeros(int(documents.max()) + 1, dtype=torch.long)
    return total.index_add_(0, torch.tensor(owners), torch.tensor(sizes))


def losses_of_seeds(sums: Mapping[str, Tensor]) -> Float[Tensor, "pairs seeds documents"]:
    """Return the losses of φ of every seed."""
    return torch.stack([each for name, each in sums.items() if name == "stitch" or name.startswith("seed_")], 1)


def penalties(setting: Setting, sums: Mapping[str, Tensor]) -> pd.DataFrame:
    """Return one row per layer pair: losses and penalties in nats per token, and the other means of `document_sums`.

    Each has `_low` and `_high`, the ends of its 95 % interval over documents, and, for φ with several seeds, over
    seeds.

    Args:
        sums: of `document_sums` and, where tokenizers differ, the bytes of both models' text.
    """
    counts, seeds = sums["tokens"], losses_of_seeds(sums)
    layers, depths = map(list, zip(*setting.layer_pairs, strict=True))
    columns: dict[str, Any] = {"source": setting.source.name, "target": setting.target.name}
    columns |= {"source_layer": layers, "target_layer": depths, "stitch": setting.config.kind}
    columns |= interval_columns("stitching_loss", documents_and_seeds_interval(seeds, counts))
    columns |= mean_columns("target_loss", sums["target"], counts)
    columns |= mean_columns("source_loss", sums["source"], sums.get("source_tokens", counts))
    columns |= interval_columns("penalty", documents_and_seeds_interval(seeds - sums["target"], counts))
    for name in (*BESIDE, *(each for each in sums if each.startswith("lr_x"))):
        if name in sums:
            columns |= mean_columns(f"{name}_penalty", sums[name] - sums["target"], counts)
    rows, text = setting.corpus.report, sums.get("target_bytes")
    if text is None:
        text = bytes_by_document(setting.source.tokenizer, rows.tokens, rows.documents)
    columns |= interval_columns("bits_per_byte", documents_and_seeds_interval(seeds * BITS, text.clamp(min=1).double()))
    for name, column in SPREADS.items():
        spread = bootstrap_interval(sums[name].double(), counts.double())
        most = 1.0 if name == "top1" else math.inf
        columns |= interval_columns(
            column, Estimate(spread.value, spread.low.clamp(min=0.0), spread.high.clamp(max=most))
        )
    if "half" in sums:
        columns |= mean_columns("left_to_gain", left_to_gain(setting.config, sums), counts)
    if "target_bytes" in sums:  # the tokenizers differ
        target, source = (sums[f"{side}_bytes"].clamp(min=1) for side in ("target", "source"))
        columns |= mean_columns("target_bits_per_byte", sums["target"] * BITS, target)
        columns |= mean_columns("source_bits_per_byte", sums["source"] * BITS, source)
        columns |= mean_columns("penalty_bits_per_byte", (sums["stitch"] - sums["target"]) * BITS, target)
    return pd.DataFrame(columns)


def readings(sums: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return columns of the bits to which the target is rounded where it loses as much as each φ costs.

    Between two rungs the logarithm of what is lost is linear in bits, as the squares of rounding errors are. Intervals
    are over documents, whose parts are left out of φ and rungs alike. There are no columns without rungs.
    """
    marks = sorted(int(name.removeprefix("rung_")) for name in sums if name.startswith("rung_"))
    if not marks:
        return {}
    counts = sums["tokens"].double()
    numbers = torch.arange(len(counts))
    lost = torch.cat([losses_of_seeds(sums).mean(1), torch.stack([sums[f"rung_{each}"] for each in marks])])
    both = torch.stack([lost - sums["target"], counts.expand_as(lost)], -1).transpose(0, 1)
    parts = torch.zeros(JACKKNIFE_PARTS, *both.shape[1:], dtype=both.dtype).index_add_(
        0, numbers % JACKKNIFE_PARTS, both
    )
    whole = torch.cat([parts.sum(0)[None], without_parts(parts, numbers.repeat_interleave(counts.long()))])
    cost, count = (whole[..., 0] / whole[..., 1]).T, len(lost) - len(marks)
    steps = -cost[count:].clamp(min=LEAST).log()
    found = [reading_of(each, marks, steps) for each in -cost[:count].clamp(min=LEAST / 2).log()]
    return interval_columns("reading", jackknife(*(torch.stack(found, 1)[part] for part in (0, slice(1, None)))))


def left_to_gain(config: StitchConfig, sums: Mapping[str, Tensor]) -> Float[Tensor, "pairs documents"]:
    """Return a bound, by document, on what three times the steps gain, NaN where there is none.

    It is `HALVES` times what the second half of the steps gained, as long as no half gains more than the one before. In
    the first steps gains grow: there is no bound before the fit `has_settled`. Nor is there one for
    a φ that was returned to where it began, unless it costs nothing.
    """
    gained, cost = sums["half"] - sums["stitch"], (sums["stitch"] - sums["target"]).sum(-1) / sums["tokens"].sum()
    is_open = (gained == 0).all(-1) & (cost.abs() > NOTHING)
    if not config.has_settled:
        is_open |= cost.abs() > NOTHING
    return HALVES * gained.masked_fill(is_open[:, None], math.nan)


@dataclass
class Direction:
    """One direction of a job: its details, and the stitches and sums that the result keeps."""

    forms: ClosedForms
    details: pd.DataFrame
    weights: dict[str, Tensor]
    arrays: dict[str, Any]
    sums: dict[str, Tensor]  # by document, among the arrays


def joined(parts: Mapping[str, Mapping[str, Any]], mark: str) -> dict[str, Any]:
    """Return the entries of all parts, with the name of the part and the mark before their own name."""
    return {f"{part}{mark}{key}" if part else key: each for part, own in parts.items() for key, each in own.items()}


def stitched(setting: Setting, run: Run, loggers: Sequence[Any], work: Work) -> Direction:
    """Fit the stitches of one direction with every seed, and report on them."""
    config = setting.config
    report = setting.corpus.report
    with work.phase("statistics"):
        statistics = statistics_of(setting)
    with work.phase("controls"):
        source = randomised(setting.source, setting.seed) if config.controls else None
        untrained = ClosedForms(replace(setting, source=source)) if source else None
    forms = ClosedForms(setting, statistics.moments)
    further_seeds = {}
    with work.phase("fit"):
        first = fitted(forms, run, loggers, untrained)
        alone = replace(setting, config=replace(config, floor=False, lr_multiples=[]))
        for more in range(1, config.seeds if config.trained else 1):
            part = f"{run.part}-seed-{more}" if run.part else f"seed-{more}"
            of_seed = replace(alone, seed=setting.seed + more)
            forms_of_seed = ClosedForms(of_seed, statistics.moments)
            further_seeds[f"seed_{more}"] = fitted(forms_of_seed, replace(run, part=part))
    with work.phase("report"):
        maps_of_seeds = {name: each.maps for name, each in further_seeds.items()}
        sums = reported(forms, first, untrained, maps_of_seeds, statistics.means)
        if isinstance(report, PairedRows):
            sums |= {"target_bytes": report.target_bytes, "source_bytes": report.source_bytes}
            sums |= {"documents": report.document_hashes}
    source = untrained = None  # makes room for the copies
    with work.phase("ruler"):
        sums |= rungs(setting, sums)
    details = penalties(setting, sums).assign(**readings(sums))
    weights_of_seeds = {name: each.weights for name, each in further_seeds.items()}
    weights = joined({"": first.weights, **weights_of_seeds}, ".")
    arrays = first.arrays | {name: values.numpy() for name, values in sums.items()}
    return Direction(forms, details, weights, arrays, sums)
