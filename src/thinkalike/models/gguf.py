"""GGUF files of llama.cpp: what transformers would read of one, and whether it would read it right."""

from __future__ import annotations

import copy
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

from thinkalike.errors import ModelError, check_extra, listed, one_line

SCALES = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")  # of rotary positions
KEEPS_SCALES = ("gpt-oss",)  # the architectures whose scales transformers reads from a GGUF file
OWN = "take the model's own folder or repository"


def gguf_said(path: Path) -> tuple[Any, str]:
    """Return the configuration of transformers for a GGUF file, and the types of its tensors, such as "Q4_1 x 210".

    Raises:
        ModelError: see `check_extra`; or transformers cannot read the file, or would read it wrongly.
    """
    check_extra("gguf", ("gguf", "accelerate"), f"{path} is a GGUF file")
    shape, types = _read(path, path.stat().st_mtime_ns)
    return copy.deepcopy(shape), types


@cache
def _read(path: Path, _changed: int) -> tuple[Any, str]:
    """Read what `gguf_said` returns, which takes seconds; the second argument makes a changed file another one."""
    from gguf import GGUFReader
    from transformers import AutoConfig

    try:
        reader = GGUFReader(path)
        shape = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    except (ValueError, LookupError, NotImplementedError, OSError) as error:
        raise ModelError(f"{path}: transformers cannot read this GGUF file ({one_line(error)}); {OWN}") from error
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
    return shape, ", ".join(f"{name} x {count}" for name, count in types.most_common())
