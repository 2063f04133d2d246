"""Memory: tensors are counted to the byte, errors are told apart, and a step that does not fit runs in parts."""

import contextlib
import errno
import itertools
import logging
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.functional import linear

import tiny
from conftest import break_off, step_data
from thinkalike import memory as places
from thinkalike.config import TrainerConfig
from thinkalike.errors import ConfigError, DataError, ModelError, ResourceError
from thinkalike.evaluation.moments import batch_rows_of_moments
from thinkalike.evaluation.stitched_losses import document_sums, largest_evaluation_batch
from thinkalike.instruments.stitching.reporting import ShuffledMap
from thinkalike.memory import (
    FRAGMENTATION,
    USABLE_SHARE,
    Budget,
    LiveBytes,
    OverLimitError,
    available_bytes,
    bytes_in_use,
    free_cached_memory,
    out_of_memory_error,
)
from thinkalike.store import newest_state, read_state
from thinkalike.training.recipe import StitchConfig
from thinkalike.training.run import TrainingRun
from thinkalike.training.stitching import Microbatch, StitchTraining, largest_microbatch, mean_losses
from thinkalike.training.trainer import fit

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
    with pytest.raises(OverLimitError, match="of 1000"), live:
        endless()
    assert len(made) == 5
    made.clear()
    assert live.now == 0


def test_this_process_takes_more_when_it_has_more():
    free_cached_memory(CPU)
    before = bytes_in_use(CPU)
    assert 2**26 < before < 2**40
    held = np.ones(2**27, dtype=np.uint8)
    assert bytes_in_use(CPU) - before > 0.9 * held.nbytes
    assert 2**26 < available_bytes(CPU) < 2**50


FREE, USED = 16_000_000 * 1024, 250 * 4096


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with 16 GB free, and no control groups."""
    monkeypatch.setattr(places, "PROCESS_GROUP", tmp_path / "own")
    monkeypatch.setattr(places, "GROUPS_FOLDER", tmp_path / "cgroup")
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
    assert available_bytes(CPU) == FREE
    limited(root / "job" / "step", "max", 10**9, 0)
    assert available_bytes(CPU) == FREE, "no limit"
    limited(root / "job", 8 * 10**9, 5 * 10**9, 2 * 10**9)
    assert available_bytes(CPU) == 5 * 10**9, "cached files can be given back"
    limited(root / "job" / "step", 6 * 10**9, 5 * 10**9, 0)
    assert available_bytes(CPU) == 10**9


def test_in_a_container_the_mounted_group_counts(machine):
    own, root = machine
    own.write_text("0::/docker/0123\n")
    limited(root, 4 * 10**9, 10**9, 0)
    assert available_bytes(CPU) == 3 * 10**9


def test_a_budget_is_what_the_user_allows_or_what_is_there(machine):
    free = Budget.of(CPU)
    assert (free.total, free.used, free.is_requested) == (USED + FREE, USED, False)
    assert Budget.of(CPU, processes=2).total == USED + FREE // 2
    asked = Budget.of(CPU, 8e9)
    assert (asked.total, asked.is_requested) == (8e9, True)
    assert asked.room == pytest.approx((USABLE_SHARE * 8e9 - USED) / FRAGMENTATION)
    assert Budget.of(CPU, 1e12) == free, "no more than there is"
    assert Budget.of(CPU, 0.0) == Budget(0.0, float(USED), is_requested=True), "nothing is a limit, too"
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
    assert out_of_memory_error(error) is error
    wrapped = ModelError("cannot load")
    wrapped.__context__, wrapped.__suppress_context__ = error, True  # raise ... from None
    assert out_of_memory_error(wrapped) is error


def test_other_errors_are_not():
    full = OSError(errno.ENOSPC, "No space left on device")
    assert not any(map(out_of_memory_error, (full, RuntimeError("invalid device"), ValueError("memory"))))


def test_a_job_that_does_not_fit_is_refused_by_the_setting(cli, minis, text_files, tmp_path, monkeypatch):
    monkeypatch.setattr(places, "bytes_in_use", lambda device: 500_000_000)
    monkeypatch.setattr(places, "available_bytes", lambda device: 1_000_000_000)
    words = ["trainer.memory=1MB", f"model.path={minis}/a", f"target.path={minis}/b", "model.context=32"]
    words += [
        "data=text",
        f"data.files=[{text_files}/*.txt]",
        "data.evaluation_tokens=4096",
        "data.evaluation_share=0.4",
    ]
    refused = cli("train.py", *words, f"store={tmp_path}/store").error
    assert "stitches of 4 layer pairs need at least 500 MB of memory (500 MB of it are in use already)" in refused
    assert "; allow more, or choose fewer layers" in refused


LAYERS = 3
PAIRS = list(itertools.product(range(LAYERS), range(LAYERS)))
CONFIG = StitchConfig(steps=3, warmup=1, tokens_per_step=128)  # 4 rows


@pytest.fixture(scope="module")
def rows():
    return torch.randint(300, (80, 32), generator=torch.Generator().manual_seed(5))


def training(pairs=PAIRS, seed=0, limits=None, **changes):
    models = tiny.frozen(1, n_layers=LAYERS), tiny.frozen(2, n_layers=LAYERS, act_fn="gelu")
    return StitchTraining(*models, pairs, replace(CONFIG, **changes), seed, limits=limits)


def of(module):
    """The losses of a module, the weights of each stitch, and the blocks after it."""
    weights = [list(phi.parameters()) for phi in module.stitches]
    return module.losses, weights, [LAYERS - 1 - depth for _, depth in module.layer_pairs]


def losses_and_gradients(module, rows, part):
    losses, weights, _ = of(module)
    means = mean_losses(losses, weights, rows, part)
    scales = torch.linspace(0.5, 2, len(means))  # not all alike
    return means.detach(), torch.autograd.grad(means @ scales, [weight for own in weights for weight in own])


WHOLE = Microbatch(4, 9)


@pytest.mark.parametrize(
    ("part", "changes"),
    [((2, 9), {}), ((3, 4), {}), ((1, 9), {"loss": "mse", "norm": "pre"}), ((4, 3), {"kind": "orthogonal"})],
    ids=str,
)
def test_parts_give_the_losses_and_gradients_of_the_whole(rows, part, changes):
    module = training(**changes)
    losses, gradients = losses_and_gradients(module, rows[:4], WHOLE)
    in_parts, ours = losses_and_gradients(module, rows[:4], Microbatch(*part))
    torch.testing.assert_close(in_parts, losses, atol=1e-6, rtol=1e-6)
    assert max(gradient.abs().max() for gradient in gradients) > 1e-3, "control"
    for one, other in zip(ours, gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


@pytest.fixture
def nothing_in_use(monkeypatch):
    """A process that seems to hold nothing, so that a few megabytes are a limit."""
    monkeypatch.setattr(places, "bytes_in_use", lambda _: 0)


def taken(rows, part, changes):
    """The bytes that the largest part of a step takes."""
    module = training(**changes)
    losses, weights, tails = of(module)
    chosen = sorted(range(9), key=lambda number: -tails[number])[: part.stitches]
    with LiveBytes(CPU) as live:
        total = torch.stack([each.sum() for each in losses(rows[: part.rows], chosen)]).sum()
        gradients = torch.autograd.grad(total, [weight for number in chosen for weight in weights[number]])
        del gradients
    return live.peak


def limited_to(rows, part, **changes):
    """A limit under which this part fits, and nothing much larger."""
    coming = 2 * sum(weight.nbytes for own in of(training(**changes))[1] for weight in own)
    return TrainerConfig(memory=f"{int((coming + 1.02 * FRAGMENTATION * taken(rows, part, changes)) / USABLE_SHARE)}B")


@pytest.mark.ci_slow
@pytest.mark.parametrize(
    ("part", "changes"),
    [((16, 9), {}), ((1, 3), {}), ((4, 9), {"kind": "orthogonal"}), ((8, 9), {"loss": "kl", "floor": False})],
    ids=str,
)
def test_the_largest_part_that_fits_is_found_by_trying(rows, nothing_in_use, part, changes):
    module, part = training(**changes), Microbatch(*part)
    losses, weights, tails = of(module)
    state = torch.get_rng_state()
    assert largest_microbatch(limited_to(rows, part, **changes), losses, weights, rows[:16], tails, 1) == part
    assert torch.equal(torch.get_rng_state(), state)
    assert all(weight.grad is None for weight in module.parameters())


def test_memory_that_the_device_refuses_counts_as_a_limit(rows):
    module = training()
    losses, weights, tails = of(module)

    def on_a_small_gpu(part, chosen):
        if len(part) * len(chosen) > 5:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return losses(part, chosen)

    assert largest_microbatch(TrainerConfig(), on_a_small_gpu, weights, rows[:4], tails, 1) == (1, 5)


def test_recomputed_blocks_take_less_and_give_the_same_bits(rows):
    deep = tiny.frozen(1, n_layers=8)
    module = StitchTraining(deep, deep, [(0, 0), (1, 2)], replace(CONFIG, loss="cross_entropy"))
    numbers, peaks = [], []
    for wanted in (False, True):
        with deep.recomputed(wanted), LiveBytes(CPU) as live:
            numbers.append(losses_and_gradients(module, rows, Microbatch(80, 2)))
        peaks.append(live.peak)
    assert "forward" not in vars(deep.blocks[0])
    (plain, gradients), (again, others) = numbers
    assert torch.equal(plain, again)
    assert all(torch.equal(one, other) for one, other in zip(gradients, others, strict=True))
    assert peaks[1] < 0.5 * peaks[0]


@pytest.fixture
def run(tmp_path, nothing_in_use):
    return TrainingRun(tmp_path, CPU, TrainerConfig(checkpoint_every=2))


@pytest.mark.ci_slow
@pytest.mark.parametrize(("part", "precision"), [((1, 5), "32-true"), ((2, 9), "bf16-mixed")])
def test_a_limit_trains_the_same_stitches(rows, run, tmp_path, part, precision, caplog):
    caplog.set_level(logging.INFO, "thinkalike")
    free = replace(run, trainer=replace(run.trainer, precision=precision))
    with torch.autocast("cpu", torch.bfloat16, enabled=precision != "32-true"):
        limits = limited_to(rows, Microbatch(*part))
    whole, parts = training(), training(limits=limits)
    fit(whole, step_data(rows, whole), free)
    fit(parts, step_data(rows, parts), replace(free, partial=tmp_path / "parts"))
    assert (whole.microbatch, parts.microbatch) == (WHOLE, part)
    close = {"atol": 1e-6, "rtol": 1e-5} if precision == "32-true" else {"atol": 2e-3, "rtol": 0}
    for one, other in zip(whole.stitches.parameters(), parts.stitches.parameters(), strict=True):
        assert one.abs().max() > 1e-3
        torch.testing.assert_close(one, other, **close)
    torch.testing.assert_close(whole.curve, parts.curve, **close)
    (said,) = [record.message for record in caplog.records if record.message.startswith("memory: ")]
    assert f"microbatches of {part[0]} of 4 rows and {part[1]} of 9 stitches" in said


@pytest.mark.ci_slow
def test_a_resumed_run_keeps_its_microbatches(rows, run, tmp_path, monkeypatch):
    limits = limited_to(rows, Microbatch(2, 9))

    def train(folder, stop_at=None, limits=limits):
        module = training(limits=limits)
        break_off(module, stop_at)
        with pytest.raises(DataError) if stop_at else contextlib.nullcontext():
            fit(module, step_data(rows, module), replace(run, partial=tmp_path / folder))
        return module

    whole, _ = train("whole"), train("broken", stop_at=2)
    moved = f"elsewhere/{tmp_path.name}/broken"  # a state belongs to the job of its last two folders
    shutil.copytree(tmp_path / "broken", tmp_path / moved)
    kept = read_state(newest_state(tmp_path / "broken" / "checkpoints", "training"))["microbatch"]
    assert kept == {"limits": [limits.memory, False], "size": [2, 9]}
    with monkeypatch.context() as patch:
        patch.setattr(places, "available_bytes", lambda _: 2**20)  # less than there was: nothing is tried again
        broken = train("broken")
    assert broken.microbatch == whole.microbatch
    assert torch.equal(broken.curve, whole.curve)
    assert all(torch.equal(*both) for both in zip(broken.parameters(), whole.parameters(), strict=True))
    assert train(moved, limits=None).microbatch == WHOLE


@pytest.mark.parametrize(("memory", "changes"), [("200kB", {"kind": "low_rank", "rank": 1}), ("50kB", {})])
def test_a_step_that_fits_in_no_part_is_refused(rows, run, memory, changes):
    module = training(limits=TrainerConfig(memory=memory), **changes)
    with pytest.raises(ResourceError, match=r"trainer\.recompute=True"):
        fit(module, step_data(rows, module), run)


def report(module, rows, *at_once):
    maps = {"stitch": list(module.stitches), "identity": [torch.nn.Identity()] * len(PAIRS)}
    maps["shuffled"] = [ShuffledMap(phi, seed=0) for phi in module.stitches]
    return document_sums(*module.models, PAIRS, maps, tiny.token_rows(rows), *at_once)


@pytest.mark.ci_slow
def test_the_report_ignores_how_many_pairs_run_together(rows):
    module, rows = training(), rows[:6]
    whole = report(module, rows, 4)
    for pairs in (1, 4):
        parts = report(module, rows, 4, pairs)
        assert parts.keys() == whole.keys()
        for name, value in whole.items():
            torch.testing.assert_close(parts[name], value, atol=1e-4, rtol=1e-6)


def test_the_report_ignores_how_many_rows_are_read_together(rows):
    """Their number follows from the memory that is free, which is in no key."""
    module, rows = training(), rows[:6]
    whole = report(module, rows, 6)
    assert (whole["shuffled"] - whole["stitch"]).abs().min() > 1e-3, "control"
    for batch_rows in (1, 4):
        parts = report(module, rows, batch_rows)
        for name, value in whole.items():
            torch.testing.assert_close(parts[name], value, atol=1e-4, rtol=1e-6)


@pytest.mark.ci_slow
def test_the_report_takes_what_fits_and_pairs_give_way_first(rows):
    module = training()
    models = (*module.models, PAIRS)

    def share(total):
        return largest_evaluation_batch(*models, tiny.token_rows(rows[:40]), Budget(total, 0.0))

    assert share(1e9) == (40, 9)
    some = share(12e6)
    assert some[0] == 40
    assert 1 <= some[1] < 9
    with LiveBytes(CPU) as live:
        report(module, rows[:40], *some)
    assert 3e6 < live.peak < 12e6
    few = share(5e6)
    assert few[1] == 1
    assert few[0] < 40
    assert share(1e3) == (1, 1), "it is tried"
    assert batch_rows_of_moments(*module.models, PAIRS, tiny.token_rows(rows), Budget(1e9, 0.0)) == 64, "of 32 tokens"
    assert batch_rows_of_moments(*module.models, PAIRS, tiny.token_rows(rows), Budget(1e6, 0.0)) == 4
