"""What type checkers see, by `python docs/make_stub.py`: every function takes arrays of every sort."""

import os
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from thinkalike.arguments import Array
from thinkalike.measures.calibration.chance import CalibratedEstimate as CalibratedEstimate
from thinkalike.measures.calibration.chance import Chance as Chance
from thinkalike.measures.calibration.contract import LayerMeasure as LayerMeasure
from thinkalike.measures.calibration.documents import FEW_DOCUMENTS as FEW_DOCUMENTS
from thinkalike.measures.calibration.metric import LayerMeans as LayerMeans
from thinkalike.measures.conditional.groups import FEW as FEW
from thinkalike.measures.conditional.groups import RowGroups as RowGroups
from thinkalike.measures.conditional.layer_prediction import LayerPredictions as LayerPredictions
from thinkalike.measures.conditional.layer_prediction import PredictionEstimate as PredictionEstimate
from thinkalike.measures.conditional.linear import LinearPrediction as LinearPrediction
from thinkalike.measures.distances.comparators import COMPARATORS as COMPARATORS
from thinkalike.measures.distances.comparators import WHITENED as WHITENED
from thinkalike.measures.distances.crossnobis import NOISES as NOISES
from thinkalike.measures.distances.neural import DistanceChoice
from thinkalike.measures.distances.neural import NeuralDistances as NeuralDistances
from thinkalike.measures.kernels.feature_space import FeatureSpaceCKA as FeatureSpaceCKA
from thinkalike.measures.kernels.metric import CKA as CKA
from thinkalike.measures.kernels.result import CKAResult as CKAResult
from thinkalike.measures.kernels.result import ModelDistance as ModelDistance
from thinkalike.measures.mlem.differentiable import DifferentiableMLEM as DifferentiableMLEM
from thinkalike.measures.mlem.encoding_model import MLEM as MLEM
from thinkalike.measures.mlem.features import FeatureEncoder as FeatureEncoder
from thinkalike.measures.mlem.features import Features as Features
from thinkalike.measures.mlem.importance import Importance as Importance
from thinkalike.measures.neighbours.within import NeighbourEstimate as NeighbourEstimate
from thinkalike.measures.neighbours.within import NeighboursGivenToken as NeighboursGivenToken
from thinkalike.measures.sae.autoencoder import SparseAutoencoder as SparseAutoencoder
from thinkalike.measures.sae.saelens import SavedSAE as SavedSAE
from thinkalike.measures.sae.scores import Dead as Dead
from thinkalike.measures.sae.scores import SAELoss
from thinkalike.measures.statistics.batch_means import BatchMeans as BatchMeans
from thinkalike.measures.statistics.batch_means import LayerPairEstimate as LayerPairEstimate
from thinkalike.measures.statistics.estimate import Estimate as Estimate
from thinkalike.measures.statistics.populations import Grouped as Grouped
from thinkalike.measures.statistics.properties import PROPERTIES as PROPERTIES
from thinkalike.measures.statistics.properties import Properties as Properties
from thinkalike.measures.statistics.student import student_t as student_t
from thinkalike.measures.stitching.both_directions import BothDirections as BothDirections
from thinkalike.measures.stitching.both_directions import Unexplained as Unexplained
from thinkalike.measures.stitching.closed_forms import AffineMap as AffineMap
from thinkalike.measures.stitching.losses import CHUNK as CHUNK
from thinkalike.measures.stitching.losses import Finish
from thinkalike.measures.stitching.moments import RIDGE as RIDGE
from thinkalike.measures.stitching.moments import LayerPair
from thinkalike.measures.stitching.moments import Moments as Moments
from thinkalike.measures.stitching.moments import PairMoments as PairMoments
from thinkalike.measures.stitching.moments import PairStatistics as PairStatistics
from thinkalike.measures.stitching.outputs import OutputMatch as OutputMatch
from thinkalike.measures.stitching.stitch import Stitch as Stitch
from thinkalike.measures.subjects.model_scores import ModelScores as ModelScores
from thinkalike.measures.subjects.model_scores import Scored as Scored
from thinkalike.measures.subjects.noise_ceilings import NoiseCeiling as NoiseCeiling
from thinkalike.measures.subjects.two_factors import Draws as Draws
from thinkalike.measures.subjects.two_factors import TwoFactors as TwoFactors
from thinkalike.measures.transfer.accuracy import Accuracy as Accuracy
from thinkalike.measures.transfer.crossfitting import CrossFitted as CrossFitted
from thinkalike.measures.transfer.probes import Probe as Probe
from thinkalike.measures.transfer.steering import Effects as Effects

Layers = Sequence[Float[Array, "_ _"] | NeuralDistances] | Float[Array, "l n d"]
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

def agreement(labels: Int[Array, " m"], groups: Sequence[Hashable]) -> float: ...
def agreement_p(labels: Int[Array, " m"], groups: Sequence[Hashable], *, seed: int = ...) -> float: ...
def alignment(hsics: Float[Array, "*b l l"]) -> Float[Tensor, "*b l l"]: ...
def arc_length(ckas: Float[Array, "*b l"]) -> Float[Tensor, "*b"]: ...
def balanced_accuracies(
    right: Shaped[Array, "c n"],
    labels: Int[Array, " n"],
    sentences: Int[Array, " n"],
    levels: int,
    resamples: int,
    seed: int,
) -> list[Accuracy]: ...
def balanced_folds(labels: Int[Array, " n"], groups: Int[Array, " n"], folds: int, seed: int) -> Int[Tensor, " n"]: ...
def bias_only(moments: Moments, pair: LayerPair) -> AffineMap: ...
def bootstrap_difference(
    first: Float[Array, "*b documents"],
    first_counts: Float[Array, " documents"],
    second: Float[Array, "*b documents"],
    second_counts: Float[Array, " documents"],
    *,
    level: float = ...,
    resamples: int = ...,
    seed: int = ...,
    together: bool = ...,
) -> Estimate: ...
def bootstrap_interval(
    sums: Float[Array, "*b documents"],
    counts: Float[Array, " documents"],
    *,
    level: float = ...,
    resamples: int = ...,
    seed: int = ...,
    together: bool = ...,
) -> Estimate: ...
def both_directions(moments: PairMoments | PairStatistics, ridge: float = ...) -> BothDirections: ...
def carried(sae: SparseAutoencoder, up: AffineMap, down: AffineMap) -> SparseAutoencoder: ...
def carried_vectors(vectors: Float[Array, "n d"], mapping: AffineMap) -> Float[Tensor, "n e"]: ...
def ceiling(
    cells: Any,
    layers: Sequence[Float[Array, "n _"]],
    distance: DistanceChoice = ...,
    *,
    groups: Any = ...,
    splits: int = ...,
    seed: int = ...,
) -> Float[Tensor, " l"]: ...
def change_point(curve: Float[Array, "*b l"]) -> Int[Tensor, "*b"]: ...
def cka(
    X: Float[Array, "n d"], Y: Float[Array, "m e"], *, estimator: str = ..., kernel: str = ..., as_printed: bool = ...
) -> Float[Tensor, ""]: ...
def cluster(distances: Float[Array, "m m"], k: int) -> Int[Tensor, " m"]: ...
def comparable(
    vectors: Float[Array, "k p"], comparator: str, names: Sequence[str] = ...
) -> Float[Tensor, "k p"] | Int[Tensor, "k p"]: ...
def compare(
    x: Float[Array, "a p"], y: Float[Array, "b p"], comparator: str = ..., counts: Float[Array, "r n"] | None = ...
) -> Float[Tensor, "*r a b"]: ...
def compare_outputs(
    states: Float[Array, "k n d"],
    finish: Finish,
    reference: Float[Array, "n d"],
    targets: Int[Array, " n"],
    chunk: int = ...,
) -> OutputMatch: ...
def cross_fitted(
    states: Float[Array, "n d"],
    labels: Int[Array, " n"],
    levels: int,
    fold_of: Int[Array, " n"],
    groups: Int[Array, " n"],
    alphas: Sequence[float],
    inner: int,
    seed: int,
) -> CrossFitted: ...
def crossnobis(runs: Float[Array, "m n d"], noise: str = ...) -> Float[Tensor, "n n"]: ...
def dead_latents(latents: Float[Array, "*s n f"]) -> Bool[Tensor, "*s f"]: ...
def disagreement(X: Float[Array, "n v"], Y: Float[Array, "m w"]) -> Float[Tensor, ""]: ...
def distance_correlation(X: Float[Array, "n d"], Y: Float[Array, "m e"]) -> Float[Tensor, ""]: ...
def distance_vectors(layers: Layers, distance: DistanceChoice = ..., n: int | None = ...) -> Float[Tensor, "l p"]: ...
def documents_and_seeds_interval(
    sums: Float[Array, "*b seeds documents"],
    counts: Float[Array, " documents"],
    *,
    level: float = ...,
    resamples: int = ...,
    seed: int = ...,
) -> Estimate: ...
def draw(
    subjects: int, stimuli: int, resamples: int, seed: int = ..., groups: Int[Array, " n"] | None = ...
) -> Draws: ...
def dual_variance(
    both: Float[Array, "*b"], subjects: Float[Array, "*b"], stimuli: Float[Array, "*b"], s: int, n: int
) -> Float[Tensor, "*b"]: ...
def effective_number(counts: Shaped[Array, " documents"]) -> float: ...
def effects_of(
    steered: Float[Array, "c n"], natural: Float[Array, " n"], groups: Int[Array, " n"], resamples: int, seed: int
) -> Effects: ...
def explained_variance(errors: Float[Array, "*s n"], spread: Float[Array, " n"]) -> Float[Tensor, "*s"]: ...
def feature_importance(
    model: MLEM,
    X: Any,
    Y: Any,
    *,
    folds: int = ...,
    permutations: int = ...,
    groups: Any = ...,
    given: int | str | None = ...,
    interactions: Sequence[tuple[int | str, int | str]] = ...,
    null: int = ...,
    seed: int = ...,
) -> Importance: ...
def fit_probes(
    states: Float[Array, "n d"], labels: Int[Array, " n"], levels: int, alphas: Sequence[float], tolerance: float = ...
) -> list[Probe]: ...
def flips(predicted: Int[Array, "m m c n"]) -> Float[Tensor, "m m c n"]: ...
def fold_interval(values: Float[Array, "*b k"], level: float = ...) -> Estimate: ...
def group_hsics(
    rows: Sequence[Float[Array, "n _"]], groups: RowGroups, estimator: str
) -> tuple[Float[Tensor, "l l"], Bool[Tensor, " l"]]: ...
def grouped(
    values: Float[Array, "m m *s"], groups: Sequence[Hashable], *, examples: bool = ..., level: float = ...
) -> Grouped: ...
def held_out_differences(
    before: Float[Array, "n d"], after: Float[Array, "n d"], fold_of: Int[Array, " n"]
) -> Float[Tensor, "n d"]: ...
def hsic0(K: Float[Array, "n n"], L: Float[Array, "n n"]) -> Float[Tensor, ""]: ...
def hsic1(K: Float[Array, "n n"], L: Float[Array, "n n"]) -> Float[Tensor, ""]: ...
def in_own_units(sae: SparseAutoencoder, mean: Float[Array, " d"], scale: float) -> SparseAutoencoder: ...
def interval_around(value: Float[Array, "..."], half: Float[Array, "..."] | float) -> Estimate: ...
def jaccard(X: Float[Array, "n d"], Y: Float[Array, "m e"], k: int = ...) -> Float[Tensor, ""]: ...
def jackknife(value: Float[Array, "*s"], replicates: Float[Array, " b *s"], *, level: float = ...) -> Estimate: ...
def jensen_shannon(X: Float[Array, "n v"], Y: Float[Array, "m w"]) -> Float[Tensor, ""]: ...
def layer_measures(neighbours: int = ..., kept: float = ...) -> dict[str, LayerMeasure]: ...
def least_squares(moments: Moments, pair: LayerPair, ridge: float = ..., bias: bool = ...) -> AffineMap: ...
def leave_one_out(values: Float[Array, " b *s"]) -> Float[Tensor, " b *s"]: ...
def leverage(features: Float[Array, "n d"]) -> Float[Tensor, ""]: ...
def load_sae(folder: str | os.PathLike[str]) -> SavedSAE: ...
def loss_recovered(
    clean: Float[Array, "..."], ablated: Float[Array, "..."], spliced: Float[Array, "..."]
) -> Float[Tensor, "..."]: ...
def mantel(
    layers: Layers,
    others: Layers | None = ...,
    distance: DistanceChoice = ...,
    permutations: int = ...,
    seed: int = ...,
    comparator: str = ...,
) -> tuple[Float[Tensor, "l m"], Float[Tensor, "l m"]]: ...
def matrix_agreement(matrix: Float[Array, "l l"], other: Float[Array, "l l"]) -> Float[Tensor, ""]: ...
def mds(
    dissimilarity: Float[Array, "l l"], dimensions: int = ...
) -> tuple[Float[Tensor, "l k"], Float[Tensor, ""]]: ...
def mid_ranks(values: Float[Array, "*b n"]) -> Float[Tensor, "*b n"]: ...
def model_scores(
    models: Float[Array, "m p"],
    subjects: Float[Array, "s p"],
    comparator: str = ...,
    *,
    resamples: int = ...,
    seed: int = ...,
    groups: Int[Array, " n"] | None = ...,
) -> ModelScores: ...
def mutual_knn(
    X: Float[Array, "n d"], Y: Float[Array, "m e"], k: int = ..., groups: Int[Array, " g"] | None = ...
) -> Float[Tensor, ""]: ...
def mutual_knn_matrix(
    layers: Sequence[Float[Array, "_ _"]], k: int = ..., groups: RowGroups | None = ...
) -> Float[Tensor, "l l"]: ...
def noise_ceiling(subjects: Float[Array, "s p"], comparator: str = ...) -> NoiseCeiling: ...
def noise_covariance(residuals: Float[Array, "k d"], freedom: int) -> Float[Tensor, "d d"]: ...
def onset(curve: Estimate, least: float = ...) -> int | None: ...
def parting(
    values: Float[Array, "m m l"],
    groups: Sequence[Hashable],
    *,
    level: float = ...,
    resamples: int = ...,
    seed: int = ...,
) -> Estimate: ...
def permuted_rows(documents: Int[Array, " n"], generator: torch.Generator) -> Int[Tensor, " n"]: ...
def population_penalties(values: Float[Array, "m m *s"]) -> Float[Tensor, "m m *s"]: ...
def procrustes(moments: Moments, pair: LayerPair, scale: bool = ..., bias: bool = ...) -> AffineMap: ...
def procrustes_distance(X: Float[Array, "n d"], Y: Float[Array, "m e"]) -> Float[Tensor, ""]: ...
def random_directions(
    draws: int, vectors: Float[Array, "n d"], generator: torch.Generator
) -> Float[Tensor, "draws n d"]: ...
def random_effects(values: Float[Array, "*b s"], *, level: float = ...) -> Estimate: ...
def random_rotation(width: int, generator: torch.Generator) -> Float[Tensor, "d d"]: ...
def reduced_rank(moments: Moments, pair: LayerPair, rank: int, ridge: float = ..., bias: bool = ...) -> AffineMap: ...
def rows_of(
    states: Shaped[Array, "*b d"], flatten: str, mask: Shaped[Array, " ..."] | None = ...
) -> Shaped[Tensor, "n e"]: ...
def rsa(
    layers: Layers, others: Layers | None = ..., distance: DistanceChoice = ..., comparator: str = ...
) -> Float[Tensor, "l m"]: ...
def rsa_estimate(
    layers: Layers,
    others: Layers | None = ...,
    distance: DistanceChoice = ...,
    groups: Int[Array, " n"] | None = ...,
    folds: int = ...,
    seed: int = ...,
    comparator: str = ...,
) -> Estimate: ...
def sae_loss(
    sae: SparseAutoencoder, states: Float[Array, "*b n d"], sparsity: float = ..., dead: Dead | None = ...
) -> SAELoss: ...
def save_sae(sae: SparseAutoencoder, folder: str | os.PathLike[str], **metadata: Any) -> None: ...
def second_order_cosine(X: Float[Array, "n d"], Y: Float[Array, "m e"], k: int = ...) -> Float[Tensor, ""]: ...
def separation(
    upper: Float[Array, "c p"], lower: Float[Array, "c n"], *, level: float = ..., resamples: int = ..., seed: int = ...
) -> Estimate: ...
def soft_matching(X: Float[Array, "n d"], Y: Float[Array, "m e"]) -> Float[Tensor, ""]: ...
def span(value: Any, low: Any, high: Any, spec: str = ...) -> str: ...
def spearman(x: Float[Array, "*b n"], y: Float[Array, "*b n"]) -> Float[Tensor, "*b"]: ...
def splits(fold_of: Int[Array, " n"]) -> Iterator[tuple[Int[Tensor, " train"], Int[Tensor, " test"]]]: ...
def spread_of(states: Float[Array, "n d"]) -> Float[Tensor, " n"]: ...
def standardised(sae: SparseAutoencoder, mean: Float[Array, " d"], scale: float) -> SparseAutoencoder: ...
def stimulus_folds(
    n: int, folds: int = ..., seed: int = ..., groups: Int[Array, " n"] | None = ...
) -> Int[Tensor, " n"]: ...
def student_p(t: float, freedom: int) -> float: ...
def sum_by_document(
    values: Float[Array, "*b n"], documents: Int[Array, " n"], count: int
) -> Float[Tensor, "*b documents"]: ...
def surprises(
    states: Float[Array, "n d"], finish: Finish, targets: Int[Array, " n"], codes: Float[Array, "v c"], chunk: int = ...
) -> Float[Tensor, "n c"]: ...
def svcca(X: Float[Array, "n d"], Y: Float[Array, "m e"], kept: float = ...) -> Float[Tensor, ""]: ...
def symmetric(penalties: Float[Array, "m m *s"]) -> Float[Tensor, "m m *s"]: ...
def token_codes(vocabulary: int, numbers: int = ..., seed: int = ...) -> Float[Tensor, "v c"]: ...
def token_kl(
    states: Float[Array, "*k n d"], finish: Finish, reference: Float[Array, "n d"], chunk: int = ...
) -> Float[Tensor, "*k n"]: ...
def token_loss(
    states: Float[Array, "n d"], finish: Finish, targets: Int[Array, " n"], chunk: int = ...
) -> Float[Tensor, " n"]: ...
def turned_at_random(mapping: AffineMap, mean: Float[Array, " d"], generator: torch.Generator) -> AffineMap: ...
def two_factor(
    values: Float[Array, "*b s"], replicates: Float[Array, "r *b s"], draws: Draws, *, level: float = ...
) -> TwoFactors: ...
def two_sided(value: Array, error: Array, freedom: int) -> Float[Tensor, "*b"]: ...
def unexplained_by(fit: AffineMap, statistics: PairStatistics) -> float: ...
def unigram_entropy(tokens: Int[Array, " n"]) -> float: ...
def weighted_tau(profiles: Float[Array, "l f"], others: Float[Array, "m f"] | None = ...) -> Float[Tensor, "l m"]: ...
def with_fitted_decoder(
    sae: SparseAutoencoder, states: Float[Array, "n d"], ridge: float = ...
) -> SparseAutoencoder: ...
def with_norms_of(vectors: Float[Array, "*n d"], others: Float[Array, "n e"]) -> Float[Tensor, "*n d"]: ...
