"""What a stitch can be trained to make small, by token of the target."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.evaluation import last_states, next_token_losses, states_onwards
from thinkalike.measures import token_kl
from thinkalike.models import FrozenModel

Mapped = Sequence[Float[Tensor, "b t d"]]  # states that φ has brought to the target
StitchLoss = Callable[[FrozenModel, Sequence[int], Mapped, Int[Tensor, "b t"]], list[Float[Tensor, " n"]]]


def _cross_entropy(target: FrozenModel, depths: Sequence[int], mapped: Mapped, tokens: Tensor) -> list[Tensor]:
    """Return the loss of the next token in nats (Brown et al. 2023, section 2)."""
    last = last_states(target, list(zip(depths, mapped, strict=True)))
    return [losses.flatten() for losses in next_token_losses(target, last, tokens)]


def _kl(target: FrozenModel, depths: Sequence[int], mapped: Mapped, tokens: Tensor) -> list[Tensor]:
    """Return KL in nats from the target's own output."""
    with torch.no_grad():
        standard = target.head(tokens, target.n_layers - 1).flatten(0, 1)
    last = last_states(target, list(zip(depths, mapped, strict=True)))
    return [token_kl(state.flatten(0, 1), target.finish, standard) for state in last]


def _mse(target: FrozenModel, depths: Sequence[int], mapped: Mapped, tokens: Tensor) -> list[Tensor]:
    """Return the mean squared difference from the target's state at the site of the stitch, in its own unit."""
    with torch.no_grad():
        own = target.residuals(tokens, depths)
    return [(state - goal).square().mean(-1).flatten() for state, goal in zip(mapped, own, strict=True)]


def _penultimate(target: FrozenModel, depths: Sequence[int], mapped: Mapped, tokens: Tensor) -> list[Tensor]:
    """Return ‖s - t‖² / ‖t‖² of the last block's states (arXiv 2603.12433)."""
    with torch.no_grad():
        own = target.head(tokens, target.n_layers - 1)
    last = last_states(target, list(zip(depths, mapped, strict=True)))
    return [_relative(state, own).flatten() for state in last]


def _alignment(target: FrozenModel, depths: Sequence[int], mapped: Mapped, tokens: Tensor) -> list[Tensor]:
    """Return the mean of ‖s - t‖² / ‖t‖² over the site of the stitch and all after it (arXiv 2505.20142)."""
    layers = range(min(depths), target.n_layers)
    with torch.no_grad():
        own = dict(zip(layers, target.residuals(tokens, layers), strict=True))
    return [
        torch.stack([_relative(state, own[depth + i]) for i, state in enumerate(states)]).mean(0).flatten()
        for depth, states in zip(depths, states_onwards(target, list(zip(depths, mapped, strict=True))), strict=True)
    ]


def _relative(state: Tensor, goal: Tensor) -> Tensor:
    return (state - goal).float().square().sum(-1) / goal.float().square().sum(-1)


STITCH_LOSSES: dict[str, StitchLoss] = {
    "cross_entropy": _cross_entropy,
    "kl": _kl,
    "mse": _mse,
    "penultimate": _penultimate,
    "alignment": _alignment,
}
