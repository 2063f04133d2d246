"""What chance gives: layer pairs compared again after documents of one model moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.measures.contract import AnyMeasure, BatchRows, Blocks, Pair, joined
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

    p and `largest` are of `balanced_rows`; given the token, they are of the similarities of
    different documents. They are NaN if there are fewer than 8 such documents, or, given the
    token, if the documents are worth fewer than 15 of equal length.

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
    """Return how the values of layer pairs compare with chance.

    With fewer than `FEWEST_GROUPS` documents all p-values, and `Chance.largest`, are NaN.

    Args:
        estimate: The values with their intervals.
        null: The mean value of each layer pair by chance.
        tested: The value that is tested, and then that of each permutation, in the axis a.
        documents: How many documents change places.
        best: The value of a layer with itself.
        sign: 1 if larger values are closer, and -1 for a distance.
    """

    def calibrated(value: Float[Tensor, "l m"]) -> Float[Tensor, "l m"]:
        """Return where a value lies from chance, 0, to the best possible, 1."""
        return (value - null) / (best - null)

    value = calibrated(estimate.as_found)
    ends = torch.stack([value, calibrated(estimate.low), calibrated(estimate.high)])
    # The ends are exchanged where best is below the null, as for a distance.
    calibrated_estimate = Estimate(value, ends.amin(0), ends.amax(0))

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

    u is a pseudo-random number that depends on nothing but the values of the null. Where all
    values tie, p is 1. It is NaN where a value is not finite.

    Args:
        null: The values of p permutations, larger ones being closer; its remaining axes broadcast
            with those of the value.
        value: The values that are tested.
    """
    smallest = torch.finfo(null.dtype).tiny
    tie = TIE_SHARE * null.abs().amax(0).clamp(min=smallest)
    above = (null > value + tie).sum(0)
    ties = ((null - value).abs() <= tie).sum(0)

    # A hash of the null's values, which breaks ties the same way in each run.
    index = torch.arange(len(null), device=null.device).view(-1, *[1] * (null.ndim - 1))
    code = (null / tie).round().long() + index * SPLITMIX_STEP
    ties_above = splitmix(splitmix(code).sum(0)) % (1 + ties)
    ties_above = ties_above.where(ties < len(null), ties)
    p = (1 + above + ties_above).double() / (1 + len(null))
    return p.where((value + tie).isfinite(), torch.nan)


@dataclass(frozen=True)
class BatchNull:
    """Compares the layers of a batch again, with the documents of the second model permuted.

    All layer pairs see the same permutations, so that the closest of them has a null as well.

    Attributes:
        measure: The measure; given the token, the measure within the groups.
        layers: What the measure prepared of the rows of each different layer.
        rows: The rows of the batch.
        within: The groups of rows of one token; None if all rows are compared.
        blocks: The layers of each model, and which models are compared.
        permutations: How many permutations are drawn.
    """

    measure: AnyMeasure
    layers: Sequence[Any]
    rows: BatchRows
    within: RowGroups | None
    blocks: Blocks
    permutations: int

    def of(self, values: Mapping[Pair, Float[Tensor, "_ _"]]) -> dict[Pair, dict[str, Tensor]]:
        """Return the null of each pair of models.

        Args:
            values: What the measure says of each pair of models, before `LayerMeasure.finish`.

        Returns:
            For each pair of models "null", the mean value by chance, (l, m); "tested", the value
            that is tested and then those of the permutations, (1 + p, l, m); and "moved", how many
            documents change places.

        Raises:
            ValueError: By chance alone, layers are as close as can be.
        """
        measure = self.measure
        documents = self.rows.documents
        if self.within is None:
            owners = documents.cpu()
            groups = RowGroups.whole(len(owners), owners.device)
        else:
            owners = documents[self.within.order].cpu()
            groups = self.within

        orders = torch.stack(
            [permuted_within(owners, groups, seed) for seed in range(self.permutations)]
        )
        share_in_place = (orders == torch.arange(len(owners))).double().mean(1)
        # Where every permutation leaves many rows in place, the best ones have to do.
        moves_most_rows = share_in_place <= share_in_place.min().clamp(min=MOST_ROWS_IN_PLACE)
        permuted = self._permuted(self.layers, orders, values)
        null = {pair: of_pair[1:][moves_most_rows].mean(0) for pair, of_pair in permuted.items()}
        if not measure.is_ratio:
            room = min(float((measure.best - of_pair).abs().min()) for of_pair in null.values())
            if room < LEAST_ROOM:
                raise ValueError(
                    f"by chance alone two layers are as close as can be, at {measure.best:g}: "
                    "give more rows, on a command line by measure.tokens_per_batch"
                )

        tested, document_count = self._tested(owners, permuted, values)
        moved = torch.tensor(document_count)
        return {
            pair: {"null": null[pair], "tested": tested[pair], "moved": moved}
            for pair in self.blocks.pairs
        }

    def _tested(
        self,
        owners: Int[Tensor, " kept"],
        permuted: ValuesByPair,
        values: Mapping[Pair, Float[Tensor, "_ _"]],
    ) -> tuple[ValuesByPair, int]:
        """Return values that are exchangeable by chance, for p, and how many documents move.

        The number of documents is 0 where they are too few for a p-value.

        Args:
            owners: The document of each row that is compared.
            permuted: The values of all rows, and those with documents permuted.
            values: See `of`.
        """
        document_count = len(owners.unique())
        if self.within:
            _, counts = owners.unique(return_counts=True)
            if effective_number(counts) < FEWEST_GROUPS_IF_BIASED:
                document_count = 0
            return self._signed(owners, self.within), document_count

        # Only documents of equal length are exchangeable, so as many rows of each are compared.
        rows_of_document = balanced_rows(owners)
        is_balanced = rows_of_document.numel() == len(owners)
        if document_count < FEWEST_GROUPS or is_balanced:
            return permuted, document_count
        if rows_of_document.numel() < self.measure.fewest:
            return permuted, 0
        rows = self.rows.of(rows_of_document.flatten())
        layers = self.measure.prepared(rows.layers, rows.names, rows.order)
        balanced_owners = rows.documents.cpu()
        orders = torch.stack(
            [permuted_rows(balanced_owners, seed) for seed in range(self.permutations)]
        )
        balanced_values = self.measure.compare_all(
            layers, self.blocks._replace(pairs=list(values))
        )
        return self._permuted(layers, orders, balanced_values), len(rows_of_document)

    def _signed(self, owners: Int[Tensor, " kept"], within: RowGroups) -> ValuesByPair:
        """Return the values of each pair of models under random signs, given the token.

        Entry 0 of the first axis is the value that is tested, the others those of the null; see
        `signed_similarities`.

        Args:
            owners: The document of each row, in the order of the groups.
            within: The groups of rows of one token.
        """
        similarities = [self.measure.similarities(layer) for layer in self.layers]
        device = similarities[0][0].device
        owners_by_size = list(within.blocks(owners.to(device)))
        signed = {}
        for source, target in self.blocks.pairs:
            sides = (self.blocks.models[source], self.blocks.models[target])
            signed[source, target] = signed_similarities(
                similarities, sides, owners_by_size, self.permutations
            )
        return signed

    def _permuted(
        self,
        layers: Sequence[Any],
        orders: Int[Tensor, "p n"],
        values: Mapping[Pair, Float[Tensor, "_ _"]],
    ) -> ValuesByPair:
        """Return the final value of each pair of models, and then those of all permutations.

        Args:
            layers: The prepared layers.
            orders: The order of the rows of the second model, for each permutation.
            values: What the measure says of each pair of models without a permutation.
        """
        pairs = self.blocks.pairs
        device = values[pairs[0]].device
        sources = list(dict.fromkeys(source for source, _ in pairs))
        targets = list(dict.fromkeys(target for _, target in pairs))

        # All pairs of models are compared in one call, in which a layer that several of them have
        # is moved once. Layers of sources stand first, and then those of targets, moved.
        source_layers = self._layers_of(sources)
        target_layers = self._layers_of(targets)
        models = []
        for source in sources:
            indices = [source_layers.index(layer) for layer in self.blocks.models[source]]
            models.append(tuple(indices))
        for target in targets:
            indices = [target_layers.index(layer) for layer in self.blocks.models[target]]
            models.append(tuple(len(source_layers) + index for index in indices))
        pairs_across = [
            (sources.index(source), len(sources) + targets.index(target))
            for source, target in pairs
        ]
        across = Blocks(models, pairs_across)

        by_pair: dict[Pair, list[Tensor]] = {pair: [values[pair].double()] for pair in pairs}
        unmoved = [layers[layer] for layer in source_layers]
        for order in counted(orders.to(device), "permutation"):
            moved = [self.measure.moved(layers[layer], order) for layer in target_layers]
            compared = self.measure.compare_all([*unmoved, *moved], across)
            for pair, pair_across in zip(pairs, pairs_across, strict=True):
                by_pair[pair].append(compared[pair_across].double())
        return {
            pair: self._finished(torch.stack(across_models), values, pair)
            for pair, across_models in by_pair.items()
        }

    def _layers_of(self, models: Sequence[int]) -> list[int]:
        """Return the different layers of some models, in rising order."""
        return sorted({layer for model in models for layer in self.blocks.models[model]})

    def _finished(
        self,
        across_models: Float[Tensor, "a l m"],
        values: Mapping[Pair, Float[Tensor, "_ _"]],
        pair: Pair,
    ) -> Float[Tensor, "a l m"]:
        """Return final values of the likenesses across two models.

        Only a ratio needs those within each model, which do not change with the order of the rows.

        Args:
            across_models: The likenesses across the models, of all rows and then of each
                permutation.
            values: The likenesses by pair of models without a permutation.
            pair: The two models.
        """
        if not self.measure.is_ratio:
            return across_models
        count, depth, _ = across_models.shape
        joint = joined(values, pair).double().repeat(count, 1, 1)  # (a, l + m, l + m)
        joint[:, :depth, depth:] = across_models
        return self.measure.finish(joint)[:, :depth, depth:]
