"""What screens call the text that a job read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from thinkalike.errors import listed, plain_name

if TYPE_CHECKING:
    from thinkalike.store import Result


def name_of_text(result: Result) -> str:
    """Return the name of a result's text: that of its data set, or the names of the user's files.

    It is "the text" if the configuration has no part `data`. If a field groups documents, the name
    says that those of one value count as one document, as they do in all counts of documents.
    """
    data = result.config.get("data")
    if not isinstance(data, Mapping):
        return "the text"
    files = data.get("files")
    if files:
        name = listed([plain_name(Path(str(file)).name) for file in files])
    else:
        name = str(data.get("name"))
    if data.get("group"):
        name += f" (documents of one {plain_name(str(data['group']))} count as one)"
    return name
