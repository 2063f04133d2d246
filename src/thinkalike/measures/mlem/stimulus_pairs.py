"""Pairs of stimuli: their neural distances, their sums, and how well predictions rank them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.measures.distances.neural import NeuralDistances, upper
from thinkalike.measures.distances.ranks import spearman_of_patterns, unit_ranks
from thinkalike.measures.mlem.features import Features, Term, distinct, predict
from thinkalike.measures.mlem.sums import level_counts, normal_equations, sums_of_given_pairs

# Predictions that are in memory at once.
PREDICTIONS_AT_ONCE = 2**22


class StimulusPairs:
    """Pairs of stimuli with their neural distances in every layer.

    Args:
        layers: The distances of the stimuli in each layer.
        index: The rows of the stimuli in the feature table; by default all rows.
        chosen: The pairs, as flat indices, which folds divide; by default all pairs i < j of the
            stimuli, and folds divide stimuli.
        targets: The squared distances of the chosen pairs, if known.
    """

    def __init__(
        self,
        layers: Sequence[NeuralDistances],
        index: Int[Tensor, " n"] | None = None,
        chosen: Int[Tensor, " p"] | None = None,
        targets: Float[Tensor, "l p"] | None = None,
    ):
        if index is None:
            index = torch.arange(len(layers[0]), device=layers[0].states.device)
        self.layers = layers
        self.index = index
        self.chosen = chosen
        self._targets = targets

    def __len__(self) -> int:
        """Return how many stimuli, or chosen pairs, there are."""
        if self.chosen is None:
            return len(self.index)
        return len(self.chosen)

    def part(self, units: Int[Tensor, " k"]) -> StimulusPairs:
        """Return the pairs of some stimuli, or some of the chosen pairs.

        Args:
            units: The positions of these stimuli, or pairs, in the order of this object.
        """
        if self.chosen is None:
            layers = [layer.take(units) for layer in self.layers]
            return StimulusPairs(layers, self.index[units])
        targets = self.targets()[:, units]
        return StimulusPairs(self.layers, self.index, self.chosen[units], targets)

    @cached_property
    def flat(self) -> Int[Tensor, " p"]:
        """The pairs, as indices into a flat matrix of all stimuli by all stimuli."""
        if self.chosen is None:
            return upper(len(self.index), self.index.device)
        return self.chosen

    def targets(self) -> Float[Tensor, "l p"]:
        """Return the squared distances of the pairs in each layer, in the order of `flat`."""
        return torch.stack(list(self._squares()))

    def _squares(self) -> Iterable[Float[Tensor, " p"]]:
        """Return the squared distances of the pairs layer by layer, one in memory at a time."""
        if self._targets is not None:
            return self._targets
        return (layer.at(self.flat) for layer in self.layers)

    @cached_property
    def ranks(self) -> Float[Tensor, "l p"]:
        """The mid-ranks of the distances in each layer, centred and of norm 1.

        Raises:
            ValueError: All distances of a layer are equal.
        """
        return unit_ranks(self._squares(), len(self.layers), "the distances of layer")

    def differences(self, features: Features) -> list[Tensor]:
        """Return Δ of the pairs, feature by feature, as `Features.difference` has it.

        Args:
            features: The features of all stimuli of the table.
        """
        of_stimuli = features.take(self.index)
        feature_numbers = range(len(features.scaled))
        return [of_stimuli.difference(feature).flatten()[self.flat] for feature in feature_numbers]

    def permuted(
        self,
        features: Features,
        differences: Sequence[Tensor],
        moved: Sequence[int],
        order: Int[Tensor, " k"],
    ) -> list[Tensor]:
        """Return the differences after some features moved between stimuli, or between pairs.

        Args:
            features: The features of all stimuli of the table.
            differences: Δ of the pairs before, feature by feature.
            moved: The indices of the features that move, all in the same order.
            order: For each stimulus, or pair if folds divide these, the one whose values it takes.
        """
        permuted = list(differences)
        if self.chosen is not None:
            for feature in moved:
                permuted[feature] = differences[feature][order]
            return permuted
        of_stimuli = features.take(self.index).permuted(moved, order)
        for feature in moved:
            permuted[feature] = of_stimuli.difference(feature).flatten()[self.flat]
        return permuted

    def sums(
        self, features: Features, terms: Sequence[Term], cells: Int[Tensor, " k"]
    ) -> Float[Tensor, "s t u"]:
        """Return `normal_equations` of all pairs, and without each cell of stimuli or pairs.

        Args:
            features: The features of all stimuli of the table.
            terms: The terms, the intercept first.
            cells: The cell, from 0, of each stimulus, or of each pair if folds divide these.
        """
        if self.chosen is None:
            return normal_equations(features.take(self.index), self.layers, terms, cells)
        return sums_of_given_pairs(self.differences(features), self.targets(), terms, cells)

    def level_counts(
        self, features: Features, cells: Int[Tensor, " k"]
    ) -> list[Float[Tensor, "s _"]]:
        """Return `level_counts` for each set of `sums`.

        With folds of pairs every set has all stimuli.
        """
        of_stimuli = features.take(self.index)
        if self.chosen is None:
            return level_counts(of_stimuli, cells)
        set_count = 1
        if cells.any():  # several cells: all pairs, and all but those of each cell
            set_count += int(cells.max()) + 1
        of_all = level_counts(of_stimuli, torch.zeros_like(self.index))
        return [counts.expand(set_count, -1) for counts in of_all]

    def score(
        self,
        variants: Sequence[Sequence[Tensor]],
        terms: Sequence[Term],
        weights: Float[Tensor, "*b l r"],
    ) -> Float[Tensor, "v *b l"]:
        """Return Spearman's ρ of predicted and neural distances; NaN of constants.

        Pairs of equal differences have one prediction, so only the different predictions are
        sorted.

        Args:
            variants: v times Δ of the pairs, feature by feature, such as with features permuted.
            terms: The terms, the intercept first.
            weights: The weights of the r terms after the intercept in each layer, for any number
                of fits.
        """
        scores = []
        for differences in variants:
            patterns, pattern_of_pair = distinct(differences)
            counts = torch.bincount(pattern_of_pair).double()
            rank_sums = self.ranks.new_zeros(len(self.ranks), len(counts))
            rank_sums.index_add_(1, pattern_of_pair, self.ranks)

            rows = weights.flatten(0, -2)  # (b l, r)
            layer_of_row = torch.arange(len(rows), device=rows.device) % len(rank_sums)
            rows_at_once = max(1, PREDICTIONS_AT_ONCE // len(counts))
            for weights_of_rows, layers in zip(
                rows.split(rows_at_once), layer_of_row.split(rows_at_once), strict=True
            ):
                predictions = predict(patterns, terms, weights_of_rows)
                scores.append(spearman_of_patterns(predictions, counts, rank_sums[layers]))
        return torch.cat(scores).view(-1, *weights.shape[:-1])
