"""No measure does more work than is written down: operations, memory traffic, calls, values that the host waits for.

Timings depend on the machine, and counts do not. `python tests/test_work.py` writes work.json anew, for a change that
needs more on purpose; its ratios are to the floor of `floor`.
"""

import json
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from thinkalike import CKA, MLEM
from thinkalike.config import MEASURES, instrument, measure_entry, measure_schema
from thinkalike.measures import cka
from thinkalike.registry import OF_OUTPUTS

STORED = Path(__file__).with_name("work.json")
LAYERS, ROWS, WIDTH, VOCABULARY = 3, 512, 192, 500
KINDS = [kind for kind in MEASURES if hasattr(instrument(measure_entry(kind)), "metric")]
WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "_unique2")


def of_outputs(kind):
    """Whether a measure compares logits, which are as one layer."""
    return MEASURES[kind].through == OF_OUTPUTS


class Work(TorchDispatchMode):
    """Counts what runs while it is open: multiplications and additions, bytes read and written, calls, waits."""

    def __enter__(self):
        self.counts = {"flops": 0, "bytes": 0, "calls": 0, "waits": 0}
        return super().__enter__()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made, packet = func(*args, **(kwargs or {})), func.overloadpacket
        if func.is_view:
            return made
        moved = [each for each in tree_leaves((args, kwargs, made)) if isinstance(each, torch.Tensor)]
        self.counts["bytes"] += sum(each.numel() * each.element_size() for each in moved)
        self.counts["flops"] += (
            flop_registry[packet](*args, **(kwargs or {}), out_val=made) if packet in flop_registry else 0
        )
        self.counts["calls"] += 1
        self.counts["waits"] += packet.__name__ in WAITS
        return made


def layers(count, width=WIDTH, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(ROWS, width, generator=generator) for _ in range(count)]


def compared(kind):
    """A batch of two models by a measure of layer pairs, with its interval."""
    measure = measure_schema(kind)()
    single = of_outputs(kind)
    count, width = (1, VOCABULARY) if single else (LAYERS, WIDTH)
    metric = instrument(measure_entry(kind)).metric(measure, count, count)
    metric.update(layers(count, width, 0), layers(count, width, 1), documents=torch.arange(ROWS) // 16)
    metric.compute()


def explained():
    generator = torch.Generator().manual_seed(0)
    features = {name: torch.randint(3, (ROWS,), generator=generator).numpy() for name in ("tense", "number", "person")}
    MLEM(alpha=1.0).fit(pd.DataFrame(features), layers(1)[0])


JOBS = {**{kind: (compared, kind) for kind in KINDS}, "mlem": (explained,)}


def work(name):
    run, *arguments = JOBS[name]
    with torch.no_grad(), Work() as counted:
        run(*arguments)
    return counted.counts


def floor():
    """The half of the Gram matrices of all layers, which are symmetric, and reading each layer once."""
    return {"flops": 2 * LAYERS * ROWS**2 * WIDTH, "bytes": 2 * LAYERS * ROWS * WIDTH * 4}


@pytest.mark.parametrize("name", JOBS)
def test_no_measure_does_more_work_than_is_written_down(name):
    stored = json.loads(STORED.read_text()).get(name)
    if stored is None:
        pytest.skip(f"python tests/test_work.py counts the work of {name}, which is new")
    more = {key: count / stored[key] for key, count in work(name).items() if count > 1.02 * stored[key]}
    assert not more, "python tests/test_work.py writes what a change needs on purpose"


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


if __name__ == "__main__":
    found = {name: work(name) for name in JOBS}
    STORED.write_text(json.dumps(found, indent=1) + "\n")
    for name, counts in found.items():
        ratios = {key: round(counts[key] / least, 2) for key, least in floor().items()}
        print(name, ratios, counts, file=sys.stderr)
