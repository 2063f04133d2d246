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
from similarity import every_measure, of_outputs

from thinkalike.measures import CKAMeasure, Estimate, LayerMeans, MutualKNN
from thinkalike.measures.accumulator import Accumulator
from thinkalike.measures.contract import AnyMeasure

MEASURES: dict[str, AnyMeasure] = {
    **every_measure(),
    "cka given token": CKAMeasure(),
    "mutual_knn given token": MutualKNN(5),
}
ROWS, COMMON = 64, 0.5  # of a batch, and the share of the variance that both models have in common
VOCABULARY = 8
CHUNK = 20  # data sets that are kept together


def layer_pair(name: str, batches: int, documents: int, share: float, lengths: str, seed: int) -> Estimate:
    """Return a measure of one layer of each of two models, whose maps are always the same."""
    vocabulary = VOCABULARY if name.endswith("given token") else 0
    rows = ROWS * batches * (2 if vocabulary else 1)

    def drawn(rows: int, documents: int, share: float, seed: int) -> Scattered:
        chance, maps = (torch.Generator().manual_seed(each) for each in (seed, 1))
        options = {"lengths": lengths, "common": COMMON, "vocabulary": vocabulary, "same_maps": name in of_outputs()}
        return scattered(rows, documents, share, chance, maps=maps, **options)

    means: Accumulator = LayerMeans(1, 1, MEASURES[name], conditional_on="token" if vocabulary else "none")
    found = drawn(rows, documents, share, seed)
    for part in torch.arange(rows).chunk(batches):
        groups = {"groups": found.tokens[part]} if vocabulary else {}
        means.update([found.source[0][part]], [found.target[0][part]], documents=found.documents[part], **groups)
    return means.compute()


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
