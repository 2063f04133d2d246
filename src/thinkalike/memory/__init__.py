"""Memory: what a device has left, what a computation takes of it, and whether an error means that there is none."""

from thinkalike.memory.devices import Budget, at_hand, in_use, readable
from thinkalike.memory.exhausted import exhausted
from thinkalike.memory.live import LiveBytes, OverLimit

__all__ = ["Budget", "LiveBytes", "OverLimit", "at_hand", "exhausted", "in_use", "readable"]
