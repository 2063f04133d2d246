"""The frame of every job: what it reads, its key, its lock, its state, its provenance, and what it may leave."""

from thinkalike.job.instrument import OF_STITCHES, Instrument, Outcome, Phases, Work, fingerprints, phase_of_all
from thinkalike.job.performing import is_stored, key_of, perform, perform_all

__all__ = [
    "OF_STITCHES", "Instrument", "Outcome", "Phases", "Work", "fingerprints", "is_stored", "key_of", "perform",
    "perform_all", "phase_of_all",
]  # fmt: skip
