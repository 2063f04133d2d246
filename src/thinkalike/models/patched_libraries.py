"""Which functions of libraries that run models somebody has replaced in this process.

A model that is given by name is described by its files, and they do not tell what a replaced
function of its library does.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from thinkalike.code_text import entries_added_to, is_of_user, is_own_class, names_in_library

# The modules of libraries that compute in a pass, by the beginning of their names.
OF_PASSES = (
    "torch.functional",
    "torch.nn.",
    "transformers.activations",
    "transformers.cache_utils",
    "transformers.integrations.",
    "transformers.masking_utils",
    "transformers.modeling_",
    "transformers.models.",
    "transformers.pytorch_utils",
    "transformer_lens.",
    "mamba_ssm.",
    "causal_conv1d",
)

# Hooks that torch runs around the pass of every module.
GLOBAL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks")


def patched_names() -> list[str]:
    """Return the names of what code of no installed package has replaced in libraries of models.

    These are functions, classes and methods, such as
    "torch.nn.modules.normalization.LayerNorm.forward". Hooks around all modules, and modes that
    see each operation of torch, are named as well. Without torch in this process there are none.
    """
    if "torch" not in sys.modules:
        return []
    return sorted({*_patched_modules(), *_global_code()})


def _patched_modules() -> Iterator[str]:
    """Yield the names of replaced functions, classes and methods in the libraries of models."""
    import torch

    for name, _ in entries_added_to(torch.Tensor):
        yield f"torch.Tensor.{name}"
    for library, module in list(sys.modules.items()):
        if library != "torch" and not library.startswith(OF_PASSES):
            continue
        for name, value in list(vars(module).items()):
            if not callable(value):
                continue
            if not issubclass(type(value), type):
                if is_of_user(value) and name in names_in_library(library):
                    yield f"{library}.{name}"
            elif is_own_class(value):
                if name in names_in_library(library):
                    yield f"{library}.{name}"
            elif value.__module__ == library and issubclass(value, torch.nn.Module):
                # Its bases have modules of their own.
                for method, _ in entries_added_to(value):
                    yield f"{library}.{value.__qualname__}.{method}"


def _global_code() -> Iterator[str]:
    """Yield the names of hooks around all modules, and of modes that see operations of torch."""
    from torch.nn.modules import module as torch_module
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    for name in GLOBAL_HOOKS:
        if any(map(is_of_user, getattr(torch_module, name).values())):
            yield f"torch.nn.modules.module.{name}"
    modes = [*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack()]
    for mode in modes:
        if is_own_class(type(mode)):
            yield f"the mode {type(mode).__qualname__}"
