"""Losses of classifiers, alone and stitched to each other by the identity (Brown et al. 2023, section 4)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from thinkalike.errors import ModelError
from thinkalike.models.families import EMBED
from thinkalike.models.frozen import FrozenModel


class ClassLosses(NamedTuple):
    """The losses of classifiers, and where they are right."""

    losses: Float[Tensor, "*s n"]  # cross-entropy of each example in nats, float64
    correct: Bool[Tensor, "*s n"]


class IdentityStitches(NamedTuple):
    """The losses and predictions of stitched classifiers, by source, target and cut."""

    losses: Float[Tensor, "s t c n"]  # cross-entropy of each example in nats, float64
    predicted: Int[Tensor, "s t c n"]  # place of the class among those of the data, int8


def predicted_classes(
    logits: Float[Tensor, "*s n c"], classes: Sequence[str], wanted: Sequence[str]
) -> Int[Tensor, "*s n"]:
    """Return the place in `wanted`, the classes of the data, of the likeliest of a model's own `classes`, as int8."""
    return _owners(classes, wanted).to(logits.device, torch.int8)[logits.argmax(-1)]


def class_losses(
    logits: Float[Tensor, "*s n c"], labels: Int[Tensor, " n"], classes: Sequence[str], wanted: Sequence[str]
) -> ClassLosses:
    """Return the cross-entropy and the correctness of each example.

    Where the data says no more than non-entailment, the likeliest of the model's own classes is the prediction, and
    the probabilities of neutral and contradiction are added: -log Σ p(c) over the classes c that the label stands for.

    Args:
        labels: places in `wanted`, the classes of the data.
        classes: of the model, in the order of its logits. Other ones than the data's are a ModelError.
    """
    owners = _owners(classes, wanted).to(logits.device)
    if not logits.isfinite().all():
        raise ModelError("a classifier's logits are not finite; run it in a wider dtype")
    labels = labels.to(logits.device)
    stands_for = owners[:, None] == torch.arange(len(wanted), device=logits.device)
    scores = logits.double().log_softmax(-1).unsqueeze(-1)
    joined = scores.where(stands_for, -torch.inf).logsumexp(-2)
    losses = -joined.gather(-1, labels.expand(joined.shape[:-1]).unsqueeze(-1)).squeeze(-1)
    return ClassLosses(losses, predicted_classes(logits, classes, wanted) == labels)


def _owners(classes: Sequence[str], wanted: Sequence[str]) -> Int[Tensor, " c"]:
    coarse = "non-entailment" in wanted
    named = ["non-entailment" if coarse and name in ("neutral", "contradiction") else name for name in classes]
    if {*named} != {*wanted}:
        raise ModelError(
            f"a model of the classes {list(classes)} cannot be asked for {list(wanted)}; name them in the order of its "
            "logits: model.classes=[entailment,neutral,contradiction]"
        )
    return torch.tensor([list(wanted).index(name) for name in named])


def check_labels(
    logits: Float[Tensor, "n c"],
    labels: Int[Tensor, " n"],
    classes: Sequence[str],
    wanted: Sequence[str],
    name: str = "the classifier",
) -> float:
    """Return the accuracy on a few hundred examples, and refuse one that says that the classes are permuted.

    A good model with two of three classes exchanged is about at chance. So no other order of the classes may be right
    more often by three standard errors of the difference (McNemar 1947).
    """
    orders = list(itertools.permutations(classes))  # the first is the one that is stated
    correct = torch.stack([class_losses(logits, labels, order, wanted).correct for order in orders])
    accuracies = correct.double().mean(1)
    best = int(accuracies.argmax())
    gained, lost = (correct[best] & ~correct[0]).sum(), (correct[0] & ~correct[best]).sum()
    accuracy, least = float(accuracies[0]), 1 / len(wanted)
    if accuracy < least or gained - lost > 3 * (gained + lost).sqrt():
        found = f"{name} is right on {accuracy:.3f} of {len(labels)} examples (at least {least:.3f} is expected)"
        order = f"in the order {', '.join(orders[best])} it would be right on {accuracies[best]:.3f}"
        remedy = "check model.classes and the labels of the data"
        raise ModelError(f"{found} with the classes {', '.join(classes)}; {order}: {remedy}")
    return accuracy


@torch.no_grad()
def identity_stitches(
    models: Sequence[FrozenModel],
    tokens: Int[Tensor, "b t"],
    labels: Int[Tensor, " b"],
    wanted: Sequence[str],
    *,
    mask: Int[Tensor, "b t"] | None = None,
    types: Int[Tensor, "b t"] | None = None,
    at_once: int = 1,
) -> IdentityStitches:
    """Stitch every model's first blocks, up to each cut, to the later blocks, pooler and classes of every model.

    Each model runs once to the deepest cut, and from there only tails run: with L + 1 cuts a pair costs
    L (L + 1) / 2 passes through a block, where whole stitched models cost L (L + 1). For labels see `class_losses`.

    Args:
        at_once: sources that run through a tail together, and whose states at all cuts are in memory. One at a time,
            results are those of whole stitched models to the bit; more are faster, and may differ in the last.
    """
    check_alike(models)
    cuts, found = [EMBED, *range(models[0].n_layers)], []
    for sources in (models[start : start + at_once] for start in range(0, len(models), at_once)):
        states = [model.residuals(tokens, cuts, mask, types) for model in sources]
        masks = None if mask is None else mask.repeat(len(sources), 1)
        outcomes = []
        for target in models:
            entering = (
                torch.cat([own.to(target.device, target.dtype) for own in cut]) for cut in zip(*states, strict=True)
            )
            tails = [target.tail(group, cut, masks) for group, cut in zip(entering, cuts, strict=True)]
            logits = torch.stack(tails, 1).unflatten(0, (len(states), -1)).transpose(1, 2)  # (s, cuts, b, c)
            losses = class_losses(logits, labels, target.classes, wanted).losses
            outcomes.append((losses.cpu(), predicted_classes(logits, target.classes, wanted).cpu()))
        found.append([torch.stack(values, 1) for values in zip(*outcomes, strict=True)])
    return IdentityStitches(*(torch.cat(values) for values in zip(*found, strict=True)))


def check_alike(models: Sequence[FrozenModel]) -> None:
    """Check that the identity can stitch any two of these models; a ModelError if they differ in depth or width."""
    first, *others = models
    for other in others:
        if (other.n_layers, other.d_model) != (first.n_layers, first.d_model):
            pair = f"{other.name} ({other.n_layers} layers of {other.d_model}) to {first.name} ({first.n_layers} of "
            raise ModelError(f"the identity does not stitch {pair}{first.d_model}); depth and width must be the same")
