"""The proof at load that a model can be cut: head and tail compose to the full pass."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from thinkalike.code_text import module_of
from thinkalike.errors import ModelError, listed
from thinkalike.models.cut_model import CutModel
from thinkalike.models.families import EMBED, Layer, after, heads_of
from thinkalike.models.module_facts import (
    TOLERANCE,
    Tokens,
    config_of_text_model,
    padding_of_head,
    relative_error,
    sample_tokens,
    tensors_of,
)
from thinkalike.models.survey import passing

# The names that configurations give to the kinds of layers, ...
LAYER_KINDS = ("layer_types", "layers_block_type", "attention_layers")
# ... and to the lengths of windows of attention in tokens.
WINDOWS = (
    "sliding_window",
    "attention_window_size",
    "local_attention",
    "attention_chunk_size",
    "window_size",
)

# The most tokens of the row that is longer than a window, ...
LONGEST_PROOF = 1024
# ... which is longer by this many.
BEYOND_WINDOW = 8

# The logits of so many last tokens of a row are compared: those of long rows take gigabytes.
LAST_TOKENS = 16

# About so many tokens of a text are compared where a model runs code of its user.
PROVED_TOKENS = 1024

# At most so many entries of a tensor show whether it changed.
SAMPLED_ENTRIES = 2**12

# Entries of a tensor that are summed together: summing in a wider dtype makes a copy.
ENTRIES_AT_ONCE = 2**22


def prove(model: CutModel) -> None:
    """Check that weights are ordinary numbers, and that head and tail compose to the full pass.

    Reading the weights must not change the model: `state_dict()` repacks those of some quantised
    modules in place. Cuts are before the first block, after the first, the middle and the last
    one, and after the first of each kind; the middle one also on a row that is longer than the
    windows of the layers that attend to one. Where the model predicts the next token, no token may
    change the logits of earlier ones.

    Raises:
        ModelError: Something else is the case.
    """
    with _unchanged_by_reading(model):
        check_finite_weights(model.module, model.name)
    tokens = sample_tokens(model.vocabulary, model.context)
    with passing(model.name):
        _compare(model, tokens, _cuts(model))
        window = _longest_window(model)
        if window and model.predicts != "states":
            long_row = sample_tokens(
                model.vocabulary, window + BEYOND_WINDOW, rows=1, at_most=LONGEST_PROOF
            )
            _compare(model, long_row, [(model.n_layers - 1) // 2])
        if model.predicts == "next":
            _check_causal(model, tokens)


def _cuts(model: CutModel) -> list[Layer]:
    """Return the layers after which the proof cuts a model, from EMBED to the last block."""
    last = model.n_layers - 1
    if model.predicts == "states":
        return [last]  # the blocks of a decoder also read what its encoder made of the tokens
    config = config_of_text_model(model.module)
    type_of_layer: list[object] = []
    for name in LAYER_KINDS:
        value = getattr(config, name, None)
        if isinstance(value, list):
            type_of_layer = value
            break
    # The list may be longer than the model.
    first_of_types = {type_of_layer.index(layer_type) for layer_type in type_of_layer}
    layers = {0, last // 2, last} | {layer for layer in first_of_types if layer <= last}
    return [EMBED, *sorted(layers)]


def _longest_window(model: CutModel) -> int | None:
    """Return the longest window of attention, in tokens, that a row of the proof can exceed.

    None means that there is no such window: none is stated, or it is longer than the longest row,
    or so short that the usual sample exceeds it.
    """
    config = config_of_text_model(model.module)
    most = min(model.context, LONGEST_PROOF)
    windows = []
    for name in WINDOWS:
        size = getattr(config, name, None)
        # Rows of the other samples have 16 tokens, which are longer than shorter windows.
        if isinstance(size, int) and 16 < size + BEYOND_WINDOW <= most:
            windows.append(size)
    return max(windows, default=None)


@contextlib.contextmanager
def _unchanged_by_reading(model: CutModel) -> Iterator[None]:
    """Check that a model gives the same output before and after its weights are read.

    They are read while this context is open.

    The outputs must have equal bits, unless two passes in a row differ in theirs, as sums on a GPU
    may. Then they may differ by the `TOLERANCE` of the dtype.

    Raises:
        ModelError: They differ, or two passes in a row differ by more than the tolerance.
    """
    tokens = sample_tokens(model.vocabulary, model.context)
    with passing(model.name):
        before = model.full(tokens).clone()
        again = model.full(tokens)
    allowed = 0.0
    if not _is_equal(before, again):
        allowed = TOLERANCE[model.dtype]
        if relative_error(again, before) > allowed:
            remedy = _hooks_on(model.module) or "; take that out of its forward"
            raise ModelError(
                f"{model.name}: two passes over the same tokens give different outputs, as by "
                f"chance or by what it remembers{remedy}"
            )
    states_before = _states_of_tensors(model.module)
    yield
    with passing(model.name):
        output = model.full(tokens)
    error = 0.0 if _is_equal(before, output) else relative_error(output, before)
    if error <= allowed:
        return

    states_now = _states_of_tensors(model.module)
    # What the reading changed, for the message.
    altered = []
    for name in sorted(states_before.keys() | states_now.keys()):
        if states_before.get(name) != states_now.get(name):
            altered.append(name)
    owners = set()
    for name in altered:
        if name in states_now:
            owners.add(type(model.module.get_submodule(name.rpartition(".")[0])).__name__)
    changes = "something beside its tensors"
    if altered:
        changes = f"{listed(altered)} of {listed(sorted(owners))}"
    raise ModelError(
        f"{model.name}: reading its weights by state_dict() changes {changes}, and logits by "
        f"{error:.1e} of the largest; give it in a form that can be read, such as dequantised"
    )


def _is_equal(first: Tensor, second: Tensor) -> bool:
    """Return whether two outputs are equal, where NaN, which is reported elsewhere, equals NaN."""
    if first.shape != second.shape:
        return False
    return torch.equal(first.nan_to_num(nan=0.0), second.nan_to_num(nan=0.0))


def _states_of_tensors(module: nn.Module) -> dict[str, tuple[object, ...]]:
    """Return for each parameter and buffer what shows that it changed.

    That is its address, shape, dtype, the number of changes in place that torch counts, and the
    sum of some of its entries. `state_dict()` is not called, since it may be what changes them.
    """
    states: dict[str, tuple[object, ...]] = {}
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        address = None if tensor.is_meta else tensor.data_ptr()
        checksum = 0.0
        if address and tensor.numel():
            stride = -(-tensor.numel() // SAMPLED_ENTRIES)  # rounded up
            checksum = float(tensor.detach().reshape(-1)[::stride].double().sum())
        # As text, in which NaN equals NaN.
        states[name] = (address, tensor.shape, tensor.dtype, tensor._version, repr(checksum))
    return states


def output_error_of(
    model: CutModel, tokens: Tensor, mask: Tensor | None, types: Tensor | None
) -> ModelError | None:
    """Return the error that last states and head do not compose to the full pass for a text.

    Code of a user may act on some tokens alone, which the samples at loading may not have. The
    first rows of the text are compared.

    Returns:
        None: they compose.
    """
    rows = slice(max(PROVED_TOKENS // tokens.shape[1], 1))
    tokens = tokens[rows]
    if mask is not None:
        mask = mask[rows]
    if types is not None:
        types = types[rows]
    with torch.no_grad(), passing(model.name):
        full = model.full(tokens, mask, types).clone()
        (last_states,) = model.residuals(tokens, [model.n_layers - 1], mask, types)
        composed = model.output(last_states, mask)
    error = relative_error(composed, full)
    if error <= TOLERANCE[model.dtype]:
        return None
    return ModelError(
        f"{model.name}: its output for this text is not what its head makes of its last states: "
        f"they differ by {error:.1e} of the largest logit. Code outside of its blocks acts on "
        "some of these tokens; move it into a block or the head, or compare states alone"
    )


def check_finite_weights(module: nn.Module, name: str) -> None:
    """Raise a ModelError for a weight that is NaN or infinite.

    Args:
        module: The module.
        name: What the error calls the model.
    """
    for path, tensor in tensors_of(module):
        if not tensor.is_floating_point() or not tensor.numel():
            continue
        # A sum is finite only if all of its summands are, and takes no memory for a mask.
        wide = torch.promote_types(tensor.dtype, torch.float32)
        chunks = tensor.reshape(-1).split(ENTRIES_AT_ONCE)
        if all(chunk.sum(dtype=wide).isfinite() for chunk in chunks):
            continue
        wrong_count = int((~tensor.isfinite()).sum())
        if wrong_count:  # else it is the sum alone that is too large
            is_too_large = tensor.dtype == torch.float16 and not tensor.isnan().any()
            remedy = "; they may be in float32" if is_too_large else ""
            raise ModelError(
                f"{name}: {wrong_count:,} of {tensor.numel():,} values of {path} are not "
                f"finite{remedy}"
            )


def _compare(model: CutModel, tokens: Tensor, cuts: list[Layer]) -> None:
    """Raise a ModelError unless head and tail compose to the full pass at each cut.

    The output must also be finite, and not zero everywhere.

    Args:
        model: The model.
        tokens: Sample tokens, (b, t).
        cuts: The layers after which the model is cut.
    """
    tokens = _without_padding(model, tokens)
    mask = None
    types = None
    compared_tokens = slice(-LAST_TOKENS, None)
    if model.predicts != "next":
        # The last quarter of the last row is padding, and each row is a pair of texts.
        mask = torch.ones_like(tokens)
        mask[-1, 3 * tokens.shape[1] // 4 :] = 0
        types = torch.zeros_like(tokens)
        types[:, tokens.shape[1] // 2 :] = 1
        compared_tokens = slice(None)

    with torch.no_grad():
        full = model.full(tokens, mask, types)[:, compared_tokens].clone()
        states = model.residuals(tokens, cuts, mask, types)
        if not full.isfinite().all():
            remedy = "; load it in float32 or bfloat16" if model.dtype == torch.float16 else ""
            dtype = str(model.dtype).removeprefix("torch.")
            raise ModelError(
                f"{model.name}: its output on sample tokens is not finite in {dtype}{remedy}"
            )
        if not full.any():
            raise ModelError(f"{model.name}: its output on sample tokens is zero everywhere")
        allowed = TOLERANCE[model.dtype]
        for cut, state in zip(cuts, states, strict=True):
            last_state = model.advance(state, after(cut), model.n_layers, mask)
            if model.predicts == "next":
                composed = model.finish(last_state[:, compared_tokens])
            else:
                composed = model.output(last_state, mask)
            error = relative_error(composed, full)
            if not error <= allowed:  # NaN fails as well
                raise ModelError(
                    f"{model.name} cannot be cut at its blocks: tail({cut}, head({cut}, x)) "
                    f"differs from the full pass by {error:.1e} of the largest logit (allowed: "
                    f"{allowed:.0e}){_hooks_on(model.module)}"
                )


def may_change_states(hook: object) -> bool:
    """Return whether a hook may change what its module computes.

    Those of transformers, accelerate and this package only move states, or record them.
    """
    library = module_of(hook).partition(".")[0]
    return library not in ("transformers", "accelerate", "thinkalike")


def _hooks_on(module: nn.Module) -> str:
    """Return which modules have hooks, and how to take them off, to end the message of an error.

    "" means that there are none.
    """
    hooked = []
    for path, submodule in module.named_modules():
        hooks = [*submodule._forward_hooks.values(), *submodule._forward_pre_hooks.values()]
        if any(may_change_states(hook) for hook in hooks):
            hooked.append(path or type(module).__name__)
    if not hooked:
        return ""
    return (
        f"; it has forward hooks on {listed(hooked)}, which may do that: call remove() of their "
        "handles"
    )


def _without_padding(model: CutModel, tokens: Tensor) -> Tensor:
    """Return the sample tokens with another token for each padding token of a classifier.

    A classifier takes padding for the end of a text. Tokens of any other model stay as they are.
    """
    if model.predicts != "class":
        return tokens
    padding = padding_of_head(model.module, model.tokenizer)
    if padding is None:
        return tokens
    return torch.where(tokens == padding, (padding + 1) % model.vocabulary, tokens)


def _check_causal(model: CutModel, tokens: Tokens) -> None:
    """Raise a ModelError if later tokens change the logits of earlier ones.

    Args:
        model: The model, which predicts the next token.
        tokens: Sample tokens; those of the second half of each row are replaced by others.
    """
    half = tokens.shape[1] // 2
    changed_tokens = tokens.clone()
    changed_tokens[:, half:] = (tokens[:, half:] + 1) % model.vocabulary
    changed_logits = model.full(changed_tokens)[:, :half]
    error = relative_error(changed_logits, model.full(tokens)[:, :half])
    # 0 in all architectures, but for experts, whose products round.
    if error <= TOLERANCE[model.dtype] / 10:
        return

    config = config_of_text_model(model.module)
    body = type(getattr(model.module, "base_model", None)).__name__
    heads = heads_of(str(getattr(config, "model_type", "")))
    remedy = f"write {body} under architectures in its config.json, to read its states alone"
    if any(head.predicts == "hidden" for head in heads):
        remedy = "save it with AutoModelForMaskedLM"
    if hasattr(config, "is_decoder"):
        remedy = (
            "if trained on earlier tokens alone, write is_decoder: true in its config.json; else "
            f"{remedy}"
        )
    raise ModelError(
        f"{model.name} is to predict the next token, but later tokens change its logits by "
        f"{error:.1e} of the largest one, as in an encoder; {remedy}{_hooks_on(model.module)}"
    )
