"""task=stitch: fit φ at every chosen layer pair of two frozen models, and report what it costs (Brown et al. 2023)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from thinkalike import figures
from thinkalike.config import TrainConfig
from thinkalike.evaluation import alignment_scalars, document_bytes, document_numbers, verdict
from thinkalike.instruments.operations.stitches import bytes_of_maps, phases_of
from thinkalike.instruments.stitching.controls import never_trained, reported
from thinkalike.instruments.stitching.fitting import fitted
from thinkalike.instruments.stitching.screen import show_stitches
from thinkalike.instruments.stitching.setting import Setting, foresee
from thinkalike.instruments.stitching.table import penalties
from thinkalike.job import Instrument, Outcome, Phase, Shapes, Work
from thinkalike.measures import documents_and_seeds_interval
from thinkalike.stitches import write_stitches
from thinkalike.store import Headline, Result
from thinkalike.training import Run, loggers_of


class Stitching(
    Instrument,
    kind="stitching",
    version=3,
    config=TrainConfig,
    reads=("model", "target", "data", "layers", "stitch", "trainer", "seed"),
):
    """Stitches `model` to `target` at `layers`; leaves table, stitches, learning curves and figure."""

    def inputs(self, config: TrainConfig) -> Mapping[str, Any]:
        foresee(config)
        return super().inputs(config)

    def operations(self, config: TrainConfig, shapes: Shapes) -> list[Phase]:
        return phases_of(config, shapes)

    def holds(self, config: TrainConfig, shapes: Shapes) -> float:
        return bytes_of_maps(config, shapes)

    def run(self, config: TrainConfig, work: Work) -> Outcome:
        with work.phase("loading"):
            setting = Setting.of(config)
        source, target, corpus = setting.source, setting.target, setting.corpus
        run = Run(work.job.partial, target.device, config.trainer, work.tracker)
        loggers = loggers_of(run)
        done = {"": _stitched(setting, run, loggers, work)}
        if config.stitch.both:
            done["back"] = _stitched(setting.reversed(config.data), replace(run, part="back"), (), work)
        if weights := _joined({way: each.weights for way, each in done.items()}, "."):
            stitch = config.stitch
            shape = {"widths": (source.d_model, target.d_model), "rank": stitch.rank} if stitch.trained else {}
            write_stitches(work.job.aside, weights, setting.layer_pairs, stitch.kind, stitch.norm, **shape)
        table = pd.concat([each.table for each in done.values()], ignore_index=True)
        return Outcome(
            table,
            {"mean_penalty": float(table["penalty"].mean()), "worst_penalty": float(table["penalty"].max())}
            | {"rows_used": done[""].rows_used}
            | document_numbers(torch.from_numpy(done[""].arrays["tokens"]))
            | alignment_scalars(corpus),
            _joined({way: each.arrays for way, each in done.items()}, "_"),
            models=[source.describe(), target.describe()],
            facts={"data": {"name": config.data.name, **corpus.facts()}, "training": done[""].speed},
        )

    def draw(self, result: Result, folder: Path) -> None:
        """Draw a map where every source layer was stitched to every target layer, else a line, for each direction."""
        ways = result.table.groupby(["source", "target"], sort=False)
        for name, ((source, target), table) in zip(("penalty", "penalty_back"), ways, strict=False):
            cells = table.pivot(index="source_layer", columns="target_layer", values="penalty")
            if len(cells.columns) > 1 and len(cells) > 1 and cells.notna().all(axis=None):
                figures.penalty_map(cells, f"{source} into {target}", folder, name)
            else:
                figures.penalties(table, folder, name)

    def headlines(self, result: Result) -> list[Headline]:
        """Return the mean penalty over layer pairs and the worst one, in nats per token."""
        table, scalars = result.table, result.scalars
        worst = table.iloc[int(table["penalty"].argmax())]
        both_ways = len(table) > len(result.arrays["stitch"])  # whose documents are not the same
        ends = () if both_ways else _ends_of_mean(result.arrays)
        return [
            Headline("mean_penalty", scalars["mean_penalty"], *ends),
            Headline.with_ends("worst_penalty", worst["penalty"], worst["penalty_low"], worst["penalty_high"]),
        ]

    def show(self, result: Result) -> None:
        show_stitches(result)


def _ends_of_mean(arrays: Mapping[str, Any]) -> tuple[float, float]:
    """Return the ends of the interval of the mean penalty over layer pairs, over documents and seeds."""
    fits = [each for name, each in arrays.items() if name == "stitch" or name.startswith("seed_")]
    by_seed = torch.stack([torch.from_numpy(each - arrays["target"]).mean(0) for each in fits])
    _, low, high = documents_and_seeds_interval(by_seed, torch.from_numpy(arrays["tokens"]))
    return float(low), float(high)


def _joined(parts: Mapping[str, Mapping[str, Any]], mark: str) -> dict[str, Any]:
    """Return the entries of all parts, those of a part with a name under that name, the mark, and their own."""
    return {f"{part}{mark}{key}" if part else key: each for part, own in parts.items() for key, each in own.items()}


class _Stitched(NamedTuple):
    """One direction of a job: its table, and what of its stitches and sums is kept."""

    table: pd.DataFrame
    weights: dict[str, Tensor]
    arrays: dict[str, Any]
    rows_used: float  # by what is measured given the token
    speed: dict[str, float]  # of the training of the first seed


def _stitched(setting: Setting, run: Run, loggers: Sequence[Any], work: Work) -> _Stitched:
    """Fit the stitches of one direction, with every seed that is asked for, and report on them."""
    with work.phase("likeness"):
        alike = setting.likeness()  # first, as it may find that there is too little text
    with work.phase("controls"):
        untrained = never_trained(setting)
    with work.phase("fit"):
        first = fitted(setting, run, loggers, untrained)
    alone = replace(setting, config=replace(setting.config, floor=False, rates=[]))
    again = {}
    for more in range(1, setting.config.seeds if setting.config.trained else 1):
        part = f"{run.part}-seed-{more}" if run.part else f"seed-{more}"
        with work.phase("fit"):
            again[f"seed_{more}"] = fitted(replace(alone, seed=setting.seed + more), replace(run, part=part), ())
    with work.phase("report"):
        sums = reported(setting, first, untrained, {name: each.maps for name, each in again.items()})
        sums |= document_bytes(setting.corpus)
    weights = _joined({"": first.weights} | {name: each.weights for name, each in again.items()}, ".")
    arrays = first.arrays | {name: values.numpy() for name, values in sums.items()}
    table = pd.concat([penalties(setting, sums), pd.DataFrame(alike.columns())], axis=1)
    table["verdict"] = [verdict(row) for row in table.to_dict("records")]
    return _Stitched(table, weights, arrays, alike.rows_used, first.speed)
