"""measure=asymmetry: what stitching one way costs more than the other way.

    python analyze.py measure=asymmetry model=solu-3l-mini model@target=gelu-3l-mini

It rests on two stitching jobs, those of the store if it has them, which differ in their direction alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from thinkalike import figures
from thinkalike.config import (
    TASKS,
    AnalyzeConfig,
    LoggerConfig,
    MeasureConfig,
    ModelConfig,
    TrainConfig,
    compose_job,
    train_config,
)
from thinkalike.errors import ConfigError, StoreError
from thinkalike.evaluation.language import BITS, document_numbers
from thinkalike.instruments import instrument
from thinkalike.job import Instrument, Outcome, Work, perform
from thinkalike.measures.bootstrapping import bootstrap_difference, bootstrap_interval
from thinkalike.measures.estimates import Estimate
from thinkalike.models.places import checkpoint_fingerprint
from thinkalike.progress import doing
from thinkalike.screen import Table, number_column, number_of_documents, show_table, text_column
from thinkalike.store import Headline, Result, finished


@dataclass
class AsymmetryConfig(MeasureConfig):
    """The asymmetry has no settings of its own."""

    kind: str = "asymmetry"


class Asymmetry(Instrument, kind="asymmetry", version=2, reads=("model", "target")):
    """Subtracts the penalty of `target` into `model` from that of `model` into `target`, by layer.

    It takes the newest two results of the store that differ in nothing but their direction. Where it lacks one of them,
    that is done by the recipe of the newest other one; where it lacks both, they are done as train.py does them.
    """

    makes_inputs: ClassVar[bool] = True

    def inputs(self, config: AnalyzeConfig) -> Mapping[str, Any]:
        both = (each if isinstance(each, Result) else _stitched(config, each) for each in _both(config))
        return dict(zip(("there", "back"), both, strict=True))

    def prepared(self, config: AnalyzeConfig) -> list[TrainConfig]:
        return [_run_by(config, each) for each in _both(config) if not isinstance(each, Result)]

    def run(self, config: AnalyzeConfig, work: Work) -> Outcome:
        there, back = (work.inputs[side] for side in ("there", "back"))
        table = asymmetries(there, back)
        facts = {"parts": [str(there.folder), str(back.folder)]}
        scalars = {"mean_asymmetry": float(table["asymmetry"].mean())} | document_numbers(
            _compared(there, back).counts[0]
        )
        return Outcome(table, scalars, facts=facts)

    def draw(self, result: Result, folder: Path) -> None:
        table, first = result.table, result.table.iloc[0]
        with figures.canvas(4.2, 2.6) as (figure, axes):
            figures.line(axes, table, "asymmetry", ("low", "high"), "", figures.COLOURS[0], "o-")
            axes.axhline(0, color="0.6", linewidth=0.8, zorder=0)
            axes.set_xticks(range(len(table)), table["layer"].astype(str))
            axes.set_xlabel("layer of the stitch")
            axes.set_ylabel(f"asymmetry [{first.get('unit', 'nats per token')}]")
            axes.set_title(f"{first.source} into {first.target}, minus the reverse", fontsize=9)
            figures.save(figure, folder, "asymmetry")

    def headlines(self, result: Result) -> list[Headline]:
        table, mean = result.table, Headline("mean_asymmetry", result.scalars["mean_asymmetry"])
        largest = table.iloc[int(table["asymmetry"].abs().argmax())]
        return [mean, Headline.with_ends("largest_asymmetry", largest["asymmetry"], largest["low"], largest["high"])]

    def show(self, result: Result) -> None:
        table, first = result.table, result.table.iloc[0]
        documents = number_of_documents(result.scalars)
        title = f"{first.source} into {first.target}, minus the reverse: penalties, 95 % intervals over {documents}"
        value, low, high = (number_column(name, table[name], "+.4f") for name in ("asymmetry", "low", "high"))
        unit = [text_column("unit", table["unit"])] if "unit" in table else []
        show_table(Table(title, [number_column("layer", table["layer"]), value, low, high, *unit]))


def newest_directions(config: AnalyzeConfig) -> tuple[Result, Result] | None:
    """Return the newest result from `model` into `target`, and the one that differs from it in direction only."""
    stitches = list(finished(config.store, "stitching"))
    both = [
        (there, back)
        for there in _from_to(config.model, config.target, stitches)
        for back in stitches
        if _are_reversed(there, back)
    ]
    return max(both, key=lambda pair: _age(pair[0]), default=None)


def _from_to(source: ModelConfig, target: ModelConfig, stitches: Sequence[Result]) -> list[Result]:
    """Return the stitches of a source into a target."""
    wanted = tuple(
        _identity(asdict(model), checkpoint_fingerprint(model) if model.path else None) for model in (source, target)
    )
    return [each for each in stitches if _sides(each) == wanted]


def _sides(result: Result) -> tuple[Any, ...]:
    """Return what tells the source and the target of a result from all other models."""
    read = result.provenance.get("inputs", {})
    return tuple(_identity(result.config[part], read.get(part)) for part in ("model", "target"))


def _identity(model: Mapping[str, Any], checkpoint: str | None) -> tuple[Any, ...]:
    """Return what tells a model from all others: of a folder the content of its files, as its name may be any."""
    return model["name"], model["hub_id"], model["revision"], checkpoint if model["path"] else None


def _are_reversed(there: Result, back: Result) -> bool:
    """Return whether two results differ in nothing but their direction."""
    settings = {**there.settings, "model": there.settings["target"], "target": there.settings["model"]}
    return back.settings == settings and _sides(back) == _sides(there)[::-1]


def _age(result: Result) -> float:
    return result.folder.stat().st_mtime


def _both(config: AnalyzeConfig) -> list[Result | TrainConfig]:
    """Return what is there of `model` into `target` and of the way back, and the jobs that the store lacks.

    Raises:
        ConfigError: source and target are the same model.
    """
    if found := newest_directions(config):
        return [*found]
    stitches = [each for each in finished(config.store, "stitching") if not each.config["stitch"]["both"]]
    forth, back = _from_to(config.model, config.target, stitches), _from_to(config.target, config.model, stitches)
    newest = max([*forth, *back], key=_age, default=None)
    if newest is None:
        if config.model == config.target:
            raise ConfigError(f"measure=asymmetry is of two models; add model@target=, as {config.model.name} is both")
        job = _recipe(config)
        return [job, _turned(job)]
    other = _turned(train_config(newest.config))
    return [newest, other] if newest in forth else [other, newest]


def _turned(job: TrainConfig) -> TrainConfig:
    """Return the configuration of the job that differs from one in its direction alone."""
    return replace(job, model=job.target, target=job.model)


def _stitched(config: AnalyzeConfig, job: TrainConfig) -> Result:
    """Return the result of a stitching job."""
    with doing(f"{job.model.name} into {job.target.name}"):
        return perform(instrument(TASKS["stitch"]), _run_by(config, job), shown_again=False)


def _run_by(config: AnalyzeConfig, job: TrainConfig) -> TrainConfig:
    """Return a stitching job where and as this configuration runs jobs."""
    return replace(
        job, store=config.store, wait=config.wait, threads=config.threads, force=False, dry_run=False,
        logger=LoggerConfig("none"),
    )  # fmt: skip


def _recipe(config: AnalyzeConfig) -> TrainConfig:
    """Return how train.py stitches `model` into `target`, on the text of this configuration."""
    scale = ("mini" if config.model.mini else "paper") if config.scale == "auto" else config.scale
    words = [f"scale={scale}", f"recipe={config.recipe}", f"seed={config.seed}"]
    job: TrainConfig = compose_job("train", words)
    return replace(job, data=config.data, model=config.model, target=config.target)


def asymmetries(there: Result, back: Result) -> pd.DataFrame:
    """Return one row per layer that both results stitch to itself: penalty there minus penalty back, nats per token.

    Where the two models have different tokenizers, it is in bits per byte, which a column `unit` says.
    """
    table = _same_layers(there)[["source", "target", "source_layer"]]
    mean, low, high = penalty_difference(there, back)
    columns: dict[str, Any] = {"asymmetry": mean.numpy(), "low": low.numpy(), "high": high.numpy()}
    if _of_two_tokenizers(there):
        columns["unit"] = "bits per byte"
    return table.rename(columns={"source_layer": "layer"}).assign(**columns)


def penalty_difference(more: Result, less: Result) -> Estimate:
    """Return the penalty of one stitching result minus another's at every same-layer pair, (l), by the same documents.

    It is in nats per token, or, where source and target of both cut text differently, in bits per byte.

    Raises:
        StoreError: they report on different documents or layers.
    """
    return _difference([_compared(more, less)], together=False)[0]


def penalty_differences(pairs: Sequence[tuple[Result, Result]]) -> tuple[Estimate, Tensor]:
    """Return `penalty_difference` of several pairs of results, (p, l), and the tokens or bytes of each document.

    The intervals hold for all pairs and layers together.

    Raises:
        StoreError: they report on different documents or layers.
    """
    compared = [_compared(more, less) for more, less in pairs]
    for (more, _), each in zip(pairs, compared, strict=True):
        if not all(torch.equal(a, b) for a, b in zip(each.counts, compared[0].counts, strict=True)):
            raise _apart(more, pairs[0][0])
    return _difference(compared, together=True), compared[0].counts[0]


class _Compared(NamedTuple):
    """Two stitching results by the same documents: sums of their penalties (l, documents), and tokens or bytes."""

    penalties: tuple[Tensor, Tensor]
    counts: tuple[Tensor, Tensor]
    bits: bool


def _compared(more: Result, less: Result) -> _Compared:
    (layers, first, counts), (others, second, theirs) = _penalties(more), _penalties(less)
    if bits := _of_two_tokenizers(more) and _of_two_tokenizers(less):
        here, there = _shared_documents(more, less)
        (first, counts), (second, theirs) = _in_bits(more, first, here), _in_bits(less, second, there)
    if layers != others or len(counts) < 2 or (not bits and not torch.equal(counts, theirs)):
        raise _apart(more, less)
    return _Compared((first, second), (counts, theirs), bits)


def _apart(first: Result, second: Result) -> StoreError:
    return StoreError(
        f"{first.folder} and {second.folder} report on different documents or layers; force=true computes them anew"
    )


def _difference(compared: Sequence[_Compared], together: bool) -> Estimate:
    first, second = (torch.stack([each.penalties[side] for each in compared]) for side in (0, 1))
    counts, theirs = compared[0].counts
    if compared[0].bits:
        return bootstrap_difference(first, counts, second, theirs, together=together)
    return bootstrap_interval(first - second, counts, together=together)


def _shared_documents(first: Result, second: Result) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers that documents with text in both results have in each."""
    mine, theirs = (each.arrays["documents"] * (each.arrays["target_bytes"] > 0) for each in (first, second))
    shared, here, there = np.intersect1d(mine, theirs, return_indices=True)
    return here[shared != 0], there[shared != 0]


def _in_bits(result: Result, penalties: Tensor, documents: np.ndarray) -> tuple[Tensor, Tensor]:
    """Return the penalty sums of these documents in bits, and their bytes."""
    return penalties[:, documents] * BITS, torch.from_numpy(result.arrays["target_bytes"][documents]).double()


def _of_two_tokenizers(result: Result) -> bool:
    return "target_bytes" in result.arrays


def _penalties(result: Result) -> tuple[list[int], Tensor, Tensor]:
    """Return the same-layer pairs' layers, penalty sums (layers, documents), and the tokens of each document."""
    table, arrays = _same_layers(result), result.arrays
    sums: np.ndarray = arrays["stitch"][table.index] - arrays["target"]
    return table["source_layer"].tolist(), torch.from_numpy(sums), torch.from_numpy(arrays["tokens"])


def _same_layers(result: Result) -> pd.DataFrame:
    """Return the rows of a result's table, under their numbers, that stitch a layer of `model` to that of `target`."""
    table = result.table[: len(result.arrays["stitch"])]  # the other direction comes after
    return table[table["source_layer"] == table["target_layer"]]
