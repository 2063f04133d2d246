"""The settings of an atlas, and the measures that it may have."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from thinkalike.config import setting
from thinkalike.config.parts import TOKENS_AT_ONCE
from thinkalike.errors import ConfigError, one_of
from thinkalike.instruments import instrument
from thinkalike.instruments.layer_pairs.settings import LayerPairsConfig
from thinkalike.instruments.ruler.words import LEAST_WORDS, WORDS
from thinkalike.registry import CORE, OF_OUTPUTS, layer_measures


@cache
def measures_of_atlas() -> tuple[str, ...]:
    """Return the names of the measures that can compare states of layers in an atlas.

    An atlas compares the layers of several models by many measures. These are its default, with a
    column for each, in this order. A measure is among them if its instrument sets `in_atlas`.
    """
    names = []
    for entry in CORE.measures:  # the registered measures, apart from those of contrib
        if getattr(instrument(entry), "in_atlas", False):
            names.append(entry.kind)
    return tuple(names)


@dataclass
class AtlasConfig(LayerPairsConfig):
    """The settings of an atlas, which its measures have as well."""

    kind: str = "atlas"
    # measures that are compared: of states; and jsd, disagreement, of predictions
    measures: list[str] = field(default_factory=lambda: [*measures_of_atlas()])
    # whether results of the measures have the values that chance gives
    null: bool = False
    # permutations of null
    permutations: int = setting(99, least=1, most=10**6)
    # neighbours of mutual_knn, jaccard and second_order_cosine
    neighbours: int = setting(10, least=1, most=TOKENS_AT_ONCE)
    # share of the variance that svcca keeps
    kept: float = setting(0.99, above=0, most=1)
    # words of r2
    words: int = setting(WORDS, least=LEAST_WORDS, most=10**8)

    def __post_init__(self) -> None:
        """Refuse unknown measures, and fewer than two that compare states; drop repetitions.

        Measures of outputs (predictions) may be added, but have no value for most layers.

        Raises:
            ConfigError: A measure is unknown, or fewer than two compare states.
        """
        super().__post_init__()
        measures_of_states = measures_of_atlas()
        measures_of_outputs = [entry.kind for entry in layer_measures(OF_OUTPUTS)]
        for name in self.measures:
            one_of("measure.measures", name, (*measures_of_states, *measures_of_outputs))
        self.measures = list(dict.fromkeys(self.measures))
        n_comparing_states = len(set(self.measures) & set(measures_of_states))
        if n_comparing_states < 2:
            raise ConfigError(
                f"measure.measures={self.measures} must name two measures of layers or more"
            )
