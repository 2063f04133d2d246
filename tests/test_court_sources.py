"""Sources of the court: each is what it says it is."""

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.decomposition import PCA

import tiny
from thinkalike.config import ModelConfig, PretrainConfig, TrainerConfig
from thinkalike.court import source, table
from thinkalike.court.judges import RIGHT
from thinkalike.court.source import STEP, Setting, mixed, normals, prefixes
from thinkalike.court.table import entries, other_context
from thinkalike.evaluation.token_means import bigrams
from thinkalike.models.controls import fresh, perturbed, variant
from thinkalike.models.families import EMBED
from thinkalike.models.load import load_model
from thinkalike.training.run import Run, fit

LAYER, TOKENS, CONTEXT = 1, 40, 32
LEAKS = ("next token", "next token, half of the tokens", "next token, half of the variance")


def drawn(rows, seed):
    return torch.randint(TOKENS, (rows, CONTEXT), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    folder = tmp_path_factory.mktemp("court")
    seen = []

    def train(module, name):
        seen.append((name, module))
        fit(module, Run(folder / name, torch.device("cpu"), TrainerConfig()))

    siblings = {"other depth": tiny.frozen(3, n_layers=2), "other seed": tiny.frozen(4)}
    made = Setting(tiny.frozen(0), LAYER, drawn(40, 1), drawn(8, 2), drawn(40, 3), 0, train, siblings)
    made.train.seen = seen
    return made


@pytest.fixture(scope="module")
def sources(setting):
    before = setting.target.fingerprint()
    with pytest.MonkeyPatch.context() as patch:
        small = PretrainConfig(tokens=20 * 512, tokens_per_step=512, lr=1e-4, warmup=2)
        patch.setattr(table, "TRAINED", small)
        patch.setattr(table, "SHORTCUT", small)
        made = {entry.name: entry.made(setting) for entry in entries(setting)}
    assert setting.target.fingerprint() == before
    return made


def states(found, rows):
    return found.residuals(rows, [0])[0]


def flat(found, rows):
    return states(found, rows).flatten(0, 1).double().numpy()


def test_there_are_sources_of_every_kind_under_names_of_their_own(setting, sources):
    listed = entries(setting)
    assert len(sources) == len(listed) >= 30
    assert {entry.kind for entry in listed} == {*RIGHT, "real", "dose"}
    for name, each in sources.items():
        state = states(each, setting.report)
        assert (each.name, state.shape) == (name, (8, CONTEXT, each.d_model))
        assert (state.dtype, state.device, each.n_layers) == (each.dtype, each.device, 1)
        assert state.isfinite().all()
        assert state.flatten(0, 1).std(0).min() > 0


def test_states_do_not_depend_on_what_else_is_in_the_batch(setting, sources):
    for entry in entries(setting):
        if entry.kind not in ("shortcut",) and entry.name != "trained on":  # whose training is not repeated
            again = states(entry.made(setting), setting.report[[5]])
            assert (again - states(sources[entry.name], setting.report)[[5]]).abs().max() < 1e-4, entry.name


@pytest.mark.parametrize("place", [0, 7, CONTEXT - 2])
def test_only_leaks_see_what_comes_later(place, sources, setting):
    rows = setting.report.clone()
    rows[:, place + 1] = (rows[:, place + 1] + 1) % TOKENS
    for name, each in sources.items():
        change = (states(each, rows) - states(each, setting.report)).abs().amax((0, 2))
        assert (change[: place + (name not in LEAKS)] < 1e-4).all(), name
        assert name not in LEAKS or change[place] > 1e-2, name


def test_half_of_the_tokens_leak_or_half_of_the_variance(setting, sources):
    leaking = (states(sources[LEAKS[1]], setting.fit) - setting.own(setting.fit)).abs().amax(-1) > 1e-5
    assert 0.45 < leaking.double().mean() < 0.55
    mixed_states, own = flat(sources[LEAKS[2]], setting.fit), flat(setting.itself, setting.fit)
    shares = [np.corrcoef(a, b)[0, 1] ** 2 for a, b in zip(mixed_states.T, own.T, strict=True)]
    assert np.mean(shares) == pytest.approx(0.5, abs=0.05)
    assert (mixed_states.std(0) / own.std(0)).mean() == pytest.approx(1, abs=0.05)


def through(X, Y):
    """The best affine map from X to Y by numpy, and what it leaves, relative to Y about its mean."""
    design = np.c_[X, np.ones(len(X))]
    found = np.linalg.lstsq(design, Y, rcond=None)[0]
    return found[:-1], np.linalg.norm(Y - design @ found) / np.linalg.norm(Y - Y.mean(0))


@pytest.mark.parametrize(
    ("name", "spread"), [("rotated", 1.0), ("rescaled and permuted", None), ("affine", table.CONDITION)]
)
def test_other_coordinates_lead_back_to_the_target_without_loss(name, spread, setting, sources):
    own, other = flat(setting.itself, setting.fit), flat(sources[name], setting.fit)
    weight, error = through(other, own)
    assert max(error, through(own, other)[1]) < 1e-5
    held_out = flat(sources[name], setting.report) - other.mean(0)
    expected = flat(setting.itself, setting.report) - own.mean(0)
    assert np.abs(held_out @ weight - expected).max() < 1e-4 * np.abs(expected).max()
    singular = np.linalg.svd(weight, compute_uv=False)
    if spread:
        assert singular[0] / singular[-1] == pytest.approx(spread, rel=1e-3)
    else:
        assert 30 < singular[0] / singular[-1] <= table.SCALES * 1.001
        assert (np.abs(weight) > 1e-3 * np.abs(weight).max(0)).sum() == len(weight), "one dimension each"


@pytest.mark.parametrize("name", ["noisy weights", "trained on", "noisy states"])
def test_what_is_as_good_as_the_target_is_near_it_and_not_it(name, setting, sources):
    assert 1e-3 < through(flat(sources[name], setting.fit), flat(setting.itself, setting.fit))[1] < 0.35


def test_noise_on_states_is_a_tenth_of_each_dimensions_spread(setting, sources):
    noise = flat(sources["noisy states"], setting.fit) - flat(setting.itself, setting.fit)
    shares = noise.std(0) / flat(setting.itself, setting.fit).std(0)
    assert shares == pytest.approx(table.STATE_NOISE, rel=0.1)
    distinct = len(prefixes(setting.fit).unique())
    assert len(np.unique(noise[:, :2].round(4), axis=0)) >= distinct - 2 > 1200, "each prefix has a draw of its own"


def test_noise_on_weights_has_its_share_of_every_tensor(setting):
    noisy = perturbed(setting.target, 0.02, 1)
    for (name, own), other in zip(setting.target.module.named_parameters(), noisy.module.parameters(), strict=True):
        if own.numel() > 1000:
            assert float((other - own).std() / own.square().mean().sqrt()) == pytest.approx(0.02, rel=0.1), name


def test_the_top_components_are_those_of_scikit_learn(setting, sources):
    own, part = flat(setting.itself, setting.fit), flat(sources["top components"], setting.fit)
    assert part.shape[1] == setting.itself.d_model // 2
    reference = PCA(part.shape[1]).fit(own).transform(own)
    assert max(through(reference, part)[1], through(part, reference)[1]) < 1e-5
    assert through(part, own)[1] > 0.05


@pytest.mark.parametrize(("name", "layer"), [("layer before", LAYER - 1), ("layer after", LAYER + 1)])
def test_another_layer_is_the_targets(name, layer, setting, sources):
    assert (states(sources[name], setting.report) - setting.target.head(setting.report, layer)).abs().max() < 1e-5


def test_before_the_first_layer_there_is_the_embedding():
    target = tiny.frozen(0)
    first = Setting(target, 0, drawn(2, 1), drawn(2, 2), drawn(2, 3), 0, lambda module, name: None)
    made = {entry.name: entry for entry in entries(first)}
    expected = target.residuals(first.report, [EMBED])[0]
    assert (states(made["layer before"].made(first), first.report) - expected).abs().max() < 1e-6
    assert "real" not in {each.kind for each in made.values()}


def test_a_superset_has_the_targets_states_and_larger_noise(setting, sources):
    found, width = flat(sources["superset"], setting.fit), setting.itself.d_model
    own = flat(setting.itself, setting.fit)
    assert found.shape[1] == 2 * width
    assert np.abs(found[:, :width] - own).max() < 1e-6
    assert found[:, width:].std() > 2 * own.std(0).mean()
    assert through(own, found[:, width:])[1] > 0.95


def test_log_probabilities_are_those_of_the_targets_own_pass(setting, sources):
    answers = setting.target.full(setting.fit).log_softmax(-1).flatten(0, 1).double().numpy()
    assert through(answers, flat(sources["log-probabilities"], setting.fit))[1] < 1e-4


@pytest.mark.parametrize("name", ["token mean", "token code", "token alone"])
def test_equal_tokens_have_equal_states(name, setting, sources):
    found, tokens = flat(sources[name], setting.report), setting.report.flatten()
    for token in tokens.unique():
        assert np.ptp(found[tokens == token], axis=0).max() < 1e-6
    assert len(np.unique(found[:, 0].round(5))) == len(tokens.unique()), "control: tokens differ"


@pytest.mark.parametrize("name", ["bigram mean", "bigram code"])
def test_equal_bigrams_have_equal_states(name, setting, sources):
    rows = setting.report.clone()
    rows[:, :20] = rows[:, [0]]  # other contexts of the pairs from 20 to 21 on
    kept = states(sources[name], rows)[:, 21:] - states(sources[name], setting.report)[:, 21:]
    assert kept.abs().max() < 1e-6
    codes = bigrams(setting.report, setting.itself.vocabulary).flatten()
    found = flat(sources[name], setting.report)
    assert len(np.unique(found[:, 0].round(5))) > len(setting.report.unique())
    for code in codes.unique():
        assert np.ptp(found[codes == code], axis=0).max() < 1e-6


def test_another_context_is_a_state_that_the_target_has_at_the_same_token(setting, sources):
    found, tokens = flat(sources["other context"], setting.report), setting.report.flatten().numpy()
    other, there = flat(setting.itself, setting.other), setting.other.flatten().numpy()
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
    own = flat(setting.itself, setting.other)[setting.other.flatten() == 7]
    spread = own.std(0)
    assert np.abs(found.mean(0) - own.mean(0)).max() < 5 * spread.max() / 1500**0.5
    assert found.std(0) == pytest.approx(spread, rel=0.12)


@pytest.mark.parametrize("share", [0, 20, 40, 60, 80, 100])
def test_a_dose_has_its_share_of_the_targets_own_variance(share, setting, sources):
    found, own, other = (
        flat(each, setting.report) for each in (sources[f"{share} % own"], setting.itself, sources["other context"])
    )
    mean, p = setting.mean.double().numpy(), share / 100
    assert np.abs(found - mean - p**0.5 * (own - mean) - (1 - p) ** 0.5 * (other - mean)).max() < 1e-5


def test_untrained_models_share_no_matrix_with_the_target(setting, checkpoints):
    for target in (setting.target, load_model(ModelConfig(name="gpt2", path=str(checkpoints["gpt2"])))):
        new, again, other = (fresh(target, seed) for seed in (1, 1, 2))
        assert new.fingerprint() == again.fingerprint() != other.fingerprint()
        for (name, own), weight in zip(target.module.named_parameters(), new.module.parameters(), strict=True):
            assert own.dim() == 1 or (own - weight).abs().mean() > 1e-3, name


def test_a_sibling_is_taken_at_the_same_relative_depth(setting, sources):
    for name, depth in {"other depth": 0, "other seed": 1}.items():
        expected = setting.siblings[name].head(setting.report, depth)
        assert (states(sources[name], setting.report) - expected).abs().max() < 1e-5


def test_a_shortcut_was_trained_on_tokens_alone_and_what_was_trained_on_on_rows(setting, sources):
    trained = dict(setting.train.seen)
    assert set(trained) == {"trained on", "token alone"}
    assert trained["token alone"]._batches[0].shape == (40 * (CONTEXT - 1), 2)
    assert (trained["trained on"]._batches[0] == setting.other).all()
    twin = variant(setting.target, trained["token alone"].model, "twin")
    alone = twin.head(setting.report.reshape(-1, 1), LAYER).view(8, CONTEXT, -1)
    assert (states(sources["token alone"], setting.report) - alone).abs().max() < 1e-5


def test_the_generator_is_splitmix64():
    """Its first numbers from the seed 1234567, as published with it."""
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    found = mixed(1234567 + torch.arange(1, 4) * STEP)
    assert [int(number) % 2**64 for number in found] == expected


def test_normal_numbers_are_normal_and_independent():
    found = normals(torch.arange(4000), 33, 0).double()
    assert stats.kstest(found.flatten().numpy(), "norm").pvalue > 0.01
    assert (found.T.corrcoef() - torch.eye(33)).abs().max() < 0.08
    assert (found[:-1] * found[1:]).mean().abs() < 0.01
    assert (normals(torch.arange(4000), 33, 1) - found).abs().mean() > 1
    assert (normals(torch.tensor([[17, 3], [3, 17]]), 33, 0)[1, 1] == found[17].float()).all()


def test_a_prefix_tells_all_tokens_up_to_there_apart():
    rows = drawn(50, 4)
    codes = prefixes(rows)
    assert len(codes.unique()) == len({tuple(row[: n + 1]) for row in rows.tolist() for n in range(CONTEXT)})
    changed = rows + torch.eye(CONTEXT, dtype=rows.dtype)[10]
    assert ((prefixes(changed) == codes) == (torch.arange(CONTEXT) < 10)).all()
    assert (prefixes(rows, 1) != codes).all()


def test_states_are_computed_once_for_each_row():
    asked = []

    def count(rows):
        asked.append(len(rows))
        return rows[..., None].float()

    kept = source.Remembered(count)
    rows = drawn(6, 5)
    assert (kept(rows[[0, 1, 1]])[..., 0] == rows[[0, 1, 1]]).all()
    assert (kept(rows)[..., 0] == rows).all()
    assert asked == [2, 4]
