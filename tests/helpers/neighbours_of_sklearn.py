"""Neighbours given the token, by scikit-learn."""

import numpy as np
from sklearn.neighbors import NearestNeighbors


def by_sklearn(x, y, tokens, k):
    """Shares of neighbours among the rows of each token by scikit-learn, and what chance gives, over all rows."""
    shares, chances = [], []
    for token in tokens.unique():
        rows = (tokens == token).nonzero()[:, 0]
        if len(rows) < k + 2:
            continue
        sets = []
        for features in (x, y):
            search = NearestNeighbors(n_neighbors=k, metric="cosine", algorithm="brute").fit(features[rows].numpy())
            sets.append([set(row) for row in search.kneighbors(return_distance=False)])
        shares += [len(a & b) / k for a, b in zip(*sets, strict=True)]
        chances += [k / (len(rows) - 1)] * len(rows)
    return np.mean(shares), np.mean(chances), len(shares)
