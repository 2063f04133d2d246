"""Sparse autoencoders of one site of a frozen model, many at once, on its states as it reads (Chen et al. 2025).

The model reads a buffer of rows once for all autoencoders. Each then takes the states in an order of its own, a part in
each step, so that a step has states of many documents. The text and its order are the same for all seeds. Errors on
states, and the model's losses with autoencoders inside, are summed by document. The first tokens of a row can be left
out: their states are the same in every row, or so large that they decide every sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from thinkalike.contrib.sae.config import SAEConfig
from thinkalike.contrib.sae.measures import Dead, SparseAutoencoder, in_own_units, sae_loss, standardised
from thinkalike.data.rows import TokenRows
from thinkalike.evaluation.stitched_losses import document_sums
from thinkalike.measures.estimates import sum_by_document
from thinkalike.models.frozen import FrozenModel
from thinkalike.training.run import StepData, SteppedModule

TOKENS = 4096  # that a model reads at once
LATENTS = 2**20  # that are in memory at once: more leave the cache of a CPU


class SiteStates(NamedTuple):
    """The states of one site of a model, in one row each, and the number of each token's document."""

    states: Float[Tensor, "n d"]
    documents: Int[Tensor, " n"]


class Kept(NamedTuple):
    """How well each of s autoencoders reconstructs some states."""

    errors: Float[Tensor, "s documents"]  # Σ‖h - ĥ‖²
    active: Float[Tensor, " s"]  # how many latents are active on average
    dead: Float[Tensor, " s"]  # the share of latents that are active for no state


class SplicedLosses(NamedTuple):
    """Losses of the next token in nats, summed by document."""

    clean: Float[Tensor, " documents"]  # of the model itself
    ablated: Float[Tensor, " documents"]  # with the mean state in place of every state of the site
    spliced: Float[Tensor, "s documents"]  # with ĥ of each of s autoencoders in place of every state
    tokens: Float[Tensor, " documents"]  # how many are predicted


@torch.no_grad()
def states_after(model: FrozenModel, layer: int, tokens: Int[Tensor, "b t"], skip: int) -> Float[Tensor, "n d"]:
    """Return the states after a block, in float32, one row each, without those of the first tokens of each row."""
    batches = tokens.long().split(max(TOKENS // tokens.shape[1], 1))
    return torch.cat([model.head(batch, layer)[:, skip:].flatten(0, 1).float() for batch in batches])


def spread_by_document(own: SiteStates, count: int) -> Float[Tensor, " documents"]:
    """Return Σ‖h - μ‖² by document, with μ the mean of all states."""
    spread = (own.states - own.states.mean(0)).square().sum(-1)
    return sum_by_document(spread.cpu(), own.documents, count)


@torch.no_grad()
def kept_by_document(saes: SparseAutoencoder, own: SiteStates, count: int) -> Kept:
    """Return how well each autoencoder of a stack reconstructs the states of `count` documents."""
    several, latents = saes.b_enc.shape
    errors, uses = torch.zeros(several, count, dtype=torch.float64), torch.zeros(several, latents, dtype=torch.long)
    batch = max(LATENTS // saes.b_enc.numel(), 1)
    for states, documents in zip(own.states.split(batch), own.documents.split(batch), strict=True):
        active = saes.encode(states)
        missed = (saes.decode(active) - states).square().sum(-1)
        errors += sum_by_document(missed.cpu(), documents, count)
        uses += active.count_nonzero(-2).cpu()
    return Kept(errors, uses.sum(-1) / len(own.states), (uses == 0).double().mean(-1))


@torch.no_grad()
def spliced_losses(
    model: FrozenModel,
    layer: int,
    saes: Sequence[SparseAutoencoder],
    mean: Float[Tensor, " d"],
    rows: TokenRows,
    skip: int,
) -> SplicedLosses:
    """Return a model's losses with an autoencoder at a site; the first tokens keep their states.

    Autoencoders are in the model's own units, and the mean replaces every state in the ablation.
    """

    def spliced(rebuild: Callable[[Tensor], Tensor]) -> list[Callable[[Tensor], Tensor]]:
        return [lambda state: torch.cat([state[:, :skip].float(), rebuild(state[:, skip:].float())], 1)]

    maps = {"ablated": spliced(mean.float().expand_as), **{str(n): spliced(sae) for n, sae in enumerate(saes)}}
    at, batch = [(layer, layer)], max(TOKENS // rows.context, 1)
    sums = document_sums(model, model, at, maps, rows, batch)
    each = torch.cat([sums[str(n)] for n in range(len(saes))])
    return SplicedLosses(sums["target"], sums["ablated"][0], each, sums["tokens"])


BETAS = (0.9, 0.99)  # of Adam: a short memory, as many jobs have a few hundred steps
MEMORY = 8  # the mean of weights is over about the last ninth of the steps


class SAEFit(NamedTuple):
    """An autoencoder to train."""

    begins: SparseAutoencoder  # its first weights, in the model's own units
    factor: float = 1.0  # of `sae.lr`
    seed: int = 0  # of the order in which it reads the states of a buffer


class SAETraining(SteppedModule):
    """Trains autoencoders of one shape on (h - mean) / scale; its state holds them and never the model.

    The rate is constant. Reported and kept is a mean of the weights so far, which those after step t enter with the
    share (m + 1) / (t + m), m = 8 (polynomial-decay averaging; Shamir & Zhang 2013, section 4). It does what a rate
    that falls to zero does, but at every step: the autoencoder after n tokens is the one that n tokens would end with.
    """

    errors: Tensor  # (looks, fits, documents) Σ‖h - ĥ‖² of the report in the model's own units
    active: Tensor  # (looks, fits), see `Kept`
    dead: Tensor  # likewise
    asleep: Int[Tensor, "fits f"]  # how many states each latent has not been active for

    def __init__(
        self,
        model: FrozenModel,
        fits: Sequence[SAEFit],
        config: SAEConfig,
        mean: Float[Tensor, " d"],
        scale: float,
        report: SiteStates,
    ):
        super().__init__(config.steps)
        self.repeats = config.steps_per_buffer
        self.models = (model,)  # a tuple, so that Lightning neither moves nor saves it
        self.fits, self.config, self.mean, self.scale = list(fits), config, mean, scale
        self.report = SiteStates((report.states - mean) / scale, report.documents)
        self.factors = list(dict.fromkeys(fit.factor for fit in fits))  # each has a stack of its own
        self.places = [[i for i, fit in enumerate(fits) if fit.factor == factor] for factor in self.factors]
        begins = [[standardised(fits[i].begins, mean, scale) for i in places] for places in self.places]
        self.stacks = nn.ModuleList(map(SparseAutoencoder.stacked, begins))
        self.averages = nn.ModuleList(map(SparseAutoencoder.stacked, begins)).requires_grad_(False)
        looked = (len(config.looks), len(fits))
        self.register_buffer("errors", torch.full((*looked, int(report.documents.max()) + 1), torch.nan))
        for name in ("active", "dead"):
            self.register_buffer(name, torch.full(looked, torch.nan))
        self.register_buffer("asleep", torch.zeros(len(fits), config.width, dtype=torch.long))
        self._buffer: list[Float[Tensor, "s n d"]] | None = None  # for each stack, in the order of each of its fits

    def training_step(self, rows: Int[Tensor, "b t"], _: int) -> Tensor:
        if self.global_step in self.config.looks:
            self.look(self.config.looks.index(self.global_step))
        place = self.global_step % self.repeats
        if place == 0 or self._buffer is None:
            self._buffer = self._states(rows)
        total, missed = torch.zeros((), device=self.device), torch.empty(len(self.fits), device=self.device)
        for stack, places, states in zip(self.stacks, self.places, self._buffer, strict=True):
            part = states.tensor_split(self.repeats, 1)[place]
            dead = None
            if self.config.dead_after:  # the longest inactive latents of a stack, and which count as dead
                asleep, longest = self.asleep[places].topk(self.config.revived)
                dead = Dead(longest, asleep > self.config.dead_after)
            found = sae_loss(stack, part, self.config.sparsity, dead)  # type: ignore[arg-type]
            total = total + found.loss.sum()
            missed[places] = (found.errors.mean(-1) / part.square().sum(-1).mean(-1)).to(missed)
            self.asleep[places] = (self.asleep[places] + part.shape[1]) * (found.active == 0)
        self.log_losses(missed, remedy=f"lower sae.lr={self.config.lr:g}, or leave large sae.lr_multiples out")
        return total

    def data(self, rows: Int[Tensor, "rows context"]) -> StepData:
        """Return the buffers of text that the training reads."""
        setting = "sae.tokens_per_step × sae.steps_per_buffer"
        return StepData(rows, self.config.buffer, self.steps, seed=0, repeats=self.repeats, setting=setting)

    def optimizer_step(self, *given: Any, **more: Any) -> None:
        """Take a step, and its weights into their means: before a state is kept."""
        super().optimizer_step(*given, **more)
        share = (MEMORY + 1) / (self.global_step + 1 + MEMORY)
        with torch.no_grad():
            for stack, average in zip(self.stacks, self.averages, strict=True):
                for weight, mean in zip(stack.parameters(), average.parameters(), strict=True):
                    mean.lerp_(weight, share)

    def _states(self, rows: Int[Tensor, "b t"]) -> list[Float[Tensor, "s n d"]]:
        """Return the standardised states of a buffer's rows, for each stack in the orders of its autoencoders."""
        states = states_after(self.models[0], self.config.layer, rows, self.config.skip_first_tokens)
        states = ((states - self.mean.to(states)) / self.scale).to(self.device)
        buffer = self.global_step // self.repeats
        seeds = dict.fromkeys(fit.seed for fit in self.fits)
        drawn = {seed: torch.Generator().manual_seed(seed * 1_000_003 + buffer) for seed in seeds}
        orders = {seed: torch.randperm(len(states), generator=generator) for seed, generator in drawn.items()}
        return [states[torch.stack([orders[self.fits[i].seed] for i in places])] for places in self.places]

    @torch.no_grad()
    def look(self, number: int) -> None:
        """Set `errors`, `active` and `dead` of the report before a step, in full precision."""
        report = SiteStates(self.report.states.to(self.device), self.report.documents)
        with torch.autocast(self.device.type, enabled=False):
            for stack, places in zip(self.averages, self.places, strict=True):
                kept = kept_by_document(stack, report, self.errors.shape[-1])  # type: ignore[arg-type]
                self.errors[number, places] = (kept.errors * self.scale**2).to(self.errors)
                self.active[number, places] = kept.active.to(self.active)
                self.dead[number, places] = kept.dead.to(self.dead)

    def trained(self) -> list[SparseAutoencoder]:
        """Return each autoencoder as it would be kept now, in the model's own units."""
        kept: dict[int, SparseAutoencoder] = {}
        for stack, places in zip(self.averages, self.places, strict=True):
            kept |= zip(places, stack.unstacked(), strict=True)  # type: ignore[operator]
        return [in_own_units(kept[i], self.mean.to(kept[i].W_enc.device), self.scale) for i in range(len(kept))]

    def configure_optimizers(self) -> Any:
        groups = [
            {"params": list(stack.parameters()), "lr": factor * self.config.lr}
            for stack, factor in zip(self.stacks, self.factors, strict=True)
        ]
        return torch.optim.Adam(groups, betas=BETAS, foreach=False, fused=False)  # fused ones round by the stack's size
