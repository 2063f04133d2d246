"""The settings of task=sae."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from thinkalike.config import RecipeJob, SettingValues, TrainConfig, setting
from thinkalike.config.parts import COUNTS, TOKENS_AT_ONCE
from thinkalike.config.schema import STEPS, Checked
from thinkalike.errors import ConfigError

Start = Literal["random", "least_squares", "transferred"]
WIDEST = 10**7
LOOKS = 13  # at the report, after the one at the start


@dataclass
class SAEConfig(Checked, part="sae"):
    """A sparse autoencoder of one site, and its training: Adam at a constant rate."""

    layer: int = setting(0, least=0, most=10**4)  # the site: the residual stream after this block
    width: int = setting(256, by_recipe=True, least=1, most=WIDEST)  # latents
    activation: Literal["topk", "relu"] = "topk"
    # of topk: latents that are active at once
    k: int = setting(8, by_recipe=True, least=1, most=WIDEST)
    sparsity: float = setting(0.1, least=0)  # of relu: weight of Σ z ‖direction‖ / d in the loss
    start: Start = "random"  # least_squares: with a fitted decoder | transferred: from the SAE of another model
    source: str | None = None  # transferred: a result of task=sae, or a model whose SAE is trained by this recipe
    source_layer: int | None = setting(None, least=0, most=10**4)  # of a source that is a model; null: layer
    # that maps, a decoder and the scale of states come from
    map_tokens: int = setting(4096, by_recipe=True, least=2, most=COUNTS)
    beside: list[Start] = field(default_factory=list)  # other starts that are trained in the same pass
    # that the model reads for training; 0: the start as it is
    tokens: int = setting(327680, by_recipe=True, least=0, most=COUNTS)
    # tokens that a step reads
    tokens_per_step: int = setting(256, by_recipe=True, least=1, most=TOKENS_AT_ONCE)
    # whose states are shuffled among each other
    steps_per_buffer: int = setting(16, least=1, most=STEPS)
    # of states of variance 1; a source that is a model has this rate alone
    lr: float = setting(4e-3, by_recipe=True, above=0)
    # of further rates, tried in the same pass
    lr_multiples: list[float] = setting(list, above=0, most=1e6)
    seeds: int = setting(1, least=1, most=1000)  # of the start, and of the order of states
    # states; topk gives such latents a gradient; 0: none
    dead_after: int = setting(4096, by_recipe=True, least=0, most=COUNTS)
    skip_first_tokens: int = setting(1, least=0, most=10**6)  # of each row: attention rests there, on outsized states
    # of the report that is looked at during training
    curve_tokens: int = setting(8192, by_recipe=True, least=2, most=COUNTS)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tokens and self.tokens_per_step and self.tokens < self.buffer:
            raise ConfigError(f"sae.tokens={self.tokens} must be at least sae.tokens_per_step × sae.steps_per_buffer")
        if "transferred" in self.starts and self.source is None:
            raise ConfigError("sae.start=transferred needs sae.source=<a result of task=sae, or a model>")

    def by_recipe(self, job: RecipeJob) -> SettingValues:
        if job.is_mini:
            return {}
        sizes = {"width": 8192, "k": 32, "tokens": 20 * 2**20, "tokens_per_step": 2048, "lr": 4e-4}
        return sizes | {"map_tokens": 2**16, "dead_after": 2**18, "curve_tokens": 2**16}

    def settings_read(self) -> frozenset[str]:
        of_other_activation = {"sparsity"} if self.activation == "topk" else {"k", "dead_after"}
        read = super().settings_read() - of_other_activation
        return read if "transferred" in self.starts else read - {"source", "source_layer"}

    @property
    def starts(self) -> list[str]:
        """All starts, that of the result first."""
        return list(dict.fromkeys([self.start, *self.beside]))

    @property
    def factors(self) -> list[float]:
        """All multiples of the rate, 1 first."""
        return list(dict.fromkeys([1.0, *self.lr_multiples]))

    @property
    def active(self) -> int | None:
        """How many latents are active at once; None: a ReLU."""
        return self.k if self.activation == "topk" else None

    @property
    def revived(self) -> int:
        return min(32, self.width)

    @property
    def buffer(self) -> int:
        return self.tokens_per_step * self.steps_per_buffer

    @property
    def steps(self) -> int:
        """The steps of training, of whole buffers."""
        return self.tokens // self.buffer * self.steps_per_buffer

    @property
    def looks(self) -> list[int]:
        """The steps before which the report is looked at: 0, the end, and between them half an octave apart."""
        return sorted({0, *(round(self.steps * 2 ** (-place / 2)) for place in range(LOOKS))})


@dataclass
class SAEJob(TrainConfig):
    """All that `task=sae` needs to know."""

    sae: SAEConfig = field(default_factory=SAEConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.trainer.strategy == "ddp":
            raise ConfigError("task=sae trains all its autoencoders in one process; leave trainer=ddp out")
