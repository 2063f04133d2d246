"""Other models of an architecture: with new initial weights, or with noise for weights."""

from __future__ import annotations

from copy import deepcopy

import torch

from thinkalike.measures.seeds import seeded
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.module_facts import embedding_of
from thinkalike.models.precision import cast_weights


def variant(
    model: FrozenModel, module: torch.nn.Module, name: str, is_proved: bool = False
) -> FrozenModel:
    """Return a FrozenModel like `model` that runs a different module of the same architecture.

    The tokenizer, the length of rows, and the hook points at which states are taken stay the same.

    Args:
        model: The model that the new one is like.
        module: The module that the new model runs.
        name: The name of the new model.
        is_proved: Whether the new model is known to run alike in pieces, block by block, which is
            otherwise tried here. A copy of the model's own module with other weights is, since
            `model` was tried.
    """
    new_model = FrozenModel(
        module,
        model.family,
        model.tokenizer,
        name=name,
        context=model.context,
        bos_each_row=model.bos_each_row,
        device=model.device,
        classes=model.classes,
        is_proved=is_proved,
    )
    # A subclass wraps a FrozenModel, for example to take states between attention and MLP, and has
    # no hook points that a user chose.
    if type(model) is not FrozenModel:
        return type(model)(new_model, is_proved=is_proved)  # type: ignore[call-arg, arg-type]
    if model.sites is not None:
        from thinkalike.models.sites import Sites

        new_model.sites = Sites(new_model, model.sites.chosen, model.sites.head)
    return new_model


def randomised(model: FrozenModel, seed: int) -> FrozenModel:
    """Return a copy of a model with random matrices; vectors, such as biases, are kept.

    The entries of each matrix come from a normal distribution with a mean of 0 and the standard
    deviation of the original entries. The same seed gives the same copy.
    """
    module = deepcopy(model.module)
    generator = seeded(seed)
    with torch.no_grad():
        for weight in module.parameters():
            if weight.dim() > 1:
                # On the CPU, so that every device has the same numbers.
                noise = torch.randn(weight.shape, generator=generator)
                weight.copy_(noise * weight.float().std().cpu())
    # The check that a model can be cut at its blocks is skipped: `model` passed it.
    return variant(model, module, f"{model.name} (random)", is_proved=True)


def untrained_like(model: FrozenModel, seed: int) -> FrozenModel:
    """Return an untrained model of the same architecture, initialised by the model's own library.

    The same seed gives the same weights. The state of torch's CPU generator does not change.
    """
    from transformer_lens.model_bridge.sources.native.init import initialize_native_model
    from transformer_lens.model_bridge.sources.native.model import NativeModel

    if isinstance(model.module, NativeModel):
        module: torch.nn.Module = deepcopy(model.module)
        initialize_native_model(module, model.module.cfg, seed)  # type: ignore[arg-type]
    else:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = type(model.module)(deepcopy(model.module.config))
    if is_spread(model):
        module = _spread_like(cast_weights(module, torch.device("cpu"), model.dtype), model)
    else:
        module = cast_weights(module, model.device, model.dtype)
    # The check that a model can be cut at its blocks was made when `model` was loaded.
    return variant(model, module, f"{model.name} (fresh)", is_proved=True)


def is_spread(model: FrozenModel) -> bool:
    """Return whether accelerate has spread a model over devices, all of it in their memory."""
    if getattr(model.module, "hf_device_map", None) is None:
        return False
    return not any(weight.is_meta for weight in model.module.parameters())


def _spread_like(module: torch.nn.Module, model: FrozenModel) -> torch.nn.Module:
    """Spread a module over the devices of a model of the same architecture, and return it."""
    from accelerate import dispatch_model

    return dispatch_model(
        module,
        model.module.hf_device_map,
        # what transformers leaves where it is, such as caches
        skip_keys=getattr(module, "_skip_keys_device_placement", None),
    )


@torch.no_grad()
def untrained_with_embedding(model: FrozenModel, seed: int) -> FrozenModel:
    """Return an untrained model of the same architecture that has the model's token embedding.

    The two models share the memory of the embedding.
    """
    new_model = untrained_like(model, seed)
    embedding_of(new_model.module).data = embedding_of(model.module).data
    return new_model
