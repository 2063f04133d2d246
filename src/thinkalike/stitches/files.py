"""The file in which a result keeps its stitches: their tensors, and which layer pairs they are of."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from thinkalike.errors import StitchError, first_line

NAME = "stitch.safetensors"
LayerPair = tuple[int, int]  # layer of the source, layer of the target


def write_stitches(
    folder: Path,
    tensors: Mapping[str, Tensor],
    pairs: Sequence[LayerPair],
    kind: str,
    norm: str = "none",
    **more: Any,
) -> None:
    """Write the stitches of a result into its folder.

    Args:
        tensors: by name: the number of the layer pair, then that of the part, as in "0.map.weight". Before it stands
            "seed_1." for those of a further seed, and before that "back." for those from the target to the source.
        kind: of the stitches, one of `Stitch` or a closed form.
        more: what else a `Stitch` is made of: widths and rank.
    """
    facts = {"pairs": pairs, "kind": kind, "norm": norm, **more}
    metadata = {"stitch": json.dumps(facts)}  # one entry: the order of several is not kept
    save_file(dict(tensors), folder / NAME, metadata=metadata)


def prefix(seed: int, is_back: bool) -> str:
    """Return what the names of the tensors of one seed and direction begin with; see `write_stitches`."""
    return ("back." if is_back else "") + (f"seed_{seed}." if seed else "")


def opened(path: Path) -> Any:
    """Return a file of stitches, opened; its tensors are read when they are asked for.

    Raises:
        StitchError: It is damaged.
    """
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise StitchError(f"{path} is damaged ({first_line(error)[:200]}): do the job with force=true") from error


def contents(path: Path) -> tuple[dict[str, Any], list[str]]:
    """Return what a file of stitches says of itself, pairs, kind and norm, and the names of its tensors.

    Raises:
        StitchError: It is damaged, or says nothing.
    """
    with opened(path) as file:
        facts = json.loads((file.metadata() or {}).get("stitch", "{}"))
        if not {"pairs", "kind", "norm"} <= facts.keys():
            raise StitchError(f"{path} does not say which layer pairs its stitches are of: do the job with force=true")
        return facts, list(file.keys())
