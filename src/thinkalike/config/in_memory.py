"""Parts of a configuration that are objects in memory where other parts name files.

    LoadedModelConfig      a model, in place of a checkpoint
    TextInMemory           records of texts, in place of files of text
    TableInMemory          stimuli in a DataFrame, in place of a table in a file

Recorded states in memory, in place of a file of `activations`, are
`thinkalike.config.recorded.RecordedArrays`. An object is no setting: no key, no stored
configuration and no command line has it. Its digest, which decides the numbers, enters the key
where that of a file would.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from thinkalike.config.parts import DataConfig, ModelConfig, StimuliConfig
from thinkalike.config.schema import an_object, extended

if TYPE_CHECKING:
    import pandas as pd


@runtime_checkable
class Loaded(Protocol):
    """What a configuration knows of a model that is loaded, a `FrozenModel`."""

    @property
    def module(self) -> object: ...
    @property
    def predicts(self) -> Literal["next", "hidden", "class", "states"]: ...
    @property
    def n_layers(self) -> int: ...

    def parameters(self) -> int:
        """Return the number of its weights."""
        ...


@dataclass
class LoadedModelConfig(ModelConfig):
    """A model in memory, and how it runs.

    Attributes:
        loaded: The `FrozenModel`.
        digest: Of all that decides its numbers, "memory:" and 16 digits.
        has_own_code: Whether it, or its tokenizer, runs code that is of no installed package. Its
            digest is then a new one at each call.
    """

    loaded: Loaded = an_object()
    digest: str = an_object("memory:")
    has_own_code: bool = an_object(False)

    @property
    def is_in_memory(self) -> bool:
        return True

    @property
    def weights_in_memory(self) -> int:
        return self.loaded.parameters()


def loaded_model_config(loaded: Loaded, digest: str, **settings: object) -> LoadedModelConfig:
    """Return the configuration of a model in memory.

    Its settings may also be those that installed packages add.
    """
    schema = _loaded_schema()
    return schema(loaded=loaded, digest=digest, **settings)  # type: ignore[arg-type]


@cache
def _loaded_schema() -> type[LoadedModelConfig]:
    """Return the schema of a model in memory, with the settings that installed packages add."""
    content = {"__module__": __name__, "__doc__": LoadedModelConfig.__doc__}
    bases = (LoadedModelConfig, extended(ModelConfig))
    schema = type(LoadedModelConfig.__name__, bases, content)
    return dataclass(schema)


@dataclass(frozen=True, eq=False)
class Records:
    """Records of texts, each of which has a field that holds the text."""

    rows: Sequence[dict[str, object]]

    @cached_property
    def digest(self) -> bytes:
        """The SHA-256 of the records as a file of JSON lines."""
        digest = hashlib.sha256()
        for row in self.rows:
            digest.update(f"{json.dumps(row)}\n".encode())
        return digest.digest()


@dataclass
class TextInMemory(DataConfig):
    """Texts in memory, and how they become rows of tokens."""

    records: Records = an_object()

    @property
    def has_files(self) -> bool:
        return True


@dataclass(frozen=True)
class TableWithDigest:
    """A table in memory; tables of one digest are equal."""

    digest: str
    frame: pd.DataFrame = field(compare=False)  # cells of a table are compared one by one


@dataclass
class TableInMemory(StimuliConfig):
    """The stimuli of a DataFrame."""

    table: TableWithDigest = an_object()

    @property
    def has_file(self) -> bool:
        return True
