"""A stitch as a folder that can be shared: `model.safetensors`, `config.json` with its two sites, and a model card."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from thinkalike.errors import StitchError, first_line
from thinkalike.stitches.site import Site

WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"
FORMAT = "thinkalike affine stitch"
VERSION = 1  # of the format


class Parts(NamedTuple):
    """What a stitch consists of."""

    weight: Tensor
    bias: Tensor
    source: Site
    target: Site


def write(folder: Path, parts: Parts) -> None:
    """Write the files of a stitch into a folder that is there."""
    tensors = {"weight": parts.weight.detach().cpu().contiguous(), "bias": parts.bias.detach().cpu().contiguous()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    sites = {"source": asdict(parts.source), "target": asdict(parts.target)}
    (folder / CONFIG).write_text(json.dumps({"format": FORMAT, "version": VERSION, **sites}, indent=1) + "\n")
    (folder / CARD).write_text(card(parts))


def read(folder: Path) -> Parts:
    """Read the files of a stitch.

    Raises:
        StitchError: A file is missing or damaged, or holds something else than one stitch.
    """
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise StitchError(f"{folder} has no {name}; give a folder that StitchMap.save wrote")
    config = _read_config(folder / CONFIG)
    try:
        sites = [Site(**config[side]) for side in ("source", "target")]
        tensors = load_file(folder / WEIGHTS)
    except (KeyError, TypeError) as error:
        raise StitchError(
            f"{folder / CONFIG} does not say what the stitch is between ({error}): take another"
        ) from None
    except (SafetensorError, OSError) as error:
        raise StitchError(f"{folder / WEIGHTS} is damaged ({first_line(error)[:200]}): get it anew") from error
    if tensors.keys() != {"weight", "bias"}:
        raise StitchError(f"{folder / WEIGHTS} holds {', '.join(sorted(tensors))}, and a stitch is a weight and a bias")
    return Parts(tensors["weight"], tensors["bias"], *sites)


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text())
        stated = (config["format"], config["version"])
    except (ValueError, KeyError, TypeError) as error:
        raise StitchError(f"{path} is not that of a stitch ({first_line(error)}): give one that was saved") from None
    if stated != (FORMAT, VERSION):
        raise StitchError(f"{path} says {stated[0]}, version {stated[1]}, and this reads {FORMAT}, version {VERSION}")
    return dict(config)


def card(parts: Parts) -> str:
    """Return the text of the model card."""
    source, target = parts.source, parts.target
    width_out, width_in = parts.weight.shape
    rows = "\n".join(
        f"| {side} | {site.model} | {site.revision} | {site.layer} | {width} | {site.dtype} | `{site.fingerprint}` |"
        for side, site, width in (("source", source, width_in), ("target", target, width_out))
    )
    return f"""---
library_name: thinkalike
tags:
- model-stitching
- representation-similarity
---

# A stitch from {source} to {target}

An affine map, W h + b, from the residual stream of {source.model} after block {source.layer} to that of {target.model}
after block {target.layer}. It holds no weights of either model.

| | model | revision | block | width | dtype | fingerprint of the weights |
|---|---|---|---|---|---|---|
{rows}

```python
from thinkalike import StitchMap, load_model

stitch = StitchMap.from_pretrained("ORG/NAME")  # this repository
states = stitch(load_model("{source.model}").head(tokens, {source.layer}))  # (batch, position, {width_out})
```

The map fits states of these weights alone: a model with another fingerprint is refused when a stitched model is made.
That the stitched model does well does not show that the two models are alike.
"""
