"""Measures of layer pairs that need nothing but a declaration: a name, a function, what more can be set.

    python analyze.py measure=procrustes model=neox-5l-mini model@target=neox-6l-mini
    python analyze.py measure=jaccard measure.neighbours=20 measure.null=true model=gpt2 model@target=mamba-130m

A new one is a line of `DECLARED`, and a line of `thinkalike.config.registry`.
"""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, make_dataclass
from functools import partial
from types import new_class
from typing import Any, NamedTuple

import pandas as pd
import torch

from thinkalike.config import ranged
from thinkalike.config.ranges import TOKENS_AT_ONCE
from thinkalike.errors import ConfigError, one_of
from thinkalike.instruments.layer_pairs.frame import LayerPairs
from thinkalike.instruments.layer_pairs.settings import LayerPairsConfig
from thinkalike.measures import FEW_DOCUMENTS, CalibratedEstimate, Chance, LayerMeans, LayerMeasure, layer_measures
from thinkalike.screen import show_text
from thinkalike.store import Result

log = logging.getLogger(__name__)


@dataclass
class WithNull(LayerPairsConfig):
    """The settings of a measure of layer pairs that has a null."""

    null: bool = False  # beside each value what permuted documents give, the calibrated value and p
    permutations: int = ranged(99, least=1, most=10**6)  # of each batch; p is at least 1 / (permutations + 1)
    permute: str = "document"  # what null moves: document (of stimuli: the group, such as a sentence) | token

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("measure.permute", self.permute, ("document", "token"))
        if self.given != "none" and self.kind not in ("", "mknn"):
            raise ConfigError(
                f"measure={self.kind} compares all rows: leave measure.given={self.given} out, or take cka"
            )


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


class WithChance(LayerPairs):
    """A measure of layer pairs with a null of permuted documents."""

    @abstractmethod
    def measure_of(self, measure: Any) -> LayerMeasure:
        """Return what is compared, from the settings."""

    def fewest(self, measure: Any) -> int:
        return self.measure_of(measure).fewest

    def metric(self, measure: Any, source_layers: int, target_layers: int, left_out: bool) -> Any:
        permutations = measure.permutations if measure.null else 0
        return LayerMeans(source_layers, target_layers, self.measure_of(measure), permutations, left_out)

    def columns(self, estimates: Any) -> dict[str, torch.Tensor]:
        if (chance := _chance(estimates)) is None:
            return {}
        calibrated = zip(("calibrated", "calibrated_low", "calibrated_high"), chance.calibrated, strict=True)
        return {"null": chance.null.value, **dict(calibrated), "p": chance.p, "p_of_largest": chance.p_of_largest}

    def scalars(self, estimates: Any) -> dict[str, float]:
        if (chance := _chance(estimates)) is None:
            return {}
        least = float(chance.p_of_largest.min())
        return {"largest_calibrated": chance.largest, "largest_p": least, "documents": float(chance.documents)}

    def warn(self, estimates: Any, rows: pd.DataFrame, columns: pd.DataFrame, level: str) -> None:
        chance = _chance(estimates)
        if chance is not None and chance.documents < FEW_DOCUMENTS:
            log.warning(
                "warning: batches hold %d different documents at least, which have few orders, so that p is large; "
                "raise measure.tokens_per_batch",
                chance.documents,
            )

    def show(self, result: Result) -> None:
        super().show(result)
        if "largest_p" in result.scalars:
            calibrated, p = (result.scalars[name] for name in ("largest_calibrated", "largest_p"))
            chance = f"{calibrated:+.4f} above chance (of 1), p = {p:.3g} among all layer pairs"
            show_text(f"closest layers: {chance}", indent=2)


def _chance(estimates: Any) -> Chance | None:
    """Return what permutations say of estimates, if they were asked for."""
    return estimates.chance if isinstance(estimates, CalibratedEstimate) else None


class Declared(NamedTuple):
    """What a measure of layer pairs is: all that its instrument needs to know."""

    title: str  # as tables and figures print it
    measure: Callable[[Any], LayerMeasure]  # from the settings
    scale: tuple[float, float] = (0.0, 1.0)  # of the colours
    is_distance: bool = False
    settings: type[WithNull] = WithNull
    bases: tuple[type[WithChance], ...] = (WithChance,)
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
