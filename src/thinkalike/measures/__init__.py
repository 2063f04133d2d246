"""Measures: torch only, pure functions of tensors and small modules. They know no models, files or configuration."""

from thinkalike.measures.centring import leverage
from thinkalike.measures.cka import alignment, cka
from thinkalike.measures.cka_metric import CKA
from thinkalike.measures.cka_result import CKAResult, Distance, arc_length
from thinkalike.measures.closed_forms import AffineMap, Moments, bias_only, least_squares, procrustes, reduced_rank
from thinkalike.measures.differentiable_mlem import DifferentiableMLEM
from thinkalike.measures.distances import NeuralDistances
from thinkalike.measures.feature_space import FeatureSpaceCKA
from thinkalike.measures.features import FeatureEncoder, Features
from thinkalike.measures.folds import fold_interval, splits, stimulus_folds
from thinkalike.measures.hsic import hsic0, hsic1
from thinkalike.measures.importance import Importance, feature_importance
from thinkalike.measures.intervals import bootstrap_interval, sum_by_document
from thinkalike.measures.jackknife import Estimate, jackknife, leave_one_out
from thinkalike.measures.loss import same_top_token, token_kl, token_loss, unigram_entropy
from thinkalike.measures.mlem import MLEM
from thinkalike.measures.profiles import mds, weighted_tau
from thinkalike.measures.properties import PROPERTIES, Properties
from thinkalike.measures.ranks import mid_ranks, spearman
from thinkalike.measures.rsa import mantel, matrix_agreement, rsa, rsa_estimate
from thinkalike.measures.stitch import Stitch

__all__ = [
    "CKA",
    "MLEM",
    "PROPERTIES",
    "AffineMap",
    "CKAResult",
    "DifferentiableMLEM",
    "Distance",
    "Estimate",
    "FeatureEncoder",
    "FeatureSpaceCKA",
    "Features",
    "Importance",
    "Moments",
    "NeuralDistances",
    "Properties",
    "Stitch",
    "alignment",
    "arc_length",
    "bias_only",
    "bootstrap_interval",
    "cka",
    "feature_importance",
    "fold_interval",
    "hsic0",
    "hsic1",
    "jackknife",
    "least_squares",
    "leave_one_out",
    "leverage",
    "mantel",
    "matrix_agreement",
    "mds",
    "mid_ranks",
    "procrustes",
    "reduced_rank",
    "rsa",
    "rsa_estimate",
    "same_top_token",
    "spearman",
    "splits",
    "stimulus_folds",
    "sum_by_document",
    "token_kl",
    "token_loss",
    "unigram_entropy",
    "weighted_tau",
]
