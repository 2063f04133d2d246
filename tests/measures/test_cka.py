"""CKA and HSIC: definitions, planted populations, invariances, digits, and what other implementations get wrong."""

import copy
import itertools
import math
import pickle
from fractions import Fraction

import numpy as np
import pytest
import scipy.spatial.distance
import scipy.stats
import torch
import torch.multiprocessing
from torchmetrics import MetricCollection

from conftest import with_slow
from thinkalike.measures import CKA, cka, gram_statistics, hsic0, hsic1, leverage, permuted_rows
from thinkalike.measures.contract import ModelPairs
from thinkalike.measures.gram_statistics import Tiling, all_hsics, dense_statistics, linear_statistics
from thinkalike.measures.kernel_alignment import CKAMeasure

F64 = torch.float64


def layers(n, *widths, shared=4, noise=0.5, offset=0.0, dtype=F64):
    """Features of the same n stimuli, alike through a few shared dimensions."""
    base = torch.randn(n, shared, dtype=F64)
    drawn = [base @ torch.randn(shared, d, dtype=F64) + noise * torch.randn(n, d, dtype=F64) for d in widths]
    return [(x + offset).to(dtype) for x in drawn]


def written_out(x, y, hsic=hsic1):
    """From Grams of centred features in float64."""
    K, L = ((z - z.mean(0)) @ (z - z.mean(0)).T for z in (x.double(), y.double()))
    return hsic(K, L) / (hsic(K, K) * hsic(L, L)).sqrt()


def same(found, expected, tolerance=1e-10):
    torch.testing.assert_close(found.cpu(), torch.as_tensor(expected, dtype=found.dtype), rtol=0, atol=tolerance)


@pytest.mark.parametrize("widths", [(5, 5), (3, 40)])
@pytest.mark.parametrize("n", [4, 8, 60])
def test_cka_is_the_ratio_of_hsics(n, widths, device):
    x, y = layers(n, *widths, offset=3)
    same(cka(x.to(device), y.to(device)), written_out(x, y))
    same(cka(x.to(device), y.to(device), estimator="biased"), written_out(x, y, hsic0))


@pytest.mark.parametrize("n", [5, 6, 20])
@pytest.mark.parametrize(("estimator", "hsic"), [("unbiased", hsic1), ("biased", hsic0)])
def test_the_rbf_kernel_has_the_median_distance_as_its_width(estimator, hsic, n):
    """Of 10 and 190 pairs, the median is between the two distances in the middle."""
    x, y = layers(n, 5, 8)
    grams = []
    for z in (x, y):
        distances = torch.tensor(scipy.spatial.distance.pdist(z.numpy()))
        gram = torch.exp(-distances.square() / 2 / np.median(distances) ** 2)
        grams.append(torch.tensor(scipy.spatial.distance.squareform(gram.numpy())) + torch.eye(n, dtype=F64))
    K, L = grams
    expected = hsic(K, L) / (hsic(K, K) * hsic(L, L)).sqrt()
    same(cka(x, y, estimator=estimator, kernel="rbf"), expected)
    assert (cka(x, y, estimator=estimator) - expected).abs() > 1e-3, "control"


def population(a, b):
    """CKA of x = z A and y = z B for standard normal z: HSIC is the squared norm of the covariance."""
    return (a.T @ b).norm() ** 2 / (a.T @ a).norm() / (b.T @ b).norm()


def planted(*widths, hidden=10):
    return [torch.randn(hidden, d, dtype=F64) * torch.linspace(1, 0.1, hidden, dtype=F64)[:, None] for d in widths]


def test_cka_finds_the_population_of_gaussian_features(device):
    maps = planted(6, 7, 8, hidden=20)
    metric = CKA(2, 1)
    for _ in range(40):
        z = torch.randn(64, 20, dtype=F64)
        xs = [(z @ a).to(device) for a in maps]
        metric.update(xs[:2], xs[2:])
    found = metric.compute()
    for layer in range(2):
        truth = population(maps[layer], maps[2])
        assert found.low[layer, 0] < truth < found.high[layer, 0]
        assert (found.high - found.low)[layer, 0] < 0.1, "control: the interval says something"
    biased = torch.stack(
        [cka(z @ maps[0], z @ maps[2], estimator="biased") for z in torch.randn(40, 16, 20, dtype=F64)]
    )
    assert biased.mean() > found.high[0, 0], "control: the biased estimator is above it"


def massive(x, size):
    x[0, 1], x[0, 2] = size, -size / 2
    return x


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
@pytest.mark.parametrize(("offset", "size", "tolerance"), [(0, 0, 1e-6), (3000, 0, 1e-6), (0, 30_000, 1e-5)])
def test_float32_keeps_six_digits_of_hard_features(offset, size, tolerance, kernel, device):
    xs = layers(600, 48, 64, 48, shared=16, noise=1.0)
    for x in xs:
        x[:, :3] += offset
        if size:
            massive(x, size)
    xs = [x.float().to(device) for x in xs]
    metrics = [CKA(1, 2, kernel=kernel) for _ in range(2)]
    for metric, features in zip(metrics, (xs, [x.double() for x in xs]), strict=True):
        metric.update(features[:1], features[1:])
    single, double = (metric.compute().with_bias for metric in metrics)
    same(single, double.cpu(), tolerance)
    same(cka(xs[0].requires_grad_(), xs[1], kernel=kernel).detach(), double[0, 0], tolerance)


def test_bfloat16_and_float16_features_are_widened_first():
    x, y = layers(200, 20, 30)
    for dtype in (torch.bfloat16, torch.float16):
        found = cka(x.to(dtype), y.to(dtype))
        assert found.dtype == torch.float32
        same(found, cka(x.to(dtype).double(), y.to(dtype).double()).float(), 1e-6)
        same(found, cka(x, y).float(), 1e-2)
    assert cka(x.bfloat16(), y).dtype == F64, "the wider of the two"


def test_autocast_does_not_reach_the_products():
    x, y = layers(200, 20, 30, dtype=torch.float32)
    expected = cka(x, y)
    metric = CKA(1, 1)
    with torch.autocast("cpu", torch.bfloat16):
        assert (x @ x.T).dtype == torch.bfloat16, "control"
        assert torch.equal(cka(x, y), expected)
        same(cka(x.clone().requires_grad_(), y).detach(), expected, 1e-6)
        metric.update([x], [y])
    same(metric.compute().with_bias[0, 0], expected, 1e-6)


def test_leverage_is_the_share_of_the_farthest_row(device):
    (x,) = layers(50, 5, offset=7)
    k = (x - x.mean(0)).square().sum(1)
    same(leverage(x.to(device)), k.max() / k.sum())
    assert leverage(massive(x, 1e4)) > 0.97
    assert leverage(x.bfloat16()).dtype == torch.float32


def exact_cka(x, y):
    """Return the unbiased CKA in rational numbers, which do not round."""

    def off_diagonal(features):
        rows = [[Fraction(value) for value in row] for row in features.tolist()]
        return [[sum(a * b for a, b in zip(u, v, strict=True)) if u is not v else 0 for u in rows] for v in rows]

    def hsic(K, L):
        n = len(K)
        products = sum(a * b for rows in zip(K, L, strict=True) for a, b in zip(*rows, strict=True))
        sums = [sum(row) for row in K], [sum(row) for row in L]
        of_sums = sum(a * b for a, b in zip(*sums, strict=True))
        return products - 2 * of_sums / Fraction(n - 2) + sum(sums[0]) * sum(sums[1]) / Fraction((n - 1) * (n - 2))

    K, L = off_diagonal(x), off_diagonal(y)
    square = hsic(K, L) ** 2 / (hsic(K, K) * hsic(L, L))
    return math.copysign(math.sqrt(square), hsic(K, L))


# A row massive in one direction; rows in directions of their own; two rows of very different size.
MASSIVE_ROWS = {
    "one": lambda x, size: x[3, 2:3].fill_(size),
    "orthogonal": lambda x, size: x[:3, :3].diagonal().add_(size),
    "two sizes": lambda x, size: (x[3, 2:3].fill_(size), x[5, 1:2].fill_(size**0.5)),
}


@pytest.mark.parametrize("rows", MASSIVE_ROWS)
@pytest.mark.parametrize("size", [1e6, 1e10, 1e12, 1e20, 1e30])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_rows_of_any_size_have_the_exact_cka_or_are_refused(dtype, size, rows, device):
    x, y = layers(14, 5, 4, dtype=dtype)
    MASSIVE_ROWS[rows](x, size)
    expected = exact_cka(x, y)
    by_token = CKA(1, 1, conditional_on="token")
    token = torch.zeros(14, dtype=torch.long, device=device)
    ways = {
        "one-shot": lambda x, y: cka(x, y),
        "with a gradient": lambda x, y: cka(x.clone().requires_grad_(), y).detach(),
        "within one group": lambda x, y: by_token.update([x], [y], groups=token) or by_token.compute().with_bias[0, 0],
    }
    refused = []
    for way, value in ways.items():
        try:
            found = value(x.to(device), y.to(device))
        except ValueError as error:
            refused.append(f"{way}: {error}")
        else:
            assert abs(found.item() - expected) < 1e-3, way
    assert all(f"or too little for {dtype}" in line for line in refused)
    # Beside one massive row nothing is lost up to the square root of the greatest number.
    assert not refused or rows == "orthogonal" or (dtype == torch.float32 and size > 1e18)


def test_leaving_out_a_massive_row_leaves_all_digits_of_the_others(device):
    for dtype, size in ((torch.float32, 1e8), (F64, 1e30)):
        x, y = layers(14, 5, 4, dtype=dtype)
        x[3, 2] = size
        sides = [z.to(device) for z in (x, y)]
        measure = CKAMeasure(is_relative=True)
        prepared = measure.prepared(sides, ["x", "y"])
        pairs = ModelPairs([[0], [1]], [(0, 0), (0, 1), (1, 1)])
        hsics = measure.compare_leaving_out_parts(prepared, pairs, [4, 10])
        found = hsics[0, 1][1] / (hsics[0, 0][1] * hsics[1, 1][1]).sqrt()
        assert abs(found.item() - exact_cka(x[4:], y[4:])) < 1e-4


def test_products_of_features_refuse_what_their_diagonal_hides(monkeypatch):
    x, y = layers(14, 5, 4)
    x[3, 2] = 1e5
    monkeypatch.setattr(gram_statistics, "FEWEST_ROWS_FOR_FEATURE_PRODUCTS", 8)
    assert abs(cka(x, y).item() - exact_cka(x, y)) < 1e-4, "control"
    x[3, 2] = 1e12
    with pytest.raises(ValueError, match=r"or too little for torch\.float64"):
        cka(x, y)


@pytest.mark.parametrize(
    ("x", "y", "options", "message"),
    [
        (torch.randn(3, 2), torch.randn(3, 2), {}, "3 rows are too few to compare: give at least 4"),
        (torch.randn(5, 2), torch.randn(6, 2), {}, "the same rows"),
        (torch.full((5, 2), 1e4).bfloat16(), torch.randn(5, 2), {}, "X: all rows are the same"),
        (torch.zeros(5, 2), torch.randn(5, 2), {"estimator": "biased"}, "X: all rows are the same"),
        (torch.randn(5, 2), torch.tensor([[torch.inf], [0], [0], [0], [0]]), {}, "Y: a value is not finite"),
        (torch.eye(5)[:, :1] * 1e4 + 7, torch.randn(5, 2), {}, "X: no variance but in one row"),
        (torch.randn(9, 2), torch.eye(9)[:, :1] * torch.randn(40) + 0.1, {"kernel": "rbf"}, "median distance between"),
        (torch.randn(5, 2), torch.randn(5, 2), {"estimator": "exact"}, "estimator='exact' is unknown: choose unbiased"),
    ],
)
def test_what_has_no_cka_is_refused(x, y, options, message):
    with pytest.raises(ValueError, match=message):
        cka(x, y, **options)


WIDTHS = 3, 5, 4, 2, 6  # two layers of a source, three of a target


def batches(count, n=12, dtype=F64, seed=0):
    torch.manual_seed(seed)
    drawn = [layers(n, *WIDTHS, dtype=dtype) for _ in range(count)]
    return [(features[:2], features[2:]) for features in drawn]


def gathered(data, numbers=None, groups=None, **options):
    metric = CKA(2, 3, conditional_on="none" if groups is None else "token", **options)
    for index, (sources, targets) in enumerate(data):
        metric.update(sources, targets, number=numbers[index] if numbers else None, groups=groups)
    return metric


@pytest.mark.parametrize("estimator", ["unbiased", "biased"])
@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_one_batch_is_the_one_shot_value_of_every_pair(estimator, kernel, device):
    ((sources, targets),) = batches(1)
    metric = CKA(2, 3, estimator=estimator, kernel=kernel)
    metric.update([x.to(device) for x in sources], [y.to(device) for y in targets])
    found = metric.compute()
    expected = [
        [cka(x, y, estimator=estimator, kernel=kernel) for y in (*sources, *targets)] for x in (*sources, *targets)
    ]
    expected = torch.tensor(expected)
    same(found.with_bias, expected[:2, 2:], 1e-12)
    same(found.within_source.with_bias, expected[:2, :2], 1e-12)
    same(found.within_target.with_bias, expected[2:, 2:], 1e-12)
    leverages = torch.stack([leverage(x) for x in (*sources, *targets)])
    same(torch.cat([found.leverage_source, found.leverage_target]), leverages)


def test_batches_join_by_ratio_of_means_or_mean_of_ratios():
    data = batches(5)
    grams = [[[(x - x.mean(0)) @ (x - x.mean(0)).T for x in side] for side in batch] for batch in data]
    hsics = torch.tensor([[[[hsic1(K, L) for L in t], [hsic1(L, L) for L in t]] for K in s] for s, t in grams])
    xy, yy = hsics.unbind(2)
    xx = torch.tensor([[[hsic1(K, K)] for K in s] for s, _ in grams])
    same(gathered(data).compute().with_bias, xy.sum(0) / (xx.sum(0) * yy.sum(0)).sqrt())
    same(gathered(data, aggregate="mean_of_ratios").compute().with_bias, (xy / (xx * yy).sqrt()).mean(0))


def sequences(*widths, b=6, t=5):
    return [x.view(b, t, -1) for x in layers(b * t, *widths)]


FLATTEN = {"token": lambda x: x.flatten(0, 1), "sample": lambda x: x.flatten(1), "mean": lambda x: x.mean(1)}


@pytest.mark.parametrize("flatten", FLATTEN)
def test_rows_are_tokens_sequences_or_means_of_sequences(flatten):
    x, y = sequences(3, 4)
    found = {}
    for mask in (None, torch.ones(6, 5, dtype=torch.bool)):
        metric = CKA(1, 1, flatten=flatten)
        metric.update([x], [y], mask)
        found[mask is None] = metric.compute().with_bias[0, 0]
        same(found[mask is None], cka(FLATTEN[flatten](x), FLATTEN[flatten](y)))
    rows = CKA(1, 1, flatten=flatten)
    rows.update([x.flatten(0, 1)], [y.flatten(0, 1)])
    same(rows.compute().with_bias[0, 0], cka(x.flatten(0, 1), y.flatten(0, 1)))
    others = [cka(rows(x), rows(y)) for name, rows in FLATTEN.items() if name != flatten]
    assert all((found[True] - other).abs() > 1e-3 for other in others), "control: these are three different values"


@pytest.mark.parametrize("flatten", ["token", "mean"])
def test_masked_tokens_count_for_nothing_not_even_as_nan(flatten):
    x, y = sequences(3, 4)
    mask = torch.rand(6, 5) < 0.7
    mask[:, 0] = True
    kept = [[sequence[chosen] for sequence, chosen in zip(z, mask, strict=True)] for z in (x, y)]
    rows = [torch.cat(z) if flatten == "token" else torch.stack([tokens.mean(0) for tokens in z]) for z in kept]
    whole = cka(FLATTEN[flatten](x), FLATTEN[flatten](y))
    x[~mask], y[~mask] = torch.nan, torch.inf
    metric = CKA(1, 1, flatten=flatten)
    metric.update([x], [y], mask)
    same(metric.compute().with_bias[0, 0], cka(*rows))
    assert (cka(*rows) - whole).abs() > 1e-3, "control: the mask matters"


def test_independent_features_with_an_offset_are_not_alike(device):
    """pytorch-cka: 1.0, and NaN in torch-cka."""
    x, y = torch.randn(2, 1024, 32, device=device) + 300
    assert cka(x, y).abs() < 0.01
    K, L = x @ x.T, y @ y.T
    naive = hsic1(K, L) / (hsic1(K, K) * hsic1(L, L)).sqrt()
    assert not naive.abs() < 0.01, "control"


def test_what_happens_to_the_states_afterwards_does_not_matter():
    """torch-cka: a hook keeps a reference, and sees later edits."""
    data = batches(2)
    expected = gathered(data).compute().value
    metric = CKA(2, 3)
    for sources, targets in data:
        states = [x.clone() for x in (*sources, *targets)]
        metric.update(states[:2], states[2:])
        assert all(torch.equal(x, y) for x, y in zip(states, (*sources, *targets), strict=True)), "nor are they changed"
        for x in states:
            x.zero_()
    assert torch.equal(metric.compute().value, expected)


def numbers_of(result):
    chance = [result.chance.calibrated] if result.chance else []
    estimates = result, result.within_source, result.within_target, *chance
    found = [x for estimate in estimates for x in (estimate.value, estimate.low, estimate.high)]
    found += [result.chance.null, result.chance.p] if result.chance else []
    return [*found, result.leverage_source, result.leverage_target, result.convergence()]


def agree(one, other, tolerance):
    other = other.compute() if isinstance(other, CKA) else other
    for found, expected in zip(numbers_of(one), numbers_of(other), strict=True):
        torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("aggregate", ["ratio_of_means", "mean_of_ratios"])
@pytest.mark.parametrize("split", [[[4, 1], [3], [2, 0]], [[], [4, 3, 2, 1, 0]]])
def test_any_split_of_the_batches_gives_the_same_to_the_bit(split, aggregate):
    data = batches(5)
    whole = gathered(data, aggregate=aggregate, permutations=1).compute()
    parts = [gathered([data[i] for i in part], part, aggregate=aggregate, permutations=1) for part in split]
    for part in parts[1:]:
        parts[0].merge_state(part)
    agree(parts[0].compute(), whole, 0)


SHARES = [([0, 3, 4], [1, 2]), ([0, 1, 2, 3, 4], [])]  # uneven, and one process without any


def process(rank, folder):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/start", rank=rank, world_size=2)
    data = batches(5)
    for case, shares in enumerate(SHARES):
        metric = gathered([data[i] for i in shares[rank]], shares[rank], permutations=1)
        torch.save([number.clone() for number in numbers_of(metric.compute())], f"{folder}/{case}{rank}")
        assert len(metric.numbers) == len(shares[rank]), "each process goes on with its own"
    torch.distributed.destroy_process_group()


@pytest.mark.ci_slow
def test_two_processes_see_the_same_as_one(tmp_path):
    torch.multiprocessing.spawn(process, (str(tmp_path),), nprocs=2)
    expected = numbers_of(gathered(batches(5), permutations=1).compute())
    for found in [torch.load(tmp_path / f"{case}{rank}") for case in range(2) for rank in range(2)]:
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.ci_slow
def test_cka_is_a_torchmetrics_metric_also_in_a_collection(device):
    data = batches(3)
    metric = gathered([], groups=torch.arange(12)).to(device)
    both = MetricCollection({"unbiased": CKA(2, 3), "biased": CKA(2, 3, estimator="biased")}).to(device)
    groups = torch.arange(12) // 6
    for number, (sources, targets) in enumerate(data):
        moved = [x.to(device) for x in sources], [y.to(device) for y in targets]
        agree(metric(*moved, groups=groups), gathered([(sources, targets)], [number], groups=groups), 1e-10)
        both.update(*moved)
    agree(metric.compute(), gathered(data, groups=groups), 1e-10)
    found = both.compute()
    agree(found["unbiased"], gathered(data), 1e-12)
    agree(found["biased"], gathered(data, estimator="biased"), 1e-12)
    assert found["unbiased"].value.device.type == device.type
    both.reset()
    with pytest.raises(ValueError, match="call update first"), pytest.warns(UserWarning, match="compute"):
        both["biased"].compute()


def test_a_resumed_run_is_the_uninterrupted_one_to_the_bit(tmp_path):
    data = batches(5)
    torch.save(gathered(data[:2], permutations=1).state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt")
    for _ in range(2):  # twice: the first run must not have touched the state
        metric = CKA(2, 3, permutations=1)
        metric.load_state_dict(state)
        metric.reset()
        metric.load_state_dict(state)
        agree(metric.compute(), gathered(data[:2], permutations=1).compute(), 0)
        for batch in data[2:]:
            metric.update(*batch)
        agree(metric.compute(), gathered(data, permutations=1).compute(), 0)


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda metric: pickle.loads(pickle.dumps(metric))])
def test_a_copy_is_independent_and_drops_scratch_memory(clone):
    data = batches(3, n=400)
    metric = gathered(data[:2])
    size = len(pickle.dumps(metric))
    twin = clone(metric)
    twin.update(*data[2])
    agree(twin.compute(), gathered(data).compute(), 0)
    agree(metric.compute(), gathered(data[:2]).compute(), 0)
    assert size < 400 * sum(WIDTHS) * 8


def test_inference_mode_leaves_nothing_that_is_locked():
    data = batches(2)
    metric = CKA(2, 3)
    with torch.inference_mode():
        metric.update([x.clone() for x in data[0][0]], [x.clone() for x in data[0][1]])
    metric.update(*data[1])
    agree(metric.compute(), gathered(data).compute(), 0)


def with_documents(data, left_out=None, **options):
    """A metric of batches of 12 rows of documents 0..23, each in every other batch, without those of a part."""
    depths = [len(side) for side in data[0]]
    metric = CKA(*depths, **options)
    for number, (sources, targets) in enumerate(data):
        documents = torch.arange(12) * 2 + number % 2
        kept = documents % 10 != (-1 if left_out is None else left_out)
        metric.update([x[kept] for x in sources], [y[kept] for y in targets], None, number, documents=documents[kept])
    return metric.compute()


def error_of(values):
    """The standard error of a statistic from those without each of 10 parts."""
    return (9 / 10 * (values - values.mean(0)).square().sum(0)).sqrt()


@pytest.mark.ci_slow
@pytest.mark.parametrize(
    "options",
    [{}, {"estimator": "biased"}, {"aggregate": "mean_of_ratios"}, {"kernel": "rbf"}],
    ids=["unbiased", "biased", "mean of ratios", "rbf"],
)
def test_the_jackknife_leaves_documents_out_of_all_batches(options):
    data = batches(5)
    found = with_documents(data, **options)
    left_out = torch.stack([with_documents(data, part, **options).with_bias for part in range(10)])
    corrected = not options or "kernel" in options

    def agrees(found, left_out):
        half = scipy.stats.t.ppf(0.975, 9) * error_of(left_out)
        middle = 10 * found.with_bias - 9 * left_out.mean(0) if corrected else found.with_bias  # Quenouille's
        same(found.value, middle.clamp(max=1), 1e-8)
        same(found.high, torch.maximum(found.with_bias, middle + half), 1e-8)
        same(found.low, torch.minimum(found.with_bias, middle - half), 1e-8)

    agrees(found, left_out)
    assert found.documents == 24
    difference = found.difference((0, 0), (1, 2))
    same(difference.with_bias, found.with_bias[0, 0] - found.with_bias[1, 2])
    agrees(difference, left_out[:, 0, 0] - left_out[:, 1, 2])


def simulated(batches, n, maps):
    metric = CKA(1, 2)
    for z in torch.randn(batches, n, len(maps[0]), dtype=F64):
        xs = [z @ a for a in maps]
        metric.update(xs[:1], xs[1:])
    return metric.compute()


@pytest.mark.slow
def test_intervals_cover_the_planted_value_in_95_of_100_runs():
    """200 runs: a true 95 % falls outside 90..98 once in a hundred times."""
    maps = planted(5, 6, 7)
    truth = torch.stack([population(maps[0], other) for other in maps[1:]])
    results = [simulated(20, 32, maps) for _ in range(200)]
    covered = torch.stack([(found.low[0] < truth) & (truth < found.high[0]) for found in results]).double().mean(0)
    difference = [found.difference((0, 0), (0, 1)) for found in results]
    paired = sum(bool(each.low < truth[0] - truth[1] < each.high) for each in difference) / 200
    print(f"coverage: {covered.tolist()}, of a difference: {paired}")
    for share in (*covered.tolist(), paired):
        assert 0.90 <= share <= 0.98


def test_the_bias_of_few_documents_is_taken_off():
    """Two models share nothing, and 20 documents carry half of the variance of each."""
    owners, found = torch.arange(200) % 20, []
    for _ in range(40):
        metric = CKA(1, 1)
        x, y = (torch.randn(200, 8, dtype=F64) + torch.randn(20, 8)[owners] for _ in range(2))
        metric.update([x], [y], documents=owners)
        found.append(metric.compute())
    value, uncorrected = (torch.cat([getattr(each, name) for each in found]) for name in ("value", "uncorrected"))
    assert abs(value.mean()) < 0.02 < 0.05 < uncorrected.mean()
    assert sum(bool(each.low <= min(0, each.value) <= max(0, each.value) <= each.high) for each in found) >= 37
    assert torch.equal(metric.replicates()[0], found[-1].value), "readings in bits are of the same estimate"


def test_the_distance_of_two_models_is_equation_2():
    data = [(each[:2], each[2:]) for each in (layers(12, 3, 4, 5, 6) for _ in range(6))]
    result = with_documents(data)
    found = result.distance()
    arccos = [torch.arccos(result.with_bias[layer, layer]) for layer in range(2)]
    same(found.with_bias, (arccos[0] ** 2 + arccos[1] ** 2).sqrt())
    left_out = torch.stack([with_documents(data, part).distance().with_bias for part in range(10)])
    middle = 10 * found.with_bias - 9 * left_out.mean(0)
    same(found.value, middle)
    same(found.high, torch.maximum(found.with_bias, middle + scipy.stats.t.ppf(0.975, 9) * error_of(left_out)), 1e-8)
    assert result.clipped == 0


def test_a_model_has_distance_0_to_itself_and_clips_count():
    metric = CKA(3, 3)
    for features in [layers(30, 3, 4, 5, dtype=torch.float32) for _ in range(4)]:
        metric.update(features, features)
    result = metric.compute()
    found = result.distance()
    same(found.value, 0.0, 1e-3)
    clipped, was_within = result.clipped, bool(result.with_bias[0, 0] <= 1)
    result.uncorrected = 1.5 * result.with_bias
    assert result.clipped == 3 >= clipped + was_within
    assert result.distance().value.isfinite()


def test_the_convergence_curve_ends_at_the_value():
    data = batches(5)
    for aggregate in ("ratio_of_means", "mean_of_ratios"):
        curve = gathered(data, aggregate=aggregate).compute().convergence()
        for seen in range(1, 6):
            same(curve[seen - 1], gathered(data[:seen], aggregate=aggregate).compute().with_bias, 1e-12)


@pytest.mark.parametrize("options", [{}, {"estimator": "biased"}, {"kernel": "rbf", "permutations": 1}])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("depth", [1, 7])
def test_the_same_tensors_on_both_sides_are_as_copies(depth, dtype, options):
    states = layers(150, *range(4, 4 + depth), dtype=dtype)
    metrics = [CKA(depth, depth, **options) for _ in range(3)]
    metrics[0].update(states, states)
    metrics[1].update(states, [x.clone() for x in states])
    metrics[2].update(states[::-1], states[::-1])
    found = metrics[0].compute()
    agree(found, metrics[1].compute(), 0)
    same(found.value.diagonal(), torch.ones(depth, dtype=F64), 1e-5)
    same(found.with_bias, metrics[2].compute().with_bias.flip(0, 1), 1e-6)


@pytest.mark.parametrize("estimator", ["unbiased", "biased"])
@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_the_null_is_cka_with_the_rows_of_the_target_permuted(estimator, kernel, device):
    data = batches(3)
    metric = CKA(2, 3, estimator=estimator, kernel=kernel, aggregate="mean_of_ratios", permutations=1)
    for sources, targets in data:
        metric.update([x.to(device) for x in sources], [y.to(device) for y in targets])
    home = (torch.arange(12) % 10).argsort(stable=True)  # parts of the documents stand together
    moved = home[permuted_rows(home, 0)]
    first, other = ([x[rows] for x in side] for side, rows in zip(data[0], (home, moved), strict=True))
    null = torch.tensor([[cka(x, y, estimator=estimator, kernel=kernel) for y in other] for x in first])
    found = metric.compute()
    same(found.chance.null, null)
    same(found.chance.calibrated.value, (found.with_bias.cpu() - null) / (1 - null))


def test_permutations_move_whole_documents_away_from_home():
    """Rows of a document depend on each other; of eight documents, most permutations leave one at home."""
    documents = 10 * torch.arange(8).repeat_interleave(3)  # of one part, so that rows stay where they are
    (x,), (y,) = layers(24, 5), layers(24, 4)
    metric = CKA(1, 1, permutations=30)
    metric.update([x], [x + 30 * torch.randn(24, 5, dtype=F64)], documents=documents)
    same_rows = CKA(1, 1, permutations=30)
    same_rows.update([x], [x], documents=documents)
    chance = same_rows.compute().chance
    orders = [permuted_rows(documents, seed) for seed in range(30)]
    away = [float(cka(x, x[order])) for order in orders if (order != torch.arange(24)).all()]
    assert chance.documents == 8
    assert 0 < len(away) < 30, "control"
    assert float(chance.null) == pytest.approx(sum(away) / len(away), abs=1e-10)
    assert float(chance.p) == 1 / 31
    assert float(metric.compute().chance.p) > 1 / 31
    few = CKA(1, 1, permutations=5)
    few.update([x], [x], documents=torch.arange(24) % 7)
    assert few.compute().chance.p.isnan().all()
    with pytest.raises(ValueError, match="documents of shape"):
        metric.update([x], [y], documents=documents[:3])


FINE = torch.randn(5, 2)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (([FINE, torch.full((5, 2), torch.nan)], [FINE] * 3), "source layer 1: a value is not finite"),
        (([FINE] * 2, [FINE, torch.ones(5, 2), FINE]), "target layer 1: all rows are the same"),
        (([FINE] * 2, [torch.randn(6, 2)] * 3), "source layer 0 has 5 and target layer 0 has 6"),
        (([FINE] * 2, [torch.eye(5)[:, :1]] * 3), "target layer 0: no variance but in one row"),
        (([FINE], [FINE] * 3), "source and target have 1 and 3 layers, but 2 and 3 layers were announced"),
        (([FINE] * 2, [FINE] * 3, torch.ones(4, dtype=torch.bool)), r"mask of shape \(4,\)"),
        (
            ([FINE] * 2, [FINE] * 3, torch.ones(5, dtype=torch.long)),
            r"mask holds torch\.int64, which would choose rows",
        ),
    ],
)
def test_a_batch_without_cka_names_its_layer_and_adds_nothing(batch, message):
    metric = gathered(batches(2))
    expected = metric.compute()
    with pytest.raises(ValueError, match=message):
        metric.update(*batch)
    agree(metric.compute(), expected, 0)


def test_cut_sequences_other_options_and_depths_are_refused():
    mask = torch.ones(6, 5, dtype=torch.bool)
    mask[2] = False
    with pytest.raises(ValueError, match="use flatten=mean"):
        CKA(1, 1, flatten="sample").update(*([x] for x in sequences(3, 4)), mask)
    with pytest.raises(ValueError, match="cannot be added"):
        gathered(batches(2)).merge_state(gathered(batches(2), estimator="biased"))
    with pytest.raises(ValueError, match=r"equally deep models, not of \(2, 3\) layers"):
        gathered(batches(2)).compute().distance()


def test_many_rows_in_float64_take_products_of_features(monkeypatch, device):
    x, y = (z.to(device) for z in layers(300, 5, 8, offset=3000))
    tiled = cka(x, y)
    monkeypatch.setattr("thinkalike.measures.gram_statistics.FEWEST_ROWS_FOR_FEATURE_PRODUCTS", 300)
    monkeypatch.setattr("thinkalike.measures.gram_statistics.CPU_TILE", None)
    same(cka(x, y), tiled.cpu(), 1e-12)


POWERS = [2.0**-498, 2.0**-330, 2.0**260, 2.0**498]  # 1e-150 to 1e150


@pytest.mark.parametrize("power", with_slow(POWERS, 2.0**-330, 2.0**260))
@pytest.mark.parametrize(
    "options", [{}, {"estimator": "biased", "aggregate": "mean_of_ratios"}, {"groups": torch.arange(24) % 3}]
)
def test_batches_of_any_size_have_the_numbers_of_others(power, options):
    """A ratio of means is that of the largest batch where others are next to nothing; a mean of ratios is of all."""
    data, more = batches(3, n=24), {**options, "permutations": 3}
    grown = [[[x * power for x in side] for side in batch] for batch in data]
    whole = gathered(data, **more)
    agree(gathered(grown, **more).compute(), whole, 0)
    mixed = gathered([*data[:2], grown[2]], **more).compute().with_bias
    kept = gathered(data[:2] if power < 1 else data[2:], [0, 1] if power < 1 else [2], **more).compute().with_bias
    same(mixed, whole.compute().with_bias if "aggregate" in options else kept, 1e-12)


def grams(n, *widths):
    """Of centred rows."""
    rows = [torch.randn(n, width) for width in widths]
    return [(x - x.mean(0)) @ (x - x.mean(0)).T for x in rows]


def u_statistic(K, L):
    """Mean of K_ij L_ij + K_ij L_qr - 2 K_ij L_iq over all ordered 4-tuples of different rows (Song et al. 2012)."""
    i, j, q, r = torch.tensor(list(itertools.permutations(range(len(K)), 4))).T
    return (K[i, j] * (L[i, j] + L[q, r] - 2 * L[i, q])).mean()


@pytest.mark.parametrize("n", [4, 5, 8, 13])
def test_hsic1_is_the_mean_over_all_quadruples_of_rows(n, device, float64):
    K, L = grams(n, 3, 5)
    found = hsic1(K.to(device), L.to(device)).cpu()
    torch.testing.assert_close(found, u_statistic(K, L), rtol=0, atol=1e-10)
    assert (hsic0(K, L) - found).abs() > 1e-3, "control: the biased one is another number"


def test_hsic0_is_a_trace_of_centred_grams(float64):
    K, L = grams(12, 3, 5)
    K = K + 3 + torch.randn(12)
    H = torch.eye(12) - 1 / 12
    torch.testing.assert_close(hsic0(K, L), (K @ H @ L @ H).trace() / 11**2, rtol=0, atol=1e-10)


@pytest.mark.parametrize("estimator", ["unbiased", "biased"])
@pytest.mark.parametrize("n", [4, 9, 40])
@pytest.mark.parametrize("step", [3, 8])
def test_tiles_of_any_shape_give_every_pair_of_layers(n, step, estimator, device, monkeypatch, float64):
    for name in ("CPU_TILE", "GPU_TILE"):
        monkeypatch.setattr(gram_statistics, name, Tiling(8, 16, step))
    rows = [torch.randn(n, width) + 1 for width in (3, 5, 1)]
    expected = torch.tensor(
        [[(hsic1 if estimator == "unbiased" else hsic0)(x @ x.T, y @ y.T) for y in rows] for x in rows]
    )
    rows = [x.to(device) for x in rows]
    model_pairs = ModelPairs([[0, 1, 2]], [(0, 0)])
    dense = dense_statistics([x @ x.T for x in rows], model_pairs)
    for statistics in (linear_statistics(rows, model_pairs), dense):
        torch.testing.assert_close(all_hsics(statistics, estimator)[0, 0].cpu(), expected, rtol=0, atol=1e-10)


def test_layers_prepared_at_once_are_as_one_by_one():
    measure, layers = CKAMeasure(), [10.0**place * (torch.randn(50, 8) + place) for place in range(-3, 4)]
    names = [f"layer {place}" for place in range(len(layers))]
    at_once = measure.prepare_all(torch.stack(layers), names, in_place=False)
    for one, other in zip(at_once, map(measure.prepare, layers, names), strict=True):
        assert one.name == other.name
        for made, alone in zip(one[1:], other[1:], strict=True):
            assert made.numpy() == pytest.approx(alone.numpy(), rel=1e-5, abs=1e-6)
