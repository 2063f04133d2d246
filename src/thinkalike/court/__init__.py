"""A court for likeness: sources whose likeness to a target is known, judged by every measure of likeness."""

from thinkalike.court.source import Remembered, Setting, Source
from thinkalike.court.table import KINDS, SOURCES, Entry, entries

__all__ = ["KINDS", "SOURCES", "Entry", "Remembered", "Setting", "Source", "entries"]
