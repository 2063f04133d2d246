"""Numbers of layers, heads and the like in words: those that follow each other together."""

from __future__ import annotations

from collections.abc import Sequence


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
