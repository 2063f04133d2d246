"""What a module of a model says of itself: its configuration, its embedding and its tensors."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    """Return random token ids below `vocabulary`, the same in each call, for a test of a model.

    The shape is (rows, t), where t is the smaller of `at_most` and `context`, the most tokens that
    the model takes.
    """
    row_length = min(at_most, context)
    return torch.randint(vocabulary, (rows, row_length), generator=seeded(0))


def puts_bos(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether a tokenizer puts its BOS token before a text by itself.

    Llama's and Gemma's do, and GPT-2's does not. It is tried on the text "a".
    """
    bos = tokenizer.bos_token_id
    first_ids = list(tokenizer("a")["input_ids"][:1])
    return bos is not None and first_ids == [bos]


def forward_argument_names(module: nn.Module) -> list[str]:
    """Return the names of the arguments of a module's forward pass, in order.

    `token_type_ids` is left out unless the configuration states at least two types of tokens, as
    BERT's does for the two texts of a pair. Other models mean something else by the argument:
    RoBERTa has only one type, Gemma marks images by it, and GPT-2 adds the embedding of a word.
    """
    names = list(inspect.signature(module.forward).parameters)
    config = getattr(module, "config", None)
    type_count = getattr(config, "type_vocab_size", 0) or 0
    if type_count > 1:
        return names
    return [name for name in names if name != "token_type_ids"]


def config_of_text_model(module: nn.Module) -> PreTrainedConfig:
    """Return the configuration of a module, or None if it has none.

    For a model of transformers that also reads images, it is the section about the text model. A
    model of TransformerLens keeps its configuration in `cfg`, in a class of its own.
    """
    config = getattr(module, "config", None) or getattr(module, "cfg", None)
    if config is not None and hasattr(config, "get_text_config"):
        return config.get_text_config()
    return config


def padding_of_head(module: nn.Module, tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Return the padding id, by which a classifier finds where a text ends; set one if needed.

    Without a padding id in its configuration, a classifier of transformers that needs one runs
    only on single texts. So if the configuration has none, this function sets it, in place: to the
    tokenizer's padding, end-of-text or unknown token, the first of these that has a row in the
    embedding. None is returned if none of them has a row.
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
    """Return a configuration's entry under the first of `names` that holds a whole number.

    None means that no entry of these names holds one.
    """
    for name in names:
        entry = getattr(config, name, None)
        if isinstance(entry, int):
            return entry
    return None


def longest_row(module: nn.Module) -> int | None:
    """Return how many tokens the configuration allows in a row; None: it states no limit.

    Raises:
        ModelError: A table of position embeddings has fewer rows than the configuration says.
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

    # LongRoPE scales the positions of all rows of a batch once one row is longer than the rows of
    # the original training. Up to that length a state does not depend on the other rows.
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        longest = min(longest, rope.get("original_max_position_embeddings") or longest)

    # RoBERTa counts positions from the one after its padding id, so that rows of its table up to
    # this id are never used.
    for path, submodule in module.named_modules():
        padding_id = getattr(submodule, "padding_idx", None)
        if path.endswith("embeddings.position_embeddings") and padding_id is not None:
            return longest - (padding_id + 1)
    return longest


def _check_positions(module: nn.Module, name: str, size: int) -> None:
    """Raise a ModelError if a table of position embeddings has too few rows.

    A model that also reads images is not checked, since a table may be for the parts of an image.

    Args:
        module: The model.
        name: The entry of the configuration that states the longest row, for the message.
        size: The value of that entry: the rows that a table must have.
    """
    config = config_of_text_model(module)
    # If a model also reads images, a section of its configuration, another object, is about text.
    whole_config = getattr(module, "config", None) or getattr(module, "cfg", None)
    reads_text_alone = config is whole_config
    if not reads_text_alone:
        return
    # For the message: the name of the entry in config.json, such as GPT-2's n_positions.
    name = getattr(config, "attribute_map", {}).get(name, name)
    tables: list[tuple[str, Tensor]] = list(module.named_buffers())
    for path, submodule in module.named_modules():
        if isinstance(submodule, nn.Embedding):
            tables.append((path, submodule.weight))
    for path, table in tables:
        last_name = path.rpartition(".")[2]
        is_of_positions = last_name in POSITIONS and table.dim() == 2
        if is_of_positions and len(table) < size:
            raise ModelError(
                f"config.{name}={size}, and {path} has {len(table)} rows, one for each position: "
                f"set config.{name}={len(table)}, or a smaller number"
            )


def entries_of(module: nn.Module, without_defaults: bool = False) -> dict[str, object]:
    """Return the entries of a model's configuration that can change its output, by name.

    An entry of a section has the name "section.entry". A module without a configuration has none.

    Args:
        module: A model of transformers, or one of TransformerLens, whose settings are in `cfg`.
        without_defaults: Whether to leave out entries that have the default of the configuration's
            class. The settings of TransformerLens have no defaults to compare with, so all of them
            are left out then.
    """
    config = getattr(module, "config", None)
    entries: dict[str, object] = {}
    if config is not None:
        entries = known_entries(config, without_defaults)
    elif hasattr(module, "cfg") and not without_defaults:
        entries = vars(module.cfg)
    # The entries that `UNREAD` matches, such as dropout, change no output in evaluation mode.
    return flat({name: value for name, value in entries.items() if not UNREAD.search(name)})


def known_entries(config: PreTrainedConfig, without_defaults: bool = False) -> dict[str, object]:
    """Return the entries of a transformers configuration that its class knows, by name.

    A config.json may have further entries, which are left out, since no code of the class reads
    them. With `without_defaults`, entries that have the default of the class are left out, too.
    """
    defaults = type(config)().to_dict()
    entries = {}
    for name, value in config.to_dict().items():
        is_known = name in defaults or hasattr(type(config), name)
        is_default = defaults.get(name) == value
        if is_known and not (without_defaults and is_default):
            entries[name] = value
    return entries


def embedding_of(module: nn.Module) -> Tensor:
    """Return the weight of the token embedding, (vocabulary, width).

    It is that of `get_input_embeddings()`, or the first matrix of a module without this method.
    """
    with contextlib.suppress(AttributeError, NotImplementedError):
        model = cast("PreTrainedModel", module)
        return cast(Tensor, model.get_input_embeddings().weight)
    return next(weight for weight in module.parameters() if weight.dim() == 2)


def first_tensor(output: object) -> Tensor:
    """Return the main tensor of a module's output.

    It is the output itself if that is a tensor. If the output has an entry "logits", it is this
    entry, since a loss may come before it. Of any other sequence, it is the first member.
    """
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping) and "logits" in output:
        return cast(Tensor, output["logits"])
    return cast(Sequence[Tensor], output)[0]  # outputs of transformers take numbers, too


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Return max |actual - expected| / max |expected|, over all entries.

    It is NaN if either holds a NaN, and NaN or infinite if `expected` is zero everywhere.
    """
    return ((actual - expected).abs().max() / expected.abs().max()).item()


def largest_relative_error(pairs: Iterable[tuple[Tensor, Tensor]]) -> float:
    """Return the largest relative error of pairs (actual, expected), or NaN if one of them is NaN.

    Python's `max` would miss a NaN that does not come first, so torch's is used.
    """
    errors = [relative_error(actual, expected) for actual, expected in pairs]
    return torch.tensor(errors, dtype=torch.float64).max().item()


@contextlib.contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Put a module into evaluation mode, and each of its modules back into its mode afterwards."""
    was_training = {submodule: submodule.training for submodule in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for submodule, training in was_training.items():
            submodule.training = training


def persistent_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that a checkpoint of a module holds, by name.

    Buffers of its submodules are included. Buffers that are registered as not persistent, which
    `state_dict()` leaves out, are not.
    """
    buffers = {}
    for path, submodule in module.named_modules():
        for name, buffer in submodule._buffers.items():
            if buffer is not None and name not in submodule._non_persistent_buffers_set:
                buffers[f"{path}.{name}".lstrip(".")] = buffer
    return buffers


def tensors_of(module: nn.Module, in_order: bool = False) -> Iterator[tuple[str, Tensor]]:
    """Yield all parameters and persistent buffers of a module as (name, tensor).

    Weights that accelerate has offloaded are fetched onto the CPU, one module at a time.

    Args:
        module: A model, or a part of one.
        in_order: Whether to sort by name. Otherwise the order is that of `state_dict()`.

    Raises:
        ModelError: Something among the weights is no tensor, as in layers whose weights
            `torch.ao.quantization` has packed.
    """
    state = module.state_dict()
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise ModelError(
                f"{name} of {type(module).__name__} is a {type(value).__name__} and not a tensor, "
                "as where torch.ao.quantization packs weights, so that its weights cannot be "
                "read: give the model as it was before quantize_dynamic or convert"
            )
    names = sorted(state) if in_order else list(state)
    if getattr(module, "hf_device_map", None) is None:  # accelerate has not spread the model
        for name in names:
            yield name, state[name]
        return
    from accelerate.utils import align_module_device

    for name in names:
        owner_path, _, own_name = name.rpartition(".")
        owner = module.get_submodule(owner_path)
        with align_module_device(owner, "cpu"):
            yield name, owner.state_dict()[own_name]
