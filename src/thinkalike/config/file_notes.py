"""What the files of a configuration set, noted while Hydra composes them, and checks of it.

Hydra merges the files, and afterwards nothing says which of them a setting is from.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from thinkalike.config.groups import GROUPS, Settings, options
from thinkalike.config.overrides import PlainOverride, gives
from thinkalike.config.references import ABSENT, value_inside
from thinkalike.config.written import NumberTexts, drop_texts
from thinkalike.errors import ConfigError, flat, listed, short


@dataclasses.dataclass
class FileNotes:
    """What was noted of the files of one configuration.

    Attributes:
        settings: The keys that each file of a user sets.
        values: By key the value of the last file of a user, and that file.
        overruled: By key the file of a user whose value one of the package replaces.
        texts: Of the numbers in files, see `thinkalike.config.written`.
        sorts: By key whether the package has settings there, or a list.
        of_jobs: The keys that a file of a user sets for a job, and not as an option of a group.
        environment: The environment variables that the overrides name.
    """

    settings: dict[str, set[str]] = dataclasses.field(default_factory=dict)
    values: dict[str, tuple[object, str]] = dataclasses.field(default_factory=dict)
    overruled: dict[str, str] = dataclasses.field(default_factory=dict)
    texts: NumberTexts = dataclasses.field(default_factory=dict)
    sorts: dict[str, str] = dataclasses.field(default_factory=dict)
    of_jobs: set[str] = dataclasses.field(default_factory=set)
    environment: set[str] = dataclasses.field(default_factory=set)

    def add(self, settings: Settings, package: str, file: str, texts: NumberTexts) -> None:
        """Note what a file sets, once its settings are at their final places.

        Args:
            package: The key of the settings that hold them all; "" for those of a job.
            file: Of a user; "" for one of the package.
            texts: Of its numbers, by their places inside `package`.
        """
        if file:
            self._check_sorts(settings, file)
        else:
            self.sorts.update(_sorts_of(settings))

        values = flat({name: part for name, part in settings.items() if name != "hydra"})
        for key, value in values.items():
            if file:
                self.settings.setdefault(file, set()).add(key)
                self.values[key] = (value, file)
                self.overruled.pop(key, None)
                if not package:
                    self.of_jobs.add(key)
            elif key in self.values and self.values[key][0] != value:
                self.overruled[key] = self.values[key][1]

        drop_texts(self.texts, values)
        beginning = tuple(package.split(".")) if package else ()
        for key_path, text in texts.items():
            self.texts[(*beginning, *key_path)] = text

    def _check_sorts(self, settings: Settings, file: str) -> None:
        """Check that a file has settings, or a list, where the package has them.

        Hydra cannot merge anything else.
        """
        for key, sort in self.sorts.items():
            value = value_inside(settings, key)
            if value is ABSENT:
                continue
            if isinstance(value, str) and (value == "???" or "${" in value):
                continue
            if sort == "settings" and not isinstance(value, Mapping):
                remedy = f"{key}: {{name: value}}"
                group = "model@target" if key == "target" else key
                if key in (*GROUPS, "target") and value in options(group.partition("@")[0]):
                    remedy += f", or write override {group}: {value} in its defaults"
                raise ConfigError(
                    f"{file}: {key}={short(value)} must be settings, by their names: {remedy}"
                )
            if sort == "list" and isinstance(value, Mapping):
                raise ConfigError(f"{file}: {key}={short(value)} must be a list: {key}: [value]")

    def check_order(self) -> None:
        """Check that no default replaces a file's setting, as in `defaults: [_self_, train]`."""
        for key, file in self.overruled.items():
            raise ConfigError(
                f"{file} sets {short(key)}, and its defaults have a configuration after _self_ "
                "that sets it again; write _self_ last: defaults: [train, _self_]"
            )

    def check_given(self, given: Iterable[str]) -> None:
        """Check that overrides give each setting that a file leaves to them, as ???.

        Otherwise a default would pass for it.

        Args:
            given: The keys of the overrides.
        """
        override_keys = list(given)
        for key, (value, file) in self.values.items():
            is_left = value == "???"
            if is_left and not any(gives(override_key, key) for override_key in override_keys):
                raise ConfigError(
                    f"{file} leaves {short(key)} to the command line, as ???; give {short(key)}="
                )

    # ---- which file the message of an error is about

    def with_files(
        self, message: str, files: Collection[str], overrides: Iterable[PlainOverride]
    ) -> str:
        """Return a message of Hydra's that names the files of a user which it is about.

        It says what is wrong, and seldom in which file.

        Args:
            files: Those of the user that were loaded.
            overrides: Of the command line; a message on one of them is about no file.
        """
        names_a_file = any(file in message for file in files)
        if not files or names_a_file or any(given.is_about(message) for given in overrides):
            return message
        key = _key_at_beginning(message)
        if key in self.values:
            return f"{self.values[key][1]}: {message}"
        return f"{listed(files)}: {message}"

    def with_file(
        self, message: str, given: Iterable[str], choices: Mapping[str, str | None]
    ) -> str:
        """Return a message on a value that names the file of a user which sets the value.

        Args:
            message: Begins with the key, such as seed=x.
            given: The keys of the overrides, which files have no part in.
            choices: By group the option that is chosen, or None.
        """
        file = self._file_of(_key_at_beginning(message), given)
        if file:
            return f"{file}: {message}"
        return self._with_file_of_option(message, choices)

    def _file_of(self, key: str, given: Iterable[str]) -> str:
        """Return the last file that sets a key, or settings inside it; "": an override does."""
        for override_key in given:
            if gives(override_key, key):
                return ""
        file = ""
        for name, (_, file_of_name) in self.values.items():
            if name == key or name.startswith(f"{key}."):
                file = file_of_name
        return file

    def _with_file_of_option(self, message: str, choices: Mapping[str, str | None]) -> str:
        """Return a message that names the file of an option which leaves a setting out.

        Only the schema of its group gives all of the settings a value.
        """
        unset = re.match(r"(\w+)\.\w+=None must", message)
        if unset is None:
            return message
        part = unset[1]
        group = "model@target" if part == "target" else part
        name = Path(choices.get(group) or "").name
        for file, keys in self.settings.items():
            if Path(file).stem == name and any(key.startswith(f"{part}.") for key in keys):
                return f"{file}: {message}; begin the file with defaults: [schema, _self_]"
        return message


def _key_at_beginning(message: str) -> str:
    """Return the key with which a message begins, such as seed=x or 'seed'; "" without one."""
    beginning = re.match(r"'?([\w.]+)('|=|:)", message)
    return "" if beginning is None else beginning[1]


def _sorts_of(settings: Mapping[str, object], beginning: str = "") -> dict[str, str]:
    """Return by dotted key which values of nested settings are settings, and which are lists."""
    sorts = {}
    for name, value in settings.items():
        key = f"{beginning}{name}"
        if key == "hydra":
            continue
        if isinstance(value, Mapping):
            sorts[key] = "settings"
            sorts.update(_sorts_of(value, f"{key}."))
        elif isinstance(value, list):
            sorts[key] = "list"
    return sorts
