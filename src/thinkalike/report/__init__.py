"""One HTML page of a store: every result, and for each pair of models the matrices of all measures side by side.

`gather` reads the results that a user names, `report_of` turns their tables into what the page shows, by the columns
that they have, and `write_page` packs that with the page's own HTML, CSS and JavaScript into one file.
"""

from thinkalike.report.command import gather, page_of, write_page, write_report
from thinkalike.report.reports import report_of

__all__ = ["gather", "page_of", "report_of", "write_page", "write_report"]
