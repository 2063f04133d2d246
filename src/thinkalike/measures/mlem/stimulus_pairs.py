"""Pairs of stimuli: their neural distances, their sums, and how well predictions rank them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.measures.distances.neural import NeuralDistances, upper
from thinkalike.measures.distances.ranks import spearman_of_patterns, unit_ranks
from thinkalike.measures.mlem.features import Features, Term, distinct_patterns, predict
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
        """Store the arguments; without an index, the stimuli are all rows of the feature table.

        The docstring of the class describes the arguments.
        """
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
        """Return the pairs of some of the stimuli, or some of the chosen pairs, as in a fold.

        Args:
            units: The indices of these stimuli in `index`, or of these pairs in `chosen`.
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
        """Return the squared distances of the pairs in each layer, computed one layer at a time.

        If they are known, they are those that were given.
        """
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
        """Return how the stimuli of each pair differ, Δ, feature by feature.

        It is bool, a distance, or the code of two levels, see `Features.difference`.

        Args:
            features: The features of all stimuli of the table.
        """
        features_of_stimuli = features.take(self.index)
        differences = []
        for feature in range(len(features.scaled)):
            matrix = features_of_stimuli.difference(feature)  # of all stimuli with all stimuli
            differences.append(matrix.flatten()[self.flat])
        return differences

    def permuted(
        self,
        features: Features,
        differences: Sequence[Tensor],
        permuted_features: Sequence[int],
        order: Int[Tensor, " k"],
    ) -> list[Tensor]:
        """Return Δ of the pairs, feature by feature, after some features were permuted.

        Δ says how the stimuli of a pair differ in a feature. The values of the permuted features
        move between stimuli. If folds divide pairs and not stimuli, Δ moves between pairs instead.

        Args:
            features: The features of all stimuli of the table.
            differences: Δ of the pairs before, feature by feature.
            permuted_features: The indices of the features that are permuted, all in the same way.
            order: For each stimulus, or pair, the index of the one whose values it takes.
        """
        permuted = list(differences)
        folds_divide_pairs = self.chosen is not None
        if folds_divide_pairs:
            for feature in permuted_features:
                permuted[feature] = differences[feature][order]
            return permuted
        permuted_stimuli = features.take(self.index).permuted(permuted_features, order)
        for feature in permuted_features:
            permuted[feature] = permuted_stimuli.difference(feature).flatten()[self.flat]
        return permuted

    def sums(
        self, features: Features, terms: Sequence[Term], fold_of: Int[Tensor, " k"]
    ) -> Float[Tensor, "s t u"]:
        """Return the sums for a least-squares fit: over all pairs, then without each fold.

        Entry (s, a, b) is Σ x_a x_b over the pairs of set s, with x_a the regressor of term a of
        the model. From b = t on it is Σ x_a y, with y the squared distance of the pair in a layer.

        Args:
            features: The features of all stimuli of the table.
            terms: The t terms of the model, the intercept first.
            fold_of: The fold, from 0, of each stimulus, or of each pair if folds divide pairs.
        """
        folds_divide_stimuli = self.chosen is None
        if folds_divide_stimuli:
            return normal_equations(features.take(self.index), self.layers, terms, fold_of)
        return sums_of_given_pairs(self.differences(features), self.targets(), terms, fold_of)

    def level_counts(
        self, features: Features, fold_of: Int[Tensor, " k"]
    ) -> list[Float[Tensor, "s _"]]:
        """Return for each feature how many stimuli of each level there are in each of s sets.

        The sets are all stimuli and, if there are several folds, all but those of each fold. If
        folds divide pairs, every set has all stimuli.

        Args:
            features: The features of all stimuli of the table.
            fold_of: The fold, from 0, of each stimulus, or of each pair if folds divide pairs.
        """
        features_of_stimuli = features.take(self.index)
        if self.chosen is None:
            return level_counts(features_of_stimuli, fold_of)
        set_count = 1
        if fold_of.any():  # several folds: all pairs, and all but those of each fold
            set_count += int(fold_of.max()) + 1
        single_fold = torch.zeros_like(self.index)
        counts_of_features = level_counts(features_of_stimuli, single_fold)
        return [counts.expand(set_count, -1) for counts in counts_of_features]

    def score(
        self,
        variants: Sequence[Sequence[Tensor]],
        terms: Sequence[Term],
        weights: Float[Tensor, "*b l r"],
    ) -> Float[Tensor, "v *b l"]:
        """Return Spearman's ρ of predicted and neural distances; NaN for constant predictions.

        Pairs with the same Δ, differences of features, have the same prediction, so only the
        different predictions are sorted.

        Args:
            variants: v versions of the Δ of the pairs, feature by feature, for instance with
                different features permuted.
            terms: The terms of the model, the intercept first.
            weights: The weights of the r terms after the intercept in each layer, for any number
                of fits.
        """
        scores = []
        for differences in variants:
            patterns, pattern_of_pair = distinct_patterns(differences)
            counts = torch.bincount(pattern_of_pair).double()  # pairs of each pattern
            rank_sums = self.ranks.new_zeros(len(self.ranks), len(counts))
            rank_sums.index_add_(1, pattern_of_pair, self.ranks)

            rows = weights.flatten(0, -2)  # (b l, r): all layers of a fit, then of the next
            layer_of_row = torch.arange(len(rows), device=rows.device) % len(rank_sums)
            rows_at_once = max(1, PREDICTIONS_AT_ONCE // len(counts))
            for weights_of_rows, layers in zip(
                rows.split(rows_at_once), layer_of_row.split(rows_at_once), strict=True
            ):
                predictions = predict(patterns, terms, weights_of_rows)
                scores.append(spearman_of_patterns(predictions, counts, rank_sums[layers]))
        return torch.cat(scores).view(-1, *weights.shape[:-1])
