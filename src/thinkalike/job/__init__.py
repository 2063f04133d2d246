"""The frame of every job: what it reads, its key, its lock, its state, its provenance, and what it may leave."""

from thinkalike.job.instrument import (
    LADDER,
    OF_STITCHES,
    Instrument,
    Outcome,
    Phases,
    Work,
    asked_for,
    check_read,
    fingerprints,
    phase_of_all,
)
from thinkalike.job.performing import (
    is_known_done,
    is_stored,
    key_of,
    may_take_long,
    passes,
    perform,
    perform_all,
    run_job,
    run_jobs,
)

__all__ = [
    "LADDER", "OF_STITCHES", "Instrument", "Outcome", "Phases", "Work", "asked_for", "check_read", "fingerprints",
    "is_known_done", "is_stored", "key_of", "may_take_long", "passes", "perform", "perform_all", "phase_of_all",
    "run_job", "run_jobs",
]  # fmt: skip
