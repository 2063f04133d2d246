"""What screens call the text that a job read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from thinkalike.errors import listed

if TYPE_CHECKING:
    from thinkalike.store import Result


def name_of_text(result: Result) -> str:
    """Return what to call the text of a result: the name of its data set, or those of its files.

    It is "the text" where the configuration names none.
    """
    data = result.config.get("data")
    if not isinstance(data, Mapping):
        return "the text"
    files = data.get("files")
    if files:
        return listed([Path(str(file)).name for file in files])
    return str(data.get("name"))
