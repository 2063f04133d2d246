"""No measure does more work than is written down: operations, memory traffic, calls, values that the host waits for.

Timings depend on the machine, and counts do not. `python tests/helpers/counted_work.py` writes work.json anew, for a
change that needs more on purpose.
"""

import json

import pytest

from counted_work import JOBS, LAYERS, ROWS, STORED, WIDTH, Work, floor, layers, work
from thinkalike import CKA
from thinkalike.measures import cka


@pytest.mark.ci_slow
@pytest.mark.parametrize("name", JOBS)
def test_no_measure_does_more_work_than_is_written_down(name):
    stored = json.loads(STORED.read_text()).get(name)
    if stored is None:
        pytest.skip(f"python tests/helpers/counted_work.py counts the work of {name}, which is new")
    more = {key: count / stored[key] for key, count in work(name).items() if count > 1.02 * stored[key]}
    assert not more, "python tests/helpers/counted_work.py writes what a change needs on purpose"


def test_work_that_is_done_twice_is_counted(monkeypatch):
    x, y = layers(2)
    with Work() as once:
        cka(x, y)
    with Work() as twice:
        cka(x, y), x @ x.T, x.double(), x.sum().item()
    added = {key: twice.counts[key] - once.counts[key] for key in once.counts}
    assert added["flops"] == 2 * ROWS**2 * WIDTH
    assert added["bytes"] == 4 * (2 * ROWS * WIDTH + ROWS**2) + 12 * ROWS * WIDTH + 4 * (ROWS * WIDTH + 1) + 4
    assert (added["calls"], added["waits"]) == (4, 1)


def test_cka_multiplies_about_half_of_its_gram_matrices():
    metric = CKA(LAYERS, LAYERS)
    with Work() as counted:
        metric.update(layers(LAYERS), layers(LAYERS, seed=1))
    assert counted.counts["flops"] < 1.4 * floor()["flops"]
