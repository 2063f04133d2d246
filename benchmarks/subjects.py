"""Models in several subjects: what their intervals cover, and what resampling costs, beside rsatoolbox.

    python benchmarks/subjects.py               one thread, some minutes
    pip install -e '.[bench]'                   for rsatoolbox; without it that line is left out

Coverage is that of 95 % intervals in simulations: two models share half of their dimensions; each subject is a linear
map of the shared ones under noise; stimuli and subjects are drawn anew each time, and the truth is the mean over all.
"""

from __future__ import annotations

import time

import torch
from measuring import options_of
from torch import Tensor

from thinkalike.contrib.subjects.model_scores import model_scores
from thinkalike.contrib.subjects.random_effects import random_effects
from thinkalike.contrib.subjects.resampling import draw_resamples, two_factor
from thinkalike.measures import COMPARATORS, compare, distance_vectors

try:
    from rsatoolbox.inference import eval_dual_bootstrap
    from rsatoolbox.model import ModelFixed
    from rsatoolbox.rdm import RDMs
except ImportError:
    RDMs = None


def simulated(seed: int, stimuli: int, subjects: int, width: int = 8) -> tuple[Tensor, Tensor]:
    """Return the distances of two models and of the subjects."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    shared = normal(stimuli, width)
    models = [torch.cat([shared, scale * normal(stimuli, width)], 1) for scale in (0.7, 1.2)]
    maps = normal(subjects, width, 6) + 1.5 * torch.eye(width, dtype=torch.float64)[:, :6]
    return distance_vectors(models), distance_vectors([shared @ each + 1.5 * normal(stimuli, 6) for each in maps])


def coverage(stimuli: int, subjects: int, draws: int) -> None:
    """Print the share of intervals that hold the mean over all draws."""
    rows = []
    for seed in range(draws):
        found = model_scores(*simulated(seed, stimuli, subjects), "corr", resamples=120, seed=seed)
        scored = (found.of(0), found.of(0).minus(found.of(1)))
        ends = [random_effects(each.values) for each in scored]
        ends += [two_factor(each.values, each.replicates, found.draws).estimate for each in scored]
        rows.append(torch.stack([torch.stack(list(each)) for each in ends]))
    value, low, high = torch.stack(rows).unbind(-1)
    covered = ((low <= value.mean(0)) & (value.mean(0) <= high)).double().mean(0)
    print(f"  {stimuli} stimuli, {subjects} subjects, {draws} draws")
    for name, share in zip(("subjects alone", "subjects and stimuli"), covered.view(2, 2).tolist(), strict=True):
        print(f"    {name:22} a mean {share[0]:.3f}, a difference {share[1]:.3f}")


def costs(stimuli: int, layers: int, subjects: int, resamples: int) -> None:
    """Print the seconds of 1000 resamples by each comparator, and those of rsatoolbox."""
    torch.manual_seed(0)
    pairs = stimuli * (stimuli - 1) // 2
    models, measured = (torch.rand(count, pairs, dtype=torch.float64) for count in (layers, subjects))
    print(f"  {layers} layers, {subjects} subjects, {stimuli} stimuli: seconds for 1000 resamples")
    for comparator in COMPARATORS:
        start = time.process_time()
        model_scores(models, measured, comparator, resamples=resamples)
        print(f"    {comparator:12}{1000 / resamples * (time.process_time() - start):8.1f}")
    if RDMs is not None:
        fixed = [ModelFixed(str(number), each) for number, each in enumerate(models.numpy())]
        start = time.process_time()
        eval_dual_bootstrap(fixed, RDMs(measured.numpy()), "spearman", N=2)
        print(f"    spearman by rsatoolbox {500 * (time.process_time() - start):8.1f}")
    counts = draw_resamples(subjects, stimuli, 2).stimuli
    assert compare(models, measured, counts=counts).isfinite().all()


def main() -> None:
    options = options_of(__doc__, draws=250, resamples=16)
    print("coverage of 95 % intervals")
    for stimuli, subjects in ((20, 6), (40, 12)):
        coverage(stimuli, subjects, options.draws)
    print("cost, CPU seconds, one thread")
    costs(80, 26, 12, options.resamples)


if __name__ == "__main__":
    main()
