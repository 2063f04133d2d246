"""The weights of a metric-learning encoding model, and its ridge, from sums over pairs.

See Salle et al. (2024, appendix B). With weights of pairs of levels, a distance for every two
levels of a nominal feature, a fit minimises Σ_{i<j} (b + Σ_f w^f_{f_i f_j} - (D^N_ij)²)² + α Σ_f
Σ_{a<b} (n_a + n_b) (w^f_ab - w^f)², w ≥ 0, with n_a the number of stimuli of level a, and w^f the
mean of the w^f_ab with weights n_a + n_b. α = ∞ is the model with one weight per feature, and α =
0 the free one. As the mean squared distance of two levels has a variance near 1 / n_a + 1 / n_b,
all pairs of levels shrink by their precision: by half at 1 / α = 1 / n_a + 1 / n_b, in numbers of
stimuli.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from thinkalike.measures.mlem.cone_solvers import (
    SLOPE_ROUNDING,
    nnls,
    psd_least_squares,
    to_matrix,
)
from thinkalike.measures.mlem.features import (
    Features,
    Term,
    features_by_term,
    is_all_level_pairs,
    is_level_pair,
    terms_of,
    weight_slices,
)
from thinkalike.measures.mlem.stimulus_pairs import StimulusPairs
from thinkalike.measures.mlem.sums import about_means
from thinkalike.processes import counted

# From this correlation of two features' Δ on, a warning says that their weights are hard to tell
# apart.
HIGH_CORRELATION = 0.9

# Scores that are nearer differ by rounding; most α give the same ranks.
SCORE_ROUNDING = 1e-12

# The variance of a Δ that is constant but for rounding.
VARIANCE_ROUNDING = 1e-12


class FittedWeights(NamedTuple):
    """Weights of the terms in each of l layers, in units of the squared neural distance.

    Attributes:
        terms: The terms, the intercept first.
        weights: W_ff, 2 W_fg, or w of two levels, for each of the r terms after the intercept;
            exactly 0 where a feature is constant.
        intercept: The intercept of each layer.
        alpha: The ridge of each layer.
        covariance: The covariance of the terms over the pairs.
        mean: The mean squared distance of the pairs.
    """

    terms: list[Term]
    weights: Float[Tensor, "l r"]
    intercept: Float[Tensor, " l"]
    alpha: Float[Tensor, " l"]
    covariance: Float[Tensor, "r r"]
    mean: Float[Tensor, " l"]

    @property
    def matrices(self) -> Float[Tensor, "l f"] | Float[Tensor, "l f f"]:
        """The matrix W of the weights of features in each layer, or only its diagonal.

        W is (f, f) if products of two different features have weights, W_fg, else its diagonal
        (f). If some feature has a weight for each pair of its levels, the diagonal has the mean
        weight of each feature.
        """
        if any(is_level_pair(term) for term in self.terms):
            # The last weight of a feature is that of a new level, which is the mean weight.
            last_weights = [weight_slice.stop - 1 for _, weight_slice in weight_slices(self.terms)]
            return self.weights[:, last_weights]
        entry_norms = _entry_norms(self.terms).to(self.weights)  # 1, or √2 off the diagonal
        has_interactions = bool((entry_norms > 1).any())
        if has_interactions:
            # The weights are W_ff and 2 W_fg, and `to_matrix` takes W_ff and √2 W_fg.
            return to_matrix(self.weights / entry_norms)
        return self.weights


class Division(NamedTuple):
    """The folds by which the ridge is chosen: of stimuli, or, under recipe="paper", of pairs.

    Attributes:
        fold_of: The fold of each stimulus, or pair.
        pairs_of_folds: The pairs within each fold, one fold at a time: their ranks are most of
            the memory. There are none if there is one α and nothing to choose.
    """

    fold_of: Int[Tensor, " k"]
    pairs_of_folds: Iterable[StimulusPairs]


def fit_weights(
    features: Features,
    stimulus_pairs: StimulusPairs,
    division: Division,
    alphas: Sequence[float],
    interactions: bool,
) -> FittedWeights:
    """Fit every layer on all pairs, with the α that scores best on held-out pairs.

    A fold scores the fit to the pairs of the other folds, by Spearman's ρ; a constant prediction
    scores -1. The first of α with equal mean scores is taken.

    Args:
        features: The encoded features of the stimuli.
        stimulus_pairs: The pairs of stimuli, with their neural distances in each layer.
        division: The folds; with a single α they have no pairs and are not scored.
        alphas: The ridges α that are tried.
        interactions: Whether W is a full matrix, with the products of different features.
    """
    terms = terms_of(features.weighted_level_counts, interactions, features.labels)
    term_count = len(terms)
    sums = stimulus_pairs.sums(features, terms, division.fold_of)
    covariance = about_means(sums)[0, :, : term_count - 1] / sums[0, 0, 0]  # of all pairs
    varies = ~_constant_terms(covariance, terms)
    if any(features.weighted_level_counts):
        counts = stimulus_pairs.level_counts(features, division.fold_of)
        has_pairs = sums[:, 0, 1:term_count] > 0
        sizes = pair_sizes(counts, terms)
        path = level_path(about_means(sums), varies & has_pairs, sizes, terms, alphas)
    else:
        path = _weights_by_alpha(sums, varies, terms, alphas)

    layers = torch.arange(path.shape[2], device=path.device)
    best = torch.zeros_like(layers)  # the index of the α of each layer
    if len(alphas) > 1:
        scores = []
        for fold, held_out in enumerate(counted(division.pairs_of_folds, "inner fold")):
            weights_of_fold = path[:, 1 + fold]
            differences = held_out.differences(features)
            scores.append(held_out.score([differences], terms, weights_of_fold)[0])
        mean_scores = torch.stack(scores).nan_to_num(-1.0).mean(0)  # (a, l)
        is_best = mean_scores >= mean_scores.amax(0) - SCORE_ROUNDING
        best = is_best.int().argmax(0)

    weights = path[best, 0, layers]
    means = sums[0, 0] / sums[0, 0, 0]
    mean_distances = means[term_count:]
    return FittedWeights(
        terms=terms,
        weights=weights,
        intercept=mean_distances - weights @ means[1:term_count],
        alpha=path.new_tensor(alphas)[best],
        covariance=covariance,
        mean=mean_distances,
    )


def _entry_norms(terms: Sequence[Term]) -> Float[Tensor, " r"]:
    """Return 1 for each term (f, f) and √2 for each term (f, g) with f ≠ g.

    The term (f, g) stands for the entry W_fg of a symmetric matrix W, and for W_gf. These factors
    are the norms of the two together: the entries on and above the diagonal, multiplied by them,
    are a vector whose norm is the Frobenius norm of W.

    Args:
        terms: The 1 + r terms, the intercept first, which has no factor.
    """
    entry_norms = []
    for f, g in terms[1:]:
        entry_norms.append(1.0 if f == g else 2**0.5)
    return torch.tensor(entry_norms, dtype=torch.float64)


def _constant_terms(covariance: Float[Tensor, "r r"], terms: Sequence[Term]) -> Bool[Tensor, " r"]:
    """Return which of the r terms after the intercept contain a constant feature.

    A feature is constant if its Δ, the difference of two stimuli in it, is the same in all pairs
    of stimuli, up to rounding. A term (f, g) contains two features, a term (f, a, b), of two
    levels, only f.

    Args:
        covariance: The covariance of these terms over the pairs.
        terms: All terms, the intercept first.

    Raises:
        ValueError: Every feature has the same Δ in all pairs.
    """
    # The terms of a feature alone add up to its Δ², which is constant if Δ is.
    belongs_to_feature = features_by_term(terms).to(covariance)  # (f, r)
    variances = (belongs_to_feature @ covariance @ belongs_to_feature.T).diagonal()  # of Δ²
    is_constant = variances <= VARIANCE_ROUNDING  # for each feature
    if is_constant.all():
        raise ValueError(
            "X: every feature is equal in all pairs of stimuli, or differs in all of them, and "
            "explains no distance: choose kinds='continuous' for numbers that all differ"
        )
    term_is_constant = []
    for term in terms[1:]:
        features = term[:1] if is_level_pair(term) else term
        term_is_constant.append(is_constant[list(features)].any())
    return torch.stack(term_is_constant)


def _weights_by_alpha(
    sums: Float[Tensor, "s t u"],
    varies: Bool[Tensor, " r"],
    terms: Sequence[Term],
    alphas: Sequence[float],
) -> Float[Tensor, "a s l r"]:
    """Return the weights of terms for each of a ridges, on each of s sets of pairs, for l layers.

    The model predicts the squared distance of two stimuli as b + Δᵀ W Δ, with Δ_f their
    difference in feature f. Its terms are W_ff, which are at least 0, and for a full W, which is
    positive semidefinite, also W_fg. Models with weights of pairs of levels are solved by
    `level_path` instead.

    Args:
        sums: Sums of products over the pairs of stimuli of each set: each term times each term,
            and then each term times the squared distance in each layer.
        varies: Which terms are not constant; the others get weight 0.
        terms: The terms, the intercept first.
        alphas: The ridges α.
    """
    covariances = about_means(sums)  # times the number of pairs, (s, r, r + l)
    r = len(terms) - 1
    # In the coordinates W_ff and √2 W_fg, the penalty α ‖W‖² is a sum of squares.
    scale = _entry_norms(terms).to(covariances) * varies
    with_terms = covariances[..., :r] * scale[:, None] * scale  # (s, r, r)
    with_distances = covariances[..., r:] * scale[:, None]  # (s, r, l)
    target = with_distances.mT  # (s, l, r)
    shape = (len(alphas), *target.shape)
    identity = torch.eye(r, dtype=scale.dtype, device=scale.device)
    ridge = covariances.new_tensor(alphas)[:, None, None, None, None] * identity  # (a, 1, 1, r, r)
    gram = with_terms[:, None] + ridge  # (a, s, 1, r, r)
    # If W is full, the terms of different features come last.
    last_term = terms[-1]
    is_diagonal = last_term[0] == last_term[1]
    solve = nnls if is_diagonal else psd_least_squares
    coordinates = solve(gram.expand(*shape, r), target.expand(shape))
    # W_ff, and 2 W_fg: the weight of Δ_f Δ_g, which Δᵀ W Δ has twice.
    return coordinates * scale


def feature_correlations(
    fitted: FittedWeights, labels: Sequence[str]
) -> tuple[Float[Tensor, "f f"], float]:
    """Return the correlation matrix of the features' Δ over the pairs, and its condition number.

    It also warns of constant and of highly correlated features. Correlations are NaN for a
    constant feature, which the condition number leaves out. The condition number is ∞ if Δ are
    linearly dependent up to rounding.

    Args:
        fitted: The weights of a fit, whose covariance is used.
        labels: What warnings call the features.
    """
    sums_to_feature = features_by_term(fitted.terms).to(fitted.covariance)  # (f, r)
    covariance = sums_to_feature @ fitted.covariance @ sums_to_feature.T
    variances = covariance.diagonal()
    deviations = variances.where(variances > VARIANCE_ROUNDING, torch.nan).sqrt()
    correlation = covariance / deviations[:, None] / deviations
    varies = ~deviations.isnan()
    values = torch.linalg.eigvalsh(correlation[varies][:, varies])
    condition = float("inf")
    if values[0] > SLOPE_ROUNDING * values[-1]:
        condition = float(values[-1] / values[0])

    constant = (~varies).nonzero()[:, 0].tolist()
    if constant:
        names = ", ".join(labels[feature] for feature in constant)
        warnings.warn(
            f"features [{names}] are equal in all pairs of stimuli, or differ in all of them, and "
            "get weight 0",
            stacklevel=3,
        )
    correlated = (correlation.abs().triu(1) >= HIGH_CORRELATION).nonzero().tolist()
    if correlated:
        pairs = ", ".join(f"[{labels[first]}, {labels[second]}]" for first, second in correlated)
        warnings.warn(
            f"features [{pairs}] differ on much the same pairs, so that their weights are hard to "
            f"tell apart (condition number {condition:.0f})",
            stacklevel=3,
        )
    return correlation, condition


def level_path(
    moments: Float[Tensor, "s r v"],
    used: Bool[Tensor, "s r"],
    sizes: Float[Tensor, "s r"],
    terms: Sequence[Term],
    alphas: Sequence[float],
) -> Float[Tensor, "a s l r"]:
    """Return the weights of pairs of levels for each of a ridges α, in each layer.

    They are fitted on each of s sets of pairs of stimuli. Two levels that no pair of stimuli in a
    set has get the mean weight of their feature. At α = ∞ the weights of a feature are equal to
    the bit, so that equal predictions tie.

    Args:
        moments: For each set, sums of products of deviations from the means: each of r terms times
            each term, and then times the squared distance in each of l layers.
        used: Which terms have pairs in each set, and are not constant.
        sizes: How many stimuli have one of the two levels of each term, see `pair_sizes`.
        terms: The terms, the intercept first.
        alphas: The ridges α.
    """
    r = len(used[0])
    target = torch.where(used[:, None], moments[..., r:].mT, 0)  # (s, l, r)
    gram = torch.where(used[:, :, None] & used[:, None], moments[..., :r], 0)
    used_sizes = sizes * used
    ridge = level_ridge(used_sizes, terms)
    sums_to_feature = features_by_term(terms).to(gram)  # (f, r)
    path = []
    for alpha in alphas:
        if alpha == torch.inf:  # one weight per feature
            gram_of_features = sums_to_feature @ gram @ sums_to_feature.T
            weights_of_features = _nnls_of_layers(gram_of_features, target @ sums_to_feature.T)
            path.append(weights_of_features @ sums_to_feature)
            continue
        weights = _nnls_of_layers(gram + alpha * ridge, target)
        for term, weight_slice in weight_slices(terms):
            if not is_all_level_pairs(term):
                continue
            sizes_of_feature = used_sizes[:, None, weight_slice]
            shares = sizes_of_feature / sizes_of_feature.sum(-1, keepdim=True).clamp(min=1)
            weights_of_feature = weights[..., weight_slice]
            mean = (weights_of_feature * shares).sum(-1, keepdim=True)
            is_known = used[:, None, weight_slice]
            weights[..., weight_slice] = torch.where(is_known, weights_of_feature, mean)
        path.append(weights)
    return torch.stack(path)


def _nnls_of_layers(
    gram: Float[Tensor, "s q q"], target: Float[Tensor, "s l q"]
) -> Float[Tensor, "s l q"]:
    """Return the w ≥ 0 with least w'Gw / 2 - t'w, for l layers on each of s sets of pairs.

    Args:
        gram: G, which all layers share.
        target: t of each layer.
    """
    gram_of_layers = gram[:, None].expand(*target.shape, target.shape[2])  # (s, l, q, q)
    return nnls(gram_of_layers, target)


def level_ridge(sizes: Float[Tensor, "s r"], terms: Sequence[Term]) -> Float[Tensor, "s r r"]:
    """Return the matrix R of the ridge penalty on weights of pairs of levels, for each of s sets.

    It draws the weights of a feature's pairs of levels towards their mean. The penalty is
    w'R w = Σ_f Σ_ab p_ab (w_ab - w̄_f)², with w̄_f = Σ p w / Σ p the mean weight of feature f, so
    R = diag(p) - p p' / Σ p for the terms of a feature. A term of size p = 0, such as that of a
    feature with one weight, is not penalised.

    Args:
        sizes: p of each term (f, a, b): how many stimuli have the level a or b of feature f.
        terms: The terms, the intercept first.
    """
    ridge = torch.diag_embed(sizes)
    for term, weight_slice in weight_slices(terms):
        if is_all_level_pairs(term):  # other terms have one weight, of size 0
            sizes_of_feature = sizes[:, weight_slice]
            total = sizes_of_feature.sum(1).clamp(min=1)[:, None, None]
            products = sizes_of_feature[:, :, None] * sizes_of_feature[:, None]
            ridge[:, weight_slice, weight_slice] -= products / total
    return ridge


def pair_sizes(
    counts: Sequence[Float[Tensor, "s _"]], terms: Sequence[Term]
) -> Float[Tensor, "s r"]:
    """Return for each term (f, a, b) how many stimuli have the level a or b, n_a + n_b, by set.

    It is 0 for the last term of a feature, that of pairs with a new level, and for terms that are
    not of pairs of levels.

    Args:
        counts: For each feature, how many stimuli have each of its levels in each of s sets;
            (s, 0) for a feature with one weight.
        terms: The terms, the intercept first.
    """
    sizes = counts[0].new_zeros(len(counts[0]), len(terms) - 1)
    for term, weight_slice in weight_slices(terms):
        feature = term[0]
        level_counts = counts[feature]
        level_count = level_counts.shape[1]
        if level_count:  # each pair of its levels has a weight
            first, second = torch.triu_indices(level_count, level_count, 1, device=sizes.device)
            # The last weight of a feature is that of pairs with a new level.
            known_pairs = slice(weight_slice.start, weight_slice.stop - 1)
            sizes[:, known_pairs] = level_counts[:, first] + level_counts[:, second]
    return sizes
