"""Several processes that share one job: each batch is done once, and the first process has what one would have."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from thinkalike.errors import ShareDone
from thinkalike.measures import LayerMeans, mutual_measure
from thinkalike.measures.layer_means import without_empty
from thinkalike.measures.metric import CKA
from thinkalike.processes import ProcessGroup


class Threads(ProcessGroup):
    """A member of a process group of threads, which stand in for processes."""

    def __init__(self, rank, size, table, barrier):
        super().__init__(rank, size)
        self.__dict__.update(table=table, barrier=barrier)

    def everyone(self, value):
        self.table[self.rank] = value
        self.barrier.wait(20)
        values = list(self.table)
        self.barrier.wait(20)
        return values


def by_threads(size, work):
    """What `work(shared)` returns in each member of a process group."""
    table, barrier = [None] * size, threading.Barrier(size)
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda rank: work(Threads(rank, size, table, barrier)), range(size)))


def metrics():
    return {
        "cka": lambda: CKA(2, 3, permutations=1),
        "mutual_knn": lambda: LayerMeans(2, 3, mutual_measure(5)),
        "mutual_knn given the token": lambda: LayerMeans(2, 3, mutual_measure(2), given="token"),
    }


@pytest.mark.parametrize("name", list(metrics()))
@pytest.mark.parametrize("size", [2, 3, 8])
def test_any_process_can_keep_what_one_would_have(name, size):
    """Of eight processes one has no batch."""
    new, draw = metrics()[name], torch.Generator().manual_seed(0)
    states = [[torch.randn(40, 6, generator=draw) for _ in range(5)] for _ in range(7)]
    groups = {"groups": torch.arange(40) // 8} if "given" in name else {}

    def work(shared):
        metric, resumed = new(), new()
        for number in range(shared.rank, 7, shared.size):
            metric.update(states[number][:2], states[number][2:], None, number, **groups)
        own = len(metric.numbers)
        everyone = {"dist_sync_fn": lambda state, group: without_empty(shared.everyone(state))}
        with metric.sync_context(**everyone, distributed_available=lambda: True):
            resumed.load_state_dict(metric.state_dict())
        assert len(metric.numbers) == own, "each goes on with its own"
        return resumed.compute()

    (alone,) = by_threads(1, work)
    for found in by_threads(size, work):
        assert found.batches == alone.batches == 7
        assert all(torch.equal(a, b) for a, b in zip(found, alone, strict=True))
        assert torch.equal(found.within_target.value, alone.within_target.value)


def test_all_but_the_first_end_with_their_share():
    ProcessGroup().end_of_share()
    with pytest.raises(ShareDone):
        ProcessGroup(1, 2).end_of_share()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["measure=loss"], "loss is done by one process; leave trainer=ddp out"),
        (["measure=rsa", "model=gpt2-mini"], "rsa is done by one process"),
        (["measure=cka", "trainer.precision=bf16-mixed"], "trainer.precision= is not read by cka"),
        (["measure=cka", "trainer.devices=0"], "trainer.devices=0 must be"),
    ],
)
def test_what_processes_cannot_share_is_refused(words, message, cli):
    assert message in cli("analyze.py", *words, "trainer=ddp").error


def test_an_experiment_is_done_by_one_process(cli):
    words = ["experiment=salle2024/figure3", "scale=mini", "trainer=ddp", "trainer.devices=2"]
    assert "salle2024-figure3 is done by one process" in cli("analyze.py", *words).error


@pytest.mark.slow
@pytest.mark.parametrize("measure", ["cka", "mutual_knn"])
def test_two_processes_give_the_bits_of_one(cli, measure):
    words = [f"measure={measure}", "model=gelu-3l-mini", "model@target=solu-3l-mini", "measure.batches=9"]
    words += ["measure.tokens_per_batch=4096", "model.device=cpu", "target.device=cpu"]
    shared = cli.process("analyze.py", *words, "trainer=ddp", "trainer.devices=2", "store=two").result
    alone = cli("analyze.py", *words, "store=one").result
    assert shared.key == alone.key
    assert shared.table.equals(alone.table)
    assert all(np.array_equal(values, alone.arrays[name]) for name, values in shared.arrays.items())
