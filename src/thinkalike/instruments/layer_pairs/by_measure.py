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

from thinkalike.advice import named_setting
from thinkalike.config import AnalyzeConfig, MeasureConfig, setting
from thinkalike.errors import ConfigError
from thinkalike.instruments.layer_pairs.comparison import LayerPairComparison
from thinkalike.instruments.layer_pairs.instrument import LayerPairs
from thinkalike.instruments.layer_pairs.settings import BATCHES, OF_STATES, WithNull
from thinkalike.job import Work
from thinkalike.measures.contract import AnyMeasure, LayerMeasure
from thinkalike.measures.layer_means import LayerMeans
from thinkalike.ranges import Within
from thinkalike.registry import KindEntry
from thinkalike.states.batches import ModelRuns
from thinkalike.states.source import StateSource
from thinkalike.store import Result


@dataclass
class LayerMeasureConfig(WithNull):
    """The settings of a measure that compares each batch eleven times for its intervals."""

    measure_class: ClassVar[type[AnyMeasure] | None] = None
    """The class of the measure, whose parameters are settings, too."""

    # number of batches whose mean is the value
    batches: int = setting(BATCHES // 4, by_recipe=True, least=1, most=10**9)

    def __post_init__(self) -> None:
        """Refuse a parameter such as `neighbours=2000` that needs more rows than a batch has.

        Such a measure says in `needed_by` what needs the rows, for example its neighbours. It
        needs as many rows (`fewest`) as the value of its first parameter, and a few more.
        """
        super().__post_init__()
        if self.measure_class is None:
            return
        measure = measure_with_settings(self.measure_class, self)
        if measure.needed_by and measure.fewest > self.tokens_per_batch:
            name = self.measure_class.settings()[0].name
            value = getattr(self, name)
            n_further_rows = measure.fewest - value
            most = self.tokens_per_batch - n_further_rows
            raise ConfigError(
                f"{named_setting(f'measure.{name}', value)} must be at most {most}, "
                f"tokens_per_batch - {n_further_rows}"
            )


def measure_with_settings(measure_class: type[AnyMeasure], settings: MeasureConfig) -> AnyMeasure:
    """Return an instance of a measure; its parameters take the values of a job's settings.

    Each parameter of the class is a setting of the same name.
    """
    arguments = {}
    for parameter in measure_class.settings():
        arguments[parameter.name] = getattr(settings, parameter.name)
    return measure_class(**arguments)


def measure_of_result(measure_class: type[AnyMeasure], result: Result) -> AnyMeasure:
    """Return an instance of a measure with the settings of a result.

    A parameter that the result does not record, because it was added later, has its default.
    """
    recorded = result.config.get("measure") or {}
    arguments = {}
    for parameter in measure_class.settings():
        arguments[parameter.name] = recorded.get(parameter.name, parameter.default)
    return measure_class(**arguments)


def settings_of_parameters(measure_class: type[AnyMeasure]) -> dict[str, Field[object]]:
    """Return a dataclass field for each parameter of a measure, by the name of the parameter.

    The schema of a configuration is made from these fields. Each has the default of the parameter
    and its allowed range.
    """
    field_by_name = {}
    for parameter in measure_class.settings():
        allowed_range: Within = parameter.metadata["range"]
        field_by_name[parameter.name] = setting(
            parameter.default,
            least=allowed_range.least,
            most=allowed_range.most,
            above=allowed_range.above,
            below=allowed_range.below,
        )
    return field_by_name


def facts_for_settings(measure: type[AnyMeasure] | AnyMeasure) -> dict[str, object]:
    """Return what the schema of a measure's settings needs to know of it, by class attribute.

    Args:
        measure: The class of the measure; or a measure whose parameters are fixed, so that they
            are no settings.
    """
    facts: dict[str, object] = {"has_null": "row_permutation_of_one" not in measure.invariances}
    if isinstance(measure, type):
        facts["measure_class"] = measure
        # Whether the measure can compare rows of one token among themselves. If this depends on a
        # parameter, the class has a property here, an object that is not True.
        compares_within_groups: object = measure.compares_within_groups
        facts["compares_within_groups"] = compares_within_groups is True
    return facts


class ByMeasure(LayerPairs[LayerMeasureConfig]):
    """Compares all layers of `model` with all of `model@target`, and within each.

    Args:
        entry: The row of the registry that names the measure, a `LayerMeasure`.

    Attributes:
        common_settings: The settings that all measures of this instrument have.
        parts: The parts of the configuration that a measure of this instrument reads.
    """

    common_settings: ClassVar[type[LayerMeasureConfig]] = LayerMeasureConfig
    parts: ClassVar[tuple[str, ...]] = OF_STATES
    config = AnalyzeConfig

    def __init__(self, entry: KindEntry):
        """Load the class of the measure, and copy what it declares, such as its scale.

        Args:
            entry: The row of the registry that names the measure.
        """
        measure_class = entry.load()
        assert isinstance(measure_class, type)
        assert issubclass(measure_class, LayerMeasure)
        self.measure_class = measure_class
        self.kind = entry.kind
        self.version = measure_class.version
        self.scale = measure_class.scale  # the least and the greatest value
        self.is_distance = not measure_class.higher_is_closer
        # The parts of the configuration that jobs of this measure read, such as "model".
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

    def layer_measure(self, settings: LayerMeasureConfig) -> AnyMeasure:
        """Return the measure with these settings."""
        return measure_with_settings(self.measure_class, settings)

    def meaning(self, result: Result) -> str:
        """Return in a sentence what a value of the measure is, with the settings of a result."""
        return measure_of_result(self.measure_class, result).meaning

    def fewest(self, settings: LayerMeasureConfig) -> int:
        """Return the fewest rows of a batch that the measure can compare with these settings."""
        return self.layer_measure(settings).fewest

    def metric(
        self, settings: LayerMeasureConfig, source_layers: int, target_layers: int
    ) -> LayerMeans:
        """Return an empty metric, which computes the measure from batches of states.

        Args:
            settings: The settings of the measure. Permutations are only for its null
                distribution; without one there are none.
            source_layers, target_layers: How many layers of the source and target are compared.
        """
        permutations = 0
        if settings.null:
            permutations = settings.permutations
        return LayerMeans(
            source_layers,
            target_layers,
            self.layer_measure(settings),
            permutations,
            conditional_on=settings.conditional_on,
        )


class StatesByMeasure(ByMeasure):
    """Compares the states of all layers of two models, and within each model."""

    def comparison_on_text(
        self,
        config: AnalyzeConfig,
        work: Work,
        models: Sequence[StateSource],
        runs: ModelRuns,
    ) -> LayerPairComparison:
        """Return the comparison of two models on text; no batch has been read yet.

        It has ended with an error already if the measure refuses the widths of the layers. Other
        comparisons of the same pass are not affected.

        Args:
            config: The job.
            work: The context of the running job.
            models: The source and the target.
            runs: The states that jobs of one pass over the text share.
        """
        comparison = super().comparison_on_text(config, work, models, runs)
        measure = self.layer_measure(self.measure_settings(config))
        if "unequal_widths" in measure.refuses:  # the width of a hook point takes a pass to know
            widths = []
            names = []
            for model, sites in zip(models, self.sites(config, models), strict=True):
                widths += [model.width(site) for site in sites]
                names += [f"layer {name} of {model.name}" for name in self.named(sites)]
            comparison.refuse_widths(measure, widths, names)
        return comparison


def parts_of_measure(parts: Sequence[str], is_distance: bool) -> tuple[str, ...]:
    """Return the parts of the configuration that a measure reads, such as "model" and "data".

    A distance does not read the part "ruler". It asks for equivalent bit widths: to how many bits
    a model's weights are rounded in a copy that is as similar to it as the other model.

    Args:
        parts: The parts that measures of its kind read.
        is_distance: Whether smaller values mean more similar.
    """
    if is_distance:
        return tuple(part for part in parts if part != "ruler")
    return tuple(parts)


@cache
def schema_of_measure(
    kind: str, title: str, measure_class: type[AnyMeasure], common: type[LayerMeasureConfig]
) -> type[LayerMeasureConfig]:
    """Return a dataclass of a measure's settings: those of all measures, and its parameters.

    Args:
        kind: What the command line calls the measure.
        title: What figures and pages call it.
        measure_class: The class of the measure, whose parameters become settings.
        common: The dataclass of the settings that all measures have.
    """
    type_by_parameter = get_type_hints(measure_class, include_extras=True)
    # Each field is (name, type, default).
    fields: list[tuple[str, object, object]] = [("kind", str, kind)]
    for name, default in settings_of_parameters(measure_class).items():
        fields.append((name, type_by_parameter[name], default))
    namespace = {"__doc__": f"The settings of {title}.", **facts_for_settings(measure_class)}
    return make_dataclass(f"{kind}_config", fields, bases=(common,), namespace=namespace)
