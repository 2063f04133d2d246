"""From `conf/` and overrides to a configuration dataclass: the one module that imports Hydra.

Hydra composes the files of `conf/`, those of the user's folders, and what `Options` answers. What
a command line leaves open is None there; `thinkalike.config.completing` decides it for the parts
that a job reads, and the dataclasses check what comes out.
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import ClassVar
from unittest.mock import patch

import hydra
import hydra._internal.hydra
import hydra.conf
import hydra.core.override_parser.overrides_parser
import yaml
from hydra import compose, initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import (
    CachingConfigRepository,
    ConfigRepository,
    IConfigRepository,
)
from hydra._internal.core_plugins.basic_launcher import BasicLauncherConf
from hydra._internal.core_plugins.basic_sweeper import BasicSweeperConf
from hydra._internal.utils import get_args_parser as get_args_parser
from hydra.conf import HydraConf
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.default_element import GroupDefault, ResultDefault
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.overrides_visitor import HydraOverrideVisitor
from hydra.core.override_parser.types import (
    ChoiceSweep,
    Override,
    ParsedElementType,
    QuotedString,
)
from hydra.core.plugins import Plugins
from hydra.core.utils import JobRuntime
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.experimental.callback import Callback as Callback
from hydra.grammar.gen.OverrideParser import OverrideParser
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from hydra.version import VersionBase
from omegaconf import DictConfig as DictConfig
from omegaconf import OmegaConf, open_dict, read_write
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    GrammarParseError,
    OmegaConfBaseException,
)
from omegaconf.grammar_parser import parse
from omegaconf.grammar_visitor import GrammarVisitor
from yaml import YAMLError

from thinkalike.catalogue import conf_folders
from thinkalike.config import composed as composed_settings
from thinkalike.config.completing import completed_for_instrument
from thinkalike.config.groups import (
    CONF,
    GROUPS,
    HINTS,
    LISTS,
    PACKAGES,
    PackagedOptions,
    Settings,
    folder_node,
    option_folders,
    options,
    reading_options,
    schema_node,
    unset_settings,
    with_changes,
)
from thinkalike.config.hydra_settings import check_hydras_settings
from thinkalike.config.jobs import AnalyzeConfig, JobConfig
from thinkalike.config.references import (
    ABSENT,
    Reference,
    ReferenceReader,
    check_references,
    environment_in,
    literal,
    texts_in,
    unescaped,
    value_inside,
)
from thinkalike.config.schema import Checked, SettingValues, unknown
from thinkalike.config.two_models import settings_of_models
from thinkalike.config.written import (
    NumberTexts,
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
    listed,
    nearest,
    one_line,
    short,
)
from thinkalike.files import YAML_LOADER, check_yaml, read_bytes
from thinkalike.plugins import check_trusted, named_in, trust

COMPOSING_ERRORS = (OmegaConfBaseException, HydraException, YAMLError)
# how Hydra's message on an override of a group begins that a configuration does not have
NO_SUCH_GROUP = "Could not override"
# environment variable: how the user called the script, also for the workers of a sweep
PROGRAM = "THINKALIKE_PROGRAM"
# `Options` stands twice in Hydra's search path, by these addresses
FOLDERS = "thinkalike://folders"
REST = "thinkalike://"
OURS = ("thinkalike", "structured")  # schemes of the sources that no file is behind
HYDRAS = "hydra.conf"  # the package that has Hydra's own files
LARGEST_FILE = 2**18  # bytes of a configuration file
MOST_LOADED = 5000  # how often one command line may load a file; a long one loads 60
DEEPEST_OVERRIDE = 20  # nested brackets; Hydra's reader calls itself a dozen times for each
JOBLIB_LAUNCHER = "hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher"
# what Hydra's launcher passes to joblib whatever its settings are, and what that means for others
JOBLIB_ALWAYS = {"backend": "loky", "prefer": "processes"}
MOST_JOBS = 10_000  # of a sweep; Hydra lists and composes all of them before the first begins
# of an integer in a file, as no float is larger; Python refuses to print very long ones
MOST_BITS = 1024
OF_HYDRA = re.compile(r"hydra\b")
SWEPT = "hydra.sweeper.params."  # the beginning of the keys of the values that a sweep tries
# What to install for plugins of Hydra that this project names, or that its authors publish; our
# slurm builds on submitit_slurm.
INSTALLED_BY = {
    "hydra/launcher/submitit_slurm": "hydra-submitit-launcher: pip install 'thinkalike[slurm]'",
    "hydra/launcher/submitit_local": "hydra-submitit-launcher: pip install 'thinkalike[slurm]'",
    "hydra/launcher/joblib": "hydra-joblib-launcher: pip install hydra-joblib-launcher",
    "hydra/launcher/ray": "hydra-ray-launcher: pip install hydra-ray-launcher",
    "hydra/launcher/rq": "hydra-rq-launcher: pip install hydra-rq-launcher",
    "hydra/sweeper/optuna": "hydra-optuna-sweeper: pip install hydra-optuna-sweeper",
    "hydra/sweeper/ax": "hydra-ax-sweeper: pip install hydra-ax-sweeper",
    "hydra/sweeper/nevergrad": "hydra-nevergrad-sweeper: pip install hydra-nevergrad-sweeper",
}

_COMPOSING = threading.RLock()

# By provider, folder and name, what the files of this package and of Hydra have. They stay as they
# are while a process runs, and reading them takes a quarter of the time of composing.
_LOADED_FILES: dict[tuple[str, str, str], ConfigResult | None] = {}


# ---- what Hydra and OmegaConf read


def references_in(text: str) -> list[Reference]:
    r"""Return the ${...} of a text in their order; \${...} stands for these letters.

    Raises:
        ConfigError: One is of another form than ${a.b}, ${oc.env:NAME} and the like, such as a key
            that is computed.
    """
    if "${" not in text:
        return []
    reader = ReferenceReader(text)
    # Any value that can be a part of a text serves the visitor in place of a node.
    visitor = GrammarVisitor(
        reader.of_setting,  # type: ignore[arg-type]
        reader.of_resolver,
        memo=None,
    )
    try:
        visitor.visit(parse(text))
    except RecursionError:
        raise ConfigError(f"{short(text)} has too many ${{...}} inside one another") from None
    except (GrammarParseError, ValueError) as error:  # Python reads no number of so many digits
        raise ConfigError(
            f"{short(text)} cannot be read ({one_line(error)}); write ${{name}} for a setting"
        ) from None
    return reader.references


class NumbersAsWritten(HydraOverrideVisitor):
    """Reads overrides as Hydra does, with numbers that remember their text, also in sweeps.

    A key that a dictionary has twice is refused; Hydra drops the first of the two values.
    """

    def visitDictContainer(
        self, context: OverrideParser.DictContainerContext
    ) -> dict[str, ParsedElementType]:
        settings = super().visitDictContainer(context)
        pair_type = OverrideParser.DictKeyValuePairContext
        pairs = [child for child in context.getChildren() if isinstance(child, pair_type)]
        if len(settings) < len(pairs):
            raise HydraException(f"{short(context.getText())} has one key twice")
        return settings

    def visitPrimitive(
        self, context: OverrideParser.PrimitiveContext
    ) -> QuotedString | int | bool | float | str | None:
        value = super().visitPrimitive(context)
        text = context.getText().strip()
        if str(value) == text:
            return value
        if type(value) is int:
            written_int = WrittenInt(value)
            written_int.text = text
            return written_int
        if type(value) is float:
            written_float = WrittenFloat(value)
            written_float.text = text
            return written_float
        return value


class Options(ConfigSource):
    """Answers what no file of conf/ can: schemas, `model=DIR`, `data=ORG/NAME`, and measures.

    It stands twice in Hydra's search path: before all files for folders, as `./gpt2` is not
    conf/model/gpt2.yaml, and after them for the rest.
    """

    @staticmethod
    def scheme() -> str:
        return "thinkalike"

    def load_config(self, config_path: str) -> ConfigResult:
        node = folder_node(config_path) or schema_node(config_path)
        package = None
        # Tasks and measures bring the parts that they add.
        if config_path.startswith(("task/", "measure/", f"{PACKAGES}/")):
            package = "_global_"
        config = OmegaConf.create(node)
        return ConfigResult(self.provider, f"{REST}{config_path}", config, {"package": package})

    def is_config(self, config_path: str) -> bool:
        if self.path:  # the first of the two, for folders
            return folder_node(config_path) is not None
        return schema_node(config_path) is not None

    def is_group(self, config_path: str) -> bool:
        return config_path in ("", *LISTS)

    def available(self) -> bool:
        return True

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        if results_filter != ObjectType.GROUP:
            return LISTS.get(config_path, [])
        if config_path:
            return []
        return [*LISTS]  # so that --help has measures and tasks


class OptionsEverywhere(SearchPathPlugin):
    """Adds `Options` to the search path of this project.

    Attributes:
        is_ours: Whether the application that Hydra initialises is this project; a notebook may
            hold another one.
    """

    is_ours: ClassVar[bool] = False

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        if self.is_ours:
            search_path.prepend("thinkalike", FOLDERS)
            for folder in conf_folders().values():
                search_path.append("thinkalike", f"file://{folder}")
            search_path.append("thinkalike", REST)


# ---- files of the user, which may be a stranger's


@dataclasses.dataclass
class FileNotes:
    """What was noted of the files of one configuration while Hydra composed it.

    Attributes:
        settings: The keys that each file of a user sets.
        missing: By key the file that says ??? of it, unless a later one has a value.
        values: By key the value of the last file of a user, and that file.
        overruled: By key the file of a user whose value one of the package replaces.
        texts: Of the numbers in files, see `thinkalike.config.written`.
        sorts: By key whether the package has settings there, or a list.
        of_jobs: By key the file of a user that sets it for a job, and is no option of a group.
        environment: The environment variables that the overrides name.
    """

    settings: dict[str, set[str]] = dataclasses.field(default_factory=dict)
    missing: dict[str, str] = dataclasses.field(default_factory=dict)
    values: dict[str, tuple[object, str]] = dataclasses.field(default_factory=dict)
    overruled: dict[str, str] = dataclasses.field(default_factory=dict)
    texts: NumberTexts = dataclasses.field(default_factory=dict)
    sorts: dict[str, str] = dataclasses.field(default_factory=dict)
    of_jobs: dict[str, str] = dataclasses.field(default_factory=dict)
    environment: set[str] = dataclasses.field(default_factory=set)

    def add(self, loaded: ConfigResult, package: str) -> None:
        """Note what a file sets, once its settings are at their final places inside `package`."""
        settings = _plain_settings(loaded.config)
        if settings is None:
            return
        file = _file_of_user(loaded)
        if file:
            self._check_sorts(settings, file)
        else:
            self.sorts.update(_sorts_of(settings))

        values = flat({name: part for name, part in settings.items() if name != "hydra"})
        for key, value in values.items():
            if file:
                self._add_of_user(key, value, file, is_of_job=not package)
            else:
                self._add_of_package(key, value)

        drop_texts(self.texts, values)
        beginning = tuple(package.split(".")) if package else ()
        texts: NumberTexts = getattr(loaded, "texts", {})
        for key_path, text in texts.items():
            self.texts[(*beginning, *key_path)] = text

    def _add_of_user(self, key: str, value: object, file: str, is_of_job: bool) -> None:
        self.settings.setdefault(file, set()).add(key)
        self.values[key] = (value, file)
        self.overruled.pop(key, None)
        if is_of_job:
            self.of_jobs[key] = file
        if value == "???":
            self.missing[key] = file
        else:
            self.missing.pop(key, None)

    def _add_of_package(self, key: str, value: object) -> None:
        if key in self.values:
            value_of_user, file = self.values[key]
            if value_of_user != value:
                self.overruled[key] = file
        self.missing.pop(key, None)

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


class FilesOnly(ConfigRepository):
    """Finds and reads the files of a configuration, and checks those of the user."""

    def __init__(self, config_search_path: ConfigSearchPath):
        super().__init__(config_search_path)
        self.notes = FileNotes()

    def _find_object_source(
        self, config_path: str, object_type: ObjectType | None
    ) -> ConfigSource | None:
        # Before any source is asked: the schema of a plugin's measure comes from running its file.
        _check_plugins(config_path.partition("/")[2])
        return super()._find_object_source(config_path, object_type)

    def load_config(self, config_path: str) -> ConfigResult | None:
        source = self._find_object_source(config_path, ObjectType.CONFIG)
        if source is None:
            return None
        file = _foreign_file(source, config_path)
        if file is None:
            return self._load_own(source, config_path)

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
        check_hydras_settings(settings, str(file))
        for default in loaded.defaults_list or []:
            if isinstance(default, GroupDefault):
                _check_option(str(default.group), default.value, f"{file}: ")
        loaded.file_of_user = str(file)  # type: ignore[attr-defined]
        loaded.texts = texts_of_yaml(content, settings)  # type: ignore[attr-defined]
        return loaded

    def _load_own(self, source: ConfigSource, config_path: str) -> ConfigResult | None:
        """Return what a source of this package or of Hydra has, read once from a file.

        A copy is returned, because Hydra changes what it composes.
        """
        if source.scheme() in OURS:  # which are no files, and change with plugins
            return super().load_config(config_path)
        key = (source.provider, source.full_path(), config_path)
        if key not in _LOADED_FILES:
            _LOADED_FILES[key] = super().load_config(config_path)
        return deepcopy(_LOADED_FILES[key])

    def _check_environment(self, content: bytes, file: Path) -> None:
        """Check that a file reads no environment variable that the command line does not name.

        It may hold a key, and settings go to loggers, to the hub and into results.
        """
        for text in texts_in(yaml.load(content, Loader=YAML_LOADER)):
            try:
                names = environment_in(text, references_in)
            except ConfigError as error:
                raise ConfigError(f"{file}: {error}") from error
            with contextlib.suppress(ConfigError):  # it may be no more than the name of a file
                names |= environment_in(unescaped(text), references_in)
            for name in sorted(names - self.notes.environment):
                raise ConfigError(f"{file} reads {_may_be_secret(name)}")

    def check_all_are_read(self) -> None:
        """Check that no file of the user has the name of one of the package.

        That of the package would be read instead.

        This includes the groups that the job does not ask for: whoever wrote the file believes
        that it counts.
        """
        sources_of_user = [
            source
            for source in self.sources
            if source.scheme() == "file" and source.available() and not _is_own_folder(source)
        ]
        for config_path in _names_of_package():
            for source in sources_of_user:
                file = _foreign_file(source, config_path)
                if file is None or not file.is_file():
                    continue
                read = self._find_object_source(config_path, ObjectType.CONFIG)
                if read is not None and _foreign_file(read, config_path) is None:
                    raise ConfigError(
                        f"{file} is never read, as this package has a configuration of that name, "
                        "too; give the file another name"
                    )


def _file_of_user(loaded: ConfigResult) -> str:
    """Return the file of the user that a configuration was loaded from; "" for one of ours."""
    return str(getattr(loaded, "file_of_user", ""))


def _plain_settings(config: object) -> Settings | None:
    """Return a configuration of OmegaConf as plain settings; None: it holds no settings."""
    settings = OmegaConf.to_container(config, resolve=False)
    if not isinstance(settings, dict):
        return None
    return {str(name): value for name, value in settings.items()}


class FewLoads(CachingConfigRepository):
    """Ends lists of defaults that include each other again and again.

    A few files can include each other billions of times.

    Attributes:
        loads: How many files were loaded.
        files: Those of a user among them, each once.
    """

    def __init__(self, delegate: IConfigRepository):
        super().__init__(delegate)
        self.loads = 0
        self.files: dict[str, None] = {}

    def load_config(self, config_path: str) -> ConfigResult | None:
        self.loads += 1
        if self.loads > MOST_LOADED:
            raise ConfigError(
                f"{config_path} and others include each other over {MOST_LOADED:,} times; "
                "shorten defaults"
            )
        loaded = super().load_config(config_path)
        if loaded is not None and _file_of_user(loaded):
            self.files[_file_of_user(loaded)] = None
        return loaded


class Loader(ConfigLoaderImpl):
    """Composes as Hydra does, and takes no code from files of the user.

    Hydra instantiates classes, opens logs and imports modules that its own settings name, whoever
    wrote them. Here they are checked where all of a file's content has come to its final place, by
    whatever header or list of defaults.

    Attributes:
        given: The overrides.
        given_keys: The keys of the overrides.
        given_texts: The texts of the numbers in the overrides.
    """

    def __init__(self, config_search_path: ConfigSearchPath):
        super().__init__(config_search_path)
        self.files = FilesOnly(config_search_path)
        self.repository = self.files
        self._is_job = False  # whether a job is composed, and not an option of a group alone
        self._files_of_user: Mapping[str, None] = {}
        self.given: list[Override] = []
        self.given_keys: set[str] = set()
        self.given_texts: NumberTexts = {}

    @property
    def notes(self) -> FileNotes:
        """What was noted of the files of the configuration that was composed last."""
        return self.files.notes

    def _parse_overrides_and_create_caching_repo(
        self, config_name: str | None, overrides: list[str]
    ) -> tuple[list[Override], CachingConfigRepository]:
        parsed = OverridesParser.create().parse_overrides(overrides=overrides)
        self.notes.texts.clear()
        if config_name is not None:  # else it is an option of a group alone, see `_option`
            self.files.notes = FileNotes()
        self._is_job = config_name is not None
        self.given = parsed
        self.given_keys = set()
        self.given_texts = {}
        self.notes.environment |= _environment_named_in(overrides)
        for override in parsed:
            _check_key(override)
            _check_option(override.key_or_group, override.value())
            self.given_keys.add(override.key_or_group)
            # OmegaConf holds no subclass of a number, so the override gets plain ones.
            plain, texts = taken_texts(override._value, override.key_or_group)
            override._value = plain  # type: ignore[assignment]
            self.given_texts.update(texts)
            if override.package and isinstance(override.value(), Mapping):
                raise ConfigError(
                    f"{short(override.input_line)} has settings in place of the name of an "
                    f"option; give {override.package}={{name: value}} for settings"
                )
        repository = FewLoads(self.files)
        self._files_of_user = repository.files
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # Hydra's, of what is refused below
            self._process_config_searchpath(config_name, parsed, repository)
        _check_search_path(repository)
        return parsed, repository

    def _load_single_config(self, default: ResultDefault, repo: IConfigRepository) -> ConfigResult:
        loaded = super()._load_single_config(default, repo)
        package = default.package
        if package is None:
            package = loaded.header["package"]
        self.notes.add(loaded, package or "")
        file = _file_of_user(loaded)
        if file:
            settings = OmegaConf.to_container(loaded.config, resolve=False)
            check_hydras_settings(settings, file)
            _check_plugins(settings)
        elif OF_HYDRA.match(package or "") and not OF_HYDRA.match(str(default.config_path)):
            raise ConfigError(
                f"{default.config_path} has no settings of Hydra's, and a package puts it into "
                f"{short(package)}; leave that package out"
            )
        return loaded

    def _compose_config_from_defaults_list(
        self, defaults: list[ResultDefault], repo: IConfigRepository
    ) -> DictConfig:
        composed = super()._compose_config_from_defaults_list(defaults, repo)
        if self._is_job:  # before overrides, which could only be refused for each setting
            _check_is_job(composed)
        return composed

    def load_configuration(
        self,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> DictConfig:
        try:
            with warnings.catch_warnings():
                # It comes last then, as everybody expects today.
                warnings.filterwarnings("ignore", message=".*Defaults list is missing `_self_`")
                composed = super().load_configuration(
                    config_name, overrides, run_mode, from_shell, validate_sweep_overrides
                )
            self._check_and_restore(composed, is_whole=run_mode == RunMode.RUN)
            return composed
        except ConfigError as error:
            raise ConfigError(self._with_files(str(error))) from error
        except ThinkalikeError:
            raise
        except COMPOSING_ERRORS as error:
            if str(error).startswith(NO_SUCH_GROUP):
                self._check_has_groups(config_name)
            raise ConfigError(self._with_files(self._explained(error))) from error
        except RecursionError as error:
            message = "the configuration includes itself, or is nested too deeply"
            raise ConfigError(self._with_files(message)) from error
        except Exception as error:  # Hydra has no errors for most of what can be wrong in a file
            raise ConfigError(self._with_files(self._explained_failure(error))) from error

    def _check_has_groups(self, config_name: str | None) -> None:
        """Check that a configuration is one of a job, with overrides of groups that it lacks.

        Hydra's remedy, to add the group, would lead from one missing group to the next.
        """
        given = self.given
        try:
            super().load_configuration(config_name, [], RunMode.RUN)
        except ConfigError as error:
            raise ConfigError(self._with_files(str(error))) from error
        except COMPOSING_ERRORS:
            pass  # which the message of the first error leads to
        finally:
            self.given = given

    def _explained(self, error: BaseException) -> str:
        """Return the message of an error of Hydra's in one line."""
        if isinstance(error, MissingConfigException) and error.missing_cfg_file is not None:
            path = str(error.missing_cfg_file)
            for element in self.config_search_path.get_path():
                folder = str(element.path).removeprefix("file://")
                if element.provider == "main" and Path(folder).resolve() != CONF.resolve():
                    return (
                        f"there is no configuration {short(path)} in {short(folder)}, by which "
                        "--config-path replaces the folder of this package; give it as "
                        "--config-dir, which is searched beside that"
                    )
        return explained(error)

    def _with_files(self, message: str) -> str:
        """Return a message that names the files of the user which it is about.

        An error of Hydra's says what is wrong, and seldom in which file.
        """
        files = self._files_of_user
        names_a_file = any(file in message for file in files)
        if not files or names_a_file or self._is_about_override(message):
            return message
        beginning = re.match(r"'?([\w.]+)('|=|:)", message)
        if beginning is not None and beginning[1] in self.notes.values:
            return f"{self.notes.values[beginning[1]][1]}: {message}"
        return f"{listed(files)}: {message}"

    def _is_about_override(self, message: str) -> bool:
        """Return whether a message is about one of the overrides, and not about a file."""
        for override in self.given:
            key = override.key_or_group
            if f"'{key}'" in message or f"{key}={short(override.value())}" in message:
                return True
            if message.startswith((f"{key}:", f"{key}.")):
                return True
            is_addition = override.is_add() or override.is_force_add()
            if is_addition and re.search(rf"\b{re.escape(key)}\b", message):
                return True
        return False

    def _check_and_restore(self, composed: DictConfig, is_whole: bool) -> None:
        """Check a composed configuration, and put the texts of numbers into it.

        Args:
            is_whole: Whether it has all of its settings; that of a sweep may lack some groups.
        """
        settings = _plain_settings(composed)
        assert settings is not None
        settings.pop("hydra")  # no file has set a text in it
        if composed.hydra.job.config_name:
            self.files.check_all_are_read()
            self._check_order()
            overrides = OmegaConf.to_container(composed.hydra.overrides.task, resolve=False)
            assert isinstance(overrides, list)
            self._check_given(overrides)
        check_references(settings, references_in, is_whole)

        drop_texts(self.notes.texts, self.given_keys)
        texts = {**self.notes.texts, **self.given_texts}
        restore_texts(
            composed,
            settings,
            texts,
            lambda key_path: composed_settings.schema_of_key_path(key_path, settings),
        )

    def _explained_failure(self, error: Exception) -> str:
        """Return what to say of an error of Hydra's that is not one of its own classes."""
        for override in self.given:
            for key, _ in _settings_given(override.key_or_group, override.value()):
                if key.startswith(SWEPT):  # this sweeper has no parameters yet
                    name = short(key.removeprefix(SWEPT))
                    return f"{short(key)} is a setting of files; give -m {name}=VALUES"
        reason = _first_sentence(error)
        return f"the configuration cannot be composed: {reason}"

    def _check_order(self) -> None:
        """Check that no default replaces a file's setting, as in `defaults: [_self_, train]`."""
        for key, file in self.notes.overruled.items():
            raise ConfigError(
                f"{file} sets {short(key)}, and its defaults have a configuration after _self_ "
                "that sets it again; write _self_ last: defaults: [train, _self_]"
            )

    def _check_given(self, overrides: Iterable[str]) -> None:
        """Check that overrides have each setting that a file leaves to them, as ???.

        Otherwise a default would pass for it.
        """
        given = keys_of(overrides)
        for key, file in self.notes.missing.items():
            if not any(_gives(override_key, key) for override_key in given):
                raise ConfigError(
                    f"{file} leaves {short(key)} to the command line, as ???; give {short(key)}="
                )


def _gives(override_key: str, key: str) -> bool:
    """Return whether the override of a key gives a value to a setting.

    The choice of a group, such as stitch=affine, gives none of its settings.
    """
    if override_key == key:
        return True
    return "." in override_key and key.startswith(f"{override_key}.")


def _check_search_path(repository: CachingConfigRepository) -> None:
    """Check that each place that hydra.searchpath names is available.

    Hydra itself warns in two lines of its own code.
    """
    for source in repository.get_sources():
        if source.provider.startswith("hydra.searchpath") and not source.available():
            address = short(f"{source.scheme()}://{source.path}")
            raise ConfigError(
                f"hydra.searchpath={address} is not available; name a folder, as file://DIR"
            )


def _may_be_secret(name: str) -> str:
    """Return what to say of an environment variable that the command line does not name."""
    return (
        f"the environment variable {short(name)}, which may be a secret; give the setting on the "
        f"command line, as KEY='${{oc.env:{short(name)}}}'"
    )


def _environment_of(overrides: Iterable[str]) -> set[str]:
    """Return the names of the environment variables that overrides read.

    Their values are looked at as Hydra has read them, without its quotes and backslashes.
    """
    names: set[str] = set()
    for word in overrides:
        if "$" not in word:
            continue
        for override in _parsed(word):
            names |= environment_in(_values_of_override(override), references_in)
    return names


def _environment_named_in(overrides: Iterable[str]) -> set[str]:
    """Return the names of the environment variables that the overrides of a person read.

    What has another form names none: Hydra's own settings may have any.
    """
    names: set[str] = set()
    for word in overrides:
        with contextlib.suppress(ConfigError):
            names |= _environment_of([word])
    return names


def _values_of_override(override: Override) -> list[object]:
    """Return the value of an override, or the values that a sweep tries."""
    value = override.value()
    if isinstance(value, ChoiceSweep):
        return [Override._convert_value(choice) for choice in value.list]
    return [value]


@contextlib.contextmanager
def loading_files_only() -> Iterator[None]:
    """Let Hydra compose by `Loader` while this is open; Hydra takes no loader in another way."""
    overrides_parser = hydra.core.override_parser.overrides_parser
    compose_mode = hydra._internal.hydra.Hydra.get_mode

    def get_mode(
        this: hydra._internal.hydra.Hydra, config_name: str | None, overrides: list[str]
    ) -> RunMode | None:
        """Return `hydra.mode`, for which Hydra would compose every configuration once more.

        The command line alone may set it, see `check_hydras_settings`.
        """
        if not any("hydra" in word for word in overrides):
            return None
        mode: RunMode | None = compose_mode(this, config_name, overrides)
        return mode

    with (
        patch.object(hydra._internal.hydra, "ConfigLoaderImpl", Loader),
        patch.object(hydra._internal.hydra.Hydra, "get_mode", get_mode),
        patch.object(overrides_parser, "HydraOverrideVisitor", NumbersAsWritten),
    ):
        yield


def _foreign_file(source: ConfigSource, config_path: str) -> Path | None:
    """Return the file that a source would read; None for one of this package or of Hydra."""
    is_of_hydra = source.scheme() == "pkg" and source.path == HYDRAS
    if source.scheme() in OURS or is_of_hydra:
        return None
    name = f"{Path(config_path).name.removesuffix('.yaml')}.yaml"
    file = Path(source.path, config_path).with_name(name).resolve()
    folder = Path(source.path).resolve()
    is_ours = folder in _own_folders() and file.is_relative_to(folder)  # not by ../..
    return None if is_ours else file


@cache
def _names_of_package() -> list[str]:
    """Return the paths of the configurations of the package and of Hydra, such as model/gpt2."""
    names = {"train_schema", "analyze_schema"}
    names.update(f"{group}/schema" for group in GROUPS)
    for group, offered in LISTS.items():
        names.update(f"{group}/{name}" for name in offered)
    for folder in (*_own_folders(), *map(Path, hydra.conf.__path__)):
        for file in folder.rglob("*.yaml"):
            names.add(str(file.relative_to(folder).with_suffix("")))
    return sorted(names)


def _is_own_folder(source: ConfigSource) -> bool:
    """Return whether a source is a folder of this package, or of one that extends it."""
    return Path(source.path).resolve() in _own_folders()


@cache
def _own_folders() -> list[Path]:
    """Return the folders of groups of this package and of installed packages that extend it."""
    return [folder.resolve() for folder in option_folders()]


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


# ---- checks of files and overrides


def _check_is_job(composed: DictConfig) -> None:
    """Check that a composed configuration has the settings of a job, before a folder is made."""
    if any(name not in composed for name in unset_settings(JobConfig)):
        raise ConfigError(
            "a configuration of your own begins with defaults: [train, _self_], "
            "or analyze in its place"
        )


def _check_key(override: Override) -> None:
    """Check that an override is of a setting or a group, and removes none.

    Each job has all of its settings and groups, so that the default of what was removed would be
    read without a word.
    """
    key = override.key_or_group
    line = short(override.input_line)
    if not key:
        raise ConfigError(f"{line} names no setting; write name=value")
    if key == "hydra":
        raise ConfigError(f"{line} is not a setting; Hydra's own are hydra.NAME=value")
    if override.is_delete() and not OF_HYDRA.match(key):
        name = f"{key}@{override.package}" if override.package else key
        raise ConfigError(
            f"{line} removes a setting, and a job needs all of them; "
            f"leave it out, or give {name}=value"
        )


def _check_option(group: str, chosen: object, file: str = "") -> None:
    """Check that a group has one option.

    Hydra would mix the settings of several into a model that nobody has.

    Args:
        file: The beginning of messages on a file; "": the option is that of an override.
    """
    name = group.strip("/")
    if not name or not _is_group(name):
        return
    if isinstance(chosen, list):
        raise ConfigError(
            f"{file}{name}={short(chosen)} chooses several options, and a job has one; choose one"
        )
    is_nothing = chosen is None and not file
    if is_nothing or isinstance(chosen, bool | int | float):
        written = "null" if chosen is None else short(chosen)
        raise ConfigError(
            f"{file}{name}={written} is not the name of an option; "
            f"{nearest(written, options(name))}"
        )


def _check_defaults(settings: object, file: str) -> None:
    """Check that each item of a list of defaults names an option.

    Hydra does not say which one has settings instead.
    """
    defaults = settings.get("defaults") if isinstance(settings, Mapping) else None
    if not isinstance(defaults, list):
        return
    for item in defaults:
        if not isinstance(item, Mapping):
            continue
        for group, chosen in item.items():
            if isinstance(chosen, Mapping):
                name = short(str(group).removeprefix("override "))
                raise ConfigError(
                    f"{file}: its defaults have settings for {name} in place of the name of an "
                    f"option; write override {name}: NAME there, and the settings below it, "
                    "outside of defaults"
                )


def _check_integers(value: object, file: str) -> None:
    """Check that no integer is so long that Python could not print it; 0xfff... is one, too."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            _check_integers(name, file)
            _check_integers(inner, file)
    elif isinstance(value, list):
        for inner in value:
            _check_integers(inner, file)
    elif isinstance(value, int) and value.bit_length() > MOST_BITS:
        raise ConfigError(
            f"{file} has an integer of {value.bit_length():,} bits; {MOST_BITS:,} are the most"
        )


def _explained_yaml(error: YAMLError) -> str:
    """Return what is wrong with a text in YAML, and where, without the name of its stream."""
    problem = getattr(error, "problem", None)
    if not problem:
        return one_line(error)
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return str(problem)
    return f"{problem} in line {mark.line + 1}"


def check_number_of_jobs(composed: DictConfig) -> None:
    """Check that Hydra's usual sweeper would not make too many jobs.

    Raises:
        ConfigError: The values of the command line and of a file make more than `MOST_JOBS`.
    """
    sweeper = composed.hydra.sweeper
    # Others choose among the values, and have a number of trials.
    if sweeper._target_ != BasicSweeperConf._target_:
        return
    words = [f"{key}={value}" for key, value in (sweeper.params or {}).items()]
    parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
    counts: dict[str, int | float] = {}  # the last override of a key replaces those before it
    for override in parser.parse_overrides([*words, *_words_of_task(composed.hydra)]):
        counts[override.get_key_element()] = _number_of_values(override)

    empty = [key for key, count in counts.items() if count == 0]
    if empty:
        raise ConfigError(f"{short(empty[0])} has no values, so the sweep has no jobs")
    if sweeper.max_batch_size is not None and sweeper.max_batch_size < 1:
        raise ConfigError(
            f"hydra.sweeper.max_batch_size={sweeper.max_batch_size} must be at least 1"
        )
    if math.prod(counts.values()) > MOST_JOBS:
        longest = max(counts, key=lambda key: counts[key])
        raise ConfigError(
            f"the sweep has more than {MOST_JOBS:,} jobs, and {short(longest)} alone has "
            f"{counts[longest]:,} values; divide it into several sweeps"
        )


def check_launcher(composed: DictConfig) -> None:
    """Check that the settings of a launcher have an effect.

    Raises:
        ConfigError: One chooses how joblib starts jobs, which its launcher has decided for.
    """
    launcher = composed.hydra.launcher
    if launcher._target_ != JOBLIB_LAUNCHER:
        return
    for name, value in JOBLIB_ALWAYS.items():
        if launcher.get(name) not in (None, value):
            raise ConfigError(
                f"hydra.launcher.{name}={short(launcher[name])} has no effect, as this launcher "
                f"has {name}={value} always; leave it out"
            )


def _number_of_values(override: Override) -> int | float:
    """Return how many values a sweep tries of a setting, without making them."""
    if override.is_range_sweep():
        sweep = override.value()
        if not sweep.step:  # type: ignore[union-attr]
            return math.inf
        count = (sweep.stop - sweep.start) / sweep.step  # type: ignore[union-attr,operator]
        return max(0, math.ceil(count)) if math.isfinite(count) else math.inf
    if override.is_choice_sweep():
        return len(list(override.sweep_iterator()))
    return 1


# ---- code that overrides and files name


def trust_plugins_of(overrides: Iterable[str]) -> None:
    """Let the files of code be run that overrides name, because a person wrote the overrides."""
    for override in overrides:
        trust(_plugins_in(_parsed(override)))


def check_given_once(overrides: Iterable[str]) -> None:
    """Check that no two overrides of a command line give one setting different values.

    Hydra would take the last. `stitch={lr: 0.5}` gives the settings inside, so that it goes with
    stitch=affine, which chooses the others, and with stitch={steps: 9}. Hydra's own settings are
    left out, as a process that shares a job gets some of them again from the one before it.
    """
    first_of_key: dict[tuple[str, str], tuple[str, object]] = {}
    for word in overrides:
        for override in _parsed(word):
            if override.is_delete() or OF_HYDRA.match(override.key_or_group):
                continue
            for setting, value in _settings_given(override.key_or_group, override.value()):
                key = (setting, override.package or "")
                first, first_value = first_of_key.setdefault(key, (word, value))
                if first_value != value:
                    raise ConfigError(
                        f"{short(first)} and {short(word)} give one setting twice; "
                        "leave one of them out"
                    )


def _settings_given(key: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield the settings that the value of a key gives.

    For settings that hold others, the value is a mapping without any: two of them are merged, and
    none goes with a plain value. To a group, a plain value gives nothing but its option.
    """
    if not isinstance(value, Mapping):
        yield key, value
        return
    if not _is_group(key):
        yield key, {}
    for name, inner_value in value.items():
        yield from _settings_given(f"{key}.{name}", inner_value)


def _is_group(name: str) -> bool:
    """Return whether a name is that of a group of options of this project."""
    return name in LISTS or any((folder / name).is_dir() for folder in _own_folders())


def _parsed(override: str) -> list[Override]:
    """Return an override as Hydra reads it; [] if Hydra cannot, which it says in its own time."""
    if _depth(override) > DEEPEST_OVERRIDE:
        raise ConfigError(
            f"{short(override)} has more than {DEEPEST_OVERRIDE} brackets inside one another; "
            "remove some"
        )
    try:
        return OverridesParser.create().parse_overrides([override])
    except HydraException:
        return []
    except ValueError as error:  # Python reads no number of thousands of digits
        raise ConfigError(f"{short(override)} cannot be read ({one_line(error)})") from error


def _depth(text: str) -> int:
    """Return how many brackets of a text are open at once."""
    depth = 0
    deepest = 0
    for letter in text:
        if letter in "[{(":
            depth += 1
            deepest = max(deepest, depth)
        elif letter in "]})":
            depth -= 1
    return deepest


def _plugins_in(settings: object) -> list[str]:
    """Return the plugins FILE.py:NAME that nested settings or overrides name.

    Some settings are lists of overrides for a job inside the job, such as measure.train, which
    name plugins in their values.
    """
    if isinstance(settings, Mapping):
        return _plugins_in(list(settings.values()))
    if isinstance(settings, list | tuple):
        names = []
        for value in settings:
            names += _plugins_in(value)
        return names
    if isinstance(settings, Override):
        return _plugins_in(_values_of_override(settings))

    names = named_in(settings)
    if isinstance(settings, str) and "=" in settings and ".py:" in settings:
        names += _plugins_in(_parsed(settings))
    return names


def _check_plugins(settings: object) -> None:
    """Check that a person named each file of code that settings name.

    A configuration runs none by itself.
    """
    for name in _plugins_in(settings):
        check_trusted(name)


# ---- Hydra's global state


def register() -> None:
    """Let Hydra find `Options`, in a process whose only application is this project."""
    Plugins.instance().register(Options)
    Plugins.instance().register(OptionsEverywhere)
    OptionsEverywhere.is_ours = True


@contextlib.contextmanager
def hydra_ready() -> Iterator[None]:
    """Make Hydra's `compose` find conf/: in a job of ours as it is, and otherwise for a while.

    Hydra composes with global state. So threads compose one after another, and what Hydra had
    initialised for another application is restored.
    """
    with _COMPOSING, contextlib.ExitStack() as restored:
        if not _is_ours(GlobalHydra.instance()):
            _initialise(restored)
        restored.enter_context(reading_options(HydraOptions()))
        yield


def _is_ours(running: GlobalHydra) -> bool:
    """Return whether Hydra is initialised for this project."""
    if running.hydra is None:
        return False
    sources = running.hydra.config_loader.get_sources()
    return any(source.scheme() == "thinkalike" for source in sources)


def _initialise(restored: contextlib.ExitStack) -> None:
    """Initialise Hydra for this project, until `restored` is closed."""
    running = GlobalHydra.instance()
    version = VersionBase.instance()
    runtime = JobRuntime.instance()
    restored.callback(setattr, version, "version_base", version.getbase())
    restored.callback(setattr, runtime, "conf", deepcopy(runtime.conf))
    restored.callback(setattr, running, "hydra", running.hydra)
    restored.callback(GlobalHydra.set_instance, running)
    restored.callback(setattr, OptionsEverywhere, "is_ours", OptionsEverywhere.is_ours)
    register()
    running.clear()
    restored.enter_context(loading_files_only())
    restored.enter_context(initialize_config_dir(str(CONF), version_base=None))


def _searched_folders() -> list[Path]:
    """Return the folders of Hydra's search path; Hydra must be ready."""
    sources = GlobalHydra.instance().config_loader().get_sources()
    folders = [Path(source.path) for source in sources]
    return [folder for folder in folders if folder.is_absolute()]


def _groups() -> set[str]:
    """Return the groups of configurations: the folders inside those of the search path."""
    with hydra_ready():
        folders = _searched_folders()
    groups = {*LISTS, "hydra"}
    for folder in folders:
        groups.update(path.name for path in folder.glob("*/"))
    return groups


def files_settings() -> dict[str, set[str]]:
    """Return the keys that each file of a user sets, in the last composed configuration."""
    loader = _loader()
    return {} if loader is None else loader.notes.settings


def _loader() -> Loader | None:
    """Return what composed the last configuration; None outside a job, as in a sweep's worker."""
    if not GlobalHydra.instance().is_initialized():
        return None
    loader = GlobalHydra.instance().config_loader()
    return loader if isinstance(loader, Loader) else None


# ---- options in the folders of the user


PACKAGED = PackagedOptions()


class HydraOptions:
    """The options that a command line can name: those of the package, and of its own folders."""

    def names(self, group: str) -> list[str]:
        with hydra_ready():
            folders = _searched_folders()
        names = set(PACKAGED.names(group))
        for folder in folders:
            root = folder / group
            names.update(
                str(path.relative_to(root).with_suffix("")) for path in root.rglob("*.yaml")
            )
        return sorted(names)

    def settings(self, group: str, name: str, overrides: SettingValues) -> Settings:
        if name in PACKAGED.names(group) or name not in self.names(group):
            return PACKAGED.settings(group, name, overrides)
        with hydra_ready():
            search_path = GlobalHydra.instance().config_loader().get_search_path().get_path()
            paths = tuple(element.path for element in search_path)
            settings = dict(_option(group, name, paths))
            for key, value in overrides.items():
                settings[key] = literal(value)
        resolved = OmegaConf.to_container(OmegaConf.create(settings), resolve=True)
        assert isinstance(resolved, dict)
        return {str(key): value for key, value in resolved.items()}


@cache
def _option(group: str, name: str, search_path: tuple[str, ...]) -> Settings:
    """Return what Hydra composes of an option of a user's folder, which is in the search path."""
    escaped = re.sub(r"(\\*)('|$)", _escaped_quote, name)
    try:
        composed = compose(None, [f"+{group}='{escaped}'"])
    except COMPOSING_ERRORS as error:
        raise ConfigError(explained(error)) from error
    settings = _plain_settings(composed[group])
    assert settings is not None
    return settings


def _escaped_quote(end: re.Match[str]) -> str:
    r"""Return backslashes before a quote, or before the end, as Hydra's grammar wants them."""
    quote = "\\'" if end[2] else ""
    return 2 * end[1] + quote


# ---- configurations of jobs


def compose_trusted_job(entry_point: str, overrides: Iterable[str], **parts: Checked) -> JobConfig:
    """Return the configuration of a job, see `thinkalike.config.compose_job`.

    A person wrote the overrides, so the files of code that they name are run.
    """
    words = list(overrides)
    trust_plugins_of(words)
    trust(_plugins_in([vars(part) for part in parts.values() if dataclasses.is_dataclass(part)]))
    return _decided(compose_open_job(entry_point, words, **parts))


def compose_inner_job(entry_point: str, overrides: Iterable[str], **parts: object) -> JobConfig:
    """Return the configuration of a job inside another one.

    The configuration of the outer job has some of these overrides, as measure.train, and it may be
    a stranger's file. So they run no code that a person did not name, and set nothing of Hydra's
    own, which would import modules.
    """
    words = list(overrides)
    for word in words:
        if _parsed(word) and not keys_of([word]):
            raise ConfigError(
                f"{short(word)} is a setting of Hydra's, which a job inside another one does not "
                "take"
            )
    for name in _environment_of(words):  # the outer job has replaced those that a person wrote
        raise ConfigError(
            f"a job inside another one reads no environment variable, such as {name}; "
            "give its value"
        )
    return _decided(compose_open_job(entry_point, words, **parts))


def compose_open_job(entry_point: str, overrides: Iterable[str], **parts: object) -> JobConfig:
    """Return the configuration of a job in which what is left open is not decided yet.

    See `thinkalike.config.compose_job` for the arguments.
    """
    words = list(overrides)
    with hydra_ready():
        try:
            composed = compose(entry_point, words, return_hydra_config=True)
            with open_dict(composed):
                choices = composed.pop("hydra").runtime.choices
            config = checked(composed, words, choices)
        except COMPOSING_ERRORS as error:
            raise ConfigError(explained(error)) from error
        return with_changes(config, parts)


def _decided(config: JobConfig) -> JobConfig:
    """Return a configuration with everything decided, unless it stands for further jobs."""
    if isinstance(config, AnalyzeConfig) and (config.models is not None or config.experiment):
        return config
    return completed_for_instrument(config)


def keys_of(overrides: Iterable[str]) -> list[str]:
    """Return the keys of overrides; those of the second model begin with `target`."""
    keys = []
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        # `stitch={lr: 0.5}` gives stitch.lr as well as stitch.
        settings = [override.key_or_group]
        for setting, _ in _settings_given(override.key_or_group, override.value()):
            settings.append(setting)
        for setting in dict.fromkeys(settings):
            key = setting
            if override.package:
                key = override.package + setting.removeprefix(override.key_or_group)
            if not OF_HYDRA.match(key):
                keys.append(key)
    return keys


def checked(
    composed: DictConfig, overrides: Sequence[str], choices: Mapping[str, str | None]
) -> JobConfig:
    """Return what Hydra composed as a dataclass; what is left open stays None.

    Args:
        choices: By group the option that is chosen, or None.

    Raises:
        ConfigError: A value is not possible; the message names the file that has it, if one of the
            user does.
    """
    try:
        return _checked(composed, overrides, choices)
    except (ConfigError, *COMPOSING_ERRORS) as error:
        message = str(error)
        if not isinstance(error, ConfigError):
            message = explained(error)
        file = _file_of(message, overrides)
        if file:
            message = f"{file}: {message}"
        else:
            message = _with_file_of_option(message, choices)
        raise ConfigError(message) from error


def _file_of(message: str, overrides: Sequence[str]) -> str:
    """Return the file of the user that sets what a message begins with, such as seed=x; or ""."""
    beginning = re.match(r"'?([\w.]+)('|=|:)", message)
    loader = _loader()
    if beginning is None or loader is None:
        return ""
    key = beginning[1]
    for given in keys_of(overrides):
        if key == given or key.startswith(f"{given}."):
            return ""
    files = ""
    for name, (_, file) in loader.notes.values.items():
        if name == key or name.startswith(f"{key}."):
            files = file
    return files


def _with_file_of_option(message: str, choices: Mapping[str, str | None]) -> str:
    """Return a message that names the file of an option which leaves a setting out.

    Only the schema of its group gives all of the settings a value.
    """
    unset = re.match(r"(\w+)\.\w+=None must", message)
    loader = _loader()
    if unset is None or loader is None:
        return message
    part = unset[1]
    group = "model@target" if part == "target" else part
    name = choices.get(group)
    for file, keys in loader.notes.settings.items():
        is_of_option = Path(file).stem == Path(name or "").name
        if is_of_option and any(key.startswith(f"{part}.") for key in keys):
            return f"{file}: {message}; begin the file with defaults: [schema, _self_]"
    return message


def _checked(
    composed: DictConfig, overrides: Sequence[str], choices: Mapping[str, str | None]
) -> JobConfig:
    settings = _plain_settings(composed)
    assert settings is not None
    keys = keys_of(overrides)
    composed_settings.check_parts(settings, keys)

    instrument = composed_settings.instrument_of_settings(settings)
    reads = composed_settings.parts_of_instrument(instrument)
    if "task" in settings and "stitch" not in reads:  # the part of the default task
        settings.pop("stitch", None)

    chosen = {group for group, name in choices.items() if name}
    stands_for_more = any(settings.get(name) for name in composed_settings.STAND_INS)
    settings["model"], settings["target"] = settings_of_models(
        _part(settings, "model"),
        _part(settings, "target"),
        keys,
        chosen,
        reads=() if stands_for_more else reads,
    )

    # Texts that are put together from others may read what no file is seen to read.
    for name in sorted(environment_in(settings, references_in) - _environment_named_in(overrides)):
        raise ConfigError(f"the configuration reads {_may_be_secret(name)}")
    resolved = OmegaConf.to_container(OmegaConf.create(settings), resolve=True)
    assert isinstance(resolved, dict)
    settings = {str(name): value for name, value in resolved.items()}
    _check_plugins(settings)  # also of names that ${...} has put together
    loader = _loader()
    keys_of_files = {} if loader is None else loader.notes.of_jobs
    composed_settings.check_names(settings, choices, keys, keys_of_files)
    config = composed_settings.job_of_settings(settings)
    for word in overrides:
        if word.partition("=")[2] == "???":
            raise ConfigError(f"{word} gives no value; give one, or leave it out")
    return config


def _part(settings: Settings, name: str) -> Settings:
    """Return a part of composed settings, which is settings itself."""
    part = settings[name]
    assert isinstance(part, dict)
    return part


def with_quoted_paths(words: Sequence[str]) -> list[str]:
    """Return the words of a command line, with paths in quotes that Hydra's grammar cannot read.

    An existing file is meant by its name, such as epoch=0-step=500.ckpt, as Lightning calls its
    checkpoints.
    """
    return [_with_quoted_path(word) for word in words]


def _with_quoted_path(word: str) -> str:
    setting, _, value = word.partition("=")
    is_option = setting.startswith("-")  # argparse reads it, and not Hydra's grammar
    if is_option or not value or not os.path.exists(os.path.expanduser(value)):
        return word
    try:
        OverridesParser.create().parse_overrides([word])
    except OverrideParseException:
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        return f"{setting}='{escaped}'"
    return word


# ---- errors of Hydra in one line


def explained(error: BaseException) -> str:
    """Return the message of an error of Hydra's in one line, with the nearest existing name."""
    if isinstance(error, MissingConfigException):
        return _explained_missing(error)
    not_offered = re.match(rf"{NO_SUCH_GROUP} '(\w+)'", str(error))
    if not_offered:
        command = _command_with(not_offered[1])
        if command:
            return _setting_of_command(not_offered[1], command)
    cause = error.__cause__
    if isinstance(cause, ConfigAttributeError | ConfigKeyError):
        # Keys of a group that exists have a dot, such as measure.folds of a measure without folds.
        command = _command_with(str(cause.full_key or ""))
        if command:
            return _setting_of_command(short(cause.full_key), command)
        key_is_known = bool(cause.full_key) and bool(cause.parent_node)
        if key_is_known:
            return _explained_unknown_key(cause)

    is_of_type = isinstance(cause, OmegaConfBaseException) and not isinstance(error, YAMLError)
    if is_of_type and str(error).startswith("Error merging override "):
        # Hydra's message has the override alone; OmegaConf's has what the setting takes.
        override = str(error).removeprefix("Error merging override ")
        return f"{short(override)} is not possible: {short(_without_full_key(str(cause)))}"
    return _first_sentence(error)


def _explained_missing(error: MissingConfigException) -> str:
    """Return what to say of an option that does not exist."""
    if error.missing_cfg_file is None:
        folder = re.search(r"config (?:directory|module) '(?:thinkalike\.)?(.*?)'", str(error))
        if folder is None:
            return one_line(error)
        return (
            f"--config-path={short(folder[1])} is no folder; "
            "give the whole path of one, as /home/me/mine"
        )
    path = str(error.missing_cfg_file)
    if path.startswith("hydra/"):
        group, _, name = path.rpartition("/")
    else:
        group, _, name = path.partition("/")
    if path in INSTALLED_BY:
        chosen = name.removeprefix("submitit_")
        return f"{group}={chosen} needs {INSTALLED_BY[path]}"
    if not name or not (group in _groups() or group.startswith("hydra/")):
        return (
            f"there is no configuration {short(path)}; "
            "give one of --config-dir by its path in there"
        )
    offered = error.options or options(group)
    return f"{group}={short(name)} is not known; {nearest(name, offered)}{HINTS.get(group, '')}"


def _explained_unknown_key(error: ConfigAttributeError | ConfigKeyError) -> str:
    """Return what to say of a setting that does not exist."""
    key = str(error.full_key)
    part = key.rpartition(".")[0]
    if part == "hydra.launcher":
        return (
            f"'{key}' is not a setting of this launcher; "
            "choose another one, as hydra/launcher=joblib"
        )
    known = []
    for name in _keys(error.parent_node):
        if not name.startswith("hydra"):
            known.append(f"{part}.{name}".lstrip("."))
    return unknown(key, known)


@cache
def _settings_of_command(command: str) -> frozenset[str]:
    """Return the settings and the groups of `train` or `analyze`, as `seed` and `stitch`."""
    content = yaml.safe_load((CONF / f"{command}.yaml").read_text())
    names = {*(schema_node(f"{command}_schema") or {})}
    for item in content["defaults"]:
        if isinstance(item, dict):
            names.update(group.partition("@")[0] for group in item)
    return frozenset(names)


def _command_with(name: str) -> str:
    """Return the command that alone has a setting, `train` or `analyze`; "": both, or none."""
    of_train = _settings_of_command("train")
    of_analyze = _settings_of_command("analyze")
    if name in of_train - of_analyze:
        return "train"
    return "analyze" if name in of_analyze - of_train else ""


def _setting_of_command(name: str, command: str) -> str:
    """Return what to say of a setting that the other command has."""
    return f"{name} is a setting of {command}; leave it out, or run thinkalike {command}"


def _first_sentence(error: BaseException) -> str:
    """Return what an error says, in one printable line, with the key that it is about."""
    message = str(error) if isinstance(error, YAMLError) else _without_full_key(str(error))
    if not message:  # Hydra wraps some errors of a file without a word
        message = type(error).__name__
        for inner in chain(error):
            if str(inner):
                message = one_line(inner).split(" full_key")[0]
                break
    key = getattr(error, "full_key", None)
    if key and key not in message:
        message = f"{key}: {message}"
    message = "".join(letter if letter.isprintable() else " " for letter in message)
    if len(message) > LONGEST_REASON:
        return f"{message[:LONGEST_REASON]} ..."
    return message


def _without_full_key(message: str) -> str:
    """Return a message of OmegaConf in one line, without the part that begins with full_key."""
    return " ".join(re.split(r"\n\s*full_key", message)[0].split())


def _keys(node: object) -> list[str]:
    """Return the dotted keys of a configuration of OmegaConf; no ${...} of it is followed."""
    if not isinstance(node, DictConfig):
        return []
    keys: dict[str, None] = {}  # in their order
    for key in flat(_plain_settings(node) or {}):
        names = key.split(".")
        for length in range(1, len(names) + 1):
            keys[".".join(names[:length])] = None
    return list(keys)


# ---- what Hydra knows of the job of this process


@dataclasses.dataclass(frozen=True)
class Called:
    """What Hydra knows of the job of a command line.

    Attributes:
        overrides: Its words.
        choices: By group the option that is chosen, or None.
        has_values_to_try: Whether a file gives values for a sweep.
        has_launcher: Whether another launcher than Hydra's own is chosen.
        number: Which job of a sweep it is, from 0.
    """

    overrides: list[str]
    choices: Mapping[str, str | None]
    has_values_to_try: bool
    has_launcher: bool
    number: int


def called() -> Called:
    """Return what Hydra knows of the job that runs now; `number` is that of a sweep alone."""
    hydra_config = HydraConfig.get()
    number = 0
    if not OmegaConf.is_missing(hydra_config.job, "num"):
        number = hydra_config.job.num
    return Called(
        overrides=_words_of_task(hydra_config),
        choices=hydra_config.runtime.choices,
        has_values_to_try=bool(hydra_config.sweeper.get("params")),
        has_launcher=hydra_config.launcher != {"_target_": BasicLauncherConf._target_},
        number=number,
    )


def _words_of_task(hydra_config: HydraConf | DictConfig) -> list[str]:
    """Return the overrides of a job as they were written.

    In the list of overrides, the ${.name} of one would stand for another override.
    """
    words = OmegaConf.to_container(hydra_config.overrides.task, resolve=False)
    assert isinstance(words, list)
    return words


def hydra_main(name: str, task: Callable[[DictConfig], object]) -> Callable[[], None]:
    """Return what reads the command line of this process, and does the task with each job."""
    decorate = hydra.main(version_base=None, config_path=str(CONF), config_name=name)
    main: Callable[[], None] = decorate(task)
    return main


def use_folder(composed: DictConfig, folder: str) -> None:
    """Let a sweep, and the jobs that it composes, write into a folder."""
    with read_write(composed.hydra):
        composed.hydra.sweep.dir = folder
        composed.hydra.overrides.hydra.append(f"hydra.sweep.dir='{folder}'")


def command_line() -> str:
    """Return the command line of the job that a script does, or that of this process."""
    if not HydraConfig.initialized() or PROGRAM not in os.environ:
        return shlex.join(sys.argv)
    hydra_config = HydraConfig.get()
    words = []
    for source in hydra_config.runtime.config_sources:
        if source.provider == "command-line":
            words.append(f"--config-dir={source.path}")
    name = hydra_config.job.config_name
    if name not in ("train", "analyze"):
        words.append(f"--config-name={name}")
    words.extend(_words_of_task(hydra_config))
    return f"{os.environ[PROGRAM]} {shlex.join(words)}".rstrip()
