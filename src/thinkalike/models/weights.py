"""Reading weights, and the check that all of them were read: none missing, left over or of another shape."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from thinkalike.config import ModelConfig
from thinkalike.errors import ModelError, listed
from thinkalike.models.formats import located

log = logging.getLogger(__name__)

WRAPPERS = ("module", "_orig_mod", "model")  # what DDP, torch.compile and wrapping classes put before every name

AT_ONCE = 2**22  # entries of a tensor that are summed together

# buffers that older versions saved and newer ones compute
BUFFERS = re.compile(r"(^|\.)(position_ids|token_type_ids|inv_freq|masked_bias|attn\.bias|attention\.bias)$")

# heads and poolers of other classes with the same body, which the class that is loaded does not have
HEADS = re.compile(
    r"^(lm_head|embed_out|cls|classifier|score|qa_outputs|v_head|multiple_choice_head|seq_relationship)\.|(^|\.)pooler\."
)


class Fit(NamedTuple):
    """The differences between the weights in files and those of a module, by their names."""

    missing: set[str]  # in the module alone
    unexpected: set[str]  # in the files alone
    mismatched: set[str]  # in both, in different shapes


def read_weights(kind: Any, config: ModelConfig, place: str, /, **options: Any) -> tuple[Any, Fit]:
    """Read a checkpoint of transformers: the module, and how the weights fit it, which the caller checks.

    Transformers draws missing weights at random. The prefix of a wrapper is taken off.

    Args:
        kind: the class whose `from_pretrained` reads it.
        place: a folder, a GGUF file, or a repository of the hub.
        options: more options of `from_pretrained`.
    """
    state = torch.get_rng_state()
    module, fit = _attempt(kind, config, place, options)
    if prefix := wrapper_of(fit.unexpected, fit.missing):
        log.info(
            "%s: its weights are named '%s...', as a wrapper names them; the prefix is taken off", config.called, prefix
        )
        torch.set_rng_state(state)  # a wrapper changes nothing, the new weights of a head included
        module, fit = _attempt(kind, config, place, {**options, "key_mapping": {f"^{re.escape(prefix)}": ""}})
    return module, fit


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


def wrapper_of(given: Iterable[str], wanted: Collection[str]) -> str:
    """Return the prefix, such as "module.", without which given names are wanted ones, or "" if there is none."""
    chain = re.compile(rf"((?:{'|'.join(WRAPPERS)})\.)+")
    prefixes = {match[0] for name in given if (match := chain.match(name))}
    shorter = {prefix[: end + 1] for prefix in prefixes for end, mark in enumerate(prefix) if mark == "."}
    for prefix in sorted(shorter, key=len):
        if any(name.removeprefix(prefix) in wanted for name in given if name.startswith(prefix)):
            return prefix
    return ""


def check_fit(fit: Fit, name: str, place: str, needed: Sequence[str] = ("",)) -> None:
    """Check that every weight was read, and no other one than buffers and heads that are not used.

    Raises:
        ModelError: a part that is needed lacks weights, or there are others.
    """
    missing = [each for each in fit.missing if _is_in(each, needed) and not BUFFERS.search(each)]
    mismatched = [each for each in fit.mismatched if _is_in(each, needed)]
    unexpected = [each for each in fit.unexpected if not (BUFFERS.search(each) or HEADS.search(each))]
    faults = {"missing": missing, "of another shape": mismatched, "not expected": unexpected}
    found = "; ".join(f"{fault}: {listed(sorted(names))}" for fault, names in faults.items() if names)
    if found:
        raise ModelError(
            f"cannot load model={name} from {place}: its weights are not those that its config.json describes "
            f"({found}); give the whole checkpoint with its own config.json"
        )


def check_values(module: torch.nn.Module, name: str) -> None:
    """Check that no weight is NaN or infinite, and that no matrix holds whole numbers alone, such as zeros.

    Vectors may be of ones or zeros, as norms and biases begin.

    Raises:
        ModelError: a tensor holds such values; the message names it.
    """
    trained = {path for path, _ in module.named_parameters()}
    for path, tensor in tensors_of(module):
        if not tensor.is_floating_point() or not tensor.numel():
            continue
        wide = torch.promote_types(tensor.dtype, torch.float32)  # in parts, because summing in it makes a copy
        finite = all(part.sum(dtype=wide).isfinite() for part in _parts(tensor))
        if not finite and (bad := int((~tensor.isfinite()).sum())):
            remedy = "; load it in float32" if tensor.dtype == torch.float16 else ""
            raise ModelError(f"{name}: {bad:,} of {tensor.numel():,} values of {path} are not finite{remedy}")
        if path in trained and tensor.dim() > 1 and all((part == part.round()).all() for part in (tensor[0], tensor)):
            raise ModelError(f"{name}: {path} holds whole numbers alone, such as zeros, so it is damaged")


def _attempt(kind: Any, config: ModelConfig, place: str, options: Mapping[str, Any]) -> tuple[Any, Fit]:
    module, loading = kind.from_pretrained(
        **located(place),
        revision=config.revision or "main",
        output_loading_info=True,
        trust_remote_code=False,  # else transformers asks on the screen
        ignore_mismatched_sizes=True,  # they are reported, and refused with the others
        **options,
    )
    mismatched = {name for name, *_ in loading["mismatched_keys"]}
    return module, Fit(set(loading["missing_keys"]), set(loading["unexpected_keys"]), mismatched)


def _parts(tensor: torch.Tensor) -> Sequence[torch.Tensor]:
    """Return a tensor in parts of a few million entries."""
    rows = max(AT_ONCE * len(tensor) // tensor.numel(), 1) if tensor.dim() else 1
    return tensor.split(rows) if tensor.dim() else [tensor]


def _is_in(name: str, parts: Sequence[str]) -> bool:
    return any(part in ("", name) or name.startswith(f"{part}.") for part in parts)
