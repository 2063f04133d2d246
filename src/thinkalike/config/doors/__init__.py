"""The two doors: a function of a configuration as the main function of a script, its sweeps, and how it ends."""

from thinkalike.config.doors.scripts import door, own_process

__all__ = ["door", "own_process"]
