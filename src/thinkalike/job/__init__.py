"""The frame of every job: what it reads, its key, its lock, its state, its provenance, and what it may leave."""

from thinkalike.job.instrument import Instrument, Outcome, Work, fingerprints

__all__ = ["Instrument", "Outcome", "Work", "fingerprints"]
