"""How a mini is made: the next token, or masked tokens, with AdamW, linear warm-up, cosine to a tenth of the rate."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from thinkalike.config import PretrainConfig
from thinkalike.evaluation import masked_losses
from thinkalike.training.schedules import cosine
from thinkalike.training.steps import SteppedModule


class Pretraining(SteppedModule):
    """Trains a whole language model on rows of tokens to predict the next one."""

    def __init__(self, model: nn.Module, rows: Int[Tensor, "rows context"], config: PretrainConfig, seed: int):
        super().__init__(rows, config.tokens_per_step, max(config.tokens // config.tokens_per_step, 1), seed)
        self.model, self.config = model, config

    def training_step(self, tokens: Int[Tensor, "b t"], _: int) -> Tensor:
        loss = self.loss(tokens)
        self.note(self.over_processes(loss)[None], remedy=f"lower pretrain.lr={self.config.lr}")
        return loss

    def loss(self, tokens: Int[Tensor, "b t"]) -> Float[Tensor, ""]:
        output = self.model(tokens[:, :-1])
        logits = output if isinstance(output, Tensor) else output.logits
        return cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    def configure_optimizers(self) -> Any:
        config = self.config
        matrices = [weight for weight in self.model.parameters() if weight.dim() > 1]
        others = [weight for weight in self.model.parameters() if weight.dim() <= 1]
        groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=config.lr, betas=(0.9, 0.95))
        warmup = min(config.warmup, self.steps)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: cosine(step, self.steps, warmup))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def configure_gradient_clipping(self, optimizer: Any, *_: Any, **__: Any) -> None:
        if self.config.clip > 0:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)


class MaskedPretraining(Pretraining):
    """Trains it to predict tokens that it does not see, as BERT was."""

    def __init__(
        self, model: nn.Module, rows: Int[Tensor, "rows context"], config: PretrainConfig, seed: int, tokenizer: Any
    ):
        super().__init__(model, rows, config, seed)
        self.tokenizer, self.seed = tokenizer, seed

    def loss(self, tokens: Int[Tensor, "b t"]) -> Float[Tensor, ""]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.global_step)
        return masked_losses(self.model, tokens, self.tokenizer, generator)[0].mean()
