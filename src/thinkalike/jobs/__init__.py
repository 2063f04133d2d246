"""The jobs behind the doors: configuration, models and data, training or measure, store; one function each."""

from thinkalike.jobs.loss import loss
from thinkalike.jobs.pretraining import pretrain
from thinkalike.jobs.stitching import stitch

__all__ = ["loss", "pretrain", "stitch"]
