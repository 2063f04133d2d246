"""What each checkpoint of a trajectory gives: states, losses, accuracies and importances."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TypedDict

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from thinkalike.config import AnalyzeConfig, ModelConfig
from thinkalike.data.stimuli import Stimuli
from thinkalike.digests import tokenizer_fingerprint
from thinkalike.errors import DataError
from thinkalike.evaluation.batch_sizes import BATCH_TOKENS
from thinkalike.evaluation.forward import next_token_losses
from thinkalike.instruments.mlem.fitting import fit_profiles
from thinkalike.instruments.mlem.settings import MLEMConfig
from thinkalike.instruments.probing_tasks import SPLITS, Task, tasks_of_features_and_splits
from thinkalike.instruments.random_rows import read_random_rows
from thinkalike.instruments.trajectory.accuracies import (
    balanced_accuracies_of_labellings,
    correct_held_out_answers,
    permuted_labels,
)
from thinkalike.instruments.trajectory.settings import TrajectoryConfig
from thinkalike.job import Work
from thinkalike.job.work import SavedState
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.load import load_model
from thinkalike.states.stimuli import StimulusStates, stimulus_states
from thinkalike.states.tokens import sites

log = logging.getLogger(__name__)


class Text(TypedDict):
    """The text that all checkpoints read.

    Attributes:
        tokens: The token ids of each row.
        documents: The document of each token.
        facts: What the provenance of a result says of the text.
        tokenizer: The fingerprint of the tokenizer.
    """

    tokens: Int[Tensor, "rows t"]
    documents: Int[Tensor, "rows t"]
    facts: dict[str, object]
    tokenizer: str


class CheckpointNumbers(TypedDict, total=False):
    """What one checkpoint gives.

    Attributes:
        states: The states of all tokens by layer, (n, d) each.
        losses: The loss of each token but the first of a row.
        model: What the provenance says of the checkpoint.
        right: For each task, which of its r stimuli a probe of each layer gets right, (l, r).
        null: For each task, the balanced accuracy of each layer with each of p permutations of the
            labels, (l, p).
        importance: The importance of each feature in each layer on each fold; missing if it was
            not asked for.
    """

    states: list[Tensor]
    losses: Tensor
    model: dict[str, str]
    right: list[Tensor]
    null: list[Tensor]
    importance: Float[Tensor, "l f k"]


def text_of_state(state: SavedState) -> Text:
    """Return the text that a saved state holds.

    Raises:
        StoreError: The state lacks an entry, or has one of another type.
    """
    return {
        "tokens": state.entry("tokens", Tensor),
        "documents": state.entry("documents", Tensor),
        "facts": state.entry("facts", dict),
        "tokenizer": state.entry("tokenizer", str),
    }


def numbers_of_state(state: SavedState) -> CheckpointNumbers:
    """Return the numbers of a checkpoint that a saved state holds; see `CheckpointNumbers`.

    The importance of features is left out if the job did not ask for it.

    Raises:
        StoreError: The state lacks an entry, or has one of another type.
    """
    numbers: CheckpointNumbers = {
        "states": state.entry("states", list),
        "losses": state.entry("losses", Tensor),
        "model": state.entry("model", dict),
        "right": state.entry("right", list),
        "null": state.entry("null", list),
    }
    if "importance" in state:
        numbers["importance"] = state.entry("importance", Tensor)
    return numbers


def one_task_per_feature(config: AnalyzeConfig, stimuli: Stimuli) -> list[Task]:
    """Return one probing task for each feature.

    If all stimuli of a word have the same level of a feature, folds hold out whole words, as a
    probe could otherwise recognise the word. For any other feature they hold out whole sentences.
    """
    measure = config.measure_as(TrajectoryConfig)
    task_of_feature: dict[str, Task] = {}
    for task in tasks_of_features_and_splits(
        stimuli,
        SPLITS,  # folds that keep sentences together, and folds that keep words together
        folds=measure.folds,
        least=measure.least,  # levels of fewer stimuli are left out
        seed=config.seed,
    ):
        # The task that holds out words follows the one that holds out sentences, and replaces it.
        if task.split == "sentence" or _has_one_level_per_word(task, stimuli):
            task_of_feature[task.feature] = task
    return list(task_of_feature.values())


def _has_one_level_per_word(task: Task, stimuli: Stimuli) -> bool:
    """Return whether all stimuli of a word have the same level of a task's feature."""
    words = [stimuli.words[row] for row in task.rows.tolist()]
    labelled = pd.DataFrame({"word": words, "level": task.labels})
    return bool(labelled.groupby("word")["level"].nunique().max() == 1)


class CheckpointReader:
    """Reads checkpoints, each once: all of the same text and the same stimuli.

    Args:
        config: The job.
        work: The context of the running job.

    Attributes:
        stimuli: The stimuli.
        tasks: The probing task of each feature.
    """

    def __init__(self, config: AnalyzeConfig, work: Work):
        """Prepare the probing tasks and the permuted labels, which all checkpoints share.

        The text is taken over from an interrupted run of the job, if there was one.
        """
        self.config = config
        self.measure = config.measure_as(TrajectoryConfig)
        self.work = work
        self.stimuli: Stimuli = work.input("stimuli", Stimuli)
        self.tasks = one_task_per_feature(config, self.stimuli)
        self._text: Text | None = None
        saved_text = work.resume("text")
        if saved_text is not None:
            self._text = text_of_state(saved_text)
        self._settings: str | None = None  # those of the checkpoint that was read before this one
        self._labellings = []
        for task in self.tasks:
            self._labellings.append(
                permuted_labels(
                    task.labels, task.groups, self.measure.permutations, seed=config.seed
                )
            )

    @property
    def text(self) -> Text:
        """The text, which was drawn when the first checkpoint was read."""
        assert self._text is not None
        return self._text

    def read(self, checkpoint: ModelConfig) -> CheckpointNumbers:
        """Load a checkpoint, and return its states, losses, accuracies and importances.

        With the first checkpoint the text is drawn, and saved for a job that resumes.

        Args:
            checkpoint: The configuration of the model at this step.

        Raises:
            DataError: The checkpoint has a different tokenizer than those before it.
        """
        with self.work.phase("loading"):
            model = load_model(checkpoint)
            tokenizer = tokenizer_fingerprint(model.tokenizer)
            if self._text is None:
                self._text = self._read_text(model, tokenizer)
                self.work.keep("text", dict(self._text))
        if tokenizer != self.text["tokenizer"]:
            raise DataError(f"{model.name} has another tokenizer than the checkpoints before it")
        settings = model.settings()
        if self._settings not in (None, settings):
            log.warning(
                "warning: %s has another config.json than the checkpoint before it, so that what "
                "differs may not come from training alone",
                model.name,
            )
        self._settings = settings
        with self.work.phase("text"):
            states, losses = _states_and_losses(model, self.text["tokens"].long())
        with self.work.phase("stimuli"):
            stimulus_layers = stimulus_states(model, self.stimuli)
            is_right, null = self._answers_and_null(stimulus_layers)
        numbers: CheckpointNumbers = {
            "states": states,
            "losses": losses,
            "model": model.describe(),
            "right": is_right,
            "null": null,
        }
        if self.measure.importance:
            with self.work.phase("importance"):
                numbers["importance"] = self._importance(model.name, stimulus_layers)
        return numbers

    def _read_text(self, model: FrozenModel, tokenizer: str) -> Text:
        """Return random rows of the job's text, which all checkpoints will read.

        Beside the token ids are the document of each token, what the result will say of the text,
        such as its name, and by what tokenizer it was read.

        Args:
            model: The first checkpoint, whose tokenizer reads the text.
            tokenizer: The fingerprint (hash) of its tokenizer.
        """
        n_tokens = self.measure.tokens
        random_rows = read_random_rows(self.config, n_tokens, model)
        return {
            "tokens": random_rows.rows.tokens,
            "documents": random_rows.rows.documents,
            "facts": random_rows.facts,
            "tokenizer": tokenizer,
        }

    def _importance(
        self, name: str, layers: Sequence[Float[Tensor, "n d"]]
    ) -> Float[Tensor, "l f k"]:
        """Return the importance of each of f features in each layer on each of k folds, by MLEM.

        Args:
            name: The name of the checkpoint.
            layers: Its states of the stimuli.
        """
        layer_numbers = list(range(len(layers)))
        # The origin is for the provenance of results, and is not needed.
        side = StimulusStates(name, layer_numbers, list(layers), origin={})
        config = replace(self.config, measure=MLEMConfig(folds=self.measure.folds))
        _, importance = fit_profiles(config, self.stimuli, [side])
        return importance.by_fold()

    def _answers_and_null(
        self, layers: Sequence[Float[Tensor, "n d"]]
    ) -> tuple[list[Bool[Tensor, "l r"]], list[Float[Tensor, "l p"]]]:
        """Probe each layer for each probing task, with its true and with permuted labels.

        Args:
            layers: The states of all n stimuli, in each of l layers.

        Returns:
            For each task, whether the probe of each layer answers right for each of the r stimuli
            of the task; and for each task the null, the balanced accuracy of each layer with each
            of p permutations of the labels.
        """
        is_right = []
        null = []
        for task, labellings in zip(self.tasks, self._labellings, strict=True):
            levels = len(task.levels)
            right_of_layers = []
            null_of_layers = []
            for states in layers:
                # Labelling 0 has the true labels, and the others are permuted.
                answers = correct_held_out_answers(
                    states[task.rows], labellings, levels, task.fold_of
                )
                right_of_layers.append(answers[0])
                null_of_layers.append(
                    balanced_accuracies_of_labellings(answers[1:], labellings[1:], levels)
                )
            is_right.append(torch.stack(right_of_layers))
            null.append(torch.stack(null_of_layers))
        return is_right, null


@torch.no_grad()
def _states_and_losses(
    model: FrozenModel, rows: Int[Tensor, "rows t"]
) -> tuple[list[Float[Tensor, "n d"]], Float[Tensor, "rows u"]]:
    """Return the states of all n tokens by layer, and the losses of all tokens but a row's first.

    There are u = t - 1 losses for a row of t tokens. Both are in float32, on the CPU.
    """
    batches = []
    losses = []
    rows_at_once = max(BATCH_TOKENS // rows.shape[1], 1)
    for tokens in rows.split(rows_at_once):
        # `sites` are the layers that are analysed. The logits follow from the last entry, the
        # state after the last block.
        *layers, last = model.residuals(tokens, [*sites(model), model.n_layers - 1])
        (loss,) = next_token_losses(model, [last], tokens)
        losses.append(loss.float().cpu())
        batches.append([layer.flatten(0, 1).float().cpu() for layer in layers])
    states = [torch.cat(batches_of_layer) for batches_of_layer in zip(*batches, strict=True)]
    return states, torch.cat(losses)
