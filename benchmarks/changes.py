"""How often measure=diff null=drift finds the part that was changed under drift of all others.

    python benchmarks/changes.py --out results/changes

Models and numbers are kept in --out, so that the same command goes on from there. A fork is 40 steps of AdamW on the
model's own text at a rate that falls to 0 (see `forks.fork`); 19 forks, with changes scaled to the norm of the one that
they are compared with, are the null. A plant is a further fork, of which the attention or the MLP of one block was
changed too: trained on rows in reversed or random order, or by Gaussian noise, by a dose times the norm by which drift
moves it; then also with the part's whole change scaled to that norm. Found is the part that comes first by: the forks
(`beyond_forks`); the norm of its weights' change; its share of KL; what enters there. The statistic was chosen with
--seed 100 in gpt2-mini.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from thinkalike.arguments import seeded
from thinkalike.config import compose_job
from thinkalike.data.rows import TokenRows
from thinkalike.evaluation.changes import by_part, seen
from thinkalike.evaluation.forks import Move, beyond_forks, fork, moves, with_weights
from thinkalike.instruments.diff.instrument import FORKED, NULLS, read_rows
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.load import load_model
from thinkalike.models.parts import Part, parts_of

TOKENS, NORM = 512, 0.7
DOSES = (2.0, 1.0, 0.5, 0.25)

Delta = dict[str, torch.Tensor]


class Court:
    """A mini with its text, models that were made of it, and numbers, which are kept in a folder."""

    def __init__(self, name: str, out: Path):
        self.name, self.out = name, out / name
        self.out.mkdir(parents=True, exist_ok=True)
        config = compose_job("analyze", ["measure=diff", "measure.null=drift", f"model={name}"])
        self.base = load_model(config.model)
        rows, self.text, _ = read_rows(config, self.base, FORKED)
        self.first = TOKENS // rows.context
        self.rows = TokenRows(rows.tokens[: self.first], rows.documents[: self.first])
        self.before = {key: weight.detach() for key, weight in self.base.module.named_parameters()}
        self.parts = [part for part in parts_of(self.base) if self.keys(part)]  # not a head that is the embedding
        self.candidates = [part for part in self.parts if part.component in ("attention", "MLP")]

    def keys(self, part: Part) -> list[str]:
        return [key for key in self.before if key.startswith(part.prefixes)]

    def number(self, name: str, compute: Callable[[], Any]) -> Any:
        """Return what was computed under this name, or compute it."""
        path = self.out / "numbers.json"
        known = json.loads(path.read_text()) if path.exists() else {}
        if name not in known:
            known[name] = compute()
            path.write_text(json.dumps(known, indent=0))
            print(f"{self.name} {name}: {str(known[name])[:200]}", flush=True)
        return known[name]

    def change(self, name: str, make: Callable[[], FrozenModel], origin: Delta | None = None) -> Delta:
        """Return the change of a model that was made under this name, or make it."""
        path, start = self.out / f"{name.replace(' ', '_')}.pt", origin or self.before
        if not path.exists():
            made = make().module.named_parameters()
            torch.save({key: own - start[key] for key, own in made if not torch.equal(own, start[key])}, path)
        return torch.load(path)

    def model(self, *changes: tuple[float, Delta]) -> FrozenModel:
        """Return the base with the sum of some changes, each times a number."""
        module = deepcopy(self.base.module)
        with torch.no_grad():
            for key, weight in module.named_parameters():
                for scale, change in changes:
                    if key in change:
                        weight += scale * change[key]
        return with_weights(self.base, module, "changed")

    def fork(self, seed: int) -> Delta:
        return self.change(f"fork-{seed}", lambda: fork(self.base, self.text, NORM, seed))

    @cached_property
    def forks(self) -> list[list[Move]]:
        return [moves(self.base, self.model((1, self.fork(seed))), self.parts) for seed in range(NULLS)]

    def beyond(self, changed: FrozenModel, norm: float) -> tuple[torch.Tensor, float]:
        """Return how far each part is beyond the forks, scaled to a norm, and p."""
        scale = torch.tensor(norm / NORM)
        null = [[Move(scale * own.weights, own.largest + float(scale.log())) for own in run] for run in self.forks]
        return beyond_forks(moves(self.base, changed, self.parts), null)


def total(change: Delta) -> float:
    return sum(float(each.square().sum()) for each in change.values()) ** 0.5


def plant(court: Court, kind: str, part: Part, seed: int) -> Delta:
    """Return a change of one part of a fork, of norm 1."""
    generator, text = seeded(seed), court.text
    if kind == "noise":
        noise = {key: torch.randn(court.before[key].shape, generator=generator) * court.before[key].std(correction=0)
                 for key in court.keys(part)}  # fmt: skip
        return {key: each / total(noise) for key, each in noise.items()}
    order = torch.rand(text.shape, generator=generator).argsort(1)
    text = text.flip(1) if kind == "reversed" else text.gather(1, order)
    drifted = court.model((1, court.fork(seed)))
    origin = {key: own.detach().clone() for key, own in drifted.module.named_parameters()}
    name = f"{kind}-{part}-{seed}"
    return court.change(name, lambda: fork(drifted, text, 1.0, 400 + seed, paths=part.paths), origin)


def parts(court: Court, seed: int) -> Iterator[tuple[str, dict[str, list[bool]]]]:
    """Yield each kind of plant, and by each way whether the first block, and the first part, is the right one."""
    for kind in ("reversed", "shuffled", "noise"):
        for number, part in enumerate(court.candidates):
            own, added = court.fork(seed + number), plant(court, kind, part, seed + number)
            norm = total({key: own[key] for key in court.keys(part)})
            for dose in DOSES:
                for matched in (False, True):
                    name = f"{dose}{' scaled to the norm of drift' * matched}"
                    compute = partial(_found, court, own, added, norm, dose, matched, part, kind)
                    yield name, court.number(f"{kind} {name}, {seed}: {part}", compute)


def _found(court: Court, own: Delta, added: Delta, norm: float, dose: float, matched: bool, part: Part, kind: str):
    inside = {key: own[key] + dose * norm * added[key] for key in court.keys(part)}
    scale = norm / total(inside) if matched else 1.0
    change = own | {key: scale * each for key, each in inside.items()}
    changed = court.model((1, change))
    beyond = court.beyond(changed, total(change))[0]
    norms = [
        [total({key: side[key] for key in court.keys(each)}) for each in court.parts] for side in (change, court.before)
    ]
    relative = [moved / whole for moved, whole in zip(*norms, strict=True)]
    ways = {"beyond": beyond.tolist(), "weights": relative}
    if kind == "reversed" and not matched and dose in (1.0, 0.5):
        batches, changes = zip(*seen(court.base, changed, court.rows, court.first), strict=True)
        whole = torch.cat([each.tokens.kl for each in changes]).sum()
        found = by_part(court.base, changed, court.parts, batches, 999)
        ways["share"] = [float((whole - each.without.sum() + each.alone.sum()) / whole) for each in found.values()]
        ways["entering"] = [0.0 if each.entering is None else float(each.entering.mean()) for each in found.values()]
    answer = {}
    for way, values in ways.items():
        first = first_of(court, values)
        answer[way] = [first.layer == part.layer, first == part]
    return answer


def first_of(court: Court, values: Sequence[float]) -> Part:
    """Return the attention or MLP with the greatest value."""
    return max(court.candidates, key=lambda part: values[court.parts.index(part)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=112, help="of the first plant in gpt2-mini")
    given = parser.parse_args()
    torch.set_num_threads(1)
    counts: dict[tuple[str, str], list[list[bool]]] = {}
    for name, seed in (("gpt2-mini", given.seed), ("neox-4l-mini", 100)):
        for plant_, ways in parts(Court(name, given.out), seed):
            for way, right in ways.items():
                counts.setdefault((plant_, way), []).append(right)
    for (dose, way), found in counts.items():
        block, part = map(sum, zip(*found, strict=True))
        print(f"{dose}, by {way}: block {block}, part {part} of {len(found)}")


if __name__ == "__main__":
    main()
