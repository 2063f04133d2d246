"""How often intervals of layer pairs hold the truth, where rows of a document depend on each other.

    python benchmarks/layer_pair_coverage.py                some minutes, one thread
    python benchmarks/layer_pair_coverage.py --measures jaccard cka --cells 64x16 --shares 0 .5 --runs 100

Two models have half of the variance of their latent variables in common, see `dependence`. The truth is the value of
very many documents whose rows do not depend on each other. What is done is in --out, not done again.
"""

from __future__ import annotations

import argparse
import itertools
import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from dependence import LENGTHS, Records, Scattered, scattered

from thinkalike.config import MeasureConfig
from thinkalike.contrib.court.likeness import DirectionSums, Foreseen, whitening
from thinkalike.contrib.court.regression import RegressionMoments
from thinkalike.contrib.court.tokens_alone import AHEAD
from thinkalike.instruments.layer_pairs.declared import DECLARED
from thinkalike.instruments.layer_pairs.outputs import OUTPUTS
from thinkalike.measures import Estimate, LayerMeans, LayerMeasure, cka_measure, mutual_measure
from thinkalike.measures.estimates import PARTS
from thinkalike.measures.layer_means import Accumulator

DIRECTIONS = ("cca", "cca_least", "r2_output")  # of a stitch, see `DirectionSums`; the output is the first dimension
MEASURES: dict[str, LayerMeasure] = {
    "cka": cka_measure(),
    **{kind: each.measure(MeasureConfig.schemas[kind]()) for kind, each in (DECLARED | OUTPUTS).items()},
    **dict.fromkeys(("future", *DIRECTIONS), cka_measure()),  # in whose place stand others, see `layer_pair`
    "cka given token": cka_measure(),
    "mutual_knn given token": mutual_measure(5),
}
ROWS, COMMON = 64, 0.5  # of a batch, and the share of the variance that both models have in common
FITTED = 1024  # rows that the maps of directions are fitted on, the same in all data sets
VOCABULARY = 8
CODES, KNOWN = 4, 0.3  # of a token ahead, and what a surprise has of the source's state
CHUNK = 20  # data sets that are kept together


def layer_pair(name: str, batches: int, documents: int, share: float, lengths: str, seed: int) -> Estimate:
    """Return a measure of one layer of each of two models, whose maps are always the same."""
    vocabulary = VOCABULARY if name.endswith("given token") else 0
    rows = ROWS * batches * (2 if vocabulary else 1)

    def drawn(rows: int, documents: int, share: float, seed: int) -> Scattered:
        chance, maps = (torch.Generator().manual_seed(each) for each in (seed, 1))
        options = {"lengths": lengths, "common": COMMON, "vocabulary": vocabulary, "same_maps": name in OUTPUTS}
        return scattered(rows, documents, share, chance, maps=maps, **options)

    means: Accumulator = LayerMeans(1, 1, MEASURES[name], given="token" if vocabulary else "none")
    if name in DIRECTIONS:
        moments, found = moments_of(drawn(FITTED, FITTED, 0.0, 1)), drawn(rows, documents, share, seed)
        known = moments.of((0, 0))
        x, y = (whitening(each / (known.n - 1)) for each in (known.xx, known.yy))
        sums = DirectionSums(moments, (0, 0), (x, y), torch.eye(len(known.yy))[:, :1].double())
        sums.judge(found.source[0], found.target[0], found.documents % PARTS)
        return sums.compute(len(found.documents.unique()))[name]
    if name == "future":
        return future(drawn(FITTED, FITTED, 0.0, 1), drawn(rows, documents, share, seed), share, seed)
    found = drawn(rows, documents, share, seed)
    for part in torch.arange(rows).chunk(batches):
        groups = {"groups": found.tokens[part]} if vocabulary else {}
        means.update([found.source[0][part]], [found.target[0][part]], documents=found.documents[part], **groups)
    return means.compute()


def moments_of(fitted: Scattered) -> RegressionMoments:
    """Return the moments of rows to fit on."""
    moments = RegressionMoments([(0, 0)])
    moments.update(fitted.source, fitted.target, fitted.documents)
    return moments


def future(fitted: Scattered, judged: Scattered, share: float, seed: int) -> Estimate:
    """Return what the source foresees of surprises that are its own states and noise."""
    sums = Foreseen(moments_of(fitted))
    states = [({0: side.source[0]}, {0: side.target[0]}) for side in (fitted, judged)]
    sums.fit(*states[0], surprises(fitted, 0.0, 1), fitted.documents)
    sums.judge(*states[1], surprises(judged, share, seed), judged.documents % PARTS)
    return sums.result(len(judged.documents.unique()))[0]


def surprises(side: Scattered, share: float, seed: int) -> torch.Tensor:
    """Return surprises, (n, `AHEAD` x `CODES`)."""
    chance, owners = torch.Generator().manual_seed(seed + 2), side.documents.unique(return_inverse=True)[1]
    own, of_documents = (
        torch.randn(n, AHEAD * CODES, generator=chance).double() for n in (len(owners), int(owners.max()) + 1)
    )
    noise = math.sqrt(1 - share) * own + math.sqrt(share) * of_documents[owners]
    return KNOWN * side.source[0][:, : AHEAD * CODES] + noise


def show(options: Any) -> None:
    """Print how often intervals of layer pairs hold the value at very many documents, whose rows do not depend.

    Intervals that have no ends, for too few documents of equal length, are counted apart.
    """
    print("| measure | documents, batches | lengths |", " | ".join(map(str, options.shares)), "| all | none |")
    print("|---" * (5 + len(options.shares)), "|", sep="")
    records = Records(options.out)
    for cell, name, lengths in itertools.product(options.cells, options.measures, options.lengths):
        documents, batches = map(int, cell.split("x"))
        many = {"measure": name, "truth": True}
        truth = records.of(many, lambda name=name: [float(layer_pair(name, 300, 10**6, 0.0, "equal", 2).value)])
        held: list[list[bool]] = []
        for share in options.shares:
            held.append([])
            for start in range(1, options.runs + 1, CHUNK):
                key = {"measure": name, "cell": cell, "lengths": lengths, "share": share, "start": start}
                drawn = partial(layer_pair, name, batches, documents, share, lengths)
                runs = records.of(key, lambda f=drawn, s=start: [list(map(float, f(s + n))) for n in range(CHUNK)])
                known = [(low, high) for _, low, high in runs["runs"] if math.isfinite(high)]
                held[-1] += [low <= truth["runs"][0] <= high for low, high in known]
        shares = [f"{100 * np.mean(each):.1f}" if each else "" for each in (*held, list(itertools.chain(*held)))]
        none = 1 - sum(map(len, held)) / len(held) / (-(-options.runs // CHUNK) * CHUNK)
        print(f"| {name} | {cell.replace('x', ', ')} | {lengths} |", " | ".join(shares), f"| {none:.0%} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", nargs="+", default=["20x4", "64x16"], help="documents x batches of 64 rows")
    parser.add_argument("--measures", nargs="+", choices=MEASURES, default=list(MEASURES))
    parser.add_argument("--lengths", nargs="+", choices=LENGTHS, default=list(LENGTHS))
    parser.add_argument("--shares", nargs="+", type=float, default=[0, 0.1, 0.3, 0.5], help="that documents carry")
    parser.add_argument("--runs", type=int, default=CHUNK, help=f"data sets, rounded up to a multiple of {CHUNK}")
    parser.add_argument("--out", type=Path, default=Path("layer-pair-coverage.jsonl"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    show(options)


if __name__ == "__main__":
    main()
