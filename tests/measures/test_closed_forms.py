"""Closed-form maps against least squares and SVDs of all rows, and scikit-learn."""

import dataclasses

import pytest
import torch

from thinkalike.measures import AffineMap, Moments, bias_only, least_squares, procrustes, reduced_rank

N, D, E = 97, 6, 9
CHUNKS = (1, 97)


def drawn(*widths, n=N, offset=1.0, device="cpu"):
    """Correlated states of several layers, float64, columns of unequal scale."""
    shared = torch.randn(n, 5, dtype=torch.float64)
    layers = []
    for width in widths:
        mixed = shared @ torch.randn(5, width, dtype=torch.float64) + torch.randn(n, width, dtype=torch.float64)
        layers.append((mixed * torch.linspace(0.5, 2, width) + offset * torch.randn(width)).to(device))
    return layers


def gathered(x, y, chunk=N):
    moments = Moments([(0, 0)])
    for part, to in zip(x.split(chunk), y.split(chunk), strict=True):
        moments.update([part], [to])
    return moments


def explicit(x, y, ridge=0.0, bias=True):
    """Weight and bias of the textbook: rows [x, 1], and a row √ridge eⱼ per coordinate that asks for 0."""
    ones = torch.ones(len(x), int(bias), dtype=x.dtype)
    penalty = ridge**0.5 * torch.eye(x.shape[1], x.shape[1] + int(bias), dtype=x.dtype)
    left = torch.cat([torch.cat([x, ones], 1), penalty])
    right = torch.cat([y, y.new_zeros(x.shape[1], y.shape[1])])
    solution = torch.linalg.lstsq(left, right, driver="gelsd").solution
    return solution[: x.shape[1]].T, solution[-1] if bias else y.new_zeros(y.shape[1])


def same(fit, weight, bias, tolerance=1e-8):
    torch.testing.assert_close(fit.weight.cpu(), weight, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(fit.bias.cpu(), bias, rtol=tolerance, atol=tolerance)


def numbers(moments, pair):
    return [torch.as_tensor(part, dtype=torch.float64) for part in moments.of(pair)]


@pytest.mark.parametrize("chunk", CHUNKS)
def test_pair_statistics_are_those_of_all_rows_for_any_chunk(chunk, device):
    sources, targets, pairs = drawn(6, 4, device=device), drawn(9, 6, 3, device=device), [(0, 2), (1, 0), (0, 0)]
    moments = Moments(pairs)
    for i in range(0, N, chunk):
        moments.update([x[i : i + chunk] for x in sources], [y[i : i + chunk] for y in targets])
    for l, m in pairs:  # noqa: E741
        x, y = sources[l], targets[m]
        a, b = x - x.mean(0), y - y.mean(0)
        for got, expected in zip(moments.of((l, m)), (N, x.mean(0), y.mean(0), a.T @ a, b.T @ b, a.T @ b), strict=True):
            if isinstance(expected, int):
                assert got == expected
            else:
                assert got.device == x.device
                torch.testing.assert_close(got, expected, rtol=0, atol=1e-12 * expected.abs().max().item())


def test_an_offset_of_3000_costs_no_digits():
    """Sums of squares about 0 would be 10⁷ times those about the mean."""
    x, y = drawn(D, E)
    plain, far = numbers(gathered(x, y, 10), (0, 0)), numbers(gathered(x + 3000, y - 3000, 10), (0, 0))
    for got, expected in zip(far[3:], plain[3:], strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-12 * expected.abs().max().item())
    raw = (x + 3000).T @ (x + 3000) - N * torch.outer((x + 3000).mean(0), (x + 3000).mean(0))
    assert (raw - plain[3]).abs().max() > 1e-11 * plain[3].abs().max(), "control: the naive form does lose digits"
    weight = explicit(x, y)[0]
    same(least_squares(gathered(x + 3000, y - 3000, 10), (0, 0)), weight, far[2] - weight @ far[1])


def test_layers_come_by_name_and_unpaired_ones_are_ignored():
    x, y = drawn(D, E)
    moments = Moments([(4, 7), (4, 7)])
    moments.update({4: x, 5: torch.full((3, 2), torch.nan)}, {7: y})
    assert moments.pairs == [(4, 7)]
    same(least_squares(moments, (4, 7)), *explicit(x, y))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_states_are_summed_in_float64(dtype, device):
    x, y = (states.to(device, dtype) for states in drawn(D, E))
    got, expected = gathered(x, y, 10), gathered(x.double(), y.double(), 10)
    for left, right in zip(numbers(got, (0, 0)), numbers(expected, (0, 0)), strict=True):
        assert torch.equal(left, right)


@pytest.mark.parametrize(
    ("sources", "targets", "message"),
    [
        (torch.ones(3, D), torch.ones(4, E), r"'source', 0\): 3, \('target', 0\): 4"),
        (torch.ones(3, D), torch.ones(3, 1), f"target layer 0 has width 1, but {E}"),
        (torch.full((3, D), torch.inf), torch.ones(3, E), "source layer 0"),
        (torch.ones(3, D), torch.full((3, E), torch.nan), "target layer 0"),
    ],
)
def test_rows_that_do_not_fit_are_refused_and_add_nothing(sources, targets, message):
    moments = gathered(*drawn(D, E))
    before = numbers(moments, (0, 0))
    with pytest.raises(ValueError, match=message):
        moments.update([sources], [targets])
    assert all(torch.equal(left, right) for left, right in zip(numbers(moments, (0, 0)), before, strict=True))


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("widths", [(D, E), (E, D), (D, D)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("ridge", [0.0, 7.0])
def test_least_squares_is_torchs_on_explicit_rows(chunk, widths, bias, ridge, device):
    x, y = drawn(*widths)
    fit = least_squares(gathered(x.to(device), y.to(device), chunk), (0, 0), ridge, bias)
    same(fit, *explicit(x, y, ridge, bias))
    other = explicit(x, y, 7.0 - ridge, bias)[0]
    assert (fit.weight.cpu() - other).abs().max() > 1e-3, "control: the ridge matters"


@pytest.mark.parametrize("n", [2, 5, N])
def test_a_singular_fit_is_the_one_of_least_norm(n):
    """Few rows, or a coordinate that repeats others: lstsq on centred rows is the pseudo-inverse."""
    x, y = drawn(D, E, n=n)
    x = torch.cat([x, x[:, :2].sum(1, keepdim=True)], 1)
    a, b = x - x.mean(0), y - y.mean(0)
    weight = (torch.linalg.pinv(a, rtol=1e-10) @ b).T
    same(least_squares(gathered(x, y, 10), (0, 0)), weight, y.mean(0) - weight @ x.mean(0))


def test_rounding_of_states_that_sum_to_zero_gets_no_weight():
    """As behind a LayerNorm: the direction (1, …, 1) holds rounding only, and a fit to it would be huge."""
    x, y = drawn(D, E, n=2000)
    x = (x - x.mean(1, keepdim=True)).float()
    assert 0 < x.sum(1).abs().max() < 1e-5
    weight = least_squares(gathered(x, y), (0, 0)).weight
    assert weight.sum(1).abs().max() < 1e-5
    naive = torch.linalg.lstsq((x - x.mean(0)).double(), y - y.mean(0)).solution.T
    assert naive.sum(1).abs().max() > 1, "control: ordinary least squares does fit it"


def test_a_direction_100000_times_narrower_still_counts():
    """A residual stream has a few coordinates of size 1000 and more; they must not hide the others."""
    x, y = drawn(D, E)
    scale = torch.tensor([1e5, 1, 1, 1, 1, 1], dtype=torch.float64)
    weight, bias = explicit(x, y)
    same(least_squares(gathered(x * scale, y), (0, 0)), weight / scale, bias, 1e-6)


@pytest.mark.parametrize("value", [0.0, 0.1, 1000.7])
def test_a_constant_source_predicts_the_mean(value):
    (y,) = drawn(E)
    fit = least_squares(gathered(torch.full((N, D), value, dtype=torch.float64), y, 10), (0, 0))
    assert torch.equal(fit.weight, torch.zeros(E, D, dtype=torch.float64))
    torch.testing.assert_close(fit.bias, y.mean(0))


@pytest.mark.parametrize("rank", [1, 3, 5])
@pytest.mark.parametrize("widths", [(D, E), (E, D)])
@pytest.mark.parametrize("ridge", [0.0, 20.0])
def test_reduced_rank_is_the_truncated_svd_of_the_fitted_values(rank, widths, ridge, device):
    x, y = drawn(*widths)
    weight, _ = explicit(x, y, ridge)
    rows = torch.cat([x - x.mean(0), ridge**0.5 * torch.eye(x.shape[1], dtype=x.dtype)])
    vh = torch.linalg.svd(rows @ weight.T, full_matrices=False).Vh[:rank]
    expected = vh.T @ vh @ weight
    fit = reduced_rank(gathered(x.to(device), y.to(device), 10), (0, 0), rank, ridge)
    same(fit, expected, y.mean(0) - expected @ x.mean(0))
    assert torch.linalg.matrix_rank(fit.weight, rtol=1e-10) == rank
    u, s, v = torch.linalg.svd(weight, full_matrices=False)
    naive = u[:, :rank] * s[:rank] @ v[:rank]
    assert (expected - naive).abs().max() > 1e-3, "control: truncating the weight itself is another map"


def isometry(d, e):
    return torch.linalg.qr(torch.randn(e, d, dtype=torch.float64)).Q


@pytest.mark.parametrize("widths", [(D, D), (D, E)])
def test_procrustes_is_the_svd_of_all_rows(widths, device):
    x, y = drawn(*widths)
    a, b = x - x.mean(0), y - y.mean(0)
    u, _, vh = torch.linalg.svd(b.T @ a, full_matrices=False)
    fit = procrustes(gathered(x.to(device), y.to(device), 10), (0, 0))
    same(fit, u @ vh, y.mean(0) - u @ vh @ x.mean(0), 1e-10)
    torch.testing.assert_close(fit.weight.cpu().T @ fit.weight.cpu(), torch.eye(D, dtype=x.dtype), rtol=0, atol=1e-12)


def test_bias_only_is_the_difference_of_the_means(device):
    x, y = drawn(D, D)
    fit = bias_only(gathered(x.to(device), y.to(device), 10), (0, 0))
    same(fit, torch.eye(D, dtype=x.dtype), (y - x).mean(0), 1e-12)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6), (torch.bfloat16, 1e-2)]
)
def test_a_map_keeps_its_precision_and_answers_in_the_states(dtype, tolerance, device):
    """Means of 300 cancel: in bfloat16 the product alone would be off by about 1."""
    narrow, wide = AffineMap(torch.eye(D), torch.zeros(D)), torch.randn(3, D, dtype=torch.float64)
    assert torch.equal(narrow(wide), wide)
    fit = AffineMap(isometry(D, E), torch.randn(E, dtype=torch.float64))
    fit = dataclasses.replace(fit, bias=fit.bias - fit.weight.sum(1) * 300)
    states = (300 + 8 * torch.randn(2, 3, D)).to(device, dtype)
    got = fit(states)
    assert (got.dtype, got.shape, got.device) == (dtype, (2, 3, E), states.device)
    expected = states.cpu().double() @ fit.weight.T + fit.bias
    torch.testing.assert_close(got.cpu().double(), expected, rtol=tolerance, atol=tolerance)
