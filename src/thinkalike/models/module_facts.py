"""What a module of a model says of itself: its configuration, its embedding and its tensors."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from jaxtyping import Int
from torch import Tensor, nn

from thinkalike.errors import ModelError, flat
from thinkalike.measures.seeds import seeded

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

Tokens = Int[Tensor, "b t"]

# The largest difference that rounding explains, relative to the largest logit.
TOLERANCE = {
    torch.float64: 1e-10,
    torch.float32: 1e-4,
    torch.float16: 2e-2,
    torch.bfloat16: 1e-1,
}

# The names that configurations give to the longest row, ...
LENGTHS = (
    "max_position_embeddings",
    "n_positions",
    "n_ctx",
    "max_seq_len",
    "max_sequence_length",
    "seq_length",
)
# The names that modules give to a table with a row for each position, ...
POSITIONS = ("wpe", "position_embeddings", "embed_positions", "position_embedding", "pos")
# ... and that configurations give to the number of heads.
HEADS = ("num_attention_heads", "n_heads", "n_head", "num_heads")

# Entries of a configuration that no pass of an evaluated model reads.
UNREAD = re.compile(
    r"^_|dropout|pdrop|^(transformers_version|architectures|dtype|torch_dtype|device|seed|"
    r"model_name|tokenizer_name|n_params|use_cache|gradient_checkpointing\w*|initializer_range|"
    r"init_\w+|id2label|label2id)$"
)


class Checkpoint(NamedTuple):
    """What was read of a checkpoint.

    Attributes:
        module: The module, on its device.
        tokenizer: Its tokenizer.
        longest: The longest row of tokens that it can take; None: nothing limits it.
        quantization: How its weights are or were quantised.
        has_head: Whether it predicts what its family does; else it has states alone.
    """

    module: nn.Module
    tokenizer: PreTrainedTokenizerBase
    longest: int | None
    quantization: str = ""
    has_head: bool = True


def sample_tokens(vocabulary: int, context: int, rows: int = 2, at_most: int = 16) -> Tokens:
    """Return short rows of random token ids, (rows, t), the same each time.

    Args:
        vocabulary: The ids are below this number.
        context: The most tokens that the model takes.
        rows: The number of rows.
        at_most: The tokens of a row, if the context allows as many.
    """
    shape = (rows, min(at_most, context))
    return torch.randint(vocabulary, shape, generator=seeded(0))


def puts_bos(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether a tokenizer puts BOS before a text by itself.

    Llama's and Gemma's do, and GPT-2's does not.
    """
    bos = tokenizer.bos_token_id
    return bos is not None and list(tokenizer("a")["input_ids"][:1]) == [bos]


def accepted(module: nn.Module) -> list[str]:
    """Return the names of the arguments of a module's forward pass, in order.

    `token_type_ids` is left out unless it tells two texts apart: RoBERTa has the argument and
    one type, Gemma marks images by it, and GPT-2 adds the embedding of a word.
    """
    names = list(inspect.signature(module.forward).parameters)
    type_count = getattr(getattr(module, "config", None), "type_vocab_size", 0) or 0
    if type_count > 1:
        return names
    return [name for name in names if name != "token_type_ids"]


def config_of_text_model(module: nn.Module) -> PreTrainedConfig:
    """Return the configuration of a module, or None for one that has none.

    That of a model of transformers for text and images is the part that is about text. A model of
    TransformerLens has one of its own class.
    """
    config = getattr(module, "config", None) or getattr(module, "cfg", None)
    if config is not None and hasattr(config, "get_text_config"):
        return config.get_text_config()
    return config


def padding_of_head(module: nn.Module, tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Return the id of the padding by which a classifier finds where a text ends.

    Where the configuration has none, it is given the tokenizer's padding, end of a text or unknown
    token, in place: without one, classifiers of transformers that need it run on single texts
    only. None means that none of these tokens has a row in the embedding.
    """
    config = config_of_text_model(module)
    if config.pad_token_id is None:
        vocabulary = len(embedding_of(module))
        for token in (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id):
            if token is not None and token < vocabulary:
                config.pad_token_id = token
                break
    return cast(int | None, config.pad_token_id)


def number_in(config: object, names: Sequence[str]) -> int | None:
    """Return the first whole number that a configuration has under one of several names.

    None means that it has none.
    """
    for name in names:
        number = getattr(config, name, None)
        if isinstance(number, int):
            return number
    return None


def longest_row(module: nn.Module) -> int | None:
    """Return how many tokens a row can have by the configuration; None where nothing limits it.

    RoBERTa counts positions from one past the number of its padding token, so that the first ones
    are never used. Some rotary positions are scaled where the longest row of a batch is longer
    than those of the first training; up to that length a state does not depend on the other rows.

    Raises:
        ModelError: A table of positions has fewer rows than the configuration says.
    """
    config = config_of_text_model(module)
    longest = None
    for name in LENGTHS:
        size = getattr(config, name, None)
        if isinstance(size, int) and size > 0:
            longest = size
            _check_positions(module, name, size)
            break
    if longest is None:
        return None
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        longest = min(longest, rope.get("original_max_position_embeddings") or longest)
    for path, submodule in module.named_modules():
        padding = getattr(submodule, "padding_idx", None)
        if path.endswith("embeddings.position_embeddings") and padding is not None:
            return longest - (padding + 1)
    return longest


def _check_positions(module: nn.Module, name: str, size: int) -> None:
    """Raise a ModelError if a table of positions has fewer rows than the configuration says.

    A model with images beside its text is not checked, since a table may be of the parts of an
    image.

    Args:
        module: The module.
        name: The entry of the configuration that has the longest row.
        size: What it says.
    """
    config = config_of_text_model(module)
    if config is not (getattr(module, "config", None) or getattr(module, "cfg", None)):
        return
    # The configuration's own class may call the entry otherwise.
    name = getattr(config, "attribute_map", {}).get(name, name)
    tables: list[tuple[str, Tensor]] = list(module.named_buffers())
    for path, submodule in module.named_modules():
        if isinstance(submodule, nn.Embedding):
            tables.append((path, submodule.weight))
    for path, table in tables:
        is_of_positions = path.rpartition(".")[2] in POSITIONS and table.dim() == 2
        if is_of_positions and len(table) < size:
            raise ModelError(
                f"config.{name}={size}, and {path} has {len(table)} rows, one for each position: "
                f"set config.{name}={len(table)}, or a smaller number"
            )


def entries_of(module: nn.Module, chosen: bool = False) -> dict[str, object]:
    """Return the entries of a configuration that a pass may read, inner ones as "outer.inner".

    A module without a configuration has none.

    Args:
        module: The module, of transformers or, with its settings in `cfg`, of TransformerLens.
        chosen: Whether those that have the default of the class are left out; so are all of a
            class without defaults.
    """
    config = getattr(module, "config", None)
    entries: dict[str, object] = {}
    if config is not None:
        entries = known_entries(config, chosen)
    elif hasattr(module, "cfg") and not chosen:
        entries = vars(module.cfg)
    return flat({name: value for name, value in entries.items() if not UNREAD.search(name)})


def known_entries(config: PreTrainedConfig, chosen: bool = False) -> dict[str, object]:
    """Return the entries of a configuration that its class knows.

    Args:
        config: A configuration of transformers.
        chosen: Whether defaults of the class are left out.
    """
    defaults = type(config)().to_dict()
    entries = {}
    for name, value in config.to_dict().items():
        is_known = name in defaults or hasattr(type(config), name)
        is_default = defaults.get(name) == value
        if is_known and not (chosen and is_default):
            entries[name] = value
    return entries


def embedding_of(module: nn.Module) -> Tensor:
    """Return the token embedding, (vocabulary, width): that which the module names, if it does.

    Otherwise it is the module's first matrix.
    """
    with contextlib.suppress(AttributeError, NotImplementedError):
        model = cast("PreTrainedModel", module)
        return cast(Tensor, model.get_input_embeddings().weight)
    return next(weight for weight in module.parameters() if weight.dim() == 2)


def first_tensor(output: object) -> Tensor:
    """Return the output of a module that returns a tensor, or the first of several."""
    if isinstance(output, Tensor):
        return output
    return cast(Sequence[Tensor], output)[0]


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Return the largest difference, relative to the largest absolute entry of `expected`.

    It is NaN if either holds a NaN, and NaN or infinite if `expected` is zero everywhere.
    """
    return ((actual - expected).abs().max() / expected.abs().max()).item()


def persistent_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Return the buffers of a module and of those inside it that a checkpoint holds, by name."""
    buffers = {}
    for path, submodule in module.named_modules():
        for name, buffer in submodule._buffers.items():
            if buffer is not None and name not in submodule._non_persistent_buffers_set:
                buffers[f"{path}.{name}".lstrip(".")] = buffer
    return buffers


def tensors_of(module: nn.Module, in_order: bool = False) -> Iterator[tuple[str, Tensor]]:
    """Yield all parameters and persistent buffers as (name, tensor).

    Offloaded weights are fetched one module at a time, onto the CPU.

    Args:
        module: The module.
        in_order: Whether they are sorted by name.
    """
    state = module.state_dict()
    names = sorted(state) if in_order else list(state)
    if getattr(module, "hf_device_map", None) is None:
        for name in names:
            yield name, state[name]
        return
    from accelerate.utils import align_module_device

    for name in names:
        owner_path, _, own_name = name.rpartition(".")
        owner = module.get_submodule(owner_path)
        with align_module_device(owner, "cpu"):
            yield name, owner.state_dict()[own_name]
