"""Checks of a sweep before Hydra composes its jobs: how many there are, and its launcher."""

from __future__ import annotations

import math
from collections.abc import Mapping

from thinkalike.errors import ConfigError, short

MOST_JOBS = 10_000  # of a sweep; Hydra lists and composes all of them before the first begins
JOBLIB_LAUNCHER = "hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher"
# what Hydra's launcher passes to joblib whatever its settings are, and what that means for others
JOBLIB_ALWAYS = {"backend": "loky", "prefer": "processes"}


def check_jobs_of_sweep(counts: Mapping[str, int | float], max_batch_size: int | None) -> None:
    """Check that a sweep has jobs, and not too many.

    Args:
        counts: By key how many values of it are tried.
        max_batch_size: The setting of Hydra's sweeper.

    Raises:
        ConfigError: A key has no values, there are more than `MOST_JOBS` jobs, or a batch has
            none.
    """
    empty = [key for key, count in counts.items() if count == 0]
    if empty:
        raise ConfigError(f"{short(empty[0])} has no values, so the sweep has no jobs")
    if max_batch_size is not None and max_batch_size < 1:
        raise ConfigError(f"hydra.sweeper.max_batch_size={max_batch_size} must be at least 1")
    if math.prod(counts.values()) > MOST_JOBS:
        longest = max(counts, key=lambda key: counts[key])
        raise ConfigError(
            f"the sweep has more than {MOST_JOBS:,} jobs, and {short(longest)} alone has "
            f"{counts[longest]:,} values; divide it into several sweeps"
        )


def length_of_range(start: int | float, stop: int | float, step: int | float) -> int | float:
    """Return how many values range(start, stop, step) has, without making them."""
    if not step:
        return math.inf
    count = (stop - start) / step
    return max(0, math.ceil(count)) if math.isfinite(count) else math.inf


def check_launcher(launcher: Mapping[str, object]) -> None:
    """Check that the settings of a launcher have an effect.

    Raises:
        ConfigError: One chooses how joblib starts jobs, which its launcher has decided for.
    """
    if launcher["_target_"] != JOBLIB_LAUNCHER:
        return
    for name, value in JOBLIB_ALWAYS.items():
        if launcher.get(name) not in (None, value):
            raise ConfigError(
                f"hydra.launcher.{name}={short(launcher[name])} has no effect, as this launcher "
                f"has {name}={value} always; leave it out"
            )
