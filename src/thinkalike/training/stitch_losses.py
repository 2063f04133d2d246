"""What a stitch can be trained to make small, by token of the target."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.evaluation import last_states, next_token_losses, states_onwards
from thinkalike.measures import token_kl
from thinkalike.models import FrozenModel

Mapped = Sequence[Float[Tensor, "b t d"]]  # states that φ has brought to the target
Own = Mapping[int, Float[Tensor, "b t d"]]  # the target's own states of these tokens, by layer


class StitchLoss(NamedTuple):
    """A loss, and which of the target's own states it reads.

    Attributes:
        value: given the target, the layers after which stitches enter it, what they bring there, the target's own
            states and the tokens: the losses of all tokens, (n), of each stitch.
        layers: given the layers after which stitches enter and the target's number of layers: whose states are read.
    """

    value: Callable[[FrozenModel, Sequence[int], Mapped, Own, Int[Tensor, "b t"]], list[Float[Tensor, " n"]]]
    layers: Callable[[Sequence[int], int], Sequence[int]]


def _cross_entropy(target: FrozenModel, depths: Sequence[int], mapped: Mapped, _: Own, tokens: Tensor) -> list[Tensor]:
    """Return the loss of the next token in nats (Brown et al. 2023, section 2)."""
    last = last_states(target, list(zip(depths, mapped, strict=True)))
    return [losses.flatten() for losses in next_token_losses(target, last, tokens)]


def _kl(target: FrozenModel, depths: Sequence[int], mapped: Mapped, own: Own, _: Tensor) -> list[Tensor]:
    """Return KL in nats from the target's own output."""
    last = torch.stack(last_states(target, list(zip(depths, mapped, strict=True))))
    return list(token_kl(last.flatten(1, 2), target.finish, own[target.n_layers - 1].flatten(0, 1)))


def _mse(_: FrozenModel, depths: Sequence[int], mapped: Mapped, own: Own, __: Tensor) -> list[Tensor]:
    """Return the mean squared difference from the target's state at the site of the stitch, in its own unit."""
    return [(state - own[depth]).square().mean(-1).flatten() for depth, state in zip(depths, mapped, strict=True)]


def _penultimate(target: FrozenModel, depths: Sequence[int], mapped: Mapped, own: Own, _: Tensor) -> list[Tensor]:
    """Return ‖s - t‖² / ‖t‖² of the last block's states (arXiv 2603.12433)."""
    last = last_states(target, list(zip(depths, mapped, strict=True)))
    return [_relative(state, own[target.n_layers - 1]).flatten() for state in last]


def _alignment(target: FrozenModel, depths: Sequence[int], mapped: Mapped, own: Own, _: Tensor) -> list[Tensor]:
    """Return the mean of ‖s - t‖² / ‖t‖² over the site of the stitch and all after it (arXiv 2505.20142)."""
    return [
        torch.stack([_relative(state, own[depth + i]) for i, state in enumerate(states)]).mean(0).flatten()
        for depth, states in zip(depths, states_onwards(target, list(zip(depths, mapped, strict=True))), strict=True)
    ]


def _relative(state: Tensor, goal: Tensor) -> Tensor:
    return (state - goal).float().square().sum(-1) / goal.float().square().sum(-1)


STITCH_LOSSES = {
    "cross_entropy": StitchLoss(_cross_entropy, lambda depths, count: []),
    "kl": StitchLoss(_kl, lambda depths, count: [count - 1]),
    "mse": StitchLoss(_mse, lambda depths, count: depths),
    "penultimate": StitchLoss(_penultimate, lambda depths, count: [count - 1]),
    "alignment": StitchLoss(_alignment, lambda depths, count: range(min(depths), count)),
}
