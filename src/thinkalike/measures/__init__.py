"""Measures: torch only, pure functions of tensors and small modules. They know no models, files or configuration."""

from thinkalike.measures.closed_forms import AffineMap, Moments, bias_only, least_squares, procrustes, reduced_rank
from thinkalike.measures.intervals import bootstrap_interval, sum_by_document
from thinkalike.measures.loss import same_top_token, token_kl, token_loss, unigram_entropy
from thinkalike.measures.stitch import Stitch

__all__ = [
    "AffineMap",
    "Moments",
    "Stitch",
    "bias_only",
    "bootstrap_interval",
    "least_squares",
    "procrustes",
    "reduced_rank",
    "same_top_token",
    "sum_by_document",
    "token_kl",
    "token_loss",
    "unigram_entropy",
]
