"""From `conf/` and overrides to a configuration dataclass: the one module that imports Hydra and OmegaConf.

Hydra composes the files of `conf/`, those of the user's folders, and what `Options` answers. What a command line leaves
open is None there; `completed` decides it for the parts that a job reads, and the dataclasses check what comes out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import re
import shlex
import sys
import threading
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cache, reduce
from pathlib import Path
from typing import Any, ClassVar, get_type_hints
from unittest.mock import patch

import hydra
import hydra._internal.hydra
import hydra.conf
import hydra.core.override_parser.overrides_parser
import yaml
from hydra import compose, initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository, ConfigRepository
from hydra._internal.core_plugins.basic_launcher import BasicLauncherConf
from hydra._internal.core_plugins.basic_sweeper import BasicSweeperConf
from hydra._internal.utils import get_args_parser as get_args_parser
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.default_element import GroupDefault, ResultDefault
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.overrides_visitor import HydraOverrideVisitor
from hydra.core.override_parser.types import ChoiceSweep, Override
from hydra.core.plugins import Plugins
from hydra.core.utils import JobRuntime
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.experimental.callback import Callback as Callback
from hydra.grammar.gen.OverrideParser import OverrideParser
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.version import VersionBase
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException
from yaml import YAMLError

from thinkalike.config.groups import (
    CONF,
    GROUPS,
    LISTS,
    PACKAGES,
    PackagedOptions,
    completed,
    folder_node,
    given_settings,
    measure_schema,
    option,
    option_folders,
    options,
    reading_options,
    schema_node,
    schema_of_group,
    unset_settings,
)
from thinkalike.config.parts import HOW_IT_RUNS, AnalyzeConfig, JobConfig, MeasureConfig, ModelConfig
from thinkalike.config.schema import extended, made, unknown
from thinkalike.config.written import (
    NumberTexts,
    Place,
    WrittenFloat,
    WrittenInt,
    drop_texts,
    restore_texts,
    taken_texts,
    texts_of_yaml,
)
from thinkalike.errors import (
    LONGEST_REASON,
    ConfigError,
    ThinkalikeError,
    chain,
    flat,
    nearest,
    one_line,
    one_of,
    short,
)
from thinkalike.files import YAML_LOADER, check_yaml, read_bytes
from thinkalike.plugins import (
    MEASURES,
    TASKS,
    check_trusted,
    conf_folders,
    instrument,
    measure_entry,
    named_in,
    trust,
)

_ABSENT = object()  # no value, not even null
COMPOSING_ERRORS = (OmegaConfBaseException, HydraException, YAMLError)
SOURCE, TARGET = "gelu-3l-mini", "solu-3l-mini"  # where none is named
PROGRAM = "THINKALIKE_PROGRAM"  # environment variable: how the user called the script, also for the workers of a sweep
FOLDERS, REST = "thinkalike://folders", "thinkalike://"
_COMPOSING = threading.RLock()
OURS = ("thinkalike", "structured")  # schemes of the sources that no file is behind
HYDRAS = "hydra.conf"  # the package that has Hydra's own files
LARGEST_FILE = 2**18  # bytes of a configuration file
MOST_LOADED = 5000  # how often one command line may load a file; a long one loads 60
MOST_RESOLVED = 10**6  # letters and values of a configuration once its ${...} are replaced
WORD = re.compile(r"[\w:|&,*@+\[\] -]*")  # such as gpu:a100:2; no path, module, URL, ${...} or line of a shell
PARAMETER = re.compile(r"[a-z][\w-]*", re.ASCII | re.IGNORECASE)  # becomes a line of a script for SLURM
# such as ++stitch.lr; whatever stands before it, no key of a sweep is one of Hydra's own settings
SWEPT_KEY = re.compile(r"[+~]{0,2}(?!hydra\b)[a-z][\w-]*([./][\w-]+)*(@target)?", re.ASCII)
SWEPT_VALUES = re.compile(r"[\w\s.,()\[\]*/+=-]*")  # such as choice(0.1,1); without a colon it names no FILE.py:NAME
DEEPEST_OVERRIDE = 20  # brackets inside one another; Hydra's reader calls itself a dozen times for each
MOST_JOBS = 10_000  # of a sweep; Hydra lists and composes all of them before the first begins
MOST_BITS = 1024  # of an integer in a file, as no float is larger; Python refuses to print very long ones
REFERENCE_COST = 200  # letters that OmegaConf reads while it looks up one ${...}, each time anew
INNERMOST = re.compile(r"\$\{([^${}]*)\}")  # ${...} with no other inside
ENVIRONMENT = re.compile(r"oc\.env\s*:\s*(\w+)", re.ASCII)  # inside of ${...}; \${...} may be read by a job inside
RESOLVERS = ("oc.env", "oc.decode", "now", "hydra")  # which return no more than they are given


class NumbersAsWritten(HydraOverrideVisitor):
    """Reads overrides as Hydra does, with numbers that remember their text, also through the values of a sweep.

    A key that a dictionary has twice is refused; Hydra drops the first of the two values.
    """

    def visitDictContainer(self, context: Any) -> Any:
        settings = super().visitDictContainer(context)
        pairs = [child for child in context.getChildren() if isinstance(child, OverrideParser.DictKeyValuePairContext)]
        if len(settings) < len(pairs):
            raise HydraException(f"{short(context.getText())} has one key twice")
        return settings

    def visitPrimitive(self, context: Any) -> Any:
        value: Any = super().visitPrimitive(context)
        text = context.getText().strip()
        if type(value) not in (int, float) or str(value) == text:
            return value
        written = WrittenInt(value) if isinstance(value, int) else WrittenFloat(value)
        written.text = text
        return written


class Options(ConfigSource):
    """Answers what no file of conf/ can: schemas, `model=DIR`, `model=ORG/NAME`, `data=ORG/NAME`, and measures.

    It stands twice in Hydra's search path: before all files for folders, as `./gpt2` is not conf/model/gpt2.yaml, and
    after them for the rest.
    """

    @staticmethod
    def scheme() -> str:
        return "thinkalike"

    def load_config(self, config_path: str) -> ConfigResult:
        node = folder_node(config_path) or schema_node(config_path)
        # tasks and measures bring the parts that they add
        package = "_global_" if config_path.startswith(("task/", "measure/", f"{PACKAGES}/")) else None
        return ConfigResult(self.provider, f"{REST}{config_path}", OmegaConf.create(node), {"package": package})

    def is_config(self, config_path: str) -> bool:
        return (folder_node if self.path else schema_node)(config_path) is not None

    def is_group(self, config_path: str) -> bool:
        return config_path in ("", *LISTS)

    def available(self) -> bool:
        return True

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        if results_filter == ObjectType.GROUP:
            return [] if config_path else [*LISTS]  # so that --help has measures and tasks
        return LISTS.get(config_path, [])


class OptionsEverywhere(SearchPathPlugin):
    """Adds `Options` to the search path of this project; a notebook may hold another application of Hydra's."""

    is_ours: ClassVar[bool] = False  # whether the application that Hydra initialises is this project

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        if self.is_ours:
            search_path.prepend("thinkalike", FOLDERS)
            for folder in conf_folders().values():
                search_path.append("thinkalike", f"file://{folder}")
            search_path.append("thinkalike", REST)


class FilesOnly(ConfigRepository):
    """Finds and reads the files of a configuration, of which those of a user's folder may be a stranger's."""

    def __init__(self, config_search_path: ConfigSearchPath):
        super().__init__(config_search_path)
        self.settings: dict[str, set[str]] = {}  # the keys that each file of a user sets
        self.missing: dict[str, str] = {}  # by key the file that says ??? of it, and no later one another value
        self.values: dict[str, tuple[Any, str]] = {}  # by key the value of the last file of a user, and that file
        self.overruled: dict[str, str] = {}  # by key the file of a user whose value one of the package replaces
        self.texts: NumberTexts = {}  # of the numbers in files, see `written`
        self.sorts: dict[str, str] = {}  # by key whether the package has settings there, or a list
        self.of_jobs: dict[str, str] = {}  # by key the file of a user that sets it for a job, and is no group's option
        self.environment: set[str] = set()  # the environment variables that the overrides name

    def clear(self) -> None:
        """Forget what was noted of an earlier configuration."""
        self.environment.clear()
        by_key = (self.missing, self.values, self.overruled, self.sorts, self.of_jobs)
        for notes in (self.settings, self.texts, *by_key):
            notes.clear()

    def note(self, loaded: ConfigResult, package: str) -> None:
        """Note what a configuration sets, once its settings are at their final places, inside `package`."""
        settings: Any = OmegaConf.to_container(loaded.config, resolve=False)
        if not isinstance(settings, dict):
            return
        file = getattr(loaded, "foreign", "")  # "" for one of the package
        if file:
            self._check_sorts(settings, file)
        else:
            self.sorts.update(_sorts_of(settings))
        named = flat({name: part for name, part in settings.items() if name != "hydra"})
        for key, value in named.items():
            if file:
                self.settings.setdefault(file, set()).add(key)
                self.values[key] = (value, file)
                self.overruled.pop(key, None)
                if not package:
                    self.of_jobs[key] = file
            elif key in self.values and self.values[key][0] != value:
                self.overruled[key] = self.values[key][1]
            if file and value == "???":
                self.missing[key] = file
            else:
                self.missing.pop(key, None)
        drop_texts(self.texts, named)
        start = tuple(package.split(".")) if package else ()
        texts = getattr(loaded, "texts", {})
        self.texts.update({(*start, *place): text for place, text in texts.items()})

    def _check_sorts(self, settings: Mapping[Any, Any], file: str) -> None:
        """Check that a file has settings, or a list, where the package has them; Hydra cannot merge anything else."""
        for key, sort in self.sorts.items():
            value = reduce(_inside, key.split("."), settings)
            if value is _ABSENT or (isinstance(value, str) and (value == "???" or "${" in value)):
                continue
            if sort == "settings" and not isinstance(value, Mapping):
                group = "model@target" if key == "target" else key
                chosen = options(group.partition("@")[0]) if key in (*GROUPS, "target") else []
                remedy = f"{key}: {{name: value}}"
                if value in chosen:
                    remedy += f", or write override {group}: {value} in its defaults"
                raise ConfigError(f"{file}: {key}={short(value)} must be settings, by their names: {remedy}")
            if sort == "list" and isinstance(value, Mapping):
                raise ConfigError(f"{file}: {key}={short(value)} must be a list: {key}: [value]")

    def _find_object_source(self, config_path: str, object_type: ObjectType | None) -> ConfigSource | None:
        # before any source is asked, as the schema of a plugin's measure comes from running its file
        name = config_path.partition("/")[2]
        _check_plugins(name)
        return super()._find_object_source(config_path, object_type)

    def load_config(self, config_path: str) -> ConfigResult | None:
        source = self._find_object_source(config_path, ObjectType.CONFIG)
        file = _foreign_file(source, config_path) if source else None
        if file is None:
            return super().load_config(config_path)
        content = read_bytes(file, LARGEST_FILE)
        try:
            check_yaml(content)
            self._check_environment(content, file)
            _check_defaults(yaml.load(content, Loader=YAML_LOADER), str(file))
            loaded = super().load_config(config_path)
        except YAMLError as error:
            raise ConfigError(f"{file}: {_explained_yaml(error)}") from error
        except (ThinkalikeError, RecursionError):
            raise
        except Exception as error:  # such as a ValueError of PyYAML for !!float x
            raise ConfigError(f"{file}: {explained(error)}") from error
        assert loaded is not None
        settings = OmegaConf.to_container(loaded.config, resolve=False)
        _check_integers(settings, str(file))
        loaded.foreign = str(file)  # type: ignore[attr-defined]
        loaded.texts = texts_of_yaml(content, settings)  # type: ignore[attr-defined]
        _check_hydras_settings(loaded.config, str(file))
        for default in loaded.defaults_list or []:
            if isinstance(default, GroupDefault):
                _check_option(str(default.group), default.value, f"{file}: ")
        return loaded

    def _check_environment(self, content: bytes, file: Path) -> None:
        """Check that a file reads no environment variable that the command line does not name.

        It may hold a key, and settings go to loggers, to the hub and into results.
        """
        for name in _environment_in(yaml.load(content, Loader=YAML_LOADER)):
            if name not in self.environment:
                raise ConfigError(
                    f"{file} reads the environment variable {name}, which may be a secret; give the setting on the "
                    f"command line, as KEY='${{oc.env:{name}}}'"
                )

    def check_all_are_read(self) -> None:
        """Check that no file of the user has the name of one of the package's own, which is read in its place.

        Also of the groups that the job does not ask for: whoever wrote the file believes that it counts.
        """
        foreign = [source for source in self.sources if source.scheme() == "file" and source.available()]
        for config_path in _names_of_package():
            for source in foreign:
                file = _foreign_file(source, config_path)
                if file is None or not file.is_file():
                    continue
                chosen = self._find_object_source(config_path, ObjectType.CONFIG)
                if chosen is not None and _foreign_file(chosen, config_path) is None:
                    raise ConfigError(
                        f"{file} is never read, as this package has a configuration of that name, too; give the file "
                        "another name"
                    )


class FewLoads(CachingConfigRepository):
    """Ends lists of defaults that include each other again and again, of which a few files make billions."""

    loads = 0

    def load_config(self, config_path: str) -> ConfigResult | None:
        self.loads += 1
        if self.loads > MOST_LOADED:
            raise ConfigError(
                f"{config_path} and others include each other over {MOST_LOADED:,} times; shorten defaults"
            )
        return super().load_config(config_path)


class Loader(ConfigLoaderImpl):
    """Composes as Hydra does, and takes no code from files of the user: see `_check_hydras_settings`.

    Hydra instantiates classes, opens logs and imports modules that its own settings name, whoever wrote them. Here they
    are checked where all of a file's content has come to its final place, by whatever header or list of defaults.
    """

    def __init__(self, config_search_path: ConfigSearchPath):
        super().__init__(config_search_path)
        self.files = FilesOnly(config_search_path)
        self.repository = self.files
        self.given_keys: set[str] = set()  # of the overrides
        self.given_texts: NumberTexts = {}  # of the numbers in the overrides

    def _parse_overrides_and_create_caching_repo(
        self, config_name: str | None, overrides: list[str]
    ) -> tuple[list[Override], CachingConfigRepository]:
        parsed = OverridesParser.create().parse_overrides(overrides=overrides)
        self.files.texts.clear()
        if config_name is not None:  # and not an option of a group alone, see `_option`
            self.files.clear()
        self.given_keys, self.given_texts = set(), {}
        self.files.environment |= _environment_in(overrides)
        for override in parsed:
            _check_key(override)
            _check_option(override.key_or_group, override.value())
            self.given_keys.add(override.key_or_group)
            # OmegaConf holds no subclass of a number, so the override has plain ones from now on
            override._value, texts = taken_texts(override._value, override.key_or_group)
            self.given_texts.update(texts)
            if override.package and isinstance(override.value(), Mapping):
                raise ConfigError(
                    f"{short(override.input_line)} has settings in place of the name of an option; give "
                    f"{override.package}={{name: value}} for settings"
                )
        repository = FewLoads(self.files)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # Hydra's, of what is refused below
            self._process_config_searchpath(config_name, parsed, repository)
        _check_search_path(repository)
        return parsed, repository

    def _load_single_config(self, default: ResultDefault, repo: Any) -> ConfigResult:
        loaded = super()._load_single_config(default, repo)
        file = getattr(loaded, "foreign", "")
        package = loaded.header["package"] if default.package is None else default.package
        self.files.note(loaded, package or "")
        if file:
            _check_hydras_settings(loaded.config, file)
            _check_plugins(OmegaConf.to_container(loaded.config, resolve=False))
        return loaded

    def load_configuration(self, *given: Any, **named: Any) -> DictConfig:
        try:
            composed = super().load_configuration(*given, **named)
            settings: Any = OmegaConf.to_container(composed, resolve=False)
            settings.pop("hydra")  # of which no file has set a text
            if composed.hydra.job.config_name:
                self.files.check_all_are_read()
                _check_is_job(settings)
                self._check_order()
                self._check_given(OmegaConf.to_container(composed.hydra.overrides.task, resolve=False))
            _resolved_size(settings, "", settings, {})
            self._restore_texts(composed, settings)
            return composed
        except (ThinkalikeError, *COMPOSING_ERRORS):
            raise
        except RecursionError as error:
            raise ConfigError("the configuration includes itself, or is nested too deeply") from error
        except Exception as error:  # Hydra has no errors of its own for most of what can be wrong in a file
            tried = [key for key in self.given_keys if key.startswith("hydra.sweeper.params.")]
            if tried:  # this sweeper has no parameters yet, into which Hydra could put one
                name = tried[0].removeprefix("hydra.sweeper.params.")
                raise ConfigError(f"{short(tried[0])} is a setting of files; give -m {short(name)}=VALUES") from error
            reason = one_line(error) or type(error).__name__
            raise ConfigError(f"the configuration cannot be composed: {reason}") from error

    def _restore_texts(self, composed: DictConfig, settings: Any) -> None:
        """Put the text of a number in its place where the setting is a text, as that of `revision: 1.10` is."""
        drop_texts(self.files.texts, self.given_keys)
        texts = {**self.files.texts, **self.given_texts}
        restore_texts(composed, settings, texts, lambda place: _schema_of(place, settings))

    def _check_order(self) -> None:
        """Check that no file's setting is replaced by a default, as all are by `defaults: [_self_, train]`."""
        for key, file in self.files.overruled.items():
            raise ConfigError(
                f"{file} sets {short(key)}, and its defaults have a configuration after _self_ that sets it again; "
                "write _self_ last: defaults: [train, _self_]"
            )

    def _check_given(self, overrides: Any) -> None:
        """Check that overrides have each setting that a file leaves to them, as ???, for which a default would pass."""
        given = keys_of(overrides)
        for key, file in self.files.missing.items():
            # The choice of a group, such as stitch=affine, gives none of its settings.
            if not any(key == each or ("." in each and key.startswith(f"{each}.")) for each in given):
                raise ConfigError(f"{file} leaves {short(key)} to the command line, as ???; give {short(key)}=")


@contextlib.contextmanager
def loading_files_only() -> Iterator[None]:
    """Let Hydra compose by `Loader` while this is open; it has no other place where a loader can be given."""
    with (
        patch.object(hydra._internal.hydra, "ConfigLoaderImpl", Loader),
        patch.object(hydra.core.override_parser.overrides_parser, "HydraOverrideVisitor", NumbersAsWritten),
    ):
        yield


def _check_search_path(repository: CachingConfigRepository) -> None:
    """Check that each place that hydra.searchpath names is there; Hydra warns in two lines of its own code."""
    for source in repository.get_sources():
        if source.provider.startswith("hydra.searchpath") and not source.available():
            place = short(f"{source.scheme()}://{source.path}")
            raise ConfigError(f"hydra.searchpath={place} is not available; name a folder, as file://DIR")


def _environment_in(value: Any) -> set[str]:
    """Return the names of the environment variables that nested settings, or the overrides inside them, read."""
    if isinstance(value, Mapping):
        return _environment_in([*value.keys(), *value.values()])
    if isinstance(value, list | tuple):
        return {name for inner in value for name in _environment_in(inner)}
    if isinstance(value, str) and "${" in value:
        return set(ENVIRONMENT.findall(value))
    return set()


def _foreign_file(source: ConfigSource, config_path: str) -> Path | None:
    """Return the file that a source would read, or None if it is one of this package, of Hydra or of its plugins."""
    if source.scheme() in OURS or (source.scheme() == "pkg" and source.path == HYDRAS):
        return None
    file = Path(source.path, config_path).with_name(f"{Path(config_path).name.removesuffix('.yaml')}.yaml").resolve()
    folder = Path(source.path).resolve()
    is_ours = folder in _own_folders() and file.is_relative_to(folder)  # not by ../..
    return None if is_ours else file


@cache
def _names_of_package() -> list[str]:
    """Return the configurations of the package and of Hydra by their paths, such as model/gpt2 and stimuli/schema."""
    names = ["train_schema", "analyze_schema", *(f"{group}/schema" for group in GROUPS)]
    names += [f"{group}/{name}" for group, offered in LISTS.items() for name in offered]
    for folder in (*_own_folders(), *map(Path, hydra.conf.__path__)):
        names += [str(file.relative_to(folder).with_suffix("")) for file in folder.rglob("*.yaml")]
    return sorted(set(names))


@cache
def _own_folders() -> list[Path]:
    """Return the folders of configuration groups of this package and of installed packages that extend it."""
    return [folder.resolve() for folder in option_folders()]


def _check_is_job(settings: Mapping[Any, Any]) -> None:
    """Check that a composed configuration has the settings that each job has, before Hydra makes a folder for it."""
    if any(name not in settings for name in unset_settings(JobConfig)):
        raise ConfigError("a configuration of your own begins with defaults: [train, _self_], or analyze in its place")


def _check_key(override: Override) -> None:
    """Check that an override is of a setting or a group, and removes none.

    Each job has all of its settings and groups, so that the default of what was removed would be read without a word.
    """
    key = override.key_or_group
    line = short(override.input_line)
    if not key:
        raise ConfigError(f"{line} names no setting; write name=value")
    if key == "hydra":
        raise ConfigError(f"{line} is not a setting; Hydra's own are hydra.NAME=value")
    if override.is_delete() and not re.match(r"hydra\b", key):
        name = f"{key}@{override.package}" if override.package else key
        raise ConfigError(f"{line} removes a setting, and a job needs all of them; leave it out, or give {name}=value")


def _check_option(group: str, chosen: Any, begins: str = "") -> None:
    """Check that a group has one option; Hydra would mix the settings of several into a model that nobody has."""
    name = group.strip("/")
    is_ours = name in LISTS or (bool(name) and any((folder / name).is_dir() for folder in _own_folders()))
    if is_ours and isinstance(chosen, list):
        raise ConfigError(f"{begins}{name}={short(chosen)} chooses several options, and a job has one; choose one")
    if is_ours and ((chosen is None and not begins) or isinstance(chosen, bool | int | float)):
        written = "null" if chosen is None else short(chosen)
        raise ConfigError(f"{begins}{name}={written} is not the name of an option; {nearest(written, options(name))}")


def _check_defaults(settings: Any, file: str) -> None:
    """Check that each item of a list of defaults names an option; Hydra does not say which one has settings instead."""
    defaults = settings.get("defaults") if isinstance(settings, Mapping) else None
    for item in defaults if isinstance(defaults, list) else ():
        for group, chosen in item.items() if isinstance(item, Mapping) else ():
            if isinstance(chosen, Mapping):
                name = str(group).removeprefix("override ")
                raise ConfigError(
                    f"{file}: its defaults have settings for {short(name)} in place of the name of an option; write "
                    f"override {short(name)}: NAME there, and the settings below it, outside of defaults"
                )


def _check_integers(value: Any, file: str) -> None:
    """Check that no integer is so long that Python could not print it; 0xfff... is an integer, too."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            _check_integers(name, file)
            _check_integers(inner, file)
    elif isinstance(value, list):
        for inner in value:
            _check_integers(inner, file)
    elif isinstance(value, int) and value.bit_length() > MOST_BITS:
        raise ConfigError(f"{file} has an integer of {value.bit_length():,} bits; {MOST_BITS:,} are the most")


def _explained_yaml(error: YAMLError) -> str:
    """Return what is wrong with a text in YAML, and where, without the name of its stream."""
    problem, mark = getattr(error, "problem", None), getattr(error, "problem_mark", None)
    if not problem:
        return one_line(error)
    return f"{problem} in line {mark.line + 1}" if mark else str(problem)


def check_number_of_jobs(composed: DictConfig) -> None:
    """Check that Hydra's usual sweeper would not make too many jobs of a command line and of a file's values to try.

    Raises:
        ConfigError: there are more than `MOST_JOBS`.
    """
    sweeper = composed.hydra.sweeper
    if sweeper._target_ != BasicSweeperConf._target_:  # others choose among the values, and have a number of trials
        return
    words = [f"{key}={value}" for key, value in (sweeper.params or {}).items()]
    parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
    counts: dict[str, int | float] = {}  # the last override of a key takes the place of those before it
    for override in parser.parse_overrides([*words, *composed.hydra.overrides.task]):
        counts[override.get_key_element()] = _number_of_values(override)
    empty = [key for key, count in counts.items() if count == 0]
    if empty:
        raise ConfigError(f"{short(empty[0])} has no values, so the sweep has no jobs")
    if sweeper.max_batch_size is not None and sweeper.max_batch_size < 1:
        raise ConfigError(f"hydra.sweeper.max_batch_size={sweeper.max_batch_size} must be at least 1")
    if math.prod(counts.values()) > MOST_JOBS:
        longest = max(counts, key=lambda key: counts[key])
        raise ConfigError(
            f"the sweep has more than {MOST_JOBS:,} jobs, and {short(longest)} alone has {counts[longest]:,} values; "
            "divide it into several sweeps"
        )


def _number_of_values(override: Override) -> int | float:
    """Return how many values a sweep tries of a setting, without making them."""
    value: Any = override.value()
    if override.is_range_sweep():
        count = (value.stop - value.start) / value.step if value.step else math.inf
        return max(0, math.ceil(count)) if math.isfinite(count) else math.inf
    return len(list(override.sweep_iterator())) if override.is_choice_sweep() else 1


def trust_plugins_of(overrides: Iterable[str]) -> None:
    """Let the files of code be run that overrides name as FILE.py:NAME, because a person wrote these overrides."""
    for override in overrides:
        trust(_plugins_in(_parsed(override)))


def check_given_once(overrides: Iterable[str]) -> None:
    """Check that no two overrides of a command line give one setting different values; Hydra would take the last.

    Hydra's own settings are left out, as a process that shares a job gets some of them again from the one before it.
    """
    given: dict[tuple[str, str], tuple[str, Any]] = {}
    for word in overrides:
        for override in _parsed(word):
            value: Any = override.value()
            if override.is_delete() or re.match(r"hydra\b", override.key_or_group):
                continue
            key = (override.key_or_group, override.package or "")
            first, first_value = given.setdefault(key, (word, value))
            if first_value != value:
                raise ConfigError(f"{short(first)} and {short(word)} give one setting twice; leave one of them out")


def _parsed(override: str) -> list[Override]:
    """Return an override as Hydra reads it, or nothing if it cannot, which Hydra itself says at its time."""
    if _depth(override) > DEEPEST_OVERRIDE:
        raise ConfigError(
            f"{short(override)} has more than {DEEPEST_OVERRIDE} brackets inside one another; remove some"
        )
    try:
        return OverridesParser.create().parse_overrides([override])
    except HydraException:
        return []
    except ValueError as error:  # Python reads no number of thousands of digits
        raise ConfigError(f"{short(override)} cannot be read ({one_line(error)})") from error


def _depth(text: str) -> int:
    """Return how many brackets of a text are open at once."""
    depth = deepest = 0
    for letter in text:
        if letter in "[{(":
            depth += 1
            deepest = max(deepest, depth)
        elif letter in "]})":
            depth -= 1
    return deepest


def _plugins_in(settings: Any) -> list[str]:
    """Return the plugins FILE.py:NAME that nested settings or overrides name, once or several times.

    Some settings are lists of overrides for a job inside the job, such as measure.train, which name plugins in their
    values.
    """
    if isinstance(settings, Mapping):
        return _plugins_in([*settings.values()])
    if isinstance(settings, list | tuple):
        return [name for inner in settings for name in _plugins_in(inner)]
    if isinstance(settings, Override):
        return _plugins_in(settings.value())
    if isinstance(settings, ChoiceSweep):
        return _plugins_in([Override._convert_value(choice) for choice in settings.list])
    names = named_in(settings)
    if isinstance(settings, str) and "=" in settings and ".py:" in settings:
        names += _plugins_in(_parsed(settings))
    return names


def _check_plugins(settings: Any) -> None:
    """Check that a person named each file of code that settings name: a configuration runs none by itself."""
    for name in _plugins_in(settings):
        check_trusted(name)


def _check_hydras_settings(config: Any, file: str) -> None:
    """Check that a file sets nothing of Hydra's own but plain parameters of a launcher and a sweeper.

    Which launcher or sweeper runs is chosen by name, among those of installed packages.

    Raises:
        ConfigError: the file has another setting of Hydra's, such as a callback, a folder or a log.
    """
    if not OmegaConf.is_dict(config) or "hydra" not in config:
        return
    settings = OmegaConf.to_container(config, resolve=False)["hydra"]  # type: ignore[call-overload,index]
    if not isinstance(settings, dict):
        raise ConfigError(f"{file}: hydra: must have launcher: or sweeper:, and it is {short(settings)}")
    for name, part in settings.items():
        if name not in ("launcher", "sweeper"):
            raise ConfigError(
                f"{file} sets hydra.{name}, and of Hydra's own settings a file may have launcher and sweeper alone; "
                f"give hydra.{name} on the command line, if you trust it"
            )
        _check_parameters(f"hydra.{name}", part, file)


def _check_parameters(key: str, value: Any, file: str) -> None:
    """Check that the parameters of a launcher or sweeper are numbers, words, or, of a sweeper, values to try.

    Their names are checked as well: submitit writes those of a launcher into a script, and a sweeper makes overrides of
    its own, some of which are of Hydra's settings.
    """
    if not isinstance(value, dict):
        if key in ("hydra.launcher", "hydra.sweeper"):
            raise ConfigError(f"{file}: {key} must be settings, and it is {short(value)}")
        return
    for name, inner in value.items():
        if not (_is_parameter(key, name) and _is_plain(key, name, inner)):
            raise ConfigError(
                f"{file} sets {key}.{short(name)}, which could name code or a file to run; choose a launcher or "
                f"sweeper by its name in defaults, and give {key}.{short(name)} on the command line, if you trust it"
            )
        _check_parameters(f"{key}.{name}", inner, file)


def _is_parameter(key: str, name: Any) -> bool:
    """Return whether a name can be that of a parameter in the settings `key` of a launcher or sweeper."""
    allowed = SWEPT_KEY if key.startswith("hydra.sweeper.") else PARAMETER
    return isinstance(name, str) and bool(allowed.fullmatch(name))


def _is_plain(key: str, name: str, value: Any) -> bool:
    """Return whether the value of a parameter in the settings `key` names no code and no file."""
    if key == "hydra.sweeper.params":
        return bool(SWEPT_VALUES.fullmatch(str(value)))
    if isinstance(value, str):  # a sweeper's texts may be functions to import
        may_be_text = key.startswith("hydra.launcher") or name == "direction"
        return may_be_text and bool(WORD.fullmatch(value))
    return value is None or isinstance(value, bool | int | float | dict)


def register() -> None:
    """Let Hydra find `Options` from now on, in a process whose only application is this project."""
    Plugins.instance().register(Options)
    Plugins.instance().register(OptionsEverywhere)
    OptionsEverywhere.is_ours = True


@contextlib.contextmanager
def hydra_ready() -> Iterator[None]:
    """Make Hydra's `compose` find conf/: in a job of ours as it is, and otherwise for a while, for this alone.

    Hydra composes with global state. So threads compose one after another, and what Hydra had initialised for another
    application is restored.
    """
    with _COMPOSING, contextlib.ExitStack() as restored:
        running = GlobalHydra.instance()
        before = running.hydra
        if before is None or not any(each.scheme() == "thinkalike" for each in before.config_loader.get_sources()):
            version, runtime = VersionBase.instance(), JobRuntime.instance()
            restored.callback(setattr, version, "version_base", version.getbase())
            restored.callback(setattr, runtime, "conf", deepcopy(runtime.conf))
            restored.callback(setattr, running, "hydra", before)
            restored.callback(GlobalHydra.set_instance, running)
            restored.callback(setattr, OptionsEverywhere, "is_ours", OptionsEverywhere.is_ours)
            register()
            running.clear()
            restored.enter_context(loading_files_only())
            restored.enter_context(initialize_config_dir(str(CONF), version_base=None))
        restored.enter_context(reading_options(HydraOptions()))
        yield


def _groups() -> set[str]:
    """Return the groups of configurations: the folders of the search path, but for what is above them."""
    with hydra_ready():
        folders = [Path(each.path) for each in GlobalHydra.instance().config_loader().get_sources()]
    inside = {path.name for folder in folders if folder.is_absolute() for path in folder.glob("*/")}
    return {*inside, *LISTS, "hydra"}


def files_settings() -> dict[str, set[str]]:
    """Return the keys that each file of a user sets, in the configuration that was composed last."""
    loader = _loader()
    return loader.files.settings if loader else {}


def _loader() -> Loader | None:
    """Return what composed the last configuration; None outside of a job, as in a worker of a sweep."""
    loader = GlobalHydra.instance().config_loader() if GlobalHydra.instance().is_initialized() else None
    return loader if isinstance(loader, Loader) else None


class HydraOptions:
    """The options that a command line can name: those of the package, and those in the folders that it adds."""

    def names(self, group: str) -> list[str]:
        with hydra_ready():
            folders = [Path(each.path) for each in GlobalHydra.instance().config_loader().get_sources()]
        roots = [folder / group for folder in folders if folder.is_absolute()]
        names = {str(path.relative_to(root).with_suffix("")) for root in roots for path in root.rglob("*.yaml")}
        return sorted(names | {*PACKAGED.names(group)})

    def settings(self, group: str, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        if name in PACKAGED.names(group) or name not in self.names(group):
            return PACKAGED.settings(group, name, given)
        with hydra_ready():
            path = tuple(each.path for each in GlobalHydra.instance().config_loader().get_search_path().get_path())
            settings = {**_option(group, name, path), **_literal(given)}
        return OmegaConf.to_container(OmegaConf.create(settings), resolve=True)  # type: ignore[return-value]


PACKAGED = PackagedOptions()


@cache
def _option(group: str, name: str, search_path: tuple[str, ...]) -> dict[str, Any]:
    """Return what Hydra composes of an option of a user's folder, which is in the search path."""
    escaped = re.sub(r"(\\*)('|$)", lambda end: 2 * end[1] + ("\\'" if end[2] else ""), name)
    try:
        composed = compose(None, [f"+{group}='{escaped}'"])
    except COMPOSING_ERRORS as error:
        raise ConfigError(explained(error)) from error
    return OmegaConf.to_container(composed[group], resolve=False)  # type: ignore[return-value]


def compose_trusted_job(entry_point: str, overrides: Iterable[str], **parts: Any) -> Any:
    """Do `thinkalike.config.compose_job`: a person wrote the overrides, so the files of code that they name are run."""
    words = list(overrides)
    trust_plugins_of(words)
    trust(_plugins_in([vars(part) for part in parts.values() if dataclasses.is_dataclass(part)]))
    return _decided(compose_open_job(entry_point, words, **parts))


def compose_inner_job(entry_point: str, overrides: Iterable[str], **parts: Any) -> Any:
    """Return the configuration of a job inside another one, as `thinkalike.config.compose_job` does.

    The configuration of the outer job has some of these overrides, as measure.train, and it may be a stranger's
    file. So they run no code that a person did not name, and set nothing of Hydra's own, which would import modules.
    """
    words = list(overrides)
    for name in _environment_in(words):  # the outer job has replaced those that a person wrote
        raise ConfigError(f"a job inside another one reads no environment variable, such as {name}; give its value")
    for word in words:
        if _parsed(word) and not keys_of([word]):
            raise ConfigError(f"{short(word)} is a setting of Hydra's, which a job inside another one does not take")
    return _decided(compose_open_job(entry_point, words, **parts))


def _decided(config: Any) -> Any:
    """Return a configuration with everything decided, unless it stands for jobs whose configurations are to be made."""
    stands_for_jobs = isinstance(config, AnalyzeConfig) and (config.models is not None or config.experiment)
    return config if stands_for_jobs else completed(config)


def compose_open_job(entry_point: str, overrides: Iterable[str], **parts: Any) -> Any:
    """Return a configuration as `thinkalike.config.compose_job` does, in which what is left open is not decided yet."""
    words = list(overrides)
    with hydra_ready():
        try:
            composed = compose(entry_point, words, return_hydra_config=True)
            with open_dict(composed):
                choices = composed.pop("hydra").runtime.choices
            config = checked(composed, words, choices)
        except COMPOSING_ERRORS as error:
            raise ConfigError(explained(error)) from error
        return dataclasses.replace(config, **parts)


def keys_of(overrides: Iterable[str]) -> list[str]:
    """Return the keys of overrides; those of the second model begin with `target`."""
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    return [key for each in parsed if not re.match(r"hydra\b", key := each.package or each.key_or_group)]


def checked(composed: DictConfig, overrides: Sequence[str], choices: Mapping[str, Any]) -> Any:
    """Return what Hydra composed, by these `choices` of groups, as a dataclass; what is left open stays None.

    Raises:
        ConfigError: a value is not possible; the message names the file that has it, if one of the user does.
    """
    try:
        return _checked(composed, overrides, choices)
    except ConfigError as error:
        file = _file_of(str(error), overrides)
        if not file:
            raise
        raise ConfigError(f"{file}: {error}") from error


def _file_of(message: str, overrides: Sequence[str]) -> str:
    """Return the file of the user that sets what a message begins with, such as seed=x; "": none does."""
    begins = re.match(r"'?([\w.]+)('|=)", message)
    loader = _loader()
    if begins is None or loader is None:
        return ""
    key = begins[1]
    if any(key == given or key.startswith(f"{given}.") for given in keys_of(overrides)):
        return ""
    files = [file for name, (_, file) in loader.files.values.items() if name == key or name.startswith(f"{key}.")]
    return files[-1] if files else ""


def _checked(composed: DictConfig, overrides: Sequence[str], choices: Mapping[str, Any]) -> Any:
    settings: Any = OmegaConf.to_container(composed, resolve=False)
    for part in {*GROUPS, "target"} & {*settings}:
        if not isinstance(settings[part], dict):
            reason = f"{part}={short(settings[part])} must be settings, by their names"
            if settings[part] is None and part not in keys_of(overrides):
                # A result leaves out what its job did not read, so its config.yaml is no configuration to run.
                reason += "; to repeat a result, run the command in its result.json and not its config.yaml"
            raise ConfigError(reason)
        for name in settings[part]:
            if not isinstance(name, str):  # a number in a file
                raise ConfigError(unknown(f"{part}.{name}", [f"{part}.{key}" for key in settings[part]]))
    kind = _kind_of_measure(settings)
    job = _instrument_of(settings)
    if "task" in settings and "stitch" not in job.reads:  # the part of the default task, see `schema_node`
        settings.pop("stitch", None)
    chosen = {group for group, name in choices.items() if name}
    stands_for_others = any(settings.get(name) for name in ("experiment", "models", "activations"))
    settings |= _models(settings, keys_of(overrides), chosen, () if stands_for_others or not job else job.reads)
    settings = OmegaConf.to_container(OmegaConf.create(settings), resolve=True)
    _check_plugins(settings)  # also of names that ${...} has put together
    _check_names(settings, choices, keys_of(overrides), job.config if job else AnalyzeConfig)
    if kind:
        settings["measure"] = made(measure_schema(kind), settings["measure"], "measure.")
    for part in ("model", "target", "data"):
        if settings[part]["name"] is None:  # what is not given has its default, or stays open
            schema = schema_of_group("data" if part == "data" else "model")
            settings[part] = unset_settings(schema) | given_settings(settings[part])
    config = made(job.config if job else AnalyzeConfig, settings)
    for word in overrides:
        if word.partition("=")[2] == "???":
            raise ConfigError(f"{word} gives no value; give one, or leave it out")
    return config


def _check_names(settings: Mapping[str, Any], choices: Mapping[str, Any], keys: Collection[str], schema: Any) -> None:
    """Check that a name is not given to the settings of another option, or to a default that nobody chose.

    Args:
        choices: by group the option that is chosen, or None.
        keys: of the overrides.
        schema: of the job.
    """
    loader = _loader()
    named_by_files = loader.files.of_jobs if loader else {}
    for part, hint in get_type_hints(schema).items():
        key = f"{part}.name"
        elsewhere = getattr(hint, "elsewhere", ())
        if not elsewhere or part not in settings or not (key in keys or key in named_by_files):
            continue
        group = "model@target" if part == "target" else part
        name, choice = settings[part]["name"], choices.get(group)
        has_place_of_its_own = any(settings[part].get(setting) for setting in elsewhere)
        if name in (None, "???", choice) or has_place_of_its_own:
            continue

        offered = options(group.partition("@")[0])
        is_of_user = choice is not None and choice not in offered  # such as a folder
        if name in offered and not is_of_user:
            in_file = f", or in a file override {group}: {name} in its defaults" if key not in keys else ""
            raise ConfigError(
                f"{key}={name} names an option of {group} without choosing it; give {group}={name}{in_file}"
            )
        if choice is None and part != "target":  # which is the model itself, by another name
            raise ConfigError(f"{key}={short(name)} names what nobody chose; give {group}=NAME, too")


def _instrument_of(settings: Mapping[str, Any]) -> Any:
    """Return the instrument of a composed configuration, or None where it names neither a task nor a measure."""
    if "task" in settings:
        one_of("task", str(settings["task"]), TASKS)
        return instrument(TASKS[settings["task"]])
    kind = _kind_of_measure(settings)
    return instrument(measure_entry(kind)) if kind else None


def _kind_of_measure(settings: Mapping[str, Any]) -> str | None:
    measure = settings.get("measure")
    kind = measure.get("kind") if isinstance(measure, Mapping) else None
    if kind is not None and not isinstance(kind, str):
        raise ConfigError(f"measure.kind={short(kind)} must be the name of a measure; {nearest('', MEASURES)}")
    return kind


def _schema_of(place: Place, settings: Mapping[str, Any]) -> tuple[Any, Place] | None:
    """Return the schema of the part that has a setting, and the place of the setting in it; None: there is no such."""
    part, rest = place[0], place[1:]
    if part == "models" and len(rest) == 2:  # models=[{model: NAME, SETTING: value}]
        return extended(ModelConfig), (("name" if rest[1] == "model" else rest[1]),)
    if part == "measure":
        kind = _kind_of_measure(settings)
        return (measure_schema(kind) if kind else MeasureConfig), rest
    if part == "target":
        return extended(ModelConfig), rest
    if part in GROUPS:
        return schema_of_group(part), rest
    job = _instrument_of(settings)
    return (job.config if job else AnalyzeConfig), place


def _resolved_size(value: Any, key: str, root: Mapping[str, Any], sizes: dict[str, int]) -> int:
    """Return how many values and letters a setting has once it is resolved; `sizes` holds those known, by keys."""
    if key in sizes:
        return sizes[key]
    sizes[key] = 0  # one that stands for itself is an error of OmegaConf's
    size = 1
    if isinstance(value, Mapping | list):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for name, inner in items:
            size += _resolved_size(inner, f"{key}.{name}".lstrip("."), root, sizes)
    elif isinstance(value, str):
        size = len(value)
        for name in _referred(value, key):
            target = reduce(_inside, name.split("."), root)
            size += REFERENCE_COST + _resolved_size(target, name, root, sizes)
    if size > MOST_RESOLVED:
        raise ConfigError(
            f"{short(key)} stands for more than {MOST_RESOLVED:,} values; name fewer settings by ${{...}}"
        )
    sizes[key] = size
    return size


def _referred(text: str, key: str) -> list[str]:
    """Return the keys of the settings that the ${...} of a text stand for.

    Raises:
        ConfigError: one is of another form than ${a.b}, ${oc.env:NAME} and the like, such as a key that is computed.
    """
    found = []
    while match := INNERMOST.search(text):
        content = match[1].strip()
        resolver, colon, _ = content.partition(":")
        is_computed = "\0" in content and resolver != "oc.decode"
        if is_computed or (colon and resolver not in RESOLVERS):
            raise ConfigError(f"{short(key)}: ${{{short(content)}}} is not read; name a setting, as ${{seed}} does")
        if not colon:
            found.append(_absolute(content, key))
        text = f"{text[: match.start()]}\0{text[match.end() :]}"
    return found


def _absolute(name: str, key: str) -> str:
    """Return the key that ${name} stands for in the setting `key`: with dots before it, it is relative to that."""
    plain_name = name.lstrip(".")
    above = len(name) - len(plain_name)
    if not above:
        return plain_name
    return ".".join([*key.split(".")[:-above], plain_name])


def _inside(value: Any, name: str) -> Any:
    if isinstance(value, list) and name.isdecimal() and int(name) < len(value):
        return value[int(name)]
    return value.get(name, _ABSENT) if isinstance(value, Mapping) else _ABSENT


def _sorts_of(settings: Mapping[Any, Any], start: str = "") -> dict[str, str]:
    """Return by dotted key which values of nested settings are settings themselves, and which are lists."""
    sorts = {}
    for name, value in settings.items():
        key = f"{start}{name}"
        if key == "hydra":
            continue
        if isinstance(value, Mapping):
            sorts[key] = "settings"
            sorts |= _sorts_of(value, f"{key}.")
        elif isinstance(value, list):
            sorts[key] = "list"
    return sorts


def _models(
    settings: Mapping[str, Any], keys: Collection[str], chosen: Collection[str], reads: Collection[str]
) -> dict[str, dict[str, Any]]:
    """Return the settings of both models, or what is given of them where the job reads none that has a name.

    A target that is not chosen is the source in all that is not given of it; one that is chosen runs as the overrides
    say of the source. Where no model is named, a stitch leads into another mini.
    """
    model, target = settings["model"], settings["target"]
    given, own = given_settings(model), given_settings(target)
    if "z" not in str(own.get("site", "z")):  # which alone has heads
        own, keys = {"head": None} | own, {*keys, "target.head"}
    runs = {key: model[key] for key in HOW_IT_RUNS if f"model.{key}" in keys}
    is_default = "model" not in chosen
    if is_default and ("name" in given or ("model@target" not in chosen and "name" in own) or "model" in reads):
        model = option("model", SOURCE) | given
    if "model@target" in chosen:
        return {"model": model, "target": target | {key: runs[key] for key in runs if f"target.{key}" not in keys}}
    if model["name"] is None:
        return {"model": model, "target": target}
    if is_default and not own and not given.keys() - {*HOW_IT_RUNS} and "stitch" in reads:
        return {"model": model, "target": option("model", TARGET) | given}
    # models without a name of their own
    is_elsewhere = {"local": "path", "hub": "hub_id"}.get(str(model["name"])) in own
    return {"model": model, "target": (option("model", model["name"]) | runs if is_elsewhere else model) | own}


def _literal(value: Any) -> Any:
    """Return plain settings in which OmegaConf takes every ${ for these two letters, as in the name of a file."""
    if isinstance(value, Mapping):
        return {name: _literal(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_literal(inner) for inner in value]
    if isinstance(value, str):
        return re.sub(r"(\\*)\$\{", lambda found: 2 * found[1] + r"\${", value)
    return value


def with_quoted_paths(words: Sequence[str]) -> list[str]:
    """Return the words of a command line, in which paths that Hydra's grammar cannot read stand in quotes.

    A file that is there is meant by its name, such as epoch=0-step=500.ckpt, as Lightning calls its checkpoints.
    """
    return [_with_quoted_path(word) for word in words]


def _with_quoted_path(word: str) -> str:
    setting, _, value = word.partition("=")
    is_option = setting.startswith("-")  # which argparse reads, and not Hydra's grammar
    if is_option or not value or not os.path.exists(os.path.expanduser(value)):
        return word
    try:
        OverridesParser.create().parse_overrides([word])
    except OverrideParseException:
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        return f"{setting}='{escaped}'"
    return word


def explained(error: BaseException) -> str:
    """Return the message of an error of Hydra's in one line, with the nearest thing that there is."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file is None:
        named = re.search(r"config (?:directory|module) '(?:thinkalike\.)?(.*?)'", str(error))
        if named:
            return f"--config-path={short(named[1])} is no folder; give the whole path of one, as /home/me/mine"
        return one_line(error)
    not_offered = re.match(r"Could not override '(\w+)'", str(error))
    if not_offered:
        command = _command_with(not_offered[1])
        if command:
            return f"{not_offered[1]} is a setting of {command}; leave it out, or run thinkalike {command}"
    if isinstance(error, MissingConfigException):
        path = str(error.missing_cfg_file)
        group, _, name = path.rpartition("/") if path.startswith("hydra/") else path.partition("/")
        if group == "hydra/launcher" and name.startswith("submitit"):  # which hydra/launcher=slurm builds on
            return "hydra/launcher=slurm needs hydra-submitit-launcher: pip install 'thinkalike[slurm]'"
        if not name or not (group in _groups() or group.startswith("hydra/")):
            return f"there is no configuration {short(path)}; give one of --config-dir by its path in there"
        hint = {"model": "; or a folder, or ORG/NAME of the hub", "data": "; or ORG/NAME of the hub"}.get(group, "")
        return f"{group}={short(name)} is not known; {nearest(name, error.options or options(group))}{hint}"
    cause = error.__cause__
    if isinstance(cause, ConfigKeyError | ConfigAttributeError) and cause.full_key:
        command = _command_with(cause.full_key.partition(".")[0])
        if command:
            return f"{short(cause.full_key)} is a setting of {command}; leave it out, or run thinkalike {command}"
    if isinstance(cause, ConfigAttributeError | ConfigKeyError) and cause.full_key and cause.parent_node:
        part = cause.full_key.rpartition(".")[0]
        if part == "hydra.launcher":
            return f"'{cause.full_key}' is not a setting of this launcher; choose another one, as hydra/launcher=joblib"
        known = [f"{part}.{key}".lstrip(".") for key in _keys(cause.parent_node) if not key.startswith("hydra")]
        return unknown(cause.full_key, known)
    is_of_type = isinstance(cause, OmegaConfBaseException) and not isinstance(error, YAMLError)
    if is_of_type and str(error).startswith("Error merging override "):
        # Hydra's message has the override alone; OmegaConf's has what the setting takes.
        override = str(error).removeprefix("Error merging override ")
        reason = " ".join(re.split(r"\n\s*full_key", str(cause))[0].split())
        return f"{short(override)} is not possible: {short(reason)}"
    said = str(error) if isinstance(error, YAMLError) else " ".join(re.split(r"\n\s*full_key", str(error))[0].split())
    key = getattr(error, "full_key", None)
    if not said:  # Hydra wraps some errors of a file without a word
        inner = next((inner for inner in chain(error) if str(inner)), None)
        said = one_line(inner).split(" full_key")[0] if inner else type(error).__name__
    said = f"{key}: {said}" if key and key not in said else said
    said = "".join(each if each.isprintable() else " " for each in said)
    return said if len(said) <= LONGEST_REASON else f"{said[:LONGEST_REASON]} ..."


@cache
def _settings_of(command: str) -> frozenset[str]:
    """Return the settings and the groups of `train` or `analyze`, as `seed` and `stitch`."""
    defaults = yaml.safe_load((CONF / f"{command}.yaml").read_text())["defaults"]
    groups = {group.partition("@")[0] for item in defaults if isinstance(item, dict) for group in item}
    return frozenset(groups | {*(schema_node(f"{command}_schema") or {})})


def _command_with(name: str) -> str:
    """Return the command that alone has a setting, `train` or `analyze`; "": both have it, or none."""
    of_train, of_analyze = _settings_of("train"), _settings_of("analyze")
    if name in of_train - of_analyze:
        return "train"
    return "analyze" if name in of_analyze - of_train else ""


def _keys(node: Any, start: str = "") -> Iterator[str]:
    for key in node or ():
        yield f"{start}{key}"
        if OmegaConf.is_dict(inner := OmegaConf.select(node, str(key), throw_on_resolution_failure=False)):
            yield from _keys(inner, f"{start}{key}.")


@dataclasses.dataclass(frozen=True)
class Called:
    """What Hydra knows of the job of a command line.

    Attributes:
        overrides: its words.
        choices: by group the option that is chosen, or None.
        has_values_to_try: whether a file gives values for a sweep.
        has_launcher: whether another launcher than Hydra's own is chosen.
        number: which job of a sweep it is, from 0.
    """

    overrides: list[str]
    choices: Mapping[str, Any]
    has_values_to_try: bool
    has_launcher: bool
    number: int


def called() -> Called:
    """Return what Hydra knows of the job that runs now; `number` is that of a sweep alone."""
    hydra_config = HydraConfig.get()
    return Called(
        overrides=list(hydra_config.overrides.task),
        choices=hydra_config.runtime.choices,
        has_values_to_try=bool(hydra_config.sweeper.get("params")),
        has_launcher=hydra_config.launcher != {"_target_": BasicLauncherConf._target_},
        number=0 if OmegaConf.is_missing(hydra_config.job, "num") else hydra_config.job.num,
    )


def hydra_main(name: str, task: Callable[[DictConfig], Any]) -> Callable[[], None]:
    """Return what reads the command line of this process by Hydra, and does the task with each of its jobs."""
    return hydra.main(version_base=None, config_path=str(CONF), config_name=name)(task)


def use_folder(composed: DictConfig, folder: str) -> None:
    """Let a sweep, and the jobs that it composes, write into a folder."""
    with read_write(composed.hydra):
        composed.hydra.sweep.dir = folder
        composed.hydra.overrides.hydra.append(f"hydra.sweep.dir='{folder}'")


def command_line() -> str:
    """Return the command line of the job that a script does, or that of this process."""
    if not HydraConfig.initialized() or PROGRAM not in os.environ:
        return shlex.join(sys.argv)
    hydra = HydraConfig.get()
    folders = [f"--config-dir={each.path}" for each in hydra.runtime.config_sources if each.provider == "command-line"]
    name = hydra.job.config_name
    own = [] if name in ("train", "analyze") else [f"--config-name={name}"]
    return f"{os.environ[PROGRAM]} {shlex.join([*folders, *own, *hydra.overrides.task])}".rstrip()
