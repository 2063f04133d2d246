"""Trains many sparse autoencoders of one site of a frozen model at once, on states as it reads.

The model reads a buffer of rows once for all autoencoders. Each autoencoder then takes the states
in an order of its own, a part in each step, so that a step has states of many documents. The text
and its order are the same for all seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from thinkalike.contrib.sae.autoencoder import DeadCandidates, SparseAutoencoder, sae_loss
from thinkalike.contrib.sae.carrying import for_original_states, for_standardised_states
from thinkalike.contrib.sae.config import SAEConfig
from thinkalike.contrib.sae.site_states import SiteStates, reconstruction_by_document, states_after
from thinkalike.models.frozen import FrozenModel
from thinkalike.training.data import StepData
from thinkalike.training.module import SteppedModule

BETAS = (0.9, 0.99)  # of Adam: a short memory, as many jobs have a few hundred steps
AVERAGING = 8  # the mean of weights is over about the last ninth of the steps
SEED_STRIDE = 1_000_003  # a prime beyond any number of buffers: no two seeds share an order


class SAEFit(NamedTuple):
    """An autoencoder to train.

    Attributes:
        start: Its first weights, in the model's own units.
        factor: What `sae.lr` is multiplied by.
        seed: Decides the order in which it reads the states of a buffer.
    """

    start: SparseAutoencoder
    factor: float = 1.0
    seed: int = 0


class SAETraining(SteppedModule):
    """Trains autoencoders of one shape on (h - mean) / scale; its state holds them, not the model.

    The learning rate is constant. What is reported and stored is a mean of the weights so far,
    which the weights after step t enter with the share (m + 1) / (t + m), m = 8 (polynomial-decay
    averaging; Shamir & Zhang 2013, section 4). It does what a rate that falls to zero does, but at
    every step: the autoencoder after n tokens is the one that a training of n tokens would end
    with.

    Autoencoders with one rate are a stack, one module.

    Attributes:
        errors: (evaluations, fits, documents) Σ‖h - ĥ‖² on the evaluation text, of states that are
            not standardised.
        active, dead: (evaluations, fits), see `Reconstruction`.
        inactive_for: How many states each latent has not been active for.
    """

    errors: Tensor
    active: Tensor
    dead: Tensor
    inactive_for: Int[Tensor, "fits f"]

    def __init__(
        self,
        model: FrozenModel,
        fits: Sequence[SAEFit],
        config: SAEConfig,
        mean: Float[Tensor, " d"],
        scale: float,
        evaluation_states: SiteStates,
    ):
        """Stack the autoencoders of each learning rate, with a copy for the mean of the weights.

        Args:
            model: The frozen model that computes the states.
            fits: The first weights, learning rate and seed of each autoencoder to train.
            config: The settings of the training.
            mean: The mean that is subtracted from states.
            scale: The number that centred states are divided by.
            evaluation_states: The states that autoencoders are evaluated on.
        """
        super().__init__(config.steps)
        self.models = (model,)  # a tuple, so that Lightning neither moves nor saves it
        self.fits = list(fits)
        self.config = config
        self.mean = mean
        self.scale = scale
        standardised_states = (evaluation_states.states - mean) / scale
        self.evaluation_states = SiteStates(standardised_states, evaluation_states.documents)

        self.factors = list(dict.fromkeys(fit.factor for fit in fits))
        self.fits_of_stack: list[list[int]] = []
        stacks = []
        averages = []
        for factor in self.factors:
            indices = [index for index, fit in enumerate(fits) if fit.factor == factor]
            starts = [for_standardised_states(fits[index].start, mean, scale) for index in indices]
            self.fits_of_stack.append(indices)
            stacks.append(SparseAutoencoder.stacked(starts))
            averages.append(SparseAutoencoder.stacked(starts).requires_grad_(False))
        self.stacks = nn.ModuleList(stacks)
        self.averages = nn.ModuleList(averages)

        n_documents = int(evaluation_states.documents.max()) + 1
        shape = (len(config.evaluation_steps), len(fits))
        self.register_buffer("errors", torch.full((*shape, n_documents), torch.nan))
        self.register_buffer("active", torch.full(shape, torch.nan))
        self.register_buffer("dead", torch.full(shape, torch.nan))
        n_inactive = torch.zeros(len(fits), config.width, dtype=torch.long)
        self.register_buffer("inactive_for", n_inactive)

        # For each stack the states of a buffer, in the order of each of its fits.
        self._buffer: list[Float[Tensor, "s n d"]] | None = None

    def data(self, rows: Int[Tensor, "rows context"]) -> StepData:
        """Return the batches of text that training reads.

        The states of a batch fill a buffer, of which each of the next
        `config.steps_per_buffer` steps reads another part.

        Args:
            rows: All rows of tokens of the text.
        """
        return StepData(
            rows,
            self.config.buffer,  # tokens in a batch
            self.steps,
            seed=0,  # one order of the text for all: autoencoders differ in the order of states
            repeats=self.config.steps_per_buffer,
            # What an error message about too little text calls the size of a buffer.
            setting="sae.tokens_per_step × sae.steps_per_buffer",
        )

    def training_step(self, rows: Int[Tensor, "b t"], _: int) -> Tensor:
        """Return the summed loss of all autoencoders on one part of the buffer of states.

        A buffer of states serves several steps, of which each reads another part. At the first of
        them, the model reads rows of text to fill it. Before some steps
        (`config.evaluation_steps`), all autoencoders are evaluated. The autoencoders of one
        learning rate are a stack: a module with the weights of all. A fit is the training of one
        autoencoder.

        Args:
            rows: The token ids of the text. They are the same for all steps that a buffer serves.
            _: The number of the batch, which Lightning passes.
        """
        if self.global_step in self.config.evaluation_steps:
            self.evaluate(self.config.evaluation_steps.index(self.global_step))
        step_of_buffer = self.global_step % self.config.steps_per_buffer
        if step_of_buffer == 0 or self._buffer is None:
            self._buffer = self._shuffled_states(rows)

        total_loss = torch.zeros((), device=self.device)
        relative_errors = torch.empty(len(self.fits), device=self.device)
        for stack, indices, buffer in zip(
            self.stacks, self.fits_of_stack, self._buffer, strict=True
        ):
            # (autoencoders, states, d) each; this step reads one of them.
            parts_of_buffer = buffer.tensor_split(self.config.steps_per_buffer, dim=1)
            states = parts_of_buffer[step_of_buffer]
            dead = self._dead_candidates(indices)
            losses = sae_loss(cast(SparseAutoencoder, stack), states, self.config.sparsity, dead)
            total_loss = total_loss + losses.loss.sum()
            # The squared error as a share of the squared norm of states, which is what is logged.
            relative_error = losses.errors.mean(-1) / states.square().sum(-1).mean(-1)
            relative_errors[indices] = relative_error.to(relative_errors)
            n_states = states.shape[1]
            # The number of states since each latent was last active; 0 if it is active now.
            is_inactive = losses.active == 0
            n_inactive = self.inactive_for[indices] + n_states
            self.inactive_for[indices] = n_inactive.where(is_inactive, 0)
        remedy = f"lower sae.lr={self.config.lr:g}, or leave large sae.lr_multiples out"
        self.log_losses(relative_errors, remedy=remedy)
        return total_loss

    def _dead_candidates(self, indices: list[int]) -> DeadCandidates | None:
        """Return the latents that were inactive for longest, and which of them count as dead.

        A latent is dead if it was inactive for more than the last `config.dead_after` states. For
        each autoencoder, the `config.revived` latents that were inactive for longest are the
        candidates: the loss gives a gradient to those of them that are dead. If
        `config.dead_after` is 0, dead latents get no gradient, and None is returned.

        Args:
            indices: Which of all autoencoders are asked for: those of one stack (autoencoders that
                are trained as one module, with stacked weights).
        """
        if not self.config.dead_after:
            return None
        # (autoencoders, latents): for how many states each latent has been inactive.
        longest = self.inactive_for[indices].topk(self.config.revived)
        return DeadCandidates(longest.indices, longest.values > self.config.dead_after)

    def _shuffled_states(self, rows: Int[Tensor, "b t"]) -> list[Float[Tensor, "s n d"]]:
        """Return the standardised states of some rows of tokens, shuffled, for each stack.

        The rows are a buffer, which is read at once and serves several training steps. A stack has
        the s autoencoders of one learning rate. Each of them gets the n states in an order that
        its seed and the number of the buffer decide.
        """
        (model,) = self.models
        states = states_after(model, self.config.layer, rows, self.config.skip_first_tokens)
        states = ((states - self.mean.to(states)) / self.scale).to(self.device)

        buffer_number = self.global_step // self.config.steps_per_buffer
        order_of_seed = {}
        for seed in dict.fromkeys(fit.seed for fit in self.fits):
            generator = torch.Generator().manual_seed(seed * SEED_STRIDE + buffer_number)
            order_of_seed[seed] = torch.randperm(len(states), generator=generator)
        shuffled = []
        for indices in self.fits_of_stack:
            # (s, n): the order of the states for each autoencoder of the stack.
            orders = torch.stack([order_of_seed[self.fits[index].seed] for index in indices])
            shuffled.append(states[orders])  # (s, n, d)
        return shuffled

    def optimizer_step(self, *arguments: Any, **keywords: Any) -> None:
        """Take an optimizer step, and update the running means of the weights.

        `stacks` are the autoencoders in training, and `averages` are copies that hold the means.
        The means are updated here so that a checkpoint after this step has them.
        """
        super().optimizer_step(*arguments, **keywords)
        # Polynomial-decay averaging: later weights count more (Shamir & Zhang 2013, section 4).
        n_steps = self.global_step + 1  # Lightning counts this step only later
        share_of_new = (AVERAGING + 1) / (n_steps + AVERAGING)
        with torch.no_grad():
            weights_and_means = zip(
                self.stacks.parameters(), self.averages.parameters(), strict=True
            )
            for weight, mean in weights_and_means:
                mean.lerp_(weight, share_of_new)

    @torch.no_grad()
    def evaluate(self, evaluation: int) -> None:
        """Evaluate the autoencoders with the mean weights, and store how well they reconstruct.

        The mean weights are a running mean over the steps so far, `averages`. The squared errors
        by document, the mean number of active latents and the share of dead ones go to `errors`,
        `active` and `dead`. They are computed in full precision.

        Args:
            evaluation: The index of the evaluation during training, on the first axis of these
                tensors.
        """
        site = self.evaluation_states
        on_device = SiteStates(site.states.to(self.device), site.documents)
        n_documents = self.errors.shape[-1]
        with torch.autocast(self.device.type, enabled=False):
            # The autoencoders of one learning rate are a stack, one module for all of them;
            # `indices` are their places among all autoencoders.
            for average, indices in zip(self.averages, self.fits_of_stack, strict=True):
                stack = cast(SparseAutoencoder, average)
                reconstruction = reconstruction_by_document(stack, on_device, n_documents)
                # The states were divided by `scale`, so its square multiplies the errors.
                errors = reconstruction.errors * self.scale**2
                self.errors[evaluation, indices] = errors.to(self.errors)
                self.active[evaluation, indices] = reconstruction.active.to(self.active)
                self.dead[evaluation, indices] = reconstruction.dead.to(self.dead)

    def trained(self) -> list[SparseAutoencoder]:
        """Return the autoencoders with the mean weights, for states in the model's own units.

        They are in the order of `fits`, though they were trained in stacks: all autoencoders of
        one learning rate together.
        """
        sae_of_index: dict[int, SparseAutoencoder] = {}
        for averaged_stack, indices in zip(self.averages, self.fits_of_stack, strict=True):
            saes = cast(SparseAutoencoder, averaged_stack).unstacked()
            sae_of_index.update(zip(indices, saes, strict=True))
        trained = []
        for index in range(len(self.fits)):
            sae = sae_of_index[index]
            trained.append(for_original_states(sae, self.mean.to(sae.W_enc.device), self.scale))
        return trained

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam with a parameter group of constant learning rate for each stack.

        A stack has the autoencoders of one learning rate, `config.lr` times the stack's factor.
        """
        groups = []
        for stack, factor in zip(self.stacks, self.factors, strict=True):
            groups.append({"params": list(stack.parameters()), "lr": factor * self.config.lr})
        # Fused optimisers round differently for different sizes of a stack.
        return torch.optim.Adam(groups, betas=BETAS, foreach=False, fused=False)
