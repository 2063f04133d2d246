"""Training: Lightning modules for stitches, minis and classifiers, and the one way that all of them run."""

from thinkalike.training.finetuning import Finetuning
from thinkalike.training.pretraining import MaskedPretraining, Pretraining
from thinkalike.training.run import Run, fit, loggers_of
from thinkalike.training.schedules import momenta, peak_rate, rate
from thinkalike.training.stitching import Fit, StitchTraining

__all__ = [
    "Finetuning",
    "Fit",
    "MaskedPretraining",
    "Pretraining",
    "Run",
    "StitchTraining",
    "fit",
    "loggers_of",
    "momenta",
    "peak_rate",
    "rate",
]
