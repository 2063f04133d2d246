"""What a stitching job prints: penalties, how near the stitched model is to the target, and the controls."""

from __future__ import annotations

import logging

import pandas as pd
from rich.console import Console
from rich.table import Table

from thinkalike.evaluation import number_of_documents
from thinkalike.instruments.stitching.sentence import sentence
from thinkalike.instruments.stitching.table import BESIDE
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
        print(f"figure: {figure}")
    for table in directions:
        print(sentence(table))


def _show_direction(result: Result, table: pd.DataFrame) -> None:
    counts, first = result.provenance["data"], table.iloc[0]
    aligned = "penalty_bits_per_byte" in table
    unit = f"nats per token of {first['target']}" if aligned else "nats per token"
    title = (
        f"{first['source']} into {first['target']}: φ {first['stitch']}, {unit}, 95 % intervals over "
        f"{number_of_documents(result.scalars)}, {counts['report_tokens']:,} tokens"
    )
    columns = {"stitching loss": "stitching_loss", "target loss": "target_loss", "source loss": "source_loss"}
    if aligned:
        del columns["source loss"]  # of other tokens
    losses = {label: _written(table[column], ".4f") for label, column in columns.items()}
    losses["penalty"] = _written(table["penalty"], "+.4f")
    spans = zip(table["penalty_low"], table["penalty_high"], strict=True)
    losses["interval"] = [f"{low:+.4f} to {high:+.4f}" for low, high in spans]
    _print(title, table, losses | _training(table))
    if aligned:
        _print_bits(result, table)
    nearness = {label: _written(table[column], form) for label, (column, form) in NEARNESS.items()}
    _print("against the target's own output and states", table, nearness)
    beside = [name for name in BESIDE if f"{name}_penalty" in table]
    cells = {name.replace("_", " "): _written(table[f"{name}_penalty"], "+.4f") for name in beside}
    _print("penalties of what stands beside φ, nats per token", table, cells)
    shared = {label: _written(table[column], ".3f") for label, column in SHARED.items()}
    _print("what the states share, held out", table, shared | {"verdict": list(table["verdict"])})
    _warn_of_far_states(table)
    _warn_of_little_shared(table)


def _training(table: pd.DataFrame) -> dict[str, list[str]]:
    """Return whether training had converged, and how far it was from the best of other rates and starts."""
    if "converged" not in table:
        return {}
    ended = zip(table["converged"], table["late_gain"], strict=True)
    return {
        "last fifth": [f"{gain:+.4f}" if flat else f"{gain:+.4f}, not converged" for flat, gain in ended],
        "optimisation gap": _written(table["optimisation_gap"], "+.4f"),
    }


def _written(values: pd.Series, form: str) -> list[str]:
    return [f"{value:{form}}" for value in values]


def _print(title: str, table: pd.DataFrame, cells: dict[str, list[str]]) -> None:
    printed = Table(title=title)
    printed.add_column("layer", justify="right")
    for name in cells:
        printed.add_column(name, justify="right")
    for number, (layer, depth) in enumerate(zip(table["source_layer"], table["target_layer"], strict=True)):
        printed.add_row(f"{layer}→{depth}", *(column[number] for column in cells.values()))
    Console(width=max(Console().width, 120)).print(printed)


def _print_bits(result: Result, table: pd.DataFrame) -> None:
    """Print what models of different tokenizers can be compared in, and how their tokens are aligned."""
    shares = result.scalars
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
