"""task=pretrain: how a mini is made, and what its card says."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import Any

import pandas as pd
import torch

from thinkalike.config import ModelConfig
from thinkalike.contrib.pretraining.config import PretrainJob
from thinkalike.contrib.pretraining.minis import card_text, save_mini, train_tokenizer
from thinkalike.contrib.pretraining.training import Keeping, MaskedPretraining, Pretraining
from thinkalike.data.corpus import read_corpus
from thinkalike.data.documents import training_texts
from thinkalike.errors import ConfigError, one_line
from thinkalike.evaluation.held_out import held_out_loss
from thinkalike.instruments.loss import show_loss
from thinkalike.job import OF_STITCHES, Instrument, Outcome, Work, fingerprints
from thinkalike.models.families import FAMILIES, Family, pick_device
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.load import build_mini, load_model
from thinkalike.models.places import ASSETS
from thinkalike.models.shapes import Passes, Shape, Shapes, shape_from
from thinkalike.screen import number_of_documents
from thinkalike.store import Result
from thinkalike.training.run import Run, StepData, fit, loggers_of

TEXTS = {  # what cards say of a source
    "stdlib": "the source of Python's standard library without its tests",
    "pydoc": "Python's own manual, the reference of the language",
    "grammar": "sentences of this project's large grammar, none of them of the words of the small one alone",
}


READS = ("model", "data", "pretrain", "trainer", "seed")


class MiniPretraining(Instrument, kind="pretraining", version=2, config=PretrainJob, reads=READS):
    """Trains the mini that `model` describes; leaves weights, tokenizer and card, and ships them if asked."""

    ignores = OF_STITCHES

    def inputs(self, config: PretrainJob) -> dict[str, str]:
        return fingerprints(config, ("data",))

    def shapes_of(self, config: PretrainJob) -> dict[str, Shape | None]:
        model, vocabulary = config.model, config.pretrain.vocabulary
        family = FAMILIES.get(model.family)
        sizes: dict[str, Any] = {"architecture": {**model.architecture, "d_vocab": vocabulary}}
        if family and family.reader != "native":
            sizes = {"model_type": family.in_config_json, "vocab_size": vocabulary, **model.architecture}
        return {"model": shape_from(model, sizes)}

    def passes(self, config: PretrainJob, shapes: Shapes) -> list[Passes]:
        shape, row = shapes["model"], config.data.context or shapes["model"].context
        training = shape.passes("training", float(config.pretrain.tokens), row, times=3)
        return [training, shape.passes("report", float(config.data.report_tokens or 0), row)]

    def run(self, config: PretrainJob, work: Work) -> Outcome:
        model, context = config.model, int(config.model.context or 256)
        _try_out(model, config.pretrain.vocabulary, context)
        tokenizer = train_tokenizer(training_texts(config.data), config.pretrain.vocabulary, model.cls_sep)
        corpus = read_corpus(config.data, tokenizer, context, bos=bool(model.bos), fit_tokens=None)
        module = build_mini(model.architecture, len(tokenizer), model.seed, model.family)
        recipe, masked = config.pretrain, FAMILIES[model.family].predicts == "hidden"
        trained = MaskedPretraining(module, recipe, model.seed, tokenizer) if masked else Pretraining(module, recipe)
        rows = StepData(corpus.fit.tokens, recipe.tokens_per_step, recipe.steps, model.seed)
        device = torch.device(pick_device(model.device))
        run = Run(work.job.partial, device, config.trainer, work.tracker)
        kept = work.job.partial / "kept"
        facts: dict[str, Any] = {"architecture": model.architecture, "seed": model.seed}

        def keep(step: int) -> None:
            save_mini(kept / f"step{step}", trained.model, tokenizer, {**facts, "step": step}, card="")

        with work.phase("fit"):
            fit(trained, rows, run, loggers_of(run, config.logger.kind), [Keeping(recipe.kept, keep)])
        facts["training"] = {
            "data": config.data.name,
            "tokens_seen": recipe.steps * recipe.tokens_per_step,
            "distinct_tokens": corpus.counts["fit_tokens"],
            "steps": recipe.steps,
            "learning_rate": recipe.lr,
            "command": f"python train.py task=pretrain model={model.name}",
        }
        folder = work.job.aside / model.name
        if recipe.kept:
            shutil.copytree(kept, folder)  # and not moved, as a run that dies here needs them again
        save_mini(folder, trained.model, tokenizer, facts, card="")
        mini = load_model(replace(model, path=str(folder)))
        with work.phase("report"):
            numbers = held_out_loss(mini, corpus)  # of the half-precision weights that are shipped
        facts["heldout"] = {**numbers, "tokens": corpus.fingerprint()}
        for place in [folder, ASSETS / model.name] if recipe.ship else [folder]:
            save_mini(place, trained.model, tokenizer, facts, _card(config, facts, mini))
        table = pd.DataFrame([{"model": model.name, **numbers}])
        data = {"name": config.data.name, **corpus.facts()}
        return Outcome(table, numbers, models=[mini.describe()], facts={"data": data})

    def show(self, result: Result) -> None:
        show_loss(result)


@torch.no_grad()
def _try_out(model: ModelConfig, vocabulary: int, context: int) -> None:
    """Build the mini and run it on one row, so that sizes that do not go together are refused before any training."""
    if (family := FAMILIES.get(model.family, FAMILIES["legacy"])).reader == "legacy":
        raise ConfigError(f"model.family={model.family} is not one that task=pretrain makes")
    try:
        module: Any = build_mini(model.architecture, vocabulary, model.seed, model.family)
        module(torch.zeros(1, context, dtype=torch.long))
    except Exception as error:  # whatever the libraries raise that build it
        asked = f"model.architecture={model.architecture} model.context={context}"
        raise ConfigError(f"{asked} cannot be built: {type(error).__name__}: {one_line(error)}") from error
    if unknown := _unknown_sizes(model.architecture, module, family):
        raise ConfigError(f"model.architecture.{unknown[0]} is no size of model.family={model.family}; leave it out")


def _unknown_sizes(architecture: dict[str, Any], module: Any, family: Family) -> list[str]:
    """Return the sizes that a family's own configuration class does not have; it would keep them and not use them."""
    if family.reader == "native":
        return [key for key in architecture if not hasattr(module.cfg, key)]
    from transformers import AutoConfig

    default, kind = AutoConfig.for_model(family.in_config_json), family.in_config_json
    new = [key for key in architecture if not hasattr(default, key)]  # an older name is taken, and not kept
    return [key for key in new if hasattr(AutoConfig.for_model(kind, **{key: architecture[key]}), key)]


def _card(config: PretrainJob, facts: dict[str, Any], mini: FrozenModel) -> str:
    training, heldout = facts["training"], facts["heldout"]
    parameters, blocks = mini.parameters()
    shape = ", ".join(f"{name} {value}" for name, value in facts["architecture"].items())
    rows = {
        "architecture": f"{config.model.family}: {shape}",
        "parameters": f"{parameters:,}, of them {blocks:,} in the blocks",
        "tokenizer": f"byte-level BPE, {config.pretrain.vocabulary} entries, trained on the same text",
        "data": f"{TEXTS.get(str(config.data.source), config.data.name)}; "
        f"{training['distinct_tokens']:,} distinct tokens",
        "tokens seen": f"{training['tokens_seen']:,} in {training['steps']:,} steps",
        "held-out loss": f"{heldout['loss']:.4f} nats per token (95 % interval over "
        f"{number_of_documents(heldout)}: {heldout['loss_low']:.3f} to {heldout['loss_high']:.3f})",
        "unigram entropy of the same tokens": f"{heldout['unigram_entropy']:.4f} nats",
        "seed": f"{facts['seed']}: the order of the data, and initial weights that minis of one shape share",
        "made by": f"`{training['command']}`",
        "weights": "half precision; the loss above is theirs",
    }
    what = "A small language model to compare representations with, trained from scratch by this project."
    return card_text(config.model.name, what, rows)
