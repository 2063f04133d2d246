"""What a measure of layer pairs takes, told before it begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from thinkalike.job import check_memory
from thinkalike.memory import Budget, LiveBytes
from thinkalike.models.frozen import FrozenModel
from thinkalike.states.tokens import site_numbers
from thinkalike.tokenizers import tokenizer_fingerprint

Metric = Callable[[Any, int, int, bool], Any]
NOISE = {False: 256, True: 2048}  # rows that are compared to see what it takes, the height of a tile of CKA or more
GROUP = 64  # rows of one token in that noise; larger groups take no more, as they are compared in parts


def check_feasible(metric: Metric, compared: Sequence[tuple[Any, FrozenModel, FrozenModel]]) -> None:
    """Refuse what does not fit, or would not end: every measure compares each token of a batch with each other.

    Memory is that of the states of all layers, of a copy in float32, and of comparing them. Pairs of one pass hold the
    states of all their models at the same time.

    Args:
        metric: makes what gathers the batches, see `LayerPairs.metric`.
        compared: of each pair the settings of the measure, source and target.

    Raises:
        ResourceError: it does not, or would not.
    """
    for device in dict.fromkeys(source.device for _, source, _ in compared):
        _check_memory(metric, [each for each in compared if each[1].device == device])


def _check_memory(metric: Metric, compared: Sequence[tuple[Any, FrozenModel, FrozenModel]]) -> None:
    """Check the memory of the device where pairs are compared, which is that of their sources."""
    memory = sum(_bytes_of_states(compared).values())
    memory += max(_bytes_of_comparing(metric, *each) for each in _largest(compared)) * _share_of_largest(compared)
    size, count = max(measure.tokens_per_batch for measure, _, _ in compared), len(compared)
    what = f"measure.tokens_per_batch={size}" + (f" of {count} pairs of models at once" if count > 1 else "")
    remedy = "lower it, or give fewer models at once" if count > 1 else "lower it"
    check_memory(f"{what} needs", memory, Budget.of(compared[0][1].device), remedy)


def _bytes_of_states(compared: Sequence[tuple[Any, FrozenModel, FrozenModel]]) -> dict[tuple[Any, ...], float]:
    """Return what the states of a batch take, by model and by what cuts a text into inputs: contexts and tokenizers."""
    taken = {}
    for measure, *models in compared:
        size, cut = measure.tokens_per_batch, min(model.context for model in models)
        cutters = frozenset(tokenizer_fingerprint(model.tokenizer) for model in models)
        for model in models:
            numbers = size * len(site_numbers(model, measure.embed)) * model.d_model
            taken[id(model.module), size, measure.embed, cut, cutters] = numbers * (model.dtype.itemsize + 4.0)
    return taken


def _share_of_largest(compared: Sequence[tuple[Any, FrozenModel, FrozenModel]]) -> float:
    """Return how many times as many layers as in the largest pair all models have, which are compared together."""
    layers = [sum(model.n_layers for model in dict.fromkeys(pair[1:])) for pair in compared]
    different = {id(model.module): model.n_layers for pair in compared for model in pair[1:]}
    return max(sum(different.values()) / max(layers), 1.0)


def _largest(
    compared: Sequence[tuple[Any, FrozenModel, FrozenModel]],
) -> list[tuple[Any, FrozenModel, FrozenModel]]:
    """Return the pair with the most layers of each measure: comparing it takes the most memory."""
    largest: list[tuple[Any, FrozenModel, FrozenModel]] = []
    for each in sorted(
        compared, key=lambda pair: len(dict.fromkeys(pair[1:])) * 10**6 + pair[1].n_layers + pair[2].n_layers
    )[::-1]:
        if not any(each[0] == other[0] for other in largest):
            largest.append(each)
    return largest


def _bytes_of_comparing(metric: Metric, measure: Any, source: FrozenModel, target: FrozenModel) -> float:
    """Return what a batch takes beside states, from batches of narrow noise: a part by token, one by two tokens."""
    if getattr(measure, "permutations", 0):
        measure = replace(measure, permutations=1)  # one after the other: more take no more memory
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
