"""Runs benchmarks one after the other, with one thread, and writes what they print into RESULTS.md.

    make bench                                  all that are listed here, a quarter of an hour on an idle machine
    make bench ARGS="cka rsa"                   some; the tables of others stay as they are
    make bench ARGS="cka mutual_knn --device cuda"    on a GPU, those that can; their tables stand beside those of a CPU

Each benchmark has a part of RESULTS.md of its own, between two marks, with the command, the machine and the versions.
"""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import torch
from measuring import machine

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "RESULTS.md"
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


class Benchmark(NamedTuple):
    """One file beside this one, and the heading of its part."""

    heading: str
    on_gpu: bool = False
    on_cpu: bool = True
    prints_tables: bool = True


BENCHMARKS = {
    "stitching": Benchmark("Stitching: all stitches at once", on_gpu=True, prints_tables=False),
    "cka": Benchmark("CKA", on_gpu=True),
    "mutual_knn": Benchmark("Mutual nearest neighbours", on_gpu=True),
    "rsa": Benchmark("RSA", on_gpu=True),
    "mlem": Benchmark("MLEM", on_gpu=True),
    "similarity": Benchmark("Every measure of layer pairs"),
    "gpu": Benchmark("What was asked of a GPU", on_gpu=True, on_cpu=False),
}
BEGIN, END = "<!-- {} begins -->", "<!-- {} ends -->"


def run(name: str, device: str) -> str:
    """Return the part of a benchmark: heading, command, machine, and what it prints.

    Raises:
        subprocess.CalledProcessError: It failed.
    """
    own = BENCHMARKS[name]
    words = [f"{name}.py", *(["--device", device] if own.on_gpu and device != "cpu" else [])]
    before = machine(device)
    done = subprocess.run(
        [sys.executable, str(HERE / words[0]), *words[1:]],
        env={**os.environ, **dict.fromkeys(THREADS, "1")},
        text=True, stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    printed = done.stdout.strip() if own.prints_tables else f"```\n{done.stdout.rstrip()}\n```"
    command = f"`python benchmarks/{' '.join(words)}`"
    where = f"{datetime.date.today()}, commit {_commit()}, {before}"
    return f"### {own.heading}\n{command}, {where}.\n\n{printed}"


def _commit() -> str:
    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=HERE, text=True, capture_output=True, check=False).stdout.strip()

    changed = " with changes" if git("status", "--porcelain", "--untracked-files=no", "--", "../src") else ""
    return (git("rev-parse", "--short", "HEAD") or "unknown") + changed


def placed(text: str, name: str, part: str) -> str:
    """Return a text with a part in place of that of the same name, or after the last one."""
    begin, end = BEGIN.format(name), END.format(name)
    block = f"{begin}\n{part}\n{end}"
    if begin in text:
        before, rest = text.split(begin, 1)
        return before + block + rest.split(end, 1)[1]
    last = text.rfind(" ends -->")
    first = text.index("\n\n## ", text.index("\n## ") + 1)  # the section that says how tables come about ends there
    cut = text.index("\n", last) if last >= 0 else first
    return f"{text[:cut]}\n\n{block}{text[cut:]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(BENCHMARKS)}; by default all")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    if unknown := set(options.names) - set(BENCHMARKS):
        parser.error(f"{min(unknown)} is no benchmark; there is {', '.join(BENCHMARKS)}")
    torch.set_num_threads(1)
    chosen = options.names or [
        name for name, own in BENCHMARKS.items() if (own.on_cpu if options.device == "cpu" else own.on_gpu)
    ]
    for name in chosen:
        part = run(name, options.device)
        print(f"{part}\n", flush=True)
        place = name if options.device == "cpu" else f"{name} on a GPU"
        RESULTS.write_text(placed(RESULTS.read_text(), place, part))


if __name__ == "__main__":
    main()
