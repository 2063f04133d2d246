"""GGUF files of llama.cpp: what transformers reads of one, and whether it reads it right."""

from __future__ import annotations

import contextlib
import copy
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast
from unittest.mock import patch

from thinkalike.digests import content_key
from thinkalike.errors import ModelError, ThinkalikeError, check_extra, listed, one_line, short
from thinkalike.models.bounds import check_counts
from thinkalike.models.checkpoints import is_gguf
from thinkalike.models.gguf_header import TAKE_ORIGINAL, Header, Value, read_header

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

# The tensors that scale rotary positions, ...
SCALES = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
# ... and the architectures whose scales transformers reads from a GGUF file.
KEEPS_SCALES = ("gpt-oss",)

# What is in the last part of the name of a field that changes a pass. Of these fields transformers
# reads some for each architecture; `_fill_in` deals with the others.
CHANGES_A_PASS = re.compile(
    "freq_base|dimension_count|key_length$|epsilon|scale|softcapping|sliding_window|clamp|alibi"
)

# Fields of which the shapes of tensors tell as much. Only the tensors count: a file is refused
# where they do not fit the model that transformers makes, which reads some of these fields; a
# wrong value of any other is ignored, ...
TOLD_BY_SHAPES = {
    "vocab_size",
    "context_length",
    "feed_forward_length",
    "expert_feed_forward_length",
    "expert_shared_feed_forward_length",
    "attention.head_count_kv",
    "attention.value_length",
}
# ... those that change no state, as they are of pooling, of generation or of the converter, ...
WITHOUT_EFFECT = {
    "pooling_type",
    "classifier.output_labels",
    "decoder_start_token_id",
    "tensor_data_layout",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
}
# ... and those that a configuration of transformers calls by a different name, with this name.
NAMES_IN_CONFIG = {
    "decoder_block_count": "num_decoder_layers",
    "expert_weights_norm": "norm_topk_prob",
    "shared_kv_layers": "num_kv_shared_layers",
    "embedding_length_per_layer_input": "hidden_size_per_layer_input",
}

# The ends of fields that no shape tells: without one of these, transformers takes the default of a
# class, which is the setting of one checkpoint.
NEEDED = ("epsilon", "attention.head_count", "expert_used_count")

# The base of rotary positions that llama.cpp takes where a file states none.
USUAL_BASE = 10_000.0

# Factors, which change nothing if they are 1.
FACTORS = re.compile("scale|factor")

# The fields that the format has as true or false, ...
FLAGS = re.compile(
    r"\.(add_(bos|eos|sep)_token|add_space_prefix|remove_extra_whitespaces|attention\.causal"
    r"|use_parallel_residual|expert_weights_norm|rope\.scaling\.finetuned)$"
)
# ... and as a text. All others that are read are numbers, ...
TEXTS = re.compile(
    r"^general\.(architecture|name|type)$|^tokenizer\.ggml\.(model|pre)$|\.rope\.scaling\.type$"
)
# ... but for patterns, which are a number, or true or false for each layer.
PATTERNS = ("_pattern",)

# The ends of fields that are sizes, which are never 0 where transformers reads them.
SIZES = ("_length", "_count")

# Tensors of positions that every implementation computes.
COMPUTED = re.compile(r"\.attn_rot_embd\.")

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
    """Return transformers' configuration for a GGUF file, and the types of the file's tensors.

    The types are one text, such as "Q4_1 x 210, F32 x 62". The configuration is a new copy.

    Raises:
        ModelError: transformers cannot read the file, or would read it wrongly.
    """
    check_extra("gguf", ("gguf", "accelerate"), f"{path} is a GGUF file")
    reading = _read_gguf(path, content_key(path))  # cached by the file's content
    return copy.deepcopy(reading.config), reading.types


def split_words_as_stated(
    tokenizer: PreTrainedTokenizerFast, path: Path
) -> PreTrainedTokenizerFast:
    """Make a tokenizer split texts into words (before BPE) as its GGUF file states, and return it.

    The file names a rule, which transformers follows with two exceptions. It does not make each
    digit a word of its own where the rule says so: for such rules, the pre-tokenizer is replaced
    in place. And it follows the rule of GPT-2 in place of one that is missing or that it does not
    know, which is refused here unless both come to the same.

    Args:
        tokenizer: The tokenizer that transformers made of the file.
        path: The GGUF file.

    Raises:
        ModelError: The file states no rule, or one that transformers does not know, and
            transformers would split as GPT-2 does.
    """
    from tokenizers import pre_tokenizers
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    fields = _read_gguf(path, content_key(path)).fields
    rule_name = fields.get("tokenizer.ggml.pre")
    if rule_name in DIGITS_ALONE:
        steps = [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
        return tokenizer
    # Only byte-level BPE has such a rule, and "gpt2" is its name in GGUF files of any model. The
    # rules in LIKE_GPT2 are that of the model GPT-2 under other names.
    is_byte_level_bpe = fields.get("tokenizer.ggml.model") == "gpt2"
    known_rules = LIKE_GPT2 | set(GGUF_PRE_TOKENIZER_SPLITS)
    if is_byte_level_bpe and rule_name not in known_rules:
        if rule_name is None:
            raise ModelError(
                f"{path} states no tokenizer.ggml.pre, the rule by which texts are cut; "
                f"{TAKE_ORIGINAL}"
            )
        raise ModelError(
            f"{path} cuts texts by tokenizer.ggml.pre={rule_name}, which transformers does not "
            f"know; {TAKE_ORIGINAL}"
        )
    return tokenizer


@cache
def _read_gguf(path: Path, _content: str) -> _Reading:
    """Return the configuration, tensor types and fields of a GGUF file; they are cached.

    Reading takes seconds.

    Args:
        path: The file.
        _content: A key of the file's content. It is unused here except as part of the cache's key,
            so that a changed file is read again.

    Raises:
        ModelError: transformers cannot read the file, or would read it wrongly.
    """
    try:
        return _checked_reading(path)
    except ThinkalikeError:
        raise
    except Exception as error:  # which one depends on the fault, such as an unknown type of tensor
        raise ModelError(
            f"{path}: transformers cannot read this GGUF file ({one_line(error)}); {TAKE_ORIGINAL}"
        ) from error


def _checked_reading(path: Path) -> _Reading:
    """Return what a GGUF file says, and refuse what transformers would read wrongly.

    What the file states and transformers does not read is put into the configuration where that
    has an entry for it.

    Raises:
        ModelError: The file is of no whole model, or some setting would be lost or guessed.
    """
    from transformers import AutoConfig

    header = read_header(path)
    fields = header.fields
    architecture = fields.get("general.architecture")
    if not isinstance(architecture, str):
        raise ModelError(f"{path} states no general.architecture; {TAKE_ORIGINAL}")
    check_counts(fields, path, lambda: len(header.types))
    config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name, trust_remote_code=False)

    _check_is_model(fields, path)
    _check_special_tokens(header, path)
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

    read_fields = _fields_read(path, architecture, config)
    prefix = f"{architecture}."
    _check_types_of_fields(header, path, prefix, read_fields)
    # `_fill_in` reads the width of rotary positions, whether or not transformers does.
    for name in sorted(read_fields | {"rope.dimension_count"}):
        size = fields.get(f"{prefix}{name}")
        if name.endswith(SIZES) and isinstance(size, int) and size <= 0:
            raise ModelError(f"{path} states {prefix}{name}={size}, a size; {TAKE_ORIGINAL}")
    guessed = _guessed_settings(header, config, prefix, read_fields)
    if guessed:
        raise ModelError(
            f"{path} does not state {listed(guessed)}, which transformers would guess; "
            f"{TAKE_ORIGINAL}"
        )
    unread = _fill_in(config, fields, prefix)
    unread += _fields_without_reader(header, config, prefix, read_fields)
    if unread:
        raise ModelError(
            f"{path} states {listed(unread)}, which transformers does not read from GGUF files; "
            f"{TAKE_ORIGINAL}"
        )
    # Gemma 2 of 27 billion weights scales attention by another number than the width of its heads.
    scale_of_attention = getattr(config, "query_pre_attn_scalar", None)
    if scale_of_attention not in (None, getattr(config, "head_dim", None)):
        raise ModelError(
            f"{path} does not state the scale of its attention, which transformers would guess; "
            f"{TAKE_ORIGINAL}"
        )
    counts = Counter(header.types.values()).most_common()
    return _Reading(config, ", ".join(f"{name} x {count}" for name, count in counts), fields)


def _check_is_model(fields: Mapping[str, Value], path: Path) -> None:
    """Raise a ModelError if the fields of a GGUF file say that it is no whole model.

    Such a file holds an adapter, for example, or the projector of a model that reads images.
    """
    file_type = fields.get("general.type", "model")
    adapter_fields = [name for name in fields if name.startswith("adapter.")]
    if file_type != "model" or adapter_fields:
        stated = adapter_fields or [f"general.type={short(file_type)}"]
        raise ModelError(
            f"{path} is no whole model, as it states {listed(stated)}; give the GGUF file of the "
            "model"
        )


def _check_types_of_fields(
    header: Header, path: Path, prefix: str, read_fields: Collection[str]
) -> None:
    """Raise a ModelError if a field of a GGUF file has another type than the format gives it.

    Python would take the text "false" for true, and true for the number 1. Fields that the format
    has as true or false (FLAGS) or as texts (TEXTS) are always checked. Others must be numbers, or
    arrays of numbers, if they are read or change a pass; but a field with a PATTERN of layers may
    have true or false for each layer.

    Args:
        header: The header of the file.
        path: The file, for the message.
        prefix: The architecture's name and a dot, with which names of its fields begin.
        read_fields: The fields that transformers reads, without the prefix.
    """
    for field in {**header.lengths, **header.fields}:
        value = header.fields.get(field)  # None: an array of several entries
        entries = value if isinstance(value, list) else [value]
        name = field.removeprefix(prefix)
        is_of_model = field.startswith(prefix)
        changes_a_pass = bool(CHANGES_A_PASS.search(name.rpartition(".")[2]))
        is_read_of_model = is_of_model and (name in read_fields or changes_a_pass)
        must_be_number = is_read_of_model and not field.endswith(PATTERNS)
        right_type = "a number"
        is_right = True
        if FLAGS.search(field):
            right_type = "true or false"
            is_right = isinstance(value, bool)
        elif TEXTS.search(field):
            right_type = "a text"
            is_right = isinstance(value, str)
        elif must_be_number or field.endswith("_token_id"):
            is_right = not any(isinstance(entry, bool | str) for entry in entries)
        if not is_right:
            shown = "an array" if value is None else short(repr(value))
            raise ModelError(
                f"{path} states {field}={shown}, which is not {right_type}; {TAKE_ORIGINAL}"
            )


def _check_special_tokens(header: Header, path: Path) -> None:
    """Raise a ModelError if a special token of a GGUF file, such as BOS, has an impossible id.

    A file without tokens is refused as well.
    """
    from transformers.integrations import GGUF_CONFIG_MAPPING

    token_count = header.lengths.get("tokenizer.ggml.tokens", 0)
    if not token_count:
        raise ModelError(f"{path} has no tokens (tokenizer.ggml.tokens); {TAKE_ORIGINAL}")
    for name in GGUF_CONFIG_MAPPING["tokenizer"]:  # such as ggml.bos_token_id
        token_id = header.fields.get(f"tokenizer.{name}")
        if isinstance(token_id, int) and not 0 <= token_id < token_count:
            raise ModelError(
                f"{path} states tokenizer.{name}={token_id}, and has {token_count:,} tokens; "
                f"{TAKE_ORIGINAL}"
            )


def _scales_of_positions(header: Header, architecture: str) -> list[str]:
    """Return the tensors and fields of a GGUF file that scale rotary positions, for a message.

    Tensors, such as "rope_freqs.weight", are given by name, and fields as "name=value". Fields
    without effect, such as a factor of 1, are left out.

    Args:
        header: The header of the file.
        architecture: The architecture as the file calls it, with which names of fields begin.
    """
    scales = [name for name in header.types if name in SCALES]
    prefix = f"{architecture}."
    for field, value in header.fields.items():
        name = field.removeprefix(prefix)
        is_scaling = field.startswith(prefix) and name.startswith("rope.scaling.")
        has_effect = name not in WITHOUT_EFFECT and not _has_no_effect(name, value)
        if is_scaling and has_effect:
            scales.append(f"{name}={short(value)}")
    return scales


def _has_no_effect(name: str, value: Value) -> bool:
    """Return whether a field of a GGUF file has no effect with this value.

    Values without effect are False, "none", an empty text, 0, and for a factor 1. Attention is
    causal by default, so "attention.causal" has no effect if it is True. `name` is the name of the
    field without the architecture in front.
    """
    if name == "attention.causal":
        return value is True
    if FACTORS.search(name) and value == 1:
        return True
    return not value or value == "none"


class _RecordingFields(dict[str, object]):
    """Fields of a file that remember which of them were read, whether or not the file has them."""

    def __init__(self, fields: Mapping[str, object]):
        super().__init__(fields)
        self.read_names: set[str] = set()

    def __getitem__(self, name: str) -> object:
        self.read_names.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: object = None) -> object:
        self.read_names.add(name)
        return super().get(name, default)


def _fields_read(path: Path, architecture: str, config: PreTrainedConfig) -> set[str]:
    """Return the names of the GGUF fields that transformers reads for an architecture.

    Names have no prefix: "block_count" and not "llama.block_count". For newer architectures,
    transformers reads the fields by functions; these are called here on a dictionary that records
    which fields are read. For all others it has a table of fields.

    Args:
        path: The file.
        architecture: The architecture as the file calls it.
        config: The configuration that transformers made of the file.
    """
    from transformers.integrations import GGUF_CONFIG_MAPPING
    from transformers.integrations.gguf import (
        GGUF_CONFIG_ARCHS,
        get_gguf_config,
        read_gguf_metadata,
    )

    if architecture in GGUF_CONFIG_ARCHS:
        metadata, tensor_names = read_gguf_metadata(str(path))
        fields = _RecordingFields(metadata)
        get_gguf_config(fields, tensor_names)
        return {name.partition(".")[2] for name in fields.read_names}
    # The table may list an architecture by llama.cpp's name or by that of transformers.
    entries: Mapping[str, str | None] = {}
    for name in (architecture, str(config.model_type)):
        entries = GGUF_CONFIG_MAPPING.get(name, entries)
    # An entry of None is a field that transformers knows, but does not read.
    return {name for name, entry in entries.items() if entry is not None}


def _guessed_settings(
    header: Header, config: PreTrainedConfig, prefix: str, read_fields: Collection[str]
) -> list[str]:
    """Return the names of needed fields that a GGUF file lacks, so that transformers would guess.

    The needed fields are those in `NEEDED`, such as the number of heads, which do not follow from
    the shapes of tensors. The base of rotary positions is one of them if the default of
    transformers for this architecture differs from that of llama.cpp (10,000).

    Args:
        header: The header of the file.
        config: The configuration that transformers made of it.
        prefix: The architecture's name and a dot, with which names of its fields begin.
        read_fields: The fields that transformers reads, without the prefix.

    Returns:
        The names of fields; "llama.*epsilon" stands for any field that ends in "epsilon".
    """
    stated_names = []
    for field in (*header.fields, *header.lengths):  # fields of one value, and arrays
        if field.startswith(prefix):
            stated_names.append(field)
    guessed = []
    for ending in NEEDED:
        is_read = any(name.endswith(ending) for name in read_fields)
        is_stated = any(name.endswith(ending) for name in stated_names)
        if is_read and not is_stated:
            guessed.append(f"{prefix}*{ending}")
    rope = getattr(config, "rope_parameters", None) or {}
    is_base_stated = f"{prefix}rope.freq_base" in stated_names
    is_base_usual = rope.get("rope_theta", USUAL_BASE) == USUAL_BASE
    if not is_base_stated and not is_base_usual:
        guessed.append(f"{prefix}rope.freq_base")
    return guessed


def _fields_without_reader(
    header: Header, config: PreTrainedConfig, prefix: str, read_fields: Collection[str]
) -> list[str]:
    """Return the fields of a GGUF file that may change the model's output, but that nothing reads.

    A field is not returned if transformers reads it, if the configuration has its value already,
    or if it has no effect. Two kinds of fields are not returned either, because other functions of
    this module deal with them: `_fill_in` with those whose name matches `CHANGES_A_PASS`, and
    `_scales_of_positions` with the scales of rotary positions (rope.scaling).

    Args:
        header: The header of the file.
        config: The configuration that transformers made of it.
        prefix: The architecture's name and a dot, with which names of its fields begin.
        read_fields: The fields that transformers reads, without the prefix.

    Returns:
        First the fields of one value, as "name=value", and then the arrays, as "name of 3
        entries". Both lists are in alphabetical order.
    """
    unread = []
    known_names = {*read_fields, *TOLD_BY_SHAPES, *WITHOUT_EFFECT}
    for field, value in sorted(header.fields.items()):
        name = field.removeprefix(prefix)
        if not field.startswith(prefix) or name in known_names:
            continue
        last_part = name.rpartition(".")[2]
        is_dealt_with_elsewhere = CHANGES_A_PASS.search(last_part) or name.startswith(
            "rope.scaling."
        )
        if is_dealt_with_elsewhere or _has_no_effect(name, value):
            continue
        name_in_config = NAMES_IN_CONFIG.get(last_part, last_part)
        if getattr(config, name_in_config, None) != value:
            unread.append(f"{field}={short(value)}")
    for field, length in sorted(header.lengths.items()):
        name = field.removeprefix(prefix)
        # An array of one entry is also in `header.fields`, as its value, and was checked above.
        was_checked = field in header.fields
        if field.startswith(prefix) and not was_checked and name not in known_names:
            unread.append(f"{field} of {length} entries")
    return unread


def _fill_in(config: PreTrainedConfig, fields: Mapping[str, Value], prefix: str) -> list[str]:
    """Put settings that a GGUF file states, and transformers did not read, into its configuration.

    Args:
        config: The configuration that transformers made of the file, which is changed in place.
        fields: The fields of the file.
        prefix: The architecture's name and a dot, with which names of its fields begin.

    Returns:
        The fields for which the configuration has no attribute, as "name=value".
    """
    rope = getattr(config, "rope_parameters", None) or {}
    # Where types of layers have rotary positions of their own, transformers reads them itself.
    has_rope_by_layer_type = any(isinstance(settings, dict) for settings in rope.values())
    unread = []
    # In this order the width of heads comes before that of their rotary part.
    for field, value in sorted(fields.items()):
        name = field.rpartition(".")[2]
        if not field.startswith(prefix) or not CHANGES_A_PASS.search(name) or not value:
            continue
        if has_rope_by_layer_type and ".rope." in field:
            if not _is_read_for_a_layer_type(config, name, value):
                unread.append(f"{field}={short(value)}")
            continue
        attribute = _attribute_of(config, name)
        if name == "key_length":
            # With multi-head latent attention, head_dim is the width of a key's rotated part.
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
        elif attribute:
            setattr(config, attribute, value)
        elif not _has_no_effect(name, value):
            unread.append(f"{field}={short(value)}")
    return unread


def _is_read_for_a_layer_type(config: PreTrainedConfig, name: str, value: Value) -> bool:
    """Return whether transformers has read a setting of rotary positions for some type of layer.

    A width or a base counts as read if the configuration that transformers made has the file's
    value for some type. Any other setting is assumed to have been read.

    Args:
        config: A configuration with separate settings of positions for each type of layer, such as
            layers with a sliding window.
        name: The last part of the name of the field.
        value: The value that the file states.
    """
    widths = (getattr(config, "head_dim", None), getattr(config, "global_head_dim", None))
    if "dimension_count" in name:
        return value in widths
    if "freq_base" in name:
        bases = [settings.get("rope_theta") for settings in config.rope_parameters.values()]
        return value in bases
    return True


@contextlib.contextmanager
def all_tensors_read(place: str, heads: re.Pattern[str]) -> Iterator[None]:
    """Let transformers refuse, while the context is open, a GGUF file with superfluous tensors.

    By itself it ignores tensors that the model does not have, at least for older architectures.
    Its function that maps the names of tensors is replaced by one that also checks them.

    Args:
        place: The file, folder or repository that is read. Only a GGUF file is checked.
        heads: Matches the names of heads that the model may lack, and whose tensors are allowed.

    Raises:
        ModelError: The file has a tensor that the model does not have.
    """
    from transformers import modeling_gguf_pytorch_utils

    if not is_gguf(place):
        yield
        return
    types = read_header(Path(place)).types
    map_names = modeling_gguf_pytorch_utils.get_gguf_hf_weights_map

    def map_names_checked(
        model: PreTrainedModel, processor: object, *options: object, qual_name: str = ""
    ) -> dict[str, str]:
        """Map names as transformers does, and check that all tensors of the file are mapped."""
        mapped: dict[str, str] = map_names(model, processor, *options, qual_name=qual_name)
        if qual_name:  # the function calls itself for a submodule, which has some of the tensors
            return mapped
        unread = []
        for name in types:
            may_be_unread = name in SCALES or COMPUTED.search(name) or heads.search(name)
            # A tensor's name may end in ".weight" where that of the parameter does not.
            is_read = name in mapped or name.removesuffix(".weight") in mapped
            if not may_be_unread and not is_read:
                unread.append(name)
        if unread:
            raise ModelError(
                f"{place} has tensors that its model does not have: {listed(sorted(unread))}; "
                f"{TAKE_ORIGINAL}"
            )
        return mapped

    with patch.object(modeling_gguf_pytorch_utils, "get_gguf_hf_weights_map", map_names_checked):
        yield


def _attribute_of(config: PreTrainedConfig, name: str) -> str:
    """Return the name of the attribute of a configuration that holds a setting of a GGUF file.

    It is the same as the name in the file, except for the epsilon of a norm: the file calls it
    layer_norm_rms_epsilon, for example, and the configuration rms_norm_eps. "" means that the
    configuration has no such attribute.

    Args:
        config: The configuration that transformers made of the file.
        name: The last part of the name of the file's field.
    """
    is_epsilon = name.endswith("epsilon")
    for attribute in vars(config):
        if attribute == name or (is_epsilon and "_eps" in attribute):
            return attribute
    return ""
