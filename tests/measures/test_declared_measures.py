"""Every measure of two sets of features keeps the promises that it declares, and the tester notices broken ones."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

import measure_tester as tester
from measure_tester import PROPERTIES, Measure
from thinkalike.measures import (
    CKA,
    COMPARATORS,
    MLEM,
    DifferentiableMLEM,
    FeatureEncoder,
    Predictor,
    arc_length,
    cka,
    hsic0,
    hsic1,
    jaccard,
    mutual_knn,
    rsa,
    second_order_cosine,
    spearman,
    token_kl,
    weighted_tau,
)
from thinkalike.measures.neighbours import MOST_ROWS
from thinkalike.registry import layer_measures

pytestmark = [
    pytest.mark.filterwarnings("ignore:features .* differ on much the same pairs"),  # of the few rows that are enough
    pytest.mark.filterwarnings("ignore:std.* degrees of freedom"),
]


def gram(x):
    x = x - x.mean(0)
    return x @ x.T


def of_batches(x, y):
    metric = CKA(1, 1)
    metric.update([x], [y])
    return metric.compute().value[0, 0]


def ends(n):
    """How far each of n rows is from the nearer end: the same from either end."""
    places = torch.arange(n)
    return torch.minimum(places, places.flip(0))


def tokens_of(n):
    return ends(n) % (4 if n > 15 else 1)


def given_token(x, y):
    metric = CKA(1, 1, conditional_on="token")
    metric.update([x], [y], groups=tokens_of(len(x)))
    return metric.compute().value[0, 0]


def predicted(x, y):
    """R² on held-out documents, of ten at both ends alike."""
    documents = ends(len(x)) % 10
    return Predictor(x, documents).of(y).shares[0]


def levels(y):
    """A table of features of the stimuli: whether each of the first coordinates is above its median."""
    return (y[:, :4] > y[:, :4].median(0).values).double()


def encoding(x, y, **params):
    return MLEM(alpha=1.0, **params).fit(levels(y), x).score(levels(y), x)


def trainable(x, y, loss):
    features = FeatureEncoder.fit(levels(y.detach())).encode(levels(y.detach()))
    return DifferentiableMLEM(features.levels.shape[1], loss=loss).to(x.dtype).loss(features, x)


def of_rsa(name, **settings):
    return Measure(lambda x, y: rsa([x], [y], **settings)[0, 0], PROPERTIES[name], single=1e-3)


def divergence(x, y):
    torch.manual_seed(1)
    return token_kl(x, nn.Linear(x.shape[1], 11, dtype=torch.float64).to(x.dtype), y).mean()


MEASURES = {
    "cka": Measure(cka, PROPERTIES["cka"]),
    "cka biased": Measure(partial(cka, estimator="biased"), PROPERTIES["cka biased"]),
    "cka rbf": Measure(partial(cka, kernel="rbf"), PROPERTIES["cka rbf"]),
    "cka of batches": Measure(of_batches, PROPERTIES["cka of batches"]),
    "cka given the token": Measure(given_token, PROPERTIES["cka given the token"]),
    "mutual knn given the token": Measure(
        lambda x, y: mutual_knn(x, y, 3, tokens_of(len(x))), PROPERTIES["mutual knn given the token"]
    ),
    "r2": Measure(predicted, PROPERTIES["r2"], tolerance=1e-6, identical_tolerance=1e-6),
    "hsic1": Measure(lambda x, y: hsic1(gram(x), gram(y)), PROPERTIES["hsic1"]),
    "hsic0": Measure(lambda x, y: hsic0(gram(x), gram(y)), PROPERTIES["hsic0"]),
    "arc length": Measure(lambda x, y: arc_length(cka(x, y)[None]), PROPERTIES["arc length"], identical_tolerance=1e-6),
    "rsa": of_rsa("rsa"),
    **{
        f"rsa {distance}": of_rsa(f"rsa {distance}", distance=distance)
        for distance in ("cosine", "correlation", "manhattan", "norm_difference")
    },
    **{f"rsa by {name}": of_rsa(f"rsa by {name}", comparator=name) for name in COMPARATORS[1:]},
    "spearman": Measure(lambda x, y: spearman(x[:, 0], y[:, 0]), PROPERTIES["spearman"], widths=(1, 1)),
    "weighted tau": Measure(lambda x, y: weighted_tau(x.T, y.T)[0, 0], PROPERTIES["weighted tau"], widths=(1, 1)),
    **{
        name: Measure(function, PROPERTIES[name], goes_below_zero=False, single=1e-3, rows=20, noises=(0.01, 0.3))
        for name, function in (("mlem", encoding), ("mlem levels", partial(encoding, difference="levels")))
    },
    **{
        f"mlem loss {loss}": Measure(partial(trainable, loss=loss), PROPERTIES[f"mlem loss {loss}"])
        for loss in ("pearson", "spearman")
    },
    "token kl": Measure(divergence, PROPERTIES["token kl"], widths=(5, 5)),
}

OF_REGISTRY = {entry.kind: tester.declared(entry) for entry in layer_measures()}
OTHERS = [*MEASURES]
MEASURES |= OF_REGISTRY

every = pytest.mark.parametrize("measure", MEASURES.values(), ids=MEASURES)


def test_every_declaration_is_proved():
    assert {*OTHERS} == PROPERTIES.keys()
    assert {*OF_REGISTRY} >= {"procrustes", "jsd"}, "control"
    assert not {*OF_REGISTRY} & PROPERTIES.keys()


@pytest.mark.parametrize("change", tester.CHANGES)
@every
def test_a_measure_has_exactly_its_declared_invariances(measure, change):
    tester.check_invariance(measure, change)


@every
def test_a_measure_keeps_its_range_symmetry_and_precision(measure):
    tester.check_range(measure)
    tester.check_order(measure)
    tester.check_precision(measure)
    tester.check_size(measure)


@pytest.mark.parametrize(
    ("name", "bad"), [(name, bad) for name in MEASURES for bad in sorted(MEASURES[name].properties.refuses)]
)
def test_bad_input_is_refused(name, bad):
    tester.check_refusal(MEASURES[name], bad)


@every
def test_a_measure_has_a_gradient_where_it_declares_one(measure):
    tester.check_gradient(measure)


def fake(function, **changes):
    return Measure(function, replace(PROPERTIES["cka"], **changes))


@pytest.mark.ci_slow
def test_gradcheck_alone_would_pass_a_measure_without_gradient():
    ranked = MEASURES["rsa"]
    assert torch.autograd.gradcheck(ranked, [x.requires_grad_() for x in ranked.draw(8)])
    assert tester.gradient_sides(ranked) == 0
    one_side, none = (lambda x, y: cka(x, y.detach())), (lambda x, y: 0 * cka(x, y))
    for broken in (ranked.function, lambda x, y: cka(x, y).detach(), one_side, none):
        with pytest.raises(AssertionError):
            tester.check_gradient(fake(broken))


LACKING = {
    "orthogonal": lambda x, y: cka(x, y) + (x[:, 0] - x[:, 0].mean()).square().mean() / x.var(0).sum(),
    "isotropic_scaling": lambda x, y: hsic1(gram(x), gram(y)),
    "translation": lambda x, y: rsa([x], [y], "cosine")[0, 0],
    "row_permutation": lambda x, y: cka(x * torch.arange(1, 21)[:, None], y),
}


@pytest.mark.parametrize("change", LACKING)
def test_a_measure_without_a_declared_invariance_fails(change):
    with pytest.raises(AssertionError, match=f"{change} moves the value"):
        tester.check_invariance(fake(LACKING[change]), change)


def test_a_measure_with_an_undeclared_invariance_fails():
    with pytest.raises(AssertionError):
        tester.check_invariance(fake(cka, invariances=frozenset()), "translation")


@pytest.mark.parametrize(
    ("check", "measure"),
    [
        (tester.check_range, fake(lambda x, y: 3 * cka(x, y))),
        (tester.check_range, fake(lambda x, y: cka(x, y).clamp(min=0))),
        (tester.check_order, fake(cka, symmetric=False)),
        (tester.check_order, fake(lambda x, y: cka(x, y) + x[0, 0])),
        (tester.check_order, fake(lambda x, y: 0.9 * cka(x, y))),
        (tester.check_order, fake(cka, higher_is_closer=False)),
        (tester.check_precision, fake(lambda x, y: cka(x, y) + (x.dtype == torch.float32) * 1e-3)),
        (tester.check_size, fake(lambda x, y: (K := gram(x), L := gram(y)) and hsic1(K, L) / (K.norm() * L.norm()))),
    ],
)
def test_a_broken_promise_fails(check, measure):
    with pytest.raises(AssertionError):
        check(measure)


@pytest.mark.parametrize("bad", tester.BAD)
def test_bad_input_that_is_accepted_fails(bad):
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        tester.check_refusal(fake(lambda x, y: torch.tensor(0.5)), bad)


@pytest.mark.parametrize("measure", [mutual_knn, jaccard, second_order_cosine])
def test_neighbours_among_too_many_rows_are_refused_before_hours_of_comparing(measure):
    rows = MOST_ROWS + 1
    states = torch.randn(rows, 2)
    with pytest.raises(ValueError, match=f"^{rows:,} rows are too many to find neighbours .* at most {MOST_ROWS:,}"):
        measure(states, states)


def test_neighbours_within_small_groups_are_found_among_any_number_of_rows():
    rows = MOST_ROWS + 32
    states = torch.randn(rows, 2)
    assert float(mutual_knn(states, states, 3, torch.arange(rows) // 32)) == 1
