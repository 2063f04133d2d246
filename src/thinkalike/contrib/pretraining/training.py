"""How a mini is trained: AdamW with linear warm-up and a cosine."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any, Protocol, runtime_checkable

import pytorch_lightning as pl
import torch
import transformers
from jaxtyping import Float, Int
from pytorch_lightning.callbacks import Callback
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from thinkalike.contrib.pretraining.config import PretrainConfig
from thinkalike.evaluation.held_out import masked_losses
from thinkalike.training.module import SteppedModule
from thinkalike.training.optimizers import scheduled

BETAS = (0.9, 0.95)  # of AdamW
SEED_STRIDE = 1_000_003  # a prime beyond any number of steps, so that no two seeds share a step's


def warmup_then_cosine(step: int, steps: int, warmup: int, floor: float = 0.1) -> float:
    """Return the learning rate at a step, as a share of the peak: warm-up and cosine.

    It rises linearly to 1 during the warm-up, and then falls to `floor` along half a cosine.

    Args:
        step: The number of the step, from 0.
        steps: The number of all steps.
        warmup: The number of steps in which the rate rises.
        floor: The share of the peak that the rate would reach at `step` = `steps`.
    """
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(steps - warmup, 1)
    return floor + (1 - floor) * (1 + math.cos(math.pi * progress)) / 2


class KeepsCheckpoints(Callback):
    """Calls a function with the number of steps done, after some steps; 0 is before the first."""

    def __init__(self, steps: Collection[int], keep: Callable[[int], object]):
        self.steps = steps
        self.keep = keep

    def on_train_start(self, trainer: pl.Trainer, *_: object) -> None:
        """Keep a checkpoint at the start, if `steps` has the number of steps done by then.

        That number is 0, or, for a resumed training, the step from which it continues.
        """
        self._keep_if_wanted(trainer)

    def on_train_batch_end(self, trainer: pl.Trainer, *_: object) -> None:  # type: ignore[override]
        """Keep a checkpoint after a step, if `steps` has the number of steps done by then."""
        self._keep_if_wanted(trainer)

    def _keep_if_wanted(self, trainer: pl.Trainer) -> None:
        """Call the function if the number of steps done is in `steps`, on the first process."""
        n_steps_done = trainer.global_step
        if n_steps_done in self.steps and trainer.is_global_zero:
            self.keep(n_steps_done)


@runtime_checkable
class ClippedRecipe(Protocol):
    """The settings of a training of all weights.

    Attributes:
        lr: The peak learning rate.
        clip: The largest norm of the gradient; 0: no clipping.
    """

    lr: float
    clip: float


class WholeModel(SteppedModule):
    """Trains all weights of a model, clipped together by `config.clip`."""

    model: nn.Module
    config: ClippedRecipe

    def configure_gradient_clipping(self, *_: object, **__: object) -> None:
        """Clip the norm of the gradients of all weights together."""
        if self.config.clip > 0:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)

    def step_loss(self, loss: Tensor, setting: str) -> Tensor:
        """Log the loss of a step, averaged over processes, and return it unchanged.

        Args:
            loss: The mean loss of the step's examples on this process.
            setting: The name of the setting of the learning rate. If the loss is not finite, the
                error message proposes to lower it.
        """
        remedy = f"lower {setting}={self.config.lr}"
        losses = self.over_processes(loss)[None]  # (1,): of one model
        self.log_losses(losses, remedy=remedy)
        return loss


class Pretraining(WholeModel):
    """Trains a language model on rows of tokens to predict the next one.

    The learning rate falls to a tenth.
    """

    config: PretrainConfig

    def __init__(self, model: nn.Module, config: PretrainConfig):
        super().__init__(config.steps)
        self.model = model
        self.config = config

    def training_step(self, tokens: Int[Tensor, "b t"], _: int) -> Tensor:
        """Return the loss of a step on some rows."""
        return self.step_loss(self.loss(tokens), "pretrain.lr")

    def loss(self, tokens: Int[Tensor, "b t"]) -> Float[Tensor, ""]:
        """Return the mean cross-entropy of each next token in the rows, in nats."""
        output = self.model(tokens[:, :-1])
        logits = output
        if not isinstance(output, Tensor):  # a model of transformers returns an object
            logits = output.logits
        next_tokens = tokens[:, 1:]
        return cross_entropy(logits.flatten(0, 1), next_tokens.flatten())

    def configure_optimizers(self) -> Any:
        """Return AdamW with a linear warm-up and a cosine decay to a tenth of the peak rate.

        Weight decay applies only to weights of two or more dimensions, not to biases and norms.
        """
        matrices = []
        vectors = []
        for weight in self.model.parameters():
            if weight.dim() > 1:
                matrices.append(weight)
            else:
                vectors.append(weight)
        groups = [
            {"params": matrices, "weight_decay": self.config.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups, lr=self.config.lr, betas=BETAS)
        n_warmup = min(self.config.warmup, self.steps)

        def share_of_peak_rate(step: int) -> float:
            """Return the learning rate at a step, as a share of the highest one."""
            return warmup_then_cosine(step, self.steps, n_warmup, floor=0.1)

        return scheduled(optimizer, share_of_peak_rate)


class MaskedPretraining(Pretraining):
    """Trains a language model to predict hidden tokens (Devlin et al. 2019, section 3.1)."""

    def __init__(
        self,
        model: nn.Module,
        config: PretrainConfig,
        seed: int,
        tokenizer: transformers.PreTrainedTokenizerBase,
    ):
        """Prepare the training of a language model to predict hidden (masked) tokens.

        Args:
            model: The model to train.
            config: The settings of the training.
            seed: Decides, together with the step, which tokens are hidden.
            tokenizer: Has the mask token, which replaces hidden tokens.
        """
        super().__init__(model, config)
        self.tokenizer = tokenizer
        self.seed = seed

    def loss(self, tokens: Int[Tensor, "b t"]) -> Float[Tensor, ""]:
        """Return the mean loss of predicting hidden tokens, in nats.

        The seed and the step decide which tokens are hidden, so a resumed training hides the same.
        """
        # The stride exceeds the number of steps, so no two seeds have the same number at a step.
        seed_of_step = self.seed * SEED_STRIDE + self.global_step
        generator = torch.Generator().manual_seed(seed_of_step)
        losses, _ = masked_losses(self.model, tokens, self.tokenizer, generator)
        return losses.mean()  # over hidden tokens
