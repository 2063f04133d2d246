"""Drawing: everything here takes tables of results and writes figures; nothing here computes a measure.

Each name is loaded when it is first used, because importing matplotlib takes a second.
"""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    return getattr(import_module(f"{__name__}.layers"), name)
