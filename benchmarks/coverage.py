"""How often intervals over documents, over documents and seeds, over several layers, and over models hold the truth.

    python benchmarks/coverage.py               all four tables, one thread, some minutes
    python benchmarks/coverage.py --draws 20    the same from a tenth of the simulations, coarser

Documents are simulated as reports find them. Their lengths are equal, log-normal (σ 1.06, so that 45 documents weigh as
14.6 of equal length, as whole files of Python's standard library do), or log-normal and cut at 0.56 of the median, as
the beginnings that a report reads are. The mean of a document's tokens is skewed (log-normal, skewness 1.75), and its
tokens scatter about it. What an interval should hold is the mean per token of the whole population, Σ s / Σ n.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable

import numpy as np
import pandas as pd
import torch
from scipy.stats import norm
from torch import Tensor

from thinkalike.contrib.atlas.agreement import mean_over_models as of_atlas
from thinkalike.contrib.populations.group_means import grouped
from thinkalike.measures import (
    Estimate,
    bootstrap_interval,
    documents_and_seeds_interval,
    effective_number,
    student_t,
)

DOCUMENTS = (2, 4, 8, 20, 31, 45, 100, 200)
LENGTHS = ("equal", "bounded", "log-normal")
DATASETS = 25  # for each draw of lengths
MEDIAN, SPREAD, SKEW, APART, TOKEN = 3500.0, 1.06, 0.5, 0.1, 1.0  # tokens, σ of log tokens, σ of log means, nats, nats


def lengths(kind: str, n: int, chance: np.random.Generator) -> Tensor:
    """Return the number of tokens of each of n documents."""
    drawn = MEDIAN * np.exp(SPREAD * chance.normal(size=n))
    drawn = {"equal": np.full(n, MEDIAN), "bounded": np.minimum(drawn, 0.56 * MEDIAN), "log-normal": drawn}[kind]
    return torch.from_numpy(np.ceil(drawn))


def effects(shape: tuple[int, ...], chance: np.random.Generator) -> Tensor:
    """Return skewed effects of mean 0 and standard deviation `APART`."""
    drawn = np.exp(SKEW * chance.normal(size=shape))
    mean = np.exp(SKEW**2 / 2)
    return torch.from_numpy(APART * (drawn - mean) / (mean * np.sqrt(np.exp(SKEW**2) - 1)))


def noise(shape: tuple[int, ...], counts: Tensor, chance: np.random.Generator) -> Tensor:
    """Return the sums of the scatter of each document's tokens."""
    return TOKEN * counts.sqrt() * torch.from_numpy(chance.normal(size=shape))


# ------------------------------------------------------------------------------------- other intervals, to compare with


def resampled(sums: Tensor, counts: Tensor, seed: int) -> Tensor:
    """Return the ratio in each of 2000 resamples of documents."""
    n = len(counts)
    draws = torch.randint(n, (2000, n), generator=torch.Generator().manual_seed(seed))
    weights = torch.zeros(2000, n, dtype=torch.float64).scatter_add_(1, draws, torch.ones_like(draws).double())
    return (sums @ weights.T) / (weights @ counts)


def percentile(sums: Tensor, counts: Tensor, seed: int) -> Estimate:
    """Return the interval that holds 95 % of the resampled ratios."""
    low, high = resampled(sums, counts, seed).quantile(torch.tensor([0.025, 0.975], dtype=torch.float64), dim=-1)
    return Estimate(sums.sum(-1) / counts.sum(), low, high)


def bca(sums: Tensor, counts: Tensor, seed: int) -> Estimate:
    """Return the bias-corrected and accelerated interval (Efron 1987)."""
    value, draws = sums.sum(-1) / counts.sum(), resampled(sums, counts, seed)
    bias = norm.ppf((draws < value[..., None]).double().mean(-1))
    without = (sums.sum(-1, keepdim=True) - sums) / (counts.sum() - counts)
    away = without.mean(-1, keepdim=True) - without
    pace = (away.pow(3).sum(-1) / (6 * away.square().sum(-1).pow(1.5))).numpy()
    ends = []
    for z in norm.ppf([0.025, 0.975]):
        share = norm.cdf(bias + (bias + z) / (1 - pace * (bias + z)))
        place = torch.from_numpy(share * (draws.shape[-1] - 1)).round().long()
        ends.append(draws.sort(-1).values.gather(-1, place[..., None])[..., 0])
    return Estimate(value, *ends)


def student(sums: Tensor, counts: Tensor, seed: int) -> Estimate:
    """Return the ratio ± t standard errors, with one degree of freedom less than documents."""
    value, n = sums.sum(-1) / counts.sum(), len(counts)
    beyond = (sums - value[..., None] * counts).square().sum(-1) * n / (n - 1)
    half = student_t(0.95, n - 1) * beyond.sqrt() / counts.sum()
    return Estimate(value, value - half, value + half)


def studentised(sums: Tensor, counts: Tensor, seed: int) -> Estimate:
    """Return the interval of this project."""
    return bootstrap_interval(sums, counts, seed=seed)


METHODS: dict[str, Callable[[Tensor, Tensor, int], Estimate]] = {
    "percentile": percentile,
    "BCa": bca,
    "Student": student,
    "studentised": studentised,
}

# --------------------------------------------------------------------------------------------------------------- tables


def over_documents(draws: int) -> None:
    """Print what each method covers: all of the mean, and the misses of this project's on either side."""
    print("| lengths | documents | of equal length |", " | ".join(METHODS), "| misses below, above | width |")
    print("|---" * (len(METHODS) + 5), "|", sep="")
    for kind, n in itertools.product(LENGTHS, DOCUMENTS):
        chance, held, beside, widths, weigh = np.random.default_rng(n), {}, [], [], []
        for seed in range(draws):
            counts = lengths(kind, n, chance)
            shape = (DATASETS, n)
            sums = effects(shape, chance) * counts + noise(shape, counts, chance)
            found = {name: method(sums, counts, seed) for name, method in METHODS.items()}
            for name, each in found.items():
                held.setdefault(name, []).append(((each.low <= 0) & (each.high >= 0)).double().mean())
            last, first = found["studentised"], found["percentile"]
            beside.append(torch.stack([(last.low > 0).double().mean(), (last.high < 0).double().mean()]))
            widths.append(((last.high - last.low) / (first.high - first.low)).median())
            weigh.append(effective_number(counts))
        covered = " | ".join(f"{100 * float(torch.stack(each).mean()):.1f}" for each in held.values())
        above, below = (100 * torch.stack(beside).mean(0)).tolist()
        width = float(torch.stack(widths).mean())
        print(f"| {kind} | {n} | {np.mean(weigh):.1f} | {covered} | {below:.1f}, {above:.1f} | {width:.2f} |")


def over_documents_and_seeds(draws: int) -> None:
    """Print what intervals over documents and seeds cover, and those over documents alone."""
    print("| seeds | spread of seeds, in errors over documents | documents and seeds | documents alone |")
    print("|---|---|---|---|")
    n = 45
    for seeds, ratio in itertools.product((1, 2, 3, 5), (0.0, 0.3, 1.0, 3.0)):
        chance, both, alone = np.random.default_rng(seeds), [], []
        for seed in range(draws if ratio == 0 or seeds > 1 else 0):
            counts = lengths("bounded", n, chance)
            shape = (DATASETS, seeds, n)
            spread = ratio * APART / n**0.5 * torch.from_numpy(chance.normal(size=(DATASETS, seeds, 1)))
            own = 0.5 * effects(shape, chance)  # of a document under one seed
            sums = (effects((DATASETS, 1, n), chance) + spread + own) * counts + noise(shape, counts, chance)
            for held, found in (
                (both, documents_and_seeds_interval(sums, counts, seed=seed)),
                (alone, bootstrap_interval(sums.mean(-2), counts, seed=seed)),
            ):
                held.append(((found.low <= 0) & (found.high >= 0)).double().mean())
        if both:
            shares = [100 * float(torch.stack(held).mean()) for held in (both, alone)]
            print(f"| {seeds} | {ratio:g} | {shares[0]:.1f} | {shares[1]:.1f} |")


def over_layers(draws: int) -> None:
    """Print how often six layers that go together are all in their intervals."""
    print("| documents | correlation of layers | all six, together | all six, one by one |")
    print("|---|---|---|---|")
    for n, shared in itertools.product((31, 45, 100), (0.0, 0.5, 0.9)):
        chance, held = np.random.default_rng(n), {True: [], False: []}
        for seed in range(4 * draws):
            counts = lengths("bounded", n, chance)
            common, own = effects((1, n), chance), effects((6, n), chance)
            sums = (shared**0.5 * common + (1 - shared) ** 0.5 * own) * counts + noise((6, n), counts, chance)
            for together, each in held.items():
                found = bootstrap_interval(sums, counts, seed=seed, together=together)
                each.append(bool(((found.low <= 0) & (found.high >= 0)).all()))
        print(f"| {n} | {shared:g} | {100 * np.mean(held[True]):.1f} | {100 * np.mean(held[False]):.1f} |")


def over_models(draws: int) -> None:
    """Print what intervals over models cover: of populations in two groups, and of an atlas.

    Values of pairs are the sum of an effect of each model, as source and as target, and of noise of the pair.
    """
    print("| models | noise of a pair | within a group | between | difference | atlas |")
    print("|---|---|---|---|---|---|")
    for n, apart in itertools.product((3, 4, 5, 10), (0.0, 0.3, 1.0, 3.0)):
        chance, held = np.random.default_rng(n), []
        for _ in range(5 * draws):
            source, target, pair = (torch.from_numpy(chance.normal(size=size)) for size in (2 * n, 2 * n, (2 * n,) * 2))
            found = grouped(source[:, None] + target + apart * pair, [0] * n + [1] * n)
            names = [f"m{number}" for number in range(2 * n)]
            rows = [(names[i], names[j], float(source[i] + source[j] + apart * pair[i, j]) / 100)
                    for i, j in itertools.combinations(range(2 * n), 2)]  # fmt: skip
            atlas = of_atlas(pd.DataFrame(rows, columns=["source", "target", "rho"]))
            held.append([float(each.low) <= 0 <= float(each.high) for each in (*found[:3], atlas)])
        print(
            f"| 2 x {n} | {apart:g} |", " | ".join(f"{100 * share:.1f}" for share in np.mean(held, 0)), "|", flush=True
        )


TABLES = {
    "models": over_models,
    "documents": over_documents,
    "seeds": over_documents_and_seeds,
    "layers": over_layers,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=200, help=f"draws of lengths, with {DATASETS} data sets each")
    parser.add_argument("--table", nargs="+", choices=TABLES, default=list(TABLES))
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.table:
        TABLES[name](options.draws)
        print()


if __name__ == "__main__":
    main()
