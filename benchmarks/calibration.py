"""How often each measure of layer pairs calls models alike that are not, and finds likeness that was planted.

    python benchmarks/calibration.py                                a small part, some minutes, one thread
    python benchmarks/calibration.py --simulations 200 --widths 32 128 512 --depths 3 12 24 --out calibration.jsonl
    python benchmarks/calibration.py --shuffle token                rows permuted one by one, as if all were independent

A simulation draws two models with nothing in common, or with a share of their latent variables in common. Rows of one
document depend on each other: half of the variance of every latent variable is the document's. Layers of a model are
random maps of its latent variables, and noise; of outputs both models have the same maps. p comes from `LayerMeans`:
that of one layer pair, and that of the closest of all. The share of p ≤ .05 is the rate of false positives of models
with nothing in common, and else the power. Widths are tried at the first depth, depths at the first width. What is done
is in --out, and not done again.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from thinkalike.instruments.layer_pairs.declared import CONFIGS, DECLARED, OUTPUTS
from thinkalike.measures import LayerMeans, LayerMeasure, cka_measure

LATENT, NOISE, OF_DOCUMENT = 8, 0.05, 0.5  # variables; of a unit; share of the variance
CHUNK = 10  # simulations that are kept together
LEVEL = 0.05
RIDGE = 0.01  # of held-out R², in units of the mean variance


class Halves(NamedTuple):
    """A layer whose first half of the rows fits maps, and whose second half judges them."""

    rows: Tensor
    fit: Tensor
    judged: Tensor
    inverse: Tensor


def halves(features: Tensor, name: str = "") -> Halves:
    """Return a layer prepared for held-out R²."""
    middle = len(features) // 2
    mean = features[:middle].mean(0)
    fit, judged = features[:middle] - mean, features[middle:] - mean
    gram = fit.T @ fit
    ridge = RIDGE * gram.trace() / len(gram) * torch.eye(len(gram), dtype=gram.dtype)
    return Halves(features, fit, judged, torch.linalg.inv(gram + ridge))


def held_out_r2(sources: Sequence[Halves], targets: Sequence[Halves]) -> Tensor:
    """Return R² of the second half of every target by every source."""

    def r2(x: Halves, y: Halves) -> Tensor:
        left = y.judged - x.judged @ (x.inverse @ (x.fit.T @ y.fit))
        return 1 - left.square().sum() / y.judged.square().sum()

    return torch.stack([torch.stack([r2(x, y) for y in targets]) for x in sources])


OWN = {kind: each.measure(CONFIGS[kind]()) for kind, each in (DECLARED | OUTPUTS).items()}
MEASURES = {
    "cka": cka_measure(),
    **OWN,
    "r2": LayerMeasure(halves, held_out_r2, lambda layer, order: halves(layer.rows[order])),
}


def latent(documents: int, length: int, chance: torch.Generator) -> Tensor:
    """Return latent variables of rows, with a part that rows of one document share."""
    own, shared = (torch.randn(documents, rows, LATENT, generator=chance).double() for rows in (length, 1))
    return (math.sqrt(1 - OF_DOCUMENT) * own + math.sqrt(OF_DOCUMENT) * shared).flatten(0, 1)


def models(
    variables: Sequence[Tensor], width: int, depth: int, chance: torch.Generator, same: bool
) -> list[list[Tensor]]:
    """Return the layers of a model for each of the latent variables; all have the same maps, or each its own."""
    maps = torch.randn(len(variables), depth, LATENT, width, generator=chance).double() / math.sqrt(LATENT)
    noise = torch.randn(len(variables), depth, len(variables[0]), width, generator=chance).double()
    return [list(z @ maps[0 if same else each] + NOISE * noise[each]) for each, z in enumerate(variables)]


def simulated(name: str, seed: int, width: int, depth: int, options: Any, common: float) -> dict[str, float]:
    """Return p of the first layer pair and of the closest one, with its calibrated value, of one simulation."""
    number = zlib.crc32(f"{name} {width} {depth} {seed}".encode())  # every setting draws models of its own
    chance = torch.Generator().manual_seed(number + 1)  # and permutations from another stream
    first, other = (latent(options.documents, options.length, chance) for _ in range(2))
    second = math.sqrt(common) * first + math.sqrt(1 - common) * other
    source, target = models([first, second], width, depth, chance, name in OUTPUTS)
    owners = torch.arange(options.documents).repeat_interleave(options.length)
    means = LayerMeans(depth, depth, MEASURES[name], options.permutations)
    try:
        means.update(source, target, number=number, documents=owners if options.shuffle == "document" else None)
    except ValueError:  # chance alone is as close as can be, so nothing is called alike
        return {"p": 1.0, "p_largest": 1.0, "calibrated": math.nan}
    found = means.compute().chance
    assert found is not None
    return {
        "p": float(found.p[0, 0]),
        "p_largest": float(found.p_of_largest.min()),
        "calibrated": float(found.calibrated.value[0, 0]),
    }


def settings(options: Any) -> Iterator[tuple[int, int]]:
    """Yield widths at the first depth, and depths at the first width."""
    pairs = [(width, options.depths[0]) for width in options.widths]
    yield from dict.fromkeys([*pairs, *((options.widths[0], depth) for depth in options.depths)])


def run(options: Any) -> list[dict[str, Any]]:
    """Do what --out lacks, a few simulations at a time, and return everything that was asked for."""
    kept = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    names = ("measure", "width", "depth", "common", "start", "documents", "length", "permutations", "shuffle")
    known = {tuple(record[name] for name in names): record for record in kept}
    records, fixed = [], {name: getattr(options, name) for name in names[5:]}
    for name in options.measures:
        for width, depth in settings(options):
            for common in sorted({0.0, options.common}):
                for start in range(0, options.simulations, CHUNK):
                    key = {"measure": name, "width": width, "depth": depth, "common": common, "start": start, **fixed}
                    if (record := known.get(tuple(key.values()))) is None:
                        began = time.perf_counter()
                        seeds = range(start, start + CHUNK)
                        runs = [simulated(name, seed, width, depth, options, common) for seed in seeds]
                        record = {**key, "runs": runs, "seconds": time.perf_counter() - began}
                        with options.out.open("a") as file:
                            print(json.dumps(record), file=file)
                    records.append(record)
    return records


def interval(hits: int, n: int) -> str:
    """Return a share in per cent with its 95 % interval (Wilson 1927)."""
    share, z = hits / n, 1.96
    middle = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    return f"{100 * share:.1f} [{100 * max(middle - half, 0):.1f}, {100 * (middle + half):.1f}]"


def rate(records: Sequence[dict[str, Any]], which: str) -> str:
    """Return the share of simulations with p ≤ .05; a dash where there was none."""
    values = [each[which] for record in records for each in record["runs"]]
    return interval(sum(value <= LEVEL + 1e-9 for value in values), len(values)) if values else "–"


def show(records: Sequence[dict[str, Any]], options: Any) -> None:
    """Print a line for each measure and setting, and one for all settings of a measure."""
    print(
        "| measure | width | depth | false positives, % | of the closest, % | power, % | of the closest, % | s each |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name in options.measures:
        mine = [record for record in records if record["measure"] == name]
        for label in [*settings(options), ("all", "all")]:
            chosen = [record for record in mine if label[0] == "all" or (record["width"], record["depth"]) == label]
            parts = [[record for record in chosen if (record["common"] > 0) == alike] for alike in (False, True)]
            rates = " | ".join(rate(part, which) for part in parts for which in ("p", "p_largest"))
            seconds = sum(record["seconds"] for record in chosen) / (CHUNK * len(chosen))
            print(f"| {name} | {label[0]} | {label[1]} | {rates} | {seconds:.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measures", nargs="+", choices=MEASURES, default=list(MEASURES))
    parser.add_argument("--widths", nargs="+", type=int, default=[32, 128])
    parser.add_argument("--depths", nargs="+", type=int, default=[3])
    parser.add_argument("--simulations", type=int, default=20, help=f"rounded up to a multiple of {CHUNK}")
    parser.add_argument("--permutations", type=int, default=19, help="19, 39, 99, ... make the level of 5 %% exact")
    parser.add_argument("--documents", type=int, default=16)
    parser.add_argument("--length", type=int, default=8, help="rows of a document")
    parser.add_argument("--common", type=float, default=0.1, help="share of the variance that is planted; 0: none")
    parser.add_argument("--shuffle", choices=("document", "token"), default="document")
    parser.add_argument("--out", type=Path, default=Path("calibration.jsonl"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    show(run(options), options)


if __name__ == "__main__":
    main()
