"""From what was read of a checkpoint to a FrozenModel, with checks of settings and ids."""

from __future__ import annotations

import logging
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from thinkalike.advice import named_setting
from thinkalike.config import ModelConfig
from thinkalike.config.parts import AFTER
from thinkalike.errors import ConfigError, ModelError
from thinkalike.models.families import DEFAULT_CONTEXT, Family
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.module_facts import Checkpoint, puts_bos
from thinkalike.models.plausible import check_plausible

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

log = logging.getLogger(__name__)


def check_settings(config: ModelConfig, family: Family) -> None:
    """Raise a ConfigError for a setting that has no effect on models of a family.

    Such a setting is refused and not ignored. The key of a stored result is a hash of all settings
    of the model, so the same numbers would be computed again and stored under a second key.
    """
    settings_read = set()
    if family.reader == "transformers":
        settings_read |= {"device_map", "quantization"}
    if family.is_encoder_decoder:  # an encoder and a decoder
        settings_read.add("side")
    for name in ("device_map", "quantization", "side"):
        value = getattr(config, name)
        if value is not None and name not in settings_read:
            raise ConfigError(
                f"{named_setting(f'model.{name}', value)} has no effect for {config.called}, a "
                f"{family.name}; leave it out"
            )
    # Settings that installed packages add, such as those of classifiers, are checked there.
    config.check_family(family.name, family.predicts)


def frozen_model(
    config: ModelConfig,
    family: Family,
    checkpoint: Checkpoint,
    *,
    name: str,
    device: torch.device,
    revision: str,
) -> FrozenModel:
    """Make a FrozenModel of a checkpoint that was read, and check it.

    Args:
        config: The configuration of the model.
        family: The family of the model.
        checkpoint: The module, the tokenizer and what else was read.
        name: The name of the FrozenModel.
        device: The device on which its states and logits are.
        revision: What was loaded, as results state it: a commit, "local" or the like.

    Raises:
        ModelError: The model cannot be cut at its blocks, its tokenizer has ids without a row in
            the embedding, or no trained model has such weights or settings.
    """
    module, tokenizer, longest, quantization, has_head = checkpoint
    if config.context and longest and config.context > longest:
        log.warning("%s accepts at most %d tokens, so rows are cut to that length", name, longest)
    if not has_head:
        family = replace(family, predicts="states", blocks="")
    if not family.blocks:
        from thinkalike.models.blocks import blocks_of

        family = replace(family, blocks=blocks_of(module, config.called))
    frozen = FrozenModel(
        module,
        family,
        tokenizer,
        name=name,
        context=min(longest or DEFAULT_CONTEXT, config.context or DEFAULT_CONTEXT),
        bos_each_row=puts_bos(tokenizer) if config.bos is None else config.bos,
        device=device,
        revision=revision,
        classes=_names_of_classes(config, module) if family.predicts == "class" else (),
        quantization=quantization,
    )
    frozen.corpus = config.corpus
    _check_rows_of_vocabulary(frozen, tokenizer)
    if not config.implausible:
        check_plausible(frozen)
    return frozen


def _check_rows_of_vocabulary(model: FrozenModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise a ModelError if the tokenizer has a token id without a row in the embedding.

    Added tokens are not checked here: they occur only in a text that contains them literally, and
    each forward pass checks the ids that it gets.
    """
    vocabulary = tokenizer.get_vocab()  # called once, since it makes a dictionary of all tokens
    regular_tokens = vocabulary.keys() - tokenizer.get_added_vocab().keys()
    largest_id = max((vocabulary[token] for token in regular_tokens), default=0)
    if largest_id >= model.vocabulary:
        raise ModelError(
            f"{model.name}: its tokenizer has ids up to {largest_id}, but its embedding only "
            f"{model.vocabulary} rows"
        )


def _names_of_classes(config: ModelConfig, module: PreTrainedModel) -> list[str]:
    """Return the names of a classifier's classes in the order of its logits.

    Models name the same class differently. So names are put into lower case with hyphens, and
    "not-entailment" becomes "non-entailment". The setting `model.classes` may rename them again.
    """
    names = []
    for class_id in range(module.config.num_labels):
        name = module.config.id2label[class_id].lower().replace("_", "-")
        names.append(name.replace("not-entailment", "non-entailment"))
    return config.classes_of(names)


def at_sites(model: FrozenModel, config: ModelConfig, name: str) -> FrozenModel:
    """Return a model under another name, whose states are taken at the hook points of `config`.

    The two models share their weights; the given one is not changed. By default, states are taken
    after each block.

    Raises:
        ModelError: The model lacks one of the hook points, or the attention head.
    """
    renamed = copy(model)
    renamed.name = name
    renamed.sites = None
    if config.site != AFTER:  # AFTER, the stream after each block, needs no `sites`
        from thinkalike.models.sites import Sites

        names_of_sites = [config.site] if isinstance(config.site, str) else config.site
        renamed.sites = Sites(model, names_of_sites, config.head)
    return renamed
