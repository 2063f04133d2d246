"""Copies of a bundled model that were tuned on narrow text: all weights, or matrices of low rank beside them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from thinkalike.measures.seeds import seeded
from thinkalike.models.checkpoints import ASSETS

MODEL = "gpt2-mini"
RANK = 2
STEPS = 30
RATE = 1e-3
RATE_OF_LOW_RANK = 1e-2
TOKENS_OF_TEXT = (31, 32, 33, 34, 35)  # the tokens of the narrow text, in random orders
ADAPTED = ("c_attn", "c_fc", "c_proj")


def narrow_rows(seed: int) -> Tensor:
    """Rows of a text of few tokens."""
    choice = torch.randint(len(TOKENS_OF_TEXT), (8, 24), generator=seeded(seed))
    return torch.tensor(TOKENS_OF_TEXT)[choice]


def train(module: Callable[..., object], parameters: list[nn.Parameter], rate: float, seed: int) -> float:
    """Tune some parameters of a model; return how many nats the loss fell."""
    optimizer = torch.optim.AdamW(parameters, lr=rate)
    losses = []
    for step in range(STEPS):
        rows = narrow_rows(1000 * seed + step)
        loss = module(input_ids=rows, labels=rows).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses[0] - losses[-1]


def mini() -> nn.Module:
    """The bundled model in float32."""
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(ASSETS / MODEL, dtype=torch.float32)


def tuned(seed: int) -> dict[str, Tensor]:
    """The weights after tuning all of them."""
    module = mini()
    assert train(module, list(module.parameters()), RATE, seed) > 2
    return weights_of(module)


class LowRank(nn.Module):
    """Adds a matrix of low rank to a weight, as LoRA does."""

    def __init__(self, weight: Tensor, seed: int):
        super().__init__()
        rows, columns = weight.shape
        self.down = nn.Parameter(torch.randn(RANK, columns, generator=seeded(seed)) / columns**0.5)
        self.up = nn.Parameter(torch.zeros(rows, RANK))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.up @ self.down


def tuned_by_low_rank(seed: int) -> dict[str, Tensor]:
    """The weights after tuning matrices of low rank beside those of attention and MLPs."""
    from torch.nn.utils import parametrize

    module = mini().requires_grad_(False)
    adapted = [part for name, part in module.named_modules() if name.endswith(ADAPTED)]
    added = []
    for part in adapted:
        low_rank = LowRank(part.weight, seed)
        parametrize.register_parametrization(part, "weight", low_rank)
        added += list(low_rank.parameters())
    assert train(module, added, RATE_OF_LOW_RANK, seed) > 2
    for part in adapted:
        parametrize.remove_parametrizations(part, "weight")
    return weights_of(module)


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in module.state_dict().items()}
