"""Numbers of layers, heads and the like in words: those that follow each other together."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

MOST_RANGES = 5
"""At most so many ranges of layers are named."""


def ranges_in_words(numbers: Sequence[int]) -> list[str]:
    """Return numbers as texts, where a run of consecutive numbers is one range.

    >>> ranges_in_words([3, 4, 5, 8])
    ['3 to 5', '8']

    Args:
        numbers: The numbers, in ascending order.
    """
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1].append(number)
        else:
            ranges.append([number])
    in_words = []
    for members in ranges:
        if len(members) == 1:
            in_words.append(f"{members[0]}")
        else:
            in_words.append(f"{members[0]} to {members[-1]}")
    return in_words


def blocks_in_words(layers: Sequence[int]) -> str:
    """Return blocks in words: "block 3", or "blocks 3 to 5, 8"."""
    noun = "block" if len(layers) == 1 else "blocks"
    return f"{noun} {', '.join(ranges_in_words(sorted(layers)))}"


def module_names(rows: Sequence[pd.Series]) -> str:
    """Return the names of modules in words: "embedding, attention 3 and MLP 10 to 14, 17".

    Args:
        rows: The row of each module, at least one.
    """
    layers_by_component: dict[str, list[int]] = {}
    for row in rows:
        layers_by_component.setdefault(str(row["component"]), []).append(int(row["layer"]))
    names = []
    for component, layers in layers_by_component.items():
        is_without_layer = component.endswith("embedding")  # or "unembedding"
        if is_without_layer:
            names.append(component)
        else:
            names.append(f"{component} {', '.join(ranges_in_words(layers))}")
    if len(names) == 1:
        return names[0]
    return f"{', '.join(names[:-1])} and {names[-1]}"
