"""measure=population: penalties and CKA as transformers alone gives them, and what cannot be done in one line."""

import copy
import importlib
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import transformers

import tiny
from conftest import composed
from thinkalike.classification import class_losses
from thinkalike.data import HANS, MNLI, Pairs, nli_challenge, nli_training
from thinkalike.errors import ConfigError
from thinkalike.measures import CKA

THREE = ["contradiction", "entailment", "neutral"]
BLOCKS, CONTEXT, BATCH = 2, 64, 200
POPULATION = importlib.import_module("thinkalike.jobs.population")  # the package has the function under this name


def result(out):
    return Path(out.split("results: ")[1].strip())


def loaded(folder):
    return transformers.BertForSequenceClassification.from_pretrained(folder)


@torch.no_grad()
def write_sibling(folder, base, seed, noise=0.2):
    """The classifier `base` with noise on its weights, which takes every class for some texts."""
    model, generator = loaded(base), torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        weight += noise * weight.std(correction=0) * torch.randn(weight.shape, generator=generator)
    model.classifier.bias -= logits_of(model, nli_training(60))[0].mean(0)
    model.save_pretrained(folder)
    tiny.pair_tokenizer().save_pretrained(folder)
    return folder


@torch.no_grad()
def logits_of(model, pairs):
    tokenizer = tiny.pair_tokenizer()
    inputs = tokenizer(
        pairs.premises, pairs.hypotheses, truncation="longest_first", max_length=CONTEXT,
        return_token_type_ids=True, padding=True, return_tensors="pt",
    )  # fmt: skip
    return model.eval()(**inputs).logits, inputs


def relabelled(pairs, model):
    """The same texts with the labels that a classifier gives them, so that it is right."""
    names = [model.config.id2label[number] for number in logits_of(model, pairs)[0].argmax(-1).tolist()]
    if pairs.classes == HANS:
        names = [name if name == "entailment" else "non-entailment" for name in names]
    labels = torch.tensor([pairs.classes.index(name) for name in names])
    return Pairs(pairs.premises, pairs.hypotheses, labels, pairs.classes, pairs.heuristics, pairs.subcases)


def write_base(folder, classes):
    return write_sibling(folder, tiny.write_classifier(folder, classes, layers=BLOCKS), 0, noise=0)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_base(tmp_path_factory.mktemp("base"), THREE)


@pytest.fixture(scope="module")
def members(tmp_path_factory, base):
    """Four classifiers that mostly agree: two of a group."""
    root = tmp_path_factory.mktemp("population")
    return [write_sibling(root / name / "model", base, seed) for seed, name in enumerate("abcd")]


@pytest.fixture(scope="module")
def pairs(base):
    return relabelled(nli_training(60), loaded(base)), relabelled(nli_challenge(120), loaded(base))


def command(tmp_path, pairs, members, *more):
    files = [tiny.write_pairs(pairs[0], tmp_path / "mnli.jsonl"), tiny.write_pairs(pairs[1], tmp_path / "hans.txt")]
    first, second = (",".join(map(str, group)) for group in (members[:2], members[2:]))
    groups = [f"population.generalizing=[{first}]", f"population.heuristic=[{second}]"]
    own = ["pairs=files", f"pairs.report={files[0]}", f"pairs.challenge={files[1]}", f"store={tmp_path}/results"]
    size = [f"measure.tokens_per_batch={BATCH}"]
    return ["measure=population", "population=local", *groups, *own, *size, *more]


# --------------------------------------------------------------------------------------------------------- the measure


def stitched(source, target, cut):
    """The source's embeddings and blocks up to the cut under the rest of the target."""
    joined = copy.deepcopy(target)
    joined.bert.embeddings = source.bert.embeddings
    for block in range(cut + 1):
        joined.bert.encoder.layer[block] = source.bert.encoder.layer[block]
    return joined


def test_penalties_are_those_of_whole_stitched_models(call, tmp_path, pairs, members):
    status, out, err = call("analyze.py", *command(tmp_path, pairs, members))
    assert status == 0, err
    table, models = pd.read_csv(result(out) / "table.csv"), [loaded(folder) for folder in members]
    names = [str(folder) for folder in members]
    assert list(dict.fromkeys(table["source"])) == list(dict.fromkeys(table["target"])) == names
    assert len(table) == 4 * 4 * (BLOCKS + 1)
    losses, correct = torch.zeros(2, 4, 4, BLOCKS + 1, len(pairs[0]), dtype=torch.float64)
    for a, source in enumerate(models):
        for b, target in enumerate(models):
            for cut in range(-1, BLOCKS):
                logits = logits_of(stitched(source, target, cut), pairs[0])[0]
                found = class_losses(logits, pairs[0].labels, THREE, MNLI)
                losses[a, b, cut + 1], correct[a, b, cut + 1] = found.losses, found.correct.double()
    own = torch.arange(4)
    expected = {
        "loss": losses,
        "accuracy": correct,
        "loss_penalty": losses - losses[own, own][None],
        "accuracy_penalty": correct[own, own][None] - correct,
    }
    for column, values in expected.items():
        assert np.abs(table[column].to_numpy() - values.mean(-1).flatten().numpy()).max() < 2e-5
    assert table["accuracy_penalty"].nunique() > 5, "control: stitches differ"
    itself = table[table["source"] == table["target"]]
    assert (itself["accuracy_penalty"] == 0).all()
    assert (itself["loss_penalty"] == 0).all()
    arrays = np.load(result(out) / "arrays.npz")
    assert np.array_equal(arrays["correct"], correct.bool().numpy())
    assert arrays["losses"].shape == losses.shape
    record = json.loads((result(out) / "result.json").read_text())
    assert record["scalars"]["accuracy_generalizing"] == pytest.approx(float(correct[:2][own[:2], own[:2], 0].mean()))
    assert record["provenance"]["pairs"]["count"] == len(pairs[0])
    assert "already done" in call("analyze.py", *command(tmp_path, pairs, members))[2]


@torch.no_grad()
def cka_of_transformers(members, pairs):
    """CKA of every two models at each block, on the tokens of the pairs in the order that the job has them."""
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(0)).tolist()
    chosen, rows = pairs.take(order), []
    for folder in members:
        model = loaded(folder)
        _, inputs = logits_of(model, chosen)
        states = model.bert(**inputs, output_hidden_states=True).hidden_states[1:]
        rows.append([state[inputs["attention_mask"].bool()] for state in states])
    metrics = [CKA(len(members), len(members)) for _ in range(BLOCKS)]
    for start in range(0, len(rows[0][0]) - BATCH + 1, BATCH):
        for block, metric in enumerate(metrics):
            part = [model[block][start : start + BATCH] for model in rows]
            metric.update(part, part)
    return torch.stack([metric.compute().value for metric in metrics], -1)


def test_cka_is_that_of_the_states_of_whole_models_and_a_model_is_like_itself(call, tmp_path, pairs, members):
    status, out, err = call("analyze.py", *command(tmp_path, pairs, members))
    assert status == 0, err
    cells = pd.read_csv(result(out) / "cka.csv")
    expected = cka_of_transformers(members, pairs[0])
    assert np.abs(cells["value"].to_numpy() - expected.flatten().numpy()).max() < 1e-5
    itself = cells["source"] == cells["target"]
    assert (cells[itself]["value"] - 1).abs().max() < 1e-9
    assert cells[~itself]["value"].max() < 0.99
    hsics = torch.from_numpy(np.load(result(out) / "arrays.npz")["hsics"])
    sums = hsics.mean(0)
    own = sums.diagonal().T
    made = sums / (own[:, None] * own).sqrt()
    assert np.abs(cells["value"].to_numpy() - made.flatten().numpy()).max() < 1e-9
    assert all(f"cut {cut:3d}" in out for cut in range(-1, BLOCKS))


def test_options_of_cka_change_cka_and_no_penalty(call, tmp_path, pairs, members):
    tables, values = set(), set()
    options = ([], ["measure.include_padding=true"], ["measure.site=update"], ["measure.at_once=1"])
    for more in options:
        status, out, err = call("analyze.py", *command(tmp_path, pairs, members, *more))
        assert status == 0, err
        tables.add(tuple(pd.read_csv(result(out) / "table.csv")["accuracy_penalty"]))
        values.add(tuple(pd.read_csv(result(out) / "cka.csv")["value"]))
    assert (len(tables), len(values)) == (1, len(options) - 1)  # how many run at once changes neither


def test_the_challenge_is_the_part_that_is_asked_for(call, tmp_path, pairs, members):
    rows = {}
    for more in ([], ["pairs.heuristic=null", "pairs.label=null"]):
        status, out, err = call("analyze.py", *command(tmp_path, pairs, members, "measure.side=challenge", *more))
        assert status == 0, err
        table = pd.read_csv(result(out) / "table.csv").query("source == target and cut == 0")
        count = json.loads((result(out) / "result.json").read_text())["provenance"]["pairs"]["count"]
        rows[count] = list(table["accuracy"])
    hard = pairs[1].select("non-entailment", "lexical_overlap")
    assert sorted(rows) == sorted({len(hard), len(pairs[1])})
    guesses = [logits_of(loaded(folder), hard)[0].argmax(-1) for folder in members]
    expected = [(guess != THREE.index("entailment")).double().mean().item() for guess in guesses]
    assert rows[len(hard)] == pytest.approx(expected, abs=1e-12)


def test_classifiers_of_two_classes_are_checked_on_the_whole_challenge(call, tmp_path, pairs):
    """On the part that is reported on they may well be wrong throughout."""
    first = write_base(tmp_path / "two", list(HANS))
    four = [write_sibling(tmp_path / name, first, seed) for seed, name in enumerate("abcd")]
    right = relabelled(pairs[1], loaded(first))
    kinds = [f"h{row % 5}" for row in range(len(right))]
    labels = torch.where(torch.tensor([kind == "h0" for kind in kinds]), 1 - right.labels, right.labels)
    hard = Pairs(right.premises, right.hypotheses, labels, HANS, kinds, right.subcases)
    asked = ["measure.side=challenge", "pairs.heuristic=h0", "pairs.label=null"]
    status, out, err = call("analyze.py", *command(tmp_path, (pairs[0], hard), four, *asked))
    assert status == 0, err
    assert pd.read_csv(result(out) / "table.csv").query("source == target")["accuracy"].max() < 0.2
    status, _, err = call("analyze.py", *command(tmp_path, (pairs[0], hard), four))
    assert status == 1
    assert "cannot be asked for ['entailment', 'neutral', 'contradiction']" in err


def test_pairs_are_cut_for_the_model_of_the_least_context(call, tmp_path, pairs, members, monkeypatch):
    monkeypatch.setattr(POPULATION, "check_labels", lambda *_, **__: 1.0)
    shape = transformers.BertConfig.from_pretrained(members[0], max_position_embeddings=40)
    transformers.BertForSequenceClassification(shape).save_pretrained(tmp_path / "short")
    tiny.pair_tokenizer().save_pretrained(tmp_path / "short")
    status, out, err = call("analyze.py", *command(tmp_path, pairs, [*members[:3], tmp_path / "short"]))
    assert status == 0, err
    assert json.loads((result(out) / "result.json").read_text())["provenance"]["pairs"]["truncated"] > 0
    assert "pairs to 40 tokens" in err


# ------------------------------------------------------------------------------------------------ what cannot be done


def test_a_model_that_is_named_twice_is_refused(call, tmp_path, pairs, members):
    status, _, err = call("analyze.py", *command(tmp_path, pairs, [*members[:3], members[0]]))
    assert status == 1
    assert f"error: population=local names {members[0]} twice" in err


def renamed(folder, names, place):
    """The same weights, and other names of their classes."""
    model = loaded(folder)
    model.config.id2label = dict(enumerate(names))
    model.save_pretrained(place)
    tiny.pair_tokenizer().save_pretrained(place)
    return place


def test_permuted_classes_are_refused(call, tmp_path, pairs, members):
    wrong = renamed(members[3], ["entailment", "contradiction", "neutral"], tmp_path / "wrong")
    status, _, err = call("analyze.py", *command(tmp_path, pairs, [*members[:3], wrong]))
    assert status == 1
    assert f"error: {wrong} is right on" in err
    assert "in the order contradiction, entailment, neutral it would be right on" in err


def other_member(kind, tmp_path, members, checkpoints):
    path = tmp_path / kind.replace(" ", "-")
    if kind == "a language model":
        return checkpoints["bert"]
    if kind in ("other classes", "another depth"):
        classes = {"other classes": list(HANS), "another depth": THREE}[kind]
        tiny.write_classifier(path, classes, layers=BLOCKS + (kind == "another depth"))
        tiny.pair_tokenizer().save_pretrained(path)
    elif kind == "another tokenizer":
        write_sibling(path, members[0], 9)
        tiny.pair_tokenizer(299).save_pretrained(path)
    return path


OTHERS = {
    "a language model": "is no classifier; a population is of classifiers of pairs",
    "other classes": "cannot be asked for ['entailment', 'neutral', 'contradiction']",
    "another depth": f"the identity does not stitch {{}} ({BLOCKS + 1} layers of 32)",
    "another tokenizer": "have different tokenizers",
    "no folder": "{} holds no checkpoint",
}


@pytest.mark.parametrize("kind", OTHERS)
def test_a_model_that_does_not_belong_is_one_line(kind, call, tmp_path, pairs, members, checkpoints, monkeypatch):
    if kind == "another depth":  # untrained, it would be refused for that
        monkeypatch.setattr(POPULATION, "check_labels", lambda *_, **__: 1.0)
    other = other_member(kind, tmp_path, members, checkpoints)
    status, _, err = call("analyze.py", *command(tmp_path, pairs, [*members[:3], other]))
    assert status == 1
    assert OTHERS[kind].format(other) in err
    assert err.strip().splitlines()[-1].startswith("error: ")
    assert not list(tmp_path.glob("results/*/*/result.json"))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["measure.tokens_per_batch=100000"], "too few pairs for measure.tokens_per_batch=100000; lower it"),
        (["measure.tokens_per_batch=3"], "block 0 of "),
        (["measure.tokens_per_batch=0"], "measure.tokens_per_batch=0 must be positive"),
        (["measure.at_once=0"], "measure.at_once=0 must be positive"),
        (["measure.site=attention"], "measure.site=attention is not known"),
        (["measure.side=fit"], "measure.side=fit is not known"),
        (["pairs.report=null"], "pairs=files needs pairs.report=FILE"),
    ],
)
def test_settings_that_cannot_be_are_one_line(more, message, call, tmp_path, pairs, members):
    status, _, err = call("analyze.py", *command(tmp_path, pairs, members, *more))
    assert status == 1
    assert message in err
    assert err.strip().splitlines()[-1].startswith("error: ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["population=local"], r"population\.generalizing=None needs at least two models of local"),
        (["population.size=5", "population.per_group=3"], r"between 2 and half of population\.size=5"),
        (["population.per_group=1"], r"population\.per_group=1 must lie between 2"),
    ],
)
def test_populations_that_cannot_be_are_refused_by_their_schema(words, message):
    with pytest.raises(ConfigError, match=message):
        composed(*words, door="analyze")
