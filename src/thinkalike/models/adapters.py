"""Adapters of PEFT: read onto their base, merged or run in place, and proved to act as in PEFT."""

from __future__ import annotations

import logging
import math
import re
import sys
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor

from thinkalike.errors import ModelError, check_extra, listed, one_line, reason_in_words
from thinkalike.models.bounds import check_adapter
from thinkalike.models.checkpoints import give_base
from thinkalike.models.copies import copied, has_added_code
from thinkalike.models.formats import WEIGHTS_OF_ADAPTERS, check_no_pointer
from thinkalike.models.module_facts import (
    TOLERANCE,
    embedding_of,
    first_tensor,
    largest_relative_error,
    longest_row,
    sample_tokens,
)
from thinkalike.models.proof import LONGEST_PROOF
from thinkalike.models.stored_weights import check_dtypes, check_weight_files_agree

if TYPE_CHECKING:
    from peft import PeftConfig, PeftModel
    from transformers import PreTrainedModel

log = logging.getLogger(__name__)

# The package whose layers run an adapter, and may have hooks of their own.
PEFT = "peft"

# The ends of the names of embeddings and unembeddings.
EMBEDDINGS = (
    "embed_tokens.weight",
    "wte.weight",
    "word_embeddings.weight",
    "embed_in.weight",
    "lm_head.weight",
)

# In names under which PEFT saves resized embeddings a second time.
SECOND_COPY = re.compile(r"\.(modules_to_save|original_module)\.")

# How LoRAs may begin whose base loses a part that is drawn anew, or nothing, when PEFT loads them.
TAKES_FROM_BASE = re.compile(r"pissa_niter|lora_ga")

# At most so many tokens of a list in the settings of an adapter are tried.
MOST_TRIGGER_TOKENS = 64


class Adapted(NamedTuple):
    """A model with an adapter as PEFT runs it.

    Attributes:
        peft_model: The model.
        rows: The rows of the adapter's embedding; 0: it has none.
        outputs: The outputs for `_adapter_samples`, before anything was read of the model.
    """

    peft_model: PeftModel
    rows: int
    outputs: list[Tensor]


def with_adapter(module: PreTrainedModel, folder: Path) -> Adapted:
    """Return a module with the adapter of a folder, which is put on it in place.

    Raises:
        ModelError: The adapter does not fit the module, or cannot be merged.
    """
    check_extra("peft", ["peft"], f"{folder} is an adapter")
    _check_has_weights(folder)
    from peft import get_peft_model_state_dict

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what PEFT says of missing weights is checked here
        try:
            check_weight_files_agree(folder)
            stored = _stored_weights(folder)
            shapes = [tuple(weight.shape) for weight in stored.values()]
            check_adapter(folder, shapes, dict(module.named_modules()))
            rows = _rows_of_embedding(stored)
            peft_model, unexpected = _peft_model(module, folder, stored, rows)
            weights = _without_tensors_of_whole_numbers(stored, peft_model)
            check_dtypes(weights, folder, _last_names(stored))
        except (
            RuntimeError,
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            re.error,
        ) as error:
            raise ModelError(
                f"{folder.name}: the adapter cannot be put on its base ({one_line(error)}); check "
                f"its adapter_config.json, or {give_base()}"
            ) from error
        settings = peft_model.active_peft_config
        _check_mergeable(settings, folder.name)
        start = str(getattr(settings, "init_lora_weights", ""))
        if TAKES_FROM_BASE.match(start):
            raise ModelError(
                f"{folder.name}: with init_lora_weights={start} its training took a part out of "
                "the base that the adapter does not hold; save it with "
                "path_initial_model_for_weight_conversion"
            )
        # Before the model's weights are read, which may change a quantised model.
        outputs = _outputs(peft_model, _adapter_samples(peft_model), folder.name)

        differing = {*unexpected}
        for name in get_peft_model_state_dict(peft_model, save_embedding_layers=False):
            if name not in stored and not name.endswith(EMBEDDINGS):
                differing.add(name)
        if differing:
            raise ModelError(
                f"{folder.name}: the adapter and its base do not have the same weights "
                f"({listed(sorted(differing))}); {give_base()}"
            )
    return Adapted(peft_model, rows, outputs)


def _check_has_weights(folder: Path) -> None:
    """Raise a ModelError if the weights of an adapter's folder are missing, or Git LFS pointers.

    Without such a file PEFT would take the folder for a repository of the hub.
    """
    files = [path for path in sorted(folder.iterdir()) if path.is_file()]
    check_no_pointer(files)
    if not {path.name for path in files} & {*WEIGHTS_OF_ADAPTERS}:
        raise ModelError(
            f"{folder} has an adapter_config.json, but no weights of an adapter "
            f"({' or '.join(WEIGHTS_OF_ADAPTERS)}): copy them into it"
        )


def _stored_weights(folder: Path) -> dict[str, Tensor]:
    """Return the weights in an adapter's folder, by name.

    PEFT saves a resized embedding twice; the second name has "modules_to_save" or
    "original_module" as an additional component, and is left out.
    """
    from peft import load_peft_weights

    stored = load_peft_weights(str(folder), device="cpu")
    weights = {}
    for name, weight in stored.items():
        first_name = SECOND_COPY.sub(".", name)
        is_second_copy = first_name != name and first_name in stored
        if not is_second_copy:
            weights[name] = weight
    return weights


def _without_tensors_of_whole_numbers(
    stored: Mapping[str, Tensor], peft_model: PeftModel
) -> dict[str, Tensor]:
    """Return the stored tensors of an adapter, without those that PEFT holds as whole numbers.

    SHiRA, for example, stores the indices of the weights that it changes. The other tensors are
    weights, whose dtypes are then checked, and so is a tensor whose name PEFT does not know.

    Args:
        stored: The stored tensors by name.
        peft_model: The model with the adapter.
    """
    from peft import get_peft_model_state_dict

    # Embeddings are no part of this check, and saving them would ask the hub for the base model.
    tensors_in_peft = get_peft_model_state_dict(peft_model, save_embedding_layers=False)
    weights = {}
    for name, tensor in stored.items():
        is_whole_in_peft = (
            name in tensors_in_peft and not tensors_in_peft[name].is_floating_point()
        )
        if not is_whole_in_peft:
            weights[name] = tensor
    return weights


def _last_names(stored: Mapping[str, Tensor]) -> set[str]:
    """Return the last components of the names of an adapter's tensors, such as "weight"."""
    return {name.rpartition(".")[2] for name in stored}


def _rows_of_embedding(stored: Mapping[str, Tensor]) -> int:
    """Return the number of rows of the embedding or head that an adapter holds; 0: it holds none.

    If it holds both, the larger number is returned. `stored` has the adapter's weights by name.
    """
    row_counts = [len(weight) for name, weight in stored.items() if name.endswith(EMBEDDINGS)]
    return max(row_counts, default=0)


def _peft_model(
    module: PreTrainedModel, folder: Path, stored: Mapping[str, Tensor], rows: int
) -> tuple[PeftModel, Collection[str]]:
    """Add an adapter to its base, which is changed in place, and return the PeftModel.

    The names of the adapter's weights that match no weight of the PeftModel are returned as well.

    Args:
        module: The base. Its embedding is enlarged if the adapter's has more rows.
        folder: The folder of the adapter.
        stored: The weights of the adapter by name.
        rows: The rows of the adapter's embedding; 0: it has none.
    """
    from peft import PeftModel, set_peft_model_state_dict

    if rows > len(embedding_of(module)):
        module.resize_token_embeddings(rows, mean_resizing=False)
    peft_model = PeftModel.from_pretrained(module, str(folder))
    report = set_peft_model_state_dict(peft_model, dict(stored))
    _, unexpected_names = cast(tuple[list[str], list[str]], report)  # (missing, unexpected)
    return peft_model, unexpected_names


def _check_no_code_in_wrappers(model: PeftModel, called: str) -> None:
    """Raise a ModelError if what PEFT puts around a model runs code that was added to it.

    Such code is a hook, a replaced `forward`, or a class of the user. The plain model that is cut
    out of the wrappers would run without it. Running sample tokens with and without the code does
    not show that it may go, since it may act on other tokens or later positions only.

    Args:
        model: The wrappers and the model inside them.
        called: What errors call the model.
    """
    modules_inside = set(model.get_base_model().modules())
    for path, module in model.named_modules():
        is_wrapper = module not in modules_inside
        if is_wrapper and has_added_code(module, own_package=PEFT):  # hooks of PEFT may stay
            place = path or type(module).__name__
            raise ModelError(
                f"{called}: {place} has hooks or code of your own, which would be lost, since it "
                "only wraps the model that the adapter changes: move them to that model, which "
                "get_base_model() returns, and give that"
            )


def _merged_model(model: PeftModel) -> PreTrainedModel:
    """Merge the adapter of a model into its weights, in place, and return the plain model.

    Raises:
        ValueError: A layer of PEFT, or a module inside it, runs a hook or other code of the user.
            Such code is lost with the layer, or would read the merged weight.
        Exception: PEFT cannot merge the adapter, for which it raises errors of any class.
    """
    modules_before = list(model.get_base_model().named_modules())
    merged = model.merge_and_unload()  # replaces each layer of PEFT by the layer inside it
    modules_after = set(merged.modules())
    for path, module in modules_before:
        is_layer_of_peft = module not in modules_after
        if not is_layer_of_peft:
            continue
        if any(has_added_code(inner, own_package=PEFT) for inner in module.modules()):
            raise ValueError(f"{path} has hooks or code of your own")
    return merged


def run_adapted(
    make: Callable[[], Adapted], called: str, allowed: float
) -> tuple[PreTrainedModel, int]:
    """Return the module that runs a model with an adapter, and the rows of its embedding.

    The rows are those of the adapter's own embedding, 0 if it has none.

    The adapter is merged into the weights. Where it cannot be merged, or code of the user acts in
    the layers of PEFT, or merging moves the outputs of PEFT's own model by more than is allowed,
    these layers stay in place. Either way the module must give what PEFT's model does, since an
    adapter may act beyond its layers, such as after certain tokens only.

    Args:
        make: Returns the model with its adapter, new each time.
        called: What errors call the model.
        allowed: By how much outputs may differ, relative to the largest.

    Raises:
        ModelError: PEFT's model cannot run on tokens alone, or does what its layers do not.
    """
    adapted = make()
    if any(output.isnan().any() for output in adapted.outputs):
        raise ModelError(
            f"{called}: the model with its adapter gives logits that are not a number (NaN); "
            "check the adapter's weights and the settings that scale them, such as lora_alpha"
        )
    settings = adapted.peft_model.active_peft_config
    samples = _adapter_samples(adapted.peft_model)
    _warn_if_without_effect(adapted, samples, called)

    def error_of(module: PreTrainedModel) -> float:
        """Return the largest difference from the outputs of PEFT's own model, over all samples."""
        outputs = _outputs(module, samples, called)
        return largest_relative_error(zip(outputs, adapted.outputs, strict=True))

    module = None
    error = math.inf
    try:
        module = _merged_model(adapted.peft_model)
        error = error_of(module)
        reason = f"that changes logits by {error:.1e} of the largest"
    except ModelError:
        raise
    except Exception as failure:  # whatever a kind of adapter raises
        reason = one_line(failure)
    if error <= allowed:
        return module, adapted.rows

    log.warning("%s is not merged: %s", called, reason)
    # Anew, since merging has changed the first one.
    module = make().peft_model.get_base_model()
    error = error_of(module)
    if not error <= allowed:  # NaN fails as well
        # The first setting that may be a list of tokens that invoke the adapter.
        trigger = next(iter(_token_lists(settings, sys.maxsize)), None)
        condition = f" with {trigger}" if trigger else ""
        raise ModelError(
            f"{called}: an adapter of the kind {_kind_of(settings)}{condition} does more in "
            f"PEFT than its layers do (logits differ by {error:.1e} of the largest), so it cannot "
            "be cut at blocks; give its base"
        )
    return module, adapted.rows


def live_adapter(model: PeftModel, called: str) -> PreTrainedModel:
    """Return a plain model that gives the outputs of a PeftModel in memory.

    It is a copy with the adapter merged into its weights. If merging fails or would change the
    outputs, it keeps PEFT's layers instead. `called` is the model's name in errors.

    Raises:
        ModelError: The adapter learns prompts, or PEFT's model does more than run its layers (such
            as hooks of the user around them), so that no plain model gives its outputs.
    """
    _check_mergeable(model.active_peft_config, called)
    _check_no_code_in_wrappers(model, called)

    def make_copy() -> Adapted:
        """Return a copy of the model, with its outputs for sample tokens."""
        peft_model = copied(model)
        outputs = _outputs(peft_model, _adapter_samples(peft_model), called)
        # No rows of an embedding of the adapter: the model in memory has the adapter's already.
        return Adapted(peft_model, rows=0, outputs=outputs)

    # It merges one copy, and makes another one where merging fails.
    dtype = embedding_of(model.get_base_model()).dtype
    module, _no_rows = run_adapted(make_copy, called, TOLERANCE[dtype])
    return module


def _check_mergeable(settings: PeftConfig, called: str) -> None:
    """Raise a ModelError for an adapter of prompts, which no weights stand for."""
    if settings.is_prompt_learning:
        raise ModelError(f"{called}: an adapter of the kind {_kind_of(settings)} cannot be merged")


def _kind_of(settings: PeftConfig) -> str:
    """Return the kind of an adapter, such as LORA."""
    return str(getattr(settings.peft_type, "value", settings.peft_type))


def _adapter_samples(peft_model: PeftModel) -> list[Tensor]:
    """Return batches of token ids, (b, t), on which outputs of a model with an adapter are tested.

    The first batch is random. Some adapters act only after certain tokens, which are listed in
    their settings. So for each such list there is a batch of one row, with the tokens of the list,
    at most MOST_TRIGGER_TOKENS, between random ones.
    """
    embedding = embedding_of(peft_model.get_base_model())
    longest = longest_row(peft_model) or LONGEST_PROOF
    random_rows = sample_tokens(len(embedding), longest)  # (2, t)
    samples = [random_rows]
    for tokens in _token_lists(peft_model.active_peft_config, len(embedding)).values():
        trigger = torch.tensor(tokens[:MOST_TRIGGER_TOKENS])
        row = torch.cat([random_rows[0, :4], trigger, random_rows[1, :4]])  # 4 tokens on each side
        samples.append(row[None, :longest])
    return [sample.to(embedding.device) for sample in samples]


def _token_lists(settings: PeftConfig, vocabulary: int) -> dict[str, list[int]]:
    """Return the settings of an adapter that may be lists of token ids, by name.

    Some adapters act only after such tokens. Every list of whole numbers from 0 to vocabulary - 1
    may be a list of token ids, unless it is empty.
    """
    lists = {}
    for name, value in vars(settings).items():
        if not isinstance(value, list) or not value:
            continue
        if all(type(entry) is int and 0 <= entry < vocabulary for entry in value):
            lists[name] = value
    return lists


def _warn_if_without_effect(adapted: Adapted, samples: Sequence[Tensor], called: str) -> None:
    """Warn if a model gives the same outputs with its adapter and without it.

    PEFT runs some kinds of adapters only for a certain `task_type`, and ignores them silently
    otherwise. Nothing is checked for an adapter that cannot be switched off.

    Args:
        adapted: The model, with its outputs for `samples`.
        samples: Batches of token ids.
        called: The model's name in the warning.
    """
    try:
        with adapted.peft_model.disable_adapter():
            outputs_without_adapter = _outputs(adapted.peft_model, samples, called)
    except Exception:  # which one PEFT raises depends on the kind that cannot be switched off
        return
    if all(map(torch.equal, outputs_without_adapter, adapted.outputs)):
        log.warning(
            "warning: %s: the adapter changes no output for sample tokens; check its weights, and "
            "task_type in its adapter_config.json",
            called,
        )


def _outputs(
    module: PreTrainedModel | PeftModel, samples: Sequence[Tensor], called: str
) -> list[Tensor]:
    """Return a copy of the output of a model with an adapter for each batch of token ids.

    The model is put into evaluation mode. The encoder and the decoder of an encoder-decoder both
    read the tokens. `samples` are the batches, (b, t); `called` is the model's name in errors.

    Raises:
        ModelError: The model fails, as one that needs inputs other than tokens does.
    """
    is_encoder_decoder = bool(getattr(module.config, "is_encoder_decoder", False))
    outputs: list[Tensor] = []
    try:
        with torch.no_grad():
            for tokens in samples:
                inputs = {"input_ids": tokens}
                if is_encoder_decoder:
                    inputs["decoder_input_ids"] = tokens
                outputs.append(first_tensor(module.eval()(**inputs)).clone())
    except Exception as error:
        reason = reason_in_words(error)
        raise ModelError(
            f"{called}: the model with its adapter cannot run on tokens alone ({reason}); give "
            "its base"
        ) from error
    return outputs
