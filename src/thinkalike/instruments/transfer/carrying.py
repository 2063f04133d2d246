"""What each probe of a layer pair gets right: native, carried either way, refitted, and beside controls."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.evaluation import LayerPair
from thinkalike.instruments.transfer.features import Task
from thinkalike.instruments.transfer.maps import PairMap
from thinkalike.measures import Accuracy, AffineMap, CrossFitted, balanced_accuracies, cross_fitted, turned_at_random

NATIVE_SOURCE, NATIVE, CARRIED, BACK = "native in source", "native in target", "source to target", "target to source"
REFITTED, RANDOM, IDENTITY = "refitted", "random map", "identity"
SHUFFLED, UNTRAINED, UNTRAINED_CARRIED = "shuffled labels", "untrained target", "source to untrained"
SHARE_OF = {CARRIED: NATIVE, BACK: NATIVE_SOURCE, REFITTED: NATIVE, RANDOM: NATIVE, IDENTITY: NATIVE}

States = Mapping[int, Float[Tensor, "n _"]]  # of all stimuli, by layer


@dataclass(frozen=True, eq=False)
class Sides:
    """The states of all stimuli in source, target and a target that was never trained, and the maps between them.

    Attributes:
        back: from the untrained target's states to the source's, by layer pair; empty if there is none.
    """

    source: States
    target: States
    maps: Mapping[LayerPair, PairMap]
    untrained: States = field(default_factory=dict)
    back: Mapping[LayerPair, AffineMap] = field(default_factory=dict)


class Probing:
    """Fits probes of the layers of both sides, each once, and judges them on stimuli that they were not fitted on."""

    def __init__(self, sides: Sides, measure: Any, seed: int):
        self.sides, self.measure, self.seed = sides, measure, seed
        self._fitted: dict[tuple[str, int, str, str], CrossFitted] = {}

    def judged(self, task: Task, pair: LayerPair) -> tuple[dict[str, Accuracy], bool]:
        """Return the accuracies of a layer pair by condition, and whether all fits converged.

        Each has the same resamples of the sentences, so that shares of them are paired.
        """
        (layer, depth), maps, sides = pair, self.sides.maps[pair], self.sides
        a, b = sides.source[layer][task.rows].double(), sides.target[depth][task.rows].double()
        mine, own = self._native("source", layer, a, task), self._native("target", depth, b, task)
        read = maps.psi(b)
        again = self._fit(read, task, self.measure.alphas)
        right = {
            NATIVE_SOURCE: mine.right(a, task.labels),
            NATIVE: own.right(b, task.labels),
            CARRIED: mine.through(maps.psi).right(b, task.labels),
            BACK: own.through(maps.phi).right(a, task.labels),
            REFITTED: again.right(read, task.labels),
            RANDOM: self._turned(mine, maps, b, task),
        }
        if a.shape == b.shape:
            right[IDENTITY] = mine.right(b, task.labels)
        fits = [mine, own, again]
        if sides.untrained:
            c = sides.untrained[depth][task.rows].double()
            fresh = self._native("untrained", depth, c, task)
            right[UNTRAINED] = fresh.right(c, task.labels)
            right[UNTRAINED_CARRIED] = mine.through(sides.back[pair]).right(c, task.labels)
            fits.append(fresh)
        shuffled = task.labels[torch.randperm(len(task.labels), generator=self._generator())]
        chance = self._fit(b, task, [statistics.median_high(own.alphas)], shuffled)
        judged = self._accuracies(task, right, task.labels)
        judged |= self._accuracies(task, {SHUFFLED: chance.right(b, shuffled)}, shuffled)
        return judged, all(fit.converged for fit in (*fits, chance))

    def _native(self, side: str, layer: int, states: Tensor, task: Task) -> CrossFitted:
        key = (side, layer, task.feature, task.split)
        if key not in self._fitted:
            self._fitted[key] = self._fit(states, task, self.measure.alphas)
        return self._fitted[key]

    def _fit(self, states: Tensor, task: Task, alphas: list[float], labels: Tensor | None = None) -> CrossFitted:
        labels = task.labels if labels is None else labels
        inner = self.measure.inner_folds
        return cross_fitted(states, labels, len(task.levels), task.fold_of, task.groups, alphas, inner, self.seed)

    def _turned(self, probes: CrossFitted, maps: PairMap, states: Tensor, task: Task) -> Float[Tensor, " n"]:
        """Return the share of random maps through which each stimulus is answered right."""
        generator = self._generator()
        turned = (turned_at_random(maps.psi, maps.target_mean, generator) for _ in range(self.measure.draws))
        right = [probes.through(mapping).right(states, task.labels) for mapping in turned]
        return torch.stack(right).double().mean(0)

    def _accuracies(self, task: Task, right: dict[str, Tensor], labels: Tensor) -> dict[str, Accuracy]:
        rows = torch.stack([each.double() for each in right.values()])
        settings = len(task.levels), self.measure.resamples, self.seed
        return dict(zip(right, balanced_accuracies(rows, labels, task.sentences, *settings), strict=True))

    def _generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed)
