"""Which layers each of several models has, and which models are compared: what stands in blocks of two models.

Whatever is computed of two models is computed in the same steps, of operands of the same shapes, whether they come
alone or with others: so the numbers of a pair are the same to the bit in any company.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

Pair = tuple[int, int]  # numbers of two models; a model is with itself, too


class Blocks(NamedTuple):
    """The layers of several models, by their places in a list of different tensors, and which models are compared."""

    models: Sequence[Sequence[int]]
    pairs: Sequence[Pair]

    def by_model(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Return one stack for each model of what each different tensor has."""
        return [torch.stack([parts[place] for place in places]) for places in self.models]


def one_model(layers: int) -> Blocks:
    """Return the blocks of a single model of so many different layers: it is compared with itself."""
    return Blocks([list(range(layers))], [(0, 0)])


def joined(blocks: Mapping[Pair, Tensor], pair: Pair) -> Float[Tensor, "k k"]:
    """Return the matrix of all layers of the first model and then the second, from the blocks within and between."""
    first, second = pair
    across = blocks[pair]
    above = torch.cat([blocks[first, first], across], 1)
    return torch.cat([above, torch.cat([across.T, blocks[second, second]], 1)])
