"""Balanced samples: every combination of some features comes equally often."""

from __future__ import annotations

import numpy as np
import pandas as pd
from jaxtyping import Int

from thinkalike.data.stimuli.columns import joint_codes
from thinkalike.errors import DataError


def balanced_rows(features: pd.DataFrame, n: int, seed: int, source: str) -> Int[np.ndarray, " n"]:
    """Draw n rows without repetition and return their numbers in order.

    Args:
        features: those to balance; every combination that occurs comes equally often, up to one.
        source: what the message of an error begins with.

    Raises:
        DataError: a combination is too rare.
    """
    cell = joint_codes(features)
    counts = np.bincount(cell)
    most = len(counts) * counts.min() + (counts > counts.min()).sum()
    if n > most:
        rarest = features.iloc[np.flatnonzero(cell == counts.argmin())[0]]
        raise DataError(
            f"{source}: only {counts.min()} stimuli have "
            + ", ".join(f"{name}={value}" for name, value in rarest.items())
            + f", so n={n} cannot be had in {len(counts)} equal parts; n={most} can, or balance fewer features"
        )
    rng = np.random.default_rng(seed)
    share, extra = divmod(n, len(counts))
    wanted = np.full(len(counts), share)
    wanted[rng.permutation(np.flatnonzero(counts > share))[:extra]] += 1
    shuffled = rng.permutation(len(features))
    chosen = [shuffled[cell[shuffled] == number][:count] for number, count in enumerate(wanted)]
    return np.sort(np.concatenate(chosen))
