"""task=pretrain: how a mini is made."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace

import pandas as pd
import torch
import transformers
from torch import nn

from thinkalike.config import SettingValues
from thinkalike.contrib.pretraining.config import PretrainJob
from thinkalike.contrib.pretraining.settings import PretrainedModel
from thinkalike.contrib.pretraining.training import (
    KeepsCheckpoints,
    MaskedPretraining,
    Pretraining,
)
from thinkalike.data.corpus import read_corpus
from thinkalike.data.rows import Corpus
from thinkalike.data.splits import training_texts
from thinkalike.errors import ConfigError, reason_in_words
from thinkalike.evaluation.held_out import held_out_loss
from thinkalike.instruments.loss import show_loss
from thinkalike.job import Instrument, Outcome, Work, fingerprints
from thinkalike.job.setting_groups import OF_STITCHES, left_in_key
from thinkalike.models.families import FAMILIES, Family, pick_device
from thinkalike.models.load import load_model
from thinkalike.models.loading_errors import quieten_libraries
from thinkalike.models.minis import build_mini, save_mini, train_tokenizer
from thinkalike.models.shapes import Passes, Shape, Shapes, shape_from
from thinkalike.store import Result
from thinkalike.training.curves import loggers_of
from thinkalike.training.data import StepData
from thinkalike.training.recipe import whole_rows
from thinkalike.training.run import TrainingRun
from thinkalike.training.trainer import fit

USUAL_CONTEXT = 256  # tokens, where `model.context` is not set
KEPT = "kept"  # the folder of checkpoints of a running job


class MiniPretraining(
    Instrument[PretrainJob],
    kind="pretraining",
    version=2,
    config=PretrainJob,
    reads=("model", "data", "pretrain", "trainer", "seed"),
):
    """Trains the mini that `model` describes; leaves weights, tokenizer and facts about it."""

    def unread(self, config: PretrainJob) -> SettingValues:
        """Return the settings that this job ignores, those of stitches, with their values."""
        return left_in_key(config, OF_STITCHES)

    def inputs(self, config: PretrainJob) -> dict[str, str]:
        """Return the fingerprint of the text; the model does not exist yet."""
        return fingerprints(config, ("data",))

    def shapes_of(self, config: PretrainJob) -> dict[str, Shape | None]:
        """Return the sizes of the model that will be made, such as layers and width.

        They are read from a config.json that is composed of the settings, in the form of the
        transformers library or in that of the project's own models. A family that is not in
        `FAMILIES` is treated as one of the project's own.

        Returns:
            The sizes under the name "model", or None in their place if they cannot be read. (For
            other jobs, there may be an entry "target" as well.)
        """
        model = config.model
        vocabulary = config.pretrain.vocabulary
        family = FAMILIES.get(model.family)
        is_of_transformers = family is not None and family.reader != "native"
        config_json: dict[str, object]
        if family is not None and is_of_transformers:
            config_json = {
                "model_type": family.in_config_json,
                "vocab_size": vocabulary,
                **model.architecture,
            }
        else:
            config_json = {"architecture": {**model.architecture, "d_vocab": vocabulary}}
        return {"model": shape_from(model, config_json)}

    def model_passes(self, config: PretrainJob, shapes: Shapes) -> list[Passes]:
        """Return how many tokens pass through the model in each phase, to estimate the job's time.

        A training step costs three times a forward pass: the backward pass takes twice as long.
        """
        shape = shapes["model"]
        row_length = config.data.context or shape.context
        evaluation_tokens = float(config.data.evaluation_tokens or 0)
        return [
            shape.passes("training", float(config.pretrain.tokens), row_length, times=3),
            shape.passes("report", evaluation_tokens, row_length),
        ]

    def run(self, config: PretrainJob, work: Work) -> Outcome:
        """Train a tokenizer and a model on the text, and report its loss on held-out text.

        The folder of the result has the weights and the tokenizer after the last step, and, in
        folders of their own, those after the steps of the setting `pretrain.keep`.
        """
        # Loading a model does this, but here one is built and saved before any is loaded.
        quieten_libraries()
        model = config.model
        recipe = config.pretrain
        context = int(model.context or USUAL_CONTEXT)
        _check_that_model_can_be_built(model, recipe.vocabulary, context)
        texts = training_texts(config.data)
        tokenizer = train_tokenizer(texts, recipe.vocabulary, model.cls_sep)
        corpus = read_corpus(config.data, tokenizer, context, bos=bool(model.bos), fit_tokens=None)
        training = _training_module(config, tokenizer)
        kept_folder = work.job.partial / KEPT
        facts: dict[str, object] = {"architecture": model.architecture, "seed": model.seed}

        def keep(step: int) -> None:
            """Save the model as it is after a step."""
            save_mini(
                kept_folder / f"step{step}", training.model, tokenizer, {**facts, "step": step}
            )

        _train(training, config, corpus, work, keep)
        facts["training"] = {
            "data": config.data.name,
            "tokens_seen": recipe.steps * whole_rows(recipe.tokens_per_step, context),
            "distinct_tokens": corpus.counts["fit_tokens"],
            "steps": recipe.steps,
            "learning_rate": recipe.lr,
            "command": f"python train.py task=pretrain model={model.name}",
        }
        folder = work.job.aside / str(model.name)  # in the folder that becomes the result
        if recipe.kept_steps:
            # Copied, not moved: a run that dies here needs the checkpoints again.
            shutil.copytree(kept_folder, folder)
        save_mini(folder, training.model, tokenizer, facts)

        # The loss is that of the half-precision weights in the folder, so these are read back.
        mini = load_model(replace(model, path=str(folder)))
        with work.phase("report"):
            losses = held_out_loss(mini, corpus)
        facts["heldout"] = {**losses, "tokens": corpus.fingerprint()}
        save_mini(folder, training.model, tokenizer, facts)  # again, with the losses
        return Outcome(
            pd.DataFrame([{"model": model.name, **losses}]),
            losses,
            models=[mini.describe()],
            facts={"data": {"name": config.data.name, **corpus.facts()}},
        )

    def show(self, result: Result) -> None:
        """Print the loss of the trained model on held-out text."""
        show_loss(result)


def _training_module(
    config: PretrainJob, tokenizer: transformers.PreTrainedTokenizerBase
) -> Pretraining:
    """Return a new model, with the training that its family needs.

    A model such as BERT is trained to predict hidden tokens, and any other one the next token.
    """
    model = config.model
    module = build_mini(model.architecture, len(tokenizer), model.seed, model.family)
    if FAMILIES[model.family].predicts == "hidden":
        return MaskedPretraining(module, config.pretrain, model.seed, tokenizer)
    return Pretraining(module, config.pretrain)


def _train(
    training: Pretraining,
    config: PretrainJob,
    corpus: Corpus,
    work: Work,
    keep_checkpoint: Callable[[int], object],
) -> None:
    """Train a model on the fitting text; a resumed job continues from its last checkpoint.

    Args:
        training: The model and how it is trained.
        config: The configuration of the job.
        corpus: The text.
        work: The job, in whose folder checkpoints are.
        keep_checkpoint: Is called after the steps of the setting `pretrain.keep`, with the number
            of the step; 0 is before the first step.
    """
    recipe = config.pretrain
    rows = StepData(
        corpus.fit.tokens,
        recipe.tokens_per_step,
        recipe.steps,
        config.model.seed,
        setting="pretrain.tokens_per_step",  # that error messages name
    )
    device = torch.device(pick_device(config.model.device))
    folder_while_running = work.job.partial
    run = TrainingRun(folder_while_running, device, config.trainer, work.tracker)
    with work.phase("fit"):
        callbacks = [KeepsCheckpoints(recipe.kept_steps, keep_checkpoint)]
        fit(training, rows, run, loggers_of(run, config.logger.kind), callbacks)


@torch.no_grad()
def _check_that_model_can_be_built(model: PretrainedModel, vocabulary: int, context: int) -> None:
    """Build the model and run it on one row of tokens, so that impossible sizes fail at once.

    Raises:
        ConfigError: The model cannot be built or run, or a size is unknown to its family.
    """
    # Models of the old layout "legacy" can be read but not made; unknown families are refused
    # in the same way.
    family = FAMILIES.get(model.family, FAMILIES["legacy"])
    if family.reader == "legacy":
        raise ConfigError(f"model.family={model.family} is not one that task=pretrain makes")
    try:
        module = build_mini(model.architecture, vocabulary, model.seed, model.family)
        module(torch.zeros(1, context, dtype=torch.long))
    except Exception as error:  # whatever the libraries raise
        raise ConfigError(
            f"model.architecture={model.architecture} model.context={context} cannot be built: "
            f"{reason_in_words(error)}"
        ) from error
    unknown_names = _unknown_sizes(model.architecture, module, family)
    if unknown_names:
        raise ConfigError(
            f"model.architecture.{unknown_names[0]} is no size of model.family={model.family}; "
            "leave it out"
        )


def _unknown_sizes(
    architecture: Mapping[str, object], module: nn.Module, family: Family
) -> list[str]:
    """Return the names of the sizes, such as misspelt ones, that a model of the family ignores.

    Args:
        architecture: The sizes of the model that the user set, by name, such as n_layers.
        module: The model that was built with them.
        family: The family of the model. Families with the reader "native" are the project's own;
            all others are of the transformers library.
    """
    if family.reader == "native":
        return [name for name in architecture if not hasattr(module.cfg, name)]
    from transformers import AutoConfig

    model_type = family.in_config_json
    default_config = AutoConfig.for_model(model_type)
    unknown_names = []
    for name, value in architecture.items():
        if not hasattr(default_config, name):
            # The name may still be an older name of a size. transformers stores such an argument
            # under the newer name alone, but keeps an unknown argument as an attribute.
            config_with_size = AutoConfig.for_model(model_type, **{name: value})
            is_kept_as_attribute = hasattr(config_with_size, name)
            if is_kept_as_attribute:
                unknown_names.append(name)
    return unknown_names
