"""What a name on a command line stands for outside of the core: an object of a user's file, or of an entry point.

A user's stitch, measure or callback is written FILE.py:NAME; see docs/how-to/plugins.md.

    python train.py stitch.kind=mine.py:two_layer
    python analyze.py measure=mine.py:centroids

What `task=` and `measure=` can be stands in `thinkalike.registry`. An installed package adds to it by entry points of
one group:

    [project.entry-points."thinkalike.instruments"]
    "measure.mine" = "my_package.mine:Mine"

The group has these entry points:

- `task.NAME` and `measure.NAME`: a subclass of `thinkalike.job.Instrument`
- `layer_measure.NAME`: a measure of layer pairs, a subclass of `thinkalike.measures.LayerMeasure`
- `subjects.NAME`: the form that a measure takes for several subjects
- `settings.PART.NAME`: a subclass of the schema of a part, such as `model`, that adds settings to it
- `conf.NAME`: the path of a folder with configuration groups. Its files NAME_train.yaml and NAME_analyze.yaml, if there
  are such, become part of every command line of that entry point.
- `experiment`: a function of the name of an experiment

A module is imported when it is needed.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from thinkalike.errors import ConfigError, PluginError, ThinkalikeError, one_line, one_of, short
from thinkalike.registry import CORE, OF_STATES, OF_USER, Entry, Place, Registered, studies

PLUGIN = re.compile(r".*\.py:[A-Za-z_]\w*")
GROUP = "thinkalike.instruments"
OURS = "thinkalike"


def _of_packages() -> Registered:
    """Return what the entry points of other packages add."""
    entries: dict[str, list[Entry]] = {"task": [], "measure": [], "subjects": []}
    places: dict[str, dict[str, Place]] = {"settings": {}, "conf": {}}
    experiment = None
    for point in sorted(entry_points(group=GROUP)):
        if point.module.partition(".")[0] == OURS:  # of an older version, whose installation this checkout replaces
            continue
        part, _, name = point.name.partition(".")
        if part in entries:
            entries[part].append(Entry(point.module, point.attr, name))
        elif part == "layer_measure":
            entries["measure"].append(Entry(point.module, point.attr, name, through=OF_STATES))
        elif part in places:
            places[part][name] = Place(point.module, point.attr)
        elif part == "experiment":
            experiment = Place(point.module, point.attr)
    return Registered(
        tasks=tuple(entries["task"]),
        measures=tuple(entries["measure"]),
        subjects=tuple(entries["subjects"]),
        settings=places["settings"],
        conf=places["conf"],
        experiment=experiment,
    )


def _by_kind(entries: Iterable[Entry]) -> dict[str, Entry]:
    """Return entries by their names on the command line, in alphabetical order."""
    return {entry.kind: entry for entry in sorted(entries, key=lambda entry: entry.kind)}


PACKAGES = (CORE, studies(), _of_packages())
TASKS = _by_kind(entry for package in PACKAGES for entry in package.tasks)
MEASURES = _by_kind(entry for package in PACKAGES for entry in package.measures)
SUBJECTS = _by_kind(entry for package in PACKAGES for entry in package.subjects)
SETTINGS: dict[str, list[Place]] = {}  # by the part of a configuration, the schemas that add settings to it
for _package in PACKAGES:
    for _name, _place in sorted(_package.settings.items()):
        SETTINGS.setdefault(_name.partition(".")[0], []).append(_place)
# functions that a user passed as measures, each by the FILE.py:NAME that stands for it
HELD: dict[str, Any] = {}
# the FILE.py:NAME that a person typed on a command line or gave as an argument in Python; no other file is run
TRUSTED: set[str] = set()


@dataclass(frozen=True)
class MeasurePlugin:
    """A measure of layer pairs with a title or settings of its own; a bare function or `LayerMeasure` needs none.

    Attributes:
        measure: a function of (n, d) and (n, e) tensors to a number; or a subclass of `LayerMeasure`, or an instance;
            or, with settings, a function of `measure.` settings to either.
        title: what tables and figures call it; by default its name.
        scale: the ends of the colours.
        is_distance: whether less is closer.
        settings: by name the default of each setting of its own, or a field such as `setting(10, least=1)`.
    """

    measure: Any
    title: str | None = None
    scale: tuple[int | float, int | float] = (0.0, 1.0)
    is_distance: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)


def is_plugin(name: Any) -> bool:
    """Return whether a value names an object of a user's file."""
    return isinstance(name, str) and bool(PLUGIN.fullmatch(name))


def load(name: str) -> Any:
    """Return the object that FILE.py:NAME names; a file whose content has changed is run anew.

    This is the one place where a name becomes code, and a name may come from a stranger's configuration. So the file is
    one of `TRUSTED`.

    Raises:
        PluginError: the name is not trusted, the file or the object does not exist, or the file raises an error.
    """
    if name in HELD:
        return HELD[name]
    if not is_plugin(name):
        raise PluginError(f"{short(name)} is not a plugin; name the object of a file as FILE.py:NAME")
    path, _, attribute = name.rpartition(":")
    check_trusted(name)
    names = vars(_module(Path(path).expanduser().resolve(), _content(path)))
    if attribute not in names:
        raise PluginError(f"{path} has no {attribute}")
    return names[attribute]


@contextlib.contextmanager
def blaming(what: str) -> Iterator[None]:
    """Say in one line that code of the user, such as "measure mine", raised an error, which stays the cause.

    An error that says what is wrong in one line already passes, and so does a lack of memory, which is no fault of it.
    """
    try:
        yield
    except ThinkalikeError:
        raise
    except MemoryError:
        raise
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError":  # of torch, which takes seconds to import
            raise
        message = one_line(error)
        reason = f"{type(error).__name__}: {message}" if message else type(error).__name__
        raise PluginError(f"{what} raised {reason}") from error


def conf_folders() -> dict[str, Path]:
    """Return by name the folders of configuration groups that installed packages have."""
    places = {name: place for package in PACKAGES for name, place in package.conf.items()}
    return {name: Path(place.load()) for name, place in sorted(places.items())}


def trust(names: Iterable[str]) -> None:
    """Let files of code be run from now on, each by its FILE.py:NAME, because a person named them."""
    TRUSTED.update(names)


def check_trusted(name: str) -> None:
    """Check that a person named a plugin FILE.py:NAME; a configuration file alone runs no code.

    Names are compared whole, as plugins/mine.py:f and mine.py:f are different files.

    Raises:
        PluginError: nobody did.
    """
    if name not in TRUSTED and name not in HELD:
        raise PluginError(
            f"a configuration file names {short(name)}, and code of yours is run only where the command line names "
            "it, too; give that setting on the command line, or in Python call thinkalike.plugins.trust"
        )


def measure_entry(kind: str) -> Entry | str:
    """Return the entry of a kind of measure; FILE.py:NAME stays as it is."""
    if is_plugin(kind):
        return kind
    one_of("measure", kind, MEASURES)
    return MEASURES[kind]


def instrument(entry: Entry | str) -> Any:
    """Return the instrument of an entry, or that of a user's measure FILE.py:NAME."""
    if isinstance(entry, str):
        return OF_USER.load()(entry)
    if entry.through is not None:
        return entry.through.load()(entry)
    return entry.load()()


def title_of(kind: str) -> str:
    """Return what tables, figures and pages call the results of a kind."""
    entry = MEASURES.get(kind)
    return entry.title if entry and entry.title else kind


def instrument_of_kind(kind: str, of_subjects: bool) -> Any:
    """Return the instrument whose results are of a kind, or None; of those in memory the last one of that name."""
    measures = SUBJECTS if of_subjects else MEASURES
    in_memory = [name for name in HELD if name.endswith(f":{kind}")]
    entries: Iterable[Entry | str] = in_memory[-1:] or TASKS.values()
    if kind in measures:
        entries = [measures[kind]]
    return next((candidate for candidate in map(instrument, entries) if candidate.kind == kind), None)


def hold(function: Any) -> str:
    """Return the FILE.py:NAME that stands for a function in memory from now on."""
    word = str(getattr(function, "__name__", type(function).__name__))
    name = f"memory-{id(function)}.py:{word if word.isidentifier() else 'own'}"
    HELD[name] = function
    return name


def instrument_of(config: Any) -> Any:
    """Return the instrument that does the job of a configuration: that of its task, experiment or measure."""
    if hasattr(config, "task"):
        return instrument(TASKS[config.task])
    if config.experiment and config.models is None:
        entries = [package.experiment for package in PACKAGES if package.experiment is not None]
        if not entries:
            raise ConfigError(f"experiment={short(config.experiment)}: no installed package has experiments")
        return entries[-1].load()(config.experiment)
    kind = config.measure.kind
    if not config.subjects:
        return instrument(measure_entry(kind))
    if kind not in SUBJECTS:
        several = f"measure={kind} compares two sides, and activations= are {len(config.subjects)} subjects"
        remedy = f"choose measure={' or '.join(SUBJECTS)}" if SUBJECTS else "give one file or two"
        raise ConfigError(f"{several}; {remedy}")
    return instrument(SUBJECTS[kind])


def digest(name: str) -> str:
    """Return the SHA-256 of the file that FILE.py:NAME names; a function in memory has none."""
    return name if name in HELD else hashlib.sha256(_content(name.rpartition(":")[0])).hexdigest()


def named_in(settings: Any) -> list[str]:
    """Return all plugins that nested settings name, each once."""
    inside = settings.values() if isinstance(settings, Mapping) else settings
    if isinstance(settings, Mapping | list | tuple):
        return list(dict.fromkeys(name for inner in inside for name in named_in(inner)))
    return [settings] if is_plugin(settings) else []


def _content(path: str) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise PluginError(f"the plugin {path} cannot be read from {Path.cwd()}: {error.strerror}") from error


@cache
def _module(path: Path, content: bytes) -> ModuleType:
    """Run a file as a module of its own."""
    module = ModuleType(f"thinkalike_plugin_{path.stem}_{hashlib.sha256(content).hexdigest()[:8]}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # where dataclasses look for the types of their fields
    try:
        exec(compile(content, str(path), "exec", dont_inherit=True), vars(module))
    except Exception as error:  # whatever the user's code raises
        del sys.modules[module.__name__]
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        where = f" at line {lines[-1]}" if lines else ""
        raise PluginError(f"{path} cannot be run: {type(error).__name__}: {one_line(error)}{where}") from error
    return module
