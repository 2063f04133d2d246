"""What the first job, `python train.py model=solu-3l-mini stitch=linear`, takes beside the products of its models.

    python benchmarks/first_job.py                        one thread, some minutes
    python benchmarks/first_job.py 2 stitch.steps=60      two threads, and words that come on top of the command line

Products are the operations in passes of models that `dry_run` counts, of the text that the job found, at the speed of a
large product, which is timed every few seconds while the job runs. Seconds are of processor time, so that other work
changes little; those of a phase are its share of the time by the clock.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch
from measuring import large_product, seconds, speed

from thinkalike.config import compose_job
from thinkalike.forecast import forecast

ROOT = Path(__file__).resolve().parents[1]
JOB = ["model=solu-3l-mini", "stitch=linear"]
PHASES = {
    "statistics": "statistics",
    "fit": "training",
    "report": "report",
    "ruler": "calibration points",
}  # and their passes' names
ASKED, EVERY = 1.4, 5.0


def job(words: list[str], store: str) -> tuple[dict, float, float]:
    """Run the job; returns the provenance of its result, and the speed of a large product meanwhile."""
    command, product = [sys.executable, str(ROOT / "train.py"), *words, f"store={store}"], large_product()
    found, began = [seconds(product)], time.perf_counter()
    with subprocess.Popen(command, cwd=store, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        while running.poll() is None:
            found.append(seconds(product))
            time.sleep(EVERY)
    if running.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {running.returncode}")
    wall = time.perf_counter() - began - EVERY / 2  # of which the end is known to one step
    (result,) = Path(store).glob("stitching/*/result.json")
    return json.loads(result.read_text())["provenance"], speed(statistics.median(found[1:])), wall


def main() -> None:
    given = sys.argv[1:]
    threads = int(given.pop(0)) if given and given[0].isdigit() else 1
    words = [*JOB, *given, f"threads={threads}"]
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as store:
        provenance, rate, wall = job(words, store)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    taken, tokens = used.ru_utime + used.ru_stime, provenance["data"]["report_tokens"]
    plan, operations = (
        forecast(compose_job("train", [*words, f"data.evaluation_tokens={tokens}"]), False),
        Counter[str](),
    )
    for passes, _ in plan.passes:
        operations[passes.phase] += passes.flops
    clock = {phase: provenance["phases"][phase] for phase in PHASES}
    clock["start and the rest"] = max(wall - sum(clock.values()), 0.0)
    print(f"python train.py {' '.join(words)}: {plan.flops:.3g} FLOPs in passes of models, which take")
    print(f"{plan.flops / rate:.0f} s at {rate:.3g} a second, the speed of a large product on one thread.\n")
    print("| phase | seconds of processor time | products alone | ratio |\n|---|---|---|---|")
    for phase, each in clock.items():
        own, alone = taken * each / sum(clock.values()), operations[PHASES.get(phase, "")] / rate
        print(f"| {phase} | {own:.0f} | {alone:.0f} | {f'{own / alone:.1f}' if alone else ''} |")
    print(f"| the whole job | {taken:.0f} | {plan.flops / rate:.0f} | {taken * rate / plan.flops:.2f} |")
    print(f"\nAsked: a ratio of at most {ASKED}. Peak memory {used.ru_maxrss / 1e6:.2f} GB.")


if __name__ == "__main__":
    main()
