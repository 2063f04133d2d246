"""Feature importance: the drop of held-out ρ when a feature is permuted (Salle et al. 2024)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Annotated, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from thinkalike.arguments import (
    Count,
    Level,
    Repetitions,
    RepetitionsOrNone,
    Seed,
    Within,
    check_rows,
    shown,
    tensor_of,
)
from thinkalike.measures.estimates import Estimate, interval_around, student_t
from thinkalike.measures.folds import check_groups, splits
from thinkalike.measures.kinds import FeatureColumns
from thinkalike.measures.mlem.encoding_model import MLEM, StimulusTable
from thinkalike.measures.mlem.features import FeatureEncoder
from thinkalike.measures.mlem.solver import Division, FittedWeights, feature_correlations
from thinkalike.measures.mlem.stimulus_pairs import StimulusPairs
from thinkalike.measures.sample_size import FEWEST_GROUPS
from thinkalike.measures.seeds import seeded
from thinkalike.processes import counted

# A smaller drop is 0: that of a feature of weight 0, with which null distributions tie.
DROP_ROUNDING = 1e-13

# A feature of groups varies within a fold of two groups: of 8 groups in 5 folds intervals cover
# 83 %.
GROUPS_PER_FOLD = 2


class NothingToPermuteError(ValueError):
    """No feature varies within the levels of the feature that importance is conditional on."""


# Features that are permuted together.
FeatureSet = tuple[int, ...]


def fewest_groups_for_intervals(folds: int) -> int:
    """Return how many groups, such as sentences, an interval over this many folds needs."""
    return max(FEWEST_GROUPS, GROUPS_PER_FOLD * folds)


def fold_interval(
    values: Annotated[Float[Tensor, "*b k"], Within()],
    level: Level = 0.95,
    t: Annotated[Float[Tensor, "*#b"] | None, Within(least=0, allows_infinity=True)] = None,
) -> Estimate:
    """Return the mean over k ≥ 2 folds, (*b), with a t interval of k - 1 degrees of freedom.

    The training sets of the folds overlap, so the values of folds are not independent. The
    variance of their mean is taken as (1/k + 1/(k - 1)) times the variance of values between folds
    (Nadeau & Bengio 2003, eq. 8).

    Args:
        values: The value on each fold, in the last axis.
        level: The probability with which the interval covers the mean.
        t: Half the width of the interval in standard errors, if it is not to follow from the
            level; None: Student's quantile for the level.

    Raises:
        ValueError: There is a single fold.
    """
    k = values.shape[-1]
    if k < 2:
        raise ValueError(f"values has {k} fold: an interval over folds needs two of them")
    quantile = student_t(level, k - 1) if t is None else t
    # The standard error of the mean is the standard deviation times this factor.
    factor = math.sqrt(1 / k + 1 / (k - 1))
    return interval_around(values.mean(-1), quantile * values.std(-1) * factor)


class GroupChance(NamedTuple):
    """The scores and importances after all features of groups moved together to other groups.

    Neither is 0 by chance if groups have several stimuli. Stimuli of one group are alike, and a
    feature of groups differs between groups alone, so that any such feature predicts which pairs
    are close. The fewer the groups, the larger is the share of pairs within one.

    Attributes:
        scores: The score of each of l layers in each of b draws.
        importances: The importance of each of f features, likewise; NaN for a feature that no
            permutation can change.
    """

    scores: Float[Tensor, "b l"]
    importances: Float[Tensor, "b l f"]


@dataclass(frozen=True, eq=False)
class Importance:
    """The held-out scores of l layers on k folds, and their drops when features are permuted.

    Attributes:
        sets: What is permuted: each of f features, then the requested pairs of features.
        scores: The score, Spearman's ρ, of each layer on each fold.
        drops: The drop of the score for each of t sets, r times; negative ones are kept. It is NaN
            for a feature that no permutation can change.
        null: In each of b draws, the importance of each feature after it was made irrelevant; NaN
            where groups are too few or no draw changes a feature, None if there were no draws.
        groups: How many sentences or the like there are. With fewer than
            `fewest_groups_for_intervals`, all intervals are (-∞, ∞).
        movable: In how many stimuli a permutation can change each feature, given the feature that
            importance is conditional on; None without such a condition.
        chance: The scores and importances after all features were made irrelevant; None if there
            were no such draws.
    """

    sets: tuple[FeatureSet, ...]
    scores: Float[Tensor, "l k"]
    drops: Float[Tensor, "l k r t"]
    null: Float[Tensor, "b l f"] | None
    groups: int
    movable: Int[Tensor, " f"] | None = None
    chance: GroupChance | None = None

    def score(self) -> Estimate:
        """Return the mean ρ of each layer, (l), with its 95 % interval over folds."""
        return self._over_folds(self.scores)

    def profile(self) -> Estimate:
        """Return the importance of each feature in each layer, (l, f), with its interval.

        It is the mean drop of the score over folds and permutations. It is NaN for a feature that
        no permutation can change: one that is constant within each level of the feature that
        importance is conditional on.
        """
        return self._over_folds(self.by_fold())

    def by_fold(self) -> Float[Tensor, "l f k"]:
        """Return the importance of each feature in each layer on each fold."""
        return self._drops_by_fold([features for features in self.sets if len(features) == 1])

    def pair_effects(self) -> Estimate:
        """Return how two features interact in each layer, for each requested pair, (l, pairs).

        It is S_a + S_b - S_ab - S, with S the held-out score, S_a the score with feature a
        permuted, and S_ab that with both permuted together. In terms of how much the score drops,
        this is drop(ab) - drop(a) - drop(b).
        """
        pairs = [features for features in self.sets if len(features) == 2]
        both = self._drops_by_fold(pairs)
        first_alone = self._drops_by_fold([(first,) for first, _ in pairs])
        second_alone = self._drops_by_fold([(second,) for _, second in pairs])
        return self._over_folds(both - first_alone - second_alone)

    def p_values(self) -> Float[Tensor, "l f"]:
        """Return the p-value of the importance of each feature in each layer.

        It is (1 + #{null ≥ importance}) / (1 + #null), with the null draws, the importances of the
        feature in the layer after it was made irrelevant. It is NaN if there were too few groups
        of stimuli for null draws, and for a feature that no permutation or no draw changes.

        Raises:
            ValueError: There are no null draws; null=199, for instance, asks for 199 of them.
        """
        return self._p_values_against_null(largest=False)

    def p_of_largest(self) -> Float[Tensor, "l f"]:
        """Return p-values that are corrected for the number of layers and features.

        Each importance is compared with the largest one of all layers and features in each null
        draw (Westfall & Young 1993).

        Raises:
            ValueError: There are no null draws.
        """
        return self._p_values_against_null(largest=True)

    def _over_folds(self, values: Float[Tensor, "*b k"]) -> Estimate:
        """Return the mean over the k folds of the last axis, with a 95 % interval.

        It is (-∞, ∞) if there are fewer groups of stimuli than `fewest_groups_for_intervals`. The
        mean and the interval are NaN where a value is.
        """
        is_missing = values.isnan().any(-1)
        estimate = fold_interval(values.nan_to_num(0.0))
        if self.groups < fewest_groups_for_intervals(values.shape[-1]):
            estimate = interval_around(estimate.value, torch.inf)
        return Estimate(*(part.where(~is_missing, torch.nan) for part in estimate))

    def _p_values_against_null(self, *, largest: bool) -> Float[Tensor, "l f"]:
        """Return the p-value (1 + #{null ≥ importance}) / (1 + #null) of each feature and layer.

        It is NaN where the null is, because groups are too few or no draw changes the feature.

        Args:
            largest: Whether the null is the largest importance of all layers and features in a
                draw, instead of that of the same layer and feature.

        Raises:
            ValueError: There are no null draws.
        """
        if self.null is None:
            raise ValueError(
                "there are no null draws to compare with: "
                "give feature_importance some, as null=199"
            )
        null = self.null  # (draws, l, f)
        is_untested = null.isnan().any(0)
        if largest:
            tested = null.where(~is_untested, -torch.inf)
            null = tested.amax((1, 2), keepdim=True).expand_as(null)
        drops = self.drops.mean((1, 2))  # over folds and permutations, (l, sets of features)
        feature_count = null.shape[-1]
        importance = drops[:, :feature_count]  # single features are the first sets
        # A null draw that is below the importance by rounding alone reaches it as well.
        reaching = (null >= importance - DROP_ROUNDING).sum(0)
        p = (1 + reaching) / (1 + len(null))
        return p.where(~is_untested, torch.nan)

    def _drops_by_fold(self, sets: Sequence[FeatureSet]) -> Float[Tensor, "l t k"]:
        """Return how much the score drops when a set of features is permuted, in each fold.

        It is the mean over permutations, for each of l layers, t sets and k folds.

        Args:
            sets: The sets of features to return, each of them one of `self.sets`.
        """
        indices = [self.sets.index(features) for features in sets]
        mean_drops = self.drops.mean(2)  # over permutations, (l, k, all sets)
        return mean_drops[:, :, indices].mT


class _HeldOutFold(NamedTuple):
    """One fold of the cross-validation.

    Attributes:
        train, test: The pairs to fit on, and the held-out ones.
        division: The inner folds that choose alpha.
        orders: The order of the test stimuli in each permutation.
    """

    train: StimulusPairs
    test: StimulusPairs
    division: Division
    orders: list[Int[Tensor, " k"]]


def feature_importance(
    model: MLEM,
    X: object,
    Y: object,
    *,
    folds: Count = 5,
    permutations: Repetitions = 5,
    groups: object = None,
    texts: object = None,
    conditional_on: int | str | None = None,
    interactions: Sequence[tuple[int | str, int | str]] = (),
    null: RepetitionsOrNone = 0,
    chance: RepetitionsOrNone = 0,
    seed: Seed = 0,
) -> Importance:
    """Return the importance of every feature in every layer, by cross-validation over stimuli.

    For each fold the model is fitted to the other folds, with α chosen by folds within them; then
    the values of a feature move between held-out stimuli, and all their pairs are predicted again.
    All layers see the same folds and permutations. Under recipe="paper" both are of pairs instead.
    If no feature has weight, the prediction is constant and scores 0. Fewer than `FEWEST_GROUPS`
    groups give no p-values, and fewer than `fewest_groups_for_intervals` no intervals. Each has a
    warning.

    Args:
        model: The parameters of the fits; the model itself is not changed.
        X, Y, groups: See `MLEM.fit`.
        texts: The number of each stimulus's text, if groups are something else, such as all
            stimuli of one word. A feature that is constant in each text, and not in each group,
            moves between whole texts in the null.
        folds: How many folds there are.
        permutations: How often features are permuted in each fold.
        conditional_on: A feature, by number or name, within whose levels the values move: variance
            shared with it does not count. What is constant within each level cannot move, as this
            feature itself. So its importance is unknown, NaN, and a warning names it. If a feature
            varies within some levels only, `Importance.movable` says in how many stimuli it can
            move; the fewer, the smaller its importance.
        interactions: Pairs (a, b) of features that are also permuted together, see
            `Importance.pair_effects`.
        null: The number of draws in which each feature is made irrelevant: its values move between
            all stimuli (within `conditional_on`), with `groups` between whole groups, see
            `regrouped`, and everything else is repeated, with f times the work for each draw.
        chance: The number of draws in which all features are made irrelevant at once, in the same
            way, see `GroupChance`. There are none with fewer than `FEWEST_GROUPS` groups.
        seed: The seed of folds, permutations and draws.

    Raises:
        NothingToPermuteError: No feature varies within the levels of `conditional_on`.
        ValueError: The data do not fit together, or a feature is unknown.

    >>> features, states = np.array([[0, 0], [0, 1], [1, 0], [1, 1]] * 9), torch.randn(36, 3)
    >>> states[:, 0] += 9 * torch.tensor([0.0, 0.0, 1.0, 1.0] * 9)
    >>> int(feature_importance(MLEM(alpha=1.0), features, states).profile().value.argmax())
    0
    """
    check_rows([("X", X), ("texts", texts)])
    table = model.read(X, Y, groups)
    n, f = table.values.shape
    pairs = _pairs_of_features(interactions, table.columns)
    sets = (*((feature,) for feature in range(f)), *pairs)
    strata = torch.zeros(n)
    if conditional_on is not None:
        given_feature = table.columns.index_of(conditional_on, "conditional_on")
        if table.stimulus_pairs.folds_divide_pairs:
            raise ValueError(
                "recipe='paper' permutes pairs, which have no strata: "
                "conditional_on needs recipe='stimuli'"
            )
        strata = table.values[:, given_feature].nan_to_num(torch.inf)
    fold_of = model.folds_of(table.stimulus_pairs, folds, seed, table.groups).to(strata.device)
    movable = None
    if conditional_on is not None:
        movable = _movable_stimuli(table.values, strata, fold_of)
        _check_what_moves(movable, table, strata, given_feature)
    generator = seeded(seed)
    held_out_folds: Iterable[_HeldOutFold] = _held_out_folds(
        model, table, fold_of, permutations, strata, generator
    )
    if null or chance:  # the ranks of held-out pairs are used many times
        held_out_folds = [_with_inner_folds_in_memory(fold) for fold in held_out_folds]

    scores_of_folds: list[Tensor] = []
    drops_of_folds: list[Tensor] = []
    for fold in counted(held_out_folds, "fold", folds):
        scored = _fit_and_score(model, table.values, table.columns, fold, sets)
        if not scores_of_folds:
            first_fit = scored.fitted
        scores_of_folds.append(scored.scores)
        drops_of_folds.append(scored.drops)
    feature_correlations(first_fit, [table.columns.label(feature) for feature in range(f)])
    all_scores = torch.stack(scores_of_folds, 1)  # (l, k)
    all_drops = torch.stack(drops_of_folds, 1)  # (l, k, r, t)
    if movable is not None:
        all_drops[..., :f] = all_drops[..., :f].where(movable.to(all_drops.device) > 0, torch.nan)
    constant = (all_scores == 0).any(1).nonzero().flatten().tolist()
    if constant:
        plural = "s" if len(constant) > 1 else ""
        warnings.warn(
            f"no feature explains the distances of layer{plural} {', '.join(map(str, constant))} "
            "in some fold: its prediction is constant and scores 0",
            stacklevel=2,
        )

    group_of = torch.arange(n) if table.groups is None else table.groups
    group_count = len(group_of.unique())
    fewest = fewest_groups_for_intervals(folds)
    if group_count < fewest:
        lacking = "intervals and p-values" if group_count < FEWEST_GROUPS else "intervals"
        warnings.warn(
            f"{group_count} groups are too few for {lacking}: give {fewest} or more",
            stacklevel=2,
        )
    draws = None
    moves_by_text = torch.zeros(f, dtype=torch.bool)
    text_of: Tensor | None = None
    if texts is not None:
        text_of = tensor_of(texts, Int, "texts").cpu()
        check_groups(text_of, len(X), "texts")  # type: ignore[arg-type]  # `read` has checked X
        text_of = text_of[table.rows.cpu()]
        is_constant_in_texts = _is_constant_in_each(text_of, table.values)
        moves_by_text = is_constant_in_texts & ~_is_constant_in_each(group_of, table.values)
    if null:
        draws = torch.full((null, len(all_scores), f), torch.nan, dtype=all_scores.dtype)
        codes = table.values.nan_to_num(torch.inf)  # missing values are one value
        is_changed = torch.zeros(f, dtype=torch.bool)  # by a draw
        if group_count >= FEWEST_GROUPS:
            for number in counted(range(null), "null"):
                order = regrouped(strata, group_of, generator)
                order_by_text = order
                if text_of is not None and moves_by_text.any():
                    order_by_text = regrouped(strata, text_of, generator)
                for feature in range(f):
                    if movable is not None and movable[feature] == 0:
                        continue
                    order_of_feature = order_by_text if moves_by_text[feature] else order
                    codes_of_feature = codes[:, feature]
                    if not torch.equal(codes_of_feature[order_of_feature], codes_of_feature):
                        is_changed[feature] = True
                    importance = _importance_of_exchanged_feature(
                        model, table, held_out_folds, feature, order_of_feature
                    )
                    draws[number, :, feature] = importance
        if movable is not None:
            draws[:, :, ~is_changed] = torch.nan
    by_chance = None
    if chance and group_count >= FEWEST_GROUPS:
        by_chance = _by_chance(
            model, table, held_out_folds, strata, group_of, sets[:f], chance, generator
        )
        if movable is not None:
            by_chance.importances[:, :, movable == 0] = torch.nan
    return Importance(sets, all_scores, all_drops, draws, group_count, movable, by_chance)


def _movable_stimuli(
    values: Float[Tensor, "n f"], strata: Float[Tensor, " n"], fold_of: Int[Tensor, " n"]
) -> Int[Tensor, " f"]:
    """Return in how many stimuli a permutation of held-out stimuli can change each feature.

    A stimulus takes the value of one of the same stratum and fold, so these have to differ.
    """
    _, stratum = strata.unique(return_inverse=True)
    cells = stratum * (int(fold_of.max()) + 1) + fold_of
    return _differs_in_each(cells, values).sum(0)


def _check_what_moves(
    movable: Int[Tensor, " f"],
    table: StimulusTable,
    strata: Float[Tensor, " n"],
    given_feature: int,
) -> None:
    """Warn of features that no permutation within strata can change.

    Args:
        movable: In how many stimuli each feature can change.
        table: The data.
        strata: The level of the feature that importance is conditional on, of each stimulus.
        given_feature: The index of that feature, which is constant in each level itself.

    Raises:
        NothingToPermuteError: No feature can change.
    """
    given = table.columns.label(given_feature)
    if not movable.any():
        level_count = len(strata.unique())
        raise NothingToPermuteError(
            f"conditional_on={given}: no feature varies between held-out stimuli of one level of "
            f"{given} ({level_count} levels of {len(strata)} stimuli), so that none can be "
            "permuted; name a feature of fewer levels, or leave out conditional_on"
        )
    is_constant = _is_constant_in_each(strata, table.values)
    constant: list[str] = []
    varying_between_folds: list[str] = []
    for feature in (movable == 0).nonzero().flatten().tolist():
        if feature == given_feature:
            continue
        labels = constant if is_constant[feature] else varying_between_folds
        labels.append(table.columns.label(feature))
    if constant:
        warnings.warn(
            f"cannot be told from {given}: features {', '.join(constant)}, which are constant "
            "within each level: their importance is missing",
            stacklevel=3,
        )
    if varying_between_folds:
        warnings.warn(
            f"cannot be permuted: features {', '.join(varying_between_folds)}, in which no "
            f"held-out stimuli of one level of {given} differ in any fold: their importance is "
            "missing",
            stacklevel=3,
        )


def _is_constant_in_each(
    groups: Shaped[Tensor, " n"], values: Float[Tensor, "n f"]
) -> Bool[Tensor, " f"]:
    """Return for each feature whether all stimuli of one group have the same value.

    Missing values count as one value.
    """
    return ~_differs_in_each(groups, values).any(0)


def _differs_in_each(
    groups: Shaped[Tensor, " n"], values: Float[Tensor, "n f"]
) -> Bool[Tensor, "n f"]:
    """Return for each stimulus and feature whether the stimuli of its group differ in the feature.

    Missing values count as one value.
    """
    _, first_of_group, group_of = np.unique(
        groups.cpu().numpy(), return_index=True, return_inverse=True
    )
    numbers = values.cpu().nan_to_num(torch.inf)
    differs_from_first = numbers != numbers[torch.from_numpy(first_of_group[group_of])]
    group_numbers = torch.from_numpy(group_of)
    differing = torch.zeros(len(first_of_group), values.shape[1], dtype=torch.int64)
    differing.index_add_(0, group_numbers, differs_from_first.long())
    return differing[group_numbers] > 0


def _with_inner_folds_in_memory(fold: _HeldOutFold) -> _HeldOutFold:
    """Return a fold whose inner folds are a list and no iterator, so that fits can reuse them."""
    division = fold.division._replace(pairs_of_folds=list(fold.division.pairs_of_folds))
    return fold._replace(division=division)


def _importance_of_exchanged_feature(
    model: MLEM,
    table: StimulusTable,
    held_out_folds: Iterable[_HeldOutFold],
    feature: int,
    order: Int[Tensor, " n"],
) -> Float[Tensor, " l"]:
    """Return the importance of a feature in each layer if its values are exchanged before fitting.

    Importance is how much the held-out score drops if the feature is permuted after the fit, mean
    over folds and permutations. The exchange before the fit makes the feature irrelevant, so this
    is one draw of the null.

    Args:
        model: The parameters of the fits.
        table: The data; they are not changed.
        held_out_folds: The folds of the cross-validation.
        feature: The index of the feature.
        order: For each stimulus, the index of the one whose value it takes.
    """
    values = table.values.clone()
    values[:, feature] = values[order, feature]
    drops_of_folds = []
    for fold in held_out_folds:
        scored = _fit_and_score(model, values, table.columns, fold, [(feature,)])
        drops_of_folds.append(scored.drops)
    all_drops = torch.stack(drops_of_folds, 1)  # (layer, fold, permutation, 1)
    return all_drops.mean((1, 2))[:, 0]


def _by_chance(
    model: MLEM,
    table: StimulusTable,
    held_out_folds: Iterable[_HeldOutFold],
    strata: Tensor,
    group_of: Int[Tensor, " n"],
    features: Sequence[FeatureSet],
    count: int,
    generator: torch.Generator,
) -> GroupChance:
    """Return scores and importances after all features moved together between groups.

    Args:
        model: The parameters of the fits.
        table: The data; they are not changed.
        held_out_folds: The folds of the cross-validation.
        strata: The stratum of each stimulus, within which values move.
        group_of: The group of each stimulus.
        features: Each feature as a set of its own.
        count: The number of draws.
        generator: What the draws are drawn with.
    """
    scores = []
    importances = []
    for _ in counted(range(count), "chance"):
        values = table.values[regrouped(strata, group_of, generator)]
        fits = [
            _fit_and_score(model, values, table.columns, fold, features) for fold in held_out_folds
        ]
        scores.append(torch.stack([fit.scores for fit in fits]).mean(0))
        # Of each fold (l, permutations, f); the mean is over folds and permutations.
        importances.append(torch.stack([fit.drops for fit in fits]).mean((0, 2)))
    return GroupChance(torch.stack(scores), torch.stack(importances))


def _is_name_or_index(value: object) -> bool:
    """Return whether a value is text or a whole number; True and False are neither."""
    return isinstance(value, Integral | str) and not isinstance(value, bool)


def _pairs_of_features(interactions: object, columns: FeatureColumns) -> list[FeatureSet]:
    """Return pairs of features that a user gave by name or index, as pairs of indices.

    Args:
        interactions: What the user gave: a list of pairs of names or indices.
        columns: The features of the table.

    Raises:
        ValueError: Something is not a pair of different features, or a pair is given twice.
    """
    message = (
        f"interactions={shown(interactions)} must be a list of pairs of features, by number or "
        "name, as [(0, 1)]"
    )
    if not isinstance(interactions, list | tuple):
        raise ValueError(message)
    pairs: list[FeatureSet] = []
    for pair in interactions:
        if not isinstance(pair, Iterable) or isinstance(pair, str):
            raise ValueError(message)
        names = tuple(pair)
        if len(names) != 2 or not all(map(_is_name_or_index, names)):
            raise ValueError(message)
        first, second = (columns.index_of(name, "interactions") for name in names)
        if first == second:
            raise ValueError(
                f"interactions has {shown(pair)}, which is one feature with itself: "
                "give two features"
            )
        if {first, second} in map(set, pairs):
            raise ValueError(
                f"interactions has {shown(pair)} twice: give each pair of features once"
            )
        pairs.append((first, second))
    return pairs


def _held_out_folds(
    model: MLEM,
    table: StimulusTable,
    fold_of: Int[Tensor, " units"],
    permutations: int,
    strata: Tensor,
    generator: torch.Generator,
) -> Iterator[_HeldOutFold]:
    """Yield the folds of the cross-validation, with the orders in which test stimuli are permuted.

    A fold is some stimuli with all pairs of them, or, under recipe="paper", some pairs.

    Args:
        model: The parameters of the fits.
        table: The data.
        fold_of: The fold of each stimulus, or pair.
        permutations: How often the test stimuli, or pairs, of each fold are permuted.
        strata: The stratum of each stimulus, within which values move; unused for folds of pairs.
        generator: Draws the permutations.
    """
    pairs = table.stimulus_pairs
    for train_units, test_units in splits(fold_of):  # stimuli, or pairs
        train = pairs.subset(train_units)
        test = pairs.subset(test_units)
        train_groups = None if table.groups is None else table.groups[train_units]
        division = model.divide(train, train_groups)
        if pairs.folds_divide_pairs:
            test_strata = torch.zeros(len(test_units))  # a single stratum, as pairs have none
        else:
            test_strata = strata[test_units]
        orders = [_shuffled_within(test_strata, generator) for _ in range(permutations)]
        yield _HeldOutFold(train, test, division, orders)


class _ScoredFit(NamedTuple):
    """A fit to the training pairs of a fold, with its scores on the held-out pairs.

    Attributes:
        fitted: The fitted weights.
        scores: The score, Spearman's ρ, of each of l layers.
        drops: How much the score drops with each of t sets of features permuted, r times each.
    """

    fitted: FittedWeights
    scores: Float[Tensor, " l"]
    drops: Float[Tensor, "l r t"]


def _fit_and_score(
    model: MLEM,
    values: Float[Tensor, "n f"],
    columns: FeatureColumns,
    fold: _HeldOutFold,
    sets: Sequence[FeatureSet],
) -> _ScoredFit:
    """Fit a model to the training pairs of a fold, and score it on the held-out pairs.

    The score is Spearman's ρ of predicted and neural distances. It is computed for the held-out
    pairs as they are, and then with each set of features permuted, which gives the drops of the
    score. Constant predictions score 0. Drops that are only rounding are set to 0.

    Args:
        model: The parameters of the fit.
        values: The features of all stimuli as numbers.
        columns: The names, kinds and levels of the features.
        fold: The fold, with r orders in which test stimuli are permuted.
        sets: The t sets of features that are permuted in each of these orders.
    """
    encoder = FeatureEncoder.of(
        values[fold.train.stimuli], columns, model.difference, model.missing
    )
    features = encoder.encode_values(values)
    fitted = model.fit_weights(features, fold.train, fold.division)
    test = fold.test
    differences = test.differences(features)
    variants = [differences]  # as they are, then permuted
    for order in fold.orders:
        for moved_features in sets:
            variants.append(test.permuted(features, differences, moved_features, order))
    all_scores = test.score(variants, fitted.terms, fitted.weights)  # (1 + r t, l)
    all_scores = all_scores.nan_to_num(0.0)  # constant predictions have no ρ
    scores = all_scores[0]
    permuted_scores = all_scores[1:].view(len(fold.orders), len(sets), len(scores))
    drops = scores - permuted_scores  # (r, t, l)
    drops = torch.where(drops.abs() <= DROP_ROUNDING, 0, drops)
    return _ScoredFit(fitted, scores, drops.movedim(-1, 0))


def _shuffled_within(strata: Float[Tensor, " n"], generator: torch.Generator) -> Int[Tensor, " n"]:
    """Return a random order of stimuli that exchanges values only within each stratum.

    Args:
        strata: The stratum of each stimulus, as a number.
        generator: Draws the order.

    Returns:
        For stimulus i, the index of the stimulus whose value it takes.
    """
    # Both lists go through the strata in the same order: one with the stimuli of a stratum as they
    # are, one with them shuffled. So the stimuli at one place of both have the same stratum.
    shuffled = torch.randperm(len(strata), generator=generator).to(strata.device)
    stimuli_by_stratum = strata.argsort(stable=True)
    shuffled_by_stratum = shuffled[strata[shuffled].argsort(stable=True)]
    order = torch.empty_like(shuffled)
    order[stimuli_by_stratum] = shuffled_by_stratum
    return order


def regrouped(
    strata: Float[Tensor, " n"], groups: Int[Tensor, " n"], generator: torch.Generator
) -> Int[Tensor, " n"]:
    """Return for each stimulus the one whose value it takes: groups take those of other groups.

    So values stay as alike within groups as they were. Groups change places at random with those
    of about their size, `FEWEST_GROUPS` or more at a time, as far as there are; one takes some of
    the values of a larger one, and those of a smaller one more than once. Strata, such as parts of
    speech, are treated each by itself.

    Args:
        strata: The stratum of each stimulus, as a number.
        groups: The group of each stimulus, as a number.
        generator: What random orders are drawn with.
    """
    n = len(strata)
    _, labels = groups.unique(return_inverse=True)
    labels = labels.cpu()
    sizes = torch.bincount(labels)
    group_count = len(sizes)

    # Number the groups from the smallest, and draw a random order of those of about one size.
    smaller_groups = (sizes[:, None] > sizes).sum(1)
    size_class = smaller_groups // FEWEST_GROUPS
    by_size = size_class.argsort(stable=True)
    labels = by_size.argsort()[labels]
    noise = torch.rand(group_count, generator=generator, dtype=torch.float64)
    new_rank = (size_class[by_size] + noise).argsort().argsort()

    # A cell is the stimuli of one stratum and group, in random order.
    shuffled = torch.randperm(n, generator=generator)
    _, stratum = strata.unique(return_inverse=True)
    cell_of_stimulus = (stratum.cpu() * group_count + labels)[shuffled]
    cells, cell_index, counts = cell_of_stimulus.unique(return_inverse=True, return_counts=True)
    by_cell = cell_index.argsort(stable=True)
    cell_start = counts.cumsum(0) - counts
    cell_index = cell_index[by_cell]

    # The cell whose values each stimulus takes, and the stimulus of that cell.
    cell_stratum = cells // group_count * group_count
    source_cell = (cell_stratum + new_rank[cells % group_count]).argsort()[cell_index]
    rank_in_cell = torch.arange(n) - cell_start[cell_index]
    rank_in_source = rank_in_cell % counts[source_cell]
    source = by_cell[cell_start[source_cell] + rank_in_source]
    order = torch.empty_like(by_cell)
    order[shuffled[by_cell]] = shuffled[source]
    return order.to(strata.device)
