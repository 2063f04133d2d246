"""What benchmarks have in common: calls timed in turn, the machine that they ran on, and tables in Markdown.

Every ratio of a table is of times from the same turns of one run, so that it holds although others use the machine.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import torch

PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "pytorch-cka", "rsatoolbox")
PEAK = {"cpu": 2048, "cuda": 8192}  # rows and columns of the product whose speed is called the peak


class Times(NamedTuple):
    """Seconds of a call: of one thread's processor time on a CPU, of the clock on a GPU."""

    least: float
    median: float


class Row(NamedTuple):
    """One line of a table."""

    what: str
    times: Times
    more: str = ""  # anything else that is known of it, such as memory or its distance from ours


def options_of(description: str | None, **defaults: str | int) -> argparse.Namespace:
    """Read the options of a benchmark, given by their defaults; torch then has one thread and always draws the same."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=device_here if name == "device" else type(default), default=default)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return parser.parse_args()


def device_here(name: str) -> str:
    """Return the name of a device that benchmarks run on; argparse refuses one that this machine lacks in one line."""
    if name not in PEAK:
        raise argparse.ArgumentTypeError(f"'{name}' is not known; choose {' or '.join(PEAK)}")
    if name == "cuda" and not torch.cuda.is_available():
        raise argparse.ArgumentTypeError("torch finds no GPU for 'cuda' on this machine; choose cpu")
    return name


def in_turn(work: Mapping[str, Callable[[], object]], rounds: int, device: str = "cpu") -> dict[str, Times]:
    """Return the times of several calls, each called once a round; the first round is a warm-up."""
    found: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds + 1):
        for name, call in work.items():
            found[name].append(seconds(call, device))
    return {name: Times(min(times[1:]), statistics.median(times[1:])) for name, times in found.items()}


def once(call: Callable[[], object], device: str = "cpu") -> Times:
    """Return the time of a single call, of what takes too long for turns."""
    taken = seconds(call, device)
    return Times(taken, taken)


def seconds(call: Callable[[], object], device: str = "cpu") -> float:
    """Return the seconds of one call, see `Times`."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    start = clock()
    call()
    if device != "cpu":
        torch.cuda.synchronize()
    return clock() - start


def large_product(dtype: torch.dtype = torch.float32, device: str = "cpu") -> Callable[[], object]:
    """Return a product whose speed is called the peak, in which a floor of products is given; see `speed`."""
    square = torch.randn(PEAK[device], PEAK[device], dtype=dtype, device=device)
    out = torch.empty_like(square)
    return lambda: torch.mm(square, square, out=out)


def speed(product: float, device: str = "cpu") -> float:
    """Return the operations a second of `large_product`, of its seconds."""
    return 2 * PEAK[device] ** 3 / product


def floor(operations: float, peak: Times, *others: Times, device: str = "cpu") -> Times:
    """Return what so many operations take at the speed of `large_product`, and other calls besides."""
    return Times(*(operations / speed(own, device) + sum(rest) for own, *rest in zip(peak, *others, strict=True)))


def scaled(times: Times, factor: float) -> Times:
    """Return the times of so many such calls."""
    return Times(factor * times.least, factor * times.median)


def table(title: str, rows: Sequence[Row]) -> str:
    """Return a table in which the first row is ours, and the others have their ratios to it."""
    ours = rows[0].times
    lines = [f"{title}\n", "| | seconds, least | median | of ours, least | median | |", "|---|---|---|---|---|---|"]
    for what, (least, median), more in rows:
        ratios = f"{least / ours.least:.2f} | {median / ours.median:.2f}"
        lines.append(f"| {what} | {least:.3g} | {median:.3g} | {ratios} | {more} |")
    return "\n".join(lines) + "\n"


def machine(device: str = "cpu") -> str:
    """Return one line: processor, load, versions."""
    versions = []
    for name in PACKAGES:
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    what = torch.cuda.get_device_name() if device != "cpu" else f"{_processor()}, {torch.get_num_threads()} thread"
    load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    return f"{what}, {load}; Python {platform.python_version()}, {', '.join(versions)}"


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def resident() -> float:
    """Return the largest resident memory of this process so far in MB, on Linux."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def forget_peak() -> None:
    """Let `resident` begin anew with what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")
