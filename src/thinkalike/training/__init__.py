"""Training: Lightning modules for stitches, minis and classifiers, and the one way that all of them run."""

from thinkalike.training.finetuning import Finetuning
from thinkalike.training.pretraining import MaskedPretraining, Pretraining
from thinkalike.training.run import Run, check_processes, fit, logged, own_device, upload
from thinkalike.training.schedules import peak_rate, rate
from thinkalike.training.stitching import MOMENTA, Fit, StitchTraining

__all__ = [
    "MOMENTA",
    "Finetuning",
    "Fit",
    "MaskedPretraining",
    "Pretraining",
    "Run",
    "StitchTraining",
    "check_processes",
    "fit",
    "logged",
    "own_device",
    "peak_rate",
    "rate",
    "upload",
]
