"""The instrument of every measure of layer pairs that is a `LayerMeasure`.

Its settings and its jobs follow from the class of the measure:

    python analyze.py measure=procrustes model=neox-5l-mini model@target=neox-6l-mini
    python analyze.py measure=mutual_knn measure.neighbours=20 model=gpt2 model@target=mamba-130m

A new measure is a class in `thinkalike.measures`, with its formula, and a row of
`thinkalike.registry`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, make_dataclass
from functools import cache
from typing import ClassVar, get_type_hints

from thinkalike.config import AnalyzeConfig, MeasureConfig, setting
from thinkalike.errors import ConfigError
from thinkalike.instruments.layer_pairs.instrument import LayerPairs
from thinkalike.instruments.layer_pairs.settings import BATCHES, OF_STATES, WithNull
from thinkalike.measures.contract import AnyMeasure, LayerMeasure
from thinkalike.measures.layer_means import LayerMeans
from thinkalike.ranges import Within
from thinkalike.registry import KindEntry


@dataclass
class ComparedAgain(WithNull):
    """The settings of a measure that compares each batch eleven times for its intervals."""

    measure_class: ClassVar[type[AnyMeasure] | None] = None
    """The class of the measure, whose parameters are settings, too."""

    # number of batches whose mean is the value
    batches: int = setting(BATCHES // 4, by_recipe=True, least=1, most=10**9)

    def __post_init__(self) -> None:
        """Refuse a first parameter that needs more rows than a batch has."""
        super().__post_init__()
        if self.measure_class is None:
            return
        measure = made_of(self.measure_class, self)
        if measure.needed_by and measure.fewest > self.tokens_per_batch:
            # A larger value of the first parameter, such as neighbours, needs more rows.
            name = self.measure_class.settings()[0].name
            value = getattr(self, name)
            rows_besides = measure.fewest - value
            most = self.tokens_per_batch - rows_besides
            raise ConfigError(
                f"measure.{name}={value} must be at most {most}, tokens_per_batch - {rows_besides}"
            )


def made_of(measure_class: type[AnyMeasure], settings: MeasureConfig) -> AnyMeasure:
    """Return the measure of a class with the values that settings have for its parameters."""
    arguments = {}
    for parameter in measure_class.settings():
        arguments[parameter.name] = getattr(settings, parameter.name)
    return measure_class(**arguments)


def parameters_of(measure_class: type[AnyMeasure]) -> dict[str, Field[object]]:
    """Return the parameters of a measure as settings, by name."""
    declared = {}
    for parameter in measure_class.settings():
        within: Within = parameter.metadata["range"]
        declared[parameter.name] = setting(
            parameter.default,
            least=within.least,
            most=within.most,
            above=within.above,
            below=within.below,
        )
    return declared


class ByMeasure(LayerPairs[ComparedAgain]):
    """Compares all layers of `model` with all of `model@target`, and within each.

    Args:
        entry: The row of the registry that names the measure, a `LayerMeasure`.

    Attributes:
        common_settings: The settings that all measures of this instrument have.
        parts: The parts of the configuration that a measure of this instrument reads.
    """

    common_settings: ClassVar[type[ComparedAgain]] = ComparedAgain
    parts: ClassVar[tuple[str, ...]] = OF_STATES
    config = AnalyzeConfig

    def __init__(self, entry: KindEntry):
        measure_class = entry.load()
        assert isinstance(measure_class, type)
        assert issubclass(measure_class, LayerMeasure)
        self.measure_class = measure_class
        self.kind = entry.kind
        self.version = measure_class.version
        self.scale = measure_class.scale
        self.is_distance = not measure_class.higher_is_closer
        self.reads = parts_of_measure(self.parts, self.is_distance)
        self.in_atlas = measure_class.in_atlas

    @property
    def settings(self) -> type[MeasureConfig]:
        """The schema of the settings, made from the parameters of the measure's class."""
        return schema_of_measure(self.kind, self.name, self.measure_class, self.common_settings)  # type: ignore[arg-type]

    @property
    def smallest(self) -> Mapping[str, object]:  # type: ignore[override]
        """The settings that make a job small: those of all measures, and those of this one."""
        return {**LayerPairs.smallest, **self.measure_class.smallest}

    def measure_of(self, settings: ComparedAgain) -> AnyMeasure:
        """Return the measure with these settings."""
        return made_of(self.measure_class, settings)

    def fewest(self, measure: ComparedAgain) -> int:
        """Return the fewest rows that the measure can compare."""
        return self.measure_of(measure).fewest

    def metric(self, measure: ComparedAgain, source_layers: int, target_layers: int) -> LayerMeans:
        """Return an accumulator of the measure for this many layers of either model."""
        permutations = 0
        if measure.null:
            permutations = measure.permutations
        return LayerMeans(
            source_layers,
            target_layers,
            self.measure_of(measure),
            permutations,
            conditional_on=measure.conditional_on,
        )


class StatesByMeasure(ByMeasure):
    """Compares the states of all layers of two models, and within each model."""


def parts_of_measure(parts: Sequence[str], is_distance: bool) -> tuple[str, ...]:
    """Return the parts of the configuration that a measure reads.

    A distance has no readings in bits, and so does not read `ruler`.

    Args:
        parts: The parts that measures of its kind read.
        is_distance: Whether smaller values are closer.
    """
    if is_distance:
        return tuple(part for part in parts if part != "ruler")
    return tuple(parts)


@cache
def schema_of_measure(
    kind: str, title: str, measure_class: type[AnyMeasure], common: type[ComparedAgain]
) -> type[ComparedAgain]:
    """Return the schema of a measure: the settings of all measures, and one for each parameter.

    Args:
        kind: What the command line calls the measure.
        title: What figures and pages call it.
        measure_class: Its class.
        common: The settings of all measures.
    """
    types = get_type_hints(measure_class, include_extras=True)
    fields: list[tuple[str, object, object]] = [("kind", str, kind)]
    for name, parameter in parameters_of(measure_class).items():
        fields.append((name, types[name], parameter))
    # A class that computes it has a property here, which is not True.
    compares_within_groups: object = measure_class.compares_within_groups
    namespace = {
        "__doc__": f"The settings of {title}.",
        "measure_class": measure_class,
        "compares_within_groups": compares_within_groups is True,
    }
    return make_dataclass(f"{kind}_config", fields, bases=(common,), namespace=namespace)
