"""Probing tasks keep sentences and words together; balanced accuracies are those of scikit-learn, with intervals."""

import numpy as np
import pytest
import torch
from scipy.stats import t as student
from sklearn.metrics import balanced_accuracy_score

from thinkalike.data.stimuli import controlled_stimuli
from thinkalike.data.tables import read_table
from thinkalike.errors import DataError
from thinkalike.instruments.probing_tasks import tasks_of_features_and_splits
from thinkalike.measures import jackknife
from thinkalike.measures.accuracy import balanced_accuracies, balanced_folds

N = 240


@pytest.fixture
def labelled():
    """The labels of stimuli, of three levels, and the sentence of each."""
    return torch.randint(3, (N,)), torch.arange(N) // 4


def test_no_group_is_in_two_folds_and_levels_are_shared_out(labelled):
    labels, sentences = labelled
    fold_of = balanced_folds(labels, sentences, 3, 0)
    assert all(len(fold_of[sentences == number].unique()) == 1 for number in sentences.unique())
    counts = torch.stack([torch.bincount(labels[fold_of == fold], minlength=3) for fold in range(3)])
    assert (counts - counts.float().mean(0)).abs().max() < 8
    with pytest.raises(ValueError, match="3 folds of 2 groups"):
        balanced_folds(labels, sentences % 2, 3, 0)


def accuracies(right, labels, sentences):
    return balanced_accuracies(right, labels, sentences, int(labels.max()) + 1)


def test_balanced_accuracy_is_that_of_scikit_learn(labelled):
    labels, sentences = labelled
    answers = torch.stack([labels, torch.randint(3, (N,)), torch.zeros(N, dtype=torch.long)])
    found = accuracies(answers == labels, labels, sentences)
    expected = [balanced_accuracy_score(labels, each) for each in answers]
    assert np.allclose([float(each.value) for each in found], expected)
    assert float(found[2].value) == pytest.approx(found[2].chance) == pytest.approx(1 / 3)
    low, high = found[1].interval().low, found[1].interval().high
    assert 0.2 < low < found[1].value < high < 0.5


def test_an_accuracy_is_judged_by_leaving_out_sentences(labelled):
    """With eight sentences each is a part of its own."""
    labels, _ = labelled
    sentences, right = torch.arange(N) % 8, torch.rand(N) < 0.6
    found = accuracies(right[None], labels, sentences)[0]
    expected = [
        balanced_accuracy_score(labels[kept], torch.where(right, labels, (labels + 1) % 3)[kept])
        for kept in (sentences != left for left in range(8))
    ]
    assert np.allclose(found.replicates, expected)
    for ours, theirs in zip(found.interval(), jackknife(found.value, torch.tensor(expected)), strict=True):
        torch.testing.assert_close(ours, theirs)
    few = accuracies(right[None], labels, torch.arange(N) % 7)[0]
    assert few.interval().low.isnan()
    assert few.share_of(few).value == 1
    assert few.share_of(few).low.isnan()


def test_unequal_sentences_have_the_t_of_what_they_are_worth():
    lengths = torch.tensor([1, 2, 2, 3, 4, 6, 9, 14, 20, 59])
    found = accuracies(torch.rand(1, 120) < 0.7, torch.arange(120) % 2, torch.arange(10).repeat_interleave(lengths))[0]
    plain, worth = jackknife(found.value, found.replicates), 120**2 / int((lengths**2).sum())
    wider = float((found.interval().high - found.value) / (plain.high - found.value))
    assert wider == pytest.approx(student.ppf(0.975, worth - 1) / student.ppf(0.975, 9))
    assert wider > 1.2


def test_a_share_is_paired_and_nan_of_what_is_chance(labelled):
    labels, sentences = labelled
    good = torch.rand(N) < 0.9
    worse = good & (torch.rand(N) < 0.9)
    chance = labels == 0
    first, second, third = accuracies(torch.stack([good, worse, chance]), labels, sentences)
    whole, above = second.share_of(first), second.share_of(first, above=first.chance)
    assert whole.value == second.value / first.value
    assert above.value == (second.value - 1 / 3) / (first.value - 1 / 3)
    assert whole.high <= 1
    assert [*map(float, first.share_of(first))] == [1, 1, 1]
    assert second.share_of(third, above=third.chance).value.isnan()


def test_levels_that_are_rare_or_of_one_word_are_left_out():
    stimuli = controlled_stimuli(60)
    tasks = {
        (task.feature, task.split): task
        for task in tasks_of_features_and_splits(stimuli, ("sentence", "word"), 3, 10, 0)
    }
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
        tasks = list(tasks_of_features_and_splits(stimuli_of(tmp_path, feature, words), ("sentence", "word"), 3, 5, 0))
        assert [task.split for task in tasks] == ["sentence"]
        assert f"feature is not judged on held-out words: {reason}" in caplog.text
    with pytest.raises(DataError, match=r"feature: 50 folds of 40 groups: .*; lower folds"):
        list(tasks_of_features_and_splits(stimuli_of(tmp_path, "xy"), ("sentence",), 50, 5, 0))
