"""budget=5min: what a job leaves out so that it takes no longer, and that long jobs are offered one."""

import logging
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from hydra import compose
from omegaconf import open_dict

import thinkalike
from thinkalike import budget, forecast
from thinkalike.config.compose import hydra_ready
from thinkalike.config.compose_jobs import checked
from thinkalike.digests import remembered
from thinkalike.errors import ConfigError, DataError
from thinkalike.instruments import of_stimuli
from thinkalike.instruments.diff import null
from thinkalike.job.listed_jobs import asked_for
from thinkalike.job.lookup import instrument_of
from thinkalike.jobs import running
from thinkalike.models import shapes
from thinkalike.models.checkpoints import ASSETS
from thinkalike.processes import under_way
from thinkalike.screen import sentence, watched
from thinkalike.training.recipe import fewest_steps

FEW_REFITS = ["measure.permutations=1", "measure.references=1"]  # of mlem
PAIR = ["model=neox-5l-mini", "model@target=neox-6l-mini", "dry_run=true"]


@pytest.fixture(scope="module")
def timings(tmp_path_factory):
    """A cache of this module, so that each piece of work is timed once."""
    return tmp_path_factory.mktemp("timings")


@pytest.fixture
def slow(monkeypatch, timings):
    """A cache of these tests, and a machine of a hundredth of the usual speed.

    Stimuli take a second each: test_timing.py times them, which takes seconds for each number of stimuli.
    """
    monkeypatch.setenv("THINKALIKE_CACHE", str(timings))
    monkeypatch.setattr(of_stimuli, "seconds_of_rows", lambda name, work, rows, most: float(rows))
    monkeypatch.setattr(shapes, "seconds_per_operation", lambda *_: 1 / 8e8)


def composed(script, *words):
    """Return the configuration of a command line, in which what it leaves open is open."""
    with hydra_ready():
        found = compose(script, list(words), return_hydra_config=True)
        with open_dict(found):
            choices = found.pop("hydra").runtime.choices
        return checked(found, words, choices)


def test_times_are_read_and_said():
    assert [budget.seconds_of_budget(each) for each in ("90s", "10min", "2h")] == [90, 600, 7200]
    assert [forecast.duration_in_words(each) for each in (0.0, 0.25, 45.2, 240.0, 468e3)] == [
        "0 seconds",
        "0.25 seconds",
        "45 seconds",
        "4 minutes",
        "130 hours",
    ]


def test_a_number_of_the_machine_is_found_once(monkeypatch, tmp_path):
    monkeypatch.setenv("THINKALIKE_CACHE", str(tmp_path))
    assert [remembered("a", lambda: 2.0), remembered("a", lambda: 3.0), remembered("b", lambda: 3.0)] == [2, 2, 3]


@pytest.mark.ci_slow
@pytest.mark.parametrize(
    ("script", "words"), [("train", []), ("analyze", ["measure=cka"]), ("analyze", ["measure=ruler"])]
)
def test_a_smaller_budget_is_less_work(slow, script, words):
    config = composed(script, *words, *PAIR)
    jobs = [budget.largest_job_within(config, [], time) for time in ("60s", "20min", "24h")]
    assert jobs[0].seconds < jobs[1].seconds <= jobs[2].seconds
    assert jobs[1].seconds <= 0.75 * 1200, "a quarter is left to other programs"
    assert budget.largest_job_within(config, [], "20min").config == jobs[1].config, "the same budget is the same job"
    assert all(job.config.ruler == "bits" for job in jobs) or words == ["measure=ruler"]
    assert script == "analyze" or jobs[0].config.data.aligned, "documents give their beginnings"


def test_a_budget_on_a_busy_machine_says_the_time_by_the_clock(slow, monkeypatch, caplog):
    config = composed("analyze", "measure=cka", "budget=20min", *PAIR)
    found = {}
    for share in (1.0, 0.25):
        monkeypatch.setattr(budget, "share_of_processor", lambda share=share: share)
        caplog.clear()
        found[share] = budget.within(config, [])
        said = caplog.messages[0].partition("; ")[2]
        seconds = budget.largest_job_within(config, [], "20min").seconds
        idle = f"about {forecast.duration_in_words(seconds)} on this machine"
        assert said.startswith(idle)
        assert (f"{forecast.duration_in_words(4 * seconds)} by the clock" in said) == (share < 1)
    assert found[1.0] == found[0.25], "the same budget is the same job"


@pytest.mark.ci_slow
def test_a_forecast_of_a_diff_counts_the_random_changes_of_all_weights(slow, monkeypatch):
    """Random changes of SmolLM2-135M take as long as a fifth of its passes."""
    words = ("measure=diff", "model=gelu-3l-mini", "model@target=gelu-3l-mini-s1")
    seconds = {}
    for seconds_of_matrix in (0.0, 2.0):
        monkeypatch.setattr(null, "remembered_seconds", lambda *_, found=seconds_of_matrix: found)
        for control in ("random_change", "continued_training"):
            config = composed("analyze", *words, f"measure.null={control}")
            seconds[control, seconds_of_matrix] = forecast.forecast(config, looks_up=False).seconds()
    (job,) = asked_for(composed("analyze", *words))
    weights = instrument_of(job).shapes_of(job)["model"].parameters
    further = seconds["random_change", 2.0] - seconds["random_change", 0.0]
    assert further == pytest.approx(null.RUNS * 2.0 * weights / 2**20)
    assert seconds["continued_training", 2.0] == seconds["continued_training", 0.0], "control"


def test_what_a_command_line_chose_stays(slow):
    words = ["measure=cka", "layers=[[0,0]]"]
    config = composed("analyze", *words, *PAIR)
    job = budget.largest_job_within(config, ["measure", "layers"], "60s").config
    assert job.layers == [[0, 0]]
    assert job.measure.batches < 64, "control"
    trained = budget.largest_job_within(composed("train", "stitch=affine", *PAIR), ["stitch"], "60s").config
    assert trained.stitch.kind == "affine"


def reductions_of_stitches(chosen, *words):
    """What each reduction of a smaller and smaller stitching job sets."""
    (job,) = asked_for(composed("train", *words, *PAIR))
    kind = instrument_of(job)
    return list(kind.reductions(job, kind.shapes_of(job), chosen))


@pytest.mark.parametrize("chosen", [(), ("stitch.both", "stitch.controls")])
def test_a_stitch_that_has_no_time_to_converge_is_a_closed_form(chosen):
    reductions = reductions_of_stitches(chosen)
    with_less_text = [reduction for reduction in reductions if "data.evaluation_tokens" in reduction]
    assert len(with_less_text) > 5
    assert all(reduction["stitch.kind"] == "least_squares" for reduction in with_less_text)
    assert not any("stitch.steps" in reduction for reduction in reductions)


@pytest.mark.parametrize(
    ("words", "fewest"),
    [(["stitch=affine"], fewest_steps()), (["stitch=affine", "stitch.warmup=20"], 100)],
)
def test_a_training_that_is_named_keeps_steps_enough_for_a_bound(words, fewest):
    chosen = [word.partition("=")[0] for word in words]
    reductions = reductions_of_stitches(chosen, *words)
    shorter = [reduction for reduction in reductions if "stitch.steps" in reduction]
    steps = [reduction["stitch.steps"] for reduction in shorter]
    assert min(steps) == fewest < max(steps)
    assert not any("stitch.kind" in reduction for reduction in reductions)
    read = [reduction["stitch.steps"] * reduction["stitch.tokens_per_step"] for reduction in shorter]
    assert read == sorted(read, reverse=True)
    assert read[-1] < read[0], "control: there is less work"


def test_steps_that_a_command_line_sets_stay(slow):
    config = composed("train", "stitch.steps=8", *PAIR)
    job = budget.largest_job_within(config, ["stitch.steps"], "60s").config
    assert (job.stitch.steps, job.stitch.kind) == (8, "linear")


def test_long_jobs_are_offered_a_budget_that_holds(slow):
    config = composed("train", *PAIR)
    assert budget.offered(config, [], 599.0) == ""
    time, _, words = budget.offered(config, [], 1e6).removeprefix('; budget="').partition('" does ')
    job = budget.largest_job_within(config, [], time)
    assert job.words == words
    assert job.seconds <= budget.seconds_of_budget(time)


def test_a_long_job_is_announced_and_timing_it_takes_a_small_part_of_it(slow, monkeypatch, tmp_path):
    config = composed("analyze", "measure=cka", *PAIR[:2], "store=store")
    monkeypatch.setenv("THINKALIKE_CACHE", str(tmp_path))
    monkeypatch.setattr(budget, "share_of_processor", lambda: 1.0)
    assert budget.announcement(config, []) == "", "passes of small models are faster than timing them"
    monkeypatch.setattr(budget, "PARAMETERS_OF_SMALL_MODEL", 0)
    passes = forecast.forecast(config, looks_up=False).seconds_of_passes()
    monkeypatch.setattr(budget, "SHARE_FOR_TIMING", 0.0)
    least = f"at least about {forecast.duration_in_words(passes)} on this machine"
    assert budget.announcement(config, []) == least, "nothing was timed beside the passes"
    monkeypatch.setattr(budget, "SHARE_FOR_TIMING", 0.05)
    with watched():
        said = budget.announcement(config, [])
        assert re.search("whole job: about .* left$", sentence(under_way(), 0.0))
    assert said.startswith("about ")
    seconds = forecast.forecast(config, looks_up=False).seconds()
    assert seconds > passes > budget.ANNOUNCED_SECONDS
    assert forecast.duration_in_words(seconds) in said
    monkeypatch.setattr(budget, "ANNOUNCED_SECONDS", seconds + 1)
    assert budget.announcement(config, []) == "", "a short job is not announced"


@pytest.mark.ci_slow
def test_a_function_says_how_long_its_job_takes_unless_it_has_a_budget(slow, monkeypatch, capsys):
    monkeypatch.setattr(running, "may_take_long", lambda config: True)
    monkeypatch.setattr(running, "announcement", lambda config, chosen: f"about 4 hours; {sorted(chosen)}")
    small = {"texts": "stdlib", "evaluation_tokens": 2048}
    thinkalike.loss("neox-4l-mini", **small)
    assert "about 4 hours; ['data.evaluation_tokens']" in capsys.readouterr().err
    monkeypatch.setenv("THINKALIKE_PROGRESS", "0")
    thinkalike.loss("neox-4l-mini", **small)
    thinkalike.loss("neox-4l-mini", texts="stdlib", budget="1s")
    assert "4 hours" not in capsys.readouterr().err


def test_a_job_that_leaves_nothing_out_takes_no_budget(slow):
    with pytest.raises(ConfigError, match='budget="5min" chooses layers, text or stimuli'):
        budget.within(composed("analyze", "measure=lineage", "budget=5min", *PAIR), [])


@pytest.mark.parametrize(
    ("words", "part", "setting"),
    [
        (["measure=diff", "model=gelu-3l-mini", "model@target=gelu-3l-mini-s1"], "measure", "tokens"),
        (["measure=loss", "model=gelu-3l-mini"], "data", "evaluation_tokens"),
        (
            ["measure=mlem", "model=gpt2-mini", "stimuli.sentences=200", "measure.folds=2", *FEW_REFITS],
            "stimuli",
            "sample",
        ),
    ],
)
def test_each_instrument_of_text_or_stimuli_reads_less_in_less_time(slow, words, part, setting):
    config = composed("analyze", *words)
    none_chosen = [budget.largest_job_within(config, [], time) for time in ("1s", "20h")]
    least, all_of_it = (getattr(getattr(job.config, part), setting) for job in none_chosen)
    assert 0 < none_chosen[0].seconds < none_chosen[1].seconds
    assert all_of_it in (getattr(getattr(config, part), setting), 2**18)
    assert all_of_it is None or least < all_of_it


def test_a_job_of_which_all_is_given_is_done_as_given(slow, caplog):
    """Else it would have readings in bits, and so be another job, without any less work."""
    chosen = ["measure", "layers", "measure.batches"]
    config = composed("analyze", "measure=cka", "layers=[[0,0]]", "measure.batches=48", "budget=60s", *PAIR)
    assert budget.within(replace(config, budget="20h"), chosen) == replace(config, budget=None)
    assert re.match('budget="20h": as given; about .* on this machine', caplog.messages[-1])
    assert budget.offered(config, chosen, 1e6) == ""
    caplog.clear()
    budget.within(replace(config, budget="1s"), chosen)
    (line,) = caplog.messages
    least = 'warning: budget="1s" is too short: the least that this job does (as given) takes about '
    assert line.startswith(least)


@pytest.mark.parametrize(
    ("given", "open_setting"),
    [("tokens", "tokens_per_part"), ("tokens_per_part", "tokens")],
)
def test_a_budget_of_a_diff_sizes_what_was_not_given(slow, given, open_setting):
    pair = ["model=gelu-3l-mini", "model@target=gelu-3l-mini-s1"]
    config = composed("analyze", "measure=diff", *pair, f"measure.{given}=1024")
    chosen = ["measure", f"measure.{given}"]
    least = budget.largest_job_within(config, chosen, "1s")
    whole = budget.largest_job_within(config, chosen, "20h")
    assert getattr(least.config.measure, given) == getattr(whole.config.measure, given) == 1024
    assert getattr(least.config.measure, open_setting) < getattr(whole.config.measure, open_setting)
    assert least.config.measure.tokens_per_part <= least.config.measure.tokens
    assert 0 < least.seconds < whole.seconds
    both = [*chosen, f"measure.{open_setting}"]
    assert budget.largest_job_within(config, both, "1s").config == config, "both are given"


@pytest.mark.parametrize("time", ["0min", "0s", "00s", "-1s", "1.5min", "5"])
def test_a_budget_without_time_is_refused(time):
    with pytest.raises(ConfigError, match="budget"):
        composed("analyze", "measure=cka", f"budget={time}", *PAIR)


@pytest.mark.ci_slow
@pytest.mark.parametrize("rows", [10**5, 10**8])
def test_a_forecast_does_not_make_the_batch_that_it_foretells(slow, rows):
    """10^8 rows of width 128 in two models would take 100 GB."""
    config = composed("analyze", "measure=cka", "measure.batches=1", f"measure.tokens_per_batch={rows}", *PAIR)
    (job,) = forecast.forecast(config, looks_up=False).jobs
    fewer = composed("analyze", "measure=cka", "measure.batches=1", "measure.tokens_per_batch=4096", *PAIR)
    (small,) = forecast.forecast(fewer, looks_up=False).jobs
    assert job.seconds >= small.seconds * rows / 4096


@pytest.mark.ci_slow
def test_a_function_takes_a_budget(slow, caplog):
    """Models of transformers in memory have one, too. What it chose shows without any set-up of logging."""
    folder = ASSETS / "neox-4l-mini"
    module = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for model in ("neox-4l-mini", (module, tokenizer)):
        result = thinkalike.loss(model, texts="stdlib", budget="1s")
        assert result.config["data"]["evaluation_tokens"] == 2048
        said = {each.getMessage().partition(";")[0]: each.levelno for each in caplog.records}
        (least,) = [text for text in said if "evaluation_tokens=2048" in text]
        assert said[least] >= logging.WARNING
        caplog.clear()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: thinkalike.lineage("bert-mini", "bert-mini-nli", budget="5min"), '^budget="5min" chooses layers'),
        (lambda: thinkalike.compare(np.eye(9), np.eye(9), budget="5min"), '^budget="5min" chooses layers'),
        (
            lambda: thinkalike.loss("gelu-3l-mini", budget="5"),
            '^budget="5" must be a time such as 90s, 10min or 2h',
        ),
        (lambda: thinkalike.loss("gelu-3l-mini", budget="0s"), '^budget="0s" must be a time such as 90s'),
        (lambda: thinkalike.loss("gelu-3l-mini", budget="5 min"), '^budget="5 min" must be a time such as 90s'),
        (lambda: thinkalike.loss("gelu-3l-mini", budget="5min\n"), "must be a time such as 90s"),
    ],
)
def test_a_function_without_a_choice_takes_no_budget(slow, call, said):
    with pytest.raises(ConfigError, match=said):
        call()


@pytest.mark.ci_slow
def test_a_measure_refuses_in_a_forecast_as_in_the_job():
    """Three rows are too few for CKA, whether they are random states or those of a model."""
    config = composed("analyze", "measure=cka", "measure.tokens_per_batch=3", "layers=[[0,0]]", *PAIR)
    instrument = instrument_of(config)
    with pytest.raises(DataError, match="3 rows are too few to compare: give at least 4"):
        instrument.seconds_beside_passes(config, instrument.shapes_of(config))
