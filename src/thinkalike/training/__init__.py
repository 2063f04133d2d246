"""Training: Lightning modules for stitches and minis, and the one way that both are run."""

from thinkalike.training.pretraining import Pretraining, pretrain
from thinkalike.training.stitching import StitchTraining, train_stitches

__all__ = ["Pretraining", "StitchTraining", "pretrain", "train_stitches"]
