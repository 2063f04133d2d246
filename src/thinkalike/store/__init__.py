"""The results store: a folder per finished job, named by what could change its numbers, sealed by a manifest."""

from thinkalike.store.jobs import Job, newest_state, read_state, write_state
from thinkalike.store.result import Headline, Result, damage, finished, first_scalar, is_sealed, open_result

__all__ = ["Headline", "Job", "Result", "damage", "finished", "first_scalar", "is_sealed", "newest_state",
           "open_result", "read_state", "write_state"]  # fmt: skip
