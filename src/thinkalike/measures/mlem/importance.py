"""Feature importance: the drop of held-out Spearman's ρ when a feature is permuted (Salle et al. 2024, section 4)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Annotated, Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from thinkalike.arguments import Count, Level, Repetitions, RepetitionsOrNone, Seed, Within, shown, tensor_of
from thinkalike.measures.distances.neural import NeuralDistances, upper
from thinkalike.measures.distances.ranks import levels_of, ranks_of_levels, spearman_of_patterns
from thinkalike.measures.estimates import Estimate, interval_around, jackknife, student_t
from thinkalike.measures.folds import JACKKNIFE_PARTS, numbered_by_part, splits
from thinkalike.measures.kinds import Columns, cell_numbers
from thinkalike.measures.mlem.encoding_model import MLEM, Table
from thinkalike.measures.mlem.features import FeatureEncoder
from thinkalike.measures.mlem.solver import Division, Fitted, describe
from thinkalike.measures.mlem.sums import StimulusPairs
from thinkalike.measures.sample_size import FEWEST_GROUPS, effective_number, has_interval, why_no_interval
from thinkalike.measures.seeds import seeded
from thinkalike.processes import counted

MOST = 1000  # stimuli, of whose pairs a split-half reference is computed
ROUNDING = 1e-13  # a smaller drop is 0: that of a feature of weight 0, with which null distributions tie
FeatureSet = tuple[int, ...]  # features that are permuted together


GROUPS_PER_FOLD = 2  # a feature of groups varies within a fold of two: of 8 groups in 5 folds intervals cover 83 %


def fewest_groups(folds: int) -> int:
    """Return how many groups, such as sentences, importance needs for an interval over these folds."""
    return max(FEWEST_GROUPS, GROUPS_PER_FOLD * folds)


def fold_interval(
    values: Annotated[Float[Tensor, "*b k"], Within()],
    level: Level = 0.95,
    t: Annotated[Float[Tensor, "*#b"] | None, Within(least=0, is_finite=False)] = None,
) -> Estimate:
    """Return the mean over k ≥ 2 folds, (*b), with a t interval of k - 1 degrees of freedom.

    Training sets overlap, so the variance of the mean is (1/k + 1/(k - 1)) times that of the folds (Nadeau & Bengio
    2003, eq. 8). For `t` see `jackknife`.
    """
    k = values.shape[-1]
    if k < 2:
        raise ValueError(f"values has {k} fold: an interval over folds needs two of them")
    half = (student_t(level, k - 1) if t is None else t) * values.std(-1)
    return interval_around(values.mean(-1), half * math.sqrt(1 / k + 1 / (k - 1)))


@dataclass(frozen=True, eq=False)
class Importance:
    """The held-out scores of l layers on k folds, and their drops when t sets of features are permuted r times each."""

    sets: tuple[FeatureSet, ...]  # each feature, then the requested pairs of features
    scores: Float[Tensor, "l k"]
    drops: Float[Tensor, "l k r t"]  # negative ones are kept
    null: Float[Tensor, "b l f"] | None  # importance of each feature after it was made irrelevant
    groups: int  # how many sentences or the like; see `fewest_groups`; of fewer intervals are (-∞, ∞)

    def score(self) -> Estimate:
        """Return the mean ρ of each layer, (l), with its 95 % interval over folds."""
        return self._over_folds(self.scores)

    def profile(self) -> Estimate:
        """Return the importance of each feature in each layer, (l, f): the mean drop, with its interval over folds."""
        return self._over_folds(self.by_fold())

    def by_fold(self) -> Float[Tensor, "l f k"]:
        """Return the importance of each feature in each layer on each fold."""
        return self._by_fold([each for each in self.sets if len(each) == 1])

    def pair_effects(self) -> Estimate:
        """Return S_a + S_b - S_ab - S of each pair of features, (l, pairs), S_ab the score when both move together."""
        feature_pairs = [each for each in self.sets if len(each) == 2]
        alone = [self._by_fold([(each[side],) for each in feature_pairs]) for side in (0, 1)]
        return self._over_folds(self._by_fold(feature_pairs) - alone[0] - alone[1])

    def p_values(self) -> Float[Tensor, "l f"]:
        """Return (1 + #{null ≥ importance}) / (1 + #null) of each feature; it needs null draws, such as null=199."""
        return self._share(largest=False)

    def p_of_largest(self) -> Float[Tensor, "l f"]:
        """Return the same against the largest of all layers and features in each draw (Westfall & Young 1993)."""
        return self._share(largest=True)

    def _over_folds(self, values: Float[Tensor, "*b k"]) -> Estimate:
        found = fold_interval(values)
        is_enough = self.groups >= fewest_groups(values.shape[-1])
        return found if is_enough else interval_around(found.value, torch.inf)

    def _share(self, *, largest: bool) -> Float[Tensor, "l f"]:
        if self.null is None:
            raise ValueError("there are no null draws to compare with: give feature_importance some, as null=199")
        null = self.null.amax((1, 2), keepdim=True).expand_as(self.null) if largest else self.null
        importance = self.drops.mean((1, 2))[:, : null.shape[-1]]
        share = (1 + (null >= importance - ROUNDING).sum(0)) / (1 + len(null))
        return share.where(~null.isnan().any(0), torch.nan)

    def _by_fold(self, sets: Sequence[FeatureSet]) -> Float[Tensor, "l t k"]:
        return self.drops.mean(2)[:, :, [self.sets.index(each) for each in sets]].mT


class _Fold(NamedTuple):
    train: StimulusPairs
    test: StimulusPairs
    division: Division
    orders: list[Int[Tensor, " k"]]  # of the test stimuli, one per permutation


def feature_importance(
    model: MLEM,
    X: Any,
    Y: Any,
    *,
    folds: Count = 5,
    permutations: Repetitions = 5,
    groups: Any = None,
    given: int | str | None = None,
    interactions: Sequence[tuple[int | str, int | str]] = (),
    null: RepetitionsOrNone = 0,
    seed: Seed = 0,
) -> Importance:
    """Return the importance of every feature in every layer, by cross-validation over stimuli.

    For each fold the model is fitted to the other folds, with α chosen by folds within them; then the values of a
    feature move between held-out stimuli, and all their pairs are predicted again. All layers see the same folds and
    permutations. Under recipe="paper" both are of pairs instead. If no feature has weight, the prediction is constant
    and scores 0. Fewer than `FEWEST_GROUPS` groups give no p-values, and fewer than `fewest_groups` no intervals. Each
    has a warning.

    Args:
        model, X, Y, groups: The parameters of the fits, and see `MLEM.fit`; the model itself is not changed.
        given: A feature, by number or name, within whose levels the values move: variance shared with it does not
            count, and its own importance is 0.
        interactions: Pairs (a, b) of features that are also permuted together, see `Importance.pair_effects`.
        null: Number of draws in which each feature is made irrelevant: its values move between all stimuli (within
            `given`), with `groups` between whole groups, see `regrouped`, and everything else is repeated, with f
            times the work for each draw.

    >>> features, states = np.array([[0, 0], [0, 1], [1, 0], [1, 1]] * 9), torch.randn(36, 3)
    >>> states[:, 0] += 9 * torch.tensor([0.0, 0.0, 1.0, 1.0] * 9)
    >>> int(feature_importance(MLEM(alpha=1.0), features, states).profile().value.argmax())
    0
    """
    table = model.read(X, Y, groups)
    n, f = table.values.shape
    pairs = _pairs_of_features(interactions, table.columns)
    sets = (*((feature,) for feature in range(f)), *pairs)
    given = None if given is None else table.columns.place(given, "given")
    if given is not None and table.stimulus_pairs.chosen is not None:
        raise ValueError("recipe='paper' permutes pairs, which have no strata: given needs recipe='stimuli'")
    strata = torch.zeros(n) if given is None else table.values[:, given].nan_to_num(torch.inf)
    generator = seeded(seed)
    plan: Iterable[_Fold] = _plan(model, table, folds, permutations, strata, generator, seed)
    if null:  # the ranks of held-out pairs are used many times
        plan = [fold._replace(division=fold.division._replace(parts=list(fold.division.parts))) for fold in plan]
    parts = [_drops(model, table.values, table.columns, fold, sets) for fold in counted(plan, "fold", folds)]
    describe(parts[0][0], [table.columns.label(feature) for feature in range(f)])
    scores = torch.stack([score for _, score, _ in parts], 1)
    drops = torch.stack([drop for _, _, drop in parts], 1)
    if constant := (scores == 0).any(1).nonzero().flatten().tolist():
        layers = f"layer{'s' * (len(constant) > 1)} {', '.join(map(str, constant))}"
        message = f"no feature explains the distances of {layers} in some fold: its prediction is constant and scores 0"
        warnings.warn(message, stacklevel=2)

    def irrelevant(feature: int, order: Int[Tensor, " n"]) -> Float[Tensor, " l"]:
        values = table.values.clone()
        values[:, feature] = values[order, feature]
        drawn = torch.stack([_drops(model, values, table.columns, fold, [(feature,)])[2] for fold in plan], 1)
        return drawn.mean((1, 2))[:, 0]

    groups = torch.arange(n) if table.groups is None else table.groups
    count = len(groups.unique())
    if count < fewest_groups(folds):
        lacking = "intervals and p-values" if count < FEWEST_GROUPS else "intervals"
        message = f"{count} groups are too few for {lacking}: give {fewest_groups(folds)} or more"
        warnings.warn(message, stacklevel=2)
    draws = torch.full((null, len(scores), f), torch.nan, dtype=scores.dtype)
    for number in counted(range(null) if count >= FEWEST_GROUPS else (), "null"):
        order = regrouped(strata, groups, generator)
        draws[number] = torch.stack([irrelevant(feature, order) for feature in range(f)], -1)
    return Importance(sets, scores, drops, draws if null else None, count)


def _pairs_of_features(interactions: Any, columns: Columns) -> list[FeatureSet]:
    """Return pairs of features by their numbers; a ValueError names what is no pair."""
    wrong = f"interactions={shown(interactions)} must be a list of pairs of features, by number or name, as [(0, 1)]"
    if not isinstance(interactions, list | tuple):
        raise ValueError(wrong)
    pairs: list[FeatureSet] = []
    for pair in interactions:
        names = tuple(pair) if isinstance(pair, Iterable) and not isinstance(pair, str) else ()
        is_named = all(isinstance(name, Integral | str) and not isinstance(name, bool) for name in names)
        if len(names) != 2 or not is_named:
            raise ValueError(wrong)
        first, second = (columns.place(name, "interactions") for name in names)
        if first == second:
            raise ValueError(f"interactions has {shown(pair)}, which is one feature with itself: give two features")
        if {first, second} in map(set, pairs):
            raise ValueError(f"interactions has {shown(pair)} twice: give each pair of features once")
        pairs.append((first, second))
    return pairs


def _plan(
    model: MLEM, table: Table, folds: int, permutations: int, strata: Tensor, generator: torch.Generator, seed: int
) -> Iterator[_Fold]:
    pairs = table.stimulus_pairs
    fold_of = model.folds_of(pairs, folds, seed, table.groups).to(strata.device)
    for train_units, test_units in splits(fold_of):
        train, test = pairs.part(train_units), pairs.part(test_units)
        division = model.divide(train, None if table.groups is None else table.groups[train_units])
        within = strata[test_units] if pairs.chosen is None else torch.zeros(len(test_units))
        yield _Fold(train, test, division, [_shuffled(within, generator) for _ in range(permutations)])


def _drops(
    model: MLEM, values: Float[Tensor, "n f"], columns: Columns, fold: _Fold, sets: Sequence[FeatureSet]
) -> tuple[Fitted, Float[Tensor, " l"], Float[Tensor, "l r t"]]:
    """Return the fit to a fold's training part, its score on the rest, 0 for constants, and the drops."""
    encoder = FeatureEncoder.of(values[fold.train.index], columns, model.difference, model.missing)
    features = encoder.encode_values(values)
    fitted, test = model.fit_weights(features, fold.train, fold.division), fold.test
    differences = test.differences(features)
    moved = [test.permuted(features, differences, each, order) for order in fold.orders for each in sets]
    score, *after = (each.nan_to_num(0.0) for each in test.score([differences, *moved], fitted.terms, fitted.weights))
    lost = score - torch.stack(after).view(len(fold.orders), len(sets), len(score))
    return fitted, score, torch.where(lost.abs() <= ROUNDING, 0, lost).movedim(-1, 0)


def _shuffled(strata: Float[Tensor, " n"], generator: torch.Generator) -> Int[Tensor, " n"]:
    order = torch.randperm(len(strata), generator=generator).to(strata.device)
    within = torch.empty_like(order)
    within[strata.argsort(stable=True)] = order[strata[order].argsort(stable=True)]
    return within


def regrouped(strata: Float[Tensor, " n"], groups: Int[Tensor, " n"], generator: torch.Generator) -> Int[Tensor, " n"]:
    """Return for each stimulus one whose value it takes: groups take the values of other groups, at random.

    So values stay as alike within groups as they were. Groups change places with those of about their size,
    `FEWEST_GROUPS` or more at a time, as far as there are; one takes some of the values of a larger one, and those of a
    smaller one more than once. Strata, such as parts of speech, are treated each by itself.
    """
    n, labels = len(strata), groups.unique(return_inverse=True)[1].cpu()
    sizes = torch.bincount(labels)
    alike = (sizes[:, None] > sizes).sum(1) // FEWEST_GROUPS  # how many are smaller
    places = alike.argsort(stable=True)
    labels = places.argsort()[labels]  # the smallest groups first
    ranks = (alike[places] + torch.rand(len(sizes), generator=generator, dtype=torch.float64)).argsort().argsort()
    mixed = torch.randperm(n, generator=generator)
    cells = (strata.unique(return_inverse=True)[1].cpu() * len(sizes) + labels)[mixed]
    cells, own, counts = cells.unique(return_inverse=True, return_counts=True)
    home, starts = own.argsort(stable=True), counts.cumsum(0) - counts
    own = own[home]
    takes = (cells // len(sizes) * len(sizes) + ranks[cells % len(sizes)]).argsort()[own]  # the cell that each reads
    place = (torch.arange(n) - starts[own]) % counts[takes]
    order = torch.empty_like(home)
    order[mixed[home]] = mixed[home[starts[takes] + place]]
    return order.to(strata.device)


def split_half_reference(
    cells: Any,
    layers: Sequence[Float[Tensor, "n _"]],
    distance: str = "euclidean",
    *,
    groups: Any = None,
    splits: Repetitions = 5,
    seed: Seed = 0,
) -> Estimate:
    """Return how well cells of one half of the stimuli predict distances in the other, as Spearman's ρ of each layer.

    A cell is all stimuli with the same level in each feature: no model of these features distinguishes them. Stimuli
    are divided into halves A and B. The mean squared distance of two cells in A predicts that of each pair of stimuli
    in B, with noise from few stimuli: ρ(B, A) is √r times the ρ of exact means, where the reliability r is the ρ of the
    means of both halves over the same pairs (Spearman 1904). So ρ(B, A) / √r, at most 1, is averaged over both
    directions and `splits` divisions. Pairs of cells that are missing in a half do not count.

    It is no bound: means are not the best predictors of ranks. The interval is a jackknife that leaves out a tenth of
    the groups at a time. It is (-∞, ∞), and a warning says why, if these are worth fewer than `FEWEST_GROUPS` of equal
    size, or if a layer has no reference without some tenth.

    Args:
        cells: (n), the cell of each stimulus, or (n, f), a table of features as `MLEM.fit` takes.
        layers: States (n, d) of each layer; a random 1,000 of more stimuli are used.
        groups: (n), such as sentences; the stimuli of a group are in the same half. By default each is its own group.

    Raises:
        ValueError: Of a layer fewer than two pairs of cells are in both halves, they are all equally far, or they are
            noise; the message says which layer.
    """
    if not len(layers):
        raise ValueError("layers is empty: give the states of one layer or more")
    draw, numbers = seeded(seed), cell_numbers(cells, "cells")
    owners = torch.arange(len(layers[0])) if groups is None else tensor_of(groups, Int, "groups").cpu()
    for name, each in {"cells": numbers, "groups": owners}.items():
        if each.shape != (len(layers[0]),):
            raise ValueError(f"{name} has shape {tuple(each.shape)}: give one for each of {len(layers[0])} stimuli")
    rows = torch.randperm(len(numbers), generator=draw)[:MOST].sort().values
    owners, numbers = owners[rows].unique(return_inverse=True)[1], numbers[rows].unique(return_inverse=True)[1]
    distances = [NeuralDistances.of(torch.as_tensor(layer).cpu(), distance).take(rows) for layer in layers]
    part_of = numbered_by_part(owners)
    kept = torch.stack(
        [part_of % JACKKNIFE_PARTS != part for part in range(-1, min(JACKKNIFE_PARTS, int(owners.max()) + 1))]
    )
    found = []
    for _ in counted(range(splits), "division for split-half references"):
        side = torch.randperm(int(owners.max()) + 1, generator=draw)[owners] % 2
        found.append(torch.stack([_references(each, numbers, side, kept) for each in distances], 1))
    values = torch.stack(found).mean(0)
    for place, value in enumerate(values[0]):
        if value.isnan():
            raise ValueError(f"layers[{place}]: {_why_no_reference(distances[place], numbers)}")

    group_sizes = owners.unique(return_counts=True)[1]
    worth = effective_number(group_sizes)
    if not has_interval(worth):
        unit = "stimuli" if groups is None else "groups"
        warnings.warn(why_no_interval(worth, len(group_sizes), unit), stacklevel=2)
        return interval_around(values[0], math.inf)

    is_known = values.isfinite().all(0)
    ends = jackknife(values[0], values[1:].nan_to_num(0.0))
    if not is_known.all():
        places = ", ".join(f"layers[{place}]" for place in (~is_known).nonzero()[:, 0].tolist())
        warnings.warn(
            f"no intervals of {places}: without some tenth of the stimuli no pairs of cells in both halves have "
            "reliable distances; give more stimuli of each cell",
            stacklevel=2,
        )
    return Estimate(ends.value, ends.low.where(is_known, -math.inf), ends.high.where(is_known, math.inf))


def _why_no_reference(distances: NeuralDistances, cells: Int[Tensor, " n"]) -> str:
    """Return why the distances of a layer have no split-half reference, and what to give instead."""
    squared = distances.vector()
    if squared.max() <= squared.min():
        return "all distances are equal, so no cell is nearer than another; leave the layer out"
    if len(cells.unique()) < 2:
        return "all stimuli are of one cell, so there is no pair of cells; give features that vary"
    return "no pairs of cells in both halves have reliable distances; give more stimuli of each cell"


def _references(
    distances: NeuralDistances, cells: Int[Tensor, " n"], side: Int[Tensor, " n"], kept: Bool[Tensor, "m n"]
) -> Float[Tensor, " m"]:
    """Return the mean of ρ(B, A) / √r over both directions, for each set of stimuli that are kept."""
    halves, size = [], int(cells.max()) + 1
    for half in (0, 1):
        rows = (side == half).nonzero()[:, 0]
        pairs, squared = upper(len(rows)), distances.take(rows).vector()
        left, right = rows[pairs // len(rows)], rows[pairs % len(rows)]
        ends = torch.stack([cells[left], cells[right]])
        levels = levels_of(squared)
        halves.append((squared, levels, ends.amin(0) * size + ends.amax(0), kept[:, left] & kept[:, right]))
    return torch.stack([_reference([(*half, some[k]) for *half, some in halves], size**2) for k in range(len(kept))])


def _reference(halves: Sequence[tuple[Tensor, ...]], size: int) -> Float[Tensor, ""]:
    """Return the mean of ρ(B, A) / √r over both directions, NaN if r is not above 0.

    Halves have the squared distances of pairs, their levels, the pair of cells of each below `size`, and which count.
    """
    counts = torch.stack([torch.bincount(codes, weights.double(), size) for *_, codes, weights in halves])
    sums = torch.stack([torch.bincount(codes, weights * squared, size) for squared, _, codes, weights in halves])
    known = (counts > 0).all(0)
    means, found = (sums / counts)[:, known], []
    for half, (_, levels, codes, weights) in enumerate(halves):
        number, weights = counts[half, known], (weights & known[codes]).double()
        ranks = ranks_of_levels(levels, weights) - (number.sum() + 1) / 2
        of_cells = torch.bincount(codes, weights * ranks, size)[known] / (weights @ ranks.square()).sqrt()
        order = number * (ranks_of_levels(levels_of(means[half]), number) - (number.sum() + 1) / 2)
        of_means = order / (order.square() / number).sum().sqrt()
        predicted = means[1 - half].expand(2, -1)
        score, reliability = spearman_of_patterns(predicted, number, torch.stack([of_cells, of_means]))
        found.append((score / reliability.where(reliability > 0, torch.nan).sqrt()).clamp(max=1))
    return torch.stack(found).mean()
