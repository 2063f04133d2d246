"""The settings of a model that say how it is pretrained; the recipes of the bundled ones are in conf/pretraining/."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from thinkalike.config import ModelConfig, ranged
from thinkalike.config.parts import COUNTS, TOKENS_AT_ONCE
from thinkalike.config.schema import SEEDS, read_by


@dataclass
class PretrainedModel(ModelConfig):
    """A model, and how task=pretrain makes it."""

    # what task=pretrain builds
    architecture: dict[str, Any] = read_by("pretraining", field(default_factory=dict))
    seed: int = ranged(0, least=0, most=SEEDS)  # of the initial weights and of the order of the training data
    # task=pretrain: the tokenizer puts [CLS] before a text and [SEP] after it
    cls_sep: bool = read_by("pretraining", False)
    # of a mini: pretrain.tokens where nothing is said
    pretrain_tokens: int = read_by("pretraining", ranged(0, least=0, most=COUNTS))
    # likewise
    pretrain_tokens_per_step: int = read_by("pretraining", ranged(2048, least=2, most=TOKENS_AT_ONCE))
    pretrain_lr: float = read_by("pretraining", ranged(2e-3, above=0))  # likewise
    pretrain_vocabulary: int = read_by("pretraining", ranged(1024, least=260, most=10**6))  # likewise

    def fixed_by(self, shape: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
        fixed = super().fixed_by(shape)
        fixed["seed"] = (self.seed, shape.get("seed", self.seed))
        sizes = shape.get("architecture", shape)
        for name, value in self.architecture.items():
            fixed[f"architecture.{name}"] = (value, sizes.get(name, value))
        return fixed
