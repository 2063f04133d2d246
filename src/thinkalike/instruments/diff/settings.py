"""The settings of measure=diff."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from thinkalike.advice import named_setting
from thinkalike.config import MeasureConfig, setting
from thinkalike.errors import ConfigError, one_of

MARGINS = ("kl", "flips", "loss", "class", "word")
"""What can have a margin of equivalence."""


def _no_margins() -> dict[str, float | None]:
    """Return None for each margin: nothing is tested."""
    return dict.fromkeys(MARGINS)


@dataclass
class DiffConfig(MeasureConfig):
    """The settings of a diff."""

    kind: str = "diff"
    # number of tokens of text that both models read
    tokens: int = setting(2048, least=64, most=10**9)
    # number of these tokens on which parts (modules) are exchanged and the control is run
    tokens_per_part: int = setting(512, least=64, most=10**9)
    # number of attention and MLP outputs that are exchanged; of their attention heads, the same
    # number, or all if there are at most 16
    outputs: int = setting(4, least=0, most=10**6)
    # control that the change is compared with: random_change, random changes of the same size;
    # continued_training, copies of the base that are trained further on data
    null: Literal["random_change", "continued_training"] = "random_change"
    # for null=continued_training: number of training steps of each copy, by AdamW at a rate that
    # moves it as far as the change
    steps: int = setting(40, least=1, most=10**7)
    # whether to say what the changed model was taught: to name the tokens that become more likely,
    # and to write text by the amplified difference of the models; only: without the questions that
    # modules, outputs and contrasts answer, which take longer
    taught: bool | Literal["only"] = True
    # contrast between the sentences of a pair: number or question of the built-in grammar, or a
    # table of your own
    contrast: Literal["number", "question", "table"] | None = None
    # for contrast=table: the file (.csv, .tsv, .parquet)
    path: str | None = setting(None, in_key=False)
    # for contrast=number and question: number of pairs of sentences
    pairs: int = setting(2048, least=2, most=10**7)
    # another model that may have been mixed into the changed one: a folder, ORG/NAME or a name
    other: str | None = setting(None, in_key=False)
    # margin of equivalence, the largest difference that counts as equivalent, for each of kl,
    # class (kl of every class of tokens), loss, word (contrast of every word, up or down), in
    # nats, and flips, as a share; null: not tested
    margin: dict[str, float | None] = setting(_no_margins, above=0)

    paths: ClassVar[tuple[str, ...]] = ("path",)

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other, and margins with unknown names.

        A file of pairs of texts (`path`) needs `contrast=table`, and `contrast=table` needs a
        file. The margin `word` needs a contrast: it is the largest change of a word's contrast
        that counts as equivalent.
        """
        super().__post_init__()
        if (self.contrast == "table") != bool(self.path):
            raise ConfigError(
                f"pairs of your own need {named_setting('measure.contrast', 'table')} "
                f"{named_setting('measure.path', like='FILE')}"
            )
        for name in self.margin:
            one_of("measure.margin", name, MARGINS)
        if self.margin.get("word") is not None and self.contrast is None:
            raise ConfigError(
                f"{named_setting('measure.margin.word', like='...')} limits how much the contrast "
                "of a word may change, and no contrast is chosen: add "
                f"{named_setting('measure.contrast', 'number')}, question or table"
            )

    def settings_read(self) -> frozenset[str]:
        """Return the names of the settings that have an effect.

        `steps` has an effect only with the continued-training control, and `pairs` only with a
        contrast whose sentences come from the built-in grammar. With taught=only, no output is
        exchanged and no contrast computed.
        """
        settings = super().settings_read()
        if self.taught == "only":
            settings -= {"outputs", "contrast", "path", "pairs"}
        if self.null != "continued_training":
            settings -= {"steps"}
        if self.contrast not in ("number", "question"):
            settings -= {"pairs"}
        return settings
