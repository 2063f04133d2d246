"""What the core, the studies and installed packages add to the command line, taken together.

What `task=` and `measure=` can be is declared in `thinkalike.registry`. An installed package adds
to it by entry points of one group:

    [project.entry-points."thinkalike.instruments"]
    "measure.mine" = "my_package.mine:Mine"

The group has these entry points:

- `task.NAME` and `measure.NAME`: a subclass of `thinkalike.job.Instrument`
- `layer_measure.NAME`: a measure of layer pairs, a subclass of `thinkalike.measures.LayerMeasure`
- `subjects.NAME`: the form that a measure takes for several subjects
- `settings.PART.NAME`: a subclass of the schema of a part, such as `model`, that adds settings to it
- `conf.NAME`: the path of a folder with configuration groups. Its files NAME_train.yaml and
  NAME_analyze.yaml, if there are such, become part of every command line of that script.
- `experiment`: a function of the name of an experiment

A module is imported when it is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from pathlib import Path

from thinkalike.errors import ConfigError, one_of, short
from thinkalike.former_columns import FormerColumns
from thinkalike.plugins import is_plugin
from thinkalike.registry import CORE, OF_STATES, OF_USER, KindEntry, ObjectReference, Registered, studies

GROUP = "thinkalike.instruments"
THIS_PACKAGE = "thinkalike"


def _of_installed_packages() -> Registered:
    """Return what the entry points of other packages add."""
    entries: dict[str, list[KindEntry]] = {"task": [], "measure": [], "subjects": []}
    objects: dict[str, dict[str, ObjectReference]] = {"settings": {}, "conf": {}}
    experiment = None
    for point in sorted(entry_points(group=GROUP)):
        # An older version of this package may be installed, which this checkout replaces.
        if point.module.partition(".")[0] == THIS_PACKAGE:
            continue
        kind, _, name = point.name.partition(".")
        if kind in entries:
            entries[kind].append(KindEntry(point.module, point.attr, name))
        elif kind == "layer_measure":
            entry = KindEntry(point.module, point.attr, name, through=OF_STATES)
            entries["measure"].append(entry)
        elif kind in objects:
            objects[kind][name] = ObjectReference(point.module, point.attr)
        elif kind == "experiment":
            experiment = ObjectReference(point.module, point.attr)
    return Registered(
        tasks=tuple(entries["task"]),
        measures=tuple(entries["measure"]),
        subjects=tuple(entries["subjects"]),
        settings=objects["settings"],
        conf=objects["conf"],
        experiment=experiment,
    )


def _entries_by_kind(entries: Iterable[KindEntry]) -> dict[str, KindEntry]:
    """Return entries by their names on the command line, in alphabetical order."""
    return {entry.kind: entry for entry in sorted(entries, key=lambda entry: entry.kind)}


def _former_columns_by_kind(packages: Iterable[Registered]) -> dict[str, dict[str, str]]:
    """Return by the kind of a result how earlier versions named its columns and tables."""
    former_columns: dict[str, dict[str, str]] = {}
    for package in packages:
        for kind, names in package.former_columns.items():
            former_columns.setdefault(kind, {}).update(names)
    return former_columns


def _schemas_by_part(packages: Iterable[Registered]) -> dict[str, list[ObjectReference]]:
    """Return by the part of a configuration the schemas that add settings to it."""
    schemas: dict[str, list[ObjectReference]] = {}
    for package in packages:
        for name, schema in sorted(package.settings.items()):
            part_name = name.partition(".")[0]
            schemas.setdefault(part_name, []).append(schema)
    return schemas


PACKAGES = (CORE, studies(), _of_installed_packages())
TASKS = _entries_by_kind(entry for package in PACKAGES for entry in package.tasks)
MEASURES = _entries_by_kind(entry for package in PACKAGES for entry in package.measures)
SUBJECTS = _entries_by_kind(entry for package in PACKAGES for entry in package.subjects)
ADDED_SETTINGS = _schemas_by_part(PACKAGES)
FORMER_COLUMNS: Mapping[str, FormerColumns] = _former_columns_by_kind(PACKAGES)


def conf_folders() -> dict[str, Path]:
    """Return by name the folders of configuration groups that installed packages have."""
    folders: dict[str, ObjectReference] = {}
    for package in PACKAGES:
        folders |= package.conf
    return {name: Path(str(folder.load())) for name, folder in sorted(folders.items())}


def measure_entry(kind: str) -> KindEntry | str:
    """Return the entry of a kind of measure; FILE.py:NAME stays as it is."""
    if is_plugin(kind):
        return kind
    one_of("measure", kind, MEASURES)
    return MEASURES[kind]


def instrument(entry: KindEntry | str) -> object:
    """Return the `Instrument` of an entry, or that of a user's measure FILE.py:NAME.

    `thinkalike.job.lookup` gives it with its type, which this module does not know.
    """
    if isinstance(entry, str):
        return OF_USER.call(entry)
    if entry.through is not None:
        return entry.through.call(entry)
    return entry.call()


def experiment_named(name: str) -> object:
    """Return the `Instrument` of an experiment, from the last package that has experiments.

    Raises:
        ConfigError: No package has experiments.
    """
    lookups = [package.experiment for package in PACKAGES if package.experiment is not None]
    if not lookups:
        raise ConfigError(f"experiment={short(name)}: no installed package has experiments")
    return lookups[-1].call(name)


def title_of(kind: str) -> str:
    """Return what tables, figures and pages call the results of a kind."""
    entry = MEASURES.get(kind)
    if entry is None:
        return kind
    return entry.title or kind


def instrument_of_kind(kind: str, of_subjects: bool) -> object | None:
    """Return the instrument whose results are of a kind, or None.

    None stands for the measures of users, and for experiments.

    Args:
        of_subjects: Whether the result is of several subjects.
    """
    measures = SUBJECTS if of_subjects else MEASURES
    entries = [measures[kind]] if kind in measures else [*TASKS.values()]
    for entry in entries:
        candidate = instrument(entry)
        if getattr(candidate, "kind", None) == kind:
            return candidate
    return None
