"""What a direction of a stitching job found, in one sentence that is made from its table."""

from __future__ import annotations

import pandas as pd


def sentence(table: pd.DataFrame) -> str:
    """Return what stitches cost, beside no map and the target into itself, and which verdicts that gives.

    Args:
        table: of one direction of a stitching result.
    """
    first = table.iloc[0]
    is_itself = first["source"] == first["target"]
    target = "itself" if is_itself else str(first["target"])
    who = f"{_layers(table)} of {first['source']} {'feeds' if len(table) == 1 else 'feed'} {target}"
    beside = {"identity_penalty": "without a map", "floor_penalty": f"for {target} into itself"}
    known = [name for name in beside if name in table and not is_itself]
    against = " and ".join(f"{_span(table, name)} {beside[name]}" for name in known)
    cost = f"{_span(table, 'penalty')} nats per token{', against ' if against else ''}{against}"
    return f"{who} at a cost of {cost}: {_verdicts(table)}{_unconverged(table)}."


def _layers(table: pd.DataFrame) -> str:
    """Return which layers of the source are stitched, and to which of the target where they are others."""
    pairs = [
        (int(layer), int(depth)) for layer, depth in zip(table["source_layer"], table["target_layer"], strict=True)
    ]
    layers = [layer for layer, _ in pairs]
    if len(pairs) == 1:
        layer, depth = pairs[0]
        return f"Layer {layer}" if layer == depth else f"Layer {layer}, before block {depth + 1},"
    if all(layer == depth for layer, depth in pairs):
        in_a_row = layers == list(range(layers[0], layers[-1] + 1))
        return f"Layers {layers[0]} to {layers[-1]}" if in_a_row else f"Layers {', '.join(map(str, layers))}"
    return f"Layers {min(layers)} to {max(layers)}, in {len(pairs)} pairs,"


def _span(table: pd.DataFrame, column: str) -> str:
    """Return the least and the greatest number of a column, or the one that both round to."""
    ends = [f"{value:.2g}" for value in (table[column].min(), table[column].max())]
    return " to ".join(dict.fromkeys(ends))


def _verdicts(table: pd.DataFrame) -> str:
    counts = table["verdict"].value_counts(sort=False)
    if len(counts) == 1:
        return str(counts.index[0])
    return ", ".join(f"{verdict} at {count} of {len(table)}" for verdict, count in counts.items())


def _unconverged(table: pd.DataFrame) -> str:
    """Return at how many layer pairs training had not converged, if at any."""
    if "converged" not in table or table["converged"].all():
        return ""
    return f"; training had not converged at {int((~table['converged']).sum())} of {len(table)}"
