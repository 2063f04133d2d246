"""What schemas have in common: every value is checked against its annotation, and every number against its range.

    @dataclass
    class StitchConfig(Checked, part="stitch"):
        norm: Literal["none", "pre", "post"] = "none"
        steps: int = ranged(2000, least=1, most=10**7)

pydantic checks the values when an instance is made. The range of a list of numbers applies to each of them. The key of
a job contains only settings that differ from their defaults, so a schema can grow without losing any finished result;
a setting that cannot change numbers is declared `not_in_key`. A setting that is `left_open` is None in a configuration
that Hydra composed until `completed` asks the schema for its value.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Mapping
from dataclasses import MISSING
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import pydantic
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from thinkalike import plugins
from thinkalike.errors import ConfigError, nearest, short
from thinkalike.ranges import Number, Range

SEEDS = 2**32 - 1  # the largest seed that every library takes
STEPS = 10**7
NOT_IN_KEY = {"not_in_key": True}  # metadata of a field that cannot change the numbers of any job

Schema = TypeVar("Schema", bound="Checked")


def _on_this_machine(path: str) -> str:  # an address would become the name of a folder
    if "://" in path:
        raise ValueError("must be a path, and not an address")
    if "\0" in path:  # the operating system refuses it, wherever a path is used first
        raise ValueError("must be a path, which has no character NUL")
    return os.path.expanduser(path)


FilePath = Annotated[str, AfterValidator(_on_this_machine)]
Numbers = Annotated[list[Annotated[int, Field(strict=True)]], Field(min_length=1, max_length=5000)]
Pair = Annotated[list[Annotated[int, Field(strict=True)]], Field(min_length=2, max_length=2)]
Pairs = Annotated[list[Pair], Field(min_length=1, max_length=5000)]
Layers = Literal["same", "all"] | Numbers | Pairs  # of source and target: l with l, all with all, [0,3], [[0,0],[1,2]]


def ranged(default: Any, *, in_key: bool = True, **ends: Number) -> Any:
    """Return a dataclass field of a number, or of a list of numbers, with its range.

    Args:
        default: the value, or a function that makes a list anew.
        in_key: whether it can change the numbers of a job.
        ends: least or above, most or below; see `Range`.
    """
    how: Any = {"default_factory" if callable(default) else "default": default}
    return dataclasses.field(**how, metadata={"range": Range(**ends), "not_in_key": not in_key})


def left_open(default: Any, *, usual: Any = MISSING, **ends: Number) -> Any:
    """Return a dataclass field that a command line leaves at None, for the recipe to decide, see `Checked.by_recipe`.

    Args:
        default: the value in Python.
        usual: the value that is left out of the key, as None is; the default if nothing is said.
        ends: the range of a number; see `Range`.
    """
    metadata = {"usual": default if usual is MISSING else usual}
    return dataclasses.field(default=default, metadata=metadata | ({"range": Range(**ends)} if ends else {}))


def not_in_key(default: Any) -> Any:
    """Return a dataclass field with this default that cannot change the numbers of any job."""
    return dataclasses.field(default=default, metadata=NOT_IN_KEY)


def read_by(kind: str, item: Any) -> Any:
    """Return a dataclass field that jobs of one kind alone read, given the field or its default."""
    return _marked(item, read_by=kind)


def in_memory(item: Any) -> Any:
    """Return a dataclass field that applies to models passed in memory, too, given the field or its default."""
    return _marked(item, in_memory=True)


def _marked(item: Any, **marks: Any) -> Any:
    if not isinstance(item, dataclasses.Field):
        return dataclasses.field(default=item, metadata=marks)
    how: Any = (
        {"default": item.default} if item.default_factory is MISSING else {"default_factory": item.default_factory}
    )
    return dataclasses.field(**how, metadata={**item.metadata, **marks})


def is_open(item: dataclasses.Field) -> bool:
    return "usual" in item.metadata


def default_of(item: dataclasses.Field) -> Any:
    """Return the default of a dataclass field, made anew where a factory makes it."""
    return item.default if item.default_factory is MISSING else item.default_factory()


class Checked:
    """A schema whose values are checked when it is made.

    Args:
        part: the word with which the keys of its fields begin on a command line.

    Raises:
        ConfigError: a value is not of its type or out of its range, or a word is empty, as an unset shell variable is.
    """

    part: ClassVar[str] = ""
    usual_option: ClassVar[str] = ""  # the option of its group that it is where it has no name
    elsewhere: ClassVar[tuple[str, ...]] = ()  # the settings that say where it is, whatever it is called

    def __init_subclass__(cls, part: str | None = None, **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.part = cls.part if part is None else part

    def __post_init__(self) -> None:
        try:
            checked = _model(type(self)).model_validate(vars(self))  # type: ignore[arg-type]
        except pydantic.ValidationError as error:
            raise ConfigError(_sentence(self.part, error)) from None
        vars(self).update(vars(checked))

    @property
    def unused(self) -> Collection[str]:
        """The settings that change nothing beside the values of the others; a command line may not give them."""
        return ()

    def by_recipe(self, job: Any) -> Mapping[str, Any]:
        """Return the values that settings have where a job leaves them open, and not their defaults."""
        return {}

    def completed(self: Schema, job: Any) -> Schema:
        """Return the settings, in which those that are left open have the values of the recipe, or their defaults."""
        fields: Any = dataclasses.fields(self)  # type: ignore[arg-type]
        values = {item.name: default_of(item) for item in fields if is_open(item)} | {**self.by_recipe(job)}
        values = {name: value for name, value in values.items() if getattr(self, name) is None}
        return dataclasses.replace(self, **values) if values else self  # type: ignore[type-var]


def extended(schema: Any) -> Any:
    """Return the schema of a part with the settings that installed packages add to it, see `thinkalike.plugins`."""
    if schema.part not in plugins.SETTINGS:
        return schema
    with_additions = _with_additions(schema.part)
    return with_additions if issubclass(with_additions, schema) else schema


@cache
def _with_additions(part: str) -> Any:
    """Return the one schema of a part that has the settings of all packages, each a subclass of the part's schema."""
    additions = [place.load() for place in plugins.SETTINGS[part]]
    schema = additions[0].__base__
    content = {"__module__": schema.__module__, "__doc__": schema.__doc__}
    bases = tuple(reversed(additions))  # so that the fields come in the order of the additions
    return dataclasses.dataclass(type(schema.__name__, bases, content))


@cache
def _model(schema: Any) -> type[pydantic.BaseModel]:
    """Return the pydantic model of the fields of a schema; parts that are schemas have checked themselves."""
    hints = get_type_hints(schema, include_extras=True)
    fields: dict[str, Any] = {}
    for item in dataclasses.fields(schema):
        hint = Any if dataclasses.is_dataclass(hints[item.name]) else hints[item.name]
        if ends := item.metadata.get("range"):
            hint = _within(hint, Field(ge=ends.least, gt=ends.above, le=ends.most, lt=ends.below))
        hint = Annotated[hint, BeforeValidator(_no_truth_value)] if _is_number(hint) else hint
        fields[item.name] = (hint | None if is_open(item) else hint, ...)
    options = ConfigDict(coerce_numbers_to_str=True, allow_inf_nan=False, str_min_length=1)
    return pydantic.create_model(schema.__name__, __config__=options, **fields)


def _is_number(hint: Any) -> bool:
    """Return whether an annotation is of numbers and of no truth values, which Python takes for 0 and 1."""
    inside = get_args(hint)
    return hint in (int, float) or (bool not in inside and any(map(_is_number, inside)))


def _no_truth_value(value: Any) -> Any:
    inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else [value]
    if any(isinstance(each, bool) for each in inside):
        raise ValueError("must be a number, and not true or false")
    return value


def _within(hint: Any, limits: Any) -> Any:
    """Return an annotation whose numbers, also those of a list or dictionary, have a range."""
    if hint in (int, float):
        return Annotated[hint, limits]
    inner = tuple(_within(each, limits) for each in get_args(hint))
    if (origin := get_origin(hint)) in (list, dict):
        return origin[inner]
    return Union[inner] if type(None) in inner else hint  # noqa: UP007


def _sentence(part: str, error: pydantic.ValidationError) -> str:
    """Return the first thing that is wrong with values, with its key, in one line."""
    problems = error.errors()
    # a word that is no choice is one of several forms that the value could have, and the nearest if it is text
    other_forms = [each for each in problems if each["type"] != "literal_error" or isinstance(each["input"], str)]
    first = (other_forms or problems)[0]
    where = [str(each) for each in first["loc"] if isinstance(each, str) and each.isidentifier()]
    said = first["msg"].removeprefix("Value error, ").replace("Input should", "must").replace("String should", "must")
    return f"{'.'.join(filter(None, [part, *where[:1]]))}={short(first['input'])} {said}"


def unknown(key: str, known: Collection[str]) -> str:
    """Return what to say of a setting that is not among the known ones: the nearest one."""
    near = [each for each in known if each.endswith(f".{key.rpartition('.')[2]}") and each.count(".") > key.count(".")]
    alike = [each for each in known if each.count(".") == key.count(".")] or known
    said = f"did you mean {' or '.join(near)}?" if near else nearest(key, alike)
    return f"'{key}' is not a setting; {said}"


def made(schema: type[Schema], values: Mapping[str, Any], path: str = "") -> Schema:
    """Return the dataclass of nested plain settings."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"{path.removesuffix('.')}={short(values)} must be settings, by their names")
    hints, given = get_type_hints(schema), dict(values)
    known = [path + item.name for item in dataclasses.fields(schema)]  # type: ignore[arg-type]
    for name, value in values.items():
        key = f"{path}{name}"  # the name may be a number in a file
        if not isinstance(name, str) or key not in known:
            raise ConfigError(unknown(key, known))
        if dataclasses.is_dataclass(hints[name]) and not dataclasses.is_dataclass(value):
            try:
                given[name] = made(extended(hints[name]), value, f"{path}{name}.")
            except ConfigError as error:  # the second model is `target` on a command line
                raise ConfigError(str(error).replace(f"{hints[name].part}.", f"{name}.", 1)) from None
    return schema(**given)


def relevant(config: Any) -> dict[str, Any]:
    """Return the settings of a configuration dataclass that can change numbers and differ from their defaults."""
    kept = {}
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        usual = item.metadata.get("usual", default_of(item))
        if item.metadata.get("not_in_key") or value == usual or (is_open(item) and value is None):
            continue
        inner = relevant(value) if dataclasses.is_dataclass(value) else value
        if inner != {}:
            kept[item.name] = inner
    return kept
