"""The table of a stitching job: penalties, bits per byte, and a verdict by stated rules that have to agree.

A stitch can cost nothing because the models are alike, because the source holds the target's answers, or because it
holds the next token; and it can cost much because training stopped early. So a verdict never rests on the penalty
alone, but on which directions the states share, held out and both ways, as they are and *beyond the tokens*. No
rotation of either side moves what it reads, nor, where there is enough text, any change of basis. Thresholds lie in the
gaps that validity/court finds between sources of
known similarity.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.data.corpus import PairedRows
from thinkalike.evaluation.language import ends_of, with_ends
from thinkalike.instruments.stitching.fitting import LEAST, ClosedForms, Setting, compared, fitted, reported, rungs
from thinkalike.job import Work
from thinkalike.measures import estimates
from thinkalike.measures.estimates import (
    PARTS,
    RUNGS,
    Estimate,
    bootstrap_interval,
    documents_and_seeds_interval,
    without_parts,
)
from thinkalike.models.load import randomised
from thinkalike.training.recipe import StitchConfig
from thinkalike.training.run import Run

log = logging.getLogger(__name__)

BITS = 1 / math.log(2)  # per nat; a document has at least one byte, so that one whose end alone is predicted counts
HALVES = 4  # of the steps, that three times as many are more
SETTLED = 5  # steps between warm-up and the first average: with fewer, of 15 fits of minis 4 went on to speed up
NOTHING = 1e-3  # nats
BESIDE = (
    "identity", "floor", "token_mean", "bigram_mean",
    "least_squares", "procrustes", "bias", "shuffled", "random_source",
)  # fmt: skip
SPREADS = {
    "kl": "kl", "top1": "top1_agreement", "distance": "distance",
    "penultimate": "penultimate_distance", "norm": "norm_ratio",
}  # fmt: skip

LEAK, BETTER, SAME, SUPERSET, PART = "leak", "better model", "same up to an affine map", "superset of", "part of"
BEYOND, RELATED, TOKENS, UNDECIDED = "alike beyond the tokens", "related", "tokens only", "undecided"
UNTRIED = "not tried"  # where there is no reading either
VERDICTS = (LEAK, BETTER, SAME, SUPERSET, PART, BEYOND, RELATED, TOKENS, UNDECIDED)


class Thresholds(NamedTuple):
    """Where the rules of `verdict` part what is alike from what is not."""

    leak: float = 0.05  # of `future`; above it the source knows what only later text decides
    better: float = 0.025  # of `foresight`; above it the source foresees what the target has not learnt
    same: float = 0.95  # of the least R² of a direction, and of `r2_output`
    # nats per token; a stitched loss that far below the target's, and below the source's, is a leak, and a penalty that
    # far above 0 contradicts "same"
    gain: float = 0.05
    later: float = 1e-4  # of `later`; rounding moves a causal source's states by less
    bare: float = 0.25  # how much larger a share of the source's variance than of the target's may be beyond the tokens


STATED = Thresholds()
TRIED = {"fit_tokens": 60_000, "report_tokens": 32_000}  # the least text that the rules were tried with
WIDEST = 128  # the widest models that they were tried with
HELD = {  # of the cases of validity/court, by thresholds from other kinds and targets: how many are right of how many
    SAME: (60, 60),
    SUPERSET: (14, 14),
    PART: (41, 41),
    BEYOND: (14, 15),
}
FEWEST_ROWS = 0.8  # share of the rows, whose token must stand 4 times in their batch


def above(row: Mapping[Any, Any], name: str, threshold: float) -> bool | None:
    """Return whether the interval of a number lies above a threshold; None: the threshold is inside."""
    low, high = float(row[f"{name}_low"]), float(row[f"{name}_high"])
    return None if low < threshold <= high else low >= threshold


def _all(*holds: bool | None) -> bool | None:
    """Return whether all rules hold; None: none fails, and one is not decided."""
    return False if False in holds else None if None in holds else True


def verdict(row: Mapping[Any, Any], thresholds: Thresholds = STATED) -> str:
    """Return what one row of a stitching table says of source and target, one of `VERDICTS`.

    The first rule that holds decides, and a rule holds if it does at both ends of the interval; where the two ends
    disagree, nothing is decided.

    1. leak: the source's states move where later tokens are replaced (`later`, see `Likeness`); or `future` is above
       the threshold, unless the source is a better model whose states do not move; or the stitched model loses less
       than either model does. Better model: the source has the lower loss, and `foresight` is above its threshold.
    2. same, superset of, or part of (the target knows the source, and not the other way round): every direction is
       predicted, in both ways or in one, as the states are and beyond the tokens. "Same" is not decided where the
       penalty or the output contradicts it.
    3. alike beyond the tokens: so beyond them, but not as the states are, so the tokens' own states differ. Where they
       are missing in the source, it is part of the target.
    4. related: beyond the tokens the source is seen to predict more of what the target's output depends on than
       networks do that were never trained.
    5. tokens only: it is not.

    Args:
        row: `foresight`, `future`, `r2_output_learnt`, `penalty`, and the measures of `DirectionSums.compute` with and
            without `_beyond`, each with its `_low` and `_high`; `context`, `context_back` and `later`;
            `stitching_loss`, `target_loss` and `source_loss`, which is NaN for a source without an unembedding.
    """
    ways = ("", "_back", "_beyond", "_back_beyond")
    onward, back, beyond, beyond_back = (above(row, f"cca_least{way}", thresholds.same) for way in ways)
    is_better, later = row["source_loss"] < row["target_loss"], row.get("later", math.nan)
    foresees = above(row, "future", thresholds.leak) and not (is_better and later <= thresholds.later)
    gains = row["penalty_high"] < -thresholds.gain and not row["stitching_loss"] >= row["source_loss"]
    agrees = (row["penalty_low"] <= thresholds.gain and above(row, "r2_output", thresholds.same)) or None
    lacks_tokens = row["context_back"] > row["context"] + thresholds.bare
    rules = (
        (LEAK, gains or later > thresholds.later or foresees),
        (BETTER, is_better and above(row, "foresight", thresholds.better)),
        (SAME, _all(onward, back, beyond, beyond_back, agrees)),
        (SUPERSET, _all(onward, beyond)),
        (PART, _all(back, beyond_back)),
        (PART, _all(beyond, beyond_back, lacks_tokens)),
        (BEYOND, _all(beyond, beyond_back)),
        (RELATED, row["r2_output_learnt_low"] > 0 or (None if row["r2_output_learnt_high"] == math.inf else False)),
    )
    for name, holds in rules:
        if holds is None:
            return UNDECIDED
        if holds:
            return name
    return TOKENS


def held(said: str) -> str:
    """Return how many of the cases with this verdict were right when it was tried, in words."""
    return "{} of {}".format(*HELD[said]) if said in HELD else UNTRIED


def untried(counts: Mapping[str, int], rows_used: float, width: int, beyond_chance: float) -> str:
    """Return in words why the rules say nothing of a result, as they were not tried on such; "" where they were.

    The `counts` are of the tokens that were read, by the names of `TRIED`, and `width` is that of the wider model;
    `beyond_chance` is the target's loss less that of a guess at random, in nats per token.
    """
    few = [f"{counts[name]:,} {name}" for name, least in TRIED.items() if counts[name] < least]
    if rows_used < FEWEST_ROWS:
        few.append(f"rows of which {rows_used:.0%} have a token that stands four times in their batch")
    if width > WIDEST:
        few.append(f"models of width {width:,}")
    if beyond_chance > 0:
        few.append("text that the target predicts worse than a guess at random")
    return " and ".join(few)


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
    columns |= ends_of("stitching_loss", documents_and_seeds_interval(seeds, counts))
    columns |= with_ends("target_loss", sums["target"], counts)
    columns |= with_ends("source_loss", sums["source"], sums.get("source_tokens", counts))
    columns |= ends_of("penalty", documents_and_seeds_interval(seeds - sums["target"], counts))
    for name in (*BESIDE, *(each for each in sums if each.startswith("lr_x"))):
        if name in sums:
            columns |= with_ends(f"{name}_penalty", sums[name] - sums["target"], counts)
    rows, text = setting.corpus.report, sums.get("target_bytes")
    if text is None:
        text = bytes_by_document(setting.source.tokenizer, rows.tokens, rows.documents)
    columns |= ends_of("bits_per_byte", documents_and_seeds_interval(seeds * BITS, text.clamp(min=1).double()))
    for name, column in SPREADS.items():
        spread = bootstrap_interval(sums[name].double(), counts.double())
        most = 1.0 if name == "top1" else math.inf
        columns |= ends_of(column, Estimate(spread.value, spread.low.clamp(min=0.0), spread.high.clamp(max=most)))
    if "half" in sums:
        columns |= with_ends("left_to_gain", left_to_gain(setting.config, sums), counts)
    if "target_bytes" in sums:  # the tokenizers differ
        target, source = (sums[f"{side}_bytes"].clamp(min=1) for side in ("target", "source"))
        columns |= with_ends("target_bits_per_byte", sums["target"] * BITS, target)
        columns |= with_ends("source_bits_per_byte", sums["source"] * BITS, source)
        columns |= with_ends("penalty_bits_per_byte", (sums["stitch"] - sums["target"]) * BITS, target)
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
    parts = torch.zeros(PARTS, *both.shape[1:], dtype=both.dtype).index_add_(0, numbers % PARTS, both)
    whole = torch.cat([parts.sum(0)[None], without_parts(parts, numbers.repeat_interleave(counts.long()))])
    cost, count = (whole[..., 0] / whole[..., 1]).T, len(lost) - len(marks)
    steps = -cost[count:].clamp(min=LEAST).log()
    found = [estimates.reading_of(each, marks, steps) for each in -cost[:count].clamp(min=LEAST / 2).log()]
    return ends_of("reading", estimates.jackknife(*(torch.stack(found, 1)[part] for part in (0, slice(1, None)))))


def in_bits(value: float) -> str:
    return f"below {RUNGS[0]} bits" if value <= RUNGS[0] else f"{value:.1f} bits{' or more' * (value >= RUNGS[-1])}"


def left_to_gain(config: StitchConfig, sums: Mapping[str, Tensor]) -> Float[Tensor, "pairs documents"]:
    """Return a bound, by document, on what three times the steps gain, NaN where there is none.

    It is `HALVES` times what the second half of the steps gained, as long as no half gains more than the one before. In
    the first steps gains grow: there is no bound before the first average has begun `SETTLED` steps after warm-up. Nor
    is there one for a φ that was returned to where it began, unless it costs nothing.
    """
    gained, cost = sums["half"] - sums["stitch"], (sums["stitch"] - sums["target"]).sum(-1) / sums["tokens"].sum()
    is_open = (gained == 0).all(-1) & (cost.abs() > NOTHING)
    if config.steps // 4 - config.warmup < SETTLED:
        is_open |= cost.abs() > NOTHING
    return HALVES * gained.masked_fill(is_open[:, None], math.nan)


def verdicts(setting: Setting, table: pd.DataFrame, rows_used: float) -> dict[str, list[str]]:
    """Return the verdict on each row of a table, and how often such verdicts were right; see `verdict`, `held`.

    A layer of a model into itself is the same, whatever is known of it. Where the rules were not tried, the reading in
    bits stands there.
    """
    is_itself = [setting.source is setting.target and layer == depth for layer, depth in setting.layer_pairs]
    width = max(setting.source.d_model, setting.target.d_model)
    beyond_chance = float(table["target_loss"].max()) - math.log(setting.target.vocabulary)
    why = untried(setting.corpus.counts, rows_used, width, beyond_chance)
    if why and not all(is_itself):
        log.warning("warning: there are no verdicts, as their rules were not tried on %s", why)
    instead = map(in_bits, table["reading"]) if "reading" in table else [UNTRIED] * len(table)
    rows = zip(table.to_dict("records"), is_itself, instead, strict=True)
    said = [SAME if itself else bits if why else verdict(row) for row, itself, bits in rows]
    return {"verdict": said, "verdict_held": [held(each) for each in said]}


@dataclass
class Direction:
    """One direction of a job: its table, and the stitches and sums that the result keeps."""

    forms: ClosedForms
    table: pd.DataFrame
    weights: dict[str, Tensor]
    arrays: dict[str, Any]
    sums: dict[str, Tensor]  # by document, among the arrays
    rows_used: float  # share of the rows in the measures beyond the tokens


def joined(parts: Mapping[str, Mapping[str, Any]], mark: str) -> dict[str, Any]:
    """Return the entries of all parts, with the name of the part and the mark before their own name."""
    return {f"{part}{mark}{key}" if part else key: each for part, own in parts.items() for key, each in own.items()}


def stitched(setting: Setting, run: Run, loggers: Sequence[Any], work: Work) -> Direction:
    """Fit the stitches of one direction with every seed, and report on them."""
    config, report = setting.config, setting.corpus.report
    with work.phase("likeness"):
        alike = compared(setting)  # first, as it may find that there is too little text
    with work.phase("controls"):
        source = randomised(setting.source, setting.seed) if config.controls else None
        untrained = ClosedForms(replace(setting, source=source)) if source else None
    forms, again = ClosedForms(setting, alike.moments), {}
    with work.phase("fit"):
        first = fitted(forms, run, loggers, untrained)
        alone = replace(setting, config=replace(config, floor=False, lr_multiples=[]))
        for more in range(1, config.seeds if config.trained else 1):
            part = f"{run.part}-seed-{more}" if run.part else f"seed-{more}"
            own = ClosedForms(replace(alone, seed=setting.seed + more), alike.moments)
            again[f"seed_{more}"] = fitted(own, replace(run, part=part))
    with work.phase("report"):
        sums = reported(forms, first, untrained, {name: each.maps for name, each in again.items()}, alike.means)
        if isinstance(report, PairedRows):
            sums |= {"target_bytes": report.target_bytes, "source_bytes": report.source_bytes}
            sums |= {"documents": report.names}
    source = untrained = None  # makes room for the copies
    with work.phase("ruler"):
        sums |= rungs(setting, sums)
    table = pd.concat([penalties(setting, sums), pd.DataFrame(alike.likeness.columns())], axis=1)
    table = table.assign(**readings(sums))
    table = table.assign(**verdicts(setting, table, alike.likeness.rows_used))
    weights = joined({"": first.weights} | {name: each.weights for name, each in again.items()}, ".")
    arrays = first.arrays | {name: values.numpy() for name, values in sums.items()}
    return Direction(forms, table, weights, arrays, sums, alike.likeness.rows_used)
