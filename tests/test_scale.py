"""What a job takes, told before it starts: shapes, operations against torch's counter, the dry run, and the page."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import tiny
from thinkalike.config import AnalyzeConfig, ModelConfig, StitchConfig, TrainConfig, TrainerConfig, compose_job
from thinkalike.errors import ConfigError, ModelError
from thinkalike.forecast import SHARE, forecast, hours_on
from thinkalike.forecast.screen import summary
from thinkalike.instruments import instrument_of
from thinkalike.instruments.operations import classifiers, layer_pairs, stimuli, stitches, transfer
from thinkalike.instruments.transfer.prompts import Prompts, steered_gaps
from thinkalike.job import Phase, estimate, together, total
from thinkalike.job.operations import speeds
from thinkalike.measures import CKA, BatchMeans, LayerPredictions, Moments, mantel, mutual_knn_matrix, rsa_estimate
from thinkalike.models import load_model, new_shape, operations, precision_of, shape_of
from thinkalike.training import StitchTraining, step_operations

PYTHIAS = {  # published parameters: table 1 of Biderman et al. 2023, in all and without embeddings
    "pythia-70m-deduped": (70_426_624, 18_915_328),
    "pythia-410m-deduped": (405_334_016, 302_311_424),
    "pythia-6.9b-deduped": (6_857_302_016, 6_444_163_072),
    "pythia-12b-deduped": (11_846_072_320, 11_327_027_200),
}


def counted(work) -> int:
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


def states(layers, n, d):
    return [torch.randn(n, d) for _ in range(layers)]


# -------------------------------------------------------------------------------------------------------------- shapes


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_shape_is_that_of_the_model_that_is_loaded(checkpoints, family):
    config = ModelConfig(name="local", path=str(checkpoints[family]))
    shape, model = shape_of(config), load_model(config)
    assert (shape.layers, shape.width, shape.vocabulary) == (model.n_layers, model.d_model, model.vocabulary)
    assert shape.parameters == model.parameters()[0]
    assert shape.bytes == 4 * shape.parameters
    assert shape.operations == operations(model)
    assert shape.context == model.context
    assert shape_of(replace(config, dtype="bfloat16")).bytes == 2 * shape.parameters


@pytest.mark.parametrize("name", ["gelu-3l-mini", "bert-mini"])
def test_a_shape_is_that_of_a_mini(name):
    config = compose_job("train", [f"model={name}"]).model
    shape, model = shape_of(config), load_model(config)
    assert (shape.layers, shape.width, shape.vocabulary) == (model.n_layers, model.d_model, model.vocabulary)
    assert (shape.parameters, shape.operations) == (model.parameters()[0], operations(model))
    assert new_shape(config, shape.vocabulary).parameters == shape.parameters


@pytest.mark.parametrize("name", PYTHIAS)
def test_published_sizes_give_published_parameters(name):
    whole, inner = PYTHIAS[name]
    shape = shape_of(compose_job("train", [f"model={name}"]).model)
    assert shape.parameters == whole
    assert shape.parameters - 2 * shape.vocabulary * shape.width == inner


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("gpt2", 124.4),
        ("bert-base-uncased", 109.5),
        ("mamba-130m", 129.1),
        ("llama-3.2-1b", 1236),
        ("gpt2-medium", 354.8),
    ],
)
def test_published_sizes_of_other_models_too(name, millions):
    assert shape_of(compose_job("train", [f"model={name}"]).model).parameters / 1e6 == pytest.approx(millions, rel=2e-3)


def test_a_model_that_nothing_here_tells_has_no_shape(tmp_path):
    assert shape_of(ModelConfig(name="hub", hub_id="some/where")) is None
    (tmp_path / "config.json").write_text("{damaged")
    assert shape_of(ModelConfig(name="local", path=str(tmp_path))) is None
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "no such thing"}))
    assert shape_of(ModelConfig(name="local", path=str(tmp_path))) is None


# ---------------------------------------------------------------------------------------------------------- operations


@pytest.mark.parametrize(("source", "target"), [((16, 16), (32, 32, 32)), ((64,) * 4, (24,)), ((16, 16, 16), None)])
def test_comparing_a_batch_takes_what_the_counter_of_torch_counts(source, target):
    n, counts = 256, (len(source), len(target or source))
    mine = states(counts[0], n, source[0])
    theirs = states(counts[1], n, target[0]) if target else mine
    grams = counted(lambda: CKA(*counts, sync_on_compute=False).update(mine, theirs))
    assert layer_pairs.of_grams(n, source, target) == pytest.approx(grams, rel=0.01)
    knn = BatchMeans(*counts, partial(mutual_knn_matrix, k=10), False)
    assert layer_pairs.of_neighbours(n, source, target) == counted(lambda: knn.update(mine, theirs, None, 0))
    r2 = LayerPredictions(*counts, fit_batches=1, given="none", ridge=1e-3)
    fit, judge = layer_pairs.of_prediction(n, source, target)
    assert fit == counted(lambda: r2.update(mine, theirs, None, 0))
    r2.update(mine, theirs, None, 1)
    assert judge == counted(lambda: r2.update(mine, theirs, None, 2))


def test_similarity_takes_what_the_counter_of_torch_counts():
    n, layers, groups = 60, states(3, 60, 16), torch.arange(60) // 4
    own = counted(
        lambda: rsa_estimate(layers, groups=groups, folds=10, seed=0, distance="euclidean", comparator="spearman")
    )
    assert stimuli.of_similarity(n, 3, 10, 0) == own
    permuted = counted(lambda: mantel(layers, None, "euclidean", 5, 0, "spearman"))
    assert stimuli.of_similarity(n, 3, 10, 5) == own + permuted


def test_distances_are_products_of_all_states():
    x = torch.randn(60, 16)
    assert stimuli.of_distances(60, [16]) == counted(lambda: x @ x.T)


def test_encoding_grows_as_its_formula_says():
    pairs, held_out = 60 * 59 / 2, 12 * 11 / 2
    assert stimuli.of_encoding(60, 4, 3, 5, 2) == 36 * pairs * 4 * 10 + 5 * 9 * 2 * held_out * 4 * 3
    assert stimuli.of_encoding(60, 4, 3, 5, 2, null=3) == 4 * stimuli.of_encoding(60, 4, 3, 5, 2)


def test_maps_take_what_the_counter_of_torch_counts():
    moments, x, y = Moments([(0, 0)]), torch.randn(100, 24), torch.randn(100, 16)
    assert transfer.of_maps(100, 24, 16) == counted(lambda: moments.update([x], [y]))


@pytest.mark.parametrize("depth", [0, 2, 3])
def test_steering_takes_what_the_counter_of_torch_counts(depth):
    """Texts of six tokens, one at a time of those that run together; vectors come after their word's last token."""
    model = tiny.frozen()
    rows, every = torch.randint(len(tiny.tokenizer()), (5, 6)), torch.ones(5, model.vocabulary, dtype=torch.bool)
    prompts = Prompts(rows, torch.full((5,), 2), torch.full((5,), 5), every, every)
    vectors = torch.randn(4, 5, model.d_model)
    passes = counted(lambda: steered_gaps(model, prompts, depth, vectors))
    assert transfer.of_steering(operations(model), [depth], 5, 6, 4) == passes


def test_probes_take_a_step_of_every_penalty_on_every_fold():
    """Of n stimuli a step multiplies four times n d k; of three folds two are fitted on, and of two of these one."""
    one = 4.0 * 30 * 8 * 5 * transfer.STEPS
    assert transfer.of_probes([(30, 5)], [8], 3, 1, 2) == 2 * one
    assert transfer.of_probes([(30, 5)], [8], 3, 4, 2) == 2 * (4 + 1) * one
    assert transfer.of_probes([(30, 5), (60, 5)], [8, 8], 3, 1, 2) == 2 * 6 * one


def test_identity_stitches_run_every_tail_for_every_two_members():
    """From cut c on, c = -1..L-1, the blocks that are left run for each of m² pairs, and each source runs once."""
    m, layers, tokens, block = 3, 4, 10.0, 7.0
    tails = sum(m * m * left * block for left in range(layers + 1))
    assert classifiers.of_identity_stitches(m, layers, tokens, layers * block) == tokens * (tails + m * layers * block)


def test_training_takes_what_the_counter_of_torch_counts():
    module = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Linear(32, 8))
    x, count = torch.randn(16, 8, requires_grad=True), sum(p.numel() for p in module.parameters() if p.dim() > 1)
    assert classifiers.of_training(16.0, float(count)) == counted(lambda: module(x).sum().backward())


def test_pairs_of_the_challenge_are_those_of_the_part():
    pairs = compose_job("analyze", ["measure=population", "population=feather-berts", "pairs=mnli"]).pairs
    assert classifiers.pairs_of(pairs, "report") == 9815
    assert classifiers.pairs_of(pairs, "challenge") == 5000
    assert classifiers.pairs_of(replace(pairs, label=None), "challenge") == 10_000
    assert classifiers.pairs_of(replace(pairs, report_pairs=70), "report") == 70


@pytest.mark.parametrize("stitch", [{}, {"rates": [0.5]}, {"floor": False}, {"kind": "low_rank", "rank": 4}])
def test_training_in_a_forecast_is_that_of_the_steps(checkpoints, stitch):
    paths = [ModelConfig(name="local", path=str(checkpoints[name])) for name in ("gpt_neox", "gpt2")]
    config = TrainConfig(*["stitch"], *paths, stitch=StitchConfig(steps=3, warmup=1, tokens_per_step=256, **stitch))
    phases = {phase.name: phase for phase in estimate(instrument_of(config), config).phases}
    models, pairs = [load_model(path) for path in paths], [(layer, layer) for layer in range(4)]
    beside = [(models[0], *pair, rate) for rate in config.stitch.rates for pair in pairs]
    beside += [(models[1], pair[1], pair[1]) for pair in pairs] if config.stitch.floor else []
    from thinkalike.training import Fit

    rows = torch.randint(300, (8, 64))
    module = StitchTraining(*models, pairs, rows, config.stitch, 0, beside=[Fit(*each) for each in beside])
    assert phases["training"].operations == pytest.approx(3 * step_operations(module), rel=1e-9)
    assert phases["training"].tokens == dict.fromkeys({model.name for model in models}, 768)


def test_a_forecast_of_a_stitch_counts_both_directions_and_all_seeds(checkpoints):
    paths = [ModelConfig(name="local", path=str(checkpoints[name])) for name in ("gpt_neox", "gpt2")]

    def training(**options):
        config = TrainConfig("stitch", *paths, stitch=StitchConfig(steps=3, warmup=1, **{"floor": False, **options}))
        return sum(each.operations for each in stitches.phases_of(config, _shapes(config)) if each.name == "training")

    assert training(seeds=3) == pytest.approx(3 * training())
    back = TrainConfig("stitch", *paths[::-1], stitch=StitchConfig(steps=3, warmup=1, floor=False))
    other = next(each for each in stitches.phases_of(back, _shapes(back)) if each.name == "training").operations
    assert training(both=True) == pytest.approx(training() + other)
    assert training(kind="least_squares") == 0


def _shapes(config):
    return instrument_of(config).shapes_of(config)


# ----------------------------------------------------------------------------------------------------- passes and speed


def test_jobs_of_one_pass_share_the_passes_of_their_models():
    a, b = (Phase("forward passes", 5.0, {name: 1.0}, is_shared=True) for name in "ab")
    jobs = [[a, b, Phase("comparing", 1.0)], [a, Phase("comparing", 1.0)]]
    assert total(together(jobs)) == 12
    assert sum(total(phases) for phases in jobs) == 17


@pytest.mark.slow
def test_a_model_is_not_run_again_for_each_of_its_pairs():
    names = "pythia-70m-deduped,pythia-160m-deduped,pythia-410m-deduped"
    plan = forecast(compose_job("analyze", ["measure=cka", "scale=paper", f"models=[{names}]"]), looks_up=False)
    passes = [phase for phase in plan.phases if phase.name == "forward passes"]
    assert (len(plan.jobs), len(plan.passes), len(passes)) == (3, 1, 3)
    tokens, context = 1000 * 1024, 1024
    assert sum(each.operations for each in passes) == pytest.approx(
        sum(tokens * shape.operations.forward(0, shape.layers, context) for shape in plan.shapes)
    )
    assert plan.bytes > sum(shape.bytes for shape in plan.shapes)


def test_hours_are_those_of_the_peak_in_the_precision_of_the_job():
    assert hours_on("A100", 312e12 * SHARE * 3600, "bfloat16") == pytest.approx(1)
    assert hours_on("H100", 67e12 * SHARE * 3600, "float32") == pytest.approx(1)
    assert precision_of("bfloat16", TrainerConfig()) == "bfloat16"
    assert precision_of("float32", TrainerConfig(matmul="high")) == "TF32"
    assert precision_of("float32", TrainerConfig()) == "float32"


def test_states_are_compared_in_float32_whatever_models_run_in():
    plan = forecast(compose_job("analyze", ["measure=cka", "model=gpt2", "model.dtype=bfloat16"]), looks_up=False)
    (job,), (passes, comparing) = plan.jobs, plan.phases
    assert [job.precision(passes), job.precision(comparing)] == ["bfloat16", "float32"]
    hours = hours_on("A100", passes.operations, "bfloat16") + hours_on("A100", comparing.operations, "float32")
    assert plan.hours("A100") == job.hours("A100") == pytest.approx(hours)


def test_a_result_says_operations_and_speed_unless_a_shape_is_unknown(monkeypatch):
    config = compose_job("analyze", ["measure=loss"])
    (facts,) = speeds([(instrument_of(config), config)], seconds=2.0)
    assert facts["flops"] == total(estimate(instrument_of(config), config).phases) > 0
    assert facts == {"flops": facts["flops"], "flops_per_second": facts["flops"] / 2}
    monkeypatch.setattr("thinkalike.job.operations.peak_of", lambda device, precision: facts["flops"])
    assert speeds([(instrument_of(config), config)], seconds=2.0)[0]["share_of_peak"] == 0.5
    hub = compose_job("analyze", ["measure=loss", "model=gemma-3-1b-pt"])
    assert speeds([(instrument_of(hub), hub)], seconds=2.0) == [{}]


# --------------------------------------------------------------------------------------------------------- the dry run


def slow(*case):
    return pytest.param(*case, marks=pytest.mark.slow)


def test_a_folder_without_a_model_is_refused_before_it_is_foretold(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match=r"has no config\.json; give a folder written by save_pretrained"):
        shape_of(ModelConfig(name="local", path=str(tmp_path)))


@pytest.mark.parametrize("wrong", ["yes", 0, -1, float("inf"), None])
@pytest.mark.parametrize("root", [AnalyzeConfig, TrainConfig])
def test_a_dry_run_is_a_truth_value_or_a_speed(root, wrong):
    model = ModelConfig(name="gpt2")
    with pytest.raises(ConfigError, match=r"^dry_run=.* must be true, false, or this machine's"):
        root(model=model, target=model, dry_run=wrong)
    root(model=model, target=model, dry_run=5e10)


@pytest.mark.parametrize(
    ("script", "words", "seen"),
    [
        ("train.py", (), "training"),
        slow("train.py", ("task=pretrain",), "report"),
        slow("train.py", ("task=nli", "model=bert-mini"), "training"),
        slow("analyze.py", ("measure=rsa", "model=gpt2-mini", "dry_run=1e9"), "hours at 1e+09 FLOPs per second"),
        slow("analyze.py", ("measure=population", "population=feather-berts", "pairs=mnli"), "stitches"),
        slow("analyze.py", ("measure=court",), "forward passes"),
        slow("analyze.py", ("measure=probes", "model=gpt2-mini", "model@target=gpt2-mini-s1"), "untrained target"),
        slow("analyze.py", ("measure=steering", "model=gpt2-mini", "model@target=gpt2-mini-s1"), "steering"),
        slow("analyze.py", ("experiment=brown2023/figure3",), "one after the other"),
        slow("analyze.py", ("-m", "measure=cka,mknn"), "comparing"),
        slow("analyze.py", ("measure=cka", "model=gemma-3-1b-pt"), "without what gemma-3-1b-pt would take"),
    ],
)
def test_a_dry_run_prints_tables_and_writes_nothing(door, tmp_path, script, words, seen):
    dry = [] if any(word.startswith("dry_run") for word in words) else ["dry_run=true"]
    run = door(script, *words, *dry, f"store={tmp_path}/store")
    assert seen in run.stdout
    assert "dry run: nothing was loaded" in run.stdout
    assert "results:" not in run.stdout
    assert not (tmp_path / "store").exists()


def test_an_error_of_the_configuration_stays_one():
    config = compose_job("train", ["layers=[[0,99]]"])
    with pytest.raises(ConfigError, match="99"):
        forecast(config)


def test_what_the_store_has_is_not_to_do(door, minis, text_files, tmp_path):
    words = ["measure=loss", f"model.path={minis}/a", "model.context=32", "data=text", "data.report_tokens=2048"]
    words += [f"data.files=[{text_files}/*.txt]", "data.report_share=0.4", f"store={tmp_path}/store"]
    result = door("analyze.py", *words).result
    assert result.provenance["flops"] > 0
    assert result.provenance["flops_per_second"] > 0
    plan = forecast(compose_job("analyze", words))
    assert [job.is_stored for job in plan.jobs] == [True]
    assert summary(plan)[0].startswith("0 of 1 jobs to do: 0 FLOPs")
    assert not forecast(compose_job("analyze", [*words, "force=true"])).jobs[0].is_stored


@pytest.mark.slow
def test_an_experiment_has_a_row_for_each_part():
    plan = forecast(compose_job("analyze", ["experiment=brown2023/figure10", "scale=mini"]), looks_up=False)
    assert len(plan.jobs) == 4
    assert "neox-6l-mini" in {shape.name for shape in plan.shapes}
    assert total(plan.phases) == pytest.approx(sum(total(job.estimate.phases) for job in plan.jobs))
    assert plan.unknown == []


@pytest.mark.slow
def test_the_page_is_as_its_script_makes_it():
    path = Path(__file__).resolve().parents[1] / "docs" / "make_scale.py"
    spec = importlib.util.spec_from_file_location("make_scale", path)
    make_scale = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make_scale)
    assert make_scale.page() == (make_scale.HERE / "scale.md").read_text()
