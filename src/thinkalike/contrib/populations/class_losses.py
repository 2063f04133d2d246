"""Losses and predictions of classifiers, on labels that may be coarser than their classes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from thinkalike.errors import ModelError

COARSE_CLASS = "non-entailment"  # the class of HANS that stands for the next two of MNLI
CLASSES_IN_COARSE = ("neutral", "contradiction")
MOST_STANDARD_ERRORS = 3  # by which another order of the classes may be right more often


class ClassLosses(NamedTuple):
    """The losses of classifiers, and where they are right.

    Attributes:
        losses: The cross-entropy of each example in nats, in float64.
        correct: Whether the likeliest class is the label.
    """

    losses: Float[Tensor, "*s n"]
    correct: Bool[Tensor, "*s n"]


def predicted_classes(
    logits: Float[Tensor, "*s n c"], classes: Sequence[str], data_classes: Sequence[str]
) -> Int[Tensor, "*s n"]:
    """Return the most likely class of each example: its index in `data_classes`, in int8.

    Args:
        logits: One logit for each of c classes of the model, for n examples. Further axes *s, such
            as those of several sources, are optional.
        classes: The model's classes in the order of its logits.
        data_classes: The classes of the data, which may be coarser than the model's: the class
            "non-entailment" stands for both "neutral" and "contradiction".
    """
    data_class_of = _data_class_indices(classes, data_classes)
    return data_class_of.to(logits.device, torch.int8)[logits.argmax(-1)]


def class_losses(
    logits: Float[Tensor, "*s n c"],
    labels: Int[Tensor, " n"],
    classes: Sequence[str],
    data_classes: Sequence[str],
) -> ClassLosses:
    """Return the cross-entropy of each example, and whether the prediction is right.

    The classes of the data may be coarser than the model's: "non-entailment" stands for "neutral"
    and "contradiction". The loss is then -log Σ p(c) over the model's classes c that the label
    stands for. The prediction is the most likely one of the model's own classes, and is right if
    the label stands for it.

    Args:
        logits: One logit for each of c classes of the model, for n examples. Further axes *s, such
            as those of several sources, are optional; all of them have the same labels.
        labels: The label of each example: its index in `data_classes`.
        classes: The names of the model's classes, in the order of its logits.
        data_classes: The names of the classes of the data.

    Raises:
        ModelError: The model and the data have different classes, or a logit is not finite.
    """
    data_class_of = _data_class_indices(classes, data_classes).to(logits.device)
    if not logits.isfinite().all():
        raise ModelError("a classifier's logits are not finite; run it in a wider dtype")

    labels = labels.to(logits.device)
    data_class_indices = torch.arange(len(data_classes), device=logits.device)
    belongs_to = data_class_of[:, None] == data_class_indices  # (c, data classes)

    log_p_of_model_classes = logits.double().log_softmax(-1).unsqueeze(-1)  # (*s, n, c, 1)
    # log Σ p over the model's classes that belong to each class of the data.
    log_p_of_data_classes = log_p_of_model_classes.where(belongs_to, -torch.inf).logsumexp(-2)
    label_index = labels.expand(log_p_of_data_classes.shape[:-1]).unsqueeze(-1)
    losses = -log_p_of_data_classes.gather(-1, label_index).squeeze(-1)

    correct = predicted_classes(logits, classes, data_classes) == labels
    return ClassLosses(losses, correct)


def _data_class_indices(classes: Sequence[str], data_classes: Sequence[str]) -> Int[Tensor, " c"]:
    """Return, for each class of a model, the index of the class of the data that it belongs to.

    The data may have the model's classes in another order, or distinguish only entailment from
    non-entailment, as HANS does. Then the model's classes "neutral" and "contradiction" both
    belong to "non-entailment".

    Args:
        classes: The names of the model's classes, in the order of its logits.
        data_classes: The names of the classes of the data, in the order of their indices.

    Raises:
        ModelError: The model and the data have different classes.
    """
    data_class_names = list(classes)  # for each class of the model, the class of the data
    if COARSE_CLASS in data_classes:  # "non-entailment"
        for index, name in enumerate(classes):
            if name in CLASSES_IN_COARSE:
                data_class_names[index] = COARSE_CLASS
    if set(data_class_names) != set(data_classes):
        raise ModelError(
            f"a model of the classes {list(classes)} cannot be asked for {list(data_classes)}; "
            "name its classes in the order of its logits: "
            "model.classes=[entailment,neutral,contradiction]"
        )
    return torch.tensor([list(data_classes).index(name) for name in data_class_names])


def check_labels(
    logits: Float[Tensor, "n c"],
    labels: Int[Tensor, " n"],
    classes: Sequence[str],
    data_classes: Sequence[str],
    name: str = "the classifier",
) -> float:
    """Check that a model states its classes in the order of its logits; return its accuracy.

    If two of three classes are exchanged, a good model seems to be about at chance. So the check
    fails if any other order of the classes is right more often, by more than three standard errors
    of the difference (McNemar 1947). A few hundred examples are enough.

    Args:
        logits: One logit for each of c classes of the model.
        labels: The label of each example: its index in `data_classes`.
        classes: The names of the model's classes, in the order that is checked.
        data_classes: The names of the classes of the data.
        name: What the error message calls the model.

    Raises:
        ModelError: Another order of the classes is clearly right more often, or the accuracy is
            below chance.
    """
    orders = list(itertools.permutations(classes))  # the first permutation is the stated order
    correct = torch.stack(
        [class_losses(logits, labels, order, data_classes).correct for order in orders]
    )  # (orders, n)
    accuracies = correct.double().mean(1)
    best = int(accuracies.argmax())
    correct_as_stated = correct[0]
    correct_in_best_order = correct[best]

    # If both orders were equally good, the variance of gained - lost would be gained + lost.
    gained = (correct_in_best_order & ~correct_as_stated).sum()
    lost = (correct_as_stated & ~correct_in_best_order).sum()
    standard_error = (gained + lost).sqrt()
    is_another_order_better = gained - lost > MOST_STANDARD_ERRORS * standard_error

    accuracy = float(accuracies[0])
    chance = 1 / len(data_classes)
    if accuracy < chance or is_another_order_better:
        raise ModelError(
            f"{name} is right on {accuracy:.3f} of {len(labels)} examples "
            f"(at least {chance:.3f} is expected) with the classes {', '.join(classes)}; "
            f"in the order {', '.join(orders[best])} it would be right on "
            f"{accuracies[best]:.3f}: check model.classes and the labels of the data"
        )
    return accuracy
