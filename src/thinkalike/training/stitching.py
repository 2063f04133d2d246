"""Stitches of many layer pairs, trained together (Brown et al. 2023, section 3 and appendix C.1).

Each model runs once per batch, to the deepest site that is read. The output of each φ joins the
target's tail at its own depth: states that enter there are concatenated along the batch. The sum
of the losses gives each φ the gradient of a run of its own.

A step that does not fit into memory runs in microbatches, see `training.microbatches`. Their size
is kept with the state, so that a resumed training gives the bits of one that was never
interrupted.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pytorch_lightning as pl
import torch
from jaxtyping import Float, Int
from pytorch_lightning.callbacks import Callback
from torch import Tensor, nn

from thinkalike.advice import named_setting
from thinkalike.config import TrainerConfig
from thinkalike.data.rows import PackedLayout
from thinkalike.measures.closed_forms import AffineMap
from thinkalike.measures.moments import LayerPair, PairStatistics
from thinkalike.models.frozen import FrozenModel
from thinkalike.stitches.stitch import StitchModule
from thinkalike.training.microbatches import Microbatch, largest_microbatch, mean_losses
from thinkalike.training.module import SteppedModule
from thinkalike.training.optimizers import (
    ParameterGroup,
    ScheduledOptimizer,
    inverse_moments,
    momenta_per_weight,
    optimizer_of,
    peak_rate,
    scheduled,
    share_of_peak_rate,
)
from thinkalike.training.recipe import StitchConfig
from thinkalike.training.stitch_losses import STITCH_LOSSES, StitchedBatch

log = logging.getLogger(__name__)


class Fit(NamedTuple):
    """A stitch to train.

    Attributes:
        reads: The model whose states it reads.
        layer: The layer that it reads.
        depth: The layer of the target after which it enters.
        factor: Multiplies the learning rate.
    """

    reads: FrozenModel
    layer: int
    depth: int
    factor: float = 1.0


class StitchAveraging(Callback):
    """Averages the stitches over the second quarter and over the second half of the steps.

    The first mean is what the result calls `halfway`; with schedule=average, whose rate does not
    fall, the second is the result.

    Lightning's `WeightAveraging` copies the whole module with both models, cannot begin again at
    half of the steps, and asks the device at every step how many it has averaged.
    """

    @torch.no_grad()
    def on_train_batch_end(  # type: ignore[override]
        self, trainer: pl.Trainer, module: StitchTraining, *_: object
    ) -> None:
        """Add the weights after this step to their running mean.

        Of N steps, the first mean is over the steps from N/4 to N/2, and is stored in `halfway`.
        The second is over the steps from N/2 to N. With schedule=average, it becomes the result;
        a stitch whose loss is higher than at its start gets its initial weights back.
        """
        done = trainer.global_step  # with this step
        half = module.steps // 2
        start = half // 2  # the step after which the present mean begins
        if done > half:
            start = half
        if done > start:
            steps_averaged = done - start
            weights = module.stitches.parameters()
            for mean, weight in zip(module.means.parameters(), weights, strict=True):
                mean.lerp_(weight, 1 / steps_averaged)  # the first step replaces the old mean
            # Buffers are no weights: one has the matrix that an orthogonal map starts from.
            buffers = module.stitches.buffers()
            for buffer_of_mean, buffer in zip(module.means.buffers(), buffers, strict=True):
                buffer_of_mean.copy_(buffer)

        if done == half:
            means_of_pairs = module.means[: len(module.layer_pairs)]
            module.halfway.load_state_dict(means_of_pairs.state_dict())
        if done == module.steps and module.config.schedule == "average":
            module.stitches.load_state_dict(module.means.state_dict())
            module.return_to_better_starts()


class StitchTraining(SteppedModule):
    """Trains one φ per layer pair, from a source to a frozen model.

    Its state holds the φs and never the models. `stitch.loss` names one of `STITCH_LOSSES`. The
    rows come from a `StepData`.

    With schedule=average, φ is the mean over the second half of the steps, or the start where that
    has the lower loss.

    Attributes:
        curve: (steps, stitches), each step's loss on its batch, in nats per token (mse: squared
            units).
        halfway: the φs of the layer pairs after half of the steps, each the mean over the quarter
            of the steps before.
        microbatch: how much of a step is in memory at once. It is found when training begins and
            kept with the state, because microbatches of another size round otherwise.

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
        source: FrozenModel,
        target: FrozenModel,
        layer_pairs: Sequence[LayerPair],
        config: StitchConfig,
        seed: int = 0,
        *,
        layout: PackedLayout | None = None,
        limits: TrainerConfig | None = None,
        beside: Sequence[Fit] = (),
    ):
        """Make a stitch for each layer pair and for each fit in `beside`.

        See the class for the arguments. Stitches get their usual initial weights; `start_from` and
        `whiten` can change how they are trained.
        """
        super().__init__(config.steps)
        self.layout = layout
        self.limits = limits or TrainerConfig()
        self.models = (source, target)  # in a tuple, Lightning neither moves nor saves them
        self.layer_pairs = list(layer_pairs)
        self.config = config
        fits_of_pairs = [Fit(source, layer, depth) for layer, depth in layer_pairs]
        self.fits = (*fits_of_pairs, *beside)

        self.stitches = nn.ModuleList()
        for fit in self.fits:
            phi = StitchModule(
                config.kind, fit.reads.d_model, target.d_model, config.norm, config.rank, seed
            )
            self.stitches.append(phi)
        # The initial stitches, if `start_from` has set them; None: their usual initial weights.
        self.began: nn.ModuleList | None = None
        # Running means of the weights, and those of layer pairs after half of the steps.
        self.means = copy.deepcopy(self.stitches).requires_grad_(False)
        self.halfway = copy.deepcopy(self.means[: len(self.layer_pairs)])
        # The loss of each step and stitch, NaN for steps to come.
        self.register_buffer("curve", torch.full((config.steps, len(self.fits)), torch.nan))
        # Of each whitened map, the inverse second moments of its inputs.
        self._inverses: dict[nn.Linear, Float[Tensor, "c c"]] = {}

    def start_from(self, starts: Sequence[tuple[int, AffineMap]]) -> None:
        """Set the initial weights of some stitches to affine maps.

        From then on, weight decay pulls every stitch to its own initial weights.

        Args:
            starts: The index of each such stitch, and its initial map. The others keep their
                usual initial weights.
        """
        for index, start in starts:
            self._stitch(index).start_from(start.weight, start.bias)
        self.began = copy.deepcopy(self.stitches).requires_grad_(False)
        # `halfway` holds the initial stitches until half of the steps are done.
        starts_of_pairs = self.began[: len(self.layer_pairs)]
        self.halfway.load_state_dict(starts_of_pairs.state_dict())

    def _stitch(self, index: int) -> StitchModule:
        """Return the stitch of this index, typed as its own class."""
        phi = self.stitches[index]
        assert isinstance(phi, StitchModule)
        return phi

    @property
    def _stitches(self) -> Iterator[StitchModule]:
        """All stitches in their order, typed as their own class."""
        for index in range(len(self.fits)):
            yield self._stitch(index)

    def whiten(self, statistics: Sequence[PairStatistics]) -> None:
        """Make SGD use coordinates in which the states that each φ reads are white.

        For this the optimiser gets the inverse of their second moments.

        Args:
            statistics: For each φ, statistics in which x stands for the n states that it reads:
                their mean, and xx, the summed products of their deviations from it.
        """
        has_bias = self.config.kind == "affine"
        for phi, pair_statistics in zip(self._stitches, statistics, strict=True):
            covariance = pair_statistics.xx / pair_statistics.n
            inverse = inverse_moments(pair_statistics.mean_x, covariance, constant=has_bias)
            assert isinstance(phi.map, nn.Linear), "only linear and affine maps are whitened"
            self._inverses[phi.map] = inverse.float()

    def losses(
        self, rows: Int[Tensor, "b width"], chosen: Sequence[int] | None = None
    ) -> list[Float[Tensor, " n"]]:
        """Return, for every φ or the chosen ones, the loss at each token of the target.

        Each model runs once. φ maps the states that it reads, and these enter the target. The loss
        is the one that the settings name.

        Args:
            rows: The rows of a step: tokens that both models read, or if their tokenizers differ,
                the target's tokens followed by the source's (`self.layout` says which are which).
            chosen: The indices of the stitches; None: all of them.
        """
        _, target = self.models
        layout = self.layout or PackedLayout(rows.shape[1])
        loss = STITCH_LOSSES[self.config.loss]

        indices = chosen
        if indices is None:
            indices = range(len(self.fits))
        fits = [self.fits[index] for index in indices]
        depths = [fit.depth for fit in fits]  # the layers of the target after which φs enter
        loss_layers = loss.layers(depths, target.n_layers)
        states, target_states = self._read(fits, rows, layout, loss_layers)

        mapped = []
        for index, state in zip(indices, states, strict=True):
            phi = self._stitch(index)
            mapped.append(phi(state.to(target.device).float()))
        tokens = layout.target_tokens(rows)
        return loss.of(StitchedBatch(target, depths, mapped, target_states, tokens))

    @torch.no_grad()
    def _read(
        self,
        fits: Sequence[Fit],
        rows: Int[Tensor, "b width"],
        layout: PackedLayout,
        loss_layers: Sequence[int],
    ) -> tuple[list[Float[Tensor, "b t d"]], dict[int, Float[Tensor, "b t e"]]]:
        """Run each model once; return the states that stitches read, and the target's own states.

        Args:
            fits: The stitches, each with the model and the layer that it reads.
            rows: The rows of a step.
            layout: Which columns of a row each model reads.
            loss_layers: The layers of the target whose own states the loss reads.

        Returns:
            For each stitch, the states that it reads, one for each token of the target; and the
            target's own states by layer.
        """
        _, target = self.models
        read_models = dict.fromkeys([target, *(fit.reads for fit in fits)])
        states_by_site: dict[tuple[FrozenModel, int], Tensor] = {}
        for model in read_models:
            layers_read = {fit.layer for fit in fits if fit.reads is model}
            if model is target:
                layers_read.update(loss_layers)
            layers = sorted(layers_read)
            states: Sequence[Tensor] = []
            if model is not target:
                states = layout.source_states(model, rows, layers)
            elif layers:
                states = target.residuals(layout.target_tokens(rows), layers)
            for layer, state in zip(layers, states, strict=True):
                states_by_site[model, layer] = state

        target_states = {}
        for (model, layer), state in states_by_site.items():
            if model is target:
                target_states[layer] = state
        return [states_by_site[fit.reads, fit.layer] for fit in fits], target_states

    def training_step(self, rows: Int[Tensor, "b width"], _: int) -> Float[Tensor, ""]:
        """Return the sum of the mean losses of all stitches on the rows of a step.

        The loss of a stitch depends on its own weights only, so that the sum gives each stitch its
        own gradient. The losses are written to `curve` and logged. Lightning passes the index of
        the batch as well, which is not used.
        """
        assert self.microbatch, "on_train_start has set it"
        # Free the gradients of the last step, which Lightning would keep during the forward pass.
        for weight in self.parameters():
            weight.grad = None
        losses = mean_losses(self.losses, self._weights, rows, self.microbatch)
        mean_over_processes = self.over_processes(losses)
        self.curve[self.global_step] = mean_over_processes
        names = [f"loss/{layer}-{depth}" for layer, depth in self.layer_pairs]
        remedy = f"lower {named_setting('stitch.lr', like=format(self.config.peak, 'g'))}"
        self.log_losses(mean_over_processes, names, remedy=remedy)
        return losses.sum()

    @property
    def _weights(self) -> list[list[nn.Parameter]]:
        """The weights of each stitch."""
        return [list(phi.parameters()) for phi in self.stitches]

    def configure_callbacks(self) -> list[Callback]:
        """Return the callback that averages the weights of stitches."""
        return [StitchAveraging()]

    def configure_optimizers(self) -> ScheduledOptimizer:  # type: ignore[override]
        """Return the optimiser with the schedule of its learning rate.

        If `start_from` has set initial weights, weight decay pulls to these instead of zero.
        """
        starts: dict[nn.Parameter, Tensor] = {}
        if self.began is not None:
            starts = dict(zip(self.stitches.parameters(), self.began.parameters(), strict=True))
        groups = self._parameter_groups()
        optimizer = optimizer_of(self.config, groups, self._inverses, starts)
        return scheduled(optimizer, lambda step: share_of_peak_rate(step, self.config))

    def _parameter_groups(self) -> list[ParameterGroup]:
        """Return the weights in groups of the same learning rate and weight decay.

        A stitch may have a factor of the learning rate of its own, and the rate of Adam depends on
        the width that it reads. Weights of a LayerNorm have no decay, which would shrink its gain.
        """
        rates = []
        for fit in self.fits:
            rates.append(fit.factor * peak_rate(self.config, fit.reads.d_model))
        groups = []
        for lr in dict.fromkeys(rates):  # each one once
            map_weights = []
            norm_weights = []
            for phi, rate in zip(self._stitches, rates, strict=True):
                if rate != lr:
                    continue
                if phi.map is not None:
                    map_weights += list(phi.map.parameters())
                norm_weights += [*phi.pre.parameters(), *phi.post.parameters()]
            if map_weights:
                decay = self.config.weight_decay
                groups.append(ParameterGroup(params=map_weights, lr=lr, weight_decay=decay))
            if norm_weights:
                groups.append(ParameterGroup(params=norm_weights, lr=lr, weight_decay=0.0))
        return groups

    def configure_gradient_clipping(self, optimizer: object, *_: object, **__: object) -> None:
        """Clip the norm of the gradient of each stitch by itself, as if it was trained alone.

        Stitches in whitened coordinates are left out, because their optimiser clips them. If the
        setting is 0, nothing is clipped.
        """
        if self.config.clip <= 0:
            return
        for phi in self._stitches:
            if phi.map not in self._inverses:
                nn.utils.clip_grad_norm_(phi.parameters(), self.config.clip)

    def on_train_start(self) -> None:
        """Find the largest microbatch that fits into memory, unless a checkpoint has given it."""
        if self.microbatch is not None:
            return
        _, target = self.models
        # How many blocks of the target run after each stitch, on which its memory depends.
        tail_lengths = [target.n_layers - 1 - fit.depth for fit in self.fits]
        with self.trainer.precision_plugin.train_step_context():  # in the precision of a step
            self.microbatch = largest_microbatch(
                self.limits,
                self.losses,
                self._weights,
                self._first_rows(),
                tail_lengths,
                momenta_per_weight(self.config),
            )

    def _first_rows(self) -> Int[Tensor, "b width"]:
        """Return the rows that this process reads in the first step, on its device."""
        rows: Tensor = self.trainer.datamodule.batch(0)  # type: ignore[attr-defined]
        return rows.to(self.device)

    @torch.no_grad()
    def return_to_better_starts(self) -> None:
        """Reset each φ to its start if its loss on the rows of the first step has risen.

        At a constant learning rate, a φ that starts at its solution may leave it: if a step is too
        long for the curvature of some batches, rounding errors grow from step to step. Nothing is
        done if no stitch was given a start by `start_from`.
        """
        if self.began is None:
            return
        assert self.microbatch
        with self.trainer.precision_plugin.train_step_context():  # in the precision of a step
            losses = mean_losses(self.losses, self._weights, self._first_rows(), self.microbatch)
            losses_at_end = self.over_processes(losses)
        losses_at_start = self.curve[0]
        worse = (losses_at_end > losses_at_start).nonzero().flatten().tolist()
        for index in worse:
            start = self.began[index].state_dict()
            self.stitches[index].load_state_dict(start)
            if index < len(self.halfway):  # `halfway` has the stitches of layer pairs only
                self.halfway[index].load_state_dict(start)
        if worse:
            log.info(
                "%d of %d stitches ended worse than they began, and their starts are kept",
                len(worse),
                len(self.fits),
            )

    @property
    def _memory_limits(self) -> list[object]:
        """The settings on which the size of the microbatches depends."""
        return [self.limits.memory, self.limits.recompute]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the size of the microbatches, and the settings that it depends on, to a checkpoint.

        With the same size, a resumed training computes the same bits.
        """
        super().on_save_checkpoint(checkpoint)
        assert self.microbatch
        checkpoint["microbatch"] = {"limits": self._memory_limits, "size": list(self.microbatch)}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Use the size of the microbatches that a checkpoint states.

        It is ignored if the settings of memory have changed since the checkpoint was written.

        Raises:
            ValueError: The size is not two numbers above 0.
        """
        stored = checkpoint.get("microbatch")
        if not stored or stored["limits"] != self._memory_limits:
            return
        size = stored["size"]
        if not all(type(number) is int and number > 0 for number in size):
            raise ValueError(
                f"its microbatch is {str(size)[:40]}, and should be two numbers from 1"
            )
        self.microbatch = Microbatch(*size)
