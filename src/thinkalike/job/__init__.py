"""The frame of every job: what it reads, its key, its lock, its state, its provenance, and what it may leave."""

from thinkalike.job.feasibility import check_memory, check_time
from thinkalike.job.frame import Instrument, Work, fingerprints
from thinkalike.job.outcome import Outcome
from thinkalike.job.performing import key_of, perform, perform_all
from thinkalike.job.phases import Phases, phase_of_all
from thinkalike.job.provenance import environment
from thinkalike.job.resources import explained

__all__ = [
    "Instrument",
    "Outcome",
    "Phases",
    "Work",
    "check_memory",
    "check_time",
    "environment",
    "explained",
    "fingerprints",
    "key_of",
    "perform",
    "perform_all",
    "phase_of_all",
]
