"""GGUF files of llama.cpp: what transformers would read of one, and whether it would read it right."""

from __future__ import annotations

import copy
import math
import mmap
import re
import struct
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from thinkalike.digests import content_key
from thinkalike.errors import ModelError, check_extra, listed, one_line
from thinkalike.models.bounds import check_counts

SCALES = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")  # of rotary positions
KEEPS_SCALES = ("gpt-oss",)  # the architectures whose scales transformers reads from a GGUF file
# what a file may state that changes a pass, and of which transformers reads some for each architecture
STATED = re.compile("freq_base|dimension_count|key_length$|epsilon|scale|softcapping|sliding_window|clamp|alibi")
# how llama.cpp cuts texts before it merges bytes, by its names: as GPT-2 does, and as that with each digit alone
LIKE_GPT2 = {"gpt-2", "phi-2", "olmo", "mpt", "jais"}
DIGITS_ALONE = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}
OWN = "take the model's own folder or repository"
# the types of values of the format (github.com/ggml-org/ggml, docs/gguf.md), as `struct` writes them
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
VERSIONS = (2, 3)  # the first one counted in 32 bits, and has no files that are still used
ENTRY = 12  # bytes of the shortest field, with a name of no letters and one byte
DIMENSIONS = 4  # of a tensor at most


def gguf_said(path: Path) -> tuple[Any, str]:
    """Return the configuration of transformers for a GGUF file, and the types of its tensors, such as "Q4_1 x 210".

    A file that transformers cannot read, or would read wrongly, is a ModelError.
    """
    check_extra("gguf", ("gguf", "accelerate"), f"{path} is a GGUF file")
    shape, types, _ = _read(path, content_key(path))
    return copy.deepcopy(shape), types


def cut_as_stated(tokenizer: Any, path: Path) -> Any:
    """Return the tokenizer that transformers made of a GGUF file, with texts cut as the file says before bytes merge.

    A cut that transformers does not know, and would make as GPT-2 does, is a ModelError.
    """
    from tokenizers import pre_tokenizers
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    facts = _read(path, content_key(path))[2]
    cut = facts.get("tokenizer.ggml.pre", "default")
    if cut in DIGITS_ALONE:
        steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    elif facts.get("tokenizer.ggml.model") == "gpt2" and cut not in LIKE_GPT2 | {*GGUF_PRE_TOKENIZER_SPLITS}:
        raise ModelError(f"{path} cuts texts by tokenizer.ggml.pre={cut}, which transformers does not know; {OWN}")
    return tokenizer


class Header(NamedTuple):
    """What a GGUF file states of itself."""

    facts: dict[str, Any]  # its fields of one value
    types: dict[str, str]  # the type of each tensor, such as Q4_1


class _Cursor:
    """Reads the header of a GGUF file in order; what would go beyond the end of the file is a ValueError.

    The `gguf` package and transformers believe all lengths, and make room for 2^60 numbers that are not there.
    """

    def __init__(self, content: mmap.mmap):
        self.content, self.place = content, 0

    def take(self, size: int) -> bytes:
        self.skip(size)
        return self.content[self.place - size : self.place]

    def skip(self, size: int) -> None:
        if size > len(self.content) - self.place:
            raise ValueError(f"it ends within its header: {size:,} bytes are stated at {self.place:,}")
        self.place += size

    def number(self, form: str) -> Any:
        return struct.unpack(f"<{form}", self.take(struct.calcsize(f"<{form}")))[0]

    def count(self, least: int) -> int:
        """Read how many entries follow, of at least so many bytes each."""
        count = int(self.number("Q"))
        if count * least > len(self.content) - self.place:
            raise ValueError(f"it states {count:,} entries, for which it is too short")
        return count

    def text(self) -> str:
        return self.take(self.count(1)).decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        """Read a value; of an array only one of one entry is returned, as a list, and else None."""
        if kind in SCALARS:
            return self.number(SCALARS[kind])
        if kind == STRING:
            return self.text()
        if kind != ARRAY:
            raise ValueError(f"it has a value of the unknown type {kind}")
        inner = int(self.number("I"))
        if inner not in SCALARS and inner != STRING:
            raise ValueError(f"it has an array of values of the type {inner}, which no model needs")
        if inner == STRING:
            count = self.count(8)
            if count == 1:
                return [self.text()]
            for _ in range(count):
                self.skip(self.count(1))
            return None
        size = struct.calcsize(f"<{SCALARS[inner]}")
        count = self.count(size)
        if count == 1:
            return [self.number(SCALARS[inner])]
        self.skip(size * count)
        return None


def read_header(path: Path) -> Header:
    """Return what a GGUF file states; a file that is damaged, or too short for what it states, is a ModelError."""
    try:
        return _header(path)
    except (ValueError, OSError) as error:
        raise ModelError(f"{path}: this GGUF file cannot be read ({one_line(error)}); {OWN}") from error


def _header(path: Path) -> Header:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        cursor = _Cursor(content)
        if cursor.take(4) != b"GGUF":
            raise ValueError("it does not begin with GGUF")
        if (version := cursor.number("I")) not in VERSIONS:
            raise ValueError(f"its version is {version}")
        tensors, fields = cursor.count(ENTRY), cursor.count(ENTRY)
        facts: dict[str, Any] = {}
        for _ in range(fields):
            name = cursor.text()
            value = cursor.value(cursor.number("I"))
            if value is not None:
                facts[name] = value
        types: dict[str, str] = {}
        for _ in range(tensors):
            name, dimensions = cursor.text(), cursor.number("I")
            if dimensions > DIMENSIONS:
                raise ValueError(f"{name} has {dimensions} dimensions")
            entries = math.prod(cursor.number("Q") for _ in range(dimensions))
            kind, start = GGMLQuantizationType(cursor.number("I")), cursor.number("Q")
            in_block, size = GGML_QUANT_SIZES[kind]
            stop = start + entries // in_block * size
            if stop > len(content):
                raise ValueError(f"{name} is stated to end at byte {stop:,} of {len(content):,}")
            if name in types:
                raise ValueError(f"it has two tensors of the name {name}")
            types[name] = kind.name
    return Header(facts, types)


@cache
def _read(path: Path, _content: str) -> tuple[Any, str, dict[str, Any]]:
    """Read what `gguf_said` returns, in seconds, and all fields of one value; another content has another key."""
    from transformers import AutoConfig

    facts, tensors = read_header(path)
    architecture = facts.get("general.architecture")
    if not isinstance(architecture, str):
        raise ModelError(f"{path} states no general.architecture; {OWN}")
    check_counts(facts, path, lambda: len(tensors))
    try:
        shape = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    except Exception as error:  # of any kind, for fields of other types than llama.cpp writes
        raise ModelError(f"{path}: transformers cannot read this GGUF file ({one_line(error)}); {OWN}") from error
    if (parts := facts.get("split.count", 1)) > 1:
        raise ModelError(f"{path} is one of {parts} parts; join them: llama-gguf-split --merge FIRST WHOLE.gguf")
    scales = [name for name in tensors if name in SCALES]
    if (scaling := facts.get(f"{architecture}.rope.scaling.type", "none")) != "none":
        scales.append(f"rope.scaling.type={scaling}")
    if scales and architecture not in KEEPS_SCALES:
        found = f"{path} scales its rotary positions ({listed(scales)})"
        raise ModelError(f"{found}, which transformers does not read from GGUF files; {OWN}")
    if unread := _fill_in(shape, facts, f"{architecture}."):
        raise ModelError(f"{path} states {listed(unread)}, which transformers does not read from GGUF files; {OWN}")
    if getattr(shape, "query_pre_attn_scalar", None) not in (None, getattr(shape, "head_dim", None)):  # 27 billion
        raise ModelError(f"{path} does not state the scale of its attention, which transformers would guess; {OWN}")
    types = Counter(tensors.values())
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
