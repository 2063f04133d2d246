"""Training: Lightning modules for stitches and minis, and the one way that both are run."""

from thinkalike.training.pretraining import Pretraining
from thinkalike.training.run import Run, fit
from thinkalike.training.stitching import StitchTraining, document_losses, next_token_losses, peak_rate, rate

__all__ = ["Pretraining", "Run", "StitchTraining", "document_losses", "fit", "next_token_losses", "peak_rate", "rate"]
