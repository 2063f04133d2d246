"""measure=population: penalties and CKA as transformers alone gives them, and what cannot be done in one line."""

import copy
import signal

import numpy as np
import pytest
import torch

import tiny
from classifiers import PAIR_BLOCKS as BLOCKS
from classifiers import THREE, cka_of_transformers, loaded, local, logits_of, relabelled, write_base, write_sibling
from conftest import CLI, composed, wait_for_state
from thinkalike.config import relevant
from thinkalike.contrib.populations import population
from thinkalike.contrib.populations.class_losses import class_losses
from thinkalike.contrib.populations.pairs import HANS, MNLI, Pairs
from thinkalike.contrib.populations.templates import nli_challenge, nli_training
from thinkalike.job import key_of

BATCH = 200


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


def stitched(source, target, cut):
    """The source's embeddings and blocks up to the cut under the rest of the target."""
    joined = copy.deepcopy(target)
    joined.bert.embeddings = source.bert.embeddings
    for block in range(cut + 1):
        joined.bert.encoder.layer[block] = source.bert.encoder.layer[block]
    return joined


@pytest.fixture(scope="module")
def whole(tmp_path_factory, pairs, members):
    """A finished job of all members."""
    folder = tmp_path_factory.mktemp("whole")
    return CLI(folder)("analyze.py", *command(folder, pairs, members))


def test_penalties_are_those_of_whole_stitched_models(pairs, members, whole):
    result = whole.result
    table, models = result.table, [loaded(folder) for folder in members]
    names = [str(folder) for folder in members]
    assert list(dict.fromkeys(table["source"])) == list(dict.fromkeys(table["target"])) == names
    assert len(table) == 4 * 4 * (BLOCKS + 1)
    losses, correct, predicted = torch.zeros(3, 4, 4, BLOCKS + 1, len(pairs[0]), dtype=torch.float64)
    for a, source in enumerate(models):
        for b, target in enumerate(models):
            for cut in range(-1, BLOCKS):
                logits = logits_of(stitched(source, target, cut), pairs[0])[0]
                found = class_losses(logits, pairs[0].labels, THREE, MNLI)
                losses[a, b, cut + 1], correct[a, b, cut + 1] = found.losses, found.correct.double()
                named = [THREE[place] for place in logits.argmax(-1).tolist()]
                predicted[a, b, cut + 1] = torch.tensor([MNLI.index(name) for name in named])
    own = torch.arange(4)
    expected = {
        "loss": losses,
        "accuracy": correct,
        "loss_penalty": losses - losses[own, own][None],
        "accuracy_penalty": correct[own, own][None] - correct,
        "flips": (predicted != predicted[own, own][None]).double(),
    }
    for column, values in expected.items():
        assert np.abs(table[column].to_numpy() - values.mean(-1).flatten().numpy()).max() < 2e-5
    assert table["accuracy_penalty"].nunique() > 5, "control: stitches differ"
    itself = table[table["source"] == table["target"]]
    assert (itself[["accuracy_penalty", "loss_penalty", "flips"]] == 0).all(axis=None)
    assert table["flips"].between(0, 1).all()
    assert (table["flips"] > table["accuracy_penalty"].abs() + 0.01).any(), "control: penalties do not see all flips"
    assert result.arrays["predicted"].dtype == np.int8
    assert np.array_equal(result.arrays["predicted"], predicted.numpy())
    assert np.array_equal(result.arrays["correct"], correct.bool().numpy())
    assert result.arrays["losses"].shape == losses.shape
    accuracy = float(correct[:2][own[:2], own[:2], 0].mean())
    assert result.scalars["accuracy_generalizing"] == pytest.approx(accuracy)
    assert result.provenance["pairs"]["count"] == len(pairs[0])
    assert [model["name"] for model in result.provenance["models"]] == names


def test_population_cka_is_that_of_whole_models(pairs, members, whole):
    done = whole
    cells = done.result.tables["cka"]
    expected = cka_of_transformers(members, pairs[0], BATCH)
    assert np.abs(cells["value"].to_numpy() - expected.flatten().numpy()).max() < 1e-5
    facts = {"tokens": "all", "pairs": len(pairs[0]), "rows_per_batch": BATCH}
    assert done.result.provenance["cka"] == facts | {"batches": len(done.result.arrays["hsics"])}
    itself = cells["source"] == cells["target"]
    assert (cells[itself]["value"] - 1).abs().max() < 1e-9
    assert cells[~itself]["value"].max() < 0.99
    assert all(f"│ {cut:3d} │" in done.stdout for cut in range(-1, BLOCKS))


def test_the_challenge_is_the_part_that_is_asked_for(cli, tmp_path, pairs, members):
    result = cli("analyze.py", *command(tmp_path, pairs, members, "measure.side=challenge")).result
    hard = pairs[1].select("non-entailment", "lexical_overlap")
    assert 0 < result.provenance["pairs"]["count"] == len(hard) < len(pairs[1])
    guesses = [logits_of(loaded(folder), hard)[0].argmax(-1) for folder in members]
    expected = [(guess != THREE.index("entailment")).double().mean().item() for guess in guesses]
    found = result.table.query("source == target and cut == 0")["accuracy"]
    assert list(found) == pytest.approx(expected, abs=1e-12)


def test_two_class_models_are_checked_on_the_whole_challenge(cli, tmp_path, pairs):
    """On the part that is reported on they may well be wrong throughout."""
    first = write_base(tmp_path / "two", list(HANS))
    four = [write_sibling(tmp_path / name, first, seed) for seed, name in enumerate("abcd")]
    right = relabelled(pairs[1], loaded(first))
    kinds = [f"h{row % 5}" for row in range(len(right))]
    labels = torch.where(torch.tensor([kind == "h0" for kind in kinds]), 1 - right.labels, right.labels)
    hard = Pairs(right.premises, right.hypotheses, labels, HANS, kinds, right.subcases)
    asked = ["measure.side=challenge", "pairs.heuristic=h0", "pairs.label=null"]
    table = cli("analyze.py", *command(tmp_path, (pairs[0], hard), four, *asked)).result.table
    assert table.query("source == target")["accuracy"].max() < 0.2
    refused = cli("analyze.py", *command(tmp_path, (pairs[0], hard), four))
    assert "cannot be asked for ['entailment', 'neutral', 'contradiction']" in refused.error


def test_the_key_knows_how_members_run(tmp_path, pairs, members):
    kind = population.Population()

    def key(*more):
        config = composed(*command(tmp_path, pairs, members, *more), entry="analyze")
        entered = {name: part for name, part in relevant(config).items() if name in kind.reads}
        return key_of(kind, entered, {**kind.inputs(config), **kind.prepare(config)})

    assert key("model.device=cpu", "model.dtype=float32") == key()
    assert len({key(), key("model.dtype=float64"), key("model.dtype=bfloat16"), key("model.context=16")}) == 4


def test_members_run_where_and_how_model_is_asked_to(members):
    config = composed("measure=population", "model.device=cuda:3", "++model.context=20", entry="analyze")
    stated = local(members[0], dtype="bfloat16")
    assert population.as_chosen(stated, config) == local(members[0], dtype="bfloat16", device="cuda:3", context=20)
    assert population.as_chosen(stated, composed("measure=population", entry="analyze")) == stated


@pytest.mark.slow
def test_one_process_resumes_two_to_the_same_bytes(cli, tmp_path, pairs, members):
    words = command(tmp_path, pairs, members, "measure.batch=2", "measure.at_once=1", "model.device=cpu")
    shared = [*words, "trainer=ddp", "trainer.devices=2"]
    stores = [cli.folder / name for name in ("shared", "killed")]
    together = cli.process("analyze.py", *shared, f"store={stores[0]}").result
    alone = cli("analyze.py", *words).result
    assert together.key == alone.key
    assert all(np.array_equal(values, alone.arrays[name]) for name, values in together.arrays.items())
    with cli.start("analyze.py", *shared, f"store={stores[1]}", env=cli._settings(None, None)) as process:
        wait_for_state(process, stores[1], "stitches")
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 143
    resumed = cli("analyze.py", *words, f"store={stores[1]}")
    assert "resuming from" in resumed.stderr
    assert all(np.array_equal(values, alone.arrays[name]) for name, values in resumed.result.arrays.items())
