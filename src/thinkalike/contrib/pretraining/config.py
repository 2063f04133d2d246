"""The settings of task=pretrain."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from thinkalike.config import RecipeJob, SettingValues, TrainConfig, setting
from thinkalike.config.parts import COUNTS, TOKENS_AT_ONCE
from thinkalike.config.schema import STEPS, Checked, extended, of_form
from thinkalike.contrib.pretraining.settings import PretrainedModel
from thinkalike.errors import ConfigError

StepNumber = Annotated[int, Field(ge=0, strict=True)]
RULE = of_form(r"log2|every=[1-9][0-9]{0,6}", "log2, or every=N with N up to 9999999")
KeptByRule = Annotated[str, RULE]
Keep = KeptByRule | list[StepNumber]


@dataclass
class PretrainConfig(Checked, part="pretrain"):
    """How task=pretrain trains a mini: AdamW, warm-up and cosine."""

    # tokens that the training sees
    tokens: int = setting(0, by_recipe=True, least=0, most=COUNTS)
    # tokens that a step reads
    tokens_per_step: int = setting(2048, by_recipe=True, least=2, most=TOKENS_AT_ONCE)
    # peak learning rate
    lr: float = setting(2e-3, by_recipe=True, above=0)
    # decoupled weight decay of matrices
    weight_decay: float = setting(0.1, least=0)
    # steps in which the learning rate rises
    warmup: int = setting(200, least=0, most=STEPS)
    # largest norm of the gradient; 0: no clipping
    clip: float = setting(1.0, least=0)
    # size of the vocabulary; the bytes and the special tokens are the least
    vocabulary: int = setting(1024, by_recipe=True, least=260, most=10**6)
    # steps after which a checkpoint is kept: [0,1,2,4] | log2 | every=N; []: none
    keep: Keep = field(default_factory=list)

    def __post_init__(self) -> None:
        """Raise `ConfigError` if a checkpoint is wanted at a step after the last one.

        Nothing is checked as long as the number of steps is unknown: the number of tokens may be
        set later, by the recipe.
        """
        super().__post_init__()
        knows_number_of_steps = self.tokens and self.tokens_per_step
        if knows_number_of_steps and any(step > self.steps for step in self.kept_steps):
            raise ConfigError(
                f"pretrain.keep={self.keep} names a step after the last one, which is {self.steps}"
            )

    def by_recipe(self, job: RecipeJob) -> SettingValues:
        """Return the defaults of the settings that are declared with `by_recipe=True`.

        They depend on the model, whose configuration has a recipe to train it: `pretrain_tokens`
        there is the default of `tokens` here, and so on.
        """
        names = ("tokens", "tokens_per_step", "lr", "vocabulary")
        return {name: getattr(job.model, f"pretrain_{name}") for name in names}

    @property
    def steps(self) -> int:
        """How many whole steps the tokens make, at least one."""
        return max(self.tokens // self.tokens_per_step, 1)

    @property
    def kept_steps(self) -> list[int]:
        """The steps after which a checkpoint is kept.

        The setting `keep` is "log2" for the powers of 2, "every=N" for the multiples of N, or a
        list of steps. The first two also have step 0 (before the training) and the last step; a
        list is returned as it is.
        """
        if isinstance(self.keep, list):
            return self.keep
        if self.keep == "log2":
            # With k bits, the number of steps is at least 2^(k - 1) and below 2^k.
            steps_by_rule = [2**power for power in range(self.steps.bit_length())]
        else:
            interval = int(self.keep.removeprefix("every="))
            steps_by_rule = list(range(0, self.steps, interval))
        return sorted({0, *steps_by_rule, self.steps})


@dataclass
class PretrainJob(TrainConfig):
    """All that `task=pretrain` needs to know."""

    model: PretrainedModel = field(default_factory=lambda: extended(PretrainedModel)())
    pretrain: PretrainConfig = field(default_factory=PretrainConfig)

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a training on 0 tokens, or a model without sizes to build.

        Nothing is checked while the number of tokens is None, that is, not set yet.
        """
        super().__post_init__()
        tokens: int | None = self.pretrain.tokens  # None: not set yet
        lacks_architecture = bool(tokens) and not self.model.architecture
        if tokens == 0 or lacks_architecture:
            raise ConfigError(
                "task=pretrain needs model.architecture and pretrain.tokens: "
                f"model={self.model.name}"
            )
