"""The path from a command to its numbers, as `benchmarks/path.py` counts it: who may import whom."""

from __future__ import annotations

import pytest
from benchmarks import path


@pytest.fixture(scope="module")
def arrows():
    return path.imports()


def planted(arrows, *more):
    """Return the arrows with further ones, each a module, what it imports, and how."""
    found = {name: dict(each) for name, each in arrows.items()}
    for name, to, how in more:
        found[name][to] = how
    return found


def test_no_modules_import_each_other(arrows):
    assert path.circles(arrows) == []
    low, high = "thinkalike.measures.rows", "thinkalike.measures.kernel_alignment"
    assert low in arrows[high]
    assert path.circles(planted(arrows, (low, high, "name"))) == []
    assert any({low, high} <= set(each) for each in path.circles(planted(arrows, (low, high, "import")))), "control"


def test_every_import_and_every_named_module_is_on_a_lower_floor(arrows):
    assert path.arrows_up(arrows) == []
    up = ("thinkalike.config.parts", "thinkalike.instruments.cka", "name")
    assert path.arrows_up(planted(arrows, up)) == [f"{up[0]} -> {up[1]} (name)"], "control"


def test_the_core_imports_nothing_of_contrib(arrows):
    assert path.into_contrib(arrows) == []
    arrow = ("thinkalike.models.load", "thinkalike.contrib.court", "name")
    assert path.into_contrib(planted(arrows, arrow)) == [f"{arrow[0]} -> {arrow[1]}"], "control"
