"""models=[a,b,c]: all pairs in one pass, each model once, and every pair to the bit as if computed alone."""

import contextlib
import itertools
import re
import signal

import numpy as np
import pytest
import torch

import tiny
from conftest import composed, results_in, with_ci_slow
from one_pass import list_of, results
from thinkalike.errors import ConfigError
from thinkalike.instruments import asked_for
from thinkalike.measures import LayerMeans, MutualKNN, gram_statistics
from thinkalike.measures import neighbours as mutual
from thinkalike.measures.contract import Batch
from thinkalike.measures.metric import CKA


@pytest.fixture
def words(text_files, tmp_path):
    """The command line of a small job, models and measure apart."""
    small = ["measure.batches=10", "measure.tokens_per_batch=128", "model.context=32"]
    data = [
        "data=text",
        f"data.files=[{text_files}/*.txt]",
        "data.evaluation_share=0.5",
        f"data.cache={tmp_path}/cache",
    ]
    return [*small, *data]


@pytest.fixture
def chosen(minis):
    """The words that choose each of three models alone, by name."""
    names = sorted(path.name for path in minis.iterdir())
    return {name: ["model=gelu-3l-mini", f"model.path={minis}/{name}", f"model.name={name}"] for name in names}


def as_target(words):
    """The words that choose a model as the target, of those that choose it as the source."""
    return [
        word.replace("model=", "model@target=") if word.startswith("model=") else f"target{word[5:]}" for word in words
    ]


def same(one, other):
    """Two results of one key and of the same numbers, to the bit."""
    assert one.key == other.key
    assert (one.folder / "table.csv").read_bytes() == (other.folder / "table.csv").read_bytes()
    assert all(np.array_equal(other.arrays[key], values) for key, values in one.arrays.items())


MEASURES = {
    "cka": ["measure=cka", "measure.null=true", "measure.permutations=1"],
    "mutual_knn": ["measure=mutual_knn"],
    "given": ["measure=cka", "measure.conditional_on=token", "measure.tokens_per_batch=512", "measure.batches=5"],
}


@pytest.mark.parametrize("name", with_ci_slow(MEASURES, "cka", "given"))
def test_pairs_have_the_bits_of_each_alone_in_one_pass(name, cli, words, chosen, minis, forwards, tmp_path):
    words = [*words, *MEASURES[name]]
    together = cli("analyze.py", *words, list_of(minis, chosen), f"store={tmp_path}/together")
    batches = 5 if name == "given" else 10
    assert len(forwards) == batches * len(chosen), "each model once for each batch"
    assert len({module for module, *_ in forwards}) == len(chosen)
    for source, target in itertools.combinations(chosen.values(), 2):
        cli("analyze.py", *words, *source, *as_target(target), f"store={tmp_path}/alone")
    assert len(forwards) == 3 * batches * len(chosen), "alone each of three models runs in two pairs"
    done = {result.key: result for result in results(together)}
    alone = results_in(tmp_path / "alone")
    assert len(alone) == len(done) == 3
    for result in alone:
        same(done[result.key], result)
        assert done[result.key].config | {"store": ""} == result.config | {"store": ""}
        assert done[result.key].provenance["models"] == result.provenance["models"]
        assert done[result.key].provenance["jobs_in_this_pass"] == 3


@pytest.mark.ci_slow
def test_only_pairs_with_massive_tokens_have_values_with_them(cli, words, minis, tmp_path):
    (tmp_path / "all").mkdir()
    for name in "ab":
        (tmp_path / "all" / name).symlink_to(minis / name)
    tiny.massive(tmp_path / "all" / "massive", seed=3)
    few = [*(word for word in words if "context" not in word), "measure=cka", "model.context=64", "measure.batches=5"]
    together = cli("analyze.py", *few, list_of(tmp_path / "all", ["a", "b", "massive"]), f"store={tmp_path}/together")
    plain, *beside = results(together)
    assert "including_massive_activations" not in plain.details
    for name, result in zip("ab", beside, strict=True):
        two = [f"model.path={minis}/{name}", f"target.path={tmp_path}/all/massive", f"model.name={name}"]
        two += ["model=gelu-3l-mini", "model@target=gelu-3l-mini", "target.name=massive", "target.context=64"]
        same(result, cli("analyze.py", *few, *two, f"store={tmp_path}/alone").result)
        values = result.details[["value", "including_massive_activations"]].dropna()
        assert len(values) == 4 * 4
        assert (values["value"] - values["including_massive_activations"]).abs().min() > 0.01


@pytest.mark.slow
def test_a_finished_pair_is_kept_and_the_rest_computed(cli, words, chosen, minis, forwards, tmp_path):
    words = [*words, "measure=cka", f"store={tmp_path}/results"]
    first, _, third = chosen.values()
    before = cli("analyze.py", *words, *first, *as_target(third)).result
    stamp = (before.folder / "result.json").stat().st_mtime_ns
    forwards.clear()
    done = cli("analyze.py", *words, list_of(minis, chosen))
    assert done.stderr.count("already done") == 1
    assert results(done)[1].folder == before.folder
    assert (before.folder / "result.json").stat().st_mtime_ns == stamp
    assert len(forwards) == 10 * 3
    assert cli("analyze.py", *words, list_of(minis, chosen)).stderr.count("already done") == 3
    assert len(forwards) == 10 * 3
    forced = cli("analyze.py", *words, list_of(minis, list(chosen)[:2]), "force=true")
    assert len(results(forced)) == 1
    assert len(forwards) == 10 * 3 + 10 * 2


@pytest.mark.slow
def test_models_whose_contexts_differ_get_the_rows_of_each_pair(cli, words, checkpoints, minis, tmp_path, forwards):
    """A pair reads rows of the shorter context: the third model makes no pair read other rows than alone."""
    rest = [*(word for word in words if "context" not in word), "measure=cka"]
    entries = [("gpt_neox", 64), ("gpt2", 64), ("mamba", 16)]
    listed = ",".join(f"{{model:'{checkpoints[name]}',context:{context}}}" for name, context in entries)
    together = cli("analyze.py", *rest, f"models=[{listed}]", f"store={tmp_path}/together")
    shapes = [shape for _, shape, _ in forwards if shape[0] > 1 and shape[0] * shape[1] == 128]
    assert sorted(shapes) == sorted([(2, 64)] * 20 + [(8, 16)] * 30), "two models at 64, and all three at 16"
    apart = [
        [f"model=local model.path={checkpoints[name]} model.context={context}".split() for name, context in pair]
        for pair in itertools.combinations(entries, 2)
    ]
    for result, (source, target) in zip(results(together), apart, strict=True):
        same(result, cli("analyze.py", *rest, *source, *as_target(target), f"store={tmp_path}/alone").result)


@pytest.mark.slow
def test_pairs_at_different_batches_resume_to_the_same_bits(cli, words, chosen, minis, tmp_path, monkeypatch):
    from thinkalike.instruments.layer_pairs import comparison

    monkeypatch.setattr("thinkalike.states.batches.POOL_TOKENS", 256)  # of two batches
    words = [*words, "measure=cka", "measure.batches=20"]
    whole = results(cli("analyze.py", *words, list_of(minis, chosen), f"store={tmp_path}/whole"))
    monkeypatch.setattr(comparison, "KEPT_EVERY", 2)
    stopped = f"store={tmp_path}/stopped"
    _, second, third = chosen.values()
    with interrupted_at(5):
        assert cli("analyze.py", *words, *second, *as_target(third), stopped).status == 128 + signal.SIGTERM
    with interrupted_at(3):
        ended = cli("analyze.py", *words, list_of(minis, chosen), stopped)
    assert ended.status == 128 + signal.SIGTERM
    assert "interrupted at pool 3 of 10" in ended.stderr
    assert not results_in(tmp_path / "stopped")
    resumed = cli("analyze.py", *words, list_of(minis, chosen), stopped)
    assert resumed.stderr.count("resuming from") == 3
    for one, other in zip(whole, results(resumed), strict=True):
        same(one, other)


@contextlib.contextmanager
def interrupted_at(pools):
    """Let a signal wait after so many pools of a job."""
    calls = itertools.count(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("thinkalike.instruments.layer_pairs.comparison.asked", lambda: next(calls) == pools)
        patch.setattr("thinkalike.processes._waiting_signal", signal.SIGTERM)
        yield


@pytest.mark.ci_slow
def test_a_pair_that_fails_leaves_the_others_and_is_reported(cli, words, minis, tmp_path):
    (tmp_path / "all").mkdir()
    for name, place in {"a": minis / "a", "b": minis / "b", "flat": tiny.flat(tmp_path / "flat")}.items():
        (tmp_path / "all" / name).symlink_to(place)
    listed = list_of(tmp_path / "all", ["a", "flat", "b"])
    refused = cli("analyze.py", *words, "measure=cka", listed, f"store={tmp_path}/results")
    assert refused.status == 1
    assert len(re.findall(r"error: batch 0 of \w+ \(source\) and \w+ \(target\)", refused.stderr)) == 2
    (result,) = results_in(tmp_path / "results")
    assert [model["name"] for model in result.provenance["models"]] == ["a", "b"]
    assert not list((tmp_path / "results" / "cka").glob("*.partial"))


TWO = "models=[gpt2-mini,bert-mini]"
REFUSED = {
    "one model": (["measure=cka", "models=[gpt2-mini]"], "models="),
    "twice": (["measure=loss", "models=[gpt2-mini,{model:gpt2-mini}]"], "gpt2-mini"),
    "unknown": (["measure=cka", "models=[gpt2-mini,bert-mani]"], "bert-mani"),
    "model": (["measure=cka", TWO, "model=mamba-mini"], "model.name=mamba-mini"),
    "its setting": (["measure=cka", TWO, "target.dtype=float64"], "target.dtype=float64"),
    "activations": (["measure=cka", TWO, "activations=x.npz"], "models="),
    "no such setting": (["measure=cka", "models=[gpt2-mini,{model:bert-mini,sise:3}]"], "sise"),
}  # fmt: skip


@pytest.mark.parametrize(("words", "named"), REFUSED.values(), ids=REFUSED)
def test_a_list_that_cannot_be_is_refused_by_its_name(words, named):
    with pytest.raises(ConfigError, match=named):
        asked_for(composed(*words, entry="analyze"))


def test_models_are_taken_singly_or_in_all_pairs():
    both = {}
    for measure in ("loss", "mlem", "rsa"):
        jobs = asked_for(composed(f"measure={measure}", TWO, entry="analyze"))
        both[measure] = [(job.model.name, job.target.name) for job in jobs]
    each, pairs = [("gpt2-mini", "gpt2-mini"), ("bert-mini", "bert-mini")], [("gpt2-mini", "bert-mini")]
    assert both == {"loss": each, "mlem": each, "rsa": pairs}


def test_entries_are_names_repositories_folders_and_settings(tmp_path):
    odd = tmp_path / "it's, [a] folder="
    odd.mkdir()
    listed = f"""models=[gelu-3l,ORG/NAME,"{odd}",{{model:pythia-70m-deduped,revision:step1000}}]"""
    jobs = asked_for(composed("measure=cka", listed, "model.dtype=bfloat16", "seed=3", entry="analyze"))
    assert len(jobs) == 6
    first, last = jobs[0].model, jobs[-1].target
    assert (first.name, jobs[0].target.hub_id, jobs[1].target.path) == ("gelu-3l", "ORG/NAME", str(odd))
    assert (last.name, last.revision) == ("pythia-70m-deduped", "step1000")
    assert {model.dtype for job in jobs for model in (job.model, job.target)} == {"bfloat16"}
    assert {job.seed for job in jobs} == {3}
    assert all(job.models is None for job in jobs)
    assert jobs[0].data.name == "c4-code", "what suits the source"


@pytest.mark.slow
def test_two_processes_share_all_pairs_and_give_the_bits_of_one(cli):
    words = ["measure=cka", "models=[gelu-3l-mini,solu-3l-mini,gelu-4l-mini]", "measure.batches=9"]
    words += ["measure.tokens_per_batch=4096", "model.device=cpu"]
    shared = results(cli.process("analyze.py", *words, "trainer=ddp", "trainer.devices=2", "store=two"))
    for one, other in zip(shared, results(cli("analyze.py", *words, "store=one")), strict=True):
        same(one, other)


DEVICES = [["cuda:0", "cpu"], ["cpu", "cuda:0"], ["cuda:0", "cuda:1"]]


@pytest.mark.gpu
@pytest.mark.parametrize("devices", DEVICES, ids="-".join)
@pytest.mark.parametrize("measure", ["cka", "mutual_knn", "rsa"])
def test_each_model_on_a_device_of_its_own(measure, devices, cli, words, chosen, tmp_path):
    there = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    if not set(devices) <= {"cpu", *there}:
        pytest.skip(f"this machine has no {' and '.join(devices)}")
    first, second, _ = chosen.values()
    own = words if measure in ("cka", "mutual_knn") else []
    more = ["stimuli.sample=60"] if measure == "rsa" else []
    pair = [*own, f"measure={measure}", *first, *as_target(second), *more]
    placed = [f"model.device={devices[0]}", f"target.device={devices[1]}", f"store={tmp_path}/apart"]
    apart = cli("analyze.py", *pair, *placed).result
    alone = cli("analyze.py", *pair, "model.device=cpu", "target.device=cpu", f"store={tmp_path}/cpu").result
    assert [model["device"] for model in apart.provenance["models"]] == devices
    assert (apart.details["value"] - alone.details["value"]).abs().max() < 1e-3


def test_a_setting_of_one_model_is_that_of_no_other():
    listed = "models=[{model:gelu-3l-mini,dtype:float64,context:32},solu-3l-mini,{model:gelu-4l-mini,device:cpu}]"
    first, second, third = asked_for(composed("measure=cka", listed, "model.context=48", entry="analyze"))
    assert (first.model, first.target, second.target) == (second.model, third.model, third.target)
    facts = [(each.dtype, each.context, each.device) for each in (first.model, first.target, second.target)]
    assert facts == [("float64", 32, "auto"), ("float32", 48, "auto"), ("float32", 48, "cpu")]


WIDTHS = [(24, 40), (7, 33, 16), (64,)]  # three models of different depths and widths
SIDES = [*itertools.combinations_with_replacement(range(3), 2), (2, 0)]


def drawn(n=150, dtype=torch.float32):
    """States of three models that share some dimensions, tokens and a mask."""
    base = torch.randn(n, 6, dtype=torch.float64)
    models = [[base @ torch.randn(6, d).double() + torch.randn(n, d) for d in widths] for widths in WIDTHS]
    return [[x.to(dtype) for x in layers] for layers in models], torch.randint(5, (n,)), torch.rand(n) < 0.9


def depths(side):
    return [len(WIDTHS[model]) for model in side]


def agree(one, other):
    """Two metrics hold the same batches to the bit."""
    found, expected = one.gathered(), other.gathered()
    assert found.keys() == expected.keys()
    assert all(torch.equal(each, expected[name]) for name, each in found.items())


@pytest.mark.parametrize(
    ("n", "null", "given"),
    [
        (150, 0, "none"),
        (601, 2, "none"),
        pytest.param(150, 2, "token", marks=pytest.mark.ci_slow),
        pytest.param(601, 0, "token", marks=pytest.mark.ci_slow),
    ],
)
def test_a_pair_of_three_models_has_the_bits_of_the_pair_alone(n, null, given):
    metrics, alones = (
        [CKA(*depths(side), conditional_on=given, permutations=null) for side in SIDES] for _ in range(2)
    )
    for number in range(2):
        states, tokens, mask = drawn(n)
        states[0][1] = states[0][1].bfloat16()
        groups = tokens if given == "token" else None
        metrics[0].gather(Batch(states, mask, number, groups), metrics, SIDES)
        for (source, target), metric, alone in zip(SIDES, metrics, alones, strict=True):
            alone.update([x.clone() for x in states[source]], [x.clone() for x in states[target]], mask, number, groups)
            agree(alone, metric)


def test_each_gram_is_made_once_however_many_pairs(monkeypatch):
    counts, product = [], torch.mm
    monkeypatch.setattr(torch, "mm", lambda *args, **options: counts.append(1) or product(*args, **options))
    states, *_ = drawn(gram_statistics.CPU_TILE.step)
    metrics = [CKA(*depths(side)) for side in SIDES]
    metrics[0].gather(Batch(states), metrics, SIDES)
    assert len(counts) == sum(map(len, WIDTHS))


@pytest.mark.ci_slow
@pytest.mark.parametrize("given", ["none", "token"])
def test_neighbours_of_a_pair_are_those_of_the_pair_alone(given, monkeypatch):
    def new(side):
        return LayerMeans(*depths(side), MutualKNN(5), **({"conditional_on": given} if given == "token" else {}))

    monkeypatch.setattr(mutual, "MEMBERSHIPS_AT_ONCE", 5000)
    monkeypatch.setattr(mutual, "SIMILARITIES_AT_ONCE", 3000)
    metrics = [new(side) for side in SIDES]
    for number in range(2):
        states, tokens, mask = drawn()
        groups = {"groups": tokens} if given == "token" else {}
        metrics[0].gather(Batch(states, mask, number, **groups), metrics, SIDES)
        for (source, target), metric in zip(SIDES, metrics, strict=True):
            alone = new((source, target))
            alone.update(states[source], [x.clone() for x in states[target]], mask, number, **groups)
            assert torch.equal(metric.values[number], alone.values[0])
    assert {metric.compute().batches for metric in metrics} == {2}
    if given == "token":
        assert all(metric.compute().rows_used == metrics[0].compute().rows_used > 0.5 for metric in metrics)
