"""What follows from the scores of courts: which judges rank what is alike above what is not, and what fools them.

A table has a row for each target, layer, seed and source, its `kind`, and a column for each judge. Only sources of one
court, that is of one target, layer and seed, are compared with each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.court.judges import DECOYS, JUDGES, Judge
from thinkalike.measures import Estimate, separation, spearman

ALIKE, REAL = ("same",), ("real",)
COURT = ["target", "layer", "seed"]


def judges_of(table: pd.DataFrame, kinds: Sequence[str] = ()) -> list[Judge]:
    """Return the judges that a table has columns of; with kinds, if it also has sources of these, and decoys of theirs.

    A court may hear some sources only.
    """
    heard = table["kind"].isin
    return [
        judge
        for judge in JUDGES
        if judge.name in table and (not kinds or (heard(kinds).any() and heard(judge.against).any()))
    ]


def scores(table: pd.DataFrame, judge: Judge, kinds: Sequence[str]) -> pd.DataFrame:
    """Return what a judge says of the sources of these kinds: a row for each court, a column for each source.

    More always means more alike: the sign of a judge for whom less does is turned.
    """
    chosen = table[table["kind"].isin(kinds)]
    values = chosen.pivot(index=COURT, columns="source", values=judge.name).dropna(axis=1)
    return values if judge.higher else -values


def ranking(table: pd.DataFrame, judge: Judge, kinds: Sequence[str]) -> Estimate:
    """Return the area under the ROC curve of sources of these kinds against decoys, with an interval over sources."""
    return separation(*(_tensor(scores(table, judge, each)) for each in (kinds, judge.against)))


def margin(table: pd.DataFrame, judge: Judge, kinds: Sequence[str]) -> float:
    """Return the least difference, over courts, of the worst source of these kinds and the best decoy.

    It is in the judge's unit, and positive where every one of them is above every decoy.
    """
    worst, best = scores(table, judge, kinds).min(axis=1), scores(table, judge, judge.against).max(axis=1)
    return float((worst - best).min())


def fooled(table: pd.DataFrame, judge: Judge, kinds: Sequence[str]) -> list[str]:
    """Return the decoys that a judge ranks above the worst source of these kinds in some court."""
    worst, decoys = scores(table, judge, kinds).min(axis=1), scores(table, judge, judge.against)
    return [str(name) for name in decoys if (decoys[name] >= worst).any()]


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each judge: areas, margins and who fools it, of `same` and of `real` sources against decoys."""
    rows: dict[Judge, dict[str, object]] = {}
    for prefix, kinds in (("", ALIKE), ("real_", REAL)):
        for judge in judges_of(table, kinds):
            against = "every decoy" if judge.against == DECOYS else f"every decoy of kind {', '.join(judge.against)}"
            row = rows.setdefault(judge, {"judge": judge.name, "higher_is_alike": judge.higher, "decoys": against})
            area = ranking(table, judge, kinds)
            row |= {f"{prefix}auc": float(area.value), f"{prefix}auc_low": float(area.low)}
            row |= {f"{prefix}auc_high": float(area.high), f"{prefix}margin": margin(table, judge, kinds)}
            row[f"{prefix}fooled_by"] = ", ".join(fooled(table, judge, kinds))
    return pd.DataFrame(list(rows.values()))


def doses(table: pd.DataFrame) -> pd.DataFrame:
    """Return what each judge says of each dose, as the mean over courts, and Spearman's ρ of dose and likeness.

    It has no rows where there are no two doses.
    """
    rows: list[dict[str, object]] = []
    for judge in judges_of(table) if table["source"][table["kind"] == "dose"].nunique() > 1 else []:
        values = scores(table, judge, ["dose"])
        shares = [float(str(name).split()[0]) for name in values]
        order = sorted(range(len(shares)), key=lambda place: shares[place])
        mean = values.mean().iloc[order]
        given = torch.tensor([shares[place] for place in order], dtype=torch.float64)
        rho = spearman(given, torch.from_numpy(mean.to_numpy(copy=True)))
        rows += [
            {"judge": judge.name, "own_share": shares[place] / 100, "value": value * (1 if judge.higher else -1),
             "rank_correlation": float(rho)}
            for place, value in zip(order, mean, strict=True)
        ]  # fmt: skip
    return pd.DataFrame(rows)


def thresholds(table: pd.DataFrame) -> dict[str, float]:
    """Return by judge the value that best tells what is alike from decoys: the middle of the worst and the best.

    Where they overlap it is the middle of the overlap. It is in the judge's own unit and direction.
    """
    found = {}
    for judge in judges_of(table, ALIKE):
        alike, decoys = (scores(table, judge, kinds).to_numpy(dtype=float) for kinds in (ALIKE, judge.against))
        found[judge.name] = float(alike.min() + decoys.max()) / 2 * (1 if judge.higher else -1)
    return found


def transferred(table: pd.DataFrame, limits: Mapping[str, float]) -> pd.DataFrame:
    """Return which shares of alike sources and of decoys fall on the right side of thresholds from other targets."""
    rows = []
    for judge in judges_of(table, ALIKE):
        limit = limits[judge.name] * (1 if judge.higher else -1)
        right = {"alike": scores(table, judge, ALIKE) > limit, "decoys": scores(table, judge, judge.against) <= limit}
        shares = {name: float(each.to_numpy().mean()) for name, each in right.items()}
        rows.append({"judge": judge.name, "threshold": limits[judge.name], **shares})
    return pd.DataFrame(rows)


def _tensor(values: pd.DataFrame) -> Float[Tensor, "c s"]:
    return torch.from_numpy(values.to_numpy(dtype=float, copy=True))
