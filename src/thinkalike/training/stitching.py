"""Stitches of many layer pairs, trained together (Brown et al. 2023, section 3 and appendix C.1).

Each model runs once per batch, to the deepest site that is read. Each φ's output joins the target's tail at its own
depth: states that enter there are concatenated along the batch. The sum of the losses gives each φ the gradient of a
run of its own. A step that does not fit into memory runs in parts.
"""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from thinkalike import plugins
from thinkalike.config import StitchConfig, TrainerConfig
from thinkalike.data.rows import Layout
from thinkalike.errors import PluginError
from thinkalike.evaluation.language import next_token_losses
from thinkalike.evaluation.stitches import last_states, states_onwards
from thinkalike.measures.closed_forms import LayerPair, PairStatistics
from thinkalike.measures.losses import token_kl
from thinkalike.models.frozen import FrozenModel, StateSource
from thinkalike.stitches.stitch import Stitch
from thinkalike.training.parts import Part, largest_part, mean_losses
from thinkalike.training.steps import SteppedModule, momenta, peak_rate, rate, scheduled

log = logging.getLogger(__name__)

SMALLEST = 1e-4  # of the largest second moment: directions of less get steps as if they had that much


class Fit(NamedTuple):
    """A stitch to train, from a layer of a model to a depth of the target; `factor` multiplies the learning rate."""

    reads: Any
    layer: int
    depth: int
    factor: float = 1.0


class StitchTraining(SteppedModule):
    """Trains one φ per layer pair from a source to a frozen model; its state holds the φs and never the models.

    `stitch.loss` names one of `STITCH_LOSSES`.

    With schedule=average, φ is the mean over the second half of the steps, or the start where that has the lower loss.

    `curve` (steps, stitches) keeps each step's loss on its batch, in nats per token (mse: squared units). `halfway` are
    the φs of the layer pairs after half of the steps, each the mean over the quarter of the steps before. `part` is how
    much of a step is in memory at once; it is found when training begins and kept with the state, because other parts
    round otherwise.

    Args:
        layer_pairs: those of the stitches that come first; they read the source.
        beside: further stitches.
    """

    curve: Tensor
    part: Part | None = None

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
        beside: Sequence[Fit] = (),
    ):
        layout = layout or Layout(rows.shape[1])
        super().__init__(rows, config.tokens_per_step, config.steps, seed, layout.target)
        self.layout, self.limits = layout, limits or TrainerConfig()
        self.models = (source, target)  # a tuple, so that Lightning neither moves nor saves them
        self.layer_pairs, self.config = list(layer_pairs), config
        self.fits = (*(Fit(source, *pair) for pair in layer_pairs), *beside)
        self.stitches = nn.ModuleList(
            Stitch(config.kind, fit.reads.d_model, target.d_model, config.norm, config.rank, seed) for fit in self.fits
        )
        self.began: nn.ModuleList | None = None  # where training starts, if that is no identity
        self._inverses: list[Tensor | None] = [None] * len(self.fits)
        self.means = copy.deepcopy(self.stitches).requires_grad_(False)  # over the steps of `_average`
        self.halfway = copy.deepcopy(self.means[: len(self.layer_pairs)])
        self.register_buffer("curve", torch.full((config.steps, len(self.fits)), torch.nan))
        self._step_operations: float | None = None  # of the first step of this run, on all processes

    def losses(self, rows: Int[Tensor, "b width"], chosen: Sequence[int] | None = None) -> list[Float[Tensor, " n"]]:
        """Return the loss of every φ, or of those chosen by number, at each token of the target."""
        target, loss = self.models[1], STITCH_LOSSES[self.config.loss]
        numbers = range(len(self.fits)) if chosen is None else chosen
        fits, tokens = [self.fits[i] for i in numbers], self.layout.target_tokens(rows)
        depths = [fit.depth for fit in fits]
        own = self._own(tokens, [*loss.layers(depths, target.n_layers), *(f.layer for f in fits if f.reads is target)])
        states = zip(numbers, self._states(fits, rows, own), strict=True)
        mapped = [self.stitches[i](state.to(target.device).float()) for i, state in states]
        return loss.value(target, depths, mapped, own, tokens)

    @torch.no_grad()
    def _own(self, tokens: Int[Tensor, "b t"], layers: Sequence[int]) -> dict[int, Float[Tensor, "b t _"]]:
        """Return the target's own states at these layers."""
        wanted = sorted(set(layers))
        return dict(zip(wanted, self.models[1].residuals(tokens, wanted), strict=True)) if wanted else {}

    @torch.no_grad()
    def _states(self, fits: Sequence[Fit], rows: Int[Tensor, "b width"], own: Own) -> list[Float[Tensor, "b t _"]]:
        """Return the states that each stitch reads, from one pass of each model."""
        read = {(self.models[1], layer): state for layer, state in own.items()}
        for model in dict.fromkeys(fit.reads for fit in fits if fit.reads is not self.models[1]):
            layers = sorted({fit.layer for fit in fits if fit.reads is model})
            states = self.layout.source_states(model, rows, layers)
            read |= {(model, layer): state for layer, state in zip(layers, states, strict=True)}
        return [read[fit.reads, fit.layer] for fit in fits]

    def on_train_start(self) -> None:
        """Find in which parts a step runs, unless the state of an earlier run says so."""
        if self.part is None:
            tails = [self.models[1].n_layers - 1 - fit.depth for fit in self.fits]
            rows, weights = self.batches()[0].to(self.device), [list(phi.parameters()) for phi in self.stitches]
            with self.trainer.precision_plugin.train_step_context():
                self.part = largest_part(self.limits, self.losses, weights, rows, tails, momenta(self.config))

    def optimizer_step(self, *given: Any, **more: Any) -> None:
        """Take a step; count the operations of the first one of this run."""
        counter, done = FlopCounterMode(display=False), self.global_step + 1
        with counter if self._step_operations is None else contextlib.nullcontext():
            super().optimizer_step(*given, **more)
        self._average(done)
        if self._step_operations is None:
            self._step_operations = float(counter.get_total_flops() * self.trainer.world_size)

    @torch.no_grad()
    def _average(self, done: int) -> None:
        """Add the φs to their means over the second quarter, or the second half, of the steps.

        With schedule=average, whose rate does not fall, the means of the second half are the result.
        """
        half = self.steps // 2
        start = half if done > half else half // 2
        if done > start:
            for mean, weight in zip(self.means.parameters(), self.stitches.parameters(), strict=True):
                mean.lerp_(weight, 1 / (done - start))
        if done == half:
            self.halfway.load_state_dict(self.means[: len(self.layer_pairs)].state_dict())
        if done == self.steps and self.config.schedule == "average":
            self.stitches.load_state_dict(self.means.state_dict())

    def on_train_end(self) -> None:
        super().on_train_end()
        if self.began is not None and self.config.schedule == "average" and self.global_step == self.steps:
            self._return_to_better_starts(self.began)

    @torch.no_grad()
    def _return_to_better_starts(self, began: nn.ModuleList) -> None:
        """Undo the training of each φ whose loss on the rows of the first step is higher than when it began.

        At a constant rate a φ that begins at its solution may leave it: steps are too long for the curvature of some
        batches, and rounding grows into a loss.
        """
        assert self.part
        rows, weights = self.batches()[0].to(self.device), [list(phi.parameters()) for phi in self.stitches]
        with self.trainer.precision_plugin.train_step_context():
            ended = self.over_processes(mean_losses(self.losses, weights, rows, self.part))
        worse = (ended > self.curve[0]).nonzero().flatten().tolist()
        for number in worse:
            for phis in (self.stitches, self.halfway):
                if number < len(phis):
                    phis[number].load_state_dict(began[number].state_dict())
        if worse:
            log.info("%d of %d stitches ended worse than at the start, which is kept", len(worse), len(self.fits))

    def speed(self) -> dict[str, float]:
        """Return `flops` and `flops_per_second` of the steps of this run, for the provenance of a result."""
        done = (self._step_operations or 0.0) * self.steps_here
        return {"flops": done, "flops_per_second": done / max(self.seconds, 1e-9)}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        assert self.part
        checkpoint["part"] = {"limits": [self.limits.memory, self.limits.recompute], "size": list(self.part)}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take over the size of the parts, unless the user has changed the limits."""
        kept = checkpoint.get("part")
        if kept and kept["limits"] == [self.limits.memory, self.limits.recompute]:
            self.part = Part(*kept["size"])

    def training_step(self, rows: Int[Tensor, "b width"], _: int) -> Tensor:
        assert self.part
        for weight in self.parameters():
            weight.grad = None  # Lightning would keep the last step's through this one's forward pass
        losses = mean_losses(self.losses, [list(phi.parameters()) for phi in self.stitches], rows, self.part)
        self.curve[self.global_step] = step = self.over_processes(losses)
        names = [f"loss/{layer}-{depth}" for layer, depth in self.layer_pairs]
        self.note(step, names, remedy=f"lower stitch.lr={self.config.peak:g}")
        return losses.sum()

    def start_from(self, starts: Sequence[tuple[int, Any]]) -> None:
        """Let stitches begin with affine maps, given with their numbers; decay pulls them there."""
        for number, start in starts:
            self.stitches[number].start_from(start.weight, start.bias)  # type: ignore[operator]
        self.began = copy.deepcopy(self.stitches).requires_grad_(False)
        self.halfway.load_state_dict(self.began[: len(self.layer_pairs)].state_dict())

    @torch.no_grad()
    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Pull stitches to where they began; those that began with the identity are pulled there by the optimiser."""
        if self.began is None:
            return
        rates = {id(weight): group["lr"] for group in optimizer.param_groups for weight in group["params"]}
        for phi, began in zip(self.stitches, self.began, strict=True):
            for weight, start in zip(_parameters(phi, "map"), _parameters(began, "map"), strict=True):
                weight.lerp_(start, min(rates[id(weight)] * self.config.weight_decay, 1.0))

    def configure_optimizers(self) -> Any:
        config, peak = self.config, peak_rate(self.config, self.models[0].d_model)
        decay, groups = config.weight_decay if self.began is None else 0.0, []
        for factor in dict.fromkeys(fit.factor for fit in self.fits):
            learning = [phi for phi, fit in zip(self.stitches, self.fits, strict=True) if fit.factor == factor]
            for pull, parts in ((decay, ("map",)), (0.0, ("pre", "post"))):  # which would pull a LayerNorm's gain to 0
                if weights := [weight for phi in learning for weight in _parameters(phi, *parts)]:
                    groups.append({"params": weights, "lr": factor * peak, "weight_decay": pull})
        return scheduled(optimizer_of(config, groups), lambda step: rate(step, config))

    def whiten(self, statistics: Sequence[PairStatistics]) -> None:
        """Let SGD step in coordinates in which the states that each φ reads have mean 0, variance 1 and no correlation.

        With h' = Σ^(-1/2) (h - μ) and φ(h) = A h' + b', a step of A and b' is one of φ's own weights [W b] along their
        gradient times the inverse second moments of [h 1]. So φ is never written in other coordinates.

        Args:
            statistics: those of the source of each fit, in their order.
        """
        self._inverses = [_inverse_moments(own, self.config.kind == "affine") for own in statistics]

    def configure_gradient_clipping(self, optimizer: Any, *_: Any, **__: Any) -> None:
        for phi, inverse in zip(self.stitches, self._inverses, strict=True):
            if inverse is not None:
                _whiten(list(phi.map.parameters()), inverse, self.config.clip)  # type: ignore[union-attr]
            elif self.config.clip > 0:  # each by itself: one stitch must not change another's steps
                nn.utils.clip_grad_norm_(phi.parameters(), self.config.clip)


def _inverse_moments(statistics: PairStatistics, constant: bool) -> Float[Tensor, "c c"]:
    """Return E[x x']⁻¹ in float32, with x the source's states, and a 1 after them if φ has a `constant`."""
    mean, moments = statistics.mean_x, statistics.xx / statistics.n
    if not constant:
        moments = moments + torch.outer(mean, mean)
    values, vectors = torch.linalg.eigh(moments)
    inverse = vectors / values.clamp(min=SMALLEST * float(values[-1])) @ vectors.T
    if constant:  # of blocks: about their mean, states and the 1 are uncorrelated
        last = -inverse @ mean
        rows = torch.cat([inverse, last[None]]), torch.cat([last, 1 - mean @ last[:, None]])
        inverse = torch.cat([rows[0], rows[1][:, None]], 1)
    return inverse.float()


@torch.no_grad()
def _whiten(weights: Sequence[nn.Parameter], inverse: Float[Tensor, "c c"], clip: float) -> None:
    """Multiply the gradient of [W b] by `inverse`; its norm in whitened coordinates is at most `clip`, unless 0."""
    parts = [weight.grad.reshape(len(weight), -1) for weight in weights if weight.grad is not None]
    raw = torch.cat(parts, 1)
    steps = raw @ inverse.to(raw)
    norm = (raw * steps).sum().clamp(min=0).sqrt()
    if clip > 0:
        steps = steps * (clip / (norm + 1e-6)).clamp(max=1)
    for weight, step in zip(weights, steps.split([part.shape[1] for part in parts], 1), strict=True):
        weight.grad = step.reshape_as(weight).contiguous()


def _parameters(phi: nn.Module, *parts: str) -> list[nn.Parameter]:
    """Return the parameters of these parts of a φ: map, pre or post."""
    return [weight for part in parts if (inside := getattr(phi, part)) for weight in inside.parameters()]


Mapped = Sequence[Float[Tensor, "b t d"]]  # states that φ has brought to the target
Own = Mapping[int, Float[Tensor, "b t d"]]  # the target's own states of these tokens, by layer


class StitchLoss(NamedTuple):
    """A loss, and which of the target's own states it reads.

    Attributes:
        value: given the target, the layers after which stitches enter it, what they bring there, the target's own
            states and the tokens: the losses of all tokens, (n), of each stitch.
        layers: given the layers after which stitches enter and the target's number of layers: whose states are read.
    """

    value: Callable[[FrozenModel, Sequence[int], Mapped, Own, Int[Tensor, "b t"]], list[Float[Tensor, " n"]]]
    layers: Callable[[Sequence[int], int], Sequence[int]]


def _cross_entropy(target: FrozenModel, depths: Sequence[int], mapped: Mapped, _: Own, tokens: Tensor) -> list[Tensor]:
    """Return the loss of the next token in nats (Brown et al. 2023, section 2)."""
    last = last_states(target, list(zip(depths, mapped, strict=True)))
    return [losses.flatten() for losses in next_token_losses(target, last, tokens)]


def _kl(target: FrozenModel, depths: Sequence[int], mapped: Mapped, own: Own, _: Tensor) -> list[Tensor]:
    """Return KL in nats from the target's own output."""
    last = torch.stack(last_states(target, list(zip(depths, mapped, strict=True))))
    return list(token_kl(last.flatten(1, 2), target.finish, own[target.n_layers - 1].flatten(0, 1)))


def _mse(_: FrozenModel, depths: Sequence[int], mapped: Mapped, own: Own, __: Tensor) -> list[Tensor]:
    """Return the mean squared difference from the target's state at the site of the stitch, in its own unit."""
    return [(state - own[depth]).square().mean(-1).flatten() for depth, state in zip(depths, mapped, strict=True)]


def _penultimate(target: FrozenModel, depths: Sequence[int], mapped: Mapped, own: Own, _: Tensor) -> list[Tensor]:
    """Return ‖s - t‖² / ‖t‖² of the last block's states (arXiv 2603.12433)."""
    last = last_states(target, list(zip(depths, mapped, strict=True)))
    return [_relative(state, own[target.n_layers - 1]).flatten() for state in last]


def _alignment(target: FrozenModel, depths: Sequence[int], mapped: Mapped, own: Own, _: Tensor) -> list[Tensor]:
    """Return the mean of ‖s - t‖² / ‖t‖² over the site of the stitch and all after it (arXiv 2505.20142)."""
    return [
        torch.stack([_relative(state, own[depth + i]) for i, state in enumerate(states)]).mean(0).flatten()
        for depth, states in zip(depths, states_onwards(target, list(zip(depths, mapped, strict=True))), strict=True)
    ]


def _relative(state: Tensor, goal: Tensor) -> Tensor:
    return (state - goal).float().square().sum(-1) / goal.float().square().sum(-1)


STITCH_LOSSES = {
    "cross_entropy": StitchLoss(_cross_entropy, lambda depths, count: []),
    "kl": StitchLoss(_kl, lambda depths, count: [count - 1]),
    "mse": StitchLoss(_mse, lambda depths, count: depths),
    "penultimate": StitchLoss(_penultimate, lambda depths, count: [count - 1]),
    "alignment": StitchLoss(_alignment, lambda depths, count: range(min(depths), count)),
}


EPSILON = 1e-6  # of Adam: far above gradients that are rounding alone (1e-9), far below others (1e-3)


def optimizer_of(config: StitchConfig, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """Return the optimiser that a configuration names, of groups with params, lr and weight_decay.

    Raises:
        PluginError: a plugin makes no optimiser.
    """
    if plugins.is_plugin(config.optimizer):
        made = plugins.load(config.optimizer).make(groups)
        if not isinstance(made, torch.optim.Optimizer):
            raise PluginError(f"optimizer {config.optimizer} makes a {type(made).__name__}, no torch.optim.Optimizer")
        return made
    more: dict[str, Any] = {"foreach": False}  # all at once would take two more copies of all weights
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, momentum=config.momentum, nesterov=config.momentum > 0, **more)
    return torch.optim.AdamW(groups, eps=EPSILON, **more)
