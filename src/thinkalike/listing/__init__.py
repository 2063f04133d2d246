"""Lists of results: all of a store, or those of a sweep, on a screen and for machines."""

from thinkalike.listing.found import Entry, Found, Query, search, selected
from thinkalike.listing.shown import frame, list_results, results, show_sweep

__all__ = ["Entry", "Found", "Query", "frame", "list_results", "results", "search", "selected", "show_sweep"]
