"""How the autoencoders of a job are trained: every start at every rate with every seed, in one pass over the text."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from thinkalike.config import SAEConfig
from thinkalike.errors import TrainingError
from thinkalike.evaluation import spread_by_document
from thinkalike.instruments.sae.setting import Setting
from thinkalike.measures import SparseAutoencoder
from thinkalike.training import Run, SAEFit, SAETraining, fit

log = logging.getLogger(__name__)

WINDOW = 0.9  # of the steps up to a look: those after it say which rate is best, as nobody has trained on them yet


@dataclass(frozen=True)
class Fitted:
    """What became of the autoencoders of a job, by start, rate, seed and look.

    Attributes:
        errors: (looks, starts, rates, seeds, documents) of the report.
        spread: (documents) of the report.
        active, dead, missed: (looks, starts, rates, seeds), the last of the text of training just before each look.
        began, ended: the autoencoders, by start, rate and seed.
    """

    errors: Tensor
    spread: Tensor
    active: Tensor
    dead: Tensor
    missed: Tensor
    began: list[SparseAutoencoder]
    ended: list[SparseAutoencoder]

    def best_rate(self, start: int, look: int = -1) -> int:
        """Return the number of the rate that has missed least before a look, on average over seeds."""
        return int(self.missed[look, start].mean(-1).argmin())

    def place(self, start: int, rate: int, seed: int) -> int:
        """Return the number of an autoencoder in `began` and `ended`."""
        _, _, rates, seeds = self.missed.shape
        return (start * rates + rate) * seeds + seed


def fitted(setting: Setting, run: Run, loggers: Sequence[Any]) -> Fitted:
    """Train all autoencoders of a job.

    Raises:
        TrainingError: a loss is no number, or the best rate of a start explains less than nothing at its end.
    """
    config, rows = setting.config, setting.corpus.fit.tokens
    fits = [
        SAEFit(setting.begins(start, seed), factor, seed)
        for start in config.starts
        for factor in config.factors
        for seed in setting.seeds
    ]
    module = SAETraining(setting.model, rows, fits, config, setting.mean, setting.scale, setting.report)
    log.info("%d autoencoders of %d latents, %d steps", len(fits), config.width, config.steps)
    _warn_of_repetition(config.steps * config.tokens_per_step, setting.corpus.counts["fit_tokens"])
    if config.steps:
        with setting.model.compiled(run.trainer.compile), setting.model.cast(run.trainer.precision == "bf16-mixed"):
            fit(module, run, loggers)
    module.to(setting.model.device)
    module.look(len(config.looks) - 1)
    shape = len(config.looks), len(config.starts), len(config.factors), config.seeds
    made = Fitted(
        module.errors.cpu().double().view(*shape, -1),
        spread_by_document(setting.report, module.errors.shape[-1]),
        module.active.cpu().view(shape),
        module.dead.cpu().view(shape),
        _missed(module).cpu().view(shape),
        began=[each.begins for each in fits],
        ended=module.trained(),
    )
    _check_convergence(config, made)
    return made


def _missed(module: SAETraining) -> Tensor:
    """Return the share that was not explained in the last tenth of the steps before each look; 0 before any step."""
    ends = module.config.looks
    starts = [min(int(WINDOW * end), end - 1) for end in ends]
    parts = [module.curve[start:end].mean(0) for start, end in zip(starts, ends, strict=True) if end]
    return torch.stack([torch.zeros_like(module.active[0]), *parts])


def _check_convergence(config: SAEConfig, made: Fitted) -> None:
    """Refuse an autoencoder that training has made worse than the mean, whichever start it has."""
    last = 1 - made.errors[-1].sum(-1) / made.spread.sum()
    for number, start in enumerate(config.starts):
        explained = float(last[number, made.best_rate(number)].mean())
        if config.steps and explained < 0:
            raise TrainingError(
                f"the autoencoder with the start {start} explains {explained:.3g} of the variance after training, less "
                f"than the mean alone: lower sae.lr={config.lr:g}"
            )


def _warn_of_repetition(seen: int, tokens: int) -> None:
    if seen > 1.01 * tokens:
        log.warning("warning: training reads the fit tokens %.1f times over: there are no more", seen / tokens)
