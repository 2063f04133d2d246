"""Every instrument on the device and in the precision that are asked for: the numbers of a CPU, the same ones again.

python -m pytest -m gpu --device cuda tests/test_devices.py     on a machine with a GPU
"""

import numpy as np
import pytest
import torch
from pytorch_lightning.callbacks import LambdaCallback

import tiny
from conftest import step_data, with_slow
from thinkalike.config import TrainerConfig
from thinkalike.models.families import FAMILIES
from thinkalike.models.frozen import FrozenModel
from thinkalike.training.recipe import StitchConfig
from thinkalike.training.run import TrainingRun
from thinkalike.training.stitching import StitchTraining
from thinkalike.training.trainer import fit

PAIR = ("measure.batches=12", "measure.tokens_per_batch=128")
STIMULI = ("model=gpt2-mini", "stimuli.sentences=60", "stimuli.sample=80")
STITCH = ("train.py", "ruler=null", "layers=[0,3]", "stitch.steps=4", "stitch.warmup=1", "stitch.tokens_per_step=256")
JOBS = {  # words, the column of numbers, and by how much a device may change them
    "stitching": (STITCH, "stitching_loss", 1e-3),
    "closed": ((*STITCH[:3], "stitch=least_squares", "stitch.steps=4", STITCH[-1]), "stitching_loss", 1e-3),
    "autocast": ((*STITCH, "trainer.precision=bf16-mixed"), "stitching_loss", 0.02),
    "tf32": ((*STITCH, "trainer.matmul=high"), "stitching_loss", 5e-3),
    "compiled": ((*STITCH, "trainer.compile=true"), "stitching_loss", 1e-3),
    "penultimate": ((*STITCH, "stitch.loss=penultimate"), "stitching_loss", 1e-3),
    "kl": ((*STITCH, "stitch.loss=kl"), "stitching_loss", 1e-3),
    "loss": (("analyze.py", "measure=loss"), "loss", 1e-4),
    "cka": (("analyze.py", "measure=cka", *PAIR), "value", 1e-4),
    "mutual_knn": (("analyze.py", "measure=mutual_knn", *PAIR), "value", 1e-2),
    "r2": (("analyze.py", "measure=r2", *PAIR), "value", 1e-3),
    "rsa": (("analyze.py", "measure=rsa", *STIMULI), "value", 1e-3),
    "mlem": (("analyze.py", "measure=mlem", *STIMULI), "importance", 5e-3),
}
QUICK = [pytest.param("cpu", "loss", marks=pytest.mark.ci_slow)]
SLOW = [pytest.param("cpu", name, marks=pytest.mark.slow) for name in JOBS if name != "loss"]
GPU = [pytest.param("cuda", name, marks=pytest.mark.gpu) for name in JOBS]


def numbers_of(name, cli, minis, text_files, *more):
    """The numbers of a job, and the models that it says it ran."""
    (script, *words), column, _ = JOBS[name]
    if "model=gpt2-mini" not in words:
        words += [f"model.path={minis}/a", "model.context=32", "data=text", f"data.files=[{text_files}/*.txt]"]
        words += ["data.evaluation_tokens=4096", "data.evaluation_share=0.4"]
        words += [f"target.path={minis}/b"] if name != "loss" else []
    result = cli(script, *words, *more).result
    return result.details[column].to_numpy(), result.provenance["models"]


@pytest.mark.parametrize(("place", "name"), [*QUICK, *SLOW, *GPU])
def test_every_job_runs_on_its_device_with_the_numbers_of_a_cpu(place, name, cli, minis, text_files, tmp_path):
    tolerance, found = JOBS[name][2], []
    for store, device in (("first", "cpu"), ("second", place), ("third", place)):
        chosen = f"model.device={device}", f"store={tmp_path}/{store}"
        numbers, models = numbers_of(name, cli, minis, text_files, *chosen)
        assert {torch.device(model["device"]).type for model in models} == {device}
        found.append(numbers)
    np.testing.assert_allclose(found[1], found[0], atol=0 if place == "cpu" else tolerance, rtol=0)
    np.testing.assert_allclose(found[2], found[1], atol=0 if place == "cpu" else tolerance / 10, rtol=0)


LEFT_OUT = ("stitching", "autocast", "tf32", "compiled")
HALVED = [pytest.param(name, marks=pytest.mark.slow) for name in JOBS if name not in LEFT_OUT]


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", with_slow(["stitching", *HALVED], "stitching"))
def test_half_precision_jobs_are_near_single_precision(name, dtype, cli, minis, text_files, tmp_path):
    found = []
    for each in ("float32", dtype):
        chosen = f"model.dtype={each}", f"store={tmp_path}/results"
        numbers, models = numbers_of(name, cli, minis, text_files, *chosen)
        assert {model["dtype"] for model in models} == {each}
        found.append(numbers)
    assert np.abs(found[0] - found[1]).max() < 0.1
    assert (found[0] != found[1]).any(), "control: it did run in another precision"


def on(place: str, seed: int) -> FrozenModel:
    return FrozenModel(tiny.native(seed).to(place), FAMILIES["native"], tiny.tokenizer(), name=f"{seed}", context=64)


@pytest.mark.ci_slow
@pytest.mark.parametrize("place", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_stitch_into_another_device_trains_like_one_beside_it(place, tmp_path):
    """The source stays on the CPU; its states go to the target's device, and nothing is added across devices."""
    rows = torch.randint(300, (40, 32), generator=torch.Generator().manual_seed(5))
    curves = []
    for where in ("cpu", place):
        config = StitchConfig(steps=6, warmup=1, tokens_per_step=128)
        module = StitchTraining(on("cpu", 1), on(where, 2), [(0, 0), (1, 2)], config)
        folder, devices = tmp_path / str(len(curves)), set()

        def see(_, module, *more, devices=devices):  # at the end, Lightning takes all of a module to the CPU
            devices.update(weight.device.type for weight in module.stitches.parameters())

        run, seen = TrainingRun(folder, torch.device(where), TrainerConfig()), LambdaCallback(on_train_batch_end=see)
        fit(module, step_data(rows, module), run, callbacks=[seen])
        assert devices == {where}
        curves.append(module.curve.cpu())
    torch.testing.assert_close(curves[1], curves[0], atol=1e-4, rtol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_no_step_on_a_gpu_waits_for_it(precision, tmp_path):
    """CUDA itself raises an error where the host waits, in all steps but those that read the losses."""
    rows = torch.randint(300, (40, 32))
    config = StitchConfig(steps=500, warmup=1, tokens_per_step=128)  # of which each tenth reads the losses
    module = StitchTraining(on("cuda", 1), on("cuda", 2), [(0, 0), (1, 2)], config)
    one_step = module.training_step

    def step(*batch):
        reads = (module.global_step + 1) % module.trainer.log_every_n_steps == 0
        torch.cuda.set_sync_debug_mode("default" if reads or not module.global_step else "error")
        try:
            return one_step(*batch)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    module.training_step = step
    trainer = TrainerConfig(precision=precision)
    fit(module, step_data(rows, module), TrainingRun(tmp_path, torch.device("cuda"), trainer))
