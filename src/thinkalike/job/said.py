"""The warnings of a pass of jobs: each is said once, and results keep them."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterable, Iterator

WARNING = "warning: "
LOGGER = logging.getLogger("thinkalike")


class Warnings(logging.Handler):
    """Gathers the warnings of a pass, and marks records that say one again, as `record.again`."""

    def __init__(self) -> None:
        super().__init__()
        self.said: dict[str, None] = {}

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text.startswith(WARNING):
            record.again = getattr(record, "again", False) or text in self.said
            self.said[text] = None
        if not logging.root.handlers and logging.lastResort and LOGGER.handlers[0] is self:  # as if this were not there
            logging.lastResort.handle(record)

    def of(self, own: Iterable[str], others: Iterable[str]) -> list[str]:
        """Return the warnings that name none of the `others`, models that other jobs of the pass have, unless `own`."""
        foreign = [re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])") for name in {*others} - {*own}]
        texts = [text.removeprefix(WARNING) for text in self.said]
        return [text for text in texts if not any(name.search(text) for name in foreign)]


@contextlib.contextmanager
def gathered() -> Iterator[Warnings]:
    """Gather warnings while this is open."""
    warnings = Warnings()
    LOGGER.addHandler(warnings)
    try:
        yield warnings
    finally:
        LOGGER.removeHandler(warnings)
