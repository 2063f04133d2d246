"""What stitches are trained for: the losses of `stitch.loss`, of each token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.evaluation.forward import last_states, next_token_losses, states_onwards
from thinkalike.measures.losses import token_kl
from thinkalike.models.frozen import FrozenModel


@dataclass(frozen=True)
class StitchedBatch:
    """What the losses of some stitches are computed from.

    Attributes:
        target: The model that the stitches enter.
        depths: For each stitch, the layer of the target after which it enters.
        mapped: For each stitch, the states that φ has brought there.
        target_states: The target's own states of these tokens, by layer.
        tokens: The tokens that the target reads.
    """

    target: FrozenModel
    depths: Sequence[int]
    mapped: Sequence[Float[Tensor, "b t d"]]
    target_states: Mapping[int, Float[Tensor, "b t d"]]
    tokens: Int[Tensor, "b t"]

    @property
    def entering(self) -> list[tuple[int, Float[Tensor, "b t d"]]]:
        """For each stitch, the layer after which it enters the target, and its states there."""
        return list(zip(self.depths, self.mapped, strict=True))

    @property
    def last_target_states(self) -> Float[Tensor, "b t d"]:
        """The target's own states after its last block."""
        return self.target_states[self.target.n_layers - 1]


@runtime_checkable
class StitchLoss(Protocol):
    """A loss of stitches."""

    def layers(self, depths: Sequence[int], layer_count: int) -> Sequence[int]:
        """Return the layers of the target whose own states the loss reads.

        They are computed before `of` is called.

        Args:
            depths: For each stitch, the layer of the target after which it enters.
            layer_count: How many layers the target has.
        """

    def of(self, batch: StitchedBatch) -> list[Float[Tensor, " n"]]:
        """Return for each stitch the loss of every token, row by row, in one axis."""


class CrossEntropy:
    """The loss of the next token in nats (Brown et al. 2023, section 2)."""

    def layers(self, depths: Sequence[int], layer_count: int) -> Sequence[int]:
        """Return no layers: the loss reads none of the target's own states."""
        return []

    def of(self, batch: StitchedBatch) -> list[Float[Tensor, " n"]]:
        """Return, for each stitch, the cross-entropy of each next token, row by row."""
        last = last_states(batch.target, batch.entering)
        losses = next_token_losses(batch.target, last, batch.tokens)
        return [token_losses.flatten() for token_losses in losses]


class KullbackLeibler:
    """The divergence in nats from the target's own output."""

    def layers(self, depths: Sequence[int], layer_count: int) -> Sequence[int]:
        return [layer_count - 1]

    def of(self, batch: StitchedBatch) -> list[Float[Tensor, " n"]]:
        """Return, for each stitch, KL(target ‖ stitched) of the predictions at each token."""
        last = torch.stack(last_states(batch.target, batch.entering))  # (p, b, t, d)
        reference = batch.last_target_states.flatten(0, 1)  # (n, d)
        return list(token_kl(last.flatten(1, 2), batch.target.finish, reference))


class MeanSquaredError:
    """The mean squared difference from the target's state at the site of the stitch."""

    def layers(self, depths: Sequence[int], layer_count: int) -> Sequence[int]:
        return depths

    def of(self, batch: StitchedBatch) -> list[Float[Tensor, " n"]]:
        """Return, for each stitch, the mean squared difference from the target's state.

        The states are those after which the stitch enters the target: φ's output and the target's
        own. The mean is over the entries of a state; there is one value for each token.
        """
        losses = []
        for depth, state in batch.entering:
            difference = state - batch.target_states[depth]
            losses.append(difference.square().mean(-1).flatten())
        return losses


class Penultimate:
    """‖s - t‖² / ‖t‖² of the last block's states (arXiv 2603.12433)."""

    def layers(self, depths: Sequence[int], layer_count: int) -> Sequence[int]:
        return [layer_count - 1]

    def of(self, batch: StitchedBatch) -> list[Float[Tensor, " n"]]:
        """Return, for each stitch, ‖s - t‖² / ‖t‖² at each token, row by row.

        s is the state after the last block in the stitched model, and t that in the target.
        """
        losses = []
        for state in last_states(batch.target, batch.entering):
            losses.append(_relative_error(state, batch.last_target_states).flatten())
        return losses


class OnwardAlignment:
    """The mean of ‖s - t‖² / ‖t‖² from the site of the stitch on (arXiv 2505.20142)."""

    def layers(self, depths: Sequence[int], layer_count: int) -> Sequence[int]:
        return range(min(depths), layer_count)

    def of(self, batch: StitchedBatch) -> list[Float[Tensor, " n"]]:
        """Return, for each stitch, the mean of ‖s - t‖² / ‖t‖² over layers, at each token.

        s is the state of the stitched model, and t that of the target. The layers are those from
        the one after which the stitch enters to the last; at the first of them, s is φ's output.
        """
        losses = []
        states_of_stitches = states_onwards(batch.target, batch.entering)  # by layer, from depth
        for depth, states in zip(batch.depths, states_of_stitches, strict=True):
            errors = []
            for layer, state in enumerate(states, depth):
                errors.append(_relative_error(state, batch.target_states[layer]))
            losses.append(torch.stack(errors).mean(0).flatten())
        return losses


def _relative_error(
    state: Float[Tensor, "b t d"], goal: Float[Tensor, "b t d"]
) -> Float[Tensor, "b t"]:
    """Return ‖s - g‖² / ‖g‖² of each state s and its goal g."""
    return (state - goal).float().square().sum(-1) / goal.float().square().sum(-1)


STITCH_LOSSES: Mapping[str, StitchLoss] = {
    "cross_entropy": CrossEntropy(),
    "kl": KullbackLeibler(),
    "mse": MeanSquaredError(),
    "penultimate": Penultimate(),
    "alignment": OnwardAlignment(),
}
