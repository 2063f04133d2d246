"""Sources of the court: each is what it says it is."""

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.decomposition import PCA

import tiny
from thinkalike.config import ModelConfig, TrainerConfig
from thinkalike.contrib.court.bags_and_shifts import token_vectors
from thinkalike.contrib.court.catalogue import source_recipes
from thinkalike.contrib.court.changed_weights import reverted, with_noisy_weights
from thinkalike.contrib.court.invertible_maps import CONDITION, SCALE_RATIO
from thinkalike.contrib.court.materials import Materials
from thinkalike.contrib.court.random_codes import normals_by_code, prefix_codes
from thinkalike.contrib.court.token_means import NGRAM_CODES, TrigramMeans, other_context
from thinkalike.measures.splitmix import SPLITMIX_STEP, splitmix
from thinkalike.models.load import load_model
from thinkalike.models.variants import untrained_like, untrained_with_embedding, variant
from thinkalike.training.run import TrainingRun
from thinkalike.training.trainer import fit

LAYER, TOKENS, CONTEXT = 1, 40, 32
LEAKS = ("next token", "next token, half of the tokens", "next token, half of the variance")
WITH_NEXT = {
    "own and a tenth of the next token": 0.1,
    "own and three tenths of the next token": 0.3,
    "own and a tenth of the next token's code": 0.1,
}
NOISE = {"noise of 2 %": 0.02, "noisy states": 0.1, "noise of 30 %": 0.3}
TRAINED = ("trained on", "tuned", "token alone")
KINDS = {
    *("same", "near", "distorted", "scaled", "part", "layer", "superset", "mixture", "wrong tokens", "answers"),
    *("token", "n-gram", "position", "bag", "delay", "leak", "untrained", "shortcut", "real", "dose"),
}


def drawn(rows, seed):
    return torch.randint(TOKENS, (rows, CONTEXT), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    folder = tmp_path_factory.mktemp("court")
    seen = []

    def train(module, data, name):
        module.steps = data.steps = min(module.steps, 20)
        data.tokens_per_step = 512
        seen.append((name, (module, data)))
        fit(module, data, TrainingRun(folder / name, torch.device("cpu"), TrainerConfig()))

    siblings = {"other depth": tiny.frozen(3, n_layers=2), "other seed": tiny.frozen(4)}
    report = drawn(8, 2)
    made = Materials(
        tiny.frozen(0), LAYER, drawn(40, 1), report, torch.zeros_like(report), drawn(40, 3), 0, train, siblings
    )
    made.train.seen = seen
    return made


@pytest.fixture(scope="module")
def sources(setting):
    before = setting.target.fingerprint()
    made = {entry.name: entry.make_source(setting) for entry in source_recipes(setting)}
    assert setting.target.fingerprint() == before
    return made


def states(found, rows):
    return found.residuals(rows, [0])[0]


def flat(found, rows):
    return states(found, rows).flatten(0, 1).double().numpy()


@pytest.mark.ci_slow
def test_sources_of_every_kind_have_distinct_names(setting, sources):
    listed = source_recipes(setting)
    assert len(sources) == len(listed) >= 60
    assert {entry.kind for entry in listed} == KINDS
    for name, each in sources.items():
        state = states(each, setting.evaluation_rows)
        assert (each.name, state.shape) == (name, (8, CONTEXT, each.d_model))
        assert (state.dtype, state.device, each.n_layers) == (each.dtype, each.device, 1)
        assert state.isfinite().all()
        assert state.flatten(0, 1).std(0).min() > 0


@pytest.mark.ci_slow
def test_states_do_not_depend_on_what_else_is_in_the_batch(setting, sources):
    for entry in source_recipes(setting):
        if entry.name not in TRAINED:  # which is not repeated
            again = states(entry.make_source(setting), setting.evaluation_rows[[5]])
            assert (again - states(sources[entry.name], setting.evaluation_rows)[[5]]).abs().max() < 1e-4, entry.name


@pytest.mark.ci_slow
@pytest.mark.parametrize("place", [0, 7, CONTEXT - 2])
def test_only_leaks_see_what_comes_later(place, sources, setting):
    rows = setting.evaluation_rows.clone()
    rows[:, place + 1] = (rows[:, place + 1] + 1) % TOKENS
    leaks = {entry.name for entry in source_recipes(setting) if entry.kind == "leak"}
    for name, each in sources.items():
        change = (states(each, rows) - states(each, setting.evaluation_rows)).abs().amax((0, 2))
        assert (change[: place + (name not in leaks)] < 1e-4).all(), name
        assert name not in leaks or change[place] > 1e-2, name


def test_half_of_the_tokens_leak_or_half_of_the_variance(setting, sources):
    leaking = (states(sources[LEAKS[1]], setting.fit_rows) - setting.target_states(setting.fit_rows)).abs().amax(
        -1
    ) > 1e-5
    assert 0.45 < leaking.double().mean() < 0.55
    mixed_states, own = flat(sources[LEAKS[2]], setting.fit_rows), flat(setting.target_source, setting.fit_rows)
    shares = [np.corrcoef(a, b)[0, 1] ** 2 for a, b in zip(mixed_states.T, own.T, strict=True)]
    assert np.mean(shares) == pytest.approx(0.5, abs=0.05)
    assert (mixed_states.std(0) / own.std(0)).mean() == pytest.approx(1, abs=0.05)


def through(X, Y):
    """The best affine map from X to Y by numpy, and what it leaves, relative to Y about its mean."""
    design = np.c_[X, np.ones(len(X))]
    found = np.linalg.lstsq(design, Y, rcond=None)[0]
    return found[:-1], np.linalg.norm(Y - design @ found) / np.linalg.norm(Y - Y.mean(0))


@pytest.mark.parametrize(
    ("name", "spread"),
    [
        ("rotated", 1.0),
        ("rescaled and permuted", None),
        ("affine", CONDITION),
        ("affine, condition 1000", 1000),
    ],
)
def test_other_coordinates_lead_back_to_the_target_without_loss(name, spread, setting, sources):
    own, other = flat(setting.target_source, setting.fit_rows), flat(sources[name], setting.fit_rows)
    weight, error = through(other, own)
    assert max(error, through(own, other)[1]) < 1e-5
    held_out = flat(sources[name], setting.evaluation_rows) - other.mean(0)
    expected = flat(setting.target_source, setting.evaluation_rows) - own.mean(0)
    assert np.abs(held_out @ weight - expected).max() < 1e-4 * np.abs(expected).max()
    singular = np.linalg.svd(weight, compute_uv=False)
    if spread:
        assert singular[0] / singular[-1] == pytest.approx(spread, rel=1e-3)
    else:
        assert 30 < singular[0] / singular[-1] <= SCALE_RATIO * 1.001
        assert (np.abs(weight) > 1e-3 * np.abs(weight).max(0)).sum() == len(weight), "one dimension each"


def test_whitened_states_are_principal_components_of_variance_1(setting, sources):
    own, found = flat(setting.target_source, setting.fit_rows), flat(sources["whitened"], setting.fit_rows)
    assert np.abs(np.cov(found.T) - np.eye(own.shape[1])).max() < 1e-3
    assert max(through(found, own)[1], through(own, found)[1]) < 1e-4


def test_what_is_near_the_target_is_not_it(setting, sources):
    for name in (entry.name for entry in source_recipes(setting) if entry.kind == "near"):
        assert (
            1e-3
            < through(flat(sources[name], setting.fit_rows), flat(setting.target_source, setting.fit_rows))[1]
            < 0.35
        ), name


@pytest.mark.parametrize(("name", "share"), NOISE.items())
def test_noise_on_states_is_a_share_of_each_dimensions_spread(name, share, setting, sources):
    noise = flat(sources[name], setting.fit_rows) - flat(setting.target_source, setting.fit_rows)
    assert noise.std(0) / flat(setting.target_source, setting.fit_rows).std(0) == pytest.approx(share, rel=0.1)
    distinct = len(prefix_codes(setting.fit_rows).unique())
    assert len(np.unique(noise[:, :2].round(4), axis=0)) >= distinct - 2 > 1200, "each prefix has a draw of its own"


@pytest.mark.parametrize("bits", [2, 3, 6])
def test_rounded_states_have_ordered_levels(bits, setting, sources):
    own, found = flat(setting.target_source, setting.fit_rows), flat(sources[f"{bits} bits"], setting.fit_rows)
    for dimension in range(own.shape[1]):
        assert 0.9 * 2**bits < len(np.unique(found[:, dimension])) <= 2**bits
        assert (np.diff(found[own[:, dimension].argsort(), dimension]) >= 0).all()
    low, high = np.quantile(own, 0.01, axis=0, method="lower"), np.quantile(own, 0.99, axis=0, method="higher")
    expected = np.clip((own - low) / (high - low), 0, 1) * (2**bits - 1)
    assert np.abs(found - expected).max() < 0.5001


@pytest.mark.parametrize(
    ("name", "function"), [("tanh", np.tanh), ("power 1.5", lambda x: np.sign(x) * np.abs(x) ** 1.5)]
)
def test_distortions_act_on_each_dimension_at_its_scale(name, function, setting, sources):
    own, found = flat(setting.target_source, setting.fit_rows), flat(sources[name], setting.fit_rows)
    assert np.abs(found - function((own - own.mean(0)) / own.std(0, ddof=1))).max() < 1e-4


def test_noise_on_weights_has_its_share_of_every_tensor(setting):
    noisy = with_noisy_weights(setting.target, 0.02, 1)
    for (name, own), other in zip(setting.target.module.named_parameters(), noisy.module.parameters(), strict=True):
        if own.numel() > 1000:
            assert float((other - own).std() / own.square().mean().sqrt()) == pytest.approx(0.02, rel=0.1), name


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [
        ("top components", 0, 16),
        ("top 9/16 of the components", 0, 18),
        ("top 3/4 of the components", 0, 24),
        ("all but the top tenth", 3, 32),
    ],
)
def test_components_are_those_of_scikit_learn(name, first, last, setting, sources):
    own, part = flat(setting.target_source, setting.fit_rows), flat(sources[name], setting.fit_rows)
    reference = PCA(setting.width).fit(own).transform(own)[:, first:last]
    assert np.abs(np.abs(part) - np.abs(reference)).max() < 1e-3
    assert through(part, own)[1] > 0.05


def test_the_small_direction_decides_more_than_other_small_ones(setting, sources):
    """It is found on other documents, and compared on the report with random directions made in the same way."""
    own, found = (
        flat(setting.target_source, setting.fit_rows),
        flat(sources["without a small direction"], setting.fit_rows),
    )
    removed = own - found
    assert np.linalg.matrix_rank(removed - removed.mean(0), tol=1e-3 * np.abs(removed).max()) == 1
    assert 0 < removed.var(0).sum() < 0.01 * own.var(0).sum()
    assert through(found, removed)[1] > 0.999, "nothing that stays tells what was removed"
    reference = PCA().fit(own)
    small = reference.explained_variance_ratio_ < 0.01
    axes, scales = reference.components_[small], np.sqrt(reference.explained_variance_[small])[:, None]
    answers = setting.target.tail(setting.target_states(setting.evaluation_rows), LAYER).log_softmax(-1)

    def kl(state):
        changed = setting.target.tail(state, LAYER).log_softmax(-1)
        return float((answers.exp() * (answers - changed)).sum(-1).mean())

    others = []
    for direction in np.random.default_rng(0).normal(size=(20, len(axes))):
        unit = direction / np.linalg.norm(direction)
        along = torch.tensor(np.outer(unit @ (axes / scales), unit @ (axes * scales)), dtype=torch.float32)
        others.append(
            kl(
                setting.target_states(setting.evaluation_rows)
                - (setting.target_states(setting.evaluation_rows) - setting.mean) @ along
            )
        )
    assert kl(states(sources["without a small direction"], setting.evaluation_rows)) > 2 * np.mean(others)


@pytest.mark.parametrize(("name", "layer"), [("layer before", 0), ("layer after", 2), ("two layers after", 3)])
def test_another_layer_is_the_targets(name, layer, setting, sources):
    assert (
        states(sources[name], setting.evaluation_rows) - setting.target.head(setting.evaluation_rows, layer)
    ).abs().max() < 1e-5


def test_a_superset_has_the_targets_states_and_larger_noise(setting, sources):
    found, width = flat(sources["superset"], setting.fit_rows), setting.width
    own = flat(setting.target_source, setting.fit_rows)
    assert found.shape[1] == 2 * width
    assert np.abs(found[:, :width] - own).max() < 1e-6
    assert found[:, width:].std() > 2 * own.std(0).mean()
    assert through(own, found[:, width:])[1] > 0.95


def test_a_mixture_has_half_of_both_and_a_superset_all_of_both(setting, sources):
    own, width = flat(setting.target_source, setting.fit_rows), setting.width
    half, both = (flat(sources[name], setting.fit_rows) for name in ("half own, half stranger", "beside a stranger"))
    assert (half.shape[1], both.shape[1]) == (width, 2 * width)
    assert through(both, own)[1] < 1e-5 < 0.1 < through(half, own)[1]
    mine, strange = half[:, : width // 2], half[:, width // 2 :]
    assert through(own, mine)[1] < 1e-5 < 0.1 < through(own, strange)[1]
    assert both[:, width:].var(0).sum() == pytest.approx(own.var(0).sum(), rel=1e-3)


def test_log_probabilities_are_those_of_the_targets_own_pass(setting, sources):
    answers = setting.target.full(setting.fit_rows).log_softmax(-1).flatten(0, 1).double().numpy()
    assert through(answers, flat(sources["log-probabilities"], setting.fit_rows))[1] < 1e-4


@pytest.mark.parametrize("name", ["token mean", "token code", "token alone"])
def test_equal_tokens_have_equal_states(name, setting, sources):
    found, tokens = flat(sources[name], setting.evaluation_rows), setting.evaluation_rows.flatten()
    for token in tokens.unique():
        assert np.ptp(found[tokens == token], axis=0).max() < 1e-6
    assert len(np.unique(found[:, 0].round(5))) == len(tokens.unique()), "control: tokens differ"


@pytest.mark.parametrize("what", ["mean", "code"])
@pytest.mark.parametrize(("name", "count"), [("bigram", 2), ("trigram", 3)])
def test_equal_ngrams_have_equal_states(name, count, what, setting, sources):
    rows, source = setting.evaluation_rows.clone(), sources[f"{name} {what}"]
    rows[:, :20] = rows[:, [0]]  # other contexts of the n-grams that begin from 20 on
    kept = (states(source, rows) - states(source, setting.evaluation_rows)).abs().amax((0, 2))
    assert kept[19 + count :].max() < 1e-6
    assert what == "mean" or kept[18 + count] > 1e-2, "control: the one before has a token of its own"
    codes = NGRAM_CODES[name](setting.evaluation_rows, setting.target.vocabulary).flatten()
    found = flat(source, setting.evaluation_rows)
    assert len(np.unique(found[:, 0].round(5))) > len(setting.evaluation_rows.unique())
    for code in codes.unique():
        assert np.ptp(found[codes == code], axis=0).max() < 1e-6


def test_a_trigram_has_its_own_mean_or_else_that_of_its_bigram():
    fitted, asked = torch.tensor([[3, 1, 2, 5, 1, 2, 6, 1, 2]]), torch.tensor([[3, 1, 2, 7, 1, 2]])
    found = TrigramMeans(_Places(), [0], fitted, asked).residuals(asked, [0])[0]
    assert found[0, :, 0].tolist() == [0, 1, 2, 4, 4, 5], "three trigrams, the mean of all, a token, a bigram"


class _Places:
    """Its state is the place."""

    name = "places"
    identity = 0
    tokenizer = None
    ids_fingerprint = ""
    revision = ""
    bos_each_row = False
    context = 64
    vocabulary = 10
    d_model = 1
    n_layers = 1
    layers = (0,)
    device = torch.device("cpu")
    dtype = torch.float32

    def unused(self, *_):
        raise AssertionError("means of tokens need states alone")

    sites_at = width = sampled_vocabulary = embedded = encoded = unused
    parameters = check_context = fingerprint = describe = unused

    def residuals(self, rows, layers, mask=None):
        return [torch.arange(rows.shape[1]).expand(rows.shape)[..., None].float()] * len(layers)


def test_a_position_mean_is_the_same_whatever_the_tokens_are(setting, sources):
    found = states(sources["position mean"], setting.evaluation_rows)
    expected = flat(setting.target_source, setting.other_rows).reshape(-1, CONTEXT, setting.width).mean(0)
    assert np.abs(found.numpy() - expected).max() < 1e-5
    assert np.ptp(expected, axis=0).min() > 1e-2, "control: places differ"


def test_token_and_position_means_are_added_in_turn(setting, sources):
    own, tokens = flat(setting.target_source, setting.other_rows), setting.other_rows.flatten().numpy()
    mean = np.stack([own[tokens == token].mean(0) for token in range(TOKENS)])
    left = (own - mean[tokens]).reshape(-1, CONTEXT, own.shape[1])
    expected = mean[setting.evaluation_rows.numpy()] + left.mean(0)
    clean, noisy = (
        states(sources[name], setting.evaluation_rows).numpy()
        for name in ("token and position means", "token and position means, noisy")
    )
    assert np.abs(clean - expected).max() < 1e-4
    assert (noisy - clean).std((0, 1)) == pytest.approx((left - left.mean(0)).std((0, 1)), rel=0.2)


@pytest.mark.parametrize("last", [4, 8, 32])
def test_a_bag_is_a_weighted_sum_of_the_last_token_vectors(last, setting, sources):
    vectors = token_vectors(setting, "embedding").double().numpy()
    seen = vectors[setting.fit_rows.flatten()]
    assert np.abs(seen.mean(0)).max() < 1e-4
    assert seen.std(0) == pytest.approx(1, abs=1e-3)
    rows, place = setting.evaluation_rows[:1], CONTEXT - 1
    found = states(sources[f"bag of the last {last}"], rows)[0, place].double().numpy()
    weights = np.exp(-2 * np.arange(min(last, CONTEXT)) / last)
    total = (weights / np.linalg.norm(weights)) @ vectors[rows[0].flip(0)[: len(weights)]]
    turn = setting.orthogonal_for("bag").double().numpy()
    assert np.abs(found - vectors[rows[0, place]] - total @ turn).max() < 1e-4
    changed = rows.clone()
    changed[0, 3] = (changed[0, 3] + 1) % TOKENS
    apart = (states(sources[f"bag of the last {last}"], changed) - states(sources[f"bag of the last {last}"], rows))[0]
    assert ((apart.abs().amax(1) > 1e-3) == torch.tensor([3 <= place < 3 + last for place in range(CONTEXT)])).all()


def test_a_bag_of_all_tokens_does_not_know_their_order(setting, sources):
    rows = setting.evaluation_rows.clone()
    rows[:, :10] = rows[:, :10].flip(1)
    for name, known in {"bag of all": False, "bag of the last 32": True}.items():
        apart = (states(sources[name], rows) - states(sources[name], setting.evaluation_rows))[:, 10:].abs().max()
        assert (apart > 1e-2) == known, name


@pytest.mark.parametrize(("name", "steps"), [("state of the last token", -1), ("state of the next token", 1)])
def test_a_shifted_state_is_the_targets_at_another_place(name, steps, setting, sources):
    found, own = states(sources[name], setting.evaluation_rows), setting.target_states(setting.evaluation_rows)
    assert (found.roll(steps, 1) - own)[:, 1:-1].abs().max() == 0
    end = 0 if steps < 0 else -1
    assert (found[:, end] - setting.mean).abs().max() == 0


@pytest.mark.parametrize(("name", "share"), WITH_NEXT.items())
def test_the_next_token_is_added_at_a_share_of_the_spread(name, share, setting, sources):
    added = states(sources[name], setting.fit_rows) - setting.target_states(setting.fit_rows)
    assert (added[:, -1].abs().max(), added[:, :-1].flatten(0, 1).std(0) / setting.standard_deviations) == (
        0,
        pytest.approx(torch.full((setting.width,), share), rel=0.05),
    )
    following = setting.fit_rows[:, 1:].flatten()
    for token in following.unique()[:5]:
        assert np.ptp(added[:, :-1].flatten(0, 1)[following == token].numpy(), axis=0).max() < 1e-4


def test_departures_from_token_means_are_kept_shrunk_or_moved(setting, sources):
    own, tokens = flat(setting.target_source, setting.other_rows), setting.other_rows.flatten().numpy()
    less, tenth, moved = (
        flat(sources[name], setting.other_rows)
        for name in ("less the token mean", "a tenth of the departure from the token mean", "other tokens' means")
    )
    mean = np.stack([own[tokens == token].mean(0) for token in range(TOKENS)])
    assert np.abs(less - (own - mean[tokens])).max() < 1e-4
    assert np.abs(tenth - (mean[tokens] + 0.1 * less)).max() < 1e-4
    found = np.stack([moved[tokens == token].mean(0) for token in range(TOKENS)])
    nearest = np.abs(found[:, None] - mean).max(-1).argmin(1)
    assert np.abs(found - mean[nearest]).max() < 1e-4
    assert sorted(nearest) == list(range(TOKENS))
    assert (nearest != np.arange(TOKENS)).all()
    assert np.abs(moved - mean[nearest[tokens]] - less).max() < 1e-4


def test_another_context_is_a_target_state_of_the_same_token(setting, sources):
    found, tokens = flat(sources["other context"], setting.evaluation_rows), setting.evaluation_rows.flatten().numpy()
    other, there = flat(setting.target_source, setting.other_rows), setting.other_rows.flatten().numpy()
    for token, state in zip(tokens, found, strict=True):
        assert np.abs(other[there == token] - state).max(1).min() < 1e-6
    assert len(np.unique(found[tokens == tokens[0]][:, 0].round(6))) > 1, "control: not always the same one"


def test_a_token_that_no_other_document_has_gets_the_mean_of_all(setting):
    rows = torch.full((1, CONTEXT), TOKENS + 5)
    assert (other_context(setting)(rows) - setting.mean).abs().max() == 0


def test_a_gaussian_has_mean_and_variance_of_the_token(setting, sources):
    rows = drawn(1500, 9)[:, :3]
    rows[:, -1] = 7
    found = states(sources["Gaussian given the token"], rows)[:, -1].double().numpy()
    own = flat(setting.target_source, setting.other_rows)[setting.other_rows.flatten() == 7]
    spread = own.std(0)
    assert np.abs(found.mean(0) - own.mean(0)).max() < 5 * spread.max() / 1500**0.5
    assert found.std(0) == pytest.approx(spread, rel=0.12)


@pytest.mark.parametrize("share", [0, 20, 40, 60, 80, 100])
def test_a_dose_has_its_share_of_the_targets_own_variance(share, setting, sources):
    found, own, other = (
        flat(each, setting.evaluation_rows)
        for each in (sources[f"{share} % own"], setting.target_source, sources["other context"])
    )
    mean, p = setting.mean.double().numpy(), share / 100
    assert np.abs(found - mean - p**0.5 * (own - mean) - (1 - p) ** 0.5 * (other - mean)).max() < 1e-5


def test_untrained_models_share_no_matrix_with_the_target(setting, checkpoints):
    for target in (setting.target, load_model(ModelConfig(name="gpt2", path=str(checkpoints["gpt2"])))):
        new, again, other = (untrained_like(target, seed) for seed in (1, 1, 2))
        assert new.fingerprint() == again.fingerprint() != other.fingerprint()
        for (name, own), weight in zip(target.module.named_parameters(), new.module.parameters(), strict=True):
            assert own.dim() == 1 or (own - weight).abs().mean() > 1e-3, name


def test_weights_are_partly_untrained_or_all_but_the_embedding(setting):
    target, new = setting.target, untrained_like(setting.target, 1)
    own, mixed_up = untrained_with_embedding(target, 1), reverted(target, 0.1, 1)
    same = [name for name, weight in own.module.named_parameters() if weight.equal(target.module.get_parameter(name))]
    assert [name for name in same if target.module.get_parameter(name).dim() > 1] == ["tok_embed.weight"]
    for name, weight in mixed_up.module.named_parameters():
        expected = 0.9 * target.module.get_parameter(name) + 0.1 * new.module.get_parameter(name)
        assert (weight - expected).abs().max() < 1e-6, name


def test_a_sibling_is_taken_at_the_same_relative_depth(setting, sources):
    for name, depth in {"other depth": 0, "other seed": 1}.items():
        expected = setting.siblings[name].head(setting.evaluation_rows, depth)
        assert (states(sources[name], setting.evaluation_rows) - expected).abs().max() < 1e-5


def test_only_the_shortcut_was_trained_on_tokens_alone(setting, sources):
    trained = dict(setting.train.seen)
    assert set(trained) == set(TRAINED)
    module, data = trained["token alone"]
    assert data.rows.shape == (40 * (CONTEXT - 1), 2)
    assert all((trained[name][1].rows == setting.other_rows).all() for name in TRAINED[:2])
    alone = (
        variant(setting.target, module.model, "twin")
        .head(setting.evaluation_rows.reshape(-1, 1), LAYER)
        .view(8, CONTEXT, -1)
    )
    assert (states(sources["token alone"], setting.evaluation_rows) - alone).abs().max() < 1e-5


def test_the_generator_is_splitmix64():
    """Its first numbers from the seed 1234567, as published with it."""
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    found = splitmix(1234567 + torch.arange(1, 4) * SPLITMIX_STEP)
    assert [int(number) % 2**64 for number in found] == expected


def test_normal_numbers_are_normal_and_independent():
    found = normals_by_code(torch.arange(4000), 33, 0).double()
    assert stats.kstest(found.flatten().numpy(), "norm").pvalue > 0.01
    assert (found.T.corrcoef() - torch.eye(33)).abs().max() < 0.08
    assert (found[:-1] * found[1:]).mean().abs() < 0.01
    assert (normals_by_code(torch.arange(4000), 33, 1) - found).abs().mean() > 1
    assert (normals_by_code(torch.tensor([[17, 3], [3, 17]]), 33, 0)[1, 1] == found[17].float()).all()


def test_a_prefix_tells_all_tokens_up_to_there_apart():
    rows = drawn(50, 4)
    codes = prefix_codes(rows)
    assert len(codes.unique()) == len({tuple(row[: n + 1]) for row in rows.tolist() for n in range(CONTEXT)})
    changed = rows + torch.eye(CONTEXT, dtype=rows.dtype)[10]
    assert ((prefix_codes(changed) == codes) == (torch.arange(CONTEXT) < 10)).all()
    assert (prefix_codes(rows, 1) != codes).all()
