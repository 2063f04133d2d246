"""The ${...} of a configuration: what they stand for, and how large it becomes by them.

OmegaConf replaces them without any bound, so that a file of a few lines can fill the memory. Who
reads them in a text is given to these functions: `compose.references_in`, by OmegaConf's own
grammar, so that no text means one thing to a check and another to OmegaConf.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce

from thinkalike.errors import ConfigError, nearest, short

ABSENT = object()  # no value, not even null
MOST_RESOLVED = 10**6  # letters and values of a configuration once its ${...} are replaced
REFERENCE_COST = 200  # letters that OmegaConf reads to look up one ${...}, each time anew
ENVIRONMENT = "oc.env"  # the resolver that reads the environment
# They return no more than they are given. oc.decode is not one of them: it reads a text that other
# resolvers have put together, so that nobody can say beforehand what the text stands for.
RESOLVERS = (ENVIRONMENT, "now")
MOST_HOPS = 100  # settings that are ${...} themselves on the way to one that is none
REPLACED = "\0"  # stands for a ${...} that was read already

KeyPath = tuple[str, ...]


@dataclass(frozen=True)
class Reference:
    """One ${...} of a text.

    Attributes:
        resolver: The name of its resolver, such as "oc.env"; "" if it stands for a setting.
        name: The key of the setting, such as "model.name" or ".name", or the first argument of the
            resolver.
    """

    resolver: str
    name: str


ReadReferences = Callable[[str], list[Reference]]  # the ${...} of a text, in their order


class ReferenceReader:
    """Notes each ${...} that a visitor of OmegaConf's grammar comes to in a text, innermost first.

    Attributes:
        references: Those that were noted.
    """

    def __init__(self, text: str):
        self._text = text
        self.references: list[Reference] = []

    def of_setting(self, key: str, memo: set[int] | None) -> str:
        self._check_form(key)
        plain_key = re.sub(r"\[(.*?)\]", r".\1", key)  # a[b] is a.b, and [a] is a
        if key.startswith("["):
            plain_key = plain_key.removeprefix(".")
        self.references.append(Reference("", plain_key))
        return REPLACED

    def of_resolver(self, name: str, args: tuple[object, ...], args_str: tuple[str, ...]) -> str:
        self._check_form((name, args))
        if name not in RESOLVERS:
            raise self._not_read()
        first = ""
        if args:
            first = str(args[0])
        self.references.append(Reference(name, first))
        return REPLACED

    def _check_form(self, content: object) -> None:
        """Check that nothing inside of a ${...} is computed by another one."""
        if any(REPLACED in text for text in texts_in(content)):
            raise self._not_read()

    def _not_read(self) -> ConfigError:
        return ConfigError(f"{short(self._text)} is not read; name a setting, as ${{seed}} does")


def texts_in(value: object) -> Iterator[str]:
    """Yield the texts of nested settings, which include the keys."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from texts_in(name)
            yield from texts_in(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from texts_in(inner)
    elif isinstance(value, str):
        yield value


def unescaped(text: str) -> str:
    r"""Return a text with ${...} in place of \${...}, which a job inside may read."""
    return re.sub(r"\\+\$\{", "${", text)


def check_references(
    settings: Mapping[str, object],
    read_references: ReadReferences,
    is_whole: bool = True,
) -> None:
    """Check that the ${...} of a configuration stand for settings, and not for too many.

    Args:
        read_references: Returns the ${...} of a text.
        is_whole: Whether the configuration has all of its settings.

    Raises:
        ConfigError: It is too large once they are replaced, or a ${...} stands for itself, for
            nothing, or is of a form that is not read.
    """
    _ResolvedSizes(settings, read_references, is_whole).of(settings, ())


class _ResolvedSizes:
    """How many values and letters the settings of a configuration have once it is resolved.

    Args:
        root: The configuration.
        read_references: Returns the ${...} of a text.
        is_whole: Whether the configuration has all of its settings.
    """

    def __init__(
        self,
        root: Mapping[str, object],
        read_references: ReadReferences,
        is_whole: bool,
    ):
        self._root = root
        self._read_references = read_references
        self._is_whole = is_whole
        self._sizes: dict[KeyPath, int] = {}
        self._open: set[KeyPath] = set()  # the settings whose size is being computed

    def of(self, value: object, path: KeyPath) -> int:
        """Return how many values and letters the setting at a path has."""
        if path in self._sizes:
            return self._sizes[path]
        if path in self._open:
            raise _stands_for_itself(path)
        self._open.add(path)
        size = 1
        if isinstance(value, Mapping):
            for name, inner in value.items():
                size += self.of(inner, (*path, str(name)))
        elif isinstance(value, list):
            for index, inner in enumerate(value):
                size += self.of(inner, (*path, str(index)))
        elif isinstance(value, str):
            size = len(value)
            for referred_path in self._paths_in(value, path):
                size += REFERENCE_COST + self._of_referred(referred_path, path)
        if size > MOST_RESOLVED:
            raise ConfigError(
                f"{_key_in_message(path)} stands for more than {MOST_RESOLVED:,} values; "
                "name fewer settings by ${...}"
            )
        self._open.remove(path)
        self._sizes[path] = size
        return size

    def _of_referred(self, path: KeyPath, origin: KeyPath) -> int:
        """Return the size of the setting that a ${...} of the setting `origin` stands for."""
        final_path, value = self._followed(path, origin)
        if value is not ABSENT:
            return self.of(value, final_path)
        if not self._is_whole:
            return 1
        parent: object = self._root
        beginning = ""
        if len(path) > 1:
            beginning = ".".join(path[:-1]) + "."
            parent = value_inside(self._root, beginning[:-1])
        if not isinstance(parent, Mapping):
            parent = self._root
            beginning = ""
        known = [f"{beginning}{name}" for name in parent]
        raise ConfigError(
            f"{_key_in_message(origin)}: ${{...}} names {_key_in_message(path)}, "
            f"which is not a setting; {nearest('.'.join(path), known)}"
        )

    def _followed(self, path: KeyPath, origin: KeyPath) -> tuple[KeyPath, object]:
        """Return the path and the value of a setting whose path may lead through a ${...}.

        It does so for ${target.name} where the file says target: ${model}.
        """
        value: object = self._root
        passed: KeyPath = ()
        remaining = list(path)
        hops = 0
        while remaining:
            if isinstance(value, str):
                targets = self._paths_in(value, passed)
                if not targets:
                    return path, ABSENT
                hops += 1
                if hops > MOST_HOPS:
                    raise _stands_for_itself(origin)
                remaining = [*targets[0], *remaining]
                value = self._root
                passed = ()
            name = remaining.pop(0)
            passed = (*passed, name)
            value = _step_inside(value, name)
        return passed, value

    def _paths_in(self, text: str, path: KeyPath) -> list[KeyPath]:
        """Return the paths of the settings that the ${...} of the setting at a path stand for."""
        try:
            return [
                _absolute(reference.name, path)
                for reference in self._read_references(text)
                if not reference.resolver
            ]
        except ConfigError as error:
            raise ConfigError(f"{_key_in_message(path)}: {error}") from error


def _stands_for_itself(path: KeyPath) -> ConfigError:
    return ConfigError(f"{_key_in_message(path)} stands for itself by ${{...}}; give it a value")


def _key_in_message(path: KeyPath) -> str:
    """Return the key of a setting as messages show it."""
    return short(".".join(path))


def _absolute(name: str, path: KeyPath) -> KeyPath:
    """Return the path that ${name} stands for in the setting at a path.

    With dots before it, it is relative to that setting.
    """
    plain_name = name.lstrip(".")
    levels_up = len(name) - len(plain_name)
    names = tuple(plain_name.split("."))
    if not levels_up:
        return names
    if levels_up > len(path):
        raise ConfigError(
            f"${{{short(name)}}} has more dots than the key of the setting has names"
        )
    return (*path[:-levels_up], *names)


def value_inside(settings: object, key: str) -> object:
    """Return the value of a dotted key inside nested settings, or ABSENT."""
    return reduce(_step_inside, key.split("."), settings)


def _step_inside(value: object, name: str) -> object:
    if isinstance(value, list) and name.isdecimal() and int(name) < len(value):
        return value[int(name)]
    if isinstance(value, Mapping):
        return value.get(name, ABSENT)
    return ABSENT


def literal(value: object) -> object:
    """Return plain settings in which OmegaConf takes every ${ for these two letters.

    They may be part of the name of a file.
    """
    if isinstance(value, Mapping):
        return {name: literal(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [literal(inner) for inner in value]
    if isinstance(value, str):
        return re.sub(r"(\\*)\$\{", lambda match: 2 * match[1] + r"\${", value)
    return value
