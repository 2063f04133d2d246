"""Every measure of layer pairs on 13 x 13 layers of one batch, n = 1024, d = 768, beside its floor.

    python benchmarks/similarity.py             one CPU thread, some minutes
    python benchmarks/similarity.py --measures cka distance_correlation jaccard --turns 5

Layers are prepared once, and then all pairs are compared. The floor is what the definition cannot do without, at the
speed that the same turns find for it: products at the peak of a large one, in float64 where digits need it (half of
each Gram matrix, as these are symmetric; products of layers; products of all pairs), and one call of the library for
each sort of all distances of a layer, choice of neighbours, singular values, eigenvectors and assignment. Measures of
logits are of one pair of 1024 x 50,257: reading both once, and two exponentials and one logarithm of each entry.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping

import measuring
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from thinkalike.measures import CKAMeasure
from thinkalike.measures.contract import AnyMeasure
from thinkalike.measures.distances.ranks import in_ascending_order
from thinkalike.registry import OF_OUTPUTS, layer_measures

LAYERS, N, D, VOCABULARY, CACHED = 13, 1024, 768, 50257, 2**18
TIMES = 50  # that so few exponentials are computed, to be timed
COMPONENTS = 620  # that hold .99 of the variance of these layers
PAIRS = LAYERS**2

GRAMS = 2 * LAYERS * N**2 * D  # half of 2 n² d each
ALL_PAIRS = PAIRS * 2 * N**2
LAYER_PRODUCTS = PAIRS * 2 * N * D**2
OPERATIONS = {  # of products, by the precision that they need, and of other operations, calls but for exponentials
    "cka": {"float32": GRAMS + ALL_PAIRS},
    "token_rsa": {"float64": GRAMS + ALL_PAIRS, "sort": 2 * LAYERS},
    "distance_correlation": {"float64": GRAMS + ALL_PAIRS},
    "procrustes": {"float64": LAYER_PRODUCTS, "singular values": PAIRS},
    "svcca": {"float64": 2 * LAYERS * N * D**2, "eigenvectors": 2 * LAYERS, "singular values of fewer": PAIRS},
    "soft_matching": {"float64": LAYER_PRODUCTS, "assignment": PAIRS},
    "mutual_knn": {"float32": GRAMS, "choice": 2 * LAYERS},
    "jaccard": {"float32": GRAMS, "choice": 2 * LAYERS},
    "second_order_cosine": {"float32": GRAMS, "choice": 2 * LAYERS},
    "jsd": {"exponentials": 3 * N * VOCABULARY, "copy": 1},
    "disagreement": {"copy": 1},
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


def primitives(device: str = "cpu") -> dict[str, Callable[[], object]]:
    """Return what floors are made of, as calls to be timed."""
    double = {"dtype": torch.float64, "device": device}
    square, distances = torch.randn(D, D, **double), torch.rand(N * (N - 1) // 2, **double)
    likeness, gram, whole = square.cpu().numpy(), square.T @ square, torch.randn(N, VOCABULARY, device=device)
    similarity, logits = torch.randn(N, N, device=device), torch.randn(CACHED, device=device)
    made = torch.empty_like(logits)
    return {
        "float32": measuring.large_product(device=device),
        "float64": measuring.large_product(torch.float64, device),
        "sort": lambda: in_ascending_order(distances),
        "choice": lambda: similarity.topk(10, dim=1),
        "singular values": lambda: torch.linalg.svdvals(square),
        "singular values of fewer": lambda: torch.linalg.svdvals(square[:COMPONENTS, :COMPONENTS]),
        "eigenvectors": lambda: torch.linalg.eigh(gram),
        "assignment": lambda: linear_sum_assignment(likeness),
        "exponentials": lambda: [torch.exp(logits, out=made) for _ in range(TIMES)],
        "copy": whole.clone,
    }


def floors(times: Mapping[str, measuring.Times], device: str = "cpu") -> dict[str, float]:
    """Return the least seconds of every measure, from the times of `primitives`."""
    each = {name: found.median for name, found in times.items()}
    each |= {name: 1 / measuring.speed(each[name], device) for name in ("float32", "float64")}
    each["exponentials"] /= TIMES * CACHED
    return {name: sum(count * each[of] for of, count in needed.items()) for name, needed in OPERATIONS.items()}


def every_measure() -> dict[str, AnyMeasure]:
    """Return the measures of layer pairs that benchmarks are of, by name, with their defaults."""
    classes = {entry.kind: entry.load() for entry in layer_measures()}
    return {"cka": CKAMeasure(), **{kind: made() for kind, made in classes.items() if made.in_benchmarks}}


def of_outputs() -> set[str]:
    """Return the names of those that compare logits."""
    return {entry.kind for entry in layer_measures(OF_OUTPUTS)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    measures = every_measure()
    parser.add_argument("--measures", nargs="+", choices=measures, default=list(measures))
    parser.add_argument("--turns", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    sources, targets = activations()
    logits = [torch.randn(N, VOCABULARY, generator=torch.Generator().manual_seed(seed)) for seed in range(2)]
    work = primitives()
    for name in options.measures:
        sides = (logits[:1], logits[1:]) if name in of_outputs() else (sources, targets)
        work[name] = lambda name=name, sides=sides: measures[name].matrix(*sides)
    times = measuring.in_turn(work, options.turns)
    peaks = ", ".join(f"{measuring.speed(times[kind].median) / 1e9:.0f} in {kind}" for kind in ("float32", "float64"))
    print(f"GFLOP/s of a large product: {peaks}; {options.turns} turns, medians\n")
    print("| measure | seconds | floor | times its floor |\n|---|---|---|---|")
    least_seconds = floors(times)
    for name in options.measures:
        seconds = times[name].median
        if name in least_seconds:
            print(f"| {name} | {seconds:.2f} | {least_seconds[name]:.2f} | {seconds / least_seconds[name]:.1f} |")
        else:  # whose operations nobody has counted
            print(f"| {name} | {seconds:.2f} | | |")


if __name__ == "__main__":
    main()
