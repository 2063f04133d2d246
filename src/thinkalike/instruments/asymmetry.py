"""measure=asymmetry: how much more stitching costs one way than the other way.

    python analyze.py measure=asymmetry model=solu-3l-mini model@target=gelu-3l-mini

It compares two stitching jobs that differ in their direction alone, and runs those that the store lacks.
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
from thinkalike.config import TASKS, AnalyzeConfig, LoggerConfig, MeasureConfig, TrainConfig, compose_job, train_config
from thinkalike.config.roots import chosen_scale
from thinkalike.errors import ConfigError, StoreError
from thinkalike.evaluation.language import document_numbers
from thinkalike.evaluation.stitches import BITS
from thinkalike.instruments import instrument
from thinkalike.job import Instrument, Outcome, Work, perform
from thinkalike.measures.bootstrapping import bootstrap_difference, bootstrap_interval
from thinkalike.measures.estimates import Estimate, span
from thinkalike.models.places import checkpoint_fingerprint
from thinkalike.progress import doing
from thinkalike.screen import Table, few, number_column, number_of_documents, show_table, show_text, text_column
from thinkalike.store import Headline, Result, finished


@dataclass
class AsymmetryConfig(MeasureConfig):
    """The asymmetry has no settings of its own."""

    kind: str = "asymmetry"


class Asymmetry(Instrument, kind="asymmetry", version=2, reads=("model", "target")):
    """Subtracts the penalty of `target` into `model` from that of `model` into `target`, by layer."""

    makes_inputs: ClassVar[bool] = True
    inner_jobs_read: ClassVar[tuple[str, ...]] = ("data", "seed")

    def inputs(self, config: AnalyzeConfig) -> Mapping[str, Any]:
        found = []
        for each in both_directions(config):
            if isinstance(each, TrainConfig):
                with doing(f"{each.model.name} into {each.target.name}"):
                    each = perform(instrument(TASKS["stitch"]), each, shown=False)
            found.append(each)
        return dict(zip(("there", "back"), found, strict=True))

    def prepared(self, config: AnalyzeConfig) -> list[TrainConfig]:
        return [each for each in both_directions(config) if not isinstance(each, Result)]

    def run(self, config: AnalyzeConfig, work: Work) -> Outcome:
        both = [work.inputs[side] for side in ("there", "back")]
        table, counts = asymmetries(*both), _matched(*both)[0].counts
        scalars = {"mean_asymmetry": float(table["asymmetry"].mean())} | document_numbers(counts)
        return Outcome(table, scalars, facts={"parts": [str(each.folder) for each in both]})

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
        rows = table.iloc[few(len(table))]
        columns = [number_column(name, rows[name], "+.4f") for name in ("asymmetry", "low", "high")]
        unit = [text_column("unit", rows["unit"])] if "unit" in table else []
        show_table(Table(title, [number_column("layer", rows["layer"]), *columns, *unit]))
        most = table.iloc[int(table["asymmetry"].abs().argmax())]
        value, low, high = (float(most[name]) for name in ("asymmetry", "low", "high"))
        way = f"{first.source} into {first.target}" if value > 0 else f"{first.target} into {first.source}"
        number = span(value, low, high, ".3f") if value > 0 else span(-value, -high, -low, ".3f")
        show_text(f"The difference is greatest at layer {most['layer']}, where {way} costs {number} more.")


def both_directions(config: AnalyzeConfig) -> list[Result | TrainConfig]:
    """Return the stitches of `model` into `target` and those back, each a result of the store or the job to run.

    They are the newest two results of these models that differ in direction alone. If there are no such two, the
    other direction is stitched like the newest result; if there is no result, both are, by train.py's defaults.

    Raises:
        ConfigError: source and target are the same model, or a stored result would make a plugin run.
    """
    both = (config.model, config.target)
    models = [_identity(asdict(each), checkpoint_fingerprint(each) if each.path else None) for each in both]
    results = sorted(finished(config.store, "stitching"), key=lambda each: each.folder.stat().st_mtime, reverse=True)
    sides = [(each, _sides(each)) for each in results]
    forth, back = ([each for each, own in sides if own == wanted] for wanted in (models, models[::-1]))
    for there in forth:
        turned = {**there.settings, "model": there.settings["target"], "target": there.settings["model"]}
        if again := next((each for each in back if each.settings == turned), None):
            return [there, again]
    of_one_direction = (each for each in results if each in (*forth, *back) and not each.config["stitch"]["both"])
    if newest := next(of_one_direction, None):
        other = _turned(_run_by(config, train_config(newest.config)))
        return [newest, other] if newest in forth else [other, newest]
    if config.model == config.target:
        raise ConfigError(f"measure=asymmetry is of two models; add model@target=, as {config.model.called} is both")
    scale, _ = chosen_scale(config.scale, (config.model, config.target))
    recipe: TrainConfig = compose_job("train", [f"scale={scale}", f"recipe={config.recipe}", f"seed={config.seed}"])
    job = _run_by(config, replace(recipe, data=config.data, model=config.model, target=config.target))
    return [job, _turned(job)]


def _sides(result: Result) -> list[tuple[Any, ...]]:
    """Return what tells the source and the target of a result from all other models."""
    read = result.provenance.get("inputs", {})
    return [_identity(result.config[part], read.get(part)) for part in ("model", "target")]


def _identity(model: Mapping[str, Any], checkpoint: str | None) -> tuple[Any, ...]:
    """Return what tells a model from all others; a folder counts by the content of its files, under any name."""
    return model["name"], model["hub_id"], model["revision"], checkpoint if model["path"] else None


def _turned(job: TrainConfig) -> TrainConfig:
    """Return the configuration of the job in the other direction."""
    return replace(job, model=job.target, target=job.model)


def _run_by(config: AnalyzeConfig, job: TrainConfig) -> TrainConfig:
    """Return a stitching job where and as this configuration runs jobs."""
    own = {name: getattr(config, name) for name in ("store", "wait", "threads")}
    return replace(job, **own, force=False, dry_run=False, logger=LoggerConfig("none"))


class _Penalties(NamedTuple):
    """The penalties of a result at the layers that it stitches to the same layer of the target, by document."""

    folder: Path
    layers: list[int]
    sums: Tensor  # (l, documents), in nats, or in bits where the tokenizers differ
    counts: Tensor  # tokens, or bytes where the tokenizers differ
    documents: np.ndarray | None  # hashes of the texts, where the tokenizers differ

    @classmethod
    def of(cls, result: Result) -> _Penalties:
        table, arrays = _same_layers(result), result.arrays
        sums, size = torch.from_numpy(arrays["stitch"][table.index] - arrays["target"]), arrays.get("target_bytes")
        counts = torch.from_numpy(arrays["tokens"] if size is None else size).double()
        given = result.folder, table["source_layer"].tolist()
        if size is None:
            return cls(*given, sums, counts, None)
        return cls(*given, sums * BITS, counts, arrays["documents"] * (size > 0))

    def of_documents(self, places: np.ndarray) -> _Penalties:
        return self._replace(sums=self.sums[:, places], counts=self.counts[places])


def _same_layers(result: Result) -> pd.DataFrame:
    """Return the rows of a result's table, under their numbers, that stitch a layer of `model` to that of `target`."""
    table = result.table[: len(result.arrays["stitch"])]  # the other direction comes after
    return table[table["source_layer"] == table["target_layer"]]


def _matched(more: Result, less: Result) -> tuple[_Penalties, _Penalties]:
    """Return the penalties of two results; where tokenizers differ, on the documents that both report on."""
    first, second = _Penalties.of(more), _Penalties.of(less)
    if first.documents is None or second.documents is None:
        return first, second
    shared, here, there = np.intersect1d(first.documents, second.documents, return_indices=True)
    return first.of_documents(here[shared != 0]), second.of_documents(there[shared != 0])


def _difference(pairs: Sequence[tuple[_Penalties, _Penalties]], together: bool) -> Estimate:
    """Return the penalties of the first minus those of the second of each pair, (p, l)."""
    one, other = pairs[0]
    in_bits = one.documents is not None
    for pair in pairs:
        for each, counts in zip(pair, (one.counts, other.counts if in_bits else one.counts), strict=True):
            if each.layers != one.layers or len(counts) < 2 or not torch.equal(each.counts, counts):
                both = f"{one.folder} and {each.folder}"
                raise StoreError(f"{both} report on different documents or layers; force=true computes them anew")
    first, second = (torch.stack([each.sums for each in side]) for side in zip(*pairs, strict=True))
    if in_bits:
        return bootstrap_difference(first, one.counts, second, other.counts, together=together)
    return bootstrap_interval(first - second, one.counts, together=together)


def asymmetries(there: Result, back: Result) -> pd.DataFrame:
    """Return one row per layer that both results stitch to itself: penalty there minus penalty back, nats per token.

    Where the two models have different tokenizers, it is in bits per byte, which a column `unit` says. Results that
    report on different documents or layers are a StoreError.
    """
    table = _same_layers(there)[["source", "target", "source_layer"]].rename(columns={"source_layer": "layer"})
    mean, low, high = _difference([_matched(there, back)], together=False)[0]
    table = table.assign(asymmetry=mean.numpy(), low=low.numpy(), high=high.numpy())
    return table.assign(unit="bits per byte") if "target_bytes" in there.arrays else table


def penalty_differences(pairs: Sequence[tuple[Result, Result]]) -> tuple[Estimate, Tensor]:
    """Return the penalties of results minus those of others at every layer, (p, l), with the counts of each document.

    Units are those of `asymmetries`; the counts are tokens, or bytes. The intervals hold for all pairs and layers
    together.
    """
    matched = [_matched(*pair) for pair in pairs]
    return _difference(matched, together=True), matched[0][0].counts
