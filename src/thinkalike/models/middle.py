"""A model that is cut between attention and MLP."""

from __future__ import annotations

import contextlib
from collections.abc import MutableMapping, Sequence

import torch
from torch import Tensor, nn

from thinkalike.config.parts import MIDDLE
from thinkalike.errors import ModelError
from thinkalike.models.families import EMBED, Layer, Place
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.hooks import Arguments, ended_at, pass_lock
from thinkalike.models.module_facts import first_tensor
from thinkalike.models.proof import prove
from thinkalike.models.sites import Sites, with_first_tensor


class MiddleModel(FrozenModel):
    """A model cut after attention: layer l is resid_mid[l].

    Its tail begins with the MLP of block l. There are as many layers as blocks, since the last MLP
    is part of `finish`: it reads each token by itself. The MLP of a block is run by giving the
    block the state, and 0 in place of the output of its attention.

    Raises:
        ModelError: Attention and the MLP add to the stream side by side, or a block lacks one.
    """

    def __init__(self, model: FrozenModel, is_proved: bool = False):
        vars(self).update(vars(model))
        self.middle_sites = Sites(model, [MIDDLE], None)
        self.sites = self.middle_sites
        if not self.middle_sites.layers("attn_out"):
            raise ModelError(
                f"model.site={MIDDLE} cannot be cut: not every block of {model.name} has attention"
            )
        if not is_proved:
            prove(self)

    def describe(self) -> dict[str, str]:
        """Return what the provenance of a result says of the model, with its site."""
        return super().describe() | {"site": MIDDLE}

    def _captured(
        self, layer: Layer, rows: Sequence[int], states: MutableMapping[Layer, Tensor]
    ) -> contextlib.AbstractContextManager[object]:
        """Store the state in the middle of a block, instead of that after it, in every pass.

        Args:
            layer: The number of the block, or EMBED.
            rows: The shape of the states without their width, (b, t).
            states: Gets the states, (b, t, d), as `states[layer]`.
        """
        if layer == EMBED:
            return super()._captured(layer, rows, states)
        hook_point = Place(MIDDLE, int(layer))
        return self.middle_sites.captured(hook_point, layer, rows, states)

    def _ended_after(self, count: int) -> contextlib.AbstractContextManager[None]:
        """End a pass in the middle of the last of `count` blocks, where its state is read.

        0 ends it before the first block.
        """
        if count == 0:
            return ended_at(self.blocks[0], entering=True)
        module, direction = self.middle_sites.modules[MIDDLE, count - 1]
        return ended_at(module, entering=direction == "input")

    def _continued(self, residual: Tensor, start: int, mask: Tensor | None) -> Tensor:
        """Return the model's output with this state in the middle of block `start` - 1.

        Attention of that block runs as well, and its result is replaced. With `start` = 0, the
        state is that before the first block.
        """
        if start == 0:
            return super()._continued(residual, start, mask)
        layer = start - 1
        middle, direction = self.middle_sites.modules[MIDDLE, layer]

        def return_residual(_: nn.Module, args: Arguments, output: object) -> Tensor:
            return residual

        with pass_lock(self.module), contextlib.ExitStack() as hooks:
            if direction == "output":
                hooks.enter_context(middle.register_forward_hook(return_residual))
            else:
                attention = self.middle_sites.modules["attn_out", layer].module
                hooks.enter_context(attention.register_forward_hook(_return_zeros))
            return super()._continued(residual, layer, mask)


def _return_zeros(_: nn.Module, args: Arguments, output: object) -> Tensor | tuple[object, ...]:
    """Return zeros in place of the first tensor that a module returns, as a hook after it."""
    return with_first_tensor(output, torch.zeros_like(first_tensor(output)))
