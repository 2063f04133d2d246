"""Kill every kind of job at many moments, and see that the same command ends with the same bytes.

    python tests/faults/kills.py              60 kills over all kinds of job, about ten minutes
    python tests/faults/kills.py 12 cka       12 kills of jobs of one kind

A moment is the n-th time that a job opens a file for writing, renames, removes or makes something in its store or
cache, so that kills fall inside caches, states and the last steps of a job; every third is a moment in time instead.
Jobs are tiny, and run in children of a process that has imported everything.
"""

import contextlib
import importlib
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src"), str(ROOT / "tests"), str(ROOT / "tests" / "helpers")]
os.environ.setdefault("OMP_NUM_THREADS", "1")

EVENTS = ("os.rename", "os.remove", "os.mkdir", "os.rmdir")

PAIR = "model.path={here}/a target.path={here}/b model.context=32"
FILES = "data=text data.files=[{here}/texts/*.txt]"
TEXT = f"{FILES} data.evaluation_tokens=2048 data.evaluation_share=0.4"
SMALL = "stitch.warmup=1 stitch.tokens_per_step=128 trainer.checkpoint_every=2"
STIMULI = "stimuli.sentences=60 stimuli.sample=80"
COMMANDS = {
    "stitching": f"train.py {PAIR} {TEXT} stitch.steps=9 {SMALL}",
    "closed": f"train.py {PAIR} {TEXT} stitch=least_squares stitch.steps=8 stitch.tokens_per_step=128 layers=all",
    "loss": f"analyze.py measure=loss model.path={{here}}/a model.context=32 {TEXT}",
    "cka": f"analyze.py measure=cka {PAIR} {FILES} measure.batches=110 measure.tokens_per_batch=32",
    "mutual_knn": f"analyze.py measure=mutual_knn {PAIR} {FILES} measure.batches=30 measure.tokens_per_batch=64",
    "r2": f"analyze.py measure=r2 {PAIR} {FILES} measure.words=2048",
    "mlem": f"analyze.py measure=mlem model=gpt2-mini {STIMULI}",
    "rsa": f"analyze.py measure=rsa model=gpt2-mini {STIMULI}",
}


@dataclass(frozen=True)
class Kill:
    """What became of a job that was killed and asked for again; `problem` is empty if that is right."""

    kind: str
    moment: str
    went_on: bool
    problem: str


def write_files(here: Path) -> None:
    """Write the models and texts that the commands name."""
    import tiny

    for name, changes in {"a": {}, "b": {"act_fn": "gelu"}}.items():
        tiny.write_mini(here / name, **changes)
    (here / "texts").mkdir()
    for number in range(40):
        (here / "texts" / f"{number}.txt").write_text(tiny.document(number))


def words_of(kind: str, here: Path, store: Path) -> list[str]:
    """Return the command line of a job of a kind, which begins with its script."""
    words = [*COMMANDS[kind].format(here=here).split(), f"store={store}"]
    if words[0] == "train.py":
        words.append("logger=csv")
    return words


def run(kind: str, here: Path, place: Path, *, at: int = 0, after: float = 0.0) -> tuple[int, str, int]:
    """Do a job in a child process, which dies by SIGKILL at an event or after a time.

    Args:
        place: the folder of its store and cache.
        at: the number of the event, from 1; 0: none.
        after: seconds; 0: never.

    Returns:
        How it ended (negative: by that signal), what it said, and how many events there were.
    """
    place.mkdir(exist_ok=True)
    counted, log = place / "events", place / "log"
    process = os.fork()
    if process == 0:
        _be_the_job(kind, here, place, at, after, counted, log)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return status, log.read_text(), int(counted.read_text() or 0) if counted.exists() else 0


def _be_the_job(kind: str, here: Path, place: Path, at: int, after: float, counted: Path, log: Path) -> None:
    """Run the command in this process, which ends."""
    status = 1
    try:
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        os.environ["THINKALIKE_CACHE"] = str(place / "cache")
        sys.argv = words_of(kind, here, place / "store")
        os.chdir(here)
        count = _watch(place, at)
        if after:
            threading.Timer(after, os.kill, (os.getpid(), signal.SIGKILL)).start()
        try:
            importlib.import_module(sys.argv[0].removesuffix(".py")).main()
            status = 0
        except SystemExit as end:
            status = int(end.code or 0)
        counted.write_text(str(count[0]))
        sys.stdout.flush()
    finally:
        os._exit(status)


def _watch(place: Path, at: int) -> list[int]:
    """Count what changes the store or the cache, and die at the event of this number; returns the running count."""
    count, own = [0], (str(place / "store"), str(place / "cache"))

    def hook(event: str, args: tuple) -> None:
        if event == "open":
            path, _, flags = args
            if not (isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)):
                return
        elif event in EVENTS:
            path = args[0]
        else:
            return
        if isinstance(path, (str, os.PathLike)) and str(os.fspath(path)).startswith(own):
            count[0] += 1
            if count[0] == at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    return count


def kills(number: int, kinds: list[str]) -> Iterator[Kill]:
    """Kill jobs of these kinds, this many in all, at moments that are spread over what they do."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        write_files(here)
        for place, kind in enumerate(kinds):
            each = number // len(kinds) + (place < number % len(kinds))
            began = time.monotonic()
            status, said, events = run(kind, here, here / f"{kind}-whole")
            seconds = time.monotonic() - began
            if status:
                yield Kill(kind, "whole", False, f"the whole job failed: {said[-300:]}")
                continue
            for index in range(each):
                share = (index + 0.5) / each
                moment = {"after": seconds * share} if index % 3 == 2 else {"at": max(1, round(events * share))}
                yield _killed(kind, here, f"{kind}-{index}", moment, here / f"{kind}-whole")


def _killed(kind: str, here: Path, name: str, moment: dict, whole: Path) -> Kill:
    place = here / name
    status, _, _ = run(kind, here, place, **moment)
    again, said, _ = run(kind, here, place)
    problem = _problem(again, said, place, whole)
    if not problem and status not in (-signal.SIGKILL, 0):  # 0: it was done before the moment came
        problem = f"it ended with {status} when it was to be killed"
    return Kill(
        kind, ", ".join(f"{key} {value:.3g}" for key, value in moment.items()), "resuming from" in said, problem
    )


def _problem(status: int, said: str, place: Path, whole: Path) -> str:
    """Return what is wrong with a job that was done again, or nothing."""
    from stores import finished

    if status:
        return f"exit {status}: {said[-300:]}"
    results, expected = ({r.kind: r for r in finished(each / "store")} for each in (place, whole))
    if set(results) != set(expected):
        return f"results of {sorted(results)} and not of {sorted(expected)}"
    for kind, result in results.items():
        if result.fingerprint() != expected[kind].fingerprint():
            return f"{kind}: other bytes"
    left = [path for path in place.rglob("*") if path.suffix in {".partial", ".aside", ".lock", ".soft"}]
    return f"left behind: {left}" if left else ""


def import_everything() -> None:
    """Import what jobs import, once for all children."""
    from thinkalike.config import MEASURES, TASKS

    others = ("train", "analyze", "transformer_lens")
    modules = [entry.module for entry in (*MEASURES.values(), *TASKS.values())]
    for module in (*modules, *others):
        importlib.import_module(module)


def main() -> None:
    """Kill as many jobs as the command line says, and print what became of each."""
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    kinds = sys.argv[2:] or list(COMMANDS)
    import_everything()
    failed, on, total, began = 0, 0, 0, time.monotonic()
    for kill in kills(number, kinds):
        total, on, failed = total + 1, on + kill.went_on, failed + bool(kill.problem)
        outcome = kill.problem or ("went on" if kill.went_on else "begun anew")
        print(f"{kill.kind:12s} {kill.moment:12s} {outcome}", flush=True)
    print(f"{total} kills, {on} went on from a state, {failed} problems, {time.monotonic() - began:.0f} s")
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
