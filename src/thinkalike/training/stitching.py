"""Stitches of many layer pairs, trained and measured together (Brown et al. 2023, section 3 and appendix C.1).

The source runs once per batch, to its deepest site. Each φ's output joins the target's tail at its own depth: states
that enter there are concatenated along the batch. The sum of the losses gives each φ the gradient of a run of its own.
A step that does not fit into memory runs in parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from thinkalike.config import StitchConfig, TrainerConfig
from thinkalike.data import Layout
from thinkalike.evaluation import LayerPair, last_states, next_token_losses
from thinkalike.measures import Stitch, token_kl
from thinkalike.models import FrozenModel, StateSource
from thinkalike.training.budgets import plan_within
from thinkalike.training.parts import mean_losses
from thinkalike.training.plans import Plan
from thinkalike.training.steps import SteppedModule


def rate(step: int, config: StitchConfig) -> float:
    """Learning rate at a step, as a share of the peak.

    linear: (s + 1) / (W + 1) in the W warm-up steps, 1 at step W, then down to 1 / (N - W) at the last step N - 1, so
    every step trains. tuned_lens: s / W, then linear to 0 at step N - W, as that library's schedule does in effect;
    step 0 and the last W steps do not train.
    """
    steps, warmup = config.steps, config.warmup
    if config.schedule == "tuned_lens":
        if step < warmup:
            return step / warmup
        return max(0.0, (steps - warmup - step) / max(steps - 2 * warmup, 1))
    if step < warmup:
        return (step + 1) / (warmup + 1)
    return (steps - step) / (steps - warmup)


def peak_rate(config: StitchConfig) -> float:
    """The rate that SGD gets: lr, or lr (1 - momentum), which is what tuned-lens means by 1.0."""
    return config.lr * (1 - config.momentum) if config.scale_lr_by_momentum else config.lr


class StitchTraining(SteppedModule):
    """Trains one φ per layer pair from a source to a frozen model; its state holds the φs and never the models.

    `curve` (steps, layer pairs) keeps each step's loss on its batch, in nats per token (mse: squared units). `plan`
    says in which parts a step runs; it is made when training begins, and goes with the state, because other parts round
    otherwise.
    """

    def __init__(
        self,
        source: StateSource,
        target: FrozenModel,
        layer_pairs: Sequence[LayerPair],
        rows: Int[Tensor, "rows width"],
        config: StitchConfig,
        seed: int,
        *,
        layout: Layout | None = None,
        limits: TrainerConfig | None = None,
    ):
        layout = layout or Layout(rows.shape[1])
        super().__init__(rows, config.tokens_per_step, config.steps, seed, layout.target)
        self.layout = layout
        self.limits = limits or TrainerConfig()
        self.plan: Plan | None = None
        self.models = (source, target)  # a tuple, so that Lightning neither moves nor saves them
        self.layer_pairs, self.config = list(layer_pairs), config
        width_in, width_out = source.d_model, target.d_model
        self.stitches = nn.ModuleList(
            Stitch(config.kind, width_in, width_out, config.norm, config.rank, seed) for _ in self.layer_pairs
        )
        self.curve: Tensor
        self.register_buffer("curve", torch.full((config.steps, len(self.layer_pairs)), torch.nan))

    def losses(self, rows: Int[Tensor, "b width"], chosen: Sequence[int] | None = None) -> list[Float[Tensor, " n"]]:
        """Return what each φ, or each of those chosen by number, is trained to make small, by token of the target."""
        source, target = self.models
        tokens = self.layout.target_tokens(rows)
        numbers = range(len(self.layer_pairs)) if chosen is None else chosen
        layer_pairs, stitches = [self.layer_pairs[i] for i in numbers], [self.stitches[i] for i in numbers]
        with torch.no_grad():
            states = self.layout.source_states(source, rows, [layer for layer, _ in layer_pairs])
        mapped = [phi(state.to(target.device).float()) for phi, state in zip(stitches, states, strict=True)]
        depths = [depth for _, depth in layer_pairs]
        if self.config.loss == "mse":
            with torch.no_grad():
                own = target.residuals(tokens, depths)
            return [(state - goal).square().mean(-1).flatten() for state, goal in zip(mapped, own, strict=True)]
        last = last_states(target, list(zip(depths, mapped, strict=True)))
        if self.config.loss == "kl":
            with torch.no_grad():
                standard = target.head(tokens, target.n_layers - 1).flatten(0, 1)
            return [token_kl(state.flatten(0, 1), target.finish, standard) for state in last]
        return [losses.flatten() for losses in next_token_losses(target, last, tokens)]

    def on_train_start(self) -> None:
        """Decide in which parts a step runs, unless a state that training goes on from says so."""
        if self.plan is None:
            tails = [self.models[1].n_layers - 1 - depth for _, depth in self.layer_pairs]
            momenta = int(self.config.momentum > 0)
            with self.trainer.precision_plugin.train_step_context():
                self.plan = plan_within(
                    self.limits, self.losses, self._weights_by_stitch(), self.first_batch(), tails, momenta
                )

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        assert self.plan
        checkpoint["plan"] = {"limits": self._limits(), "rows": self.plan.rows, "groups": list(self.plan.groups)}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take over the plan, unless the user has changed what it was made for."""
        kept = checkpoint.get("plan")
        if kept and kept["limits"] == self._limits():
            self.plan = Plan(kept["rows"], tuple(kept["groups"]))

    def _limits(self) -> list[Any]:
        return [self.limits.memory, self.limits.recompute]

    def _weights_by_stitch(self) -> list[list[nn.Parameter]]:
        return [list(phi.parameters()) for phi in self.stitches]

    def training_step(self, rows: Int[Tensor, "b width"], _: int) -> Tensor:
        assert self.plan
        for weight in self.parameters():
            weight.grad = None  # Lightning would keep the last step's through this one's forward pass
        losses = mean_losses(self.losses, self._weights_by_stitch(), rows, self.plan)
        step = self.over_processes(losses)
        self.check_finite(step.sum(), f"lower stitch.lr={self.config.lr}")
        self.curve[self.global_step] = step
        for (layer, depth), loss in zip(self.layer_pairs, step, strict=True):
            self.log(f"loss/{layer}-{depth}", loss)
        self.log("loss", step.mean())
        return losses.sum()

    def configure_optimizers(self) -> Any:
        config = self.config
        groups = [  # decay pulls a map to the identity, but a LayerNorm's gain to zero
            {"params": self._weights("map"), "weight_decay": config.weight_decay},
            {"params": self._weights("pre") + self._weights("post"), "weight_decay": 0.0},
        ]
        optimizer = torch.optim.SGD(
            [group for group in groups if group["params"]],
            lr=peak_rate(config),
            momentum=config.momentum,
            nesterov=config.momentum > 0,
            foreach=False,  # all at once would take two more copies of all weights
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, config))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def _weights(self, part: str) -> list[nn.Parameter]:
        """Parameters of a part of every φ: map, pre or post."""
        return [weight for phi in self.stitches for weight in (getattr(phi, part) or nn.Identity()).parameters()]

    def configure_gradient_clipping(self, optimizer: Any, *_: Any, **__: Any) -> None:
        if self.config.clip > 0:  # each by itself: one stitch must not change another's steps
            for phi in self.stitches:
                nn.utils.clip_grad_norm_(phi.parameters(), self.config.clip)
