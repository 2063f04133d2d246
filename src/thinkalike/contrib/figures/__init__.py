"""The figures of contrib, and by the same names those of the core; each is loaded when it is first used."""

from importlib import import_module
from typing import Any

from thinkalike import figures


def __getattr__(name: str) -> Any:
    studies = import_module(f"{__name__}.studies")
    return getattr(studies if name in vars(studies) else figures, name)
