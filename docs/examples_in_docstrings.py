"""What the pages of the Python API make of examples in docstrings: blocks of code.

mkdocs.yml names this file as an extension of griffe. Without it, Markdown reads the `>>>` of an
example as a quotation in a quotation, and its brackets as links.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)
"""An example: from the first line with a prompt up to an empty line or the end."""


class ExamplesAsCode(griffe.Extension):
    """Puts the examples of each docstring into blocks of code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of an object, if it has one, when the object is loaded."""
        if obj.docstring is not None:
            obj.docstring.value = with_examples_as_code(obj.docstring.value)


def with_examples_as_code(docstring: str) -> str:
    """Return a docstring in which each example is a block of code of Markdown.

    >>> with_examples_as_code("Add one.\\n\\n>>> add_one(1)\\n2")
    'Add one.\\n\\n```pycon\\n>>> add_one(1)\\n2\\n```'
    """
    return EXAMPLE.sub(lambda example: f"```pycon\n{example[0]}\n```", docstring)
