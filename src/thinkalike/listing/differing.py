"""The settings in which the results of one kind differ: the only ones that a list has to show."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

from thinkalike.errors import flat
from thinkalike.listing.store_content import ListedResult, skipping

# Most settings of these parts of a configuration follow from the name of the model or the data.
NAMED_PARTS = ("model", "target", "data")
SHOWN_AS_MODELS = ("model.name", "target.name")
MOST_COLUMNS = 5000  # of a table of results; those of all kinds together have a few hundred
MOST_CELLS = 5_000_000  # of such a table; 50,000 results of a hundred columns fit
ENCODER = json.JSONEncoder(sort_keys=True)

# A part of the configuration, and the name of the model or data there: ("model", '"gpt2"').
Group = tuple[str, str]
ALL_RESULTS: Group = ("", "")


def with_differing(entries: Sequence[ListedResult], skipped: list[str]) -> list[ListedResult]:
    """Return results with `differing`: the settings in which those of one kind differ.

    A setting of a model or of data counts only if it differs between results that have the same
    name there.

    A result whose configuration cannot be read is left out, and `skipped` gets a line about it. So
    is a result with more settings and numbers than a list has room for.
    """
    narrow = _narrow_enough(entries, skipped)
    readable = _read_differing(narrow, skipped)
    if len(readable) < len(narrow):  # without the unreadable ones, fewer settings may differ
        readable = _read_differing(readable, skipped)
    return readable


def _narrow_enough(entries: Sequence[ListedResult], skipped: list[str]) -> Sequence[ListedResult]:
    """Return the results that fit into one list; the widest are left out first.

    `skipped` gets a line about each of these. Someone who makes up thousands of numbers so hides
    no result of others.
    """
    if not _is_too_wide(entries):
        return entries

    # Find by bisection how many of the narrowest results fit.
    by_width = sorted(range(len(entries)), key=lambda position: _width(entries[position]))
    fitting_count = 0
    too_many = len(entries)
    while too_many - fitting_count > 1:
        middle = (fitting_count + too_many) // 2
        if _is_too_wide([entries[position] for position in by_width[:middle]]):
            too_many = middle
        else:
            fitting_count = middle

    for position in sorted(by_width[fitting_count:]):
        entry = entries[position]
        skipped.append(
            f"{entry.result.folder} has {_width(entry):,} settings and numbers, and a list has "
            f"at most {MOST_COLUMNS:,}, or {MOST_CELLS:,} cells"
        )
    return [entries[position] for position in sorted(by_width[:fitting_count])]


def _width(entry: ListedResult) -> int:
    """Return how many columns a list needs for a result."""
    return len(entry.settings) + len(entry.result.scalars) + len(entry.numbers)


def _is_too_wide(entries: Sequence[ListedResult]) -> bool:
    """Return whether results have more settings and numbers than a list has room for."""
    settings: set[str] = set()
    numbers: set[str] = set()
    for entry in entries:
        settings.update(entry.settings)
        numbers.update(entry.result.scalars, entry.numbers)
    if _is_small_enough(
        len(entries), len(settings | numbers)
    ):  # in most lists no values have to be compared
        return False

    differing: set[str] = set()
    for members in _by_kind(entries).values():
        differing.update(_differing_names(members))
    return not _is_small_enough(len(entries), len(differing | numbers))


def _is_small_enough(rows: int, columns: int) -> bool:
    return columns <= MOST_COLUMNS and rows * columns <= MOST_CELLS


def _by_kind(entries: Sequence[ListedResult]) -> dict[str, list[ListedResult]]:
    by_kind: dict[str, list[ListedResult]] = defaultdict(list)
    for entry in entries:
        by_kind[entry.result.kind].append(entry)
    return by_kind


def _read_differing(entries: Sequence[ListedResult], skipped: list[str]) -> list[ListedResult]:
    """Return the results whose configuration can be read, with `differing`."""
    names_by_kind = {}
    for kind, members in _by_kind(entries).items():
        names_by_kind[kind] = _differing_names(members)
    readable = []
    for entry in entries:
        with skipping(entry.result.folder, skipped):
            settings = _settings_named(entry, names_by_kind[entry.result.kind])
            readable.append(replace(entry, differing=settings))
    return readable


def _settings_named(entry: ListedResult, names: Sequence[str]) -> dict[str, object]:
    """Return the settings of these names; defaults are read from the configuration."""
    settings = entry.settings
    has_all = all(name in settings for name in names)
    if not has_all:  # most configurations need not be read
        settings = flat(entry.result.config) | settings
    return {name: settings.get(name) for name in names}


def _differing_names(entries: Sequence[ListedResult]) -> list[str]:
    """Return the names of the settings in which results of one kind differ.

    It needs one pass over the settings of each result: for each setting it counts the results by
    value, within those of the same model or data if the setting belongs to one. The setting
    differs if it has two values there, or if only some of these results have it.
    """
    group_sizes: Counter[Group] = Counter({ALL_RESULTS: len(entries)})
    value_counts: dict[tuple[str, Group], Counter[str]] = defaultdict(Counter)
    for entry in entries:
        groups = {}
        for part in NAMED_PARTS:
            groups[part] = (part, _comparable_text(entry.settings.get(f"{part}.name")))
        group_sizes.update(groups.values())

        for name, value in entry.settings.items():
            if value is None or name in SHOWN_AS_MODELS:
                continue
            part = name.partition(".")[0]
            group = ALL_RESULTS
            if part in NAMED_PARTS and name != f"{part}.name":
                group = groups[part]
            value_counts[name, group][_comparable_text(value)] += 1

    differing = set()
    for (name, group), counts in value_counts.items():
        some_lack_it = counts.total() < group_sizes[group]
        if some_lack_it or len(counts) > 1:
            differing.add(name)
    return sorted(differing)


def _comparable_text(value: object) -> str:
    """Return a text that only equal values share; lists cannot be keys of a dictionary."""
    if isinstance(value, str):
        # only texts begin with a quote; encoding thousands of them would be slow
        return f'"{value}'
    return ENCODER.encode(value)
