"""budget=: fewer layers and batches where there is less time."""

import pytest

from conftest import composed
from thinkalike.errors import ConfigError
from thinkalike.instruments.layer_pairs import budget as module
from thinkalike.instruments.layer_pairs.budget import evenly, speed, within_budget

PAIR = ["model=gpt2", "model@target=neox-6l-mini"]


def fitted(monkeypatch, *words, rate=1e11):
    monkeypatch.setattr(module, "speed", lambda: rate)
    return within_budget(composed(*PAIR, *words, entry="analyze"))


def test_less_time_gives_fewer_batches_and_then_fewer_layers(monkeypatch):
    budgets = ("10h", "20min", "6min", "1min", "1s")
    found = [fitted(monkeypatch, "measure=cka", "measure.batches=64", f"budget={each}") for each in budgets]
    assert found[0].measure.batches == 64
    found = [fitted(monkeypatch, "measure=r2", f"budget={each}") for each in budgets]
    assert found[0].layers == "same"
    assert (found[0].measure.batches, found[0].measure.fit_batches) == (64, 64)
    counts = [each.measure.batches for each in found]
    assert counts == sorted(counts, reverse=True)
    assert found[-1].measure.batches == found[-1].measure.fit_batches == 1
    assert found[-1].layers == [[0, 0], [3, 1], [6, 2], [8, 4], [11, 5]]
    assert sum(each.layers == "same" for each in found) in range(1, 5)


def test_what_the_command_line_chooses_stays(monkeypatch):
    found = fitted(monkeypatch, "measure=cka", "measure.batches=7", "layers=[[1,2]]", "budget=1s")
    assert (found.measure.batches, found.layers) == (7, [[1, 2]])
    plain = composed(*PAIR, "measure=cka", entry="analyze")
    assert within_budget(plain) is plain


def test_pairs_are_spread_evenly_over_the_layers():
    assert evenly(30, 18, 5) == [[0, 0], [7, 4], [14, 8], [22, 13], [29, 17]]
    assert evenly(3, 2, 8) == [[0, 0], [1, 0], [1, 1], [2, 1]]


def test_a_machine_has_a_speed():
    assert 1e7 < speed(0.01) < 1e16


@pytest.mark.parametrize("measure", ["mlem", "loss"])
def test_other_measures_have_no_budget(measure):
    with pytest.raises(ConfigError, match="measure of all layers of two models"):
        within_budget(composed("model=gpt2-mini", f"measure={measure}", "budget=1min", entry="analyze"))
    with pytest.raises(ConfigError, match="budget"):
        composed(*PAIR, "measure=cka", "budget=soon", entry="analyze")
