"""Memory: what a device has left, what a computation takes of it, and whether an error means that there is none."""

from thinkalike.memory.devices import GAPS, MARGIN, Budget, at_hand, hand_back, in_use, readable
from thinkalike.memory.live import LiveBytes, OverLimit
from thinkalike.memory.shortage import exhausted

__all__ = [
    "GAPS",
    "MARGIN",
    "Budget",
    "LiveBytes",
    "OverLimit",
    "at_hand",
    "exhausted",
    "hand_back",
    "in_use",
    "readable",
]
