"""GGUF files of llama.cpp: what transformers would read of one, and whether it would read it right."""

from __future__ import annotations

import copy
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

from thinkalike.errors import ModelError, check_extra, listed, one_line

SCALES = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")  # of rotary positions
KEEPS_SCALES = ("gpt-oss",)  # the architectures whose scales transformers reads from a GGUF file
# what a file may state that changes a pass, and of which transformers reads some for each architecture
STATED = re.compile("freq_base|dimension_count|key_length$|epsilon|scale|softcapping|sliding_window|clamp|alibi")
# how llama.cpp cuts texts before it merges bytes, by its names: as GPT-2 does, and as that with each digit alone
LIKE_GPT2 = {"gpt-2", "phi-2", "olmo", "mpt", "jais"}
DIGITS_ALONE = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}
OWN = "take the model's own folder or repository"


def gguf_said(path: Path) -> tuple[Any, str]:
    """Return the configuration of transformers for a GGUF file, and the types of its tensors, such as "Q4_1 x 210".

    A file that transformers cannot read, or would read wrongly, is a ModelError.
    """
    check_extra("gguf", ("gguf", "accelerate"), f"{path} is a GGUF file")
    shape, types, _ = _read(path, path.stat().st_mtime_ns)
    return copy.deepcopy(shape), types


def cut_as_stated(tokenizer: Any, path: Path) -> Any:
    """Return the tokenizer that transformers made of a GGUF file, with texts cut as the file says before bytes merge.

    A cut that transformers does not know, and would make as GPT-2 does, is a ModelError.
    """
    from tokenizers import pre_tokenizers
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    facts = _read(path, path.stat().st_mtime_ns)[2]
    cut = facts.get("tokenizer.ggml.pre", "default")
    if cut in DIGITS_ALONE:
        steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    elif facts.get("tokenizer.ggml.model") == "gpt2" and cut not in LIKE_GPT2 | {*GGUF_PRE_TOKENIZER_SPLITS}:
        raise ModelError(f"{path} cuts texts by tokenizer.ggml.pre={cut}, which transformers does not know; {OWN}")
    return tokenizer


@cache
def _read(path: Path, _changed: int) -> tuple[Any, str, dict[str, Any]]:
    """Read what `gguf_said` returns, in seconds, and all fields of one value; a changed file has another `_changed`."""
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
        found = f"{path} scales its rotary positions ({listed(scales)})"
        raise ModelError(f"{found}, which transformers does not read from GGUF files; {OWN}")
    if unread := _fill_in(shape, facts, f"{architecture}."):
        raise ModelError(f"{path} states {listed(unread)}, which transformers does not read from GGUF files; {OWN}")
    if getattr(shape, "query_pre_attn_scalar", None) not in (None, getattr(shape, "head_dim", None)):  # 27 billion
        raise ModelError(f"{path} does not state the scale of its attention, which transformers would guess; {OWN}")
    types = Counter(tensor.tensor_type.name for tensor in reader.tensors)
    return shape, ", ".join(f"{name} x {count}" for name, count in types.most_common()), facts


def _fill_in(shape: Any, facts: dict[str, Any], prefix: str) -> list[str]:
    """Put what a file states into its configuration in place of defaults, and return what has no place there."""
    rope, unread = getattr(shape, "rope_parameters", None) or {}, []
    layered = any(isinstance(each, dict) for each in rope.values())  # of each kind of layer, which transformers reads
    for key, value in sorted(facts.items()):  # the width of heads before that of their rotary part
        name = key.rpartition(".")[2]
        own = [each for each in vars(shape) if each == name or (name.endswith("epsilon") and "_eps" in each)]
        if not (key.startswith(prefix) and STATED.search(name) and value) or (layered and ".rope." in key):
            continue
        if name == "key_length":
            if hasattr(shape, "head_dim") and not hasattr(shape, "qk_rope_head_dim"):
                shape.head_dim = value
        elif rope and name == "freq_base":
            rope["rope_theta"] = value
        elif rope and name == "dimension_count":
            width = getattr(shape, "head_dim", None) or shape.hidden_size // shape.num_attention_heads
            if value != width * rope.get("partial_rotary_factor", 1.0):
                rope["partial_rotary_factor"] = value / width
        elif own:
            setattr(shape, own[0], value)
        else:
            unread.append(f"{key}={value}")
    return unread
