"""A fast path gives the values of the class that defines it, and not those of a subclass that has its own."""

import dataclasses
import importlib
import inspect
import pkgutil

import pytest
import torch

import thinkalike.measures
from thinkalike.measures import CKAMeasure, LayerMeasure, MutualKNN
from thinkalike.measures.contract import STANDS_FOR, ModelPairs

PAIRS = ModelPairs([[0, 1], [2]], [(0, 0), (0, 1), (1, 1)])
FLAGS = [names[0] for names in STANDS_FOR if names[0] != "compare_all"]


def measures_of_package(parent=LayerMeasure):
    """All classes of measures in the package that can be made without arguments."""
    found = []
    for measure in parent.__subclasses__():
        found += measures_of_package(measure)
        fields = dataclasses.fields(measure)
        has_defaults = all(each.default is not dataclasses.MISSING for each in fields)
        is_ours = measure.__module__.startswith("thinkalike.") and not inspect.isabstract(measure)
        if is_ours and has_defaults:
            found.append(measure)
    return found


for module in pkgutil.walk_packages(thinkalike.measures.__path__, "thinkalike.measures."):
    importlib.import_module(module.name)
ALL = [*dict.fromkeys(measures_of_package())]


def prepared(measure):
    generator = torch.Generator().manual_seed(0)
    rows = [torch.rand(14, 5, generator=generator) for _ in range(3)]
    return measure.prepared(rows, ["a", "b", "c"])


def values(measure):
    by_pair = measure.compare_all(prepared(measure), PAIRS)
    return torch.cat([by_pair[pair].flatten() for pair in PAIRS.pairs])


def test_all_measures_are_found():
    assert {CKAMeasure, MutualKNN} < {*ALL}
    assert len(ALL) > 8


@pytest.mark.parametrize("parent", ALL)
def test_a_subclass_that_compares_otherwise_is_asked(parent):
    class Mine(parent):
        def compare(self, first, second):
            return torch.tensor(0.25, dtype=torch.float64)

    class Halved(parent):
        def compare(self, first, second):
            return super().compare(first, second) / 2

    assert (values(Mine()) == 0.25).all()
    assert torch.allclose(values(Halved()), values(parent()) / 2)
    assert not any(getattr(Mine(), flag) for flag in ("leaves_out_parts", "is_unbiased", "compares_within_groups"))


@pytest.mark.parametrize("parent", ALL)
def test_a_subclass_that_prepares_otherwise_is_asked(parent):
    class Mine(parent):
        def prepare(self, layer, name):
            return super().prepare((7 * layer).sin() + 2, name)

    class OfSquares(parent):
        def prepared(self, layers, names, order=None):
            return super().prepared([(7 * layer).sin() + 2 for layer in layers], names, order)

    assert torch.allclose(values(Mine()), values(OfSquares()))
    assert not torch.allclose(values(Mine()), values(parent())), "control"
    assert not any(getattr(Mine(), flag) for flag in ("prepares_together", "leaves_out_parts", "has_leverage"))


@pytest.mark.parametrize("parent", ALL)
def test_a_subclass_that_changes_nothing_keeps_all_fast_paths(parent):
    class Mine(parent):
        pass

    for flag in FLAGS:
        assert getattr(Mine(), flag) == getattr(parent(), flag)
    assert Mine.compare_all is parent.compare_all


def test_a_fast_path_of_ones_own_holds():
    class Mixin:
        def compare(self, first, second):
            return torch.tensor(0.25)

    class Mixed(Mixin, MutualKNN):
        pass

    class Fast(Mixed):
        def compare_all(self, layers, model_pairs):
            return super().compare_all(layers, model_pairs) | {(0, 1): torch.full((2, 1), 0.5)}

    assert (values(Mixed()) == 0.25).all()
    assert values(Fast()).tolist() == [0.25] * 4 + [0.5] * 2 + [0.25]
