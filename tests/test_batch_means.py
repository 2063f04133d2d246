"""Accumulators of any measure of layer pairs."""

from functools import partial

import pytest
import torch

from thinkalike.measures import (
    DISTANCE_CORRELATION,
    LayerMeans,
    LayerMeasure,
    LayerPredictions,
    jackknife,
    mutual_measure,
)
from thinkalike.measures.contract import each_pair, rows_in_order
from thinkalike.measures.layer_means import LayerShifts


def dots_measure(prepare=lambda rows, name: rows.double()):
    return LayerMeasure(prepare, each_pair(lambda a, b: (a * b).sum(1).mean()), rows_in_order, fewest=1)


def dots(layers):
    """Mean products of the rows of all layers: a measure that is easy to do by hand."""
    return torch.stack([torch.stack([(a * b).sum(1).mean() for b in layers]) for a in layers])


def batch(layers, n=6, d=3):
    return [torch.randn(n, d, dtype=torch.float64) for _ in range(layers)]


def test_mknn_is_a_mean_over_batches_jackknifed_by_document():
    """The documents of one part lie in several batches, and no part has the same share of each."""
    pairs = [(batch(2, 12), batch(3, 12)) for _ in range(5)]
    owners = [torch.randint(30, (12,)) for _ in pairs]
    means = LayerMeans(2, 3, dots_measure())
    for number, (source, target) in enumerate(pairs):
        means.update(source, target, None, number, documents=owners[number])

    def mean(kept, chosen=range(5)):
        return torch.stack([dots([x[kept(owners[n])] for x in [*pairs[n][0], *pairs[n][1]]]) for n in chosen]).mean(0)

    def scattered(own, part):  # as many rows as the part has, whatever their documents
        home = (own % 10).argsort(stable=True)
        moved = (own % 10)[home][torch.randperm(len(own), generator=torch.Generator().manual_seed(0))]
        return torch.empty_like(own).scatter_(0, home, moved) != part

    every = mean(lambda own: own >= 0)
    without = torch.stack([mean(lambda own, part=part: own % 10 != part) for part in range(10)])
    by_documents = [mean(lambda own, part=part: own % 10 != part, [0, 4]) for part in range(10)]
    by_rows = [mean(lambda own, part=part: scattered(own, part), [0, 4]) for part in range(10)]
    dependence = (torch.stack(by_documents) - torch.stack(by_rows)).mean(0)
    expected = jackknife(every, without, without.mean(0) - dependence, is_drawn=True)
    result = means.compute()
    assert (result.batches, result.documents) == (5, len(torch.cat(owners).unique()))
    for part, rows, columns in (
        (result, slice(2), slice(2, None)),
        (result.within_source, slice(2), slice(2)),
        (result.within_target, slice(2, None), slice(2, None)),
    ):
        for own, other in zip(part, expected[rows, columns], strict=True):
            torch.testing.assert_close(own, other, rtol=0, atol=1e-13)
    assert result.widest_interval() == pytest.approx(float((expected.high - expected.low).max()))


@pytest.mark.parametrize("accumulator", [partial(LayerPredictions, fit_batches=1), LayerShifts])
def test_fewer_than_eight_documents_have_no_interval(accumulator):
    for count in (7, 8):
        means = accumulator(1, 1)
        for number in range(2):
            means.update(batch(1, 40), batch(1, 40), None, number, documents=torch.arange(40) % count)
        found = means.compute()
        assert found.value.isfinite().all()
        assert found.documents == count
        assert bool(found.low.isinf().all()) == bool(found.high.isinf().all()) == (count < 8)


def test_absent_parts_are_not_left_out_and_few_rows_have_no_ends():
    source, target = batch(1, 16), batch(1, 16)
    unequal = torch.arange(16).clamp(min=3)  # 13 documents, worth 9 of equal length
    for documents, finite in ((torch.arange(16) + 10, True), (torch.arange(16) // 2, False), (unequal, False)):
        means = LayerMeans(1, 1, dots_measure())
        means.update(source, target, documents=documents)
        assert bool(means.compute().low.isfinite()) == finite
    few = LayerMeans(1, 1, DISTANCE_CORRELATION)
    few.update([x[:9] for x in source], [x[:9] for x in target], documents=torch.tensor([0] * 6 + [1, 2, 3]))
    few.update(source, target, documents=torch.arange(16))
    assert few.compute().low == -torch.inf


def test_a_model_with_itself_is_prepared_once():
    seen, source = [], batch(2)

    def prepared(rows, name):
        seen.append(name)
        return rows

    alone, copied = (LayerMeans(2, 2, dots_measure(prepared)) for _ in range(2))
    alone.update(source, source)
    assert seen[:2] == ["source layer 0", "source layer 1"]
    alone_count = len(seen)
    copied.update(source, [layer.clone() for layer in source])
    assert len(seen) == 3 * alone_count
    torch.testing.assert_close(alone.compute().value, copied.compute().value, rtol=0, atol=1e-14)
    torch.testing.assert_close(alone.compute().within_target.value, copied.compute().within_target.value)


@pytest.mark.parametrize(
    "new",
    [
        lambda: LayerMeans(1, 1, dots_measure()),
        lambda: LayerMeans(1, 1, DISTANCE_CORRELATION, permutations=3),
        lambda: LayerMeans(1, 1, mutual_measure(2), given="token"),
        lambda: LayerPredictions(1, 1, fit_batches=2),
    ],
)
def test_batches_without_a_number_are_numbered_as_they_come(new):
    counted, numbered = new(), new()
    for number in range(4):
        pair = batch(1, 20), batch(1, 20)
        more = {"groups": torch.arange(20) // 10} if counted.given == "token" else {}
        counted.update(*pair, **more)
        numbered.update(*pair, number=number, **more)
    assert torch.equal(counted.compute().value, numbered.compute().value)


@pytest.mark.filterwarnings("ignore:The ``compute`` method")
def test_no_batch_and_two_of_one_number_have_no_mean():
    first, second = (LayerMeans(1, 1, dots_measure()) for _ in range(2))
    with pytest.raises(ValueError, match="there is no mean of no batches"):
        first.compute()
    for means in (first, second):
        means.update(batch(1), batch(1))
    first.merge_state(second)
    with pytest.raises(ValueError, match=r"two batches have number 0: number those of one run"):
        first.compute()
