"""Sets of pairs of stimuli: all pairs of some stimuli, or, for the paper's own recipe, some pairs of all stimuli."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.measures.distances.comparators import spearman_of_patterns, unit_ranks
from thinkalike.measures.distances.neural import NeuralDistances, upper
from thinkalike.measures.mlem.features import Features, Term, distinct, predict
from thinkalike.measures.mlem.sums import level_counts, normal_equations, sums_of_given_pairs

CHUNK = 2**22  # predictions in memory


class StimulusPairs:
    """Pairs of stimuli with their neural distances in every layer.

    They are all pairs i < j of the stimuli in the rows `index` of the feature table, by default all, and folds divide
    stimuli; or those at the flat indices `chosen`, which folds divide, with the squared distances `targets`, if known.
    """

    def __init__(
        self,
        layers: Sequence[NeuralDistances],
        index: Int[Tensor, " n"] | None = None,
        chosen: Int[Tensor, " p"] | None = None,
        targets: Float[Tensor, "l p"] | None = None,
    ):
        self.layers = layers
        self.index = torch.arange(len(layers[0]), device=layers[0].states.device) if index is None else index
        self.chosen = chosen
        self._targets = targets

    def __len__(self) -> int:
        """Return the number of units of folds: stimuli, or pairs."""
        return len(self.index) if self.chosen is None else len(self.chosen)

    def part(self, units: Int[Tensor, " k"]) -> StimulusPairs:
        """Return the pairs of these stimuli, or these pairs."""
        if self.chosen is not None:
            return StimulusPairs(self.layers, self.index, self.chosen[units], self.targets()[:, units])
        return StimulusPairs([layer.take(units) for layer in self.layers], self.index[units])

    @cached_property
    def flat(self) -> Int[Tensor, " p"]:
        """The pairs, as indices into a flat matrix of all stimuli by all stimuli."""
        return upper(len(self.index), self.index.device) if self.chosen is None else self.chosen

    def targets(self) -> Float[Tensor, "l p"]:
        """Return the squared neural distances."""
        return torch.stack(list(self._squares()))

    def _squares(self) -> Iterable[Float[Tensor, " p"]]:
        if self._targets is not None:
            return self._targets
        return (layer.squared().flatten()[self.flat] for layer in self.layers)

    @cached_property
    def ranks(self) -> Float[Tensor, "l p"]:
        """Unit ranks of the distances; raises a ValueError if all distances of a layer are equal."""
        return unit_ranks(self._squares(), "the distances of layer", len(self.layers))

    def differences(self, features: Features) -> list[Tensor]:
        """Return Δ of the pairs, feature by feature, see `Features.difference`."""
        own = features.take(self.index)
        return [own.difference(feature).flatten()[self.flat] for feature in range(len(features.scaled))]

    def permuted(
        self, features: Features, differences: Sequence[Tensor], moved: Sequence[int], order: Int[Tensor, " k"]
    ) -> list[Tensor]:
        """Return the differences after the features `moved` have moved, together, between stimuli, or between pairs.

        Each stimulus, or pair, gets the values of that in `order`.
        """
        if self.chosen is not None:
            return [column[order] if feature in moved else column for feature, column in enumerate(differences)]
        own = features.take(self.index).permuted(moved, order)
        return [
            own.difference(feature).flatten()[self.flat] if feature in moved else column
            for feature, column in enumerate(differences)
        ]

    def sums(self, features: Features, terms: Sequence[Term], cells: Int[Tensor, " k"]) -> Float[Tensor, "s t u"]:
        """Return the sums of `normal_equations` of all pairs, and without each cell that divides stimuli or pairs."""
        if self.chosen is None:
            return normal_equations(features.take(self.index), self.layers, terms, cells)
        return sums_of_given_pairs(self.differences(features), self.targets(), terms, cells)

    def level_counts(self, features: Features, cells: Int[Tensor, " k"]) -> list[Float[Tensor, "s _"]]:
        """Return `level_counts` for each set of `sums`; with folds of pairs every set has all stimuli."""
        own = features.take(self.index)
        if self.chosen is None:
            return level_counts(own, cells)
        sets = 1 + (int(cells.max()) + 1) * bool(cells.any())
        return [counts.expand(sets, -1) for counts in level_counts(own, torch.zeros_like(self.index))]

    def score(
        self, variants: Sequence[Sequence[Tensor]], terms: Sequence[Term], weights: Float[Tensor, "*b l r"]
    ) -> Float[Tensor, "v *b l"]:
        """Return Spearman's ρ of Σ weight · Δ_f Δ_g and the distances, for v variants of the differences.

        It is NaN where the prediction is constant. Pairs of equal differences have one prediction: with their number
        and the sum of their ranks, only the different predictions are sorted.
        """
        return torch.stack([self._by_pattern(*distinct(differences), terms, weights) for differences in variants])

    def _by_pattern(
        self,
        patterns: Sequence[Tensor],
        code: Int[Tensor, " p"],
        terms: Sequence[Term],
        weights: Float[Tensor, "*b l r"],
    ) -> Float[Tensor, "*b l"]:
        """Return the scores of pairs with these codes of the patterns of differences."""
        counts = torch.bincount(code).double()
        sums = self.ranks.new_zeros(len(self.ranks), len(counts)).index_add_(1, code, self.ranks)
        rows = weights.flatten(0, -2).split(max(1, CHUNK // len(counts)))
        owners = torch.arange(weights.shape[:-1].numel(), device=code.device).split(len(rows[0]))
        parts = [
            spearman_of_patterns(predict(patterns, terms, part), counts, sums[own % len(sums)])
            for part, own in zip(rows, owners, strict=True)
        ]
        return torch.cat(parts).view(weights.shape[:-1])
