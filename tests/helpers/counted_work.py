"""Counts work: operations, memory traffic, calls, values that the host waits for.

`python tests/helpers/counted_work.py` writes tests/work.json anew, for a change that needs more on purpose; its ratios
are to the floor of `floor`.
"""

import json
import sys
from pathlib import Path

import pandas as pd
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from thinkalike import MLEM
from thinkalike.config import (
    MEASURES,
    instrument,
    measure_entry,
    measure_schema,
)
from thinkalike.registry import OF_OUTPUTS


def counted(work) -> int:
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


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


STORED = Path(__file__).parents[1] / "work.json"
LAYERS, ROWS, WIDTH, VOCABULARY = 3, 512, 192, 500


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


if __name__ == "__main__":
    found = {name: work(name) for name in JOBS}
    STORED.write_text(json.dumps(found, indent=1) + "\n")
    for name, counts in found.items():
        ratios = {key: round(counts[key] / least, 2) for key, least in floor().items()}
        print(name, ratios, counts, file=sys.stderr)
