"""Operations of measures of stimuli: n stimuli, p = n (n - 1) / 2 pairs of them, k layers of width d."""

from __future__ import annotations

from collections.abc import Sequence

WORDS = 8  # tokens of a sentence of the grammars, about


def of_distances(n: int, widths: Sequence[int]) -> float:
    """Return 2 n² Σ d: the products of which the distances of all stimuli in every layer are made."""
    return 2.0 * n * n * sum(widths)


def of_similarity(n: int, layers: int, folds: int, permutations: int) -> float:
    """Return 2 p k² for the correlations of all layers' distances: of all stimuli, and without each fold of them.

    Mantel's test takes them once more, and once for every permutation.
    """
    pairs = n * (n - 1) / 2
    return 2.0 * pairs * layers**2 * (1 + folds + (permutations + 1 if permutations else 0))


def of_encoding(n: int, features: int, layers: int, folds: int, permutations: int, null: int = 0) -> float:
    """Return what explicit pairs would take to fit and to permute; sums by level take less.

    p f (f + 2 k) for the normal equations, of all stimuli and without each of the inner folds, of the whole and of each
    outer fold; and 2 p' f k for each prediction of the p' pairs of held-out stimuli: one, and one for every permutation
    of every feature.
    """
    pairs, held_out = n * (n - 1) / 2, (n / folds) * (n / folds - 1) / 2
    fits = (1 + folds) ** 2 * pairs * features * (features + 2 * layers)
    predictions = folds * (1 + features * permutations) * 2 * held_out * features * layers
    return (1 + null) * (fits + predictions)
