"""The table of a stitching job: penalties, bits per byte, and a verdict by stated rules that have to agree.

A stitch can cost nothing because the models are alike, because the source holds the target's answers, or because it
holds the next token; and it can cost much because training stopped early. So a verdict never rests on the penalty
alone, but on which directions the states share, held out and both ways, as they are and *beyond the tokens*. No change
of basis of either side moves what it reads. Thresholds lie in the gaps that validity/court finds between sources of
known similarity.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.data.paired import alignment_shares
from thinkalike.data.rows import Corpus, PairedRows
from thinkalike.errors import listed
from thinkalike.evaluation.language import ends_of, with_ends
from thinkalike.instruments.stitching.setting import Setting
from thinkalike.measures.estimates import Estimate, documents_and_seeds_interval

log = logging.getLogger(__name__)

LOW_PENALTY, FAR = 0.1, 1.0  # nats; distance to the target's state relative to its norm
LITTLE = 0.06  # R² beyond the tokens, weighed by the output
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
VERDICTS = (LEAK, BETTER, SAME, SUPERSET, PART, BEYOND, RELATED, TOKENS, UNDECIDED)


class Thresholds(NamedTuple):
    """Where the rules of `verdict` part what is alike from what is not.

    Attributes:
        leak: of `future`; above it the source knows what only later text decides.
        better: of `foresight`; above it the source foresees what the target has not learnt.
        same: of the least R² of a direction, and of `r2_output`.
        related: of `r2_output_beyond`; what untrained networks and bags of tokens share with the target is below.
        gain: nats per token; a stitched loss that far below the target's, and below the source's, is a leak, and a
            penalty that far above 0 contradicts "same".
        bare: how much larger a share of the source's variance than of the target's may be beyond the tokens.
    """

    leak: float = 0.05
    better: float = 0.025
    same: float = 0.95
    related: float = 0.06
    gain: float = 0.05
    bare: float = 0.25


STATED = Thresholds()
TRIED = {"fit_tokens": 60_000, "report_tokens": 32_000}  # the least text that the rules were tried with
WIDEST = 128  # the widest models that they were tried with
HELD = {  # of the cases of validity/court, by thresholds from other kinds and targets: how many are right of how many
    LEAK: (49, 49),
    SAME: (60, 60),
    SUPERSET: (14, 14),
    PART: (41, 41),
    BEYOND: (14, 15),
    RELATED: (104, 104),
    TOKENS: (140, 140),
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

    1. leak: `future` (see `Likeness`) is above the threshold, and the source is not simply the better model; or the
       stitched model loses less than either model does. Better model: the source has the lower loss, and `foresight`
       is above its threshold.
    2. same, superset of, or part of (the target knows the source, and not the other way round): every direction is
       predicted, in both ways or in one, as the states are and beyond the tokens. "Same" is not decided where the
       penalty or the output contradicts it.
    3. alike beyond the tokens: so beyond them, but not as the states are, so the tokens' own states differ. Where they
       are missing in the source, it is part of the target.
    4. related: beyond the tokens the source predicts some of what the target's output depends on.
    5. tokens only.

    Args:
        row: `foresight`, `future`, `penalty`, and the measures of `DirectionSums.compute` with and without `_beyond`,
            each with its `_low` and `_high`; `context` and `context_back`; `stitching_loss`, `target_loss` and
            `source_loss`, which is NaN for a source without an unembedding.
    """
    onward, back, beyond, beyond_back = (
        above(row, f"cca_least{way}", thresholds.same) for way in ("", "_back", "_beyond", "_back_beyond")
    )
    is_better = row["source_loss"] < row["target_loss"]
    gains = row["penalty_high"] < -thresholds.gain and not row["stitching_loss"] >= row["source_loss"]
    agrees = (row["penalty_low"] <= thresholds.gain and above(row, "r2_output", thresholds.same)) or None
    lacks_tokens = row["context_back"] > row["context"] + thresholds.bare
    rules = (
        (LEAK, gains or (not is_better and above(row, "future", thresholds.leak))),
        (BETTER, is_better and above(row, "foresight", thresholds.better)),
        (SAME, _all(onward, back, beyond, beyond_back, agrees)),
        (SUPERSET, _all(onward, beyond)),
        (PART, _all(back, beyond_back)),
        (PART, _all(beyond, beyond_back, lacks_tokens)),
        (BEYOND, _all(beyond, beyond_back)),
        (RELATED, above(row, "r2_output_beyond", thresholds.related)),
    )
    for name, holds in rules:
        if holds is None:
            return UNDECIDED
        if holds:
            return name
    return TOKENS


def held(said: str) -> str:
    """Return how many of the cases with this verdict were right when it was tried, in words."""
    return "{} of {}".format(*HELD[said]) if said in HELD else "not tried"


def untried(counts: Mapping[str, int], rows_used: float, width: int, beyond_chance: float) -> str:
    """Return in words why the rules say nothing of a result, as they were not tried on such; "" where they were.

    Args:
        counts: The tokens that were read, by the names of `TRIED`.
        rows_used: See `Likeness`.
        width: Of the wider model.
        beyond_chance: The target's loss less that of a guess at random, in nats per token.
    """
    few = [f"{counts[name]:,} {name}" for name, least in TRIED.items() if counts[name] < least]
    if rows_used < FEWEST_ROWS:
        few.append(f"rows of which {rows_used:.0%} have a token that stands four times in their batch")
    if width > WIDEST:
        few.append(f"models of width {width:,}")
    if beyond_chance > 0:
        few.append("text that the target predicts worse than a guess at random")
    return " and ".join(few)


BITS = 1 / math.log(2)  # per nat


def readable_bytes(counts: Int[Tensor, " documents"]) -> Int[Tensor, " documents"]:
    """Return the bytes of each document, at least 1, so that a document of which only the end is predicted counts."""
    return counts.clamp(min=1)


def document_bytes(corpus: Corpus) -> dict[str, Tensor]:
    """Return by document the bytes that each model predicts, and a hash of its text, if the tokenizers differ."""
    rows = corpus.report
    if not isinstance(rows, PairedRows):
        return {}
    return {"target_bytes": rows.target_bytes, "source_bytes": rows.source_bytes, "documents": rows.names}


def bits_columns(sums: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return both models' own losses and the penalty in bits per byte of each one's own tokens."""
    target, source = (readable_bytes(sums[f"{side}_bytes"]) for side in ("target", "source"))
    return {
        **with_ends("target_bits_per_byte", sums["target"] * BITS, target),
        **with_ends("source_bits_per_byte", sums["source"] * BITS, source),
        **with_ends("penalty_bits_per_byte", (sums["stitch"] - sums["target"]) * BITS, target),
    }


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


def alignment_scalars(corpus: Corpus) -> dict[str, float]:
    """Return the shares of target tokens by how they are aligned, if the tokenizers differ."""
    if not isinstance(corpus.report, PairedRows):
        return {}
    return {f"aligned_{how}": share for how, share in alignment_shares(corpus).items()}


def _seeds(sums: Mapping[str, Tensor]) -> Float[Tensor, "pairs seeds documents"]:
    """Return the losses of φ of every seed."""
    return torch.stack([each for name, each in sums.items() if name == "stitch" or name.startswith("seed_")], 1)


def penalties(setting: Setting, sums: Mapping[str, Tensor]) -> pd.DataFrame:
    """Return one row per layer pair: losses and penalties in nats per token, and the other means of `document_sums`.

    Each has `_low` and `_high`, the ends of its 95 % interval over documents, and, for φ with several seeds, over
    seeds.

    Args:
        sums: of `document_sums` and, where tokenizers differ, `document_bytes`.
    """
    counts, aligned = sums["tokens"], "target_bytes" in sums
    seeds = _seeds(sums)
    columns: dict[str, Any] = {**setting.columns(), "stitch": setting.config.kind}
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
    columns |= ends_of("bits_per_byte", documents_and_seeds_interval(seeds * BITS, readable_bytes(text).double()))
    for name, column in SPREADS.items():
        columns |= with_ends(column, sums[name], counts)
    if "half" in sums:  # what three times the steps gain, if every doubling gains what the last one did
        columns |= with_ends("left_to_gain", math.log2(3) * (sums["half"] - sums["stitch"]), counts)
    return pd.DataFrame(columns | (bits_columns(sums) if aligned else {}))


def asymmetries(onward: Mapping[str, Tensor], back: Mapping[str, Tensor]) -> dict[str, Estimate]:
    """Return the penalty of each φ minus that of the φ back between the same two layers, by the name of a column.

    It is in nats per token, over documents and seeds. Where the tokenizers differ, it is in bits per byte of each
    direction's own text, and its interval joins those of both by MOVER (Zou & Donner 2008, eq. 4), as if they were
    independent:

        low = R - √((R₁ - low₁)² + (high₂ - R₂)²),    high = R + √((high₁ - R₁)² + (R₂ - low₂)²),    R = R₁ - R₂

    Args:
        onward, back: sums of both directions, whose layer pairs are in the same order; see `penalties`.

    Returns:
        One estimate of shape (pairs,); none where the directions report on different tokens of one tokenizer, as models
        do that begin their rows differently.
    """
    sides = [_seeds(sums) - sums["target"] for sums in (onward, back)]
    if "target_bytes" in onward:
        counts = [readable_bytes(sums["target_bytes"]).double() for sums in (onward, back)]
        (one, low, high), (other, least, most) = (
            documents_and_seeds_interval(side * BITS, own) for side, own in zip(sides, counts, strict=True)
        )
        value = one - other
        ends = value - (one - low).hypot(most - other), value + (high - one).hypot(other - least)
        return {"asymmetry_bits_per_byte": Estimate(value, *ends)}
    if not torch.equal(onward["tokens"], back["tokens"]):
        return {}
    return {"asymmetry": documents_and_seeds_interval(sides[0] - sides[1], onward["tokens"])}


def verdicts(setting: Setting, table: pd.DataFrame, rows_used: float) -> dict[str, list[str]]:
    """Return the verdict on each row of a table, and how often such verdicts were right; see `verdict`, `held`."""
    width = max(setting.source.d_model, setting.target.d_model)
    beyond_chance = float(table["target_loss"].max()) - math.log(setting.target.vocabulary)
    if why := untried(setting.corpus.counts, rows_used, width, beyond_chance):
        log.warning("warning: verdicts are undecided, as their rules were not tried on %s", why)
    said = [UNDECIDED if why else verdict(row) for row in table.to_dict("records")]
    return {"verdict": said, "verdict_held": [held(each) for each in said]}


def _at(table: pd.DataFrame) -> str:
    """Return the layer pairs of a table in words: "0→0, 1→1"."""
    return listed(
        [
            f"{layer}→{depth}"
            for layer, depth in zip(*(table[name] for name in ("source_layer", "target_layer")), strict=True)
        ]
    )


def warn_of_far_states(table: pd.DataFrame) -> None:
    """Warn of stitches that cost little though their states are far from the target's own."""
    far = table[(table["penalty"] < LOW_PENALTY) & (table["distance"] > FAR)]
    if len(far):
        log.warning(
            f"warning: {_at(far)} costs less than {LOW_PENALTY} nats, but its states lie up to "
            f"{far['distance'].max():.1f} norms from the target's own"
        )


def warn_of_little_shared(table: pd.DataFrame) -> None:
    """Warn of layer pairs that share next to nothing beyond the tokens, where penalties say little of likeness."""
    few_shared = table[table["r2_output_beyond"] < LITTLE]
    best = few_shared["r2_output_beyond"].max()
    if len(few_shared):
        found = f"at most {best:.2f} of what the target reads" if best > 0 else "the target worse than its mean does"
        log.warning(
            f"warning: beyond the tokens, {_at(few_shared)} predicts {found}: "
            "a low penalty is no evidence of similarity there"
        )
