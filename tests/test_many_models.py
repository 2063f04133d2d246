"""Measures of layer pairs of several models at once: the same numbers to the bit as pair by pair, for less work."""

import itertools

import pytest
import torch

from thinkalike.measures import LayerMeans, kernel_alignment, mutual_measure
from thinkalike.measures import neighbours as mutual
from thinkalike.measures.contract import Batch
from thinkalike.measures.metric import CKA

WIDTHS = [(24, 40), (7, 33, 16), (64,)]  # three models of different depths and widths
SIDES = [*itertools.combinations_with_replacement(range(3), 2), (2, 0)]


def drawn(n=150, dtype=torch.float32):
    """States of three models that share some dimensions, tokens and a mask."""
    base = torch.randn(n, 6, dtype=torch.float64)
    models = [[base @ torch.randn(6, d).double() + torch.randn(n, d) for d in widths] for widths in WIDTHS]
    return [[x.to(dtype) for x in layers] for layers in models], torch.randint(5, (n,)), torch.rand(n) < 0.9


def depths(side):
    return [len(WIDTHS[model]) for model in side]


def agree(one, other):
    """Two metrics hold the same batches to the bit."""
    found, expected = one.gathered(), other.gathered()
    assert found.keys() == expected.keys()
    assert all(torch.equal(each, expected[name]) for name, each in found.items())


@pytest.mark.parametrize(
    ("n", "null", "given"), [(150, 0, "none"), (601, 2, "none"), (150, 2, "token"), (601, 0, "token")]
)
def test_a_pair_of_three_models_has_the_bits_of_the_pair_alone(n, null, given):
    metrics, alones = ([CKA(*depths(side), given=given, permutations=null) for side in SIDES] for _ in range(2))
    for number in range(2):
        states, tokens, mask = drawn(n)
        states[0][1] = states[0][1].bfloat16()
        groups = tokens if given == "token" else None
        metrics[0].gather(Batch(states, mask, number, groups), metrics, SIDES)
        for (source, target), metric, alone in zip(SIDES, metrics, alones, strict=True):
            alone.update([x.clone() for x in states[source]], [x.clone() for x in states[target]], mask, number, groups)
            agree(alone, metric)


def test_each_gram_is_made_once_however_many_pairs(monkeypatch):
    counts, product = [], torch.mm
    monkeypatch.setattr(torch, "mm", lambda *args, **options: counts.append(1) or product(*args, **options))
    states, *_ = drawn(kernel_alignment.CPU_TILE.step)
    metrics = [CKA(*depths(side)) for side in SIDES]
    metrics[0].gather(Batch(states), metrics, SIDES)
    assert len(counts) == sum(map(len, WIDTHS))


@pytest.mark.parametrize("given", ["none", "token"])
def test_neighbours_of_a_pair_are_those_of_the_pair_alone(given, monkeypatch):
    def new(side):
        return LayerMeans(*depths(side), mutual_measure(5), **({"given": given} if given == "token" else {}))

    monkeypatch.setattr(mutual, "AT_ONCE", 5000)
    monkeypatch.setattr(mutual, "SIMILARITIES", 3000)
    metrics = [new(side) for side in SIDES]
    for number in range(2):
        states, tokens, mask = drawn()
        groups = {"groups": tokens} if given == "token" else {}
        metrics[0].gather(Batch(states, mask, number, **groups), metrics, SIDES)
        for (source, target), metric in zip(SIDES, metrics, strict=True):
            alone = new((source, target))
            alone.update(states[source], [x.clone() for x in states[target]], mask, number, **groups)
            assert torch.equal(metric.values[number], alone.values[0])
    assert {metric.compute().batches for metric in metrics} == {2}
    if given == "token":
        assert all(metric.compute().rows_used == metrics[0].compute().rows_used > 0.5 for metric in metrics)
