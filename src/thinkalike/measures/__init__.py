"""Measures: torch only, pure functions of tensors and small modules. They know no models, files or configuration.

Code outside imports from here, and each name is loaded when it is first used.

Every function here takes NumPy arrays, DataFrames and lists, too, where it wants a tensor; see `thinkalike.arguments`.
The modules below have the same functions for tensors alone.
"""

from importlib import import_module
from inspect import isfunction
from typing import Any

_NAMES = """
accumulator: Accumulator
bootstrap: bootstrap_interval documents_and_seeds_interval sum_by_document
calibration: Calibrated calibrate
centred_rows: leverage
chance: Chance
changes: two_sided
closed_forms: AffineMap bias_only least_squares procrustes reduced_rank
contract: LayerMeasure
distances.comparators: COMPARATORS WHITENED comparable compare weighted_tau
distances.crossnobis: NOISES crossnobis noise_covariance
distances.neural: NeuralDistances
distances.of_layers: DISTANCE_CORRELATION RANKED_DISTANCES distance_correlation
distances.ranks: mid_ranks spearman
distances.rsa: Mantel distance_vectors mantel rsa rsa_estimate
estimates: Estimate interval_around jackknife student_t
folds: splits stimulus_folds
hsic: hsic0 hsic1
kernel_alignment: alignment arc_length cka cka_measure
layer_means: LayerMeans
layer_pair_estimate: LayerPairEstimate
losses: CHUNK OutputMatch compare_outputs token_kl token_loss unigram_entropy
metric: CKA CKAResult
mlem.differentiable: DifferentiableMLEM
mlem.encoding_model: MLEM
mlem.features: FeatureEncoder Features
mlem.importance: Importance feature_importance fold_interval
mlem.split_half: split_half_reference
moments: Moments PairStatistics
neighbour_sets: jaccard jaccard_measure second_order_cosine second_order_measure
neighbours: mutual_knn mutual_measure
outputs: DISAGREEMENT JENSEN_SHANNON disagreement jensen_shannon
permutations: permuted_rows
residual: ResidualStates
ridge: HeldOut Predictor
row_groups: FEW RowGroups
rows: rows_of
sample_size: effective_number
shape: PROCRUSTES procrustes_distance
singular_vectors: svcca svcca_measure
unit_matching: SOFT_MATCHING soft_matching transport_plan
"""  # by module
_HOMES = {name: line.split(":")[0] for line in _NAMES.split("\n") for name in line.partition(": ")[2].split()}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'thinkalike.measures' has no attribute '{name}'")
    found = getattr(import_module(f"thinkalike.measures.{_HOMES[name]}"), name)
    if isfunction(found):
        from thinkalike.arguments import takes_arrays

        found = takes_arrays(found)
        found.__module__ = __name__  # where pickle finds it
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*__all__]
