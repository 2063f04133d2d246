"""What a job takes, said before it starts: shapes, passes beside torch's counter, the dry run, and the page."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers.pytorch_utils import Conv1D

import tiny
from thinkalike.config import ModelConfig, StitchConfig, TrainConfig, TrainerConfig, compose_job
from thinkalike.forecast import SHARE, forecast, hours_on, precision_of, summary
from thinkalike.models.load import load_model
from thinkalike.models.shapes import Operations, Shape, operations, shape_of
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


def local(checkpoints, family):
    return ModelConfig(name="local", path=str(checkpoints[family]))


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_shape_is_that_of_the_model_that_is_loaded(checkpoints, family):
    config = local(checkpoints, family)
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


@pytest.mark.parametrize(("name", "parameters"), PUBLISHED.items())
def test_published_sizes_give_published_parameters(name, parameters):
    shape = shape_of(compose_job("train", [f"model={name}"]).model)
    assert shape.parameters == pytest.approx(parameters, rel=2e-3)
    if name.startswith("pythia"):
        assert shape.parameters - 2 * shape.vocabulary * shape.width == 11_327_027_200


def test_a_model_without_known_sizes_has_no_shape(tmp_path):
    assert shape_of(ModelConfig(name="hub", hub_id="some/where")) is None
    for content in ("{damaged", json.dumps({"model_type": "no such thing"})):
        (tmp_path / "config.json").write_text(content)
        assert shape_of(ModelConfig(name="local", path=str(tmp_path))) is None


@pytest.mark.parametrize("family", ["native", "gpt_neox", "gpt2", "bert", "mamba"])
def test_a_pass_takes_its_weights_and_its_attention(checkpoints, family):
    """Twice the weights of the linear maps of the blocks for a token; 4 d for each token that it attends to."""
    model = tiny.frozen() if family == "native" else load_model(local(checkpoints, family))
    found = operations(model)
    maps = [part for part in model.blocks[0].modules() if isinstance(part, nn.Linear | Conv1D)]
    weights = sum(2.0 * part.weight.numel() for part in maps)
    assert found.blocks == pytest.approx([weights] * model.n_layers, rel=0.15 if family == "mamba" else 1e-12)
    assert found.attention == (0.0 if family == "mamba" else 4.0 * model.d_model,) * model.n_layers
    tokens = torch.randint(300, (2, 24))
    assert tokens.numel() * found.full(24) == pytest.approx(counted(lambda: model.full(tokens)), rel=0.02)


@pytest.mark.parametrize("stitch", [{"lr_multiples": [0.5]}, {"floor": False}, {"loss": "kl"}])
def test_the_passes_of_a_training_are_those_of_its_steps(checkpoints, stitch):
    """But for the last token of each row, which predicts nothing, and the maps themselves."""
    paths = [local(checkpoints, name) for name in ("gpt_neox", "gpt2")]
    own = StitchConfig(steps=3, warmup=1, tokens_per_step=256, **stitch)
    plan = forecast(TrainConfig(task="stitch", model=paths[0], target=paths[1], stitch=own), looks_up=False)
    training = [each for each, _ in plan.passes if each.phase == "training"]
    models, pairs = [load_model(path) for path in paths], [(layer, layer) for layer in range(4)]
    beside = [Fit(models[0], *pair, rate) for rate in own.lr_multiples for pair in pairs]
    beside += [Fit(models[1], depth, depth) for _, depth in pairs] if own.floor else []
    rows = torch.randint(300, (8, 64))
    module = StitchTraining(*models, pairs, own, beside=beside)
    step = counted(lambda: torch.stack([each.mean() for each in module.losses(rows[:4])]).sum().backward())
    maps = 4 * 32 * 32 * 256 * len(module.stitches)
    assert sum(each.flops for each in training) == pytest.approx(3 * (step - maps), rel=0.1)
    assert {each.tokens for each in training} == {768}


def test_jobs_of_one_pass_share_the_passes_of_their_models():
    words = ["measure=cka", "models=[gelu-3l-mini,solu-3l-mini,gelu-4l-mini]"]
    plan = forecast(compose_job("analyze", words), looks_up=False)
    assert len(plan.jobs) == 3
    assert [each.model.name for each, _ in plan.passes] == ["gelu-3l-mini", "solu-3l-mini", "gelu-4l-mini"]
    assert 2 * plan.flops == sum(each.flops for job in plan.jobs for each in job.passes)


def test_hours_are_those_of_the_peak_in_the_precision_of_the_job():
    shape = Shape("a", 1, 1, 1, 1, 4.0, 8, Operations((1e9,), (0.0,), 0.0))
    hour = shape.passes("report", 312e3 * SHARE * 3600, 8)
    assert hours_on("A100", hour, "bfloat16") == pytest.approx(1)
    assert hours_on("A100", replace(hour, times=3), "TF32") == pytest.approx(6)
    assert precision_of("bfloat16", TrainerConfig()) == "bfloat16"
    assert precision_of("float32", TrainerConfig(matmul="high")) == "TF32"
    assert precision_of("float32", TrainerConfig()) == "float32"


def slow(*case):
    return pytest.param(*case, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("script", "words", "seen"),
    [
        ("train.py", (), "training"),
        slow("analyze.py", ("measure=rsa", "model=gpt2-mini"), "hours on this machine, at "),
        slow("analyze.py", ("measure=population", "population=feather-berts", "pairs=mnli"), "stitches"),
        slow("analyze.py", ("measure=probes", "model=gpt2-mini", "model@target=gpt2-mini-s1"), "untrained target"),
        slow("analyze.py", ("experiment=brown2023/figure3",), "4 of 4 jobs to do"),
        slow("analyze.py", ("measure=cka", "model=gemma-3-1b-pt"), "without the jobs of gemma-3-1b-pt"),
    ],
)
def test_a_dry_run_prints_tables_and_writes_nothing(cli, tmp_path, script, words, seen):
    run = cli(script, *words, "dry_run=true", f"store={tmp_path}/store")
    assert seen in " ".join(run.stdout.split())
    assert "dry run: nothing was loaded" in run.stdout
    assert "results:" not in run.stdout
    assert not (tmp_path / "store").exists()


def test_what_the_store_has_is_not_to_do(cli, minis, text_files, tmp_path):
    words = ["measure=loss", f"model.path={minis}/a", "model.context=32", "data=text", "data.report_tokens=2048"]
    words += [f"data.files=[{text_files}/*.txt]", "data.report_share=0.4", f"store={tmp_path}/store"]
    cli("analyze.py", *words)
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
