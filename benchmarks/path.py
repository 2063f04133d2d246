"""The length of the path from a command to its numbers: what a reader of the source has to walk through.

    python benchmarks/path.py                                each number beside its limit
    python benchmarks/path.py --list                         also the files, the frames and the arrows
    PYTHONPATH=OTHER/src python benchmarks/path.py           of another checkout

Two tiny jobs, `train.py` and `analyze.py measure=cka`, run on embedded minis in processes of their own. Counted are:

- the modules of ours that a job loads, and their lines;
- the files that own a function which is called before table.csv is written, in any thread, but not during an import;
- the functions of ours on the stack from the command to a matrix product in `thinkalike.measures`, where they are most;
- circles: groups of modules that import each other, directly or through others, also inside functions or for types;
- arrows up: imports, also by name in a string, that do not lead to a lower floor of tests/test_house.py.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import re
import runpy
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

PACKAGE = Path(str(find_spec("thinkalike").origin)).parent  # type: ignore[union-attr]
ROOT = PACKAGE.parents[1]
JOBS = {
    "train": [
        "train.py",
        "stitch.steps=2",
        "stitch.warmup=1",
        "stitch.tokens_per_step=512",
        "data.evaluation_tokens=2048",
    ],
    "cka": ["analyze.py", "measure=cka", "model@target=solu-3l-mini", "measure.batches=2"],
}
SMALL = ["layers=[[0,0]]", "logger=none", "threads=1"]
LIMITS = {
    "modules that train.py loads": 75,
    "lines that train.py loads": 11_500,
    "modules that measure=cka loads": 70,
    "files from train.py to table.csv": 35,
    "frames from analyze to the products of CKA": 10,
    "circles of imports": 0,
    "arrows up": 0,
    "arrows from the core to contrib": 0,
}
PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "mv", "dot")  # what all products of torch become
GROUP = "thinkalike.instruments"  # of entry points: no name of a module, though there is a package of this name
REGISTRY = "registry"  # a module whose rows name what is imported when a user chooses it
COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")  # no frames of their own in newer versions

Imports = Mapping[str, Mapping[str, str]]  # from each module of ours to others, and whether by import or by name


def stack(frame: FrameType | None) -> Iterator[tuple[str, str]]:
    """Yield the file and the function of each frame of ours, the innermost first; a module that runs is `<module>`."""
    while frame:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if file.startswith(f"{PACKAGE}{os.sep}") and name not in COMPREHENSIONS:
            yield os.path.relpath(file, ROOT), name
        frame = frame.f_back


def watch(out: Path, command: list[str]) -> None:
    """Run an entry point in this process, and write to `out` what it went through until it wrote table.csv."""
    from torch.utils._python_dispatch import TorchDispatchMode

    entered, deepest, written = {command[0]}, list[str](), threading.Event()

    def on_call(frame: FrameType, event: str, argument: Any) -> None:
        if written.is_set() or not frame.f_code.co_filename.startswith(f"{PACKAGE}{os.sep}"):
            return
        own = list(stack(frame))
        if "<module>" not in {name for _, name in own}:
            entered.update(file for file, _ in own)

    def on_audit(event: str, given: tuple[Any, ...]) -> None:
        if event == "open" and str(given[0]).endswith("table.csv") and given[1] and "r" not in given[1]:
            written.set()

    class Products(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            own = [f"{file}:{name}" for file, name in stack(sys._getframe())]
            if function.overloadpacket.__name__ in PRODUCTS and own and own[0].startswith("src/thinkalike/measures/"):
                path = own[own.index("src/thinkalike/cli/job.py:do_jobs") :: -1]
                deepest[:] = max(deepest, path, key=len)
            return function(*args, **(kwargs or {}))

    sys.argv = [str(ROOT / command[0]), *command[1:]]
    sys.addaudithook(on_audit)
    threading.settrace(on_call)
    with Products() if "measure=cka" in command else contextlib.nullcontext():
        sys.settrace(on_call)
        runpy.run_path(sys.argv[0], run_name="__main__")
        sys.settrace(None)
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    loaded = [os.path.relpath(file, ROOT) for file in files if file and file.startswith(f"{PACKAGE}{os.sep}")]
    assert written.is_set(), "there is no table.csv"
    out.write_text(json.dumps({"modules": sorted([command[0], *loaded]), "files": sorted(entered), "frames": deepest}))


def walked(name: str) -> dict[str, list[str]]:
    """Return the modules, files and frames of one of JOBS, which runs in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        command = [sys.executable, __file__, "--watch", str(out), *JOBS[name], *SMALL, f"store={folder}/store"]
        environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent), "OMP_NUM_THREADS": "1"}
        run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        if run.returncode:
            raise SystemExit(f"{' '.join(JOBS[name])} failed:\n{run.stdout}{run.stderr}")
        return json.loads(out.read_text())  # type: ignore[no-any-return]


def imports() -> Imports:
    """Read from the source who imports whom, and who names whom in a string."""
    files = {".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts): file for file in PACKAGE.rglob("*.py")}
    files = {name.removesuffix(".__init__"): file for name, file in files.items()}

    def found(source: str) -> Iterator[tuple[str, str]]:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                yield from ((alias.name, "import") for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield from ((f"{node.module}.{alias.name}", "import") for alias in node.names)
            elif isinstance(node, ast.Constant) and re.fullmatch(r"thinkalike(\.\w+)+(:\w+)?", str(node.value)):
                yield str(node.value).partition(":")[0], "name"

    arrows: dict[str, dict[str, str]] = {name: {} for name in files}
    for name, file in files.items():
        for to, how in sorted(found(file.read_text()), key=lambda arrow: arrow[1]):
            module = to if to in files else to.rpartition(".")[0]
            in_registry = how == "name" and name.rpartition(".")[2] == REGISTRY
            if module in files and module != name and (to, how) != (GROUP, "name") and not in_registry:
                arrows[name].setdefault(module, how)
    return arrows


def circles(arrows: Imports) -> list[list[str]]:
    """Return the groups of modules that import each other, directly or through others."""
    reached = {name: {to for to, how in each.items() if how == "import"} for name, each in arrows.items()}
    for between in arrows:
        for each in reached.values():
            if between in each:
                each |= reached[between]
    groups = {tuple(sorted(to for to in each if name in reached[to])) for name, each in reached.items() if name in each}
    return sorted(map(list, groups))


def arrows_up(arrows: Imports) -> list[str]:
    """Return the arrows between parts that do not lead to a lower floor; those of its `__init__` are left out."""
    house = ast.parse((ROOT / "tests" / "test_house.py").read_text())
    assigned = {ast.unparse(node.targets[0]): node.value for node in house.body if isinstance(node, ast.Assign)}
    levels = ast.literal_eval(assigned["LEVELS"])
    pairs = [(name, to, how) for name, each in arrows.items() for to, how in each.items() if "." in name]
    parts = [(each, *(f"{name}.".split(".")[1] for name in each[:2])) for each in pairs]
    up = [each for each, part, to in parts if part != to and levels.get(to, 99) >= levels.get(part, -1)]
    return sorted(f"{name} -> {to} ({how})" for name, to, how in up)


def into_contrib(arrows: Imports) -> list[str]:
    """Return the arrows from the core to contrib."""
    contrib = "thinkalike.contrib"
    outside = {name: each for name, each in arrows.items() if not name.startswith(contrib)}
    return sorted(f"{name} -> {to}" for name, each in outside.items() for to in each if to.startswith(contrib))


def main() -> None:
    """Print each number beside its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="also print the files, the frames and the arrows")
    parser.add_argument("--watch", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.watch:
        watch(Path(given.watch[0]), given.watch[1:])
        return
    train, cka, arrows = walked("train"), walked("cka"), imports()
    lists = {
        "modules that train.py loads": train["modules"],
        "modules that measure=cka loads": cka["modules"],
        "files from train.py to table.csv": train["files"],
        "frames from analyze to the products of CKA": cka["frames"],
        "circles of imports": [" <-> ".join(group) for group in circles(arrows)],
        "arrows up": arrows_up(arrows),
        "arrows from the core to contrib": into_contrib(arrows),
    }
    counts = {title: len(listed) for title, listed in lists.items()}
    counts["lines that train.py loads"] = sum((ROOT / file).read_text().count("\n") for file in train["modules"])
    for title, limit in LIMITS.items():
        print(f"{counts[title]:6,} of at most {limit:6,}  {title}")
    for title, listed in lists.items() if given.list else ():
        print(f"\n{title}: {len(listed)}", *listed, sep="\n")


if __name__ == "__main__":
    main()
