"""Groups of settings that several kinds of jobs read, or leave unread, together."""

from __future__ import annotations

from collections.abc import Iterable

from thinkalike.config import JobConfig
from thinkalike.config.parts import PROCESSES
from thinkalike.config.values import value_at

# Which job it is, and where and how it runs: settings that every job has, whatever its kind.
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

# Where states are taken.
OF_SITES = frozenset({"model.site", "target.site", "model.head", "target.head"})

# How a model reads text.
OF_READING = frozenset(
    f"{side}.{name}" for side in ("model", "target") for name in ("bos", "context", "corpus")
)

# How much text is read by jobs that fit something on it, ...
FIT_TEXT = frozenset({"data.fit_tokens"})
# ... and by jobs where no setting of the measure says how much.
REPORT_TEXT = frozenset({"data.evaluation_tokens"})

# How stitches are trained.
OF_STITCHES = frozenset({"trainer.compile", "trainer.memory", "trainer.recompute"})


def left_in_key(config: JobConfig, keys: Iterable[str]) -> dict[str, object]:
    """Return the values of settings that a job ignores, but that stay in the hash of the job.

    `Instrument.unread` usually replaces ignored settings by defaults. A setting that has always
    been part of the hash under which results are stored must stay there, so that stored results
    are still found.

    Args:
        config: The configuration.
        keys: The keys of the settings, such as "data.fit_tokens".
    """
    return {key: value_at(config, key) for key in keys}
