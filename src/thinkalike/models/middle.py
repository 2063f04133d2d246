"""A model that is cut between attention and MLP."""

from __future__ import annotations

import contextlib
from collections.abc import MutableMapping, Sequence

import torch
from torch import Tensor, nn

from thinkalike.advice import named_setting
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
        """Share everything with `model`, and check that it can be cut between attention and MLP.

        `is_proved` skips the passes that check it: then the model is a copy, with different
        weights, of one that passed.
        """
        vars(self).update(vars(model))
        self.middle_sites = Sites(model, [MIDDLE], head=None)
        self.sites = self.middle_sites
        if not self.middle_sites.layers("attn_out"):  # empty if some block has no attention
            raise ModelError(
                f"{named_setting('model.site', MIDDLE)} cannot be cut: not every block of "
                f"{model.name} has attention"
            )
        if not is_proved:
            prove(self)

    def describe(self) -> dict[str, str]:
        """Return what the provenance of a result says of the model, with its site."""
        return super().describe() | {"site": MIDDLE}

    def _captured(
        self, layer: Layer, batch_shape: Sequence[int], states: MutableMapping[Layer, Tensor]
    ) -> contextlib.AbstractContextManager[object]:
        """Return a context in which every pass writes a state to `states[layer]`.

        It is the residual stream between attention and the MLP of block `layer`, or for EMBED the
        input of block 0.

        Args:
            layer: The number of the block, or EMBED.
            batch_shape: The shape of the states without their width, (b, t).
            states: Gets the states, (b, t, d). A later pass replaces them.
        """
        if layer == EMBED:
            return super()._captured(layer, batch_shape, states)
        hook_point = Place(MIDDLE, int(layer))
        return self.middle_sites.captured(hook_point, layer, batch_shape, states)

    def _ended_after(self, count: int) -> contextlib.AbstractContextManager[None]:
        """Return a context in which a pass ends between attention and MLP of block `count - 1`.

        There the last of `count` states is read. With `count` 0, the pass ends before block 0.
        """
        if count == 0:
            return ended_at(self.blocks[0], entering=True)
        module, direction = self.middle_sites.hook_points[MIDDLE, count - 1]
        return ended_at(module, entering=direction == "input")

    def _continued(self, residual: Tensor, start: int, mask: Tensor | None) -> Tensor:
        """Return the model's output, given the stream between attention and MLP of a block.

        The block is `start - 1`, and `residual` (b, t, d) is the stream before its MLP. It is
        given to the block as its input, and the attention of the block runs, but does not count.
        There are two cases. Usually attention's output is replaced by zeros, so that `residual`
        reaches the MLP unchanged. But where a norm after attention returns the stream, the output
        of this norm is replaced by `residual`. With `start` 0, `residual` is the input of block 0.
        """
        if start == 0:
            return super()._continued(residual, start, mask)
        layer = start - 1
        middle, direction = self.middle_sites.hook_points[MIDDLE, layer]

        def return_residual(_: nn.Module, args: Arguments, output: object) -> Tensor:
            return residual

        with pass_lock(self.module), contextlib.ExitStack() as hooks:
            if direction == "output":
                hooks.enter_context(middle.register_forward_hook(return_residual))
            else:
                attention = self.middle_sites.hook_points["attn_out", layer].module
                hooks.enter_context(attention.register_forward_hook(_return_zeros))
            return super()._continued(residual, layer, mask)


def _return_zeros(_: nn.Module, args: Arguments, output: object) -> Tensor | tuple[object, ...]:
    """Replace the first tensor that a module returns by zeros, as a hook after the module."""
    zeros = torch.zeros_like(first_tensor(output))
    return with_first_tensor(output, zeros)
