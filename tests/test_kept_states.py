"""The cache of states of stimuli: each model reads them once, and no bit changes with it or without."""

import functools
import os
import threading
from dataclasses import replace

import pytest
import torch

from conftest import composed
from thinkalike import papers
from thinkalike.config import ModelConfig
from thinkalike.data import read_stimuli
from thinkalike.instruments import run_jobs
from thinkalike.models import FrozenModel
from thinkalike.papers.experiment import job_of
from thinkalike.states import kept, stimulus_states_of
from thinkalike.states.kept import KeptStates, kept_states


@pytest.fixture
def passes(monkeypatch):
    """Counts how often models read texts, without the proof at load."""
    counted = []
    residuals = FrozenModel.residuals

    def run(self, tokens, *rest):
        if tokens.shape != (2, 16):
            counted.append(self.name)
        return residuals(self, tokens, *rest)

    monkeypatch.setattr(FrozenModel, "residuals", run)
    return counted


@pytest.fixture
def table(tmp_path):
    """A small table of words with two features."""
    path = tmp_path / "words.csv"
    rows = [f"{'abc'[i % 3]}{'de'[i % 2]} fg,{'abc'[i % 3]}{'de'[i % 2]},0,{i % 3},{i % 2}" for i in range(24)]
    path.write_text("text,word,position,first,second\n" + "\n".join(rows) + "\n")
    return path


ONCE = functools.cache(composed)  # most tests ask for the same job, each with a cache of its own


@pytest.fixture
def config(checkpoints, tmp_path):
    """Composes a job of stimuli on a tiny model, with a cache of its own."""

    def of(*words, family="gpt2"):
        own = ["measure=rsa", "model=local", f"model.path={checkpoints[family]}", "stimuli.sample=40"]
        job = ONCE(*own, *words, door="analyze")
        return replace(job, data=replace(job.data, cache=f"{tmp_path}/cache"), store=f"{tmp_path}/results")

    return of


def states_of(config):
    return stimulus_states_of(config, read_stimuli(config.stimuli), config.measure.embed)


def same(one, other):
    return all(
        a.layers == b.layers and a.origin == b.origin and all(map(torch.equal, a.states, b.states))
        for a, b in zip(one, other, strict=True)
    )


def test_states_come_from_the_cache_with_the_same_bits(config, passes, tmp_path):
    first = states_of(config())
    once = len(passes)
    again = states_of(config())
    assert len(passes) == once > 0
    assert same(first, again)
    (entry,) = (tmp_path / "cache" / "states").iterdir()
    assert entry.suffix == ".safetensors"
    entry.unlink()
    assert same(first, states_of(config()))
    assert len(passes) == 2 * once


def test_a_name_is_of_the_job_and_not_of_the_entry(config, passes):
    (first,) = states_of(config())
    once = len(passes)
    (other,) = states_of(config("model.name=another"))
    assert len(passes) == once
    assert (first.name, other.name, other.origin["name"]) == ("gpt2", "another", "another")


CHANGES = {
    "site": ["measure.embed=true"],
    "dtype": ["model.dtype=bfloat16"],
    "stimuli": ["stimuli.sample=30"],
    "context": ["model.context=48"],
    "bos": ["model.bos=true"],
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_can_change_a_bit_is_another_entry(change, config, passes, tmp_path):
    states_of(config())
    once = len(passes)
    states_of(config(*CHANGES[change]))
    assert len(passes) > once
    assert len(list((tmp_path / "cache" / "states").iterdir())) == 2


def test_so_are_other_weights_threads_versions_and_code(config, checkpoints, monkeypatch, tmp_path):
    fingerprint = read_stimuli(config().stimuli).fingerprint()
    keys = [kept._key(config().model, fingerprint, False)]
    keys.append(kept._key(ModelConfig(name="local", path=str(checkpoints["mamba"])), fingerprint, False))
    with monkeypatch.context() as patch:
        patch.setattr(torch, "get_num_threads", lambda: 7)
        keys.append(kept._key(config().model, fingerprint, False))
    for function in ("_versions", "_code", "_processor"):
        with monkeypatch.context() as patch:
            patch.setattr(kept, function, lambda: "another")
            keys.append(kept._key(config().model, fingerprint, False))
    assert len(set(keys)) == len(keys)
    assert kept._key(config().model, fingerprint, False) == keys[0]


@pytest.mark.parametrize("damage", [b"", b"no safetensors", None])
def test_a_damaged_entry_is_computed_anew(damage, config, passes, caplog, tmp_path):
    first = states_of(config())
    once = len(passes)
    (entry,) = (tmp_path / "cache" / "states").iterdir()
    whole = entry.read_bytes()
    entry.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]) if damage is None else damage)
    assert same(first, states_of(config()))
    assert len(passes) == 2 * once
    assert "are damaged" in caplog.text
    assert entry.read_bytes() == whole


def computing(calls, value=1.0):
    def compute():
        calls.append(value)
        return KeptStates([torch.full((4, 3), value), torch.ones(4, 2, dtype=torch.bfloat16)], {"layers": [0, 1]})

    return compute


@pytest.mark.parametrize("what", ["a file", "a full disk"])
def test_where_it_cannot_be_written_work_goes_on(what, config, caplog, monkeypatch, tmp_path):
    calls, folder = [], tmp_path / "kept"
    if what == "a file":
        folder.write_text("")
    else:

        def full(*_, **__):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(kept, "save_file", full)
    for _ in range(2):
        states, about = kept_states(folder, config().model, "x", False, computing(calls))
        assert (float(states[0].sum()), about) == (12, {"layers": [0, 1]})
    assert len(calls) == 2
    assert "going on without it" in caplog.text
    assert not list(tmp_path.glob("kept/*.aside"))


def test_two_at_once_compute_it_once(config, tmp_path):
    calls, found, model = [], [], config().model

    def ask():
        found.append(kept_states(tmp_path / "kept", model, "x", False, computing(calls)))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    assert all(torch.equal(each.states[1], found[0].states[1]) for each in found)


def test_what_was_read_longest_ago_makes_room(config, monkeypatch, tmp_path):
    monkeypatch.setattr(kept, "LARGEST", 700)  # an entry takes some 400 bytes with its header
    folder, model, calls = tmp_path / "kept", config().model, []

    def ask(stimuli, when):
        kept_states(folder, model, stimuli, False, computing(calls))
        path = folder / f"{kept._key(model, stimuli, False)}.safetensors"
        os.utime(path, (when, when))

    ask("a", 1)
    ask("b", 2)
    ask("a", 3)
    assert len(calls) == 2
    ask("c", 4)
    ask("a", 5)
    assert len(calls) == 3, "b made room"
    ask("b", 6)
    assert len(calls) == 4
    monkeypatch.setattr(kept, "LARGEST", 10)
    ask_large = computing(calls)
    kept_states(folder, model, "large", False, ask_large)
    kept_states(folder, model, "large", False, ask_large)
    assert len(calls) == 6, "what is larger than all may be is not kept"


@pytest.mark.slow
def test_the_jobs_of_a_figure_of_layers_run_each_model_once(passes, tmp_path):
    words = ["experiment=salle2024/figure2", "scale=mini", f"store={tmp_path}/r", f"data.cache={tmp_path}/c"]
    small = ["stimuli.sample=60", "measure.folds=2", "measure.permutations=1", "measure.ceilings=0"]
    config = composed(*words, *small, door="analyze")
    experiment = papers.experiment_named("salle2024/figure2")
    case = experiment.case(config)
    jobs = [job_of(config, part) for part in experiment.parts(case)]
    assert len(jobs) == 6 + 15
    run_jobs(jobs)
    assert len(case.models) == len(set(passes)) == 6
    assert len(passes) == 6 * (len(passes) // 6)
    assert max(passes.count(name) for name in set(passes)) == min(passes.count(name) for name in set(passes)) == 1
