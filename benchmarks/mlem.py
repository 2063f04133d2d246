"""What an exact MLEM costs, beside the two ways to fit one so far: gradient steps on sampled pairs, and explicit pairs.

    python benchmarks/mlem.py                   one thread, five minutes
    python benchmarks/mlem.py --device cuda     the fits alone
    python benchmarks/mlem.py --layers 39       also all layers of the paper's three models, a minute more

The floor of a fit is to widen the states to float64, and to sum them up by level, as one product of the levels.
Gradient steps: Adam, learning rate 0.1, 17,000 pairs per batch, at most 1000 steps, patience 50 (the hyperparameters
published with metric-learning encoding models), 1 - Pearson's r as loss; a single fit, without cross-validation.
Explicit pairs: scikit-learn's Ridge(positive=True) with given α.
"""

from __future__ import annotations

import multiprocessing
import warnings

import torch
from measuring import Row, forget_peak, in_turn, once, options_of, resident, scaled, table
from torch import Tensor

from thinkalike.measures import MLEM, feature_importance, rsa, weighted_tau

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

    table = table.cpu()
    rows, columns = torch.triu_indices(len(table), len(table), 1)
    target = pdist(states.cpu().numpy(), "sqeuclidean")
    target = (target - target.min()) / (target.max() - target.min())
    Ridge(alpha=1.0, positive=True).fit((table[rows] != table[columns]).double().numpy(), target)


def peak(n: int, d: int, queue: multiprocessing.Queue) -> None:
    """Put the seconds of a fit, and the largest resident memory in MB beyond Python and the data."""
    torch.set_num_threads(1)
    data, (states,) = drawn(n, d)
    MLEM(alpha=1.0).fit(data[:100], states[:100])
    forget_peak()
    before = resident()
    queue.put((once(lambda: MLEM(alpha=1.0).fit(data, states)), resident() - before))


def large(n: int, d: int) -> Row:
    """Return what a fit of many stimuli takes, in a process of its own."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=peak, args=(n, d, queue))
    process.start()
    times, memory = queue.get()
    process.join()
    return Row(f"N = {n:,}, all {n * (n - 1) // 2:,} pairs", times, f"{memory:.0f} MB above the start")


def fits(data: Tensor, states: Tensor, rounds: int, device: str) -> list[Row]:
    """Return the times of fits with given α."""
    numbers = torch.randn(len(data), len(LEVELS), dtype=torch.float64, device=device)
    onehot = torch.cat([torch.eye(levels)[column] for levels, column in zip(LEVELS, data.T.cpu(), strict=True)], 1)
    onehot = onehot.double().to(device)
    names = {
        "ours": lambda: MLEM(alpha=1.0).fit(data, states),
        "floor": lambda: onehot.T @ states.double(),
        "min-max as the unit": lambda: MLEM(alpha=1.0, scale="minmax").fit(data, states),
        "full W": lambda: MLEM(alpha=1.0, weights="full").fit(data, states),
        "a weight for every two levels": lambda: MLEM(alpha=1.0, difference="levels").fit(data, states),
        "eight continuous features": lambda: MLEM(alpha=1.0, kinds="continuous").fit(numbers, states),
    }
    rows = [Row(name, times) for name, times in in_turn(names, rounds, device).items()]
    return [*rows, Row("explicit pairs, scikit-learn", once(lambda: by_explicit_pairs(data, states)))]


def nested(data: Tensor, states: Tensor) -> list[Row]:
    """Return the times of cross-validation and importance, and of gradient steps without them."""
    work = {
        "ours": lambda: feature_importance(MLEM(), data, states),
        "a weight for every two levels": lambda: feature_importance(MLEM(difference="levels"), data, states),
    }
    rows = [Row(name, times) for name, times in in_turn(work, 2).items()]
    steps: list[int] = []
    gradient = once(lambda: steps.append(by_gradient(data, states)))
    rows.append(Row(f"gradient steps, one fit, stopped after {steps[-1]}", gradient))
    return [*rows, Row(f"gradient steps, all {STEPS}", scaled(gradient, STEPS / steps[-1]))]


def main() -> None:
    options = options_of(__doc__, stimuli=2000, width=256, layers=0, rounds=7, device="cpu")
    data, (states,) = drawn(options.stimuli, options.width)
    data, states = data.to(options.device), states.to(options.device)
    size = f"N = {options.stimuli}, width {options.width}, 8 features"
    print(table(f"A fit of all pairs with given α, {size}", fits(data, states, options.rounds, options.device)))
    if options.device != "cpu":
        return
    print(table(f"Nested 5 x 5 cross-validation over 9 α, and importance, {size}", nested(data, states)))
    many_stimuli = [large(n, options.width) for n in (20_000, 200_000)]
    print(table(f"A fit of many stimuli, width {options.width}, one run each", many_stimuli))
    if options.layers:
        many(options.layers)


def many(count: int) -> None:
    """All layers of the paper's three models, every number of its figure 2."""
    data, layers = drawn(1500, 768, count)
    found = []
    profile = once(lambda: found.append(feature_importance(MLEM(), data, layers)))
    ranked = once(lambda: (weighted_tau(found[0].profile().value), rsa(layers)))
    rows = [Row("cross-validation and importance", profile), Row("both matrices, with RSA", ranked)]
    print(table(f"{count} layers of 1500 stimuli, width 768", rows))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
