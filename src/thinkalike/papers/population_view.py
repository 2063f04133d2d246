"""The result of a job on a population of classifiers, as tensors over its models."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.config import PopulationConfig, compose_job
from thinkalike.measures import Grouped, arc_length, flips, grouped, population_penalties, symmetric
from thinkalike.papers.experiment import Case
from thinkalike.store import Result


def changes_of(case: Case, side: str) -> dict[str, Any]:
    """Return what a population's job takes: at the paper's scale the defaults give way to the paper's own.

    At mini scale CKA is of [CLS] unless a word says otherwise: of the last block nobody reads the other tokens.
    """
    config = case.config
    measure: Any = replace(config.measure, side=side)  # type: ignore[call-arg]
    if config.scale == "mini" and not any(word.startswith("measure.tokens=") for word in config.chosen):
        measure = replace(measure, tokens="cls")
    changes: dict[str, Any] = {"measure": measure}
    if config.scale != "mini":
        paper = compose_job("analyze", ["pairs=mnli", "population=feather-berts"])
        changes["pairs"] = paper.pairs if config.pairs.source == "templates" else config.pairs
        changes["population"] = paper.population if config.population.name == "planted" else config.population
    return changes


@dataclass(frozen=True)
class Population:
    """The result of a job on a population, as tensors over those of its models whose groups are wanted."""

    result: Result
    config: PopulationConfig
    wanted: tuple[str, ...] = ()

    @classmethod
    def of(cls, case: Case, side: str) -> Population:
        """Return the population of a case, without the second group of a null."""
        config = changes_of(case, side).get("population", case.config.population)
        whole = cls(case.results[side], config)
        left_out = config.null[1:] if config.null else []
        return replace(whole, wanted=tuple(name for name in whole.names if name not in left_out))

    @property
    def null(self) -> Population:
        """The two groups whose parents differ in nothing but the seed."""
        return replace(self, wanted=tuple(self.config.null or ()))

    @cached_property
    def _all(self) -> dict[str, str]:
        rows = self.result.table.drop_duplicates("source")
        return dict(zip(rows["source"], rows["group_of_source"], strict=True))

    @cached_property
    def groups(self) -> dict[str, str]:
        """The group of each model, by its name."""
        return {name: group for name, group in self._all.items() if not self.wanted or group in self.wanted}

    @property
    def names(self) -> list[str]:
        """The names of the groups, in the order of their first models."""
        return list(dict.fromkeys(self.groups.values()))

    @property
    def units(self) -> str:
        """Over what intervals of pairs of models are."""
        sizes = [list(self.groups.values()).count(group) for group in self.names]
        return f"{len(self.groups)} models in groups of {' and '.join(map(str, sizes))}"

    @property
    def examples(self) -> str:
        """The same, where they are over pairs of texts, too."""
        return f"{self.units}, {self.penalties.shape[-1]} pairs of texts"

    def _array(self, name: str) -> Tensor:
        """Return an array (m, m, ...) of the job for the models that are wanted."""
        places = torch.tensor([place for place, model in enumerate(self._all) if model in self.groups])
        return torch.from_numpy(self.result.arrays[name])[places[:, None], places]

    @cached_property
    def own(self) -> Float[Tensor, "m n"]:
        """Which pairs of texts each model gets right by itself."""
        correct = self._array("correct").double()
        return correct.diagonal()[0].T

    @cached_property
    def penalties(self) -> Float[Tensor, "m m c n"]:
        """Accuracy of the target minus that of the stitched model, of each pair of texts: -1, 0 or 1."""
        return population_penalties(self._array("correct").double())

    @cached_property
    def flips(self) -> Float[Tensor, "m m c n"]:
        """Whether the stitched model predicts another class than the target, of each pair of texts."""
        return flips(self._array("predicted"))

    @cached_property
    def likeness(self) -> Float[Tensor, "m m l"]:
        """CKA of every two models at each layer."""
        return self._array("cka")

    @cached_property
    def distances(self) -> Float[Tensor, "m m"]:
        """√Σ arccos²(CKA) over layers (equation 2)."""
        return symmetric(arc_length(self.likeness)).fill_diagonal_(0)

    def grouped(self, values: Float[Tensor, "m m *s"], **options: Any) -> Grouped:
        """Return means of pairs of models within the groups and between them."""
        return grouped(values, list(self.groups.values()), **options)
