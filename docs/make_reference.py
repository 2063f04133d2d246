"""Write the reference from what the code declares: every setting, every name of every group, and the public names.

python docs/make_reference.py

Meanings are the comments beside the fields of the schemas, choices are what their checks say, ranges what they declare.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import inspect
import io
import tokenize
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from omegaconf import MISSING, OmegaConf

import thinkalike
from thinkalike.config import CONF, MEASURES, AnalyzeConfig, TrainConfig, compose_job, measure_schema
from thinkalike.config.ranges import Range
from thinkalike.config.relevance import default_of
from thinkalike.errors import ConfigError

HERE = Path(__file__).parent / "reference"
KINDS = {
    "int": "whole number",
    "float": "number",
    "bool": "true, false",
    "str": "text",
    "list[str]": "list of texts",
    "list[float]": "list of numbers",
    "list[list[str]]": "list of lists of texts",
    "list[Any]": "list",
    "Any": "see the meaning",
}
NAMED = {"model": {"name": "x"}, "data": {"name": "x"}, "stimuli": {"kind": "table", "path": "x"}}  # what they need
PLACES = {"target": "the same as [`model`](#model)", "measure": "see `measure=` below"}  # of parts of a door's schema
HIDDEN = ("measure.kind", "chosen")  # which the choice of a measure, and the command line, fill in
BY_OPTION = ("stitch", "nli", "sae")  # parts whose options set more than their schema
UNCHECKED = "?"  # a value that no setting has, so that its check lists those that it may have

SETTINGS = """# Settings

Made by `python docs/make_reference.py` from the schemas. A setting is given on the command line as `key=value`; lists
and dictionaries are quoted, `'stitch.rates=[0.5,2]'`. `null` is no value. `--help` of either door names those that
matter, `--cfg job` shows all of them with their values, and a misspelt one is refused with the nearest that there is.

**In the key**: whether the setting decides which job this is. Results are kept by a hash of all settings that are in
the key and differ from the defaults of their schemas. Those outside the key are not meant to change a number; device
and threads change how sums are rounded, which training can amplify. A path is not in the key: the content of the file
is.

**Default**: what a command has that does not mention the setting; where minis and other models differ (`scale`), both
values. The options of a group ([Names](names.md)) set several at once: the defaults of `stitch` are those of
`stitch=linear`. What the command line says wins over all of them. In an option, `${{at_scale:A,B}}` is A with
`scale=mini` and B with `scale=paper`, `${{by_recipe:A,B}}` is A with `recipe=honest` and B with `recipe=paper`, and
`${{at_most_a_tenth:A,B}}` is A, but at most a tenth of B. The ends of an interval belong to it at square brackets, and
do not at round ones.

{sections}
"""

NAMES = """# Names

Made by `python docs/make_reference.py` from `conf/`. `GROUP=NAME` on the command line chooses an option of a group, and
`model@target=NAME` one of the second model. What it sets is beside it; the rest has the defaults of
[Settings](settings.md).

{sections}
"""

API = """# Python API

Made by `python docs/make_reference.py`. `import thinkalike` is quick: a name is loaded when it is first used. Measures
take torch tensors, NumPy arrays, DataFrames and lists, and give tensors; `n` counts tokens or stimuli, `d` width, `l`
layers, `f` features.

{sections}
"""
PARTS = {  # of the Python API, below the names of the package itself
    "Jobs": ("thinkalike.config.compose_job", "thinkalike.instruments.run_job", "thinkalike.instruments.run_jobs",
             "thinkalike.instruments.asked_for"),
    "Stitches": ("thinkalike.stitches.Stitches", "thinkalike.stitches.StitchedModel", "thinkalike.measures.PairMoments",
                 "thinkalike.measures.both_directions"),
    "Stimuli and recordings": ("thinkalike.data.Stimuli", "thinkalike.data.read_table", "thinkalike.data.read_conllu",
                               "thinkalike.data.read_recording", "thinkalike.data.read_arrays",
                               "thinkalike.data.controlled_stimuli", "thinkalike.data.crossed_stimuli"),
    "Measures of layer pairs": ("thinkalike.measures.layer_measures", "thinkalike.measures.LayerMeasure",
                                "thinkalike.measures.LayerMeans", "thinkalike.measures.PROPERTIES"),
    "Plugins": ("thinkalike.plugins.register_stitch", "thinkalike.plugins.register_measure",
                "thinkalike.plugins.register_optimizer", "thinkalike.plugins.register_callback"),
}  # fmt: skip


# ------------------------------------------------------------------------------------------------------------- settings


def settings() -> str:
    """Return the text of the page of settings."""
    doors = TrainConfig, AnalyzeConfig
    groups = {item.name: type(default_of(item)) for door in doors for item in dataclasses.fields(door)}
    groups = {name: each for name, each in groups.items() if dataclasses.is_dataclass(each) and name not in PLACES}
    parts = [section(title, door) for title, door in zip(("train.py", "analyze.py"), doors, strict=True)]
    for name, schema in sorted(groups.items()):
        made = at_both_scales("train", name) if name in BY_OPTION else []
        parts.append(section(f"`{name}`", schema, f"{name}.", made))
    alike: dict[Any, list[str]] = {}  # kinds of measure by their settings, which many share
    for kind in MEASURES:
        schema = measure_schema(kind)
        own = tuple(map(str, dataclasses.fields(schema)[1:])), takes_token(schema)
        alike.setdefault(own, []).append(kind)
    for kinds in alike.values():
        made = at_both_scales("analyze", "measure", f"measure={kinds[0]}")
        parts.append(section(f"`measure={', '.join(kinds)}`", measure_schema(kinds[0]), "measure.", made))
    return SETTINGS.format(sections="\n\n".join(parts))


def at_both_scales(door: str, part: str, *words: str) -> list[Any]:
    """Return a part of the configuration of a command that sets nothing in it: of a mini, and of another model."""
    return [getattr(compose_job(door, [*words, f"scale={scale}"]), part) for scale in ("mini", "paper")]


def section(title: str, schema: Any, prefix: str = "", made: Sequence[Any] = ()) -> str:
    """Return the settings of a schema under its title, in the order in which it declares them.

    Args:
        made: the values of a command that sets none of them, where these are not all those of the schema.
    """
    meanings = dict(comments(schema))
    fields = [item for item in dataclasses.fields(schema) if f"{prefix}{item.name}" not in HIDDEN]
    rows = [
        row(schema, item, prefix, meanings.get(item.name, ""), [getattr(each, item.name) for each in made])
        for item in fields
        if item.name != "given" or takes_token(schema)
    ]
    head = ["| setting | values | default | in the key | meaning |", "|---|---|---|---|---|"]
    shared = "," in title  # by several kinds, of which none says what it is
    about = ["Settings of each of these measures." if shared else inspect.getdoc(schema) or "", ""] if rows else []
    return "\n".join([f"## {title}", *about, *([*head, *rows] if rows else ["No settings of their own."])])


def takes_token(schema: Any) -> bool:
    """Return whether a schema takes `given=token`; most measures that have the setting refuse it."""
    with contextlib.suppress(ConfigError, TypeError):
        schema(given="token")
        return True
    return False


def row(schema: Any, item: dataclasses.Field, prefix: str, meaning: str, made: Sequence[Any] = ()) -> str:
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
    if not meaning:
        raise LookupError(f"{schema.__name__}.{item.name} has no comment; say behind it what it means")
    kept = "no" if item.metadata.get("neutral") or prefix == "logger." else "yes"
    return (
        "| "
        + " | ".join(each.replace("|", "\\|") for each in (f"`{prefix}{item.name}`", values, shown, kept, meaning))
        + " |"
    )


def comments(schema: Any) -> Iterator[tuple[str, str]]:
    """Yield each field of a schema and of those it stems from, with the comment behind it."""
    for owner in filter(dataclasses.is_dataclass, reversed(schema.__mro__)):
        with contextlib.suppress(OSError):  # a class that is declared and not written adds its name alone
            yield from comments_in(inspect.getsource(owner))


def comments_in(source: str) -> Iterator[tuple[str, str]]:
    """Yield each field in the source of a class, with the comment behind it and the line of comment that goes on."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    said = {token.start[0]: token for token in tokens if token.type == tokenize.COMMENT}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.AnnAssign) and (first := said.get(node.end_lineno or 0)):
            further = said.get(first.start[0] + 1)
            goes_on = [further.string] if further and further.line.strip().startswith("#") else []
            yield ast.unparse(node.target), " ".join(text.lstrip("# ") for text in (first.string, *goes_on))


def values_of(schema: Any, item: dataclasses.Field, prefix: str) -> str:
    """Return which values a setting may have: its range, its choices, or the kind of value that it is."""
    kind = str(item.type)
    optional = kind.startswith("Optional[")
    kind = kind.removeprefix("Optional[").removesuffix("]") if optional else kind
    text = KINDS.get(kind, "dictionary")
    if "range" in item.metadata:
        text = f"{text} {interval(item.metadata['range'])}"
    elif item.metadata.get("size"):
        text = "amount of memory, such as 8GB"
    elif kind == "str":
        text = choices(schema, item.name, prefix) or text
    return f"{text} or null" if optional else text


def interval(allowed: Range) -> str:
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
    groups = sorted({str(file.parent.relative_to(CONF)) for file in CONF.glob("*/*.yaml")} - {"measure"})
    parts = []
    for group in [*groups, "experiment", "hydra/launcher"]:
        files = {str(file.relative_to(CONF / group).with_suffix("")): file for file in (CONF / group).rglob("*.yaml")}
        rows = [f"| `{name}` | {sets(file)} | {about(file)} |" for name, file in sorted(files.items())]
        parts.append("\n".join([f"## `{group}`", "", "| name | sets | |", "|---|---|---|", *rows]))
    return NAMES.format(sections="\n\n".join(parts))


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
    return text if len(text) <= 100 else f"{text[:97]}..."


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
    """Return the line that mkdocstrings replaces by the documentation of a name."""
    return f"::: {path}"


PAGES = {"settings.md": settings, "names.md": names, "api.md": api}

if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (HERE / name).write_text(page())
