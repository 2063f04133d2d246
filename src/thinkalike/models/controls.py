"""Controls made from a model: the same architecture with random, noisy or new weights."""

from __future__ import annotations

import copy

import torch
from torch import nn

from thinkalike.arguments import seeded
from thinkalike.models.frozen import FrozenModel


def variant(model: FrozenModel, module: nn.Module, name: str) -> FrozenModel:
    """Return a module of a model's architecture as a FrozenModel with the same tokenizer and context."""
    return FrozenModel(
        module,
        model.family,
        model.tokenizer,
        name=name,
        context=model.context,
        bos_each_row=model.bos_each_row,
        device=model.device,
        kernels=model.kernels,
        classes=model.classes,
    )


def randomised(model: FrozenModel, seed: int) -> FrozenModel:
    """Return a copy in which every matrix is drawn anew from a normal distribution of its own spread."""
    module, generator = copy.deepcopy(model.module), seeded(seed)
    with torch.no_grad():
        for weight in module.parameters():
            if weight.dim() > 1:
                noise = torch.randn(weight.shape, generator=generator)
                weight.copy_(noise * weight.float().std().cpu())
    return variant(model, module, f"{model.name} (random)")


def perturbed(model: FrozenModel, share: float, seed: int) -> FrozenModel:
    """Return a copy with normal noise on every weight, of this share of the root mean square of its tensor."""
    module, generator = copy.deepcopy(model.module), seeded(seed)
    with torch.no_grad():
        for weight in module.parameters():
            noise = torch.randn(weight.shape, generator=generator)
            weight.add_((noise * (share * weight.float().square().mean().sqrt().cpu())).to(weight))
    return variant(model, module, f"{model.name} (noisy)")


def fresh(model: FrozenModel, seed: int) -> FrozenModel:
    """Return the architecture with new initial weights, as its own library draws them."""
    from transformer_lens.model_bridge.sources.native.init import initialize_native_model
    from transformer_lens.model_bridge.sources.native.model import NativeModel

    if isinstance(model.module, NativeModel):
        module: nn.Module = copy.deepcopy(model.module)
        initialize_native_model(module, model.module.cfg, seed)  # type: ignore[arg-type]
    else:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = type(model.module)(copy.deepcopy(model.module.config))
    return variant(model, module.to(model.device, model.dtype), f"{model.name} (fresh)")
