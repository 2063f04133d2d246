"""A job before it runs: its key, its place in the store, and what is known of its models."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from thinkalike.advice import named_setting
from thinkalike.config import AnalyzeConfig, JobConfig, ModelConfig
from thinkalike.config.parts import AFTER
from thinkalike.config.scale import chosen_scale
from thinkalike.config.values import as_settings
from thinkalike.errors import ConfigError, ModelError
from thinkalike.former_names import with_present_names
from thinkalike.job.inputs import Input, contents_of, key_of
from thinkalike.job.instrument import AnyInstrument, Instrument
from thinkalike.job.listed_jobs import asked_for
from thinkalike.job.lookup import instrument_of
from thinkalike.job.outcome import Outcome
from thinkalike.job.provenance import environment
from thinkalike.job.unread_settings import reads_one_site
from thinkalike.job.work import Work
from thinkalike.loggers import Wandb
from thinkalike.plugins import check_trusted, digest, named_in
from thinkalike.processes import ProcessGroup, rank
from thinkalike.screen import aside
from thinkalike.store import Result, StoredJob
from thinkalike.unkept import UnkeptJob, UnkeptResult

# Parts of the configuration that every job reads.
ALWAYS_READ = ("store", "force", "wait", "seed", "threads", "trainer", "logger")

# A job that reads more tokens may take long: embedded minis read this many in minutes.
MOST_TOKENS_OF_QUICK_JOB = 2**18

SIDES: Sequence[str] = ("model", "target")

# Settings of which any makes a command stand for several jobs, or for one without models.
SETTINGS_OF_OTHER_JOBS = ("experiment", "models", "activations")


@dataclass(frozen=True)
class PlannedJob:
    """A job whose key is known.

    Attributes:
        instrument: The instrument that does the job.
        config: The configuration of the job, with everything decided.
        config_as_read: The same, with a default in place of each setting that the job does not
            read, see `Instrument.as_read`.
        inputs: What the job reads besides its settings.
        contents: The fingerprint of each of the inputs.
        key_settings: The settings that are in the key.
        plugins: The digests of the user's files of code, by FILE.py:NAME.
        job: The place of its result in the store, or in memory.
    """

    instrument: AnyInstrument
    config: JobConfig
    config_as_read: JobConfig
    inputs: Mapping[str, Input]
    contents: dict[str, str]
    key_settings: dict[str, object]
    plugins: dict[str, str]
    job: StoredJob | UnkeptJob

    @property
    def key(self) -> str:
        """The hash of everything that can change the numbers."""
        return self.job.key

    @property
    def is_of_first_process(self) -> bool:
        """Whether this process writes and prints, of several processes that share the job."""
        return not rank(self.config)

    @cached_property
    def models(self) -> Mapping[str, ModelConfig]:
        """The configurations of the models that run, by their roles in the job.

        Most jobs have the roles "model" (the source) and "target". A job of another kind names
        its own, such as one role for each model that it compares.

        A job may compare the checkpoints that were saved in the course of a model's training. The
        first use then asks the Hugging Face Hub which checkpoints there are; the answer is kept.
        """
        return self.instrument.models_of(self.config_as_read)

    def check(self) -> str:
        """Check the settings of the models before they are loaded, and explain the chosen scale.

        Returns:
            A notice of the scale ("mini" or "paper": how much is computed) that is chosen for
            these models, and why; "" if the choice needs no explanation or no text is read.

        Raises:
            ConfigError: States are to be read at a place where jobs of this kind cannot read them,
                or a device or family of models is not known.
        """
        from thinkalike.models.families import check_device_and_family

        models = list(self.models.values())
        # Whether states are to be read elsewhere than after each block.
        has_other_site = any(model.site != AFTER for model in models)
        if has_other_site and not self.instrument.takes_sites:
            raise reads_one_site("model.site", self.instrument.kind)

        parts_read = self.instrument.reads
        for side in SIDES:
            model: ModelConfig | None = getattr(self.config_as_read, side, None)
            if side in parts_read and model is not None:
                check_device_and_family(side, model)

        if "data" not in parts_read:
            return ""
        scale, reason = chosen_scale(self.config.scale, models)
        if not reason:
            return ""
        if scale == "mini":
            alternative = f"{named_setting('scale', 'paper')} takes the papers' recipe"
        else:
            alternative = f"{named_setting('scale', 'mini')} takes a laptop's"
        return f"{named_setting('scale', scale)}: {reason}; {alternative}"

    def work(self, processes: ProcessGroup) -> Work:
        """Return the context of the running job, with the settings that it reads.

        Parts of the configuration that the job does not read are None in its settings. In the
        first process the job is logged to Weights & Biases, if that was asked for.

        Args:
            processes: The processes that share the job.
        """
        parts_read = (*self.instrument.reads, *ALWAYS_READ)
        settings = dict(as_settings(self.config_as_read))
        for name in settings.keys() - set(parts_read):
            settings[name] = None
        work = Work(self.job, settings, self.inputs, contextlib.ExitStack(), processes=processes)
        if self.is_of_first_process:
            work.tracker = work.opened.enter_context(self.tracked(settings))
        return work

    def tracked(
        self, settings: Mapping[str, object]
    ) -> contextlib.AbstractContextManager[Wandb | None]:
        """Return a context that logs the job to Weights & Biases and yields the run.

        It yields None if the configuration does not ask for this logger.

        Args:
            settings: The settings as nested dictionaries.
        """
        if self.config.logger.kind != "wandb":
            return contextlib.nullcontext()
        from thinkalike.loggers import tracked

        assert isinstance(self.job, StoredJob), "a job without a store has no logger"
        return tracked(self.config.logger, self.job, self.inputs, settings)

    def write(
        self, work: Work, outcome: Outcome, run_facts: RunFacts, warnings: list[str]
    ) -> Result:
        """Write the result with its figures and provenance into the store, and return it.

        A job without a store keeps it in memory. The result appears in the store at the very end.

        Args:
            work: The context of the job, which is closed here.
            outcome: What the job computed.
            run_facts: How long the job took, alone or together with others.
            warnings: The warnings that concern this job.
        """
        began = time.monotonic()
        provenance = {
            **environment(),
            "seed": self.config.seed,
            "models": list(outcome.models),
            **outcome.facts,
            "wall_seconds": run_facts.wall_seconds,
            "inputs": self.contents,
        }
        if run_facts.jobs_in_this_pass > 1:
            provenance["jobs_in_this_pass"] = run_facts.jobs_in_this_pass
        if warnings:
            provenance["warnings"] = warnings
        if self.plugins:
            provenance["plugins"] = [
                {"name": name, "sha256": sha256} for name, sha256 in self.plugins.items()
            ]

        record = {
            "version": self.instrument.version,
            "scalars": outcome.scalars,
            "settings": with_present_names(self.key_settings),
            "provenance": provenance,
        }
        tables = {"table": outcome.table, **outcome.tables}
        written = self.job.write(work.settings, record, tables, outcome.arrays)
        self._draw(written, work, outcome)

        # Two entries are added to the written result: the time includes that of drawing, and the
        # headline numbers are computed from the result.
        seconds_of_writing = time.monotonic() - began
        provenance["wall_seconds"] = round(run_facts.wall_seconds + seconds_of_writing, 1)
        provenance["phases"] = work.phase.seconds
        headlines = [headline._asdict() for headline in self.instrument.headlines(written)]
        written = self.job.add({"headlines": headlines, "provenance": provenance})

        if work.tracker:
            work.tracker.publish(written)
        work.opened.close()
        return self.job.appear()

    def _draw(self, written: Result, work: Work, outcome: Outcome) -> None:
        """Draw the figures into the folder of the result.

        They are the figures of the instrument and the further ones that `outcome.draw` draws. A
        result in memory has no folder: it draws its figures when it is saved.
        """
        if isinstance(written, UnkeptResult):
            # The result knows its instrument, but not the further figures.
            written.add_figures(outcome.draw)
            return
        figures = written.folder / "figures"
        with work.phase("drawing"):
            self.instrument.draw(written, figures)
            outcome.draw(figures)

    def show(self, result: Result) -> None:
        """Print the result, in the first of the processes that share the job."""
        if self.is_of_first_process:
            with aside():  # the line that shows the progress is removed meanwhile
                self.instrument.show(result)


@dataclass(frozen=True)
class RunFacts:
    """How long a job, or several jobs that ran together, took.

    Attributes:
        wall_seconds: The seconds of all of them together.
        jobs_in_this_pass: The number of jobs that ran together.
    """

    wall_seconds: float
    jobs_in_this_pass: int


def plan(instrument: AnyInstrument, config: JobConfig) -> PlannedJob:
    """Return a job with its key, a hash of its settings and of everything that it reads.

    If the job reads the results of other jobs, these are done here first.

    Args:
        instrument: The instrument that does the job.
        config: The configuration, in which settings may be left to the recipe.

    Raises:
        ConfigError: The job cannot be done with these settings.
    """
    is_analysis = isinstance(config, AnalyzeConfig)
    if is_analysis and config.trainer.strategy == "ddp" and not instrument.is_shared:
        raise ConfigError(
            f"{instrument.kind} is done by one process; leave {named_setting('trainer', 'ddp')} "
            "out"
        )
    if getattr(config, "budget", None):
        raise ConfigError(
            f"budget={config.budget} is for a command line or a function: "
            "choose layers and the amount of text here"
        )

    config = instrument.completed(config)
    inputs: dict[str, Input] = {**instrument.inputs(config), **instrument.prepare(config)}
    config_as_read = instrument.as_read(config)
    key_settings = instrument.key_settings(config)
    plugins = _plugins_of(instrument, config_as_read)
    if plugins:
        inputs["plugins"] = " ".join(sorted(plugins.values()))

    contents = contents_of(inputs)
    key = key_of(instrument.kind, instrument.version, key_settings, contents)
    job: StoredJob | UnkeptJob
    if config.store is None:
        job = UnkeptJob(instrument.kind, key, instrument)
    else:
        job = StoredJob(config.store, instrument.kind, key)
    return PlannedJob(
        instrument=instrument,
        config=config,
        config_as_read=config_as_read,
        inputs=inputs,
        contents=contents,
        key_settings=key_settings,
        plugins=plugins,
        job=job,
    )


def _plugins_of(instrument: AnyInstrument, config: JobConfig) -> dict[str, str]:
    """Return the digest of each of the user's Python files that a job runs, by FILE.py:NAME.

    Raises:
        ThinkalikeError: A file is not trusted or cannot be read.
    """
    settings = as_settings(config)
    settings_read = [value for name, value in settings.items() if name in instrument.reads]
    digests = {}
    for name in named_in(settings_read):
        check_trusted(name)  # whatever runs the file later does not check it again
        digests[name] = digest(name)
    return digests


def is_stored(instrument: AnyInstrument, config: JobConfig) -> bool:
    """Return whether the store has the result of a job; False if the job is forced to run again.

    Results of other jobs that the job reads are part of its key, so these jobs are done first if
    the store lacks their results.
    """
    return not config.force and plan(instrument, config).job.done


def is_known_done(instrument: AnyInstrument, config: JobConfig) -> bool:
    """Return whether the store is known to have the result of a job, without doing other jobs.

    It is False as well if the job reads the results of other jobs, or if its models cannot be
    found, so that its key is not known.
    """
    reads_other_results = type(instrument).prepare is not Instrument.prepare
    if reads_other_results or instrument.prepared_jobs(config):
        return False
    try:
        return is_stored(instrument, config)
    except ModelError:
        return False


def may_take_long(config: JobConfig) -> bool:
    """Return whether a job is expected to take more than some minutes.

    It is if one of its models is not a mini, one of the small models of this package, or if it
    reads much text, unless its result is stored. False is returned for a command of several jobs,
    and for a job that compares recordings.
    """
    if any(getattr(config, setting, None) for setting in SETTINGS_OF_OTHER_JOBS):
        return False
    (job,) = asked_for(config)
    instrument = instrument_of(job)
    has_only_minis = all(model.mini for model in instrument.models_of(job).values())
    is_long = _tokens_read(job) > MOST_TOKENS_OF_QUICK_JOB or not has_only_minis
    if not is_long:
        return False
    # Without a store there is no stored result, and the key of the job, which takes time to
    # compute, is not needed.
    return job.store is None or not is_known_done(instrument, job)


def _tokens_read(config: JobConfig) -> int:
    """Return how many tokens a job reads.

    The settings of the text give the number of evaluation tokens, and some measures have a number
    of batches and of tokens in each; the larger amount counts. A setting that is left open, or
    that the measure does not have, counts as 0.
    """
    measure = getattr(config, "measure", None)
    batches = getattr(measure, "batches", None) or 0
    tokens_per_batch = getattr(measure, "tokens_per_batch", None) or 0
    return max(config.data.evaluation_tokens or 0, batches * tokens_per_batch)
