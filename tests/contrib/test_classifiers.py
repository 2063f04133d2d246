"""Classifiers: cut anywhere they are the model that was loaded; task=nli, the indices, and identity stitches."""

import copy
import json
import math
from itertools import permutations

import pytest
import torch
import transformers
from classifiers import THREE, local, pair_tokenizer, random_pairs
from classifiers import random_pairs as pairs
from safetensors.torch import load_file
from sklearn.metrics import accuracy_score, log_loss
from torch.nn.functional import cross_entropy

import tiny
from thinkalike.contrib.populations import finetuning
from thinkalike.contrib.populations.class_losses import check_labels, class_losses
from thinkalike.contrib.populations.finetuning import CHECKPOINT
from thinkalike.contrib.populations.identity_stitches import identity_stitches
from thinkalike.contrib.populations.pair_templates import nli_challenge, nli_training
from thinkalike.errors import ModelError
from thinkalike.models.families import EMBED, n_blocks_until
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.load import load_model
from thinkalike.models.variants import randomised

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
    tokens, mask, types = random_pairs()
    joined = model.tail(model.head(tokens, cut, mask, types), cut, mask)
    torch.testing.assert_close(joined, model.full(tokens, mask, types), atol=1e-5, rtol=0)
    with torch.no_grad():
        expected = reference(folder)(tokens, attention_mask=mask, token_type_ids=types).logits
    torch.testing.assert_close(joined, expected, atol=1e-5, rtol=0)


def test_mask_and_types_matter_in_every_part_that_takes_them(model):
    tokens, mask, types = random_pairs()
    state, full = model.head(tokens, 1, mask, types), model.full(tokens, mask, types)
    others = model.full(tokens, None, types), model.full(tokens, mask), model.tail(state, 1)
    heads = model.head(tokens, 1, None, types), model.head(tokens, 1, mask)
    for other in (*others, *(model.tail(head, 1, mask) for head in heads)):
        assert (other - full).abs().max() > 1e-3


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


def test_accuracy_and_loss_are_those_of_transformers_and_sklearn(folder):
    model, own = load_model(local(folder, THREE, dtype="float64")), reference(folder, torch.float64)
    tokens, mask, types = random_pairs(rows=40)
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


FIT, REPORT, CHALLENGE = 64, 40, 120
DRAWN = nli_training(FIT + REPORT, 0, 0.02)
FITTED, REPORTED, HARD = DRAWN.take(range(FIT)), DRAWN.take(range(FIT, FIT + REPORT)), nli_challenge(CHALLENGE, 1)


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A tiny BERT with dropout, whose tokenizer knows the templates."""
    tokenizer = pair_tokenizer()
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
    for name, part in parts.items():
        accuracy, loss = asked_of_transformers(result.folder / CHECKPOINT, part)
        assert table.loc[name, "pairs"] == len(part)
        assert table.loc[name, "accuracy"] == pytest.approx(accuracy, abs=1e-12)
        assert table.loc[name, "loss"] == pytest.approx(loss, abs=1e-5)
    assert table["accuracy"].nunique() > 2, "control: the parts can be told apart"
    assert result.scalars["heldout_accuracy"] == table.loc["held-out", "accuracy"]
    assert result.scalars["challenge_accuracy"] == table.loc["challenge", "accuracy"]
    assert result.provenance["truncated"] == {"fit": 0, "report": 0, "challenge": 0}
    assert len(result.provenance["models"]) == 1


@pytest.mark.ci_slow
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


@pytest.mark.ci_slow
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


@pytest.mark.ci_slow
def test_a_fork_gets_its_own_classes_and_its_parents_spread(cli, words):
    parent = cli("train.py", *words, "nli.head_std=0.03").result.folder / CHECKPOINT
    words = [word for word in words if not word.startswith("model.path")] + [f"model.path={parent}"]
    fork = cli("train.py", *words, "nli.freeze=2", "nli.head_lr=1e-9", "nli.index=5").result.folder / CHECKPOINT
    mine, theirs = body_of(fork), body_of(parent)
    assert torch.equal(mine["1"], theirs["1"])
    assert mine["classifier"].abs().max() < 0.15
    assert not torch.allclose(mine["classifier"], theirs["classifier"], atol=0.01)
    assert json.loads((fork / "config.json").read_text())["initializer_range"] == 0.03


@pytest.mark.ci_slow
def test_only_the_same_index_gives_the_same_bytes(cli, words):
    words = [*words, "nli.epochs=1"]
    first, second = (cli("train.py", *words, *more).result for more in ([], ["nli.index=1"]))
    before = weights_of(first)
    assert weights_of(cli("train.py", *words, "force=true", "trainer.checkpoint_every=1").result) == before
    assert weights_of(second) != before


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("population")
    return [load_model(local(tiny.write_classifier(root / str(seed), seed=seed), THREE)) for seed in range(3)]


@pytest.fixture
def batch():
    tokens, mask, types = pairs(rows=6)
    return {"tokens": tokens, "labels": torch.randint(3, (6,)), "data_classes": THREE, "mask": mask, "types": types}


def transplanted(source, target, cut):
    """A whole classifier whose embeddings and blocks up to the cut are those of another."""
    module = copy.deepcopy(target.module)
    module.bert.embeddings = source.module.bert.embeddings
    for layer in range(n_blocks_until(cut)):
        module.bert.encoder.layer[layer] = source.module.bert.encoder.layer[layer]
    return module


@torch.no_grad()
def by_hand(models, batch, cuts=CUTS):
    found = []
    for source in models:
        for target in models:
            for cut in cuts:
                module = transplanted(source, target, cut)
                logits = module(batch["tokens"], attention_mask=batch["mask"], token_type_ids=batch["types"]).logits
                found.append(class_losses(logits, batch["labels"], target.classes, batch["data_classes"]))
    shape = (len(models), len(models), len(cuts))
    return [torch.stack(parts).unflatten(0, shape) for parts in zip(*found, strict=True)]


@pytest.mark.ci_slow
def test_every_stitch_is_the_transplanted_model_to_the_bit(models, batch):
    ours, theirs = identity_stitches(models, **batch), by_hand(models, batch)
    assert torch.equal(ours.losses, theirs[0])
    assert torch.equal(ours.predicted == batch["labels"], theirs[1])
    assert ours.predicted.dtype == torch.int8
    spread = ours.losses.std(0)
    assert (spread[:, 1:] > 1e-3).all()  # control: it matters whose blocks the first ones are


def test_sources_together_give_the_same(models, batch):
    alone, together = identity_stitches(models, **batch), identity_stitches(models, **batch, at_once=2)
    torch.testing.assert_close(together.losses, alone.losses, atol=1e-5, rtol=0)


def test_a_target_reads_its_logits_in_its_own_order(models, batch):
    first, second = models[0], copy.copy(models[1])
    second.classes = tuple(reversed(THREE))
    ours, plain = (identity_stitches([first, other], **batch).losses for other in (second, models[1]))
    assert torch.equal(ours[:, 0], plain[:, 0])
    assert (ours[:, 1] != plain[:, 1]).any()


@pytest.mark.ci_slow
def test_the_predicted_class_is_that_of_the_data(models, batch):
    """Whatever the order of a model's own classes, and where the data has no word for two of them."""
    own = {"contradiction": "non-entailment", "entailment": "entailment", "neutral": "non-entailment"}
    for wanted in (THREE, ["neutral", "contradiction", "entailment"], ["entailment", "non-entailment"]):
        labels = batch["labels"] % len(wanted)
        found = identity_stitches(models, **batch | {"labels": labels, "data_classes": wanted}).predicted
        for number, model in enumerate(models):
            logits = model.full(batch["tokens"], batch["mask"], batch["types"])
            names = [THREE[place] for place in logits.argmax(-1).tolist()]
            names = [own[name] if len(wanted) == 2 else name for name in names]
            assert [wanted[place] for place in found[number, number, 0].tolist()] == names


def block_passes(models, run):
    """Rows that went through a block, as multiples of the batch."""
    rows = []
    inside = [block.intermediate for model in models for block in model.blocks]  # a block that is passed over rests
    handles = [part.register_forward_hook(lambda _, args, __: rows.append(len(args[0]))) for part in inside]
    run()
    for handle in handles:
        handle.remove()
    return sum(rows) / 6


def test_tails_of_cached_states_need_the_passes_that_they_should(models, batch):
    depth, m = tiny.LAYERS, len(models)
    ours = block_passes(models, lambda: identity_stitches(models, **batch, at_once=3))
    assert ours == m * depth + m * m * depth * (depth + 1) / 2
