"""measure=trajectory: how the representations of a model form, from checkpoint to checkpoint of its training.

python analyze.py measure=trajectory model=./my-run
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from thinkalike.config import AnalyzeConfig, MeasureConfig, ModelConfig, compose_job, ranged
from thinkalike.config.schema import Numbers
from thinkalike.errors import ConfigError, DataError, listed
from thinkalike.job import Instrument, Outcome, Phase, Shapes, Work
from thinkalike.store import Headline, Result

if TYPE_CHECKING:
    from torch import Tensor

    from thinkalike.data.stimuli import Stimuli
    from thinkalike.instruments.transfer.probing import Task
    from thinkalike.models.frozen import FrozenModel

log = logging.getLogger(__name__)


@dataclass
class TrajectoryConfig(MeasureConfig):
    """The settings of a trajectory."""

    kind: str = "trajectory"
    steps: Literal["all"] | Numbers = "all"  # checkpoints by their steps
    train: list[str] = field(default_factory=list)  # words of task=pretrain: train this mini first; []: it is there
    tokens: int = ranged(4096, least=64, most=10**8)  # of text that each checkpoint reads
    importance: bool = True  # of features by MLEM, beside accuracies of probes
    folds: int = ranged(5, least=2, most=10**4)  # of the stimuli
    least: int = ranged(20, least=2, most=10**9)  # stimuli of a level that is told apart
    permutations: int = ranged(99, least=19, most=10**5)  # of labels, of the null of accuracies


class Trajectory(Instrument, kind="trajectory", version=3, reads=("model", "data", "measure", "stimuli", "seed")):
    """Compares the checkpoints of a run with each other, and finds when each feature is there.

    Leaves likeness and speed by step and layer in table.csv, and losses.csv, likeness.csv (step x step), features.csv,
    onsets.csv and order.csv.
    """

    makes_inputs: ClassVar[bool] = True
    of_models: ClassVar[str] = "each"

    def with_unread_reset(self, config: AnalyzeConfig) -> AnalyzeConfig:
        return replace(config, model=replace(config.model, revision=None))

    def models_of(self, config: AnalyzeConfig) -> Mapping[str, ModelConfig]:
        measure: Any = config.measure
        known = {} if measure.train else checkpoints_of(config.model, measure.steps)
        return {"model": [config.model, *known.values()][-1]}

    def prepared(self, config: AnalyzeConfig) -> Sequence[Any]:
        return [training(config)] if config.measure.train else []  # type: ignore[attr-defined]

    def operations(self, config: AnalyzeConfig, shapes: Shapes) -> Sequence[Phase]:
        from thinkalike.job import forward_passes

        measure: Any = config.measure
        count = 1 if measure.train else len(checkpoints_of(config.model, measure.steps))
        return forward_passes(shapes.values(), float(count * measure.tokens), config.data.context or 64, full=True)

    def inputs(self, config: AnalyzeConfig) -> Mapping[str, Any]:
        from thinkalike.data.documents import text_fingerprint
        from thinkalike.data.from_config import read_stimuli

        stimuli = read_stimuli(config.stimuli)
        tasks_of_features(config, stimuli)  # so that errors come before anything is loaded or trained
        found = {"stimuli": stimuli, "data": text_fingerprint(config.data), "labels": config.model.called}
        return {**found, "steps": checkpoints_of(trained(config), config.measure.steps)}  # type: ignore[attr-defined]

    def run(self, config: AnalyzeConfig, work: Work) -> Outcome:
        from thinkalike.instruments.trajectory.answers import outcome
        from thinkalike.progress import counted

        steps: Checkpoints = work.inputs["steps"]
        reading, kept = Reading(config, work), []
        for step in counted(list(steps), "checkpoint"):
            if (found := work.resume(f"step{step}")) is None:
                work.keep(f"step{step}", found := reading.of(steps[step]))
            kept.append(found)
        return outcome(list(steps), kept, reading)

    def draw(self, result: Result, folder: Path) -> None:
        from thinkalike import figures

        figures.trajectory(result.table, result.tables, folder)

    def headlines(self, result: Result) -> Sequence[Headline]:
        """Return when the loss and when likeness to the last checkpoint had gone nine tenths of their way."""
        names = ("loss_settles", "likeness_settles")
        return [Headline(name, result.scalars[name]) for name in names if name in result.scalars]

    def show(self, result: Result) -> None:
        from thinkalike.instruments.trajectory.screen import show

        show(result)


class Checkpoints(dict[int, ModelConfig]):
    """The checkpoints of a run by their steps."""

    def fingerprint(self) -> str:
        """Return the step and the content of each."""
        from thinkalike.models.places import checkpoint_fingerprint

        return " ".join(f"{step}:{checkpoint_fingerprint(model)}" for step, model in self.items())


def training(config: AnalyzeConfig) -> Any:
    """Return the configuration of the job that trains the mini."""
    measure: Any = config.measure
    words = [f"model={config.model.name}", *measure.train, f"store={config.store}", "logger=none"]
    job = compose_job("train", ["task=pretrain", *words])
    job.threads = config.threads
    return job


def trained(config: AnalyzeConfig) -> ModelConfig:
    """Return the model whose checkpoints are read, trained first if `measure.train` says so."""
    from thinkalike.instruments import run_job

    if not config.measure.train:  # type: ignore[attr-defined]
        return config.model
    job = training(config)
    folder = run_job(job, shown=False).folder / config.model.name
    return replace(config.model, path=str(folder), seed=job.model.seed)


def checkpoints_of(model: ModelConfig, steps: Literal["all"] | Sequence[int]) -> Checkpoints:
    """Return the checkpoints of a run at these steps, in their order.

    Raises:
        ConfigError: there are fewer than two, or none of a step.
    """
    from thinkalike.models.places import steps_of

    there = steps_of(model)
    wanted = list(there) if steps == "all" else sorted(set(steps))
    if missing := [step for step in wanted if step not in there]:
        named = listed(there) or "no step"
        raise ConfigError(f"measure.steps={missing[0]}: {model.called} has checkpoints of these steps: {named}")
    if len(wanted) < 2:
        raise ConfigError(
            f"{model.called} has {len(there)} checkpoints in folders or revisions with a step in their names, such as "
            "step64 or checkpoint-500, and a trajectory needs two; task=pretrain pretrain.keep=log2 keeps them"
        )
    return Checkpoints({step: replace(model, revision=there[step]) for step in wanted})


def tasks_of_features(config: AnalyzeConfig, stimuli: Stimuli) -> list[Task]:
    """Return the task of each feature: words are held out where each word has one level, and else sentences."""
    import pandas as pd

    from thinkalike.instruments.transfer.probing import SPLITS, tasks_of

    measure: Any = config.measure
    found: dict[str, Task] = {}
    for task in tasks_of(stimuli, SPLITS, measure.folds, measure.least, config.seed):
        labelled = pd.DataFrame({"word": [stimuli.words[row] for row in task.rows.tolist()], "level": task.labels})
        if task.split == "sentence" or labelled.groupby("word")["level"].nunique().max() == 1:
            found[task.feature] = task  # that of words comes last
    return list(found.values())


class Reading:
    """Reads checkpoints, each once: all of the same text and the same stimuli."""

    def __init__(self, config: AnalyzeConfig, work: Work):
        from thinkalike.measures.trajectories import permuted_labels

        measure: Any = config.measure
        self.config, self.measure, self.work, self.stimuli = config, measure, work, work.inputs["stimuli"]
        self.text = work.resume("text") or {}  # what the first checkpoint read
        self.tasks = tasks_of_features(config, self.stimuli)
        permuted = partial(permuted_labels, permutations=measure.permutations, seed=config.seed)
        self.labels = [permuted(task.labels, task.groups) for task in self.tasks]

    def of(self, checkpoint: ModelConfig) -> dict[str, Any]:
        """Return what one checkpoint gives: states and losses of the text, and of stimuli accuracies and importances.

        Raises:
            DataError: its tokenizer cuts the text otherwise than that of the first checkpoint.
        """
        from thinkalike.instruments.diff.instrument import read_rows
        from thinkalike.models.load import load_model
        from thinkalike.states.stimuli import stimulus_states
        from thinkalike.tokenizers import tokenizer_fingerprint

        with self.work.phase("loading"):
            model = load_model(checkpoint)
            cut = tokenizer_fingerprint(model.tokenizer)
            if not self.text:
                rows, _, facts = read_rows(self.config, model)
                self.text = {"tokens": rows.tokens, "documents": rows.documents, "facts": facts, "tokenizer": cut}
                self.work.keep("text", self.text)
        if cut != self.text["tokenizer"]:
            raise DataError(f"{model.name} has another tokenizer than the checkpoints before it")
        with self.work.phase("text"):
            states, losses = _of_text(model, self.text["tokens"].long())
        with self.work.phase("stimuli"):
            words = stimulus_states(model, self.stimuli)
            found = {"states": states, "losses": losses, "model": model.describe(), **self._accuracies(words)}
        if self.measure.importance:
            with self.work.phase("importance"):
                found["importance"] = self._importance(model, words)
        return found

    def _accuracies(self, words: Sequence[Tensor]) -> dict[str, list[Any]]:
        """Return for each task which stimuli each layer gets right, (l, n), and the accuracies of its null, (l, p)."""
        import torch

        from thinkalike.measures.trajectories import balanced, held_out_right

        right, null = [], []
        for task, labels in zip(self.tasks, self.labels, strict=True):
            found = [held_out_right(layer[task.rows], labels, len(task.levels), task.fold_of) for layer in words]
            right.append(torch.stack([each[0] for each in found]))
            null.append(torch.stack([balanced(each[1:], labels[1:], len(task.levels)) for each in found]))
        return {"right": right, "null": null}

    def _importance(self, model: FrozenModel, words: Sequence[Tensor]) -> Tensor:
        """Return the importance of each feature in each layer on each fold, (l, f, k)."""
        from thinkalike.instruments.mlem import MLEMConfig, fit_profiles
        from thinkalike.states.stimuli import StimulusStates

        side = StimulusStates(model.name, list(range(model.n_layers)), list(words), {})
        config = replace(self.config, measure=MLEMConfig(folds=self.measure.folds))
        return fit_profiles(config, self.stimuli, [side])[1].by_fold()


def _of_text(model: FrozenModel, rows: Tensor) -> tuple[list[Tensor], Tensor]:
    """Return the states of all tokens by layer, (n, d), and the loss of each token but the first of a row."""
    import torch

    from thinkalike.evaluation.language import BATCH_TOKENS, next_token_losses

    parts, losses = [], []
    with torch.no_grad():
        for tokens in rows.split(max(BATCH_TOKENS // rows.shape[1], 1)):
            states = model.residuals(tokens, list(range(model.n_layers)))
            losses.append(next_token_losses(model, states[-1:], tokens)[0].float().cpu())
            parts.append([layer.flatten(0, 1).float().cpu() for layer in states])
    return [torch.cat(each) for each in zip(*parts, strict=True)], torch.cat(losses)
