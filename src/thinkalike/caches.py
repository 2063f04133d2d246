"""Where caches are."""

from __future__ import annotations

import os
from pathlib import Path


def cache_home() -> Path:
    """Return the folder of all caches: $THINKALIKE_CACHE, or one in the home folder."""
    return Path(os.environ.get("THINKALIKE_CACHE") or "~/.cache/thinkalike").expanduser()
