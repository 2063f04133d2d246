"""Training whole models with AdamW, linear warm-up and a cosine: language models on text, and classifiers on pairs."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

import pytorch_lightning as pl
import torch
from jaxtyping import Float, Int
from pytorch_lightning.callbacks import Callback
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from thinkalike.contrib.populations.config import NLIConfig
from thinkalike.contrib.populations.pairs import EncodedPairs
from thinkalike.contrib.pretraining.config import PretrainConfig
from thinkalike.errors import ModelError
from thinkalike.evaluation.held_out import masked_losses
from thinkalike.training.optimizers import scheduled
from thinkalike.training.run import StepData, SteppedModule


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
    config: PretrainConfig | NLIConfig

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


class Finetuning(WholeModel):
    """Trains a classifier of transformers on pairs, in an order that the seed decides; the rate falls to zero."""

    config: NLIConfig
    model: Any  # a classifier of transformers

    def __init__(self, model: Any, pairs: EncodedPairs, labels: Int[Tensor, " n"], config: NLIConfig, seed: int):
        super().__init__(max(config.epochs * len(pairs) // config.pairs_per_step, 1))
        self.model, self.pairs, self.labels, self.config, self.seed = model, pairs, labels, config, seed
        blocks = model.base_model.encoder.layer
        if config.freeze > len(blocks):
            raise ModelError(f"nli.freeze={config.freeze}, but there are {len(blocks)} blocks")
        for part in (model.base_model.embeddings, *blocks[: config.freeze]) if config.freeze else ():
            part.requires_grad_(False)

    def data(self) -> StepData:
        """Return the rows of the training, each the number of a pair."""
        places = torch.arange(len(self.pairs))[:, None]
        return StepData(places, self.config.pairs_per_step, self.steps, self.seed)

    def transfer_batch_to_device(self, batch: Tensor, *_: Any) -> Tensor:
        """Leave the numbers of pairs where the pairs are."""
        return batch

    def training_step(self, places: Int[Tensor, "b 1"], _: int) -> Tensor:
        torch.manual_seed(self.seed * 1_000_003 + self.global_step)  # dropout depends on the step alone, as batches do
        batch = self.pairs.batch(places[:, 0].tolist())
        tokens, mask, types = (part.to(self.device) for part in (batch.tokens, batch.mask.long(), batch.types))
        logits = self.model(tokens, attention_mask=mask, token_type_ids=types).logits
        return self.step_loss(cross_entropy(logits, self.labels[batch.rows].to(self.device)), "nli.lr")

    def configure_optimizers(self) -> Any:
        config, body = self.config, {id(weight) for weight in self.model.base_model.parameters()}
        trained = [weight for weight in self.model.parameters() if weight.requires_grad]
        head = {"params": [each for each in trained if id(each) not in body], "lr": config.head_lr or config.lr}
        rest = {"params": [each for each in trained if id(each) in body], "lr": config.lr}
        optimizer = torch.optim.AdamW([rest, head], lr=config.lr, weight_decay=config.weight_decay)
        warmup = round(config.warmup * self.steps)
        return scheduled(optimizer, lambda step: cosine(step, self.steps, warmup, 0.0))
