"""The weights of a metric-learning encoding model, and its ridge, from sums over pairs (Salle et al. 2024, app. B).

With weights of pairs of levels, a distance for every two levels of a nominal feature, a fit minimises
Σ_{i<j} (b + Σ_f w^f_{f_i f_j} - (D^N_ij)²)² + α Σ_f Σ_{a<b} (n_a + n_b) (w^f_ab - w^f)², w ≥ 0, with
n_a the number of stimuli of level a, and w^f the mean of the w^f_ab with weights n_a + n_b. α = ∞ is the model with one
weight per feature, and α = 0 the free one. As the mean squared distance of two levels has a variance near 1 / n_a +
1 / n_b, all pairs of levels shrink by their precision: by half at 1 / α = 1 / n_a + 1 / n_b, in numbers of stimuli.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from thinkalike.measures.mlem.features import Features, Term, grouped, of_features, terms_of
from thinkalike.measures.mlem.sums import StimulusPairs, centred
from thinkalike.processes import counted

ALIKE = 0.9  # correlation of two features' Δ from which a warning says so
ROUNDING = 1e-12  # a slope or an eigenvalue below this share of the largest is rounding
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
    """Folds of stimuli, or of pairs if folds are of these, for the choice of the ridge."""

    cells: Int[Tensor, " k"]  # the fold of each stimulus, or pair
    parts: Iterable[StimulusPairs]  # one at a time: their ranks are most of the memory


def fit_weights(
    features: Features, stimulus_pairs: StimulusPairs, division: Division, alphas: Sequence[float], interactions: bool
) -> Fitted:
    """Fit every layer on all pairs, with the α of the best mean Spearman's ρ over the parts, the first of equals.

    A part scores the fit to the pairs of the others. A constant prediction scores -1.
    """
    terms = terms_of(features.known, interactions, features.labels)
    sums = stimulus_pairs.sums(features, terms, division.cells)
    covariance = centred(sums)[0, :, : len(terms) - 1] / sums[0, 0, 0]
    varies = ~_constant(covariance, terms)
    if any(features.known):
        counts, used = stimulus_pairs.level_counts(features, division.cells), sums[:, 0, 1 : len(terms)] > 0
        path = level_path(centred(sums), varies & used, pair_sizes(counts, terms), terms, alphas)
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
    return Fitted(terms, weights, intercept, path.new_tensor(alphas)[best], covariance, means[len(terms) :])


def _norms(terms: Sequence[Term]) -> Float[Tensor, " r"]:
    """Return 1 for W_ff and √2 for W_fg: in the coordinates √2 W_fg, ‖W‖² is a plain sum of squares."""
    return torch.tensor([1.0 if f == g else 2**0.5 for f, g in terms[1:]], dtype=torch.float64)


def _constant(covariance: Float[Tensor, "r r"], terms: Sequence[Term]) -> Bool[Tensor, " r"]:
    """Return which terms are of a feature whose Δ is the same for all pairs."""
    own = of_features(terms).to(covariance)
    still = (own @ covariance @ own.T).diagonal() <= CONSTANT
    if still.all():
        raise ValueError(
            "X: every feature is equal in all pairs of stimuli, or differs in all of them, and explains no distance: "
            "choose kinds='continuous' for numbers that all differ"
        )
    sides = [term[:2] if len(term) == 2 else term[:1] for term in terms[1:]]
    return torch.stack([still[list(side)].any() for side in sides])


def _path(
    sums: Float[Tensor, "s t u"], varies: Bool[Tensor, " r"], terms: Sequence[Term], alphas: Sequence[float]
) -> Float[Tensor, "a s l r"]:
    """Return the weights at every α, on every set of pairs, of every layer."""
    moments, r = centred(sums), len(terms) - 1
    scale = _norms(terms).to(moments) * varies
    target = (moments[..., r:] * scale[:, None]).mT
    shape = (len(alphas), *target.shape)
    ridge = moments.new_tensor(alphas)[:, None, None, None, None] * torch.eye(r, dtype=scale.dtype, device=scale.device)
    gram = ((moments[..., :r] * scale[:, None] * scale)[:, None] + ridge).expand(*shape, r)
    solve = nnls if terms[-1][0] == terms[-1][1] else psd_least_squares
    return solve(gram, target.expand(shape)) * scale


def describe(fitted: Fitted, labels: Sequence[str]) -> tuple[Float[Tensor, "f f"], float]:
    """Return Pearson's r of the features' Δ over the pairs, NaN for a constant, and its condition; warn of both."""
    own = of_features(fitted.terms).to(fitted.covariance)
    covariance = own @ fitted.covariance @ own.T
    spread = covariance.diagonal().where(covariance.diagonal() > CONSTANT, torch.nan).sqrt()
    correlation, varies = covariance / spread[:, None] / spread, ~spread.isnan()
    values = torch.linalg.eigvalsh(correlation[varies][:, varies])
    condition = float(values[-1] / values[0]) if values[0] > ROUNDING * values[-1] else float("inf")
    if constant := (~varies).nonzero()[:, 0].tolist():
        names = ", ".join(labels[feature] for feature in constant)
        why = "are equal in all pairs of stimuli, or differ in all of them,"
        warnings.warn(f"features [{names}] {why} and get weight 0", stacklevel=3)
    if alike := (correlation.abs().triu(1) >= ALIKE).nonzero().tolist():
        pairs = ", ".join(f"[{labels[a]}, {labels[b]}]" for a, b in alike)
        message = f"features [{pairs}] differ on much the same pairs, so that their weights are hard to tell apart"
        warnings.warn(f"{message} (condition number {condition:.0f})", stacklevel=3)
    return correlation, condition


def level_path(
    moments: Float[Tensor, "s r v"],
    used: Bool[Tensor, "s r"],
    sizes: Float[Tensor, "s r"],
    terms: Sequence[Term],
    alphas: Sequence[float],
) -> Float[Tensor, "a s l r"]:
    """Return the weights at every α, on every set of pairs, of every layer, from the `centred` sums and `pair_sizes`.

    Two levels without a pair in a set, not `used`, get the mean weight of their feature, w^f. At α = ∞ the weights of a
    feature are equal to the bit, so that equal predictions tie.
    """
    r = len(used[0])
    target = torch.where(used[:, None], moments[..., r:].mT, 0)
    gram = torch.where(used[:, :, None] & used[:, None], moments[..., :r], 0)
    ridge = level_ridge(sizes * used, terms)
    own = of_features(terms).to(gram)

    def solved(system: Float[Tensor, "s q q"], aim: Float[Tensor, "s l q"]) -> Float[Tensor, "s l q"]:
        return nnls(system[:, None].expand(*aim.shape, aim.shape[2]), aim)

    def at(alpha: float) -> Float[Tensor, "s l r"]:
        if alpha == torch.inf:
            return solved(own @ gram @ own.T, target @ own.T) @ own
        weights = solved(gram + alpha * ridge, target)
        for places in (places for term, places in grouped(terms) if len(term) == 1):
            known, part = used[:, None, places], (sizes * used)[:, None, places]
            mean = (weights[..., places] * (part / part.sum(-1, keepdim=True).clamp(min=1))).sum(-1, keepdim=True)
            weights[..., places] = torch.where(known, weights[..., places], mean)
        return weights

    return torch.stack([at(alpha) for alpha in alphas])


def level_ridge(sizes: Float[Tensor, "s r"], terms: Sequence[Term]) -> Float[Tensor, "s r r"]:
    """Return the matrix of Σ_f Σ_ab p_ab (w_ab - Σ p w / Σ p)² as a quadratic form."""
    ridge = torch.diag_embed(sizes)
    for term, places in grouped(terms):
        if len(term) == 1:
            part = sizes[:, places]
            ridge[:, places, places] -= part[:, :, None] * part[:, None] / part.sum(1).clamp(min=1)[:, None, None]
    return ridge


def pair_sizes(counts: Sequence[Float[Tensor, "s _"]], terms: Sequence[Term]) -> Float[Tensor, "s r"]:
    """Return n_a + n_b of each pair of levels in each set, from `level_counts`; 0 for another term."""
    sizes = counts[0].new_zeros(len(counts[0]), len(terms) - 1)
    for (feature, *_), places in grouped(terms):
        if known := counts[feature].shape[1]:
            left, right = torch.triu_indices(known, known, 1, device=sizes.device)
            sizes[:, places.start : places.stop - 1] = counts[feature][:, left] + counts[feature][:, right]
    return sizes


# ---- least squares of many small systems at once

DEPENDENT = 1e-10  # a column depends on those before it if they leave a smaller share of its square
ROUNDS, FULL = 50, 3  # most exchanges of columns, and most exchanges of all wrong columns without progress
TOLERANCE = 1e-10  # of the optimality conditions of semidefinite matrices, as a share of the largest slope
LIMIT = 100_000  # steps to them


def nnls(gram: Float[Tensor, "*b f f"], target: Float[Tensor, "*b f"]) -> Float[Tensor, "*b f"]:
    """Return the w ≥ 0 with least w'Gw / 2 - t'w, exactly.

    Block principal pivoting (Kim & Park 2011) solves nearly every system in a few rounds, and active sets the others
    (Lawson & Hanson 1974, algorithm NNLS). A column that is zero, or depends on columns in use, gets weight exactly 0.
    """
    squares = gram.diagonal(dim1=-2, dim2=-1)
    inverse = torch.where(squares > ROUNDING * squares.amax(-1, keepdim=True), squares.rsqrt(), 0)
    shape, size = target.shape, target.shape[-1]
    gram = (gram * inverse[..., None] * inverse[..., None, :]).reshape(-1, size, size)
    target = (target * inverse).reshape(-1, size)
    weights, settled = _by_pivots(gram, target)
    if not settled.all():
        weights[~settled] = _by_active_sets(gram[~settled], target[~settled])
    return weights.view(shape) * inverse


def _by_pivots(gram: Float[Tensor, "b f f"], target: Float[Tensor, "b f"]) -> tuple[Tensor, Bool[Tensor, " b"]]:
    """Return solutions, and which of them are optimal; systems with dependent columns are not solved."""
    found, settled = torch.zeros_like(target), torch.zeros(len(target), dtype=torch.bool, device=target.device)
    going = torch.arange(len(target), device=target.device)
    used = gram.diagonal(dim1=1, dim2=2) > 0
    fewest, left = torch.full_like(going, target.shape[1] + 1), torch.full_like(going, FULL)
    least = ROUNDING * target.abs().amax(1, keepdim=True)
    for _ in range(ROUNDS):
        weights, sound = _independent(gram[going], target[going], used[going])
        slope = target[going] - (gram[going] @ weights[..., None])[..., 0]
        wrong = torch.where(used[going], weights <= 0, slope > least[going])
        number = wrong.sum(1)
        found[going], settled[going] = weights, sound & (number == 0)
        keep = sound & (number > 0)
        going, wrong, number = going[keep], wrong[keep], number[keep]
        if not len(going):
            break
        fewer = number < fewest[going]
        left[going] = torch.where(fewer, FULL, left[going] - 1)
        fewest[going] = torch.minimum(number, fewest[going])
        last = wrong & (wrong.flip(1).cumsum(1).flip(1) == 1)  # one column at a time cannot cycle (Murty 1974)
        used[going] ^= torch.where((left[going] >= 0)[:, None], wrong, last)
    return found, settled


def _independent(gram: Tensor, target: Tensor, used: Bool[Tensor, "b f"]) -> tuple[Tensor, Bool[Tensor, " b"]]:
    """Return the least-squares solutions on the used columns, and whether these are independent."""
    factor, failed = torch.linalg.cholesky_ex(_system(gram, used))
    sound = (failed == 0) & (factor.diagonal(dim1=1, dim2=2).square().amin(1) > DEPENDENT)
    factor = torch.where(sound[:, None, None], factor, torch.eye(len(factor[0]), dtype=gram.dtype, device=gram.device))
    return torch.cholesky_solve((target * used)[..., None], factor)[..., 0].where(used, 0), sound


def _by_active_sets(gram: Float[Tensor, "b f f"], target: Float[Tensor, "b f"]) -> Float[Tensor, "b f"]:
    weights, used = torch.zeros_like(target), torch.zeros_like(target, dtype=torch.bool)
    refused = torch.zeros_like(used)
    least = ROUNDING * target.abs().amax(1, keepdim=True)
    while True:
        slope = (target - (gram @ weights[..., None])[..., 0]).masked_fill(used | refused, -torch.inf)
        best, column = slope.max(1, keepdim=True)
        enters = torch.zeros_like(used).scatter_(1, column, best > least)
        if not enters.any():
            return weights
        used |= enters
        solution = _restricted(gram, target, used)
        refused |= enters & (solution <= 0)  # rounding: it was to grow
        used &= ~refused
        weights, used = _back_to_cone(gram, target, weights, used)


def _back_to_cone(gram: Tensor, target: Tensor, weights: Tensor, used: Tensor) -> tuple[Tensor, Tensor]:
    """Walk from `weights` towards the solution on the used columns, dropping each column that reaches 0."""
    while True:
        solution = _restricted(gram, target, used)
        bad = used & (solution <= 0)
        if not bad.any():
            return solution, used
        ratio = torch.where(bad, weights / (weights - solution), torch.inf)
        step, column = ratio.min(1, keepdim=True)
        weights = weights + step.clamp(max=1) * (solution - weights)
        used = used & ~torch.zeros_like(used).scatter_(1, column, step <= 1) & ~(bad & (weights <= 0))
        weights = weights * used


def _restricted(gram: Float[Tensor, "b f f"], target: Float[Tensor, "b f"], used: Bool[Tensor, "b f"]) -> Tensor:
    return torch.linalg.solve(_system(gram, used), target * used).where(used, 0)


def _system(gram: Float[Tensor, "b f f"], used: Bool[Tensor, "b f"]) -> Float[Tensor, "b f f"]:
    kept = used.to(gram.dtype)
    return gram * kept[:, :, None] * kept[:, None] + torch.diag_embed(1 - kept)


def to_matrix(entries: Float[Tensor, "*b r"]) -> Float[Tensor, "*b f f"]:
    """Return the symmetric W of its f diagonal entries, then √2 W_fg for f < g: ‖W‖_F is the norm of the entries."""
    f = int(((8 * entries.shape[-1] + 1) ** 0.5 - 1) / 2)
    rows, columns = torch.triu_indices(f, f, 1, device=entries.device)
    matrix = torch.diag_embed(entries[..., :f])
    matrix[..., rows, columns] = matrix[..., columns, rows] = entries[..., f:] / 2**0.5
    return matrix


def to_entries(matrix: Float[Tensor, "*b f f"]) -> Float[Tensor, "*b r"]:
    f = matrix.shape[-1]
    rows, columns = torch.triu_indices(f, f, 1, device=matrix.device)
    return torch.cat([matrix.diagonal(dim1=-2, dim2=-1), matrix[..., rows, columns] * 2**0.5], -1)


def psd_least_squares(gram: Float[Tensor, "*b r r"], target: Float[Tensor, "*b r"]) -> Float[Tensor, "*b r"]:
    """Return the entries w of the W ⪰ 0 with least w'Gw / 2 - t'w, by accelerated projected gradient.

    The method (Beck & Teboulle 2009) starts from the unconstrained solution, and resets its momentum when that points
    uphill (O'Donoghue & Candès 2015), until a projected step of length 1/L moves less than `TOLERANCE`. G is X'X in the
    coordinates of `to_matrix`, and t is X'y.
    """
    r = target.shape[-1]
    gram, aim = gram.reshape(-1, r, r), target.reshape(-1, r)
    slopes = torch.linalg.eigvalsh(gram)[:, -1:].clamp(min=torch.finfo(gram.dtype).tiny)
    weights = (torch.linalg.pinv(gram, hermitian=True) @ aim[..., None])[..., 0]
    ahead, momentum = weights, torch.ones_like(slopes)
    solution, left = torch.empty_like(aim), torch.arange(len(aim), device=aim.device)
    for _ in range(LIMIT):
        free = ahead - ((gram[left] @ ahead[..., None])[..., 0] - aim[left]) / slopes[left]
        values, vectors = torch.linalg.eigh(to_matrix(free))
        step = to_entries((vectors * values.clamp(min=0)[:, None]) @ vectors.mT)  # of the nearest semidefinite matrix
        moved = (step - ahead).abs().amax(1) * slopes[left, 0]
        going = moved > TOLERANCE * aim[left].abs().amax(1)
        solution[left] = step
        if not going.any():
            return solution.view_as(target)
        uphill = ((ahead - step) * (step - weights)).sum(1, keepdim=True) > 0
        following = torch.where(uphill, 1.0, (1 + (1 + 4 * momentum**2).sqrt()) / 2)
        ahead = step + torch.where(uphill, 0.0, (momentum - 1) / following) * (step - weights)
        left, ahead, weights, momentum = left[going], ahead[going], step[going], following[going]
    raise ValueError(f"no optimum within {LIMIT} steps: features are too much alike; a ridge (alpha > 0) helps")
