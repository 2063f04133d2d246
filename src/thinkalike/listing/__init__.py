"""Lists of results: on a screen, for other programs, in Python, and of a sweep."""

from thinkalike.listing.command import command_parser as command_parser
from thinkalike.listing.command import list_results as list_results
from thinkalike.listing.frames import ListRecord as ListRecord
from thinkalike.listing.frames import records as records
from thinkalike.listing.frames import results as results
from thinkalike.listing.query import Query as Query
from thinkalike.listing.query import selected as selected
from thinkalike.listing.query import stores_and_settings as stores_and_settings
from thinkalike.listing.store_content import ListedResult as ListedResult
from thinkalike.listing.store_content import StoreContent as StoreContent
from thinkalike.listing.store_content import search as search
from thinkalike.listing.store_content import skipping as skipping
from thinkalike.listing.tables import show_sweep as show_sweep
