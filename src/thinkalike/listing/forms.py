"""Settings by dotted names, and as a command line gives them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def flat(settings: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return nested settings by dotted names."""
    named = {f"{before}{name}": value for name, value in settings.items()}
    inner = [flat(value, f"{name}.") if isinstance(value, Mapping) else {name: value} for name, value in named.items()]
    return {name: value for part in inner for name, value in part.items()}


def written(name: str, value: Any) -> str:
    """Return a setting as a command line gives it: stitch=affine, layers=[[0,0]]."""
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return f"{name.removesuffix('.name').removesuffix('.kind')}={text}"
