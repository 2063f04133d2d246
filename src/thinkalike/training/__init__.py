"""Training: Lightning modules for stitches, minis, classifiers and autoencoders, and the one way that all run."""

from thinkalike.training.finetuning import Finetuning
from thinkalike.training.flops import Place, speed, step_operations, stitching_step
from thinkalike.training.pretraining import MaskedPretraining, Pretraining
from thinkalike.training.run import Run, fit, loggers_of
from thinkalike.training.saes import SAEFit, SAETraining
from thinkalike.training.schedules import momenta, peak_rate, rate
from thinkalike.training.steps import StepBatches
from thinkalike.training.stitching import Fit, StitchTraining

__all__ = [
    "Finetuning",
    "Fit",
    "MaskedPretraining",
    "Place",
    "Pretraining",
    "Run",
    "SAEFit",
    "SAETraining",
    "StepBatches",
    "StitchTraining",
    "fit",
    "loggers_of",
    "momenta",
    "peak_rate",
    "rate",
    "speed",
    "step_operations",
    "stitching_step",
]
