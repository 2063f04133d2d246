"""The path from a command to its numbers, as `benchmarks/path.py` counts it: who may import whom."""

import pytest
from benchmarks import path


@pytest.fixture(scope="module")
def arrows():
    return path.imports()


def planted(arrows, name, to, how="import"):
    return {**arrows, name: {**arrows.get(name, {}), to: how}}


def test_the_core_imports_nothing_of_contrib(arrows):
    assert path.into_contrib(arrows) == []
    found = path.into_contrib(planted(arrows, "thinkalike.models.load", "thinkalike.contrib.court", "name"))
    assert found == ["thinkalike.models.load -> thinkalike.contrib.court"], "control"
