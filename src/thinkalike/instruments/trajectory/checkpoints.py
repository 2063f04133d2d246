"""The checkpoints of a run: folders, branches or tags that are named by a step of training."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

from thinkalike.advice import named_setting
from thinkalike.config import ModelConfig
from thinkalike.errors import ConfigError, listed, natural_order
from thinkalike.files import is_there
from thinkalike.hub import cached, patiently, refused
from thinkalike.instruments.trajectory.settings import TrajectoryConfig
from thinkalike.models.checkpoints import folder_of, named_folder, revisions_in
from thinkalike.models.fingerprints import checkpoint_fingerprint
from thinkalike.models.loading_errors import explaining_loading_errors
from thinkalike.processes import log_once

log = logging.getLogger(__name__)

STEP_IN_NAME = re.compile(
    r"(?P<before>.*?)(step|checkpoint)[-_=]?(?P<count>[0-9]{1,15})(?P<unit>[kKmM]?)"
    r"(?![A-Za-z0-9]|[.,_]\d)"
)
"""Matches the beginning of names such as step64, step1k, global_step64, checkpoint-500,
step1000-tokens4B and epoch=0-step=500.ckpt."""

STEPS_PER_UNIT = {"": 1, "k": 10**3, "m": 10**6}

EPOCH_IN_NAME = re.compile(r"epoch[-_=]?\d+")

FEWEST_CHECKPOINTS = 2


class Checkpoints(dict[int, ModelConfig]):
    """The checkpoints of a run by their steps."""

    def fingerprint(self) -> str:
        """Return the steps with the fingerprints of their files, as one text.

        A warning is logged for two steps with the same files.
        """
        step_of_files: dict[str, int] = {}
        fingerprints = []
        for step, model in self.items():
            files = checkpoint_fingerprint(model)
            first_step = step_of_files.setdefault(files, step)
            if first_step != step:
                log.warning(
                    "the checkpoints of steps %d and %d are equal; is this one run?",
                    first_step,
                    step,
                )
            fingerprints.append(f"{step}:{files}")
        return " ".join(fingerprints)


def checkpoints_of(model: ModelConfig, measure: TrajectoryConfig) -> Checkpoints:
    """Return the checkpoints of a run that the settings choose, in the order of their steps.

    Args:
        model: The model, whose revisions or folders are its checkpoints. The folder of a result of
            `task=pretrain` stands for the run in it.
        measure: The settings of the trajectory.

    Raises:
        ConfigError: There is no checkpoint of a step, or there are fewer than two checkpoints.
        ModelError: The folder of the run is not there.
    """
    if model.path and not is_there(model.path):
        folder_of(model)  # raises the error of a folder that is not there
    model = _model_in_folder_of_run(model)
    names = _revision_names(model)
    revisions = _revision_by_step_in(names, model, measure.checkpoints)
    steps = list(revisions)
    if measure.steps != "all":
        steps = sorted(set(measure.steps))
    for step in steps:
        if step not in revisions:
            known_steps = listed(revisions) or "no step"
            raise ConfigError(
                f"{named_setting('measure.steps', step)}: {model.called} has checkpoints of "
                f"these steps: {known_steps}"
            )
    # whatever the settings choose; different runs in one repository have no common order
    n_all_checkpoints = sum(STEP_IN_NAME.match(name) is not None for name in names)
    if len(steps) < FEWEST_CHECKPOINTS <= n_all_checkpoints:
        raise ConfigError(
            f"{model.called}: {named_setting('measure.steps')} and "
            f"{named_setting('measure.checkpoints')} choose {len(steps)} checkpoints, and a "
            "trajectory needs two; choose more"
        )
    if len(steps) < FEWEST_CHECKPOINTS:
        raise ConfigError(
            f"{model.called} has {len(revisions)} checkpoints in folders or revisions with a step "
            "in their names, such as step64 or checkpoint-500, and a trajectory needs two: keep "
            "several while the model is trained"
        )
    return Checkpoints({step: replace(model, revision=revisions[step]) for step in steps})


def _model_in_folder_of_run(model: ModelConfig) -> ModelConfig:
    """Return the model with the folder of its run as path, where `path` is the folder around it.

    The folder of a result of `task=pretrain`, for example, contains the folder with the
    checkpoints of the run. The model is returned as it is in three cases: it has no path, its path
    has checkpoints itself, or there is not exactly one folder with checkpoints inside its path.
    """
    if not model.path:
        return model
    path = Path(model.path)
    if revisions_in(path):
        return model
    folders_of_runs = [folder for folder in path.glob("*/") if revisions_in(folder)]
    if len(folders_of_runs) != 1:
        return model
    return replace(model, path=str(folders_of_runs[0]))


def revision_by_step(model: ModelConfig, pattern: str = "*") -> dict[int, str]:
    """Return the revisions of a model whose names contain a step of training, by that step.

    Args:
        model: The model.
        pattern: A pattern of file names, such as `stage1-*`, that chooses revisions. If it is the
            name of a revision, it chooses that one.

    Raises:
        ConfigError: The order of the revisions is not known: two have the same step, or their
            names differ before the step.
    """
    return _revision_by_step_in(_revision_names(model), model, pattern)


def _revision_by_step_in(
    names: Collection[str], model: ModelConfig, pattern: str
) -> dict[int, str]:
    """Return those of a model's revisions that `revision_by_step` returns, given all their names.

    Args:
        names: The names of all revisions.
        model: The model.
        pattern: As for `revision_by_step`.

    Raises:
        ConfigError: As for `revision_by_step`.
    """
    if pattern in names:
        # A name with brackets, such as `run [a]-step4`, would not match itself as a pattern.
        chosen = [pattern]
    else:
        chosen = [name for name in names if fnmatch(name, pattern)]
    matches: dict[str, re.Match[str]] = {}
    for name in chosen:
        match = STEP_IN_NAME.match(name)
        if match:
            matches[name] = match
    left_out = [name for name in names if name not in matches]  # not chosen, or without a step
    if left_out:
        log_once(log, f"{model.called}: left out are {listed(left_out)}")

    name_of_step: dict[int, str] = {}
    first_name = next(iter(matches), "")
    for name, match in matches.items():
        if _name_before_step(match) != _name_before_step(matches[first_name]):
            _raise_about_two_revisions(
                model, first_name, name, "are named differently, so their order is not known"
            )
        step = int(match["count"]) * STEPS_PER_UNIT[match["unit"].lower()]
        if step in name_of_step:
            _raise_about_two_revisions(
                model, name_of_step[step], name, f"have the same step {step}"
            )
        name_of_step[step] = name
    return dict(sorted(name_of_step.items()))


def _name_before_step(match: re.Match[str]) -> str:
    """Return the part of a name that stands before the step, without the number of an epoch."""
    return EPOCH_IN_NAME.sub("", match["before"])


def _raise_about_two_revisions(model: ModelConfig, first: str, second: str, reason: str) -> None:
    """Raise a ConfigError that names two revisions of a model, and the reason in words."""
    raise ConfigError(
        f"{model.called}: {first} and {second} {reason}; "
        f"{named_setting('measure.checkpoints', like='PATTERN')} chooses by name"
    )


def _revision_names(model: ModelConfig) -> Sequence[str]:
    """Return the names of a model's revisions.

    For a folder, these are the folders in it that hold checkpoints. For a model of the hub, they
    are its branches and tags.

    Raises:
        ConfigError: The model is in memory, so that it has a single state.
        ModelError: The revisions cannot be read.
    """
    if model.is_in_memory:
        raise ConfigError(
            f"{model.called} is a model in memory, which has no checkpoints: give the name or the "
            "folder of its training run, whose branches or folders are the checkpoints"
        )
    folder = named_folder(replace(model, revision=None))
    with explaining_loading_errors(model):
        if folder:
            names = [path.name for path in revisions_in(folder)]
            _warn_of_incomplete_checkpoints(folder, names)
            return names
        return _revisions_on_hub(str(model.hub_id))


def _warn_of_incomplete_checkpoints(folder: Path, names: Collection[str]) -> None:
    """Warn of folders with a step in their names that hold no checkpoint, as after a failed copy.

    Args:
        folder: The folder of the run.
        names: The names of the checkpoints in it.
    """
    incomplete = []
    for path in sorted(folder.glob("*/")):
        if STEP_IN_NAME.match(path.name) and path.name not in names:
            incomplete.append(path.name)
    if incomplete:
        log.warning(
            "warning: %s: %s left out, as no config.json is there", folder, listed(incomplete)
        )


def _revisions_on_hub(repository: str) -> list[str]:
    """Return the branches and tags of a model on the hub, in natural order (step2 before step10).

    If the hub does not answer, the branches and tags in the cache of this machine are returned. If
    the cache has none, or if the hub refuses the request, the error of the hub is raised.

    Args:
        repository: The id of the model on the hub, such as EleutherAI/pythia-70m.
    """
    from huggingface_hub import HfApi, constants

    try:
        refs = patiently(lambda: HfApi(endpoint=constants.ENDPOINT).list_repo_refs(repository))
        names = [ref.name for ref in (*refs.branches, *refs.tags)]
    except Exception as error:  # whatever the network and the hub raise
        folder = cached("model", repository) / "refs"
        names = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
        if refused(error) or not names:
            raise
    return sorted(names, key=natural_order)
