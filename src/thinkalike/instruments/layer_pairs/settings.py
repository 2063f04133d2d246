"""The settings that measures of layer pairs have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeVar

from thinkalike.advice import named_setting
from thinkalike.config import MeasureConfig, setting
from thinkalike.config.groups import with_changes
from thinkalike.config.parts import CONTEXT, TOKENS_AT_ONCE
from thinkalike.errors import ConfigError

READING_BATCHES = 8
"""The most batches on which equivalent bit widths are computed, and on which maps are fitted."""

BATCHES = 64
"""The value is the mean of so many batches. Measures that take longer for a batch have fewer."""

OF_STATES = ("model", "target", "layers", "data", "measure", "stimuli", "ruler")
"""The parts of the configuration that a measure of states reads."""


@dataclass
class LayerPairsConfig(MeasureConfig):
    """The settings that all measures of layer pairs have."""

    # number of batches whose mean is the value
    batches: int = setting(BATCHES, by_recipe=True, least=1, most=10**9)
    # number of tokens in a batch (of words, if the tokenizers differ)
    tokens_per_batch: int = setting(1024, least=1, most=TOKENS_AT_ONCE)
    # unit that is compared, tokens or words; auto: words if the tokenizers differ
    unit: Literal["auto", "token", "word"] = "auto"
    # also compare the embedding, the input of block 0
    embed: bool = False
    # drop excludes the few tokens with massive activations, which alone would decide a layer; keep
    # includes them
    massive: Literal["drop", "keep"] = "drop"
    # number of tokens to skip at the beginning of each row
    skip_first: int = setting(0, least=0, most=CONTEXT)
    # skip special tokens such as BOS and EOS
    skip_special_tokens: bool = False
    # what similarity is conditional on; token: compare only states of the same token (or word);
    # token_position: subtract the mean state of each token and position first
    conditional_on: Literal["none", "token", "token_position"] = "none"


LayerPairsSettings = TypeVar("LayerPairsSettings", bound=LayerPairsConfig)


@dataclass
class WithNull(LayerPairsConfig):
    """The settings of a measure of layer pairs that has a null."""

    compares_within_groups: ClassVar[bool] = False
    """Whether the measure can compare the rows of one token among themselves."""

    has_null: ClassVar[bool] = True
    """Whether the value depends on which rows of both layers go together, as a null needs."""

    # also compute the value by chance, from permuted documents: adds its mean, the calibrated
    # value and a p-value
    null: bool = False
    # number of permutations of documents; the smallest p-value is 1 / (permutations + 1)
    permutations: int = setting(99, least=1, most=10**6)

    def settings_read(self) -> frozenset[str]:
        """Return the names of the settings that have an effect.

        These are all settings, but `permutations` only with a null distribution.
        """
        settings = super().settings_read()
        if self.null:
            return settings
        return settings - {"permutations"}

    def __post_init__(self) -> None:
        """Refuse what the measure does not allow.

        This is `conditional_on` for a measure that cannot compare rows of one token alone, and a
        null for one that has none. While no measure is chosen, `kind` is "" and nothing is
        refused.
        """
        super().__post_init__()
        if self.null and not self.has_null:
            raise ConfigError(
                f"{named_setting('measure', self.kind)} does not depend on which rows of both "
                "layers go together, so that it has no null: omit "
                f"{named_setting('measure.null', True)}"
            )
        if self.conditional_on != "none" and self.kind and not self.compares_within_groups:
            raise ConfigError(
                f"{named_setting('measure', self.kind)} compares all rows: omit "
                f"{named_setting('measure.conditional_on', self.conditional_on)}, or take cka"
            )


def settings_for_bit_widths(measure: LayerPairsSettings, unit: str = "auto") -> LayerPairsSettings:
    """Return a measure's settings for its equivalent bit widths, which are costly to compute.

    There are at most `READING_BATCHES` batches and no null.

    Args:
        measure: The settings of the whole job.
        unit: What a row is: "token", "word" or "auto" (words if the tokenizers differ).
    """
    changes: dict[str, object] = {"unit": unit, "batches": min(measure.batches, READING_BATCHES)}
    if isinstance(measure, WithNull):
        changes["null"] = False
    return with_changes(measure, changes)
