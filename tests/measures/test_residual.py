"""What is left of states beyond word, position and local mixing: planted context is found, and mixing alone is not."""

import pytest
import torch
from sklearn.linear_model import RidgeCV

from thinkalike.measures.folds import numbered_by_part
from thinkalike.measures.residual import POSITION_FUNCTIONS, ResidualStates, functions_of_position, principal_components
from thinkalike.measures.ridge import fold_of
from thinkalike.models.load import load_model
from thinkalike.states.mixing import BAGS, CONTROLS, POSITION, TokenMixing, bag

DOCUMENTS, LENGTH, VOCABULARY, WIDTH = 40, 50, 30, 16


@pytest.fixture(scope="module")
def text():
    """Tokens of documents, a random embedding of each, and what is known of each row."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, VOCABULARY, (DOCUMENTS, LENGTH), generator=generator)
    embedding = torch.randn(VOCABULARY, WIDTH, generator=generator)
    owners = torch.arange(DOCUMENTS).repeat_interleave(LENGTH)
    positions = torch.arange(LENGTH).repeat(DOCUMENTS)
    return tokens, embedding[tokens], numbered_by_part(owners), positions


def shared(text, first, second, mixing):
    """R² of two (b, t, d) states, the mean of both ways, with or without these bags among the covariates."""
    tokens, _, documents, positions = text
    residual = ResidualStates(tokens.flatten(), documents, [positions], [rows.flatten(0, 1) for rows in mixing])
    x, y = (residual.predictor(states.flatten(0, 1)) for states in (first, second))
    return float((x.of(y.states).shares[0] + y.of(x.states).shares[0]) / 2)


def test_bags_share_nothing_beyond_bags_and_planted_context_stays(text):
    """A bag of another decay than the covariates', and states that share something that tokens do not decide."""
    _, embedded, *_ = text
    generator = torch.Generator().manual_seed(1)
    mixing = [bag(embedded, decay) for decay in BAGS.values()]
    context = 0.5 * torch.randn(DOCUMENTS, LENGTH, WIDTH, generator=generator)
    own_bag = bag(embedded, 0.5)
    model = own_bag + context
    decoy = bag(embedded, 0.6) @ torch.randn(WIDTH, WIDTH, generator=generator)
    sibling = context @ torch.randn(WIDTH, WIDTH, generator=generator)
    assert shared(text, model, decoy, []) > 0.3, "control: without covariates a bag looks like a model"
    assert shared(text, model, decoy, mixing) < 0.03
    assert shared(text, model, sibling, mixing) > 0.9 * shared(text, context, sibling, mixing)


def test_word_and_each_position_are_taken_out(text):
    tokens, _, documents, positions = text
    generator = torch.Generator().manual_seed(2)
    rates = (1 + torch.rand(DOCUMENTS, generator=generator)).repeat_interleave(LENGTH)
    other_positions = (positions * rates).long()
    of_word = torch.randn(VOCABULARY, WIDTH, generator=generator)[tokens.flatten()]
    of_position = torch.randn(LENGTH, WIDTH, generator=generator)[positions]
    residual = ResidualStates(tokens.flatten(), documents, [positions])
    assert residual.of(of_word + of_position).abs().max() < 1e-5
    slow = (other_positions.float()[:, None] / 30 * torch.randn(1, WIDTH, generator=generator)).sin()
    first, second = (slow + 0.1 * torch.randn(len(slow), WIDTH, generator=generator) for _ in range(2))
    known = ResidualStates(tokens.flatten(), documents, [positions, other_positions])
    x, y = residual.predictor(first), residual.predictor(second)
    assert float(x.of(y.states).shares[0]) > 0.2, "control: a function of the other model's positions is shared"
    x, y = known.predictor(first), known.predictor(second)
    assert float(x.of(y.states).shares[0]) < 0.05


def test_rows_are_residuals_of_cross_fitted_ridge(text):
    """Fold by fold, what is left is what scikit-learn's ridge with the same penalties leaves of the other folds."""
    tokens, embedded, documents, positions = text
    generator = torch.Generator().manual_seed(3)
    states = (bag(embedded, 0.5).flatten(0, 1) + 0.5 * torch.randn(len(documents), WIDTH, generator=generator)).double()
    plain = ResidualStates(tokens.flatten(), documents, [positions])
    residual = ResidualStates(tokens.flatten(), documents, [positions], [bag(embedded, None).flatten(0, 1)])
    covariates = principal_components(plain.of(bag(embedded, None).flatten(0, 1)))
    apart = plain.of(states)
    found = residual.of(states)
    folds = fold_of(plain.documents)
    left = torch.zeros_like(apart)
    for fold in range(5):
        inside = folds == fold
        model = RidgeCV(alphas=[1e-3, 1e-1, 1, 10, 100, 1000]).fit(covariates[~inside], apart[~inside])
        left[inside] = apart[inside] - torch.from_numpy(model.predict(covariates[inside]))
    scale = float((left * found).sum() / found.square().sum())
    assert float((left - scale * found).norm() / left.norm()) < 0.05


def test_mixing_reads_no_later_token_and_no_block():
    model = load_model("gelu-3l-mini")
    mixing = TokenMixing(model)
    tokens = torch.randint(0, 900, (2, 12), generator=torch.Generator().manual_seed(0))
    layers = [POSITION, *BAGS, *CONTROLS]
    states = mixing.residuals(tokens, layers)
    changed = tokens.clone()
    changed[:, 7:] += 1
    for layer, before, after in zip(layers, states, mixing.residuals(changed, layers), strict=True):
        assert torch.allclose(before[:, :7], after[:, :7], atol=1e-5), layer
        assert layer == POSITION or not torch.allclose(before[:, 7:], after[:, 7:], atol=1e-3)
    assert states[0][0, :, 0].tolist() == list(range(12))
    for name, decay in (("bag .5", 0.5), ("bag .9", 0.9)):
        states_of_bag = states[layers.index(name)]
        last_embedding = states_of_bag[:, 5] - decay * states_of_bag[:, 4]
        alone = mixing.residuals(tokens[:, 5:6], [name])[0][:, 0]
        assert torch.allclose(last_embedding, alone, atol=1e-4)


def test_functions_of_positions_are_as_many_as_a_forecast_counts():
    assert functions_of_position(torch.arange(50)).shape == (50, POSITION_FUNCTIONS)
