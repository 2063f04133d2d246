"""How often intervals of feature importance hold its mean over data sets, with one weight per feature and with levels.

    python benchmarks/importance.py                  both, one thread, ten minutes
    python benchmarks/importance.py --draws 50       the same from fewer data sets, coarser

A data set is 80 stimuli of four features of 4, 3, 5 and 6 levels; each level has a place in 8 dimensions, the same in
all data sets, and a state is the sum of the places of its levels and noise. The truth is the mean importance over all
data sets. Intervals of 95 %: that of this project over five folds, whose variance is corrected for training sets that
overlap (Nadeau & Bengio 2003); the same without the correction; and a jackknife that leaves out a tenth of the stimuli
at a time and repeats all of it, for eleven times the work.
"""

from __future__ import annotations

import argparse
import math
import warnings

import torch
from torch import Tensor

from thinkalike.measures import MLEM, Estimate, feature_importance, fold_interval, interval_around, student_t

LEVELS, EFFECTS = (4, 3, 5, 6), (1.5, 1.0, 0.5, 1.5)
WIDTH, PARTS, FOLDS = 8, 10, 5
PARAMS = {"indicator": {}, "levels": {"difference": "levels"}}


def drawn(places: list[Tensor], n: int) -> tuple[Tensor, Tensor]:
    """Return a data set."""
    table = torch.stack([torch.randint(size, (n,)) for size in LEVELS], 1)
    states = torch.randn(n, WIDTH, dtype=torch.float64)
    return table, states + sum(place[column] for place, column in zip(places, table.T, strict=True))


def plain(by_fold: Tensor) -> Estimate:
    """Return the interval over folds without the correction."""
    half = student_t(0.95, FOLDS - 1) * by_fold.std(-1) / math.sqrt(FOLDS)
    return interval_around(by_fold.mean(-1), half)


def left_out(model: MLEM, table: Tensor, states: Tensor, value: Tensor) -> Estimate:
    """Return the interval of a jackknife over parts of the stimuli."""
    part = torch.arange(len(table)) % PARTS
    values = [
        feature_importance(model, table[part != k], states[part != k], permutations=2).profile().value[0]
        for k in range(PARTS)
    ]
    spread = torch.stack(values).var(0, correction=0)
    return interval_around(value, student_t(0.95, PARTS - 1) * ((PARTS - 1) * spread).sqrt())


def intervals(model: MLEM, table: Tensor, states: Tensor, jackknife: bool) -> dict[str, Estimate]:
    """Return each kind of interval, (f) each."""
    by_fold = feature_importance(model, table, states, permutations=2).by_fold()[0]
    found = {"folds, corrected": fold_interval(by_fold), "folds, plain": plain(by_fold)}
    if jackknife:
        found["jackknife"] = left_out(model, table, states, by_fold.mean(-1))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=200, help="data sets")
    parser.add_argument("--stimuli", type=int, default=80)
    parser.add_argument("--jackknife", type=int, default=1, help="0 leaves it out")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    places = [
        effect * torch.randn(size, WIDTH, dtype=torch.float64) for size, effect in zip(LEVELS, EFFECTS, strict=True)
    ]
    print("| weights | interval | covers, by feature of 4, 3, 5 and 6 levels, % | all | width |")
    print("|---|---|---|---|---|")
    for name, params in PARAMS.items():
        model, found = MLEM(kinds="nominal", alpha=3.0, **params), dict[str, list[Tensor]]()
        for _ in range(options.draws):
            data = drawn(places, options.stimuli)
            for kind, each in intervals(model, *data, bool(options.jackknife)).items():
                found.setdefault(kind, []).append(torch.stack([*each]))
        for kind, draws in found.items():
            value, low, high = torch.stack(draws, 1)
            truth = value.mean(0)
            covered = 100 * ((low <= truth) & (truth <= high)).double().mean(0)
            shown = " ".join(f"{share:.0f}" for share in covered.tolist())
            width = float(((high - low) / 2).mean())
            print(f"| {name} | {kind} | {shown} | {float(covered.mean()):.1f} | ± {width:.3f} |", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
