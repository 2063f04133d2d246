"""What measures of all layer pairs of two models have in common: batches of text in, a matrix with intervals out.

A measure of this sort gives a metric: an object with `update(source_states, target_states, mask, number)`, `compute()`,
`state_dict()` and `load_state_dict()`, such as `CKA` or `BatchMeans`.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Optional

import pandas as pd
import torch

from thinkalike import figures
from thinkalike.config import AnalyzeConfig, MeasureConfig, ranged
from thinkalike.config.ranges import CONTEXT, TOKENS_AT_ONCE
from thinkalike.errors import DataError, one_of
from thinkalike.interrupts import asked, at_boundaries, stop
from thinkalike.job import Instrument, Outcome, Work, check_memory, check_time
from thinkalike.measures import span
from thinkalike.memory import Budget, LiveBytes
from thinkalike.models import FrozenModel, load_models
from thinkalike.states import StateBatches, site_numbers, text_batches
from thinkalike.store import Result
from thinkalike.tables import layer_rows, matrix_rows

log = logging.getLogger(__name__)

KEPT_EVERY = 50  # batches
LOOK_EVERY = 10  # batches, how often stop_at_width looks at the intervals
NOISE = {False: 128, True: 2048}  # rows that are compared to see what it takes, on a GPU more than one of its tiles


# ruff: noqa: UP045
@dataclass
class LayerPairsConfig(MeasureConfig):
    """The settings that all measures of layer pairs have."""

    batches: int = ranged(64, least=2, most=10**9)
    tokens_per_batch: int = ranged(1024, least=1, most=TOKENS_AT_ONCE)  # words, where the models' tokenizers differ
    level: str = "auto"  # token | word; auto: words where the tokenizers differ
    embed: bool = False  # also the site before block 0
    skip_first_tokens: int = ranged(0, least=0, most=CONTEXT)  # of every row of text; the first is often massive
    skip_special_tokens: bool = False
    stop_at_width: Optional[float] = ranged(None, above=0)  # stop when every interval is narrower

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("measure.level", self.level, ("auto", "token", "word"))


class LayerPairs(Instrument):
    """A measure of every layer of `model` with every layer of `model@target`, and within each."""

    name: ClassVar[str]  # as tables and figures print it
    scale: ClassVar[tuple[float, float]] = (0.0, 1.0)  # of the colours

    @abstractmethod
    def metric(self, measure: Any, source_layers: int, target_layers: int) -> Any:
        """Return what gathers the batches."""

    def columns(self, estimates: Any) -> dict[str, torch.Tensor]:
        """Return further columns (l, m) of the rows across the two models."""
        return {}

    def scalars(self, estimates: Any) -> dict[str, float]:
        """Return further headline numbers."""
        return {}

    def run(self, config: AnalyzeConfig, work: Work) -> Outcome:
        measure: Any = config.measure
        source, target = load_models(config.model, config.target)
        self.check_feasible(measure, source, target)
        batches = self.batches(measure, config, [source, target])
        rows, columns = (layer_rows(model.name, site_numbers(model, measure.embed)) for model in (source, target))
        metric = self.metric(measure, len(rows), len(columns))
        with at_boundaries():
            estimates = _gathered(metric, measure, batches, (source.name, target.name), work)
        self.warn(estimates, rows, columns)
        ends = {"value": estimates.value, "low": estimates.low, "high": estimates.high}
        across = self.columns(estimates)
        parts = [matrix_rows(rows, columns, **ends, **across)]
        if source is not target:
            for layers, within in ((rows, estimates.within_source), (columns, estimates.within_target)):
                parts.append(matrix_rows(layers, layers, value=within.value, low=within.low, high=within.high))
        arrays = {"value": estimates.value, "within_source": estimates.within_source.value}
        arrays |= {"within_target": estimates.within_target.value, **self.arrays(estimates)}
        scalars = {"batches": float(estimates.batches), "widest_interval": estimates.widest_interval()}
        return Outcome(
            pd.concat(parts, ignore_index=True),
            scalars | self.scalars(estimates),
            {name: values.cpu().numpy() for name, values in arrays.items()},
            models=[source.describe(), target.describe()],
            facts=batches.facts,
            blank=tuple(across),  # within a model
        )

    def check_feasible(self, measure: Any, source: FrozenModel, target: FrozenModel) -> None:
        """Refuse what does not fit, or would not end: every measure compares each token of a batch with each other.

        Memory is that of the states of all layers, of a copy in float32, and of comparing them.

        Raises:
            ResourceError: it does not, or would not.
        """
        size, models = measure.tokens_per_batch, dict.fromkeys((source, target))
        what, numbers = f"measure.tokens_per_batch={size}", 0
        for model in models:
            numbers += size * len(site_numbers(model, measure.embed)) * model.d_model
        memory = numbers * (source.dtype.itemsize + 4.0) + self._bytes_of_comparing(measure, source, target)
        check_memory(f"{what} needs", memory, Budget.of(source.device))
        operations = 2.0 * measure.batches * size**2 * (source.n_layers + target.n_layers)
        operations *= min(source.d_model, target.d_model)
        check_time(f"measure.batches={measure.batches} of {what}", operations)

    def _bytes_of_comparing(self, measure: Any, source: FrozenModel, target: FrozenModel) -> float:
        """Return what a batch takes beside states, from batches of narrow noise: a part by token, one by two tokens."""
        size, counts = measure.tokens_per_batch, [len(site_numbers(model, measure.embed)) for model in (source, target)]

        def taken(n: int) -> float:
            noise = torch.randn(sum(counts), n, 8, generator=torch.Generator().manual_seed(0)).to(source.device)
            mine, theirs = list(noise[: counts[0]]), list(noise[counts[0] :])
            with LiveBytes(source.device) as live:
                self.metric(measure, *counts).update(mine, mine if source is target else theirs, None, 0)
            return float(live.peak)

        n = NOISE[source.device.type == "cuda"]
        while 2 * n <= size:
            try:
                one, two = taken(n), taken(2 * n)
            except ValueError:  # such as fewer rows than neighbours
                n *= 2
                continue
            square = max((two - 2 * one) / 2, 0.0)
            return max(one - square, 0.0) * size / n + square * (size / n) ** 2
        return 0.0  # a batch so small takes nothing to speak of

    def batches(self, measure: Any, config: AnalyzeConfig, models: Sequence[FrozenModel]) -> StateBatches:
        """Return the batches of states that are compared."""
        return text_batches(
            models,
            config.data,
            batches=measure.batches,
            tokens_per_batch=measure.tokens_per_batch,
            level=measure.level,
            embed=measure.embed,
            skip_first_tokens=measure.skip_first_tokens,
            skip_special_tokens=measure.skip_special_tokens,
        )

    def arrays(self, estimates: Any) -> dict[str, torch.Tensor]:
        """Return further arrays to keep."""
        return {}

    def warn(self, estimates: Any, rows: pd.DataFrame, columns: pd.DataFrame) -> None:
        """Warn of what makes the numbers doubtful."""

    def draw(self, result: Result, folder: Path) -> None:
        figures.layer_heatmaps(result.table, folder, self.kind, self.name, self.scale)

    def show(self, result: Result) -> None:
        """Print what fits on a screen: the cells of equal relative depth."""
        table, scalars = result.table, result.scalars
        source, target = table["source"].iloc[0], table["target"].iloc[0]
        across = table[(table["source"] == source) & (table["target"] == target)]
        rows, columns = (sorted(across[f"{side}_layer"].unique()) for side in ("source", "target"))
        count = int(scalars["batches"])
        print(f"{self.name} of {source} and {target}, {count} batches, 95 % intervals over batches")
        cells = across.set_index(["source_layer", "target_layer"])
        for number, layer in enumerate(rows):
            column = columns[round(number * (len(columns) - 1) / max(len(rows) - 1, 1))]
            cell = cells.loc[(layer, column)]
            print(f"  layer {layer:3d} with {column:3d}   {span(cell['value'], cell['low'], cell['high'], '+.4f')}")


def _gathered(metric: Any, measure: Any, batches: StateBatches, names: tuple[str, str], work: Work) -> Any:
    """Return the estimates from all batches, or from as many as make every interval narrow enough.

    Goes on from the state that an earlier run left.
    """
    kept = work.resume("batches")
    first = 0 if kept is None else int(kept["batches"])
    if kept is not None:
        metric.load_state_dict(kept["metric"])
    for number, batch in enumerate(batches.starting(first), first):
        mine, theirs = batch.states
        place = mine[0].device
        theirs = mine if theirs is mine else [layer.to(place) for layer in theirs]
        try:
            metric.update(mine, theirs, None if batch.mask is None else batch.mask.to(place), number)
        except ValueError as error:
            raise DataError(f"batch {number} of {names[0]} (source) and {names[1]} (target): {error}") from error
        if (number + 1) % KEPT_EVERY == 0 or asked():
            work.keep("batches", {"metric": metric.state_dict(), "batches": number + 1})
            log.info("batch %d of %d", number + 1, batches.total)
        if asked():
            stop(f"at batch {number + 1} of {batches.total}")
        if measure.stop_at_width and (number + 1) % LOOK_EVERY == 0 and _narrow(metric, measure.stop_at_width):
            log.info("after %d batches every interval is narrower than %g", number + 1, measure.stop_at_width)
            break
    if not metric.update_called:
        raise DataError(f"there is too little text for one batch of {measure.tokens_per_batch} {batches.level}s")
    estimates = metric.compute()
    if estimates.batches < 2:
        raise DataError("one batch gives no interval; give more text, or lower measure.tokens_per_batch")
    if estimates.batches < measure.batches and not measure.stop_at_width:
        log.warning("%d batches of the %d asked for: there is no more text", estimates.batches, measure.batches)
    return estimates


def _narrow(metric: Any, width: float) -> bool:
    return bool(metric.compute().widest_interval() < width)
