"""The settings of measure=diff."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from thinkalike.config import MeasureConfig, setting
from thinkalike.errors import ConfigError

MARGINS = ("kl", "flips", "loss", "class", "word")
"""What can have a margin of equivalence."""


def _no_margins() -> dict[str, float | None]:
    return dict.fromkeys(MARGINS)


@dataclass
class DiffConfig(MeasureConfig):
    """The settings of a diff."""

    kind: str = "diff"
    tokens: int = setting(2048, least=64, most=10**9)  # of text that both models read
    # of them, that parts are exchanged and nulls run on
    tokens_per_part: int = setting(512, least=64, most=10**9)
    # of attention and MLPs, and as many of heads, that are exchanged
    outputs: int = setting(4, least=0, most=10**6)
    # random changes, or forks by training on `data`
    null: Literal["perturbation", "drift"] = "perturbation"
    # of a fork, by AdamW at a rate by which it moves as far
    steps: int = setting(40, least=1, most=10**7)
    # the tokens that the change raises, and text by its amplified difference
    taught: bool = True
    # pairs of the grammar, or of your own
    contrast: Literal["number", "question", "table"] | None = None
    path: str | None = setting(None, in_key=False)  # contrast=table: .csv .tsv .parquet
    pairs: int = setting(2048, least=2, most=10**7)  # of the grammar
    # a model that may have been mixed in: a folder, ORG/NAME or a name
    other: str | None = setting(None, in_key=False)
    # of equivalence, null: none; kl, class (kl of every token class), loss and word (contrast of
    # every word), up or down, in nats; flips: a share
    margin: dict[str, float | None] = setting(_no_margins, above=0)

    paths: ClassVar[tuple[str, ...]] = ("path",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.contrast == "table") != bool(self.path):
            raise ConfigError("pairs of your own need measure.contrast=table measure.path=FILE")
        if self.margin.get("word") is not None and self.contrast is None:
            raise ConfigError(
                "measure.margin.word= is of a contrast: add measure.contrast=number, question or "
                "table"
            )

    def settings_read(self) -> frozenset[str]:
        settings = super().settings_read()
        if self.null != "drift":
            settings -= {"steps"}
        if self.contrast not in ("number", "question"):
            settings -= {"pairs"}
        return settings
