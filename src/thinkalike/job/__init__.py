"""The frame of every job: what it reads, its key, lock, states, provenance and result."""

from thinkalike.job.inputs import fingerprints
from thinkalike.job.instrument import Instrument
from thinkalike.job.outcome import Outcome
from thinkalike.job.work import Work

__all__ = ["Instrument", "Outcome", "Work", "fingerprints"]
