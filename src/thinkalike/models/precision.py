"""The precision of a model's weights: which of them stay in float32."""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, TypeVar, cast

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def cast_weights(module: ModuleT, device: torch.device, dtype: torch.dtype) -> ModuleT:
    """Move a module to a device and its weights to a dtype, in place, and return it.

    Weights that transformers keeps in float32 at this dtype, such as routers of experts, become
    float32, as `from_pretrained(dtype=...)` would read them. The frequencies of rotary positions
    keep their precision: rounded to bfloat16, they would give wrong angles to positions beyond the
    first few dozen.
    """
    float32_names = pattern_of_float32_names(module, dtype)
    # Tensors to restore after the cast: (the dictionary of a module, the name in it, the tensor).
    precise: list[tuple[MutableMapping[str, Tensor | None], str, Tensor]] = []
    for path, submodule in module.named_modules():
        for name, weight in submodule._parameters.items():
            if weight is not None and float32_names.search(f"{path}.{name}"):
                values = weight.detach().to(device, torch.float32)
                parameter = nn.Parameter(values, weight.requires_grad)
                precise.append((submodule._parameters, name, parameter))
        for name, buffer in submodule._buffers.items():
            if buffer is None or not buffer.is_floating_point():
                continue
            if name.endswith("inv_freq"):  # the frequencies of rotary positions
                precise.append((submodule._buffers, name, buffer.to(device)))
            elif float32_names.search(f"{path}.{name}"):
                precise.append((submodule._buffers, name, buffer.to(device, torch.float32)))
    module.to(device=device, dtype=dtype)
    for tensors_of_module, name, tensor in precise:
        tensors_of_module[name] = tensor
    return module


def pattern_of_float32_names(module: nn.Module, dtype: torch.dtype) -> re.Pattern[str]:
    """Return a pattern that matches the names of weights that transformers keeps in float32.

    Which these are depends on the dtype of the other weights. The pattern matches no name if there
    are no such weights, or the module is not one of transformers.
    """
    matches_nothing = r"(?!)"
    if not hasattr(module, "_get_dtype_plan"):
        return re.compile(matches_nothing)
    # The keys of the plan are names of weights, in which "*" stands for anything.
    plan = cast("PreTrainedModel", module)._get_dtype_plan(dtype)
    patterns = [name.replace("*", ".*") for name in sorted(plan)]
    return re.compile("|".join(patterns) or matches_nothing)
