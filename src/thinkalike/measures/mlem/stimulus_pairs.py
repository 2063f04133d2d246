"""Pairs of stimuli: their neural distances, their sums, and how well predictions rank them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.measures.distances.neural import NeuralDistances, upper_triangle_indices
from thinkalike.measures.distances.ranks import mid_ranks, spearman_of_patterns, unit_ranks
from thinkalike.measures.mlem.features import Features, Term, distinct_patterns, predict
from thinkalike.measures.mlem.sums import level_counts, normal_equations, sums_of_given_pairs

# Predictions that are in memory at once.
PREDICTIONS_AT_ONCE = 2**22


class StimulusPairs:
    """Pairs of stimuli with their neural distances in every layer.

    Args:
        layers: The distances of the stimuli in each layer.
        stimuli: The rows of the stimuli in the feature table; by default all rows.
        chosen_pairs: The pairs, as flat indices, which folds divide; by default all pairs i < j of
            the stimuli, and folds divide stimuli.
        squared_distances: The squared distances of the chosen pairs, if known.
    """

    def __init__(
        self,
        layers: Sequence[NeuralDistances],
        stimuli: Int[Tensor, " n"] | None = None,
        chosen_pairs: Int[Tensor, " p"] | None = None,
        squared_distances: Float[Tensor, "l p"] | None = None,
    ):
        """Store the distances of n stimuli in each of l layers, and which pairs of them are used.

        `stimuli` are their row indices in the feature table, all rows if None. `chosen_pairs` are
        the pairs (i, j) to use, as flat indices i n + j into the n x n matrix of the stimuli; all
        pairs i < j if None. `squared_distances` are those of the chosen pairs, if the caller has
        them; None: they are computed when asked for.
        """
        if stimuli is None:
            stimuli = torch.arange(len(layers[0]), device=layers[0].states.device)
        self.layers = layers
        self.stimuli = stimuli
        self.chosen_pairs = chosen_pairs
        self._known_squared_distances = squared_distances

    @property
    def folds_divide_pairs(self) -> bool:
        """Whether folds divide the chosen pairs, and not the stimuli, of which all pairs count."""
        return self.chosen_pairs is not None

    def __len__(self) -> int:
        """Return how many stimuli there are, or how many chosen pairs if folds divide pairs."""
        if self.chosen_pairs is None:
            return len(self.stimuli)
        return len(self.chosen_pairs)

    def subset(self, units: Int[Tensor, " k"]) -> StimulusPairs:
        """Return only the pairs in some part of the data, such as the training folds.

        The part is some of the stimuli, with all pairs of them, or if this object has chosen
        pairs, some of these.

        Args:
            units: The positions of the remaining stimuli in `stimuli`, or of the remaining pairs
                in `chosen_pairs`.
        """
        if self.chosen_pairs is None:
            layers = [layer.take(units) for layer in self.layers]
            return StimulusPairs(layers, self.stimuli[units])
        squared_distances = self.squared_distances()[:, units]
        return StimulusPairs(
            self.layers, self.stimuli, self.chosen_pairs[units], squared_distances
        )

    @cached_property
    def pair_indices(self) -> Int[Tensor, " p"]:
        """The index i n + j of each pair (i, j), into the flattened n x n matrix of the n stimuli.

        These are the chosen pairs, or all pairs i < j if none were chosen.
        """
        if self.chosen_pairs is None:
            return upper_triangle_indices(len(self.stimuli), self.stimuli.device)
        return self.chosen_pairs

    def squared_distances(self) -> Float[Tensor, "l p"]:
        """Return the squared distance of each pair of stimuli in each layer.

        Pairs are in the order of `pair_indices`.
        """
        if self._known_squared_distances is not None:
            return self._known_squared_distances
        return torch.stack([layer.at(self.pair_indices) for layer in self.layers])

    @cached_property
    def ranks(self) -> Float[Tensor, "l p"]:
        """The ranks of the distances of the pairs in each layer, centred and of norm 1.

        Equal distances share the mean of their ranks.

        Raises:
            ValueError: All distances of a layer are equal.
        """
        if self._known_squared_distances is not None:
            rows_of_ranks: Iterable[Tensor] = map(mid_ranks, self._known_squared_distances)
        else:  # each layer's distances are computed when it is its turn, to save memory
            rows_of_ranks = (layer.ranks_at(self.pair_indices) for layer in self.layers)
        return unit_ranks(
            rows_of_ranks,
            count=len(self.layers),
            name="the distances of layer",  # in errors, which add the number of the layer
        )

    def differences(self, features: Features) -> list[Tensor]:
        """Return how the two stimuli of each pair differ, Δ: a tensor (p) for each feature.

        What Δ is depends on the feature. It is bool, whether the values differ, for an indicator;
        the distance of the values divided by their range, for a scaled feature; and the code of
        the two levels, from 1 on (0: equal), if the model has a weight of its own for each pair of
        levels of the feature.

        Args:
            features: The features of all stimuli of the table.
        """
        features_of_stimuli = features.take(self.stimuli)
        feature_count = len(features.scaled)
        differences = []
        for feature in range(feature_count):
            matrix = features_of_stimuli.difference(feature)  # (n, n), of every two stimuli
            differences.append(matrix.flatten()[self.pair_indices])  # indices i n + j of pairs
        return differences

    def permuted(
        self,
        features: Features,
        differences: Sequence[Tensor],
        permuted_features: Sequence[int],
        order: Int[Tensor, " k"],
    ) -> list[Tensor]:
        """Return Δ of the pairs, feature by feature, after some features were permuted.

        Δ says how the stimuli of a pair differ in a feature. Permuting a feature moves its values
        between stimuli, from which Δ is computed anew. If folds divide chosen pairs, and not
        stimuli, Δ itself moves between pairs instead.

        Args:
            features: The features of all stimuli of the table.
            differences: Δ of the pairs before, feature by feature.
            permuted_features: The indices of the features that are permuted, all in the same way.
            order: For each stimulus, or pair, the index of the one whose values it takes.
        """
        permuted = list(differences)
        if self.folds_divide_pairs:
            for feature in permuted_features:
                permuted[feature] = differences[feature][order]
            return permuted
        permuted_stimuli = features.take(self.stimuli).permuted(permuted_features, order)
        for feature in permuted_features:
            matrix = permuted_stimuli.difference(feature)  # of all stimuli with all stimuli
            permuted[feature] = matrix.flatten()[self.pair_indices]
        return permuted

    def sums(
        self, features: Features, terms: Sequence[Term], fold_of: Int[Tensor, " k"]
    ) -> Float[Tensor, "s t u"]:
        """Return the sums of products for a least-squares fit of squared distances on features.

        Entry (s, a, b) is Σ x_a x_b over the pairs of set s, with x_a the regressor of term a of
        the model, its value for a pair of stimuli. The last of the u = t + l columns, b ≥ t, are
        Σ x_a y, with y the squared distance of the pair in each of l layers. Set 0 is all pairs;
        if there are several folds, set 1 + k is all pairs without fold k.

        Args:
            features: The features of all stimuli of the table.
            terms: The t terms of the model, the intercept first.
            fold_of: The fold, from 0, of each stimulus, or of each pair if folds divide pairs.
        """
        if self.folds_divide_pairs:
            differences = self.differences(features)
            return sums_of_given_pairs(differences, self.squared_distances(), terms, fold_of)
        return normal_equations(features.take(self.stimuli), self.layers, terms, fold_of)

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
        features_of_stimuli = features.take(self.stimuli)
        if not self.folds_divide_pairs:
            return level_counts(features_of_stimuli, fold_of)
        set_count = 1
        if fold_of.any():  # several folds: all pairs, and all but those of each fold
            set_count += int(fold_of.max()) + 1
        single_fold = torch.zeros_like(self.stimuli)
        counts_of_all_stimuli = level_counts(features_of_stimuli, single_fold)  # (1, levels) each
        return [counts.expand(set_count, -1) for counts in counts_of_all_stimuli]

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
        layer_count = len(self.layers)
        models = weights.flatten(0, -2)  # (b l, r): all layers of a fit, then of the next fit
        layer_of_model = torch.arange(len(models), device=models.device) % layer_count
        scores = []
        for differences in variants:
            patterns, pattern_of_pair = distinct_patterns(differences)
            pair_counts = torch.bincount(pattern_of_pair).double()  # of each pattern
            rank_sums = self.ranks.new_zeros(layer_count, len(pair_counts))
            rank_sums.index_add_(1, pattern_of_pair, self.ranks)  # over the pairs of each pattern

            models_at_once = max(1, PREDICTIONS_AT_ONCE // len(pair_counts))
            for weights_of_models, layers in zip(
                models.split(models_at_once), layer_of_model.split(models_at_once), strict=True
            ):
                predictions = predict(patterns, terms, weights_of_models)
                scores.append(spearman_of_patterns(predictions, pair_counts, rank_sums[layers]))
        return torch.cat(scores).view(-1, *weights.shape[:-1])
