"""What an exact MLEM costs, beside the two ways to fit one so far: gradient steps on sampled pairs, and explicit pairs.

    python benchmarks/mlem.py                   one thread, five minutes
    python benchmarks/mlem.py --layers 0        without the last part, 39 layers

Every figure is from this one run, so that ratios hold on any machine; CPU seconds, as others may be using it.
Gradient steps: Adam, learning rate 0.1, 17,000 pairs per batch, at most 1000 steps, patience 50 (the hyperparameters
published with metric-learning encoding models), 1 - Pearson's r as loss; a single fit, without cross-validation.
Explicit pairs: scikit-learn's Ridge(positive=True) with given α.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from thinkalike.measures import MLEM, feature_importance, matrix_agreement, rsa, weighted_tau

LEVELS = (12, 3, 3, 6, 3, 4, 10, 2)  # of the features of Salle et al. 2024, table S1
BATCH, STEPS, PATIENCE, RATE = 17_000, 1000, 50, 0.1


def drawn(n: int, d: int, layers: int = 1) -> tuple[Tensor, list[Tensor]]:
    """A table of eight features, and layers that depend on them to different degrees, float32 as of a model."""
    generator = torch.Generator().manual_seed(0)
    table = torch.stack([torch.randint(levels, (n,), generator=generator) for levels in LEVELS], 1)
    made = []
    for _ in range(layers):
        states = torch.randn(n, d, generator=generator)
        for feature, levels in enumerate(LEVELS):
            weight = torch.rand((), generator=generator)
            states += weight * torch.randn(levels, d, generator=generator)[table[:, feature]]
        made.append(states)
    return table, made


def by_gradient(table: Tensor, states: Tensor) -> int:
    """Adam on batches of pairs until the loss has not improved for a while; the number of steps."""
    root = torch.ones(table.shape[1], requires_grad=True)
    optimizer, best, since = torch.optim.Adam([root], lr=RATE), float("inf"), 0
    for step in range(1, STEPS + 1):
        left, right = torch.randint(len(table), (2, BATCH))
        distances = (states[left] - states[right]).norm(dim=1)
        predicted = ((table[left] != table[right]).float() @ root.square()).clamp(min=1e-12).sqrt()
        loss = 1 - torch.corrcoef(torch.stack([predicted, distances]))[0, 1]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        since = 0 if float(loss) < best else since + 1
        best = min(best, float(loss))
        if since >= PATIENCE:
            return step
    return STEPS


def by_explicit_pairs(table: Tensor, states: Tensor) -> None:
    """scikit-learn, one fit with given α; pairs and min-max scaling included."""
    from scipy.spatial.distance import pdist
    from sklearn.linear_model import Ridge

    rows, columns = torch.triu_indices(len(table), len(table), 1)
    target = pdist(states.numpy(), "sqeuclidean")
    target = (target - target.min()) / (target.max() - target.min())
    Ridge(alpha=1.0, positive=True).fit((table[rows] != table[columns]).double().numpy(), target)


def seconds(call: Callable[[], object], rounds: int) -> float:
    """Median after a warm-up."""
    taken = []
    for _ in range(rounds + (rounds > 1)):
        start = time.process_time()
        call()
        taken.append(time.process_time() - start)
    return statistics.median(taken[rounds > 1 :])


def report(name: str, taken: float, unit: float) -> None:
    print(f"  {name:58s} {taken * 1000:10.1f} ms   {taken / unit:8.1f} x")


def peak(n: int, d: int) -> None:
    """Largest resident memory of a process of its own: Python, the data and a fit."""
    torch.set_num_threads(1)
    table = torch.stack([torch.randint(levels, (n,)) for levels in LEVELS], 1)
    states = torch.randn(n, d)
    MLEM(alpha=1.0).fit(table[:100], states[:100])
    before, start = resident(), time.process_time()
    MLEM(alpha=1.0).fit(table, states)
    taken = time.process_time() - start
    print(f"{n:,} stimuli, all {n * (n - 1) // 2:,} pairs: {taken:.1f} s, {resident():.2f} GB at most,", end=" ")
    print(f"of which {before:.2f} GB were there before the fit")


def resident() -> float:
    """Largest resident memory of this process so far in GB, on Linux."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stimuli", type=int, default=2000)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=39)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    table, (states,) = drawn(options.stimuli, options.width)
    print(f"{options.stimuli} stimuli, width {options.width}, 8 features, one thread")
    fit = seconds(lambda: MLEM(alpha=1.0).fit(table, states), options.rounds)
    report("exact fit of all pairs", fit, fit)
    report("the same, full W", seconds(lambda: MLEM(alpha=1.0, weights="full").fit(table, states), options.rounds), fit)
    levels = seconds(lambda: MLEM(alpha=1.0, difference="levels").fit(table, states), options.rounds)
    report("the same, a weight for every two levels", levels, fit)
    numbers = torch.randn(options.stimuli, len(LEVELS), dtype=torch.float64)
    scaled = seconds(lambda: MLEM(alpha=1.0, kinds="continuous").fit(numbers, states), options.rounds)
    report("the same, squared differences of eight continuous features", scaled, fit)
    report("explicit pairs, one fit", seconds(lambda: by_explicit_pairs(table, states), 1), fit)
    whole = seconds(lambda: feature_importance(MLEM(), table, states), max(1, options.rounds // 2))
    report("nested 5 x 5 cross-validation over 9 α, and importance", whole, whole)
    levels = seconds(lambda: feature_importance(MLEM(difference="levels"), table, states), 1)
    report("  the same, a weight for every two levels", levels, whole)
    steps: list[int] = []
    gradient = seconds(lambda: steps.append(by_gradient(table, states)), 1)
    report(f"gradient steps, one fit: stopped after {steps[-1]}", gradient, whole)
    report("  the same, all 1000", gradient / steps[-1] * STEPS, whole)
    process = multiprocessing.get_context("spawn").Process(target=peak, args=(20_000, options.width))
    process.start()
    process.join()
    if options.layers:
        many(options.layers)


def many(count: int) -> None:
    """All layers of the paper's three models, every number of its figure 2."""
    table, layers = drawn(1500, 768, count)
    start = time.process_time()
    found = feature_importance(MLEM(), table, layers)
    middle = time.process_time()
    agreement = matrix_agreement(weighted_tau(found.profile().value), rsa(layers))
    end = time.process_time()
    print(
        f"{count} layers of 1500 stimuli, width 768: {end - start:.1f} s, of which RSA {end - middle:.1f} s", end="; "
    )
    print(f"agreement of the two matrices {agreement:.2f}")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
