"""What all jobs have in common: their settings, what they are of, and the checks of both.

Annotations are evaluated here, as those of inherited fields are read where a subclass is defined.
"""

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import ClassVar, TypeVar

import pandas as pd

from thinkalike.arguments import check_rows, checked_numbers
from thinkalike.arguments.row_labels import Axis, has_labels
from thinkalike.data.tables import read_frame
from thinkalike.errors import ConfigError, DataError, checked_path, in_home
from thinkalike.former_names import present_name
from thinkalike.inputs import TABLE_FILES, Arrays, Model, Text, is_model
from thinkalike.job.instrument import AnyInstrument
from thinkalike.job.lookup import instrument_of_measure
from thinkalike.jobs.plain_values import checked_plain, plain_setting
from thinkalike.models.checkpoints import LIGHTNING
from thinkalike.state_arguments import FILES, is_states

Folder = str | os.PathLike[str]
Layers = str | Sequence[int] | Sequence[Sequence[int]]
Side = Model | Arrays
AnyJob = TypeVar("AnyJob", bound="Job")

# The fields that are no settings, beside the sides.
INPUTS = ("texts", "stimuli", "measure", "store", "force")


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """A computation, with everything that decides its numbers; each kind of job is a subclass.

    Args:
        threads: CPU threads; None takes torch's default.
        budget: the time that there is on this machine, such as "90s", "10min" or "2h": it chooses
            layers, text, stimuli, steps and the kind of map where these are left open.
        store: the folder in which its result is kept and found again; None: the result stays in
            memory.
        force: do it again if the store has its result.

    Raises:
        ConfigError: An argument has a wrong type or value; the message names it.

    >>> isinstance(Compare("gelu-3l-mini", "solu-3l-mini", measure="mutual_knn"), Job)
    True
    """

    SIDES: ClassVar[tuple[str, ...]] = ("model",)  # the fields that hold what is compared
    # The job itself says which of its arguments is wrong, before a checker of types that somebody
    # installs.
    __no_type_check__ = True

    # Here and not in the functions, as jobs are also made by their classes.
    def __new__(cls: type[AnyJob], *_: object, **settings: object) -> AnyJob:
        for name in settings:
            renamed = present_name(name)
            if renamed in cls.__dataclass_fields__:
                raise ConfigError(f"{name}= is now {renamed}=")
        return super().__new__(cls)

    threads: int | None = None
    budget: str | None = None
    store: Folder | None = None
    force: bool = False

    def __post_init__(self) -> None:
        self._check_paths()
        values = {name: value for name, value in vars(self).items() if value is not None}
        try:
            vars(self).update(checked_numbers(type(self).__init__, values))
        except ValueError as error:
            raise ConfigError(error) from None
        for name, default in self.defaults().items():
            value = checked_plain(name, getattr(self, name))
            vars(self)[name] = default if value is None else value
        self._check_sides()

    @property
    def does(self) -> str:
        """The name of the task or the measure that does the job, such as stitch or mutual_knn."""
        return type(self).__name__.lower()

    @property
    def instrument(self) -> AnyInstrument:
        """The kind of the job as the frame of jobs knows it."""
        return instrument_of_measure(self.does)

    @property
    def texts_given(self) -> object:
        """What was given as text, unchecked; None leaves it open, or the job reads none."""
        return getattr(self, "texts", None)

    @property
    def stimuli_given(self) -> object:
        """What was given as stimuli, unchecked; None leaves them open, or the job has none."""
        return getattr(self, "stimuli", None)

    def sides(self) -> dict[str, object]:
        """Return what is compared, by the names of the arguments.

        A side that may be left out, and was, is the first one. One that is required stays None,
        which `_check_sides` refuses.
        """
        first: object = getattr(self, self.SIDES[0])
        required = self._required()
        sides = {}
        for name in self.SIDES:
            side: object = getattr(self, name)
            if side is None and name not in required:
                side = first
            sides[name] = side
        return sides

    @classmethod
    def _required(cls) -> set[str]:
        """Return the names of the arguments without a default."""
        return {
            item.name
            for item in fields(cls)
            if item.default is MISSING and item.default_factory is MISSING
        }

    @classmethod
    def defaults(cls) -> dict[str, object]:
        """Return the default of each setting, by its name."""
        settings = [item for item in fields(cls) if item.name not in (*cls.SIDES, *INPUTS)]
        return {item.name: item.default for item in settings}

    def settings(self) -> dict[str, object]:
        """Return the settings that differ from their defaults, by name; None counts as default."""
        settings = {}
        for name, default in self.defaults().items():
            value = getattr(self, name)
            if value is not None and value != plain_setting(default):
                settings[name] = value
        return settings

    def _check_paths(self) -> None:
        """Raise a ConfigError for a path that no file can have, such as one with a NUL."""
        may_be_paths = {
            **self.sides(),
            "texts": self.texts_given,
            "stimuli": self.stimuli_given,
        }
        for name, value in may_be_paths.items():
            if isinstance(value, str | os.PathLike):
                checked_path(name, value)
        if self.store is not None:
            checked_path("store", self.store)

    def _check_sides(self) -> None:
        """Raise a ConfigError for a side that is neither a model nor states.

        This is also the last place that has the labels of tables: states become tensors, and
        stimuli are numbered. So their orders of rows are compared here.
        """
        sides = self.sides()
        if not sides:
            raise ConfigError(f"{self.SIDES[0]} is empty: give a list of models or of arrays")
        for name, side in sides.items():
            if not (is_states(side) or is_model(side)):
                raise ConfigError(
                    f"{name} is {type(side).__name__}: "
                    "give a name, (model, tokenizer), a bridge or arrays"
                )
            if isinstance(side, str | os.PathLike):
                _check_ending(name, Path(side))
        for name in self._required() - {*self.SIDES}:
            if getattr(self, name) is None:
                raise ConfigError(f"{name} is None, and {self.does} needs it: give a value")
        tables = [(name, side) for name, side in sides.items() if not is_model(side)]
        try:
            # Ids in a column come first: the remedy is to put the states in their order.
            check_rows([*self._ids_of_stimuli(tables), *tables, ("stimuli", self.stimuli_given)])
        except ValueError as error:
            raise ConfigError(error) from None

    def _ids_of_stimuli(self, tables: Sequence[tuple[str, object]]) -> list[tuple[str, Axis]]:
        """Return the ids of stimuli that are in a column, as labels of their rows.

        Args:
            tables: The states with the names of their arguments. A file of stimuli is read only if
                states have labels, with which its ids are compared.
        """
        columns = getattr(self, "columns", None)
        column = "id"
        if isinstance(columns, Mapping):
            column = columns.get("id", column)
        table = self.stimuli_given
        if isinstance(table, str | os.PathLike):
            path = Path(table)
            is_table = TABLE_FILES.get(path.suffix) == "table"
            if is_table and any(has_labels(name, states) for name, states in tables):
                with contextlib.suppress(DataError):  # raised where stimuli are read
                    table = read_frame(in_home(path))
        if not isinstance(table, pd.DataFrame) or column not in table:
            return []
        return [("stimuli", Axis.of_column("stimuli", table[column], column))]


def _check_ending(name: str, path: Path) -> None:
    """Raise a ConfigError for a file whose ending is neither one of states nor one of models."""
    endings_read = (*FILES, ".gguf", LIGHTNING)
    if path.suffix not in endings_read and in_home(path).is_file():
        raise ConfigError(
            f"{name} is {path}, a file that is not read: states are in {', '.join(FILES)} or in "
            f"memory, models in folders, .gguf or {LIGHTNING}"
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class TextJob(Job):
    """A job that reads text.

    Args:
        texts: the name of a data set, a file, or a list of strings or of records; None takes the
            text that the models were trained on.
        field: the field of records that holds the text.
        group: the field of records whose documents intervals take together.
        context: tokens of a row; None takes what the models can.
        bos: whether each row begins with the token of the beginning; None: as the models expect.
        aligned: whether each row begins with a document.
        evaluation_share: the share of documents that numbers are of; the rest is fitted on.
    """

    texts: Text | None = None
    field: str | None = None
    group: str | None = None
    context: int | None = None
    bos: bool | None = None
    aligned: bool | None = None
    evaluation_share: float | None = None
