"""Likeness given the token: the definitions by other code, planted shares, and what the token alone must not bring."""

import numpy as np
import pytest
import torch

from neighbours_of_sklearn import by_sklearn
from thinkalike.measures import (
    CKA,
    LayerMeans,
    MutualKNN,
    ResidualStates,
    RowGroups,
    cka,
    gram_statistics,
    hsic0,
    hsic1,
    mutual_knn,
)
from thinkalike.measures.permutations import permuted_within
from thinkalike.measures.ridge import both_ways

F64 = torch.float64
N, VOCABULARY = 400, 30


def chance_share(groups, k):
    """The mean share of neighbours of features with nothing in common: Σ_g n_g k / (n_g - 1) / Σ_g n_g."""
    return sum(count * size * k / (size - 1) for count, size in groups.counts_and_sizes) / len(groups.order)


def drawn(n=N, vocabulary=VOCABULARY):
    """Tokens of which some are rare and one is a third of all."""
    return (torch.rand(n) ** 2 * vocabulary).long() * (torch.rand(n) > 0.3)


def alike(tokens, shared, width=12):
    """Two sides: codes of the token of great variance, and contexts of which a share is the same but for a turn."""
    context = torch.randn(len(tokens), width, dtype=F64)
    turn = torch.linalg.qr(torch.randn(width, width, dtype=F64)).Q
    sides = []
    for mixed in (context, shared**0.5 * context @ turn + (1 - shared) ** 0.5 * torch.randn_like(context)):
        codes = 3 * torch.randn(VOCABULARY + 1, width, dtype=F64)
        sides.append(mixed + codes[tokens])
    return sides


def given(x, y, tokens, **options):
    metric = CKA(1, 1, conditional_on="token", **options)
    metric.update([x], [y], groups=tokens)
    return metric.compute()


def value(result):
    return float(result.with_bias[0, 0])


def test_groups_are_the_rows_of_each_token_that_has_enough():
    tokens = torch.tensor([5, 2, 5, 9, 2, 5, 7, 7, 2, 7])
    groups = RowGroups.of(tokens, 3)
    assert groups.counts_and_sizes == [(3, 3)]
    blocks = next(groups.split_by_size(tokens[groups.order]))
    assert sorted(blocks[:, 0].tolist()) == [2, 5, 7]
    assert (blocks == blocks[:, :1]).all()
    assert sorted(groups.order.tolist()) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    with pytest.raises(ValueError, match="no group or token has 4 of the 10 rows, so nothing can be compared"):
        RowGroups.of(tokens, 4)


def test_documents_are_permuted_alike_within_all_groups():
    tokens = torch.arange(60) % 3
    documents = torch.arange(60) // 6  # each token twice in each document
    groups = RowGroups.of(tokens, 2)
    kept, owners = tokens[groups.order], documents[groups.order]
    order = permuted_within(owners, groups, 3)
    assert torch.equal(kept[order], kept)
    assert sorted(order.tolist()) == list(range(60))
    moved = owners[order].view(3, 20)
    assert torch.equal(moved, moved[:1].expand(3, 20)), "the same document comes in the place of another for all tokens"
    assert (order != torch.arange(60)).float().mean() > 0.5
    assert not torch.equal(order, permuted_within(owners, groups, 4))


def test_states_less_token_and_position_means_are_residuals():
    tokens, positions = drawn(), torch.arange(N) % 8
    by_both = 9 * torch.randn(VOCABULARY + 1, 5)[tokens] + 9 * torch.randn(8, 5)[positions]
    x, groups = by_both + torch.randn(N, 5), RowGroups.of(tokens, 4)
    found = groups.without_means(x, positions)
    design = np.concatenate([np.eye(VOCABULARY + 1)[tokens], np.eye(8)[positions]], 1)[groups.order]
    rows = x[groups.order].double().numpy()
    rows -= design @ np.linalg.lstsq(design, rows, rcond=None)[0]
    np.testing.assert_allclose(found.numpy(), rows, atol=1e-10)
    assert (groups.without_means(by_both, positions) == 0).all(), "what both decide is nothing"
    assert groups.without_means(by_both).abs().max() > 1, "the position is left of it without positions"
    decided = torch.randn(VOCABULARY + 1, 5)[tokens] * 1000
    assert (groups.without_means(decided) == 0).all(), "rounding is no variance"


def by_grams(x, y, tokens, hsic=hsic1):
    """From explicit Gram matrices of each token's rows, in float64."""
    sums = np.zeros(3)
    for token in tokens.unique():
        rows = tokens == token
        if (n := int(rows.sum())) >= 4:
            K, L = ((z - z.mean(0)) @ (z - z.mean(0)).T for z in (x[rows].double(), y[rows].double()))
            sums += n * np.array([hsic(K, L), hsic(K, K), hsic(L, L)])
    return sums[0] / np.sqrt(sums[1] * sums[2])


@pytest.mark.parametrize(("large", "at_once"), [(512, 2**17), (20, 300)])
def test_cka_given_the_token_is_that_of_explicit_grams(large, at_once, monkeypatch, device):
    monkeypatch.setattr(gram_statistics, "MOST_ROWS_OF_SMALL_GROUP", large)
    monkeypatch.setattr(gram_statistics, "ENTRIES_OF_SMALL_GROUPS", at_once)
    tokens = drawn()
    x, y = alike(tokens, 0.4)
    expected = by_grams(x, y, tokens)
    found = given(x.to(device), y.to(device), tokens.to(device))
    assert value(found) == pytest.approx(expected, abs=1e-10)
    assert value(given(x, y, tokens, estimator="biased")) == pytest.approx(by_grams(x, y, tokens, hsic0), abs=1e-10)
    assert abs(float(cka(x, y)) - expected) > 0.05, "control: the token is most of the plain one"


def test_all_layers_of_both_sides_come_from_one_pass():
    tokens = drawn()
    layers = [*alike(tokens, 0.4), *alike(tokens, 0.8)]
    metric = CKA(2, 3, conditional_on="token", permutations=1)
    metric.update(layers[:2], [*layers[2:], layers[0]], groups=tokens)
    result = metric.compute()
    for i, x in enumerate(layers[:2]):
        for j, y in enumerate([*layers[2:], layers[0]]):
            assert float(result.with_bias[i, j]) == pytest.approx(by_grams(x, y, tokens), abs=1e-10)
    assert float(result.with_bias[0, 2]) == pytest.approx(1)
    within = by_grams(layers[0], layers[1], tokens)
    assert float(result.within_source.with_bias[0, 1]) == pytest.approx(within, abs=1e-10)


def test_the_ratio_is_taken_after_batches_and_groups():
    parts = []
    for _ in range(3):
        tokens = drawn(150)
        parts.append((*alike(tokens, 0.4), tokens))
    one, other = CKA(1, 1, conditional_on="token"), CKA(1, 1, conditional_on="token")
    for number in range(3):
        x, y, tokens = parts[number]
        one.update([x], [y], groups=tokens, number=number)
        order = torch.randperm(150)
        x, y, tokens = parts[2 - number]
        other.update([x[order]], [y[order]], groups=tokens[order], number=2 - number)
    joined = [torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])]
    apart = torch.cat([part[2] + 100 * number for number, part in enumerate(parts)])
    assert value(one.compute()) == pytest.approx(by_grams(*joined, apart), abs=1e-10)
    assert value(other.compute()) == pytest.approx(value(one.compute()), abs=1e-12)
    used = sum(len(RowGroups.of(part[2], 4).order) for part in parts) / 450
    assert one.compute().rows_used == pytest.approx(used)
    state = one.state_dict()
    again = CKA(1, 1, conditional_on="token")
    again.load_state_dict(state)
    assert value(again.compute()) == value(one.compute())


@pytest.mark.ci_slow
def test_float32_keeps_digits_of_hard_states():
    tokens = drawn(2000)
    x, y = alike(tokens, 0.4)
    x[7, 1], x[7, 2] = 3000, -1500
    x[:, :3] += 3000
    single = given(x.float(), y.float(), tokens)
    assert value(single) == pytest.approx(value(given(x.float().double(), y.float().double(), tokens)), abs=2e-6)


DOSES = (0, 0.25, 0.5, 0.75, 1)


@pytest.mark.ci_slow
def test_conditional_measures_read_doses_and_plain_ones_tokens():
    found = {name: [] for name in ("cka", "knn", "r2", "plain")}
    for dose in DOSES:
        tokens = drawn(2000)
        x, y = alike(tokens, dose)
        found["cka"].append(value(given(x, y, tokens)))
        found["knn"].append(float(mutual_knn(x, y, 5, tokens)))
        ways = within(x, y, tokens)
        assert abs(ways[0] - ways[1]) < 0.05
        found["r2"].append(ways[0])
        found["plain"].append(float(cka(x, y)))
    for name in ("cka", "knn", "r2"):
        assert all(before < after for before, after in zip(found[name], found[name][1:], strict=False)), name
    assert found["cka"] == pytest.approx(DOSES, abs=0.05)
    assert found["r2"] == pytest.approx(DOSES, abs=0.05)
    assert found["plain"][0] > 0.2, "control: plain CKA of what has nothing in common but the token"


def test_the_null_shuffles_within_tokens():
    """Without groups the null is 0 for any states; shuffled within groups, tokens would still agree."""
    tokens = drawn(1500)
    x, y = alike(tokens, 0.9)
    result = given(x, y, tokens, permutations=1)
    groups = RowGroups.of(tokens, 4)
    order = groups.order[permuted_within(groups.order, groups, 0)]
    expected = by_grams(x[groups.order], y[order], tokens[groups.order])
    assert float(result.chance.null[0, 0]) == pytest.approx(expected, abs=1e-10)
    assert abs(expected) < 0.05
    assert float(result.chance.calibrated.value[0, 0]) == pytest.approx((value(result) - expected) / (1 - expected))


TOKENS = torch.arange(N) % 7
FINE = torch.randn(N, 4)


@pytest.mark.parametrize(
    ("x", "y", "tokens", "message"),
    [
        (FINE, FINE, None, "groups, the token of each state, come with conditional_on=token alone"),
        (FINE, FINE, TOKENS[:3], r"groups of shape \(3,\) do not fit states of shape \(400, 4\)"),
        (FINE, FINE, torch.arange(N), "no group or token has 4 of the 400 rows"),
        (FINE, FINE[TOKENS], TOKENS, "target layer 0: the rows of each token are the same"),
        (FINE.masked_fill(TOKENS[:, None] == 0, torch.nan), FINE, TOKENS, "source layer 0: a value is not finite"),
        (torch.eye(N)[:, :1], FINE, TOKENS, "source layer 0: given the token there is no variance but in single rows"),
    ],
)
def test_what_cannot_be_grouped_is_refused(x, y, tokens, message):
    metric = CKA(1, 1, conditional_on="token")
    with pytest.raises(ValueError, match=message):
        metric.update([x], [y], groups=tokens)
    assert not metric.update_called


def test_options_that_do_not_go_with_groups_are_refused():
    named = "conditional_on=token compares single tokens by kernel=linear: leave out {}, or conditional_on$"
    for options, contrary in (
        ({"kernel": "rbf"}, "kernel=rbf"),
        ({"flatten": "mean"}, "flatten=mean"),
        ({"kernel": "rbf", "flatten": "sample", "estimator": "biased"}, "kernel=rbf and flatten=sample"),
    ):
        with pytest.raises(ValueError, match=named.format(contrary)):
            CKA(1, 1, conditional_on="token", **options)
    with pytest.raises(ValueError, match="come with conditional_on=token alone, and this is none"):
        CKA(1, 1).update([FINE], [FINE], groups=TOKENS)
    with pytest.raises(ValueError, match="all rows, or all of each token"):
        mutual_knn(FINE[TOKENS], FINE, 3, TOKENS)


@pytest.mark.ci_slow
@pytest.mark.parametrize("at_once", [2**24, 200])
def test_neighbours_given_the_token_are_those_of_scikit_learn(at_once, monkeypatch):
    monkeypatch.setattr("thinkalike.measures.neighbours.MEMBERSHIPS_AT_ONCE", at_once)
    metric, expected = LayerMeans(1, 2, MutualKNN(3), conditional_on="token"), []
    for number in range(3):
        tokens = drawn()
        x, y = alike(tokens, 0.7)
        expected.append(by_sklearn(x, y, tokens, 3))
        assert float(mutual_knn(x, y, 3, tokens)) == pytest.approx(expected[-1][0], abs=1e-12)
        metric.update([x.view(20, 20, -1)], [y.view(20, 20, -1), x.view(20, 20, -1)], None, number, tokens.view(20, 20))
    share, _, rows = (np.mean(column) for column in zip(*expected, strict=True))
    result = metric.compute()
    assert float(result.value[0, 0]) == pytest.approx(share, abs=1e-12)
    assert chance_share(RowGroups.of(tokens, 5), 3) == pytest.approx(expected[-1][1], abs=1e-12)
    assert result.rows_used == pytest.approx(rows / N)
    assert float(result.value[0, 1]) == 1
    assert result.low[0, 0] < result.value[0, 0] < result.high[0, 0]
    again = LayerMeans(1, 2, MutualKNN(3), conditional_on="token")
    again.load_state_dict(metric.state_dict())
    assert torch.equal(again.compute().high, result.high)


@pytest.mark.ci_slow
def test_the_null_of_neighbours_given_the_token_is_chance():
    tokens = drawn()
    metric = LayerMeans(1, 1, MutualKNN(3), 100, conditional_on="token")
    metric.update(*([each] for each in alike(tokens, 0.0)), groups=tokens)
    null = float(metric.compute().chance.null)
    assert null == pytest.approx(chance_share(RowGroups.of(tokens, 5), 3), abs=0.015)
    assert null > 0.1, "control: chance is not nothing"


def within(x, y, tokens):
    """R² beyond the token, both ways; each row is of one of forty documents, and has the position 0."""
    rows = torch.arange(len(x))
    residual = ResidualStates(tokens, rows % 40, [torch.zeros_like(rows)])
    return both_ways(residual.predictor(x), residual.predictor(y))[:, 0].tolist()


def test_an_error_names_the_token_of_the_batch_and_not_the_compared_row():
    states = torch.randn(6, 10, 4)
    states[2, 3] = 0
    mask = torch.ones(6, 10, dtype=torch.bool)
    mask[0] = False
    metric = LayerMeans(1, 1, MutualKNN(3))
    for kept, documents in ((None, None), (mask, torch.arange(60).view(6, 10) // 7)):
        with pytest.raises(ValueError, match="source layer 0: row 23 is zero"):
            metric.update([states], [torch.randn(6, 10, 3)], kept, documents=documents)
