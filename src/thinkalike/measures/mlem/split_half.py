"""How well any model of some features could do: one half of the stimuli predicts the other."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from thinkalike.arguments import Repetitions, Seed, tensor_of
from thinkalike.measures.distances.neural import NeuralDistances, upper_triangle_indices
from thinkalike.measures.distances.ranks import levels_of, ranks_of_levels, spearman_of_patterns
from thinkalike.measures.estimates import Estimate, interval_around, jackknife
from thinkalike.measures.folds import JACKKNIFE_PARTS, numbered_by_part
from thinkalike.measures.kinds import cell_numbers
from thinkalike.measures.sample_size import effective_number, has_interval, why_no_interval
from thinkalike.measures.seeds import seeded
from thinkalike.processes import counted

# A split-half reference is computed from the pairs of at most this many stimuli.
MOST_STIMULI = 1000


def split_half_reference(
    cells: object,
    layers: Sequence[Float[Tensor, "n _"]],
    distance: str = "euclidean",
    *,
    groups: object = None,
    splits: Repetitions = 5,
    seed: Seed = 0,
) -> Estimate:
    """Return how well cells of one half of the stimuli predict distances in the other half.

    It is Spearman's ρ of each layer. A cell is all stimuli with the same level in each feature: no
    model of these features distinguishes them. Stimuli are divided into halves A and B. The mean
    squared distance of two cells in A predicts that of each pair of stimuli in B, with noise from
    few stimuli: ρ(B, A) is √r times the ρ of exact means, where the reliability r is the ρ of the
    means of both halves over the same pairs (Spearman 1904). So ρ(B, A) / √r, at most 1, is
    averaged over both directions and `splits` divisions. Pairs of cells that are missing in a half
    do not count.

    It is no bound: means are not the best predictors of ranks. The interval is a jackknife that
    leaves out a tenth of the groups at a time. It is (-∞, ∞), and a warning says why, if these are
    worth fewer than `FEWEST_GROUPS` of equal size, or if a layer has no reference without some
    tenth.

    Args:
        cells: (n), the cell of each stimulus, or (n, f), a table of features as `MLEM.fit` takes.
        layers: States (n, d) of each layer; a random 1,000 of more stimuli are used.
        distance: See `NeuralDistances`.
        groups: (n), such as sentences; the stimuli of a group are in the same half. By default
            each is its own group.
        splits: How many divisions into halves there are.
        seed: Their seed.

    Raises:
        ValueError: Of a layer fewer than two pairs of cells are in both halves, they are all
            equally far, or they are noise; the message says which layer.
    """
    if not len(layers):
        raise ValueError("layers is empty: give the states of one layer or more")
    stimulus_count = len(layers[0])
    cell_of = cell_numbers(cells, "cells")
    group_of = torch.arange(stimulus_count)
    if groups is not None:
        group_of = tensor_of(groups, Int, "groups").cpu()
    for name, numbers in {"cells": cell_of, "groups": group_of}.items():
        if numbers.shape != (stimulus_count,):
            raise ValueError(
                f"{name} has shape {tuple(numbers.shape)}: "
                f"give one for each of {stimulus_count} stimuli"
            )

    generator = seeded(seed)
    stimuli = torch.randperm(stimulus_count, generator=generator)[:MOST_STIMULI].sort().values
    _, group_of = group_of[stimuli].unique(return_inverse=True)
    _, cell_of = cell_of[stimuli].unique(return_inverse=True)
    distances = []
    for layer in layers:
        distances_of_layer = NeuralDistances.of(torch.as_tensor(layer).cpu(), distance)
        distances.append(distances_of_layer.take(stimuli))

    # All stimuli, and those without each part of the groups in turn.
    group_count = int(group_of.max()) + 1
    part_of = numbered_by_part(group_of) % JACKKNIFE_PARTS
    part_count = min(JACKKNIFE_PARTS, group_count)
    without_parts = [part_of != part_number for part_number in range(part_count)]
    remaining = torch.stack([torch.ones_like(without_parts[0]), *without_parts])

    references_of_divisions = []
    for _ in counted(range(splits), "division for split-half references"):
        half_of_group = torch.randperm(group_count, generator=generator) % 2
        half = half_of_group[group_of]
        references_of_layers = [
            _references_of_layer(layer, cell_of, half, remaining) for layer in distances
        ]
        references_of_divisions.append(torch.stack(references_of_layers, 1))
    values = torch.stack(references_of_divisions).mean(0)  # (1 + parts, l)
    for index, value in enumerate(values[0]):
        if value.isnan():
            reason = _why_no_reference(distances[index], cell_of)
            raise ValueError(f"layers[{index}]: {reason}")

    _, group_sizes = group_of.unique(return_counts=True)
    effective_count = effective_number(group_sizes)
    if not has_interval(effective_count):
        unit = "stimuli" if groups is None else "groups"
        warnings.warn(why_no_interval(effective_count, len(group_sizes), unit), stacklevel=2)
        return interval_around(values[0], math.inf)

    is_known = values.isfinite().all(0)
    estimate = jackknife(values[0], values[1:].nan_to_num(0.0))
    if not is_known.all():
        unknown = (~is_known).nonzero()[:, 0].tolist()
        names = ", ".join(f"layers[{index}]" for index in unknown)
        warnings.warn(
            f"no intervals of {names}: without some tenth of the stimuli no pairs of cells in "
            "both "
            "halves have reliable distances; give more stimuli of each cell",
            stacklevel=2,
        )
    low = estimate.low.where(is_known, -math.inf)
    high = estimate.high.where(is_known, math.inf)
    return Estimate(estimate.value, low, high)


def _why_no_reference(distances: NeuralDistances, cells: Int[Tensor, " n"]) -> str:
    """Return for users why a layer has no split-half reference, and what to do.

    Args:
        distances: The distances of the stimuli in the layer.
        cells: The cell of each stimulus, its combination of levels of all features.
    """
    squared = distances.vector()
    if squared.max() <= squared.min():
        return "all distances are equal, so no cell is nearer than another; leave the layer out"
    if len(cells.unique()) < 2:
        return "all stimuli are of one cell, so there is no pair of cells; give features that vary"
    return (
        "no pairs of cells in both halves have reliable distances; give more stimuli of each cell"
    )


class _HalfPairs(NamedTuple):
    """The p pairs of stimuli of one half.

    Attributes:
        squared: Their squared distances.
        levels: Whole numbers from 0 in the order of the distances, equal for equal ones.
        cell_pairs: The pair of cells of each, as one number.
        is_remaining: Whether both stimuli of a pair are in each of m sets of stimuli.
    """

    squared: Float[Tensor, " p"]
    levels: Int[Tensor, " p"]
    cell_pairs: Int[Tensor, " p"]
    is_remaining: Bool[Tensor, "m p"]


def _references_of_layer(
    distances: NeuralDistances,
    cells: Int[Tensor, " n"],
    half: Int[Tensor, " n"],
    remaining: Bool[Tensor, "m n"],
) -> Float[Tensor, " m"]:
    """Return how well half of the stimuli predicts distances in the other half, in one layer.

    Stimuli with the same level in every feature are one cell. ρ(B, A) is Spearman's correlation,
    over pairs of stimuli in half B, of their distance and the mean distance in half A between
    stimuli of the same two cells. The reference is the mean of ρ(B, A) / √r and ρ(A, B) / √r, with
    r the reliability of the mean distances, their ρ in both halves. It is computed for each of m
    sets of stimuli, and is NaN for a set with r ≤ 0.

    Args:
        distances: The distances of the n stimuli in the layer.
        cells: The cell of each stimulus, as a number from 0.
        half: The half of each stimulus, 0 or 1.
        remaining: Which stimuli each set has, such as all and those without a part.
    """
    cell_count = int(cells.max()) + 1
    halves = []
    for half_number in (0, 1):
        stimuli = (half == half_number).nonzero()[:, 0]
        squared_distances = distances.take(stimuli).vector()  # of all pairs of the half
        pair_indices = upper_triangle_indices(len(stimuli))  # i n + j for i < j
        first = stimuli[pair_indices // len(stimuli)]
        second = stimuli[pair_indices % len(stimuli)]
        # One number for the two cells of a pair of stimuli, the same for both orders.
        cells_of_pair = torch.stack([cells[first], cells[second]])
        cell_pairs = cells_of_pair.amin(0) * cell_count + cells_of_pair.amax(0)
        is_remaining = remaining[:, first] & remaining[:, second]  # in each set
        levels = levels_of(squared_distances)  # whole numbers in the order of the distances
        halves.append(_HalfPairs(squared_distances, levels, cell_pairs, is_remaining))
    references = []
    for set_number in range(len(remaining)):
        references.append(_reference_of_set(halves, set_number, cell_pair_count=cell_count**2))
    return torch.stack(references)


def _reference_of_set(
    halves: Sequence[_HalfPairs], set_number: int, cell_pair_count: int
) -> Float[Tensor, ""]:
    """Return the mean of ρ(B, A) / √r over both directions for one set of stimuli.

    It is NaN if r is not above 0.

    Args:
        halves: The pairs of both halves.
        set_number: The index of the set of stimuli that count.
        cell_pair_count: One more than the largest number that a pair of cells may have.
    """
    counts_of_halves = []
    sums_of_halves = []
    for half in halves:
        counted_pairs = half.is_remaining[set_number]
        counts_of_halves.append(
            torch.bincount(half.cell_pairs, counted_pairs.double(), cell_pair_count)
        )
        sums_of_halves.append(
            torch.bincount(half.cell_pairs, counted_pairs * half.squared, cell_pair_count)
        )
    counts = torch.stack(counts_of_halves)
    is_in_both = (counts > 0).all(0)
    means = (torch.stack(sums_of_halves) / counts)[:, is_in_both]

    references = []
    for number, half in enumerate(halves):
        pair_counts = counts[number, is_in_both]
        middle_rank = (pair_counts.sum() + 1) / 2
        weights = (half.is_remaining[set_number] & is_in_both[half.cell_pairs]).double()

        # Sums over each pair of cells of the unit ranks of the distances of stimuli, ...
        ranks = ranks_of_levels(half.levels, weights) - middle_rank
        rank_sums = torch.bincount(half.cell_pairs, weights * ranks, cell_pair_count)
        distance_ranks = rank_sums[is_in_both] / (weights @ ranks.square()).sqrt()
        # ... and of those of the means of cells.
        mean_levels = levels_of(means[number])
        mean_sums = pair_counts * (ranks_of_levels(mean_levels, pair_counts) - middle_rank)
        mean_ranks = mean_sums / (mean_sums.square() / pair_counts).sum().sqrt()

        predicted = means[1 - number].expand(2, -1)
        targets = torch.stack([distance_ranks, mean_ranks])
        score, reliability = spearman_of_patterns(predicted, pair_counts, targets)
        root = reliability.where(reliability > 0, torch.nan).sqrt()
        references.append((score / root).clamp(max=1))
    return torch.stack(references).mean()
