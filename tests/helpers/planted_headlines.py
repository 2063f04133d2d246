"""The headlines of results that no job computed."""

from pathlib import Path

import pandas as pd
import pytest

from stores import finish, made
from thinkalike.config import MEASURES, SUBJECTS, TASKS
from thinkalike.errors import ThinkalikeError
from thinkalike.instruments import instrument
from thinkalike.store import Headline

TABLE = pd.DataFrame({"layer": [0, 1], "penalty": [0.5, 0.25]})


def of(kind: str, table: pd.DataFrame, scalars=None, provenance=None, **more) -> dict[str, Headline]:
    """Return by name the headline numbers of a planted result of a kind."""
    modules = SUBJECTS if provenance else {**TASKS, **MEASURES}
    found = instrument(modules[kind]).headlines(made(table, scalars, provenance, **more))
    return {each.name: each for each in found}


def check_lacking_result_is_one_line(kind: str, store: Path) -> None:
    """Show a result that a stranger sealed, or another version computed: its table has other columns."""
    result = finish(store, kind, "abc", {"table": TABLE})
    for show in (result._repr_html_, result.plot):
        with pytest.raises(ThinkalikeError, match=r"\A[^\n]+\Z"):
            show()
