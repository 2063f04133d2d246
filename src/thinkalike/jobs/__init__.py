"""The jobs behind the doors: configuration, models and data, training or measure, store; one function each."""

from thinkalike.jobs.asymmetry import asymmetries, asymmetry, penalty_difference
from thinkalike.jobs.cka import cka
from thinkalike.jobs.loss import loss
from thinkalike.jobs.mlem import mlem
from thinkalike.jobs.nli import nli
from thinkalike.jobs.population import population
from thinkalike.jobs.pretraining import pretrain
from thinkalike.jobs.rsa import rsa
from thinkalike.jobs.stitching import stitch

__all__ = [
    "asymmetries",
    "asymmetry",
    "cka",
    "loss",
    "mlem",
    "nli",
    "penalty_difference",
    "population",
    "pretrain",
    "rsa",
    "stitch",
]
