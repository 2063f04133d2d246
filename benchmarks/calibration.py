"""How often each measure of layer pairs calls models alike that are not, and finds likeness that was planted.

    python benchmarks/calibration.py                       a small part of the measures, some minutes, one thread
    python benchmarks/calibration.py --measures all --simulations 400 --shares 0 .1 .3 .5 --out calibration.jsonl

A simulation draws one batch of two models with nothing in common, or with a share of their latent variables in common,
see `dependence`. Rows of one document depend on each other; they are scattered at random over the batch. p comes from
`LayerMeans`. The share of p ≤ .05 is the rate of false positives of models with nothing in common, and else the power.
Given the token, both models have parts of their own for each of 16 tokens. What is done is in --out, not done again.
"""

from __future__ import annotations

import argparse
import itertools
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from dependence import LENGTHS, Records, scattered
from similarity import every_measure, of_outputs
from torch import Tensor

from thinkalike.measures import CKAMeasure, LayerMeans, LayerMeasure, MutualKNN
from thinkalike.measures.contract import AnyMeasure, ModelPairs, Pair

CHUNK = 20  # simulations that are kept together
LEVEL = 0.05
RIDGE = 0.01  # of held-out R², in units of the mean variance
VOCABULARY = 16
FEW = ["cka", "cka given token", "mutual_knn", "mutual_knn given token", "procrustes"]


class Halves(NamedTuple):
    """A layer whose first half of the rows fits maps, and whose second half judges them."""

    rows: Tensor
    fit: Tensor
    judged: Tensor
    inverse: Tensor


def halves(features: Tensor, name: str = "") -> Halves:
    """Return a layer prepared for held-out R²."""
    middle = len(features) // 2
    mean = features[:middle].mean(0)
    fit, judged = features[:middle] - mean, features[middle:] - mean
    gram = fit.T @ fit
    ridge = RIDGE * gram.trace() / len(gram) * torch.eye(len(gram), dtype=gram.dtype)
    return Halves(features, fit, judged, torch.linalg.inv(gram + ridge))


def held_out_r2(x: Halves, y: Halves) -> Tensor:
    """Return R² of the second half of the second layer by the first."""
    left = y.judged - x.judged @ (x.inverse @ (x.fit.T @ y.fit))
    return 1 - left.square().sum() / y.judged.square().sum()


@dataclass(frozen=True)
class HeldOutR2(LayerMeasure[Halves]):
    """R² of a map of the first layer onto the second, of rows that it was not fitted on."""

    is_symmetric = False

    def prepare(self, layer: Tensor, name: str) -> Halves:
        return halves(layer, name)

    def compare(self, first: Halves, second: Halves) -> Tensor:
        return held_out_r2(first, second)

    def reordered(self, prepared: Halves, order: Tensor) -> Halves:
        return halves(prepared.rows[order])


MEASURES: dict[str, AnyMeasure] = {
    **every_measure(),
    "r2": HeldOutR2(),
    "cka given token": CKAMeasure(),
    "mutual_knn given token": MutualKNN(5),
}


class OneBatch(LayerMeans):
    """Without the interval, which takes most of the time."""

    def _without_parts(
        self, measure: LayerMeasure, layers: Sequence[Any], rows: Any, model_pairs: ModelPairs
    ) -> dict[Pair, Tensor]:
        return {pair: each.expand(11, *each.shape) for pair, each in measure.compare_all(layers, model_pairs).items()}

    def _dependence(self, *_: Any) -> dict[Pair, Tensor]:
        return {}


def simulated(name: str, seed: int, key: dict[str, Any], common: float) -> tuple[float, float]:
    """Return p of the first layer pair and of the closest one of one simulation."""
    chance = torch.Generator().manual_seed(zlib.crc32(f"{sorted(key.items())} {seed}".encode()) + 1)
    given = "token" if name.endswith("given token") else "none"
    more = {"vocabulary": VOCABULARY} if given == "token" else {}
    rows, more["same_maps"] = key["rows"] * (4 if given == "token" else 1), name in of_outputs()
    names = ("documents", "share", "lengths", "width", "depth")
    drawn = scattered(rows, chance=chance, common=common, **{each: key[each] for each in names}, **more)
    means = OneBatch(key["depth"], key["depth"], MEASURES[name], key["permutations"], conditional_on=given)
    groups = {"groups": drawn.tokens} if given == "token" else {}
    try:
        means.update(drawn.source, drawn.target, documents=drawn.documents, **groups)
    except ValueError:  # chance alone is as close as can be, so nothing is called alike
        return 1.0, 1.0
    found = means.compute().chance
    assert found is not None
    return float(found.p[0, 0]), float(found.p_of_largest.min())


def run(options: Any) -> list[dict[str, Any]]:
    """Do what --out lacks, a few simulations at a time, and return everything that was asked for."""
    records, found = Records(options.out), []
    fixed = {name: getattr(options, name) for name in ("rows", "width", "depth", "permutations")}
    settings = itertools.product(options.measures, options.documents, options.lengths, options.shares)
    for name, documents, lengths, share in settings:
        for common, start in itertools.product({0.0, options.common}, range(0, options.simulations, CHUNK)):
            key = {"documents": documents, "lengths": lengths, "share": share, **fixed}
            whole = {"measure": name, **key, "common": common, "start": start}
            seeds = range(start, start + CHUNK)
            found.append(
                records.of(whole, lambda n=name, s=seeds, k=key, c=common: [simulated(n, seed, k, c) for seed in s])
            )
    return found


def interval(hits: int, n: int) -> str:
    """Return a share in per cent with its 95 % interval (Wilson 1927)."""
    share, z = hits / n, 1.96
    middle = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    return f"{100 * share:.1f} [{100 * max(middle - half, 0):.1f}, {100 * (middle + half):.1f}]"


def rate(records: Sequence[dict[str, Any]], place: int) -> str:
    """Return the share of simulations with p ≤ .05, and how many have no p; a dash where there was none."""
    values = [each[place] for record in records for each in record["runs"]]
    nothing = sum(map(math.isnan, values))
    hits = sum(value <= LEVEL + 1e-9 for value in values)
    return (interval(hits, len(values)) if values else "–") + f", {nothing} without p" * bool(nothing)


def show(records: Sequence[dict[str, Any]], options: Any) -> None:
    """Print a line for each measure and setting."""
    columns = ("false positives, %", "of the closest, %", "power, %", "of the closest, %", "s each")
    print("| measure | documents | lengths | share |", " | ".join(columns), "|")
    print("|---" * 9, "|", sep="")
    for row in itertools.product(options.measures, options.documents, options.lengths, options.shares):
        names = ("measure", "documents", "lengths", "share")
        mine = [record for record in records if tuple(record["key"][name] for name in names) == row]
        parts = [[record for record in mine if (record["key"]["common"] > 0) == alike] for alike in (False, True)]
        rates = " | ".join(rate(part, place) for part in parts for place in (0, 1))
        print(
            "|", " | ".join(map(str, row)), "|", rates, f"| {sum(r['seconds'] for r in mine) / len(mine) / CHUNK:.2f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measures", nargs="+", choices=[*MEASURES, "all"], default=FEW)
    parser.add_argument("--documents", nargs="+", type=int, default=[16, 64])
    parser.add_argument("--lengths", nargs="+", choices=LENGTHS, default=list(LENGTHS))
    parser.add_argument(
        "--shares", nargs="+", type=float, default=[0, 0.5], help="of the variance that documents carry"
    )
    parser.add_argument("--rows", type=int, default=128, help="of a batch; four times as many given the token")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--depth", type=int, default=1, help="layers of each model")
    parser.add_argument("--simulations", type=int, default=40, help=f"rounded up to a multiple of {CHUNK}")
    parser.add_argument("--permutations", type=int, default=19, help="19, 39, 99, ... make the level of 5 %% exact")
    parser.add_argument(
        "--common", type=float, default=0.0, help="share of the variance that is planted, for the power"
    )
    parser.add_argument("--out", type=Path, default=Path("calibration.jsonl"))
    options = parser.parse_args()
    options.measures = list(MEASURES) if "all" in options.measures else options.measures
    torch.set_num_threads(1)
    show(run(options), options)


if __name__ == "__main__":
    main()
