"""From batches of states to the estimates of a metric: kept every so often, gone on with, shared by processes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from thinkalike.errors import ConfigError, DataError
from thinkalike.interrupts import stop
from thinkalike.job import Work
from thinkalike.measures import LayerMeans
from thinkalike.processes import Team
from thinkalike.states import StateBatch, StateBatches

log = logging.getLogger(__name__)

KEPT_EVERY = 50  # batches
LOOK_EVERY = 10  # batches, how often stop_at_width looks at the intervals


def gathered(new: Callable[[], Any], measure: Any, batches: StateBatches, names: tuple[str, str], work: Work) -> Any:
    """Return the estimates from all batches, or from as many as make every interval narrow enough.

    Goes on from the state that an earlier run left. Processes that share the job hand the first one what they found.

    Args:
        new: makes a metric without any batch.

    Raises:
        ConfigError: several processes are asked to stop at a width of intervals.
        DataError: a batch cannot be compared, or there are too few.
    """
    if measure.stop_at_width and work.team.size > 1:
        raise ConfigError("measure.stop_at_width looks at the batches of one process; leave it or trainer=ddp out")
    kept, metric = work.resume("batches"), _Shared(new, work.team)
    if kept is not None:
        metric.load(kept["metric"])

    def add(number: int, batch: StateBatch) -> None:
        mine, theirs = batch.states
        place = mine[0].device
        theirs = mine if theirs is mine else [layer.to(place) for layer in theirs]
        try:
            mask = None if batch.mask is None else batch.mask.to(place)
            grouped = measure.given == "token" and batch.tokens is not None
            groups = {"groups": batch.tokens.to(place)} if grouped else {}  # type: ignore[union-attr]
            if isinstance(metric.own, LayerMeans) and batch.documents is not None and measure.permute == "document":
                groups["documents"] = batch.documents.to(place)
            metric.own.update(mine, theirs, mask, number, **groups)
        except ValueError as error:
            raise DataError(f"batch {number} of {names[0]} (source) and {names[1]} (target): {error}") from error

    for each in work.team.rounds(batches.starting, 0 if kept is None else int(kept["batches"]), add):
        if each.passes(KEPT_EVERY) or each.asked:
            metric.gather()
            if not work.team.rank:
                work.keep("batches", {"metric": metric.own.state_dict(), "batches": each.done})
            log.info("batch %d of %d", each.done, batches.total)
        if each.asked:
            stop(f"at batch {each.done} of {batches.total}")
        if measure.stop_at_width and each.passes(LOOK_EVERY) and _narrow(metric.own, measure.stop_at_width):
            log.info("after %d batches every interval is narrower than %g", each.done, measure.stop_at_width)
            break
    metric.gather()
    work.team.end_of_share()
    return _estimates(metric.own, measure, batches.level)


class _Shared:
    """A metric of which each process has a part; the first process gathers all of them in its own."""

    def __init__(self, new: Callable[[], Any], team: Team):
        self.new, self.team, self.own = new, team, new()

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over a state, which one process has."""
        if not self.team.rank:
            self.own.load_state_dict(state)

    def gather(self) -> None:
        """Hand all batches over to the first process."""
        gives = self.team.rank and self.own.update_called
        for state in self.team.everyone(self.own.state_dict() if gives else None):
            if state is not None and not self.team.rank:
                part = self.new()
                part.load_state_dict(state)
                self.own.merge_state(part)
        if self.team.rank:
            self.own = self.new()


def _estimates(metric: Any, measure: Any, level: str) -> Any:
    """Return the estimates of a metric that has all batches."""
    if not metric.update_called:
        raise DataError(f"there is too little text for one batch of {measure.tokens_per_batch} {level}s")
    estimates = metric.compute()
    if estimates.batches < 2:
        raise DataError("one batch gives no interval; give more text, or lower measure.tokens_per_batch")
    if estimates.batches < measure.batches and not measure.stop_at_width:
        log.warning("%d batches of the %d asked for: there is no more text", estimates.batches, measure.batches)
    return estimates


def _narrow(metric: Any, width: float) -> bool:
    return metric.update_called and bool(metric.compute().widest_interval() < width)
