"""Draw docs/images/lineage-null.png: the null of the test of lineage, beside independent models.

python docs/make_lineage.py

All pairs of blocks of bundled models that share no origin are tested, about 3,500 pairs in half a
minute. The upper panel has the number of units in place, the lower one the p-values in order.
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import torch
from scipy.stats import kstest

from thinkalike.figures.style import COLUMN, canvas, save
from thinkalike.instruments.lineage.comparison import PairOfBlocks, compare_models
from thinkalike.measures.lineage import log_tail_of_positions
from thinkalike.measures.seeds import seeded
from thinkalike.models.checkpoints import ASSETS
from thinkalike.models.model_config import configured
from thinkalike.models.units import open_units

IMAGES = Path(__file__).parent / "images"
MOST_IN_PLACE = 6

# Bundled models that were made of each other, or began with the same weights of blocks.
RELATED = (
    {"bert-mini", "bert-mini-nli"},
    {"neox-5l-mini", "neox-5l-odd-mini"},
    {"gelu-3l-mini", "gelu-4l-mini", "solu-3l-mini", "solu-4l-mini"},
    {"gelu-3l-mini-s1", "solu-3l-mini-s1"},
)


def independent_pairs() -> list[PairOfBlocks]:
    """Return the pairs of blocks of all pairs of bundled models without a common origin."""
    names = sorted(folder.name for folder in ASSETS.iterdir() if folder.is_dir())
    models = [open_units(configured(name, {}), name) for name in names]
    pairs: list[PairOfBlocks] = []
    for source, target in itertools.combinations(models, 2):
        if any({source.name, target.name} <= group for group in RELATED):
            continue
        tests = len(source.units) * len(target.units)
        pairs += compare_models(source, target, tests, similar_units=False).pairs
    return pairs


def main() -> None:
    pairs = independent_pairs()
    by_position = [pair.test for pair in pairs if pair.test.by == "position"]
    counts = range(MOST_IN_PLACE + 1)
    observed = [sum(test.in_place == count for test in by_position) for count in counts]
    expected = []
    for count in counts:
        probability = 0.0
        for pair in pairs:
            if pair.test.by == "position":
                units = pair.source.units
                at_least = log_tail_of_positions(count, pair.test.matched, units)
                more = log_tail_of_positions(count + 1, pair.test.matched, units)
                probability += math.exp(at_least) - math.exp(more)
        expected.append(probability)

    uniform = torch.rand(len(pairs), generator=seeded(0)).tolist()
    p_values = sorted(pair.test.randomised_p(number) for pair, number in zip(pairs, uniform, strict=True))
    below = sum(p < 0.05 for p in p_values) / len(p_values)
    with canvas(COLUMN, 4.6, 2, 1) as (figure, (left, right)):
        left.bar(counts, observed, color="#56b4e9", label="independent models")
        left.plot(counts, expected, "o", color="#d55e00", markersize=4, label="random orders, by counting")
        title = f"{len(by_position):,} pairs of blocks of equal width"
        left.set(xlabel="units in place", ylabel="pairs of blocks", title=title)
        left.legend()
        right.plot([0, 1], [0, 1], color="#7f7f7f", linewidth=1, label="uniform distribution")
        ranks = [(rank + 0.5) / len(p_values) for rank in range(len(p_values))]
        right.plot(ranks, p_values, color="#0072b2", label="independent models")
        right.legend()
        title = f"{len(p_values):,} pairs of blocks: {100 * below:.1f} % have p < 0.05"
        right.set(xlabel="share of pairs of blocks", ylabel="randomised p-value", title=title)
        save(figure, IMAGES, "lineage-null")
    (IMAGES / "lineage-null.svg").unlink(missing_ok=True)
    print(f"{len(pairs)} pairs; in place {observed}, expected {[round(value) for value in expected]}; {below:.4f}")
    print(f"Kolmogorov-Smirnov p = {kstest(p_values, 'uniform').pvalue:.2f}")


if __name__ == "__main__":
    main()
