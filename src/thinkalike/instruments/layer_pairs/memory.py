"""What a measure of layer pairs takes, told before it begins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from thinkalike.job import check_memory, check_time
from thinkalike.memory import Budget, LiveBytes
from thinkalike.models import FrozenModel
from thinkalike.states import site_numbers

Metric = Callable[[Any, int, int, bool], Any]
NOISE = {False: 128, True: 2048}  # rows that are compared to see what it takes, on a GPU more than one of its tiles
GROUP = 64  # rows of one token in that noise; larger groups take no more, as they are compared in parts


def check_feasible(metric: Metric, measure: Any, source: FrozenModel, target: FrozenModel) -> None:
    """Refuse what does not fit, or would not end: every measure compares each token of a batch with each other.

    Memory is that of the states of all layers, of a copy in float32, and of comparing them.

    Args:
        metric: makes what gathers the batches, see `LayerPairs.metric`.

    Raises:
        ResourceError: it does not, or would not.
    """
    if getattr(measure, "permutations", 0):
        measure = replace(measure, permutations=1)  # one after the other: more take no more memory
    size, models = measure.tokens_per_batch, dict.fromkeys((source, target))
    what, numbers = f"measure.tokens_per_batch={size}", 0
    for model in models:
        numbers += size * len(site_numbers(model, measure.embed)) * model.d_model
    memory = numbers * (source.dtype.itemsize + 4.0) + _bytes_of_comparing(metric, measure, source, target)
    check_memory(f"{what} needs", memory, Budget.of(source.device))
    operations = 2.0 * measure.batches * size**2 * (source.n_layers + target.n_layers)
    operations *= min(source.d_model, target.d_model)
    check_time(f"measure.batches={measure.batches} of {what}", operations)


def _bytes_of_comparing(metric: Metric, measure: Any, source: FrozenModel, target: FrozenModel) -> float:
    """Return what a batch takes beside states, from batches of narrow noise: a part by token, one by two tokens."""
    size, counts = measure.tokens_per_batch, [len(site_numbers(model, measure.embed)) for model in (source, target)]

    def taken(n: int) -> float:
        noise = torch.randn(sum(counts), n, 8, generator=torch.Generator().manual_seed(0)).to(source.device)
        mine, theirs = list(noise[: counts[0]]), list(noise[counts[0] :])
        groups = {"groups": torch.arange(n).to(source.device) // GROUP} if measure.given == "token" else {}
        with LiveBytes(source.device) as live:
            gathered = metric(measure, counts[0], counts[1], False)
            gathered.update(mine, mine if source is target else theirs, None, 0, **groups)
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
