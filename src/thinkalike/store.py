"""The results store: a folder per finished job, named by what could change its numbers.

`<store>/<kind>/<key>/` appears only when it is complete. While a job runs, `<key>.partial/` holds what it needs to go
on, and a lock, so that two processes never work on the same job; the lock ends with its process, however that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from thinkalike.config import from_yaml, to_yaml
from thinkalike.errors import StoreError, TrainingError

# what cannot change the numbers of a job
IRRELEVANT = {"store", "force", "logger", "cache", "path", "files", "device", "checkpoint_every", "ship", "threads"}
PACKAGES = ("thinkalike", "torch", "transformers", "transformer-lens", "pytorch-lightning", "datasets", "numpy")


def key_of(config: dict[str, Any], content: dict[str, str]) -> str:
    """The name of a job: a hash of its resolved configuration and of the local files that it reads.

    Args:
        content: digests of local weights and texts, which can change under the same path.
    """
    text = json.dumps([_relevant(config), content], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _relevant(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _relevant(item) for key, item in value.items() if key not in IRRELEVANT}
    return value


def finished_results(store: str, kind: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Folder and configuration of every finished job of a kind; of the configuration, what could change its numbers."""
    for record in sorted(Path(store).expanduser().glob(f"{kind}/*/result.json")):
        yield record.parent, _relevant(from_yaml((record.parent / "config.yaml").read_text()))


class Job:
    """One computation and the folder of its results."""

    def __init__(self, store: str, kind: str, key: str, config: dict[str, Any]):
        self.kind, self.key, self.config, self.store = kind, key, config, Path(store).expanduser()
        self.folder = self.store / kind / key
        self.partial = self.folder.with_name(f"{key}.partial")
        self._out = self.partial / "result"

    @property
    def done(self) -> bool:
        return (self.folder / "result.json").exists()

    @contextlib.contextmanager
    def running(self) -> Iterator[Path]:
        """Hold the job's lock; yields the folder for states to go on from.

        Raises:
            StoreError: the store cannot be written, or another process is at the same job.
        """
        with self._locked():
            self._start = time.monotonic()
            try:
                yield self.partial
            except BaseException as error:
                self._tidy(error)
                raise

    def _locked(self) -> Any:
        """The open lock file, locked; it must still be the one in the folder, which another process may have ended."""
        path = self.partial / "lock"
        try:
            self.partial.mkdir(parents=True, exist_ok=True)
            lock = path.open("w")
        except OSError as error:
            place = self.folder.parent
            raise StoreError(f"the store {place} cannot be written: {error.strerror}; choose store=DIR") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise StoreError(f"another process is computing {self.folder}; wait for it, or stop it") from None
        if path.exists() and os.path.samestat(os.fstat(lock.fileno()), path.stat()):
            return lock
        lock.close()
        return self._locked()

    def _tidy(self, error: BaseException) -> None:
        """Leave nothing behind but a state that the same command can go on from."""
        diverged = isinstance(error, TrainingError)  # it would do so again
        if diverged or not (self.partial / "checkpoints").exists():
            shutil.rmtree(self.partial, ignore_errors=True)
            with contextlib.suppress(OSError):
                self.partial.parent.rmdir()
                self.partial.parent.parent.rmdir()

    def out(self) -> Path:
        """The folder that becomes the result, for files of a job's own."""
        self._out.mkdir(exist_ok=True)
        return self._out

    def finish(
        self,
        scalars: dict[str, float],
        table: pd.DataFrame,
        provenance: dict[str, Any],
        arrays: dict[str, np.ndarray] | None = None,
    ) -> Path:
        """Write the result aside, then let it appear whole."""
        out = self.out()
        (out / "config.yaml").write_text(to_yaml(self.config))
        table.to_csv(out / "table.csv", index=False)
        if arrays:
            np.savez_compressed(out / "arrays.npz", **arrays)  # type: ignore[arg-type]
        record = {
            "kind": self.kind,
            "key": self.key,
            "scalars": scalars,
            "provenance": {**environment(), **provenance, "wall_seconds": round(time.monotonic() - self._start, 1)},
        }
        (out / "result.json").write_text(json.dumps(record, indent=1) + "\n")
        if (self.partial / "curves").exists():
            shutil.move(str(self.partial / "curves"), str(out / "curves"))
        if self.folder.exists():
            shutil.rmtree(self.folder)
        os.replace(out, self.folder)
        shutil.rmtree(self.partial)
        return self.folder


def environment() -> dict[str, Any]:
    """Versions, commit and peak memory of this process."""
    versions = {}
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            versions[package] = version(package)
    gpu = {"peak_gpu_bytes": torch.cuda.max_memory_allocated()} if torch.cuda.is_available() else {}
    return {
        "versions": versions,
        "git_commit": _commit(),
        "threads": torch.get_num_threads(),
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        **gpu,
    }


def _commit() -> str:
    """The commit of the checkout that this code runs from."""
    here = Path(__file__).parent
    run = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=here, capture_output=True, text=True)
    return run.stdout.strip() or "unknown"
