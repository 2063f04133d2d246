"""The trainable MLEM against the closed form, its gradients, and its soft ranks."""

import numpy as np
import pytest
import scipy.stats
import torch
from torch import nn
from torch.optim import LBFGS

from thinkalike.measures import MLEM, FeatureEncoder
from thinkalike.measures.mlem.differentiable import DifferentiableMLEM, pearson, soft_ranks

LOSSES = ["squared_error", "pearson", "spearman"]


class Loss(nn.Module):
    """The loss as a forward pass, which `functional_call` wants."""

    def __init__(self, model, features):
        super().__init__()
        self.model, self.features = model, features

    def forward(self, states):
        return self.model.loss(self.features, states)


def encoded(n=40, f=4, d=6):
    table = torch.randint(3, (n, f)).double()
    states = torch.randn(n, d)
    for k in range(f):
        states += torch.randn(3, d)[table[:, k].long()] * (f - k) / 2
    return table, FeatureEncoder.fit(table).encode(table), states


def trained(model, features, states, **options):
    """Train on all pairs of stimuli; returns the losses before and after."""
    optimizer = LBFGS(model.parameters(), line_search_fn="strong_wolfe", **options)

    def closure():
        optimizer.zero_grad()
        loss = model.loss(features, states)
        loss.backward()
        return loss

    start = closure().detach()
    optimizer.step(closure)
    return start, closure()


@pytest.mark.parametrize(("weights", "alpha"), [("diagonal", 0.0), ("diagonal", 50.0), ("full", 50.0)])
def test_training_on_squared_error_reaches_the_closed_form(weights, alpha, float64):
    table, features, states = encoded()
    exact = MLEM(weights=weights, alpha=alpha, scale="none").fit(table, states)
    features, pairs = exact.encoder_.encode(table), torch.triu_indices(40, 40, 1)
    model = DifferentiableMLEM(4, weights, alpha=alpha)
    start, end = trained(model, features, states, max_iter=3000, tolerance_grad=1e-11)
    assert end < start / 2
    predicted = model(features.differences(pairs)).detach()
    torch.testing.assert_close(predicted, exact.predict(table), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(model.intercept.detach(), exact.intercept_, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(model.weights.detach(), exact.weights_, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("weights", ["diagonal", "full"])
def test_gradients_match_finite_differences(loss, weights, float64):
    table, _, states = encoded(7, f=3, d=2)
    features = FeatureEncoder.fit(table).encode(table)
    whole = Loss(DifferentiableMLEM(3, weights, loss, alpha=0.3, strength=0.3), features)

    def value(root, intercept, rows):
        return torch.func.functional_call(whole, {"model.root": root, "model.intercept": intercept}, (rows,))

    root = torch.rand_like(whole.model.root) + 0.1
    start = [each.requires_grad_() for each in (root, torch.tensor(0.5), states)]
    assert torch.autograd.gradcheck(value, start)
    gradients = torch.autograd.grad(value(*start), start)
    assert all(gradient.abs().max() > 0 for gradient in (gradients[0], gradients[2]))


def test_mini_batches_of_pairs_make_up_the_whole(float64):
    _, features, states = encoded()
    model, pairs = DifferentiableMLEM(4), torch.triu_indices(40, 40, 1)
    assert torch.equal(model.loss(features, states, pairs), model.loss(features, states))
    batches = pairs[:, torch.randperm(780)].split(130, 1)
    parts = torch.stack([model.loss(features, states, batch) for batch in batches])
    torch.testing.assert_close(parts.mean(), model.loss(features, states))
    few = torch.tensor([3, 1, 8, 20])
    inner = torch.triu_indices(4, 4, 1)
    torch.testing.assert_close(model.loss(features.take(few), states[few]), model.loss(features, states, few[inner]))


def test_soft_ranks_and_their_correlation_tend_to_spearmans(float64):
    x = torch.randn(300).exp().round(decimals=2)
    y = x.log() + torch.randn(300)
    np.testing.assert_allclose(soft_ranks(x, 1e-6), scipy.stats.rankdata(x), atol=1e-9)
    spearman = scipy.stats.spearmanr(x, y).statistic
    errors = [abs(float(pearson(soft_ranks(x, s), soft_ranks(y, s))) - spearman) for s in (1.0, 0.1, 1 / 300, 1e-6)]
    assert errors == sorted(errors, reverse=True)
    assert errors[2] < 2e-3
    assert errors[3] < 1e-9


def test_wrong_requests_are_refused(float64):
    _, features, states = encoded()
    for key, options in (("weights", {"weights": "dense"}), ("loss", {"loss": "kendall"})):
        with pytest.raises(ValueError, match=key):
            DifferentiableMLEM(3, **options)
    with pytest.raises(ValueError, match="9 states of 40 stimuli"):
        DifferentiableMLEM(4).loss(features, states[:9])


@pytest.mark.parametrize("loss", LOSSES)
def test_states_may_be_of_another_precision_than_the_weights(loss, float64):
    _, features, states = encoded()
    model = DifferentiableMLEM(4, loss=loss).float()
    value = model.loss(features, states.double().requires_grad_())
    assert value.isfinite()
    torch.testing.assert_close(value, model.loss(features, states.float()).to(value.dtype), rtol=1e-3, atol=1e-4)
