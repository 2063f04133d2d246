"""The cache of states of stimuli: each model reads them once, and no bit changes with it or without."""

import functools
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from conftest import composed
from thinkalike.config import ModelConfig
from thinkalike.data.corpus import Entry, kept
from thinkalike.data.tables import read_stimuli
from thinkalike.states import stimuli as stimuli_states
from thinkalike.states.stimuli import stimulus_states_of

ONCE = functools.cache(composed)  # most tests ask for the same job, each with a cache of its own


@pytest.fixture
def config(checkpoints, tmp_path):
    """Composes a job of stimuli on a tiny model, with a cache of its own."""

    def of(*words, family="gpt2"):
        own = ["measure=rsa", "model=local", f"model.path={checkpoints[family]}", "stimuli.sample=40"]
        job = ONCE(*own, *words, entry="analyze")
        return replace(job, data=replace(job.data, cache=f"{tmp_path}/cache"), store=f"{tmp_path}/results")

    return of


def states_of(config):
    return stimulus_states_of(config, read_stimuli(config.stimuli), config.measure.embed)


def same(one, other):
    return all(
        a.layers == b.layers and a.origin == b.origin and all(map(torch.equal, a.states, b.states))
        for a, b in zip(one, other, strict=True)
    )


def test_cached_states_have_the_same_bits_and_the_jobs_names(config, forwards, tmp_path):
    first = states_of(config())
    once = len(forwards)
    assert same(first, states_of(config()))
    (other,) = states_of(config("model.name=another"))
    assert len(forwards) == once > 0
    assert (first[0].name, other.name, other.origin["name"]) == ("gpt2", "another", "another")
    (entry,) = (tmp_path / "cache" / "states").iterdir()
    assert entry.suffix == ".safetensors"
    entry.unlink()
    assert same(first, states_of(config()))
    assert len(forwards) == 2 * once


def test_what_can_change_a_bit_is_another_entry(config, forwards, tmp_path):
    changes = ["measure.embed=true", "model.dtype=bfloat16", "stimuli.sample=30", "model.context=48", "model.bos=true"]
    for number, change in enumerate([None, *changes], 1):
        once = len(forwards)
        states_of(config(change) if change else config())
        assert len(forwards) > once, change
        assert len(list((tmp_path / "cache" / "states").iterdir())) == number


CPU = "torch.backends.cpu.get_cpu_capability"


def test_so_are_other_weights_threads_versions_and_code(config, checkpoints, monkeypatch, tmp_path):
    fingerprint = read_stimuli(config().stimuli).fingerprint()
    keys = [stimuli_states._key(config().model, fingerprint, False)]
    keys.append(stimuli_states._key(ModelConfig(name="local", path=str(checkpoints["mamba"])), fingerprint, False))
    with monkeypatch.context() as patch:
        patch.setattr(torch, "get_num_threads", lambda: 7)
        keys.append(stimuli_states._key(config().model, fingerprint, False))
    others = {f"{stimuli_states.__name__}.versions_of": lambda *_: "another", CPU: lambda: "another"}
    for place, other in {**others, f"{stimuli_states.__name__}.CODE": ("states",)}.items():
        with monkeypatch.context() as patch:
            patch.setattr(place, other)
            keys.append(stimuli_states._key(config().model, fingerprint, False))
    assert len(set(keys)) == len(keys)
    assert stimuli_states._key(config().model, fingerprint, False) == keys[0]


def computing(calls, value=1.0):
    def compute():
        calls.append(value)
        return Entry({"0": torch.full((4, 3), value), "1": torch.ones(4, 2, dtype=torch.bfloat16)}, {"layers": [0, 1]})

    return compute


def test_two_at_once_compute_it_once(tmp_path):
    calls = []
    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(kept, tmp_path / "kept" / "x.safetensors", computing(calls)) for _ in range(4)]
    found = [each.result() for each in asked]
    assert len(calls) == 1
    assert all(torch.equal(each.tensors["1"], found[0].tensors["1"]) for each in found)


def test_what_was_read_longest_ago_makes_room(tmp_path):
    calls = []

    def ask(name, when, most=700):  # an entry takes some 400 bytes with its header
        path = tmp_path / f"{name}.safetensors"
        kept(path, computing(calls), most)
        if path.exists():
            os.utime(path, (when, when))

    for when, (name, computed) in enumerate([("a", 1), ("b", 2), ("a", 2), ("c", 3), ("a", 3), ("b", 4)]):
        ask(name, when)
        assert len(calls) == computed, "b made room for c"
    for times in (1, 2):
        ask("large", 9, most=10)
        assert len(calls) == 4 + times, "what is larger than all may be is not kept"
