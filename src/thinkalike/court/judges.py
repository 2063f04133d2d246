"""The judges of a court: a line each, with what they say of a source's evidence, and whether more means more alike.

A table of a court has a row for each target, layer, seed and source, its `kind`, and a column for each judge. Only
sources of one target, layer and seed are compared with each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor

from thinkalike.court.evidence import Evidence, profile_likeness
from thinkalike.evaluation.verdicts import STATED, Thresholds, verdict
from thinkalike.measures.bootstrapping import auc
from thinkalike.measures.distances.comparators import spearman
from thinkalike.measures.distances.representational_similarity import rsa
from thinkalike.measures.kernel_alignment import cka
from thinkalike.measures.neighbours import chance_share, mutual_knn
from thinkalike.measures.rows import RowGroups

NEIGHBOURS = 10
PROFILED = 512  # tokens whose features an MLEM profile is of
DECOYS = ("answers", "token", "leak", "untrained", "shortcut")
ALIKE, REAL = ("same",), ("real",)
COURT = ["target", "layer", "seed"]


class Judge(NamedTuple):
    """A measure of likeness.

    Attributes:
        name: what tables call it.
        value: what it says of a source.
        higher: whether more means more alike.
        against: the kinds of decoys that it is meant to tell from what is alike.
    """

    name: str
    value: Callable[[Evidence], float]
    higher: bool
    against: tuple[str, ...] = DECOYS


def _cka(evidence: Evidence) -> float:
    return float(cka(*(states.double() for states in evidence.states)))


def _over_samples(measure: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Evidence], float]:
    """Return the mean of a measure of all pairs of tokens over the bench's samples."""

    def value(evidence: Evidence) -> float:
        parts = [measure(*(side[part.to(side.device)] for side in evidence.states)) for part in evidence.bench.samples]
        return float(torch.stack(parts).mean())

    return value


def _neighbours_given_token(evidence: Evidence) -> float:
    """Return the share of neighbours among states of one token beyond chance; 0 where a token's states do not vary."""
    if not evidence.likeness["cka_given_token"]:
        return 0.0
    shares, levels, start = [], [], 0
    for part in evidence.bench.report:
        source, target = (side[start : start + len(part.own)] for side in evidence.states)
        shares.append(float(mutual_knn(source, target, NEIGHBOURS, part.tokens)))
        levels.append(chance_share(RowGroups.of(part.tokens, NEIGHBOURS + 2), NEIGHBOURS))
        start += len(part.own)
    share, level = sum(shares) / len(shares), sum(levels) / len(levels)
    return (share - level) / (1 - level)


def _profile(evidence: Evidence) -> float:
    """Return how alike the MLEM profiles are of a sample of tokens."""
    bench = evidence.bench
    chosen = bench.samples[0][:PROFILED]
    source, target = (side[chosen.to(side.device)] for side in evidence.states)
    return profile_likeness(bench.token_features[chosen], source, target, evidence.setting.number("MLEM profile"))


def _of(*names: str) -> Callable[[Evidence], float]:
    """Return the least of some measures of `Likeness`."""
    return lambda evidence: min(evidence.likeness[name] for name in names)


def _product(evidence: Evidence) -> float:
    """Return CKA given the token times R² given the token both ways, each at least 0."""
    least = _of("r2_given_token", "r2_given_token_back")(evidence)
    return max(least, 0.0) * max(evidence.likeness["cka_given_token"], 0.0)


JUDGES = (
    Judge("penalty", lambda evidence: evidence.trained.penalty, False),
    Judge("penalty, least squares", lambda evidence: evidence.start.penalty, False),
    Judge("KL", lambda evidence: evidence.trained.kl, False),
    Judge("KL, least squares", lambda evidence: evidence.start.kl, False),
    Judge("distance", lambda evidence: evidence.trained.distances[0], False),
    Judge("distance, least squares", lambda evidence: evidence.start.distances[0], False),
    Judge("penultimate match", lambda evidence: evidence.trained.distances[-1], False),
    Judge("latent alignment", lambda evidence: fmean(evidence.trained.distances), False),
    Judge("R² to the target", _of("r2"), True),
    Judge("R² to the source", _of("r2_back"), True),
    Judge("R², both ways", _of("r2", "r2_back"), True),
    Judge("CKA", _cka, True),
    Judge("mutual neighbours", _over_samples(partial(mutual_knn, k=NEIGHBOURS)), True),
    Judge("RSA", _over_samples(lambda source, target: rsa([source], [target])[0, 0]), True),
    Judge("MLEM profile", _profile, True),
    Judge("R² given the token, to the target", _of("r2_given_token"), True),
    Judge("R² given the token, to the source", _of("r2_given_token_back"), True),
    Judge("R² given the token, both ways", _of("r2_given_token", "r2_given_token_back"), True),
    Judge("CKA given the token", _of("cka_given_token"), True),
    Judge("mutual neighbours given the token", _neighbours_given_token, True),
    Judge("CKA and R² given the token", _product, True),
    Judge("future", _of("future"), False, ("leak",)),
)


def verdicts(evidence: Evidence) -> dict[str, float]:
    """Return what each judge says of a source, by the judge's name."""
    return {judge.name: judge.value(evidence) for judge in JUDGES}


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

    Each area has an interval over sources; beside them stand margins, and who fools the judge.
    """
    rows: dict[Judge, dict[str, object]] = {}
    for prefix, kinds in (("", ALIKE), ("real_", REAL)):
        for judge in judges_of(table, kinds):
            against = "every decoy" if judge.against == DECOYS else f"every decoy of kind {', '.join(judge.against)}"
            row = rows.setdefault(judge, {"judge": judge.name, "higher_is_alike": judge.higher, "decoys": against})
            sides = [scores(table, judge, each).to_numpy(dtype=float, copy=True) for each in (kinds, judge.against)]
            area = auc(*map(torch.from_numpy, sides))
            least, above = margin(table, judge, kinds)
            row |= {f"{prefix}auc{end}": float(part) for end, part in zip(("", "_low", "_high"), area, strict=True)}
            row |= {f"{prefix}margin": least, f"{prefix}fooled_by": ", ".join(above)}
    return pd.DataFrame(list(rows.values()))


def doses(table: pd.DataFrame) -> pd.DataFrame:
    """Return what each judge says of each dose, as the mean over courts, and Spearman's ρ of dose and likeness.

    It has no rows where there are no two doses.
    """
    rows: list[dict[str, object]] = []
    for judge in judges_of(table) if table["source"][table["kind"] == "dose"].nunique() > 1 else []:
        values = scores(table, judge, ["dose"]).mean()
        said = sorted((float(str(name).split()[0]), value) for name, value in values.items())
        rho = float(spearman(*torch.tensor(said, dtype=torch.float64).T))
        rows += [
            {"judge": judge.name, "own_share": share / 100, "value": value * (1 if judge.higher else -1)}
            | {"rank_correlation": rho}
            for share, value in said
        ]
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


COLUMNS = {  # of a stitching table, by the judge that says the same
    "r2": "R² to the target",
    "r2_back": "R² to the source",
    "r2_given_token": "R² given the token, to the target",
    "r2_given_token_back": "R² given the token, to the source",
    "cka_given_token": "CKA given the token",
    "future": "future",
    "penalty": "penalty",
}
ALONE = "token mean"  # the source that says what the current token alone costs
RIGHT = {  # the verdicts that are right of a kind; of other trained models it is an open question
    "same": ("same up to an affine map",),
    "answers": ("same answers",),
    "part": ("part of", "related"),
    "superset": ("superset of",),
    "token": ("token only", "different"),
    "leak": ("leak",),
    "untrained": ("different", "token only"),
    "shortcut": ("different", "token only"),
}


class _Rule(NamedTuple):
    """A threshold of the verdict parts the sources that it is meant for, by kind or name, from others."""

    meant: tuple[str, ...]
    others: tuple[str, ...]
    higher: bool = True  # whether those that it is meant for lie above it


ONE_TOKEN = (ALONE, "token code", "other context", "Gaussian given the token", "token alone")
RULES = {  # by the field of `Thresholds`
    "leak": _Rule(("leak",), ("same", "answers", "part", "superset", "token", "untrained", "shortcut", "real")),
    "same": _Rule(("same",), ("answers", "part", "superset", "token", "leak", "untrained", "shortcut", "real")),
    "related": _Rule(("real",), ("answers", "token", "untrained", "shortcut")),
    "token": _Rule(ONE_TOKEN, ("same", "answers", "part", "superset", "leak", "untrained", "real"), higher=False),
    "answers": _Rule(("answers",), ("token", "leak", "untrained", "shortcut"), higher=False),
}


def fitted_thresholds(table: pd.DataFrame) -> Thresholds:
    """Return thresholds that lie halfway between the sources that a rule is meant for and the nearest others.

    A threshold whose sources a table lacks is the stated one.
    """
    seen = pd.DataFrame(_rows(table), index=table.index)
    forth, back, cka = (seen[f"{name}_low"] for name in ("r2_given_token", "r2_given_token_back", "cka_given_token"))
    least, largest = pd.concat([forth, back], axis=1).min(axis=1), pd.concat([forth, back, cka], axis=1).max(axis=1)
    numbers = {
        "leak": seen["future_low"],
        "same": least,
        "related": least.clip(lower=0) * cka.clip(lower=0),
        "token": largest,
        "answers": seen["kl"] / seen["token_mean_penalty"],
    }
    found = {}
    for name, rule in RULES.items():
        sides = [numbers[name][table["kind"].isin(each) | table["source"].isin(each)] for each in rule[:2]]
        if len(sides[0]) and len(sides[1]):
            meant, other = sides if rule.higher else sides[::-1]
            found[name] = float(meant.min() + other.max()) / 2
    return STATED._replace(**found)


def sentenced(table: pd.DataFrame, thresholds: Thresholds = STATED) -> pd.DataFrame:
    """Return a row for each source of each court, with its verdict, and whether that is right of its kind.

    Points are judged, as intervals of a court's few tokens would leave much undecided.
    """
    rows = []
    for row, seen in zip(table.to_dict("records"), _rows(table), strict=True):
        found = verdict(seen, thresholds)
        right = found in RIGHT[row["kind"]] if row["kind"] in RIGHT else None
        rows.append({**{name: row[name] for name in (*COURT, "source", "kind")}, "verdict": found, "right": right})
    return pd.DataFrame(rows)


def _rows(table: pd.DataFrame) -> list[dict[str, float]]:
    """Return what `verdict` reads of each source."""
    alone = table[table["source"] == ALONE].set_index(COURT)["penalty"]
    rows = []
    for row in table.to_dict("records"):
        seen = {column: row[judge] for column, judge in COLUMNS.items()}
        ends = {f"{column}_{end}": value for column, value in seen.items() for end in ("low", "high")}
        losses = dict.fromkeys(
            ("stitching_loss", "target_loss", "source_loss"), math.nan
        )  # a source has no unembedding
        cost = alone[tuple(row[name] for name in COURT)]
        rows.append({**ends, **losses, "kl": row["KL"], "token_mean_penalty": cost})
    return rows
