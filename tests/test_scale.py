"""What a job takes, told before it starts: shapes, operations against torch's counter, the dry run, and the page."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers.pytorch_utils import Conv1D

import tiny
from conftest import step_data
from thinkalike.config import ModelConfig, StitchConfig, TrainConfig, TrainerConfig, compose_job
from thinkalike.forecast import SHARE, forecast, hours_on, summary
from thinkalike.instruments import instrument_of
from thinkalike.instruments import operations as formulas
from thinkalike.job import Phase, estimate, together, total
from thinkalike.job.operations import speeds
from thinkalike.measures import CKA, LayerMeans, LayerPredictions, Moments, mutual_measure
from thinkalike.models.load import load_model
from thinkalike.models.shapes import new_shape, operations, precision_of, shape_of
from thinkalike.states.contrasts import Prompts, steered_gaps
from thinkalike.training.run import Run, fit
from thinkalike.training.stitching import Fit, StitchTraining

PUBLISHED = {  # parameters; of Pythia from table 1 of Biderman et al. 2023
    "pythia-12b-deduped": 11_846_072_320,
    "gpt2": 124.4e6,
    "bert-base-uncased": 109.5e6,
    "mamba-130m": 129.1e6,
    "llama-3.2-1b": 1236e6,
}


def counted(work) -> int:
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


def states(layers, n, d):
    return [torch.randn(n, d) for _ in range(layers)]


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


def test_a_shape_is_that_of_a_mini():
    config = compose_job("train", ["model=gelu-3l-mini"]).model
    shape, model = shape_of(config), load_model(config)
    assert (shape.layers, shape.width, shape.vocabulary) == (model.n_layers, model.d_model, model.vocabulary)
    assert (shape.parameters, shape.operations) == (model.parameters()[0], operations(model))
    assert new_shape(config, shape.vocabulary).parameters == shape.parameters


@pytest.mark.parametrize(("name", "parameters"), PUBLISHED.items())
def test_published_sizes_give_published_parameters(name, parameters):
    shape = shape_of(compose_job("train", [f"model={name}"]).model)
    assert shape.parameters == pytest.approx(parameters, rel=2e-3)
    if name.startswith("pythia"):
        assert shape.parameters - 2 * shape.vocabulary * shape.width == 11_327_027_200


def test_a_model_that_nothing_here_tells_has_no_shape(tmp_path):
    assert shape_of(ModelConfig(name="hub", hub_id="some/where")) is None
    for content in ("{damaged", json.dumps({"model_type": "no such thing"})):
        (tmp_path / "config.json").write_text(content)
        assert shape_of(ModelConfig(name="local", path=str(tmp_path))) is None


@pytest.mark.parametrize("family", ["native", "gpt_neox", "gpt2", "bert", "mamba"])
def test_a_pass_takes_its_weights_and_its_attention(checkpoints, family):
    """Twice the weights of the linear maps of the blocks for a token; 4 d for each token that it attends to."""
    model = tiny.frozen() if family == "native" else load_model(_local(checkpoints, family))
    found = operations(model)
    maps = [part for part in model.blocks[0].modules() if isinstance(part, nn.Linear | Conv1D)]
    weights = sum(2.0 * part.weight.numel() for part in maps)
    assert found.blocks == pytest.approx([weights] * model.n_layers, rel=0.15 if family == "mamba" else 1e-12)
    assert found.attention == (0.0 if family == "mamba" else 4.0 * model.d_model,) * model.n_layers
    tokens = torch.randint(300, (2, 24))
    assert tokens.numel() * found.full(24) == pytest.approx(counted(lambda: model.full(tokens)), rel=0.02)


@pytest.mark.parametrize(("source", "target"), [((16, 16), (32, 32, 32)), ((64,) * 4, (24,)), ((16, 16, 16), None)])
def test_comparing_a_batch_takes_what_the_counter_of_torch_counts(source, target):
    n, counts = 256, (len(source), len(target or source))
    mine = states(counts[0], n, source[0])
    theirs = states(counts[1], n, target[0]) if target else mine
    grams = counted(lambda: CKA(*counts).update(mine, theirs))
    assert formulas.of_grams(n, source, target) == pytest.approx(grams, rel=0.01)
    knn = LayerMeans(*counts, mutual_measure(10))
    found = counted(lambda: [knn.update(mine, theirs, None, number) for number in range(4)])
    assert 4 * formulas.AND_SCATTERED * formulas.of_neighbours(n, source, target) == pytest.approx(found, rel=0.01)
    r2 = LayerPredictions(*counts, fit_batches=1, given="none", ridge=1e-3)
    fit = counted(lambda: r2.update(mine, theirs, None, 0))
    r2.update(mine, theirs, None, 1)
    judge = counted(lambda: r2.update(mine, theirs, None, 2))
    once, twice = (
        formulas.of_prediction(SimpleNamespace(tokens_per_batch=n, fit_batches=1, batches=batches), source, target)
        for batches in (0, 1)
    )
    assert once > fit
    assert twice - once == pytest.approx(judge, rel=0.1), "and sums by part of the documents"


def test_maps_take_what_the_counter_of_torch_counts():
    moments, x, y = Moments([(0, 0)]), torch.randn(100, 24), torch.randn(100, 16)
    assert formulas.of_maps(100, 24, 16) == counted(lambda: moments.update([x], [y]))


@pytest.mark.parametrize("depth", [0, 3])
def test_steering_takes_what_the_counter_of_torch_counts(depth):
    """Texts of six tokens, one at a time of those that run together; vectors come after their word's last token."""
    model = tiny.frozen()
    rows, every = torch.randint(len(tiny.tokenizer()), (5, 6)), torch.ones(5, model.vocabulary, dtype=torch.bool)
    prompts = Prompts(rows, torch.full((5,), 2), torch.full((5,), 5), every, every)
    passes = counted(lambda: steered_gaps(model, prompts, depth, torch.randn(4, 5, model.d_model)))
    assert formulas.of_steering(operations(model), [depth], 5, 6, 4) == passes


def test_pairs_of_the_challenge_are_those_of_the_part():
    pairs = compose_job("analyze", ["measure=population", "population=feather-berts", "pairs=mnli"]).pairs
    found = [formulas.pairs_of(each, "challenge") for each in (pairs, replace(pairs, label=None))]
    assert (formulas.pairs_of(pairs, "report"), *found) == (9815, 5000, 10_000)


@pytest.mark.parametrize(
    "stitch", [{"lr_multiples": [0.5]}, {"kind": "low_rank", "rank": 4}, {"loss": "mse", "floor": False}]
)
def test_training_in_a_forecast_is_that_of_the_steps(checkpoints, stitch):
    """Up to the last token of each row, which predicts nothing, and the heads that a loss of states does not need."""
    paths = [_local(checkpoints, name) for name in ("gpt_neox", "gpt2")]
    own = StitchConfig(steps=3, warmup=1, tokens_per_step=256, **stitch)
    config = TrainConfig(task="stitch", model=paths[0], target=paths[1], stitch=own)
    phases = {phase.name: phase for phase in estimate(instrument_of(config), config).phases}
    models, pairs = [load_model(path) for path in paths], [(layer, layer) for layer in range(4)]
    beside = [Fit(models[0], *pair, rate) for rate in config.stitch.lr_multiples for pair in pairs]
    beside += [Fit(models[1], depth, depth) for _, depth in pairs] if config.stitch.floor else []
    rows = torch.randint(300, (8, 64))
    module = StitchTraining(*models, pairs, config.stitch, beside=beside)
    step = counted(lambda: torch.stack([each.mean() for each in module.losses(rows[:4])]).sum().backward())
    assert phases["training"].operations == pytest.approx(3 * step, rel=0.1)
    assert phases["training"].tokens == dict.fromkeys({model.name for model in models}, 768)


def test_a_forecast_of_a_stitch_counts_both_directions_and_all_seeds(checkpoints):
    paths = [_local(checkpoints, name) for name in ("gpt_neox", "gpt2")]

    def training(*models, **options):
        stitch = StitchConfig(steps=3, warmup=1, **{"floor": False, **options})
        config = TrainConfig(task="stitch", model=models[0], target=models[1], stitch=stitch)
        phases = estimate(instrument_of(config), config).phases
        return sum(each.operations for each in phases if each.name == "training")

    assert training(*paths, seeds=3) == pytest.approx(3 * training(*paths))
    assert training(*paths, both=True) == pytest.approx(training(*paths) + training(*paths[::-1]))
    assert training(*paths, kind="least_squares") == 0


def test_a_training_says_how_fast_it_was(tmp_path, monkeypatch):
    rows, config = torch.randint(300, (8, 16)), StitchConfig(steps=3, warmup=1, tokens_per_step=32)
    module = StitchTraining(tiny.frozen(1), tiny.frozen(2), [(0, 0)], config)
    step = counted(lambda: module.losses(rows[:2])[0].mean().backward())
    fit(module, step_data(rows, module), Run(tmp_path, torch.device("cpu"), TrainerConfig()))
    facts = module.speed(torch.device("cpu"), TrainerConfig())
    assert 0.8 * 3 * step < facts["flops"] <= 3 * step  # torch does not count the flash attention of a CPU
    assert facts["flops_per_second"] == facts["flops"] / module.seconds
    assert set(facts) == {"flops", "flops_per_second"}
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100-SXM4-80GB")
    shared = module.speed(torch.device("cuda"), TrainerConfig(matmul="high"))
    assert shared["share_of_peak"] == pytest.approx(facts["flops_per_second"] / 156e12)


def _local(checkpoints, family):
    return ModelConfig(name="local", path=str(checkpoints[family]))


def test_jobs_of_one_pass_share_the_passes_of_their_models():
    a, b = (Phase("forward passes", 5.0, {name: 1.0}, is_shared=True) for name in "ab")
    jobs = [[a, b, Phase("comparing", 1.0)], [a, Phase("comparing", 1.0)]]
    assert total(together(jobs)) == 12
    assert sum(total(phases) for phases in jobs) == 17


def test_hours_are_those_of_the_peak_in_the_precision_of_the_job():
    assert hours_on("A100", 312e12 * SHARE * 3600, "bfloat16") == pytest.approx(1)
    assert hours_on("H100", 67e12 * SHARE * 3600, "float32") == pytest.approx(1)
    assert precision_of("bfloat16", TrainerConfig()) == "bfloat16"
    assert precision_of("float32", TrainerConfig(matmul="high")) == "TF32"
    assert precision_of("float32", TrainerConfig()) == "float32"


def test_states_are_compared_in_float32_whatever_models_run_in():
    plan = forecast(compose_job("analyze", ["measure=cka", "model=gpt2", "model.dtype=bfloat16"]), looks_up=False)
    (job,), (passes, comparing) = plan.jobs, plan.phases
    hours = hours_on("A100", passes.operations, "bfloat16") + hours_on("A100", comparing.operations, "float32")
    assert plan.hours("A100") == job.hours("A100") == pytest.approx(hours)


def test_a_result_says_operations_and_speed_unless_a_shape_is_unknown(monkeypatch):
    config = compose_job("analyze", ["measure=loss"])
    (facts,) = speeds([(instrument_of(config), config)], seconds=2.0)
    assert facts["flops"] == total(estimate(instrument_of(config), config).phases) > 0
    assert facts == {"flops": facts["flops"], "flops_per_second": facts["flops"] / 2}
    monkeypatch.setattr("thinkalike.models.shapes.peak_of", lambda device, precision: facts["flops"])
    assert speeds([(instrument_of(config), config)], seconds=2.0)[0]["share_of_peak"] == 0.5
    hub = compose_job("analyze", ["measure=loss", "model=gemma-3-1b-pt"])
    assert speeds([(instrument_of(hub), hub)], seconds=2.0) == [{}]


def slow(*case):
    return pytest.param(*case, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("script", "words", "seen"),
    [
        ("train.py", (), "training"),
        slow(
            "analyze.py",
            ("measure=rsa", "model=gpt2-mini", "dry_run=1e9"),
            "hours on this machine, at 1e+09 FLOPs per second",
        ),
        slow("analyze.py", ("measure=population", "population=feather-berts", "pairs=mnli"), "stitches"),
        slow("analyze.py", ("measure=probes", "model=gpt2-mini", "model@target=gpt2-mini-s1"), "untrained target"),
        slow("analyze.py", ("experiment=brown2023/figure3",), "one after the other"),
        slow("analyze.py", ("measure=cka", "model=gemma-3-1b-pt"), "without the jobs of gemma-3-1b-pt"),
    ],
)
def test_a_dry_run_prints_tables_and_writes_nothing(door, tmp_path, script, words, seen):
    dry = [] if any(word.startswith("dry_run") for word in words) else ["dry_run=true"]
    run = door(script, *words, *dry, f"store={tmp_path}/store")
    assert seen in run.stdout
    assert "dry run: nothing was loaded" in run.stdout
    assert "results:" not in run.stdout
    assert not (tmp_path / "store").exists()


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
def test_the_page_is_as_its_script_makes_it():
    path = Path(__file__).resolve().parents[1] / "docs" / "make_scale.py"
    spec = importlib.util.spec_from_file_location("make_scale", path)
    make_scale = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make_scale)
    assert make_scale.page() == (make_scale.HERE / "scale.md").read_text()
