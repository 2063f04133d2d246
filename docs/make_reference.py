"""Write the reference from what the core declares: every setting, every name of every group, and the public names.

python docs/make_reference.py

That of contrib is made by docs/contrib/make_reference_of_contrib.py.
Meanings are the comments beside the fields of the schemas, choices are what their checks say, ranges what they declare.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import inspect
import io
import itertools
import math
import re
import tokenize
import types
import typing
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from omegaconf import MISSING, OmegaConf

import thinkalike
from thinkalike import measures
from thinkalike.advice import at_command_line
from thinkalike.config import CONF, MEASURES, TASKS, AnalyzeConfig, TrainConfig, compose_job, instrument, measure_schema
from thinkalike.config.schema import declared_of, default_of
from thinkalike.errors import ConfigError
from thinkalike.ranges import Within
from thinkalike.registry import CORE, KindEntry

HERE = Path(__file__).parent / "reference"
GUIDE = Path(__file__).parent / "guide" / "measures.md"
KINDS = {
    "int": "integer",
    "float": "number",
    "bool": "bool",
    "str": "text",
    "list[str]": "list of texts",
    "list[str | thinkalike.config.recorded.RecordedArrays]": "list of texts",  # arrays in Python alone
    "list[float]": "list of numbers",
    "list[list[str]]": "list of lists of texts",
    "list[typing.Any]": "list",
    "typing.Any": "",
}
NAMED = {"model": {"name": "x"}, "data": {"name": "x"}, "stimuli": {"kind": "table", "path": "x"}}  # what they need
PLACES = {
    "target": "its settings are those of [`model`](#model)",
    "measure": "see `measure=` below",
}  # of parts of a root schema
HIDDEN = ("measure.kind",)  # which the choice of a measure fills in
TASK_OF = {"stitch": "stitch"}  # the tasks whose recipes decide the defaults of a part
CONTRIB = "thinkalike.contrib."  # where the modules of contrib begin
UNCHECKED = "?"  # a value that no setting has, so that its check lists those that it may have

SETTINGS = """# Settings

Which settings exist, and what are their values and defaults? `python docs/make_reference.py` makes this page
from the schemas. [Commands](commands.md#settings) has the syntax, and the [glossary](glossary.md) explains the
words. `--help` of either entry point lists the main settings, and `--cfg job` lists all of them with their
values.

**†** marks settings outside the key. The key is a hash of all settings that differ from their defaults, and results are
stored under it. Device and threads are outside, although they change the rounding of sums, which training can amplify.
For a path, the key contains the content of the file.

**Default** is the value without an override; where minis and larger models differ (`scale`), both values are
given. An option of a group ([Names](names.md)) sets several settings at once: the defaults of `stitch` are
those of `stitch=linear`. `--cfg job` shows null for a setting that the recipe decides. Square brackets include
the end of an interval, round brackets exclude it.

{sections}
"""

NAMES = """# Names

Which names can I write after `model=`, `data=`, `stitch=`, ...? `python docs/make_reference.py` makes this page
from `conf/`. `GROUP=NAME` on the command line chooses an option of a group, and `model@target=NAME` chooses
that of the second model. The tables list what each option sets; everything else has the defaults of
[Settings](settings.md).

{sections}
"""

API = """# Python API

What can I call from Python? `python docs/make_reference.py` makes this page. `import thinkalike` is quick,
because a name is loaded at its first use. Measures take torch tensors, NumPy arrays, DataFrames and lists, and
return tensors. In shapes, `n` counts tokens or stimuli, `d` is the width, `l` counts layers, `f` features.

{sections}
"""
PARTS = {  # of the Python API, below the names of the package itself
    "Jobs": ("thinkalike.config.compose_job", "thinkalike.instruments.run_job", "thinkalike.instruments.run_jobs",
             "thinkalike.instruments.asked_for"),
    "Stitches": ("thinkalike.stitches.results.Stitches", "thinkalike.stitches.stitched_model.StitchedModel"),
    "Training": ("thinkalike.training.stitching.StitchTraining", "thinkalike.training.data.StepData",
                 "thinkalike.training.optimizers.WhitenedSGD"),
    "Stimuli and recordings": ("thinkalike.data.stimuli.Stimuli", "thinkalike.data.tables.read_table",
                               "thinkalike.data.conllu.read_conllu",
                               "thinkalike.data.recordings.read_recording",
                               "thinkalike.data.stimuli.controlled_stimuli", "thinkalike.data.stimuli.crossed_stimuli"),
    "Measures of layer pairs": ("thinkalike.measures.LayerMeasure",
                                "thinkalike.measures.LayerMeans"),
    "Plugins": ("thinkalike.plugins.MeasurePlugin",),
}  # fmt: skip


# ------------------------------------------------------------------------------------------------------------- settings


Row = tuple[str, str, str, str]  # setting, values, default, meaning


def settings() -> str:
    """Return the text of the page of settings; rows that several tables share stand in one table."""
    roots = {"train.py": TrainConfig, "analyze.py": AnalyzeConfig}
    own = {f"`{name}`": rows_of(root) for name, root in roots.items()}
    sections = shared("`train.py` and `analyze.py`", own, least=2)
    for name, schema in sorted(parts_of([*TASKS.values(), *MEASURES.values()], of_contrib=False).items()):
        sections.append(part_section(name, schema, TASK_OF.get(name)))
    sections += shared("Measures of layer pairs", measure_tables(of_contrib=False), least=4)
    return SETTINGS.format(sections="\n\n".join(sections))


def parts_of(instruments: Collection[KindEntry], of_contrib: bool) -> dict[str, Any]:
    """Return the schemas of the parts of the configurations of instruments, of contrib or of the core."""
    roots = [TrainConfig, AnalyzeConfig]
    roots += [instrument(entry).config for entry in instruments if entry.module.startswith(CONTRIB) == of_contrib]
    hints = {name: hint for root in roots for name, hint in typing.get_type_hints(root).items()}
    return {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint) and name not in PLACES}


def part_section(name: str, schema: Any, task: str | None = None) -> str:
    """Return the section of a part of the configuration.

    Args:
        task: the one whose recipe decides the defaults of the part.
    """
    made = at_both_scales("train", name, f"task={task}") if task else []
    return section(f"`{name}`", rows_of(schema, f"{name}.", made), inspect.getdoc(schema) or "")


def measure_tables(of_contrib: bool) -> dict[str, list[Row]]:
    """Return the rows of the settings of measures, of contrib or of the core, by the title of their table."""
    kinds_by_rows: dict[tuple[Row, ...], list[str]] = {}
    for kind in sorted(MEASURES, key=has_no_settings):  # these come last
        if MEASURES[kind].module.startswith(CONTRIB) == of_contrib:
            made = at_both_scales("analyze", "measure", f"measure={kind}")
            kinds_by_rows.setdefault(tuple(rows_of(measure_schema(kind), "measure.", made)), []).append(kind)
    return {called(kinds): list(rows) for rows, kinds in kinds_by_rows.items()}


def called(kinds: Sequence[str]) -> str:
    """Return the title of the table of settings that these measures have.

    Measures of layer pairs without settings of their own are not named one by one, so that a new one changes no table.
    """
    if all(map(has_no_settings, kinds)):
        return "Other measures of layer pairs"
    return f"`measure={', '.join(kinds)}`"


def has_no_settings(kind: str) -> bool:
    """Return whether a measure of layer pairs has no settings of its own."""
    entry = MEASURES[kind]
    return entry.through is not None and not entry.load().settings()


def shared(title: str, tables: dict[str, list[Row]], least: int) -> list[str]:
    """Return the sections of tables, with the rows that at least so many of them have in a section before them."""
    count = Counter(row for rows in tables.values() for row in rows)
    common = [row for row in count if count[row] >= least]
    sections = [section(title, common)]
    for name, rows in tables.items():
        also = [row[0].rpartition(".")[2].strip("`") for row in rows if row in common]
        named = f"Also, as in [{title.replace('`', '')}](#{anchor(title)}): {', '.join(also)}." * (least > 2)
        sections.append(section(name, [row for row in rows if row not in common], named * bool(also)))
    return sections


def anchor(title: str) -> str:
    """Return the anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


INVARIANT_TO = {  # the words of the table of measures
    "orthogonal": "rotation", "isotropic_scaling": "scale", "unit_scaling": "scale of each unit",
    "invertible_linear": "invertible maps", "translation": "shift",
    "row_permutation_of_one": "order of one layer's rows",
}  # fmt: skip


def table_of_measures() -> str:
    """Return the table of all measures of layer pairs, from what their classes say."""
    rows = ["| `measure=` | formula | range, itself | invariant to | source |", "|---|---|---|---|---|"]
    for entry in CORE.measures:
        made = instrument(entry)
        facts = getattr(made, "measure_class", made)
        if hasattr(facts, "formula"):
            rows.append(f"| {' | '.join(row_of_measure(entry.kind, facts))} |")
    return "\n".join(rows)


def row_of_measure(kind: str, facts: Any) -> list[str]:
    """Return the cells of a measure."""
    low, high = map(written_end, facts.value_range)
    ends = f"{'(' if low == '-∞' else '['}{low}, {high}{')' if high == '∞' else ']'}"
    itself = written_end(facts.best) if facts.best else "**0**"
    covered = "unit_scaling" in facts.invariances  # then the scale of all units together needs no word
    words = [word for name, word in INVARIANT_TO.items() if name in facts.invariances]
    words = [word for word in words if not (covered and word == "scale")]
    return [f"`{kind}`", facts.formula, f"{ends}, {itself}", ", ".join(words), facts.source]


def written_end(number: float) -> str:
    """Return the end of a range as a table has it."""
    named = {math.pi: "π", math.pi / 2: "π/2", math.log(2): "ln 2", math.inf: "∞", -math.inf: "-∞"}
    return named.get(number, f"{number:g}")


BEGIN, END = "<!-- the table of measures begins -->", "<!-- the table of measures ends -->"


def guide_to_measures() -> str:
    """Return the text of the guide to measures with the table as it is now."""
    text = GUIDE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n{table_of_measures()}\n{END}{after}"


def at_both_scales(door: str, part: str, *words: str) -> list[Any]:
    """Return a part of the configuration of a command that sets nothing in it: of a mini, and of another model."""
    return [getattr(compose_job(door, [*words, f"scale={scale}"]), part) for scale in ("mini", "paper")]


def section(title: str, rows: Sequence[Row], about: str = "") -> str:
    """Return a table of settings under its title."""
    head = ["| setting | values | default | meaning |", "|---|---|---|---|"]
    table = [*head, *(f"| {' | '.join(row)} |" for row in rows)] if rows else []
    return "\n".join(
        [f"## {title}", *([about, ""] if about else []), *(table or ["No settings of their own."] * (not about))]
    )


def rows_of(schema: Any, prefix: str = "", made: Sequence[Any] = ()) -> list[Row]:
    """Return the rows of a schema's settings, in the order in which it declares them.

    Args:
        made: the values of a command that sets none of them, where these are not all those of the schema.
    """
    meanings = dict(comments(schema))
    return [
        row(schema, item, prefix, meanings.get(item.name, ""), [getattr(each, item.name) for each in made])
        for item in dataclasses.fields(schema)
        if f"{prefix}{item.name}" not in HIDDEN and (item.name != "conditional_on" or takes_token(schema))
    ]


def takes_token(schema: Any) -> bool:
    """Return whether a schema takes `conditional_on=token`; most measures that have the setting refuse it."""
    with contextlib.suppress(ConfigError, TypeError):
        schema(conditional_on="token")
        return True
    return False


def row(schema: Any, item: dataclasses.Field, prefix: str, meaning: str, made: Sequence[Any] = ()) -> Row:
    """Return the row of one setting.

    Args:
        made: its defaults, where they may be others than the schema's.

    Raises:
        LookupError: no comment beside its field says what it means.
    """
    default = default_of(item)
    if dataclasses.is_dataclass(default):
        place = PLACES.get(item.name, f"see [`{item.name}`](#{item.name})")
        values, shown, meaning = "", "", f"{meaning}; {place}".removeprefix("; ")
    else:
        values = values_of(schema, item, prefix)
        shown = ", ".join(f"`{each}`" for each in dict.fromkeys(map(written, made or [default]))) * (default != MISSING)
        shown += " with `scale=paper`" * (shown.count("`") > 2)
    if not (meaning or "`" in values):  # the values of a choice may speak for themselves
        raise LookupError(f"{schema.__name__}.{item.name} has no comment; say behind it what it means")
    if not declared_of(item).in_key or prefix == "logger.":
        meaning += " †"
    cells = (f"`{prefix}{item.name}`", values, shown, meaning)
    first, second, third, fourth = (each.replace("|", "\\|") for each in cells)
    return first, second, third, fourth


def comments(schema: Any) -> Iterator[tuple[str, str]]:
    """Yield each field of a schema and of those it stems from, with the comment behind it."""
    owners = [*schema.__mro__, *(getattr(schema, "measure_class", None) or object).__mro__]
    for owner in filter(dataclasses.is_dataclass, reversed(owners)):
        yield from comments_of_class(owner)


@functools.cache
def comments_of_class(owner: type) -> list[tuple[str, str]]:
    """Return each field that a class declares itself, with its comment; many schemas stem from the same classes."""
    try:
        return list(comments_in(inspect.getsource(owner)))
    except OSError:
        return []  # a class that is declared and not written adds its name alone


def comments_in(source: str) -> Iterator[tuple[str, str]]:
    """Yield each field in the source of a class, with its comment.

    That is the one behind it, with the lines of comment below; or, where there is none behind it, those above.
    """
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    written = [token for token in tokens if token.type == tokenize.COMMENT and "type: ignore" not in token.string]
    said = {token.start[0]: token.string.lstrip("# ") for token in written}
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.AnnAssign))
    fields = sorted(nodes, key=lambda node: node.lineno)
    ends = [node.end_lineno or 0 for node in fields]
    for node, end, after in itertools.zip_longest(fields, ends, ends[1:]):
        lone = {line for line in said if line not in ends}  # a comment that has its line for itself
        above = itertools.takewhile(lone.__contains__, itertools.count(node.lineno - 1, -1))
        below = itertools.takewhile(lone.__contains__, itertools.count(end + 1)) if after in (None, *said) else ()
        if lines := [end, *below] if end in said else sorted(above):
            yield ast.unparse(node.target), " ".join(said[line] for line in lines)


def values_of(schema: Any, item: dataclasses.Field, prefix: str) -> str:
    """Return which values a setting may have: its range, its choices, or the kind of value that it is."""
    hint = typing.get_type_hints(schema)[item.name]
    parts = [each for each in typing.get_args(hint) if each is not type(None)]
    optional = type(None) in typing.get_args(hint)
    kinds = parts if optional else [hint]
    text = " or ".join(filter(None, map(text_of, kinds)))
    allowed = declared_of(item).range
    if allowed is not None:
        text = f"{text} {interval(allowed)}"
    elif item.name == "memory":
        text = "amount of memory, such as 8GB"
    elif hint is str:
        text = choices(schema, item.name, prefix) or text
    return " or ".join(filter(None, [text, "null" * optional]))


def text_of(hint: Any) -> str:
    """Return in words which values an annotation allows."""
    if typing.get_origin(hint) is typing.Literal:
        return ", ".join(f"`{each}`" for each in typing.get_args(hint))
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        texts = list(map(text_of, typing.get_args(hint)))
        return " or ".join(texts) if all(texts) else ""
    name = hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)
    return KINDS.get(name, "dictionary" if name.startswith("dict") else "")


def interval(allowed: Within) -> str:
    """Return a range as an interval: square brackets belong to it, round ones do not."""
    low = "[" + size(allowed.least) if allowed.above is None else "(" + size(allowed.above)
    high = size(allowed.most) + "]" if allowed.most is not None else size(allowed.below) + ")"
    return f"in {low}, {high}"


def size(number: float | None) -> str:
    """Return the end of a range: large ones as powers of ten, and none as infinity."""
    if number is None:
        return "∞"
    power = f"{number:.0e}"
    return power.replace("e+", "e") if number >= 10**5 and float(power) == number else str(number)


def choices(schema: Any, name: str, prefix: str) -> str:
    """Return the choices that the check of a setting lists; nothing if it checks none."""
    try:
        with at_command_line():  # whose words the page has
            schema(**NAMED.get(prefix.rstrip("."), {}) | {name: UNCHECKED})
    except ConfigError as error:
        _, _, listed = str(error).partition(f"{prefix}{name}={UNCHECKED} is not known; there is: ")
        return ", ".join(f"`{each}`" for each in listed.split(", ")) if listed else ""
    return ""


def written(value: Any) -> str:
    """Return a value as a command line has it."""
    if isinstance(value, list):
        return f"[{','.join(map(written, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return "null" if value is None else str(value) or "''"


# ---------------------------------------------------------------------------------------------------------------- names


def names() -> str:
    """Return the text of the page of options of all groups."""
    groups = sorted({str(file.parent.relative_to(CONF)) for file in CONF.glob("*/*.yaml")})
    return NAMES.format(sections=tables_of_options(CONF, [*groups, "hydra/launcher"]))


def tables_of_options(folder: Path, groups: Sequence[str]) -> str:
    """Return a table of the options of each group that a folder of configurations has."""
    parts = []
    for group in groups:
        inside = folder / group
        files = {str(file.relative_to(inside).with_suffix("")): file for file in inside.rglob("*.yaml")}
        rows = [f"| `{name}` | {sets(file)} | {about(file)} |" for name, file in sorted(files.items())]
        parts.append("\n".join([f"## `{group}`", "", "| name | sets | |", "|---|---|---|", *rows]))
    return "\n\n".join(parts)


def about(file: Path) -> str:
    """Return the comment that a file of options begins with, in one line."""
    lines = [line for line in file.read_text().splitlines() if "@package" not in line]
    head = [line.lstrip("# ") for line in lines[: next(i for i, line in enumerate([*lines, ""]) if line[:1] != "#")]]
    return " ".join(head).replace("|", "\\|")


def sets(file: Path) -> str:
    """Return what a file of options sets."""
    plain: Any = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
    kept = {
        key: value for key, value in plain.items() if key not in ("defaults", "name", "kind", "experiment", "setup")
    }
    text = ", ".join(f"{key}={short(value)}" for key, value in kept.items())
    return f"`{text}`".replace("|", "\\|") if text else ""


def short(value: Any) -> str:
    """Return a value as a command line has it, cut where it is long."""
    inner = ", ".join(f"{key}: {short(each)}" for key, each in value.items()) if isinstance(value, dict) else ""
    text = f"{{{inner}}}" if isinstance(value, dict) else written(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


# ------------------------------------------------------------------------------------------------------------------ api


def api() -> str:
    """Return the text of the page of public names, which mkdocstrings fills in."""
    own = [f"{home}.{name}" for name, home in thinkalike._HOME.items()]
    parts = {"The package": own, **PARTS}
    for path in (each for paths in parts.values() for each in paths):
        module, _, name = path.rpartition(".")
        getattr(import_module(module), name)
    return API.format(
        sections="\n\n".join(f"## {title}\n\n" + "\n\n".join(map(directive, paths)) for title, paths in parts.items())
    )


def directive(path: str) -> str:
    """Return the line that mkdocstrings replaces by the documentation of a name, under the module that defines it."""
    package, _, name = path.rpartition(".")
    module = measures._HOMES.get(name) if package == measures.__name__ else None
    return f"::: {package}.{module}.{name}" if module else f"::: {path}"


PAGES = {"settings.md": settings, "names.md": names, "api.md": api, "../guide/measures.md": guide_to_measures}

if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (HERE / name).write_text(page())
