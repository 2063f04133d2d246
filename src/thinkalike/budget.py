"""`budget=10min`: the largest job that there is time for on this machine.

It chooses layers, the amount of text, steps and the kind of map that are left open.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch

from thinkalike.advice import named_setting
from thinkalike.config import JobConfig, SettingValues
from thinkalike.config.groups import with_changes
from thinkalike.errors import ConfigError
from thinkalike.forecast import duration_in_words, forecast, shapes_of
from thinkalike.instruments import asked_for, instrument_of
from thinkalike.models.families import pick_device
from thinkalike.models.shapes import Shape
from thinkalike.screen import expect
from thinkalike.timing import TooLongToTimeError, share_of_processor, timing_at_most

log = logging.getLogger(__name__)

Config = TypeVar("Config", bound=JobConfig)

ANNOUNCED_SECONDS = 10.0  # a longer job says beforehand how long it will take
SHARE_FOR_TIMING = 0.05  # of a job, which timing its work beforehand may take
PARAMETERS_OF_SMALL_MODEL = 10**7  # passes of smaller models are faster than timing them
LONG_SECONDS = 600.0  # a longer job is offered a budget
# A forecast is of processor time, within a quarter of it; by the clock, other programs and the disk
# take their part of a budget.
SHARE_OF_BUDGET = 0.75
OFFERED_BUDGETS = ("10min", "30min", "2h", "8h")
# Below this share of a processor, other programs slow a job down by more than a budget allows for.
BUSY_SHARE = SHARE_OF_BUDGET
SECONDS_PER_UNIT = {"s": 1, "min": 60, "h": 3600}  # seconds
OF_SEVERAL_JOBS = ("experiment", "models", "activations")


@dataclass(frozen=True)
class SmallerJob:
    """A job that does less.

    Attributes:
        config: Its configuration.
        words: What it does.
        seconds: Its time on this machine.
    """

    config: JobConfig
    words: str
    seconds: float


def within(config: JobConfig, chosen: Collection[str]) -> JobConfig:
    """Return the configuration that does as much as its budget has time for.

    What was given stays as it is, and the budget sizes the rest. A job whose least takes longer
    than the budget is done all the same, and one line says how long it takes.

    Args:
        chosen: The keys of settings that were given, and stay.

    Raises:
        ConfigError: A budget can size nothing of such a job, whatever is given.
    """
    if config.budget is None:
        return config
    job = largest_job_within(config, chosen, config.budget)
    if job is None:
        raise ConfigError(
            f"{named_setting('budget', config.budget)} chooses layers, text or stimuli that are "
            "left open, of models of known size, and this job has nothing to choose; leave it "
            "out"
        )
    by_clock = seconds_by_clock(job.seconds, job.config)
    time = time_in_words(job.seconds, by_clock)
    expect(by_clock)
    # A warning, as it must show from Python, too: the numbers are of less than a job's defaults.
    budget = named_setting("budget", config.budget)
    line = f"{budget}: {job.words}; {time}"
    if job.seconds > seconds_of_budget(config.budget):
        line = f"warning: {budget} is too short: the least that this job does ({job.words}) takes {time}"
    log.warning("%s", line)
    return job.config


def time_in_words(seconds: float, by_clock: float) -> str:
    """Return how long a job takes on this machine, and by the clock if that is busy now.

    The job is chosen by its time on an idle machine: the same budget is the same job, which can be
    resumed, whatever else runs. The clock is not watched while it runs.

    Args:
        seconds: The time of the job on this machine, if it were idle.
        by_clock: Its time while other programs take as much as now.
    """
    words = f"about {duration_in_words(seconds)} on this machine"
    if by_clock == seconds:
        return words
    return f"{words}, and {duration_in_words(by_clock)} by the clock while other programs take as much as now"


def seconds_by_clock(seconds: float, config: JobConfig) -> float:
    """Return how long a job takes by the clock while other programs take as much as now.

    Args:
        seconds: The time of the job on this machine, if it were idle.
        config: The job.
    """
    if pick_device(config.model.device) != "cpu":
        return seconds
    share = share_of_processor()
    if share >= BUSY_SHARE:
        return seconds
    return seconds / share


def announcement(config: JobConfig, chosen: Collection[str]) -> str:
    """Return about how long a job will take, before it begins; "" if that is short or unknown.

    Passes of its models are timed, which takes a second for each model, once for a machine. The
    rest is timed for at most `SHARE_FOR_TIMING` of these passes. If it would take longer, the time
    of the passes is said to be the least. A long job is offered a budget. The line of progress
    shows from now on what is left of it.

    Args:
        config: The job.
        chosen: The keys of settings that were given, which a budget leaves as they are.

    Raises:
        ThinkalikeError: The job cannot be planned; it raises the same when it runs.
    """
    if config.threads:
        torch.set_num_threads(config.threads)  # as the job will have them
    plan = forecast(config, looks_up=config.store is not None)
    shapes = [shape for jobs in plan.missing for shape in shapes_of(jobs)]
    if max((shape.parameters for shape in shapes), default=0) < PARAMETERS_OF_SMALL_MODEL:
        return ""

    seconds = plan.seconds_of_passes()
    certainty = "at least "
    offer = ""
    # What is known when there is no time left for timing remains.
    with contextlib.suppress(TooLongToTimeError), timing_at_most(SHARE_FOR_TIMING * seconds):
        seconds = plan.seconds()
        certainty = ""
        offer = offered(config, chosen, seconds)
    if seconds <= ANNOUNCED_SECONDS:
        return ""
    by_clock = seconds_by_clock(seconds, config)
    expect(by_clock, is_least=bool(certainty))
    return f"{certainty}{time_in_words(seconds, by_clock)}{offer}"


def offered(config: JobConfig, chosen: Collection[str], seconds: float) -> str:
    """Return what budget a long job could have, and what it would do then; "" if it is short.

    Args:
        seconds: The time that the job takes.
    """
    if seconds <= LONG_SECONDS:
        return ""
    for budget in OFFERED_BUDGETS:
        job = largest_job_within(config, chosen, budget)
        if job is None or job.config == replace(config, budget=None):  # there is nothing to leave out
            continue
        if job.seconds <= seconds_of_budget(budget) < seconds:
            return f"; {named_setting('budget', budget)} does {job.words}"
    return ""


def largest_job_within(config: JobConfig, chosen: Collection[str], budget: str) -> SmallerJob | None:
    """Return the largest job that a budget has time for, or the least.

    A job is done as it was given if all that a budget could size is `chosen`.

    None: there is nothing that a budget could size, or a shape is unknown.
    """
    config = replace(config, budget=None)
    if any(getattr(config, setting, None) for setting in OF_SEVERAL_JOBS):
        return None
    choices = _choices(config, chosen)
    # What all choices have in common, such as readings in bits, makes the job no smaller.
    is_given = len(choices) > 1 and all(choice == choices[0] for choice in choices)
    if is_given or choices == [{}]:
        seconds = forecast(config, looks_up=False).seconds()
        return SmallerJob(config, "as given", seconds)

    allowed = SHARE_OF_BUDGET * seconds_of_budget(budget)
    job = None
    for choice in choices:
        changed = _with_choice(config, choice)
        seconds = forecast(changed, looks_up=False).seconds()
        job = SmallerJob(changed, settings_in_words(choice), seconds)
        if seconds <= allowed:
            break
    return job


def _choices(config: JobConfig, chosen: Collection[str]) -> Sequence[SettingValues]:
    """Return settings of less and less work, without those that are chosen already.

    There are none if a model has an unknown shape, because its work cannot be forecast.
    """
    (job,) = asked_for(config)
    instrument = instrument_of(job)
    shapes: dict[str, Shape] = {}
    for model_part, shape in instrument.shapes_of(job).items():
        if shape is None:
            return []
        shapes[model_part] = shape

    choices = []
    for settings in instrument.reductions(job, shapes, chosen):
        choice = {}
        for key, value in settings.items():
            if key not in chosen and key.removesuffix(".kind") not in chosen:
                choice[key] = value
        choices.append(choice)
    return choices


def _with_choice(config: Config, choice: SettingValues) -> Config:
    """Return a configuration with other values, by their keys, which are checked."""
    for key, value in choice.items():
        field_name, _, setting = key.partition(".")
        if setting:
            value = with_changes(getattr(config, field_name), {setting: value})
        config = with_changes(config, {field_name: value})
    return config


def settings_in_words(settings: Mapping[str, object]) -> str:
    """Return settings in words, the layers first: "layers 0→0, 5→6, data.evaluation_tokens=8192"."""
    words = []
    layers = settings.get("layers")
    if isinstance(layers, list | tuple):
        pairs = [f"{source}→{target}" for source, target in layers]
        words.append(f"layers {', '.join(pairs)}")
    for key, value in settings.items():
        if key != "layers":
            words.append(named_setting(key.removesuffix(".kind"), value))
    return ", ".join(words) or "all of it"


def seconds_of_budget(budget: str) -> float:
    """Return the seconds of a budget such as 90s, 5min or 2h."""
    matched = re.fullmatch("([0-9]+)(s|min|h)", budget)
    assert matched is not None, "the schema allows no other budget"
    return float(matched[1]) * SECONDS_PER_UNIT[matched[2]]
