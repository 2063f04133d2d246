"""The weights of a metric-learning encoding model, and its ridge, from sums over pairs (Salle et al. 2024, app. B)."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from thinkalike.measures.estimates import stimulus_folds
from thinkalike.measures.mlem.features import Features
from thinkalike.measures.mlem.least_squares import nnls, psd_least_squares, to_matrix
from thinkalike.measures.mlem.levels import Points, level_path, pair_sizes
from thinkalike.measures.mlem.stimulus_pairs import StimulusPairs
from thinkalike.measures.mlem.sums import centred
from thinkalike.measures.mlem.terms import Term, grouped, of_features, terms_of
from thinkalike.progress import counted

ALIKE = 0.9  # correlation of two features' Δ from which a warning says so
EQUAL = 1e-12  # scores that are nearer differ by rounding; most α give the same ranks
CONSTANT = 1e-12  # variance of a Δ that is only rounding


class Fitted(NamedTuple):
    """Weights of the terms in each layer, in units of the squared neural distance."""

    terms: list[Term]
    weights: Float[Tensor, "l r"]  # W_f, 2 W_fg, or w of two levels; exactly 0 where a feature is constant
    intercept: Float[Tensor, " l"]
    alpha: Float[Tensor, " l"]
    covariance: Float[Tensor, "r r"]  # of the terms over the pairs
    mean: Float[Tensor, " l"]  # squared distance of the pairs

    @property
    def matrices(self) -> Float[Tensor, "l f"] | Float[Tensor, "l f f"]:
        """W of each layer, its diagonal alone if nothing else was fitted; of levels their mean weight w^f."""
        if any(len(term) == 3 for term in self.terms):
            return self.weights[:, [places.stop - 1 for _, places in grouped(self.terms)]]
        scale = _norms(self.terms).to(self.weights)
        return to_matrix(self.weights / scale) if (scale > 1).any() else self.weights


class Division(NamedTuple):
    """Folds for the choice of the ridge."""

    cells: Int[Tensor, " k"]  # the fold of each stimulus, or pair
    parts: Iterable[StimulusPairs]  # one at a time: their ranks are most of the memory


def divide(
    stimulus_pairs: StimulusPairs, folds: int | None, seed: int, groups: Int[Tensor, " n"] | None = None
) -> Division:
    """Divide stimuli, or pairs if folds are of pairs, into folds, see `stimulus_folds`; None: no folds."""
    units = stimulus_pairs.index if stimulus_pairs.chosen is None else stimulus_pairs.chosen
    if folds is None:
        return Division(torch.zeros_like(units), [])
    cells = stimulus_folds(len(units), folds, seed, groups).to(units.device)
    return Division(cells, (stimulus_pairs.part((cells == fold).nonzero()[:, 0]) for fold in range(folds)))


def fit_weights(
    features: Features,
    stimulus_pairs: StimulusPairs,
    division: Division,
    alphas: Sequence[float],
    interactions: bool,
    euclidean: bool = False,
) -> Fitted:
    """Fit every layer on all pairs, with the α of the best mean Spearman's ρ over the parts, the first of equals.

    A part scores the fit to the pairs of the others. A constant prediction scores -1. With `euclidean` the weights of
    pairs of levels are squared distances of points.

    Raises:
        ValueError: Every feature is constant.
    """
    terms = terms_of(features.known, interactions, features.labels)
    sums = stimulus_pairs.sums(features, terms, division.cells)
    varies = ~_constant(centred(sums)[0, :, : len(terms) - 1] / sums[0, 0, 0], terms)
    if any(features.known):
        counts, used = stimulus_pairs.level_counts(features, division.cells), sums[:, 0, 1 : len(terms)] > 0
        points = Points(terms, [each[0] for each in counts]) if euclidean else None
        path = level_path(centred(sums), varies & used, pair_sizes(counts, terms), terms, alphas, points)
    else:
        path = _path(sums, varies, terms, alphas)
    layers = torch.arange(path.shape[2], device=path.device)
    best = torch.zeros_like(layers)
    if len(alphas) > 1:
        scores = [
            part.score([part.differences(features)], terms, path[:, 1 + fold])[0]
            for fold, part in enumerate(counted(division.parts, "inner fold"))
        ]
        mean = torch.stack(scores).nan_to_num(-1.0).mean(0)
        best = (mean >= mean.amax(0) - EQUAL).int().argmax(0)
    weights = path[best, 0, layers]
    means = sums[0, 0] / sums[0, 0, 0]
    intercept = means[len(terms) :] - weights @ means[1 : len(terms)]
    covariance = centred(sums)[0, :, : len(terms) - 1] / sums[0, 0, 0]
    return Fitted(terms, weights, intercept, path.new_tensor(alphas)[best], covariance, means[len(terms) :])


def _norms(terms: Sequence[Term]) -> Float[Tensor, " r"]:
    """Return 1 for W_ff and √2 for W_fg: factors from the upper triangle to coordinates of the same norm as W."""
    return torch.tensor([1.0 if f == g else 2**0.5 for f, g in terms[1:]], dtype=torch.float64)


def _constant(covariance: Float[Tensor, "r r"], terms: Sequence[Term]) -> Bool[Tensor, " r"]:
    """Return which terms are of a feature whose Δ is the same for all pairs."""
    own = of_features(terms).to(covariance)
    still = (own @ covariance @ own.T).diagonal() <= CONSTANT
    if still.all():
        raise ValueError("every feature is constant: choose kinds='continuous' for whole numbers that all differ")
    sides = [term[:2] if len(term) == 2 else term[:1] for term in terms[1:]]
    return torch.stack([still[list(side)].any() for side in sides])


def _path(
    sums: Float[Tensor, "s t u"], varies: Bool[Tensor, " r"], terms: Sequence[Term], alphas: Sequence[float]
) -> Float[Tensor, "a s l r"]:
    """Return the weights at every α, on every set of pairs, of every layer."""
    moments, r = centred(sums), len(terms) - 1
    # ‖W‖² counts W_fg twice: in the coordinates √2 W_fg it is a plain sum of squares
    scale = _norms(terms).to(moments) * varies
    target = (moments[..., r:] * scale[:, None]).mT
    shape = (len(alphas), *target.shape)
    ridge = moments.new_tensor(alphas)[:, None, None, None, None] * torch.eye(r, dtype=scale.dtype, device=scale.device)
    gram = ((moments[..., :r] * scale[:, None] * scale)[:, None] + ridge).expand(*shape, r)
    solve = nnls if terms[-1][0] == terms[-1][1] else psd_least_squares
    return solve(gram, target.expand(shape)) * scale


def describe(fitted: Fitted, labels: Sequence[str]) -> tuple[Float[Tensor, "f f"], float]:
    """Return the Pearson correlation of the features' Δ over the pairs, NaN for a constant one, and its condition.

    There is a warning of constant features, and of features that differ on much the same pairs.
    """
    own = of_features(fitted.terms).to(fitted.covariance)
    covariance = own @ fitted.covariance @ own.T
    spread = covariance.diagonal().where(covariance.diagonal() > CONSTANT, torch.nan).sqrt()
    correlation, varies = covariance / spread[:, None] / spread, ~spread.isnan()
    values = torch.linalg.eigvalsh(correlation[varies][:, varies])
    condition = float(values[-1] / values[0].clamp(min=0))
    if constant := (~varies).nonzero()[:, 0].tolist():
        warnings.warn(f"features {_names(constant, labels)} are constant and get weight 0", stacklevel=3)
    if alike := (correlation.abs().triu(1) >= ALIKE).nonzero().tolist():
        pairs = ", ".join(_names(pair, labels) for pair in alike)
        message = f"features [{pairs}] differ on much the same pairs, so that their weights are hard to tell apart"
        warnings.warn(f"{message} (condition number {condition:.0f})", stacklevel=3)
    return correlation, condition


def _names(features: Sequence[int], labels: Sequence[str]) -> str:
    return f"[{', '.join(labels[feature] for feature in features)}]"
