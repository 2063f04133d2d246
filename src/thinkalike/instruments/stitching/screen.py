"""What a stitching result says on the screen: the cost of each direction."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from thinkalike.config.parts import MIDDLE
from thinkalike.errors import listed
from thinkalike.screen import (
    Column,
    Table,
    number_column,
    number_text,
    range_text,
    show_table,
    show_text,
    span,
    with_share,
)
from thinkalike.store import Result

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

BASELINES = {
    "identity baseline": "identity_penalty",
    "token-mean baseline": "token_mean_penalty",
}
"""The columns of baselines, by their headers on the screen."""

MEANING_OF_BASELINES = {
    "identity baseline": "the penalty without a map",
    "token-mean baseline": "that of a map that knows only the current token",
}
"""What the baselines are, in the order of `BASELINES`."""

IMPROVEMENTS = {
    "token-mean baseline": "improvement_over_token_mean",
    "identity baseline": "improvement_over_identity",
}
"""The columns that compare a stitch with its baselines, in the order of the first sentence."""

ROUNDING_OF_LOSS = 1e-6
"""Losses in nats per token differ by so much through rounding alone."""

LEAST_OF_TWO_DECIMALS = 0.01
"""Smaller numbers would have no digit but 0 among two decimals."""

CONTROLS = {
    "bigram_mean_penalty": "bigram-mean baseline",
    "random_source_penalty": "random source",
    "shuffled_penalty": "shuffled tokens",
}
"""What a sentence calls the controls of `controls=true`, which the printed table does not have."""

ASYMMETRIES = ("asymmetry", "asymmetry_bits_per_byte")
"""The columns of asymmetries; the second one stands where the tokenizers differ."""


def details_of(result: Result) -> pd.DataFrame:
    """Return all columns of a result; results of an older version have them in their one table."""
    return result.tables.get("details", result.details)


def layer_pairs_in_words(table: pd.DataFrame) -> str:
    """Return the layer pairs of a table in words: "0→0, 1→1"."""
    return listed(layer_pair_labels(table))


def layer_pair_labels(table: pd.DataFrame) -> list[str]:
    """Return the layer pair of each row: "0→0"."""
    pairs = zip(table["source_layer"], table["target_layer"], strict=True)
    return [f"{source_layer}→{target_layer}" for source_layer, target_layer in pairs]


def _stitched_layers_in_words(table: pd.DataFrame) -> str:
    """Return in words which layers of the source are stitched into which of the target.

    Such as "layers 0 to 5 of a into b", if the layers of each pair have the same number.

    Args:
        table: A row for each stitch of one direction.
    """
    source = table["source"].iloc[0]
    target = table["target"].iloc[0]
    sources = table["source_layer"].tolist()
    targets = table["target_layer"].tolist()
    into = "itself" if source == target else target
    if sources == targets:
        return f"{_listed_layers(sources)} of {source} into {into}"
    if len(sources) == 1:
        return f"layer {sources[0]} of {source} into layer {targets[0]} of {target}"
    return (
        f"{_listed_layers(sorted(set(sources)))} of {source} into "
        f"{_listed_layers(sorted(set(targets)))} of {target} ({len(sources)} pairs)"
    )


def _listed_layers(layers: Sequence[int]) -> str:
    """Return layers in words: "layer 1", "layers 0 to 5", "layers 0, 2, 5"."""
    if len(layers) == 1:
        return f"layer {layers[0]}"
    # No range is made of their ends: a table may have any number as a layer.
    are_consecutive = all(later - layer == 1 for layer, later in pairwise(layers))
    if are_consecutive:
        return f"layers {layers[0]} to {layers[-1]}"
    return f"layers {', '.join(str(layer) for layer in layers)}"


def _range_of_column(table: pd.DataFrame, column: str) -> str:
    """Return the range of a column in words: "0.10 to 0.25", or one number if its ends agree.

    Numbers have two decimals as in tables, but two significant digits if all of them are small.
    What rounding makes of 0 is 0.
    """
    number_format = ".2f"
    if ROUNDING_OF_LOSS < table[column].abs().max() < LEAST_OF_TWO_DECIMALS:
        number_format = ".2g"
    return range_text(table[column].min(), table[column].max(), number_format)


def _range_of_bit_widths(bit_widths: pd.Series) -> str:
    """Return the range of equivalent bit widths: "3.5 to 8 or more", or one if both ends agree."""
    least = bit_width_in_words(bit_widths.min())
    greatest = bit_width_in_words(bit_widths.max())
    if least == greatest:
        return least
    return f"{least} to {greatest}"


def sentence_of_direction(table: pd.DataFrame, about_job: str = "") -> str:
    """Return in a sentence what the stitches of one direction cost, in nats per token.

    The sentence says how that compares with the baselines, as far as intervals tell. If it is
    known, it adds the number of bits to which the target's weights must be rounded to lose as
    much.

    Args:
        table: The details of the direction, a row for each stitch.
        about_job: What the sentence ends with: the amount of text and the losses of both models
            alone; "" for nothing.
    """
    target = table["target"].iloc[0]
    layers = _stitched_layers_in_words(table)
    cost = f"Stitching {layers} costs {_range_of_column(table, 'penalty')} nats per token"
    comparisons = _comparisons_with_baselines(table)
    sentence = ", ".join([cost, *comparisons])
    if "equivalent_bits" in table:
        bits = _range_of_bit_widths(table["equivalent_bits"])
        joined = ", and" if comparisons else ","
        sentence += f"{joined} as much as rounding the weights of {target} to {bits} bits"
    if about_job:
        sentence += f"; {about_job}"
    return f"{sentence}."


def text_and_losses(table: pd.DataFrame, stitch: Mapping[str, Any], facts: object) -> str:
    """Return how much text the maps were fitted on, and the losses of both models alone.

    Args:
        table: The details of one direction, a row for each stitch.
        stitch: The settings of the stitch.
        facts: What the provenance of the result says of its text.
    """
    clauses = []
    tokens = tokens_of_fitting(stitch, facts)
    if tokens:
        clauses.append(f"fitted on {tokens}")
    losses = _losses_of_models_alone(table)
    if losses:
        clauses.append(losses)
    return "; ".join(clauses)


def tokens_of_fitting(stitch: Mapping[str, Any], facts: object) -> str:
    """Return how much text the maps of a job were fitted on: "4,096 tokens".

    It is "" for the identity, which is fitted on nothing, and for results of earlier versions
    that do not say it. Training may read a token several times, and the number of different
    tokens follows then.

    Args:
        stitch: The settings of the stitch.
        facts: What the provenance of the result says of its text.
    """
    from thinkalike.stitches.kinds import CLOSED  # imports torch

    different = facts.get("fit_tokens") if isinstance(facts, Mapping) else None
    if not different or stitch.get("kind") == "identity":
        return ""
    read = different
    if stitch.get("kind") not in CLOSED:
        steps = stitch.get("steps")
        tokens_per_step = stitch.get("tokens_per_step")
        if not steps or not tokens_per_step:
            return ""
        read = steps * tokens_per_step
    in_words = f"{read:,} tokens"
    if read > different:
        in_words += f", {different:,} of them different"
    return in_words


def _losses_of_models_alone(table: pd.DataFrame) -> str:
    """Return the losses of both models without a stitch; "" for results of earlier versions.

    They are in the unit of the penalty. A token of a different tokenizer has more or fewer bytes
    of text, so the loss of such a source is converted by its loss per byte.

    Args:
        table: The details of the direction. Each of its rows has the same losses.
    """
    if not {"source_loss", "target_loss"} <= set(table):
        return ""
    first = table.iloc[0]
    source_loss = first["source_loss"]
    if _has_two_tokenizers(table):
        if not {"source_bits_per_byte", "target_bits_per_byte"} <= set(table):
            return ""
        source_loss = first["source_bits_per_byte"] * _nats_per_token_of_target(first)
    target = number_text(first["target_loss"], ".2f")
    if first["source"] == first["target"]:
        return f"loss of the model alone {target} nats per token"
    source = number_text(source_loss, ".2f")
    if _has_two_tokenizers(table):
        return f"losses alone: source {source} (by bytes), target {target} nats per token"
    return f"loss of the source alone {source}, of the target {target} nats per token"


def _has_two_tokenizers(table: pd.DataFrame) -> bool:
    """Return whether the tokenizers of both models differ: only then are there bits per byte."""
    return "penalty_bits_per_byte" in table


def _unit_of_penalty(table: pd.DataFrame) -> str:
    """Return the unit of penalties: "nats per token", and of which model if tokenizers differ."""
    unit = "nats per token"
    if _has_two_tokenizers(table):
        unit += f" of {table['target'].iloc[0]}"
    return unit


def _nats_per_token_of_target(row: pd.Series) -> float:
    """Return how many nats per token of the target one bit per byte is on the evaluated text."""
    return float(row["target_loss"] / row["target_bits_per_byte"])


def sentence_of_controls(table: pd.DataFrame) -> str:
    """Return a sentence with the penalties of the controls that were asked for; "" without any.

    Args:
        table: The details of one direction, a row for each stitch.
    """
    penalties = []
    if sentence_of_floor(table) and set(CONTROLS) & set(table):
        penalties.append(f"floor {_range_of_column(table, 'floor_penalty')}")
    for column, name in CONTROLS.items():
        if column in table and table[column].notna().any():
            penalties.append(f"{name} {_range_of_column(table, column)}")
    if not penalties:
        return ""
    return f"Penalties of controls: {', '.join(penalties)}."


def _comparisons_with_baselines(table: pd.DataFrame) -> list[str]:
    """Return clauses that say how the penalties compare with the baselines.

    A penalty counts as less or more if the interval of the difference, document by document, does
    not reach 0. A map that is the identity has no identity baseline, and neither have stitches of
    a layer into itself, whose identity baseline is 0. Results of earlier versions have no such
    differences, and no clauses.

    Args:
        table: The details of the direction, a row for each stitch.
    """
    kinds = set(table.get("stitch", ()))
    baselines_by_verdict: dict[str, list[str]] = {}
    for name, column in IMPROVEMENTS.items():
        if column not in table:
            continue
        penalty_of_baseline = table[BASELINES[name]]
        is_map_itself = name == "identity baseline" and "identity" in kinds
        if is_map_itself or (penalty_of_baseline == 0).all():
            continue
        in_words = f"the {name}"
        if len(table) == 1:  # the table below has the numbers of several stitches
            in_words += f" ({_baseline_beside_stitch(table.iloc[0], name)})"
        verdict = _verdict_beside_baseline(table, column)  # a template with a place for names
        baselines_by_verdict.setdefault(verdict, []).append(in_words)
    return [
        verdict.format(" and ".join(baselines))
        for verdict, baselines in baselines_by_verdict.items()
    ]


def _baseline_beside_stitch(row: pd.Series, name: str) -> str:
    """Return the penalty of a baseline and how far that of φ is from it.

    Such as "2.28, a difference of 0.94 [0.76, 1.12]".

    Args:
        row: The details of one stitch.
        name: The name of the baseline, of `BASELINES`.
    """
    penalty = number_text(row[BASELINES[name]], ".2f")
    improvement = row[IMPROVEMENTS[name]]
    low = row[f"{IMPROVEMENTS[name]}_low"]
    high = row[f"{IMPROVEMENTS[name]}_high"]
    return f"{penalty}, a difference of {_size_with_interval(improvement, low, high, '.2f')}"


def _size_with_interval(difference: float, low: float, high: float, form: str) -> str:
    """Return the size of a difference with its interval: "0.94 [0.76, 1.12]" of -0.94 as well.

    Args:
        difference: The difference.
        low, high: The ends of its interval. They swap where the sign is changed.
        form: The format of the numbers.
    """
    if difference < 0:
        return span(-difference, -high, -low, form)
    return span(difference, low, high, form)


def _verdict_beside_baseline(table: pd.DataFrame, column: str) -> str:
    """Return how penalties compare with a baseline: "less than {}", with "{}" for its name.

    A penalty is less or more if the interval of its improvement over the baseline is above or
    below 0. If layer pairs differ, each verdict has its layers: "less than {} at ... and more than
    it at ...".

    Args:
        table: The details of the direction, a row for each stitch.
        column: The name of the column of the improvement over the baseline.
    """
    is_less = table[f"{column}_low"] > 0
    is_more = table[f"{column}_high"] < 0
    rows_by_verdict = {
        "less than": is_less,
        "not distinguishable from": ~(is_less | is_more),
        "more than": is_more,
    }
    verdicts: list[str] = []
    for verdict, is_so in rows_by_verdict.items():
        if is_so.all():
            return f"{verdict} {{}}"
        if is_so.any():
            baseline = "it" if verdicts else "{}"  # named only in the first verdict
            layers = layer_pairs_in_words(table[is_so])
            verdicts.append(f"{verdict} {baseline} at {layers}")
    return " and ".join(verdicts)


def sentence_of_floor(table: pd.DataFrame) -> str:
    """Return in a sentence what it costs to stitch the target into itself (the floor).

    It is "" if that was not measured, or if the direction itself is from a model into itself.
    """
    first = table.iloc[0]
    if first["source"] == first["target"] or "floor_penalty" not in table:
        return ""
    return (
        f"The same recipe costs {_range_of_column(table, 'floor_penalty')} nats per token for "
        f"{first['target']} into itself (the floor)."
    )


def meaning_of_columns(table: pd.DataFrame) -> str:
    """Return a note that explains the columns of a table of stitches, if the table has them."""
    meanings = ["The penalty is the loss of the stitched model minus that of the target alone"]
    for name, column in BASELINES.items():
        if column in table:
            meanings.append(f"the {name} is {MEANING_OF_BASELINES[name]}")
    note = f"{'; '.join(meanings)}."
    if "equivalent_bits" in table:
        note += " Bits by loss: the target with weights rounded to so many bits loses as much."
    return note


def bit_width_in_words(bits: float) -> str:
    """Return an equivalent bit width: "3.7", or "below 2" or "8 or more" at an end of the scale.

    The scale ends with the coarsest and with the finest rounded copy.
    """
    from thinkalike.measures.bit_readings import BITS_OF_COPIES

    if bits <= BITS_OF_COPIES[0]:
        return f"below {BITS_OF_COPIES[0]}"
    if bits >= BITS_OF_COPIES[-1]:
        return f"{BITS_OF_COPIES[-1]} or more"
    return number_text(bits, ".1f")


def _gain_in_words(left_to_gain: float) -> str:
    """Return what longer training would gain at most; "?" where that is not known (NaN)."""
    if math.isnan(left_to_gain):
        return "?"
    return number_text(max(left_to_gain, 0.0), ".2f")


def show_penalties_of_direction(
    table: pd.DataFrame, rows: Sequence[int], about_job: str = ""
) -> None:
    """Print what the stitches of one direction cost, with baselines and what is left to gain.

    Args:
        table: The details of the direction, a row for each stitch.
        rows: The indices of the rows that the printed table shows.
        about_job: What the sentence ends with: the amount of text and the losses of both models
            alone; "" for nothing.
    """
    first = table.iloc[0]
    show_text(sentence_of_direction(table, about_job))
    title = f"{first['source']} → {first['target']}: loss and penalty, {_unit_of_penalty(table)}"
    title = with_share(title, {"layer pairs": (len(rows), len(table))})
    show_table(Table(title, _columns_of_direction(table.iloc[[*rows]])))
    floor = sentence_of_floor(table)
    controls = sentence_of_controls(table)
    if controls or floor:
        show_text(controls or floor)  # the floor is one of the controls
    _show_convergence(table)


def _columns_of_direction(rows: pd.DataFrame) -> list[Column]:
    """Return the columns of the printed table of one direction, those that its details have.

    Args:
        rows: The rows of the details that are shown.
    """
    penalties = []
    for row in rows.itertuples():
        penalties.append(span(row.penalty, row.penalty_low, row.penalty_high, ".2f"))
    columns = [
        number_column("layers", layer_pair_labels(rows)),
        number_column("loss", rows["stitching_loss"], ".2f"),
        number_column("penalty", penalties),
    ]
    for label, name in BASELINES.items():
        if name in rows:
            columns.append(number_column(label, rows[name], ".2f"))
    if "equivalent_bits" in rows:
        bits = [bit_width_in_words(bit_width) for bit_width in rows["equivalent_bits"]]
        columns.append(number_column("bits by loss", bits))
    if "upper_bound_of_gain" in rows:
        gains = [_gain_in_words(gain) for gain in rows["upper_bound_of_gain"]]
        columns.append(number_column("left to gain", gains))
    return columns


def _show_convergence(table: pd.DataFrame) -> None:
    """Print what longer training would gain at most, and where that is unknown.

    Nothing is printed for closed forms, which are not trained.
    """
    if "upper_bound_of_gain" not in table:
        return
    has_no_bound = table["upper_bound_of_gain"].isna()
    bounded = table[~has_no_bound]
    if len(bounded):
        gain = max(bounded["upper_bound_of_gain"].max(), 0.0)  # the bound of φ that got worse is 0
        layers = f" at {layer_pairs_in_words(bounded)}" if has_no_bound.any() else ""
        show_text(
            "Training three times longer would gain at most an estimated "
            f"{number_text(gain, '.2f')} nats per token{layers} (left to gain)."
        )
    if has_no_bound.any():
        layers = layer_pairs_in_words(table[has_no_bound])
        show_text(f"Not converged at {layers}: how much longer training would gain is unknown.")


def show_asymmetry(table: pd.DataFrame) -> None:
    """Print at which layers the costs of the two directions differ most, and by how much.

    Nothing is printed for a job with one direction.

    Args:
        table: The details of the first direction. The asymmetry is the penalty of this direction
            minus that of the reverse.
    """
    for name in ASYMMETRIES:
        if name not in table:
            continue
        index = int(table[name].abs().argmax())
        row = table.iloc[index]
        unit = _unit_of_penalty(table)
        scale = 1.0
        if name == "asymmetry_bits_per_byte":
            if {"target_loss", "target_bits_per_byte"} <= set(table):
                scale = _nats_per_token_of_target(row)
            else:
                unit = "bits per byte"
        value = scale * float(row[name])
        low = scale * float(row[f"{name}_low"])
        high = scale * float(row[f"{name}_high"])
        costs_more = f"{row['source']} into {row['target']}"
        if value < 0:
            costs_more = f"{row['target']} into {row['source']}"
        difference = _size_with_interval(value, low, high, ".3f")
        layers = layer_pairs_in_words(table.iloc[[index]])
        show_text(
            f"The two directions differ most at {layers}, where stitching {costs_more} costs "
            f"{difference} {unit} more."
        )


def models_cut_inside_blocks(result: Result) -> str:
    """Return which models are stitched inside blocks, before the MLP: "a at resid_mid".

    It is "" if both are stitched between blocks.
    """
    # The provenance names the hook point of a model only if it is stitched inside blocks.
    names = [model["name"] for model in result.provenance["models"] if "site" in model]
    if not names:
        return ""
    return f"{listed(dict.fromkeys(names))} at {MIDDLE}"


def interval_of_mean_penalty(arrays: Mapping[str, np.ndarray]) -> tuple[float, float]:
    """Return the ends of the interval of the mean penalty over layer pairs.

    The interval is over documents and seeds.

    Args:
        arrays: The arrays of a result with one direction: losses summed over documents, of φ
            (`stitch`, and `seed_...` for further seeds) and of the `target`, and `tokens`.
    """
    import torch

    from thinkalike.measures.bootstrap import documents_and_seeds_interval

    penalties_of_seeds = []
    for name, losses in arrays.items():
        if name == "stitch" or name.startswith("seed_"):
            # The loss has the axes (layer pair, document).
            mean_penalty = (losses - arrays["target"]).mean(0)
            penalties_of_seeds.append(torch.from_numpy(mean_penalty))
    tokens = torch.from_numpy(arrays["tokens"])
    estimate = documents_and_seeds_interval(torch.stack(penalties_of_seeds), tokens)
    return float(estimate.low), float(estimate.high)
