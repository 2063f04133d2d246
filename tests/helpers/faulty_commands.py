"""Command lines that fail, and what is checked of each."""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from conftest import ROOT

FILES = {
    "surrogate.jsonl": '{"text": "fine"}\n{"text": "\\ud800"}\n',
    "blank.txt": " \n\t\n",
    "words.csv": "text,a,b\nred,1,x\nblue,2,y\ngreen,3,x\n",
    "broken.conllu": "1\tx\n",
    "folder/notes": "",
    "listed/config.json": "[]",
    "deep/config.json": '{"a":' * 10**5 + "1" + "}" * 10**5,
    "layers/config.json": '{"model_type": "gpt2", "n_layer": 10000000}',
    "index/config.json": '{"model_type": "gpt2", "n_layer": 2}',
    "index/model.safetensors.index.json": '{"weight_map": ["a"]}',
    "file": "no folder",
    "notnpz.npz": "no archive",
    "own/model/broken.yaml": "name: [\n",
    "own/model/odd.yaml": "name: odd\nlayers: 3\n",
    "own/measures.yaml": "defaults: [analyze, {override measure: cka}, _self_]\nmeasure: {folds: 3}\n",
    "own/dates.yaml": "defaults: [train, _self_]\nseed: 2026-01-01\n",
}


BYTES = {"nul.txt": b"\x00" * 64, "latin.txt": b"\xff\xfe\xe4"}


def write_files(folder: Path) -> None:
    """Write the files that bad lines name."""
    for name, content in [*((name, text.encode()) for name, text in FILES.items()), *BYTES.items()]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def files(folder: Path) -> set[Path]:
    """Return what is in a folder, where a line's own store is, too, but for caches and Hydra's record of a sweep."""
    found = {path for path in folder.rglob("*") if path.is_file()}
    return {path for path in found if path.relative_to(folder).parts[0] not in ("cache", "hf", "multirun")}


def check_refused(line, cli, tmp_path):
    write_files(tmp_path)
    before = files(tmp_path)
    script, *words = shlex.split(line.replace("{here}", str(tmp_path)))
    refused = cli(f"{script}.py", *words, *([] if "store=" in line else [f"store={tmp_path}/store"]))
    assert refused.status == 1, refused.stderr
    assert "Traceback" not in refused.stderr
    assert refused.stderr.count("error: ") == 1 or "of the sweep's jobs failed:" in refused.stderr
    assert files(tmp_path) == before


def ended(words: list[str], folder: Path, before: Callable[[], None] = lambda: None, **streams) -> tuple[int, str]:
    """Run train.py in a process that `before` sets limits on; returns its status and stderr."""
    environment = {**os.environ, "THINKALIKE_CACHE": str(folder / "cache")}
    done = subprocess.run(
        [sys.executable, str(ROOT / "train.py"), *words],
        cwd=folder, env=environment, preexec_fn=before, stderr=subprocess.PIPE, text=True, timeout=240,
        **{"stdout": subprocess.DEVNULL, **streams},
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stderr


def one_line(status: int, said: str) -> str:
    assert status == 1, said
    assert [line for line in said.splitlines() if line.startswith("error: ")] == said.splitlines()[-1:]
    return said.splitlines()[-1]
