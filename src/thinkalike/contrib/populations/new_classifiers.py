"""Classifiers of texts: new ones with a pretrained body, and the names of their classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from thinkalike.config import ModelConfig
from thinkalike.errors import ModelError
from thinkalike.models.families import CLASSIFIER, FAMILIES
from thinkalike.models.places import explained, reached, read_shape
from thinkalike.models.readers import read_tokenizer, read_weights

BERT_SPREAD = 0.02 * 768**0.5  # of the weights that BERT began with, times the root of its width


def new_classifier(
    config: ModelConfig, classes: Sequence[str], spread: float | None = None, redraw: int | None = None
) -> tuple[Any, Any]:
    """Return a classifier with a pretrained body and a head of random weights, and the tokenizer of the body.

    Args:
        spread: The standard deviation of the head's weights, by default the checkpoint's initializer_range.
        redraw: The first block that is drawn anew, with all later ones and the pooler, at the spread that BERT has for
            their width; None: no block.

    Raises:
        ModelError: the checkpoint cannot be read, there are no classifiers of its kind, or it has no such block.
    """
    import transformers

    with explained(config), reached(config) as (place, _):
        kind, family = read_shape(config, place).get("model_type", config.family), FAMILIES[CLASSIFIER]
        if kind != family.model_type:
            raise ModelError(f"task=nli fine-tunes bert; {config.called} is a {kind}: choose model=bert-mini")
        names = dict(enumerate(classes))
        module = read_weights(
            getattr(transformers, family.architecture),
            config,
            place,
            ["embeddings", "encoder"],
            dtype=torch.float32,
            id2label=names,
            label2id={name: number for number, name in names.items()},
            **({} if spread is None else {"initializer_range": spread}),
        )
        body, blocks = module.base_model, module.base_model.encoder.layer
        if redraw is not None and redraw >= len(blocks):
            raise ModelError(f"nli.redraw={redraw}: {config.called} has blocks 0 to {len(blocks) - 1}")
        anew = [] if redraw is None else [*blocks[redraw:], *([body.pooler] if body.pooler else [])]
        _draw(anew, BERT_SPREAD / body.config.hidden_size**0.5)
        _draw([part for part in module.children() if part is not body], module.config.initializer_range)
        return module, read_tokenizer(config, place)


def _draw(parts: Sequence[nn.Module], spread: float) -> None:
    """Give parts of a BERT the weights that training begins with."""
    for layer in (layer for part in parts for layer in part.modules()):
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=spread)
            nn.init.zeros_(layer.bias)
        elif isinstance(layer, nn.LayerNorm):
            layer.reset_parameters()
