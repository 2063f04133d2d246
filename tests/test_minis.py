"""The embedded minis are what their cards say."""

import json

import pytest
import torch
from safetensors.torch import load_file

from conftest import composed
from thinkalike.config import DataConfig
from thinkalike.contrib.populations.finetuning import new_classifier
from thinkalike.data.corpus import read_corpus
from thinkalike.data.stimuli import controlled_stimuli
from thinkalike.evaluation.held_out import held_out_loss
from thinkalike.instruments import run_job
from thinkalike.models.load import load_model
from thinkalike.models.places import ASSETS
from thinkalike.models.survey import same_vocabulary

TAUGHT = "bert-mini-nli"  # a body without a head, whose card states accuracies
MINIS = sorted(path.parent.name for path in ASSETS.glob("*/config.json") if path.parent.name != TAUGHT)
GRAMMAR = [f"{kind}-mini{seed}" for kind in ("bert", "gpt2", "mamba") for seed in ("", "-s1")]
NEOX = ["neox-3l-mini", "neox-4l-mini", "neox-5l-mini", "neox-5l-odd-mini", "neox-6l-mini"]
RETOKENISED = "gelu-3l-mini-v2k"
EXPECTED = ["gelu-3l-mini", "gelu-3l-mini-s1", "gelu-4l-mini", "solu-3l-mini", "solu-3l-mini-s1", "solu-4l-mini"]


def card(name):
    return json.loads((ASSETS / name / "config.json").read_text())


def mini(name):
    return load_model(composed(f"model={name}").model)


@pytest.mark.parametrize(("names", "most"), [(EXPECTED, 12), ([RETOKENISED], 3), (NEOX, 10), (GRAMMAR, 6)])
def test_the_minis_are_there_and_small(names, most):
    assert set(names) <= set(MINIS)
    assert sum(path.stat().st_size for name in names for path in (ASSETS / name).iterdir()) < most * 1e6


@pytest.mark.parametrize("name", MINIS)
def test_a_mini_beats_word_frequencies_as_its_card_says(name):
    facts, text = card(name), (ASSETS / name / "README.md").read_text()
    assert facts["heldout"]["loss"] < facts["heldout"]["unigram_entropy"] - 1.5
    for value in (facts["heldout"]["loss"], facts["heldout"]["unigram_entropy"]):
        assert f"{value:.4f} nats" in text
    assert facts["training"]["command"] in text
    assert f"{facts['training']['tokens_seen']:,}" in text


def test_a_body_that_was_taught_says_how_and_makes_classifiers():
    facts, text = card(TAUGHT), (ASSETS / TAUGHT / "README.md").read_text()
    assert facts["training"]["command"] in text
    assert facts["accuracy"]["heldout_accuracy"] > 0.9
    assert f"| challenge accuracy | {facts['accuracy']['challenge_accuracy']:.4f} |" in text
    module, tokenizer = new_classifier(composed(f"model={TAUGHT}").model, ["entailment", "neutral", "contradiction"])
    assert module.config.initializer_range == pytest.approx(0.02)
    assert float(module.classifier.weight.std()) == pytest.approx(0.02, rel=0.3)
    shipped = load_file(ASSETS / TAUGHT / "model.safetensors")
    assert torch.equal(module.bert.pooler.dense.weight, shipped["pooler.dense.weight"].float())
    assert len(tokenizer) == len(shipped["embeddings.word_embeddings.weight"])


@pytest.mark.parametrize("twin", ["3l-mini", "3l-mini-s1", "4l-mini"])
def test_twins_are_equally_good_and_began_alike(twin):
    gelu, solu = card(f"gelu-{twin}"), card(f"solu-{twin}")
    assert abs(gelu["heldout"]["loss"] - solu["heldout"]["loss"]) < 0.05
    assert gelu["seed"] == solu["seed"]
    assert gelu["heldout"]["tokens"] == solu["heldout"]["tokens"]


@pytest.mark.slow
@pytest.mark.parametrize("names", [EXPECTED + NEOX, GRAMMAR])
def test_minis_of_one_text_share_their_tokenizer(names):
    first, *others = (mini(name) for name in names)
    assert others
    for other in others:
        same_vocabulary(first, other)  # or it raises
        assert other.tokenizer.get_vocab() == first.tokenizer.get_vocab()


def test_some_words_of_the_grammar_split_and_all_are_whole_again():
    model = mini("bert-mini")
    stimuli = controlled_stimuli(100)
    counts = [len(model.tokenizer.tokenize(word)) for word in stimuli.words]
    assert 0.1 < sum(count > 1 for count in counts) / len(counts) < 0.5
    encoded = model.tokenizer(stimuli.texts[0])["input_ids"]
    assert model.tokenizer.decode(encoded, skip_special_tokens=True).strip() == stimuli.texts[0]
    assert encoded[0] == model.tokenizer.cls_token_id
    assert encoded[-1] == model.tokenizer.sep_token_id


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert-mini", "gpt2-mini"])
def test_the_card_of_a_mini_of_the_grammar_is_recomputed(name, tmp_path):
    config = composed(f"model={name}", f"data.cache={tmp_path}")
    model = mini(name)
    again = held_out_loss(model, read_corpus(config.data, model.tokenizer, 32, bos=True, fit_tokens=1))
    for key in ("loss", "loss_low", "loss_high", "unigram_entropy"):
        assert again[key] == pytest.approx(card(name)["heldout"][key], abs=1e-3)


@pytest.mark.slow
def test_a_card_is_recomputed_from_the_shipped_files(tmp_path):
    facts, model = card("gelu-3l-mini"), mini("gelu-3l-mini")
    data = DataConfig(name="stdlib", source="stdlib", report_tokens=262144, report_share=0.1, cache=str(tmp_path))
    corpus = read_corpus(data, model.tokenizer, 256, bos=False, fit_tokens=None)
    if corpus.fingerprint() != facts["heldout"]["tokens"]:
        pytest.skip("this Python has another standard library than the one that the card speaks of")
    again = held_out_loss(model, corpus)
    for name in ("loss", "loss_low", "loss_high", "unigram_entropy"):
        assert again[name] == pytest.approx(facts["heldout"][name], abs=1e-3)


def stitched(source, target, tmp_path):
    """The table of the main job with its default recipe."""
    config = composed(f"model={source}", f"model@target={target}", f"store={tmp_path}")
    return run_job(config).table


@pytest.mark.slow
def test_the_default_recipe_stitches_a_mini_to_itself_at_no_cost(tmp_path):
    table = stitched("gelu-3l-mini", "gelu-3l-mini", tmp_path)
    assert table["identity_penalty"].abs().max() < 1e-6
    assert table["penalty"].max() <= 0.005


@pytest.mark.slow
@pytest.mark.parametrize(("source", "target"), [("gelu-3l-mini", "solu-3l-mini"), ("solu-3l-mini", "gelu-3l-mini")])
def test_the_default_recipe_beats_the_identity_between_minis(tmp_path, source, target):
    table = stitched(source, target, tmp_path)
    assert (table["penalty_high"] < table["identity_penalty"]).all()
