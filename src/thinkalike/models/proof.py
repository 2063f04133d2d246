"""The proof at load that a model can be cut: head and tail compose to the full pass."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from thinkalike.code_text import DEEPEST_WRAPPER, is_of_user, module_of
from thinkalike.errors import ModelError, listed
from thinkalike.models.cut_model import CutModel
from thinkalike.models.families import EMBED, Layer, heads_of, n_blocks_until
from thinkalike.models.module_facts import (
    TOLERANCE,
    Tokens,
    config_of_text_model,
    padding_of_head,
    relative_error,
    sample_tokens,
    tensors_of,
)
from thinkalike.models.survey import explaining_pass_errors

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

# Hooks that these define move states between devices, or record them.
LIBRARIES_OF_HARMLESS_HOOKS = ("transformers", "accelerate", "thinkalike")

# Entries of a tensor that are summed together: summing in a wider dtype makes a copy.
ENTRIES_AT_ONCE = 2**22


def prove(model: CutModel) -> None:
    """Check on sample tokens that a model can be cut after its blocks.

    Four things are checked, in this order:

    1. Reading the weights does not change the model (`state_dict()` repacks the weights of some
       quantised modules in place), and all of them are finite.
    2. At several layers l, tail(head(x, l), l) is the output of the full pass for the tokens x.
       head returns the states after block l, and tail makes the output of these states alone.
    3. If the model predicts tokens or a class, and has attention windows, the same holds in the
       middle layer for a row that is longer than its windows (of at most LONGEST_PROOF tokens).
    4. If the model predicts the next token, no token changes the logits of earlier ones.

    Raises:
        ModelError: One of them does not hold.
    """
    with _unchanged_by_reading(model):
        check_finite_weights(model.module, model.name)
    tokens = sample_tokens(model.vocabulary, model.context)
    with explaining_pass_errors(model.name):
        _check_composition(model, tokens, _layers_to_cut_after(model))
        window = _longest_window(model)
        if window and model.predicts != "states":
            long_row = sample_tokens(
                model.vocabulary, context=window + BEYOND_WINDOW, rows=1, at_most=LONGEST_PROOF
            )
            middle_layer = (model.n_layers - 1) // 2
            _check_composition(model, long_row, [middle_layer])
        if model.predicts == "next":
            _check_causal(model, tokens)


def _layers_to_cut_after(model: CutModel) -> list[Layer]:
    """Return the layers after which the check at load cuts a model, in ascending order.

    They are EMBED (the stream before block 0), the first, middle and last block, and the first
    block of each kind that the configuration names, such as sliding-window attention. For a model
    without a head it is the last block alone.
    """
    last = model.n_layers - 1
    if model.predicts == "states":
        return [last]  # blocks of a decoder also read what its encoder made of the tokens
    config = config_of_text_model(model.module)
    kind_of_layer: list[object] = []
    for name in LAYER_KINDS:  # such as layer_types
        value = getattr(config, name, None)
        if isinstance(value, list):
            kind_of_layer = value
            break
    first_of_each_kind = {kind_of_layer.index(kind) for kind in kind_of_layer}
    layers = {0, last // 2, last}
    # The list in the configuration may be longer than the model.
    layers |= {layer for layer in first_of_each_kind if layer <= last}
    return [EMBED, *sorted(layers)]


def _longest_window(model: CutModel) -> int | None:
    """Return the longest attention window, in tokens, that needs a longer row of sample tokens.

    Such a row must be longer than the window by BEYOND_WINDOW tokens, so that the window cuts
    tokens off. A window does not count if the usual row of 16 sample tokens is long enough for it,
    or if the longest possible row is too short. None means that no window counts.
    """
    config = config_of_text_model(model.module)
    usual_row_length = 16  # of `sample_tokens`
    longest_row_length = min(model.context, LONGEST_PROOF)
    windows = []
    for name in WINDOWS:
        size = getattr(config, name, None)
        if not isinstance(size, int):
            continue
        row_length = size + BEYOND_WINDOW
        if usual_row_length < row_length <= longest_row_length:
            windows.append(size)
    return max(windows, default=None)


@contextlib.contextmanager
def _unchanged_by_reading(model: CutModel) -> Iterator[None]:
    """Check that a model gives the same output before and after the body of the `with` statement.

    The caller reads all weights by `state_dict()` in that body, which may unpack quantised weights
    in place. The two outputs must be equal to the bit. But if two passes in a row differ already,
    as sums on a GPU may round differently, the outputs may differ by the `TOLERANCE` of the dtype.

    Raises:
        ModelError: The outputs differ, or two passes in a row differ by more than the tolerance.
    """
    tokens = sample_tokens(model.vocabulary, model.context)
    with explaining_pass_errors(model.name):
        before = model.full(tokens).clone()
        again = model.full(tokens)
    allowed = 0.0
    if not _is_equal(before, again):
        allowed = TOLERANCE[model.dtype]
        if not relative_error(again, before) <= allowed:  # NaN fails as well
            # Both end the sentence, and begin with a semicolon.
            remedy = _clause_about_hooks(model.module) or "; take that out of its forward"
            raise ModelError(
                f"{model.name}: two passes over the same tokens give different outputs, as by "
                f"chance or by what it remembers{remedy}"
            )
    snapshots_before = _snapshots_of_tensors(model.module)
    yield
    with explaining_pass_errors(model.name):
        output = model.full(tokens)
    error = 0.0 if _is_equal(before, output) else relative_error(output, before)
    if error <= allowed:
        return

    changed_tensors = _changed_tensors_in_words(model.module, snapshots_before)
    raise ModelError(
        f"{model.name}: reading its weights by state_dict() changes {changed_tensors}, and logits "
        f"by {error:.1e} of the largest; give it in a form that can be read, such as dequantised"
    )


class _TensorSnapshot(NamedTuple):
    """A description of a tensor by which a later change shows.

    Attributes:
        address: Where its values are in memory; None: it has none.
        shape, dtype: Its shape and dtype.
        change_count: How often torch has changed it in place; None: torch does not count.
        checksum: The sum of some of its entries as text, in which NaN equals NaN.
    """

    address: int | None
    shape: torch.Size
    dtype: torch.dtype
    change_count: int | None
    checksum: str


def _changed_tensors_in_words(
    module: nn.Module, snapshots_before: dict[str, _TensorSnapshot]
) -> str:
    """Return the names of the tensors that changed, and the classes of the modules that hold them.

    `snapshots_before` describes all tensors as they were before, by name. If none has changed, the
    words say that it is something else.
    """
    snapshots_now = _snapshots_of_tensors(module)
    changed_names = []
    for name in sorted(snapshots_before.keys() | snapshots_now.keys()):
        if snapshots_before.get(name) != snapshots_now.get(name):
            changed_names.append(name)
    if not changed_names:
        return "something beside its tensors"
    class_names = set()
    for name in changed_names:
        if name in snapshots_now:
            owner = module.get_submodule(name.rpartition(".")[0])
            class_names.add(type(owner).__name__)
    return f"{listed(changed_names)} of {listed(sorted(class_names))}"


def _is_equal(first: Tensor, second: Tensor) -> bool:
    """Return whether two outputs are equal in shape and in every entry.

    NaN counts as 0, so that NaN equals NaN; outputs that are not finite are reported elsewhere.
    """
    if first.shape != second.shape:
        return False
    return torch.equal(first.nan_to_num(nan=0.0), second.nan_to_num(nan=0.0))


def _snapshots_of_tensors(module: nn.Module) -> dict[str, _TensorSnapshot]:
    """Return a description of each parameter and buffer by name, by which a later change shows.

    Its checksum is the sum of at most SAMPLED_ENTRIES evenly spaced entries. `state_dict()` is not
    called, since the caller checks whether that changes tensors.
    """
    snapshots = {}
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        # Tensors that were made in inference mode count no changes.
        change_count = None if tensor.is_inference() else tensor._version
        address = None if tensor.is_meta else tensor.data_ptr()
        checksum = 0.0
        if address and tensor.numel():
            stride = -(-tensor.numel() // SAMPLED_ENTRIES)  # rounded up
            checksum = float(tensor.detach().reshape(-1)[::stride].double().sum())
        checksum_text = repr(checksum)  # as text, NaN equals NaN
        snapshots[name] = _TensorSnapshot(
            address, tensor.shape, tensor.dtype, change_count, checksum_text
        )
    return snapshots


def output_error_of(
    model: CutModel, tokens: Tensor, mask: Tensor | None, types: Tensor | None
) -> ModelError | None:
    """Check that a model's head turns its last states into its output; return the error if not.

    This was checked when the model was loaded, on a few random tokens. Code of a user may act on
    certain tokens or positions only, so it is checked again on the first rows of a real text.

    Args:
        model: The model.
        tokens: The token ids of the text, (b, t).
        mask: 1 for tokens and 0 for padding; None: there is no padding.
        types: BERT's token type ids, or None.

    Returns:
        The error, which the caller raises if the output is asked for; None: the outputs agree.
    """
    first_rows = slice(max(PROVED_TOKENS // tokens.shape[1], 1))  # about PROVED_TOKENS tokens
    tokens = tokens[first_rows]
    if mask is not None:
        mask = mask[first_rows]
    if types is not None:
        types = types[first_rows]
    with torch.no_grad(), explaining_pass_errors(model.name):
        full = model.full(tokens, mask, types).clone()
        (last_states,) = model.residuals(tokens, [model.n_layers - 1], mask, types)
        if model.predicts == "next":
            composed = model.finish(last_states)  # each state alone, without the mask
        else:
            composed = model.output(last_states, mask)  # a classifier picks a state by the mask
    error = relative_error(composed, full)
    if error <= TOLERANCE[model.dtype]:
        return None
    return ModelError(
        f"{model.name}: its output for this text is not what its head makes of its last states: "
        f"they differ by {error:.1e} of the largest logit. Code outside of its blocks acts on "
        "some of these tokens or positions; move it into a block, or compare states alone"
    )


def check_finite_weights(module: nn.Module, name: str) -> None:
    """Raise a ModelError if a parameter or persistent buffer holds a NaN or an infinity.

    `name` is the model's name in the message.
    """
    for path, tensor in tensors_of(module):
        if not tensor.is_floating_point() or not tensor.numel():
            continue
        # A sum is finite only if all of its summands are. Unlike `isfinite()`, it needs no mask
        # as large as the tensor.
        sum_dtype = torch.promote_types(tensor.dtype, torch.float32)
        chunks = tensor.reshape(-1).split(ENTRIES_AT_ONCE)
        if all(chunk.sum(dtype=sum_dtype).isfinite() for chunk in chunks):
            continue
        wrong_count = int((~tensor.isfinite()).sum())
        if wrong_count:  # otherwise all values are finite, and only their sum overflowed
            # A value beyond 65,504 becomes infinite when it is cast to float16.
            has_overflowed = tensor.dtype == torch.float16 and not tensor.isnan().any()
            remedy = "; they may be in float32" if has_overflowed else ""
            raise ModelError(
                f"{name}: {wrong_count:,} of {tensor.numel():,} values of {path} are not "
                f"finite{remedy}"
            )


def _check_composition(model: CutModel, tokens: Tensor, cuts: list[Layer]) -> None:
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
            last_state = model.advance(state, n_blocks_until(cut), model.n_layers, mask)
            if model.predicts == "next":
                composed = model.finish(last_state[:, compared_tokens])
            else:
                composed = model.output(last_state, mask)
            error = relative_error(composed, full)
            if not error <= allowed:  # NaN fails as well
                raise ModelError(
                    f"{model.name} cannot be cut at its blocks: tail(head(x, {cut}), {cut}) "
                    f"differs from the full pass by {error:.1e} of the largest logit (allowed: "
                    f"{allowed:.0e}){_clause_about_hooks(model.module)}"
                )


def may_change_states(hook: object, depth: int = DEEPEST_WRAPPER) -> bool:
    """Return whether a forward hook may change what its module computes.

    Hooks that transformers, accelerate and this package define are taken for harmless: they move
    states between devices, or record them. Such a hook is not harmless if one of its attributes is
    code of a user: a function that it decorates, or a member of a list of hooks that it runs.

    Args:
        hook: A function or an object.
        depth: How many further objects inside one another are looked into.
    """
    library = module_of(hook).partition(".")[0]
    if library not in LIBRARIES_OF_HARMLESS_HOOKS or is_of_user(hook):
        return True
    if depth == 0:  # objects further inside are taken for harmless
        return False
    for attribute in getattr(hook, "__dict__", {}).values():
        inner_objects = attribute if isinstance(attribute, tuple | list) else [attribute]
        for inner in inner_objects:
            # Objects of other libraries, such as tensors and loggers, are no hooks.
            library_of_inner = type(inner).__module__.partition(".")[0]
            may_be_hook = library_of_inner in LIBRARIES_OF_HARMLESS_HOOKS
            if is_of_user(inner) or (may_be_hook and may_change_states(inner, depth - 1)):
                return True
    return False


def _clause_about_hooks(module: nn.Module) -> str:
    """Return the last clause of an error: which modules have hooks, and how to remove them.

    It begins with a semicolon: "; it has forward hooks on ...". Only hooks that may change states
    are named. "" means that there are none.
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
    """Return the tokens of a classifier with each padding id replaced by the next id.

    A classifier would take a padding id for the end of a text. Tokens of any other model are
    returned as they are.
    """
    if model.predicts != "class":
        return tokens
    padding_id = padding_of_head(model.module, model.tokenizer)
    if padding_id is None:
        return tokens
    next_id = (padding_id + 1) % model.vocabulary
    return torch.where(tokens == padding_id, next_id, tokens)


def _check_causal(model: CutModel, tokens: Tokens) -> None:
    """Raise a ModelError if later tokens change a language model's logits of earlier ones.

    Every token in the second half of each row is replaced by another one, and the logits of the
    first half are compared before and after. The error says what to do: the model may be an
    encoder whose configuration names the wrong class, or lacks the entry for a decoder.

    Args:
        model: A model that predicts the next token.
        tokens: Sample tokens, (b, t).
    """
    half = tokens.shape[1] // 2
    changed_tokens = tokens.clone()
    changed_tokens[:, half:] = (tokens[:, half:] + 1) % model.vocabulary
    logits_after_change = model.full(changed_tokens)[:, :half]
    error = relative_error(logits_after_change, model.full(tokens)[:, :half])
    # The error is exactly 0 in all architectures but mixtures of experts, whose products round
    # differently with other tokens in the batch. A tenth of the tolerance allows for these.
    if error <= TOLERANCE[model.dtype] / 10:
        return

    config = config_of_text_model(model.module)
    body_name = type(getattr(model.module, "base_model", None)).__name__
    heads = heads_of(str(getattr(config, "model_type", "")))
    remedy = f"write {body_name} under architectures in its config.json, to read its states alone"
    # transformers has a class for this architecture that predicts hidden (masked) tokens.
    has_masked_class = any(head.predicts == "hidden" for head in heads)
    if has_masked_class:
        remedy = "save it with AutoModelForMaskedLM"
    # BERT and its like predict the next token only if the configuration says so.
    if hasattr(config, "is_decoder"):
        remedy = (
            "if trained on earlier tokens alone, write is_decoder: true in its config.json; else "
            f"{remedy}"
        )
    about_hooks = _clause_about_hooks(model.module)
    raise ModelError(
        f"{model.name} is to predict the next token, but later tokens change its logits by "
        f"{error:.1e} of the largest one, as in an encoder; {remedy}{about_hooks}"
    )
