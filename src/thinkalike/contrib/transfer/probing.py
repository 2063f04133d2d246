"""Probes of both models and through maps between them, with their controls."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from thinkalike.contrib.transfer.linear_probes import CrossFitted, cross_fitted
from thinkalike.contrib.transfer.maps import PairMap
from thinkalike.contrib.transfer.random_maps import turned_at_random
from thinkalike.instruments.probing_tasks import Task
from thinkalike.measures.accuracy import Accuracy, balanced_accuracies
from thinkalike.measures.moments import LayerPair
from thinkalike.measures.seeds import seeded

# The conditions: where a probe is fitted, and what it reads.
NATIVE_SOURCE = "native in source"
NATIVE = "native in target"
CARRIED = "source to target"
BACK = "target to source"
REFITTED = "refitted"
RANDOM = "random map"
IDENTITY = "identity"
SHUFFLED = "shuffled labels"
UNTRAINED = "untrained target"
UNTRAINED_CARRIED = "source to untrained"

States = Sequence[Float[Tensor, "n _"]]
"""Of all stimuli, by layer."""


@runtime_checkable
class ProbeSettings(Protocol):
    """The settings of `measure=probes` that fits need."""

    alphas: list[float]
    inner_folds: int
    draws: int


class Probed(NamedTuple):
    """The accuracies of one task at one layer pair, by condition.

    Attributes:
        accuracies: The accuracy of each condition.
        converged: Whether all fits converged.
    """

    accuracies: dict[str, Accuracy]
    converged: bool


@dataclass(frozen=True, eq=False)
class Probing:
    """Fits probes of the layers of both models, each once, and tests them on other folds.

    Attributes:
        measure: The settings of the fits.
        seed: Decides inner folds, random maps and shuffled labels.
        source, target: The states of all stimuli in both models, by layer.
        maps: The maps between both models, by layer pair.
        untrained: The states of an untrained target, by layer; empty: there is none.
        maps_to_untrained: The maps between the source and the untrained target.
    """

    measure: ProbeSettings
    seed: int
    source: States
    target: States
    maps: Mapping[LayerPair, PairMap]
    untrained: States = ()
    maps_to_untrained: Mapping[LayerPair, PairMap] = field(default_factory=dict)
    _native_probes: dict[tuple[str, int, str, str], CrossFitted] = field(default_factory=dict)

    def probe(self, task: Task, pair: LayerPair) -> Probed:
        """Return the accuracies of all conditions at a layer pair."""
        source_layer, target_layer = pair
        maps = self.maps[pair]
        source_states = self.source[source_layer][task.rows].double()
        target_states = self.target[target_layer][task.rows].double()
        mapped_states = maps.psi(target_states)
        of_source = self._native("source", source_layer, source_states, task)
        of_target = self._native("target", target_layer, target_states, task)
        refitted = self._fit(mapped_states, task, self.measure.alphas, task.labels)
        fits = [of_source, of_target, refitted]

        labels = task.labels
        is_right: dict[str, Tensor] = {
            NATIVE_SOURCE: of_source.is_right(source_states, labels),
            NATIVE: of_target.is_right(target_states, labels),
            CARRIED: of_source.through(maps.psi).is_right(target_states, labels),
            BACK: of_target.through(maps.phi).is_right(source_states, labels),
            REFITTED: refitted.is_right(mapped_states, labels),
            RANDOM: self._share_right_through_random_maps(of_source, maps, target_states, labels),
        }
        if source_states.shape == target_states.shape:
            is_right[IDENTITY] = of_source.is_right(target_states, labels)
        if self.untrained:
            untrained_states = self.untrained[target_layer][task.rows].double()
            of_untrained = self._native("untrained", target_layer, untrained_states, task)
            carried = of_source.through(self.maps_to_untrained[pair].psi)
            is_right[UNTRAINED] = of_untrained.is_right(untrained_states, labels)
            is_right[UNTRAINED_CARRIED] = carried.is_right(untrained_states, labels)
            fits.append(of_untrained)
        accuracies = _accuracies(task, is_right, labels)

        # Shuffled labels show what accuracy chance gives, at the usual penalty of the target.
        order = torch.randperm(len(labels), generator=seeded(self.seed))
        shuffled = labels[order]
        usual_penalty = statistics.median_high(of_target.alphas)
        of_shuffled = self._fit(target_states, task, [usual_penalty], shuffled)
        fits.append(of_shuffled)
        is_right_by_chance = {SHUFFLED: of_shuffled.is_right(target_states, shuffled)}
        accuracies |= _accuracies(task, is_right_by_chance, shuffled)
        return Probed(accuracies, all(fit.converged for fit in fits))

    def _native(
        self, side: str, layer: int, states: Float[Tensor, "n d"], task: Task
    ) -> CrossFitted:
        """Return probes of a layer's own states, which are fitted once for all layer pairs.

        Args:
            side: The model: "source", "target" or "untrained".
            layer: The layer of the model.
            states: The layer's states of the task's stimuli.
            task: The feature that is probed, and the folds.
        """
        key = (side, layer, task.feature, task.split)
        if key not in self._native_probes:
            self._native_probes[key] = self._fit(states, task, self.measure.alphas, task.labels)
        return self._native_probes[key]

    def _fit(
        self,
        states: Float[Tensor, "n d"],
        task: Task,
        alphas: list[float],
        labels: Int[Tensor, " n"],
    ) -> CrossFitted:
        """Return a probe for each fold, fitted on the stimuli of all other folds.

        Args:
            states: The states of the task's stimuli.
            task: The feature that is probed, and the folds.
            alphas: The ridge penalties to choose from.
            labels: The level of each stimulus, which may be shuffled as a control.
        """
        return cross_fitted(
            states,
            labels,
            len(task.levels),
            task.fold_of,
            task.groups,
            alphas,
            self.measure.inner_folds,
            self.seed,
        )

    def _share_right_through_random_maps(
        self,
        probes: CrossFitted,
        maps: PairMap,
        states: Float[Tensor, "n d"],
        labels: Int[Tensor, " n"],
    ) -> Float[Tensor, " n"]:
        """Return, for each stimulus, the share of random maps through which the answer is right.

        This is a control for probes of the source that read the target's states through the map ψ
        from target to source: each random map has the singular values of ψ, but random directions.

        Args:
            probes: The probes of the source.
            maps: The maps of a layer pair, of which ψ is used.
            states: The target's states of n stimuli.
            labels: The right answers.
        """
        generator = seeded(self.seed)
        is_right = []
        for _ in range(self.measure.draws):
            random_map = turned_at_random(maps.psi, maps.target_mean, generator)
            is_right.append(probes.through(random_map).is_right(states, labels))
        return torch.stack(is_right).double().mean(0)


def _accuracies(
    task: Task, is_right: Mapping[str, Shaped[Tensor, " n"]], labels: Int[Tensor, " n"]
) -> dict[str, Accuracy]:
    """Return the balanced accuracy of each condition, jackknifed over sentences.

    Args:
        task: The feature that is probed, and the sentence of each stimulus.
        is_right: For each condition, whether the answer to each stimulus is right, or which share
            of several answers is.
        labels: The level of each stimulus.
    """
    rows = torch.stack([of_condition.double() for of_condition in is_right.values()])
    accuracies = balanced_accuracies(rows, labels, task.sentences, len(task.levels))
    return dict(zip(is_right, accuracies, strict=True))
