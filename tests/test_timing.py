"""What a job will take: small steps of it are timed on this machine, and remembered."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
import transformers
from torch import nn

from conftest import composed
from thinkalike import forecast, timing
from thinkalike.instruments import of_stimuli
from thinkalike.instruments.diff.instrument import MOST_PARTS_EXCHANGED, RUNS
from thinkalike.instruments.layer_pairs.forecast import ROUNDED_COPIES
from thinkalike.job.lookup import instrument_of
from thinkalike.models import pass_times, shapes
from thinkalike.models.meta_models import meta_model
from thinkalike.models.operations import Operations
from thinkalike.models.shapes import Shape


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("THINKALIKE_CACHE", str(tmp_path))


class Clock:
    """A clock of processor time that stands still but for work of a known length."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        self.calls = 0
        monkeypatch.setattr("time.process_time", lambda: self.now)
        monkeypatch.setattr(torch, "get_num_threads", lambda: 1)

    def work(self, *seconds):
        def call():
            self.now += seconds[min(self.calls, len(seconds) - 1)]
            self.calls += 1

        return call


def test_short_work_is_timed_without_its_first_call(monkeypatch):
    clock = Clock(monkeypatch)
    assert timing.seconds_of(clock.work(0.4, 0.1, 0.25)) == pytest.approx(0.175)
    assert clock.calls == 3


def test_long_work_is_done_once(monkeypatch):
    clock = Clock(monkeypatch)
    assert timing.seconds_of(clock.work(7.0, 5.0)) == pytest.approx(7.0)
    assert clock.calls == 1


def test_threads_share_the_time(monkeypatch):
    clock = Clock(monkeypatch)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert timing.seconds_of(clock.work(8.0)) == pytest.approx(2.0)


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_the_share_of_a_processor_is_its_time_by_the_clock(monkeypatch, share):
    ticks = iter(range(10**6))
    now = {"clock": 0.0}

    def clock():
        now["clock"] = next(ticks) / 100
        return now["clock"]

    monkeypatch.setattr("time.perf_counter", clock)
    monkeypatch.setattr("time.process_time", lambda: share * now["clock"])
    assert timing.share_of_processor() == pytest.approx(share, rel=0.05)


def test_a_time_is_found_once(monkeypatch):
    clock = Clock(monkeypatch)
    work = clock.work(2.0)
    times = [timing.remembered_seconds("the same", work) for _ in range(2)]
    assert times == [2.0, 2.0]
    assert clock.calls == 1
    timing.remembered_seconds("something else", work)
    assert clock.calls == 2, "control"


@pytest.mark.parametrize("power", [1, 2, 3])
def test_many_rows_are_extrapolated_by_their_power(monkeypatch, power):
    clock = Clock(monkeypatch)
    most_made = []

    def work(rows):
        most_made.append(rows)
        clock.now += (rows / 100) ** power

    assert timing.seconds_of_rows("work", work, 50, most=100) == pytest.approx(0.5**power)
    assert timing.seconds_of_rows("work", work, 800, most=100) == pytest.approx(8.0**power)
    assert max(most_made) == 100


def test_passes_take_their_operations_and_their_outputs(monkeypatch):
    monkeypatch.setattr(shapes, "seconds_per_operation", lambda shape, row: 1e-9)
    monkeypatch.setattr(shapes, "seconds_of_output", lambda vocabulary: 1e-6 * vocabulary)
    shape = Shape("a", 2, 8, 100, 1, 4.0, 64, Operations((1e6, 1e6), (0.0, 0.0), 5e5))
    without = shape.passes("states", 1000, 64, times=3, with_logits=False)
    assert without.seconds == pytest.approx(3 * 1000 * 2e6 * 1e-9)
    whole = shape.passes("report", 1000, 64, times=3)
    assert whole.seconds == pytest.approx(3 * 1000 * (2.5e6 * 1e-9 + 100e-6))


def test_blocks_are_timed_at_the_sizes_of_the_model_and_without_its_weights(monkeypatch):
    shape = shapes.shape_of(composed("model=neox-5l-mini", entry="train").model)
    made = []
    fill = pass_times._fill_weights
    monkeypatch.setattr(pass_times, "_fill_weights", lambda module, device: (fill(module, device), made.append(module)))
    first = pass_times.seconds_per_operation(shape, 64)
    assert first > 0
    assert pass_times.seconds_per_operation(shape, 64) == first, "it is remembered"
    (module,) = made
    weights = list(module.parameters())
    assert sum(weight.numel() for weight in weights) == shape.parameters
    assert all((weight == 0.01).all() for weight in weights), "nothing was loaded"
    memory = {weight.untyped_storage().data_ptr(): weight.numel() for weight in weights}
    assert sum(memory.values()) < 0.6 * shape.parameters, "blocks share their memory"


def test_a_large_model_is_timed_by_its_first_blocks(monkeypatch):
    shape = shapes.shape_of(composed("model=neox-6l-mini", entry="train").model)
    monkeypatch.setattr(pass_times, "TIMED_SECONDS", 1e-9)
    passed = Counter()
    forward = nn.Module.__call__

    def counting(module, *arguments, **keywords):
        passed[type(module).__name__] += 1
        return forward(module, *arguments, **keywords)

    monkeypatch.setattr(nn.Module, "__call__", counting)
    assert pass_times.seconds_per_operation(shape, 64) > 0
    (block,) = [name for name in passed if name.endswith(("Layer", "Block"))]
    assert passed[block] == shape.layers + 1, "a first pass, and one block that is timed"


@pytest.mark.parametrize("most", [0, 2**31])
def test_a_model_too_large_to_be_made_is_timed_by_a_product(monkeypatch, most):
    shape = shapes.shape_of(composed("model=neox-5l-mini").model)
    products = []

    def timed(name, work):
        products.append(work().shape)
        return 2.0

    monkeypatch.setattr(pass_times, "MOST_TIMED", most)
    monkeypatch.setattr(pass_times, "remembered_seconds", timed)
    seconds = pass_times.seconds_per_operation(shape, 64)
    if most:
        assert products == [], "control"
    else:
        width = shape.width
        assert products == [(1024, 4 * width)]
        assert seconds == pytest.approx(2.0 / (2 * 1024 * width * 4 * width))


def test_measures_of_stimuli_take_as_long_as_their_layers(monkeypatch):
    config = composed("measure=rsa", "model=gpt2-mini", entry="analyze")
    kind = instrument_of(config)
    models = kind.shapes_of(config)
    seconds = {"2 layers": 3.0, "4 layers": 4.0}
    monkeypatch.setattr(of_stimuli, "seconds_of_rows", lambda name, *_: seconds[name.rpartition(", ")[2]])
    layers = sum(shape.layers for shape in set(models.values()))
    assert kind.seconds_beside_passes(config, models) == pytest.approx(3.0 + 0.5 * (layers - 2))


@pytest.mark.ci_slow
@pytest.mark.parametrize("measure", ["rsa", "mlem"])
def test_a_step_of_a_measure_of_stimuli_is_what_its_job_computes(measure, monkeypatch):
    """On random states, of so few stimuli that it takes no time, once for each number of stimuli and layers."""
    monkeypatch.setattr(of_stimuli, "TIMED_STIMULI", 64)
    monkeypatch.setattr(timing, "LONG_CALL_SECONDS", 0.0)
    words = [f"measure={measure}", "model=gpt2-mini", "measure.permutations=1", "stimuli.sentences=24"]
    if measure == "mlem":
        words += ["measure.folds=2", "measure.references=1"]
    config = composed(*words, entry="analyze")
    kind = instrument_of(config)
    assert kind.seconds_beside_passes(config, kind.shapes_of(config)) > 0


def test_bit_widths_take_a_pass_of_the_model_of_each_rounded_copy_and_of_the_untrained_one():
    words = ["measure=cka", "measure.batches=1", "model=gpt2-mini", "ruler=bits"]
    config = composed(*words, entry="analyze")
    kind = instrument_of(config)
    across, readings = kind.model_passes(config, kind.shapes_of(config))
    assert readings.phase == "readings"
    assert readings.tokens == across.tokens * (1 + ROUNDED_COPIES + 1)


def test_a_diff_by_continued_training_exchanges_all_modules():
    tokens = []
    for null in ("random_change", "continued_training"):
        words = ["measure=diff", "model=gpt2-mini", "model@target=gpt2-mini-s1", f"measure.null={null}"]
        config = composed(*words, "measure.tokens_per_part=100", "measure.taught=false", entry="analyze")
        shape = replace(instrument_of(config).shapes_of(config)["model"], layers=30)
        *_, exchanges = instrument_of(config).model_passes(config, {"model": shape, "target": shape})
        tokens.append(exchanges.tokens)
    # 2 * 30 modules in place of 16, each put into either model, and half of the runs of the null
    assert tokens[1] - tokens[0] == 100 * (2 * (60 - MOST_PARTS_EXCHANGED) - RUNS)


def test_a_forecast_is_start_loading_passes_and_work(monkeypatch):
    monkeypatch.setattr(shapes, "seconds_per_operation", lambda shape, row: 1e-9)
    monkeypatch.setattr(shapes, "seconds_of_output", lambda vocabulary: 0.0)
    config = composed("measure=cka", "model=gelu-3l-mini", "model@target=solu-3l-mini", entry="analyze")
    plan = forecast.forecast(config, looks_up=False)
    loading = sum(forecast.seconds_to_load(shape) for shape in forecast.shapes_of(plan.jobs))
    work = sum(job.seconds for job in plan.jobs)
    assert loading > 0
    assert work > 0
    assert plan.seconds() == pytest.approx(forecast.START_SECONDS + loading + plan.flops * 1e-9 + work)


def test_a_model_without_weights_brings_no_message_of_transformers(monkeypatch, caplog):
    """Its class of transformers may warn, as that of GPT-2 does of a vocabulary without the usual end of text."""
    monkeypatch.delenv("TRANSFORMERS_VERBOSITY", raising=False)
    monkeypatch.setattr(transformers.utils.logging._get_library_root_logger(), "propagate", True)  # to caplog
    transformers.logging.set_verbosity_warning()
    small = {"n_layer": 1, "n_embd": 16, "n_head": 2}
    transformers.GPT2Config(vocab_size=299, **small)  # each message comes once
    assert "within the vocabulary" in caplog.text, "control"
    caplog.clear()
    config_json = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 300, **small}
    assert len(meta_model(config_json).blocks) == 1
    assert caplog.text == ""
