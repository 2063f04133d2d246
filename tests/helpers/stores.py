"""Stores of finished results that no job computed, for tests of what reads them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from thinkalike.store import Result, StoredJob


def finished(store: Path, kind: str = "*") -> Iterator[Result]:
    """All finished results of a store, or those of one kind."""
    folders = sorted(sealed.parent for sealed in store.glob(f"{kind}/*/manifest.json"))
    return (Result(folder) for folder in folders if folder.suffix != ".partial")


def finish(
    store: Path,
    kind: str,
    key: str,
    tables: Mapping[str, pd.DataFrame],
    models: Sequence[str | dict[str, Any]] = ("a", "b"),
    command: str | None = "",
    headlines: Sequence[dict[str, Any]] = (),
    config: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
    scalars: dict[str, float] | None = None,
    arrays: Mapping[str, np.ndarray] | None = None,
    beside: Callable[[Path], object] = lambda folder: None,
    **made: Any,
) -> Result:
    """Put a finished result into a store.

    Args:
        models: their names, or what provenance says of them.
        command: what its provenance says; "": one that names kind and models; None: it says none.
        beside: writes further files into the folder of the result.
        made: further parts of provenance.
    """
    facts = [{"name": each, "dtype": "float32"} if isinstance(each, str) else each for each in models]
    named = "".join(f" {side}={each['name']}" for side, each in zip(("model", "model@target"), facts, strict=False))
    asked = f"python analyze.py measure={kind}{named}"
    said = {} if command is None else {"command": command or asked}
    provenance = {"seed": 0, "models": facts, **said, **made}
    record = {"scalars": scalars or {"mean": 0.5}, "headlines": list(headlines), "settings": settings or {}}
    record["provenance"] = provenance
    job = StoredJob(str(store), kind, key)
    with job.running():
        written = {"measure": {"kind": kind}} if config is None else config
        beside(job.write(written, record, tables, arrays or {}).folder)
        return job.appear()


def made(table: pd.DataFrame, scalars=None, provenance=None, arrays=None, config=None, **tables) -> Result:
    """Return a result that no job computed and no folder holds."""
    result = Result(Path("nowhere"))
    record = {"kind": "k", "key": "x", "scalars": scalars or {}, "provenance": provenance or {}}
    vars(result).update(
        _record=record, table=table, details=table, tables=tables, arrays=arrays or {}, config=config or {}
    )
    return result


def layer_pairs(source: str, target: str, rows: int, columns: int, seed: int = 0, **more: float) -> pd.DataFrame:
    """Return a table with a random value and its interval for every pair of layers; `more` are further columns."""
    value = np.random.default_rng(seed).random(rows * columns)
    first, second = np.indices((rows, columns)).reshape(2, -1)
    named = {"source": source, "target": target, "source_layer": first, "target_layer": second}
    return pd.DataFrame({**named, "value": value, "low": value - 0.01, "high": value + 0.02, **more})


def profile(model: str, features: Sequence[str], layers: int, seed: int = 0) -> pd.DataFrame:
    """Return a table of the importance of each feature in each layer of a model."""
    importance = np.random.default_rng(seed).random(layers * len(features))
    rows = {"model": model, "layer": np.repeat(range(layers), len(features)), "feature": [*features] * layers}
    return pd.DataFrame({**rows, "importance": importance, "low": importance - 0.1, "high": importance + 0.1})
