"""Measures of layer pairs that need nothing but a declaration: a name, a function, what more can be set.

    python analyze.py measure=procrustes model=neox-5l-mini model@target=neox-6l-mini
    python analyze.py measure=jaccard measure.neighbours=20 measure.null=true model=gpt2 model@target=mamba-130m

A new one is a line of `DECLARED`, and a line of `thinkalike.config.registry`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, make_dataclass
from functools import partial
from types import new_class
from typing import Any, NamedTuple

from thinkalike.config import ranged
from thinkalike.config.ranges import TOKENS_AT_ONCE
from thinkalike.errors import ConfigError
from thinkalike.instruments.layer_pairs.chance import WithChance, WithNull
from thinkalike.measures import LayerMeans, LayerMeasure, layer_measures


@dataclass
class WithNeighbours(WithNull):
    """The same, of a measure of nearest neighbours."""

    neighbours: int = ranged(10, least=1, most=TOKENS_AT_ONCE)  # k

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.neighbours > self.tokens_per_batch - 2:
            raise ConfigError(
                f"measure.neighbours={self.neighbours} must lie between 1 and measure.tokens_per_batch - 2"
            )


@dataclass
class WithKept(WithNull):
    """The same, of a measure of principal components."""

    kept: float = ranged(0.99, above=0, most=1)  # share of the variance that components hold


class OfLayerMeasure(WithChance):
    """A measure of layer pairs by the one contract."""

    @abstractmethod
    def measure_of(self, measure: Any) -> LayerMeasure:
        """Return what is compared, from the settings."""

    def fewest(self, measure: Any) -> int:
        return self.measure_of(measure).fewest

    def metric(self, measure: Any, source_layers: int, target_layers: int, left_out: bool) -> Any:
        permutations = measure.permutations if measure.null else 0
        return LayerMeans(source_layers, target_layers, self.measure_of(measure), permutations, left_out)


class Declared(NamedTuple):
    """What a measure of layer pairs is: all that its instrument needs to know."""

    title: str  # as tables and figures print it
    measure: Callable[[Any], LayerMeasure]  # from the settings
    scale: tuple[float, float] = (0.0, 1.0)  # of the colours
    is_distance: bool = False
    settings: type[WithNull] = WithNull
    bases: tuple[type[OfLayerMeasure], ...] = (OfLayerMeasure,)
    reads: tuple[str, ...] = ("model", "target", "data", "measure", "stimuli")


DECLARED = {
    "procrustes": Declared(
        "angular Procrustes distance", lambda measure: layer_measures()["procrustes"], (0.0, math.pi / 2), True
    ),
    "svcca": Declared("SVCCA", lambda measure: layer_measures(kept=measure.kept)["svcca"], settings=WithKept),
    "soft_matching": Declared("soft matching", lambda measure: layer_measures()["soft_matching"]),
    "dcor": Declared("distance correlation", lambda measure: layer_measures()["dcor"]),
    "token_rsa": Declared("RSA of tokens", lambda measure: layer_measures()["token_rsa"]),
    "jaccard": Declared(
        "Jaccard index of neighbours", lambda measure: layer_measures(measure.neighbours)["jaccard"],
        settings=WithNeighbours,
    ),
    "second_order_cosine": Declared(
        "second-order cosine", lambda measure: layer_measures(measure.neighbours)["second_order_cosine"],
        settings=WithNeighbours,
    ),
}  # fmt: skip


def declare(kinds: Mapping[str, Declared], module: str) -> dict[str, type]:
    """Make an instrument of each declaration, and return their schemas by kind.

    Args:
        module: in which they are declared, and which the registry names.
    """
    schemas = {}
    for kind, each in kinds.items():
        schemas[kind] = make_dataclass(f"{kind}_config", [("kind", str, kind)], bases=(each.settings,))
        schemas[kind].__doc__ = f"The settings of {each.title}."
        content = {
            "__module__": module,
            "__doc__": f"Compares all layers of `model` with all of `model@target`, and within each: {each.title}.",
            "name": each.title,
            "scale": each.scale,
            "is_distance": each.is_distance,
            "measure_of": staticmethod(each.measure),
        }
        new_class(kind, each.bases, {"kind": kind, "reads": each.reads}, partial(_fill, content))
    return schemas


def _fill(content: dict[str, Any], namespace: dict[str, Any]) -> None:
    namespace.update(content)


CONFIGS: dict[str, type] = declare(DECLARED, __name__)
