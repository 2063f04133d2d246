"""The tables of a stitching job: what each stitch costs in at most fifteen columns, and details.

`table.csv` has the columns of `COLUMNS`. `details.csv` has the same rows with these and all
further columns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.evaluation.columns import interval_columns, mean_columns
from thinkalike.instruments.stitching.reporting import LEAST_COST
from thinkalike.instruments.stitching.setting import StitchSetting
from thinkalike.measures.bit_readings import interpolated_bits
from thinkalike.measures.bootstrap import bootstrap_interval, documents_and_seeds_interval
from thinkalike.measures.estimates import Estimate, jackknife, without_parts
from thinkalike.measures.folds import JACKKNIFE_PARTS
from thinkalike.training.recipe import StitchConfig

Columns = dict[str, Any]
"""Columns of a table by name: a list with a value for each layer pair, or one value for all."""


@runtime_checkable
class BatchDecoder(Protocol):
    """What is needed of a tokenizer of transformers here."""

    def batch_decode(
        self, sequences: list[list[int]], skip_special_tokens: bool = False
    ) -> list[str]:
        """Return the text of each sequence of token ids."""
        ...


BITS_PER_NAT = 1 / math.log(2)

FEWEST_BYTES = 1
"""A document counts as so many bytes at least, also if its end alone is predicted."""

FURTHER_HALVES = 4
"""Three times the steps are so many halves of the steps more."""

NEGLIGIBLE_COST = 1e-3
"""A stitch that costs fewer nats per token costs nothing."""

BASELINES_AND_CONTROLS = (
    "identity",
    "floor",
    "token_mean",
    "bigram_mean",
    "least_squares",
    "procrustes",
    "bias",
    "shuffled",
    "random_source",
)
"""What has a penalty beside that of φ."""

COMPARED_BASELINES = ("token_mean", "identity")
"""The baselines that the loss of φ is compared with, document by document."""

COLUMNS_OF_MEANS = {
    "kl": "kl",
    "top1": "top1_agreement",
    "distance": "distance",
    "penultimate": "penultimate_distance",
    "norm": "norm_ratio",
}
"""The columns of the means of `document_sums` other than losses."""

COLUMNS = (
    # what a stitch is
    "source",
    "target",
    "source_layer",
    "target_layer",
    "stitch",
    # what it costs
    "stitching_loss",
    "penalty",
    "penalty_low",
    "penalty_high",
    # its baselines
    "identity_penalty",
    "token_mean_penalty",
    # what its cost is worth
    "equivalent_bits",
    "equivalent_bits_low",
    "equivalent_bits_high",
    # whether training has converged
    "upper_bound_of_gain",
)
"""The columns of the table."""


def short_table(details: pd.DataFrame) -> pd.DataFrame:
    """Return the details of a job with the columns of `COLUMNS` only, those that it has."""
    return details[[name for name in COLUMNS if name in details]]


def bytes_by_document(
    tokenizer: BatchDecoder,
    rows: Int[Tensor, "rows context"],
    documents: Int[Tensor, "rows context"],
) -> Int[Tensor, " documents"]:
    """Return how many bytes of UTF-8 text the predicted tokens of each document decode to.

    Special tokens count as no bytes. For a character that is cut by the end of a document or row,
    the count may be off by a few bytes.

    Args:
        tokenizer: The tokenizer of the rows.
        rows: The tokens. The first of each row is not predicted, and is left out.
        documents: The number of the document of each token.
    """
    # A stretch is a sequence of tokens of one document within a row.
    stretches = []
    document_of_stretches = []
    for tokens, document_of_tokens in zip(rows[:, 1:], documents[:, 1:], strict=True):
        row_documents, lengths = torch.unique_consecutive(document_of_tokens, return_counts=True)
        stretches += [stretch.tolist() for stretch in tokens.split(lengths.tolist())]
        document_of_stretches += row_documents.tolist()
    texts = tokenizer.batch_decode(stretches, skip_special_tokens=True)
    bytes_of_stretches = [len(text.encode()) for text in texts]
    totals = torch.zeros(int(documents.max()) + 1, dtype=torch.long)
    return totals.index_add_(
        0, torch.tensor(document_of_stretches), torch.tensor(bytes_of_stretches)
    )


def loss_sums_of_seeds(sums: Mapping[str, Tensor]) -> Float[Tensor, "pairs seeds documents"]:
    """Return the loss of the stitched model summed over each document, for every seed.

    Args:
        sums: Sums over documents by name: `stitch` is the loss with the trained map φ of the first
            seed, and names that begin with `seed_` are the losses with φ of further seeds.
    """
    losses_of_seeds = []
    for name, loss in sums.items():
        if name == "stitch" or name.startswith("seed_"):
            losses_of_seeds.append(loss)  # (pairs, documents)
    return torch.stack(losses_of_seeds, 1)


def bytes_as_counts(sizes: Int[Tensor, " documents"]) -> Float[Tensor, " documents"]:
    """Return the bytes of documents as denominators of means: in float64, and at least 1."""
    return sizes.clamp(min=FEWEST_BYTES).double()


def table_of_penalties(setting: StitchSetting, sums: Mapping[str, Tensor]) -> pd.DataFrame:
    """Return one row for each layer pair: losses and penalties, and the other means.

    Losses and penalties are in nats per token. Each column has `_low` and `_high` beside it, the
    ends of its 95 % interval over documents, and, for φ with several seeds, over seeds.

    Args:
        setting: The models and their layer pairs.
        sums: The sums by document of `document_sums` and, where tokenizers differ, the bytes of
            both models' text.
    """
    tokens = sums["tokens"]
    target_loss = sums["target"]
    losses = loss_sums_of_seeds(sums)
    columns: Columns = {
        "source": setting.source.name,
        "target": setting.target.name,
        "source_layer": setting.source_layers,
        "target_layer": setting.target_layers,
        "stitch": setting.config.kind,
    }
    loss = documents_and_seeds_interval(losses, tokens)
    columns |= interval_columns("stitching_loss", loss)
    columns |= mean_columns("target_loss", target_loss, tokens)
    source_tokens = sums.get("source_tokens", tokens)
    columns |= mean_columns("source_loss", sums["source"], source_tokens)
    penalty = documents_and_seeds_interval(losses - target_loss, tokens)
    columns |= interval_columns("penalty", penalty)

    rates = [name for name in sums if name.startswith("lr_x")]
    for name in (*BASELINES_AND_CONTROLS, *rates):
        if name in sums:
            columns |= mean_columns(f"{name}_penalty", sums[name] - target_loss, tokens)
    columns |= improvement_columns(losses, sums)
    columns |= interval_columns("bits_per_byte", _bits_per_byte(setting, sums))
    for name, column in COLUMNS_OF_MEANS.items():
        columns |= interval_columns(column, _mean_with_bounded_interval(name, sums))
    if "half" in sums:
        gain = left_to_gain(setting.config, sums)
        columns |= mean_columns("upper_bound_of_gain", gain, tokens)
    if "target_bytes" in sums:  # the tokenizers differ
        columns |= _columns_per_byte(sums)
    return pd.DataFrame(columns)


def improvement_columns(
    losses: Float[Tensor, "pairs seeds documents"], sums: Mapping[str, Tensor]
) -> Columns:
    """Return columns of how far the loss of φ is below that of each baseline, in nats per token.

    Both losses are of the same documents, and a document that is hard for one is hard for the
    other. The interval of their difference leaves this out, so it is narrower than the intervals
    of the two penalties: these may overlap although φ is better in every document.

    Args:
        losses: The loss of φ summed over each document.
        sums: Sums over each document by name: the losses of the baselines that were evaluated,
            each (pairs, documents), and the number of `tokens`.
    """
    columns: Columns = {}
    for name in COMPARED_BASELINES:
        if name in sums:
            losses_of_baseline = sums[name].unsqueeze(-2)  # (pairs, 1, documents)
            improvement = documents_and_seeds_interval(losses_of_baseline - losses, sums["tokens"])
            columns |= interval_columns(f"improvement_over_{name}", improvement)
    return columns


def _bits_per_byte(setting: StitchSetting, sums: Mapping[str, Tensor]) -> Estimate:
    """Return the loss of the stitched model in bits per byte of text, for each layer pair.

    Args:
        setting: The models and the text, whose bytes are counted unless `sums` has them.
        sums: Sums over each document: the losses of the stitched model for each seed, in nats, and
            `target_bytes`, the bytes of the target's tokens, if the tokenizers differ.
    """
    document_bytes = sums.get("target_bytes")
    if document_bytes is None:  # both models have the same tokenizer
        evaluation_rows = setting.corpus.report
        document_bytes = bytes_by_document(
            setting.target.tokenizer, evaluation_rows.tokens, evaluation_rows.documents
        )
    bits = loss_sums_of_seeds(sums) * BITS_PER_NAT
    # Over all documents, the bits are divided by the bytes.
    return documents_and_seeds_interval(bits, bytes_as_counts(document_bytes))


def _mean_with_bounded_interval(name: str, sums: Mapping[str, Tensor]) -> Estimate:
    """Return the mean over tokens of a number that is no loss, such as a distance.

    Its interval is clamped to the range of the values: not below 0, and for `top1` (the share of
    tokens with the same most likely next token) not above 1.

    Args:
        name: The name of the number in `sums`.
        sums: Sums over documents by name, with the number of `tokens`.
    """
    mean = bootstrap_interval(sums[name].double(), sums["tokens"].double())
    greatest = 1.0 if name == "top1" else math.inf
    return Estimate(mean.value, mean.low.clamp(min=0.0), mean.high.clamp(max=greatest))


def _columns_per_byte(sums: Mapping[str, Tensor]) -> Columns:
    """Return columns of the losses of both models, and of the penalty, in bits per byte.

    If tokenizers differ, losses per token cannot be compared. The loss of each model is divided by
    the bytes of the text that it predicts, and the penalty by those of the target's.

    Args:
        sums: Sums over documents of losses in nats and of bytes.
    """
    target_bytes = sums["target_bytes"].clamp(min=FEWEST_BYTES)
    source_bytes = sums["source_bytes"].clamp(min=FEWEST_BYTES)
    target_bits = sums["target"] * BITS_PER_NAT
    source_bits = sums["source"] * BITS_PER_NAT
    penalty_bits = (sums["stitch"] - sums["target"]) * BITS_PER_NAT
    return {
        **mean_columns("target_bits_per_byte", target_bits, target_bytes),
        **mean_columns("source_bits_per_byte", source_bits, source_bytes),
        **mean_columns("penalty_bits_per_byte", penalty_bits, target_bytes),
    }


def bit_width_columns(sums: Mapping[str, Tensor]) -> Columns:
    """Return columns of the equivalent bit width of each stitch; {} without rounded copies.

    The target with weights rounded to this number of bits loses as many nats as the stitch costs.
    Between two rounded copies of the target, log(nats lost) is interpolated linearly in the number
    of bits, since the logarithm of squared rounding errors is linear in it. The interval is a
    jackknife: each part of the documents is left out of the losses of the stitches and of the
    copies alike.

    Args:
        sums: Sums over each document: the losses of the stitched model for each seed, of the
            `target`, and of its copies, such as `rung_4` for 4 bits; and the number of `tokens`.
    """
    bits_of_copies = sorted(
        int(name.removeprefix("rung_")) for name in sums if name.startswith("rung_")
    )
    if not bits_of_copies:
        return {}
    losses = loss_sums_of_seeds(sums).mean(1)  # (pairs, documents)
    losses_of_copies = torch.stack([sums[f"rung_{bits}"] for bits in bits_of_copies])
    tokens = sums["tokens"]
    # Replicate 0 is the cost on all documents; each further one leaves out a part of them.
    costs = _mean_costs_without_parts(losses - sums["target"], tokens)  # (pairs, replicates)
    costs_of_copies = _mean_costs_without_parts(
        losses_of_copies - sums["target"], tokens
    )  # (copies, replicates)

    # Values of copies must rise with the bits, so costs are negated. The least cost of a stitch is
    # half that of a copy, so that a stitch that costs nothing is above every copy.
    values_of_copies = -costs_of_copies.clamp(min=LEAST_COST).log()
    values = -costs.clamp(min=LEAST_COST / 2).log()
    bits_of_pairs = [
        interpolated_bits(value, bits_of_copies, values_of_copies) for value in values
    ]
    replicates = torch.stack(bits_of_pairs, 1)  # (replicates, pairs)
    return interval_columns("equivalent_bits", jackknife(replicates[0], replicates[1:]))


def _mean_costs_without_parts(
    costs: Float[Tensor, "k documents"], tokens: Float[Tensor, " documents"]
) -> Float[Tensor, "k replicates"]:
    """Return k costs in nats per token: of all documents, and then without each part of them.

    These are the replicates of a jackknife. Document i belongs to part i % `JACKKNIFE_PARTS`. If
    there are too few documents for a jackknife, only the costs of all documents are returned.

    Args:
        costs: The k costs of each document, summed over its tokens.
        tokens: How many tokens each document has.
    """
    counts = tokens.double()
    costs_and_counts = torch.stack([costs, counts.expand_as(costs)], -1)  # (k, documents, 2)
    costs_and_counts = costs_and_counts.transpose(0, 1)  # (documents, k, 2)
    documents = torch.arange(len(counts))
    sums_of_parts = torch.zeros(
        JACKKNIFE_PARTS, *costs_and_counts.shape[1:], dtype=costs_and_counts.dtype
    )
    sums_of_parts.index_add_(0, documents % JACKKNIFE_PARTS, costs_and_counts)

    all_documents = sums_of_parts.sum(0)[None]
    # The document of each token says whether there are enough documents for a jackknife.
    document_of_token = documents.repeat_interleave(counts.long())
    without_each_part = without_parts(sums_of_parts, document_of_token)
    totals = torch.cat([all_documents, without_each_part])
    cost_sums, token_counts = totals.unbind(-1)  # (replicate, k)
    return (cost_sums / token_counts).T


def left_to_gain(
    config: StitchConfig, sums: Mapping[str, Tensor]
) -> Float[Tensor, "pairs documents"]:
    """Return an upper bound on what training three times longer would gain, in nats by document.

    The bound is `FURTHER_HALVES` (four) times what the second half of the steps gained, as three
    times the steps have four further halves. It holds if no later sequence of as many steps gains
    more. There is no bound, and the value is NaN, in two cases, unless the stitch costs nothing:
    if training has not settled, as gains grow in the first steps; and if training made the map φ
    worse, so that the map that it started from was kept.

    Args:
        config: The map φ and its training.
        sums: Sums over each document: the losses of the stitched model (`stitch`), of the model
            stitched by φ after half of the steps (`half`) and of the `target`, and the number of
            `tokens`.
    """
    gained_by_second_half = sums["half"] - sums["stitch"]
    mean_cost = (sums["stitch"] - sums["target"]).sum(-1) / sums["tokens"].sum()
    costs_something = mean_cost.abs() > NEGLIGIBLE_COST
    # The same loss in every document: both are the map that training started from.
    is_start = (gained_by_second_half == 0).all(-1)
    has_no_bound = is_start & costs_something
    if not config.has_settled:
        has_no_bound |= costs_something
    return FURTHER_HALVES * gained_by_second_half.masked_fill(has_no_bound[:, None], math.nan)
