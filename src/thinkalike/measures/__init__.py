"""Measures: torch only, pure functions of tensors and small modules. They know no models, files or configuration."""

from thinkalike.measures.intervals import bootstrap_interval, sum_by_document
from thinkalike.measures.loss import token_loss, unigram_entropy
from thinkalike.measures.stitch import Stitch

__all__ = ["Stitch", "bootstrap_interval", "sum_by_document", "token_loss", "unigram_entropy"]
