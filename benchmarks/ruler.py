"""How often intervals hold readings in bits, and how often models are called alike beyond controls that share as much.

    python benchmarks/ruler.py                                 a small part, some minutes, one thread
    python benchmarks/ruler.py --simulations 400 --out x.jsonl   keeps what is done, so that a second call goes on
    python benchmarks/ruler.py --measures cka                    its readings in place of the ruler's

Rows of one document depend on each other, as in `dependence`. A pair, calibration points and controls share fixed parts
of the variance of latent variables with a model, by fixed maps; a reading should hold that of the mean values. Alarms
are pairs that are called alike beyond both models' controls, where all share the same: nothing, or a tenth.
"""

from __future__ import annotations

import argparse
import itertools
import math
import zlib
from pathlib import Path
from typing import Any

import torch
from dependence import LATENT, LENGTHS, NOISE, Records
from torch import Tensor

from thinkalike.instruments.ruler.calibration_points import difference_interval, greatest_at_each_pair
from thinkalike.measures import CKA
from thinkalike.measures.bit_readings import interpolated_bits, reading_interval
from thinkalike.measures.folds import numbered_by_part
from thinkalike.measures.ridge import Predictor, both_ways

CHUNK = 20  # simulations that are kept together
MARKS = {2: 0.02, 3: 0.2, 4: 0.55, 5: 0.8, 6: 0.95, 8: 0.99}  # what a copy of so many bits has in common with a model
PAIRS = (0.1, 0.35, 0.7)  # what models have in common whose readings are tried
CONTROLS = (0.0, 0.1)  # what a model has in common with its control, and with the model that is like it no more


def alike(measure: str, x: Tensor, y: Tensor, documents: Tensor) -> Tensor:
    """Return a measure of all documents and then without each part."""
    if measure == "ruler":
        return both_ways(Predictor(x, documents), Predictor(y, documents)).mean(0)
    metric = CKA(1, 1)
    metric.update([x], [y], documents=documents)
    return metric.replicates()[:, 0, 0]


def simulated(key: dict[str, Any], seed: int) -> list[list[float]]:
    """Return the R² of pairs and points, the ends of readings, and the lower ends beyond controls, of a simulation."""
    chance = torch.Generator().manual_seed(zlib.crc32(f"{sorted(key.items())} {seed}".encode()))

    def normal(*shape: int, of: torch.Generator = chance) -> Tensor:
        return torch.randn(*shape, generator=of, dtype=torch.float64)

    weights = torch.ones(key["documents"])
    if key["lengths"] == "geometric":
        weights = -torch.rand(weights.shape, generator=chance).clamp(1e-9).log()
    owners = weights.multinomial(key["rows"], replacement=True, generator=chance)
    documents = numbered_by_part(owners)
    maps = normal(2, LATENT, key["width"], of=torch.Generator().manual_seed(0))

    def latent() -> Tensor:
        own = normal(key["documents"], LATENT)[owners]
        return math.sqrt(1 - key["share"]) * normal(len(owners), LATENT) + math.sqrt(key["share"]) * own

    def shared(z: Tensor, common: float) -> Tensor:
        return math.sqrt(common) * z + math.sqrt(1 - common) * latent()

    def states(z: Tensor, side: int) -> Tensor:
        return z @ maps[side] + NOISE * normal(len(owners), key["width"])

    def compared(x: Tensor, y: Tensor) -> Tensor:
        return alike(key["measure"], x, y, documents)

    first = latent()
    model = states(first, 0)
    points = torch.stack([compared(model, states(shared(first, common), 0)) for common in MARKS.values()])
    pairs = [compared(model, states(shared(first, common), 1)) for common in PAIRS]
    readings = [reading_interval(pair, list(MARKS), points) for pair in pairs]
    beyond = []
    for common in CONTROLS:
        second = shared(first, common)
        target = states(second, 1)
        own = compared(model, states(shared(first, common), 0))
        other = compared(target, states(shared(second, common), 1))
        both = torch.stack([compared(model, target)] * 2)
        control = greatest_at_each_pair([torch.stack([own] * 2)[None], torch.stack([other] * 2)[None]])
        beyond.append(float(difference_interval((both - control[0]).mean(0)[None]).low))
    ends = [[float(each.low), float(each.high)] for each in readings]
    return [[float(each[0]) for each in pairs], points[:, 0].tolist(), *ends, beyond]


def interval(hits: int, n: int) -> str:
    return f"{100 * hits / n:.1f} ± {196 * math.sqrt(max(hits * (n - hits), 1) / n**3):.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measures", nargs="+", choices=["ruler", "cka"], default=["ruler"])
    parser.add_argument("--documents", nargs="+", type=int, default=[16, 64])
    parser.add_argument("--lengths", nargs="+", choices=LENGTHS, default=list(LENGTHS))
    parser.add_argument("--shares", nargs="+", type=float, default=[0, 0.5])
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--simulations", type=int, default=40, help=f"rounded up to a multiple of {CHUNK}")
    parser.add_argument("--out", type=Path, default=Path("ruler.jsonl"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    records = Records(options.out)
    print(
        "| measure | documents | lengths | share | value | reading | coverage, % | alarms, %: controls share",
        *CONTROLS,
        "|",
    )
    print("|---" * 8, "|", sep="")
    settings = itertools.product(options.measures, options.documents, options.lengths, options.shares)
    for measure, documents, lengths, share in settings:
        key = {"measure": measure, "documents": documents, "lengths": lengths, "share": share}
        key |= {"rows": options.rows, "width": options.width}
        runs: list[Any] = []
        for start in range(0, options.simulations, CHUNK):
            seeds = range(start, start + CHUNK)
            runs += records.of({**key, "start": start}, lambda s=seeds, k=key: [simulated(k, each) for each in s])[
                "runs"
            ]
        pairs, points = (torch.tensor([run[place] for run in runs]).double().mean(0) for place in (0, 1))
        truth = interpolated_bits(pairs, list(MARKS), points[:, None].expand(-1, len(pairs)))
        held = [
            sum(run[2 + place][0] <= float(true) <= run[2 + place][1] for run in runs)
            for place, true in enumerate(truth)
        ]
        alarms = [sum(run[-1][place] > 0 for run in runs) for place in range(len(CONTROLS))]
        shown = [", ".join(f"{each:.2f}" for each in values) for values in (pairs, truth)]
        rates = [", ".join(interval(each, len(runs)) for each in hits) for hits in (held, alarms)]
        print(
            "|", measure, "|", documents, "|", lengths, "|", share, "|", " | ".join([*shown, *rates]), "|", flush=True
        )


if __name__ == "__main__":
    main()
