"""Every measure of layer pairs on 13 x 13 layers of one batch, n = 1024, d = 768, beside its floor.

    python benchmarks/similarity.py             one CPU thread, some minutes
    python benchmarks/similarity.py --measures cka distance_correlation jaccard --turns 5

Layers are prepared once, and then all pairs are compared. The floor is the operations that the definition cannot do
without, at the peak of a large float32 product measured in the same turns: Gram matrices (half of each, as they are
symmetric), products of layers, singular values (8/3 d³) and eigenvectors (9 d³, Golub & Van Loan), products of all
pairs. Soft matching's assignments and the sorting of ranks have no operations of a product and count nothing. Measures
of logits are of one pair of 1024 x 50,257, and their floor is reading both once, at the speed of a copy in these turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from thinkalike.config import MeasureConfig
from thinkalike.contrib.kin.instruments import DECLARED as KIN
from thinkalike.contrib.kin.instruments import OUTPUTS
from thinkalike.instruments.layer_pairs.declared import DECLARED
from thinkalike.measures import cka_measure

LAYERS, N, D, VOCABULARY, PEAK = 13, 1024, 768, 50257, 2048
PAIRS = LAYERS**2


GRAMS = 2 * LAYERS * N**2 * D  # half of 2 n² d each
ALL_PAIRS = PAIRS * 2 * N**2
LAYER_PRODUCTS = PAIRS * 2 * N * D**2
OPERATIONS = {
    "cka": GRAMS + ALL_PAIRS,
    "token_rsa": GRAMS + ALL_PAIRS,
    "distance_correlation": GRAMS + ALL_PAIRS,
    "procrustes": LAYER_PRODUCTS + PAIRS * 8 / 3 * D**3,
    "svcca": 2 * LAYERS * (N * D**2 + 9 * D**3) + LAYER_PRODUCTS + PAIRS * 8 / 3 * D**3,
    "soft_matching": LAYER_PRODUCTS,
    "mutual_knn": GRAMS,
    "jaccard": GRAMS,
    "second_order_cosine": GRAMS,
}


def activations() -> tuple[list[Tensor], list[Tensor]]:
    """Return layers that share a part, as those of models do."""
    generator = torch.Generator().manual_seed(0)
    shared = torch.randn(N, 64, generator=generator)
    layers = [
        shared @ torch.randn(64, D, generator=generator) / 8 + torch.randn(N, D, generator=generator)
        for _ in range(2 * LAYERS)
    ]
    return layers[:LAYERS], layers[LAYERS:]


def seconds(call: Callable[[], object]) -> float:
    """Return the time of the processor, so that other work on the machine counts little."""
    start = time.process_time()
    call()
    return time.process_time() - start


def floors(peak: float, copied: float) -> dict[str, float]:
    """Return the least seconds of every measure; `copied` is those of a copy of one model's logits."""
    return {name: count / peak for name, count in OPERATIONS.items()} | dict.fromkeys(OUTPUTS, copied)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    own = {kind: each.measure(MeasureConfig.schemas[kind]()) for kind, each in (DECLARED | KIN | OUTPUTS).items()}
    measures = {"cka": cka_measure(), **own}
    parser.add_argument("--measures", nargs="+", choices=measures, default=list(measures))
    parser.add_argument("--turns", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    sources, targets = activations()
    logits = [torch.randn(N, VOCABULARY, generator=torch.Generator().manual_seed(seed)) for seed in range(2)]
    square, times = torch.randn(PEAK, PEAK), {name: [] for name in ("peak", "copy", *options.measures)}
    for _ in range(options.turns):
        times["peak"].append(seconds(lambda: square @ square))
        times["copy"].append(seconds(lambda: logits[0].clone()))
        for name in options.measures:
            sides = (logits[:1], logits[1:]) if name in OUTPUTS else (sources, targets)
            times[name].append(seconds(lambda name=name, sides=sides: measures[name].matrix(*sides)))
    found = {name: statistics.median(each) for name, each in times.items()}
    peak = 2 * PEAK**3 / found["peak"]
    print(f"peak of a float32 product: {peak / 1e9:.0f} GFLOP/s; {options.turns} turns, medians\n")
    print("| measure | seconds | floor | times its floor |\n|---|---|---|---|")
    least = floors(peak, found["copy"])
    for name in options.measures:
        print(f"| {name} | {found[name]:.2f} | {least[name]:.2f} | {found[name] / least[name]:.1f} |")


if __name__ == "__main__":
    main()
