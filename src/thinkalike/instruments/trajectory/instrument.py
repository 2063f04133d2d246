"""measure=trajectory: how the representations of a model form, from checkpoint to checkpoint of its training.

python analyze.py measure=trajectory model=./my-run
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, ClassVar, Literal

import pandas as pd

from thinkalike import figures
from thinkalike.config import AnalyzeConfig, MeasureConfig, ModelConfig, SettingValues, setting
from thinkalike.config.schema import Numbers
from thinkalike.data.documents import text_fingerprint
from thinkalike.data.tables import read_stimuli
from thinkalike.errors import ConfigError, listed, natural_order
from thinkalike.hub import cached, patiently, refused
from thinkalike.instruments import run_job
from thinkalike.instruments.trajectory.answers import Reading, outcome, tasks_of_features
from thinkalike.job import Instrument, Outcome, Work
from thinkalike.models.checkpoints import named_folder, revisions_in
from thinkalike.models.fingerprints import checkpoint_fingerprint
from thinkalike.models.loading_errors import explained
from thinkalike.models.shapes import Passes, Shapes
from thinkalike.processes import counted
from thinkalike.screen import Table, number_column, number_of_documents, show_table, show_text
from thinkalike.store import Headline, Result

log = logging.getLogger(__name__)

# step64, step1k, global_step64, checkpoint-500, step1000-tokens4B, epoch=0-step=500.ckpt
NAME = re.compile(r"(?P<before>.*?)(step|checkpoint)[-_=]?(?P<count>\d+)(?P<unit>[kKmM]?)(?![A-Za-z0-9]|[.,_]\d)")
UNITS = {"": 1, "k": 10**3, "m": 10**6}
EPOCH = re.compile(r"epoch[-_=]?\d+")
ROWS = 14  # checkpoints on the screen, at most


@dataclass
class TrajectoryConfig(MeasureConfig):
    """The settings of a trajectory."""

    kind: str = "trajectory"
    steps: Literal["all"] | Numbers = "all"  # checkpoints by their steps
    checkpoints: str = "*"  # a pattern of their names, such as stage1-*
    train: list[str] = field(default_factory=list)  # words of task=pretrain: train this mini first; []: it is there
    tokens: int = setting(4096, least=64, most=10**8)  # of text that each checkpoint reads
    importance: bool = True  # of features by MLEM, beside accuracies of probes
    folds: int = setting(5, least=2, most=10**4)  # of the stimuli
    least: int = setting(20, least=2, most=10**9)  # stimuli of a level that is told apart
    permutations: int = setting(99, least=19, most=10**5)  # of labels, of the null of accuracies


class Trajectory(
    Instrument[AnalyzeConfig], kind="trajectory", version=4, reads=("model", "data", "measure", "stimuli", "seed")
):
    """Compares the checkpoints of a run with each other, and finds when each feature is there."""

    of_models: ClassVar[str] = "each"
    takes_sites: ClassVar[bool] = True
    smallest: ClassVar[Mapping[str, Any]] = {
        "measure.tokens": 1024,
        "measure.least": 5,
        "measure.folds": 3,
        "measure.permutations": 19,
        "measure.importance": False,
        "stimuli.sentences": 40,
    }

    def unread(self, config: AnalyzeConfig) -> SettingValues:
        return {"model.revision": None}  # all checkpoints are read

    def models_of(self, config: AnalyzeConfig) -> Mapping[str, ModelConfig]:
        measure = config.measure_as(TrajectoryConfig)
        known = {} if measure.train else checkpoints_of(config.model, measure)
        return {"model": [config.model, *known.values()][-1]}

    def prepared(self, config: AnalyzeConfig) -> Sequence[Any]:
        return [training(config)] if config.measure.train else []  # type: ignore[attr-defined]

    def passes(self, config: AnalyzeConfig, shapes: Shapes) -> Sequence[Passes]:
        measure: Any = config.measure
        count = 1 if measure.train else len(checkpoints_of(config.model, measure))
        return [shapes["model"].passes("checkpoints", float(measure.tokens), config.data.context or 64, count)]

    def inputs(self, config: AnalyzeConfig) -> Mapping[str, Any]:
        stimuli = read_stimuli(config.stimuli)
        if not isinstance(config.model.site, str) or config.model.head == "all":
            raise ConfigError("trajectory follows one site: give one model.site, and one model.head of z")
        tasks_of_features(config, stimuli)  # so that errors come before anything is loaded or trained
        return {"stimuli": stimuli, "data": text_fingerprint(config.data), "labels": config.model.called}

    def prepare(self, config: AnalyzeConfig) -> Mapping[str, Any]:
        return {"steps": checkpoints_of(trained(config), config.measure_as(TrajectoryConfig))}

    def run(self, config: AnalyzeConfig, work: Work) -> Outcome:
        steps: Checkpoints = work.input("steps", Checkpoints)
        reading, kept = Reading(config, work), []
        for step in counted(list(steps), "checkpoint"):
            if (found := work.resume(f"step{step}")) is None:
                work.keep(f"step{step}", found := reading.of(steps[step]))
            kept.append(found)
        return outcome(list(steps), kept, reading)

    def draw(self, result: Result, folder: Path) -> None:
        figures.trajectory(result.table, result.tables, folder)

    def headlines(self, result: Result) -> Sequence[Headline]:
        """Return when the loss and when likeness to the last checkpoint had gone nine tenths of their way."""
        names = ("loss_settles", "likeness_settles")
        return [Headline(name, result.scalars[name]) for name in names if name in result.scalars]

    def show(self, result: Result) -> None:
        losses, table, scalars = result.tables["losses"], result.table, result.scalars
        places = sorted({*range(0, len(losses), -(-len(losses) // ROWS)), len(losses) - 1})
        columns = [number_column("step", losses["step"][places]), number_column("loss", losses["loss"][places], ".3f")]
        alike = table.pivot(index="step", columns="layer", values="to_last").iloc[places]
        for layer in sorted({alike.columns[place] for place in (0, len(alike.columns) // 2, -1)}):
            columns.append(number_column(f"layer {layer}", alike[layer], ".3f"))
        speed = table.groupby("step")["speed"].mean().iloc[places]
        columns.append(number_column("speed", ["" if pd.isna(each) else f"{each:.2f}" for each in speed]))
        last = result.provenance["models"][-1]["name"]
        show_table(Table(f"loss, CKA with {last} by layer, and radians of change per doubling of the step", columns))
        onsets = result.tables["onsets"]
        found = onsets.dropna(subset="onset").sort_values("onset", kind="stable").groupby("feature", sort=False).first()
        named = [f"{feature} {row['onset']:.0f} (layer {row['layer']:.0f})" for feature, row in found.iterrows()]
        never = [name for name in dict.fromkeys(onsets["feature"]) if name not in found.index]
        said = f"Features are there for good from step: {', '.join(named) or 'none'}."
        show_text(said + (f" Not at the end: {', '.join(never)}." if never else ""))
        loss, likeness = (f"{scalars.get(f'{name}_settles', float('nan')):.0f}" for name in ("loss", "likeness"))
        documents = number_of_documents(scalars)
        show_text(f"Nine tenths of the way: loss by step {loss}, likeness to the end by step {likeness}; {documents}.")


class Checkpoints(dict[int, ModelConfig]):
    """The checkpoints of a run by their steps."""

    def fingerprint(self) -> str:
        """Return steps and fingerprints, and warn of two steps with the same files."""
        found = {step: checkpoint_fingerprint(model) for step, model in self.items()}
        first: dict[str, int] = {}
        for step, files in found.items():
            if first.setdefault(files, step) != step:
                log.warning("the checkpoints of steps %d and %d are equal; is this one run?", first[files], step)
        return " ".join(f"{step}:{files}" for step, files in found.items())


def training(config: AnalyzeConfig) -> Any:
    """Return the configuration of the job that trains the mini."""
    from thinkalike.config.compose import compose_inner_job  # imports Hydra

    measure = config.measure_as(TrajectoryConfig)
    words = [f"model={config.model.name}", *measure.train, f"store={config.store}", "logger=none"]
    job = compose_inner_job("train", ["task=pretrain", *words])
    job.threads = config.threads
    return job


def trained(config: AnalyzeConfig) -> ModelConfig:
    """Return the model whose checkpoints are read, trained first if `measure.train` says so."""
    if not config.measure_as(TrajectoryConfig).train:
        return config.model
    job = training(config)
    folder = run_job(job, shown=False).folder / config.model.name
    return replace(config.model, path=str(folder))


def steps_of(model: ModelConfig, only: str = "*") -> dict[int, str]:
    """Return the revisions of a model that are named by a step of its training, in the order of the steps.

    Names count that are like `only`, such as stage1-*. If two of them have one step, or differ in what is before it,
    their order is not known, and that is a ConfigError.
    """
    folder = named_folder(replace(model, revision=None))
    with explained(model):
        names = [path.name for path in revisions_in(folder)] if folder else _on_hub(str(model.hub_id))
    # A name is itself before it is a pattern: `run [a]-step4` does not match itself.
    chosen = [only] if only in names else [name for name in names if fnmatch(name, only)]
    parsed = {name: found for name in chosen if (found := NAME.match(name))}
    if left := [name for name in names if name not in parsed]:
        log.info("%s: left out are %s", model.called, listed(left))
    steps: dict[int, str] = {}
    for name, found in parsed.items():
        first, step = next(iter(parsed)), int(found["count"]) * UNITS[found["unit"].lower()]
        other, cause = steps.setdefault(step, name), f"have the same step {step}"
        if EPOCH.sub("", found["before"]) != EPOCH.sub("", parsed[first]["before"]):
            other, cause = first, "are named differently, so their order is not known"
        if other != name:
            raise ConfigError(
                f"{model.called}: {other} and {name} {cause}; measure.checkpoints=PATTERN chooses by name"
            )
    return dict(sorted(steps.items()))


def checkpoints_of(model: ModelConfig, measure: TrajectoryConfig) -> Checkpoints:
    """Return the checkpoints of a run that `measure` asks for, in their order; fewer than two are a ConfigError.

    The folder of a result of task=pretrain stands for the run in it.
    """
    inside = [path for path in Path(model.path or "-").glob("*/") if revisions_in(path)]
    if len(inside) == 1 and not revisions_in(Path(str(model.path))):
        model = replace(model, path=str(inside[0]))
    there, steps = steps_of(model, measure.checkpoints), measure.steps
    wanted = list(there) if steps == "all" else sorted(set(steps))
    if missing := [step for step in wanted if step not in there]:
        named = listed(there) or "no step"
        raise ConfigError(f"measure.steps={missing[0]}: {model.called} has checkpoints of these steps: {named}")
    if len(wanted) < 2:
        raise ConfigError(
            f"{model.called} has {len(there)} checkpoints in folders or revisions with a step in their names, such as "
            "step64 or checkpoint-500, and a trajectory needs two: keep several while the model is trained"
        )
    return Checkpoints({step: replace(model, revision=there[step]) for step in wanted})


def _on_hub(repository: str) -> list[str]:
    """Return the branches and tags of a model in natural order: the hub's answer, or else those in the cache."""
    from huggingface_hub import HfApi, constants

    try:
        refs = patiently(lambda: HfApi(endpoint=constants.ENDPOINT).list_repo_refs(repository))
        names = [each.name for each in (*refs.branches, *refs.tags)]
    except Exception as error:
        known = cached("model", repository) / "refs"
        names = [str(path.relative_to(known)) for path in known.rglob("*") if path.is_file()]
        if refused(error) or not names:
            raise
    return sorted(names, key=natural_order)
