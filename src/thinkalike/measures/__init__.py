"""Measures: torch only, pure functions of tensors and small modules. They know no models, files or configuration.

Code outside imports from here: `kernels` (HSIC, CKA), `mlem` (metric-learning encoding models), `distances` (RSA,
comparators, crossnobis, distance correlation), `shape` (Procrustes, SVCCA, soft matching), `neighbours` (who is near
whom), `outputs` (divergence of logits), `calibration` (the contract of measures of layer pairs, nulls and p-values),
`conditional` (likeness given the token, and linear prediction), `stitching` (maps between models, and their losses),
`sae` (sparse autoencoders, and how they are carried from one stream to another), `transfer` (probes and steering
vectors through maps), `subjects` (noise ceilings, models in several subjects), `statistics` (estimates with their
intervals).

Every function here takes NumPy arrays, DataFrames and lists, too, where it wants a tensor; see `thinkalike.arguments`.
"""

from inspect import isfunction
from typing import TYPE_CHECKING, Any

from thinkalike.arguments import takes_arrays
from thinkalike.measures.calibration.chance import CalibratedEstimate, Chance
from thinkalike.measures.calibration.contract import LayerMeasure
from thinkalike.measures.calibration.documents import FEW_DOCUMENTS, permuted_rows
from thinkalike.measures.calibration.every import layer_measures
from thinkalike.measures.calibration.metric import LayerMeans
from thinkalike.measures.conditional.future import surprises, token_codes
from thinkalike.measures.conditional.groups import FEW, RowGroups
from thinkalike.measures.conditional.hsic import group_hsics
from thinkalike.measures.conditional.layer_prediction import LayerPredictions, PredictionEstimate
from thinkalike.measures.conditional.linear import LinearPrediction
from thinkalike.measures.distances.ceilings import ceiling
from thinkalike.measures.distances.comparators import COMPARATORS, WHITENED, comparable, compare
from thinkalike.measures.distances.crossnobis import NOISES, crossnobis, noise_covariance
from thinkalike.measures.distances.distance_correlation import distance_correlation
from thinkalike.measures.distances.kendall import weighted_tau
from thinkalike.measures.distances.neural import NeuralDistances
from thinkalike.measures.distances.ranks import mid_ranks, spearman
from thinkalike.measures.distances.representational_similarity import (
    distance_vectors,
    mantel,
    matrix_agreement,
    rsa,
    rsa_estimate,
)
from thinkalike.measures.distances.scaling import mds
from thinkalike.measures.kernels.centring import leverage
from thinkalike.measures.kernels.feature_space import FeatureSpaceCKA
from thinkalike.measures.kernels.hsic import hsic0, hsic1
from thinkalike.measures.kernels.kernel_alignment import alignment, cka
from thinkalike.measures.kernels.result import CKAResult, ModelDistance, arc_length
from thinkalike.measures.kernels.rows import rows_of
from thinkalike.measures.mlem.differentiable import DifferentiableMLEM
from thinkalike.measures.mlem.encoding_model import MLEM
from thinkalike.measures.mlem.features import FeatureEncoder, Features
from thinkalike.measures.mlem.importance import Importance, feature_importance
from thinkalike.measures.neighbours.mutual import mutual_knn, mutual_knn_matrix
from thinkalike.measures.neighbours.sets import jaccard, second_order_cosine
from thinkalike.measures.neighbours.within import NeighbourEstimate, NeighboursGivenToken
from thinkalike.measures.outputs.divergence import disagreement, jensen_shannon
from thinkalike.measures.sae.autoencoder import SparseAutoencoder
from thinkalike.measures.sae.carrying import carried, in_own_units, standardised, with_fitted_decoder
from thinkalike.measures.sae.saelens import SavedSAE, load_sae, save_sae
from thinkalike.measures.sae.scores import (
    Dead,
    dead_latents,
    explained_variance,
    loss_recovered,
    sae_loss,
    spread_of,
)
from thinkalike.measures.shape.procrustes import procrustes_distance
from thinkalike.measures.shape.soft_matching import soft_matching
from thinkalike.measures.shape.subspaces import svcca
from thinkalike.measures.statistics.batch_means import BatchMeans, LayerPairEstimate
from thinkalike.measures.statistics.bootstrapping import (
    bootstrap_difference,
    bootstrap_interval,
    effective_number,
    sum_by_document,
)
from thinkalike.measures.statistics.clusters import agreement, agreement_p, cluster, symmetric
from thinkalike.measures.statistics.crossed import documents_and_seeds_interval
from thinkalike.measures.statistics.estimate import Estimate, interval_around, span
from thinkalike.measures.statistics.folds import fold_interval, splits, stimulus_folds
from thinkalike.measures.statistics.jackknifing import jackknife, leave_one_out
from thinkalike.measures.statistics.populations import (
    Grouped,
    change_point,
    flips,
    grouped,
    onset,
    parting,
    population_penalties,
)
from thinkalike.measures.statistics.properties import PROPERTIES, Properties
from thinkalike.measures.statistics.random_effects import random_effects, two_sided
from thinkalike.measures.statistics.separation import separation
from thinkalike.measures.statistics.student import student_p, student_t
from thinkalike.measures.stitching.both_directions import BothDirections, Unexplained, both_directions, unexplained_by
from thinkalike.measures.stitching.closed_forms import AffineMap, bias_only, least_squares, procrustes, reduced_rank
from thinkalike.measures.stitching.losses import CHUNK, token_kl, token_loss, unigram_entropy
from thinkalike.measures.stitching.moments import RIDGE, Moments, PairMoments, PairStatistics
from thinkalike.measures.stitching.outputs import OutputMatch, compare_outputs
from thinkalike.measures.stitching.stitch import Stitch
from thinkalike.measures.subjects.model_scores import ModelScores, Scored, model_scores
from thinkalike.measures.subjects.noise_ceilings import NoiseCeiling, noise_ceiling
from thinkalike.measures.subjects.two_factors import Draws, TwoFactors, draw, dual_variance, two_factor
from thinkalike.measures.transfer.accuracy import Accuracy, balanced_accuracies
from thinkalike.measures.transfer.crossfitting import CrossFitted, balanced_folds, cross_fitted
from thinkalike.measures.transfer.probes import Probe, fit_probes
from thinkalike.measures.transfer.random_maps import random_rotation, turned_at_random
from thinkalike.measures.transfer.steering import (
    Effects,
    carried_vectors,
    effects_of,
    held_out_differences,
    random_directions,
    with_norms_of,
)

if TYPE_CHECKING:
    from thinkalike.measures.kernels.metric import CKA

__all__ = [
    "CHUNK",
    "CKA",
    "COMPARATORS",
    "FEW",
    "FEW_DOCUMENTS",
    "MLEM",
    "NOISES",
    "PROPERTIES",
    "RIDGE",
    "WHITENED",
    "Accuracy",
    "AffineMap",
    "BatchMeans",
    "BothDirections",
    "CKAResult",
    "CalibratedEstimate",
    "Chance",
    "CrossFitted",
    "Dead",
    "DifferentiableMLEM",
    "Draws",
    "Effects",
    "Estimate",
    "FeatureEncoder",
    "FeatureSpaceCKA",
    "Features",
    "Grouped",
    "Importance",
    "LayerMeans",
    "LayerMeasure",
    "LayerPairEstimate",
    "LayerPredictions",
    "LinearPrediction",
    "ModelDistance",
    "ModelScores",
    "Moments",
    "NeighbourEstimate",
    "NeighboursGivenToken",
    "NeuralDistances",
    "NoiseCeiling",
    "OutputMatch",
    "PairMoments",
    "PairStatistics",
    "PredictionEstimate",
    "Probe",
    "Properties",
    "RowGroups",
    "SavedSAE",
    "Scored",
    "SparseAutoencoder",
    "Stitch",
    "TwoFactors",
    "Unexplained",
    "agreement",
    "agreement_p",
    "alignment",
    "arc_length",
    "balanced_accuracies",
    "balanced_folds",
    "bias_only",
    "bootstrap_difference",
    "bootstrap_interval",
    "both_directions",
    "carried",
    "carried_vectors",
    "ceiling",
    "change_point",
    "cka",
    "cluster",
    "comparable",
    "compare",
    "compare_outputs",
    "cross_fitted",
    "crossnobis",
    "dead_latents",
    "disagreement",
    "distance_correlation",
    "distance_vectors",
    "documents_and_seeds_interval",
    "draw",
    "dual_variance",
    "effective_number",
    "effects_of",
    "explained_variance",
    "feature_importance",
    "fit_probes",
    "flips",
    "fold_interval",
    "group_hsics",
    "grouped",
    "held_out_differences",
    "hsic0",
    "hsic1",
    "in_own_units",
    "interval_around",
    "jaccard",
    "jackknife",
    "jensen_shannon",
    "layer_measures",
    "least_squares",
    "leave_one_out",
    "leverage",
    "load_sae",
    "loss_recovered",
    "mantel",
    "matrix_agreement",
    "mds",
    "mid_ranks",
    "model_scores",
    "mutual_knn",
    "mutual_knn_matrix",
    "noise_ceiling",
    "noise_covariance",
    "onset",
    "parting",
    "permuted_rows",
    "population_penalties",
    "procrustes",
    "procrustes_distance",
    "random_directions",
    "random_effects",
    "random_rotation",
    "reduced_rank",
    "rows_of",
    "rsa",
    "rsa_estimate",
    "sae_loss",
    "save_sae",
    "second_order_cosine",
    "separation",
    "soft_matching",
    "span",
    "spearman",
    "splits",
    "spread_of",
    "standardised",
    "stimulus_folds",
    "student_p",
    "student_t",
    "sum_by_document",
    "surprises",
    "svcca",
    "symmetric",
    "token_codes",
    "token_kl",
    "token_loss",
    "turned_at_random",
    "two_factor",
    "two_sided",
    "unexplained_by",
    "unigram_entropy",
    "weighted_tau",
    "with_fitted_decoder",
    "with_norms_of",
]

for _name in __all__:
    if isfunction(_function := globals().get(_name)):
        globals()[_name] = takes_arrays(_function)
        globals()[_name].__module__ = __name__  # where pickle finds it


def __getattr__(name: str) -> Any:
    if name == "CKA":  # the only one that needs torchmetrics, which takes seconds to import
        from thinkalike.measures.kernels.metric import CKA

        return CKA
    raise AttributeError(f"module 'thinkalike.measures' has no attribute '{name}'")
