"""measure=population: penalties and CKA as transformers alone gives them, what CKA reads, and jobs after signals."""

import contextlib
import copy
import shutil
import signal

import numpy as np
import pytest
import torch
from classifiers import (
    CONTEXT,
    THREE,
    cka_of_transformers,
    loaded,
    local,
    logits_of,
    relabelled,
    write_base,
    write_sibling,
)
from classifiers import PAIR_BLOCKS as BLOCKS
from published_pairs import write

from conftest import CLI, composed, wait_for_state, with_slow
from thinkalike.contrib.populations import all_stitches as module
from thinkalike.contrib.populations import population
from thinkalike.contrib.populations.all_stitches import stitched_members
from thinkalike.contrib.populations.class_losses import class_losses
from thinkalike.contrib.populations.config import PopulationMeasureConfig
from thinkalike.contrib.populations.encoding import encode_pairs
from thinkalike.contrib.populations.member_similarity import similarity_of_members
from thinkalike.contrib.populations.pair_templates import nli_challenge, nli_training
from thinkalike.contrib.populations.pairs import HANS_CLASSES, MNLI_CLASSES, Pairs
from thinkalike.job import Work
from thinkalike.job.inputs import key_of
from thinkalike.models.load import load_model
from thinkalike.processes import Interrupted, heeded
from thinkalike.store import StoredJob

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
    files = []
    for each, name in zip(pairs, ("mnli.jsonl", "hans.txt"), strict=True):
        labels = [each.classes[label] for label in each.labels.tolist()]
        rows = zip(each.premises, each.hypotheses, labels, each.heuristics, each.subcases, strict=True)
        files.append(write(list(rows), tmp_path / name))
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


@pytest.mark.ci_slow
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
                found = class_losses(logits, pairs[0].labels, THREE, MNLI_CLASSES)
                losses[a, b, cut + 1], correct[a, b, cut + 1] = found.losses, found.correct.double()
                named = [THREE[place] for place in logits.argmax(-1).tolist()]
                predicted[a, b, cut + 1] = torch.tensor([MNLI_CLASSES.index(name) for name in named])
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


@pytest.mark.ci_slow
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


@pytest.mark.ci_slow
def test_the_challenge_is_the_part_that_is_asked_for(cli, tmp_path, pairs, members):
    result = cli("analyze.py", *command(tmp_path, pairs, members, "measure.side=challenge")).result
    hard = pairs[1].select("non-entailment", "lexical_overlap")
    assert 0 < result.provenance["pairs"]["count"] == len(hard) < len(pairs[1])
    guesses = [logits_of(loaded(folder), hard)[0].argmax(-1) for folder in members]
    expected = [(guess != THREE.index("entailment")).double().mean().item() for guess in guesses]
    found = result.table.query("source == target and cut == 0")["accuracy"]
    assert list(found) == pytest.approx(expected, abs=1e-12)


@pytest.mark.ci_slow
def test_two_class_models_are_checked_on_the_whole_challenge(cli, tmp_path, pairs):
    """On the part that is reported on they may well be wrong throughout."""
    first = write_base(tmp_path / "two", list(HANS_CLASSES))
    four = [write_sibling(tmp_path / name, first, seed) for seed, name in enumerate("abcd")]
    right = relabelled(pairs[1], loaded(first))
    kinds = [f"h{row % 5}" for row in range(len(right))]
    labels = torch.where(torch.tensor([kind == "h0" for kind in kinds]), 1 - right.labels, right.labels)
    hard = Pairs(right.premises, right.hypotheses, labels, HANS_CLASSES, kinds, right.subcases)
    asked = ["measure.side=challenge", "pairs.heuristic=h0", "pairs.label=null"]
    table = cli("analyze.py", *command(tmp_path, (pairs[0], hard), four, *asked)).result.table
    assert table.query("source == target")["accuracy"].max() < 0.2
    refused = cli("analyze.py", *command(tmp_path, (pairs[0], hard), four))
    assert "cannot be asked for ['entailment', 'neutral', 'contradiction']" in refused.error


def test_the_key_knows_how_members_run(tmp_path, pairs, members):
    kind = population.Population()

    def key(*more):
        config = composed(*command(tmp_path, pairs, members, *more), entry="analyze")
        return key_of(
            kind.kind, kind.version, kind.key_settings(config), {**kind.inputs(config), **kind.prepare(config)}
        )

    assert key("model.device=cpu", "model.dtype=float32") == key()
    assert len({key(), key("model.dtype=float64"), key("model.dtype=bfloat16"), key("model.context=16")}) == 4


def test_members_run_where_and_how_model_is_asked_to(members):
    config = composed("measure=population", "model.device=cuda:3", "++model.context=20", entry="analyze")
    stated = local(members[0], dtype="bfloat16")
    assert population.with_run_settings(stated, config) == local(
        members[0], dtype="bfloat16", device="cuda:3", context=20
    )
    assert population.with_run_settings(stated, composed("measure=population", entry="analyze")) == stated


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


ROWS, COUNT = 150, 40


@pytest.fixture(scope="module")
def models(members):
    return [load_model(local(folder)) for folder in members[:3]]


@pytest.fixture(scope="module")
def few(members):
    return relabelled(nli_training(COUNT), loaded(members[0]))


@pytest.fixture(scope="module")
def encoded(models, few):
    return encode_pairs(few, models[0].tokenizer, CONTEXT)


@pytest.fixture
def work(tmp_path):
    with contextlib.ExitStack() as opened:
        job = StoredJob(str(tmp_path), "population", "x")
        opened.enter_context(job.running())
        yield Work(job, {}, {}, opened)


def settings(**changes):
    return PopulationMeasureConfig(**{"tokens_per_batch": ROWS} | changes)


FIRST = {"tokens": "cls"}
CHOICES = {  # what CKA reads, and how the reference takes the same
    "cls": (FIRST, {"first_only": True, "batch": 10}),
    "cls, small batches": (FIRST | {"tokens_per_batch": 6, "batch": 7}, {"first_only": True, "batch": 6}),
    "some pairs": ({"cka_pairs": 24}, {"count": 24}),
    "cls of some": (FIRST | {"cka_pairs": 21}, {"first_only": True, "count": 21, "batch": 5}),
}


@pytest.fixture(scope="module")
def plain(members, few):
    return cka_of_transformers(members[:3], few, ROWS)


@pytest.mark.parametrize("choice", with_slow(CHOICES, "cls, small batches", "cls of some"))
def test_what_cka_reads_can_be_chosen(choice, members, models, few, encoded, plain):
    changes, reference = CHOICES[choice]
    found = similarity_of_members(models, encoded, settings(**changes))
    expected = cka_of_transformers(members[:3], few, **{"batch": ROWS} | reference)
    torch.testing.assert_close(found.value, expected, atol=1e-5, rtol=0)
    assert (expected - plain).abs().max() > 1e-4, "control: it is another value"
    first_only, count = reference.get("first_only", False), reference.get("count", COUNT)
    facts = {"tokens": "cls" if first_only else "all", "pairs": count, "rows_per_batch": reference.get("batch", ROWS)}
    assert found.read == facts | {"batches": len(found.hsics)}
    assert len(found.hsics) >= (4 if first_only else 1)


def interrupt(patch, at, how):
    """Let the stitches of a batch, counted from 1, be interrupted; returns a list of one entry for each batch."""
    run, calls = module.identity_stitches, []

    def stitches(*given, **more):
        calls.append(len(calls) + 1)
        if len(calls) == at:
            how()
        return run(*given, **more)

    patch.setattr(module, "identity_stitches", stitches)
    return calls


def die():
    raise RuntimeError("killed")


@pytest.mark.parametrize(("way", "left"), [("killed", 2), pytest.param("signal", 3, marks=pytest.mark.ci_slow)])
def test_interrupted_stitches_go_on_to_the_same_bits(way, left, models, encoded, few, work, monkeypatch):
    """Five batches: dying in the last leaves the three that were kept, a signal in the second leaves two."""
    monkeypatch.setattr(module, "BATCHES_PER_STATE", 3)

    def run():
        return stitched_members(models[:2], encoded, few, settings(batch=8, at_once=2), work)

    expected = run()
    shutil.rmtree(work.job.states)
    with monkeypatch.context() as patch, heeded():
        if way == "killed":
            interrupt(patch, 5, die)
            with pytest.raises(RuntimeError, match="killed"):
                run()
        else:
            interrupt(patch, 2, lambda: signal.raise_signal(signal.SIGTERM))
            with pytest.raises(Interrupted, match="interrupted at batch 2 of 5; rerun the command to resume"):
                run()
    calls = interrupt(monkeypatch, 0, die)
    found = run()
    assert len(calls) == left
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True))
