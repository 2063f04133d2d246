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

A module is imported when it is needed. A package replaces nothing that this package or another one
has: a name that two of them have is refused when a command needs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from os import PathLike
from pathlib import Path
from typing import TypeVar

from thinkalike.errors import ConfigError, one_of, short
from thinkalike.former_columns import FormerColumns
from thinkalike.plugins import is_plugin
from thinkalike.registry import (
    CORE,
    INSTRUMENT,
    LAYER_MEASURE,
    OF_STATES,
    OF_USER,
    KindEntry,
    ObjectReference,
    Registered,
    studies,
)

GROUP = "thinkalike.instruments"
THIS_PACKAGE = "thinkalike"


AnyReference = TypeVar("AnyReference", bound=ObjectReference)


def _of_installed_packages() -> Registered:
    """Return what the entry points of other packages add.

    Nothing is imported here: an entry point that is not right is refused by the commands that need
    what it names.
    """
    entries: dict[str, list[KindEntry]] = {"task": [], "measure": [], "subjects": []}
    settings: list[tuple[str, ObjectReference]] = []
    folders: list[tuple[str, ObjectReference]] = []
    experiments: list[tuple[str, ObjectReference]] = []
    for point in sorted(entry_points(group=GROUP)):
        reference = _reference_of(point)
        # An older version of this package may be installed, which this checkout replaces.
        if reference.module.partition(".")[0] == THIS_PACKAGE:
            continue
        kind, _, name = point.name.partition(".")
        if kind in entries:
            entries[kind].append(_entry_of(reference, name, base=INSTRUMENT))
        elif kind == "layer_measure":
            entry = _entry_of(reference, name, base=LAYER_MEASURE, through=OF_STATES)
            entries["measure"].append(entry)
        elif kind == "settings":
            settings.append((name, reference))
        elif kind == "conf":
            folders.append((name, reference))
        elif kind == "experiment":
            experiments.append((kind, reference))
    return Registered(
        tasks=tuple(entries["task"]),
        measures=tuple(entries["measure"]),
        subjects=tuple(entries["subjects"]),
        settings=_named_once(settings),
        conf=_named_once(folders),
        experiment=_named_once(experiments).get("experiment"),
    )


def _reference_of(point: EntryPoint) -> ObjectReference:
    """Return what an entry point names; if nothing can be loaded from it, that says why."""
    package = point.dist.name if point.dist is not None else "unknown"
    origin = f"{point.name} of the package {package}"
    stated = EntryPoint.pattern.match(point.value)
    if stated is not None and stated["attr"]:
        return ObjectReference(stated["module"], stated["attr"], origin=origin, package=package)
    incomplete = ObjectReference("", "", origin=origin, package=package)
    problem = f"names {short(point.value)}, which is not of the form module:object"
    return replace(incomplete, refusal=str(incomplete.refused(problem)))


def _entry_of(
    reference: ObjectReference,
    name: str,
    base: ObjectReference,
    through: ObjectReference | None = None,
) -> KindEntry:
    """Return the entry of an object that an entry point names.

    Args:
        name: That of the entry on the command line.
        base: The class that the object must be a subclass of.
        through: The instrument that compares layers by it.
    """
    return KindEntry(
        reference.module,
        reference.name,
        name,
        through=through,
        origin=reference.origin,
        package=reference.package,
        base=base,
        refusal=reference.refusal,
    )


def _named_once(references: Iterable[tuple[str, AnyReference]]) -> dict[str, AnyReference]:
    """Return references by their names, in alphabetical order.

    What two have named alike is refused when it is used, as nothing says which of them is meant.
    """
    references_by_name: dict[str, list[AnyReference]] = {}
    for name, reference in references:
        references_by_name.setdefault(name, []).append(reference)
    by_name = {}
    for name, alike in sorted(references_by_name.items()):
        by_name[name] = alike[0]
        if len(alike) > 1:
            by_name[name] = replace(alike[0], refusal=_why_ambiguous(name, alike))
    return by_name


def _why_ambiguous(name: str, references: Sequence[ObjectReference]) -> str:
    """Return why a name that several references have cannot be used, and what can be done."""
    owners = [reference.origin or THIS_PACKAGE for reference in references]
    packages = dict.fromkeys(reference.package for reference in references if reference.origin)
    assert packages, f"{THIS_PACKAGE} names {name} twice"
    return (
        f"several things are named {short(name)}: those of {' and of '.join(owners)}; rename the "
        f"entry point of a package, or uninstall it: pip uninstall {' or '.join(packages)}"
    )


def _kinds_named_once(entries: Iterable[KindEntry]) -> dict[str, KindEntry]:
    """Return entries by their names on the command line, in alphabetical order."""
    return _named_once((entry.kind, entry) for entry in entries)


def _former_columns_by_kind(packages: Iterable[Registered]) -> dict[str, FormerColumns]:
    """Return by the kind of a result how earlier versions named its columns and tables."""
    former_columns: dict[str, FormerColumns] = {}
    for package in packages:
        for kind, names in package.former_columns.items():
            assert kind not in former_columns, f"former columns of {kind} are declared twice"
            former_columns[kind] = names
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
TASKS = _kinds_named_once(entry for package in PACKAGES for entry in package.tasks)
MEASURES = _kinds_named_once(entry for package in PACKAGES for entry in package.measures)
SUBJECTS = _kinds_named_once(entry for package in PACKAGES for entry in package.subjects)
ADDED_SETTINGS = _schemas_by_part(PACKAGES)
CONF_FOLDERS = _named_once(item for package in PACKAGES for item in package.conf.items())
FORMER_COLUMNS: Mapping[str, FormerColumns] = _former_columns_by_kind(PACKAGES)


def conf_folders() -> dict[str, Path]:
    """Return by name the folders of configuration groups that installed packages have.

    Raises:
        PluginError: The entry point of one names no folder.
    """
    folders = {}
    for name, reference in CONF_FOLDERS.items():
        value = reference.load()
        if not isinstance(value, str | PathLike):
            raise reference.refused(f"is {short(value)}, and not the path of a folder")
        folder = Path(value)
        if not folder.is_dir():
            raise reference.refused(f"is {short(folder)}, which is not a folder")
        folders[name] = folder
    return folders


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
    declared = entry.call()
    if entry.origin:
        _check_kind(entry, declared)
    return declared


def _check_kind(entry: KindEntry, declared: object) -> None:
    """Check that results of an instrument of a package are of a kind that nothing else has.

    That of a measure is its name on the command line, by which the instrument of a result is found.

    Raises:
        PluginError: They are of another kind.
    """
    kind = getattr(declared, "kind", None)
    if entry in TASKS.values():
        if kind in MEASURES:
            raise entry.refused(f"is of kind={short(kind)}, which is the name of a measure")
    elif kind != entry.kind:
        raise entry.refused(f"is of kind={short(kind)}, which must be its name on the command line")


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
