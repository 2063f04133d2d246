"""What chance gives: layer pairs compared again after documents of one model moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.measures.contract import AnyMeasure, BatchRows, ModelPairs, Pair, joint_matrix
from thinkalike.measures.estimates import Estimate
from thinkalike.measures.permutations import balanced_rows, permuted_rows, permuted_within
from thinkalike.measures.row_groups import RowGroups
from thinkalike.measures.sample_size import (
    FEWEST_GROUPS,
    FEWEST_GROUPS_IF_BIASED,
    effective_number,
)
from thinkalike.measures.splitmix import SPLITMIX_STEP, splitmix
from thinkalike.measures.wild_bootstrap import signed_similarities
from thinkalike.processes import counted

# Where chance is closer than this to the best value, in the unit of the value, no value says
# anything.
LEAST_ROOM = 1e-6

# A permutation shows chance alone if at most this share of the rows stays in place.
MOST_ROWS_IN_PLACE = 0.05

# Values that differ by less than this share are equal up to rounding, such as the value of a
# permutation that moves nothing.
TIE_SHARE = 1e-9

# Tensors (a, l, m) by pair of models: a values for each layer pair.
ValuesByPair = dict[Pair, Float[Tensor, "_ _ _"]]


@dataclass(frozen=True, eq=False)
class Chance:
    """The null of the values of l x m layer pairs: documents change places, in one batch.

    p-values and `largest` are computed on the same number of rows of each document, as only
    documents of equal length are exchangeable, see `balanced_rows`. If rows are compared within
    groups of one token, they are computed on the similarities of rows of different documents. They
    are NaN if there are fewer than 8 such documents, or, within groups of one token, if the
    documents are worth fewer than 15 of equal length.

    Attributes:
        null: The mean value of those permutations that leave next to no row in place.
        calibrated: (value - null) / (best - null): 0 by chance, 1 for a layer with itself. This
            holds for distances, too.
        p: The share of all permutations, with the value itself, that are at least as close; ties
            are broken at random.
        p_of_largest: The same against the closest of all layer pairs of each permutation (Westfall
            & Young 1993), for a pair that was chosen because it is the closest.
        largest: The calibrated value of the closest pair, where chance is the mean of the closest
            of each permutation.
        documents: How many documents change places.
    """

    null: Float[Tensor, "l m"]
    calibrated: Estimate
    p: Float[Tensor, "l m"]
    p_of_largest: Float[Tensor, "l m"]
    largest: float
    documents: int


def chance_of(
    estimate: Estimate,
    null: Float[Tensor, "l m"],
    tested: Float[Tensor, "a l m"],
    documents: int,
    best: float = 1.0,
    sign: int = 1,
) -> Chance:
    """Return how the values of layer pairs compare with chance: calibrated values and p-values.

    Chance is the values after the documents of one model were permuted. With fewer than
    `FEWEST_GROUPS` documents all p-values, and `Chance.largest`, are NaN.

    Args:
        estimate: The values with their intervals.
        null: The mean value of each layer pair by chance.
        tested: The value of each layer pair that p-values are for, and then its value in each
            permutation; a = 1 + the number of permutations.
        documents: How many documents change places.
        best: The value of a layer with itself.
        sign: 1 if larger values mean more similar, and -1 for a distance.
    """

    def calibrated(value: Float[Tensor, "l m"]) -> Float[Tensor, "l m"]:
        """Return the value on a scale from 0, chance, to 1, the best possible value."""
        return (value - null) / (best - null)

    value = calibrated(estimate.with_bias)
    ends = torch.stack([value, calibrated(estimate.low), calibrated(estimate.high)])
    # For a distance, whose best value is below the null, the two ends change places.
    calibrated_estimate = Estimate(value, low=ends.amin(0), high=ends.amax(0))

    if documents < FEWEST_GROUPS:
        tested = torch.full_like(tested, torch.nan)
    closeness = sign * tested
    observed = closeness[0]
    permuted = closeness[1:]
    closest = permuted.flatten(1).amax(1)  # of all layer pairs, for each permutation
    closest_by_chance = float(closest.mean())
    p = p_value(permuted, observed)
    p_of_largest = p_value(closest[:, None, None], observed)
    return Chance(
        null=null,
        calibrated=calibrated_estimate,
        p=p,
        p_of_largest=p_of_largest.maximum(p),  # ties may be broken differently in the two
        largest=(float(observed.max()) - closest_by_chance) / (sign * best - closest_by_chance),
        documents=documents,
    )


def p_value(null: Float[Tensor, "p ..."], value: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
    """Return the p-value (1 + #{null > value} + u) / (1 + p), u drawn from 0..#{null = value}.

    u breaks ties at random, so that the p-value is uniform under the null hypothesis. In place of
    a random number it is a hash of the null's values, and so the same in each run. If all null
    values tie with the value, the p-value is 1. It is NaN if the value, or the largest null value,
    is not finite.

    Args:
        null: The values of p permutations, of which larger ones mean more similar layers; its
            remaining axes broadcast with those of the value.
        value: The values that are tested.
    """
    smallest = torch.finfo(null.dtype).tiny
    tolerance = TIE_SHARE * null.abs().amax(0).clamp(min=smallest)  # within it values are equal
    count_above = (null > value + tolerance).sum(0)
    tie_count = ((null - value).abs() <= tolerance).sum(0)

    # `splitmix` scrambles the bits of whole numbers. Each permutation's value, in units of the
    # tolerance, is scrambled together with its index, so that their order matters; the sum over
    # permutations is scrambled once more. The index has as many axes as the null, to broadcast.
    index = torch.arange(len(null), device=null.device).view(-1, *[1] * (null.ndim - 1))
    codes = (null / tolerance).round().long() + index * SPLITMIX_STEP
    hashes = splitmix(splitmix(codes).sum(0))
    u = hashes % (1 + tie_count)
    u = u.where(tie_count < len(null), tie_count)  # p = 1 if all values tie
    p = (1 + count_above + u).double() / (1 + len(null))
    return p.where((value + tolerance).isfinite(), torch.nan)


@dataclass(frozen=True)
class BatchNull:
    """Compares the layers of a batch again, with the documents of the second model permuted.

    All layer pairs see the same permutations, so that the closest of them has a null as well.

    Attributes:
        measure: The measure, which compares rows of the same token only if there are such groups.
        layers: The distinct layers of the batch as this measure prepared them.
        rows: The rows of the batch.
        token_groups: The groups of rows of one token; None if all rows are compared.
        model_pairs: Which of these layers each model has, and which models are compared.
        permutations: How many permutations are drawn.
    """

    measure: AnyMeasure
    layers: Sequence[object]
    rows: BatchRows
    token_groups: RowGroups | None
    model_pairs: ModelPairs
    permutations: int

    def of(self, values: Mapping[Pair, Float[Tensor, "_ _"]]) -> dict[Pair, dict[str, Tensor]]:
        """Return the null of each pair of models.

        Args:
            values: The values of each pair of models. For a measure that is a ratio, such as CKA,
                they are the numerators.

        Returns:
            For each pair of models "null", the mean value by chance, (l, m); "tested", the value
            that is tested and then those of the permutations, (1 + p, l, m); and "moved", how many
            documents change places.

        Raises:
            ValueError: By chance alone, layers are as close as can be.
        """
        measure = self.measure
        documents = self.rows.documents
        if self.token_groups is None:
            document_of_row = documents.cpu()
            groups = RowGroups.whole(len(document_of_row), document_of_row.device)
        else:
            document_of_row = documents[self.token_groups.order].cpu()
            groups = self.token_groups

        orders = torch.stack(
            [permuted_within(document_of_row, groups, seed) for seed in range(self.permutations)]
        )
        share_in_place = (orders == torch.arange(len(document_of_row))).double().mean(1)
        # Where every permutation leaves many rows in place, those that leave the fewest are used.
        moves_most_rows = share_in_place <= share_in_place.min().clamp(min=MOST_ROWS_IN_PLACE)
        permuted = self._permuted(self.layers, orders, values)
        null = {}
        for pair, values_of_pair in permuted.items():
            values_of_permutations = values_of_pair[1:]
            null[pair] = values_of_permutations[moves_most_rows].mean(0)
        if not measure.is_ratio:
            room = min(float((measure.best - mean).abs().min()) for mean in null.values())
            if room < LEAST_ROOM:
                raise ValueError(
                    f"by chance alone two layers are as close as can be, at {measure.best:g}: "
                    "give more rows, on a command line by measure.tokens_per_batch"
                )

        tested, document_count = self._exchangeable_values(document_of_row, permuted, values)
        moved = torch.tensor(document_count)
        return {
            pair: {"null": null[pair], "tested": tested[pair], "moved": moved}
            for pair in self.model_pairs.pairs
        }

    def _exchangeable_values(
        self,
        document_of_row: Int[Tensor, " kept"],
        permuted: ValuesByPair,
        values: Mapping[Pair, Float[Tensor, "_ _"]],
    ) -> tuple[ValuesByPair, int]:
        """Return the values that p-values are computed from, and how many documents change places.

        Entry 0 is the value that is tested. The others are the values of permutations of
        documents, or, within groups of one token, those with random signs. By chance alone, all
        of them have the same distribution. The number of documents is 0 if they are too few for a
        p-value.

        Args:
            document_of_row: The document of each row that is compared.
            permuted: The values of all rows, and those with documents permuted.
            values: What the measure says of each pair of models without a permutation.
        """
        document_count = len(document_of_row.unique())
        if self.token_groups:
            _, counts = document_of_row.unique(return_counts=True)
            if effective_number(counts) < FEWEST_GROUPS_IF_BIASED:
                document_count = 0
            signed = self._values_with_random_signs(document_of_row, self.token_groups)
            return signed, document_count

        # Only documents of equal length are exchangeable, so the same number of rows is taken from
        # each document.
        rows_of_document = balanced_rows(document_of_row)  # (documents, rows of each)
        is_balanced = rows_of_document.numel() == len(document_of_row)
        if document_count < FEWEST_GROUPS or is_balanced:
            return permuted, document_count
        if rows_of_document.numel() < self.measure.fewest:
            return permuted, 0
        rows = self.rows.selected(rows_of_document.flatten())
        layers = self.measure.prepared(rows.layers, rows.names, rows.order)
        documents = rows.documents.cpu()
        orders = torch.stack([permuted_rows(documents, seed) for seed in range(self.permutations)])
        balanced_values = self.measure.compare_all(
            layers, self.model_pairs._replace(pairs=list(values))
        )
        return self._permuted(layers, orders, balanced_values), len(rows_of_document)

    def _values_with_random_signs(
        self, document_of_row: Int[Tensor, " kept"], token_groups: RowGroups
    ) -> ValuesByPair:
        """Return how the similarities of rows of one token correlate between layers.

        The result is (1 + permutations, l, m) for each pair of models. Entry 0 of the first axis
        is the correlation. The others are its null distribution, by the wild bootstrap: the
        similarity of two rows is multiplied by a random sign of the document of each of them.

        Args:
            document_of_row: The document of each row, in the order of the groups.
            token_groups: The groups of rows of one token.
        """
        similarities = [self.measure.similarities(layer) for layer in self.layers]
        device = similarities[0][0].device
        documents_by_size = list(token_groups.split_by_size(document_of_row.to(device)))
        layers_of_model = self.model_pairs.layers_of_model
        values = {}
        for source, target in self.model_pairs.pairs:
            compared_layers = (layers_of_model[source], layers_of_model[target])
            values[source, target] = signed_similarities(
                similarities, compared_layers, documents_by_size, self.permutations
            )
        return values

    def _permuted(
        self,
        layers: Sequence[object],
        orders: Int[Tensor, "p n"],
        values: Mapping[Pair, Float[Tensor, "_ _"]],
    ) -> ValuesByPair:
        """Return the values of each pair of models: without a permutation, then of each one.

        Args:
            layers: The prepared layers.
            orders: For each permutation, the order of the rows of the second model.
            values: What the measure says of each pair of models without a permutation; for a
                ratio, its numerators.
        """
        pairs = self.model_pairs.pairs
        device = values[pairs[0]].device
        sources = list(dict.fromkeys(source for source, _ in pairs))
        targets = list(dict.fromkeys(target for _, target in pairs))

        # All pairs of models are compared in one call, in which a layer that several targets have
        # is permuted once. Layers of sources come first, and then the permuted ones of targets.
        source_layers = self._layer_indices_of(sources)
        target_layers = self._layer_indices_of(targets)
        models = []
        for source in sources:
            indices = [
                source_layers.index(layer) for layer in self.model_pairs.layers_of_model[source]
            ]
            models.append(tuple(indices))
        for target in targets:
            indices = [
                target_layers.index(layer) for layer in self.model_pairs.layers_of_model[target]
            ]
            models.append(tuple(len(source_layers) + index for index in indices))
        pairs_across = [
            (sources.index(source), len(sources) + targets.index(target))
            for source, target in pairs
        ]
        across = ModelPairs(models, pairs_across)

        by_pair: dict[Pair, list[Tensor]] = {pair: [values[pair].double()] for pair in pairs}
        prepared_sources = [layers[layer] for layer in source_layers]
        for order in counted(orders.to(device), "permutation"):
            permuted_targets = []
            for layer in target_layers:
                permuted_targets.append(
                    self.measure.reordered(self.measure.copied(layers[layer]), order)
                )
            compared = self.measure.compare_all([*prepared_sources, *permuted_targets], across)
            for pair, pair_across in zip(pairs, pairs_across, strict=True):
                by_pair[pair].append(compared[pair_across].double())
        return {
            pair: self._as_ratios(torch.stack(across_models), values, pair)
            for pair, across_models in by_pair.items()
        }

    def _layer_indices_of(self, models: Sequence[int]) -> list[int]:
        """Return the indices of all layers that some of these models have, in rising order."""
        return sorted(
            {layer for model in models for layer in self.model_pairs.layers_of_model[model]}
        )

    def _as_ratios(
        self,
        across_models: Float[Tensor, "a l m"],
        unpermuted: Mapping[Pair, Float[Tensor, "_ _"]],
        pair: Pair,
    ) -> Float[Tensor, "a l m"]:
        """Return the values of a measure across two models, after dividing those of a ratio.

        For a ratio, such as CKA, what is given are its numerators, such as HSICs. The denominators
        come from the numerators within each model, which do not change with the order of the rows.
        For other measures `across_models` are the values already.

        Args:
            across_models: The numerators, or values, across the models: of the rows as they are,
                and then of each permutation.
            unpermuted: The numerators for the rows as they are, by pair of models, also of each
                model with itself.
            pair: The two models.
        """
        if not self.measure.is_ratio:
            return across_models
        count, depth, _ = across_models.shape  # a, l, m
        # The numerators of every two of the l + m layers: only those across the two models, above
        # the diagonal on the right, depend on the permutation.
        joint = joint_matrix(unpermuted, pair).double().repeat(count, 1, 1)  # (a, l + m, l + m)
        joint[:, :depth, depth:] = across_models
        return self.measure.ratios(joint)[:, :depth, depth:]
