"""Classifiers: cut anywhere they are the model that was loaded, and their classes are those that are stated."""

import json
import math
from itertools import permutations

import pytest
import torch
from sklearn.metrics import accuracy_score, log_loss

import tiny
from classifiers import THREE, local
from classifiers import random_pairs as pairs
from thinkalike.contrib.populations.class_losses import check_labels, class_losses
from thinkalike.contrib.populations.finetuning import new_classifier
from thinkalike.errors import ModelError
from thinkalike.models.families import CLASSIFIER, EMBED
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.load import load_model
from thinkalike.models.parts import randomised

TWO = ["entailment", "non-entailment"]
CUTS = [EMBED, *range(tiny.LAYERS)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.write_classifier(tmp_path_factory.mktemp("classifier") / "c")


@pytest.fixture(scope="module")
def model(folder):
    return load_model(local(folder, THREE))


def reference(folder, dtype=torch.float32):
    import transformers

    return transformers.AutoModelForSequenceClassification.from_pretrained(folder, dtype=dtype).eval()


@pytest.mark.parametrize("cut", CUTS)
def test_tail_of_head_is_the_full_pass_of_padded_pairs(model, folder, cut):
    tokens, mask, types = pairs()
    joined = model.tail(model.head(tokens, cut, mask, types), cut, mask)
    torch.testing.assert_close(joined, model.full(tokens, mask, types), atol=1e-5, rtol=0)
    with torch.no_grad():
        expected = reference(folder)(tokens, attention_mask=mask, token_type_ids=types).logits
    torch.testing.assert_close(joined, expected, atol=1e-5, rtol=0)


def test_mask_and_types_matter_in_every_part_that_takes_them(model):
    tokens, mask, types = pairs()
    state, full = model.head(tokens, 1, mask, types), model.full(tokens, mask, types)
    others = model.full(tokens, None, types), model.full(tokens, mask), model.tail(state, 1)
    heads = model.head(tokens, 1, None, types), model.head(tokens, 1, mask)
    for other in (*others, *(model.tail(head, 1, mask) for head in heads)):
        assert (other - full).abs().max() > 1e-3


def test_what_padding_holds_moves_no_logit(model):
    tokens, mask, types = pairs()
    other = torch.where(mask.bool(), tokens, 7)
    torch.testing.assert_close(model.full(other, mask, types), model.full(tokens, mask, types), atol=1e-5, rtol=0)
    assert (model.full(other) - model.full(tokens)).abs().max() > 1e-3


def test_a_tail_that_forgets_the_mask_is_found_at_load(monkeypatch, folder):
    right = FrozenModel.advance
    monkeypatch.setattr(FrozenModel, "advance", lambda self, h, start, stop, mask: right(self, h, start, stop))
    with pytest.raises(ModelError, match="cannot be cut at its blocks"):
        load_model(local(folder, THREE))


@pytest.mark.parametrize(
    ("named", "stated", "expected"),
    [
        (3, THREE, THREE),
        (THREE, None, THREE),
        (["ENTAILMENT", "not_entailment"], None, TWO),
        (["a", "b"], TWO, TWO),
        (["a", "b"], None, ["a", "b"]),
    ],
)
def test_classes_are_those_stated_or_those_of_the_checkpoint(tmp_path, named, stated, expected):
    model = load_model(local(tiny.write_classifier(tmp_path / "c", named, layers=1), stated))
    assert list(model.classes) == list(randomised(model, 0).classes) == expected


@pytest.mark.parametrize(("named", "stated"), [(3, TWO), (THREE, sorted(THREE, reverse=True))])
def test_classes_that_cannot_be_are_one_line(tmp_path, named, stated):
    with pytest.raises(ModelError, match=r"but its config\.json says"):
        load_model(local(tiny.write_classifier(tmp_path / "c", named, layers=1), stated))


def test_a_checkpoint_without_its_head_is_refused(tmp_path, checkpoints):
    """transformers would draw the head at random and say so in a warning."""
    config = local(checkpoints["bert"], THREE, family="bert_classifier")
    with pytest.raises(ModelError, match=r"missing: .*classifier\.weight"):
        load_model(config)


def test_a_new_classifier_has_its_bases_body_and_new_classes(checkpoints):
    module, tokenizer = new_classifier(local(checkpoints["bert"]), THREE)
    body = load_model(local(checkpoints["bert"])).module.bert.state_dict()
    assert all(torch.equal(module.bert.state_dict()[name], weight) for name, weight in body.items())
    assert list(module.config.id2label.values()) == THREE
    assert tokenizer.get_vocab() == tiny.tokenizer().get_vocab()


def test_the_family_is_read_from_config_json(checkpoints, folder):
    assert json.loads((folder / "config.json").read_text())["model_type"] == "bert"
    classifier, masked = load_model(local(folder, THREE)), load_model(local(checkpoints["bert"]))
    assert (classifier.family.name, classifier.predicts) == (CLASSIFIER, "class")
    assert (masked.family.name, masked.predicts) == ("bert", "hidden")


def test_accuracy_and_loss_are_those_of_transformers_and_sklearn(folder):
    model, own = load_model(local(folder, THREE, dtype="float64")), reference(folder, torch.float64)
    tokens, mask, types = pairs(rows=40)
    labels = torch.randint(3, (40,))
    with torch.no_grad():
        chances = own(tokens, attention_mask=mask, token_type_ids=types).logits.softmax(-1).numpy()
    losses, correct = class_losses(model.full(tokens, mask, types), labels, model.classes, THREE)
    assert correct.double().mean().item() == accuracy_score(labels, chances.argmax(1))
    assert losses.mean().item() == pytest.approx(log_loss(labels, chances, labels=[0, 1, 2]), abs=1e-12)
    assert losses.dtype == torch.float64


def test_the_order_of_the_datas_classes_may_be_another(float64):
    logits, labels, other = torch.randn(30, 3), torch.randint(3, (30,)), ["entailment", "neutral", "contradiction"]
    ours = class_losses(logits, labels, THREE, THREE)
    renamed = class_losses(logits, torch.tensor([other.index(THREE[label]) for label in labels]), THREE, other)
    assert torch.equal(ours.correct, renamed.correct)
    torch.testing.assert_close(ours.losses, renamed.losses)
    assert not torch.equal(ours.correct, class_losses(logits, labels, THREE, other).correct)


def test_data_of_two_classes_joins_neutral_and_contradiction(float64):
    logits, labels = torch.randn(60, 3), torch.randint(2, (60,))
    losses, correct = class_losses(logits, labels, THREE, TWO)
    chances = logits.softmax(-1)
    two = torch.stack([chances[:, 1], chances[:, 0] + chances[:, 2]], 1).numpy()
    assert losses.mean().item() == pytest.approx(log_loss(labels, two, labels=[0, 1]), abs=1e-12)
    predicted = (logits.argmax(1) != 1).long()
    assert correct.double().mean().item() == accuracy_score(labels, predicted)
    assert (predicted != torch.as_tensor(two.argmax(1))).any()  # control: argmax of three, not of the two sums


def test_what_cannot_be_scored_is_named():
    for logits, classes, message in (
        (torch.zeros(2, 2), TWO, "cannot be asked for"),
        (torch.full((2, 3), math.nan), THREE, "not finite"),
    ):
        with pytest.raises(ModelError, match=message):
            class_losses(logits, torch.tensor([0, 1]), classes, THREE)


def graded(accuracy, n=300):
    """Logits of a model that is right with this chance, in the order THREE."""
    labels = torch.randint(3, (n,))
    guesses = torch.where(torch.rand(n) < accuracy, labels, torch.randint(3, (n,)))
    return 3 * torch.nn.functional.one_hot(guesses, 3) + torch.randn(n, 3), labels


@pytest.mark.parametrize("order", list(permutations(THREE)))
def test_every_permutation_of_the_classes_is_caught(order):
    logits, labels = graded(0.8)
    places = [THREE.index(name) for name in order]
    assert check_labels(logits[:, places], labels, order, THREE) > 0.7
    if list(order) != THREE:
        with pytest.raises(ModelError, match=f"in the order {', '.join(order)} it would be right on 0.[789]"):
            check_labels(logits[:, places], labels, THREE, THREE)


def test_exchanged_classes_above_chance_are_caught_too():
    labels = torch.tensor([0] * 120 + [1] * 90 + [2] * 90)
    logits = torch.nn.functional.one_hot(labels, 3).double()
    with pytest.raises(ModelError, match=r"is right on 0\.400 of 300 examples \(at least 0\.333 is expected\)"):
        check_labels(logits[:, [0, 2, 1]], labels, THREE, THREE)
