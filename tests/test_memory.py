"""Memory: what tensors take is counted to the byte, what a device has left is read, and errors are told apart."""

import errno
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.functional import linear

from thinkalike import memory as places
from thinkalike.config import TrainerConfig
from thinkalike.errors import ConfigError, ModelError
from thinkalike.memory import GAPS, MARGIN, Budget, LiveBytes, OverLimit, at_hand, exhausted, hand_back, in_use

CPU = torch.device("cpu")
NUMBER = 4  # bytes


def test_tensors_count_from_their_making_to_their_end():
    with LiveBytes(CPU) as live:
        one = torch.zeros(10, 10)
        two = one + 1
        assert live.now == live.peak == 200 * NUMBER
        del one
        assert (live.now, live.peak) == (100 * NUMBER, 200 * NUMBER)
        live.restart()
        assert live.peak == 100 * NUMBER
        two.add_(1)
        assert live.peak == 100 * NUMBER, "nothing new in place"
    del two
    assert live.now == 0


def test_what_was_there_before_and_views_of_it_do_not_count():
    weight = torch.zeros(50, 50)
    with LiveBytes(CPU) as live:
        views = weight.t(), weight[3], weight.view(-1).detach()
        weight.mul_(2)
        assert live.peak == 0
        made = views[0].contiguous()
    assert live.peak == made.nbytes, "control"


def test_both_passes_are_seen_and_numbers_stay_the_same():
    weight, x = torch.randn(30, 20), torch.randn(8, 20, requires_grad=True)

    def passes():
        kept = linear(x, weight).relu()
        return torch.autograd.grad(kept.square().sum(), x)[0]

    plain, state = passes(), torch.get_rng_state()
    with LiveBytes(CPU) as live:
        loss = linear(x, weight).relu().sum()
        kept = live.now
        live.restart()
        loss.backward()
        assert live.peak > kept
    with LiveBytes(CPU):
        assert torch.equal(passes(), plain)
    assert kept == (8 * 30 + 1) * NUMBER, "what relu gave, and the sum"
    assert torch.equal(torch.get_rng_state(), state)


def test_a_limit_stops_the_code_at_once_and_leaves_nothing():
    made = []

    def endless():
        while True:
            made.append(torch.zeros(50))

    live = LiveBytes(CPU, 1000.0)
    with pytest.raises(OverLimit, match="of 1000"), live:
        endless()
    assert len(made) == 5
    made.clear()
    assert live.now == 0


def test_this_process_takes_more_when_it_has_more():
    before = in_use(CPU)
    assert 2**26 < before < 2**40
    held = np.ones(2**27, dtype=np.uint8)
    assert in_use(CPU) - before > 0.9 * held.nbytes
    assert 2**26 < at_hand(CPU) < 2**50
    hand_back(CPU)


FREE, USED = 16_000_000 * 1024, 250 * 4096


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with 16 GB free, and no control groups."""
    monkeypatch.setattr(places, "OWN", tmp_path / "own")
    monkeypatch.setattr(places, "CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=FREE))
    monkeypatch.setattr("psutil.Process", lambda: SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=USED)))
    return tmp_path / "own", tmp_path / "cgroup"


def limited(folder, limit, usage, reusable):
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"max": limit, "current": usage, "stat": f"anon 5\ninactive_file {reusable}\n"}
    for name, text in texts.items():
        (folder / f"memory.{name}").write_text(str(text))


def test_the_tightest_group_around_the_process_counts(machine):
    own, root = machine
    own.write_text("0::/job/step\n")
    assert at_hand(CPU) == FREE
    limited(root / "job" / "step", "max", 10**9, 0)
    assert at_hand(CPU) == FREE, "no limit"
    limited(root / "job", 8 * 10**9, 5 * 10**9, 2 * 10**9)
    assert at_hand(CPU) == 5 * 10**9, "cached files can be given back"
    limited(root / "job" / "step", 6 * 10**9, 5 * 10**9, 0)
    assert at_hand(CPU) == 10**9


def test_in_a_container_the_mounted_group_counts(machine):
    own, root = machine
    own.write_text("0::/docker/0123\n")
    limited(root, 4 * 10**9, 10**9, 0)
    assert at_hand(CPU) == 3 * 10**9


def test_a_budget_is_what_the_user_allows_or_what_is_there(machine):
    free = Budget.of(CPU)
    assert (free.total, free.used, free.binding) == (USED + FREE, USED, False)
    assert Budget.of(CPU, processes=2).total == USED + FREE // 2
    asked = Budget.of(CPU, 8e9)
    assert (asked.total, asked.binding) == (8e9, True)
    assert asked.room == pytest.approx((MARGIN * 8e9 - USED) / GAPS)
    assert Budget.of(CPU, 1e12) == free, "no more than there is"
    assert (asked.limit, free.limit) == ("trainer.memory allows 8.0 GB", "this device has 16.4 GB")


@pytest.mark.parametrize(("text", "size"), [("8GB", 8e9), ("8GiB", 2**33), ("1.5 gb", 1.5e9), ("7B", 7)])
def test_amounts_of_memory(text, size):
    assert TrainerConfig(memory=text).memory == size


@pytest.mark.parametrize("text", ["", "-1GB", "nan GB"])
def test_what_is_no_amount_is_refused_by_its_key(text):
    with pytest.raises(ConfigError, match=r"trainer\.memory="):
        TrainerConfig(memory=text)


NO_MEMORY = [
    MemoryError(),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"),
    RuntimeError("unable to mmap 400001343 bytes from file <a.pt>: Cannot allocate memory (12)"),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
    RuntimeError("MPS backend out of memory (MPS allocated: 17.94 GB, other allocations: 8.00 KB, max allowed: 18 GB)"),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
]


@pytest.mark.parametrize("error", NO_MEMORY, ids=lambda error: str(error)[:40])
def test_too_little_memory_is_seen_whatever_wraps_it(error):
    assert exhausted(error) is error
    wrapped = ModelError("cannot load")
    wrapped.__context__, wrapped.__suppress_context__ = error, True  # raise ... from None
    assert exhausted(wrapped) is error


def test_other_errors_are_not():
    for error in (
        OSError(errno.ENOSPC, "No space left on device"),
        RuntimeError("invalid device"),
        ValueError("memory"),
    ):
        assert exhausted(error) is None


def test_a_job_that_does_not_fit_is_refused_by_the_setting(cli, minis, text_files, tmp_path, monkeypatch):
    monkeypatch.setattr(places, "in_use", lambda device: 500_000_000)
    monkeypatch.setattr(places, "at_hand", lambda device: 1_000_000_000)
    words = ["trainer.memory=1MB", f"model.path={minis}/a", f"target.path={minis}/b", "model.context=32"]
    words += ["data=text", f"data.files=[{text_files}/*.txt]", "data.report_tokens=4096", "data.report_share=0.4"]
    refused = cli("train.py", *words, f"store={tmp_path}/store").error
    assert "stitches of 4 layer pairs need at least 0 MB of memory beside 500 MB in use" in refused
