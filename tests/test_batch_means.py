"""Means over batches of any measure of layer pairs."""

from __future__ import annotations

import pytest
import torch

from thinkalike.measures import (
    BatchMeans,
    LayerMeans,
    LayerPredictions,
    NeighboursGivenToken,
    jackknife,
    layer_measures,
    leave_one_out,
)


def dots(layers):
    """Mean products of the rows of all layers: a measure that is easy to do by hand."""
    return torch.stack([torch.stack([(a * b).sum(1).mean() for b in layers]) for a in layers])


def batch(layers, n=6, d=3):
    return [torch.randn(n, d, dtype=torch.float64) for _ in range(layers)]


def test_it_is_the_mean_over_batches_with_a_jackknife_interval():
    means, pairs = BatchMeans(2, 3, dots), [(batch(2), batch(3)) for _ in range(5)]
    for number, (source, target) in enumerate(pairs):
        means.update(source, target, None, number)
    matrices = torch.stack([dots([*source, *target]) for source, target in pairs])
    expected = jackknife(matrices.mean(0), leave_one_out(matrices))
    result = means.compute()
    assert result.batches == 5
    for part, rows, columns in (
        (result, slice(2), slice(2, None)),
        (result.within_source, slice(2), slice(2)),
        (result.within_target, slice(2, None), slice(2, None)),
    ):
        for own, other in zip(part, expected[rows, columns], strict=True):
            torch.testing.assert_close(own, other, rtol=0, atol=1e-14)
    assert result.widest_interval() == float((expected.high - expected.low).max())


def test_a_model_with_itself_is_compared_once():
    sizes, source = [], batch(2)

    def counted(layers):
        sizes.append(len(layers))
        return dots(layers)

    alone, copied = BatchMeans(2, 2, counted), BatchMeans(2, 2, counted)
    alone.update(source, source)
    copied.update(source, [layer.clone() for layer in source])
    assert sizes == [2, 4]
    torch.testing.assert_close(alone.compute().value, copied.compute().value, rtol=0, atol=1e-14)
    torch.testing.assert_close(alone.compute().within_target.value, copied.compute().within_target.value)


def test_a_mask_leaves_tokens_out():
    states, mask = [torch.randn(2, 4, 3)], torch.tensor([[True, False, True, True], [True, True, False, False]])
    means = BatchMeans(1, 1, dots)
    means.update(states, states, mask)
    torch.testing.assert_close(means.compute().value[0, 0], dots([states[0][mask]])[0, 0].double())


def test_a_run_that_goes_on_is_that_of_one_go():
    pairs = [(batch(1), batch(1)) for _ in range(4)]
    whole, first, second = (BatchMeans(1, 1, dots) for _ in range(3))
    for number, pair in enumerate(pairs):
        whole.update(*pair, None, number)
        (first if number < 2 else second).update(*pair, None, number)
    second.load_state_dict(first.state_dict() | second.state_dict())
    assert torch.equal(whole.compute().value, second.compute().value)
    assert torch.equal(whole.compute().low, second.compute().low)


@pytest.mark.parametrize(
    "new",
    [
        lambda: BatchMeans(1, 1, dots),
        lambda: LayerMeans(1, 1, layer_measures()["cka"], permutations=3),
        lambda: NeighboursGivenToken(1, 1, k=2),
        lambda: LayerPredictions(1, 1, fit_batches=2),
    ],
)
def test_batches_without_a_number_are_numbered_as_they_come(new):
    counted, numbered = new(), new()
    for number in range(4):
        pair = batch(1, 20), batch(1, 20)
        more = {"groups": torch.arange(20) // 10} if isinstance(counted, NeighboursGivenToken) else {}
        counted.update(*pair, **more)
        numbered.update(*pair, number=number, **more)
    assert torch.equal(counted.compute().value, numbered.compute().value)


@pytest.mark.parametrize("new", [lambda: BatchMeans(1, 1, dots), lambda: LayerMeans(1, 1, layer_measures()["cka"])])
def test_two_runs_of_one_number_are_not_merged(new):
    first, second = new(), new()
    for means in (first, second):
        means.update(batch(1), batch(1))
    with pytest.raises(ValueError, match=r"both have a batch 0: number the batches of one run"):
        first.merge_state(second)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"1 and 1 layers were announced, but \(2, 1\) came"):
        BatchMeans(1, 1, dots).update(batch(2), batch(1))
    with pytest.raises(ValueError, match="there is no mean of no batches"):
        BatchMeans(1, 1, dots).compute()
