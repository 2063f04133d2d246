"""The control that every comparison of trained models needs: the same architecture, never trained."""

from __future__ import annotations

import copy

import torch

from thinkalike.models.frozen import FrozenModel


def randomised(model: FrozenModel, seed: int) -> FrozenModel:
    """Return a copy in which every matrix is drawn anew from a normal distribution of its own spread."""
    module = copy.deepcopy(model.module)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in module.parameters():
            if weight.dim() > 1:
                noise = torch.randn(weight.shape, generator=generator)
                weight.copy_(noise * weight.float().std().cpu())
    return FrozenModel(
        module,
        model.family,
        model.tokenizer,
        name=f"{model.name} (random)",
        context=model.context,
        bos_each_row=model.bos_each_row,
        device=model.device,
        kernels=model.kernels,
        classes=model.classes,
    )
