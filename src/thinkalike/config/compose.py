"""From `conf/` and overrides to composed settings: the one module that imports Hydra.

Hydra composes the files of `conf/`, those of the user's folders, and what `Options` answers. Here
it is set up, and what it reads is checked on the way. `thinkalike.config.compose_jobs` makes the
configuration of a job of what comes out.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cache, lru_cache
from pathlib import Path
from typing import ClassVar

import hydra
import hydra._internal.hydra
import hydra.conf
import hydra.core.override_parser.overrides_parser
import yaml
from antlr4.error.Errors import LexerNoViableAltException, RecognitionException
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
from hydra.core.default_element import ResultDefault
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
    RangeSweep,
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
from thinkalike.config import hydra_errors, user_files
from thinkalike.config.called import Called
from thinkalike.config.commands import of_other_command
from thinkalike.config.environment import (
    check_environment_of_file,
    environment_in,
)
from thinkalike.config.file_notes import FileNotes
from thinkalike.config.groups import (
    CONF,
    LISTS,
    PACKAGES,
    OptionLoader,
    PackagedOptions,
    Settings,
    folder_node,
    names_of_files,
    reading_options,
    schema_node,
    unset_settings,
)
from thinkalike.config.hydra_settings import check_hydras_settings
from thinkalike.config.jobs import JobConfig
from thinkalike.config.named_code import check_plugins, plugins_in
from thinkalike.config.overrides import (
    OF_HYDRA,
    SWEPT,
    PlainOverride,
    check_depth,
    check_override,
    quoted,
    with_quoted_text,
)
from thinkalike.config.references import (
    Reference,
    ReferenceReader,
    check_references,
    literal,
)
from thinkalike.config.schema import SettingValues
from thinkalike.config.sweep_checks import check_jobs_of_sweep, length_of_range
from thinkalike.config.written import (
    NumberTexts,
    drop_texts,
    number_as_written,
    restore_texts,
    taken_texts,
    texts_of_yaml,
)
from thinkalike.errors import ConfigError, ThinkalikeError, chain, one_line, short
from thinkalike.files import check_yaml, read_bytes
from thinkalike.global_state import renewed_in_forked_processes
from thinkalike.plugins import trust

COMPOSING_ERRORS = (OmegaConfBaseException, HydraException, YAMLError)
# how Hydra's message on an override of a group begins that a configuration does not have
NO_SUCH_GROUP = "Could not override"
# `Options` stands twice in Hydra's search path, by these addresses
FOLDERS = "thinkalike://folders"
REST = "thinkalike://"
OURS = ("thinkalike", "structured")  # schemes of the sources that no file is behind
HYDRAS = "hydra.conf"  # the package that has Hydra's own files
MOST_LOADED = 5000  # how often one command line may load a file; a long one loads 60
MOST_QUOTED_TEXTS = 100  # of an override, in the remedy of an error
MOST_REMEMBERED = 256  # overrides that are not parsed again; a long command line has 30

_composing = threading.RLock()


def _renew_lock() -> None:
    """Let a forked process compose while another thread did, which it lacks."""
    global _composing
    _composing = threading.RLock()


renewed_in_forked_processes(_renew_lock)

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

    def visitListContainer(
        self, context: OverrideParser.ListContainerContext
    ) -> list[ParsedElementType]:
        # Hydra looks for each element from the beginning of the list, which takes seconds for
        # thousands of them.
        elements = []
        for child in context.getChildren():
            if isinstance(child, OverrideParser.ElementContext):
                elements.append(self.visitElement(child))
        return elements

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
        if isinstance(value, bool) or not isinstance(value, int | float) or str(value) == text:
            return value
        return number_as_written(value, text)


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


class FilesOnly(ConfigRepository):
    """Finds and reads the files of a configuration, and checks those of the user."""

    def __init__(self, config_search_path: ConfigSearchPath):
        super().__init__(config_search_path)
        self.notes = FileNotes()

    def _find_object_source(
        self, config_path: str, object_type: ObjectType | None
    ) -> ConfigSource | None:
        # Before any source is asked: the schema of a plugin's measure comes from running its file.
        check_plugins(config_path.partition("/")[2], values_of)
        return super()._find_object_source(config_path, object_type)

    def load_config(self, config_path: str) -> ConfigResult | None:
        source = self._find_object_source(config_path, ObjectType.CONFIG)
        if source is None:
            return None
        file = _foreign_file(source, config_path)
        if file is None:
            return self._load_own(source, config_path)

        content = read_bytes(file, user_files.LARGEST_FILE)
        try:
            check_yaml(content)
            settings: object = yaml.load(content, Loader=OptionLoader)
            check_environment_of_file(settings, str(file), self.notes.environment, references_in)
            user_files.check_defaults(settings, str(file))
            loaded = super().load_config(config_path)
            assert loaded is not None
            # Hydra finds no header after a byte order mark, with which some editors begin files.
            text = content.decode("utf-8-sig")
            loaded.header = ConfigSource._get_header_dict(text)
        except YAMLError as error:
            raise ConfigError(f"{file}: {user_files.explained_yaml(error)}") from error
        except (ThinkalikeError, RecursionError):
            raise
        except Exception as error:  # such as a ValueError of PyYAML for !!float x
            raise ConfigError(f"{file}: {explained(error)}") from error

        settings = OmegaConf.to_container(loaded.config, resolve=False)
        user_files.check_integers(settings, str(file))
        check_hydras_settings(settings, str(file))
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

    def check_all_are_read(self) -> None:
        """Check that no file of the user has the name of one of the package.

        That of the package would be read instead.

        This includes the groups that the job does not ask for: whoever wrote the file believes
        that it counts.
        """
        sources_of_user = []
        for source in self.sources:
            is_folder = source.scheme() == "file" and source.available()
            if is_folder and Path(source.path).resolve() not in user_files.own_folders():
                sources_of_user.append(source)
        for config_path in user_files.names_of_package(Path(hydra.conf.__path__[0])):
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


def _foreign_file(source: ConfigSource, config_path: str) -> Path | None:
    """Return the file that a source would read; None for one of this package or of Hydra."""
    is_of_hydra = source.scheme() == "pkg" and source.path == HYDRAS
    if source.scheme() in OURS or is_of_hydra:
        return None
    return user_files.user_file(source.path, config_path)


def _file_of_user(loaded: ConfigResult) -> str:
    """Return the file of the user that a configuration was loaded from; "" for one of ours."""
    return str(getattr(loaded, "file_of_user", ""))


def plain_settings(config: object) -> Settings:
    """Return a configuration of OmegaConf as plain settings; {} for one that holds none."""
    return _by_name(OmegaConf.to_container(config, resolve=False))


def resolved_settings(settings: Settings) -> Settings:
    """Return settings with what their ${...} stand for."""
    return _by_name(OmegaConf.to_container(OmegaConf.create(settings), resolve=True))


def _by_name(settings: object) -> Settings:
    if not isinstance(settings, dict):
        return {}
    return {str(name): value for name, value in settings.items()}


class FewLoads(CachingConfigRepository):
    """Ends lists of defaults that include each other again and again.

    A few files can include each other billions of times.

    Attributes:
        loads: How many files were loaded.
        files: Those of a user among them, each once.
    """

    def __init__(self, delegate: IConfigRepository):
        super().__init__(delegate)  # which copies it, so what that notes of a file is lost
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
        given_texts: The texts of the numbers in the overrides.
    """

    def __init__(self, config_search_path: ConfigSearchPath):
        super().__init__(config_search_path)
        self.files = FilesOnly(config_search_path)
        self.repository = self.files
        self._is_job = False  # whether a job is composed, and not an option of a group alone
        self._files_of_user: Mapping[str, None] = {}
        self.given: list[PlainOverride] = []
        self.given_texts: NumberTexts = {}

    @property
    def notes(self) -> FileNotes:
        """What was noted of the files of the configuration that was composed last."""
        return self.files.notes

    def _parse_overrides_and_create_caching_repo(
        self, config_name: str | None, overrides: list[str]
    ) -> tuple[list[Override], CachingConfigRepository]:
        parsed = parsed_overrides(overrides)
        self.notes.texts.clear()
        if config_name is not None:  # else it is an option of a group alone, see `_option`
            self.files.notes = FileNotes()
        self._is_job = config_name is not None
        self.given = [_plain_override(override) for override in parsed]
        self.given_texts = {}
        self.notes.environment |= environment_named_in(overrides)
        for given in self.given:
            check_override(given)
        for override in parsed:
            # OmegaConf holds no subclass of a number, so the override gets plain ones.
            plain, texts = taken_texts(override._value, override.key_or_group)
            override._value = plain  # type: ignore[assignment]
            self.given_texts.update(texts)
        self.given = [_plain_override(override) for override in parsed]
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
        file = _file_of_user(loaded)
        settings = plain_settings(loaded.config)
        self.notes.add(settings, package or "", file, getattr(loaded, "texts", {}))
        if file:
            check_hydras_settings(settings, file)
            check_plugins(settings, values_of)
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
        lacks_some = any(name not in composed for name in unset_settings(JobConfig))
        if self._is_job and lacks_some:  # before overrides, each of which would be refused
            raise ConfigError(
                "a configuration of your own begins with defaults: [train, _self_], "
                "or analyze in its place"
            )
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
            unread = self._explained_unread_file(path)
            if unread is not None:
                return unread
        return explained(error)

    def _explained_unread_file(self, path: str) -> str | None:
        """Return what to say of a file that Hydra does not read; None: no such file is meant.

        Hydra reads the files that end with .yaml in the folders of its search path.
        """
        searched = []
        for element in self.config_search_path.get_path():
            if element.path and element.path.startswith("file://"):
                searched.append(Path(element.path.removeprefix("file://")))
        others = [Path.cwd(), Path(os.sep)]
        for folder, ending in itertools.product([*searched, *others], ("", ".yml", ".yaml")):
            file = folder / f"{path}{ending}"
            if file.suffix not in (".yml", ".yaml") or not file.is_file():
                continue
            remedies = []
            if file.suffix != ".yaml":
                remedies.append(f"rename it to {file.stem}.yaml")
            if folder in others and path.partition("/")[0] in _groups():
                remedies.append(f"give --config-dir={folder}")
            elif folder in others:
                remedies.append(f"give --config-dir={file.parent} --config-name={file.stem}")
            return hydra_errors.explained_unread_file(file, " and ".join(remedies))
        return None

    def _with_files(self, message: str) -> str:
        """Return a message that names the files of the user which it is about."""
        return self.notes.with_files(message, self._files_of_user, self.given)

    def _check_and_restore(self, composed: DictConfig, is_whole: bool) -> None:
        """Check a composed configuration, and put the texts of numbers into it.

        Args:
            is_whole: Whether it has all of its settings; that of a sweep may lack some groups.
        """
        settings = plain_settings(composed)
        settings.pop("hydra")  # no file has set a text in it
        if composed.hydra.job.config_name:
            self.files.check_all_are_read()
            self.notes.check_order()
            self.notes.check_given(keys_of(_words_of_task(composed.hydra)))
        check_references(settings, references_in, is_whole)

        for override in self.given:
            drop_texts(self.notes.texts, override.replaced_keys())
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
            for key, _ in override.settings():
                if key.startswith(SWEPT):  # this sweeper has no parameters yet
                    name = short(key.removeprefix(SWEPT))
                    return f"{short(key)} is a setting of files; give -m {name}=VALUES"
        return f"the configuration cannot be composed: {hydra_errors.first_sentence(error)}"


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


# ---- overrides


def parsed_overrides(words: Iterable[str]) -> list[Override]:
    """Return overrides as Hydra reads them, with numbers that remember their text.

    Raises:
        HydraException: Hydra cannot read one of them.
    """
    # The one that is remembered stays as it is, whatever is done to its copies.
    return [deepcopy(_parsed_once(word)) for word in words]


@lru_cache(maxsize=MOST_REMEMBERED)
def _parsed_once(word: str) -> Override:
    """Return an override as Hydra reads it; it is asked for by each check of a command line."""
    with _composing, _numbers_as_written():
        return OverridesParser.create().parse_overrides([word])[0]


def read_overrides(words: Iterable[str]) -> list[PlainOverride]:
    """Return overrides as Hydra reads them, without those that it cannot read.

    It says so in its own time.
    """
    read = []
    for word in words:
        check_depth(word)
        try:
            parsed = parsed_overrides([word])
        except HydraException:
            continue
        except ValueError as error:  # Python reads no number of thousands of digits
            raise ConfigError(f"{short(word)} cannot be read ({one_line(error)})") from error
        read += [_plain_override(override) for override in parsed]
    return read


def _plain_override(override: Override) -> PlainOverride:
    value = override.value()
    values: tuple[object, ...] = (value,)
    if isinstance(value, ChoiceSweep):
        values = tuple(Override._convert_value(choice) for choice in value.list)
    return PlainOverride(
        text=override.input_line or "",
        key=override.key_or_group,
        package=override.package or "",
        value=value,
        values=values,
        is_addition=override.is_add() or override.is_force_add(),
        is_removal=override.is_delete(),
    )


def keys_of(overrides: Iterable[str]) -> list[str]:
    """Return the keys of overrides, see `PlainOverride.keys`.

    Raises:
        HydraException: Hydra cannot read one of them.
    """
    keys = []
    for override in parsed_overrides(overrides):
        keys += _plain_override(override).keys()
    return keys


def values_of(word: str) -> list[object]:
    """Return the values of an override; [] if Hydra cannot read it."""
    return [override.values for override in read_overrides([word])]


def environment_of(overrides: Iterable[str]) -> set[str]:
    """Return the names of the environment variables that overrides read.

    Their values are looked at as Hydra has read them, without its quotes and backslashes.
    """
    values = [values_of(word) for word in overrides if "$" in word]
    return environment_in(values, references_in)


def environment_named_in(overrides: Iterable[str]) -> set[str]:
    """Return the names of the environment variables that the overrides of a person read.

    What has another form names none: Hydra's own settings may have any.
    """
    names: set[str] = set()
    for word in overrides:
        with contextlib.suppress(ConfigError):
            names |= environment_of([word])
    return names


def trust_plugins_of(overrides: Iterable[str]) -> None:
    """Let the files of code be run that overrides name, because a person wrote the overrides."""
    trust(plugins_in([values_of(word) for word in overrides], values_of))


def with_quoted_paths(words: Sequence[str]) -> list[str]:
    """Return the words of a command line, with paths in quotes that Hydra would read otherwise.

    An existing file is meant by its name, such as epoch=0-step=500.ckpt, as Lightning calls its
    checkpoints. Hydra's grammar cannot read some names. From others it strips blanks or
    backslashes, or it takes their commas for those of a sweep.
    """
    return [_with_quoted_path(word) for word in words]


def _with_quoted_path(word: str) -> str:
    setting, _, value = word.partition("=")
    is_option = setting.startswith("-")  # argparse reads it, and not Hydra's grammar
    if is_option or not value or not os.path.exists(os.path.expanduser(value)):
        return word
    quoted_word = f"{setting}={quoted(value)}"
    try:
        (override,) = parsed_overrides([word])
    except OverrideParseException:
        return quoted_word
    # What is in quotes or brackets, a number and null are meant as Hydra reads them.
    is_bare_text = isinstance(override._value, str)
    is_other_text = is_bare_text and override._value != value
    if is_other_text or override.is_choice_sweep():
        return quoted_word
    return word


def _explained_unreadable(error: OverrideParseException) -> str:
    """Return what to say of an override that Hydra cannot read, with a remedy."""
    special_character = ""
    position = _position_of(error)
    is_of_lexer = any(isinstance(e, LexerNoViableAltException) for e in chain(error, True))
    if is_of_lexer and position is not None:
        special_character = error.override[position]
    remedy = _with_quoted_texts(error.override)
    return hydra_errors.explained_unreadable(error.override, error, special_character, remedy)


def _position_of(error: OverrideParseException) -> int | None:
    """Return where in an override an error is; None if Hydra does not say so."""
    for cause in chain(error, suppressed=True):
        if isinstance(cause, LexerNoViableAltException):
            return int(cause.startIndex)
        if isinstance(cause, RecognitionException) and cause.offendingToken is not None:
            return int(cause.offendingToken.start)
    return None


def _with_quoted_texts(word: str) -> str | None:
    """Return an override that Hydra cannot read with quotes by which it can, if there are any."""
    for _ in range(MOST_QUOTED_TEXTS):
        try:
            parsed_overrides([word])
        except OverrideParseException as error:
            quoted_word = with_quoted_text(word, _position_of(error))
        except (HydraException, ValueError):
            return None
        else:
            return word
        if quoted_word is None:
            return None
        word = quoted_word
    return None


# ---- sweeps


def check_number_of_jobs(hydra_config: DictConfig) -> None:
    """Check that Hydra's usual sweeper would not make too many jobs.

    Raises:
        ConfigError: The values of the command line and of a file make too many, or none.
    """
    sweeper = hydra_config.sweeper
    # Others choose among the values, and have a number of trials.
    if sweeper._target_ != BasicSweeperConf._target_:
        return
    words = [f"{key}={value}" for key, value in (sweeper.params or {}).items()]
    config_loader = GlobalHydra.instance().config_loader()
    counts: dict[str, int | float] = {}  # the last override of a key replaces those before it
    for override in parsed_overrides([*words, *_words_of_task(hydra_config)]):
        override.config_loader = config_loader  # by which glob(...) finds the options of a group
        counts[override.get_key_element()] = _number_of_values(override)
    check_jobs_of_sweep(counts, sweeper.max_batch_size)


def _number_of_values(override: Override) -> int | float:
    """Return how many values a sweep tries of a setting."""
    if override.is_range_sweep():
        sweep = override.value()
        assert isinstance(sweep, RangeSweep)
        assert sweep.start is not None
        assert sweep.stop is not None
        return length_of_range(sweep.start, sweep.stop, sweep.step)
    if override.is_choice_sweep():
        return len(list(override.sweep_iterator()))
    return 1


# ---- Hydra's global state


@contextlib.contextmanager
def loading_files_only() -> Iterator[None]:
    """Let Hydra compose by `Loader` while this is open; Hydra takes no loader in another way."""
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

    replacements = (
        (hydra._internal.hydra, "ConfigLoaderImpl", Loader),
        (hydra._internal.hydra.Hydra, "get_mode", get_mode),
    )
    with contextlib.ExitStack() as restored:
        for owner, name, replacement in replacements:
            restored.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, replacement)
        restored.enter_context(_numbers_as_written())  # also where a sweeper of Hydra's parses
        yield


@contextlib.contextmanager
def _numbers_as_written() -> Iterator[None]:
    """Let Hydra parse overrides by `NumbersAsWritten` while this is open."""
    names_in_parser = vars(hydra.core.override_parser.overrides_parser)
    former_visitor = names_in_parser["HydraOverrideVisitor"]
    names_in_parser["HydraOverrideVisitor"] = NumbersAsWritten
    try:
        yield
    finally:
        names_in_parser["HydraOverrideVisitor"] = former_visitor


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
    with _composing, contextlib.ExitStack() as restored:
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


def file_notes() -> FileNotes:
    """Return what was noted of the files of the configuration that was composed last.

    Outside a job, as in a sweep's worker, nothing was.
    """
    if not GlobalHydra.instance().is_initialized():
        return FileNotes()
    loader = GlobalHydra.instance().config_loader()
    return loader.notes if isinstance(loader, Loader) else FileNotes()


# ---- options in the folders of the user


PACKAGED = PackagedOptions()


class HydraOptions:
    """The options that a command line can name: those of the package, and of its own folders."""

    def names(self, group: str) -> list[str]:
        with hydra_ready():
            folders = _searched_folders()
        return sorted({*PACKAGED.names(group), *names_of_files(folders, group)})

    def settings(self, group: str, name: str, overrides: SettingValues) -> Settings:
        if name in PACKAGED.names(group) or name not in self.names(group):
            return PACKAGED.settings(group, name, overrides)
        with hydra_ready():
            search_path = GlobalHydra.instance().config_loader().get_search_path().get_path()
            paths = tuple(element.path for element in search_path)
            settings = dict(_option(group, name, paths))
            for key, value in overrides.items():
                settings[key] = literal(value)
        return resolved_settings(settings)


@cache
def _option(group: str, name: str, search_path: tuple[str, ...]) -> Settings:
    """Return what Hydra composes of an option of a user's folder, which is in the search path."""
    try:
        composed = compose(None, [f"+{group}={quoted(name)}"])
    except COMPOSING_ERRORS as error:
        raise ConfigError(explained(error)) from error
    return plain_settings(composed[group])


# ---- what Hydra composes


def compose_words(
    entry_point: str, words: list[str]
) -> tuple[DictConfig, Mapping[str, str | None]]:
    """Return what Hydra composes of a command line, and by group the option that is chosen.

    Hydra must be ready, see `hydra_ready`.
    """
    try:
        composed = compose(entry_point, words, return_hydra_config=True)
    except COMPOSING_ERRORS as error:
        raise ConfigError(explained(error)) from error
    with open_dict(composed):
        choices: Mapping[str, str | None] = composed.pop("hydra").runtime.choices
    return composed, choices


# ---- errors of Hydra in one line


def explained(error: BaseException) -> str:
    """Return the message of an error of Hydra's in one line, with the nearest existing name."""
    if isinstance(error, MissingConfigException):
        if error.missing_cfg_file is None:
            return hydra_errors.explained_missing_folder(error)
        return hydra_errors.explained_missing_option(
            str(error.missing_cfg_file), error.options, _groups()
        )
    cause = error.__cause__
    if isinstance(cause, ConfigAttributeError | ConfigKeyError):
        # Keys of a group that exists have a dot, such as measure.folds of a measure without folds.
        key = str(cause.full_key or "")
        if of_other_command(key):
            return of_other_command(key)
        if key and cause.parent_node:
            return hydra_errors.explained_unknown_key(key, plain_settings(cause.parent_node))
    else:
        not_offered = re.match(rf"{NO_SUCH_GROUP} '(\w+)'", str(error))
        if not_offered and of_other_command(not_offered[1]):
            return of_other_command(not_offered[1])

    if isinstance(error, OverrideParseException):
        return _explained_unreadable(error)

    beginning = "Error merging override "
    if isinstance(cause, OmegaConfBaseException) and str(error).startswith(beginning):
        return hydra_errors.explained_override(str(error).removeprefix(beginning), cause)
    return hydra_errors.first_sentence(error)


# ---- what Hydra knows of the job of this process


def called() -> Called:
    """Return what Hydra knows of the job that runs now; `number` is that of a sweep alone."""
    hydra_config = HydraConfig.get()
    number = 0
    if not OmegaConf.is_missing(hydra_config.job, "num"):
        number = hydra_config.job.num
    folders = []
    for source in hydra_config.runtime.config_sources:
        if source.provider == "command-line":
            folders.append(source.path)
    return Called(
        overrides=_words_of_task(hydra_config),
        choices=hydra_config.runtime.choices,
        config_folders=folders,
        config_name=str(hydra_config.job.config_name),
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
        composed.hydra.overrides.hydra.append(f"hydra.sweep.dir={quoted(folder)}")
