"""Rows of two models whose documents depend on each other, scattered at random over batches; for other benchmarks."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from thinkalike.measures.folds import numbered_by_part

LATENT, NOISE = 8, 0.05  # variables of a model, and the noise of a unit
LENGTHS = ("equal", "geometric")


class Scattered(NamedTuple):
    """Rows in an order that is random."""

    source: list[Tensor]  # by layer, each (n, d)
    target: list[Tensor]
    documents: Tensor  # (n,), as `numbered_by_part` numbers them
    tokens: Tensor  # (n,)


def scattered(
    rows: int,
    documents: int,
    share: float,
    chance: torch.Generator,
    *,
    lengths: str | Tensor = "equal",
    common: float = 0.0,
    width: int = 16,
    depth: int = 1,
    vocabulary: int = 0,
    same_maps: bool = False,
    maps: torch.Generator | None = None,
) -> Scattered:
    """Draw rows of two models: random maps of their latent variables, and noise.

    Args:
        rows, documents: How many there are; each document has its expected share of the rows.
        share: Of the variance of each latent variable that is the document's.
        lengths: "equal", "geometric", which are as unequal as the times between random events, or the share of each
            document, which is then exact.
        common: The share of the variance of the latent variables that both models have in common.
        vocabulary: How many tokens there are, each with a latent part of its own in both models; 0: none.
        same_maps: Whether both models have the same maps.
        maps: Draws the maps; by default `chance`.
    """

    def normal(*shape: int, of: torch.Generator = chance) -> Tensor:
        return torch.randn(*shape, generator=of, dtype=torch.float64)

    weights = lengths if isinstance(lengths, Tensor) else torch.ones(documents)
    if isinstance(lengths, str) and lengths == "geometric":
        weights = -torch.rand(documents, generator=chance).clamp(1e-9).log()
    if isinstance(lengths, Tensor) and documents <= rows:
        ends = (weights.cumsum(0) / weights.sum() * rows).round().long()
        in_order = torch.arange(documents).repeat_interleave(ends.diff(prepend=ends.new_zeros(1)))
        owners = in_order[torch.randperm(rows, generator=chance)]
    else:
        owners = weights.multinomial(rows, replacement=True, generator=chance)
    tokens = torch.randint(max(vocabulary, 1), (rows,), generator=chance)

    def latent() -> Tensor:
        return math.sqrt(1 - share) * normal(rows, LATENT) + math.sqrt(share) * normal(documents, LATENT)[owners]

    first = latent()
    second = math.sqrt(common) * first + math.sqrt(1 - common) * latent()
    sides = []
    made = normal(2, depth, LATENT, width, of=maps or chance) / math.sqrt(LATENT)
    for side, z in enumerate((first, second)):
        states = z + normal(max(vocabulary, 1), LATENT)[tokens] * bool(vocabulary)
        own = made[0 if same_maps else side]
        sides.append([states @ each + NOISE * normal(rows, width) for each in own])
    return Scattered(*sides, numbered_by_part(owners), tokens)


class Records:
    """Simulations in a file, a few a line, so that a benchmark that was stopped does only what is missing."""

    def __init__(self, path: Path):
        lines = path.read_text().splitlines() if path.exists() else []
        self.path, self._known = path, {json.dumps(record["key"]): record for record in map(json.loads, lines)}

    def of(self, key: Mapping[str, Any], compute: Callable[[], list[Any]]) -> dict[str, Any]:
        """Return the record of this key: itself, its `runs`, and how many `seconds` they took."""
        if (name := json.dumps(key)) not in self._known:
            began = time.perf_counter()
            self._known[name] = {"key": key, "runs": compute(), "seconds": time.perf_counter() - began}
            with self.path.open("a") as file:
                print(json.dumps(self._known[name]), file=file)
        return self._known[name]
