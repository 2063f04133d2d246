"""Bad command lines, and a runner: each must be refused in one line, soon, with nothing left in the store.

    python tests/faults/bad_inputs.py              all of them, minutes
    python tests/faults/bad_inputs.py files layers those of some groups

A line is what stands behind `python`; {here} is a folder with the files of `write_files`. All run inside one process,
each with a store of its own. Lines of numbers are made from the schemas: every number with values inside and outside of
its range; those inside need only compose.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import io
import logging
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT), str(ROOT / "src")]

from bad_lines import BAD, RIGHT  # noqa: E402

SECONDS = 30


@dataclasses.dataclass(frozen=True)
class Case:
    """A command line, the group that it is of, and whether it must be refused."""

    group: str
    line: str
    bad: bool = True


@dataclasses.dataclass(frozen=True)
class Ended:
    """What became of a command line; `problem` is empty if that is right."""

    case: Case
    said: str
    seconds: float
    problem: str


# ---------------------------------------------------------------------------------------------------------------- cases


def cases() -> list[Case]:
    """Return all command lines."""
    written = [Case(group, line) for group, lines in BAD.items() for line in lines]
    return [*written, *(Case("right", line, bad=False) for line in RIGHT)]


def write_files(folder: Path) -> None:
    """Write the files that bad lines name."""
    (folder / "folder").mkdir()
    good = "a text that is long enough for a line of its own. " * 40
    lines = {
        "surrogate.jsonl": '{"text": "fine"}\n{"text": "\\ud800"}\n',
        "null.jsonl": '{"text": null}\n',
        "number.jsonl": '{"text": 3}\n',
        "list.jsonl": "[1, 2]\n",
        "broken.jsonl": '{"text": "fine"}\n{oops\n',
        "otherfield.jsonl": '{"body": "fine"}\n',
        "empty.jsonl": "",
        "empty.txt": "",
        "blank.txt": " \n\t\n",
        "one.txt": good,
        "noheader.csv": "",
        "onlyheader.csv": "text,a\n",
        "ragged.csv": "text,a\nx,1,2\n",
        "words.csv": "text,a,b\nred,1,x\nblue,2,y\ngreen,3,x\n",
        "twice.csv": "text,a,a\nx,1,2\n",
        "empty.conllu": "",
        "broken.conllu": "1\tx\n",
        "pairs.jsonl": '{"sentence1": "a", "sentence2": "b", "gold_label": "perhaps"}\n',
        "broken.tsv": "a\tb\n1\n",
        "config/config.json": "{}",
        "odd/config.json": '{"model_type": "t5"}',
        "garbled/config.json": "{oops",
        "listed/config.json": "[]",
        "file": "no folder",
        "notnpz.npz": "no archive",
        "own/model/ours.yaml": "defaults: [schema, _self_]\nname: ours\npath: ~/nowhere\n",
        "own/model/broken.yaml": "name: [\n",
        "own/model/odd.yaml": "name: odd\nlayers: 3\n",
        "own/model/lost.yaml": "defaults: [nowhere, _self_]\nname: lost\n",
        "own/mine.yaml": "defaults: [train, {model: ours}, _self_]\nseed: 7\n",
        "own/torn.yaml": "seed: [1\n",
        "own/typo.yaml": "seeed: 1\n",
        "own/list.yaml": "[1, 2]\n",
        "own/loop.yaml": "defaults: [loop]\n",
        "own/nothere.yaml": "defaults: [{model: nope}]\n",
        "own/measures.yaml": "defaults: [{override /measure: cka}]\nmeasure: {folds: 3}\n",
        "own/dates.yaml": "seed: 2026-01-01\n",
        "taken/train.yaml": "seed: 3\n",
    }
    for name, text in lines.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "nul.txt").write_bytes(b"\x00" * 64)
    (folder / "latin.txt").write_bytes(b"\xff\xfe\xe4")
    (folder / "garbage.parquet").write_bytes(b"PAR1 garbage")
    (folder / "garbage.jsonl.gz").write_bytes(b"\x1f\x8b garbage")
    (folder / "garbage.jsonl.zst").write_bytes(b"\x28\xb5\x2f\xfd garbage")


# --------------------------------------------------------------------------------------------------------------- runner


class TooSlow(BaseException):
    """A command line was still at work after `SECONDS`."""


def run(case: Case, here: Path) -> Ended:
    """Run a bad line through its door, or compose a right one, in this process."""
    words = shlex.split(case.line.replace("{here}", str(here)))
    began = time.monotonic()
    if not case.bad:
        problem = _composed(words)
        return Ended(case, problem, time.monotonic() - began, problem)
    store = here / "store"
    if not any(word.startswith("store=") for word in words):
        words.append(f"store={store}")
    status, said = _through_the_door(words, here)
    seconds, left = time.monotonic() - began, [path for path in store.rglob("*") if path.is_file()]
    shutil.rmtree(store, ignore_errors=True)
    return Ended(case, said, seconds, _problem(status, said, seconds, left))


def _composed(words: list[str]) -> str:
    from thinkalike.config import compose_job

    name = words[0].removesuffix(".py")
    try:
        compose_job(name, words[1:])
    except Exception as error:
        return f"refused, but right: {type(error).__name__}: {str(error).splitlines()[0]}"
    return ""


def _through_the_door(words: list[str], here: Path) -> tuple[object, str]:
    """Return the exit status, or the name of an exception that came through, and what stderr says."""
    out, err, before = io.StringIO(), io.StringIO(), logging.root.handlers[:]
    settings = {
        "THINKALIKE_CACHE": str(here / "cache"),
        "HF_HOME": str(here / "hf"),
        "HF_ENDPOINT": "http://127.0.0.1:9",
    }
    signal.signal(signal.SIGALRM, _too_slow)
    signal.alarm(SECONDS)
    status: object = 0
    try:
        with (
            mock.patch.dict(os.environ, settings),
            mock.patch.object(sys, "argv", words),
            contextlib.chdir(here),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            importlib.import_module(words[0].removesuffix(".py")).main()
    except SystemExit as end:
        status = end.code or 0
    except (Exception, TooSlow) as error:
        status = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')[:200]}"
    finally:
        signal.alarm(0)
        logging.root.handlers[:] = before
    return status, err.getvalue()


def _too_slow(*_: object) -> None:
    raise TooSlow(f"still at work after {SECONDS} s")


def _problem(status: object, said: str, seconds: float, left: list[Path]) -> str:
    """Return what is wrong with a refusal, or nothing."""
    lines = [line for line in said.splitlines() if line.startswith("error: ")]
    swept = "of the sweep's jobs failed:" in said
    if status not in (1, 2):
        return f"accepted: exit {status}" if status == 0 else f"no refusal: {status}"
    if "Traceback" in said or (status == 1 and len(lines) != 1 and not swept):
        return f"not one line: {said[-300:]!r}"
    if lines and len(lines[0]) > 1000:
        return f"a line of {len(lines[0])} characters: {lines[0][:100]}"
    if left:
        return f"left in the store: {', '.join(str(path) for path in left[:3])}"
    return f"took {seconds:.0f} s" if seconds > SECONDS else ""


def run_all(chosen: list[Case]) -> Iterator[Ended]:
    """Run command lines one after another, in a folder that is removed at the end."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        write_files(here)
        for case in chosen:
            yield run(case, here)


def main() -> None:
    """Run the groups that the command line names, print each problem and a count; exit status 1 if there are any."""
    groups = set(sys.argv[1:])
    chosen = [case for case in cases() if not groups or case.group in groups]
    verbose, problems, slowest = "VERBOSE" in os.environ, 0, 0.0
    for ended in run_all(chosen):
        problems += bool(ended.problem)
        slowest = max(slowest, ended.seconds)
        last = next((line for line in reversed(ended.said.splitlines()) if line.strip()), "")
        if ended.problem or verbose:
            print(f"{ended.case.group}: {ended.case.line}\n    {ended.problem or last}", flush=True)
    print(f"{len(chosen)} command lines, {problems} problems, the slowest took {slowest:.1f} s")
    sys.exit(problems > 0)


if __name__ == "__main__":
    main()
