"""Stitching between SoLU and GeLU models: figures 1 and 6 of Brown et al. 2023, and what section 3 claims."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from thinkalike import figures, jobs
from thinkalike.config import AnalyzeConfig, compose_job
from thinkalike.reproduce.claims import Claim, conclude

log = logging.getLogger(__name__)


MINI_RECIPE = ["stitch.steps=200", "stitch.warmup=20", "data.report_tokens=131072"]  # 12 jobs within half an hour


@dataclass(frozen=True)
class Direction:
    """One stitching job of a figure: a group of comparable jobs, source, target, and the folder of its result."""

    group: str
    source: str
    target: str
    folder: Path

    @property
    def label(self) -> str:
        return f"{self.source} → {self.target}"

    def table(self) -> pd.DataFrame:
        return pd.read_csv(self.folder / "table.csv").assign(group=self.group)


def figure1(config: AnalyzeConfig) -> Path:
    """brown2023, figure 1: penalties of all four directions between SoLU and GeLU; at mini scale also other seeds."""
    directions = stitches_of_figure_1(config)
    found = {(each.source, each.target): each for each in directions}
    claims = [claim for group in dict.fromkeys(each.group for each in directions) for claim in _claims(group, found)]

    def draw(table: pd.DataFrame, folder: Path) -> None:
        figures.directions(table, folder)
        both = [(each, found.get((each.target, each.source))) for each in directions if each.source.startswith("solu")]
        parts = [
            jobs.asymmetries(there.folder, back.folder).assign(group=there.group)
            for there, back in both
            if back and back is not there
        ]
        pd.concat(parts).to_csv(folder.parent / "asymmetry.csv", index=False)

    return _finish(config, directions, claims, draw)


def figure6(config: AnalyzeConfig) -> Path:
    """brown2023, figure 6: the learning curves of the stitches of figure 1."""
    directions = [each for each in stitches_of_figure_1(config) if "seed" not in each.group]

    curves = {each: np.load(each.folder / "arrays.npz")["curve"] for each in directions}

    def draw(_: pd.DataFrame, folder: Path) -> None:
        figures.learning_curves({(each.group, each.label): curve for each, curve in curves.items()}, folder)

    changes = {each: curve[-30:].mean(0) - curve[:10].mean(0) for each, curve in curves.items()}
    fallen = all((change < 0).all() for each, change in changes.items() if each.source != each.target)
    worst = max(float(change.max()) for change in changes.values())
    claims = [Claim("every stitch between two models learns", fallen, f"largest change of the loss {worst:+.3f} nats")]
    return _finish(config, directions, claims, draw)


def stitches_of_figure_1(config: AnalyzeConfig) -> list[Direction]:
    """Every stitching job of the figure, computed where the store lacks it."""
    suffix = "-mini" if config.scale == "mini" else ""
    wanted = [
        (f"{depth} layers", f"{source}-{depth}l{suffix}", f"{target}-{depth}l{suffix}")
        for depth in (3, 4)
        for source in ("solu", "gelu")
        for target in ("solu", "gelu")
    ]
    if config.scale == "mini":  # which the paper could not do: no independent seeds of its models exist
        pairs = [("solu", "gelu-s1"), ("gelu-s1", "solu"), ("solu", "solu-s1"), ("gelu", "gelu-s1")]
        wanted += [("3 layers, other seed", _seeded(source), _seeded(target)) for source, target in pairs]
    found = []
    for number, (group, source, target) in enumerate(wanted, 1):
        log.info("%d of %d: %s into %s", number, len(wanted), source, target)
        words = [f"model={source}", f"model@target={target}", f"recipe={config.recipe}", "stitch.controls=true"]
        words += ["stitch=affine"] if config.recipe == "paper" else []
        words += [f"store={config.store}", f"seed={config.seed}", f"force={config.force}", "logger=none"]
        if config.scale == "mini":
            words += MINI_RECIPE
        words += [f"trainer.threads={config.threads}"] if config.threads else []
        job = compose_job("train", words)
        if config.data.name != "auto":
            job = replace(job, data=config.data)
        found.append(Direction(group, source, target, jobs.stitch(job)))
    return found


def _seeded(name: str) -> str:
    """gelu-s1 → gelu-3l-mini-s1."""
    activation, _, seed = name.partition("-")
    return f"{activation}-3l-mini" + (f"-{seed}" if seed else "")


def _claims(group: str, found: Mapping[tuple[str, str], Direction]) -> list[Claim]:
    """What section 3 says of SoLU and GeLU, checked on one group of directions."""
    inside = {key: each for key, each in found.items() if each.group == group}
    pick = lambda source, target: next(  # noqa: E731
        each for (a, b), each in inside.items() if a.startswith(source) and b.startswith(target)
    )
    to_gelu, to_solu = pick("solu", "gelu"), pick("gelu", "solu")
    selves = {"solu": pick("solu", "solu"), "gelu": pick("gelu", "gelu")}
    return [
        _greater(f"{group}: SoLU into GeLU costs more than GeLU into SoLU at every layer", to_gelu, to_solu),
        _all(
            f"{group}: stitching into the same activation costs least",
            [_greater("", cross, own) for cross in (to_gelu, to_solu) for own in selves.values()],
        ),
        _greater(f"{group}: SoLU into SoLU stitches better than GeLU into GeLU", selves["gelu"], selves["solu"]),
    ]


def _greater(claim: str, more: Direction, less: Direction) -> Claim:
    """Whether one direction's penalty is above another's at every layer, by its interval over the same documents."""
    mean, low, high = jobs.penalty_difference(more.folder, less.folder)
    spans = zip(mean.tolist(), low.tolist(), high.tolist(), strict=True)
    numbers = ", ".join(f"{value:+.3f} [{a:+.3f}, {b:+.3f}]" for value, a, b in spans)
    return Claim(claim, bool((low > 0).all()), f"{more.label} minus {less.label} by layer: {numbers}")


def _all(claim: str, parts: Sequence[Claim]) -> Claim:
    return Claim(claim, all(part.holds for part in parts), "; ".join(part.numbers for part in parts))


def _finish(
    config: AnalyzeConfig,
    directions: Sequence[Direction],
    claims: Sequence[Claim],
    draw: Callable[[pd.DataFrame, Path], Any],
) -> Path:
    table = pd.concat([each.table() for each in directions], ignore_index=True)
    return conclude(config, {each.label: each.folder for each in directions}, table, claims, draw)
