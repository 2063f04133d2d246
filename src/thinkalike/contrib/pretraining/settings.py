"""Settings of a model that say how it is pretrained; conf/pretraining/ has the bundled recipes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from thinkalike.config import ModelConfig, setting
from thinkalike.config.parts import COUNTS, TOKENS_AT_ONCE
from thinkalike.config.schema import SEEDS


@dataclass
class PretrainedModel(ModelConfig):
    """A model, and how task=pretrain makes it."""

    # sizes of the model that task=pretrain builds
    architecture: dict[str, Any] = setting(dict, only_for="pretraining")
    # seed of the initial weights and of the order of the training data
    seed: int = setting(0, least=0, most=SEEDS)
    # task=pretrain: the tokenizer puts [CLS] before a text and [SEP] after it
    cls_sep: bool = setting(False, only_for="pretraining")
    # the default of pretrain.tokens
    pretrain_tokens: int = setting(0, least=0, most=COUNTS, only_for="pretraining")
    # the default of pretrain.tokens_per_step
    pretrain_tokens_per_step: int = setting(
        2048, least=2, most=TOKENS_AT_ONCE, only_for="pretraining"
    )
    # the default of pretrain.lr
    pretrain_lr: float = setting(2e-3, above=0, only_for="pretraining")
    # the default of pretrain.vocabulary
    pretrain_vocabulary: int = setting(1024, least=260, most=10**6, only_for="pretraining")

    def fixed_by(self, shape: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
        """Return the settings that a checkpoint fixes, each as (value here, value in its files).

        The caller compares both values. Besides the settings that any model has, these are the
        seed and the sizes of the architecture. If the files do not state a value, the value here
        is returned for both.

        Args:
            shape: The contents of the checkpoint's config.json.
        """
        fixed = super().fixed_by(shape)
        fixed["seed"] = (self.seed, shape.get("seed", self.seed))
        # The project's own models have an entry for all sizes; a model of transformers has each
        # size as an entry of its own.
        sizes = shape.get("architecture", shape)
        for name, value in self.architecture.items():
            fixed[f"architecture.{name}"] = (value, sizes.get(name, value))
        return fixed
