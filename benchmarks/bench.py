"""Runs benchmarks one after the other, with one thread, and writes what they print into RESULTS.md.

    make bench                                  all that are listed here, a quarter of an hour on an idle machine
    make bench ARGS="cka rsa"                   some; the tables of others stay as they are
    make bench ARGS="cka mutual_knn --device cuda"    on a GPU, those that can; their tables stand beside those of a CPU

Each benchmark has a part of RESULTS.md of its own, between two marks, with the command, the machine, the versions, and
a digest of the code that it is about, docstrings and comments aside: a test fails where that has changed since. What
moved by more than a quarter of what the part had before is printed below it.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import torch
from measuring import device_here, machine

from thinkalike.registry import layer_measures

HERE = Path(__file__).resolve().parent
RESULTS, SOURCE = HERE / "RESULTS.md", HERE.parent / "src" / "thinkalike"
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


class Benchmark(NamedTuple):
    """One file beside this one, the heading of its part, and the code that it is about, below `src/thinkalike`."""

    heading: str
    about: tuple[str, ...]
    on_gpu: bool = False
    on_cpu: bool = True
    prints_tables: bool = True


IN_COMMON = (
    "accumulator",
    "centred_rows",
    "contract",
    "gram_statistics",
    "hsic",
    "kernel_alignment",
    "layer_means",
    "leave_out",
    "rows",
)


def code_of_pairs() -> tuple[str, ...]:
    """Return the modules of all measures of layer pairs, and what they have in common."""
    timed = [entry for entry in layer_measures() if entry.load().in_benchmarks]
    modules = {entry.module.removeprefix("thinkalike.").replace(".", "/") for entry in timed}
    common = {f"measures/{name}" for name in IN_COMMON}
    return tuple(sorted(f"{module}.py" for module in modules | common))


PAIRS = code_of_pairs()
BENCHMARKS = {
    "stitching": Benchmark(
        "Stitching: all stitches at once",
        (
            "measures/losses.py",
            "stitches/stitch_map.py",
            "training/microbatches.py",
            "training/stitch_losses.py",
            "training/stitching.py",
        ),
        on_gpu=True,
        prints_tables=False,
    ),
    "cka": Benchmark(
        "CKA", ("measures/gram_statistics.py", "measures/kernel_alignment.py", "measures/layer_means.py"), on_gpu=True
    ),
    "mutual_knn": Benchmark("Mutual nearest neighbours", ("measures/neighbours.py",), on_gpu=True),
    "rsa": Benchmark(
        "RSA",
        ("measures/distances/comparators.py", "measures/distances/neural.py", "measures/distances/ranks.py"),
        on_gpu=True,
    ),
    "mlem": Benchmark("MLEM", ("measures/mlem/solver.py", "measures/mlem/sums.py"), on_gpu=True),
    "similarity": Benchmark("Every measure of layer pairs", PAIRS),
    "gpu": Benchmark("What was asked of a GPU", PAIRS, on_gpu=True, on_cpu=False),
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
    where = f"{datetime.date.today()}, commit {_commit()}, code {digest(name)}, {before}"
    return f"### {own.heading}\n{command}, {where}.\n\n{printed}"


def digest(name: str) -> str:
    """Return a digest of the code that a benchmark is about, without its docstrings and comments."""
    code = "".join(_code_alone((SOURCE / each).read_text()) for each in BENCHMARKS[name].about)
    return hashlib.sha256(code.encode()).hexdigest()[:8]


def _code_alone(source: str) -> str:
    """Return the syntax tree of a module without docstrings, as text."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            del node.body[0]
    return ast.dump(tree)


def outdated(text: str) -> list[str]:
    """Return the parts of RESULTS.md whose code has changed since; those of a GPU stay, as one is rarely at hand."""
    parts = re.findall(f"<!-- ({'|'.join(BENCHMARKS)}) begins -->\n(.*?)<!--", text, re.DOTALL)
    return [name for name, part in parts if f"code {digest(name)}," not in part]


def moved(before: str, after: str) -> list[str]:
    """Return a line for each ratio of a table that is more than a quarter away from what it was."""
    old, new = ({cells[0]: cells for cells in _rows(text)} for text in (before, after))
    lines = []
    for name in old.keys() & new.keys():
        for was, now in zip(*(_ratios(each[name]) for each in (old, new)), strict=False):
            if not 0.8 <= now / was <= 1.25:
                lines.append(f"moved: {name}, {was:.3g} -> {now:.3g}")
    return lines


def _rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]


def _ratios(cells: list[str]) -> list[float]:
    """Return the least and the median ratio to ours, or the last column where there are none."""
    numbers = [float(cell) for cell in cells[1:] if re.fullmatch(r"[\d.]+", cell)]
    return [each for each in (numbers[2:4] or numbers[2:]) if each]


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
    parser.add_argument("--device", type=device_here, default="cpu")
    options = parser.parse_args()
    if unknown := set(options.names) - set(BENCHMARKS):
        parser.error(f"{min(unknown)} is no benchmark; there is {', '.join(BENCHMARKS)}")
    torch.set_num_threads(1)
    chosen = options.names or [
        name for name, own in BENCHMARKS.items() if (own.on_cpu if options.device == "cpu" else own.on_gpu)
    ]
    for name in chosen:
        part = run(name, options.device)
        place, text = name if options.device == "cpu" else f"{name} on a GPU", RESULTS.read_text()
        before = text.partition(BEGIN.format(place))[2].partition(END.format(place))[0]
        print(part, *moved(before, part), sep="\n", end="\n\n", flush=True)
        RESULTS.write_text(placed(text, place, part))


if __name__ == "__main__":
    main()
