"""The pools of batches that a process reads: in turns with others, with a state every so often, until a signal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from thinkalike.instruments.layer_pairs.comparison import Comparison
from thinkalike.processes import asked, at_boundaries, stop
from thinkalike.progress import doing
from thinkalike.states.batches import ModelRuns

KEPT_EVERY = 2  # pools


def rounds(jobs: Sequence[Comparison], runs: ModelRuns) -> Iterator[int]:
    """Yield the numbers of the pools that this process is to gather for some jobs, from where earlier runs ended.

    Processes that share the jobs take turns, and end together. A job that had come further waits for the others.
    """
    processes, total = jobs[0].work.processes, max(each.batches.total for each in jobs)
    first = min(each.first for each in jobs)
    with at_boundaries(), doing("pool", total or None, first) as activity:
        for before in range(first, total, processes.size):
            if before + processes.rank < total:
                yield before + processes.rank
                runs.forget()
            done = min(before + processes.size, total)
            activity.reach(done)
            is_asked = any(processes.everyone(asked()))
            if is_asked or done // KEPT_EVERY > before // KEPT_EVERY:
                for each in jobs:
                    each.keep(done)
            if is_asked:
                stop(f"at pool {done} of {total}")
            for each in jobs:
                each.look(done)
            ended = not any(each.wants(number) for each in jobs for number in range(done, total))
            if any(processes.everyone(ended)):
                return
