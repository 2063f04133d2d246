"""Measures: torch only, pure functions of tensors and small modules. They know no models, files or configuration."""

from thinkalike.measures.centring import leverage
from thinkalike.measures.cka import alignment, cka
from thinkalike.measures.cka_metric import CKA
from thinkalike.measures.cka_result import CKAResult, Distance
from thinkalike.measures.closed_forms import AffineMap, Moments, bias_only, least_squares, procrustes, reduced_rank
from thinkalike.measures.feature_space import FeatureSpaceCKA
from thinkalike.measures.hsic import hsic0, hsic1
from thinkalike.measures.intervals import bootstrap_interval, sum_by_document
from thinkalike.measures.jackknife import Estimate, jackknife, leave_one_out
from thinkalike.measures.loss import same_top_token, token_kl, token_loss, unigram_entropy
from thinkalike.measures.properties import PROPERTIES, Properties
from thinkalike.measures.stitch import Stitch

__all__ = [
    "CKA",
    "PROPERTIES",
    "AffineMap",
    "CKAResult",
    "Distance",
    "Estimate",
    "FeatureSpaceCKA",
    "Moments",
    "Properties",
    "Stitch",
    "alignment",
    "bias_only",
    "bootstrap_interval",
    "cka",
    "hsic0",
    "hsic1",
    "jackknife",
    "least_squares",
    "leave_one_out",
    "leverage",
    "procrustes",
    "reduced_rank",
    "same_top_token",
    "sum_by_document",
    "token_kl",
    "token_loss",
    "unigram_entropy",
]
