"""Training: Lightning modules for stitches and minis, the one way that both run, and what a stitch is measured by."""

from thinkalike.training.finetuning import Finetuning
from thinkalike.training.pretraining import MaskedPretraining, Pretraining, masked_losses
from thinkalike.training.report import Maps, document_sums, state_moments
from thinkalike.training.run import Run, fit, logged, own_device, rank, upload
from thinkalike.training.stitching import Pair, StitchTraining, next_token_losses, peak_rate, rate

__all__ = [
    "Finetuning",
    "Maps",
    "MaskedPretraining",
    "Pair",
    "Pretraining",
    "Run",
    "StitchTraining",
    "document_sums",
    "fit",
    "logged",
    "masked_losses",
    "next_token_losses",
    "own_device",
    "peak_rate",
    "rank",
    "rate",
    "state_moments",
    "upload",
]
