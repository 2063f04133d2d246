"""RSA of many layers: ranked once each, beside rsatoolbox and SciPy pair by pair.

    python benchmarks/rsa.py                    39 layers of 1500 stimuli, one thread, two minutes
    pip install -e '.[bench]'                   for rsatoolbox; without it that line is left out

Every figure is from this one run, in CPU seconds. SciPy ranks both layers of every pair anew: three pairs are timed,
and scaled up.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from itertools import pairwise

import torch
from scipy.spatial.distance import pdist
from scipy.stats import spearmanr

from thinkalike.measures import rsa

try:
    from rsatoolbox.data import Dataset
    from rsatoolbox.rdm import calc_rdm, compare
except ImportError:
    Dataset = None


def seconds(call: Callable[[], object]) -> tuple[float, torch.Tensor]:
    start = time.process_time()
    found = call()
    return time.process_time() - start, torch.as_tensor(found)


def by_toolbox(layers: list[torch.Tensor]) -> object:
    rdms = calc_rdm([Dataset(layer.double().numpy()) for layer in layers], method="euclidean")
    return compare(rdms, rdms, method="spearman")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=39)
    parser.add_argument("--stimuli", type=int, default=1500)
    parser.add_argument("--width", type=int, default=768)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    shared = torch.randn(options.stimuli, options.width)
    layers = [shared + 0.1 * k * torch.randn_like(shared) for k in range(options.layers)]
    rsa(layers[:2])
    ours, found = seconds(lambda: rsa(layers))
    print(f"{options.layers} layers of {options.stimuli} stimuli, width {options.width}, one thread")
    print(f"  thinkalike {ours:8.1f} s")
    if Dataset is not None:
        theirs, other = seconds(lambda: by_toolbox(layers))
        error = (found - other).abs().max()
        print(f"  rsatoolbox {theirs:8.1f} s   {theirs / ours:6.1f} x   largest difference {error:.1e}")
    distances = [pdist(layer.double().numpy()) for layer in layers[:4]]
    few, rho = seconds(lambda: [spearmanr(x, y).statistic for x, y in pairwise(distances)])
    pairs = options.layers * (options.layers - 1) / 2
    error = (found.diagonal(1)[:3] - rho).abs().max()
    print(f"  SciPy      {few / 3 * pairs:8.1f} s   {few / 3 * pairs / ours:6.1f} x   largest difference {error:.1e}")


if __name__ == "__main__":
    main()
