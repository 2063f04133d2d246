"""Stitches of many layer pairs, trained together (Brown et al. 2023, section 3 and appendix C.1).

Each model runs once per batch, to the deepest site that is read. Each φ's output joins the target's tail at its own
depth: states that enter there are concatenated along the batch. The sum of the losses gives each φ the gradient of a
run of its own. A step that does not fit into memory runs in microbatches. These sum the same gradients in another
order, so their size changes a training by rounding alone; it is kept with the state, so that a resumed training gives
the bits of one that was never stopped.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import pytorch_lightning as pl
import torch
from jaxtyping import Float, Int
from pytorch_lightning.callbacks import Callback
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from thinkalike.config import TrainerConfig
from thinkalike.data.rows import PackedLayout
from thinkalike.errors import ResourceError
from thinkalike.evaluation.forward import last_states, next_token_losses, states_onwards
from thinkalike.measures.closed_forms import LayerPair, PairStatistics
from thinkalike.measures.losses import token_kl
from thinkalike.memory import GAPS, Budget, LiveBytes, OverLimit, hand_back, readable
from thinkalike.models.frozen import FrozenModel
from thinkalike.states.source import StateSource
from thinkalike.stitches.stitch import Stitch
from thinkalike.training.optimizers import inverse_moments, momenta, optimizer_of, peak_rate, rate, scheduled
from thinkalike.training.recipe import StitchConfig
from thinkalike.training.run import SteppedModule

log = logging.getLogger(__name__)

Mapped = Sequence[Float[Tensor, "b t d"]]  # states that φ has brought to the target
Own = Mapping[int, Float[Tensor, "b t d"]]  # the target's own states of these tokens, by layer
Losses = Callable[[Tensor, Sequence[int]], list[Tensor]]  # of each token, given rows and the numbers of stitches
Weights = Sequence[Sequence[nn.Parameter]]  # of each stitch


class Microbatch(NamedTuple):
    """The most rows and the most stitches that are in memory at once."""

    rows: int
    stitches: int


def _gradients(
    losses: Losses, weights: Weights, rows: Tensor, chosen: Sequence[int]
) -> tuple[Float[Tensor, " p"], int, tuple[Tensor, ...]]:
    """Return the summed losses of some stitches, over how many values, and the gradients of these sums."""
    with torch.enable_grad():
        values = losses(rows, chosen)
        total = torch.stack([each.sum() for each in values])
    with torch.autocast(total.device.type, enabled=False):  # as in any backward pass
        flat = [weight for i in chosen for weight in weights[i]]
        return total.detach(), len(values[0]), torch.autograd.grad(total, flat, torch.ones_like(total))


class _Accumulated(torch.autograd.Function):
    """Losses that take their gradient in the forward pass; the backward pass multiplies it by the one that comes in.

    So autocast, several processes and clipping see one forward and one backward pass.
    """

    @staticmethod
    def forward(ctx: Any, losses: Losses, weights: Weights, rows: Tensor, size: Microbatch, *flat: Tensor) -> Tensor:
        sums, count = torch.zeros(len(weights), device=rows.device), 0  # each stitch has as many values as any other
        gradients = [[torch.zeros_like(weight) for weight in own] for own in weights]
        for some in rows.split(size.rows):
            for start in range(0, len(weights), size.stitches):
                chosen = range(len(weights))[start : start + size.stitches]
                total, values, added = _gradients(losses, weights, some, chosen)
                for sum_, gradient in zip([g for i in chosen for g in gradients[i]], added, strict=True):
                    sum_ += gradient
                sums[chosen.start : chosen.stop] += total
                count += values if not start else 0
        ctx.gradients, ctx.count = gradients, count
        return sums / count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Any) -> Any:
        gradients, ctx.gradients = ctx.gradients, None  # to be taken over by the parameters, not copied
        for own, factor in zip(gradients, outer[0] / ctx.count, strict=True):
            for gradient in own:
                gradient.mul_(factor)
        return (None, None, None, None, *(gradient for own in gradients for gradient in own))


def mean_losses(losses: Losses, weights: Weights, rows: Tensor, size: Microbatch) -> Float[Tensor, " p"]:
    """Return the mean loss of every stitch on a step's rows, differentiable once in the parameters of each stitch."""
    if len(rows) <= size.rows and len(weights) <= size.stitches:
        return torch.stack([values.mean() for values in losses(rows, range(len(weights)))])
    flat = [weight for own in weights for weight in own]
    return _Accumulated.apply(losses, weights, rows, size, *flat)  # type: ignore[no-any-return]


def _fits(losses: Losses, weights: Weights, rows: Tensor, chosen: Sequence[int], room: float) -> bool:
    try:
        with LiveBytes(rows.device, room):
            _gradients(losses, weights, rows, chosen)
    except (OverLimit, torch.OutOfMemoryError):
        return False
    return True


def largest_microbatch(
    limits: TrainerConfig, losses: Losses, weights: Weights, rows: Tensor, tails: Sequence[int], momenta: int
) -> Microbatch:
    """Return the largest microbatch of a step that fits into memory: fewer rows first, then of one row fewer stitches.

    Each size is tried once, forward and backward, with the stitches of the longest `tails`, in blocks; the optimiser
    keeps `momenta` numbers of each weight. It is a ResourceError if one row and one stitch do not fit.
    """
    shared = limits.strategy == "ddp"
    hand_back(rows.device)
    processes = limits.devices or 1 if shared and rows.device.type == "cpu" else 1
    budget = Budget.of(rows.device, limits.memory, processes)
    copies = 1 + momenta + int(shared)  # gradients, and those that processes exchange
    room = budget.room - copies * sum(weight.nbytes for own in weights for weight in own) / GAPS
    longest = sorted(range(len(weights)), key=lambda number: -tails[number])
    size = whole = Microbatch(len(rows), len(weights))
    while room <= 0 or not _fits(losses, weights, rows[: size.rows], longest[: size.stitches], room):
        if room <= 0 or size == (1, 1):
            raise ResourceError(
                f"one row of text and {len(weights)} stitches do not fit into memory: {budget.limit}; set "
                "trainer.recompute=true, lower data.context, choose fewer or later layers, or stitch=low_rank"
            )
        size = Microbatch((size.rows + 1) // 2, size.stitches if size.rows > 1 else (size.stitches + 1) // 2)
        hand_back(rows.device)
    if size != whole:
        sizes = f"{size.rows} of {whole.rows} rows and {size.stitches} of {whole.stitches} stitches"
        log.info(f"memory: each step runs in microbatches of {sizes}, to fit into {readable(budget.total)}")
    return size


def _cross_entropy(target: FrozenModel, depths: Sequence[int], mapped: Mapped, _: Own, tokens: Tensor) -> list[Tensor]:
    """The loss of the next token in nats (Brown et al. 2023, section 2)."""
    last = last_states(target, list(zip(depths, mapped, strict=True)))
    return [losses.flatten() for losses in next_token_losses(target, last, tokens)]


def _kl(target: FrozenModel, depths: Sequence[int], mapped: Mapped, own: Own, _: Tensor) -> list[Tensor]:
    """KL in nats from the target's own output."""
    last = torch.stack(last_states(target, list(zip(depths, mapped, strict=True))))
    return list(token_kl(last.flatten(1, 2), target.finish, own[target.n_layers - 1].flatten(0, 1)))


def _mse(_: FrozenModel, depths: Sequence[int], mapped: Mapped, own: Own, __: Tensor) -> list[Tensor]:
    """The mean squared difference from the target's state at the site of the stitch, in its own unit."""
    return [(state - own[depth]).square().mean(-1).flatten() for depth, state in zip(depths, mapped, strict=True)]


def _relative(state: Tensor, goal: Tensor) -> Tensor:
    return (state - goal).float().square().sum(-1) / goal.float().square().sum(-1)


def _penultimate(target: FrozenModel, depths: Sequence[int], mapped: Mapped, own: Own, _: Tensor) -> list[Tensor]:
    """‖s - t‖² / ‖t‖² of the last block's states (arXiv 2603.12433)."""
    last = last_states(target, list(zip(depths, mapped, strict=True)))
    return [_relative(state, own[target.n_layers - 1]).flatten() for state in last]


def _alignment(target: FrozenModel, depths: Sequence[int], mapped: Mapped, own: Own, _: Tensor) -> list[Tensor]:
    """The mean of ‖s - t‖² / ‖t‖² over the site of the stitch and all after it (arXiv 2505.20142)."""
    return [
        torch.stack([_relative(state, own[depth + i]) for i, state in enumerate(states)]).mean(0).flatten()
        for depth, states in zip(depths, states_onwards(target, list(zip(depths, mapped, strict=True))), strict=True)
    ]


# Each loss: given the target, the layers after which stitches enter it, what they bring there, the target's own states
# and the tokens, the losses of all tokens, (n), of each stitch. Beside it which of the target's own states it reads,
# given the layers after which stitches enter and the target's number of layers.
STITCH_LOSSES: Mapping[str, tuple[Callable[..., list[Tensor]], Callable[[Sequence[int], int], Sequence[int]]]] = {
    "cross_entropy": (_cross_entropy, lambda depths, count: []),
    "kl": (_kl, lambda depths, count: [count - 1]),
    "mse": (_mse, lambda depths, count: depths),
    "penultimate": (_penultimate, lambda depths, count: [count - 1]),
    "alignment": (_alignment, lambda depths, count: range(min(depths), count)),
}


class Fit(NamedTuple):
    """A stitch to train, from a layer of a model to a depth of the target; `factor` multiplies the learning rate."""

    reads: Any
    layer: int
    depth: int
    factor: float = 1.0


class StitchAveraging(Callback):
    """Averages the stitches over the second quarter and over the second half of the steps.

    The first mean is what the result calls `halfway`; with schedule=average, whose rate does not fall, the second is
    the result. Lightning's `WeightAveraging` copies the whole module with both models, cannot begin anew at half of the
    steps, and asks the device at every step how many it has averaged.
    """

    @torch.no_grad()
    def on_train_batch_end(self, trainer: pl.Trainer, module: StitchTraining, *_: Any) -> None:  # type: ignore[override]
        done, half = trainer.global_step, module.steps // 2
        start = half if done > half else half // 2
        if done > start:
            for mean, weight in zip(module.means.parameters(), module.stitches.parameters(), strict=True):
                mean.lerp_(weight, 1 / (done - start))
        if done == half:
            module.halfway.load_state_dict(module.means[: len(module.layer_pairs)].state_dict())
        if done == module.steps and module.config.schedule == "average":
            module.stitches.load_state_dict(module.means.state_dict())
            module.return_to_better_starts()


class StitchTraining(SteppedModule):
    """Trains one φ per layer pair from a source to a frozen model; its state holds the φs and never the models.

    `stitch.loss` names one of `STITCH_LOSSES`. The rows come from a `StepData`.

    With schedule=average, φ is the mean over the second half of the steps, or the start where that has the lower loss.

    Attributes:
        curve: (steps, stitches), each step's loss on its batch, in nats per token (mse: squared units).
        halfway: the φs of the layer pairs after half of the steps, each the mean over the quarter of the steps before.
        microbatch: how much of a step is in memory at once; it is found when training begins and kept with the state,
            because microbatches of another size round otherwise.

    Args:
        layer_pairs: those of the stitches that come first; they read the source.
        layout: the columns of a row; None: a row is tokens that both models read.
        limits: how much memory a step may take.
        beside: further stitches.
    """

    curve: Tensor
    microbatch: Microbatch | None = None

    def __init__(
        self,
        source: StateSource,
        target: FrozenModel,
        layer_pairs: Sequence[LayerPair],
        config: StitchConfig,
        seed: int = 0,
        *,
        layout: PackedLayout | None = None,
        limits: TrainerConfig | None = None,
        beside: Sequence[Fit] = (),
    ):
        super().__init__(config.steps)
        self.layout, self.limits = layout, limits or TrainerConfig()
        self.models = (source, target)  # a tuple, so that Lightning neither moves nor saves them
        self.layer_pairs, self.config = list(layer_pairs), config
        self.fits = (*(Fit(source, *pair) for pair in layer_pairs), *beside)
        self.stitches = nn.ModuleList(
            Stitch(config.kind, fit.reads.d_model, target.d_model, config.norm, config.rank, seed) for fit in self.fits
        )
        self.began: nn.ModuleList | None = None  # where training starts, if that is no identity
        self.means = copy.deepcopy(self.stitches).requires_grad_(False)  # see `StitchAveraging`
        self.halfway = copy.deepcopy(self.means[: len(self.layer_pairs)])
        self.register_buffer("curve", torch.full((config.steps, len(self.fits)), torch.nan))
        self._inverses: dict[nn.Linear, Tensor] = {}

    def start_from(self, starts: Sequence[tuple[int, Any]]) -> None:
        """Let stitches begin with affine maps, given with their numbers; decay pulls them there."""
        for number, start in starts:
            self.stitches[number].start_from(start.weight, start.bias)  # type: ignore[operator]
        self.began = copy.deepcopy(self.stitches).requires_grad_(False)
        self.halfway.load_state_dict(self.began[: len(self.layer_pairs)].state_dict())

    def whiten(self, statistics: Sequence[PairStatistics]) -> None:
        """Let SGD step in coordinates in which the states that each φ reads, given by `statistics`, are white."""
        constant = self.config.kind == "affine"
        for phi, own in zip(self.stitches, statistics, strict=True):
            inverse = inverse_moments(own.mean_x, own.xx / own.n, constant=constant)
            self._inverses[phi.map] = inverse.float()  # type: ignore[index]

    def losses(self, rows: Int[Tensor, "b width"], chosen: Sequence[int] | None = None) -> list[Float[Tensor, " n"]]:
        """Return the loss of every φ, or of those chosen by number, at each token of the target."""
        target, layout = self.models[1], self.layout or PackedLayout(rows.shape[1])
        loss, layers_of = STITCH_LOSSES[self.config.loss]
        numbers = range(len(self.fits)) if chosen is None else chosen
        fits, tokens = [self.fits[i] for i in numbers], layout.target_tokens(rows)
        depths = [fit.depth for fit in fits]
        states, own = self._read(fits, rows, layout, layers_of(depths, target.n_layers))
        mapped = [self.stitches[i](s.to(target.device).float()) for i, s in zip(numbers, states, strict=True)]
        return loss(target, depths, mapped, own, tokens)

    @torch.no_grad()
    def _read(
        self, fits: Sequence[Fit], rows: Int[Tensor, "b width"], layout: PackedLayout, layers: Sequence[int]
    ) -> tuple[list[Float[Tensor, "b t _"]], Own]:
        """Return what each stitch reads, and the target's own states at these layers, from one pass of each model."""
        target, read = self.models[1], dict[Any, Tensor]()
        for model in dict.fromkeys([target, *(fit.reads for fit in fits)]):
            wanted = sorted({*(layers if model is target else ()), *(fit.layer for fit in fits if fit.reads is model)})
            if model is not target:
                states = layout.source_states(model, rows, wanted)
            else:
                states = target.residuals(layout.target_tokens(rows), wanted) if wanted else []
            read |= {(model, layer): state for layer, state in zip(wanted, states, strict=True)}
        own = {layer: state for (model, layer), state in read.items() if model is target}
        return [read[fit.reads, fit.layer] for fit in fits], own

    def training_step(self, rows: Int[Tensor, "b width"], _: int) -> Tensor:
        assert self.microbatch
        for weight in self.parameters():
            weight.grad = None  # Lightning would keep the last step's through this one's forward pass
        losses = mean_losses(self.losses, self._weights, rows, self.microbatch)
        self.curve[self.global_step] = step = self.over_processes(losses)
        names = [f"loss/{layer}-{depth}" for layer, depth in self.layer_pairs]
        self.log_losses(step, names, remedy=f"lower stitch.lr={self.config.peak:g}")
        return losses.sum()

    @property
    def _weights(self) -> list[list[nn.Parameter]]:
        return [list(phi.parameters()) for phi in self.stitches]

    def configure_callbacks(self) -> list[Callback]:
        return [StitchAveraging()]

    def configure_optimizers(self) -> Any:
        config, peak, groups = self.config, peak_rate(self.config, self.models[0].d_model), []
        for factor in dict.fromkeys(fit.factor for fit in self.fits):
            learning = [phi for phi, fit in zip(self.stitches, self.fits, strict=True) if fit.factor == factor]
            for decay, parts in ((config.weight_decay, ("map",)), (0.0, ("pre", "post"))):  # a norm's gain stays near 1
                inside = [own for phi in learning for part in parts if (own := getattr(phi, part))]
                if weights := [weight for own in inside for weight in own.parameters()]:
                    groups.append({"params": weights, "lr": factor * peak, "weight_decay": decay})
        began = self.began.parameters() if self.began else ()
        starts = dict(zip(self.stitches.parameters(), began, strict=bool(self.began)))
        optimizer = optimizer_of(config, groups, self._inverses, starts)
        return scheduled(optimizer, lambda step: rate(step, config))

    def configure_gradient_clipping(self, optimizer: Any, *_: Any, **__: Any) -> None:
        """Clip each stitch by itself: one must not change another's steps. `WhitenedSGD` clips those of its maps."""
        for phi in self.stitches:
            if self.config.clip > 0 and phi.map not in self._inverses:
                nn.utils.clip_grad_norm_(phi.parameters(), self.config.clip)

    def on_train_start(self) -> None:
        """Find in which microbatches a step runs, unless the state of an earlier run says so."""
        if self.microbatch is None:
            tails = [self.models[1].n_layers - 1 - fit.depth for fit in self.fits]
            with self.trainer.precision_plugin.train_step_context():
                self.microbatch = largest_microbatch(
                    self.limits, self.losses, self._weights, self._first_rows(), tails, momenta(self.config)
                )

    def _first_rows(self) -> Int[Tensor, "b width"]:
        return self.trainer.datamodule.batch(0).to(self.device)  # type: ignore[attr-defined, no-any-return]

    @torch.no_grad()
    def return_to_better_starts(self) -> None:
        """Undo the training of each φ whose loss on the rows of the first step is higher than when it began.

        At a constant rate a φ that begins at its solution may leave it: steps are too long for the curvature of some
        batches, and rounding grows into a loss.
        """
        if self.began is None:
            return
        assert self.microbatch
        with self.trainer.precision_plugin.train_step_context():
            losses = mean_losses(self.losses, self._weights, self._first_rows(), self.microbatch)
            ended = self.over_processes(losses)
        worse = (ended > self.curve[0]).nonzero().flatten().tolist()
        for number in worse:
            for phis in (self.stitches, self.halfway):
                if number < len(phis):
                    phis[number].load_state_dict(self.began[number].state_dict())
        if worse:
            log.info("%d of %d stitches ended worse than at the start, which is kept", len(worse), len(self.fits))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        assert self.microbatch
        limits = [self.limits.memory, self.limits.recompute]
        checkpoint["microbatch"] = {"limits": limits, "size": list(self.microbatch)}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take over the size of the microbatches, unless the user has changed the limits."""
        kept = checkpoint.get("microbatch")
        if kept and kept["limits"] == [self.limits.memory, self.limits.recompute]:
            size = kept["size"]
            if not all(type(number) is int and number > 0 for number in size):
                raise ValueError(f"its microbatch is {str(size)[:40]}, and should be two numbers from 1")
            self.microbatch = Microbatch(*size)
