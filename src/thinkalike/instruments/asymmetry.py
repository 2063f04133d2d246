"""measure=asymmetry: what stitching one way costs more than the other way, from two results of a store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from thinkalike import figures
from thinkalike.config import AnalyzeConfig, MeasureConfig
from thinkalike.errors import StoreError
from thinkalike.evaluation import BITS, document_numbers, number_of_documents
from thinkalike.job import Instrument, Outcome, Work
from thinkalike.measures import Estimate, bootstrap_difference, bootstrap_interval
from thinkalike.screen import Table, number_column, show_table, text_column
from thinkalike.store import Headline, Result, finished


@dataclass
class Config(MeasureConfig):
    """The asymmetry has no settings of its own."""

    kind: str = "asymmetry"


class Asymmetry(Instrument, kind="asymmetry", version=2, reads=("model", "target")):
    """Subtracts the penalty of `target` into `model` from that of `model` into `target`, by layer.

    It takes the newest two results of the store that differ in nothing but their direction.
    """

    def inputs(self, config: AnalyzeConfig) -> Mapping[str, Any]:
        there, back = newest_directions(config)
        return {"there": there, "back": back}

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


def newest_directions(config: AnalyzeConfig) -> tuple[Result, Result]:
    """Return the newest result from `model` into `target`, and the one that differs from it in direction only.

    Raises:
        StoreError: the store does not hold both directions with one recipe.
    """
    both = max(_directions(config), key=lambda both: both[0].folder.stat().st_mtime, default=None)
    if both is None:
        names = f"{config.model.name},{config.target.name}"
        raise StoreError(
            f"{config.store} holds no stitches of {config.model.name} into {config.target.name} and back with one "
            f"recipe; make them: python train.py -m model={names} model@target={names}"
        )
    return both


def _directions(config: AnalyzeConfig) -> Iterator[tuple[Result, Result]]:
    """Yield all results from `model` into `target` in the store, each with the one that differs in direction only."""
    stitches = list(finished(config.store, "stitching"))
    for there in stitches:
        settings = there.settings
        if (settings["model"]["name"], settings["target"]["name"]) == (config.model.name, config.target.name):
            reverse = settings | {"model": settings["target"], "target": settings["model"]}
            yield from ((there, back) for back in stitches if back.settings == reverse)


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
