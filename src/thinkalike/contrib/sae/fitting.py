"""Trains the autoencoders of a job: every start at every rate with every seed, in one pass."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float
from pytorch_lightning.loggers import Logger
from torch import Tensor

from thinkalike.contrib.sae.autoencoder import SparseAutoencoder
from thinkalike.contrib.sae.materials import SAEMaterials
from thinkalike.contrib.sae.site_states import spread_by_document
from thinkalike.contrib.sae.training import SAEFit, SAETraining
from thinkalike.training.run import TrainingRun
from thinkalike.training.trainer import fit

log = logging.getLogger(__name__)

REPEATED = 1.01  # passes over the fit tokens from which a training reads some of them again


@dataclass(frozen=True)
class FittedAutoencoders:
    """What became of the autoencoders of a job, by evaluation, start, rate and seed.

    Where there are several rates, the best of a start is chosen on every other document of the
    evaluation text, and judged on the other documents.

    Attributes:
        errors: Σ‖h - ĥ‖² by document, see `SAETraining`.
        spread: Σ‖h - μ‖² by document.
        active, dead: See `Reconstruction`.
        starts: The autoencoders before training, by start, rate and seed.
        trained: The autoencoders after training.
    """

    errors: Float[Tensor, "looks starts rates seeds documents"]
    spread: Float[Tensor, " documents"]
    active: Float[Tensor, "looks starts rates seeds"]
    dead: Float[Tensor, "looks starts rates seeds"]
    starts: list[SparseAutoencoder]
    trained: list[SparseAutoencoder]

    @property
    def _has_choice(self) -> bool:
        """Whether there are several rates, so that half of the documents choose one."""
        return self.errors.shape[2] > 1

    def best_rate_index(self, start: int, evaluation: int = -1) -> int:
        """Return the index of the learning rate with the least error, summed over documents.

        The error is the mean over seeds. With several rates, it is computed on every other
        document alone, so that the rate is not chosen on the documents that judge it.

        Args:
            start: The index of the start.
            evaluation: The index of the evaluation during training; -1: the last.
        """
        choosing = slice(None, None, 2) if self._has_choice else slice(None)
        errors = self.errors[evaluation, start, ..., choosing]  # (rates, seeds, documents)
        return int(errors.sum(-1).mean(-1).argmin())

    @property
    def judged(self) -> tuple[Tensor, Tensor]:
        """The errors, and Σ‖h - μ‖², of the documents that did not choose the learning rate."""
        judging = slice(1, None, 2) if self._has_choice else slice(None)
        return self.errors[..., judging], self.spread[judging]

    def index(self, start: int, rate: int, seed: int) -> int:
        """Return the index of an autoencoder in `starts` and `trained`."""
        _, _, n_rates, n_seeds = self.active.shape
        return (start * n_rates + rate) * n_seeds + seed


def fit_all(
    materials: SAEMaterials, run: TrainingRun, loggers: Sequence[Logger]
) -> FittedAutoencoders:
    """Train all autoencoders of a job, from every start, at every rate, with every seed.

    Args:
        materials: The model, the text, and what starts are made from.
        run: Where and how the training runs.
        loggers: What the losses are logged to.
    """
    config = materials.config
    fits = []
    for start in config.starts:
        for factor in config.factors:
            for seed in materials.seeds:
                fits.append(SAEFit(materials.start(start, seed), factor, seed))
    training = SAETraining(
        materials.model, fits, config, materials.mean, materials.scale, materials.report
    )
    log.info("%d autoencoders of %d latents, %d steps", len(fits), config.width, config.steps)
    n_passes = materials.tokens_read[-1] / materials.corpus.counts["fit_tokens"]
    if n_passes > REPEATED:
        log.warning(
            "warning: training reads the fit tokens %.1f times over: there are no more", n_passes
        )

    model = materials.model
    if config.steps:
        data = training.data(materials.corpus.fit.tokens)
        is_half = run.trainer.precision == "bf16-mixed"
        with model.compiled(run.trainer.compile), model.cast(is_half):
            fit(training, data, run, loggers)
    training.to(model.device)
    training.evaluate(len(config.evaluation_steps) - 1)

    shape = (len(config.evaluation_steps), len(config.starts), len(config.factors), config.seeds)
    return FittedAutoencoders(
        errors=training.errors.cpu().double().view(*shape, -1),
        spread=spread_by_document(materials.report, training.errors.shape[-1]),
        active=training.active.cpu().view(shape),
        dead=training.dead.cpu().view(shape),
        starts=[sae_fit.start for sae_fit in fits],
        trained=training.trained(),
    )
