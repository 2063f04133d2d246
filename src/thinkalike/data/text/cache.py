"""The cache of packed rows, so that a text is tokenised once per tokenizer and shape of rows."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from thinkalike.caches import cache_home
from thinkalike.config import DataConfig
from thinkalike.data.text.rows import Corpus, PairedRows, TokenRows

log = logging.getLogger(__name__)


def cache_folder(config: DataConfig) -> Path:
    """Return the folder of all caches: the configured one, or that of the environment."""
    return Path(config.cache).expanduser() if config.cache else cache_home()


@contextlib.contextmanager
def making(path: Path) -> Iterator[None]:
    """Keep other processes from making the same entry meanwhile; where the cache cannot be written, they may."""
    lock = path.with_suffix(".lock")
    with contextlib.ExitStack() as held:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            held.enter_context(FileLock(lock))
            held.callback(lock.unlink, missing_ok=True)
        except OSError as error:
            log.debug("no lock on %s: %s", path, error)
        yield


def save_corpus(path: Path, corpus: Corpus) -> None:
    """Write a corpus in one step; where that is impossible, warn and go on."""
    arrays = {
        f"{side}.{key}": value
        for side, rows in (("fit", corpus.fit), ("report", corpus.report))
        for key, value in vars(rows).items()
    }
    try:
        aside, about = path.with_suffix(".aside"), {"counts": corpus.counts, "digest": _digest(corpus)}
        save_file(arrays, aside, metadata={"corpus": json.dumps(about)})  # one entry: several have no order
        os.replace(aside, path)
    except (OSError, SafetensorError) as error:
        log.warning("the token cache %s cannot be written (%s); going on without it", path.parent, error)


def load_corpus(path: Path) -> Corpus | None:
    """Read a corpus that `save_corpus` wrote, or return None if there is none; one that is damaged is removed."""
    if not path.exists():
        return None
    try:
        with safe_open(path, "pt") as file:
            arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            about = json.loads(file.metadata()["corpus"])
        corpus = Corpus(_rows("fit", arrays), _rows("report", arrays), about["counts"])
        if _digest(corpus) != about["digest"]:
            raise ValueError("its checksum is not that of what was written")
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        log.warning("the token cache %s is damaged (%s) and is made anew", path, error)
        path.unlink(missing_ok=True)
        return None
    for left in (".lock", ".aside"):  # by a process that died
        path.with_suffix(left).unlink(missing_ok=True)
    return corpus


def _rows(side: str, arrays: dict[str, Tensor]) -> TokenRows:
    """Return the rows of a side, of one tokenizer or of two."""
    parts = {key.removeprefix(f"{side}."): value for key, value in arrays.items() if key.startswith(f"{side}.")}
    return PairedRows(**parts) if "names" in parts else TokenRows(**parts)


def _digest(corpus: Corpus) -> str:
    """Return the SHA-256 of all rows, of what is known of their documents, and of the counts."""
    digest = hashlib.sha256(json.dumps(corpus.counts, sort_keys=True).encode())
    for rows in (corpus.fit, corpus.report):
        for part in vars(rows).values():
            digest.update(part.contiguous().numpy().tobytes())
    return digest.hexdigest()
