"""How often measure=diff raises false alarms, and how often it finds the block and the component that was changed.

    python benchmarks/changes.py                    gpt2-mini, one thread, a quarter of an hour
    python benchmarks/changes.py --plants 6 --nulls 8    a taste

Reference: 19 forks of the mini by further training on its own text, with changes of one norm (see `forks.fork`).
- Nulls: further forks, and random perturbations (signed permutations) of a fork's change. An alarm is p ≤ .05 of the
  whole KL, by rank among 19, or of the part whose share of KL is farthest beyond those in 19 forks (`beyond_null`).
- Plants: a further fork, of which the attention or the MLP of one block was trained on rows in reversed order until
  that part had moved by a dose times the norm by which drift moves it; then also with the part's whole change scaled to
  the norm that drift has there, so that weights alone do not tell. Found is the part that comes first by: its share
  of KL beyond that in the forks; the share alone; what enters there; the change of its weights.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch

from thinkalike.config import compose_job
from thinkalike.data.rows import TokenRows
from thinkalike.evaluation.changes import by_part, perturbed, seen
from thinkalike.evaluation.forks import fork
from thinkalike.instruments.diff.answers import share_of
from thinkalike.instruments.diff.instrument import read_rows
from thinkalike.measures.changes import beyond_null, rank_p
from thinkalike.models.load import load_model
from thinkalike.models.parts import Part, parts_of, relative_change

NULLS, TOKENS = 19, 512
DRAWS = 2000  # of 19 forks and one from the pool
EVERY = 999  # parts that are tried at most


class Bench:
    """A mini, its rows and text, and the forks that others are compared with."""

    def __init__(self, name: str, norm: float):
        config = compose_job("analyze", ["measure=diff", "measure.null=drift", f"model={name}"])
        self.base, self.norm = load_model(config.model), norm
        rows, self.text, _ = read_rows(config, self.base)
        first = TOKENS // rows.context
        self.rows, self.first = TokenRows(rows.tokens[:first], rows.documents[:first]), first
        self.parts = parts_of(self.base)
        found = [self.measured(self.drifted(seed)) for seed in range(NULLS)]
        self.kl = torch.tensor([kl for kl, *_ in found])
        self.shares = {part: [shares[part] for _, shares, _ in found] for part in self.parts}

    def drifted(self, seed: int):
        return fork(self.base, self.text, self.norm, seed)

    def measured(self, changed) -> tuple[float, dict[Part, float], dict[Part, float]]:
        """Return KL, and of each part the share of it and what enters."""
        batches, changes = zip(*seen(self.base, changed, self.rows, self.first), strict=True)
        whole = torch.cat([each.tokens.kl for each in changes])
        found = by_part(self.base, changed, self.parts, batches, EVERY)
        entering = {part: 0.0 if each.entering is None else float(each.entering.mean()) for part, each in found.items()}
        return float(whole.mean()), {part: share_of(each, whole) for part, each in found.items()}, entering

    def beyond(self, shares: dict[Part, float]) -> dict[Part, float]:
        """Return how far the share of each part is beyond those in the forks."""
        mine = torch.tensor([shares[part] for part in self.parts], dtype=torch.float64)
        null = torch.tensor([self.shares[part] for part in self.parts], dtype=torch.float64).T
        return dict(zip(self.parts, beyond_null(mine, null)[0].tolist(), strict=True))

    def perturbed(self, changed) -> float:
        """Return p of a change among random ones."""
        batches, changes = zip(*seen(self.base, changed, self.rows, self.first), strict=True)
        null = []
        for seed in range(NULLS):
            with perturbed(self.base, changed, seed) as model:
                null.append(torch.cat([own.kl(model, -1, own.base) for own in batches]).mean())
        return float(rank_p(torch.cat([each.tokens.kl for each in changes]).mean(), torch.stack(null)))


def permuted(bench: Bench, seed: int):
    """Return a fork whose change is that of another fork with rows, columns and signs permuted."""
    from copy import deepcopy

    from thinkalike.arguments import seeded
    from thinkalike.evaluation.forks import with_weights
    from thinkalike.measures.changes import signed_permutation
    from thinkalike.models.parts import moved

    generator = seeded(10_000 + seed)
    with moved(bench.base, bench.drifted(seed), lambda name, change: signed_permutation(change, generator)):
        module = deepcopy(bench.base.module)
    return with_weights(bench.base, module, f"perturbed {seed}")


@torch.no_grad()
def planted(bench: Bench, part: Part, dose: float, seed: int, matched: bool):
    """Return a fork in which one part was trained on reversed rows too; matched: its change is as large as drift."""
    drifted = bench.drifted(seed)
    own = [(bench.base.module.get_submodule(path), drifted.module.get_submodule(path)) for path in part.paths]
    squares = [float((b - a).square().sum()) for x, y in own
               for a, b in zip(x.parameters(), y.parameters(), strict=True)]  # fmt: skip
    changed = fork(drifted, bench.text.flip(1), dose * sum(squares) ** 0.5, seed, paths=part.paths)
    if matched:
        own = [(bench.base.module.get_submodule(path), changed.module.get_submodule(path)) for path in part.paths]
        pairs = [pair for x, y in own for pair in zip(x.parameters(), y.parameters(), strict=True)]
        shrink = (sum(squares) / sum(float((b - a).square().sum()) for a, b in pairs)) ** 0.5
        for a, b in pairs:
            b.copy_(a + shrink * (b - a))
    return changed


def false_alarms(bench: Bench, count: int) -> None:
    """Print how often a fork beside 19 others, drawn from one pool many times, and a perturbation raise an alarm."""
    pool = [bench.measured(bench.drifted(seed)) for seed in range(100, 100 + count)]
    kl = torch.tensor([each[0] for each in pool])
    shares = torch.tensor([[each[1][part] for part in bench.parts] for each in pool], dtype=torch.float64)
    by_kl, by_part_ = [], []
    for _ in range(DRAWS):
        drawn = torch.randperm(count)[: NULLS + 1]
        by_kl.append(bool(rank_p(kl[drawn[0]], kl[drawn[1:]]) <= 0.05))
        by_part_.append(bool(beyond_null(shares[drawn[0]], shares[drawn[1:]])[1] <= 0.05))
    by_perturbation = [bench.perturbed(permuted(bench, seed)) <= 0.05 for seed in range(100, 100 + count)]
    for name, alarms in {"drift, KL": by_kl, "drift, any part": by_part_, "perturbation, KL": by_perturbation}.items():
        print(f"false alarms, {name}: {sum(alarms)} of {len(alarms)}", flush=True)


def ranks(bench: Bench, changed) -> dict[str, list[Part]]:
    """Return the parts of blocks in the order in which each way names them."""
    _, shares, entering = bench.measured(changed)
    weights = {part: relative_change(bench.base, changed, part) for part in bench.parts}
    ways = {"share beyond drift": bench.beyond(shares), "share of KL": shares,
            "entering": entering, "weights": weights}  # fmt: skip
    candidates = [part for part in bench.parts if part.component in ("attention", "MLP")]
    return {name: sorted(candidates, key=lambda part: -values[part]) for name, values in ways.items()}


def power(bench: Bench, doses: Sequence[float], count: int, matched: bool) -> None:
    candidates = [part for part in bench.parts if part.component in ("attention", "MLP")]
    for dose in doses:
        hits: dict[str, list[tuple[bool, bool]]] = {}
        for number in range(count):
            part = candidates[number % len(candidates)]
            for name, order in ranks(bench, planted(bench, part, dose, 200 + number, matched)).items():
                hits.setdefault(name, []).append((order[0].layer == part.layer, order[0] == part))
        for name, found in hits.items():
            block, component = (sum(each) for each in zip(*found, strict=True))
            where = f"dose {dose}{', norm of drift' * matched}, {name}"
            print(f"{where}: block {block} of {count}, part {component} of {count}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="gpt2-mini")
    parser.add_argument("--norm", type=float, default=0.7, help="of the change of a fork, over all weights")
    parser.add_argument("--nulls", type=int, default=40)
    parser.add_argument("--plants", type=int, default=24)
    parser.add_argument("--doses", type=float, nargs="+", default=[2.0, 1.0, 0.5])
    given = parser.parse_args()
    torch.set_num_threads(1)
    bench = Bench(given.model, given.norm)
    print(f"{given.model}: KL of {NULLS} forks {bench.kl.min():.4f} to {bench.kl.max():.4f}", flush=True)
    for matched in (False, True):
        power(bench, given.doses, given.plants, matched)
    false_alarms(bench, given.nulls)


if __name__ == "__main__":
    main()
