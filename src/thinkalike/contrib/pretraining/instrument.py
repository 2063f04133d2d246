"""task=pretrain: how a mini is made, with AdamW, linear warm-up and a cosine."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import pandas as pd
import pytorch_lightning as pl
import torch
from jaxtyping import Float, Int
from pydantic import Field
from pytorch_lightning.callbacks import Callback
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from thinkalike.config import RecipeJob, SettingValues, TrainConfig, setting
from thinkalike.config.parts import COUNTS, TOKENS_AT_ONCE
from thinkalike.config.schema import STEPS, Checked, extended
from thinkalike.contrib.pretraining.settings import PretrainedModel
from thinkalike.data.corpus import read_corpus
from thinkalike.data.splits import training_texts
from thinkalike.errors import ConfigError, one_line
from thinkalike.evaluation.held_out import held_out_loss, masked_losses
from thinkalike.instruments.loss import show_loss
from thinkalike.job import Instrument, Outcome, Work, fingerprints
from thinkalike.job.setting_groups import OF_STITCHES, left_in_key
from thinkalike.models.families import FAMILIES, Family, pick_device
from thinkalike.models.load import load_model
from thinkalike.models.minis import build_mini, save_mini, train_tokenizer
from thinkalike.models.shapes import Passes, Shape, Shapes, shape_from
from thinkalike.store import Result
from thinkalike.training.optimizers import scheduled
from thinkalike.training.recipe import whole_rows
from thinkalike.training.run import Run, StepData, SteppedModule, fit, loggers_of

# ---- The settings of task=pretrain.

Keep = Annotated[str, Field(pattern=r"^(log2|every=[1-9]\d{0,6})$")] | list[Annotated[int, Field(ge=0, strict=True)]]


@dataclass
class PretrainConfig(Checked, part="pretrain"):
    """How task=pretrain trains a mini: AdamW, warm-up and cosine."""

    tokens: int = setting(0, by_recipe=True, least=0, most=COUNTS)  # how many tokens it sees
    # tokens that a step reads
    tokens_per_step: int = setting(2048, by_recipe=True, least=2, most=TOKENS_AT_ONCE)
    lr: float = setting(2e-3, by_recipe=True, above=0)  # peak
    weight_decay: float = setting(0.1, least=0)  # of matrices, decoupled
    warmup: int = setting(200, least=0, most=STEPS)  # steps in which the rate rises
    clip: float = setting(1.0, least=0)  # gradient norm; 0: none
    # the bytes and the special tokens are the least
    vocabulary: int = setting(1024, by_recipe=True, least=260, most=10**6)
    keep: Keep = field(default_factory=list)  # checkpoints after these steps: [0,1,2,4] | log2 | every=N; [] none

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tokens and self.tokens_per_step and any(step > self.steps for step in self.kept):
            raise ConfigError(f"pretrain.keep={self.keep} names a step after the last one, which is {self.steps}")

    def by_recipe(self, job: RecipeJob) -> SettingValues:
        names = ("tokens", "tokens_per_step", "lr", "vocabulary")
        return {name: getattr(job.model, f"pretrain_{name}") for name in names}

    @property
    def steps(self) -> int:
        return max(self.tokens // self.tokens_per_step, 1)

    @property
    def kept(self) -> list[int]:
        """The steps after which a checkpoint is kept; by log2 and every=N also the first and the last one."""
        if isinstance(self.keep, list):
            return self.keep
        powers = (2**power for power in range(self.steps.bit_length()))
        between = powers if self.keep == "log2" else range(0, self.steps, int(self.keep.removeprefix("every=")))
        return sorted({0, *between, self.steps})


@dataclass
class PretrainJob(TrainConfig):
    """All that `task=pretrain` needs to know."""

    model: PretrainedModel = field(default_factory=lambda: extended(PretrainedModel)())
    pretrain: PretrainConfig = field(default_factory=PretrainConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        tokens = self.pretrain.tokens  # null: left open
        if tokens == 0 or (tokens and not self.model.architecture):
            raise ConfigError(f"task=pretrain needs model.architecture and pretrain.tokens: model={self.model.name}")


# ---- How it is trained.


def cosine(step: int, steps: int, warmup: int, floor: float = 0.1) -> float:
    """Rate at a step as a share of the peak: (step + 1) / warmup at first, then a half cosine down to `floor`."""
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(steps - warmup, 1)
    return floor + (1 - floor) * (1 + math.cos(math.pi * progress)) / 2


class Keeping(Callback):
    """Calls a function with the number of steps done, where that is one of those given: before the first step is 0."""

    def __init__(self, steps: Collection[int], keep: Callable[[int], Any]):
        self.steps, self.keep = steps, keep

    def on_train_start(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step in self.steps and trainer.is_global_zero:
            self.keep(trainer.global_step)

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:  # type: ignore[override]
        self.on_train_start(trainer)


class WholeModel(SteppedModule):
    """Trains all weights of a model, clipped together by `config.clip`."""

    model: nn.Module
    config: Any  # with a clip and a peak rate

    def configure_gradient_clipping(self, optimizer: Any, *_: Any, **__: Any) -> None:
        if self.config.clip > 0:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)

    def step_loss(self, loss: Tensor, setting: str) -> Tensor:
        """Log a step's loss, which is not finite where `setting` is too large, and return it."""
        self.log_losses(self.over_processes(loss)[None], remedy=f"lower {setting}={self.config.lr}")
        return loss


class Pretraining(WholeModel):
    """Trains a language model on rows of tokens to predict the next one; the rate falls to a tenth."""

    config: PretrainConfig

    def __init__(self, model: nn.Module, config: PretrainConfig):
        super().__init__(config.steps)
        self.model, self.config = model, config

    def training_step(self, tokens: Int[Tensor, "b t"], _: int) -> Tensor:
        return self.step_loss(self.loss(tokens), "pretrain.lr")

    def loss(self, tokens: Int[Tensor, "b t"]) -> Float[Tensor, ""]:
        output = self.model(tokens[:, :-1])
        logits = output if isinstance(output, Tensor) else output.logits
        return cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    def configure_optimizers(self) -> Any:
        config, weights = self.config, list(self.model.parameters())
        matrices = {"params": [each for each in weights if each.dim() > 1], "weight_decay": config.weight_decay}
        others = {"params": [each for each in weights if each.dim() <= 1], "weight_decay": 0.0}
        optimizer = torch.optim.AdamW([matrices, others], lr=config.lr, betas=(0.9, 0.95))
        warmup = min(config.warmup, self.steps)
        return scheduled(optimizer, lambda step: cosine(step, self.steps, warmup))


class MaskedPretraining(Pretraining):
    """Trains a language model to predict hidden tokens (Devlin et al. 2019, section 3.1)."""

    def __init__(self, model: nn.Module, config: PretrainConfig, seed: int, tokenizer: Any):
        super().__init__(model, config)
        self.tokenizer, self.seed = tokenizer, seed

    def loss(self, tokens: Int[Tensor, "b t"]) -> Float[Tensor, ""]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.global_step)
        return masked_losses(self.model, tokens, self.tokenizer, generator)[0].mean()


READS = ("model", "data", "pretrain", "trainer", "seed")


class MiniPretraining(Instrument[PretrainJob], kind="pretraining", version=2, config=PretrainJob, reads=READS):
    """Trains the mini that `model` describes; leaves weights, tokenizer and what is known of it."""

    def unread(self, config: PretrainJob) -> SettingValues:
        return left_in_key(config, OF_STITCHES)

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
        per_step = recipe.tokens_per_step
        rows = StepData(corpus.fit.tokens, per_step, recipe.steps, model.seed, setting="pretrain.tokens_per_step")
        device = torch.device(pick_device(model.device))
        run = Run(work.job.partial, device, config.trainer, work.tracker)
        kept = work.job.partial / "kept"
        facts: dict[str, Any] = {"architecture": model.architecture, "seed": model.seed}

        def keep(step: int) -> None:
            save_mini(kept / f"step{step}", trained.model, tokenizer, {**facts, "step": step})

        with work.phase("fit"):
            fit(trained, rows, run, loggers_of(run, config.logger.kind), [Keeping(recipe.kept, keep)])
        facts["training"] = {
            "data": config.data.name,
            "tokens_seen": recipe.steps * whole_rows(per_step, context),
            "distinct_tokens": corpus.counts["fit_tokens"],
            "steps": recipe.steps,
            "learning_rate": recipe.lr,
            "command": f"python train.py task=pretrain model={model.name}",
        }
        folder = work.job.aside / model.name
        if recipe.kept:
            shutil.copytree(kept, folder)  # and not moved, as a run that dies here needs them again
        save_mini(folder, trained.model, tokenizer, facts)
        mini = load_model(replace(model, path=str(folder)))
        with work.phase("report"):
            numbers = held_out_loss(mini, corpus)  # of the half-precision weights that are shipped
        facts["heldout"] = {**numbers, "tokens": corpus.fingerprint()}
        save_mini(folder, trained.model, tokenizer, facts)
        table = pd.DataFrame([{"model": model.name, **numbers}])
        data = {"name": config.data.name, **corpus.facts()}
        return Outcome(table, numbers, models=[mini.describe()], facts={"data": data})

    def show(self, result: Result) -> None:
        show_loss(result)


@torch.no_grad()
def _try_out(model: PretrainedModel, vocabulary: int, context: int) -> None:
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
