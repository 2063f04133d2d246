"""GGUF files of llama.cpp: what transformers reads of one, and whether it reads it right."""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

from thinkalike.digests import content_key
from thinkalike.errors import ModelError, check_extra, listed, one_line
from thinkalike.models.bounds import check_counts
from thinkalike.models.gguf_header import TAKE_ORIGINAL, Header, Value, read_header

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerFast

# The tensors that scale rotary positions, ...
SCALES = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
# ... and the architectures whose scales transformers reads from a GGUF file.
KEEPS_SCALES = ("gpt-oss",)

# The fields that change a pass, of which transformers reads some for each architecture.
CHANGES_A_PASS = re.compile(
    "freq_base|dimension_count|key_length$|epsilon|scale|softcapping|sliding_window|clamp|alibi"
)

# How llama.cpp cuts texts before it merges bytes, by its names: as GPT-2 does, ...
LIKE_GPT2 = {"gpt-2", "phi-2", "olmo", "mpt", "jais"}
# ... and as that with each digit alone.
DIGITS_ALONE = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}


class _Reading(NamedTuple):
    """What was read of a GGUF file.

    Attributes:
        config: The configuration of transformers.
        types: The types of its tensors, such as "Q4_1 x 210, F32 x 62".
        fields: Its fields of one value.
    """

    config: PreTrainedConfig
    types: str
    fields: dict[str, Value]


def gguf_config(path: Path) -> tuple[PreTrainedConfig, str]:
    """Return the configuration of transformers for a GGUF file, and the types of its tensors.

    Types are text, such as "Q4_1 x 210".

    Raises:
        ModelError: transformers cannot read the file, or would read it wrongly.
    """
    check_extra("gguf", ("gguf", "accelerate"), f"{path} is a GGUF file")
    reading = _read_gguf(path, content_key(path))
    return copy.deepcopy(reading.config), reading.types


def cut_as_stated(tokenizer: PreTrainedTokenizerFast, path: Path) -> PreTrainedTokenizerFast:
    """Return the tokenizer that transformers made of a GGUF file, with texts cut as the file says.

    Texts are cut before bytes merge.

    Raises:
        ModelError: transformers does not know the cut, and would make it as GPT-2 does.
    """
    from tokenizers import pre_tokenizers
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    fields = _read_gguf(path, content_key(path)).fields
    cut = fields.get("tokenizer.ggml.pre", "default")
    if cut in DIGITS_ALONE:
        steps = [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
        return tokenizer
    known_cuts = LIKE_GPT2 | set(GGUF_PRE_TOKENIZER_SPLITS)
    if fields.get("tokenizer.ggml.model") == "gpt2" and cut not in known_cuts:
        raise ModelError(
            f"{path} cuts texts by tokenizer.ggml.pre={cut}, which transformers does not know; "
            f"{TAKE_ORIGINAL}"
        )
    return tokenizer


@cache
def _read_gguf(path: Path, _content: str) -> _Reading:
    """Read a GGUF file, which takes seconds.

    Args:
        path: The file.
        _content: What its content is known by, so that a changed file is read again.
    """
    from transformers import AutoConfig

    header = read_header(path)
    fields = header.fields
    architecture = fields.get("general.architecture")
    if not isinstance(architecture, str):
        raise ModelError(f"{path} states no general.architecture; {TAKE_ORIGINAL}")
    check_counts(fields, path, lambda: len(header.types))
    try:
        config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    except Exception as error:  # of any kind, for fields of other types than llama.cpp writes
        raise ModelError(
            f"{path}: transformers cannot read this GGUF file ({one_line(error)}); {TAKE_ORIGINAL}"
        ) from error

    file_count = cast(int, fields.get("split.count", 1))
    if file_count > 1:
        raise ModelError(
            f"{path} is one of {file_count} parts; join them: llama-gguf-split --merge FIRST "
            "WHOLE.gguf"
        )
    scales = _scales_of_positions(header, architecture)
    if scales and architecture not in KEEPS_SCALES:
        raise ModelError(
            f"{path} scales its rotary positions ({listed(scales)}), which transformers does not "
            f"read from GGUF files; {TAKE_ORIGINAL}"
        )
    unread = _fill_in(config, fields, f"{architecture}.")
    if unread:
        raise ModelError(
            f"{path} states {listed(unread)}, which transformers does not read from GGUF files; "
            f"{TAKE_ORIGINAL}"
        )
    # Gemma 2 of 27 billion weights divides by another number than the width of its heads.
    scale_of_attention = getattr(config, "query_pre_attn_scalar", None)
    if scale_of_attention not in (None, getattr(config, "head_dim", None)):
        raise ModelError(
            f"{path} does not state the scale of its attention, which transformers would guess; "
            f"{TAKE_ORIGINAL}"
        )
    counts = Counter(header.types.values()).most_common()
    return _Reading(config, ", ".join(f"{name} x {count}" for name, count in counts), fields)


def _scales_of_positions(header: Header, architecture: str) -> list[str]:
    """Return what scales the rotary positions of a GGUF file."""
    scales = [name for name in header.types if name in SCALES]
    scaling = header.fields.get(f"{architecture}.rope.scaling.type", "none")
    if scaling != "none":
        scales.append(f"rope.scaling.type={scaling}")
    return scales


def _fill_in(config: PreTrainedConfig, fields: Mapping[str, Value], prefix: str) -> list[str]:
    """Put what a file states into its configuration in place of defaults.

    Args:
        config: The configuration, which is changed.
        fields: The fields of the file.
        prefix: The beginning of the names of fields of its architecture.

    Returns:
        The fields for which the configuration has no entry.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    # transformers reads the settings of each kind of layer itself.
    has_rope_of_kinds = any(isinstance(settings, dict) for settings in rope.values())
    unread = []
    # In this order the width of heads comes before that of their rotary part.
    for field, value in sorted(fields.items()):
        name = field.rpartition(".")[2]
        if not field.startswith(prefix) or not CHANGES_A_PASS.search(name) or not value:
            continue
        if has_rope_of_kinds and ".rope." in field:
            continue
        entry = _entry_for(config, name)
        if name == "key_length":
            if hasattr(config, "head_dim") and not hasattr(config, "qk_rope_head_dim"):
                config.head_dim = value
        elif rope and name == "freq_base":
            rope["rope_theta"] = value
        elif rope and name == "dimension_count":
            width = getattr(config, "head_dim", None)
            if not width:
                width = config.hidden_size // config.num_attention_heads
            rotary_width = cast(int, value)
            if rotary_width != width * rope.get("partial_rotary_factor", 1.0):
                rope["partial_rotary_factor"] = rotary_width / width
        elif entry:
            setattr(config, entry, value)
        else:
            unread.append(f"{field}={value}")
    return unread


def _entry_for(config: PreTrainedConfig, name: str) -> str:
    """Return the entry of a configuration for the last part of a field's name.

    It is "" if there is none. The entry of a norm's epsilon has another name, such as
    rms_norm_eps.
    """
    for entry in vars(config):
        if entry == name or (name.endswith("epsilon") and "_eps" in entry):
            return entry
    return ""
