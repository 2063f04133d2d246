"""CKA within and between Pythia, SoLU and GeLU models: figures 3, 4, 5, 9, 10 and table 1 of Brown et al. 2023.

What the paper reads off its heatmaps is stated here as a statistic of their cells, with a jackknife interval over
batches; all jobs of an experiment see the same batches. Blocks of a model with L layers: early, its first L/8 (at least
one; the paper's pythia-6.9b has 3 of 32); last, its final layer; middle, from L/4 to L - L/4.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from thinkalike import figures, jobs
from thinkalike.config import AnalyzeConfig, compose_job
from thinkalike.measures import Estimate, alignment, jackknife, leave_one_out
from thinkalike.models import head_dimensions
from thinkalike.reproduce.claims import Claim, conclude

log = logging.getLogger(__name__)

# the paper's models, and the minis that stand for them; the odd one is pythia-2.8b
PYTHIA = {
    "paper": [f"pythia-{size}-deduped" for size in ("70m", "160m", "410m", "1b", "1.4b", "2.8b", "6.9b", "12b")],
    "mini": ["neox-3l-mini", "neox-4l-mini", "neox-5l-mini", "neox-5l-odd-mini", "neox-6l-mini"],
}
ODD = {"paper": "pythia-2.8b-deduped", "mini": "neox-5l-odd-mini"}
FIGURE_3 = {"paper": ("1b", "1.4b", "2.8b", "6.9b"), "mini": ("4l", "5l", "5l-odd", "6l")}
FIGURE_9 = {"paper": ("1b", "1.4b", "2.8b"), "mini": ("4l", "5l", "5l-odd")}
FIGURE_10 = {"paper": ("70m", "160m", "410m", "1b"), "mini": ("3l", "4l", "5l", "6l")}


@dataclass(frozen=True)
class Comparison:
    """A finished CKA job of two models."""

    source: str
    target: str
    folder: Path

    @property
    def label(self) -> str:
        return f"{self.source}, {self.target}"

    def table(self) -> pd.DataFrame:
        return pd.read_csv(self.folder / "table.csv")

    def cells(self, mean: Callable[[Tensor], Tensor]) -> Tensor:
        """CKA (..., l, m) across the two models, of HSICs (b, k, k) over which `mean` is taken."""
        arrays = np.load(self.folder / "arrays.npz")
        depth = len(arrays["value"])
        return alignment(mean(torch.from_numpy(arrays["hsics"])))[..., :depth, depth:]


Statistic = Callable[[Sequence[Tensor]], Tensor]  # of the cells of some comparisons, each (..., l, m)


def estimate(statistic: Statistic, comparisons: Sequence[Comparison]) -> Estimate:
    """The statistic with its jackknife interval over batches."""
    whole = statistic([each.cells(lambda hsics: hsics.mean(0)) for each in comparisons])
    return jackknife(whole, statistic([each.cells(leave_one_out) for each in comparisons]))


def early(layers: int) -> slice:
    return slice(0, max(layers // 8, 1))


def middle(layers: int) -> slice:
    return slice(layers // 4, layers - layers // 4)


def mean_of(cells: Tensor, rows: slice, columns: slice) -> Tensor:
    return cells[..., rows, columns].mean((-2, -1))


def middle_likeness(cells: Tensor) -> Tensor:
    """Mean CKA of the middle layers of both models."""
    return mean_of(cells, middle(cells.shape[-2]), middle(cells.shape[-1]))


def early_likeness(cells: Tensor) -> Tensor:
    """Mean CKA of the early layers of both models, minus that of all layer pairs."""
    return mean_of(cells, early(cells.shape[-2]), early(cells.shape[-1])) - cells.mean((-2, -1))


def off_diagonal(cells: Tensor) -> Tensor:
    """Mean CKA of two different layers of a model."""
    layers = cells.shape[-1]
    return cells[..., ~torch.eye(layers, dtype=torch.bool)].mean(-1)


def block_structure(cells: Tensor) -> Tensor:
    """Mean CKA of two different layers in one of the blocks early, last and between, minus that across blocks."""
    layers = cells.shape[-1]
    block = torch.ones(layers, dtype=torch.long)
    block[early(layers)], block[-1] = 0, 2
    alike, different = block[:, None] == block, ~torch.eye(layers, dtype=torch.bool)
    return cells[..., alike & different].mean(-1) - cells[..., ~alike].mean(-1)


def one_sidedness(cells: Tensor) -> Tensor:
    """Mean over i < j of CKA(source layer i, target layer j) - CKA(source layer j, target layer i)."""
    upper = torch.triu_indices(cells.shape[-2], cells.shape[-1], 1)
    return (cells - cells.mT)[..., upper[0], upper[1]].mean(-1)


def _greater(claim: str, statistic: Statistic, comparisons: Sequence[Comparison], words: str) -> Claim:
    found = estimate(statistic, comparisons)
    return Claim(claim, bool(found.low > 0), f"{words}: {_span(found)}")


def _span(found: Estimate) -> str:
    return f"{float(found.value):+.4f} [{float(found.low):+.4f}, {float(found.high):+.4f}]"


def figure3(config: AnalyzeConfig) -> Path:
    """Each Pythia model against the largest."""
    names = _names(config, FIGURE_3)
    found = _compare(config, [(name, names[-1]) for name in names])
    odd, itself, others = found[2], found[3], found[:2]
    claims = [
        _odd_one_out(f"{odd.source} is less like {odd.target} in the middle layers than the others are", others, [odd]),
        _early(found[:3]),
        _blocks(itself),
    ]
    if config.scale == "mini":  # which the paper could not do: 5l and 5l-odd differ in head dimension alone
        claims.append(_odd_one_out("controlled: a smaller head dimension alone makes it so", others[1:], [odd]))
    return _finish(config, found, claims, [(each.source, each.target) for each in found])


def figure9(config: AnalyzeConfig) -> Path:
    """All pairs of three Pythia models, of which one is odd."""
    names = _names(config, FIGURE_9)
    found = _compare(config, list(itertools.combinations(names, 2)))
    odd = [each for each in found if names[2] in (each.source, each.target)]
    others = [each for each in found if each not in odd]
    claims = [_odd_one_out(f"{names[2]} is less like the others than they are alike in the middle layers", others, odd)]
    return _finish(config, found, [*claims, _early(found)], list(itertools.combinations_with_replacement(names, 2)))


def figure10(config: AnalyzeConfig) -> Path:
    """Within each of four Pythia models that grow."""
    names = _names(config, FIGURE_10)
    found = _compare(config, [(name, name) for name in names])
    steps = [
        (pair, estimate(lambda cells: off_diagonal(cells[1]) - off_diagonal(cells[0]), pair))
        for pair in itertools.pairwise(found)
    ]
    numbers = "; ".join(f"{larger.source} minus {smaller.source} {_span(step)}" for (smaller, larger), step in steps)
    grows = Claim(
        "the likeness of a model's layers grows with scale",
        all(bool(step.low > 0) for _, step in steps),
        f"mean CKA of two different layers: {numbers}",
    )
    return _finish(config, found, [grows, *map(_blocks, found[1:])], [(name, name) for name in names])


def figure4(config: AnalyzeConfig) -> Path:
    """Within and between SoLU and GeLU, 3 layers."""
    return _activations(config, 3)


def figure5(config: AnalyzeConfig) -> Path:
    """Within and between SoLU and GeLU, 4 layers."""
    return _activations(config, 4)


def _activations(config: AnalyzeConfig, depth: int) -> Path:
    suffix = "-mini" if config.scale == "mini" else ""
    gelu, solu = (f"{name}-{depth}l{suffix}" for name in ("gelu", "solu"))
    found = _compare(config, [(solu, gelu)])
    tilt = estimate(lambda cells: one_sidedness(cells[0]), found)
    claim = Claim(
        "CKA between SoLU and GeLU shows no direction",
        bool(tilt.low <= 0 <= tilt.high),
        f"an earlier layer of {solu} with a later one of {gelu}, minus the reverse: {_span(tilt)}",
    )
    return _finish(config, found, [claim], [(gelu, gelu), (solu, solu), (solu, gelu)])


def table1(config: AnalyzeConfig) -> Path:
    """Head and rotary dimensions of the Pythia models, from their configurations."""
    names = PYTHIA[config.scale]
    models = [compose_job("analyze", [f"model={name}"]).model for name in names]
    table = pd.DataFrame([{"model": model.name, **head_dimensions(model)} for model in models])
    print(table.to_string(index=False))
    large = table[names.index(ODD[config.scale]) - 2 :]
    odd = large[large["model"] == ODD[config.scale]].iloc[0]
    others = large[large["model"] != odd["model"]]
    claim = Claim(
        f"{odd['model']} has smaller heads and rotary dimensions than models of about its size",
        bool((odd["d_head"] < others["d_head"]).all() and (odd["rotary"] < others["rotary"]).all()),
        f"head dimension {odd['d_head']} against {sorted(others['d_head'])}, rotary {odd['rotary']} against "
        f"{sorted(others['rotary'])}",
    )
    return conclude(config, {}, table, [claim], lambda *_: None)


def _odd_one_out(claim: str, others: Sequence[Comparison], odd: Sequence[Comparison]) -> Claim:
    def difference(cells: Sequence[Tensor]) -> Tensor:
        means = [middle_likeness(each) for each in cells]
        return torch.stack(means[: len(others)]).mean(0) - torch.stack(means[len(others) :]).mean(0)

    words = f"mean CKA of middle layers of {_labels(others)} minus that of {_labels(odd)}"
    return _greater(claim, difference, [*others, *odd], words)


def _early(comparisons: Sequence[Comparison]) -> Claim:
    return _greater(
        "early layers are alike across sizes, more than layers are in general",
        lambda cells: torch.stack([early_likeness(each) for each in cells]).mean(0),
        comparisons,
        f"mean CKA of early layers minus that of all, {_labels(comparisons)}",
    )


def _blocks(within: Comparison) -> Claim:
    return _greater(
        f"{within.source} has blocks: early, middle, last",
        lambda cells: block_structure(cells[0]),
        [within],
        "mean CKA of two layers of one block minus that of two blocks",
    )


def _labels(comparisons: Sequence[Comparison]) -> str:
    return " and ".join(f"({each.label})" for each in comparisons)


def _names(config: AnalyzeConfig, sizes: Mapping[str, tuple[str, ...]]) -> list[str]:
    pattern = "neox-{}-mini" if config.scale == "mini" else "pythia-{}-deduped"
    return [pattern.format(size) for size in sizes["mini" if config.scale == "mini" else "paper"]]


def _compare(config: AnalyzeConfig, pairs: Sequence[tuple[str, str]]) -> list[Comparison]:
    """The CKA jobs of these pairs, computed where the store lacks them."""
    found = []
    for number, (source, target) in enumerate(pairs, 1):
        log.info("%d of %d: %s and %s", number, len(pairs), source, target)
        words = [f"model={source}", f"model@target={target}", f"store={config.store}", f"seed={config.seed}"]
        job = replace(compose_job("analyze", words), measure=config.measure, threads=config.threads, force=config.force)
        if config.data.name != "auto":
            job = replace(job, data=config.data)
        found.append(Comparison(source, target, jobs.cka(job)))
    return found


def _finish(
    config: AnalyzeConfig, found: Sequence[Comparison], claims: Sequence[Claim], drawn: Sequence[tuple[str, str]]
) -> Path:
    table = pd.concat([each.table() for each in found], ignore_index=True)
    table = table.drop_duplicates(["source", "target", "source_layer", "target_layer"])

    def draw(table: pd.DataFrame, folder: Path) -> None:
        parts = [table[(table["source"] == source) & (table["target"] == target)] for source, target in drawn]
        figures.cka(pd.concat(parts), folder, across=2 if len(drawn) == 4 else 3)

    return conclude(config, {each.label: each.folder for each in found}, table, claims, draw)
