"""Measures of layer pairs that need nothing but a declaration: a name, a function, further settings.

    python analyze.py measure=procrustes model=neox-5l-mini model@target=neox-6l-mini
    python analyze.py measure=mutual_knn measure.neighbours=20 measure.null=true model=gpt2 model@target=mamba-130m

A new one is an entry of `DECLARED` here, or of a call of `declare` in a file of its own, and an entry point of the
group `thinkalike.instruments`. A measure is loaded when it is used. One in a file of the user's needs neither:

    python analyze.py measure=mine.py:my_measure model=gelu-3l-mini model@target=solu-3l-mini
"""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, make_dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from thinkalike import measures, plugins
from thinkalike.config import MEASURES, MeasureConfig, setting
from thinkalike.config.parts import TOKENS_AT_ONCE
from thinkalike.errors import ConfigError, PluginError
from thinkalike.instruments.layer_pairs.frame import BATCHES, OF_STATES, LayerPairs, WithNull
from thinkalike.measures.contract import LayerMeasure, each_pair, rows_in_order
from thinkalike.measures.layer_means import LayerMeans
from thinkalike.plugins import MeasurePlugin


@dataclass
class ComparedAgain(WithNull):
    """The same, of a measure that compares each batch eleven times for its intervals."""

    # whose mean is the value
    batches: int = setting(BATCHES // 4, by_recipe=True, least=1, most=10**9)


@dataclass
class WithNeighbours(ComparedAgain):
    """The same, of a measure of nearest neighbours."""

    neighbours: int = setting(10, least=1, most=TOKENS_AT_ONCE)  # k

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.neighbours > (most := self.tokens_per_batch - 2):
            raise ConfigError(f"measure.neighbours={self.neighbours} must be at most {most}, tokens_per_batch - 2")


@dataclass
class WithKept(ComparedAgain):
    """The settings of a measure of principal components."""

    kept: float = setting(0.99, above=0, most=1)  # share of the variance that components hold


class OfLayerMeasure(LayerPairs):
    """A measure of layer pairs by the contract of `thinkalike.measures.contract`."""

    @abstractmethod
    def measure_of(self, measure: Any) -> LayerMeasure:
        """Return the measure, from the settings."""

    def fewest(self, measure: Any) -> int:
        return self.measure_of(measure).fewest

    def metric(self, measure: Any, source_layers: int, target_layers: int) -> Any:
        permutations = measure.permutations if measure.null else 0
        return LayerMeans(source_layers, target_layers, self.measure_of(measure), permutations, given=measure.given)


class Declared(NamedTuple):
    """Declares a measure of layer pairs: all that its instrument needs to know."""

    title: str  # as tables and figures print it
    measure: Callable[[Any], LayerMeasure]  # from the settings
    scale: tuple[float, float] = (0.0, 1.0)  # of the colours
    is_distance: bool = False
    settings: type[ComparedAgain] = ComparedAgain
    bases: tuple[type[OfLayerMeasure], ...] = (OfLayerMeasure,)
    reads: tuple[str, ...] = OF_STATES
    version: int = 12


DECLARED = {
    "mutual_knn": Declared(
        "mutual nearest neighbours",
        lambda measure: measures.mutual_measure(measure.neighbours),
        settings=WithNeighbours,
    ),
    "procrustes": Declared("angular Procrustes distance", lambda _: measures.PROCRUSTES, (0.0, math.pi / 2), True),
    "distance_correlation": Declared("distance correlation", lambda _: measures.DISTANCE_CORRELATION),
    "token_rsa": Declared("RSA of tokens", lambda _: measures.RANKED_DISTANCES),
    "svcca": Declared("SVCCA", lambda measure: measures.svcca_measure(measure.kept), settings=WithKept),
    "soft_matching": Declared("soft matching", lambda _: measures.SOFT_MATCHING),
    "jaccard": Declared(
        "Jaccard index of neighbours",
        lambda measure: measures.jaccard_measure(measure.neighbours),
        settings=WithNeighbours,
    ),
    "second_order_cosine": Declared(
        "second-order cosine",
        lambda measure: measures.second_order_measure(measure.neighbours),
        settings=WithNeighbours,
    ),
}


def declare(kinds: Mapping[str, Declared], module: str) -> dict[str, type[OfLayerMeasure]]:
    """Make an instrument of each declaration of a module, and return them by kind."""
    made = {}
    for kind, each in kinds.items():
        schema = make_dataclass(f"{kind}_config", [("kind", str, kind)], bases=(each.settings,))
        schema.__doc__ = f"The settings of {each.title}."
        content = {
            "__module__": module,
            "__doc__": f"Compares all layers of `model` with all of `model@target`, and within each: {each.title}.",
            "name": each.title,
            "scale": each.scale,
            "is_distance": each.is_distance,
            "measure_of": staticmethod(each.measure),
        }
        reads = [part for part in each.reads if part != "ruler" or not each.is_distance]
        made[kind] = type(kind, each.bases, content, kind=kind, reads=reads, version=each.version)
    return made


def plugged(kind: str) -> tuple[type[OfLayerMeasure], type[MeasureConfig]]:
    """Return the instrument of a measure FILE.py:NAME, whose results are of the kind NAME, and its settings."""
    plugins.check_trusted(kind)  # also where its file was run before
    return _plugged(kind, plugins.digest(kind))


@cache
def _plugged(kind: str, digest: str) -> tuple[type[OfLayerMeasure], type[MeasureConfig]]:
    name = kind.rpartition(":")[2]
    if name in MEASURES:
        raise PluginError(f"{kind} has the name of a measure of the package; choose another name")
    given = plugins.load(kind)
    plugin = given if isinstance(given, MeasurePlugin) else MeasurePlugin(given)

    def measure(chosen: Any) -> LayerMeasure:
        with plugins.blaming(f"measure {name}"):
            made = plugin.measure(chosen) if plugin.settings else plugin.measure
        return made if isinstance(made, LayerMeasure) else of_function(name, made, plugin.is_distance)

    settings = make_dataclass(f"{name}_settings", _fields(name, plugin), bases=(ComparedAgain,))
    low, high = plugin.scale
    title = plugin.title or name.replace("_", " ")
    declared = Declared(title, measure, (float(low), float(high)), plugin.is_distance, settings)
    made, schema = declare({name: declared}, __name__)[name], MeasureConfig.schemas[name]
    own: type[MeasureConfig] = make_dataclass(schema.__name__, [("kind", str, kind)], bases=(schema,))
    return made, own


def _fields(kind: str, plugin: MeasurePlugin) -> list[tuple[str, type, Any]]:
    """Return the settings of a measure as fields of a dataclass."""
    common, found = {item.name for item in dataclasses.fields(ComparedAgain)}, []
    for name, given in plugin.settings.items():
        item = given if isinstance(given, dataclasses.Field) else dataclasses.field(default=given)
        if name in common or not isinstance(item.default, bool | int | float | str):
            raise PluginError(f"measure {kind}: {name} needs a name of its own, and a number or text as default")
        found.append((name, type(item.default), item))
    return found


def of_function(kind: str, compare: Callable[[Tensor, Tensor], Any], is_distance: bool) -> LayerMeasure:
    """Return the measure that a function of two layers makes: 1 is the best likeness, 0 the best distance."""

    def value(source: Tensor, target: Tensor) -> Tensor:
        with plugins.blaming(f"measure {kind}"):
            given = compare(source, target)
        try:
            return torch.as_tensor(given, dtype=torch.float64).reshape(())
        except (TypeError, ValueError, RuntimeError) as error:
            raise PluginError(f"measure {kind} must give one number: {error}") from None

    def wide(rows: Tensor, _: str) -> Tensor:
        return rows.to(torch.promote_types(rows.dtype, torch.float32))

    best, compared = 0.0 if is_distance else 1.0, each_pair(value, is_symmetric=False)
    return LayerMeasure(wide, compared, rows_in_order, 2, best, not is_distance)


globals().update(declare(DECLARED, __name__))  # where entry points find them
