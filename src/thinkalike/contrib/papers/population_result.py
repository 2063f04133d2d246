"""The result of a job on a population of classifiers, as tensors over its models."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, TypedDict

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.config.compose_jobs import compose_inner_job
from thinkalike.contrib.papers.experiment import ExperimentRun
from thinkalike.contrib.populations.config import (
    PairsConfig,
    PopulationConfig,
    PopulationJob,
    PopulationMeasureConfig,
)
from thinkalike.contrib.populations.group_means import (
    Grouped,
    flips,
    grouped,
    population_penalties,
    symmetric,
)
from thinkalike.measures.kernel_alignment import arc_length
from thinkalike.store import Result

# The pairs of texts that classifiers are evaluated on: held-out ones, or a challenge set.
EvaluatedPairs = Literal["report", "challenge"]


class PopulationParts(TypedDict, total=False):
    """Parts of the configuration of a population's job that differ from the experiment's."""

    measure: PopulationMeasureConfig
    pairs: PairsConfig
    population: PopulationConfig


def population_parts(experiment: ExperimentRun, evaluated: EvaluatedPairs) -> PopulationParts:
    """Return the parts of the configuration of a population's job that replace the experiment's.

    A population is a set of classifiers that differ in their seeds or in their parents (the models
    they were fine-tuned from). At the paper's scale, the default texts and classifiers are
    replaced by the published ones. At mini scale, CKA reads the [CLS] token alone unless the user
    asked otherwise, as a classifier does not read the other tokens of the last block.

    Args:
        experiment: The experiment, whose configuration has the user's settings.
        evaluated: Which pairs of texts are read: "report" for held-out pairs, and "challenge" for
            pairs that a heuristic gets wrong.
    """
    config = _population_job(experiment)
    measure = replace(config.measure_as(PopulationMeasureConfig), side=evaluated)
    if config.scale == "mini":
        if measure.tokens is None:  # the user did not set it
            measure = replace(measure, tokens="cls")
        return PopulationParts(measure=measure)

    published = compose_inner_job(
        "analyze", ["measure=population", "pairs=mnli", "population=feather-berts"]
    )
    assert isinstance(published, PopulationJob)
    pairs = config.pairs
    if pairs.source == "templates":  # the default
        pairs = published.pairs
    population = config.population
    if population.name == "planted":  # the default
        population = published.population
    return PopulationParts(measure=measure, pairs=pairs, population=population)


def _population_job(experiment: ExperimentRun) -> PopulationJob:
    """Return the configuration of an experiment about a population, with its static type."""
    assert isinstance(experiment.config, PopulationJob)
    return experiment.config


@dataclass(frozen=True)
class PopulationResult:
    """The result of a job on a population, as tensors over the models of some groups.

    Attributes:
        result: The result.
        config: The settings of the population.
        chosen_groups: The groups of these models; empty: all groups.
    """

    result: Result
    config: PopulationConfig
    chosen_groups: tuple[str, ...] = ()

    @classmethod
    def of(cls, experiment: ExperimentRun, evaluated: EvaluatedPairs) -> PopulationResult:
        """Return an experiment's result on a population, for one set of pairs of texts.

        A population is a set of classifiers in groups. It may have a null: two groups of
        classifiers whose parents (the models they were fine-tuned from) differ in nothing but the
        seed. Only the first of these groups is compared with all others, so the second one is left
        out here.

        Args:
            experiment: The experiment with the results of its jobs.
            evaluated: The set of pairs that classifiers were evaluated on: "report" for held-out
                pairs, and "challenge" for pairs that a heuristic gets wrong.
        """
        # At the paper's scale, the job may have had a different population than the experiment.
        changed_settings = population_parts(experiment, evaluated)
        settings = changed_settings.get("population", _population_job(experiment).population)
        with_all_groups = cls(experiment.results[evaluated], settings)
        second_of_null = settings.null[1:] if settings.null else []  # names of groups
        chosen = [name for name in with_all_groups.group_names if name not in second_of_null]
        return replace(with_all_groups, chosen_groups=tuple(chosen))

    @property
    def null(self) -> PopulationResult:
        """The result for the two groups whose parents differ in nothing but the seed."""
        return replace(self, chosen_groups=tuple(self.config.null or ()))

    @cached_property
    def _group_of_all(self) -> dict[str, str]:
        """The group of each model of the result, by the model's name, in the order of arrays."""
        rows = self.result.details.drop_duplicates("source")
        return dict(zip(rows["source"], rows["group_of_source"], strict=True))

    @cached_property
    def group_of(self) -> dict[str, str]:
        """The group of each model of the chosen groups (or of all if none is chosen), by name."""
        if not self.chosen_groups:
            return self._group_of_all
        return {
            name: group
            for name, group in self._group_of_all.items()
            if group in self.chosen_groups
        }

    @property
    def group_names(self) -> list[str]:
        """The names of the groups, in the order of their first models."""
        return list(dict.fromkeys(self.group_of.values()))

    @property
    def units(self) -> str:
        """What intervals are over, in words: the number of models, and the sizes of groups."""
        groups = list(self.group_of.values())
        sizes = [str(groups.count(group)) for group in self.group_names]
        return f"{len(groups)} models in groups of {' and '.join(sizes)}"

    @property
    def units_with_examples(self) -> str:
        """The numbers of models and of pairs of texts, in words, where intervals are over both."""
        return f"{self.units}, {self.penalties.shape[-1]} pairs of texts"

    def _array(self, name: str) -> Tensor:
        """Return an array of the result, whose first axes are source and target.

        Both axes have only the models of the chosen groups.
        """
        is_chosen = [model in self.group_of for model in self._group_of_all]
        indices = torch.tensor(is_chosen).nonzero()[:, 0]
        all_models = torch.from_numpy(self.result.arrays[name])
        return all_models[indices[:, None], indices]

    @cached_property
    def correct_alone(self) -> Float[Tensor, "m n"]:
        """1 where a model alone classifies a pair of texts correctly, else 0."""
        correct = self._array("correct").double()  # (m, m, cuts, n)
        # A model stitched into itself is the model itself at every cut; the first cut is taken.
        own_answers = correct.diagonal()  # (cuts, n, m): the diagonal is now the last axis
        return own_answers[0].T

    @cached_property
    def penalties(self) -> Float[Tensor, "m m c n"]:
        """Accuracy of the target minus that of the stitched model: -1, 0 or 1 for each pair."""
        return population_penalties(self._array("correct").double())

    @cached_property
    def flips(self) -> Float[Tensor, "m m c n"]:
        """Whether the stitched model and the target predict different classes, for each pair."""
        return flips(self._array("predicted"))

    @cached_property
    def cka(self) -> Float[Tensor, "m m l"]:
        """CKA of every two models at each layer."""
        return self._array("cka")

    @cached_property
    def distances(self) -> Float[Tensor, "m m"]:
        """√Σ arccos²(CKA) over layers (Brown et al. 2023, equation 2), for every two models.

        It is the mean of both directions, and exactly 0 for a model with itself.
        """
        directed = arc_length(self.cka)
        return symmetric(directed).fill_diagonal_(0)

    def means_by_group(
        self, values: Float[Tensor, "m m *s"], *, examples: bool = False, level: float = 0.95
    ) -> Grouped:
        """Return means over pairs of models within and between groups, with intervals over models.

        Args:
            values: A value of each pair (source, target) of m models, for example for each of s
                layers.
            examples: Whether the last axis holds examples (pairs of texts), which are then
                averaged as well.
            level: The level of the intervals over models.
        """
        groups = list(self.group_of.values())
        return grouped(values, groups, examples=examples, level=level)
