"""Groups of settings that several kinds of jobs read, or leave unread, together."""

from __future__ import annotations

from collections.abc import Iterable

from thinkalike.config import JobConfig
from thinkalike.config.parts import PROCESSES
from thinkalike.config.values import value_at

# which job it is, and where and how it runs: settings that every job has, whatever its kind
OF_EVERY_JOB = frozenset(
    {
        "task",
        "measure",
        "experiment",
        "models",
        "trainer",
        "logger",
        "threads",
        "store",
        "force",
        "wait",
        "dry_run",
        "budget",
        *(f"trainer.{name}" for name in PROCESSES),
    }
)
OF_SITES = frozenset({"model.site", "target.site", "model.head", "target.head"})
FIT_TEXT = frozenset({"data.fit_tokens"})  # of jobs that fit something on text
REPORT_TEXT = frozenset(
    {"data.evaluation_tokens"}
)  # of jobs where no setting of the measure says how much is read
OF_STITCHES = frozenset({"trainer.compile", "trainer.memory", "trainer.recompute"})


def left_in_key(config: JobConfig, keys: Iterable[str]) -> dict[str, object]:
    """Return settings with the values that they have, for `Instrument.unread`.

    If a key has always had them, such as the amount of text of a recipe, it keeps them, so that
    stored results are still found.
    """
    return {key: value_at(config, key) for key in keys}
