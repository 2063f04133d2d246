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
EVALUATIONS = 13  # of the report, after the one at the start
MOST_REVIVED = 32  # dead latents that get a gradient in a step


@dataclass
class SAEConfig(Checked, part="sae"):
    """A sparse autoencoder of one site, and its training: Adam at a constant rate."""

    # the site: the residual stream after this block
    layer: int = setting(0, least=0, most=10**4)
    # number of latents
    width: int = setting(256, by_recipe=True, least=1, most=WIDEST)
    # topk: the k largest latents | relu: all that are positive
    activation: Literal["topk", "relu"] = "topk"
    # activation=topk: latents that are active at once
    k: int = setting(8, by_recipe=True, least=1, most=WIDEST)
    # activation=relu: weight in the loss of Σ latent × norm of its direction / width of states
    sparsity: float = setting(0.1, least=0)
    # random | least_squares: with a fitted decoder | transferred: from the SAE of another model
    start: Start = "random"
    # transferred: a result of task=sae, or a model whose SAE is trained by this recipe
    source: str | None = None
    # layer of a source that is a model; null: layer
    source_layer: int | None = setting(None, least=0, most=10**4)
    # tokens that maps, decoders and the scale of states are fitted on
    map_tokens: int = setting(4096, by_recipe=True, least=2, most=COUNTS)
    # further starts that are trained in the same pass
    beside: list[Start] = field(default_factory=list)
    # tokens that the model reads for training; 0: the start as it is
    tokens: int = setting(327680, by_recipe=True, least=0, most=COUNTS)
    # tokens that a step reads
    tokens_per_step: int = setting(256, by_recipe=True, least=1, most=TOKENS_AT_ONCE)
    # steps whose states are shuffled among each other
    steps_per_buffer: int = setting(16, least=1, most=STEPS)
    # learning rate, for states of variance 1; a source that is a model has this rate alone
    lr: float = setting(4e-3, by_recipe=True, above=0)
    # multiples of lr: further rates that are trained in the same pass
    lr_multiples: list[float] = setting(list, above=0, most=1e6)
    # seeds of the start, and of the order of states
    seeds: int = setting(1, least=1, most=1000)
    # activation=topk: states after which an inactive latent gets a gradient; 0: never
    dead_after: int = setting(4096, by_recipe=True, least=0, most=COUNTS)
    # tokens of each row that are left out: attention rests there, on outsized states
    skip_first_tokens: int = setting(1, least=0, most=10**6)
    # tokens of the report that are evaluated during training
    curve_tokens: int = setting(8192, by_recipe=True, least=2, most=COUNTS)

    def __post_init__(self) -> None:
        """Refuse less training text than one buffer, and a transferred start without a source.

        A buffer is the text of several steps, which the model reads at once. A start is how the
        first weights are made; "transferred" ones come from another model's autoencoder. Nothing
        is checked of sizes that are 0: no training, or a number that the recipe sets later.
        """
        super().__post_init__()
        if self.tokens and self.tokens_per_step and self.tokens < self.buffer:
            raise ConfigError(
                f"sae.tokens={self.tokens} must be at least sae.tokens_per_step × "
                "sae.steps_per_buffer"
            )
        if "transferred" in self.starts and self.source is None:
            raise ConfigError(
                "sae.start=transferred needs sae.source=<a result of task=sae, or a model>"
            )

    def by_recipe(self, job: RecipeJob) -> SettingValues:
        """Return the default settings of a training on a model of full size.

        The defaults of this class are for minis (small bundled models), so for these the result is
        empty.
        """
        if job.is_mini:
            return {}
        return {
            "width": 8192,
            "k": 32,
            "tokens": 20 * 2**20,
            "tokens_per_step": 2048,
            "lr": 4e-4,
            "map_tokens": 2**16,
            "dead_after": 2**18,
            "curve_tokens": 2**16,
        }

    def settings_read(self) -> frozenset[str]:
        """Return the names of the settings that apply.

        The number k of active latents and `dead_after` apply to TopK alone, and the penalty
        `sparsity` to ReLU alone. The source applies to transferred starts alone, that is, to first
        weights that come from another model's autoencoder.
        """
        read = super().settings_read()
        if self.activation == "topk":
            read -= {"sparsity"}
        else:
            read -= {"k", "dead_after"}
        if "transferred" not in self.starts:
            read -= {"source", "source_layer"}
        return read

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
        """How many latents are active at once (TopK); None: the activation is ReLU."""
        if self.activation == "topk":
            return self.k
        return None

    @property
    def revived(self) -> int:
        """How many dead latents get a gradient in a step at most."""
        return min(MOST_REVIVED, self.width)

    @property
    def buffer(self) -> int:
        """How many tokens a buffer has."""
        return self.tokens_per_step * self.steps_per_buffer

    @property
    def steps(self) -> int:
        """The steps of training, of whole buffers."""
        n_buffers = self.tokens // self.buffer
        return n_buffers * self.steps_per_buffer

    @property
    def evaluation_steps(self) -> list[int]:
        """The numbers of steps after which autoencoders are evaluated, in rising order.

        They are 0, before the training; all steps; and numbers between them, each by a factor √2
        smaller than the next one. Numbers that are equal after rounding count once.
        """
        numbers = [round(self.steps * 2 ** (-index / 2)) for index in range(EVALUATIONS)]
        return sorted({0, *numbers})


@dataclass
class SAEJob(TrainConfig):
    """All that `task=sae` needs to know."""

    sae: SAEConfig = field(default_factory=SAEConfig)

    def __post_init__(self) -> None:
        """Refuse training in several processes (`trainer=ddp`)."""
        super().__post_init__()
        if self.trainer.strategy == "ddp":
            raise ConfigError(
                "task=sae trains all its autoencoders in one process; leave trainer=ddp out"
            )
