"""BERT classifiers and what their classes are called.

They are read by transformers: TransformerLens would put a random head for hidden tokens in the place of theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from thinkalike.config import ModelConfig
from thinkalike.errors import ModelError
from thinkalike.models.checkpoints import checkpoint, explained
from thinkalike.models.minis import folder_of

CLASSIFIER = "bert_classifier"  # the family
ARCHITECTURE = "BertForSequenceClassification"  # as config.json names it

THREE = ["entailment", "neutral", "contradiction"]
TWO = ["entailment", "non-entailment"]


def read_classifier(config: ModelConfig, place: str, dtype: torch.dtype) -> tuple[Any, Any, int]:
    """The module, on the CPU, the tokenizer and the longest row of a checkpoint in a folder or repository.

    Raises:
        ModelError: weights are missing, which transformers would draw at random.
    """
    from transformers import AutoTokenizer, BertForSequenceClassification

    revision = config.revision or "main"
    module, found = BertForSequenceClassification.from_pretrained(
        place, revision=revision, dtype=dtype, output_loading_info=True
    )
    if found["missing_keys"]:
        missing = ", ".join(sorted(found["missing_keys"]))
        raise ModelError(f"{config.name}: {place} holds no trained classifier, because it has no {missing:.200}")
    return module, AutoTokenizer.from_pretrained(place, revision=revision), module.config.max_position_embeddings


def new_classifier(config: ModelConfig, classes: Sequence[str]) -> tuple[Any, Any]:
    """A classifier with the body of a pretrained BERT and a head of random weights, and its tokenizer.

    Raises:
        ModelError: the checkpoint cannot be had, or is no BERT.
    """
    from transformers import AutoConfig, AutoTokenizer, BertForSequenceClassification

    if config.mini:
        config = replace(config, path=str(folder_of(config)))
    names = dict(enumerate(classes))
    with explained(config), checkpoint(config) as (place, _):
        revision = {"revision": config.revision or "main"}
        own = config.family in ("native", "legacy")  # of no class of transformers
        kind = config.family if own else AutoConfig.from_pretrained(place, **revision).model_type
        if kind != "bert":
            raise ModelError(f"task=nli fine-tunes BERT; {config.name} is a {kind}: choose model=bert-mini, for one")
        options = {"id2label": names, "label2id": {name: number for number, name in names.items()}, **revision}
        module = BertForSequenceClassification.from_pretrained(place, dtype=torch.float32, **options)
        return module, AutoTokenizer.from_pretrained(place, **revision)


def class_names(config: ModelConfig, module: Any) -> list[str]:
    """The classes in the order of the logits: those of the configuration, or else of the checkpoint.

    Raises:
        ModelError: nothing names them, their number or their names are wrong, or the checkpoint has another order.
    """
    own = [_ours(module.config.id2label[number]) for number in range(module.config.num_labels)]
    classes = list(config.classes or own)
    if len(classes) != len(own):
        raise ModelError(f"{config.name}: model.classes={classes} names {len(classes)}, but the head has {len(own)}")
    if sorted(classes) not in (sorted(THREE), sorted(TWO)):
        raise ModelError(
            f"{config.name}: its classes are {classes}; say in the order of its logits which is which of {THREE} or "
            f"{TWO}: model.classes=[{','.join(THREE)}]"
        )
    if sorted(own) == sorted(classes) and own != classes:
        raise ModelError(f"{config.name}: model.classes={classes}, but its config.json says {own}")
    return classes


def _ours(name: str) -> str:
    """A class as we spell it."""
    name = name.lower().replace("_", "-")
    return "non-entailment" if name == "not-entailment" else name
