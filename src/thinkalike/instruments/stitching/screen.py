"""What a stitching job prints: penalties, how near the stitched model is to the target, and the controls."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pandas as pd

from thinkalike.evaluation import number_of_documents
from thinkalike.instruments.stitching.sentence import sentence
from thinkalike.instruments.stitching.table import BESIDE
from thinkalike.screen import Column, Table, number_column, show_table, show_text, text_column
from thinkalike.store import Result

log = logging.getLogger(__name__)

LOW_PENALTY, FAR = 0.1, 1.0  # nats; distance to the target's state relative to its norm
NEARNESS = {
    "KL": ("kl", ".4f"),
    "same top token": ("top1_agreement", ".1%"),
    "distance": ("distance", ".3f"),
    "distance at the end": ("penultimate_distance", ".3f"),
    "norm ratio": ("norm_ratio", ".3f"),
    "bits per byte": ("bits_per_byte", ".4f"),
}

SHARED = {
    "R² →": "r2",
    "R² ←": "r2_back",
    "given the token: R² →": "r2_given_token",
    "R² given ←": "r2_given_token_back",
    "CKA given": "cka_given_token",
    "future": "future",
}
LITTLE = 0.1  # R² given the token, in the worse direction


def show_stitches(result: Result) -> None:
    """Print the tables of each direction, warn of what makes a low penalty doubtful, and say what was found."""
    directions = [table for _, table in result.table.groupby(["source", "target"], sort=False)]
    for table in directions:
        _show_direction(result, table)
    for figure in (path for path in result.figures if path.suffix == ".png"):
        show_text(f"figure: {figure}")
    for table in directions:
        show_text(sentence(table))


def _show_direction(result: Result, table: pd.DataFrame) -> None:
    counts, first = result.provenance["data"], table.iloc[0]
    aligned = "penalty_bits_per_byte" in table
    unit = f"nats per token of {first['target']}" if aligned else "nats per token"
    title = (
        f"{first['source']} into {first['target']}: φ {first['stitch']}, {unit}, 95 % intervals over "
        f"{number_of_documents(result.scalars)}, {counts['report_tokens']:,} tokens"
    )
    names = ("stitching", "target") if aligned else ("stitching", "target", "source")  # whose tokens are not others
    losses = [number_column(f"{name} loss", table[f"{name}_loss"], ".4f") for name in names]
    _print(title, table, [*losses, *_penalty(table, "penalty"), *_training(table)])
    if aligned:
        _print_bits(result, table)
    nearness = [number_column(label, table[column], form) for label, (column, form) in NEARNESS.items()]
    _print("against the target's own output and states", table, nearness)
    beside = [name for name in BESIDE if f"{name}_penalty" in table]
    cells = [number_column(name.replace("_", " "), table[f"{name}_penalty"], "+.4f") for name in beside]
    _print("penalties of what stands beside φ, nats per token", table, cells)
    shared = [number_column(label, table[column], ".3f") for label, column in SHARED.items()]
    _print("what the states share, held out", table, [*shared, text_column("verdict", table["verdict"])])
    _warn_of_far_states(table)
    _warn_of_little_shared(table)


def _penalty(table: pd.DataFrame, column: str) -> list[Column]:
    """Return a penalty and its interval."""
    ends = zip(table[f"{column}_low"], table[f"{column}_high"], strict=True)
    interval = number_column("interval", [f"{low:+.4f} to {high:+.4f}" for low, high in ends], follows=True)
    return [number_column("penalty", table[column], "+.4f"), interval]


def _training(table: pd.DataFrame) -> list[Column]:
    """Return whether training had converged, and how far it was from the best of other rates and starts."""
    if "converged" not in table:
        return []
    ended = zip(table["converged"], table["late_gain"], strict=True)
    gains = [f"{gain:+.4f}" if flat else f"{gain:+.4f}, not converged" for flat, gain in ended]
    gap = number_column("optimisation gap", table["optimisation_gap"], "+.4f", follows=True)
    return [number_column("last fifth", gains), gap]


def _print(title: str, table: pd.DataFrame, columns: Sequence[Column]) -> None:
    pairs = zip(table["source_layer"], table["target_layer"], strict=True)
    layers = number_column("layer", [f"{layer}→{depth}" for layer, depth in pairs])
    show_table(Table(title, [layers, *columns]))


def _print_bits(result: Result, table: pd.DataFrame) -> None:
    """Print what models of different tokenizers can be compared in, and how their tokens are aligned."""
    shares = result.scalars
    losses = {"stitching": "bits_per_byte", "target": "target_bits_per_byte", "source": "source_bits_per_byte"}
    cells = [number_column(label, table[column], ".4f") for label, column in losses.items()]
    how = ", ".join(f"{shares[f'aligned_{name}']:.1%} {name}" for name in ("exactly", "earlier", "nowhere"))
    title = f"the same in bits per byte; tokens of the target are aligned: {how}"
    _print(title, table, [*cells, *_penalty(table, "penalty_bits_per_byte")])


def _warn_of_far_states(table: pd.DataFrame) -> None:
    """Say when a stitch does well with states that the target never has: its loss then says little of likeness."""
    for row in table[(table["penalty"] < LOW_PENALTY) & (table["distance"] > FAR)].itertuples():
        log.warning(
            "warning: %s→%s costs only %.3f nats, but its states lie %.1f norms from the target's own",
            row.source_layer, row.target_layer, row.penalty, row.distance,
        )  # fmt: skip


def _warn_of_little_shared(table: pd.DataFrame) -> None:
    """Say where the states share next to nothing but the current token: no penalty there speaks of likeness."""
    for row in table.to_dict("records"):
        least = min(row["r2_given_token"], row["r2_given_token_back"])
        if least < LITTLE:
            log.warning(
                "warning: given the token, %s→%s explain %.2f of each other's states in the worse direction: a penalty "
                "of %+.3f nats does not speak of likeness",
                row["source_layer"], row["target_layer"], least, row["penalty"],
            )  # fmt: skip
