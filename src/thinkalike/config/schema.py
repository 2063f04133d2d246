"""What schemas have in common: every value is checked against its annotation and its range.

    @dataclass
    class StitchConfig(Checked, part="stitch"):
        norm: Literal["none", "pre", "post"] = "none"
        rank: int = setting(16, least=1, most=10**6)
        steps: int = setting(2000, by_recipe=True, least=0, most=10**7)

`setting` declares what is to be known of a setting besides its type. A part of the configuration,
which is a subclass of `Checked`, has one method that says which of its settings have an effect
beside the values of the others, `settings_read`, and one that gives the values of those that are
left to the recipe, `by_recipe`.

pydantic checks the values when an instance is made. The range of a list of numbers applies to each
of them.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass
from functools import cache, wraps
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    Protocol,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    runtime_checkable,
)

import pydantic
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from thinkalike import catalogue
from thinkalike.advice import named_setting
from thinkalike.errors import ConfigError, nearest, short
from thinkalike.former_names import present_name, present_value
from thinkalike.ranges import Number, Within

SEEDS = 2**32 - 1  # the largest seed that every library takes
STEPS = 10**7
MOST_LAYERS = 5000  # of a list of layers
THE_DEFAULT = object()  # what a key leaves out, unless a setting says another value

# settings by their names or keys, each of the type that its schema declares
SettingValues = Mapping[str, object]
Schema = TypeVar("Schema", bound="Checked")
Value = TypeVar("Value")
SettingField = dataclasses.Field[object]


def _on_this_machine(path: str) -> str:
    """Return a path with the home folder in the place of ~."""
    if "://" in path:  # an address would become the name of a folder
        raise ValueError("must be a path, and not an address")
    if "\0" in path:  # the operating system refuses it, wherever a path is used first
        raise ValueError("must be a path, which has no character NUL")
    return os.path.expanduser(path)


def of_form(pattern: str, form: str) -> AfterValidator:
    """Return what checks that a text has a form.

    Args:
        pattern: The regular expression of the whole text.
        form: The form in words with examples, as a message says it: it "must be" that.
    """

    def checked(text: str) -> str:
        if re.fullmatch(pattern, text) is None:
            raise ValueError(f"must be {form}")
        return text

    return AfterValidator(checked)


FilePath = Annotated[str, AfterValidator(_on_this_machine)]
WholeNumber = Annotated[int, Field(strict=True)]
Numbers = Annotated[list[WholeNumber], Field(min_length=1, max_length=MOST_LAYERS)]
Pair = Annotated[list[WholeNumber], Field(min_length=2, max_length=2)]
Pairs = Annotated[list[Pair], Field(min_length=1, max_length=MOST_LAYERS)]
# layers of source and target: l with l, all with all, [0,3], or [[0,0],[1,2]]
Layers = Literal["same", "all"] | Numbers | Pairs


# ---- declaring a setting


@dataclass(frozen=True)
class SettingDeclaration:
    """What a schema declares of a setting besides its type and its default, see `setting`.

    Attributes:
        is_object: Whether it is an object in memory, which no command line gives, see `an_object`.
    """

    range: Within | None = None
    in_key: bool = True
    by_recipe: bool = False
    not_in_key_as: object = THE_DEFAULT
    only_for: str | None = None
    in_memory: bool = False
    is_object: bool = False


PLAIN = SettingDeclaration()  # of a field that is no more than its type and its default


# Any, as the field stands where a value of the type of its setting is expected.
def setting(
    default: object,
    *,
    least: Number | None = None,
    above: Number | None = None,
    most: Number | None = None,
    below: Number | None = None,
    in_key: bool = True,
    by_recipe: bool = False,
    not_in_key_as: object = THE_DEFAULT,
    only_for: str | None = None,
    in_memory: bool = False,
) -> Any:
    """Return a dataclass field that is a setting: its default, its range, and what reads it.

    A setting without any of these needs no `setting`:
    `estimator: Literal["unbiased", "biased"] = "unbiased"`. The comment behind a field, or above
    it, is its documentation, and its page.

    Args:
        default: The value, or a function that makes a list, a dictionary or a part anew.
        least: The smallest number. The range applies to each number of a list.
        most: The largest number.
        above: All numbers are larger.
        below: All numbers are smaller.
        in_key: Whether it can change the numbers of a job. If so, and only then, it is part of the
            job's key.
        by_recipe: Whether it is None until `completed` decides it: by the recipe, see
            `Checked.by_recipe`, or, where that says nothing, by the default. Any other setting has
            its default from the beginning.
        not_in_key_as: The value that a key leaves out in place of the default, if the default
            stands for another value.
        only_for: The kind of job that alone reads it, such as "pretraining"; None: every job that
            reads its part.
        in_memory: For settings of models: whether it applies also to a model in memory.
    """
    within = Within(least=least, most=most, above=above, below=below)
    declared = SettingDeclaration(
        range=within if within.has_ends else None,
        in_key=in_key,
        by_recipe=by_recipe,
        not_in_key_as=not_in_key_as,
        only_for=only_for,
        in_memory=in_memory,
    )
    if callable(default):
        return dataclasses.field(default_factory=default, metadata={"setting": declared})
    return dataclasses.field(default=default, metadata={"setting": declared})


def an_object(default: object = None) -> Any:
    """Return a dataclass field of an object in memory, which is no setting.

    See `thinkalike.config.in_memory`.
    """
    declared = SettingDeclaration(in_key=False, is_object=True)
    return dataclasses.field(default=default, repr=False, metadata={"setting": declared})


def declared_of(item: SettingField) -> SettingDeclaration:
    """Return what `setting` declared of a field."""
    declared: SettingDeclaration = item.metadata.get("setting", PLAIN)
    return declared


def default_of(item: SettingField) -> object:
    """Return the default of a dataclass field, made anew where a factory makes it."""
    if item.default_factory is MISSING:
        return item.default
    return item.default_factory()


def initial_of(item: SettingField) -> object:
    """Return the value of a setting before it is decided: None if it is left to the recipe."""
    if declared_of(item).by_recipe:
        return None
    return default_of(item)


def left_out_of(item: SettingField) -> object:
    """Return the value of a setting that a key leaves out: the default, or its stand-in."""
    stand_in = declared_of(item).not_in_key_as
    if stand_in is THE_DEFAULT:
        return default_of(item)
    return stand_in


# ---- schemas


@runtime_checkable
class RecipeModel(Protocol):
    """What a recipe knows of the model of its job."""

    @property
    def mini(self) -> bool: ...


@runtime_checkable
class RecipeJob(Protocol):
    """What a recipe knows of its job, whose class is made of schemas and so is defined later."""

    @property
    def is_mini(self) -> bool: ...
    @property
    def scale(self) -> str: ...
    @property
    def recipe(self) -> str: ...
    @property
    def model(self) -> RecipeModel: ...


class Checked:
    """A schema whose values are checked when it is made.

    Attributes:
        part: The word with which the keys of its fields begin on a command line.
        usual_option: The option of its group that it is where it has no name.
        elsewhere: The settings that say where it is, whatever it is called.

    Raises:
        ConfigError: A value is not of its type or out of its range, or a word is empty, as an
            unset shell variable is.
    """

    part: ClassVar[str] = ""
    usual_option: ClassVar[str] = ""
    elsewhere: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, part: str | None = None) -> None:
        super().__init_subclass__()
        if part is not None:
            cls.part = part

    def __post_init__(self) -> None:
        model = _pydantic_model(type(self))
        try:
            checked = model.model_validate(vars(self))
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
        names = [item.name for item in fields_of(self) if not declared_of(item).is_object]
        return frozenset(names)

    def by_recipe(self, job: RecipeJob) -> SettingValues:
        """Return the values of settings that a job leaves to its recipe, unless by default."""
        return {}

    def completed(self: Schema, job: RecipeJob) -> Schema:
        """Return the settings with everything decided that was left to the recipe."""
        undecided = []
        for item in fields_of(self):
            if declared_of(item).by_recipe and getattr(self, item.name) is None:
                undecided.append(item)
        if not undecided:
            return self

        recipe = self.by_recipe(job)
        decided = {item.name: recipe.get(item.name, default_of(item)) for item in undecided}
        return dataclasses.replace(self, **decided)  # type: ignore[type-var]


def fields_of(schema: Checked | type[Checked]) -> tuple[SettingField, ...]:
    """Return the settings of a schema, each subclass of which is a dataclass."""
    return dataclasses.fields(schema)  # type: ignore[arg-type]


def extended(schema: type[Schema]) -> type[Schema]:
    """Return the schema of a part with the settings that installed packages add to it.

    See `thinkalike.catalogue`.
    """
    if schema.part not in catalogue.ADDED_SETTINGS:
        return schema
    with_additions = _with_additions(schema.part)
    if issubclass(with_additions, schema):
        return with_additions
    return schema


@cache
def _with_additions(part: str) -> type[Checked]:
    """Return the schema of a part with the settings that all packages add to it.

    Each addition is a subclass of the schema of the part.
    """
    additions: list[type[Checked]] = []
    for place in catalogue.ADDED_SETTINGS[part]:
        addition = place.load()
        wrong = place.refused(f"is {short(addition)}, and no subclass of the schema of {part}")
        if not (isinstance(addition, type) and issubclass(addition, Checked)):
            raise wrong
        if addition.part != part:
            raise wrong
        _check_addition(place, addition, additions)
        additions.append(addition)

    schema = additions[0].__base__
    assert schema is not None
    content = {"__module__": schema.__module__, "__doc__": schema.__doc__}
    bases = tuple(reversed(additions))  # so that the fields come in the order of the additions
    combined = type(schema.__name__, bases, content)
    assert issubclass(combined, Checked)
    return dataclasses.dataclass(combined)


def _check_addition(
    place: catalogue.ObjectReference, addition: type[Checked], earlier: Sequence[type[Checked]]
) -> None:
    """Check that a class adds settings to the schema of a part, and replaces none.

    Args:
        place: Which entry point of an installed package names the class.
        addition: The class.
        earlier: The classes of other packages that add settings to the same part.

    Raises:
        PluginError: It replaces one; or it is no dataclass, whose settings would not count.
    """
    if "__dataclass_fields__" not in vars(addition):
        raise place.refused(f"is {addition.__name__}, which is no dataclass; decorate it")
    own_names: Collection[str] = vars(addition).get("__annotations__", {})
    for schema in (*earlier, *addition.__mro__[1:]):
        for name in own_names:
            if name in getattr(schema, "__dataclass_fields__", {}):
                raise place.refused(f"has the setting {name}, which {addition.part} has already")


def once_for_each_schema(
    function: Callable[[type[Checked]], Value],
) -> Callable[[type[Checked]], Value]:
    """Let a function of a schema compute its value once, and remember it."""
    values: dict[type[Checked], Value] = {}

    @wraps(function)
    def remembered(schema: type[Checked]) -> Value:
        if schema not in values:
            values[schema] = function(schema)
        return values[schema]

    return remembered


# ---- checking values by pydantic


@once_for_each_schema
def _pydantic_model(schema: type[Checked]) -> type[pydantic.BaseModel]:
    """Return the pydantic model of the fields of a schema.

    Objects are taken as they are, and parts that are schemas have checked their own values.
    """
    hints = get_type_hints(schema, include_extras=True)
    fields = {}
    for item in fields_of(schema):
        hint = hints[item.name]
        if dataclasses.is_dataclass(hint) or declared_of(item).is_object:
            hint = object
        within = declared_of(item).range
        if within is not None:
            limits = Field(ge=within.least, gt=within.above, le=within.most, lt=within.below)
            hint = _limited(hint, limits)
        if _is_of_numbers(hint):
            hint = Annotated[hint, BeforeValidator(_no_truth_value)]
        if declared_of(item).by_recipe:
            hint = hint | None
        fields[item.name] = (hint, ...)
    options = ConfigDict(
        coerce_numbers_to_str=True,
        allow_inf_nan=False,
        str_min_length=1,
    )
    made: type[pydantic.BaseModel] = pydantic.create_model(  # type: ignore[call-overload]
        schema.__name__, __config__=options, **fields
    )
    return made


def _is_of_numbers(hint: object) -> bool:
    """Return whether an annotation is of numbers and not of truth values.

    Python would take truth values for 0 and 1.
    """
    if hint in (int, float):
        return True
    inner = get_args(hint)
    return bool not in inner and any(_is_of_numbers(option) for option in inner)


def _no_truth_value(value: object) -> object:
    entries: dict[object, object] = {}
    if isinstance(value, Mapping):
        entries = {**value}
    elif isinstance(value, list | tuple):
        entries = dict(enumerate(value))
    elif isinstance(value, bool):
        raise ValueError("must be a number, and not true or false")
    for name, number in entries.items():
        if isinstance(number, bool):
            raise ValueError(f"must have a number, and not true or false, at [{short(name)}]")
    return value


def _limited(hint: object, limits: FieldInfo) -> object:
    """Return an annotation whose numbers, also those of a list or dictionary, have limits."""
    if hint in (int, float):
        return Annotated[hint, limits]
    inner = tuple(_limited(option, limits) for option in get_args(hint))
    origin = get_origin(hint)
    if origin is list or origin is dict:
        return origin[inner]
    if type(None) in inner:
        return Union[inner]  # noqa: UP007
    return hint


def _sentence(part: str, error: pydantic.ValidationError) -> str:
    """Return the first thing that is wrong with values, with its key, in one line."""
    problems = error.errors()
    # A word that is no choice is one of several forms that a value could have; if it is text, a
    # choice is what was meant.
    other_forms = [
        problem
        for problem in problems
        if problem["type"] != "literal_error" or isinstance(problem["input"], str)
    ]
    first = _most_telling(other_forms or problems)

    names = [name for name in first["loc"] if isinstance(name, str) and name.isidentifier()]
    key = ".".join(name for name in (part, *names[:1]) if name)
    renamed = present_value(key, first["input"])
    if renamed is not None:
        return f"{key}={first['input']} is now {key}={renamed}"
    requirements = [_requirement(first), *map(_requirement, _other_forms(first, problems))]
    reason, *other_requirements = dict.fromkeys(requirements)
    for requirement in other_requirements:
        reason += f" or be {requirement.removeprefix('must be ')}"
    entries = "".join(f"[{number}]" for number in first["loc"] if isinstance(number, int))
    if entries:
        reason += f", at {named_setting(key)}{entries}"
    value = short(first["input"])
    if isinstance(first["input"], str):
        return f"{named_setting(key, value)} {reason}"
    return f"{named_setting(key, like=value)} {reason}"


def _requirement(problem: ErrorDetails) -> str:
    """Return what a value must be, such as "must be a valid list"."""
    if problem["type"] == "string_unicode":  # such as the name of a file in an older encoding
        return "must be text in UTF-8"
    requirement = problem["msg"].removeprefix("Value error, ").partition(", unable to parse")[0]
    for beginning in ("Input should", "String should", "List should", "Dictionary should"):
        requirement = requirement.replace(beginning, "must")
    return requirement.replace(" after validation", "")


def _other_forms(first: ErrorDetails, problems: Sequence[ErrorDetails]) -> list[ErrorDetails]:
    """Return the problems of the other forms that a value as a whole may have.

    A value that is wrong inside of a list was meant as a list.
    """
    if any(isinstance(name, int) for name in first["loc"]) or not _is_of_form(first):
        return []
    forms = []
    for problem in problems:
        is_of_same_value = problem["loc"][:1] == first["loc"][:1]
        is_inside = any(isinstance(name, int) for name in problem["loc"])
        if problem is not first and is_of_same_value and not is_inside and _is_of_form(problem):
            forms.append(problem)
    return forms


def _is_of_form(problem: ErrorDetails) -> bool:
    """Return whether a value is none of the choices, or of another type than it must be."""
    return problem["type"] == "literal_error" or problem["type"].endswith(("_type", "_parsing"))


def _most_telling(problems: list[ErrorDetails]) -> ErrorDetails:
    """Return the problem that says what is wrong with a value that may have several forms.

    The value was meant in the form that fits it best: there the problem is deepest inside of its
    lists, and is one of a number or a length rather than of a wrong type, and there are fewest.
    Of a list beside a number, the number is named.
    """

    def form(problem: ErrorDetails) -> tuple[int | str, ...]:
        return tuple(name for name in problem["loc"] if isinstance(name, str))

    counts = Counter(form(problem) for problem in problems)

    def misfit(problem: ErrorDetails) -> tuple[int, bool, int, bool]:
        depth = sum(isinstance(number, int) for number in problem["loc"])
        is_of_wrong_type = problem["type"].endswith("_type")
        is_of_list = isinstance(problem["input"], list)
        return -depth, is_of_wrong_type, counts[form(problem)], is_of_list

    return min(problems, key=misfit)


# ---- schemas from plain settings


def unknown(key: str, known: Collection[str]) -> str:
    """Return what to say of a setting that is not among the known ones: the nearest one."""
    renamed = present_name(key)
    if renamed in known:
        return f"'{key}' is now {renamed}"
    name = key.rpartition(".")[2]
    depth = key.count(".")
    deeper = [other for other in known if other.endswith(f".{name}") and other.count(".") > depth]
    if deeper:
        return f"'{key}' is not a setting; did you mean {' or '.join(deeper)}?"
    beside = [other for other in known if other.count(".") == depth]
    return f"'{key}' is not a setting; {nearest(key, beside or known)}"


def made(schema: type[Schema], values: SettingValues, path: str = "") -> Schema:
    """Return the dataclass of nested plain settings.

    Args:
        path: The beginning of the keys of its settings, such as "stitch.".
    """
    if not isinstance(values, Mapping):
        key = path.removesuffix(".")
        raise ConfigError(f"{key}={short(values)} must be settings, by their names")
    hints = get_type_hints(schema)
    known = [path + item.name for item in fields_of(schema)]
    arguments = dict(values)
    for name, value in values.items():
        key = f"{path}{name}"  # the name may be a number in a file
        if not isinstance(name, str) or key not in known:
            raise ConfigError(unknown(key, known))
        if dataclasses.is_dataclass(hints[name]) and not dataclasses.is_dataclass(value):
            arguments[name] = _made_part(hints[name], value, path, name)
    return schema(**arguments)


def _made_part(schema: type[Schema], values: object, path: str, name: str) -> Schema:
    """Return the part of this name of a configuration, such as `target`, a model."""
    try:
        return made(extended(schema), values, f"{path}{name}.")  # type: ignore[arg-type]
    except ConfigError as error:
        # The second model is `target` on a command line, and errors of its schema say `model`.
        message = str(error).replace(f"{schema.part}.", f"{name}.", 1)
        raise ConfigError(message) from None
