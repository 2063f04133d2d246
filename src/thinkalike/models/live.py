"""Loading a model that is in memory: it is copied, and the copy gives what the model gives."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn

from thinkalike.advice import named_setting
from thinkalike.config import ModelConfig
from thinkalike.config.parts import model_settings
from thinkalike.config.schema import declared_of
from thinkalike.errors import ConfigError, ModelError
from thinkalike.memory import out_of_memory_error
from thinkalike.models.assembly import at_sites, check_settings, frozen_model
from thinkalike.models.copies import bytes_spanned, copied, has_added_code, tensors_held
from thinkalike.models.description import Description, bytes_of
from thinkalike.models.families import (
    DEFAULT_CONTEXT,
    FAMILIES,
    Family,
    family_in,
    is_known_class,
    pick_device,
    stated_quantization,
)
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.identity import long_sample_row, note_libraries
from thinkalike.models.loading_errors import explaining_loading_errors
from thinkalike.models.model_config import configured
from thinkalike.models.module_facts import (
    TOLERANCE,
    Checkpoint,
    embedding_of,
    evaluation_mode,
    first_tensor,
    longest_row,
    relative_error,
    sample_tokens,
)
from thinkalike.models.precision import cast_weights
from thinkalike.models.survey import FailedPass, added_outputs_off, explaining_pass_errors
from thinkalike.models.traits import described_traits
from thinkalike.processes import doing

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# The rows of an embedding that no token may have: a share and a number. Models pad theirs by 3 %
# at most.
PADDING_SHARE = 0.1
PADDING_ROWS = 256

# The share of the ids of two tokenizers of one vocabulary that stand for the same token.
SAME_SHARE = 0.9

# A type whose entries have so many bytes, and which every device can copy.
INTEGER_OF_SIZE = {
    1: torch.uint8,
    2: torch.int16,
    4: torch.int32,
    8: torch.int64,
    16: torch.complex128,
}


class _Live(NamedTuple):
    """A model in memory.

    Attributes:
        original: The model as it was given.
        module: The same, or a copy of the model that a TransformerBridge wraps.
        tokenizer: Its tokenizer.
        name: The name that it was given.
        is_bridge: Whether the module is a copy of what a TransformerBridge wraps.
        is_adapted: Whether it is a PeftModel.
    """

    original: nn.Module
    module: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str | None
    is_bridge: bool
    is_adapted: bool


def load_live(
    module: PreTrainedModel | TransformerBridge,
    tokenizer: PreTrainedTokenizerBase | None,
    name: str | None,
    settings: Mapping[str, object],
) -> FrozenModel:
    """Return a copy of a model in memory as a FrozenModel.

    Args:
        module: The model: of transformers, of PEFT, or a TransformerBridge.
        tokenizer: Its tokenizer, which a bridge need not be given.
        name: Its name; None: that of the folder or repository it was read from, or its class.
        settings: Settings of `model=` by name. Without a dtype or device it keeps its own.

    Raises:
        TypeError: It is no such model, or has no tokenizer.
        ConfigError: A setting does not apply to a model in memory.
        ModelError: The copy cannot be made, gives something else, or fails the proof.
    """
    live = _checked_model(module, tokenizer, name)
    _check_applicable(settings)
    config = _config_of(live, settings)
    with explaining_loading_errors(config), doing(f"model {config.name}"):
        family = _family_of(live.module.get_base_model() if live.is_adapted else live.module)
        check_settings(config, family)
        # The outputs of the model and its copy can be compared unless states are those of a part
        # of the model, a classifier may need padding first, or another dtype rounds.
        has_same_output = family.predicts in ("next", "hidden") and "dtype" not in settings
        expected = None
        if has_same_output and not live.is_bridge:
            expected = _outputs_as_given(live.module, config.name)

        device = torch.device(pick_device(config.device))
        copy = _copy_on_device(live, config, device, casts="dtype" in settings)
        with _explaining_failure_of_copy(live.module, config.name):
            frozen = _frozen_copy(live, copy, config, family, device)
        if expected is not None:
            _check_output_of_copy(frozen, live.module, expected)
        note_libraries(frozen)
        if _has_code_of_user(live):
            _check_copy_has_own_weights(frozen, live.original)
            frozen.prove_again()
        return at_sites(frozen, config, config.name)


@contextlib.contextmanager
def _explaining_failure_of_copy(module: PreTrainedModel, name: str) -> Iterator[None]:
    """Explain a failed pass of a model's copy: either the model itself fails as well, or it runs.

    The model's own error is raised if it fails. Passes of the copy are run while the context is
    open.

    Args:
        module: The model that was copied.
        name: Its name in errors.

    Raises:
        ModelError: A pass of the copy failed, and the model itself runs.
    """
    try:
        yield
    except FailedPass as error:
        _outputs_as_given(module, name)  # raises the error of the model itself, if it has one
        raise ModelError(
            f"{name}: it runs, but a copy of it fails on sample tokens ({error.reason}), as where "
            "code of your own reads an attribute or the gradient of a weight, which a copy of the "
            "weight does not have; keep it in an attribute of a module"
        ) from error


def _has_code_of_user(live: _Live) -> bool:
    """Return whether a model in memory runs code that its user added, such as a hook.

    Of a TransformerBridge, the copy without wrappers is searched (`live.module`): code on the
    wrappers themselves was refused when the copy was made.
    """
    from thinkalike.models.adapters import PEFT

    own_package = PEFT if live.is_adapted else ""  # whose hooks are part of an adapted model
    if any(has_added_code(module, own_package) for module in live.module.modules()):
        return True
    # Code may also be where no attribute of a module holds it, as in a function of a library.
    description = Description(live.module)
    described_traits(live.module, description)
    return not description.is_complete


def _checked_model(
    module: PreTrainedModel | TransformerBridge,
    tokenizer: PreTrainedTokenizerBase | None,
    name: str | None,
) -> _Live:
    """Check that a model in memory and its tokenizer can be loaded, and return both with a name.

    A TransformerBridge is replaced by a copy of the model that it wraps, and its own tokenizer and
    name are used if none are given. It is recognised by the name of its class, since importing
    the class takes seconds.

    Raises:
        TypeError: `module` is no model of transformers, PEFT or TransformerLens, or `tokenizer`
            is missing or is no tokenizer.
        ModelError: The tokenizer has dropout, or the model has no weights.
    """
    from transformers import PreTrainedModel

    from thinkalike.models.tokenizer_reading import dropout_of

    original = module
    is_bridge = type(module).__name__ == "TransformerBridge"
    is_adapted = hasattr(module, "peft_config") and hasattr(module, "get_base_model")
    if is_bridge:
        from thinkalike.models.bridges import tokenizer_of, unbridged

        if tokenizer is None:
            tokenizer = tokenizer_of(module.tokenizer)
        name = name or Path(module.cfg.model_name).name
        module = unbridged(module)
    is_model = is_bridge or is_adapted or isinstance(module, PreTrainedModel)
    is_tokenizer = callable(tokenizer) and hasattr(tokenizer, "get_vocab")
    if not is_model or not is_tokenizer:
        raise TypeError(
            "load_model takes a PreTrainedModel of transformers or a TransformerBridge and its "
            f"tokenizer, not {type(module).__name__} and {type(tokenizer).__name__}"
        )
    # Weights that accelerate keeps elsewhere are on meta as well.
    is_offloaded = hasattr(module, "hf_device_map")
    if not is_offloaded and all(weight.is_meta for weight in module.parameters()):
        raise ModelError(
            f"{name or type(module).__name__} has no weights, as it is on the device meta: read "
            "them by from_pretrained"
        )
    dropout = dropout_of(tokenizer)
    if dropout:
        raise ModelError(
            f"the tokenizer has dropout={dropout:g}, with which a text has other ids at every "
            "call: set tokenizer.backend_tokenizer.model.dropout = None"
        )
    return _Live(original, module, tokenizer, name, is_bridge, is_adapted)


def _check_applicable(settings: Mapping[str, object]) -> None:
    """Raise a ConfigError for a setting that has no meaning for a model in memory.

    Such a setting is one that says where weights are read from. `settings` has the values of the
    settings of `model=` by name.
    """
    applicable_names = set()
    for setting in fields(model_settings()):
        # Each setting declares whether it applies to models in memory.
        if declared_of(setting).in_memory:
            applicable_names.add(setting.name)
    for name in settings.keys() - applicable_names:
        raise ConfigError(
            f"{named_setting(f'model.{name}')} does not apply to a model passed in memory; "
            "leave it out"
        )


def _config_of(live: _Live, settings: Mapping[str, object]) -> ModelConfig:
    """Return the configuration of a model in memory with these settings.

    By default the model keeps its dtype and device, rows begin with BOS only if the tokenizer adds
    it by itself, and no data set is tied to the model. Its name is the one that was given, or else
    that of the folder or repository that it was read from, or else that of its class.
    """
    embedding = embedding_of(live.module)
    name = live.name
    if not name:
        name = Path(live.module.name_or_path or type(live.module).__name__).name
    defaults = {
        "dtype": embedding.dtype,
        "device": embedding.device,
        "bos": None,
        "corpus": None,
    }
    return configured(model_settings(name=name), {**defaults, **settings})


def _copy_on_device(
    live: _Live, config: ModelConfig, device: torch.device, casts: bool
) -> PreTrainedModel:
    """Return a copy of a model in memory on a device, with its adapter merged if it has one.

    Args:
        live: The model in memory.
        config: The configuration of the model.
        device: The device of the copy.
        casts: Whether weights are cast to the dtype of the configuration. Else each weight keeps
            its own dtype: some may be in float32 on purpose.
    """
    if live.is_bridge:
        copy = live.module  # it is already a copy of the model that the bridge wraps
    elif live.is_adapted:
        from thinkalike.models.adapters import live_adapter

        copy = live_adapter(live.module, config.name)
    else:
        copy = copied(live.module)
    if casts:
        return cast_weights(copy, device, getattr(torch, config.dtype))
    return copy.to(device)


def _frozen_copy(
    live: _Live,
    copy: PreTrainedModel,
    config: ModelConfig,
    family: Family,
    device: torch.device,
) -> FrozenModel:
    """Return a FrozenModel that runs a copy of a model in memory.

    For a family whose head is not used, it runs only the part of the model that computes states.
    That the tokenizer fits is not checked if the user asked for this by `config.implausible`.

    Args:
        live: The model in memory, whose tokenizer is copied here.
        copy: The copy of the model.
        config: The configuration of the model.
        family: The family of the model.
        device: The device of states and logits.

    Raises:
        ModelError: The tokenizer does not fit, or the copy cannot be cut at its blocks.
    """
    from thinkalike.models.readers import part_with_states

    module = copy
    if family.predicts == "states":
        module = part_with_states(copy, config, family)
    config_json = copy.config.to_dict() if hasattr(copy, "config") else {}
    quantization = stated_quantization(config_json)
    tokenizer = deepcopy(live.tokenizer)  # the user may change it later
    checkpoint = Checkpoint(module, tokenizer, longest_row(copy), quantization)
    if not config.implausible:
        check_tokenizer(copy, tokenizer, config.name)
    return frozen_model(
        config, family, checkpoint, name=config.name, device=device, revision="in memory"
    )


def _outputs_as_given(module: PreTrainedModel, name: str) -> torch.Tensor:
    """Return the first output of a model in memory for sample tokens, in evaluation mode.

    In a language model it is the logits, (b, t, v), for b rows of t tokens. Afterwards each module
    is in the mode, training or evaluation, in which it was before. `name` is the model's name in
    errors.
    """
    embedding = embedding_of(module)
    # The same tokens as in `_check_output_of_copy`.
    tokens = sample_tokens(len(embedding), longest_row(module) or DEFAULT_CONTEXT)
    with torch.no_grad(), explaining_pass_errors(name), evaluation_mode(module):
        output = module(tokens.to(embedding.device))
        return first_tensor(output).clone()


def _check_output_of_copy(
    model: FrozenModel, original: PreTrainedModel, expected: torch.Tensor
) -> None:
    """Raise a ModelError unless a copy of a model gives the output of the model itself.

    The error names one of two causes: the original's cache of keys and values, or else code of the
    user that holds its weights.

    Args:
        model: The copy.
        original: The model that was copied.
        expected: The output of the original for the same sample tokens, (b, t, v).
    """
    vocabulary = len(embedding_of(model.module))
    tokens = sample_tokens(vocabulary, longest_row(model.module) or DEFAULT_CONTEXT)
    actual = model.full(tokens).to(expected)
    error = relative_error(actual, expected)
    allowed = TOLERANCE[model.dtype]
    if error <= allowed:
        return

    # The copy ran without a cache of the keys and values of earlier tokens. Perhaps the original
    # gives the same output without its cache.
    with added_outputs_off(original):
        without_cache = _outputs_as_given(original, model.name)
    if relative_error(actual, without_cache) <= allowed:
        raise ModelError(
            f"{model.name}: its logits are others (by {error:.1e} of the largest) with its cache "
            "of keys and values than without, as where two blocks have the same layer_idx; give "
            "each block its own, or set config.use_cache=False"
        )
    raise ModelError(
        f"{model.name}: a copy of it gives other logits (by {error:.1e} of the largest), as "
        "where code of your own holds its weights, so that it cannot be frozen; save it, and "
        "give its folder"
    )


def _check_copy_has_own_weights(model: FrozenModel, original: nn.Module) -> None:
    """Raise a ModelError if a copy of a model computes with tensors of the original.

    Code of the user may hold them where copying does not look, such as in a weak reference or a
    NumPy array. So all numbers of the original are set to zero for a pass of the copy, and no
    module of the copy may then give another output, or fail. Logits alone would not show all: a
    norm can remove what such code does to a state.

    Args:
        model: The copy.
        original: The model that was copied.
    """
    digests_before: dict[str, list[str]] = {}
    digests_without_original: dict[str, list[str]] = {}
    _note_digests_of_outputs(model, digests_before)
    has_failed = False
    with _without_numbers(original):
        try:
            _note_digests_of_outputs(model, digests_without_original)
        # Code of the user may raise any exception, such as for a division by zero.
        except Exception as error:
            if out_of_memory_error(error):
                raise
            has_failed = True
    if digests_without_original == digests_before and not has_failed:
        return
    # Sums on a GPU may round differently in each pass, which shows nothing.
    digests_again: dict[str, list[str]] = {}
    _note_digests_of_outputs(model, digests_again)
    for path, digests in digests_before.items():
        is_repeatable = digests == digests_again.get(path)
        if is_repeatable and digests != digests_without_original.get(path):
            place = path or type(model.module).__name__
            raise ModelError(
                f"{model.name}: a copy of it computes with weights of the original from {place} "
                "on, as code of your own holds them where they are not copied, such as in a weak "
                "reference, a NumPy array, an object (also one whose __deepcopy__ returns "
                "itself), a class or a function of a library; make the module a default argument "
                "of a hook or forward that runs this code, or save the model and give its folder"
            )


def _note_digests_of_outputs(model: FrozenModel, outputs: dict[str, list[str]]) -> None:
    """Note digests of what each module of a model gives for a long row of sample tokens.

    Args:
        model: The model.
        outputs: It is filled with the digests by the paths of modules: one for each time that the
            module runs.
    """

    def record(path: str, module: nn.Module, args: object, output: object) -> None:
        """Note the digest of a module's main output, as a hook after the module at `path`."""
        main_output = None
        with contextlib.suppress(LookupError, TypeError):  # it may be empty, or no sequence
            main_output = first_tensor(output)
        if isinstance(main_output, torch.Tensor):
            digest = hashlib.sha256(bytes_of(main_output)).hexdigest()
            outputs.setdefault(path, []).append(digest)

    with contextlib.ExitStack() as hooks:
        for path, module in model.module.named_modules():
            hooks.enter_context(module.register_forward_hook(functools.partial(record, path)))
        with explaining_pass_errors(model.name):
            model.full(long_sample_row(model, model.context))


@contextlib.contextmanager
def _without_numbers(module: nn.Module) -> Iterator[None]:
    """Set all tensors that a model holds to zero while the context is open.

    Zeros are written into the memory of each tensor, so that all who share this memory see them,
    and its numbers are restored from a copy. Two kinds of memory are not written: that of a file
    that was mapped for reading, which cannot be, and that which other processes or a file share,
    which must not be. A tensor in such memory is given zeros in other memory instead. A tensor of
    a subclass that has no memory of its own keeps its values.
    """
    numbers_and_copies: list[tuple[torch.Tensor, torch.Tensor]] = []
    tensors_not_to_write: list[tuple[torch.Tensor, torch.Tensor]] = []  # with their data
    shared_ranges = _shared_address_ranges()
    seen: set[tuple[object, ...]] = set()
    for tensor in tensors_held(module):
        numbers = _integers_in_memory_of(tensor)
        if numbers is None:
            continue
        start = numbers.data_ptr()
        is_shared = any(first <= start < end for first, end in shared_ranges)
        if is_shared or not _can_be_written(numbers):
            tensors_not_to_write.append((tensor, tensor.data))
            continue
        place = (numbers.data_ptr(), numbers.shape, numbers.stride(), numbers.dtype)
        if place not in seen:  # tensors may share numbers
            seen.add(place)
            numbers_and_copies.append((numbers, numbers.clone()))
    try:
        for numbers, _ in numbers_and_copies:
            numbers.zero_()
        for tensor, data in tensors_not_to_write:
            tensor.data = torch.zeros_like(data)
        yield
    finally:
        for numbers, copy_of_numbers in numbers_and_copies:
            numbers.copy_(copy_of_numbers)
        for tensor, data in tensors_not_to_write:
            tensor.data = data


def _integers_in_memory_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return a tensor of integers that shares the memory of a tensor.

    When the integers are written, the tensor changes without the notice of autograd. If autograd
    noticed, it would refuse a later backward pass through the tensor. Entries of the tensor that
    share one number in memory, as after `Tensor.expand`, are in the result once. None means that
    the tensor has no memory.
    """
    start, end = bytes_spanned(tensor)
    if start == end:
        return None
    numbers = torch.empty(0, dtype=INTEGER_OF_SIZE[tensor.element_size()], device=tensor.device)
    numbers.set_(  # type: ignore[call-overload]
        tensor.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride()
    )
    for axis, stride in enumerate(numbers.stride()):
        if stride == 0:
            numbers = numbers.narrow(axis, 0, 1)
    return numbers


def _shared_address_ranges() -> list[tuple[int, int]]:
    """Return the ranges of addresses that are shared with a file or with other processes.

    Only Linux tells; elsewhere there are none.
    """
    maps = Path("/proc/self/maps")
    if not maps.is_file():
        return []
    ranges = []
    for line in maps.read_text(errors="replace").splitlines():
        addresses, permissions = line.split(maxsplit=2)[:2]  # 7f0a-7f0c rw-s ...
        if permissions.endswith("s"):
            start, end = addresses.split("-")
            ranges.append((int(start, 16), int(end, 16)))
    return ranges


def _can_be_written(numbers: torch.Tensor) -> bool:
    """Return whether the memory of a tensor can be written.

    The operating system is asked to write the first and the last byte as they are: to write them
    here would end the process if they are read-only. It is taken to be writable on other devices
    than the CPU, and on systems that cannot be asked.
    """
    if numbers.device.type != "cpu" or not hasattr(os, "readv"):
        return True
    start, end = bytes_spanned(numbers)
    reader, writer = os.pipe()
    try:
        for address in (start, end - 1):
            os.write(writer, ctypes.string_at(address, 1))
            os.readv(reader, [(ctypes.c_char * 1).from_address(address)])
    except OSError:
        return False
    finally:
        os.close(reader)
        os.close(writer)
    return True


def _family_of(module: PreTrainedModel) -> Family:
    """Return the family of a model in memory: what it predicts, and where its blocks are.

    Its class decides, or a base class. If transformers knows none of these, the family is that of
    the model without its head.

    Raises:
        ModelError: No class of transformers reads the architecture.
    """
    if not hasattr(module, "config"):  # a model of TransformerLens's own classes
        return FAMILIES["native"]
    # A subclass of a class of transformers predicts the same.
    class_names = [base.__name__ for base in type(module).__mro__]
    if not is_known_class(str(module.config.model_type), class_names):
        class_names = [type(module.base_model).__name__]
    config_json = {**module.config.to_dict(), "architectures": class_names}
    return family_in(config_json, class_names[0])


def check_tokenizer(
    module: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, name: str
) -> None:
    """Check, as far as can be known, that a tokenizer is that of a model in memory.

    - Its ids leave no more of the embedding's rows unused than a tenth of them, or 256.
    - Where `name_or_path` of the model is a folder, or a repository that was downloaded, the
      tokenizer there gives nine tenths of their common ids to the same tokens. Added tokens are no
      difference.

    Raises:
        ModelError: It is of another vocabulary, for which the embedding would give the states of
            other words.
    """
    vocabulary: Mapping[str, int] = {}
    if hasattr(tokenizer, "get_vocab"):
        vocabulary = tokenizer.get_vocab()
    if not vocabulary:
        return
    remedy = (
        "give the tokenizer that the model was trained with, or load_model(..., implausible=True)"
    )
    rows = len(embedding_of(module))
    used_rows = max(vocabulary.values()) + 1
    if rows - used_rows > max(PADDING_SHARE * rows, PADDING_ROWS):
        raise ModelError(
            f"{name}: its embedding has {rows} rows, and the tokenizer uses {used_rows} of them: "
            f"{remedy}"
        )

    # A tokenizer that was read from the same place needs no comparison.
    place = str(getattr(module, "name_or_path", "") or "")
    if place in ("", str(getattr(tokenizer, "name_or_path", ""))):
        return
    tokenizer_there = _tokenizer_at(place)
    if tokenizer_there is None:
        return
    token_of_id = {token_id: token for token, token_id in tokenizer_there.get_vocab().items()}
    common_count = 0
    same_count = 0
    for token, token_id in vocabulary.items():
        if token_id in token_of_id:
            common_count += 1
            same_count += token_of_id[token_id] == token
    if same_count < SAME_SHARE * common_count:
        raise ModelError(
            f"{name}: the tokenizer is of another vocabulary, {same_count} of {common_count} ids "
            f"stand for the same tokens as in that of {place}: {remedy}"
        )


def _tokenizer_at(place: str) -> PreTrainedTokenizerBase | None:
    """Return the tokenizer in a folder or in a downloaded repository, or None.

    None means that none can be read without asking the hub, that it is damaged, or that it may
    make texts very many times as long (`check_growth_of_texts`).
    """
    from transformers import AutoTokenizer

    from thinkalike.models.tokenizer_growth import check_growth_of_texts

    file = Path(place, "tokenizer.json")
    try:
        if file.is_file():
            check_growth_of_texts(file)
        return AutoTokenizer.from_pretrained(place, local_files_only=True, trust_remote_code=False)
    except Exception:  # the library raises any, for files of any content
        return None
