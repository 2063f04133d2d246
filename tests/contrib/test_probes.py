"""Probes carried through maps: closed forms, folds, controls, a known rotation; and jobs of what is carried."""

import re

import pytest
import torch

import tiny
from conftest import composed
from thinkalike.contrib.transfer import linear_probes as module
from thinkalike.contrib.transfer.linear_probes import (
    CrossFitted,
    Probe,
    cross_fitted,
    fit_probes,
    strongest_good_penalty,
)
from thinkalike.contrib.transfer.maps import fitted_maps, load_pair
from thinkalike.contrib.transfer.random_maps import random_rotation, turned_at_random
from thinkalike.data.corpus import read_corpus
from thinkalike.errors import ModelError, ThinkalikeError
from thinkalike.instruments import instrument_of
from thinkalike.measures import AffineMap, Moments
from thinkalike.measures.accuracy import balanced_accuracies, balanced_folds
from thinkalike.measures.round_trips import both_directions

D, N = 8, 240
ALPHAS = [1.0, 100.0]


@pytest.fixture
def states():
    """States with three levels in two directions, the labels, and the sentence of each."""
    labels = torch.randint(3, (N,))
    signal = torch.tensor([[2.0, 0], [-1, 2], [-1, -2]])[labels]
    rows = torch.randn(N, D) + torch.cat([signal, torch.zeros(N, D - 2)], 1) + 5
    return rows, labels, torch.arange(N) // 4


def folds_of(labels, groups):
    return balanced_folds(labels, groups, 3, 0)


def test_a_probe_through_a_map_scores_the_mapped_state(float64):
    probe, mapping = Probe(torch.randn(3, D), torch.randn(3)), AffineMap(torch.randn(D, 5), torch.randn(D))
    states = torch.randn(20, 5)
    torch.testing.assert_close(probe.through(mapping).scores(states), probe.scores(mapping(states)))
    assert not torch.allclose(probe.through(mapping).scores(states), probe.scores(states @ mapping.weight.T))


@pytest.mark.parametrize("levels", [2, 3])
@pytest.mark.parametrize("alpha", [1.0, 30.0])
def test_a_probe_is_the_minimum_that_it_promises(states, levels, alpha, float64):
    """The gradient of the stated sum is 0 in all directions, by autograd."""
    rows, labels, _ = states
    kept = labels < levels
    rows, labels = rows[kept].double(), labels[kept]
    (probe,) = fit_probes(rows, labels, levels, [alpha])
    mean, scale = rows.mean(0), rows.var(0, correction=0).mean().sqrt()
    weight = (probe.weight * scale).requires_grad_()
    bias = (probe.bias + probe.weight @ mean).requires_grad_()
    weights = len(labels) / (levels * torch.bincount(labels).double())
    scores = (rows - mean) / scale @ weight.T + bias
    losses = torch.nn.functional.cross_entropy(scores, labels, reduction="none")
    norm = (weight[1] - weight[0]).square().sum() if levels == 2 else weight.square().sum()
    ((weights[labels] * losses).sum() + alpha * norm / 2).backward()
    assert weight.grad.abs().max() < 1e-3
    assert bias.grad.abs().max() < 1e-3
    assert probe.converged


def test_a_level_that_was_never_seen_is_never_answered(states):
    rows, labels, _ = states
    seen = labels != 1
    (probe,) = fit_probes(rows[seen], labels[seen], 3, [1.0])
    assert set(probe.answers(rows).tolist()) == {0, 2}
    carried = probe.through(AffineMap(torch.eye(D), torch.ones(D)))
    assert carried.bias[1] == -torch.inf


def test_a_fit_that_runs_out_of_steps_says_so(states, monkeypatch):
    rows, labels, sentences = states
    assert fit_probes(rows, labels, 3, [1.0])[0].converged
    monkeypatch.setattr(module, "MOST_STEPS", 2)
    assert not fit_probes(rows, labels, 3, [1.0])[0].converged
    assert not cross_fitted(rows, labels, 3, folds_of(labels, sentences), sentences, [1.0], 3, 0).converged


def test_no_probe_judges_what_it_was_fitted_on():
    """Labels that are noise are learnt by heart: the probes of other folds are right by chance."""
    rows, labels = torch.randn(60, 100), torch.arange(60) % 2
    groups = torch.arange(60)
    found = cross_fitted(rows, labels, 2, folds_of(labels, groups), groups, [1e-3], 3, 0)
    assert (found.probes[0].answers(rows)[found.fold_of != 0] == labels[found.fold_of != 0]).all()
    assert 0.25 < found.is_right(rows, labels).float().mean() < 0.75


@pytest.mark.ci_slow
def test_held_out_words_tell_lexical_from_feature_information():
    """Twenty words of two levels: each has a direction of its own, and in one case a level has one, too."""
    words = torch.arange(240) % 20
    labels, lexical = words % 2, torch.randn(20, 40)
    shared = lexical + 8.0 * labels[:20, None] * torch.eye(40)[0]
    accuracy = {}
    for name, of_words in (("shared", shared), ("lexical", lexical)):
        rows = of_words[words] + 0.1 * torch.randn(240, 40)
        for split, groups in (("sentence", torch.arange(240) // 8), ("word", words)):
            found = cross_fitted(rows, labels, 2, folds_of(labels, groups), groups, ALPHAS, 3, 0)
            accuracy[name, split] = float(found.is_right(rows, labels).float().mean())
    assert accuracy["shared", "sentence"] > 0.95
    assert accuracy["shared", "word"] > 0.85
    assert accuracy["lexical", "sentence"] > 0.95
    assert accuracy["lexical", "word"] < 0.75


def test_the_strongest_of_equally_good_penalties_is_taken():
    labels, groups = torch.arange(90) % 2, torch.arange(90)
    clear = torch.randn(90, 4) + 8.0 * labels[:, None]
    assert strongest_good_penalty(clear, labels, 2, groups, [0.1, 10.0, 1000.0], 3, 0) == 1000.0
    wide = torch.cat([20 * torch.randn(90, 4), labels[:, None] + 0.1 * torch.randn(90, 1)], 1)  # a weak direction
    assert strongest_good_penalty(wide, labels, 2, groups, [1e-4, 1e4], 3, 0) == 1e-4


WIDE = 32


@pytest.fixture(scope="module")
def rotated():
    """Features in states of width 32, the same states turned and shifted, and the maps that text fits between them."""
    torch.manual_seed(0)
    turn = random_rotation(WIDE, torch.Generator().manual_seed(3)).float()
    spread = torch.linspace(0.2, 3, WIDE)

    def both(n):
        mine = torch.randn(n, WIDE) * spread + 1
        return mine, mine @ turn.T - 2

    mine, theirs = both(600)
    labels = (mine[:, ::7] @ torch.randn(5, 3)).argmax(1)
    moments = Moments([(0, 0)])
    moments.update(*([each] for each in both(2000)))
    return mine, theirs, labels, both_directions(moments.of((0, 0)))


def fitted(states, labels):
    groups = torch.arange(len(labels)) // 6
    return cross_fitted(states, labels, 3, folds_of(labels, groups), groups, [1.0, 10.0], 3, 0)


def test_a_carried_probe_is_the_native_one_of_a_rotated_target(rotated):
    mine, theirs, labels, maps = rotated
    source, native = fitted(mine, labels), fitted(theirs, labels)
    carried: CrossFitted = source.through(maps.psi)
    for probe, own in zip(carried.probes, native.probes, strict=True):
        assert (probe.scores(theirs) - own.scores(theirs)).abs().max() < 1e-4
    assert native.is_right(theirs, labels).float().mean() > 0.9
    back = native.through(maps.phi)
    assert (back.probes[0].scores(mine) - source.probes[0].scores(mine)).abs().max() < 1e-4


def test_through_a_wrong_rotation_it_is_right_by_chance(rotated):
    mine, theirs, labels, maps = rotated
    source, sentences = fitted(mine, labels), torch.arange(len(labels)) // 6
    generator = torch.Generator().manual_seed(0)
    turned = [turned_at_random(maps.psi, theirs.mean(0), generator) for _ in range(20)]
    right = torch.stack([source.through(each).is_right(theirs, labels) for each in turned]).float().mean(0)
    (found,) = balanced_accuracies(right[None], labels, sentences, int(labels.max()) + 1)
    assert abs(float(found.value) - found.chance) < 0.1
    assert source.through(maps.psi).is_right(theirs, labels).float().mean() > 0.9, "control"


def test_a_random_map_has_the_fitted_maps_spectrum_and_mean(rotated):
    _, theirs, _, maps = rotated
    mean = theirs.mean(0)
    turned = turned_at_random(maps.psi, mean, torch.Generator().manual_seed(0))
    first, second = (torch.linalg.svdvals(each.weight) for each in (turned, maps.psi))
    torch.testing.assert_close(first, second)
    torch.testing.assert_close(turned(mean), maps.psi(mean))
    assert (turned.weight - maps.psi.weight).norm() > maps.psi.weight.norm()
    rotation = random_rotation(5, torch.Generator().manual_seed(0))
    torch.testing.assert_close(rotation @ rotation.T, torch.eye(5, dtype=torch.float64))


SMALL = ["stimuli.sentences=40", "measure.folds=2", "measure.inner_folds=2", "measure.least=5", "measure.alphas=[1.0]"]
PROBES = [*SMALL, "measure.draws=2", "stimuli.features=[Question,PoS]", "layers=[[1,1]]"]
STEERING = ["measure.folds=2", "measure.draws=2", "measure.strengths=[1.0]", "layers=[[1,2]]"]
WIDTH = 80
WORDS = ("ab", "cd", "ef", "gh", "ba", "dc", "fe", "hg")  # as many as an interval needs


@pytest.fixture
def words(checkpoints, tmp_path_factory, text_files, tmp_path):
    """The command line of a small job on two tiny models of one tokenizer."""
    other = tiny.write_checkpoint("gpt2", tmp_path_factory.mktemp("other") / "second", seed=2)
    models = ["model=local", f"model.path={checkpoints['gpt2']}", "model@target=local", f"target.path={other}"]
    data = ["data=text", f"data.files=[{text_files}/*.txt]", "data.evaluation_tokens=2048", "measure.fit_tokens=4096"]
    return [*models, *data, "data.context=32", f"data.cache={tmp_path}/cache", f"store={tmp_path}/results"]


@pytest.fixture
def pairs(tmp_path):
    """Pairs of texts of letters that the tiny tokenizer knows."""
    path = tmp_path / "pairs.csv"
    rows = [f"{word} c,{word}e c,{word},{word}e, a, b" for word in WORDS]
    path.write_text("\n".join(["text,counterpart,word,counterpart_word,up,down", *rows]) + "\n")
    return path


@pytest.mark.ci_slow
@pytest.mark.drawn
def test_a_job_carries_probes_both_ways_beside_controls(cli, words):
    done = cli("analyze.py", "measure=probes", *words, *PROBES, env={"COLUMNS": str(WIDTH)})
    table = done.result.table
    conditions = ["native in source", "native in target", "source to target", "target to source", "refitted"]
    conditions += ["random map", "identity", "untrained target", "source to untrained", "shuffled labels"]
    assert list(dict.fromkeys(table["condition"])) == conditions
    assert list(table.groupby(["feature", "split"]).size()) == [len(conditions)] * 4
    assert (table["source"].iloc[0], table["target"].iloc[0]) == ("gpt2", "second")
    assert table["accuracy"].between(0, 1).all()
    assert (table["low"] <= table["high"]).all()
    assert (table["chance"] * table["levels"] == 1).all()
    shared = table[table["share"].notna()]
    assert set(shared["condition"]) <= {"source to target", "target to source", "refitted", "random map", "identity"}
    assert done.result.arrays["replicates"].shape == (len(table), 10)
    assert 0 <= done.result.tables["maps"]["phi"].iloc[0] < 1
    assert {path.stem for path in done.result.figures} == {"probes"}
    assert max(map(len, done.stdout.splitlines()[:-1])) <= WIDTH


@pytest.mark.slow
@pytest.mark.parametrize("place", [[], ["model.site=attn_out"], ["model.site=z", "model.head=1"]])
def test_a_model_carried_into_itself_keeps_all(place, cli, words):
    alone = [*(word for word in words if "target" not in word), *place]
    table = cli("analyze.py", "measure=probes", *alone, *PROBES, "measure.untrained=false").result.table
    accuracy = table.pivot_table("accuracy", ["feature", "split"], "condition")
    assert (accuracy["source to target"] == accuracy["native in target"]).all()
    assert (accuracy["identity"] == accuracy["native in target"]).all()
    assert "untrained target" not in accuracy


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["stimuli.sentences=1", "stimuli.features=[Question]"], "Question has fewer than two levels"),
        (["layers=[[0,9]]"], "[0,9]"),
        (["model.site=[attn_out,mlp_out]"], "one place in each block"),
    ],
)
def test_what_cannot_be_carried_is_refused_before_loading(more, message):
    config = composed("model=gpt2-mini", "measure=probes", *more, entry="analyze")
    with pytest.raises(ThinkalikeError, match=re.escape(message)):
        instrument_of(config).inputs(config)


def test_models_of_different_tokenizers_are_refused():
    config = composed("measure=probes", "model=gpt2-mini", "model@target=gelu-3l-mini", entry="analyze")
    with pytest.raises(ModelError, match="gpt2-mini and gelu-3l-mini have different tokenizers"):
        load_pair(config)


@pytest.mark.slow
@pytest.mark.drawn
def test_a_job_steers_by_pairs_of_a_table(cli, words, pairs):
    own = ["measure=steering", "measure.contrast=table", f"measure.path={pairs}"]
    done = cli("analyze.py", *own, *words, *STEERING, env={"COLUMNS": str(WIDTH)})
    table = done.result.table
    conditions = ["native", "carried", "carried, native norm", "carried, negated", "random"]
    assert list(table["condition"]) == conditions * 2
    assert list(dict.fromkeys(table["position"])) == ["word", "later"]
    assert table["effect"].between(table["effect_low"], table["effect_high"]).all()
    assert done.result.arrays["effects"].shape == (10, len(WORDS))
    assert {path.stem for path in done.result.figures} == {"steering"}
    assert max(map(len, done.stdout.splitlines()[:-1])) <= WIDTH
    assert "already done" in cli("analyze.py", *own, *words, *STEERING).stderr
    pairs.write_text(pairs.read_text().replace(" a,", " c,"))
    assert "already done" not in cli("analyze.py", *own, *words, *STEERING).stderr


def test_maps_are_least_squares_of_all_states_of_the_text(text_files, tmp_path):
    both = [tiny.frozen(1), tiny.frozen(2)]
    text = ["data=text", f"data.files=[{text_files}/*.txt]", f"data.cache={tmp_path}", "data.evaluation_tokens=1024"]
    corpus = read_corpus(composed(*text).data, both[0].tokenizer, 32, bos=False, fit_tokens=4096)
    (found,) = fitted_maps(*both, [(0, 2)], corpus, 0.0).values()

    def states(rows):
        pairs = zip(both, (0, 2), strict=True)
        return [model.head(rows.tokens.long(), layer).flatten(0, 1).double() for model, layer in pairs]

    x, y = states(corpus.fit)
    ones = torch.cat([x, torch.ones(len(x), 1)], 1)
    solution = torch.linalg.lstsq(ones, y, driver="gelsd").solution
    torch.testing.assert_close(found.phi(x), ones @ solution, atol=1e-3, rtol=0)
    torch.testing.assert_close(found.target_mean, y.mean(0), atol=1e-5, rtol=0)
    a, b = states(corpus.report)
    unexplained = (b - found.phi(a)).square().sum() / (b - b.mean(0)).square().sum()
    assert found.unexplained.phi == pytest.approx(float(unexplained), abs=1e-4)
