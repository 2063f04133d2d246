"""GGUF, the files of llama.cpp: which one a path means, and what it says of its model."""

from __future__ import annotations

import copy
import os
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

from thinkalike.errors import ModelError, check_extra, listed

WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")  # a folder that has these is read as transformers wrote it
SCALES = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")  # of rotary positions
KEEPS_SCALES = ("gpt-oss",)  # the architectures whose scales transformers reads from a GGUF file
OWN = "take the model's own folder or repository"


def gguf_in(place: Path) -> Path | None:
    """Return the GGUF file that a path means: itself, or the only one of a folder without other weights.

    Raises:
        ModelError: the folder has several.
    """
    if is_gguf(str(place)):
        return place
    files = sorted(place.glob("*.gguf"))
    if not files or has_weights(place):
        return None
    if len(files) > 1:
        names = listed([file.name for file in files])
        raise ModelError(f"{place} has {len(files)} GGUF files ({names}); name one: model={files[0]}")
    return files[0]


def has_weights(folder: Path) -> bool:
    """Return whether a folder has weights as transformers writes them."""
    return any(next(folder.glob(pattern), None) for pattern in WEIGHTS)


def is_gguf(place: str) -> bool:
    """Return whether a place is a GGUF file, and not a folder or a repository."""
    return place.endswith(".gguf") and Path(place).is_file()


def located(place: str) -> dict[str, str]:
    """Return the arguments by which `from_pretrained` finds a checkpoint: a folder, a repository, or a GGUF file."""
    folder, name = os.path.split(place) if is_gguf(place) else (place, "")
    return {"pretrained_model_name_or_path": folder or ".", **({"gguf_file": name} if name else {})}


def gguf_shape(path: Path) -> dict[str, Any]:
    """Return what a config.json would say of the model in a GGUF file.

    Raises:
        ModelError: see `check_extra`; or transformers cannot read the file, or would read it wrongly.
    """
    return {key: value for key, value in _said(path)[0].to_dict().items() if value is not None}


def gguf_config(place: str) -> Any:
    """Return the configuration of transformers for the model in a GGUF file, which takes seconds to read anew."""
    return copy.deepcopy(_said(Path(place))[0])


def gguf_types(place: str) -> str:
    """Return how the tensors of a GGUF file are quantised, such as "Q4_1 x 210, F32 x 62"; "" for no GGUF file."""
    return _said(Path(place))[1] if is_gguf(place) else ""


def _said(path: Path) -> tuple[Any, str]:
    check_extra("gguf", ("gguf", "accelerate"), f"{path} is a GGUF file")
    return _read(str(path), path.stat().st_mtime_ns)


@cache
def _read(path: str, _changed: int) -> tuple[Any, str]:
    """Return the configuration and the types of a GGUF file; the second argument makes a changed file another one."""
    from gguf import GGUFReader
    from transformers import AutoConfig

    try:
        reader = GGUFReader(path)
        shape = AutoConfig.from_pretrained(**located(path))
    except (ValueError, LookupError, NotImplementedError, OSError) as error:
        raise ModelError(f"{path}: transformers cannot read this GGUF file ({error}); {OWN}") from error
    facts = {name: field.contents() for name, field in reader.fields.items() if len(field.data) == 1}
    if (parts := facts.get("split.count", 1)) > 1:
        raise ModelError(f"{path} is one of {parts} parts; join them: llama-gguf-split --merge FIRST WHOLE.gguf")
    scales = [tensor.name for tensor in reader.tensors if tensor.name in SCALES]
    architecture = facts["general.architecture"]
    if (scaling := facts.get(f"{architecture}.rope.scaling.type", "none")) != "none":
        scales.append(f"rope.scaling.type={scaling}")
    if scales and architecture not in KEEPS_SCALES:
        raise ModelError(
            f"{path} scales its rotary positions ({listed(scales)}), which transformers does not read from GGUF files, "
            f"so that all states would be wrong; {OWN}"
        )
    types = Counter(tensor.tensor_type.name for tensor in reader.tensors)
    named = ", ".join(f"{name} x {count}" for name, count in types.most_common())
    return shape, named
