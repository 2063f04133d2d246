"""The joint table of a sweep: what was swept, and the headline numbers of each job."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from thinkalike.config import LoggerConfig, Made
from thinkalike.errors import StoreError
from thinkalike.listing.found import Entry
from thinkalike.listing.screen import duration, print_rows, told
from thinkalike.loggers import About, publish_table
from thinkalike.store import Result

log = logging.getLogger(__name__)


def show_sweep(made: Sequence[Made]) -> None:
    """Print one table of what the jobs of a sweep made; where one of them was logged to W&B, it becomes a run there."""
    jobs = [(each, entry) for each in made if (entry := _read(each))]
    if not jobs:
        return
    swept = _swept([each for each, _ in jobs])
    settings = [{name: each.get(name, "") for name in swept} for each in map(_settings, (job for job, _ in jobs))]
    rows = [
        ([entry.key, duration(entry.seconds)], [f"{name}={value}" for name, value in own.items()], told(entry))
        for (_, entry), own in zip(jobs, settings, strict=True)
    ]
    print_rows(f"jobs of the sweep: {len(jobs)}", rows, ("job", "swept", "result"))
    logged = next((each.logger for each, _ in jobs if each.logger["kind"] == "wandb"), None)
    if logged:
        store = jobs[0][1].result.folder.parent.parent
        name = f"sweep of {', '.join(swept) or 'one job'}"
        table = joint_table([entry for _, entry in jobs], settings)
        publish_table(LoggerConfig(**logged), About(name, "sweep", store, store), table)


def joint_table(entries: Sequence[Entry], settings: Sequence[Mapping[str, str]]) -> pd.DataFrame:
    """Return one row per job: kind, what was swept, models, headline numbers with their ends, seconds, folder."""
    return pd.DataFrame(
        [
            {
                "kind": entry.kind,
                **own,
                "models": ", ".join(entry.models),
                **{name: value for each in entry.headlines for name, value in each.numbers.items()},
                "seconds": entry.seconds,
                "folder": os.fspath(entry.result.folder),
            }
            for entry, own in zip(entries, settings, strict=True)
        ]
    )


def _read(made: Made) -> Entry | None:
    """Return the result that a job made, or None, with a warning, if it is not there any more."""
    try:
        return Entry.of(Result(Path(made.folder)))
    except StoreError as error:
        log.warning("left out of the sweep's table: %s", error)
        return None


def _settings(made: Made) -> dict[str, Any]:
    """Return the words of a job by their keys."""
    return {key.lstrip("+~"): value for key, _, value in (word.partition("=") for word in made.words)}


def _swept(made: Sequence[Made]) -> list[str]:
    """Return the keys in which the jobs differ, and of a job that is left alone all that were given."""
    given = [_settings(each) for each in made]
    keys = dict.fromkeys(key for each in given for key in each)
    return [key for key in keys if len(given) == 1 or len({each.get(key) for each in given}) > 1]
