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
    """The accuracies of probes of one task at one layer pair.

    Attributes:
        accuracies: The accuracy of each condition, which says where a probe is fitted and what it
            reads.
        converged: Whether the fits of all probes converged.
    """

    accuracies: dict[str, Accuracy]
    converged: bool


@dataclass(frozen=True, eq=False)
class Probing:
    """Fits probes of the layers of both models, each once, and tests them on held-out stimuli.

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
    _fitted_probes: dict[tuple[str, int, str, str], CrossFitted] = field(default_factory=dict)

    def probe(self, task: Task, pair: LayerPair) -> Probed:
        """Return the accuracies of probes at a layer pair, in all conditions.

        A condition says where a probe is fitted (in the source, in the target, in an untrained
        target, or on states that a map predicts) and which states it reads, directly or through a
        map. Probes of shuffled labels show the accuracy by chance.

        Args:
            task: The feature that is probed, the stimuli, and their folds.
            pair: The layers of the source and of the target.
        """
        source_layer, target_layer = pair
        labels = task.labels
        maps = self.maps[pair]
        source_states = self.source[source_layer][task.rows].double()
        target_states = self.target[target_layer][task.rows].double()
        mapped_states = maps.psi(target_states)  # predictions of the source's states
        of_source = self._probes_fitted_on("source", source_layer, source_states, task)
        of_target = self._probes_fitted_on("target", target_layer, target_states, task)
        refitted = self._probe_of_each_fold(mapped_states, task, self.measure.alphas, labels)

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
        accuracies = _accuracies(task, is_right, labels)
        converged = of_source.converged and of_target.converged and refitted.converged

        controls = []
        if self.untrained:
            controls.append(self._accuracies_in_untrained_target(task, pair, of_source))
        controls.append(self._accuracy_with_shuffled_labels(task, target_states, of_target.alphas))
        for probed in controls:
            accuracies |= probed.accuracies
            converged = converged and probed.converged
        return Probed(accuracies, converged)

    def _accuracies_in_untrained_target(
        self, task: Task, pair: LayerPair, source_probes: CrossFitted
    ) -> Probed:
        """Return the accuracies of probes that read states of the target before its training.

        The probes are fitted on these states, or fitted on the source and applied through a map
        from the untrained target to the source. They are a control: what they can read out is not
        due to training.

        Args:
            task: The feature that is probed, the stimuli, and their folds.
            pair: The layers of the source and of the target.
            source_probes: The probes that were fitted on the source, one for each fold.
        """
        _, target_layer = pair
        states = self.untrained[target_layer][task.rows].double()
        untrained_probes = self._probes_fitted_on("untrained", target_layer, states, task)
        # ψ maps states of the untrained target to the source.
        mapped_source_probes = source_probes.through(self.maps_to_untrained[pair].psi)
        is_right = {
            UNTRAINED: untrained_probes.is_right(states, task.labels),
            UNTRAINED_CARRIED: mapped_source_probes.is_right(states, task.labels),
        }
        # The caller knows whether the fits of the source's probes converged.
        return Probed(_accuracies(task, is_right, task.labels), untrained_probes.converged)

    def _accuracy_with_shuffled_labels(
        self, task: Task, states: Float[Tensor, "n d"], alphas: Sequence[float]
    ) -> Probed:
        """Return the accuracy of probes that are fitted and tested on shuffled labels, a control.

        The result has one condition, `SHUFFLED`, and says whether the fits converged.

        Args:
            task: The feature that is probed, the stimuli, and their folds.
            states: The states of these stimuli.
            alphas: The ridge penalties that were chosen with the true labels. Their median is
                used.
        """
        order = torch.randperm(len(task.labels), generator=seeded(self.seed))
        shuffled_labels = task.labels[order]
        median_alpha = statistics.median_high(alphas)  # one of them, and no mean of two
        probes = self._probe_of_each_fold(states, task, [median_alpha], shuffled_labels)
        is_right = {SHUFFLED: probes.is_right(states, shuffled_labels)}
        return Probed(_accuracies(task, is_right, shuffled_labels), probes.converged)

    def _probes_fitted_on(
        self, model: str, layer: int, states: Float[Tensor, "n d"], task: Task
    ) -> CrossFitted:
        """Return probes of a feature that are fitted on states of one layer, one for each fold.

        A layer may be in several layer pairs. Its probes are fitted once and kept in memory.

        Args:
            model: "source", "target" or "untrained" (the target before its training).
            layer: The layer of the model.
            states: The layer's states of the task's stimuli.
            task: The feature that is probed, and the folds. `task.split` is what a fold keeps
                together: sentences or words.
        """
        key = (model, layer, task.feature, task.split)
        if key not in self._fitted_probes:
            self._fitted_probes[key] = self._probe_of_each_fold(
                states, task, self.measure.alphas, task.labels
            )
        return self._fitted_probes[key]

    def _probe_of_each_fold(
        self,
        states: Float[Tensor, "n d"],
        task: Task,
        alphas: list[float],
        labels: Int[Tensor, " n"],
    ) -> CrossFitted:
        """Return a probe for each fold, fitted on the stimuli of all other folds.

        Args:
            states: The states of the task's stimuli.
            task: The feature that is probed, and the folds. A fold, also an inner one that
                chooses the penalty, keeps the stimuli of a group (a sentence or word) together.
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

        This is a control for probes of the source that read the target's states through the fitted
        map ψ from target to source: how often they are right without a fit. Each of
        `measure.draws` random maps has the singular values of ψ, but random directions.

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
    """Return the balanced accuracy in each condition, jackknifed over sentences.

    A condition says which probes answer, such as those of the target itself.

    Args:
        task: The feature that is probed, and the sentence of each stimulus.
        is_right: For each condition, whether the answer to each stimulus is right, or which share
            of several answers is.
        labels: The level of each stimulus.
    """
    is_right_by_condition = torch.stack([values.double() for values in is_right.values()])
    accuracies = balanced_accuracies(
        is_right_by_condition, labels, task.sentences, len(task.levels)
    )
    return dict(zip(is_right, accuracies, strict=True))
