"""What every two members of a population do together: CKA of what is asked for, and jobs that go on after signals."""

import contextlib
import shutil
import signal

import pytest
import torch

from classifiers import CONTEXT, THREE, cka_of_transformers, loaded, local, relabelled, write_base, write_sibling
from thinkalike.contrib.populations import members as module
from thinkalike.contrib.populations.members import likeness_of_members, stitched_members
from thinkalike.contrib.populations.pairs import encode
from thinkalike.contrib.populations.population import PopulationMeasureConfig
from thinkalike.contrib.populations.templates import nli_training
from thinkalike.job import Work
from thinkalike.models.load import load_model
from thinkalike.processes import Interrupted, heeded
from thinkalike.store import Job

BATCH, COUNT = 150, 40


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    root = tmp_path_factory.mktemp("population")
    base = write_base(root / "base", THREE)
    return [write_sibling(root / name, base, seed) for seed, name in enumerate("abc")]


@pytest.fixture(scope="module")
def models(members):
    return [load_model(local(folder)) for folder in members]


@pytest.fixture(scope="module")
def pairs(members):
    return relabelled(nli_training(COUNT), loaded(members[0]))


@pytest.fixture(scope="module")
def encoded(models, pairs):
    return encode(pairs, models[0].tokenizer, CONTEXT)


@pytest.fixture
def work(tmp_path):
    with contextlib.ExitStack() as opened:
        job = Job(str(tmp_path), "population", "x")
        opened.enter_context(job.running())
        yield Work(job, {}, {}, opened)


def settings(**changes):
    return PopulationMeasureConfig(**{"tokens_per_batch": BATCH} | changes)


FIRST = {"tokens": "cls"}
CHOICES = {  # what CKA reads, and how the reference takes the same
    "cls": (FIRST, {"first_only": True, "batch": 10}),
    "cls, small batches": (FIRST | {"tokens_per_batch": 6, "batch": 7}, {"first_only": True, "batch": 6}),
    "padding": ({"include_padding": True, "padding": 60, "batch": 9}, {"length": 60}),
    "padding of some": ({"include_padding": True, "padding": 64, "cka_pairs": 20}, {"length": 64, "count": 20}),
    "what blocks add": ({"site": "update"}, {"site": "update"}),
    "some pairs": ({"cka_pairs": 24}, {"count": 24}),
    "cls of some": (FIRST | {"cka_pairs": 21}, {"first_only": True, "count": 21, "batch": 5}),
}


@pytest.fixture(scope="module")
def plain(members, pairs):
    return cka_of_transformers(members, pairs, BATCH)


@pytest.mark.parametrize("choice", CHOICES)
def test_what_cka_reads_can_be_chosen(choice, members, models, pairs, encoded, work, plain):
    changes, reference = CHOICES[choice]
    found = likeness_of_members(models, encoded, settings(**changes), work)
    expected = cka_of_transformers(members, pairs, **{"batch": BATCH} | reference)
    torch.testing.assert_close(found.value, expected, atol=1e-5, rtol=0)
    assert (expected - plain).abs().max() > 1e-4, "control: it is another value"
    first_only, count = reference.get("first_only", False), reference.get("count", COUNT)
    facts = {"tokens": "cls" if first_only else "all", "pairs": count, "rows_per_batch": reference.get("batch", BATCH)}
    assert found.facts == facts | {"batches": len(found.hsics)}
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


@pytest.mark.parametrize(("way", "left"), [("killed", 2), ("signal", 3)])
def test_interrupted_stitches_go_on_to_the_same_bits(way, left, models, encoded, pairs, work, monkeypatch):
    """Five batches: dying in the last leaves the three that were kept, a signal in the second leaves two."""
    monkeypatch.setattr(module, "KEPT_EVERY", 3)

    def run():
        return stitched_members(models[:2], encoded, pairs, settings(batch=8, at_once=2), work)

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
