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

    The rest are the later blocks, the pooler and the classification head, which read the states of
    the first model without a map between them. Each source runs once up to the deepest cut, and
    then each target runs from each cut: with L + 1 cuts a pair costs L (L + 1) / 2 passes through
    a block, where whole stitched models would cost L (L + 1).

    Args:
        models: Classifiers of the same depth and width.
        tokens: The tokens of some examples, a row for each.
        labels: The label of each example: its index in `data_classes`.
        data_classes: The names of the classes of the data.
        mask: 1 where there is a token, 0 where there is padding; None: there is no padding.
        types: 0 in the first text of a pair, 1 in the second; None: not given to the models.
        at_once: How many sources run through a target together, with their states at all cuts in
            memory. With one, results equal those of whole stitched models to the bit; more are
            faster and may differ in the last bit.

    Raises:
        ModelError: Two models differ in depth or width, or a model and the data have different
            classes.
    """
    check_same_shape(models)
    cuts: list[Layer] = [EMBED, *range(models[0].n_layers)]
    stitches_of_sources = []
    for start in range(0, len(models), at_once):
        sources = models[start : start + at_once]
        states_by_source = [source.residuals(tokens, cuts, mask, types) for source in sources]
        states_by_cut = list(zip(*states_by_source, strict=True))

        losses_by_target = []
        predicted_by_target = []
        for target in models:
            logits = _logits_of_target(target, cuts, states_by_cut, mask)  # (sources, cuts, b, c)
            losses = class_losses(logits, labels, target.classes, data_classes).losses
            predicted = predicted_classes(logits, target.classes, data_classes)
            losses_by_target.append(losses.cpu())
            predicted_by_target.append(predicted.cpu())
        stitches_of_sources.append(
            IdentityStitches(torch.stack(losses_by_target, 1), torch.stack(predicted_by_target, 1))
        )
    return IdentityStitches(
        torch.cat([stitches.losses for stitches in stitches_of_sources]),
        torch.cat([stitches.predicted for stitches in stitches_of_sources]),
    )


def _logits_of_target(
    target: FrozenModel,
    cuts: Sequence[Layer],
    states_by_cut: Sequence[Sequence[Float[Tensor, "b t d"]]],
    mask: Int[Tensor, "b t"] | None,
) -> Float[Tensor, "s cuts b c"]:
    """Return the logits of a target (of c classes) whose later blocks read each source's states.

    Args:
        target: The model whose later blocks run.
        cuts: The embedding and the blocks after which the target's later blocks take over.
        states_by_cut: At each cut, the states of each of s sources.
        mask: 1 where there is a token, 0 where there is padding; None: there is no padding.
    """
    n_sources = len(states_by_cut[0])
    mask_for_all_sources = None
    if mask is not None:
        mask_for_all_sources = mask.repeat(n_sources, 1)

    logits_by_cut = []
    for cut, states_by_source in zip(cuts, states_by_cut, strict=True):
        # The sources are joined along the batch, so that the target runs once for all of them.
        joined = torch.cat([states.to(target.device, target.dtype) for states in states_by_source])
        logits_by_cut.append(target.tail(joined, cut, mask_for_all_sources))  # (s * b, c)
    logits = torch.stack(logits_by_cut, 1).unflatten(0, (n_sources, -1))  # (s, b, cuts, c)
    return logits.transpose(1, 2)


def check_same_shape(models: Sequence[FrozenModel]) -> None:
    """Check that all models have the same depth and width, as identity stitches need.

    These run the blocks of one model on the states of another, without a map between them.

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
