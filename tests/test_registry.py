"""Every row of the registry names a class that is there, and says the same of it as the class itself."""

import ast
import doctest
import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import get_args

import pytest

from conftest import smallest_words
from thinkalike import registry
from thinkalike.config import MEASURES, TASKS, instrument
from thinkalike.job import Instrument
from thinkalike.measures import LayerMeasure
from thinkalike.measures.contract import Invariance, Refusal
from thinkalike.registry import CORE, ObjectReference, layer_measures

SOURCE = Path(registry.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
ENTRIES = {entry.kind: entry for entry in (*CORE.tasks, *CORE.measures)}
every = pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
every_measure = pytest.mark.parametrize("entry", layer_measures(), ids=[entry.kind for entry in layer_measures()])


@every
def test_a_row_names_a_class_and_its_instrument(entry):
    named = entry.load()
    assert named.__module__ == entry.module, "where the class is defined, not where it is imported"
    assert named.__doc__
    made = instrument(entry)
    assert isinstance(made, Instrument)
    assert made.kind == entry.kind or entry in CORE.tasks
    assert issubclass(named, LayerMeasure) == (entry.through is not None)
    assert made.smallest, "a test of every instrument needs the settings of its smallest job"
    assert all(word.partition("=")[0].partition(".")[0] in ("measure", "data", "stimuli", "stitch", "layers")
               for word in smallest_words(entry.kind))  # fmt: skip


def test_kinds_are_unique():
    assert len(ENTRIES) == len(CORE.tasks) + len(CORE.measures)
    assert {*ENTRIES} <= {*TASKS, *MEASURES}


@every_measure
def test_a_measure_says_what_pages_print_of_it(entry):
    measure = entry.load()
    assert entry.title
    assert measure.formula
    assert measure.source
    assert measure.version >= 1
    assert measure.value_range[0] <= measure.best <= measure.value_range[1]
    assert measure.value_range[0] <= measure.scale[0] < measure.scale[1] <= measure.value_range[1]
    assert measure.invariances <= {*get_args(Invariance)}
    assert measure.refuses <= {*get_args(Refusal)}


@every_measure
def test_the_examples_of_a_measure_are_right(entry):
    module = import_module(entry.module)
    results = doctest.testmod(module)
    assert results.failed == 0


def test_measures_are_compared_by_hand_as_they_are_all_at_once():
    """`compare`, which a reader follows, gives what `compare_all` does, which jobs call."""
    import torch

    from thinkalike.measures.contract import ModelPairs, compare_one_by_one

    generator = torch.Generator().manual_seed(0)
    layers = [torch.randn(30, 6, generator=generator, dtype=torch.float64) for _ in range(3)]
    model_pairs = ModelPairs([[0, 1, 2]], [(0, 0)])
    for entry in layer_measures():
        measure = entry.load()()
        prepared = measure.prepared(layers, ["a", "b", "c"])
        at_once = measure.compare_all(prepared, model_pairs)[0, 0]
        by_hand = compare_one_by_one(measure.compare, prepared, model_pairs, measure.is_symmetric)[0, 0]
        torch.testing.assert_close(at_once.double(), by_hand.double(), rtol=1e-9, atol=1e-9)


def places_in(source: str) -> list[str]:
    """Return the module:NAME strings of a source."""
    if not re.search(r"[\"']thinkalike\.", source):
        return []  # which is quicker than to parse it
    constants = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]
    return [text for text in constants if isinstance(text, str) and text.startswith("thinkalike.") and ":" in text
            and " " not in text]  # fmt: skip


def test_no_class_hides_from_an_editor():
    """No class appears by `globals().update`, no module is named by module:NAME, and no project file is read."""
    hidden = {}
    for file in FILES:
        source = file.read_text(encoding="utf-8")
        signs = [sign for sign in ("globals().update(", "tomllib", "setattr(sys.modules") if sign in source]
        if signs or places_in(source):
            hidden[file.name] = signs + places_in(source)
    assert hidden == {}
    assert places_in('x = "thinkalike.instruments.cka:LayerCKA"'), "control"


def test_a_place_is_loaded_when_it_is_asked_for():
    assert ObjectReference("json", "loads").load() is import_module("json").loads
    with pytest.raises(AttributeError):
        ObjectReference("json", "nothing").load()
    assert inspect.isclass(CORE.measures[0].load())
