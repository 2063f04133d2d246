"""task=nli: what the command leaves, what an index decides, and what cannot be done in one line."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy

import tiny
from thinkalike.contrib.populations import finetuning
from thinkalike.contrib.populations.finetuning import CHECKPOINT
from thinkalike.contrib.populations.templates import nli_challenge, nli_training

FIT, REPORT, CHALLENGE = 64, 40, 120
DRAWN = nli_training(FIT + REPORT, 0, 0.02)
FITTED, REPORTED, HARD = DRAWN.take(range(FIT)), DRAWN.take(range(FIT, FIT + REPORT)), nli_challenge(CHALLENGE, 1)


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A tiny BERT with dropout, whose tokenizer knows the templates."""
    tokenizer = tiny.pair_tokenizer()
    size = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
    shape = transformers.BertConfig(vocab_size=len(tokenizer), max_position_embeddings=72, **size)
    torch.manual_seed(1)
    folder = tmp_path_factory.mktemp("bert")
    transformers.BertForMaskedLM(shape).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def words(bert, tmp_path):
    """The command line of a small job, its number apart."""
    counts = [f"pairs.fit_pairs={FIT}", f"pairs.report_pairs={REPORT}", f"pairs.challenge_pairs={CHALLENGE}"]
    model = ["model=local", f"model.path={bert}", "nli.context=72", "nli.lr=1e-3", "logger=none"]
    return ["task=nli", *model, *counts, f"store={tmp_path}/results"]


def weights_of(result):
    return (result.folder / CHECKPOINT / "model.safetensors").read_bytes()


@torch.no_grad()
def asked_of_transformers(folder, pairs):
    """Accuracy and mean loss, by transformers alone; neutral and contradiction are one class where the pairs say so."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    both = pairs.premises, pairs.hypotheses
    inputs = tokenizer(*both, return_tensors="pt", padding=True, return_token_type_ids=True)
    logits = model(**inputs).logits.double()
    assert model.config.id2label == {0: "entailment", 1: "neutral", 2: "contradiction"}
    guesses = logits.argmax(-1)
    if len(pairs.classes) == 2:
        chance = logits.softmax(-1)
        logits, guesses = torch.stack([chance[:, 0], chance[:, 1:].sum(-1)], -1).log(), guesses.clamp(max=1)
    return (guesses == pairs.labels).double().mean().item(), cross_entropy(logits, pairs.labels).item()


@pytest.mark.slow
def test_transformers_finds_a_checkpoint_as_right_as_its_table(cli, words):
    result = cli("train.py", *words, "nli.epochs=20").result
    table = result.table.set_index("set")
    parts = {"held-out": REPORTED, "challenge": HARD}
    parts |= {f"{of}, {label}": HARD.select(label, of) for of in set(HARD.heuristics) for label in HARD.classes}
    parts |= {of: HARD.select(heuristic=of) for of in set(HARD.heuristics)}
    parts |= {label: HARD.select(label) for label in HARD.classes}
    assert set(table.index) == set(parts)
    for name, pairs in parts.items():
        accuracy, loss = asked_of_transformers(result.folder / CHECKPOINT, pairs)
        assert table.loc[name, "pairs"] == len(pairs)
        assert table.loc[name, "accuracy"] == pytest.approx(accuracy, abs=1e-12)
        assert table.loc[name, "loss"] == pytest.approx(loss, abs=1e-5)
    assert table["accuracy"].nunique() > 2, "control: the parts can be told apart"
    assert result.scalars["heldout_accuracy"] == table.loc["held-out", "accuracy"]
    assert result.scalars["challenge_accuracy"] == table.loc["challenge", "accuracy"]
    assert result.provenance["truncated"] == {"fit": 0, "report": 0, "challenge": 0}
    assert len(result.provenance["models"]) == 1


def test_an_index_decides_the_head_and_the_order_alone(cli, words, bert, monkeypatch):
    seen = []
    monkeypatch.setattr(finetuning, "fit", lambda module, *_: seen.append(module))
    for index in (0, 1):
        assert cli("train.py", *words, f"nli.index={index}").status == 0
    first, second = seen
    base, ours = load_file(bert / "model.safetensors"), [module.model.state_dict() for module in seen]
    body = [name for name in ours[0] if name.startswith("bert.") and "pooler" not in name]
    assert len(body) > 30
    assert all(torch.equal(weights[name], base[name]) for weights in ours for name in body)
    assert all(name in body or "pooler" in name or "classifier" in name for name in ours[0])
    assert not torch.equal(*(weights["classifier.weight"] for weights in ours))
    assert (first.pairs, first.labels.tolist(), first.config.lr) == (second.pairs, FITTED.labels.tolist(), 1e-3)
    orders = [torch.cat([module.data().batch(step) for step in (0, 1)])[:, 0].tolist() for module in seen]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(FIT))  # an epoch is every pair, once


def body_of(folder):
    """The weights of a classifier by part: embeddings, each block, pooler and classes."""
    parts = {}
    for name, weight in load_file(folder / "model.safetensors").items():
        short = name.removeprefix("bert.").removeprefix("encoder.layer.").split(".")[0]
        parts.setdefault(short, []).append(weight.flatten())
    return {name: torch.cat(weights) for name, weights in parts.items()}


def test_frozen_parts_stay_and_redrawn_blocks_start_elsewhere(cli, words, bert):
    base = body_of(bert)
    more = ["nli.freeze=1", "nli.redraw=1", "nli.head_std=0.02", "nli.lr=1e-9", "nli.head_lr=0.5", "nli.weight_decay=0"]
    found = body_of(cli("train.py", *words, *more).result.folder / CHECKPOINT)
    assert torch.equal(found["embeddings"], base["embeddings"])
    assert torch.equal(found["0"], base["0"])
    drawn = found["1"][found["1"].abs().sub(1).abs() > 1e-6]  # without the gains of its LayerNorms
    spread = 0.02 * (768 / transformers.AutoConfig.from_pretrained(bert).hidden_size) ** 0.5
    assert drawn[drawn.abs() > 1e-6].std() == pytest.approx(spread, rel=0.05)
    assert not torch.equal(found["1"], base["1"])
    assert found["pooler"][found["pooler"].abs() > 1e-6].std() == pytest.approx(spread, rel=0.1)
    assert found["classifier"].abs().max() > 0.2, "the classes learn at a rate of their own"


def test_a_fork_gets_its_own_classes_and_its_parents_spread(cli, words):
    parent = cli("train.py", *words, "nli.head_std=0.03").result.folder / CHECKPOINT
    words = [word for word in words if not word.startswith("model.path")] + [f"model.path={parent}"]
    fork = cli("train.py", *words, "nli.freeze=2", "nli.head_lr=1e-9", "nli.index=5").result.folder / CHECKPOINT
    mine, theirs = body_of(fork), body_of(parent)
    assert torch.equal(mine["1"], theirs["1"])
    assert mine["classifier"].abs().max() < 0.15
    assert not torch.allclose(mine["classifier"], theirs["classifier"], atol=0.01)
    assert json.loads((fork / "config.json").read_text())["initializer_range"] == 0.03


def test_only_the_same_index_gives_the_same_bytes(cli, words):
    words = [*words, "nli.epochs=1"]
    first, second = (cli("train.py", *words, *more).result for more in ([], ["nli.index=1"]))
    before = weights_of(first)
    assert weights_of(cli("train.py", *words, "force=true", "trainer.checkpoint_every=1").result) == before
    assert weights_of(second) != before
