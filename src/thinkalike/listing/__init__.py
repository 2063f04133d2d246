"""Lists of results: all of a store, or those of a sweep, on a screen and for machines."""

from thinkalike.listing.command import list_results
from thinkalike.listing.found import Entry, Found, search
from thinkalike.listing.query import Query, selected
from thinkalike.listing.records import frame, results
from thinkalike.listing.sweeps import show_sweep

__all__ = ["Entry", "Found", "Query", "frame", "list_results", "results", "search", "selected", "show_sweep"]
