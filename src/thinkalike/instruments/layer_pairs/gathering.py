"""From batches of states to the estimates of metrics: in one pass, kept every so often, shared by processes."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import pandas as pd
from torch import Tensor

from thinkalike.config import AnalyzeConfig
from thinkalike.data.stimuli import Stimuli
from thinkalike.errors import ConfigError, DataError, ThinkalikeError
from thinkalike.instruments.layer_pairs.frame import LayerPairs
from thinkalike.instruments.of_stimuli import stimuli_facts
from thinkalike.interrupts import at_boundaries, stop
from thinkalike.job import Outcome, Work, phase_of_all
from thinkalike.measures.accumulators import Batch
from thinkalike.measures.rows import FEW
from thinkalike.memory import FirstBatch
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.load import load_groups
from thinkalike.processes import ProcessGroup
from thinkalike.progress import doing
from thinkalike.states.batches import ModelRuns, StateBatch, StateBatches, array_batches
from thinkalike.states.stimuli import Compared, stimulus_states_of, without_massive
from thinkalike.tables import layer_rows, matrix_rows

log = logging.getLogger(__name__)

KEPT_EVERY = 2  # pools of batches


class Side(NamedTuple):
    """A model or a recording: its name, its layers, and how the provenance describes it."""

    name: str
    layers: list[Any]
    describe: Callable[[], dict[str, str]]

    def __str__(self) -> str:
        """Return the name, with the names of the layers where they are not their numbers."""
        named = [f"{number} {layer}" for number, layer in enumerate(self.layers) if not isinstance(layer, int)]
        return f"{self.name}, layers {', '.join(named)}" if named else self.name


class Given(NamedTuple):
    """The input of a job: two sides, which are one object where a model is compared with itself, in batches."""

    measure: Any
    source: Side
    target: Side
    batches: StateBatches


def compare_all(jobs: Sequence[tuple[LayerPairs, AnalyzeConfig, Work]]) -> list[Outcome | ThinkalikeError]:
    """Compute the numbers of several jobs in one pass, in which each model runs once for each different input."""
    runs, (kinds, configs, works) = ModelRuns(), zip(*jobs, strict=True)
    with phase_of_all(works, "loading"):
        given = [_of_stimuli(*job) for job in jobs] if configs[0].activations else _of_text(kinds, configs, runs)
    comparisons = [_comparison(*each) for each in zip(kinds, given, works, strict=True)]
    with at_boundaries():
        gather(comparisons, runs, works[0].processes)
    return [_outcome(*each) for each in zip(kinds, given, comparisons, strict=True)]


def _of_stimuli(kind: LayerPairs, config: AnalyzeConfig, work: Work) -> Given:
    measure: Any = replace(config.measure, **kind.of_text)  # type: ignore[arg-type]
    stimuli: Stimuli = work.inputs["stimuli"]
    left, every = without_massive(config, stimuli, stimulus_states_of(config, stimuli, measure.embed))
    sides = [Side(each.name, each.layers, partial(dict, each.origin)) for each in left.sides]

    def batches_of(compared: Compared) -> StateBatches:
        states, groups = [compared.sides[0].states, compared.sides[-1].states], compared.stimuli.groups
        return array_batches(states, groups, rows_per_batch=measure.tokens_per_batch, fewest=kind.fewest(measure))

    batches = batches_of(left)
    if every:
        batches = replace(batches, pool=partial(_beside, batches.pool, batches_of(every).pool))
    batches = replace(batches, facts={**batches.facts, **stimuli_facts(left.stimuli)})
    measure = replace(measure, batches=batches.batches)
    return Given(measure, sides[0], sides[-1], batches)


def _beside(
    pool: Callable[[int], Iterator[StateBatch]], whole: Callable[[int], Iterator[StateBatch]], number: int
) -> Iterator[StateBatch]:
    """Return the batch of a pool with that of all stimuli beside it."""
    return (batch._replace(with_massive=every) for batch, every in zip(pool(number), whole(number), strict=True))


def _outcome(kind: LayerPairs, given: Given, comparison: Comparison) -> Outcome | ThinkalikeError:
    try:
        estimates = comparison.estimates()
    except DataError as error:
        return error
    source, target, batches = given.source, given.target, given.batches
    rows, columns = (layer_rows(side.name, side.layers) for side in (source, target))
    kind.warn(estimates, rows, columns, batches.level)
    if estimates.rows_used is not None and estimates.rows_used < FEW:
        log.warning(
            f"warning: only {100 * estimates.rows_used:.0f} % of the {batches.level}s stand in groups of one that are "
            "large enough, and those are frequent ones; raise measure.tokens_per_batch"
        )
    ends = {"value": estimates.value, "low": estimates.low, "high": estimates.high}
    across = kind.columns(estimates)
    if comparison.with_massive.update_called:
        across["with_massive"] = comparison.with_massive.compute().value
    parts = [matrix_rows(rows, columns, **ends, **across)]
    insides = {"within_source": (rows, estimates.within_source), "within_target": (columns, estimates.within_target)}
    insides = {name: (layers, within) for name, (layers, within) in insides.items() if within is not None}
    if source is not target:
        for layers, within in insides.values():
            parts.append(matrix_rows(layers, layers, value=within.value, low=within.low, high=within.high))
    table = pd.concat(parts, ignore_index=True)
    if kind.same_layers:
        table = table[table["source_layer"] == table["target_layer"]].reset_index(drop=True)
    if given.measure.given != "none":
        table["given"] = given.measure.given.replace("_", " and ")
    values = estimates.value.diagonal() if kind.same_layers else estimates.value
    arrays = {"value": values, **{name: within.value for name, (_, within) in insides.items()}}
    arrays |= kind.arrays(estimates)
    scalars = {"batches": float(estimates.batches)}
    if math.isfinite(width := estimates.widest_interval()):  # there are intervals
        scalars["widest_interval"] = width
    if estimates.rows_used is not None:
        scalars["rows_used"] = estimates.rows_used
    return Outcome(
        table,
        scalars | kind.scalars(estimates),
        {name: values.cpu().numpy() for name, values in arrays.items()},
        models=[source.describe(), target.describe()],
        facts=batches.facts,
        blank=tuple(across),  # within a model
    )


def _comparison(kind: LayerPairs, given: Given, work: Work) -> Comparison:
    measure, counts = given.measure, (len(given.source.layers), len(given.target.layers))
    told = measure if measure.given == "none" else replace(measure, given="token")  # positions are taken out before
    new = partial(kind.metric, told, *counts)
    return Comparison(new, measure, given.batches, (str(given.source), str(given.target)), work)


def _of_text(kinds: Sequence[LayerPairs], configs: Sequence[AnalyzeConfig], runs: ModelRuns) -> list[Given]:
    """Load each different model once; the batches of each job are those that it would read alone."""
    pairs = load_groups([(config.model, config.target) for config in configs])
    measures: list[Any] = [config.measure for config in configs]
    described: dict[int, dict[str, str]] = {}
    given = []
    for kind, config, measure, models in zip(kinds, configs, measures, pairs, strict=True):
        sides = {
            id(model): Side(model.name, kind.named(sites), partial(_described, model, described))
            for model, sites in zip(models, kind.sites(config, models), strict=True)
        }
        batches = kind.batches(measure, config, models, runs)
        if batches.level == "word" and measure.given == "token_position":
            log.info("words have no common position: compared given the token alone")
            measure = replace(measure, given="token")
        given.append(Given(measure, sides[id(models[0])], sides[id(models[1])], batches))
    return given


def _described(model: FrozenModel, known: dict[int, dict[str, str]]) -> dict[str, str]:
    """Return what the provenance says of a model; the weights of one module are read once."""
    if id(model.module) not in known:
        known[id(model.module)] = model.describe()
    return {**known[id(model.module)], "name": model.name}


class Comparison:
    """A job's comparison of two sides: its batches, its metric, and how far it has come.

    Goes on from the state that an earlier run left.

    Args:
        new: makes a metric without any batch.
        names: what messages call the sides.

    Raises:
        ConfigError: several processes are asked to stop at a width of intervals.
    """

    def __init__(self, new: Callable[[], Any], measure: Any, batches: StateBatches, names: tuple[str, str], work: Work):
        if measure.stop_at_width and work.processes.size > 1:
            raise ConfigError("measure.stop_at_width looks at the batches of one process; leave it or trainer=ddp out")
        self.new, self.measure, self.batches, self.names, self.work = new, measure, batches, names, work
        self.metric, self.with_massive, kept = new(), new(), work.resume("batches")
        if kept is not None and not work.processes.rank:
            self.metric.load_state_dict(kept["metric"])
            self.with_massive.load_state_dict(kept["with_massive"])
        self.first = 0 if kept is None else int(kept["pools"])
        self.error: ThinkalikeError | None = None
        self.is_narrow = False

    @property
    def goes_on(self) -> bool:
        """Whether it wants the next pool."""
        return self.error is None and not self.is_narrow

    def following(self, pool: Iterator[StateBatch]) -> StateBatch | None:
        """Return the next batch of a pool; None where there is none, or this comparison has ended."""
        try:
            return None if self.error else next(pool, None)
        except DataError as error:
            self.error = error
            return None

    def add(self, metric: Any, batch: StateBatch) -> None:
        """Add a batch to a metric; one that cannot be compared ends this comparison, and no other."""
        mine, theirs = batch.states
        theirs = mine if theirs is mine else [layer.to(mine[0].device) for layer in theirs]
        try:
            metric.update(mine, theirs, number=batch.number, **self.rows(batch))
        except ValueError as error:
            which = f"batch {batch.number} of {self.names[0]} (source) and {self.names[1]} (target)"
            self.error = DataError(f"{which}: {error}")
            self.error.__cause__ = error

    def rows(self, batch: StateBatch) -> dict[str, Tensor | None]:
        """Return which rows of a batch count, what groups them, and their documents, where its source is."""
        wanted = {"mask": batch.mask, "documents": batch.groups}
        if self.measure.given != "none":
            wanted["groups"] = batch.tokens
        place = batch.states[0][0].device
        return {name: None if rows is None else rows.to(place) for name, rows in wanted.items()}

    def keep(self, done: int) -> None:
        """Keep a state after so many pools, from which the same comes as without an end."""
        self.collect()
        if not self.work.processes.rank and self.goes_on and done > self.first:
            self.work.keep("batches", {"pools": done, **self._states()})

    def _states(self) -> dict[str, Any]:
        return {"metric": self.metric.state_dict(), "with_massive": self.with_massive.state_dict()}

    def collect(self) -> None:
        """Hand all batches, or the error of one, over to the first of the processes that share the job."""
        processes = self.work.processes
        self.metric = merged(self.metric, self.new, processes)
        self.with_massive = merged(self.with_massive, self.new, processes)
        self.error = next((error for error in processes.everyone(self.error) if error is not None), None)

    def look(self, done: int) -> None:
        """End the comparison where every interval is narrow enough."""
        width = self.measure.stop_at_width
        if width and self.goes_on and done > self.first and self.metric.update_called:
            estimates = self.metric.compute()
            self.is_narrow = bool(estimates.widest_interval() < width)
            if self.is_narrow:
                log.info("after %d batches every interval is narrower than %g", estimates.batches, width)

    def estimates(self) -> Any:
        """Return the estimates of all batches.

        Raises:
            DataError: a batch could not be compared, or there are too few.
        """
        if self.error is not None:
            raise self.error
        measure, what = self.measure, f"{self.measure.tokens_per_batch} {self.batches.level}s"
        if not self.metric.update_called:
            raise DataError(f"there is too little text for one batch of {what}; lower measure.tokens_per_batch")
        estimates = self.metric.compute()
        if estimates.batches < measure.batches and not measure.stop_at_width:
            log.warning("%d batches of the %d asked for: there is no more text", estimates.batches, measure.batches)
        return estimates


def merged(metric: Any, new: Callable[[], Any], processes: ProcessGroup) -> Any:
    """Return what the metrics of all processes have gathered, in the first process; the others begin anew."""
    gives = processes.rank and metric.update_called
    states = processes.everyone(metric.state_dict() if gives else None)
    if processes.rank:
        return new()
    for state in filter(None, states):
        part = new()
        part.load_state_dict(state)
        metric.merge_state(part)
    return metric


def gather(comparisons: Sequence[Comparison], runs: ModelRuns, processes: ProcessGroup) -> None:
    """Go through the pools of all comparisons in step, so that each model runs once for each different input.

    Each comparison reads the batches that it would read alone. Processes that share the job hand the first one what
    they found, and end.
    """
    total = max(each.batches.total for each in comparisons)
    first = min(each.first for each in comparisons)
    watched = FirstBatch("lower measure.tokens_per_batch or model.context, or give fewer models at once")

    def starting(number: int, step: int) -> Iterator[list[Reading]]:
        return _in_step(comparisons, runs, number, step)

    def add(_: int, pools: Sequence[Reading]) -> None:
        while read := [(each, batch) for each, pool in pools if (batch := watched(each.following, pool))]:
            watched(_add, read)
            watched.is_over = True
            runs.forget(of_batch=True)

    with doing("pool", total or None, first) as activity:
        for each in processes.rounds(starting, first, add):
            activity.reach(each.done)
            if each.passes(KEPT_EVERY) or each.asked:
                for comparison in comparisons:
                    comparison.keep(each.done)
            if each.asked:
                stop(f"at pool {each.done} of {total}")
            for comparison in comparisons:
                comparison.look(each.done)
    for comparison in comparisons:
        comparison.collect()
    processes.end_of_share()


def _in_step(comparisons: Sequence[Comparison], runs: ModelRuns, number: int, step: int) -> Iterator[list[Reading]]:
    """Yield the pools that all comparisons read at the same number; one that had more before waits for the others."""
    for place in itertools.count(number, step):
        going = [each for each in comparisons if each.goes_on and place < each.batches.total]
        if not going:
            return
        yield [(each, each.batches.pool(place)) for each in going if place >= each.first]
        runs.forget()


Reading = tuple[Comparison, Iterator[StateBatch]]
Read = tuple[Comparison, Any, StateBatch]  # with the metric that the batch is for


def _add(read: Sequence[tuple[Comparison, StateBatch]]) -> None:
    """Add batches that comparisons read at once: those of the same rows, in the same place and way, by one product."""
    given: list[Read] = [(each, each.metric, batch) for each, batch in read]
    given += [(each, each.with_massive, batch.with_massive) for each, batch in read if batch.with_massive]
    alike: dict[Hashable, list[Read]] = {}
    for comparison, metric, batch in given:
        alone = id(metric) if batch.content is None else None
        way = repr(comparison.measure), batch.number, batch.states[0][0].device, batch.content, alone
        alike.setdefault(way, []).append((comparison, metric, batch))
    for group in alike.values():
        if len(group) == 1 or not _added_together(group):
            for comparison, metric, batch in group:
                comparison.add(metric, batch)


def _added_together(group: Sequence[Read]) -> bool:
    """Add the same batch to several metrics; returns False, and adds it to none, where one cannot be compared."""
    comparisons, metrics, batches = zip(*group, strict=True)
    place, number = batches[0].states[0][0].device, batches[0].number
    states = {id(side): side for batch in batches for side in batch.states}
    numbered = {key: index for index, key in enumerate(states)}
    sides = [(numbered[id(batch.states[0])], numbered[id(batch.states[1])]) for batch in batches]
    moved = [[layer.to(place) for layer in side] for side in states.values()]
    try:
        metrics[0].update_pairs(metrics, sides, Batch(moved, number=number, **comparisons[0].rows(batches[0])))
    except ValueError:
        return False
    return True
