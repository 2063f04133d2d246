"""What a store of thousands of results takes: `thinkalike results` and `thinkalike report`, each in its own process.

    python benchmarks/listing.py                    # 5,000 results of five kinds in a temporary folder
    python benchmarks/listing.py --results 500

The results are planted, of five kinds, twelve layers, and models of which each pair comes several times. Seconds are of
the whole process, with its start and its imports, by the clock and of the processor, which another load does not move
as much; memory is the most that it held.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd

from thinkalike import store
from thinkalike.config import compose_job
from thinkalike.store import manifest

LAYERS = 12
MODELS = [f"model-{letter}" for letter in "abcdefgh"]
FEATURES = ["number", "tense", "animacy", "word", "length", "frequency", "depth", "case"]
COMMANDS = {"results": ("results",), "results --csv": ("results", "--csv"), "report": ("report",)}


def table_of(kind: str, source: str, target: str, draw: np.random.Generator) -> pd.DataFrame:
    """Return the table of a result, in the form of its kind."""
    if kind == "stitching":
        value = draw.random(LAYERS)
        layers = {"source_layer": range(LAYERS), "target_layer": range(LAYERS), "stitch": "linear"}
        ends = {"penalty": value, "penalty_low": value - 0.1, "penalty_high": value + 0.1, "target_loss": 3.1}
        return pd.DataFrame({"source": source, "target": target, **layers, **ends})
    if kind in ("cka", "mutual_knn"):
        first, second = np.indices((LAYERS, LAYERS)).reshape(2, -1)
        value = draw.random(LAYERS**2)
        layers = {"source_layer": first, "target_layer": second}
        ends = {"value": value, "low": value - 0.1, "high": value + 0.1}
        return pd.DataFrame({"source": source, "target": target, **layers, **ends})
    if kind == "mlem":
        value = draw.random(LAYERS * len(FEATURES))
        ends = {"importance": value, "low": value - 0.1, "high": value + 0.1}
        places = {"layer": np.repeat(range(LAYERS), len(FEATURES)), "feature": FEATURES * LAYERS}
        return pd.DataFrame({"model": source, **places, **ends})
    return pd.DataFrame({"model": [source], "loss": draw.random(1), "unigram_entropy": 6.1})


def plant(place: Path, count: int) -> None:
    """Put finished results into a store; nothing is synchronised with the disk, which would take most of the time."""
    draw = np.random.default_rng(0)
    kinds = ("stitching", "cka", "mutual_knn", "mlem", "loss")
    configurations = {kind: vars_of(kind) for kind in kinds}
    with patch.object(manifest, "sync_to_disk", lambda path: None):
        for number in range(count):
            kind = kinds[number % len(kinds)]
            source, target = draw.choice(MODELS, 2, replace=False)
            names = [str(source), str(target)]
            models = [{"name": name, "dtype": "float32", "revision": "main"} for name in names]
            table = table_of(kind, *names, draw)
            value = float(table.select_dtypes("number").iloc[:, -1].mean())
            job = store.StoredJob(str(place), kind, f"{number:012x}")
            record = {
                "version": 1,
                "scalars": {f"mean_{kind}": value, "documents": 100},
                "settings": {
                    "seed": number,
                    "model": {"name": models[0]["name"]},
                    "target": {"name": models[1]["name"]},
                },
                "headlines": [{"name": f"mean_{kind}", "value": value, "low": value - 0.1, "high": value + 0.1}],
                "provenance": {
                    "date": f"2026-01-01T00:{number // 60 % 60:02}:{number % 60:02}+00:00",
                    "seed": number,
                    "models": models,
                    "command": f"python analyze.py measure={kind} seed={number}",
                    "phases": {"computing": 12.5, "drawing": 1.0},
                    "versions": {"torch": "2.9.0", "thinkalike": "0.1"},
                },
            }
            job.partial.mkdir(parents=True)
            job.write(configurations[kind], record, {"table": table}, {"matrix": np.eye(LAYERS)})
            figures = job.aside / "figures"
            figures.mkdir()
            for name in ("figure.png", "figure.svg"):
                (figures / name).write_bytes(b"0" * 20_000)
            job.appear()
            os.rmdir(job.partial)


def vars_of(kind: str) -> dict[str, Any]:
    """Return a configuration as a result holds it."""
    from dataclasses import asdict

    words = ("train", []) if kind == "stitching" else ("analyze", [f"measure={kind}"])
    return asdict(compose_job(*words))


def main() -> None:
    reads = argparse.ArgumentParser()
    reads.add_argument("--results", type=int, default=5000)
    reads.add_argument("--store", type=Path, help="a folder that is kept, and used again")
    asked = reads.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = asked.store or Path(folder, "results")
        if not place.exists():
            plant(place, asked.results)
        print("| command | seconds | of the processor | MB |\n|---|---|---|---|")
        for name, words in COMMANDS.items():
            page = ["--out", f"{folder}/page.html"] if name == "report" else []
            command = [sys.executable, "-m", "thinkalike", *words, str(place), *page]
            began = time.monotonic()
            with Path(folder, "out").open("wb") as out:
                process = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL)
                _, status, used = os.wait4(process.pid, 0)
            seconds = time.monotonic() - began
            assert os.waitstatus_to_exitcode(status) == 0, name
            processor = used.ru_utime + used.ru_stime
            memory = used.ru_maxrss / 1e3
            print(f"| thinkalike {name} | {seconds:.1f} | {processor:.1f} | {memory:.0f} |", flush=True)


if __name__ == "__main__":
    main()
