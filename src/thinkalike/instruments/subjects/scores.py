"""Scores of models in subjects as tidy rows: with intervals, beside the noise ceiling, and against each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from torch import Tensor

from thinkalike.measures import ModelScores, NoiseCeiling, Scored, two_sided

CEILING = "noise ceiling"  # what comparisons call its lower end
Vectors = Sequence[Float[Tensor, "_ p"]]  # the distances in each layer, of each side


def ceiling_rows(found: NoiseCeiling, subjects: Sequence[str], recorded: Any) -> pd.DataFrame:
    """Return one row per subject: recorded, subject, lower, upper."""
    ends = {"lower": found.lower.cpu().numpy(), "upper": found.upper.cpu().numpy()}
    return pd.DataFrame({"recorded": recorded, "subject": list(subjects), **ends})


def score_columns(found: ModelScores, scored: Sequence[Scored], value: str = "value") -> dict[str, np.ndarray]:
    """Return the mean over subjects of each, its interval over subjects, that over stimuli, too, and p of 0.

    Without resamples the interval over both is left out, and p is of subjects alone.
    """
    rows: list[dict[str, float]] = []
    for each in scored:
        mean = found.over_subjects(each)
        row = {value: mean.value, "low": mean.low, "high": mean.high}
        if len(each.replicates):
            both = found.over_both(each)
            row |= {"both_low": both.estimate.low, "both_high": both.estimate.high, "p": both.p}
        else:
            count = len(each.values)
            row["p"] = two_sided(mean.value, each.values.std() / count**0.5, count - 1)
        rows.append({name: float(number) for name, number in row.items()})
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def layer_differences(found: ModelScores, layers: pd.DataFrame) -> pd.DataFrame:
    """Return one row for every two layers: model, layer, other, other_layer, and their paired difference.

    Args:
        layers: model, layer of each row of the scores.
    """
    pairs = list(combinations(range(len(layers)), 2))
    if not pairs:
        return pd.DataFrame()
    first, second = (layers.iloc[list(rows)].reset_index(drop=True) for rows in zip(*pairs, strict=True))
    table = first.assign(other=second["model"], other_layer=second["layer"])
    return table.assign(**score_columns(found, [found.of(a).minus(found.of(b)) for a, b in pairs], "difference"))


def best_of_models(found: ModelScores, layers: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the best layer of each model, and the differences of all of them and of the ceiling's lower end.

    Args:
        layers: model, layer of each row of the scores.
    """
    bests, rows = dict[str, Scored](), []
    for model, inside in layers.groupby("model", sort=False):
        bests[str(model)], chosen = found.best(inside.index.tolist())
        counted = Counter(str(layers["layer"][row]) for row in chosen.tolist())
        rows.append({"model": model, "layers": ", ".join(name for name, _ in counted.most_common())})
    table = pd.DataFrame(rows).assign(**score_columns(found, list(bests.values())))
    ceiling = found.of_ceiling()
    pairs = [(name, CEILING) for name in bests] + list(combinations(bests, 2))
    differences = [bests[name].minus(bests.get(other, ceiling)) for name, other in pairs]
    ends = pd.DataFrame(pairs, columns=["model", "other"]).assign(**score_columns(found, differences, "difference"))
    return table, ends
