"""Instruments: one file each, with its settings, its run, its table, its figure and what it prints.

`thinkalike.plugins` finds them. A module here holds the settings of a measure, such as `CKAConfig`, and one
subclass of `Instrument`. Lists of results import it, so that of stitches imports Lightning inside its functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, is_dataclass
from typing import Any

from thinkalike import figures
from thinkalike.config import (
    MEASURES,
    PROCESSES,
    SUBJECTS,
    TASKS,
    AnalyzeConfig,
    TrainConfig,
    completed,
    instrument,
    instrument_of,
    jobs_of,
    keys_of,
    measure_module,
)
from thinkalike.errors import ConfigError, ResultError, nearest
from thinkalike.job import Instrument, perform, perform_all
from thinkalike.progress import counted
from thinkalike.store import Result


def run_job(config: TrainConfig | AnalyzeConfig, shown: bool = True) -> Result:
    """Do the job that a configuration describes, or return its result if that is in the store.

    It is printed unless `shown` is false, as the results of parts of another job are not.

    Raises:
        ConfigError: there is no such task or measure, it takes no activations, or `models` stands for several jobs.
    """
    chosen = instrument_of(config)
    if isinstance(config, AnalyzeConfig) and config.models is not None and chosen.of_models != "all":
        raise ConfigError(f"models={config.models} stands for several jobs; call run_jobs(asked_for(config))")
    return perform(chosen, config, shown)


def run_jobs(configs: Sequence[TrainConfig | AnalyzeConfig], shown: bool = True) -> list[Result]:
    """Do several jobs, those together that have less work in one pass; returns the result of each, see `run_job`."""
    configs = [configs] if isinstance(configs, TrainConfig | AnalyzeConfig) else list(configs)
    found: dict[int, Result] = {}
    for places in counted(passes(configs), "pass") if len(configs) > 1 else passes(configs):
        results = perform_all([(instrument_of(configs[place]), configs[place]) for place in places], shown)
        found |= zip(places, results, strict=True)
    return [found[place] for place in range(len(configs))]


def passes(configs: Sequence[TrainConfig | AnalyzeConfig]) -> list[list[int]]:
    """Return the places of the jobs of each pass: those of kinds that can share one, and every other by itself."""
    together: dict[Any, list[int]] = {}
    for place, config in enumerate(configs):
        kind = instrument_of(config)
        shares = None if getattr(config, "activations", None) else kind.run_all
        together.setdefault(shares or place, []).append(place)
    return list(together.values())


def asked_for(config: TrainConfig | AnalyzeConfig) -> Sequence[TrainConfig | AnalyzeConfig]:
    """Return the jobs that a configuration stands for: itself, or those of the models of its list, see `jobs_of`."""
    if isinstance(config, AnalyzeConfig) and config.models is not None:
        stands_for = instrument(measure_module(config.measure.kind)).of_models
        if stands_for != "all":
            return jobs_of(config, stands_for)
    return [completed(config)]


EVERY_JOB = {  # settings that every job reads, or that decide which job it is
    "task", "measure", "experiment", "models", "scale", "recipe", "trainer", "logger", "threads", "store", "force",
    "screen", "wait", "dry_run",
}  # fmt: skip


def check_read(overrides: Sequence[str], config: TrainConfig | AnalyzeConfig) -> None:
    """Check that a job of those that a configuration stands for reads each setting of the overrides.

    Models that a command line names for an experiment are checked by it.

    Raises:
        ConfigError: none of them reads it: it belongs to another part, or has no effect beside the other settings.
    """
    keys = [key for key in keys_of(overrides) if key not in EVERY_JOB]
    if isinstance(config, TrainConfig) or config.experiment is None or config.models is not None:
        jobs = [(instrument_of(job), job) for job in asked_for(config)]
    else:
        own = instrument_of(config)
        jobs = [(instrument_of(job), job) for _, job in own.jobs(config)[1]] or [(own, config)]
        keys = [key for key in keys if key.partition(".")[0] not in ("model", "target")]
    read = [(kind, kind.with_unread_reset(job)) for kind, job in jobs]
    for key in keys:
        if any(_reads(*each, config, key) for each in read):
            continue
        names, part = ", ".join(dict.fromkeys(kind.kind for kind, _ in jobs)), key.partition(".")[0]
        parts = dict.fromkeys(part for kind, _ in jobs for part in (*kind.reads, *kind.inner_jobs_read))
        if part in parts and part != key:
            raise ConfigError(f"{key}= has no effect on {names} beside the other settings; leave it out")
        key = key if key != "target" else "model@target"
        raise ConfigError(f"{key}= is not read by {names} with these settings; it reads {', '.join(parts)}")


def _reads(kind: Instrument, read: Any, config: Any, key: str) -> bool:
    """Return whether a job, given with the settings that it ignores reset, reads the value that `config` has."""
    part, _, setting = key.partition(".")
    if key in kind.ignores:
        return False
    if part == "logger" or (part == "trainer" and (isinstance(config, TrainConfig) or setting in PROCESSES)):
        return True
    if not {part, key} & {*kind.reads, *kind.inner_jobs_read, *(["activations"] if kind.takes_activations else [])}:
        return False
    own, given = getattr(read, part, None), getattr(config, part)
    if not setting:
        return own == given or is_dataclass(own)
    name = setting.partition(".")[0]
    value = getattr(given, name)
    if value is None:
        return True
    is_same = getattr(own, name, MISSING) == value or value == "auto"  # which the other settings have decided by now
    return own is not None and name not in own.unused and is_same


def plot(what: Any, name: str | None = None, ax: Any = None) -> tuple[Any, Any]:
    """Draw a figure of a `Result` once more, or the matrix of all layer pairs that a metric computed.

    Args:
        name: of a figure of the result, as its files are called, such as "penalty"; by default the first.
        ax: where to draw a matrix; by default into a new figure.

    Returns:
        The figure and its axes, a list where there are several.

    Raises:
        ResultError: the kind draws no figures, or none of that name.
    """
    if not isinstance(what, Result):
        return figures.layer_pairs(what.value.cpu().numpy(), what.label, ax=ax)  # type: ignore[no-any-return]
    result, measures = what, SUBJECTS if "subjects" in what.provenance else MEASURES
    if result.kind in measures:
        own = instrument(measures[result.kind])
    elif not (own := {each.kind: each for each in map(instrument, TASKS.values())}.get(result.kind)):
        folder = result.folder / "figures"
        raise ResultError(f"{result.kind} is drawn from several results; its figures are in {folder}")
    with figures.shown() as drawn:
        own.draw(result, result.folder)
    if not drawn:
        raise ResultError(f"measure={result.kind} draws no figure; its numbers are in result.table")
    chosen = name or next(iter(drawn))
    if chosen not in drawn:
        raise ResultError(f"{result.kind} has no figure {name}; {nearest(chosen, drawn)}")
    return drawn[chosen]  # type: ignore[no-any-return]


__all__ = ["asked_for", "check_read", "instrument", "instrument_of", "passes", "plot", "run_job", "run_jobs"]
