"""Stitched classifiers without a map: the first blocks of one model, the rest of another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.contrib.populations.class_losses import class_losses, predicted_classes
from thinkalike.errors import ModelError
from thinkalike.models.families import EMBED, Layer
from thinkalike.models.frozen import FrozenModel


class IdentityStitches(NamedTuple):
    """The losses and predictions of stitched classifiers, by source, target, cut and example.

    Cut 0 is after the embedding, cut i after i blocks.

    Attributes:
        losses: The cross-entropy of each example in nats, in float64.
        predicted: The predicted class, as its index among those of the data, in int8.
    """

    losses: Float[Tensor, "s t c n"]
    predicted: Int[Tensor, "s t c n"]


@torch.no_grad()
def identity_stitches(
    models: Sequence[FrozenModel],
    tokens: Int[Tensor, "b t"],
    labels: Int[Tensor, " b"],
    data_classes: Sequence[str],
    *,
    mask: Int[Tensor, "b t"] | None = None,
    types: Int[Tensor, "b t"] | None = None,
    at_once: int = 1,
) -> IdentityStitches:
    """Stitch the first blocks of every model, up to each cut, to the rest of every model.

    The rest are the later blocks, the pooler and the classes. Each model runs once to the deepest
    cut, and from there only the rest runs: with L + 1 cuts a pair costs L (L + 1) / 2 passes
    through a block, where whole stitched models would cost L (L + 1).

    Args:
        models: Classifiers of the same depth and width.
        tokens: The tokens of some examples, a row for each.
        labels: Indices in `data_classes`, see `class_losses`.
        data_classes: The classes of the data.
        mask: 1 where there is a token, 0 where there is padding; None: there is none.
        types: 0 in the first text of a pair, 1 in the second; None: not given to the models.
        at_once: How many sources run through a target together, with their states at all cuts in
            memory. With one, results equal those of whole stitched models to the bit; more are
            faster and may differ in the last bit.

    Raises:
        ModelError: Two models differ in depth or width, or a model cannot be asked for the
            classes of the data.
    """
    check_same_shape(models)
    cuts: list[Layer] = [EMBED, *range(models[0].n_layers)]
    losses_by_source = []
    predicted_by_source = []
    for start in range(0, len(models), at_once):
        sources = models[start : start + at_once]
        states = [model.residuals(tokens, cuts, mask, types) for model in sources]
        states_by_cut = list(zip(*states, strict=True))

        losses_by_target = []
        predicted_by_target = []
        for target in models:
            logits = _logits_of_target(target, cuts, states_by_cut, mask)  # (sources, cuts, b, c)
            losses = class_losses(logits, labels, target.classes, data_classes).losses
            predicted = predicted_classes(logits, target.classes, data_classes)
            losses_by_target.append(losses.cpu())
            predicted_by_target.append(predicted.cpu())
        losses_by_source.append(torch.stack(losses_by_target, 1))
        predicted_by_source.append(torch.stack(predicted_by_target, 1))
    return IdentityStitches(torch.cat(losses_by_source), torch.cat(predicted_by_source))


def _logits_of_target(
    target: FrozenModel,
    cuts: Sequence[Layer],
    states_by_cut: Sequence[Sequence[Float[Tensor, "b t d"]]],
    mask: Int[Tensor, "b t"] | None,
) -> Float[Tensor, "s cuts b c"]:
    """Return the logits of the target's later blocks when they read the states of each source.

    Args:
        target: The model whose later blocks run.
        cuts: The sites after which the target's blocks take over: the embedding or a block.
        states_by_cut: At each cut, the states of each of s sources.
        mask: 1 where there is a token, 0 where there is padding; None: there is none.
    """
    n_sources = len(states_by_cut[0])
    repeated_mask = None
    if mask is not None:
        repeated_mask = mask.repeat(n_sources, 1)

    logits = []
    for cut, states in zip(cuts, states_by_cut, strict=True):
        entering = torch.cat([state.to(target.device, target.dtype) for state in states])
        logits.append(target.tail(entering, cut, repeated_mask))  # (sources x b, c)
    by_source_and_example = torch.stack(logits, 1).unflatten(0, (n_sources, -1))  # (s, b, cuts, c)
    return by_source_and_example.transpose(1, 2)


def check_same_shape(models: Sequence[FrozenModel]) -> None:
    """Check that all models have the same depth and width.

    Otherwise the blocks of one cannot read the states of another without a map between them.

    Raises:
        ModelError: Two models differ in depth or width.
    """
    first = models[0]
    for model in models[1:]:
        if (model.n_layers, model.d_model) != (first.n_layers, first.d_model):
            raise ModelError(
                f"the identity does not stitch {model.name} ({model.n_layers} layers of "
                f"{model.d_model}) to {first.name} ({first.n_layers} of {first.d_model}); "
                "depth and width must be the same"
            )
