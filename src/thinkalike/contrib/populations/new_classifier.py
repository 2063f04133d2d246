"""A classifier of sentence pairs before it is fine-tuned: a pretrained body and a random head."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import transformers
from torch import nn

from thinkalike.config import ModelConfig
from thinkalike.errors import ModelError
from thinkalike.models.access import checkpoint_location
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

    The head is all that follows the body. New weights are drawn from PyTorch's global generator.

    Args:
        config: The pretrained model, a BERT.
        classes: The names of the classes, in the order of the logits.
        spread: The standard deviation of the head's weights; None: the one that the checkpoint's
            configuration states (`initializer_range`).
        redraw: The first block whose pretrained weights are replaced by random ones; those of all
            later blocks and of the pooler are replaced, too, with a standard deviation that
            depends on the width alone. None: no weights are replaced.

    Raises:
        ModelError: The model is no BERT, or has no block `redraw`.
    """
    # `place` is the folder of the model's files, or their name on the hub.
    with explaining_loading_errors(config), checkpoint_location(config) as (place, _):
        module = _pretrained_classifier(config, place, classes, spread)
        body = module.base_model
        if redraw is not None:
            _redraw_blocks(body, redraw, config.called)
        head = [child for child in module.children() if child is not body]
        # This is `spread`, unless that is None.
        _draw_weights(head, module.config.initializer_range)
        return module, read_tokenizer(config, place)


def _pretrained_classifier(
    config: ModelConfig, place: str, classes: Sequence[str], spread: float | None
) -> transformers.BertForSequenceClassification:
    """Read the weights of a pretrained BERT into a classifier.

    The checkpoint has no weights of the classification head, so the caller draws them.

    Args:
        config: The pretrained model.
        place: The folder or the name on the hub that its files are read from.
        classes: The names of the classes, in the order of the logits.
        spread: The standard deviation of new weights (`initializer_range`) that the model's
            configuration gets; None: it keeps that of the checkpoint.

    Raises:
        ModelError: The model is no BERT.
    """
    family = FAMILIES[CLASSIFIER]
    model_type = read_config_json(config, place).get("model_type", config.family)
    if model_type != family.model_type:
        raise ModelError(
            f"task=nli fine-tunes bert; {config.called} is a {model_type}: choose model=bert-mini"
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
        ["embeddings", "encoder"],  # the modules that the checkpoint must have
        dtype=torch.float32,
        **settings,
    )
    return module


def _redraw_blocks(body: transformers.BertModel, first: int, name: str) -> None:
    """Replace the weights of a block, of all later blocks and of the pooler by random ones.

    Their standard deviation is 0.02 √(768 / width), which is BERT's at its width of 768.

    Args:
        body: The model without a classification head.
        first: The number of the first block that is redrawn, from 0.
        name: What the error message calls the model.

    Raises:
        ModelError: The model has no block of this number.
    """
    blocks = body.encoder.layer
    if first >= len(blocks):
        raise ModelError(f"nli.redraw={first}: {name} has blocks 0 to {len(blocks) - 1}")
    redrawn = list(blocks[first:])
    if body.pooler:
        redrawn.append(body.pooler)
    # `BERT_SPREAD` is 0.02 √768.
    standard_deviation = BERT_SPREAD / body.config.hidden_size**0.5
    _draw_weights(redrawn, standard_deviation)


def _draw_weights(modules: Iterable[nn.Module], spread: float) -> None:
    """Draw new weights in place: normal matrices, zero biases, layer norms of scale 1 and shift 0.

    Args:
        modules: Modules that contain the linear layers and layer norms; layers of other types
            keep their weights.
        spread: The standard deviation of the matrices.
    """
    for module in modules:
        for layer in module.modules():
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=spread)
                nn.init.zeros_(layer.bias)
            elif isinstance(layer, nn.LayerNorm):
                layer.reset_parameters()
