"""The results store: a folder per finished job, named by what could change its numbers, sealed by a manifest."""

from thinkalike.store.headlines import Headline, first_scalar
from thinkalike.store.jobs import Job
from thinkalike.store.locks import locked
from thinkalike.store.manifest import damage, is_sealed
from thinkalike.store.result import Result, finished, open_result
from thinkalike.store.states import newest_state, read_state, write_state

__all__ = [
    "Headline",
    "Job",
    "Result",
    "damage",
    "finished",
    "first_scalar",
    "is_sealed",
    "locked",
    "newest_state",
    "open_result",
    "read_state",
    "write_state",
]
