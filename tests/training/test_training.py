"""Training: schedules, batches and gradients are what they are said to be, and only φ ever changes."""

import contextlib
import copy
import itertools
import math
import re
import shutil
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import pytorch_lightning as pl
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.utils._python_dispatch import TorchDispatchMode

import tiny
from conftest import break_off, composed, step_data, with_slow
from counted_work import Work
from thinkalike.config import ModelConfig, TrainerConfig
from thinkalike.errors import DataError, StoreError, TrainingError
from thinkalike.evaluation.forward import next_token_losses
from thinkalike.evaluation.held_out import masked_losses
from thinkalike.evaluation.moments import state_moments
from thinkalike.evaluation.stitched_losses import document_sums
from thinkalike.instruments.stitching.fitting import warn_of_overfitting
from thinkalike.measures import least_squares
from thinkalike.memory import Budget
from thinkalike.models.load import load_model
from thinkalike.models.minis import train_tokenizer
from thinkalike.processes import own_device, rank
from thinkalike.store import newest_state, read_state, write_state
from thinkalike.training.checkpoints import invalid_momenta
from thinkalike.training.curves import loggers_of
from thinkalike.training.data import StepData
from thinkalike.training.optimizers import share_of_peak_rate
from thinkalike.training.recipe import StitchConfig, whole_rows
from thinkalike.training.run import TrainingRun
from thinkalike.training.stitching import Fit, StitchTraining
from thinkalike.training.trainer import fit

CONFIG = StitchConfig(steps=6, warmup=2, tokens_per_step=128)
PAIRS = [(0, 0), (1, 1), (2, 2), (3, 3)]


@pytest.fixture(scope="module")
def rows():
    return torch.randint(300, (40, 32), generator=torch.Generator().manual_seed(5), dtype=torch.int32)


@pytest.fixture
def run(tmp_path):
    return TrainingRun(tmp_path, torch.device("cpu"), TrainerConfig(checkpoint_every=2))


@cache
def models_of_trainings():
    """The source and the target of all trainings below, which leave them as they are."""
    return tiny.frozen(1), tiny.frozen(2, act_fn="gelu")


def training(pairs=PAIRS, config=CONFIG, seed=0):
    return StitchTraining(*models_of_trainings(), pairs, config, seed)


@pytest.mark.parametrize(("schedule", "half", "last"), [("linear", 1 / 2, 1 / 90), ("cosine", 1 / 2, 3.05e-4)])
def test_rates_start_above_zero_and_peak_after_warmup(schedule, half, last):
    config = StitchConfig(steps=100, warmup=10, schedule=schedule)
    rates = [share_of_peak_rate(step, config) for step in range(100)]
    assert rates[:10] == pytest.approx([(step + 1) / 11 for step in range(10)])
    assert [rates[step] for step in (10, 55, 99)] == pytest.approx([1, half, last], rel=1e-2)
    assert all(one > other > 0 for one, other in itertools.pairwise(rates[10:]))


def test_the_tuned_lens_schedule_is_that_of_transformers():
    from transformers import get_linear_schedule_with_warmup

    config = StitchConfig(steps=100, warmup=10, schedule="tuned_lens")
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    reference = get_linear_schedule_with_warmup(optimizer, 10, 100 - 10)
    for step in range(100):
        assert share_of_peak_rate(step, config) == pytest.approx(reference.get_last_lr()[0])
        optimizer.step()
        reference.step()
    assert share_of_peak_rate(0, config) == 0
    assert all(share_of_peak_rate(step, config) == 0 for step in range(90, 100))


def test_the_optimiser_follows_the_schedule(rows, run):
    rates, precisions = [], []
    module = training(PAIRS[:1])
    step = module.training_step

    def watched(*words):
        rates.append(module.optimizers().param_groups[0]["lr"])
        precisions.append(torch.get_float32_matmul_precision())
        return step(*words)

    module.training_step = watched
    fit(module, step_data(rows, module), replace(run, trainer=TrainerConfig(matmul="high")))
    assert rates == pytest.approx([0.1 * share_of_peak_rate(step, CONFIG) for step in range(6)])
    assert set(precisions) == {"high"}
    assert torch.get_float32_matmul_precision() == "highest"


def test_batches_are_reordered_epochs_that_resume_at_any_step(rows):
    data = StepData(rows, 128, steps=25, seed=3)
    batches = [data.batch(step) for step in range(25)]
    first, second = torch.cat(batches[:10]), torch.cat(batches[10:20])
    for epoch in (first, second):
        assert torch.equal(epoch.unique(dim=0), rows.long().unique(dim=0))
    assert not torch.equal(first, second)
    data.trainer = SimpleNamespace(global_step=17, global_rank=0, world_size=1, strategy=SimpleNamespace())
    data.trainer.strategy.root_device = torch.device("cpu")
    assert all(
        torch.equal(*each) for each in zip(itertools.islice(data.train_dataloader(), 8), batches[17:], strict=True)
    )
    assert not torch.equal(StepData(rows, 128, 25, seed=4).batch(0), batches[0])


@pytest.mark.parametrize(("asked", "read"), [(33, 32), (63, 32), (100, 96), (140, 128), (1000, 992)])
def test_a_step_that_reads_fewer_tokens_than_were_asked_for_says_so(rows, asked, read, caplog):
    data = StepData(rows, asked, steps=3, seed=0, setting="stitch.tokens_per_step")
    said = f"warning: stitch.tokens_per_step={asked:,} is no multiple of the 32 tokens of a row: each step reads {read}"
    assert caplog.messages == [said]
    assert data.batch(0).numel() == read == whole_rows(asked, 32)


@pytest.mark.parametrize("asked", [32, 64, 128])
def test_a_step_of_whole_rows_says_nothing(rows, asked, caplog):
    assert StepData(rows, asked, steps=3, seed=0).batch(0).numel() == asked
    assert not caplog.messages


def test_processes_share_the_rows_of_a_step(rows):
    def share(rank, world, tokens=128):
        data = StepData(rows, tokens, steps=3, seed=3)
        data.trainer = SimpleNamespace(global_rank=rank, world_size=world)
        return data.batch(2)

    assert torch.equal(torch.stack([share(0, 2), share(1, 2)], 1).flatten(0, 1), share(0, 1))
    for tokens, world in ((128, 3), (31, 1)):  # four rows for three processes; less than a row
        with pytest.raises(DataError):
            share(0, world, tokens)


def test_each_process_of_a_shared_job_has_a_gpu_of_its_own(monkeypatch):
    shared, alone = TrainerConfig(strategy="ddp"), TrainerConfig()
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert own_device("cuda", shared) == "cuda:3"
    assert own_device("cpu", shared) == "cpu"
    assert own_device("cuda:1", alone) == "cuda:1"
    job = composed()
    assert rank(job) == 0, "a job of one process does not ask"
    job.trainer.strategy = "ddp"
    assert rank(job) == 3
    monkeypatch.setenv("RANK", "7")  # of all nodes
    assert rank(job) == 7


@pytest.mark.slow
def test_autocast_trains_alike_with_stitches_in_float32(rows, run, tmp_path):
    config = replace(CONFIG, steps=20)
    plain, cast = training(config=config), training(config=config)
    fit(plain, step_data(rows, plain), run)
    other = replace(run, partial=tmp_path / "cast", trainer=TrainerConfig(precision="bf16-mixed"))
    fit(cast, step_data(rows, cast), other)
    assert not torch.equal(plain.curve, cast.curve)
    assert (plain.curve - cast.curve).abs().max() < 0.02 * plain.curve.max()
    assert all(weight.dtype == torch.float32 for weight in cast.parameters())


@pytest.mark.parametrize(("lr", "moves"), [(1e-6, False), (1.0, True)])
def test_a_norm_is_trained_and_not_decayed(rows, run, lr, moves):
    decay = 0.0 if moves else 1e6  # which would halve it
    module = training(PAIRS[:1], replace(CONFIG, kind="identity", norm="pre", lr=lr, weight_decay=decay))
    fit(module, step_data(rows, module), run)
    assert ((module.stitches[0].pre.weight - 1).abs().max() > 1e-3) == moves


def test_the_rate_of_adam_is_that_of_the_width_that_a_stitch_reads():
    target = tiny.frozen(2)
    source = tiny.frozen(1, d_model=48, d_head=12)
    floor = Fit(target, 1, 1, factor=2.0)
    module = StitchTraining(source, target, PAIRS[:1], replace(CONFIG, optimizer="adam", lr=0.1), beside=[floor])
    rates = [group["lr"] for group in module._parameter_groups()]
    assert rates == pytest.approx([0.1 / 48**0.5, 0.2 / target.d_model**0.5])


@pytest.mark.ci_slow
def test_training_lowers_the_loss_and_leaves_models_untouched(rows, run):
    source = tiny.frozen(1, d_model=48, d_head=12)
    module = StitchTraining(source, tiny.frozen(2), PAIRS, replace(CONFIG, steps=15, lr=3.0), 0)

    def tensors():
        return [{**model.module.state_dict(), **dict(model.module.named_buffers())} for model in module.models]

    before = [{name: value.clone() for name, value in found.items()} for found in tensors()]
    fit(module, step_data(rows, module), run)
    assert module.curve[-5:].mean() < module.curve[:5].mean()
    for old, new in zip(before, tensors(), strict=True):
        assert all(torch.equal(old[name], value) for name, value in new.items())


def test_two_runs_give_the_same_bits_and_save_no_model(rows, run, tmp_path):
    first, second = training(), training()
    fit(first, step_data(rows, first), run)
    fit(second, step_data(rows, second), replace(run, partial=tmp_path / "second"))
    weights = [list(module.parameters()) for module in (first, second, training())]
    assert all(torch.equal(one, other) for one, other in zip(*weights[:2], strict=True))
    assert torch.equal(first.curve, second.curve)
    assert not any(torch.equal(one, other) for one, other in zip(*weights[1:], strict=True)), "control"
    path = newest_state(tmp_path / "checkpoints", "training")
    names = {f"{part}.{i}.map.weight" for part in ("stitches", "means", "halfway") for i in range(4)}
    assert set(read_state(path)["state_dict"]) == {"curve", *names}
    assert path.stat().st_size < 4 * 4 * 4 * 32 * 32 + 40_000


@pytest.mark.ci_slow
def test_curves_of_an_interrupted_run_are_those_of_a_whole_one(rows, run, tmp_path):
    def train(folder, stop_at=None):
        here = replace(run, partial=tmp_path / folder)
        module = training(PAIRS[:2])
        break_off(module, stop_at)
        with contextlib.suppress(DataError):
            fit(module, step_data(rows, module), here, loggers_of(here, "csv"))
        return tmp_path / folder / "curves"

    train("broken", stop_at=3)
    train("broken", stop_at=5)
    curves = [pd.read_csv(train(name) / "metrics.csv").dropna(subset="loss") for name in ("broken", "whole")]
    broken, whole = (curve.sort_values("step")[["step", "loss"]].to_numpy() for curve in curves)
    assert (broken == whole).all()
    assert [path.name for path in (tmp_path / "broken" / "curves").glob("*.csv")] == ["metrics.csv"]
    of_broken, of_whole = ((tmp_path / name / "curves" / "metrics.csv").read_bytes() for name in ("broken", "whole"))
    assert of_broken == of_whole, "to the bit"
    epochs = (
        pd.read_csv(tmp_path / name / "curves" / "metrics.csv", dtype=str)["epoch"] for name in ("broken", "whole")
    )
    assert [{*column.dropna()} for column in epochs] == [{"0"}, {"0"}], "whole numbers stay whole"


@pytest.mark.ci_slow
def test_a_nan_loss_is_reported_with_its_own_step(rows, run, tmp_path):
    def message(log_every, checkpoint_every, steps=200):
        config = replace(CONFIG, steps=steps, lr=1e37, clip=0.0, weight_decay=0.0)
        trainer = TrainerConfig(log_every=log_every, checkpoint_every=checkpoint_every)
        folder = tmp_path / f"{log_every}-{checkpoint_every}"
        module = training(PAIRS[:1], config)
        with pytest.raises(TrainingError) as caught:
            fit(module, step_data(rows, module), replace(run, partial=folder, trainer=trainer))
        states = [read_state(path) for path in folder.glob("checkpoints/*.pt")]
        assert all(state["state_dict"]["curve"][: state["global_step"]].isfinite().all() for state in states)
        return str(caught.value), states

    at_once, late, before_a_state = message(1, 50), message(4, 50), message(4, 2)
    assert at_once[0] == late[0] == before_a_state[0]
    assert re.match(r"the loss is .* at step [1-9] of 200; lower lr=1e\+37", at_once[0])
    states = [state["global_step"] for _, found in (at_once, late, before_a_state) for state in found]
    assert all(step < 10 for step in states)


def model_of(family, checkpoints):
    """A tiny random model of a family."""
    if family == "native":
        return tiny.frozen()
    return load_model(ModelConfig(name="local", path=str(checkpoints[family])))


@pytest.mark.parametrize("family", ["native", pytest.param("gpt_neox", marks=pytest.mark.slow)])
def test_no_step_waits_for_the_device(rows, run, tmp_path, checkpoints, family):
    """Longer training waits no more often: its losses are read once, and Lightning asks before it begins."""
    model, counts = model_of(family, checkpoints), []
    for steps in (4, 8):
        config = replace(CONFIG, steps=steps)
        here = replace(run, partial=tmp_path / str(steps), trainer=TrainerConfig())
        with Work() as work:
            training = StitchTraining(model, model, [(0, 0), (1, 1)], config)
            fit(training, step_data(rows, training), here)
        counts.append(work.counts["waits"])
    assert counts[0] == counts[1] < 20
    with Work() as work:
        assert torch.ones(3).sum() > 2
    assert work.counts["waits"] == 1, "control"


class Casts(TorchDispatchMode):
    """Counts the casts of weights to bfloat16."""

    def __init__(self, module):
        super().__init__()
        self.weights = {weight.untyped_storage().data_ptr() for weight in module.parameters() if weight.dim() == 2}
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ == "_to_copy" and made.dtype == torch.bfloat16:
            self.count += args[0].untyped_storage().data_ptr() in self.weights
        return made


@pytest.mark.parametrize("family", ["native", "gpt_neox", "mamba"])
def test_weights_cast_once_give_the_bits_of_autocast(rows, checkpoints, family):
    model = model_of(family, checkpoints)
    before, tokens = model.fingerprint(), rows[:2].long()

    def step():
        state = model.residuals(tokens, [0])[0].requires_grad_()
        losses = torch.stack(next_token_losses(model, [model.advance(state, 1, model.n_layers)], tokens))
        return losses, torch.autograd.grad(losses.sum(), state)[0]

    with Casts(model.module) as plain, torch.autocast("cpu", torch.bfloat16):
        expected = step()
    with Casts(model.module) as once, model.cast(), torch.autocast("cpu", torch.bfloat16):
        casts, ours = once.count, step()
    assert plain.count > 0, "control"
    assert once.count == casts, "none in the step"
    assert all(torch.equal(one, other) for one, other in zip(ours, expected, strict=True))
    assert model.fingerprint() == before


def test_each_stitch_is_clipped_by_itself(rows):
    module = training()
    for number, phi in enumerate(module.stitches):
        phi.map.weight.grad = torch.full((32, 32), 10.0**-number)
    module.configure_gradient_clipping(None)
    norms = [phi.map.weight.grad.norm().item() for phi in module.stitches]
    assert norms == pytest.approx([1, 1, 0.32, 0.032], rel=1e-5)


def report(module, rows, documents=None, batch=7, **more):
    maps = {"stitch": list(module.stitches), **more}
    return document_sums(*module.models, module.layer_pairs, maps, tiny.token_rows(rows, documents), batch)


def test_next_token_losses_are_torchs_own(rows):
    model, tokens = tiny.frozen(), rows[:3].long()
    logits, (ours,) = model.full(tokens)[:, :-1], next_token_losses(model, [model.head(tokens, 3)], tokens)
    expected = nn.functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")
    torch.testing.assert_close(ours, expected)


@pytest.mark.ci_slow
def test_the_report_ignores_the_batch_size(rows):
    module, documents = training(), torch.arange(40).repeat_interleave(32).view(40, 32).int()
    few, many = (report(module, rows, documents, batch) for batch in (3, 40))
    assert set(few) == {"stitch", "source", "target", "tokens", "kl", "top1", "distance", "norm", "penultimate"}
    for name, value in few.items():
        torch.testing.assert_close(value, many[name], atol=1e-4, rtol=1e-6)
    model, tokens = module.models[1], rows[7:8].long()
    alone = next_token_losses(model, [model.head(tokens, 3)], tokens)[0].sum()
    assert few["target"][7].item() == pytest.approx(alone.item(), rel=1e-6)


def test_nearness_is_what_its_formulas_say(rows):
    module = training(pairs=[(1, 2)])
    (source, target), tokens = module.models, rows[:4].long()
    sums = report(module, rows[:4])
    state, goal, last = source.head(tokens, 1), target.head(tokens, 2), target.head(tokens, 3)
    p, q = (logits[:, :-1].double().log_softmax(-1) for logits in (target.full(tokens), target.tail(state, 2)))
    wanted = {
        "kl": (p.exp() * (p - q)).sum(-1),
        "top1": p.argmax(-1) == q.argmax(-1),
        "distance": ((state - goal).norm(dim=-1) / goal.norm(dim=-1))[:, :-1],
        "norm": (state.norm(dim=-1) / goal.norm(dim=-1))[:, :-1],
        "penultimate": ((target.advance(state, 3, 4) - last).norm(dim=-1) / last.norm(dim=-1))[:, :-1],
    }
    for name, value in wanted.items():
        torch.testing.assert_close(sums[name].sum(), value.double().sum(), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("loss", ["mse", "alignment", "kl", "penultimate"])
def test_other_losses_go_down_and_reach_nought_where_they_can(rows, run, loss):
    model = tiny.frozen()
    config = replace(CONFIG, loss=loss, steps=12, floor=None)
    same = StitchTraining(model, model, PAIRS, config)
    assert max(losses.abs().max() for losses in same.losses(rows[:4].long())) < 1e-6
    module = training(PAIRS[1:3], config)
    fit(module, step_data(rows, module), run)
    assert (module.curve[-4:].mean(0) < module.curve[:4].mean(0)).all()


@pytest.mark.parametrize(("steps", "tokens", "count"), [(6, 5_000, 1), (60, 5_000, 2), (200, 30_000, 0)])
def test_a_stitch_of_few_tokens_is_warned_of(rows, caplog, steps, tokens, count):
    """A map of 32 by 32 wants 20 tokens for each of its 1,024 numbers; 60 steps read the 5,000 tokens 1.5 times."""
    module = training(PAIRS[:1], replace(CONFIG, steps=steps))
    with caplog.at_level("WARNING", logger="thinkalike"):
        warn_of_overfitting(module, tokens, context=rows.shape[1])
    assert len(caplog.records) == count


def test_moments_give_the_closed_forms_of_explicit_states(rows):
    source, target = training().models
    moments = state_moments(source, target, [(0, 1), (3, 2)], tiny.token_rows(rows), Budget(1e6, 0.0))
    x, y = source.head(rows.long(), 3).flatten(0, 1).double(), target.head(rows.long(), 2).flatten(0, 1).double()
    ones = torch.ones(len(x), 1, dtype=torch.float64)
    wanted = torch.linalg.lstsq(torch.cat([x, ones], 1), y).solution
    found = least_squares(moments, (3, 2))
    torch.testing.assert_close(found.weight, wanted[:-1].T, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(found.bias, wanted[-1], atol=1e-6, rtol=1e-6)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([tiny.document(seed) for seed in range(20)], 290, cls_sep=True)


def test_hidden_tokens_are_15_percent_and_never_special(tokenizer):
    shown = []

    def model(tokens):
        shown.append(tokens)
        return (torch.nn.functional.one_hot(tokens, 290).float() * 100,)  # sure of what it sees

    tokens = torch.randint(len(tokenizer), (300, 100))
    losses, hidden = masked_losses(model, tokens, tokenizer, torch.Generator().manual_seed(0))
    special = torch.isin(tokens, torch.tensor(tokenizer.all_special_ids))
    assert not (hidden & special).any()
    assert hidden.sum() / (~special).sum() == pytest.approx(0.15, abs=0.01)
    (seen,) = shown
    assert torch.equal(seen[~hidden], tokens[~hidden])
    assert (seen[hidden] == tokenizer.mask_token_id).double().mean() == pytest.approx(0.8, abs=0.02)
    assert (seen[hidden] == tokens[hidden]).double().mean() == pytest.approx(0.1, abs=0.02)
    assert (losses < 1e-6).double().mean() == pytest.approx(0.1, abs=0.02)


@pytest.mark.ci_slow
@pytest.mark.parametrize("family", ["native", "gpt_neox", "gpt2"])
def test_blocks_share_compiled_graphs_whatever_their_number(rows, checkpoints, monkeypatch, family):
    """One without gradients, one with, and one for any number of rows, which grows where stitches join."""
    model = model_of(family, checkpoints)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    module = StitchTraining(model, model, [(i, i) for i in range(model.n_layers)], CONFIG)
    expected = torch.stack([losses.mean() for losses in module.losses(rows[:2].long())])
    torch._dynamo.reset()
    counters.clear()
    with model.compiled():
        losses = torch.stack([losses.mean() for losses in module.losses(rows[:2].long())])
        losses.sum().backward()
    assert model.n_layers == 4
    assert 2 <= counters["stats"]["unique_graphs"] <= 4
    torch.testing.assert_close(losses, expected)


@pytest.mark.ci_slow
def test_lightning_alone_trains_a_stitch_to_the_same_bits(rows, run, tmp_path):
    """With no frame of ours around it, as the how-to page shows."""
    config = replace(CONFIG, schedule="average")
    ours, theirs = training(config=config), training(config=config)
    fit(ours, step_data(rows, ours), run)
    options = {"max_steps": 6, "accelerator": "cpu", "logger": False, "enable_progress_bar": False}
    pl.Trainer(**options, default_root_dir=tmp_path / "lightning").fit(theirs, step_data(rows, theirs))
    assert all(map(torch.equal, ours.parameters(), theirs.parameters()))
    assert torch.equal(ours.curve, theirs.curve)
    assert not torch.equal(ours.stitches[0].map.weight, training().stitches[0].map.weight), "control"


JOB = Path("stitching", "broken")  # a state is of the job with such a folder


@pytest.fixture(scope="module")
def stopped(rows, tmp_path_factory):
    """The folder of a training that broke off after a state, with curves."""
    folder = tmp_path_factory.mktemp("stopped") / JOB
    module = training(PAIRS[:2])
    break_off(module, 5)
    here = TrainingRun(folder, torch.device("cpu"), TrainerConfig(checkpoint_every=2))
    with contextlib.suppress(DataError):
        fit(module, step_data(rows, module), here, loggers_of(here, "csv"))
    return folder


@pytest.fixture
def broken_off(stopped, tmp_path):
    """A copy of this folder, which a test may change."""
    return Path(shutil.copytree(stopped, tmp_path / JOB))


@pytest.fixture(scope="module")
def whole(rows, tmp_path_factory):
    """The same training, done without a break."""
    module = training(PAIRS[:2])
    here = TrainingRun(tmp_path_factory.mktemp("whole"), torch.device("cpu"), TrainerConfig(checkpoint_every=2))
    fit(module, step_data(rows, module), here)
    return module


def forged(state: dict, what: str) -> dict:
    """Return a whole state of this job that is no state of this training."""
    if what == "nothing":
        return {}
    if what == "the step alone":
        return {"global_step": 3}
    if what == "weights of other shapes":
        return state | {"state_dict": {name: torch.zeros(3) for name in state["state_dict"]}}
    if what == "weights of other names":
        return state | {"state_dict": {}}
    if what.startswith("step "):
        return state | {"global_step": {"done": 10**9, "text": "x", "truth": True, "negative": -1}[what[5:]]}
    return state | {what: {} if what == "loops" else []}


def tampered(state: dict, what: str) -> dict:
    """Return a state of this training with one wrong entry."""
    state = copy.deepcopy(state)
    group = state["optimizer_states"][0]["param_groups"][0]
    momenta = state["optimizer_states"][0]["state"]
    schedule = state["lr_schedulers"][0]
    progress = state["loops"]["fit_loop"]
    optimizer = progress["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]["step"]["total"]
    weights = state["state_dict"]
    name = next(name for name in weights if name.endswith("weight"))
    changes = {
        "a rate of text": lambda: group.update(lr="x"),
        "another rate": lambda: group.update(lr=group["lr"] * 100),
        "another momentum": lambda: group.update(momentum=0.0),
        "another decay": lambda: group.update(weight_decay=0.5),
        "an option more": lambda: group.update(maximize=True),
        "an option less": lambda: group.pop("momentum"),
        "no weights": lambda: group.update(params=[]),
        "a method of a schedule": lambda: schedule.update(get_lr=3),
        "another end of a schedule": lambda: schedule.update(last_epoch=schedule["last_epoch"] + 1),
        "other rates of a schedule": lambda: schedule.update(base_lrs=[9.0]),
        "momenta of another shape": lambda: momenta[0].update(momentum_buffer=torch.zeros(1)),
        "momenta of whole numbers": lambda: momenta[0].update(momentum_buffer=momenta[0]["momentum_buffer"].int()),
        "a single momentum": lambda: momenta[0].update(momentum_buffer=torch.zeros(())),
        "momenta of double precision": lambda: momenta[0].update(
            momentum_buffer=momenta[0]["momentum_buffer"].double()
        ),
        "momenta of half precision": lambda: momenta[0].update(momentum_buffer=momenta[0]["momentum_buffer"].half()),
        "momenta that are no numbers": lambda: momenta[0]["momentum_buffer"].fill_(math.nan),
        "an infinite momentum": lambda: momenta[0]["momentum_buffer"].view(-1)[:1].fill_(-math.inf),
        "weights that are no numbers": lambda: weights[name].view(-1)[:1].fill_(math.nan),
        "momenta of text": lambda: momenta[0].update(momentum_buffer="x"),
        "momenta of no weight": lambda: momenta.update({99: momenta[0]}),
        "no momenta": lambda: momenta.clear(),
        "momenta less": lambda: momenta.pop(0),
        "fewer steps in loops": lambda: optimizer.update(completed=optimizer["completed"] - 1),
        "steps below 0": lambda: optimizer.update(completed=-50),
        "more steps than there are": lambda: optimizer.update(completed=10**9),
        "steps of text": lambda: optimizer.update(completed="x"),
        "no loops": lambda: state.pop("loops"),
        "an empty loop": lambda: progress.clear(),
        "complex weights": lambda: weights.update({name: weights[name] * 1j}),
        "whole weights": lambda: weights.update({name: weights[name].int()}),
        "weights of another precision": lambda: weights.update({name: weights[name].double()}),
        "microbatches of no rows": lambda: state["microbatch"].update(size=[0, 0]),
        "microbatches of text": lambda: state.update(microbatch="x"),
    }
    changes[what]()
    return state


TAMPERED = [
    *("a rate of text", "another rate", "another momentum", "another decay", "an option more", "an option less"),
    *("no weights", "a method of a schedule", "another end of a schedule", "other rates of a schedule"),
    *("momenta of another shape", "momenta of whole numbers", "momenta of text", "momenta of no weight"),
    *("a single momentum", "momenta of double precision", "momenta of half precision", "momenta that are no numbers"),
    *("an infinite momentum", "weights that are no numbers"),
    *("no momenta", "momenta less", "fewer steps in loops", "steps below 0", "more steps than there are"),
    *("steps of text", "no loops", "an empty loop", "complex weights", "whole weights"),
    *("weights of another precision", "microbatches of no rows", "microbatches of text"),
]
TAMPERED_QUICKLY = [  # one of each part of a state, among the fast tests
    *("another rate", "no weights", "other rates of a schedule", "momenta of text", "fewer steps in loops"),
    *("complex weights", "microbatches of no rows"),
]


def test_a_state_that_is_written_again_trains_to_the_same_bits(rows, run, broken_off, whole):
    """The control of the tests below, which write a state of this training with something wrong in it."""
    states = broken_off / "checkpoints"
    state = read_state(newest_state(states, "training"))
    write_state(states, "training", copy.deepcopy(state))
    here = replace(run, partial=broken_off)
    module = training(PAIRS[:2])
    fit(module, step_data(rows, module), here, loggers_of(here, "csv"))
    assert all(map(torch.equal, module.parameters(), whole.parameters()))


@pytest.mark.parametrize("what", with_slow(TAMPERED, *set(TAMPERED).difference(TAMPERED_QUICKLY)))
def test_a_state_with_one_wrong_entry_is_one_line(what, rows, run, broken_off):
    """Otherwise another optimizer trains under the same key, or the training ends in an error of Lightning."""
    states = broken_off / "checkpoints"
    state = read_state(newest_state(states, "training"))
    write_state(states, "training", tampered(state, what))
    here = replace(run, partial=broken_off)
    module = training(PAIRS[:2])
    with pytest.raises(StoreError, match=r"is no state of this training \(.*\); remove it$"):
        fit(module, step_data(rows, module), here)


@pytest.mark.parametrize("count", [0.0, 4.0, math.nan, 1e30])
def test_a_count_of_steps_that_adam_has_not_done_is_told(count):
    """It scales the estimates of the moments, so that a wrong one changes what is trained."""
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([weight])
    for _ in range(3):
        weight.grad = torch.ones(3)
        optimizer.step()
    state = copy.deepcopy(optimizer.state_dict()["state"])
    assert invalid_momenta(state, optimizer, 3) == "", "control"
    state[0]["step"] = torch.tensor(count)
    assert "step of weight 0" in invalid_momenta(state, optimizer, 3)


@pytest.mark.parametrize(
    "what",
    [
        *("nothing", "the step alone", "weights of other shapes", "weights of other names"),
        *("step done", "step text", "step truth", "step negative", "loops", "optimizer_states", "lr_schedulers"),
    ],
)
def test_a_state_of_another_form_is_one_line(what, rows, run, broken_off):
    """Whoever wrote it; the digest in its name says that it is whole."""
    states = broken_off / "checkpoints"
    state = read_state(newest_state(states, "training"))
    path = write_state(states, "training", forged(state, what))
    module = training(PAIRS[:2])
    here = replace(run, partial=broken_off)
    with pytest.raises(StoreError, match=r"is no state of this training \(.*\); remove it") as refused:
        fit(module, step_data(rows, module), here, loggers_of(here, "csv"))
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["metrics.csv", "earlier.csv"])
@pytest.mark.parametrize(
    "content",
    [b"a,b\n1,2\n", b"step,loss\nx,2\n", b'"a\n1,2,3\n4', b"step\n1,2,3\n1\n\n4,5\n", b"\xff\xfe\x00" * 9, None],
)
def test_curves_of_another_form_are_one_line(name, content, rows, run, broken_off):
    """They are looked at before the training begins, and not when they are joined at its end."""
    path = broken_off / "curves" / name
    path.unlink(missing_ok=True)
    path.mkdir() if content is None else path.write_bytes(content)
    module = training(PAIRS[:2])
    here = replace(run, partial=broken_off)
    with pytest.raises(StoreError, match=r"holds no curves of a training \(.*\); remove it") as refused:
        fit(module, step_data(rows, module), here, loggers_of(here, "csv"))
    assert (str(path) in str(refused.value), "\n" in str(refused.value)) == (True, False)
    assert module.curve.isnan().all(), "nothing was trained"
