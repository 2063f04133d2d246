"""Tables of results on a screen."""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from thinkalike.errors import listed, plain_line
from thinkalike.listing.store_content import ListedResult, skipping
from thinkalike.screen import Column, Table, show_table, text_column
from thinkalike.store import Result

log = logging.getLogger(__name__)

MOST_MODELS = 2  # of a result that a table lists in full
LONGEST_SECONDS = 100  # from here on a duration is in minutes
LONGEST_MINUTES = 100  # from here on it is in hours


def show_entries(entries: Sequence[ListedResult]) -> None:
    """Print a table for each kind of result, with the settings in which its results differ."""
    entries_by_folder: dict[Path, list[ListedResult]] = defaultdict(list)
    for entry in entries:
        entries_by_folder[entry.result.folder.parent].append(entry)

    for folder, members in entries_by_folder.items():
        jobs = []
        descriptions = []
        for entry in members:
            key = plain_line(entry.result.key)
            jobs.append(f"{key}\n{entry.date:%Y-%m-%d %H:%M}\n{duration(entry.seconds)}")
            descriptions.append(_models_and_settings(entry))
        noun = "results"
        if len(members) == 1:
            noun = "result"
        title = f"{folder}: {len(members)} {noun}"
        _show_jobs(title, jobs, "models and settings", descriptions, members)


def _models_and_settings(entry: ListedResult) -> list[str]:
    """Return the lines that tell a result from the others of its kind."""
    models = entry.models
    if len(models) > MOST_MODELS:
        models = [listed(models)]
    settings = [_as_setting(name, value) for name, value in entry.differing.items()]
    return [*models, *settings]


def _as_setting(name: str, value: object) -> str:
    """Return a setting as a command line has it: stitch=affine, layers=[[0,0]]."""
    text = value
    if not isinstance(value, str):
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    option = name.removesuffix(".name").removesuffix(".kind")
    return f"{option}={text}"


def _show_jobs(
    title: str,
    jobs: Sequence[str],
    description_column: str,
    descriptions: Sequence[Sequence[str]],
    entries: Sequence[ListedResult],
) -> None:
    """Print a table of jobs with the lines that describe each, and its headline numbers.

    Every line is made of one line: a name with line breaks would forge settings and numbers.
    """
    description_cells = []
    for lines in descriptions:
        description_cells.append("\n".join(map(plain_line, lines)))
    number_cells = []
    for entry in entries:
        number_cells.append("\n".join(plain_line(str(headline)) for headline in entry.headlines))

    columns = [
        Column("job", jobs),
        text_column(description_column, description_cells),
        text_column("result", number_cells),
    ]
    show_table(Table(plain_line(title), columns, ruled=True))


def duration(seconds: float) -> str:
    """Return seconds in words: 31 s, 12 min, 3.5 h."""
    if seconds < LONGEST_SECONDS:
        return f"{seconds:.3g} s"
    minutes = seconds / 60
    if minutes < LONGEST_MINUTES:
        return f"{minutes:.0f} min"
    return f"{minutes / 60:.1f} h"


def show_sweep(jobs: Sequence[tuple[Sequence[str], Path]]) -> None:
    """Print one table of the results of a sweep.

    A result that cannot be read any more is left out with a warning.

    Args:
        jobs: the overrides of each job of the sweep, and the folder of its result.
    """
    entries: list[ListedResult] = []
    overrides: list[dict[str, str]] = []  # by key, of each entry
    unreadable: list[str] = []
    for words, folder in jobs:
        with skipping(folder, unreadable):
            entries.append(ListedResult.of(Result(folder)))
            overrides.append(_overrides_by_key(words))
    for line in unreadable:
        log.warning("left out of the sweep's table: %s", plain_line(line))
    if not entries:
        return

    swept = _swept_keys(overrides)
    descriptions = []
    for values in overrides:
        descriptions.append([f"{key}={values.get(key, '')}" for key in swept])
    cells = [f"{entry.result.key}\n{duration(entry.seconds)}" for entry in entries]
    _show_jobs(f"jobs of the sweep: {len(entries)}", cells, "swept", descriptions, entries)


def _overrides_by_key(words: Sequence[str]) -> dict[str, str]:
    """Return the values of overrides such as +seed=3 by their keys."""
    values = {}
    for word in words:
        key, _, value = word.partition("=")
        values[key.lstrip("+~")] = value
    return values


def _swept_keys(overrides: Sequence[dict[str, str]]) -> list[str]:
    """Return the keys whose values differ between jobs; all keys of a single job."""
    keys = dict.fromkeys(key for values in overrides for key in values)
    if len(overrides) == 1:
        return list(keys)
    swept = []
    for key in keys:
        distinct_values = {values.get(key) for values in overrides}
        if len(distinct_values) > 1:
            swept.append(key)
    return swept
