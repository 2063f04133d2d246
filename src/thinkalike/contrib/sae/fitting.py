"""Trains the autoencoders of a job: every start at every rate with every seed, in one pass."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

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

# A training that reads the text more often than this is reported: it reads some tokens again.
MOST_PASSES = 1.01

# If there are several learning rates, every other document chooses among them, and the documents
# between these judge the one that is chosen.
CHOOSING_DOCUMENTS = slice(0, None, 2)
JUDGING_DOCUMENTS = slice(1, None, 2)
ALL_DOCUMENTS = slice(None)


class JudgedErrors(NamedTuple):
    """The errors of reconstructed states h, on the documents that did not choose a learning rate.

    Attributes:
        errors: Σ‖h - ĥ‖² by document, of each autoencoder at each evaluation.
        spread: Σ‖h - μ‖² by document, the error of the mean state μ.
    """

    errors: Float[Tensor, "evaluations starts rates seeds documents"]
    spread: Float[Tensor, " documents"]


@dataclass(frozen=True)
class FittedAutoencoders:
    """What became of the autoencoders of a job, by evaluation, start, learning rate and seed.

    A start is how the first weights are made. If there are several rates, the best rate of a start
    is chosen on every other document of the evaluation text, and judged on the other documents.

    Attributes:
        errors: Σ‖h - ĥ‖² by document, for states h and their reconstructions ĥ.
        spread: Σ‖h - μ‖² by document, where μ is the mean state.
        active: How many latents are active on average.
        dead: The share of latents that are active for no state.
        before_training: The autoencoders with their first weights, by start, rate and seed.
        after_training: The same autoencoders after training, in the same order.
    """

    errors: Float[Tensor, "evaluations starts rates seeds documents"]
    spread: Float[Tensor, " documents"]
    active: Float[Tensor, "evaluations starts rates seeds"]
    dead: Float[Tensor, "evaluations starts rates seeds"]
    before_training: list[SparseAutoencoder]
    after_training: list[SparseAutoencoder]

    @property
    def _has_several_rates(self) -> bool:
        """Whether half of the documents choose among learning rates, and the others judge."""
        return self.errors.shape[2] > 1

    def best_rate_index(self, start: int, evaluation: int = -1) -> int:
        """Return the index of the learning rate with the least error, summed over documents.

        The error is the mean over seeds. If there are several rates, it is computed on every other
        document alone, so that the rate is not chosen on the documents that judge it.

        Args:
            start: The index of the kind of first weights.
            evaluation: The index of the evaluation during training; -1: the last.
        """
        documents = CHOOSING_DOCUMENTS if self._has_several_rates else ALL_DOCUMENTS
        # `self.errors` has the axes (evaluations, starts, rates, seeds, documents).
        errors = self.errors[evaluation, start, ..., documents]  # (rates, seeds, documents)
        summed_over_documents = errors.sum(-1)
        mean_over_seeds = summed_over_documents.mean(-1)  # (rates,)
        return int(mean_over_seeds.argmin())

    @property
    def judged(self) -> JudgedErrors:
        """The errors of all autoencoders on the documents that did not choose the learning rate.

        If there are several rates, every other document chooses the best one, and the documents
        between these judge it. With one rate, all documents judge. The errors are Σ‖h - ĥ‖² of
        states h and their reconstructions ĥ, beside the spread Σ‖h - μ‖² around the mean μ.
        """
        documents = JUDGING_DOCUMENTS if self._has_several_rates else ALL_DOCUMENTS
        return JudgedErrors(self.errors[..., documents], self.spread[documents])

    def index(self, start: int, rate: int, seed: int) -> int:
        """Return the index of an autoencoder in the lists of all autoencoders.

        An autoencoder is trained for each start (kind of first weights), learning rate and seed.
        The lists `before_training` and `after_training` have the starts one after another, in each
        start the learning rates, and for each rate the seeds.

        Args:
            start: The index of the kind of first weights.
            rate: The index of the learning rate.
            seed: The index of the seed.
        """
        _, _, n_rates, n_seeds = self.active.shape  # (evaluations, starts, rates, seeds)
        return (start * n_rates + rate) * n_seeds + seed


def fit_all(
    materials: SAEMaterials, run: TrainingRun, loggers: Sequence[Logger]
) -> FittedAutoencoders:
    """Train all autoencoders of a job: from every start, at every learning rate, with every seed.

    All are trained in one pass over the text, and evaluated several times on the way. A start is
    how the first weights are made, such as "random".

    Args:
        materials: The model, the text, and what the first weights are made from.
        run: Where and how the training runs.
        loggers: What the losses are logged to.
    """
    config = materials.config
    fits = []
    for start in config.starts:
        for factor in config.factors:
            for seed in materials.seeds:
                fits.append(SAEFit(materials.first_autoencoder(start, seed), factor, seed))
    training = SAETraining(
        materials.model, fits, config, materials.mean, materials.scale, materials.evaluation_states
    )
    log.info("%d autoencoders of %d latents, %d steps", len(fits), config.width, config.steps)
    n_passes = materials.tokens_read[-1] / materials.corpus.counts["fit_tokens"]
    if n_passes > MOST_PASSES:
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
    last_evaluation = len(config.evaluation_steps) - 1
    training.evaluate(last_evaluation)

    shape = (len(config.evaluation_steps), len(config.starts), len(config.factors), config.seeds)
    return FittedAutoencoders(
        errors=training.errors.cpu().double().view(*shape, -1),
        spread=spread_by_document(materials.evaluation_states, training.errors.shape[-1]),
        active=training.active.cpu().view(shape),
        dead=training.dead.cpu().view(shape),
        before_training=[sae_fit.start for sae_fit in fits],
        after_training=training.trained(),
    )
