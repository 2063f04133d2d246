"""A classifier of sentence pairs before it is fine-tuned: a pretrained body and a random head."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import transformers
from torch import nn

from thinkalike.config import ModelConfig
from thinkalike.errors import ModelError
from thinkalike.models.access import reached
from thinkalike.models.config_json import read_config_json
from thinkalike.models.families import CLASSIFIER, FAMILIES
from thinkalike.models.loading_errors import explaining_loading_errors
from thinkalike.models.readers import read_weights
from thinkalike.models.tokenizer_reading import read_tokenizer

# The standard deviation of BERT's initial weights, 0.02 at width 768, times the root of the width.
BERT_SPREAD = 0.02 * 768**0.5


def new_classifier(
    config: ModelConfig,
    classes: Sequence[str],
    spread: float | None = None,
    redraw: int | None = None,
) -> tuple[transformers.BertForSequenceClassification, transformers.PreTrainedTokenizerBase]:
    """Return a classifier with a pretrained body and a random head, and the body's tokenizer.

    New weights are drawn from PyTorch's global generator.

    Args:
        config: The pretrained model.
        classes: The names of the classes, in the order of the logits.
        spread: The standard deviation of the head's weights; None: the checkpoint's
            initializer_range.
        redraw: Blocks from this one on are drawn anew, with the pooler, at the standard deviation
            that BERT has for their width; None: none.

    Raises:
        ModelError: The model is no BERT, or has no block `redraw`.
    """
    family = FAMILIES[CLASSIFIER]
    with explaining_loading_errors(config), reached(config) as (place, _):
        model_type = read_config_json(config, place).get("model_type", config.family)
        if model_type != family.model_type:
            raise ModelError(
                f"task=nli fine-tunes bert; {config.called} is a {model_type}: "
                "choose model=bert-mini"
            )
        settings: dict[str, object] = {
            "id2label": dict(enumerate(classes)),
            "label2id": {name: number for number, name in enumerate(classes)},
        }
        if spread is not None:
            settings["initializer_range"] = spread
        module: transformers.BertForSequenceClassification = read_weights(
            getattr(transformers, family.architecture),
            config,
            place,
            ["embeddings", "encoder"],
            dtype=torch.float32,
            **settings,
        )

        body = module.base_model
        blocks = body.encoder.layer
        if redraw is not None:
            if redraw >= len(blocks):
                raise ModelError(
                    f"nli.redraw={redraw}: {config.called} has blocks 0 to {len(blocks) - 1}"
                )
            redrawn = list(blocks[redraw:])
            if body.pooler:
                redrawn.append(body.pooler)
            _draw_weights(redrawn, BERT_SPREAD / body.config.hidden_size**0.5)
        head = [child for child in module.children() if child is not body]
        _draw_weights(head, module.config.initializer_range)
        return module, read_tokenizer(config, place)


def _draw_weights(modules: Iterable[nn.Module], spread: float) -> None:
    """Draw new weights in place: normal matrices, zero biases, layer norms of scale 1 and shift 0.

    Args:
        modules: Modules that contain the linear layers and layer norms; other layers stay.
        spread: The standard deviation of the matrices.
    """
    for module in modules:
        for layer in module.modules():
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=spread)
                nn.init.zeros_(layer.bias)
            elif isinstance(layer, nn.LayerNorm):
                layer.reset_parameters()
