"""How sparse autoencoders are trained, and where they begin; checks of these values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional

from thinkalike.config.ranges import COUNTS, STEPS, TOKENS_AT_ONCE, Checked, ranged
from thinkalike.errors import ConfigError, one_of

SAE_STARTS = ("random", "least_squares", "transferred")
WIDEST = 10**7
REVIVED = 32  # latents
LOOKS = 13  # at the report, after the one at the start


# ruff: noqa: UP045
@dataclass
class SAEConfig(Checked, part="sae"):
    """A sparse autoencoder of one site, and its training: Adam at a constant rate."""

    layer: int = ranged(0, least=0, most=10**4)  # the site: the residual stream after this block
    width: int = ranged(256, least=1, most=WIDEST)  # latents
    activation: str = "topk"  # or relu
    k: int = ranged(8, least=1, most=WIDEST)  # of topk: latents that are active at once
    sparsity: float = ranged(0.1, least=0)  # of relu: weight of Σ z ‖direction‖ / d in the loss
    start: str = "random"  # least_squares: with a fitted decoder | transferred: from the SAE of another model
    source: Optional[str] = None  # transferred: a result of task=sae, or a model whose SAE is trained by this recipe
    source_layer: Optional[int] = ranged(None, least=0, most=10**4)  # of a source that is a model; null: layer
    stitch: Optional[str] = None  # transferred: a result of task=stitch in both directions; null: maps are fitted
    map_tokens: int = ranged(4096, least=2, most=COUNTS)  # that maps and a decoder are fitted on, and states scaled by
    beside: list[str] = field(default_factory=list)  # other starts that are trained in the same pass
    tokens: int = ranged(327680, least=0, most=COUNTS)  # that the model reads for training; 0: the start as it is
    tokens_per_step: int = ranged(256, least=1, most=TOKENS_AT_ONCE)  # tokens that a step reads
    steps_per_buffer: int = ranged(16, least=1, most=STEPS)  # whose states are shuffled among each other
    lr: float = ranged(4e-3, above=0)  # of states of variance 1; a source that is a model has this rate alone
    rates: list[float] = ranged(list, above=0)  # multiples of lr that are tried beside it, in the same pass
    seeds: int = ranged(1, least=1, most=1000)  # of the start, and of the order of states
    dead_after: int = ranged(4096, least=0, most=COUNTS)  # states; topk gives such latents a gradient; 0: it does not
    skip_first_tokens: int = ranged(1, least=0, most=10**6)  # of each row: attention rests there, on outsized states
    curve_tokens: int = ranged(8192, least=2, most=COUNTS)  # of the report that is looked at during training

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("sae.activation", self.activation, ("topk", "relu"))
        for key, names in (("sae.start", [self.start]), ("sae.beside", self.beside)):
            for name in names:
                one_of(key, name, SAE_STARTS)
        if self.activation == "topk" and self.k > self.width:
            raise ConfigError(f"sae.k={self.k} is more than the sae.width={self.width} latents; lower it")
        if 0 < self.tokens < self.buffer:
            raise ConfigError(
                f"sae.tokens={self.tokens} is less than the {self.buffer} of a buffer; raise it, or lower "
                "sae.tokens_per_step or sae.steps_per_buffer"
            )
        self._check_source()

    def _check_source(self) -> None:
        given = {"sae.source": self.source, "sae.source_layer": self.source_layer, "sae.stitch": self.stitch}
        if "transferred" in self.starts and self.source is None:
            raise ConfigError("sae.start=transferred needs sae.source=<a result of task=sae, or a model>")
        for key, value in given.items():
            if "transferred" not in self.starts and value is not None:
                raise ConfigError(f"{key}={value} is of sae.start=transferred, and this is {self.start}; leave it out")

    @property
    def starts(self) -> list[str]:
        """All starts, that of the result first."""
        return list(dict.fromkeys([self.start, *self.beside]))

    @property
    def factors(self) -> list[float]:
        """All multiples of the rate, 1 first."""
        return list(dict.fromkeys([1.0, *self.rates]))

    @property
    def active(self) -> int | None:
        """How many latents are active at once; None: a ReLU."""
        return self.k if self.activation == "topk" else None

    @property
    def revived(self) -> int:
        """How many dead latents get a gradient at once, at most."""
        return min(REVIVED, self.width)

    @property
    def buffer(self) -> int:
        """The tokens whose states are shuffled among each other."""
        return self.tokens_per_step * self.steps_per_buffer

    @property
    def steps(self) -> int:
        """The steps of training, of whole buffers."""
        return self.tokens // self.buffer * self.steps_per_buffer

    @property
    def looks(self) -> list[int]:
        """The steps before which the report is looked at: 0, the end, and between them half an octave apart."""
        return sorted({0, *(round(self.steps * 2 ** (-place / 2)) for place in range(LOOKS))})
