"""The judges of a court: a line each, with what they say of a source's evidence, and whether more means more alike.

A table of a court has a row for each target, layer, seed and source, its `kind`, and a column for each judge. Only
sources of one target, layer and seed are compared with each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from thinkalike.contrib.court import verdicts as sentences
from thinkalike.contrib.court.evidence import Evidence, profile_likeness
from thinkalike.measures.distances.ranks import spearman
from thinkalike.measures.distances.rsa import rsa
from thinkalike.measures.kernel_alignment import cka
from thinkalike.measures.neighbours import mutual_knn

NEIGHBOURS = 10
PROFILED = 512  # tokens whose features an MLEM profile is of
DECOYS = ("answers", "n-gram", "token", "position", "bag", "delay", "leak", "untrained", "shortcut", "wrong tokens")
ALIKE, REAL = ("same",), ("real",)
COURT = ["target", "layer", "seed"]


class Judge(NamedTuple):
    """A measure of likeness."""

    name: str  # what tables call it
    value: Callable[[Evidence], float]  # what it says of a source
    higher: bool  # whether more means more alike
    against: tuple[str, ...] = DECOYS  # the kinds of decoys that it is meant to tell from what is alike


def _over_samples(measure: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Evidence], float]:
    """Return the mean of a measure of all pairs of tokens over the bench's samples."""

    def value(evidence: Evidence) -> float:
        source, target = evidence.states
        values = [measure(source[sample], target[sample]) for sample in evidence.samples]
        return float(torch.stack(values).mean())

    return value


def _profile(evidence: Evidence) -> float:
    chosen = evidence.samples[0][:PROFILED]
    source, target = (side[chosen] for side in evidence.states)
    return profile_likeness(evidence.token_features[chosen], source, target, evidence.setting.number("MLEM profile"))


JUDGES = (
    Judge("penalty", lambda evidence: evidence.course.penalty, False),
    Judge("KL", lambda evidence: evidence.course.kl, False),
    Judge("distance", lambda evidence: evidence.course.distances[0], False),
    Judge("penultimate match", lambda evidence: evidence.course.distances[-1], False),
    Judge("latent alignment", lambda evidence: fmean(evidence.course.distances), False),
    Judge("CKA", lambda evidence: float(cka(*(states.double() for states in evidence.states))), True),
    Judge("mutual neighbours", _over_samples(partial(mutual_knn, k=NEIGHBOURS)), True),
    Judge("RSA", _over_samples(lambda source, target: rsa([source], [target])[0, 0]), True),
    Judge("MLEM profile", _profile, True),
    Judge("R²", lambda evidence: evidence.r2, True),
    Judge("residual R²", lambda evidence: evidence.residual_r2, True),
    Judge("later", lambda evidence: evidence.later, False, ("leak",)),
)


def verdicts(evidence: Evidence) -> dict[str, float]:
    """Return what each judge says of a source, by the judge's name, and the columns that `verdict` reads."""
    return {judge.name: judge.value(evidence) for judge in JUDGES} | evidence.columns


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


def margin(table: pd.DataFrame, judge: Judge, kinds: Sequence[str]) -> tuple[float, list[str]]:
    """Return the least difference, over courts, of the worst source of these kinds and the best decoy.

    It is in the judge's unit, and positive where every one of them is above every decoy. With it come the decoys that
    the judge ranks above the worst source in some court.
    """
    worst, decoys = scores(table, judge, kinds).min(axis=1), scores(table, judge, judge.against)
    above = [str(name) for name in decoys if (decoys[name] >= worst).any()]
    return float((worst - decoys.max(axis=1)).min()), above


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each judge: areas under the ROC curve of `same` and of `real` sources against decoys.

    Beside them stand margins, and who fools the judge. They have no intervals, as sources are listed and not sampled.
    """
    rows: dict[Judge, dict[str, object]] = {}
    for prefix, kinds in (("", ALIKE), ("real_", REAL)):
        for judge in judges_of(table, kinds):
            against = "every decoy" if judge.against == DECOYS else f"every decoy of kind {', '.join(judge.against)}"
            row = rows.setdefault(judge, {"judge": judge.name, "higher_is_alike": judge.higher, "decoys": against})
            area = auc(*(scores(table, judge, each).to_numpy(float) for each in (kinds, judge.against)))
            least, above = margin(table, judge, kinds)
            row |= {f"{prefix}auc": area, f"{prefix}margin": least, f"{prefix}fooled_by": ", ".join(above)}
    return pd.DataFrame(list(rows.values()))


def doses(table: pd.DataFrame) -> pd.DataFrame:
    """Return what each judge says of each dose, as the mean over courts, and Spearman's ρ of dose and likeness.

    It has no rows where there are no two doses.
    """
    rows: list[tuple[str, float, float, float]] = []
    similarity = [judge for judge in judges_of(table) if judge.against == DECOYS]
    for judge in similarity if table["source"][table["kind"] == "dose"].nunique() > 1 else []:
        values = scores(table, judge, ["dose"]).mean()
        said = sorted((float(str(name).split()[0]), value) for name, value in values.items())
        rho = float(spearman(*torch.tensor(said, dtype=torch.float64).T))
        rows += [(judge.name, share / 100, value * (1 if judge.higher else -1), rho) for share, value in said]
    return pd.DataFrame(rows, columns=["judge", "own_share", "value", "rank_correlation"])


WITHOUT_CONTEXT = ("token", "position", "bag", "untrained", "shortcut")
RIGHT = {  # the verdicts that are right of a kind; of other trained models it is an open question
    "same": (sentences.SAME,),
    "near": (sentences.SAME, sentences.SIMILAR),
    "part": (sentences.PART,),
    "superset": (sentences.SUPERSET, sentences.SIMILAR),  # beside large noise, ridge finds less than 95 %
    "leak": (sentences.LEAK,),
    **dict.fromkeys(("distorted", "answers"), (sentences.SIMILAR,)),
    **dict.fromkeys(("layer", "mixture"), (sentences.PART, sentences.SIMILAR)),
    **dict.fromkeys(("scaled", "wrong tokens"), (sentences.BEYOND,)),
    **dict.fromkeys(("n-gram", "delay"), (sentences.MIXING, sentences.SIMILAR)),
    **dict.fromkeys(WITHOUT_CONTEXT, (sentences.MIXING,)),
}


def sentenced(table: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each source of each court, with its verdict, and whether that is right of its kind; None: open.

    Where nothing was decided, nothing is right or wrong either.
    """
    rows = []
    for row in table.to_dict("records"):
        word = sentences.verdict(row)
        is_open = row["kind"] not in RIGHT or word == sentences.UNDECIDED
        right = None if is_open else word in RIGHT[row["kind"]]
        rows.append({**{name: row[name] for name in (*COURT, "source", "kind")}, "verdict": word, "right": right})
    return pd.DataFrame(rows)


def shares(found: pd.DataFrame) -> pd.DataFrame:
    """Return for each kind how many sources were judged, decided and right, and what was said of them."""
    rows = []
    for kind, own in found[found["kind"].isin(RIGHT)].groupby("kind", sort=False):
        decided = own[own["verdict"] != sentences.UNDECIDED]
        said = ", ".join(f"{verdict} {count}" for verdict, count in own["verdict"].value_counts().items())
        right = float(decided["right"].astype(float).mean()) if len(decided) else math.nan
        rows.append((kind, len(own), len(decided) / len(own), right, said))
    return pd.DataFrame(rows, columns=["kind", "sources", "decided", "right", "verdicts"])


def auc(upper: np.ndarray, lower: np.ndarray) -> float:
    """Return the share of pairs in a row in which the member of the upper group has the greater value, in [0, 1].

    Ties count as half. It is the area under the ROC curve (Hanley & McNeil 1982), ½ by chance, averaged over the rows.
    A group that somebody listed is no sample, so there is no interval. NaN is a ValueError.
    """
    from scipy.stats import mannwhitneyu  # takes half a second to import

    found = mannwhitneyu(upper, lower, axis=1, method="asymptotic", nan_policy="raise").statistic
    return float(found.sum() / (upper.size * lower.shape[1]))
