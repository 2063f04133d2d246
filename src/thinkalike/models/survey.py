"""Checks of models: at load the outputs of blocks, the proof of cuts, and gross damage.

Every `model` here is a FrozenModel, whose own module imports this one.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import math
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from thinkalike.errors import ModelError, flat, listed, one_line, short
from thinkalike.models.families import EMBED, Layer, after, heads_of

log = logging.getLogger(__name__)

Tokens = Int[Tensor, "b t"]

# the largest difference that rounding explains, relative to the largest logit
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
# the names that configurations give to the kinds of layers, and to the lengths of windows of attention in tokens
KINDS = ("layer_types", "layers_block_type", "attention_layers")
WINDOWS = ("sliding_window", "attention_window_size", "local_attention", "attention_chunk_size", "window_size")
# the names that they give to the longest row
LENGTHS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_sequence_length", "seq_length")
# entries of a configuration that no pass of an evaluated model reads
UNREAD = re.compile(r"^_|dropout|pdrop|^(transformers_version|architectures|dtype|torch_dtype|device|seed|model_name|"
                    r"tokenizer_name|n_params|use_cache|gradient_checkpointing\w*|initializer_range|init_\w+|id2label|"
                    r"label2id)$")  # fmt: skip
# settings by which architectures differ whose weights have the same names and shapes
MULTIPLIES = re.compile(r"multiplier|scal(e|ing)")
LIMITS = re.compile(r"softcap|clip|clamp|alibi|sliding_window|rotary")
READING = re.compile(r"config\.(\w+)|getattr\(\w*\.?config, \"(\w+)\"")  # of a setting, in the code of a model
HEADS = ("num_attention_heads", "n_heads", "n_head", "num_heads")  # names of the number of heads in configurations
ROWS, TOKENS = 2, 3  # of the sample by which blocks are surveyed
AT_MOST = 1024  # tokens of the row that is longer than a window
LATE = 16  # last tokens of a row, whose logits are compared
TEXT = "The man in the old house near the river walked to the market each day, and came back before it was dark."
SAMPLED = 2**12  # entries of a tensor, at most, by which a change of it is seen
AT_ONCE = 2**22  # entries of a tensor that are summed together
ACCEPT = "model.implausible=true takes it as it is"
LARGE_VOCABULARY = 2**13  # tokens; models with smaller ones may know one kind of text, and a vocabulary made of it
LARGEST = 3.0  # times ln V: the largest loss on the text; architectures with random weights have at most 1.5 of it


class Checkpoint(NamedTuple):
    """What was read of a checkpoint."""

    module: Any  # on its device
    tokenizer: Any
    longest: int | None  # row of tokens that it can take; None: nothing limits it
    quantization: str = ""  # how its weights are or were quantised
    has_head: bool = True  # whether it predicts what its family does; else it has states alone


def sample_tokens(vocabulary: int, context: int, rows: int = 2, at_most: int = 16) -> Tokens:
    """Return short rows of tokens, the same each time."""
    return torch.randint(vocabulary, (rows, min(at_most, context)), generator=torch.Generator().manual_seed(0))


def survey(model: Any) -> tuple[int, list[int | None]]:
    """Return the width of the residual stream, and of each block the length of the tuple that it returns, or None.

    Blocks must run one after the other and once each, and return states of one width. From then on no pass keeps keys
    and values for later tokens; nothing is ever generated.
    """
    for shape in (getattr(model.module, "config", None), text_config(model.module)):
        if hasattr(shape, "use_cache"):
            shape.use_cache = False  # type: ignore[union-attr]
    ran: list[tuple[int, Any]] = []
    with contextlib.ExitStack() as hooks:
        for number, block in enumerate(model.blocks):
            hooks.enter_context(block.register_forward_hook(lambda _, __, out, own=number: ran.append((own, out))))
        with passing(model.name):
            model.full(sample_tokens(model.vocabulary, TOKENS, rows=ROWS))
    if not ran or [number for number, _ in ran] != list(range(model.n_layers)):
        found = f"the {model.n_layers} blocks of {model.family.blocks} do not run one after the other and once each"
        if idle := sorted({*range(model.n_layers)} - {number for number, _ in ran}):
            found += f" (of these, {listed(idle)} do not run for text alone)"
        raise ModelError(f"{model.name}: {found}, so it has no residual stream to cut")
    if others := {type(output).__name__ for _, output in ran if not isinstance(output, Tensor | tuple | list)}:
        raise ModelError(f"{model.name}: its blocks return {listed(sorted(others))}, and no states that can be cut")
    shapes = {tuple(first_tensor(output).shape) for _, output in ran}
    if len(shapes) > 1 or next(iter(shapes))[:-1] != (ROWS, TOKENS):
        raise ModelError(f"{model.name}: its blocks return {sorted(shapes)} for {ROWS} rows of {TOKENS} tokens")
    return next(iter(shapes))[-1], [None if isinstance(output, Tensor) else len(output) for _, output in ran]


@contextlib.contextmanager
def passing(name: str) -> Iterator[None]:
    """Turn errors of a pass over sample tokens into a ModelError, unless they are about memory."""
    try:
        yield
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError, ImportError) as error:
        if isinstance(error, ModelError) or "memory" in str(error):
            raise
        said = f"{type(error).__name__}: {one_line(error)}"
        raise ModelError(f"{name}: its forward pass fails on sample tokens ({said})") from error


def cast(module: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """Move a module to a device and its weights to a dtype, in place, and return it.

    Weights that transformers keeps in float32 at this dtype, such as routers of experts, become float32, as
    `from_pretrained(dtype=...)` would read them. The frequencies of rotary positions keep their precision: rounded to
    bfloat16, positions are wrong from the tens on.
    """
    names = precise_names(module, dtype)
    precise: list[tuple[dict[str, Any], str, Tensor]] = []
    for path, part in module.named_modules():
        for name, weight in part._parameters.items():
            if weight is not None and names.search(f"{path}.{name}"):
                values = weight.detach().to(device, torch.float32)
                precise.append((part._parameters, name, nn.Parameter(values, weight.requires_grad)))
        for name, buffer in part._buffers.items():
            if buffer is None or not buffer.is_floating_point():
                continue
            if name.endswith("inv_freq"):
                precise.append((part._buffers, name, buffer.to(device)))
            elif names.search(f"{path}.{name}"):
                precise.append((part._buffers, name, buffer.to(device, torch.float32)))
    module.to(device=device, dtype=dtype)
    for tensors, name, values in precise:
        tensors[name] = values
    return module


def precise_names(module: Any, dtype: torch.dtype) -> re.Pattern[str]:
    """Return what the names of weights match that transformers keeps in float32 in a module of this dtype."""
    plan = module._get_dtype_plan(dtype) if hasattr(module, "_get_dtype_plan") else {}
    return re.compile("|".join(name.replace("*", ".*") for name in sorted(plan)) or r"(?!)")


def puts_bos(tokenizer: Any) -> bool:
    """Return whether a tokenizer puts BOS before a text by itself, as Llama's and Gemma's do, and GPT-2's does not."""
    bos = tokenizer.bos_token_id
    return bos is not None and list(tokenizer("a")["input_ids"][:1]) == [bos]


def accepted(module: Any) -> list[str]:
    """Return the names of the arguments of a module's forward pass, in order.

    Types of tokens are taken only where they tell two texts apart. RoBERTa has the argument and one
    type, Gemma marks images by it, and GPT-2 adds the embedding of a word.
    """
    names = list(inspect.signature(module.forward).parameters)
    several = (getattr(getattr(module, "config", None), "type_vocab_size", 0) or 0) > 1
    return [name for name in names if several or name != "token_type_ids"]


def text_config(module: Any) -> Any:
    """Return the configuration of a module: of one of transformers, the part that is about text."""
    shape: Any = getattr(module, "config", None) or getattr(module, "cfg", None)
    return shape.get_text_config() if hasattr(shape, "get_text_config") else shape


def padding_of_head(module: Any, tokenizer: Any) -> int | None:
    """Return the id of the padding by which a classifier finds where a text ends; None: it does so otherwise.

    Where the configuration has none, it gets that of the tokenizer, or its end of a text, in place:
    without one, classifiers of transformers that need it run on single texts only.
    """
    shape = text_config(module)
    if shape.pad_token_id is None:
        ids = (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id)
        known = (number for number in ids if number is not None and number < len(embedding_of(module)))
        shape.pad_token_id = next(known, None)
    return shape.pad_token_id  # type: ignore[no-any-return]


def number_in(config: Any, names: Sequence[str]) -> int | None:
    """Return the first whole number that a configuration has under one of several names."""
    return next((count for name in names if isinstance(count := getattr(config, name, None), int)), None)


def longest_row(module: Any) -> int | None:
    """Return how many tokens a row can have by the configuration; None where nothing limits it.

    RoBERTa counts positions from one past the number of its padding token, so that the first ones are never used. Some
    rotary positions are scaled where the longest row of a batch is longer than those of the first training; up to that
    length a state does not depend on the other rows.
    """
    shape = text_config(module)
    longest = next((size for name in LENGTHS if isinstance(size := getattr(shape, name, None), int) and size > 0), None)
    rope = getattr(shape, "rope_parameters", None) or {}
    if longest and rope.get("rope_type") == "longrope":
        longest = min(longest, rope.get("original_max_position_embeddings") or longest)
    unused = [
        part.padding_idx + 1
        for path, part in module.named_modules()
        if path.endswith("embeddings.position_embeddings") and getattr(part, "padding_idx", None) is not None
    ]
    return longest - unused[0] if longest and unused else longest


def entries_of(module: Any, chosen: bool = False) -> dict[str, Any]:
    """Return the entries of a configuration that its class knows and a pass may read, inner ones as "outer.inner".

    With `chosen` those that have the default of the class are left out, and so are all of a class without defaults.
    """
    if (config := getattr(module, "config", None)) is None:
        given = vars(module.cfg) if hasattr(module, "cfg") and not chosen else {}
    else:
        given = known_entries(config, chosen)
    return flat({name: value for name, value in given.items() if not UNREAD.search(name)})


def known_entries(config: Any, chosen: bool = False) -> dict[str, Any]:
    """Return the entries of a configuration that its class knows; with `chosen` those that are not its defaults."""
    known = type(config)().to_dict()
    return {
        name: value for name, value in config.to_dict().items()
        if (name in known or hasattr(type(config), name)) and not (chosen and known.get(name) == value)
    }  # fmt: skip


def embedding_of(module: Any) -> Tensor:
    """Return the token embedding, (vocabulary, width): by convention, or else the first matrix."""
    with contextlib.suppress(AttributeError, NotImplementedError):
        return module.get_input_embeddings().weight  # type: ignore[no-any-return]
    return next(weight for weight in module.parameters() if weight.dim() == 2)


def first_tensor(output: Any) -> Tensor:
    """Return the output of a module that returns a tensor, or the first of several."""
    return output if isinstance(output, Tensor) else output[0]


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Return the largest difference, relative to the largest entry of `expected`."""
    return ((actual - expected).abs().max() / expected.abs().max()).item()


def persistent_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Return the buffers of a module that a checkpoint holds, by name."""
    return {
        f"{path}.{name}".lstrip("."): buffer
        for path, part in module.named_modules()
        for name, buffer in part._buffers.items()
        if buffer is not None and name not in part._non_persistent_buffers_set
    }


def tensors_of(module: torch.nn.Module, in_order: bool = False) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield all parameters and persistent buffers by name; offloaded weights are fetched one module at a time."""
    state = module.state_dict()
    names = sorted(state) if in_order else list(state)
    if getattr(module, "hf_device_map", None) is None:
        yield from ((name, state[name]) for name in names)
        return
    from accelerate.utils import align_module_device

    for name in names:
        owner = module.get_submodule(name.rpartition(".")[0])
        with align_module_device(owner, "cpu"):
            yield name, owner.state_dict()[name.rpartition(".")[2]]


def prove(model: Any) -> None:
    """Check that weights are ordinary numbers, and on fixed tokens that head and tail compose to the full pass.

    Reading the weights must not change the model: `state_dict()` repacks those of some quantised modules in place.
    Cuts are before the first block, after the first, the middle and the last one, and after the first of each kind; the
    middle one also on a row that is longer than the windows of the layers that attend to one. Where the model predicts
    the next token, no token may change the logits of earlier ones. Anything else is a ModelError.
    """
    with _unchanged_by_reading(model):
        check_values(model.module, model.name)
    last, shape = model.n_layers - 1, text_config(model.module)
    kinds = next((each for name in KINDS if isinstance(each := getattr(shape, name, None), list)), [])
    firsts = {kinds.index(kind) for kind in kinds}
    cuts: list[Layer] = [EMBED, *sorted({0, last // 2, last} | {layer for layer in firsts if layer <= last})]
    if model.predicts == "states":
        cuts = [last]  # the blocks of a decoder also read what its encoder made of the tokens
    windows = (size for name in WINDOWS if isinstance(size := getattr(shape, name, None), int))
    long = [size + 8 for size in windows if 16 < size + 8 <= min(model.context, AT_MOST)]
    with passing(model.name):
        _compare(model, sample_tokens(model.vocabulary, model.context), cuts)
        if long and model.predicts != "states":
            _compare(model, sample_tokens(model.vocabulary, max(long), rows=1, at_most=AT_MOST), [last // 2])
        if model.predicts == "next":
            _check_causal(model, sample_tokens(model.vocabulary, model.context))


@contextlib.contextmanager
def _unchanged_by_reading(model: Any) -> Iterator[None]:
    """Check that a model gives the same output for fixed tokens before and after its weights are read inside of this.

    The outputs must have equal bits, unless two passes in a row differ in theirs, as sums on a GPU may.
    """
    tokens = sample_tokens(model.vocabulary, model.context)
    with passing(model.name):
        before = model.full(tokens).clone()
        again = model.full(tokens)
    allowed = 0.0 if _is_equal(before, again) else TOLERANCE[model.dtype]
    if allowed and relative_error(again, before) > allowed:
        found = "two passes over the same tokens give different outputs, as by chance or by what it remembers"
        remedy = _hooks_on(model.module) or "; take that out of its forward"
        raise ModelError(f"{model.name}: {found}{remedy}")
    tensors = _states_of_tensors(model.module)
    yield
    with passing(model.name):
        after = model.full(tokens)
    if _is_equal(before, after) or relative_error(after, before) <= allowed:
        return
    now = _states_of_tensors(model.module)
    altered = sorted(name for name in tensors.keys() | now.keys() if tensors.get(name) != now.get(name))
    owners = {type(model.module.get_submodule(name.rpartition(".")[0])).__name__ for name in altered if name in now}
    where = f"{listed(altered)} of {listed(sorted(owners))}" if altered else "something beside its tensors"
    raise ModelError(
        f"{model.name}: reading its weights by state_dict() changes {where}, and logits by "
        f"{relative_error(after, before):.1e} of the largest; give it in a form that can be read, such as dequantised"
    )


def _is_equal(first: Tensor, second: Tensor) -> bool:
    """Return whether two outputs are equal, where NaN equals NaN, which is reported elsewhere."""
    return first.shape == second.shape and torch.equal(first.nan_to_num(nan=0.0), second.nan_to_num(nan=0.0))


def _states_of_tensors(module: nn.Module) -> dict[str, tuple[Any, ...]]:
    """Return of each parameter and buffer by name what shows that it changed; `state_dict()` is not called."""
    found: dict[str, tuple[Any, ...]] = {}
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        where = None if tensor.is_meta else tensor.data_ptr()
        values = 0.0
        if where and tensor.numel():
            values = float(tensor.detach().reshape(-1)[:: -(-tensor.numel() // SAMPLED)].double().sum())
        found[name] = (where, tensor.shape, tensor.dtype, tensor._version, repr(values))
    return found


def check_values(module: torch.nn.Module, name: str) -> None:
    """Raise a ModelError for a weight that is NaN or infinite."""
    for path, tensor in tensors_of(module):
        if not tensor.is_floating_point() or not tensor.numel():
            continue
        wide = torch.promote_types(tensor.dtype, torch.float32)  # in parts, because summing in it makes a copy
        finite = all(part.sum(dtype=wide).isfinite() for part in tensor.reshape(-1).split(AT_ONCE))
        if not finite and (bad := int((~tensor.isfinite()).sum())):
            too_large = tensor.dtype == torch.float16 and not tensor.isnan().any()
            remedy = "; they may be in float32" if too_large else ""
            raise ModelError(f"{name}: {bad:,} of {tensor.numel():,} values of {path} are not finite{remedy}")


def _compare(model: Any, tokens: Tensor, cuts: list[Layer]) -> None:
    tokens = _without_padding(model, tokens)
    mask = types = None
    late = slice(-LATE, None)  # logits of long rows take gigabytes
    if model.predicts != "next":  # the last row ends in padding, and each row is a pair of texts
        mask, types, late = torch.ones_like(tokens), torch.zeros_like(tokens), slice(None)
        mask[-1, 3 * tokens.shape[1] // 4 :] = 0
        types[:, tokens.shape[1] // 2 :] = 1
    with torch.no_grad():
        full, states = model.full(tokens, mask, types)[:, late].clone(), model.residuals(tokens, cuts, mask, types)
        if not full.isfinite().all():
            remedy = "; load it in float32 or bfloat16" if model.dtype == torch.float16 else ""
            dtype = str(model.dtype).removeprefix("torch.")
            raise ModelError(f"{model.name}: its output on sample tokens is not finite in {dtype}{remedy}")
        if not full.any():
            raise ModelError(f"{model.name}: its output on sample tokens is zero everywhere")
        for cut, state in zip(cuts, states, strict=True):
            joined = model.advance(state, after(cut), model.n_layers, mask)
            joined = model.finish(joined[:, late]) if model.predicts == "next" else model.output(joined, mask)
            error, allowed = relative_error(joined, full), TOLERANCE[model.dtype]
            if not error <= allowed:  # NaN fails as well
                found = f"differs from the full pass by {error:.1e} of the largest logit (allowed: {allowed:.0e})"
                found = f"{model.name} cannot be cut at its blocks: tail({cut}, head({cut}, x)) {found}"
                raise ModelError(found + _hooks_on(model.module))


def may_change_states(hook: Any) -> bool:
    """Return whether a hook may change what its module computes; those of these libraries only move or record it."""
    library = str(getattr(hook, "__module__", "")).partition(".")[0]
    return library not in ("transformers", "accelerate", "thinkalike")


def _hooks_on(module: nn.Module) -> str:
    """Return which modules have hooks, and how to take them off, to end the message of a failed proof; "": none."""
    hooked = []
    for path, part in module.named_modules():
        hooks = [*part._forward_hooks.values(), *part._forward_pre_hooks.values()]
        if any(may_change_states(hook) for hook in hooks):
            hooked.append(path or type(module).__name__)
    if not hooked:
        return ""
    return f"; it has forward hooks on {listed(hooked)}, which may do that: call remove() of their handles"


def _without_padding(model: Any, tokens: Tensor) -> Tensor:
    """Return sample tokens of a real text: a classifier takes its padding for the end of the text."""
    padding = padding_of_head(model.module, model.tokenizer) if model.predicts == "class" else None
    return tokens if padding is None else torch.where(tokens == padding, (padding + 1) % model.vocabulary, tokens)


def _check_causal(model: Any, tokens: Tokens) -> None:
    half, other = tokens.shape[1] // 2, tokens.clone()
    other[:, half:] = (other[:, half:] + 1) % model.vocabulary
    error = relative_error(*(model.full(each)[:, :half] for each in (other, tokens)))
    if not error <= TOLERANCE[model.dtype] / 10:  # 0 in all architectures, but for experts, whose products round
        shape, body = text_config(model.module), type(getattr(model.module, "base_model", None)).__name__
        heads = heads_of(str(getattr(shape, "model_type", "")))
        can_predict_hidden = any(head.predicts == "hidden" for head in heads)
        remedy = f"write {body} under architectures in its config.json, to read its states alone"
        if can_predict_hidden:
            remedy = "save it with AutoModelForMaskedLM"
        if hasattr(shape, "is_decoder"):
            remedy = f"if trained on earlier tokens alone, write is_decoder: true in its config.json; else {remedy}"
        found = f"later tokens change its logits by {error:.1e} of the largest one, as in an encoder"
        remedy += _hooks_on(model.module)
        raise ModelError(f"{model.name} is to predict the next token, but {found}; {remedy}")


def _is_of_parametrization(path: str, paths: Collection[str]) -> bool:
    """Return whether a weight is computed from this parameter by torch's parametrizations, or by its older weight norm.

    The parameter itself may be anything: the orthogonal parametrization begins with the identity, and norms of rows may
    all be 1.
    """
    return ".parametrizations." in f".{path}" or (path.endswith("_g") and f"{path[:-1]}v" in paths)


def check_plausible(model: Any) -> None:
    """Raise a ModelError for a matrix of whole numbers, or of one number; see `_check_loss`. Say where zeros are.

    Vectors may be of ones or zeros, as norms and biases begin. New blocks and ablated ones have matrices of zeros, and
    pruned ones rows, which are said: files with holes have them, too.
    """
    trained = {path for path, weight in model.module.named_parameters() if weight.dim() > 1 and weight.numel()}
    trained = {path for path in trained if not _is_of_parametrization(path, trained)}
    empty, holes = [], {}
    for path, weight in tensors_of(model.module):
        if path not in trained or not weight.is_floating_point():
            continue
        if all(torch.equal(part, part.round()) for part in (weight[0], weight)):
            if weight.any():
                said = "whole numbers alone, as rounded weights without their scale do"
                raise ModelError(f"{model.name}: {path} holds {said}; {ACCEPT}")
            empty.append(path)
        elif _is_constant(weight):
            raise ModelError(f"{model.name}: {path} holds {weight.flatten()[0].item():.3g} alone; {ACCEPT}")
        elif zeros := _empty_lines(model, path, weight):
            holes[path] = zeros
    if empty:
        log.warning("%s: zero everywhere: %s", model.name, listed(empty))
    if holes:
        log.warning("%s: zeros, as after pruning or in a damaged file: %s", model.name,
                    listed([f"{zeros} of {path}" for path, zeros in holes.items()]))  # fmt: skip
    _check_architecture(model)
    _check_loss(model)


def _check_architecture(model: Any) -> None:
    """Raise a ModelError if a configuration of transformers is of another architecture than the one that it names.

    The weights of Granite and of Gemma have the names and shapes of Llama's, and load as a Llama, which computes
    something else. What tells is the class that config.json states, or a setting that Llama does not read.
    """
    import transformers

    whole = getattr(model.module, "both", model.module)  # of which one side may be read
    config: Any = getattr(whole, "config", None)
    text, kind = text_config(whole), type(whole)
    if not hasattr(config, "model_type"):
        return
    types = {str(config.model_type), str(text.model_type)}
    for name in config.architectures or ():
        stated = getattr(getattr(getattr(transformers, name, None), "config_class", None), "model_type", None)
        if stated and not any(stated in known or known in stated for known in types):
            found = f"config.json says architectures={name} and model_type={config.model_type}"
            raise ModelError(f"{model.name}: {found}, which differ; give the checkpoint's own; {ACCEPT}")
    unread = _unread_settings(whole, text)
    for name, value in unread.items():
        found = f"config.json says {name}={short(str(value))}, which {kind.__name__} does not read"
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        computes = MULTIPLIES.search(name) if is_number else None  # a switch is no factor
        if (computes or LIMITS.search(name)) and isinstance(value, int | float):
            raise ModelError(f"{model.name}: {found}; give the checkpoint's own config.json; {ACCEPT}")
        where = listed(sorted(architectures_that_read()[name]))
        log.warning("warning: %s: %s, and these architectures do: %s", model.name, found, where)


def _unread_settings(module: Any, text: Any) -> dict[str, Any]:
    """Return the settings of a configuration that its architecture does not read, and others of transformers do.

    Neither the class of the configuration nor the code of any module has their names. Settings of texts to be generated
    are left out, and so are values that change nothing: those that are false, empty or 0, a factor of 1, and a 1 or a
    text that is the default of an architecture that reads the setting.
    """
    from transformers import GenerationConfig

    known = {*type(text)().to_dict(), *dir(type(text)), *GenerationConfig().to_dict()}
    modules = {type(part).__module__ for part in module.modules()} | {type(text).__module__}
    own = [name for name in sorted(modules) if not name.startswith("torch.")]
    source = "\n".join(inspect.getsource(sys.modules[name]) for name in own)
    settings = text.to_dict()
    rope = settings.get("rope_parameters")
    if isinstance(rope, dict) and rope.get("rope_type") == "default":  # those of other types read further settings
        settings |= rope
    unread = {}
    for name, value in settings.items():
        if name in known or UNREAD.search(name) or not value or re.search(rf"\b{name}\b", source):
            continue
        is_one = value == 1 and not isinstance(value, bool)
        is_factor = is_one and MULTIPLIES.search(name)
        may_be_default = is_one or isinstance(value, str)
        is_neutral = is_factor or (may_be_default and _is_default_of_any(name, value))
        if name not in architectures_that_read() or is_neutral:
            continue
        unread[name] = value
    return unread


@functools.cache
def _sources_of_transformers(kind: str) -> dict[str, str]:
    """Return the source code of the models or configurations of transformers, by architecture."""
    import transformers

    folder = Path(transformers.__file__).parent / "models"
    return {path.parent.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob(f"*/{kind}_*.py"))}


@functools.cache
def architectures_that_read() -> dict[str, set[str]]:
    """Return the settings that models of transformers read of their configurations, with the architectures that do."""
    found: dict[str, set[str]] = {}
    for architecture, source in _sources_of_transformers("modeling").items():
        for names in READING.findall(source):
            found.setdefault("".join(names), set()).add(architecture)
    return found


def _is_default_of_any(name: str, value: Any) -> bool:
    """Return whether a configuration of transformers has this default: a text, or the number 1."""
    written = re.escape(f'"{value}"') if isinstance(value, str) else r"1(\.0)?\b"
    pattern = re.compile(rf"\b{name}\b[^=\n,]*= *{written}")
    return any(pattern.search(source) for source in _sources_of_transformers("configuration").values())


def check_rope(shape: Mapping[str, Any], called: str) -> None:
    """Raise a ModelError if a configuration states a setting of rotary positions twice, with different values."""
    for part in (shape, *(value for value in shape.values() if isinstance(value, Mapping))):
        settings = part.get("rope_parameters")
        if not isinstance(settings, Mapping):
            continue
        for name, value in settings.items():
            if part.get(name) not in (None, value):
                found = f"config.json says {name}={part[name]} and rope_parameters.{name}={value}"
                raise ModelError(f"{called}: {found}, which differ; leave the wrong one out; {ACCEPT}")
        scaling = part.get("rope_scaling")
        older = {"rope_type" if name == "type" else name: value for name, value in (scaling or {}).items()}
        if {**settings, **older} != settings:
            both = f"rope_scaling={short(str(scaling))} and rope_parameters={short(str(dict(settings)))}"
            found = f"config.json says {both}"
            raise ModelError(f"{called}: {found}, which differ; leave the wrong one out; {ACCEPT}")


def _is_constant(weight: Tensor) -> bool:
    """Return whether all entries of a matrix are equal; one row or column may be, as scales begin."""
    is_matrix = sum(size > 1 for size in weight.shape) > 1
    return is_matrix and all(bool((part == part.flatten()[0]).all()) for part in (weight[0], weight))


def _empty_lines(model: Any, path: str, weight: Tensor) -> str:
    """Return how many rows and columns of a matrix are zero, in words; "" if none are.

    Tables of positions and of types may have empty rows. So may those of tokens: of padding, of special tokens that no
    text has, and beyond the tokenizer.
    """
    table = weight.reshape(-1, weight.shape[-1])
    empty_rows = (~table.any(1)).nonzero().flatten().tolist()
    empty_columns = int((~table.any(0)).sum())
    if len(table) == model.vocabulary:
        special = {*model.tokenizer.all_special_ids, *model.tokenizer.get_added_vocab().values()}
        empty_rows = [row for row in empty_rows if row < len(model.tokenizer) and row not in special]
    elif isinstance(model.module.get_submodule(path.rpartition(".")[0]), nn.Embedding):
        empty_rows = []
    words = [f"{count} {name}" for count, name in ((len(empty_rows), "rows"), (empty_columns, "columns")) if count]
    return " and ".join(words)


def _check_loss(model: Any) -> None:
    """Raise a ModelError if the loss on a sentence is far above ln V, that of a guess, as after bits were flipped.

    Swapped layers are not noticed. Models that predict no tokens, or do not know the sentence, pass.
    """
    if model.predicts not in ("next", "hidden"):
        return
    ids = model.tokenizer(TEXT, add_special_tokens=False, verbose=False)["input_ids"][: model.context]
    if len(ids) < 2 or model.tokenizer.unk_token_id in ids:
        return
    tokens = torch.tensor([ids])
    logits, targets = model.full(tokens)[0].float().cpu(), tokens[0]
    if model.predicts == "next":
        logits, targets = logits[:-1], targets[1:]
    loss, guess = float(nn.functional.cross_entropy(logits, targets)), math.log(model.vocabulary)
    if not loss <= LARGEST * guess:
        raise ModelError(
            f"{model.name}: its loss on an English sentence is {loss:.3g} nats per token, and a guess has {guess:.3g}; "
            f"flipped bits or weights of another model do that, and so does training on other text; {ACCEPT}"
        )
    is_whole = model.predicts == "next"  # the head of the others may be missing, and is drawn at random
    if is_whole and loss > guess and model.vocabulary >= LARGE_VOCABULARY:
        log.warning(
            "%s: its loss on an English sentence is %.3g nats per token, and a guess has %.3g: it is untrained, "
            "trained on other text, or its config.json is of another architecture",
            model.name,
            loss,
            guess,
        )


def without_hooks(module: nn.Module) -> nn.Module:
    """Take TransformerLens's wrappers off in place, and let attention run fused; loading proves that numbers agree.

    TransformerLens's native attention computes every attention pattern, which is 40 % of a pass.
    """
    from transformer_lens.model_bridge.generalized_components.base import GeneralizedComponent
    from transformer_lens.model_bridge.sources.native.model import NativeAttention

    for name, child in list(module._modules.items()):
        while isinstance(child, GeneralizedComponent):
            child = child.original_component
        module._modules[name] = child
        if child is not None:
            without_hooks(child)
    if getattr(module, "_supports_sdpa", False):
        module.set_attn_implementation("sdpa")  # type: ignore[operator]
        return module
    is_plain = isinstance(module, NativeAttention) and module.causal and module.rotary is None
    if is_plain and module.kv_repeats == 1 and not module.attn_scores_soft_cap > 0:  # type: ignore[operator]
        module.__class__ = _fused()  # the weights stay where they are
    return module


@functools.cache
def _fused() -> type[nn.Module]:
    """Return the class of a NativeAttention that runs through the fused kernel.

    It is a class, as compiled blocks share a graph only if their code refers to no object of one of them.
    """
    from transformer_lens.model_bridge.sources.native.model import NativeAttention

    class FusedAttention(NativeAttention):
        def forward(self, hidden_states: Any, attention_mask: Any = None, **_: Any) -> tuple[Any, Any]:
            if attention_mask is not None:
                return super().forward(hidden_states, attention_mask=attention_mask)
            shape = (*hidden_states.shape[:2], self.n_heads, self.d_head)
            q, k, v = (part(hidden_states).view(shape).transpose(1, 2) for part in (self.q, self.k, self.v))
            mixed = scaled_dot_product_attention(q, k, v, is_causal=True, scale=1 / self.scale)
            return self.o(mixed.transpose(1, 2).flatten(2)), None

    return FusedAttention
