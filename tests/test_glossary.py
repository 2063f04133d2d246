"""Every setting has a meaning; what its name or a screen calls something is explained there or in the glossary."""

import dataclasses
import re
from collections.abc import Iterator

import pandas as pd
import pytest

import thinkalike.instruments.distance as distance_screen
import thinkalike.instruments.lineage.screen as lineage_screen
import thinkalike.instruments.ruler.screen as ruler_screen
import thinkalike.instruments.stitching.screen as stitching_screen
from conftest import ROOT, of_core
from pages import script
from planted_screens import PLANTED
from stores import made
from thinkalike.catalogue import TASKS
from thinkalike.config import MEASURES, AnalyzeConfig, TrainConfig, instrument, measure_schema
from thinkalike.config.groups import GROUPS, config_schema_of, schema_of_group
from thinkalike.former_names import FORMER_NAMES
from thinkalike.instruments.loss import BUILT_IN_TEXTS

GLOSSARY = (ROOT / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")
STEM = 4  # letters by which a word is found in a meaning: fit in fitted, neighbour in neighbours
# the words of PyTorch, Hugging Face, Lightning, W&B and of command lines, which are not this project's own
KNOWN = {
    "activations", "corpus", "data", "device", "devices", "dry", "dtype", "entity", "every", "experiment", "first",
    "force", "id", "index", "kind", "logger", "map", "matmul", "measure", "model", "name", "nodes", "path", "per",
    "quantization", "revision", "run", "seed", "steps", "stimuli", "strategy", "subset", "task", "trainer",
}  # fmt: skip


def terms() -> set[str]:
    """The words and names of the first columns of the glossary, in small letters."""
    found = set()
    for row in re.findall(r"^\| (.*?) \|", GLOSSARY, re.MULTILINE):
        plain = re.sub(r"\([^)]*\)|[*`]", "", row).lower()
        found |= {term.strip() for term in plain.split(",")}
    return found


def is_explained(term: str) -> bool:
    """Return whether a term, or a setting of this name, has a row of the glossary."""
    return any(term == row or row.endswith(f".{term}") for row in terms())


def settings() -> Iterator[tuple[str, str, str]]:
    """Yield each setting of the core: the schema that declares it, its name, and its meaning."""
    reference = script("make_reference")
    schemas = [TrainConfig, AnalyzeConfig, *map(schema_of_group, GROUPS)]
    schemas += [config_schema_of(instrument(TASKS[name])) for name in of_core(TASKS)]
    schemas += [measure_schema(kind) for kind in of_core(MEASURES)]
    seen = set()
    for schema in schemas:
        meanings = dict(reference.comments(schema))
        for item in dataclasses.fields(schema):
            setting = (item.name, meanings.get(item.name, ""))
            if setting not in seen:
                seen.add(setting)
                yield schema.__name__, *setting


def unexplained_words(name: str, meaning: str) -> list[str]:
    """Return the words of a name that neither the meaning of the setting nor the glossary explains."""
    if is_explained(name) or is_explained(name.replace("_", " ")):
        return []
    words = [word for word in name.split("_") if word not in KNOWN]
    return [word for word in words if word[:STEM] not in meaning.lower() and not is_explained(word)]


SETTINGS = list(settings())
OF_PARTS = {*GROUPS, "target", "measure", "stitch", "kind"}  # the page of settings has a section for each


def test_every_setting_has_a_meaning_of_whole_words():
    lacking = {f"{schema}.{name}" for schema, name, meaning in SETTINGS if len(meaning) < 8 and name not in OF_PARTS}
    assert lacking == set()
    fragments = {f"{schema}.{name}" for schema, name, meaning in SETTINGS if meaning.startswith(("of ", "whose "))}
    assert fragments == set(), "a meaning says of what it is"


def test_every_word_of_a_setting_is_explained():
    lacking = {}
    for schema, name, meaning in SETTINGS:
        words = unexplained_words(name, meaning)
        if words and name not in OF_PARTS:
            lacking[f"{schema}.{name}"] = words
    assert lacking == {}


def test_a_private_word_is_found():
    assert unexplained_words("likeness", "how much is shared") == ["likeness"]
    assert unexplained_words("rungs", "copies of fewer bits") == ["rungs"]
    assert unexplained_words("conditional_on", "permute features within a level") == ["conditional", "on"]
    assert unexplained_words("fit_tokens", "number of tokens that maps are fitted on") == [], "control"


@pytest.mark.parametrize("former", FORMER_NAMES.values())
def test_no_meaning_and_no_row_uses_a_former_name(former):
    using = [f"{schema}.{name}" for schema, name, meaning in SETTINGS if re.search(rf"\b{former}=", meaning)]
    assert using == []
    assert f"measure.{former}" not in GLOSSARY
    assert f"data.{former}" not in GLOSSARY


def headers_of(name: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the headers of the tables of a planted result."""
    headers = []
    for module in (stitching_screen, ruler_screen):
        monkeypatch.setattr(module, "show_table", lambda table: headers.extend(column.name for column in table.columns))
    kind = name.split()[0]
    entry = TASKS["stitch"] if kind == "stitching" else MEASURES[kind]
    instrument(entry).show(PLANTED[name]())
    return headers


def test_every_header_of_a_stitch_is_explained(monkeypatch, capsys):
    headers = headers_of("stitching", monkeypatch)
    assert "identity baseline" in headers, "control"
    simple = {"layers", "loss"}
    assert [header for header in headers if header not in simple and not is_explained(header)] == []


def test_every_header_of_distances_and_lineages_is_explained(monkeypatch):
    headers = []
    shown = headers.extend
    for module in (distance_screen, lineage_screen):
        monkeypatch.setattr(module, "show_table", lambda table: shown(column.name for column in table.columns))
    row = {"source": "a", "target": "b", "source_layer": 0, "value": 1.4, "low": 1.3, "high": 1.5, "cosine": 0.0}
    instrument(MEASURES["distance"]).show(made(pd.DataFrame([row]), {"documents": 9.0, "batches": 4.0}))
    origin = {"source_layer": 0.0, "target_layer": 0, "in_place": 9, "units": 9, "p_corrected": 0.0}
    lineage_screen.show_table_of_runs(lineage_screen.runs_of_blocks(pd.DataFrame([origin])), "a", "b")
    assert headers[:3] == ["layer", "distance", "cosine"], "control"
    words = {word for header in headers[:3] + headers[5:] for word in re.split(r", | or ", header)}
    assert words == {"layer", "distance", "cosine", "units in place", "of each block at least", "p", "corrected"}
    simple = {"of each block at least", "units in place"}
    assert [word for word in words - simple if not is_explained(word)] == []
    assert is_explained("unit in place")


def test_every_built_in_text_is_explained():
    names = {*BUILT_IN_TEXTS, "small grammar", "large grammar"}
    assert [name for name in names if not is_explained(name)] == []


def test_every_header_of_the_ruler_is_explained(monkeypatch):
    row = {"source": "a", "target": "b", "source_layer": 1, "target_layer": 1, "value": 0.3, "low": 0.2, "high": 0.4}
    row |= {f"{side}_local_mixing": 0.1 for side in ("source", "target")}
    row |= {"above_local_mixing": 0.2, "above_local_mixing_low": 0.1}
    row |= {f"{side}_equivalent_bits{end}": 3.0 for side in ("source", "target") for end in ("", "_low", "_high")}
    headers = []
    shown = headers.extend
    monkeypatch.setattr(ruler_screen, "show_table", lambda table: shown(column.name for column in table.columns))
    ruler_screen.show_bit_widths(pd.DataFrame([row]), "", ruler_screen.RESIDUAL_R2)
    headers = [re.sub(r" of [ab]$", "", header) for header in headers]
    assert headers == ["layers", "residual R²", "equivalent bit width", "equivalent bit width", "local mixing control"]
    assert all(is_explained(header.lower()) for header in headers[1:])
