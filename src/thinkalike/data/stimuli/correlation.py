"""How strongly features go together over all pairs of stimuli."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd

from thinkalike.data.stimuli.columns import joint_codes
from thinkalike.errors import DataError


@dataclass(frozen=True, eq=False)
class FeatureCorrelation:
    """The correlations of all features with all."""

    table: pd.DataFrame  # (f, f), rows and columns named

    def strongest(self, k: int) -> list[tuple[str, str, float]]:
        """Return the k pairs of features whose correlation is furthest from 0, the strongest first."""
        names, values = list(map(str, self.table)), self.table.to_numpy()
        pairs = [(names[i], names[j], float(values[i, j])) for i, j in combinations(range(len(names)), 2)]
        return sorted(pairs, key=lambda pair: -abs(pair[2]))[:k]


def correlate_features(features: pd.DataFrame, source: str) -> FeatureCorrelation:
    """Return the Pearson correlation of Δ_f and Δ_g over all pairs i < j of stimuli, for all features f and g.

    Δ_f(i, j) = 1[f_i ≠ f_j], and NaN equals NaN only. The Δ are the regressors of a metric-learning encoding model, so
    this says which features it can hardly tell apart (Salle et al. 2024, figure S5, which does not say what of a
    category it correlates). No pair is formed: those alike in both features are Σ c(c-1)/2 over the counts c of their
    joint levels.

    Args:
        source: what the message of an error begins with.

    Raises:
        DataError: a feature is alike in all pairs, or different in all.
    """
    names = list(map(str, features))
    alike = np.array([[_pairs_alike(features[[f, g]]) for g in names] for f in names])
    alike /= max(len(features) * (len(features) - 1) / 2, 1)
    share = alike.diagonal()
    for name, value in zip(names, share, strict=True):
        if not 0 < value < 1:
            which = (
                "has one level, so leave it out"
                if value
                else "differs between all stimuli; group its values or leave it out"
            )
            raise DataError(f"{source}: {name} {which}: it correlates with nothing")
    deviation = np.sqrt(share * (1 - share))
    correlation = (alike - np.outer(share, share)) / np.outer(deviation, deviation)
    return FeatureCorrelation(pd.DataFrame(correlation, names, names))


def _pairs_alike(features: pd.DataFrame) -> float:
    counts = np.bincount(joint_codes(features)).astype(float)
    return float((counts * (counts - 1) / 2).sum())
