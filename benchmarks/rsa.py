"""RSA of many layers: ranked once each, beside its floor, rsatoolbox and SciPy pair by pair.

    python benchmarks/rsa.py --device cuda
    python benchmarks/rsa.py                    39 layers of 1500 stimuli, one thread, three minutes
    pip install -e '.[bench]'                   for rsatoolbox; without it that line is left out

The floor is half of the products of float64 states and of ranks at the peak of a large product, and one radix sort of
32-bit keys for each layer. SciPy ranks both layers of every pair anew: three pairs are timed, and scaled up.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from measuring import Row, floor, in_turn, large_product, once, options_of, scaled, table
from scipy.spatial.distance import pdist
from scipy.stats import spearmanr

from thinkalike.measures import rsa

try:
    from rsatoolbox.data import Dataset
    from rsatoolbox.rdm import calc_rdm, compare
except ImportError:
    Dataset = None


def by_toolbox(layers: list[torch.Tensor]) -> torch.Tensor:
    rdms = calc_rdm([Dataset(layer.double().cpu().numpy()) for layer in layers], method="euclidean")
    return torch.as_tensor(compare(rdms, rdms, method="spearman"))


def by_scipy(layers: list[torch.Tensor]) -> torch.Tensor:
    distances = [pdist(layer.double().cpu().numpy()) for layer in layers]
    return torch.tensor([spearmanr(x, y).statistic for x, y in pairwise(distances)])


def main() -> None:
    options = options_of(__doc__, layers=39, stimuli=1500, width=768, rounds=3, device="cpu")
    n, count = options.stimuli, options.layers
    shared = torch.randn(n, options.width)
    layers = [(shared + 0.1 * k * torch.randn_like(shared)).to(options.device) for k in range(count)]
    pairs, number = n * (n - 1) // 2, count * (count - 1) / 2
    keys = torch.randint(2**31 - 1, (pairs,), dtype=torch.int32, device=options.device)
    found = rsa(layers)
    work = {"ours": lambda: rsa(layers), "peak": large_product(torch.float64, options.device)}
    work["sort"] = lambda: keys.sort()
    if Dataset is not None:
        work["rsatoolbox"] = lambda: by_toolbox(layers)
    times = in_turn(work, options.rounds, options.device)
    operations = count * n**2 * options.width + count**2 * pairs
    rows = [Row("ours", times["ours"])]
    rows.append(Row("floor", floor(operations, times["peak"], scaled(times["sort"], count), device=options.device)))
    if Dataset is not None:
        error = float((found.cpu() - by_toolbox(layers)).abs().max())
        rows.append(Row("rsatoolbox", times["rsatoolbox"], f"differs by {error:.1e}"))
    error = float((found.diagonal(1)[:3].cpu() - by_scipy(layers[:4])).abs().max())
    taken = scaled(once(lambda: by_scipy(layers[:4])), number / 3)
    rows.append(Row("SciPy, pair by pair", taken, f"differs by {error:.1e}; from 3 pairs"))
    print(table(f"{count} layers of {n} stimuli, width {options.width}, {options.device}", rows))


if __name__ == "__main__":
    main()
