"""What schemas have in common: every value is checked against its annotation, and every number against its range.

    @dataclass
    class StitchConfig(Checked, part="stitch"):
        norm: Literal["none", "pre", "post"] = "none"
        rank: int = setting(16, least=1, most=10**6)
        steps: int = setting(2000, by_recipe=True, least=0, most=10**7)

`setting` declares all that is to be known of a setting besides its type. A part of the configuration, which is a
subclass of `Checked`, has one method that says which of its settings have an effect beside the values of the others,
`settings_read`, and one that gives the values of those that are left to the recipe, `by_recipe`.

pydantic checks the values when an instance is made. The range of a list of numbers applies to each of them. The key of
a job contains only settings that differ from their defaults, see `key_settings`, so a schema can grow without losing
any finished result.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Mapping
from copy import copy
from dataclasses import MISSING, dataclass
from functools import cache
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import pydantic
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from thinkalike import plugins
from thinkalike.errors import ConfigError, nearest, short
from thinkalike.ranges import Number, Range

SEEDS = 2**32 - 1  # the largest seed that every library takes
STEPS = 10**7
THE_DEFAULT: Any = object()  # what a key leaves out, unless a setting says another value

# the configuration of a job, whose class is made of such parts and so is defined after them
JobSettings = Any
SettingValues = Mapping[str, Any]  # of settings by their names or keys, each of the type that its schema declares
Schema = TypeVar("Schema", bound="Checked")
Job = TypeVar("Job")
SettingField = dataclasses.Field[Any]


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


@dataclass(frozen=True)
class SettingDeclaration:
    """What a schema declares of a setting besides its type and its default, see `setting`."""

    range: Range | None = None
    in_key: bool = True
    by_recipe: bool = False
    not_in_key_as: Any = THE_DEFAULT
    only_for: str | None = None
    in_memory: bool = False
    is_object: bool = False  # an object in memory, which no command line gives, see `an_object`


PLAIN = SettingDeclaration()  # of a field that is no more than its type and its default


def setting(
    default: Any,
    *,
    least: Number | None = None,
    above: Number | None = None,
    most: Number | None = None,
    below: Number | None = None,
    in_key: bool = True,
    by_recipe: bool = False,
    not_in_key_as: Any = THE_DEFAULT,
    only_for: str | None = None,
    in_memory: bool = False,
) -> Any:
    """Return a dataclass field that is a setting: its default, its range, and what decides and reads it.

    A setting without any of these needs no `setting`: `estimator: Literal["unbiased", "biased"] = "unbiased"`. The
    comment behind a field is its documentation, and its page.

    Args:
        default: The value, or a function that makes a list, a dictionary or a part anew.
        least: The smallest number; `most` is the largest one. The range applies to each number of a list.
        above: What numbers are larger than; they are smaller than `below`.
        in_key: Whether it can change the numbers of a job. If so, and only then, it is part of the job's key.
        by_recipe: Whether it is None until `completed` decides it: by the recipe, see `Checked.by_recipe`, or, where
            that says nothing, by the default. Any other setting has its default from the beginning.
        not_in_key_as: The value that a key leaves out in place of the default, if the default stands for another value.
        only_for: The kind of job that alone reads it, such as "pretraining"; None: every job that reads its part.
        in_memory: Whether it applies also to a model that is passed in memory; of settings of models.
    """
    ends = Range(least, above, most, below)
    declared = SettingDeclaration(
        range=ends if ends != Range() else None,
        in_key=in_key,
        by_recipe=by_recipe,
        not_in_key_as=not_in_key_as,
        only_for=only_for,
        in_memory=in_memory,
    )
    if callable(default):
        return dataclasses.field(default_factory=default, metadata={"setting": declared})
    return dataclasses.field(default=default, metadata={"setting": declared})


def an_object(default: Any = None) -> Any:
    """Return a dataclass field of an object in memory, which is no setting, see `thinkalike.config.in_memory`."""
    declared = SettingDeclaration(in_key=False, is_object=True)
    return dataclasses.field(default=default, repr=False, metadata={"setting": declared})


def declared_of(item: SettingField) -> SettingDeclaration:
    """Return what `setting` declared of a field."""
    return item.metadata.get("setting", PLAIN)


def default_of(item: SettingField) -> Any:
    """Return the default of a dataclass field, made anew where a factory makes it."""
    return item.default if item.default_factory is MISSING else item.default_factory()


def initial_of(item: SettingField) -> Any:
    """Return the value of a setting before anything is decided: None where it is left to the recipe."""
    return None if declared_of(item).by_recipe else default_of(item)


def left_out_of(item: SettingField) -> Any:
    """Return the value of a setting that a key leaves out: the default, or what stands in its place."""
    as_declared = declared_of(item).not_in_key_as
    return default_of(item) if as_declared is THE_DEFAULT else as_declared


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

    def settings_read(self) -> frozenset[str]:
        """Return the names of the settings that have an effect beside the values of the others.

        A command line may give no others. A schema takes away those without an effect:

            def settings_read(self):
                read = super().settings_read()
                return read if self.null else read - {"permutations"}
        """
        return frozenset(item.name for item in fields_of(self) if not declared_of(item).is_object)

    def by_recipe(self, job: JobSettings) -> SettingValues:
        """Return by name the values of settings that a job leaves to its recipe, where these are not their defaults."""
        return {}

    def completed(self: Schema, job: JobSettings) -> Schema:
        """Return the settings with everything decided that was left to the recipe."""
        to_decide = [
            item for item in fields_of(self) if declared_of(item).by_recipe and getattr(self, item.name) is None
        ]
        if not to_decide:
            return self
        recipe = self.by_recipe(job)
        decided = {item.name: recipe.get(item.name, default_of(item)) for item in to_decide}
        return dataclasses.replace(self, **decided)  # type: ignore[type-var]


def fields_of(schema: Checked | type[Checked]) -> tuple[SettingField, ...]:
    """Return the settings of a schema, each subclass of which is a dataclass."""
    return dataclasses.fields(schema)  # type: ignore[arg-type]


def extended(schema: type[Schema]) -> type[Schema]:
    """Return the schema of a part with the settings that installed packages add to it, see `thinkalike.plugins`."""
    if schema.part not in plugins.SETTINGS:
        return schema
    with_additions = _with_additions(schema.part)
    return with_additions if issubclass(with_additions, schema) else schema


@cache
def _with_additions(part: str) -> type[Checked]:
    """Return the one schema of a part that has the settings of all packages, each a subclass of the part's schema."""
    additions = [place.load() for place in plugins.SETTINGS[part]]
    schema = additions[0].__base__
    content = {"__module__": schema.__module__, "__doc__": schema.__doc__}
    bases = tuple(reversed(additions))  # so that the fields come in the order of the additions
    return dataclasses.dataclass(type(schema.__name__, bases, content))


@cache
def _model(schema: type[Checked]) -> type[pydantic.BaseModel]:
    """Return the pydantic model of the fields of a schema; parts that are schemas have checked themselves."""
    hints = get_type_hints(schema, include_extras=True)
    fields: dict[str, Any] = {}
    for item in fields_of(schema):
        hint = Any if dataclasses.is_dataclass(hints[item.name]) else hints[item.name]
        ends = declared_of(item).range
        if ends is not None:
            hint = _within(hint, Field(ge=ends.least, gt=ends.above, le=ends.most, lt=ends.below))
        hint = Annotated[hint, BeforeValidator(_no_truth_value)] if _is_number(hint) else hint
        fields[item.name] = (hint | None if declared_of(item).by_recipe else hint, ...)
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


def made(schema: type[Schema], values: SettingValues, path: str = "") -> Schema:
    """Return the dataclass of nested plain settings."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"{path.removesuffix('.')}={short(values)} must be settings, by their names")
    hints, given = get_type_hints(schema), dict(values)
    known = [path + item.name for item in fields_of(schema)]
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


def as_settings(config: Any) -> dict[str, Any]:
    """Return the settings of a configuration as nested dictionaries and lists, without the objects in memory."""
    return {
        item.name: _as_setting(getattr(config, item.name))
        for item in dataclasses.fields(config)
        if not declared_of(item).is_object
    }


def _as_setting(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return as_settings(value)
    if isinstance(value, Mapping):
        return {name: _as_setting(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_as_setting(inner) for inner in value]
    return value


def key_settings(config: Any) -> dict[str, Any]:
    """Return the settings of a configuration that enter a key: they can change numbers, and are not the default.

    A setting that is left to the recipe, and is not decided yet, is in no key.
    """
    entering = {}
    for item in dataclasses.fields(config):
        declared = declared_of(item)
        value = getattr(config, item.name)
        usual = left_out_of(item)
        is_undecided = declared.by_recipe and value is None
        is_part_unread = dataclasses.is_dataclass(usual) and value is None
        if not declared.in_key or is_undecided or is_part_unread or value == usual:
            continue
        inner = key_settings(value) if dataclasses.is_dataclass(value) else value
        if inner != {}:
            entering[item.name] = inner
    return entering


def with_settings(config: Job, values: SettingValues) -> Job:
    """Return the configuration of a job with other values, by their keys: {"model": None, "trainer.compile": False}.

    The values are not checked, as those of a whole part may be None where a job reads none of it.
    """
    changed = copy(config)
    for key, value in values.items():
        part, _, name = key.partition(".")
        if name:
            inner = copy(getattr(changed, part))
            setattr(inner, name, value)
            value = inner
        setattr(changed, part, value)
    return changed


def value_at(config: Any, key: str) -> Any:
    """Return the value of a setting by its key, such as "model.dtype"; None within a part that is None."""
    part, _, name = key.partition(".")
    value = getattr(config, part)
    return getattr(value, name) if name and value is not None else value
