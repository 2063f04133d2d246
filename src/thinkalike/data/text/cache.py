"""The cache of packed rows, so that a text is tokenised once per tokenizer and shape of rows."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import asdict
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from thinkalike.config import DataConfig
from thinkalike.data.text.rows import Corpus, TokenRows
from thinkalike.errors import DataError

log = logging.getLogger(__name__)


def cache_folder(config: DataConfig) -> Path:
    """Return the folder of all caches: the configured one, or $THINKALIKE_CACHE, or one in the home folder."""
    return Path(config.cache or os.environ.get("THINKALIKE_CACHE") or "~/.cache/thinkalike").expanduser()


def save_corpus(path: Path, corpus: Corpus) -> None:
    """Write a corpus in one step; where that is impossible, warn and go on."""
    arrays = {
        f"{side}.{key}": value
        for side, rows in (("fit", corpus.fit), ("report", corpus.report))
        for key, value in asdict(rows).items()
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f"{path.name}.{os.getpid()}")
        save_file(arrays, aside, metadata={"counts": json.dumps(corpus.counts)})
        os.replace(aside, path)
    except (OSError, SafetensorError) as error:
        log.warning("the token cache %s cannot be written (%s); going on without it", path.parent, error)


def load_corpus(path: Path) -> Corpus:
    """Read a corpus that `save_corpus` wrote.

    Raises:
        DataError: the file is damaged.
    """
    try:
        with safe_open(path, "pt") as file:
            arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            counts = json.loads(file.metadata()["counts"])
        fit, report = (TokenRows(arrays[f"{side}.tokens"], arrays[f"{side}.documents"]) for side in ("fit", "report"))
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise DataError(f"the token cache {path} is damaged ({error}); deleting it is safe") from error
    return Corpus(fit, report, counts)
