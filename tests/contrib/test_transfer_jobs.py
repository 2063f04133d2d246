"""measure=probes, measure=steering and the experiments on them: what the command leaves, and refusals."""

import re

import pytest
import torch

import tiny
from conftest import composed
from thinkalike.contrib.transfer.maps import fitted_maps, models_and_pairs
from thinkalike.contrib.transfer.probes import tasks_of
from thinkalike.data.corpus import read_corpus
from thinkalike.data.stimuli import controlled_stimuli
from thinkalike.data.tables import read_table
from thinkalike.errors import DataError, ModelError, ThinkalikeError
from thinkalike.instruments import instrument_of

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
    data = ["data=text", f"data.files=[{text_files}/*.txt]", "data.report_tokens=2048", "measure.fit_tokens=4096"]
    return [*models, *data, "data.context=32", f"data.cache={tmp_path}/cache", f"store={tmp_path}/results"]


@pytest.fixture
def pairs(tmp_path):
    """Pairs of texts of letters that the tiny tokenizer knows."""
    path = tmp_path / "pairs.csv"
    rows = [f"{word} c,{word}e c,{word},{word}e, a, b" for word in WORDS]
    path.write_text("\n".join(["text,counterpart,word,counterpart_word,up,down", *rows]) + "\n")
    return path


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
def test_a_model_carried_into_itself_keeps_all(cli, words):
    alone = [word for word in words if "target" not in word]
    table = cli("analyze.py", "measure=probes", *alone, *PROBES, "measure.untrained=false").result.table
    accuracy = table.pivot_table("accuracy", ["feature", "split"], "condition")
    assert (accuracy["source to target"] == accuracy["native in target"]).all()
    assert (accuracy["identity"] == accuracy["native in target"]).all()
    assert "untrained target" not in accuracy


def test_levels_that_are_rare_or_of_one_word_are_left_out():
    stimuli = controlled_stimuli(60)
    tasks = {(task.feature, task.split): task for task in tasks_of(stimuli, ("sentence", "word"), 3, 10, 0)}
    lengths = stimuli.features["Word length"].value_counts()
    assert len(tasks["Word length", "sentence"].levels) == int((lengths >= 10).sum())
    of_sentences, of_words = tasks["PoS", "sentence"], tasks["PoS", "word"]
    assert set(of_words.levels) <= set(of_sentences.levels)
    for task in (of_sentences, of_words):
        named = [task.levels[label] for label in task.labels.tolist()]
        assert named == list(stimuli.features["PoS"][task.rows.numpy()])
        for fold in range(3):
            learnt = task.labels[task.fold_of != fold].unique()
            assert len(learnt) == len(task.levels)
            assert not set(task.groups[task.fold_of == fold].tolist()) & set(task.groups[task.fold_of != fold].tolist())
    position = tasks["Word position", "sentence"]
    assert position.levels[:2] == ["0", "1"]


def stimuli_of(tmp_path, feature, words=40):
    rows = [f"a{n} b{n % words},b{n % words},{feature[n % len(feature)]}" for n in range(40)]
    (tmp_path / "words.csv").write_text("\n".join(["text,word,feature", *rows]) + "\n")
    return read_table(tmp_path / "words.csv")


def test_few_words_skip_a_split_and_few_sentences_are_an_error(tmp_path, caplog):
    for feature, words, reason in (("xy", 2, "3 folds of 2 groups"), ("xxxy", 4, "each level has one alone")):
        tasks = list(tasks_of(stimuli_of(tmp_path, feature, words), ("sentence", "word"), 3, 5, 0))
        assert [task.split for task in tasks] == ["sentence"]
        assert f"feature is not judged on held-out words: {reason}" in caplog.text
    with pytest.raises(DataError, match=r"feature: 50 folds of 40 groups: .*; lower measure.folds"):
        list(tasks_of(stimuli_of(tmp_path, "xy"), ("sentence",), 50, 5, 0))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["stimuli.sentences=1", "stimuli.features=[Question]"], "Question has fewer than two levels"),
        (["layers=[[0,9]]"], "[0,9]"),
    ],
)
def test_what_cannot_be_carried_is_refused_before_loading(more, message):
    config = composed("model=gpt2-mini", "measure=probes", *more, entry="analyze")
    with pytest.raises(ThinkalikeError, match=re.escape(message)):
        instrument_of(config).inputs(config)


def test_models_of_different_tokenizers_are_refused():
    config = composed("measure=probes", "model=gpt2-mini", "model@target=gelu-3l-mini", entry="analyze")
    with pytest.raises(ModelError, match="gpt2-mini and gelu-3l-mini have different tokenizers"):
        models_and_pairs(config)


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
    text = ["data=text", f"data.files=[{text_files}/*.txt]", f"data.cache={tmp_path}", "data.report_tokens=1024"]
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
